// Profiles as tables.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>

#include "tapir/autograd/listing_impl.h"
#include "tapir/autograd/profiler_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/memory_timeline_impl.h"
#include "tapir/core/parallel.h"
#include "tapir/ops/make.h"
#include "tapir/ops/matmul.h"

namespace tapir {

const Profiler::Data& stopped(const Profiler::Data* data, const char* what, const Loc& loc) {
    if (!data->stopped) fail<ValueError>(loc, "Profiler::{}: it is still running: stop() it first", what);
    return *data;
}

std::string op_name(const ProfileEvent& event) {
    return event.kind == ProfileEvent::Kind::backward ? fmt::format("{} backward", event.name) : event.name;
}

namespace {

using Kind = ProfileEvent::Kind;

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
    bool was_busy = false;        // all threads together were slower than one: others wanted the cores
};

// The shortest of many runs, over a time that is long to what else may run on the machine.
template <class Work>
double fastest(const Work& work) {
    constexpr double long_enough = 0.3;  // seconds
    constexpr int least = 6;
    double best = 1e30, all = 0;
    for (int i = 0; i < least || all < long_enough; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        work();
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        best = std::min(best, seconds);
        all += seconds;
    }
    return best;
}

Peak measure_here() {
    const TensorOptions here{float32, cpu};
    constexpr std::int64_t n = 512, many = 16 << 20;  // short enough that some run is not interrupted
    const Tensor a = full({n, n}, 0.5, here), source = full({many}, 1.0, here);
    Tensor target = empty({many}, here);
    Peak result;
    result.flops = 2.0 * n * n * n / fastest([&] { matmul(a, a); });
    // On a machine that does other things the threads wait for each other. This product is too small to be shared.
    constexpr std::int64_t small = 128;
    const Tensor b = full({small, small}, 0.5, here);
    const double of_one = 2.0 * small * small * small / fastest([&] { matmul(b, b); });
    result.was_busy = num_threads() > 1 && of_one > result.flops;
    result.flops = std::max(result.flops, of_one);
    result.bytes = 2.0 * many * sizeof(float) / fastest([&] { target.copy_(source); });
    return result;
}

// Larger and larger work, until it takes long enough, by events; the first run of each size only makes plans and memory.
template <class Make>
double best_rate_on(Device device, std::initializer_list<std::int64_t> sizes, const Make& make) {
    constexpr double long_enough = 3e-3;
    double best = 0;
    for (const std::int64_t size : sizes) {
        try {
            auto [amount, work] = make(size);
            double seconds = 1e30;
            for (int i = 0; i < 3; ++i) {
                Event begin(true), end(true);
                begin.record(Stream::current(device));
                work();
                end.record(Stream::current(device));
                end.synchronize();
                if (i > 0) seconds = std::min(seconds, begin.elapsed_time(end) * 1e-3);
            }
            best = std::max(best, amount / std::max(seconds, 1e-9));
            if (seconds > long_enough) break;
        } catch (const OutOfMemory&) {
            break;
        }
    }
    return best;
}

Peak measure_on(Device device) {
    const TensorOptions there{float32, device};
    Peak result;
    result.flops = best_rate_on(device, {256, 1024, 4096, 8192}, [&](std::int64_t n) {
        const auto size = static_cast<double>(n);
        return std::pair(2 * size * size * size, [a = full({n, n}, 0.5, there)] { matmul(a, a); });
    });
    result.bytes = best_rate_on(device, {1 << 20, 1 << 24, 1 << 28}, [&](std::int64_t n) {
        return std::pair(2.0 * sizeof(float) * static_cast<double>(n),
                         [source = full({n}, 1.0, there), target = empty({n}, there)]() mutable { target.copy_(source); });
    });
    return result;
}

// device: a CUDA device's number, or -1.
Peak peak(int device) {
    static std::mutex mutex;
    static std::map<int, Peak> measured;
    const std::lock_guard lock(mutex);
    if (const auto found = measured.find(device); found != measured.end()) return found->second;
    const detail::PauseRecording pause;
    const detail::PauseAutocast plain;
    const detail::PauseMemoryProfiler unseen;
    return measured[device] = device < 0 ? measure_here() : measure_on(cuda(device));
}

// The rate of arithmetic that ops and rules of this profile have reached, by device (-1: the CPU): a peak is not below it.
std::map<int, double> reached(const Profiler::Data& data) {
    struct Sum {
        double flops = 0, seconds = 0;
    };
    std::map<std::tuple<std::string_view, Kind, int>, Sum> sums;
    data.each([&](const ProfileEvent& event) {
        if (event.kind != Kind::forward && event.kind != Kind::backward) return;  // scopes do not wait for devices
        const auto* time = data.device_time(event);
        if (event.begin == event.end || (event.mark >= 0 && !time)) return;
        Sum& sum = sums[{event.name, event.kind, time ? data.streams[static_cast<std::size_t>(time->stream)].device.index : -1}];
        sum.flops += event.flops;
        sum.seconds += time ? time->seconds : data.seconds_of(event.end - event.begin);
    });
    std::map<int, double> rates;
    for (const auto& [key, sum] : sums) {
        double& rate = rates[std::get<int>(key)];
        if (sum.seconds > 0) rate = std::max(rate, sum.flops / sum.seconds);
    }
    return rates;
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f}", seconds * 1e3); }

}  // namespace

double Profiler::seconds(Loc loc) const {
    const Data& data = stopped(data_, "seconds", loc);
    return data.seconds_of(data.last - data.first);
}

namespace {

std::vector<ProfileRow> rows_of(const Profiler::Data& data, ProfileTable::By by, ProfileTable::Sort sort) {
    std::map<std::string, ProfileRow> groups;
    data.each([&](const ProfileEvent& event) {
        ProfileRow& row = groups[group_of(event, by)];
        ++row.calls;
        row.total_seconds += data.seconds_of(event.end - event.begin);
        row.self_seconds += data.seconds_of(event.end - event.begin - event.inside);
        if (const auto* time = data.device_time(event)) {
            row.device_seconds += time->seconds;
            row.device = std::max<int>(row.device, data.streams[static_cast<std::size_t>(time->stream)].device.index);
        }
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

std::string table_of(const Profiler::Data& data, const ProfileTable& options) {
    std::vector<ProfileRow> all = rows_of(data, options.by, options.sort);
    const auto shown = std::min(all.size(), static_cast<std::size_t>(std::max(options.rows, 0)));
    double self = 0;
    bool on_device = false;
    for (const ProfileRow& row : all) {
        self += row.self_seconds;
        on_device |= row.device >= 0;
    }
    if (shown < all.size()) {  // the others in one row
        ProfileRow rest;
        for (std::size_t i = shown; i < all.size(); ++i) {
            rest.calls += all[i].calls;
            rest.total_seconds += all[i].total_seconds;
            rest.self_seconds += all[i].self_seconds;
            rest.device_seconds += all[i].device_seconds;
            rest.device = std::max(rest.device, all[i].device);
            rest.flops += all[i].flops;
            rest.bytes += all[i].bytes;
        }
        rest.name = fmt::format("({} more)", all.size() - shown);
        all.resize(shown);
        all.push_back(rest);
    }
    const std::map<int, double> rates = reached(data);
    const auto peak_of = [&](int device) {
        Peak most = peak(device);
        if (const auto rate = rates.find(device); rate != rates.end()) most.flops = std::max(most.flops, rate->second);
        return most;
    };
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
        if ((row.bytes == 0 && row.flops == 0) || row.total_seconds <= 0) {
            text += fmt::format("  {:>8}  {:>8}  {:>7}\n", "", "", "");
            continue;
        }
        const double seconds = row.device >= 0 ? row.device_seconds : row.total_seconds;
        const double flops = row.flops / std::max(seconds, 1e-9), bytes = row.bytes / std::max(seconds, 1e-9);
        const Peak most = peak_of(row.device);
        text += fmt::format("  {:>8.2f}  {:>8}  {:>6.1f}%\n", flops * 1e-9, row.bytes == 0 ? "" : fmt::format("{:.2f}", bytes * 1e-9),
                            100 * std::max(flops / most.flops, bytes / most.bytes));
    }
    double here = 0, elsewhere = 0;
    data.each([&](const ProfileEvent& event) { (event.thread == 0 ? here : elsewhere) += data.seconds_of(event.end - event.begin - event.inside); });
    text += fmt::format("{} ms in ops and scopes of {} ms", milliseconds(here), milliseconds(data.seconds_of(data.last - data.first)));
    if (elsewhere > 0) text += fmt::format(", and {} ms on other threads", milliseconds(elsewhere));
    const auto add_peak = [&](const std::string& whose, int device) {
        const Peak most = peak_of(device);
        text += fmt::format("; peak of {}: {:.1f} GFLOP/s, {:.1f} GB/s", whose, most.flops * 1e-9, most.bytes * 1e-9);
    };
    add_peak(fmt::format("this machine, {} thread{}", num_threads(), num_threads() == 1 ? "" : "s"), -1);
    if (peak_of(-1).was_busy) text += " (the machine was busy: all threads together were slower than one)";
    for (int device = 0; device < cuda_device_count(); ++device) {
        if (std::any_of(all.begin(), all.end(), [&](const ProfileRow& row) { return row.device == device; })) {
            add_peak(name(cuda(device)), device);
        }
    }
    return text + "\n";
}

}  // namespace

std::vector<ProfileRow> Profiler::rows(ProfileTable::By by, ProfileTable::Sort sort, Loc loc) const {
    return rows_of(stopped(data_, "rows", loc), by, sort);
}

std::string Profiler::table(ProfileTable options, Loc loc) const { return table_of(stopped(data_, "table", loc), options); }

void Profiler::print(ProfileTable options, Loc loc) const { std::fputs(table_of(stopped(data_, "print", loc), options).c_str(), stdout); }

}  // namespace tapir
