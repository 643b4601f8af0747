// What holds for every trace that Profiler::export_chrome_trace() writes.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace trace {

using Json = nlohmann::json;

struct Slice {
    std::string name, category;
    std::int64_t begin = 0, end = 0;  // nanoseconds
    std::pair<int, int> row;          // process, thread
    Json args;
    const Slice* holder = nullptr;  // the innermost slice around it
};

struct Arrow {
    const Slice *from, *to;
    std::string name;
};

struct Trace {
    std::vector<Slice> slices;
    std::vector<Arrow> arrows;
    std::map<std::pair<int, int>, std::string> threads;
    std::map<int, std::string> processes;
    std::vector<std::int64_t> memory;  // bytes

    std::vector<const Slice*> named(const std::string& name, const std::string& category = "") const {
        std::vector<const Slice*> found;
        for (const Slice& s : slices) {
            if (s.name == name && (category.empty() || s.category == category)) found.push_back(&s);
        }
        return found;
    }
};

inline std::int64_t in_nanoseconds(const Json& microseconds) { return std::llround(microseconds.get<double>() * 1000); }

/// Reads it, and fails where slices of a thread overlap without lying in each other, where times go back, or where an arrow has
/// lost an end or does not begin and end within slices.
inline Trace read(const std::string& path) {
    std::ifstream file(path);
    const Json json = Json::parse(file);
    Trace trace;
    std::int64_t last = 0, last_memory = 0;
    struct End {
        std::pair<int, int> row;
        std::int64_t at;
        std::string name;
    };
    std::map<int, End> starts, ends;
    for (const Json& event : json.at("traceEvents")) {
        const std::string kind = event.at("ph");
        if (kind == "M") {
            const std::string what = event["name"];
            REQUIRE((what == "process_name" || what == "thread_name"));
            if (what == "thread_name")
                trace.threads[{event["pid"], event["tid"]}] = event["args"]["name"];
            else
                trace.processes[event["pid"].get<int>()] = event["args"]["name"];
            continue;
        }
        const std::int64_t begin = in_nanoseconds(event.at("ts"));
        REQUIRE(begin >= 0);
        if (kind == "C") {
            REQUIRE(begin >= last_memory);
            last_memory = begin;
            trace.memory.push_back(event.at("args").at("bytes"));
            continue;
        }
        REQUIRE(begin >= last);
        last = begin;
        const std::pair<int, int> row{event.at("pid"), event.at("tid")};
        if (kind == "X") {
            REQUIRE(event.at("dur").get<double>() >= 0);
            trace.slices.push_back(
                {event.at("name"), event.at("cat"), begin, begin + in_nanoseconds(event["dur"]), row, event.value("args", Json::object())});
        } else {
            REQUIRE((kind == "s" || kind == "f"));
            if (kind == "f") REQUIRE(event.at("bp") == "e");
            REQUIRE((kind == "s" ? starts : ends).emplace(event.at("id"), End{row, begin, event.at("name")}).second);
        }
    }
    std::map<std::pair<int, int>, std::vector<Slice*>> open;
    for (Slice& slice : trace.slices) {  // in the order of the file, as viewers stack them
        REQUIRE(trace.threads.count(slice.row) == 1);
        std::vector<Slice*>& stack = open[slice.row];
        while (!stack.empty() && stack.back()->end <= slice.begin) stack.pop_back();
        if (!stack.empty()) {
            INFO(slice.name << " in " << stack.back()->name);
            REQUIRE(slice.end <= stack.back()->end);
            slice.holder = stack.back();
        }
        stack.push_back(&slice);
    }
    const auto at = [&](const End& end) {
        const Slice* innermost = nullptr;  // of those that hold the time, the last in the file
        for (const Slice& s : trace.slices) {
            if (s.row == end.row && s.begin <= end.at && end.at <= s.end) innermost = &s;
        }
        REQUIRE(innermost);
        return innermost;
    };
    REQUIRE(starts.size() == ends.size());
    for (const auto& [id, start] : starts) {
        REQUIRE(ends.count(id) == 1);
        REQUIRE(ends[id].name == start.name);
        trace.arrows.push_back({at(start), at(ends[id]), start.name});
    }
    return trace;
}

}  // namespace trace
