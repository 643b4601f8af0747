// LogPlacementScope: each op that the user calls writes one line, with the user's line and the op's own name.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "../ops/samples.h"
#include "check.h"
#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>
#endif

using namespace tapir;

namespace {

// What f writes to stderr, by lines.
std::vector<std::string> logged(const std::function<void()>& f) {
    std::FILE* file = std::tmpfile();
    const int own = ::dup(STDERR_FILENO);
    std::fflush(stderr);
    ::dup2(::fileno(file), STDERR_FILENO);
    {
        const LogPlacementScope log;
        f();
    }
    std::fflush(stderr);
    ::dup2(own, STDERR_FILENO);
    ::close(own);
    std::rewind(file);
    std::vector<std::string> lines(1);
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) {
        if (c == '\n') {
            lines.emplace_back();
        } else {
            lines.back() += static_cast<char>(c);
        }
    }
    std::fclose(file);
    lines.pop_back();
    std::erase_if(lines, [](const std::string& line) { return line.rfind("==", 0) == 0; });  // a sanitizer's
    return lines;
}

void check_log(int line, std::vector<std::string> want, const std::function<void()>& f) {
    for (std::string& text : want) text = "placement_test.cpp:" + std::to_string(line) + ": " + text;
    CHECK(logged(f) == want);
}

}  // namespace

// LOGS(code, lines...): the code writes these lines, each behind this file and line.
#define LOGS(code, ...) check_log(__LINE__, {__VA_ARGS__}, [&] { code; })

TEST_CASE("the placement log names the op that was called, once", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = rand({2, 3}, cuda), wide = rand({2, 3}, {float64, cuda}), turned = x.t();
    const Tensor w = rand({5, 3}, cuda), index = tensor({1, 0}).to(cuda), here = rand({2, 3});
    Tensor y = clone(x);
    LOGS(exp(x), "exp: cuda:0, float32 (2, 3)");
    LOGS(exp(here), "exp: cpu, float32 (2, 3)");
    LOGS(x.to(float64), "to: cuda:0, float64 (2, 3)");
    LOGS(x.to(cpu), "to: cpu, float32 (2, 3)");
    LOGS(here.to(cuda), "to: cuda:0, float32 (2, 3)");
    LOGS(turned.to(cpu), "to: cpu, float32 (3, 2)");
    LOGS(x.to(cpu, true), "to: cpu, float32 (2, 3)");
    LOGS(turned.contiguous(), "contiguous: cuda:0, float32 (3, 2)");
    LOGS(linear(x, w), "linear: cuda:0, float32 (2, 5)");
    LOGS(mse_loss(x, wide), "mse_loss: cuda:0, float64 (2, 3)");
    LOGS(l1_loss(x, wide), "l1_loss: cuda:0, float64 (2, 3)");
    LOGS(binary_cross_entropy(x, x), "binary_cross_entropy: cuda:0, float32 (2, 3)");
    LOGS(clamp(x, x, x), "clamp: cuda:0, float32 (2, 3)");
    LOGS(einsum("ij,kj->ik", {x, w}), "einsum: cuda:0, float32 (3, 5)");  // a part of it
    LOGS(bernoulli(turned), "bernoulli: cuda:0, float32 (3, 2)");
    LOGS(multinomial(x, 1), "multinomial: cpu, float32 (2, 3)");
    LOGS(one_hot(index, 4), "one_hot: cuda:0, int64 (2, 4)");
    LOGS(x[index], "index: cuda:0, float32 (2, 3)");
    LOGS(rand({2}, cuda), "rand: cuda:0, float32 (2,)");
    LOGS(randperm(3), "randperm: cpu, int64 (3,)");
    LOGS(y.add_(x), "add: cuda:0, float32 (2, 3)");
    LOGS(y.copy_(x), "copy_: cuda:0, float32 (2, 3)");
    LOGS(y.index_put_({index}, 1), "index_put_: cuda:0, float32 (2, 3)");
    LOGS(tensor({1, 2}, cuda), "tensor: cpu, int64 (2,)", "to: cuda:0, int64 (2,)");
    LOGS(exp(x) * x + x, "exp: cuda:0, float32 (2, 3)", "mul: cuda:0, float32 (2, 3)", "add: cuda:0, float32 (2, 3)");
    LOGS(for (int i = 0; i < 2; ++i) y = exp(x), "exp: cuda:0, float32 (2, 3)", "exp: cuda:0, float32 (2, 3)");
}

TEST_CASE("the placement log of backward has the lines of the ops", "[cuda]") {
    NEEDS_CUDA;
    const Tensor w = ones({3}, {float32, cuda, true});
    Tape tape;
    const std::string line = "placement_test.cpp:" + std::to_string(__LINE__ + 1);
    const Tensor y = tanh(w);
    const std::vector<std::string> lines = logged([&] { tape.backward(y, {.gradient = y}); });
    REQUIRE(lines.size() == 1);
    CHECK(lines[0] == line + ": tanh: cuda:0, float32 (3,)");
}

TEST_CASE("the placement log of an optimizer's step has a line for each parameter", "[cuda]") {
    NEEDS_CUDA;
    Tensor w = ones({3}, {float32, cuda, true}), b = ones({}, {float32, cpu, true});
    w.set_grad(ones({3}, cuda));
    b.set_grad(ones({}));
    optim::SGD sgd({w, b}, {.lr = 0.1});
    LOGS(sgd.step(), "sgd: cuda:0, float32 (3,)", "sgd: cpu, float32 ()");
    Tensor half = ones({3}, {float16, cuda, true});  // computed in float32
    half.set_grad(ones({3}, {float16, cuda}));
    optim::SGD of_half({half}, {.lr = 0.1});
    LOGS(of_half.step(), "sgd: cuda:0, float16 (3,)");
}

TEST_CASE("in the placement log of every op of the table there are only ops of its example", "[cuda]") {
    NEEDS_CUDA;
    for (const test::Call& call : test::all_calls()) {
        if (call.op->name == std::string("place")) continue;  // never called by users
        if (call.code.find("stepped<") == 0) continue;        // two steps of an optimizer: see above
        INFO(call.name);
        std::vector<Tensor> inputs;
        for (const Tensor& x : test::make_inputs(call)) inputs.push_back(x.to(cuda));
        std::vector<Tensor> results;
        std::vector<std::string> lines = logged([&] { results = call.run(inputs); });
        if (!results.empty() && !inputs.empty() && results[0].is_same(inputs[0])) continue;  // nothing to do: dropout of p = 0
        CHECK(!lines.empty());
        if (lines.empty()) continue;
        const std::string place = lines[0].substr(0, lines[0].find(':'));
        for (const std::string& line : lines) CHECK(line.substr(0, line.find(':')) == place);
        if (place == "elementwise.def") CHECK(lines.size() == 1);
        std::sort(lines.begin(), lines.end());
        CHECK(std::adjacent_find(lines.begin(), lines.end()) == lines.end());  // none twice
    }
}

#ifdef TAPIR_CUDA_EMULATED
TEST_CASE("errors name the op while placements are logged", "[cuda]") {
    const Tensor x = ones({3}, cuda);
    std::string what;
    logged([&] {
        emulator::fail_next_launch(cudaErrorInvalidConfiguration);
        try {
            exp(x);
        } catch (const DeviceError& error) {
            what = error.what();
        }
    });
    CHECK(what.find(": exp: kernel launch: invalid configuration argument") != std::string::npos);
}
#endif
