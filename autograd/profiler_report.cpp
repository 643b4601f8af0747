// Profiles as tables and as traces.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "tapir/autograd/listing_impl.h"
#include "tapir/autograd/profiler_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/io/file.h"
#include "tapir/core/parallel.h"
#include "tapir/ops/make.h"
#include "tapir/ops/matmul.h"

namespace tapir {
namespace {

using Kind = ProfileEvent::Kind;

const Profiler::Data& stopped(const Profiler::Data* data, const char* what, const Loc& loc) {
    if (!data->stopped) fail<ValueError>(loc, "Profiler::{}: it is still running: stop() it first", what);
    return *data;
}

std::string op_name(const ProfileEvent& event) {
    return event.kind == Kind::backward ? fmt::format("{} backward", event.name) : event.name;
}

std::string group_of(const ProfileEvent& event, ProfileTable::By by) {
    switch (by) {
        case ProfileTable::By::line: return fmt::format("{} {}", listing::place(event.loc), op_name(event));
        case ProfileTable::By::module:
            if (event.kind == Kind::scope) return event.name;
            return event.module ? event.module->shown() : "(no module)";
        default: return op_name(event);
    }
}

double key_of(const ProfileRow& row, ProfileTable::Sort sort) {
    switch (sort) {
        case ProfileTable::Sort::total_time: return row.total_seconds;
        case ProfileTable::Sort::calls: return static_cast<double>(row.calls);
        case ProfileTable::Sort::flops: return row.flops;
        case ProfileTable::Sort::bytes: return row.bytes;
        default: return row.self_seconds;
    }
}

// What this machine can do, with the library's own kernels and threads.
struct Peak {
    double flops = 0, bytes = 0;  // per second
};

template <class Work>
double fastest(int rounds, const Work& work) {
    double best = 1e30;
    for (int i = 0; i < rounds; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        work();
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return best;
}

const Peak& peak() {
    static const Peak measured = [] {
        const detail::PauseRecording pause;
        const detail::PauseAutocast plain;
        const TensorOptions here{float32, cpu};
        constexpr std::int64_t n = 768, many = 16 << 20;
        const Tensor a = full({n, n}, 0.5, here), source = full({many}, 1.0, here);
        Tensor target = empty({many}, here);
        Peak result;
        result.flops = 2.0 * n * n * n / fastest(4, [&] { matmul(a, a); });
        result.bytes = 2.0 * many * sizeof(float) / fastest(4, [&] { target.copy_(source); });
        return result;
    }();
    return measured;
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f}", seconds * 1e3); }

std::string json_text(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
            out += c;
        }
    }
    return out;
}

std::string shape_of(const ProfileEvent& event) {
    const int shown = std::min<int>(event.rank, 4);
    std::string text = event.rank > 4 ? "(..., " : "(";
    for (int d = 0; d < shown; ++d) text += fmt::format("{}{}", d ? ", " : "", event.sizes[d]);
    return fmt::format("{} {})", name(event.dtype), text);
}

}  // namespace

double Profiler::seconds(Loc loc) const {
    const Data& data = stopped(data_, "seconds", loc);
    return data.seconds_of(data.last - data.first);
}

std::vector<ProfileRow> Profiler::rows(ProfileTable::By by, ProfileTable::Sort sort, Loc loc) const {
    const Data& data = stopped(data_, "rows", loc);
    std::map<std::string, ProfileRow> groups;
    data.each([&](const ProfileEvent& event) {
        ProfileRow& row = groups[group_of(event, by)];
        ++row.calls;
        row.total_seconds += data.seconds_of(event.end - event.begin);
        row.self_seconds += data.seconds_of(event.end - event.begin - event.inside);
        row.device_seconds += data.device_seconds(event);
        row.flops += event.flops;
        row.bytes += event.bytes;
    });
    std::vector<ProfileRow> rows;
    for (auto& [name, row] : groups) {
        row.name = name;
        rows.push_back(std::move(row));
    }
    std::stable_sort(rows.begin(), rows.end(), [&](const ProfileRow& a, const ProfileRow& b) { return key_of(a, sort) > key_of(b, sort); });
    return rows;
}

std::string Profiler::table(ProfileTable options, Loc loc) const {
    std::vector<ProfileRow> all = rows(options.by, options.sort, loc);
    const auto shown = std::min(all.size(), static_cast<std::size_t>(std::max(options.rows, 0)));
    double self = 0;
    bool on_device = false;
    for (const ProfileRow& row : all) {
        self += row.self_seconds;
        on_device |= row.device_seconds > 0;
    }
    if (shown < all.size()) {  // the others in one row
        ProfileRow rest;
        for (std::size_t i = shown; i < all.size(); ++i) {
            rest.calls += all[i].calls;
            rest.total_seconds += all[i].total_seconds;
            rest.self_seconds += all[i].self_seconds;
            rest.device_seconds += all[i].device_seconds;
            rest.flops += all[i].flops;
            rest.bytes += all[i].bytes;
        }
        rest.name = fmt::format("({} more)", all.size() - shown);
        all.resize(shown);
        all.push_back(rest);
    }
    std::size_t width = 4;
    for (const ProfileRow& row : all) width = std::max(width, row.name.size());
    const char* title = options.by == ProfileTable::By::op ? "op" : options.by == ProfileTable::By::line ? "line" : "module";
    std::string text = fmt::format("{:<{}}  {:>8}  {:>10}  {:>10}  {:>6}  {:>10}", title, width, "calls", "total ms", "self ms", "self", "us a call");
    if (on_device) text += fmt::format("  {:>10}", "CUDA ms");
    text += fmt::format("  {:>8}  {:>8}  {:>7}\n", "GFLOP/s", "GB/s", "of peak");
    for (const ProfileRow& row : all) {
        text += fmt::format("{:<{}}  {:>8}  {:>10}  {:>10}  {:>5.1f}%  {:>10.2f}", row.name, width, row.calls, milliseconds(row.total_seconds),
                            milliseconds(row.self_seconds), self > 0 ? 100 * row.self_seconds / self : 0.0,
                            1e6 * row.total_seconds / static_cast<double>(row.calls));
        if (on_device) text += fmt::format("  {:>10}", milliseconds(row.device_seconds));
        if (row.bytes == 0 || row.self_seconds <= 0) {
            text += fmt::format("  {:>8}  {:>8}  {:>7}\n", "", "", "");
            continue;
        }
        const double flops = row.flops / row.total_seconds, bytes = row.bytes / row.total_seconds;
        text += fmt::format("  {:>8.2f}  {:>8.2f}", flops * 1e-9, bytes * 1e-9);
        if (row.device_seconds > 0) {
            text += fmt::format("  {:>7}\n", "");
        } else {
            text += fmt::format("  {:>6.1f}%\n", 100 * std::max(flops / peak().flops, bytes / peak().bytes));
        }
    }
    text += fmt::format("{} ms in ops and scopes of {} ms; peak of this machine, {} thread{}: {:.1f} GFLOP/s, {:.1f} GB/s\n",
                        milliseconds(self), milliseconds(seconds(loc)), num_threads(), num_threads() == 1 ? "" : "s",
                        peak().flops * 1e-9, peak().bytes * 1e-9);
    return text;
}

void Profiler::print(ProfileTable options, Loc loc) const { std::fputs(table(options, loc).c_str(), stdout); }

void Profiler::export_chrome_trace(const std::string& path, Loc loc) const {
    const Data& data = stopped(data_, "export_chrome_trace", loc);
    std::string text = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n"
                       "{\"ph\": \"M\", \"pid\": 0, \"tid\": 0, \"name\": \"process_name\", \"args\": {\"name\": \"Tapir\"}},\n"
                       "{\"ph\": \"M\", \"pid\": 0, \"tid\": 0, \"name\": \"thread_name\", \"args\": {\"name\": \"profiled thread\"}}";
    std::vector<std::int32_t> threads;
    data.each([&](const ProfileEvent& event) {
        if (event.thread != 0 && std::find(threads.begin(), threads.end(), event.thread) == threads.end()) {
            threads.push_back(event.thread);
            text += fmt::format(",\n{{\"ph\": \"M\", \"pid\": 0, \"tid\": {0}, \"name\": \"thread_name\", \"args\": {{\"name\": \"thread {0}\"}}}}",
                                event.thread);
        }
        static constexpr const char* kinds[] = {"forward", "backward", "scope"};
        text += fmt::format(",\n{{\"ph\": \"X\", \"pid\": 0, \"tid\": {}, \"name\": \"{}\", \"cat\": \"{}\", \"ts\": {:.3f}, \"dur\": {:.3f}, "
                            "\"args\": {{\"line\": \"{}\"",
                            event.thread, json_text(op_name(event)), kinds[static_cast<int>(event.kind)],
                            1e6 * data.seconds_of(event.begin - data.first), 1e6 * data.seconds_of(event.end - event.begin),
                            json_text(listing::place(event.loc)));
        if (event.module) text += fmt::format(", \"module\": \"{}\"", json_text(event.module->shown()));
        if (event.kind != Kind::scope) {
            text += fmt::format(", \"output\": \"{}\", \"flops\": {:.0f}, \"bytes\": {:.0f}", shape_of(event), event.flops, event.bytes);
        }
        if (event.mark >= 0) text += fmt::format(", \"CUDA ms\": {:.4f}", data.device_seconds(event) * 1e3);
        text += "}}";
    });
    text += "\n]}\n";
    write_file(path, text, loc);
}

}  // namespace tapir
