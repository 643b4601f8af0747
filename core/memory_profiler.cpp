// Tracks storages.
//
// Storages are identified by their addresses. Their fields are not changed: release and context belong to the maker of the memory
// and tell its kind (page-locked, a device's block). A freed storage reports it while a profiler lives, so its address leaves the
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
#include "tapir/core/io/file_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/memory_timeline_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/text_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

using detail::size_text;

struct Site {
    Loc loc;
    const char* op;
    const ModuleName* module;
    std::int64_t tensors = 0, bytes = 0;
    std::int64_t peak_tensors = 0, peak_bytes = 0;  // when the most bytes lived in total
};

double now_in_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string place_of(const Loc& loc) { return loc.line() == 0 ? "?" : detail::file_and_line(loc); }

}  // namespace

class MemoryProfiler::Data {
 public:
    struct Held {
        std::size_t site;
        std::int64_t bytes;
        std::uint64_t number;
    };
    using Moment = detail::MemoryMoment;

    void made(Storage* storage, const Loc& loc) {
        // thread.op stays set after the op has ended. If another line made the tensor, the op did not.
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
        take_peak();  // the bytes that lived until now were the peak so far
        Site& site = sites[found->second.site];
        --site.tensors;
        site.bytes -= found->second.bytes;
        live -= found->second.bytes;
        held.erase(found);
        note();
    }

    // Records who holds the memory, if this is the peak so far and was not recorded yet.
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
    detail::MemoryLine line() const;

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

    // Leaves at most half as many moments, each of the same length. Each keeps its largest value.
    void merge(double now) {
        apart_ = std::max(2 * apart_, 2 * now / static_cast<double>(kMostMoments));
        std::vector<Moment> merged;
        merged.reserve(kMostMoments);
        for (const Moment& moment : moments) add(merged, moment);
        moments = std::move(merged);
    }

    static constexpr std::size_t kMostMoments = 100'000;
    double apart_ = 2e-6;  // in seconds: changes that follow each other sooner are one moment
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
        text += fmt::format("{:>10}  {:>8}  {}\n", size_text(site.bytes), site.tensors, detail::made_by(site));
    }
    if (others > 0) text += fmt::format("{:>10}  {:>8}  ({} more)\n", size_text(rest.bytes), rest.tensors, others);
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
    for (const MemoryMoment& moment : running->moments) {
        const auto time = static_cast<std::int64_t>((running->begin + moment.time) * 1e9);
        if (time > end) break;
        if (time < begin) line.clear();  // keeps the last one before the beginning, whose value still holds there
        if (time >= begin && moment.most > moment.bytes) line.emplace_back(time, moment.most);
        line.emplace_back(std::max(time, begin), moment.bytes);
    }
    return line;
}

detail::MemoryLine MemoryProfiler::Data::line() const {
    const std::lock_guard lock(running_mutex);
    return {moments, peak, std::max(now_in_seconds() - begin, 1e-9)};
}

MemoryProfiler::MemoryProfiler(Loc loc) : data_(nullptr) {
    auto data = std::make_unique<Data>();
    const std::lock_guard lock(running_mutex);
    if (running) fail<ValueError>(loc, "MemoryProfiler: another one is alive, and there can be one at a time: end its scope first");
    running = data_ = data.release();
    detail::watching_memory.add(1);
    detail::watching_ops.add(1);
}

MemoryProfiler::~MemoryProfiler() {
    detail::watching_ops.add(-1);
    detail::watching_memory.add(-1);
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
    return fmt::format("alive now: {}\n{}at the peak: {}\n{}", size_text(live_bytes()), shown(live(), rows), size_text(peak_bytes()),
                       shown(at_peak(), rows));
}

std::string MemoryProfiler::leaks(Point point, int rows) const {
    const std::vector<MemorySite> sites = since(point);
    if (sites.empty()) return "nothing made since then is left\n";
    return "made since then and still alive:\n" + shown(sites, rows);
}

std::string MemoryProfiler::to_svg(int rows) const {
    const std::vector<MemorySite> sites = at_peak();
    return detail::draw_memory(data_->line(), sites, rows);
}

void MemoryProfiler::export_timeline(const TextArg& path, Loc loc) const {
    io::write_file("MemoryProfiler::export_timeline", path, detail::trace_of_memory(data_->line(), at_peak()), loc);
}

}  // namespace tapir
