// LogOpsScope and TAPIR_LOG_OPS write a line for each op.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "../fails.h"
#include "../nn/data/files.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// What the function writes to stderr.
template <class F>
std::string written(const F& f) {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "err").string();
    std::fflush(stderr);
    const int kept = ::dup(2), file = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
    ::dup2(file, 2);
    f();
    std::fflush(stderr);
    ::dup2(kept, 2);
    ::close(file);
    ::close(kept);
    return files::read_all(path);
}

// What this program writes when it runs that case below with that in its environment.
std::string written_by_child(const std::string& environment, const std::string& test = "ops for another process") {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string command = environment + " '" + self + "' '" + test + "' 2>&1 >/dev/null";
    std::FILE* pipe = ::popen(command.c_str(), "r");
    REQUIRE(pipe);
    std::string text;
    for (char buffer[256]; std::fgets(buffer, sizeof(buffer), pipe);) text += buffer;
    CHECK(::pclose(pipe) == 0);
    return text;
}

}  // namespace

const int child_line = __LINE__ + 5;
TEST_CASE("ops for another process", "[.]") {
    const Tensor w = ones({2}).requires_grad_();
    std::thread([] { static_cast<void>(ones({4}) + 1); }).join();
    Tape tape;
    tape.backward(sum(w * w));
}

TEST_CASE("ops without a tape for another process", "[.]") {
    const nn::Linear layer(2, 3);  // made in a NoGradScope
    static_cast<void>(tanh(layer(ones({1, 2}))));
    { const NoGradScope pause; }
    static_cast<void>(relu(ones({5})));
}

TEST_CASE("the environment switches logs on for programs without a tape, whose first op is a layer's") {
    const std::string ops = written_by_child("TAPIR_LOG_OPS=1", "ops without a tape for another process");
    INFO(ops);
    for (const char* op : {": linear (1, 2), (3, 2), (3,) -> float32 (1, 3), ", ": tanh (1, 3) -> ", ": relu (5,) -> "}) {
        CHECK(ops.find(op) != std::string::npos);
    }
}

TEST_CASE("the environment switches logs on for a whole program, on all threads") {
    const std::string place = "log_ops_test.cpp:" + std::to_string(child_line) + ": ";
    const std::string thread_place = "log_ops_test.cpp:" + std::to_string(child_line - 2) + ": ";
    const std::string ops = written_by_child("TAPIR_LOG_OPS=1 TAPIR_LOG_PLACEMENT=");
    INFO(ops);
    CHECK(ops.find(place + "mul (2,), (2,) -> float32 (2,), ") != std::string::npos);
    CHECK(ops.find(place + "sum (2,) -> float32 (), ") != std::string::npos);
    CHECK(ops.find(place + "mul backward, ") != std::string::npos);
    CHECK(ops.find(thread_place + "add (4,), () -> float32 (4,), ") != std::string::npos);
    const std::string placement = written_by_child("TAPIR_LOG_OPS=0 TAPIR_LOG_PLACEMENT=1");
    INFO(placement);
    CHECK(placement.find(place + "mul: cpu, float32 (2,)\n") != std::string::npos);
    CHECK(placement.find(thread_place + "add: cpu, float32 (4,)\n") != std::string::npos);
    CHECK(placement.find(" us") == std::string::npos);
    CHECK(written_by_child("TAPIR_LOG_OPS=0 TAPIR_LOG_PLACEMENT=0").empty());
}

TEST_CASE("each op and each rule writes its line") {
    const Tensor w = ones({3, 4}).requires_grad_(), x = ones({2, 3});
    int line = 0;
    const std::string text = written([&] {
        const LogOpsScope log;
        Tape tape;
        line = __LINE__ + 1;
        tape.backward(sum(matmul(x, w)));
    });
    INFO(text);
    const std::string place = "log_ops_test.cpp:" + std::to_string(line) + ": ";
    CHECK(text.find(place + "matmul (2, 3), (3, 4) -> float32 (2, 4), ") == 0);
    CHECK(text.find(place + "sum (2, 4) -> float32 (), ") != std::string::npos);
    CHECK(text.find(place + "sum backward, ") < text.find(place + "matmul backward, "));
    CHECK(std::count(text.begin(), text.end(), '\n') == 4);
    CHECK(written([&] { static_cast<void>(x + x); }).empty());
}

TEST_CASE("the time of a checkpoint's rule has those of its function's rules in it") {
    const Tensor x = ones({2}).requires_grad_();
    const std::string text = written([&] {
        const LogOpsScope log;
        Tape tape;
        x.register_hook([](const Tensor& g) { return cos(g); });
        tape.backward(sum(checkpoint([](const std::vector<Tensor>& in) { return exp(in[0]); }, {x})));
    });
    INFO(text);
    const auto time_of = [&](const std::string& what) {
        const std::size_t at = text.find(what);
        REQUIRE(at != std::string::npos);
        return std::stod(text.substr(at + what.size()));
    };
    CHECK(time_of("checkpoint backward, ") >= time_of("exp backward, "));
    CHECK(text.find(": cos (2,) -> float32 (2,), ") != std::string::npos);
}

TEST_CASE("what backward does for leaves is on the line of the backward") {
    const Tensor table = randn({5, 3}).requires_grad_();
    int line = 0;
    std::string memory_table;
    const std::string text = written([&] {
        const MemoryProfiler memory;
        const LogPlacementScope log;
        Tape tape;
        const Tensor y = sum(embedding(tensor({1, 2}), table)) + sum(embedding(tensor({2, 4}), table));
        line = __LINE__ + 1;
        tape.backward(y);
        memory_table = memory.table();
        static_cast<void>(table.grad());
        memory_table += memory.table();
    });
    const std::string place = "log_ops_test.cpp:" + std::to_string(line);
    CHECK(text.find(place + ": cat: cpu, float32 (4, 3)\n") != std::string::npos);
    CHECK(memory_table.find(place + " cat") != std::string::npos);
    for (const std::string& said : {text, memory_table}) {
        INFO(said);
        CHECK(said.find("gradient_ops.cpp") == std::string::npos);
        CHECK(said.find("collected.cpp") == std::string::npos);
    }
}

TEST_CASE("ops without a tape, in place and with integers write their lines, and say their module") {
    struct Block : nn::Module {
        Tensor forward(const Tensor& x) {
            const nn::ModuleScope scope(*this);
            return x + 1;
        }
        void members(nn::Members&) override {}
    };
    Tensor x = tensor({1, 2});
    const std::string text = written([&] {
        const LogOpsScope log;
        const NoGradScope off;
        static_cast<void>(Block().forward(x));
        x.mul_(2);
        static_cast<void>(x > 1);
    });
    INFO(text);
    CHECK(text.find("add (2,), () -> int64 (2,), ") != std::string::npos);
    CHECK(text.find(" (in Block)\n") != std::string::npos);
    CHECK(text.find("mul (2,), () -> int64 (2,), ") != std::string::npos);
    CHECK(text.find("gt (2,), () -> bool (2,), ") != std::string::npos);
}
