// Profiles of ops on the CUDA device: streams, copies, ranges for Nsight.
#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

#include "../autograd/trace_check.h"
#include "../fails.h"
#include "../nn/data/files.h"
#include "check.h"
#if defined(TAPIR_CUDA_EMULATED)
#include <nvtx3/nvToolsExt.h>
#endif

using namespace tapir;

namespace {

ProfileRow row_of(const Profiler& profiler, const std::string& name) {
    for (const ProfileRow& row : profiler.rows()) {
        if (row.name == name) return row;
    }
    FAIL("no row " << name);
    return {};
}

}  // namespace

TEST_CASE("each stream is a row of the trace with its ops, rules and copies", "[cuda]") {
    NEEDS_CUDA;
    const Tensor w = ones({64, 64}, {float32, cuda, true});
    Profiler profiler;
    {
        Tape tape;
        const Tensor x = full({64, 64}, 2.0, {float32, cpu}).to(cuda);
        const Tensor y = matmul(x, w);
        const Stream side(cuda);
        {
            const StreamScope scope(side);
            side.wait_stream(Stream::default_stream(cuda));
            static_cast<void>(exp(y));
        }
        tape.backward(sum(y));
        CHECK(sum(y).item<float>() == 2 * 64 * 64 * 64);
    }
    profiler.stop();
    CHECK(row_of(profiler, "matmul").device_seconds > 0);
    CHECK(row_of(profiler, "matmul").device == 0);
    CHECK(row_of(profiler, "matmul backward").device_seconds > 0);
    const ProfileRow in = row_of(profiler, "copy host to device"), out = row_of(profiler, "copy device to host");
    CHECK(in.bytes == 64 * 64 * 4);
    CHECK(out.bytes == 4);
    CHECK(in.device_seconds > 0);
    const std::string table = profiler.table();
    INFO(table);
    CHECK(table.find("CUDA ms") != std::string::npos);
    CHECK(table.find("; peak of cuda:0: ") != std::string::npos);

    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "trace.json").string();
    profiler.export_chrome_trace(path);
    const trace::Trace trace = trace::read(path);
    CHECK(trace.processes.at(1) == "cuda:0");
    std::map<std::string, std::vector<std::string>> ops;  // by the name of the stream
    for (const trace::Slice& slice : trace.slices) {
        if (slice.row.first == 1) ops[trace.threads.at(slice.row)].push_back(slice.name);
    }
    REQUIRE(ops.size() == 2);
    CHECK(ops["cuda:0 stream 1"] == std::vector<std::string>{"exp"});
    const auto& main = ops["cuda:0 default stream"];
    for (const char* name : {"matmul", "sum", "sum backward", "matmul backward", "copy host to device", "copy device to host"}) {
        INFO(name);
        CHECK(std::count(main.begin(), main.end(), name) == (name == std::string("sum") ? 2 : 1));
    }
    CHECK(std::find(main.begin(), main.end(), "matmul") < std::find(main.begin(), main.end(), "matmul backward"));
    int launches = 0;
    for (const trace::Arrow& arrow : trace.arrows) {
        if (arrow.name != "launch") continue;
        ++launches;
        CHECK(arrow.from->row == std::pair(0, 0));
        CHECK(arrow.to->row.first == 1);
        CHECK(arrow.from->name == arrow.to->name);
    }
    CHECK(launches == static_cast<int>(ops["cuda:0 stream 1"].size() + main.size()));
    CHECK(trace.named("copy host to device", "copy").at(0)->args["bytes"] == 64 * 64 * 4);
}

#if defined(TAPIR_CUDA_EMULATED)
TEST_CASE("ops, rules and scopes are ranges for Nsight while a profiler lives, and all of them end", "[cuda]") {
    NEEDS_CUDA;
    using namespace emulated_nvtx;
    const Tensor w = ones({3}, {float32, cuda, true}), x = ones({3}, cuda);
    const int before = pushed;
    {
        const ProfileScope scope("unseen");
        static_cast<void>(w * x);
    }
    CHECK(pushed == before);
    Profiler profiler;
    {
        const ProfileScope scope("seen");
        CHECK(std::string(last) == "seen");
        CHECK(depth == 1);
        Tape tape;
        const Tensor y = w * x;
        CHECK(std::string(last) == "mul");
        CHECK(pushed == before + 2);
        CHECK(depth == 1);
        FAILS(ShapeError, "", matmul(x, ones({2}, cuda)));
        tape.backward(sum(y));
        CHECK(std::string(last) == "mul backward");
        const Tensor z = w * x;
        z.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("hook"); });
        CHECK_THROWS_AS(tape.backward(sum(z)), std::runtime_error);
    }
    CHECK(depth == 0);
    profiler.stop();
    CHECK(depth == 0);
    CHECK(pushed == popped);
    const int after = pushed;
    static_cast<void>(w * x);
    CHECK(pushed == after);
}
#endif

TEST_CASE("a profile of ops that failed on the device can be looked at", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({3}, cuda);
    Profiler profiler;
    FAILS(ShapeError, "", x + ones({2}, cuda));
    FAILS(ShapeError, "", matmul(x, ones({2}, cuda)));
    static_cast<void>(x + x);
    profiler.stop();
    CHECK(row_of(profiler, "add").calls == 1);
    CHECK(row_of(profiler, "add").device_seconds > 0);
}
