// Following storages.
//
// A storage that is made while a profiler lives is given another release function, which tells the profiler, if that one is still
// there, and goes on to the storage's own. So nothing is to be looked at where storages go that nobody follows.
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
    std::uint64_t seen = 0;                         // of the peak that these are of
};

// A storage that is followed: what its own release was, and where it came from.
struct Followed {
    void (*release)(Storage*);
    void* context;
    std::uint64_t run;
    std::uint64_t number;
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
    };
    struct Moment {
        double time;
        std::int64_t bytes;
    };

    void made(Storage* storage, const Loc& loc) {
        const Loc& line = detail::thread.op_loc.line() != 0 && detail::thread.op ? detail::thread.op_loc : detail::caller(loc);
        const char* op = detail::thread.op ? detail::thread.op : "";
        const auto key = std::tuple(std::string_view(line.file_name()), line.line(), std::string_view(op), detail::thread.module);
        auto [place, is_new] = numbers_.try_emplace(key, sites.size());
        if (is_new) sites.push_back({line, op, detail::thread.module});
        const auto bytes = static_cast<std::int64_t>(storage->nbytes);
        auto* followed = new Followed{storage->release, storage->context, run, ++made_};
        held.emplace(followed->number, Held{place->second, bytes});
        storage->release = forget;
        storage->context = followed;
        Site& site = sites[place->second];
        ++site.tensors;
        site.bytes += bytes;
        live += bytes;
        note();
        if (live <= peak) return;
        peak = live;
        ++peak_number_;
        peak_is_taken_ = false;
    }

    void gone(std::uint64_t number) {
        const auto found = held.find(number);
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

    static void forget(Storage* storage);

    std::uint64_t run = 0;
    std::vector<Site> sites;
    std::unordered_map<std::uint64_t, Held> held;
    std::vector<Moment> moments;
    std::int64_t live = 0, peak = 0;
    double begin = now_in_seconds();
    std::uint64_t count() const { return made_; }

 private:
    void note() {
        const double time = now_in_seconds() - begin;
        if (!moments.empty() && time - moments.back().time < 2e-6) {
            moments.back().bytes = std::max(moments.back().bytes, live);
            return;
        }
        moments.push_back({time, live});
    }

    std::map<std::tuple<std::string_view, std::uint_least32_t, std::string_view, const ModuleName*>, std::size_t> numbers_;
    std::uint64_t made_ = 0, peak_number_ = 0;
    bool peak_is_taken_ = true;
};

namespace {

std::mutex running_mutex;
MemoryProfiler::Data* running = nullptr;
std::uint64_t last_run = 0;

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

void MemoryProfiler::Data::forget(Storage* storage) {
    const auto* followed = static_cast<Followed*>(storage->context);
    {
        const std::lock_guard lock(running_mutex);
        if (running && running->run == followed->run) running->gone(followed->number);
    }
    storage->release = followed->release;
    storage->context = followed->context;
    delete followed;
    if (storage->release) storage->release(storage);
}

void detail::note_memory(Storage* storage, const Loc& loc) {
    const std::lock_guard lock(running_mutex);
    if (running) running->made(storage, loc);
}

MemoryProfiler::MemoryProfiler(Loc loc) : data_(nullptr) {
    auto data = std::make_unique<Data>();
    const std::lock_guard lock(running_mutex);
    if (running) fail<ValueError>(loc, "MemoryProfiler: another one is alive");
    data->run = ++last_run;
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
    for (const auto& [number, held] : data_->held) {
        if (number <= point) continue;
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

void MemoryProfiler::export_timeline(const std::string& path, Loc loc) const {
    std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                       "{\"ph\": \"M\", \"pid\": 0, \"name\": \"process_name\", \"args\": {\"name\": \"Tapir\"}}";
    {
        const std::lock_guard lock(running_mutex);
        for (const Data::Moment& moment : data_->moments) {
            text += fmt::format(",\n{{\"ph\": \"C\", \"pid\": 0, \"name\": \"memory\", \"ts\": {:.3f}, \"args\": {{\"bytes\": {}}}}}",
                                moment.time * 1e6, moment.bytes);
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
