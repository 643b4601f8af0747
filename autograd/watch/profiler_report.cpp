// Prints profiles as tables.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>

#include "tapir/autograd/watch/listing_impl.h"
#include "tapir/autograd/watch/peak_impl.h"
#include "tapir/autograd/watch/profiler_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/memory_timeline_impl.h"
#include "tapir/core/parallel.h"

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

// The rate of arithmetic that ops and rules of this profile have reached, by device (-1: the CPU): a peak is at least that.
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

std::vector<CommunicationRow> communication_of(const Profiler::Data& data, ProfileTable::By by) {
    std::map<std::string, CommunicationRow> groups;
    for (const auto& [call, thread, hidden] : data.communication) {
        CommunicationRow& row = groups[by == ProfileTable::By::line ? fmt::format("{} {}", listing::place(call.loc), call.op) : call.op];
        ++row.calls;
        row.bytes += static_cast<double>(call.bytes);
        row.waiting_seconds += data.seconds_of(call.agreed - call.begin);
        row.sending_seconds += data.seconds_of(call.end - call.agreed);
        row.hidden_seconds += data.seconds_of(hidden);
    }
    std::vector<CommunicationRow> rows;
    for (auto& [name, row] : groups) {
        row.name = name;
        rows.push_back(std::move(row));
    }
    const auto seconds = [](const CommunicationRow& row) { return row.waiting_seconds + row.sending_seconds; };
    std::stable_sort(rows.begin(), rows.end(), [&](const CommunicationRow& a, const CommunicationRow& b) { return seconds(a) > seconds(b); });
    return rows;
}

std::string communication_table(const Profiler::Data& data, ProfileTable::By by) {
    const std::vector<CommunicationRow> rows = communication_of(data, by);
    std::size_t width = 19;
    for (const CommunicationRow& row : rows) width = std::max(width, row.name.size());
    std::string text = fmt::format("{:<{}}  {:>8}  {:>10}  {:>10}  {:>10}  {:>6}  {:>10}\n", "calls to other ranks", width, "calls", "MB",
                                   "waiting ms", "sending ms", "hidden", "us a call");
    for (const CommunicationRow& row : rows) {
        const double seconds = row.waiting_seconds + row.sending_seconds;
        text += fmt::format("{:<{}}  {:>8}  {:>10.3f}  {:>10}  {:>10}  {:>5.1f}%  {:>10.2f}\n", row.name, width, row.calls, row.bytes * 1e-6,
                            milliseconds(row.waiting_seconds), milliseconds(row.sending_seconds),
                            seconds > 0 ? 100 * row.hidden_seconds / seconds : 0.0, 1e6 * seconds / static_cast<double>(row.calls));
    }
    return text;
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
    if (shown < all.size()) {  // sums the others up in one row
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
        detail::Peak most = detail::peak(device);
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
        const detail::Peak most = peak_of(row.device);
        text += fmt::format("  {:>8.2f}  {:>8}  {:>6.1f}%\n", flops * 1e-9, row.bytes == 0 ? "" : fmt::format("{:.2f}", bytes * 1e-9),
                            100 * std::max(flops / most.flops, bytes / most.bytes));
    }
    double here = 0, elsewhere = 0;
    data.each([&](const ProfileEvent& event) { (event.thread == 0 ? here : elsewhere) += data.seconds_of(event.end - event.begin - event.inside); });
    text += fmt::format("{} ms in ops and scopes of {} ms", milliseconds(here), milliseconds(data.seconds_of(data.last - data.first)));
    if (elsewhere > 0) text += fmt::format(", and {} ms on other threads", milliseconds(elsewhere));
    const auto add_peak = [&](const std::string& whose, int device) {
        const detail::Peak most = peak_of(device);
        text += fmt::format("; peak of {}: {:.1f} GFLOP/s, {:.1f} GB/s", whose, most.flops * 1e-9, most.bytes * 1e-9);
    };
    add_peak(fmt::format("this machine, {} thread{}", num_threads(), num_threads() == 1 ? "" : "s"), -1);
    if (peak_of(-1).was_busy) text += " (the machine was busy: all threads together were slower than one)";
    for (int device = 0; device < cuda_device_count(); ++device) {
        if (std::any_of(all.begin(), all.end(), [&](const ProfileRow& row) { return row.device == device; })) {
            add_peak(name(cuda(device)), device);
        }
    }
    text += "\n";
    if (!data.communication.empty()) text += communication_table(data, options.by);
    return text;
}

}  // namespace

std::vector<CommunicationRow> Profiler::communication(ProfileTable::By by, Loc loc) const {
    return communication_of(stopped(data_, "communication", loc), by);
}

std::vector<ProfileRow> Profiler::rows(ProfileTable::By by, ProfileTable::Sort sort, Loc loc) const {
    return rows_of(stopped(data_, "rows", loc), by, sort);
}

std::string Profiler::table(ProfileTable options, Loc loc) const { return table_of(stopped(data_, "table", loc), options); }

void Profiler::print(ProfileTable options, Loc loc) const { std::fputs(table_of(stopped(data_, "print", loc), options).c_str(), stdout); }

}  // namespace tapir
