// op_count KIND N: calls one kind of op N times inside tapir_measured(), after a warm-up outside of it, so that
// callgrind can count its instructions alone (instructions.sh). The count repeats exactly, whatever else the machine
// does. In a build with the CUDA device and where there is one, the emulator's say, kinds "cuda: ..." count what the caller's
// thread does for an op there.
#include <tapir/core/parallel.h>
#include <tapir/tapir.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

using namespace tapir;

namespace {

/// Keeps a result from being optimised away.
template <class T>
void keep(const T& value) {
    asm volatile("" : : "r"(&value) : "memory");
}

using Work = std::function<void(int)>;
const Work* measured = nullptr;

}  // namespace

/// What callgrind collects in, by its name.
extern "C" [[gnu::noinline]] void tapir_measured(int count) {
    (*measured)(count);
    asm volatile("");  // no tail call: the function must be left after its work
}

int main(int argc, char** argv) {
    set_num_threads(1);
    const Tensor a = randn({4}), b = randn({4}), square = randn({4, 4});
    const Tensor leaf = randn({4}).requires_grad_();
    const Tensor x = randn({1, 64}), w = randn({64, 64}).requires_grad_(), bias = randn({64}).requires_grad_();
    std::map<std::string, Work> kinds = {
        {"empty loop",
         [&](int n) {
             for (int i = 0; i < n; ++i) keep(a);
         }},
        {"add",
         [&](int n) {
             for (int i = 0; i < n; ++i) keep(a + b);
         }},
        {"add recorded",
         [&](int n) {
             const Tape tape;
             for (int i = 0; i < n; ++i) keep(a + leaf);
         }},
        {"tanh",
         [&](int n) {
             for (int i = 0; i < n; ++i) keep(tanh(a));
         }},
        {"tanh recorded",
         [&](int n) {
             const Tape tape;
             for (int i = 0; i < n; ++i) keep(tanh(leaf));
         }},
        {"view",
         [&](int n) {
             for (int i = 0; i < n; ++i) keep(square.view({2, 8}));
         }},
        {"narrow",
         [&](int n) {
             for (int i = 0; i < n; ++i) keep(square.narrow(0, 1, 2));
         }},
        {"linear 1x64",
         [&](int n) {
             for (int i = 0; i < n; ++i) keep(linear(x, w, bias));
         }},
        {"linear 1x64 recorded",
         [&](int n) {
             const Tape tape;
             for (int i = 0; i < n; ++i) keep(linear(x, w, bias));
         }},
    };
    // Forward outside, backward inside.
    struct Chain {
        Tensor from;
        std::function<Tensor(const Tensor&)> op;
    };
    std::map<std::string, Chain> chains = {
        {"backward of add", {leaf, [&](const Tensor& y) { return y + b; }}},
        {"backward of tanh", {leaf, [](const Tensor& y) { return tanh(y); }}},
    };
    if (cuda_is_available()) {
        const Tensor a2 = a.to(cuda), b2 = b.to(cuda), leaf2 = leaf.detach().to(cuda).requires_grad_();
        kinds["cuda: add"] = [=](int n) {
            for (int i = 0; i < n; ++i) keep(a2 + b2);
        };
        kinds["cuda: add recorded"] = [=](int n) {
            const Tape tape;
            for (int i = 0; i < n; ++i) keep(a2 + leaf2);
        };
        kinds["cuda: tanh recorded"] = [=](int n) {
            const Tape tape;
            for (int i = 0; i < n; ++i) keep(tanh(leaf2));
        };
        chains["cuda: backward of add"] = {leaf2, [=](const Tensor& y) { return y + b2; }};
        chains["cuda: backward of tanh"] = {leaf2, [](const Tensor& y) { return tanh(y); }};
    }
    const std::string kind = argc > 1 ? argv[1] : "";
    const int count = argc > 2 ? std::atoi(argv[2]) : 1000;

    if (const auto found = kinds.find(kind); found != kinds.end()) {
        for (int warm_up = 0; warm_up < 2; ++warm_up) found->second(count);
        measured = &found->second;
        tapir_measured(count);
    } else if (const auto chain = chains.find(kind); chain != chains.end()) {
        for (int run = 0; run < 3; ++run) {
            Tape tape;
            Tensor y = chain->second.from;
            for (int i = 0; i < count; ++i) y = chain->second.op(y);
            y = sum(y);
            const Work backward = [&](int) { tape.backward(y); };
            measured = &backward;
            if (run == 2) {
                tapir_measured(count);
            } else {
                backward(count);
            }
        }
    } else {
        for (const auto& [name, work] : kinds) std::printf("%s\n", name.c_str());
        for (const auto& [name, chain_of] : chains) std::printf("%s\n", name.c_str());
        return argc > 1;
    }
}
