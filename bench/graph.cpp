// [THREADS=n] bench_graph [ROUNDS [ROW]]: what running a traced graph costs beside calling the same function (without a tape; for training
// steps with one). All take turns, and a row has the best of each: what other programs do to this machine makes runs only slower. Beside
// the times: calls of malloc of one warm run, and the most memory that one takes beside what is there before it, of the compiled graph with
// the memory that it has planned and keeps. `frozen`: compiled after freeze(), where the graph has parameters (its packed weights are not
// counted).
#include <tapir/autograd/trace/control_flow.h>
#include <tapir/autograd/trace/passes/passes.h>
#include <tapir/autograd/trace/trace.h>
#include <tapir/core/allocator.h>
#include <tapir/core/parallel.h>
#include <tapir/tapir.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

namespace {
std::int64_t malloc_calls = 0;
}

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) {
    ++malloc_calls;
    return __libc_malloc(n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
    ++malloc_calls;
    return __libc_memalign(alignment, n);
}
}

using namespace tapir;

namespace {

template <class T>
void keep(const T& value) {
    asm volatile("" : : "r"(&value) : "memory");
}

double now() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

const char* only = nullptr;
int rounds = 60;

struct Cost {
    double us = 1e30;
    std::int64_t mallocs = 0, peak = 0;
};

using Work = std::function<void()>;

double time_of(const Work& work, int calls) {
    const double begin = now();
    for (int i = 0; i < calls; ++i) work();
    return (now() - begin) / calls;
}

// The call, the run by names, that of the compiled graph, and of the frozen one, if there is one.
void row(const char* name, const std::vector<Work>& works, const CompiledGraph& compiled) {
    if (only && !std::strstr(name, only)) return;
    Cost costs[4];
    for (std::size_t k = 0; k < works.size(); ++k) {
        for (int i = 0; i < 5; ++i) works[k]();
        const std::int64_t before = malloc_calls;
        works[k]();
        costs[k].mallocs = malloc_calls - before;
        reset_peak_memory();
        const std::int64_t live = memory_stats().live_bytes;
        works[k]();
        costs[k].peak = memory_stats().peak_bytes - live;
    }
    const int calls = static_cast<int>(std::clamp(2000 / std::max(time_of(works[0], 5), 0.01), 1.0, 20000.0));
    for (int i = 0; i < rounds; ++i) {
        for (std::size_t k = 0; k < works.size(); ++k) costs[k].us = std::min(costs[k].us, time_of(works[k], calls));
    }
    std::printf("%-32s", name);
    for (std::size_t k = 0; k < 4; ++k) k < works.size() ? std::printf(" %10.3f", costs[k].us) : std::printf(" %10s", "");
    for (std::size_t k = 1; k < 4; ++k) k < works.size() ? std::printf(" %7.2f", costs[0].us / costs[k].us) : std::printf(" %7s", "");
    for (std::size_t k = 0; k < 3; ++k) std::printf(" %5lld", static_cast<long long>(costs[k].mallocs));
    std::printf(" %11lld %11lld\n", static_cast<long long>(costs[0].peak),
                static_cast<long long>(costs[2].peak) + static_cast<long long>(compiled.planned_bytes()));
}

// A function of tensors, called and run; `eager` is the call as a program would write it, `compiled` the same of the compiled graph.
template <class Eager, class Compiled>
void forward(const char* name, const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& fn, const std::vector<Tensor>& x,
             const Eager& eager, const Compiled& compiled) {
    if (only && !std::strstr(name, only)) return;
    std::vector<TraceInput> inputs;
    Graph::Inputs named;
    for (std::size_t i = 0; i < x.size(); ++i) {
        inputs.push_back({"x" + std::to_string(i), x[i]});
        named.emplace_back("x" + std::to_string(i), x[i]);
    }
    const Graph graph = trace(fn, inputs);
    const std::vector<Tensor> a = fn(x), b = graph.run(named);
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (!allclose(a[i], b[i], 1e-5, 1e-6)) std::printf("%s: differs\n", name);
    }
    const NoGradScope no_grad;
    Graph constant = graph;
    freeze(constant);
    const CompiledGraph ready = graph.compile(), frozen = constant.compile();
    std::vector<Work> works = {[&] { keep(eager()); }, [&] { keep(graph.run(named)); }, [&] { keep(compiled(ready)); }};
    if (!graph.parameters().empty()) works.push_back([&] { keep(compiled(frozen)); });
    row(name, works, ready);
}

void mlp(const char* name, const std::vector<std::int64_t>& widths, std::int64_t batch) {
    const nn::Linear first(widths[0], widths[1]), second(widths[1], widths[2]);
    const Tensor x = randn({batch, widths[0]});
    const auto model = [&](const Tensor& t) { return second(relu(first(t))); };
    forward(
        name, [&](const std::vector<Tensor>& t) { return std::vector<Tensor>{model(t[0])}; }, {x}, [&] { return model(x); },
        [&](const CompiledGraph& run) { return run(x); });
}

// What users write: Linear, LayerNorm, an activation.
void norm_mlp(const char* name, const std::vector<std::int64_t>& widths, std::int64_t batch, bool is_gelu) {
    const nn::Linear first(widths[0], widths[1]), second(widths[1], widths[2]);
    const nn::LayerNorm norm(Shape{widths[1]});
    const Tensor x = randn({batch, widths[0]});
    const auto model = [&](const Tensor& t) {
        const Tensor h = norm(first(t));
        return second(is_gelu ? gelu(h) : tanh(h));
    };
    forward(
        name, [&](const std::vector<Tensor>& t) { return std::vector<Tensor>{model(t[0])}; }, {x}, [&] { return model(x); },
        [&](const CompiledGraph& run) { return run(x); });
}

// A cell of a binary Tree-LSTM, of products and element-wise ops.
void plain_tree_cell(const char* name, std::int64_t hidden, std::int64_t batch) {
    const nn::Linear left(hidden, 5 * hidden), right(hidden, 5 * hidden);
    const auto cell = [&](const Tensor& h1, const Tensor& c1, const Tensor& h2, const Tensor& c2) {
        const std::vector<Tensor> gates = chunk(left(h1) + right(h2), 5, 1);
        const Tensor c = sigmoid(gates[0]) * tanh(gates[1]) + sigmoid(gates[2]) * c1 + sigmoid(gates[3]) * c2;
        return std::array<Tensor, 2>{sigmoid(gates[4]) * tanh(c), c};
    };
    std::vector<Tensor> x;
    for (int i = 0; i < 4; ++i) x.push_back(randn({batch, hidden}));
    forward(
        name,
        [&](const std::vector<Tensor>& t) {
            const auto [h, c] = cell(t[0], t[1], t[2], t[3]);
            return std::vector<Tensor>{h, c};
        },
        x, [&] { return cell(x[0], x[1], x[2], x[3]); }, [&](const CompiledGraph& run) { return run.call<2>(x[0], x[1], x[2], x[3]); });
}

void tree_cell(const char* name, std::int64_t hidden, std::int64_t batch) {
    const nn::NaryTreeLSTMCell cell(hidden, hidden);
    std::vector<Tensor> x;
    for (int i = 0; i < 4; ++i) x.push_back(batch > 1 ? randn({batch, hidden}) : randn({hidden}));
    const LSTMState left{x[0], x[1]}, right{x[2], x[3]};
    forward(
        name,
        [&](const std::vector<Tensor>& t) {
            const LSTMState state = cell({t[0], t[1]}, {t[2], t[3]});
            return std::vector<Tensor>{state.h, state.c};
        },
        x, [&] { return cell(left, right); }, [&](const CompiledGraph& run) { return run.call<2>(x[0], x[1], x[2], x[3]); });
}

// A tree of leaves 0 to n - 1, halved again and again.
void tree(const char* name, std::int64_t hidden, std::int64_t leaves) {
    const nn::NaryTreeLSTMCell cell(hidden, hidden);
    const std::function<LSTMState(const Tensor&, std::int64_t, std::int64_t)> encode = [&](const Tensor& x, std::int64_t from, std::int64_t to) {
        if (to - from == 1) return cell(x[from]);
        const std::int64_t middle = (from + to) / 2;
        return cell(encode(x, from, middle), encode(x, middle, to));
    };
    const Tensor x = randn({leaves, hidden});
    forward(
        name, [&](const std::vector<Tensor>& t) { return std::vector<Tensor>{encode(t[0], 0, leaves).h}; }, {x},
        [&] { return encode(x, 0, leaves).h; }, [&](const CompiledGraph& run) { return run(x); });
}

// Towers beside each other, of products that are too small to be shared out themselves (THREADS=2 bench_graph 20 towers).
void towers(const char* name, std::int64_t width, std::int64_t batch) {
    std::vector<nn::Linear> layers;
    for (int i = 0; i < 8; ++i) layers.emplace_back(width, width);
    const Tensor x = randn({batch, width});
    const auto f = [&](const Tensor& t) {
        Tensor sum;
        for (std::size_t i = 0; i < 4; ++i) {
            const Tensor y = layers[2 * i + 1](relu(layers[2 * i](t)));
            sum = sum.defined() ? sum + y : y;
        }
        return sum;
    };
    forward(
        name, [&](const std::vector<Tensor>& t) { return std::vector<Tensor>{f(t[0])}; }, {x}, [&] { return f(x); },
        [&](const CompiledGraph& run) { return run(x); });
}

void chain(const char* name, const Shape& shape) {
    const Tensor x = randn(shape), y = randn(shape);
    const auto f = [](const Tensor& a, const Tensor& b) { return tanh(a * b + 1) * sigmoid(a - b) + a * 0.5; };
    forward(
        name, [&](const std::vector<Tensor>& t) { return std::vector<Tensor>{f(t[0], t[1])}; }, {x, y}, [&] { return f(x, y); },
        [&](const CompiledGraph& run) { return run(x, y); });
}

void two_ops(const char* name, std::int64_t n) {
    const Tensor x = randn({n}), y = randn({n});
    const auto f = [](const Tensor& a, const Tensor& b) { return a * b + a; };
    forward(
        name, [&](const std::vector<Tensor>& t) { return std::vector<Tensor>{f(t[0], t[1])}; }, {x, y}, [&] { return f(x, y); },
        [&](const CompiledGraph& run) { return run(x, y); });
}

// The mean of squared differences, written out.
void squared_error(const char* name, std::int64_t n) {
    const Tensor x = randn({n}), y = randn({n});
    const auto f = [](const Tensor& a, const Tensor& b) { return mean(square(a - b)); };
    forward(
        name, [&](const std::vector<Tensor>& t) { return std::vector<Tensor>{f(t[0], t[1])}; }, {x, y}, [&] { return f(x, y); },
        [&](const CompiledGraph& run) { return run(x, y); });
}

// Rows of a fresh tensor that are written one by one.
void written_rows(const char* name, std::int64_t rows, std::int64_t n) {
    const Tensor x = randn({rows, n});
    const auto f = [rows](const Tensor& v) {
        Tensor b = zeros(v.shape());
        for (std::int64_t i = 0; i < rows; ++i) b[i] = v[i] + 1;
        return b;
    };
    forward(
        name, [&](const std::vector<Tensor>& t) { return std::vector<Tensor>{f(t[0])}; }, {x}, [&] { return f(x); },
        [&](const CompiledGraph& run) { return run(x); });
}

// A row of a cache is written, and the cache is read: `place` says which row.
void written_cache(const char* name, std::int64_t rows, std::int64_t n) {
    const Tensor cache = zeros({rows, n}), q = randn({n}), place = full({1}, rows / 2, int64);
    const auto f = [](const Tensor& written, const Tensor& at, const Tensor& v) {
        Tensor whole = written;
        whole.index_copy_(0, at, v.unsqueeze(0));
        return matmul(whole, v);
    };
    forward(
        name, [&](const std::vector<Tensor>& t) { return std::vector<Tensor>{f(t[0], t[1], t[2])}; }, {cache, place, q},
        [&] { return f(cache, place, q); }, [&](const CompiledGraph& run) { return run(cache, place, q); });
}

// Control flow: steps of a recurrent cell, a loop of small ops, a branch.
void control_flow() {
    const nn::GRUCell cell(32, 32);
    const Tensor h = zeros({32}), xs = randn({20, 32});
    const auto steps = [&](const std::vector<Tensor>& t) {
        return scan([&](const Tensor& now, const Tensor& x) { return cell(x, now); }, {t[0]}, {t[1]}).carry;
    };
    forward("scan of a GRU cell 32, 20 steps", steps, {h, xs}, [&] { return steps({h, xs}); }, [&](const CompiledGraph& run) { return run(h, xs); });
    const auto loop = [&](const std::vector<Tensor>& t) {
        return while_loop([](const Tensor&, const Tensor& i) { return i < 20; },
                          [](const Tensor& now, const Tensor& i) { return std::vector<Tensor>{tanh(now * 1.1 + 0.5), i + 1}; }, {t[0], t[1]});
    };
    const Tensor first = zeros({}, int64);
    forward(
        "while_loop, 32 elements, 20 steps", loop, {h, first}, [&] { return loop({h, first}); },
        [&](const CompiledGraph& run) { return run.call<2>(h, first); });
    const auto branch = [](const std::vector<Tensor>& t) {
        return std::vector<Tensor>{cond(t[0].sum() > 0, [&] { return tanh(t[0] * 2 + 1); }, [&] { return sigmoid(t[0] * 2 - 1); })};
    };
    forward("cond, 32 elements", branch, {h}, [&] { return branch({h}); }, [&](const CompiledGraph& run) { return run(h); });
}

// The whole step: forward, gradients, and what plain SGD does with them.
void training(const char* name, const std::vector<std::int64_t>& widths, std::int64_t batch) {
    if (only && !std::strstr(name, only)) return;
    const nn::Linear first(widths[0], widths[1]), second(widths[1], widths[2]);
    const std::vector<Tensor> parameters = {first.weight, first.bias, second.weight, second.bias};
    const auto step = [&](const Tensor& x, const Tensor& labels) {
        Tape tape;
        const Tensor loss = cross_entropy(second(relu(first(x))), labels);
        const std::vector<Tensor> gradients = tape.gradient(loss, parameters);
        const NoGradScope no_grad;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            Tensor parameter = parameters[i];
            parameter.sub_(gradients[i] * 1e-6);
        }
        return loss;
    };
    const Tensor x = randn({batch, widths[0]}), labels = randint(0, widths[2], {batch});
    const Graph graph = trace(step, {{"x", x}, {"labels", labels}});
    const CompiledGraph ready = graph.compile();
    row(name, {[&] { keep(step(x, labels)); }, [&] { keep(graph.run({{"x", x}, {"labels", labels}})); }, [&] { keep(ready(x, labels)); }}, ready);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) rounds = std::atoi(argv[1]);
    if (argc > 2) only = argv[2];
    if (const char* threads = std::getenv("THREADS"))
        set_num_threads(std::atoi(threads));
    else
        set_num_threads(1);
    std::printf("%-32s %10s %10s %10s %10s %7s %7s %7s %17s %23s\n", "us", "eager", "run", "compiled", "frozen", "ratio", "ratio", "ratio",
                "mallocs of each", "peak bytes, eager, graph");
    mlp("mlp 32-32-8, batch 1", {32, 32, 8}, 1);
    mlp("mlp 784-128-10, batch 1", {784, 128, 10}, 1);
    mlp("mlp 784-128-10, batch 32", {784, 128, 10}, 32);
    mlp("mlp 784-128-10, batch 256", {784, 128, 10}, 256);
    tree_cell("tree cell 32, one node", 32, 1);
    tree_cell("tree cell 150, one node", 150, 1);
    tree_cell("tree cell 168, one node", 168, 1);
    tree_cell("tree cell 150, 25 nodes", 150, 25);
    tree_cell("tree cell 168, 25 nodes", 168, 25);
    norm_mlp("mlp 32-32-8 norm gelu, batch 1", {32, 32, 8}, 1, true);
    norm_mlp("mlp 32-32-8 norm tanh, batch 1", {32, 32, 8}, 1, false);
    norm_mlp("784-128-10 norm gelu, batch 32", {784, 128, 10}, 32, true);
    norm_mlp("784-128-10 norm tanh, batch 32", {784, 128, 10}, 32, false);
    plain_tree_cell("plain cell 32, one node", 32, 1);
    plain_tree_cell("plain cell 150, one node", 150, 1);
    plain_tree_cell("plain cell 150, 25 nodes", 150, 25);
    tree("tree 32, 16 leaves", 32, 16);
    tree("tree 150, 16 leaves", 150, 16);
    towers("4 towers 256, batch 32", 256, 32);
    towers("4 towers 256, batch 64", 256, 64);
    towers("4 towers 512, batch 32", 512, 32);
    chain("8 element-wise ops, 64", {64});
    chain("8 element-wise ops, 64 Ki", {65536});
    chain("8 element-wise ops, 4 Mi", {4, 1048576});
    squared_error("squared error, 64", 64);
    squared_error("squared error, 64 Ki", 65536);
    squared_error("squared error, 4 Mi", 4194304);
    two_ops("a * b + a, 64", 64);
    two_ops("a * b + a, 64 Ki", 65536);
    control_flow();
    written_rows("100 rows of 1000 written", 100, 1000);
    written_cache("a row of a cache, 256 KiB", 256, 256);
    written_cache("a row of a cache, 4 MiB", 1024, 1024);
    training("step 32-32-8, batch 1", {32, 32, 8}, 1);
    training("step 32-32-8, batch 16", {32, 32, 8}, 16);
    training("step 784-128-10, batch 32", {784, 128, 10}, 32);
    training("step 784-256-10, batch 64", {784, 256, 10}, 64);
}
