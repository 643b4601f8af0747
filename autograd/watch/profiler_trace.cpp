// Writes profiles as traces in Chrome's JSON format
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
//
// Slices of one thread must nest. Scopes and rules contain what ended within them; calls of modules are slices made of the events within
// one scope or rule (add_modules). Times are rounded to nanoseconds before any subtraction, so that nesting is
// preserved.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>

#include "tapir/autograd/watch/listing_impl.h"
#include "tapir/autograd/watch/profiler_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/core/text_impl.h"

namespace tapir {
namespace {

using detail::json_text;
using Kind = ProfileEvent::Kind;
constexpr int kPerLevel = 64;  // depths between a scope and its contents: for modules
constexpr int kHost = 0;       // the process of the host's threads; device d is process d + 1

std::string shape_of(const ProfileEvent& event) {
    const int shown = std::min<int>(event.rank, 4);
    std::string text = event.rank > 4 ? "(..., " : "(";
    for (int d = 0; d < shown; ++d) text += fmt::format("{}{}", d ? ", " : "", event.sizes[d]);
    return fmt::format("{} {})", name(event.dtype), text);
}

/// Nanoseconds as the format's microseconds.
std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

/// A slice, or an end of an arrow.
struct Piece {
    int process, thread;
    std::int64_t begin, end;  // nanoseconds
    int depth;                // among slices that begin and end together, the outer one has less; arrows come after their slices
    std::string text;         // the rest of its object
};

class Trace {
 public:
    explicit Trace(const Profiler::Data& data) : data_(data) {}

    std::string write();

 private:
    struct Node {
        const ProfileEvent* event;
        std::int64_t begin, end;
    };
    void add_slices_of_thread(std::int32_t thread);
    void add_event(const Node& node, int thread, int depth);
    void add_modules(const std::vector<const Node*>& parts, int depth);
    void add_calls(const std::vector<const Node*>& run, int depth);
    void add_communication();
    void add_streams();
    void add_arrows();
    void add_arrow(const char* what, int from_process, int from_thread, std::int64_t from, int to_process, int to_thread, std::int64_t to);
    void add_name(const char* what, int process, int thread, const std::string& name);

    std::int64_t nanoseconds(double seconds) const { return std::llround(seconds * 1e9); }
    std::int64_t time_of(std::int64_t ticks) const { return std::max<std::int64_t>(nanoseconds(data_.seconds_of(ticks - data_.first)), 0); }

    const Profiler::Data& data_;
    std::vector<std::string> heads_;
    std::vector<Piece> pieces_;
    struct OnDevice {
        int stream, thread;
        std::int64_t launched, begin, end;
        std::string text;
    };
    std::vector<OnDevice> on_devices_;
    int arrows_ = 0;
};

void Trace::add_name(const char* what, int process, int thread, const std::string& name) {
    heads_.push_back(
        fmt::format(R"({{"ph": "M", "pid": {}, "tid": {}, "name": "{}", "args": {{"name": "{}"}}}})", process, thread, what, json_text(name)));
}

void Trace::add_arrow(const char* what, int from_process, int from_thread, std::int64_t from, int to_process, int to_thread, std::int64_t to) {
    const int id = ++arrows_;
    constexpr int last = 1 << 20;
    pieces_.push_back(
        {from_process, from_thread, from, from, last, fmt::format(R"("ph": "s", "id": {}, "name": "{}", "cat": "{}")", id, what, what)});
    pieces_.push_back(
        {to_process, to_thread, to, to, last, fmt::format(R"("ph": "f", "bp": "e", "id": {}, "name": "{}", "cat": "{}")", id, what, what)});
}

void Trace::add_event(const Node& node, int thread, int depth) {
    static constexpr const char* kinds[] = {"forward", "backward", "scope", "copy"};
    const ProfileEvent& event = *node.event;
    const std::string title = json_text(op_name(event));
    std::string args = fmt::format(R"("line": "{}")", json_text(listing::place(event.loc)));
    if (event.module) args += fmt::format(R"(, "module": "{}")", json_text(event.module->shown()));
    if (event.kind == Kind::forward || event.kind == Kind::backward) {
        args += fmt::format(R"(, "output": "{}", "flops": {:.0f}, "bytes": {:.0f})", shape_of(event), event.flops, event.bytes);
    } else if (event.kind == Kind::copy) {
        args += fmt::format(R"(, "bytes": {:.0f})", event.bytes);
    }
    const auto slice = [&](const char* category) {
        return fmt::format(R"("ph": "X", "name": "{}", "cat": "{}", "args": {{{}}})", title, category, args);
    };
    if (const auto* there = data_.device_time(event)) {
        args += fmt::format(R"(, "CUDA ms": {:.4f})", there->seconds * 1e3);
        on_devices_.push_back({there->stream, thread, node.begin, nanoseconds(there->begin), nanoseconds(there->begin + there->seconds),
                               slice(event.kind == Kind::copy ? "copy" : "kernels")});
    }
    pieces_.push_back({kHost, thread, node.begin, node.end, depth, slice(kinds[static_cast<int>(event.kind)])});
}

// Adds slices of modules around parts of one scope or rule. Each event knows its innermost call of a module, and calls are numbered in
// the order in which they begin. So all events between the first and the last event of a call belong to it, and so do those before its first
// event with a higher number: they began later, and the call went on. After its last event, only events with its path are taken.
void Trace::add_modules(const std::vector<const Node*>& parts, int depth) {
    for (std::size_t begin = 0; begin < parts.size();) {
        const auto is_backward = [&](std::size_t i) { return parts[i]->event->kind == Kind::backward; };
        std::size_t end = begin + 1;
        while (end < parts.size() && is_backward(end) == is_backward(begin)) ++end;
        std::vector<const Node*> run(parts.begin() + static_cast<std::ptrdiff_t>(begin), parts.begin() + static_cast<std::ptrdiff_t>(end));
        if (is_backward(begin)) std::reverse(run.begin(), run.end());  // to the order of their ops
        add_calls(run, depth);
        begin = end;
    }
}

void Trace::add_calls(const std::vector<const Node*>& run, int depth) {
    struct Call {
        const ModuleName* module;
        std::uint32_t number;
        std::size_t first, last;
    };
    const auto number_of = [&](std::size_t i) { return run[i]->event->module ? run[i]->event->module_call : 0; };
    std::map<std::uint32_t, Call> calls;
    std::vector<std::size_t> start(run.size());  // the first earlier event such that all from it on have higher numbers
    std::vector<std::size_t> lower;              // numbers ascend
    for (std::size_t i = 0; i < run.size(); ++i) {
        const std::uint32_t number = number_of(i);
        while (!lower.empty() && number_of(lower.back()) > number) lower.pop_back();
        // An earlier event of the same number is of the same call, which then begins there.
        start[i] = lower.empty() ? 0 : number_of(lower.back()) == number ? start[lower.back()] : lower.back() + 1;
        lower.push_back(i);
        if (number == 0) continue;
        calls.try_emplace(number, Call{run[i]->event->module, number, start[i], i}).first->second.last = i;
    }
    std::map<const ModuleName*, std::vector<std::uint32_t>> numbers;
    for (const auto& [number, call] : calls) numbers[call.module].push_back(number);
    std::vector<Call> sorted;
    for (auto& [number, call] : calls) {
        const std::string_view path = call.module->path;
        const std::vector<std::uint32_t>& all = numbers[call.module];
        const auto following = std::upper_bound(all.begin(), all.end(), number);  // the module's next call
        const auto is_part = [&](std::size_t i) {
            if (number_of(i) <= number || (following != all.end() && number_of(i) > *following)) return false;
            const std::string_view other = run[i]->event->module->path;
            return other.size() > path.size() && other.starts_with(path) && other[path.size()] == '.';
        };
        while (!path.empty() && call.last + 1 < run.size() && is_part(call.last + 1)) ++call.last;
        sorted.push_back(call);
    }
    std::stable_sort(sorted.begin(), sorted.end(), [](const Call& a, const Call& b) {
        if (a.first != b.first) return a.first < b.first;
        return a.last != b.last ? a.last > b.last : a.number < b.number;
    });
    std::vector<std::size_t> open;  // the last events of the enclosing calls
    for (Call& call : sorted) {
        while (!open.empty() && open.back() < call.first) open.pop_back();
        if (!open.empty()) call.last = std::min(call.last, open.back());
        const Node &a = *run[call.first], &b = *run[call.last];
        pieces_.push_back({kHost, 0, std::min(a.begin, b.begin), std::max(a.end, b.end),
                           std::min(depth + static_cast<int>(open.size()), depth + kPerLevel - 2),
                           fmt::format(R"("ph": "X", "name": "{}", "cat": "module", "args": {{"type": "{}"}})", json_text(call.module->shown()),
                                       json_text(call.module->type))});
        open.push_back(call.last);
    }
}

void Trace::add_slices_of_thread(std::int32_t thread) {
    std::vector<Node> nodes;
    data_.each([&](const ProfileEvent& event) {
        if (event.thread == thread) nodes.push_back({&event, time_of(event.begin), time_of(event.end)});
    });
    // Sorts outer events first. They ended last, so their indices are higher.
    std::stable_sort(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) {
        if (a.event->begin != b.event->begin) return a.event->begin < b.event->begin;
        return a.event->end > b.event->end;
    });
    struct Level {
        const Node* holder;  // null: the thread itself
        std::vector<const Node*> parts;
        int depth;
    };
    std::vector<Level> levels = {{nullptr, {}, 0}};
    const auto close = [&] {
        if (thread == 0) add_modules(levels.back().parts, levels.back().depth);
        levels.pop_back();
    };
    for (const Node& node : nodes) {
        while (levels.size() > 1 && levels.back().holder->event->end <= node.event->begin) close();
        levels.back().parts.push_back(&node);
        add_event(node, thread, levels.back().depth + kPerLevel - 1);
        levels.push_back({&node, {}, levels.back().depth + kPerLevel});
    }
    while (!levels.empty()) close();
}

void Trace::add_communication() {
    for (const auto& [call, thread, hidden] : data_.communication) {
        const std::int64_t begin = time_of(call.begin), agreed = time_of(call.agreed), end = time_of(call.end);
        const auto add = [&, on = thread](const char* name, std::int64_t from, std::int64_t to, int depth, const std::string& args) {
            pieces_.push_back({kHost, on, from, to, depth,
                               fmt::format(R"("ph": "X", "name": "{}", "cat": "communication", "args": {{{}}})", json_text(name), args)});
        };
        std::string args = fmt::format(R"("line": "{}", "of": "{}", "bytes": {}, "hidden ms": {:.4f})", json_text(listing::place(call.loc)),
                                       json_text(call.of), call.bytes, data_.seconds_of(hidden) * 1e3);
        if (!call.note.empty()) args += fmt::format(R"(, "note": "{}")", json_text(call.note));
        add(call.op, begin, end, 0, args);
        if (call.begin != call.agreed) add("waiting", begin, agreed, 1, "");
        if (call.agreed != call.end) add("sending", agreed, end, 1, "");
    }
}

// A stream does one thing after another: overlaps are rounding errors.
void Trace::add_streams() {
    std::stable_sort(on_devices_.begin(), on_devices_.end(),
                     [](const OnDevice& a, const OnDevice& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; });
    std::vector<std::vector<std::int64_t>> open(data_.streams.size());  // the ends of running work on each stream
    for (OnDevice& slice : on_devices_) {
        std::vector<std::int64_t>& ends = open[static_cast<std::size_t>(slice.stream)];
        slice.begin = std::max<std::int64_t>(slice.begin, 0);
        slice.end = std::max(slice.end, slice.begin);
        while (!ends.empty() && ends.back() < slice.end) {
            if (ends.back() > slice.begin + (slice.end - slice.begin) / 2) {
                slice.end = ends.back();  // clips it to the enclosing slice
            } else {
                slice.begin = std::max(slice.begin, ends.back());
                ends.pop_back();
            }
        }
        const int process = 1 + data_.streams[static_cast<std::size_t>(slice.stream)].device.index;
        pieces_.push_back({process, slice.stream, slice.begin, slice.end, static_cast<int>(ends.size()), slice.text});
        add_arrow("launch", kHost, slice.thread, slice.launched, process, slice.stream, slice.begin);
        ends.push_back(slice.end);
    }
}

// Adds arrows from ops to their rules. For each tape, keeps the ops whose records may still exist, by ascending numbers.
void Trace::add_arrows() {
    std::map<std::uint32_t, std::vector<const ProfileEvent*>> tapes;
    data_.each([&](const ProfileEvent& event) {
        if (event.thread != 0 || event.tape == 0) return;
        std::vector<const ProfileEvent*>& ops = tapes[event.tape];
        if (event.kind == Kind::forward) {
            while (!ops.empty() && ops.back()->record >= event.record) ops.pop_back();  // not recorded, or removed again
            ops.push_back(&event);
        } else if (event.kind == Kind::backward) {
            const auto after = std::upper_bound(ops.begin(), ops.end(), event.record,
                                                [](std::uint32_t record, const ProfileEvent* op) { return record < op->record; });
            if (after == ops.begin() || std::strcmp((*(after - 1))->name, event.name) != 0) return;
            add_arrow("forward to backward", kHost, 0, time_of((*(after - 1))->begin), kHost, 0, time_of(event.begin));
        }
    });
}

std::string Trace::write() {
    add_name("process_name", kHost, 0, "Tapir");
    add_name("thread_name", kHost, 0, "profiled thread");
    add_slices_of_thread(0);
    for (const auto& [number, name] : data_.threads) {
        add_name("thread_name", kHost, number, name);
        add_slices_of_thread(number);
    }
    for (std::size_t i = 0; i < data_.streams.size(); ++i) {
        const auto& stream = data_.streams[i];
        const std::string device = name(stream.device);
        add_name("process_name", 1 + stream.device.index, 0, device);
        add_name("thread_name", 1 + stream.device.index, static_cast<int>(i), fmt::format("{} {}", device, stream.name));
    }
    add_communication();
    add_streams();
    add_arrows();
    std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
        if (a.begin != b.begin) return a.begin < b.begin;
        if (a.end != b.end) return a.end > b.end;
        return a.depth < b.depth;
    });
    std::string text = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
    const char* separator = "\n";
    const auto add = [&](const std::string& object) {
        text += separator;
        text += object;
        separator = ",\n";
    };
    for (const std::string& head : heads_) add(head);
    for (const auto& [seconds, bytes] : data_.memory) {
        add(fmt::format(R"({{"ph": "C", "pid": {}, "name": "memory", "ts": {}, "args": {{"bytes": {}}}}})", kHost, microseconds(nanoseconds(seconds)),
                        bytes));
    }
    for (const Piece& piece : pieces_) {
        std::string object =
            fmt::format(R"({{"pid": {}, "tid": {}, "ts": {}, {}}})", piece.process, piece.thread, microseconds(piece.begin), piece.text);
        if (piece.text.starts_with(R"("ph": "X")")) {
            object.insert(object.size() - 1, fmt::format(R"(, "dur": {})", microseconds(piece.end - piece.begin)));
        }
        add(object);
    }
    return text + "\n]}\n";
}

}  // namespace

void Profiler::export_chrome_trace(const TextArg& path, Loc loc) const {
    io::write_file("Profiler::export_chrome_trace", path, Trace(stopped(data_, "export_chrome_trace", loc)).write(), loc);
}

}  // namespace tapir
