// What the tests of core/gdb/tapir_gdb.py look at. Their expected output names lines of this file: add at the end.
#include <tapir/tapir.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace nn = tapir::nn;
using tapir::Tensor;

// Where the tests stop. What is passed by reference is in memory then, also at -O2.
template <class... T>
[[gnu::noinline]] void look(const T&... values) {
    const void* addresses[] = {&values...};
    asm volatile("" : : "r"(addresses) : "memory");
}

struct Cell : nn::Module {
    nn::Linear forget{3, 2};
    Tensor scale = tapir::full({2}, 2.0).requires_grad_();
    void members(nn::Members& m) override { m("forget", forget)("scale", scale); }
    Tensor forward(const Tensor& x) const {
        nn::ModuleScope scope(*this);
        const Tensor gate = sigmoid(forget(x));
        return gate * scale;
    }
};

struct Model : nn::Module {
    Cell cell;
    std::vector<Cell> cells{1};
    std::unique_ptr<nn::Linear> head = std::make_unique<nn::Linear>(2, 1, nn::LinearOptions{.bias = false});
    std::optional<nn::Linear> none;
    std::map<std::string, nn::Embedding> tables;
    nn::Sequential last{nn::Linear(1, 1), tapir::relu, nn::Dropout(0.5)};
    Tensor steps = tapir::zeros({}, tapir::int64);
    void members(nn::Members& m) override {
        m("cell", cell)("cells", cells)("head", head)("none", none)("tables", tables)("last", last).buffer("steps", steps);
    }
    Tensor forward(const Tensor& x) const { return head->forward(cell.forward(x)); }
};

void fill(nn::Module& module, double value) {
    for (Tensor& parameter : module.parameters()) parameter.detach().fill_(value);
}

void tensors() {
    const Tensor x = tapir::arange(6).view({2, 3}).to(tapir::float32).requires_grad_();
    const Tensor half = tapir::tensor({0.5, -1.5, 65504.0}).to(tapir::float16);
    const Tensor brain = tapir::tensor({0.5, -1.5, 3.0e38}).to(tapir::bfloat16);
    const Tensor mask = x > 2, bytes = x.to(tapir::uint8), whole = x.to(tapir::int32) - 3, turned = x.detach().t();
    const Tensor scalar = tapir::tensor(2.5), empty = tapir::zeros({0, 3}), none;
    Tensor large = tapir::arange(6000).to(tapir::float64).view({2, 30, 100});
    large.index_put_({0, 1, 2}, NAN);
    large.index_put_({1, 1, 2}, INFINITY);
    const Tensor every = large.index({1, tapir::Slice(0, 30, 10), tapir::Slice(0, 100, 40)});
    const tapir::Shape shape{2, 3}, nothing{};
    look(x, half, brain, mask, bytes, whole, turned, scalar, empty, none, large, every, shape, nothing);
}

[[gnu::noinline]] void report(const tapir::Error& error) {
    asm volatile("" : : "r"(&error) : "memory");
}

void errors() {
    try {
        matmul(tapir::ones({2, 3}), tapir::ones({4, 5}));
    } catch (const tapir::Error& error) {
        report(error);
    }
}

void train(Model& model) {
    const Tensor x = tapir::ones({4, 3});
    tapir::Tape tape;
    const Tensor y = model.forward(x);
    const Tensor loss = sum(square(y));
    const std::string listed = tape.str(), wide = tape.str("forget");
    std::printf("%s%s", listed.c_str(), wide.c_str());
    std::fflush(stdout);
    look(x, y, loss, model, tape);
    tape.backward(loss);
    look(model, tape);
}

void nonfinite() {
    const Tensor x = tapir::tensor({1.0, 0.0, 4.0});
    const Tensor w = tapir::ones({3}).requires_grad_();
    tapir::Tape tape;
    const Tensor y = sqrt(x * w);
    tape.backward(sum(y));
    const Tensor z = log(x);
    look(z);
}

void written() {
    const Tensor x = tapir::ones({2}).requires_grad_();
    tapir::Tape tape;
    Tensor y = exp(x);
    const Tensor z = softmax(y, -1), parts = tapir::concat({y, z}), top = tapir::topk(z, 1).values;
    y.add_(1);
    look(y, tape);
    {
        tapir::Tape inner;
        const Tensor again = sum(z);
        look(y, again, inner, tape);
    }
    look(y);
}

void sparse(Model& model) {
    tapir::Tape tape;
    const nn::Embedding& words = model.tables.at("words");
    tape.backward(sum(words(tapir::tensor({1, 3}))));
    look(model);
}

void threads() {
    const Tensor w = tapir::ones({2}).requires_grad_();
    std::thread other([&] {
        tapir::Tape tape;
        const Tensor y = w * 3;
        look(y);
    });
    other.join();
    tapir::Tape tape;
    const Tensor y = w + 1;
    std::thread idle([&] { look(w); });
    idle.join();
}

void plus() {
    const Tensor a = tapir::ones({2}), b = tapir::ones({2});
    look(a, b);
    const Tensor c = a + b;
    look(c);
}

void ops() {
    Tensor x = tapir::zeros({2, 2});
    for (int i = 0; i < 3; ++i) {
        x = x + 1;
        if (i == 1) x.mul_(2);
    }
    const Tensor joined = tapir::concat({x, x}, 1);
    const Tensor product = matmul(x, joined);
    look(product);
}

void memory() {
    const Tensor kept = tapir::ones({100}), large = tapir::ones({100000});
    { const Tensor gone = tapir::ones({50000}); }
    std::thread([] { tapir::ones({7}); }).join();
    const tapir::MemoryStats stats = tapir::memory_stats();
    look(stats);
}

// For measuring what a breakpoint costs that is not hit.
void loop() {
    Tensor x = tapir::zeros({2, 2});
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 20000; ++i) x = sigmoid(x);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    std::printf("%.2f us an op\n", time.count() / 20000);
}

void device() {
    if (!tapir::cuda_is_available()) {
        std::printf("no CUDA device: not tested\n");
        return;
    }
    Tensor x = tapir::arange(6).view({2, 3}).to(tapir::float32).to(tapir::cuda).t().requires_grad_();
    tapir::Tape tape;
    tape.backward(sum(x * x));
    look(x);
}

// Values that hold tensors, as parts of others.
struct Both {
    nn::Linear layer{2, 1};
    Tensor bias;
    int count = 0;
};

void parts() {
    const Tensor one = tapir::ones({2}), zero = tapir::zeros({2});
    const std::vector<tapir::LSTMState> states(2, tapir::LSTMState{one, zero});
    std::vector<Both> both(2);
    both[1].bias = one, both[1].count = 7;
    fill(both[1].layer, 0.25);
    const tapir::optim::Adam adam({tapir::zeros({3}).requires_grad_()}, {.lr = 0.5});
    look(states, both, adam);
}

void caught() {
    const Tensor x = tapir::ones({2, 3});
    try {
        look(matmul(x, x));
    } catch (const tapir::ShapeError&) {
    }
    look(matmul(x, x.t()));
}

namespace mine {
struct Clip : tapir::Function<Clip> {
    static Tensor forward(tapir::FunctionContext&, const std::vector<Tensor>& x) { return x[0] * 2; }
    static std::vector<Tensor> backward(tapir::FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * 2}; }
};
}  // namespace mine
struct Power : tapir::Function<Power> {
    static constexpr const char* name = "my-pow";
    static Tensor forward(tapir::FunctionContext& context, const std::vector<Tensor>& x) { return mine::Clip::forward(context, x); }
    static std::vector<Tensor> backward(tapir::FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * 2}; }
};
template <class Self, int n = 3>
struct Times : tapir::Function<Times<Self, n>> {
    static Tensor forward(tapir::FunctionContext&, const std::vector<Tensor>& x) { return x[0] * n; }
    static std::vector<Tensor> backward(tapir::FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * n}; }
};

void functions() {
    const Tensor w = tapir::ones({2}).requires_grad_();
    tapir::Tape tape;
    tape.backward(sum(Times<int>::apply({Power::apply({mine::Clip::apply({w})})})));
}

void writes() {
    Tensor w = tapir::ones({2}).requires_grad_();
    w.set_grad(tapir::ones({2}));
    tapir::optim::SGD({w}, {.lr = 0.5}).step();
    tapir::optim::Adam({w}, {.lr = 0.5}).step();
    Tensor x = ones_like(w.detach());
    x.fill_(0.5);
    x.uniform_(0, 1);
    x.bernoulli_(0.5);
}

void bodies();  // bodies.cpp
void outputs();  // values.cpp
void optimizers();
void graphs();
void fibers();  // fibers.cpp

int main(int argc, char** argv) {
    using namespace tapir;  // as most programs: gdb finds another declaration then of what the script looks for
    const std::string what = argc > 1 ? argv[1] : "";
    Model model;
    model.tables.emplace("words", nn::Embedding(5, 2));
    fill(model, 0.5);
    if (what == "tensors") tensors();
    if (what == "errors") errors();
    if (what == "train") train(model);
    if (what == "nonfinite") nonfinite();
    if (what == "written") written();
    if (what == "sparse") sparse(model);
    if (what == "threads") threads();
    if (what == "plus") plus();
    if (what == "ops") ops();
    if (what == "parts") parts();
    if (what == "caught") caught();
    if (what == "memory") memory();
    if (what == "loop") loop();
    if (what == "device") device();
    if (what == "functions") functions();
    if (what == "writes") writes();
    if (what == "bodies") bodies();
    if (what == "outputs") outputs();
    if (what == "optimizers") optimizers();
    if (what == "graphs") graphs();
    if (what == "fibers") fibers();
    return 0;
}
