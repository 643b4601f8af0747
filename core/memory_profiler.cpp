// Following storages.
//
// Storages are known by their addresses. What they hold is left as it is: release and context belong to those who made the memory,
// and say what kind it is (page-locked, a device's block). One that goes says so while a profiler lives, so an address is free in the
// table before another storage can have it.
#include "tapir/core/memory_profiler.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/file.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/memory_timeline_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

struct Site {
    Loc loc;
    const char* op;
    const ModuleName* module;
    std::int64_t tensors = 0, bytes = 0;
    std::int64_t peak_tensors = 0, peak_bytes = 0;  // when most bytes lived in all
};

double now_in_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string place_of(const Loc& loc) { return loc.line() == 0 ? "?" : detail::file_and_line(loc); }

std::string size_of(std::int64_t bytes) {
    if (bytes < 10 * 1024) return fmt::format("{} B", bytes);
    if (bytes < std::int64_t{10} << 20) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

class MemoryProfiler::Data {
 public:
    struct Held {
        std::size_t site;
        std::int64_t bytes;
        std::uint64_t number;
    };
    // Changes that follow each other at once are one: the most that lived meanwhile, and what did after them.
    struct Moment {
        double time;
        std::int64_t most, bytes;
    };

    void made(Storage* storage, const Loc& loc) {
        // The thread's op stays named when it has ended: what is made by another line afterwards is not its own.
        const Loc &own = detail::caller(loc), &op_line = detail::thread.op_loc;
        const bool is_part = detail::thread.op && (detail::thread.parts > 0 || own.line() == 0);
        const Loc& line = is_part && op_line.line() != 0 ? op_line : own;
        const bool is_of_op = detail::thread.op && line.line() == op_line.line() && std::strcmp(line.file_name(), op_line.file_name()) == 0;
        const char* op = is_of_op ? detail::thread.op : "";
        const auto key = std::tuple(std::string_view(line.file_name()), line.line(), std::string_view(op), detail::thread.module);
        auto [place, is_new] = numbers_.try_emplace(key, sites.size());
        if (is_new) sites.push_back({line, op, detail::thread.module});
        const auto bytes = static_cast<std::int64_t>(storage->nbytes);
        held.insert_or_assign(storage, Held{place->second, bytes, ++made_});
        Site& site = sites[place->second];
        ++site.tensors;
        site.bytes += bytes;
        live += bytes;
        note();
        if (live <= peak) return;
        peak = live;
        peak_is_taken_ = false;
    }

    void gone(const Storage* storage) {
        const auto found = held.find(storage);
        if (found == held.end()) return;
        take_peak();  // what lived until now was the most so far
        Site& site = sites[found->second.site];
        --site.tensors;
        site.bytes -= found->second.bytes;
        live -= found->second.bytes;
        held.erase(found);
        note();
    }

    // Writes down who holds the memory, when this is the most so far and was not written down yet.
    void take_peak() {
        if (peak_is_taken_ || live < peak) return;
        peak_is_taken_ = true;
        for (Site& site : sites) {
            site.peak_tensors = site.tensors;
            site.peak_bytes = site.bytes;
        }
    }

    std::vector<Site> sites;
    std::unordered_map<const Storage*, Held> held;
    std::vector<Moment> moments;
    std::int64_t live = 0, peak = 0;
    double begin = now_in_seconds();
    std::uint64_t count() const { return made_; }

 private:
    void note() {
        const double time = now_in_seconds() - begin;
        if (moments.size() == kMostMoments) merge(time);
        add(moments, {time, live, live});
    }

    void add(std::vector<Moment>& line, const Moment& moment) const {
        if (line.empty() || moment.time - line.back().time >= apart_) {
            line.push_back(moment);
            return;
        }
        line.back().most = std::max(line.back().most, moment.most);
        line.back().bytes = moment.bytes;
    }

    // Half as many moments at most, each of as long a time. No change is lost that was the most of its time.
    void merge(double now) {
        apart_ = std::max(2 * apart_, 2 * now / static_cast<double>(kMostMoments));
        std::vector<Moment> merged;
        merged.reserve(kMostMoments);
        for (const Moment& moment : moments) add(merged, moment);
        moments = std::move(merged);
    }

    static constexpr std::size_t kMostMoments = 100'000;
    double apart_ = 2e-6;  // seconds: changes that follow each other sooner are one moment
    std::map<std::tuple<std::string_view, std::uint_least32_t, std::string_view, const ModuleName*>, std::size_t> numbers_;
    std::uint64_t made_ = 0;
    bool peak_is_taken_ = true;
};

namespace {

std::mutex running_mutex;
MemoryProfiler::Data* running = nullptr;
constinit thread_local int paused = 0;

std::vector<MemorySite> listed(const MemoryProfiler::Data& data, const std::vector<std::pair<std::int64_t, std::int64_t>>& amounts) {
    std::vector<MemorySite> sites;
    for (std::size_t i = 0; i < amounts.size(); ++i) {
        if (amounts[i].first == 0) continue;
        const Site& site = data.sites[i];
        sites.push_back({place_of(site.loc), site.op, site.module ? site.module->shown() : "", amounts[i].first, amounts[i].second});
    }
    std::stable_sort(sites.begin(), sites.end(), [](const MemorySite& a, const MemorySite& b) { return a.bytes > b.bytes; });
    return sites;
}

std::string shown(const std::vector<MemorySite>& sites, int rows) {
    std::string text = fmt::format("{:>10}  {:>8}  {}\n", "bytes", "tensors", "made by");
    MemorySite rest;
    int others = 0;
    for (std::size_t i = 0; i < sites.size(); ++i) {
        const MemorySite& site = sites[i];
        if (static_cast<int>(i) >= rows) {
            ++others;
            rest.tensors += site.tensors;
            rest.bytes += site.bytes;
            continue;
        }
        text += fmt::format("{:>10}  {:>8}  {}{}{}{}\n", size_of(site.bytes), site.tensors, site.place, site.op.empty() ? "" : " ", site.op,
                            site.module.empty() ? "" : fmt::format(" (in {})", site.module));
    }
    if (others > 0) text += fmt::format("{:>10}  {:>8}  ({} more)\n", size_of(rest.bytes), rest.tensors, others);
    return text;
}

}  // namespace

detail::PauseMemoryProfiler::PauseMemoryProfiler() noexcept { ++paused; }
detail::PauseMemoryProfiler::~PauseMemoryProfiler() { --paused; }

void detail::note_memory(Storage* storage, const Loc& loc) {
    if (paused > 0) return;
    const std::lock_guard lock(running_mutex);
    if (running) running->made(storage, loc);
}

void detail::note_released(const Storage* storage) noexcept {
    const std::lock_guard lock(running_mutex);
    if (running) running->gone(storage);
}

std::vector<std::pair<std::int64_t, std::int64_t>> detail::memory_timeline(std::int64_t begin, std::int64_t end) {
    std::vector<std::pair<std::int64_t, std::int64_t>> line;
    const std::lock_guard lock(running_mutex);
    if (!running) return line;
    for (const MemoryProfiler::Data::Moment& moment : running->moments) {
        const auto time = static_cast<std::int64_t>((running->begin + moment.time) * 1e9);
        if (time > end) break;
        if (time < begin) line.clear();  // the last one before is what there is at the beginning
        if (time >= begin && moment.most > moment.bytes) line.emplace_back(time, moment.most);
        line.emplace_back(std::max(time, begin), moment.bytes);
    }
    return line;
}

MemoryProfiler::MemoryProfiler(Loc loc) : data_(nullptr) {
    auto data = std::make_unique<Data>();
    const std::lock_guard lock(running_mutex);
    if (running) fail<ValueError>(loc, "MemoryProfiler: another one is alive, and there can be one at a time: end its scope first");
    running = data_ = data.release();
    __atomic_fetch_add(&detail::watching_memory, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&detail::watching_ops, 1, __ATOMIC_RELAXED);
}

MemoryProfiler::~MemoryProfiler() {
    __atomic_fetch_sub(&detail::watching_ops, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&detail::watching_memory, 1, __ATOMIC_RELAXED);
    const std::lock_guard lock(running_mutex);
    running = nullptr;
    delete data_;
}

MemoryProfiler::Point MemoryProfiler::now() const {
    const std::lock_guard lock(running_mutex);
    return data_->count();
}

std::int64_t MemoryProfiler::live_bytes() const {
    const std::lock_guard lock(running_mutex);
    return data_->live;
}

std::int64_t MemoryProfiler::peak_bytes() const {
    const std::lock_guard lock(running_mutex);
    return data_->peak;
}

std::vector<MemorySite> MemoryProfiler::live() const {
    const std::lock_guard lock(running_mutex);
    std::vector<std::pair<std::int64_t, std::int64_t>> amounts;
    for (const Site& site : data_->sites) amounts.emplace_back(site.tensors, site.bytes);
    return listed(*data_, amounts);
}

std::vector<MemorySite> MemoryProfiler::at_peak() const {
    const std::lock_guard lock(running_mutex);
    data_->take_peak();
    std::vector<std::pair<std::int64_t, std::int64_t>> amounts;
    for (const Site& site : data_->sites) amounts.emplace_back(site.peak_tensors, site.peak_bytes);
    return listed(*data_, amounts);
}

std::vector<MemorySite> MemoryProfiler::since(Point point) const {
    const std::lock_guard lock(running_mutex);
    std::vector<std::pair<std::int64_t, std::int64_t>> amounts(data_->sites.size());
    for (const auto& [storage, held] : data_->held) {
        if (held.number <= point) continue;
        ++amounts[held.site].first;
        amounts[held.site].second += held.bytes;
    }
    return listed(*data_, amounts);
}

std::string MemoryProfiler::table(int rows) const {
    return fmt::format("alive now: {}\n{}at the peak: {}\n{}", size_of(live_bytes()), shown(live(), rows), size_of(peak_bytes()),
                       shown(at_peak(), rows));
}

std::string MemoryProfiler::leaks(Point point, int rows) const {
    const std::vector<MemorySite> sites = since(point);
    if (sites.empty()) return "nothing made since then is left\n";
    return "made since then and still alive:\n" + shown(sites, rows);
}

namespace {

std::string xml_text(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '<' || c == '>' || c == '&') {
            out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : "&amp;";
        } else {
            out += c;
        }
    }
    return out;
}

}  // namespace

std::string MemoryProfiler::to_svg(int rows) const {
    constexpr int left = 90, top = 40, width = 840, height = 260, columns = width;
    const std::vector<MemorySite> sites = at_peak();
    std::vector<Data::Moment> moments;
    std::int64_t peak = 0;
    double end = 0;
    {
        const std::lock_guard lock(running_mutex);
        moments = data_->moments;
        peak = data_->peak;
        end = std::max(now_in_seconds() - data_->begin, 1e-9);
    }
    const auto x_of = [&](double time) { return left + width * time / end; };
    const auto y_of = [&](double bytes) { return top + height - height * bytes / static_cast<double>(std::max<std::int64_t>(peak, 1)); };
    // The most and the last of each column of the picture.
    struct Column {
        std::int64_t most, last;
    };
    std::vector<Column> line(columns);
    double peak_time = 0;
    bool is_peak_met = false;
    std::size_t next = 0;
    std::int64_t bytes = 0;
    for (int c = 0; c < columns; ++c) {
        std::int64_t most = bytes;
        for (; next < moments.size() && (moments[next].time < end * (c + 1) / columns || c == columns - 1); ++next) {
            bytes = moments[next].bytes;
            most = std::max(most, moments[next].most);
            if (moments[next].most == peak && !is_peak_met) is_peak_met = true, peak_time = moments[next].time;
        }
        line[static_cast<std::size_t>(c)] = {most, bytes};
    }
    const auto shown_sites = std::min(sites.size(), static_cast<std::size_t>(std::max(rows, 0)));
    const int list = top + height + 64, total = list + 20 * static_cast<int>(shown_sites + (shown_sites < sites.size())) + 10;
    std::string svg = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
                                  "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
                                  left + width + 30, total);
    const auto text = [&](double x, double y, const char* anchor, const std::string& what) {
        svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, xml_text(what));
    };
    for (int i = 0; i <= 4; ++i) {
        const double part = i / 4.0, y = y_of(part * static_cast<double>(peak)), x = x_of(part * end);
        svg += fmt::format("<path d=\"M{} {:.1f}h{}\" stroke=\"#ddd\"/>\n", left, y, width);
        text(left - 6, y + 4, "end", size_of(static_cast<std::int64_t>(part * static_cast<double>(peak))));
        text(x, top + height + 18, "middle", fmt::format("{:.4g} s", part * end));
    }
    std::string path = fmt::format("M{} {}", left, top + height);
    for (int c = 0; c < columns; ++c) {
        const Column& column = line[static_cast<std::size_t>(c)];
        path += fmt::format("V{:.1f}V{:.1f}H{}", y_of(static_cast<double>(column.most)), y_of(static_cast<double>(column.last)), left + c + 1);
    }
    svg += fmt::format("<path d=\"{}V{}Z\" fill=\"#9ecae1\" stroke=\"#3182bd\"/>\n", path, top + height);
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{}\" r=\"4\" fill=\"#d62728\"/>\n", x_of(peak_time), top);
    text(x_of(peak_time), top - 10, peak_time > end / 2 ? "end" : "start", fmt::format("peak: {} after {:.4g} s", size_of(peak), peak_time));
    if (shown_sites > 0) text(left, list - 20, "start", "at the peak:");
    for (std::size_t i = 0; i < shown_sites; ++i) {
        const MemorySite& site = sites[i];
        const int y = list + 20 * static_cast<int>(i);
        svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"12\" fill=\"#9ecae1\"/>\n", left, y - 10,
                           120 * static_cast<double>(site.bytes) / static_cast<double>(std::max<std::int64_t>(peak, 1)));
        text(left - 6, y, "end", size_of(site.bytes));
        text(left + 130, y, "start",
             fmt::format("{}{}{}{}, {} tensor{}", site.place, site.op.empty() ? "" : " ", site.op,
                         site.module.empty() ? "" : fmt::format(" (in {})", site.module), site.tensors, site.tensors == 1 ? "" : "s"));
    }
    if (shown_sites < sites.size()) {
        text(left + 130, list + 20 * static_cast<int>(shown_sites), "start", fmt::format("({} more)", sites.size() - shown_sites));
    }
    return svg + "</svg>\n";
}

void MemoryProfiler::export_timeline(const std::string& path, Loc loc) const {
    std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                       "{\"ph\": \"M\", \"pid\": 0, \"name\": \"process_name\", \"args\": {\"name\": \"Tapir\"}}";
    {
        const std::lock_guard lock(running_mutex);
        const auto add = [&](double time, std::int64_t bytes) {
            text += fmt::format(",\n{{\"ph\": \"C\", \"pid\": 0, \"name\": \"memory\", \"ts\": {:.3f}, \"args\": {{\"bytes\": {}}}}}",
                                time * 1e6, bytes);
        };
        for (const Data::Moment& moment : data_->moments) {
            if (moment.most > moment.bytes) add(moment.time, moment.most);
            add(moment.time, moment.bytes);
        }
    }
    for (const MemorySite& site : at_peak()) {
        text += fmt::format(",\n{{\"ph\": \"I\", \"pid\": 0, \"tid\": 0, \"s\": \"g\", \"name\": \"at the peak: {} {}\", \"ts\": 0, "
                            "\"args\": {{\"tensors\": {}, \"bytes\": {}}}}}",
                            site.place, site.op, site.tensors, site.bytes);
    }
    write_file(path, text + "\n]}\n", loc);
}

}  // namespace tapir
