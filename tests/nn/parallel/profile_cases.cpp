// What a Profiler's trace tells of calls to other ranks. (How long they take is not looked at, only what comes before what.)
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cases.h"
#include "tapir/nn/parallel/replicas.h"

namespace cases {
namespace {

using parallel::Replicas;

struct Slice {
    std::string name, category;
    std::int64_t begin, end;  // nanoseconds
    nlohmann::json args;
};

// What a rank of the program has in the trace.
struct RankTrace {
    std::vector<Slice> program, communication;

    const Slice& of(const std::vector<Slice>& slices, const std::string& name, const std::string& part = "", Loc loc = Loc::current()) const {
        const Slice* found = nullptr;
        for (const Slice& slice : slices) {
            if (slice.name != name || (slice.args.value("of", "") + slice.args.value("note", "")).find(part) == std::string::npos) continue;
            require(!found, "one slice " + name + " " + part, loc);
            found = &slice;
        }
        require(found, "there is a slice " + name + " " + part, loc);
        return *found;
    }
};

RankTrace read_trace(const Profiler& profiler, int rank) {
    const std::string path = (std::filesystem::temp_directory_path() / fmt::format("tapir_trace_{}_{}.json", ::getpid(), rank)).string();
    profiler.export_chrome_trace(path);
    std::ifstream file(path);
    const nlohmann::json events = nlohmann::json::parse(file).at("traceEvents");
    std::filesystem::remove(path);
    std::optional<int> communicates;
    for (const auto& event : events) {
        if (event["name"] == "thread_name" && event["args"]["name"] == fmt::format("comm. rank {}", rank)) communicates = event["tid"];
    }
    require(communicates.has_value(), "communication has a row of its own");
    RankTrace trace;
    const auto nanoseconds = [](const nlohmann::json& microseconds) { return std::llround(microseconds.get<double>() * 1000); };
    for (const auto& event : events) {
        if (event["ph"] != "X" || (event["tid"] != 0 && event["tid"] != *communicates)) continue;
        const std::int64_t begin = nanoseconds(event["ts"]);
        (event["tid"] == 0 ? trace.program : trace.communication)
            .push_back({event["name"], event["cat"], begin, begin + nanoseconds(event["dur"]), event["args"]});
    }
    return trace;
}

// One Profiler may live in a process: ranks that are threads leave it to the first.
bool is_profiled(const Group& world) { return world.rank() == 0 || world.engine() != std::string("threads"); }

thread_local const Group* group_of_late = nullptr;

// Its backward ends when the calls are over that were made before it.
struct Late : Function<Late> {
    static Tensor forward(FunctionContext&, const Tensor& x) { return x * 1; }
    static Tensor backward(FunctionContext&, const Tensor& g) {
        group_of_late->barrier();
        return g * 1;
    }
};

// A step of four layers. The gradients of all but the first are known before Late's backward runs.
RankTrace trace_of_step(const Group& world, std::int64_t bucket, int* line) {
    std::vector<Tensor> weights;
    for (int i = 0; i < 4; ++i) weights.push_back((ones({16, 16}) * 0.1).requires_grad_());
    const Replicas replicas(weights, world, {.bucket = bucket});
    group_of_late = &world;
    std::optional<Profiler> profiler;
    if (is_profiled(world)) profiler.emplace();
    {
        Tape tape;
        Tensor h = matmul(ones({2, 16}) * (world.rank() + 1), weights[0]);
        h = Late::apply(h);
        for (int i = 1; i < 4; ++i) h = tanh(matmul(h, weights[static_cast<std::size_t>(i)]));
        const Tensor loss = h.sum();
        *line = __LINE__ + 1;
        tape.backward(loss);
    }
    if (!profiler) return {};
    profiler->stop();
    return read_trace(*profiler, world.rank());
}

void overlap(const Group& world) {
    const DeviceScope host(cpu);  // a device's part of a call is not in the row of these
    int line = 0;
    const auto ends = [](const RankTrace& trace) {
        std::int64_t end = 0;
        for (const Slice& slice : trace.program) end = std::max(end, slice.category == "backward" ? slice.end : 0);
        return end;
    };
    const RankTrace trace = trace_of_step(world, 16 * 16 * 4, &line);
    if (is_profiled(world)) {
        const Slice &first = trace.of(trace.communication, "all_reduce", "bucket 0 of 4"), &late = trace.of(trace.program, "Late backward");
        const Slice &barrier = trace.of(trace.communication, "barrier"), &last = trace.of(trace.communication, "all_reduce", "bucket 3 of 4");
        require(first.begin < ends(trace), "the first bucket's all_reduce begins before backward ends");
        require(first.end <= barrier.begin && barrier.end <= late.end, "and ends before the last rules run");
        require(late.end <= last.begin, "the last bucket's comes after them");
        require(first.args["line"] == fmt::format("profile_cases.cpp:{}", line), "the line of backward()");
        require(first.args["of"] == "gradients, float32 (256,)", "dtype and shape");
        require(first.args["bytes"] == 1024, "its bytes");
        require(first.args["note"] == "bucket 0 of 4, step 0", "the step");
        const Slice &wait = trace.of(trace.program, "Replicas: wait"), &told = trace.of(trace.communication, "all_reduce", "who has which");
        require(wait.begin >= ends(trace) && wait.end >= told.end, "the program waits for what still travels");
    }
    const RankTrace together = trace_of_step(world, 1 << 20, &line);  // a bucket of all gradients waits for the last one
    if (is_profiled(world)) {
        const Slice &only = together.of(together.communication, "all_reduce", "bucket 0 of 1"),
                    &late = together.of(together.program, "Late backward");
        require(only.begin >= late.end, "one bucket's all_reduce begins when all gradients are known");
    }
}

void profile(const Group& world) {
    const DeviceScope host(cpu);
    std::optional<Profiler> profiler;
    if (is_profiled(world)) profiler.emplace();
    const int line = __LINE__ + 1;
    static_cast<void>(world.all_reduce(ones({1000})));
    static_cast<void>(world.all_gather(ones({world.rank() + 1, 2}, int64)));
    if (world.rank() == 0) static_cast<void>(world.recv(1));
    if (world.rank() == 1) static_cast<void>(world.send(ones({10}), 0));
    if (!profiler) return;
    profiler->stop();
    const RankTrace trace = read_trace(*profiler, world.rank());
    const Slice& sum = trace.of(trace.communication, "all_reduce");
    require(sum.category == "communication" && sum.args["of"] == "float32 (1000,), sum" && sum.args["bytes"] == 4000, "what it was");
    require(sum.args["line"] == fmt::format("profile_cases.cpp:{}", line), "where it was called");
    const double hidden = sum.args["hidden ms"];
    require(hidden >= 0 && hidden * 1e6 <= static_cast<double>(sum.end - sum.begin + 1000), "what was hidden is a part of it");
    require(trace.of(trace.communication, "all_gather").args["bytes"] == 16 * (world.rank() + 1), "what this rank gives");
    if (world.rank() == 0) require(trace.of(trace.communication, "recv").args["bytes"] == 40, "what has come");
    if (world.rank() == 1) require(trace.of(trace.communication, "send").args["bytes"] == 40, "what was sent");
    int waits = 0;
    std::int64_t end = 0;
    for (const Slice& slice : trace.communication) {
        waits += slice.name == "waiting";
        if (slice.begin >= end) end = slice.end;  // a call; what follows are its parts
        require(slice.end <= end, "calls follow each other");
    }
    require(waits >= 2, "waiting for other ranks is told from sending");
    const std::vector<CommunicationRow> rows = profiler->communication();
    const auto row = std::find_if(rows.begin(), rows.end(), [](const CommunicationRow& r) { return r.name == "all_reduce"; });
    require(row != rows.end() && row->calls >= 1 && row->bytes == 4000.0 * static_cast<double>(row->calls), "the table has it");
}

}  // namespace

std::vector<Case> profile_cases() { return {{"overlap", 2, overlap}, {"profile", 2, profile}}; }

}  // namespace cases
