// All passes on random programs: each gives what the program gives, for other sizes too, and so do all of them together.
#include <random>

#include "../../ops/samples.h"
#include "../../sanitizers.h"
#include "passes_check.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"

using namespace passes_check;

namespace {

// A program of some ops on what was computed before, the same for the same seed. Values are (batch, 3, 4), or broadcast to that, of
// several dtypes, and stay in about [-1, 1].
class Program {
 public:
    Program(unsigned seed, int steps) : seed_(seed), steps_(steps) {
        manual_seed(seed);
        weight = (randn({4, 4}, float64) * 0.4).requires_grad_();
        constant = rand({3, 1}, float64) + 0.5;
        total = zeros({3, 4}, float64);
    }

    std::vector<Tensor> operator()(const Tensor& x) {
        random_.seed(seed_);
        batch_ = x.size(0);
        values_ = {
            x, x * 1, weight.expand({3, 4, 4}).sum({1}) * 0.1, constant, x.sum({0}, true) * 0.1, x.mean(), tanh(constant).expand({batch_, 3, 4})};
        for (int i = 0; i < steps_; ++i) {
            const Tensor y = step();
            if (is_mixed()) {
                values_.push_back(is_floating(y.dtype()) ? tanh(y) : y * 0.1);
            } else {
                values_.push_back(is_floating(y.dtype()) ? tanh(y.to(float64)) : y.to(float64) * 0.1);
            }
        }
        if (seed_ % 3 == 0) total.copy_(total + any().expand({batch_, 3, 4}).sum({0}) * 0.1);
        std::vector<Tensor> results = {any(), any(), values_.back()};
        if (seed_ % 4 == 0) results.push_back(values_[1]);
        return results;
    }

    /// Of float32 and float64, also of no dimensions.
    bool is_mixed() const { return seed_ % 5 == 0; }
    Tensor input(std::int64_t batch) const { return randn({batch, 3, 4}, is_mixed() ? float32 : float64); }
    double rtol() const { return is_mixed() ? 1e-3 : 1e-7; }

    Tensor weight, constant, total;

 private:
    std::size_t number(std::size_t below) { return static_cast<std::size_t>(random_() % below); }
    Tensor any() { return values_[number(values_.size())]; }
    // Not of what may be a whole number before, give or take a rounding.
    static Tensor whole_numbers(const Tensor& x) { return (x * 8.13 + 0.037).to(int64); }
    Tensor whole() { return any().expand({batch_, 3, 4}); }
    // Of ones, zeros, or another number, in one of several shapes.
    Tensor filled() {
        constexpr double numbers[] = {1, 1, 0, 2, -1, 0.5};
        const Shape shapes[] = {{1}, {4}, {3, 1}, {3, 4}, {batch_, 3, 4}};
        return full(shapes[number(5)], numbers[number(6)], float64);
    }

    Tensor step() {
        const Tensor a = any(), b = any();
        switch (number(42)) {
            case 0: return a + b;
            case 1: return a * b;
            case 2: return a - b;
            case 3: return -(-a);
            case 4: return a * 0.5 + b * 0.5;
            case 5: return a * b - b * any();
            case 6: return whole().transpose(0, 2).transpose(0, 2);
            case 7: return whole().permute({1, 2, 0}).permute({2, 0, 1}) + a;
            case 8: {
                const Tensor c = whole();
                return matmul(c, weight.to(c.dtype()));
            }
            case 9: return whole().reshape({batch_, 12}).reshape({batch_, 4, 3}).reshape({batch_, 3, 4});
            case 10: return log(softmax(a, -1)) * 0.1;
            case 11: return log(sigmoid(a));
            case 12: return pow(a, static_cast<double>(number(5)));
            case 13: return pow(abs(a) + 1, static_cast<double>(number(5)) - 2.5);
            case 14: return sigmoid(a) * 1 + zeros({3, 4}, float64);
            case 15: return mean(whole(), {0}, true) + b;
            case 16: return whole().sum({1}, true).sum({2}, true) * 0.1;
            case 17: return (a * 0.25).expand({batch_, 3, 4}).sum({0, 2}, true) * 0.1;
            case 18: return exp(ones({3, 4}, float64) * -1) * a;
            case 19: return where(a > 0, a, b * 0.1);
            case 20: return where(logical_not(a > b), ones({1}, float64), zeros({1}, float64)) + a;
            case 21: return a.to(float32).to(float64).to(float32).to(float64) * 0.5;
            case 22: return whole_numbers(a).to(int32).to(int64) + whole_numbers(b) * 2;
            case 23: return whole_numbers(a) * whole_numbers(b) + whole_numbers(a) * 3;
            case 24: return dropout(a, 0.5);
            case 25: return rand_like(a) * b;
            case 26: {
                Tensor c = tanh(whole());
                c.select(1, static_cast<std::int64_t>(number(3))).mul_(2);
                return c + b;
            }
            case 27: return cat({whole().slice(2, Slice(0, 2)), whole().slice(2, Slice(2, None))}, 2);
            case 28: return amax(whole(), {1}, true) + amin(amin(whole(), {2}, true), {1}, true);
            case 29: return 1 / sqrt(abs(a) + 1) + b / (abs(a) + 1) + a / (abs(a) + 1);
            case 30: return a * 2 * 3 * 0.125;
            case 31: return whole().mean({0}, true).reshape({3, 4}) + whole().sum({2}).unsqueeze(2) * 0.1;
            case 33: return cond(mean(a) > 0, [&] { return a * 1 + b + dropout(b, 0.5); }, [&] { return -(-a) - b * 1; });
            case 34:
                return while_loop(
                    [](const Tensor& n, const Tensor&) { return n < 3; },
                    [&](const Tensor& n, const Tensor& y) { return std::pair(n + 1, tanh((y * 1 + 0) * 2 * 0.25 + b * 0.1).expand(y.shape())); },
                    {zeros({}, int64), whole() + b})[1];
            case 32: return layer_norm(whole(), {4}) * 0.1 + whole().clone();
            case 35: {
                const Tensor is_less = logical_or(a < b, logical_not(b <= 0.25));
                return is_less.to(float64) * a + masked_fill(b, logical_and(is_less, isfinite(a)), 0.25);
            }
            case 36: {  // ops that only gradients have
                Tape tape;
                const Tensor x = whole().to(float64).detach().requires_grad_();
                const Tensor y = softmax(layer_norm(x, {4}, weight.detach()[0]), 2) * log_softmax(x, 1);
                const Tensor loss = sum(y) + cross_entropy(x.reshape({batch_ * 3, 4}), arange(batch_ * 3) % 4);
                return tape.gradient(loss, {x})[0] * b;
            }
            // Tensors that are full of a number have a shape and a dtype of their own.
            case 37: return filled() / (abs(a) + 1) + pow(abs(a) + 1, filled());
            case 38: return filled() * (a * filled()) - filled() / (abs(whole().sum({0})) + filled() * filled() + 1);
            case 39: return (filled() - filled()) / full({1}, 3, float64) + where(filled() > 0, a, filled()) + a.mean() * filled();
            case 40: return filled().to(float32) / (abs(a) + 1) + filled().to(int64) / (abs(b.sum()) + 1);
            default: {
                Tensor c = zeros({batch_, 3, 4}, float64);
                c.copy_(a);
                return c.fill_(0.25) + b + c;
            }
        }
    }

    unsigned seed_;
    int steps_;
    std::mt19937 random_;
    std::int64_t batch_ = 0;
    std::vector<Tensor> values_;
};

struct Pass {
    const char* name;
    int (*run)(Graph& graph);
};
constexpr Pass kPasses[] = {
    {"eliminate_dead_code", eliminate_dead_code},
    {"eliminate_common_subexpressions", eliminate_common_subexpressions},
    {"fold_constants", [](Graph& graph) { return fold_constants(graph); }},
    {"simplify", [](Graph& graph) { return simplify(graph); }},
    {"simplify loosely", [](Graph& graph) { return simplify(graph, {.allow_nonfinite = true}); }},
    {"hoist_broadcasts", [](Graph& graph) { return hoist_broadcasts(graph); }},
    {"hoist_broadcasts loosely", [](Graph& graph) { return hoist_broadcasts(graph, {.allow_nonfinite = true}); }},
    {"fold_batch_norm", [](Graph& graph) { return fold_batch_norm(graph, true); }},
    {"freeze and fold", [](Graph& graph) { return freeze(graph) + fold_constants(graph); }},
    {"optimize", [](Graph& graph) { return static_cast<int>(optimize(graph).size()); }},
};

// What the graph gives, and then holds in the parameters that it writes to, which are put back.
std::vector<Tensor> ran(const Graph& graph, const Tensor& x, bool is_recorded) {
    std::vector<std::pair<Tensor, Tensor>> before;
    for (const Graph::Update& update : graph.updates()) before.emplace_back(update.target->data, update.target->data.clone());
    manual_seed(11);
    std::vector<Tensor> results = is_recorded ? graph({x}) : graph.run({{"x", x}});
    for (Tensor& result : results) result = result.clone();
    for (auto& [target, data] : before) {
        results.push_back(target.clone());
        target.copy_(data);
    }
    return results;
}

Graph read_again(const Graph& graph) {
    Graph::Inputs data;
    for (const Graph::Value* value : graph.parameters()) data.emplace_back(value->name, value->data);
    for (const Graph::Value* value : graph.constants()) {
        data.emplace_back(value->name.empty() ? "%" + std::to_string(value->number) : value->name, value->data);
    }
    return Graph::parse(graph.str(), data);
}

}  // namespace

TEST_CASE("passes change nothing in random programs") {
    constexpr unsigned kPrograms = test::share(200U);
    std::size_t nodes = 0, left = 0;
    for (unsigned seed = 0; seed < kPrograms; ++seed) {
        INFO("seed " << seed);
        Program program(seed, 4 + static_cast<int>(seed % 24));
        TraceOptions options;
        options.parameters = {{"total", program.total}};
        std::vector<std::string> dims;
        if (seed % 2 == 0) dims = {"batch"};
        const Graph graph = trace([&](const Tensor& x) { return program(x); }, {{"x", program.input(2), dims}}, options);
        graph.check();
        const std::vector<std::int64_t> batches = seed % 2 == 0 ? std::vector<std::int64_t>{1, 2, 5} : std::vector<std::int64_t>{2};
        for (const std::int64_t batch : batches) {
            const Tensor x = program.input(batch);
            INFO("a batch of " << batch << "\nunpassed:\n" << graph.str());
            const std::vector<Tensor> wanted = ran(graph, x, true), wanted_of_run = ran(graph, x, false);
            check_same(wanted_of_run, wanted, program.rtol(), program.rtol() * 0.01);  // random numbers too
            for (const Pass& pass : kPasses) {
                Graph copy = graph;
                pass.run(copy);
                INFO("after " << pass.name << ":\n" << copy.str());
                copy.check();
                check_same(ran(copy, x, true), wanted, program.rtol(), program.rtol() * 0.01);
                check_same(ran(copy, x, false), wanted_of_run, program.rtol(), program.rtol() * 0.01);
                const Graph again = read_again(copy);
                CHECK(again.str() == copy.str());
                check_same(ran(again, x, true), wanted, program.rtol(), program.rtol() * 0.01);
                if (&pass != std::end(kPasses) - 1) continue;
                nodes += graph.nodes().size();
                left += copy.nodes().size();
                // Once more finds nothing.
                for (const PassReport& more : optimize(copy)) CHECK(more.changes == 0);
            }
        }
    }
    CHECK(left * 10 < nodes * 7);  // they find something
}

TEST_CASE("gradients of random programs are the same after all passes") {
    for (unsigned seed = 0; seed < test::share(40U); ++seed) {
        INFO("seed " << seed);
        Program program(seed, 12);
        const Graph graph = trace([&](const Tensor& x) { return program(x)[2]; }, {{"x", program.input(2), {"batch"}}});
        bool depends = false;
        for (const auto& node : graph.nodes()) depends |= node->inputs.size() > 0 && node->inputs[0] == graph.inputs()[0];
        if (!depends) continue;
        Graph gradient;
        try {
            gradient = grad(graph, {"output"}, {"x"});
        } catch (const TapeError&) {
            continue;  // no gradient flows to it
        }
        Graph passed = gradient;
        optimize(passed);
        CHECK(passed.nodes().size() <= gradient.nodes().size());
        INFO("before:\n" << gradient.str() << "after:\n" << passed.str());
        passed.check();
        const Tensor x = program.input(3);
        check_same(ran(passed, x, true), ran(gradient, x, true), program.rtol() * 10, program.rtol() * 0.1);
        check_same(ran(passed, x, false), ran(gradient, x, false), program.rtol() * 10, program.rtol() * 0.1);
    }
}

TEST_CASE("passes look into branches and bodies of loops") {
    const auto fn = [](const Tensor& x) {
        const Tensor y = cond(x.sum() > 0, [&] { return (x * 1 + 0) * 2; }, [&] { return -(-x) + log(softmax(x, 0)); });
        return while_loop([](const Tensor& n, const Tensor&) { return n + 0 < 3; },
                          [](const Tensor& n, const Tensor& h) { return std::pair(n + 1, tanh(h) * 1 + tanh(h)); }, {zeros({}, int64), y})[1];
    };
    Graph graph = trace(fn, {{"x", ones({3}, float64), {"n"}}});
    const Graph before = graph;
    const auto nested = [](const Graph& of) {
        std::string ops;
        for (const auto& node : of.nodes()) {
            for (const auto& [name, attribute] : node->attributes().all()) {
                const auto* inner = std::get_if<std::shared_ptr<const Graph>>(&attribute);
                if (inner) ops += name + ": " + ops_of(**inner) + "; ";
            }
        }
        return ops;
    };
    CHECK(nested(before) == "then_branch: mul add mul; else_branch: softmax log neg neg add; condition: add lt; body: tanh tanh mul add add; ");
    optimize(graph);
    CHECK(nested(graph) == "then_branch: mul; else_branch: log_softmax add; condition: lt; body: tanh mul add; ");
    CHECK(nested(before).size() > nested(graph).size());  // a copy has its own
    for (const std::int64_t n : {2, 3, 5}) {
        check_same_graphs(graph, before, {rand({n}, float64)});
        check_same_graphs(graph, before, {-rand({n}, float64)});
    }
    CHECK(read_again(graph).str() == graph.str());
    for (const std::string& drawing : {graph.to_svg(), graph.to_dot()}) CHECK(drawing.find("then_branch of cond") != std::string::npos);
}

TEST_CASE("sizes that depend on data are in no attribute") {
    Graph graph = trace(
        [](const Tensor& x) {
            const Tensor found = nonzero(x > 0).to(float64) * 1;  // (any, 1)
            return std::vector<Tensor>{(found + zeros_like(found)).sum({0}, true).expand({1, 1}) * 2, exp(found * 2) - ones_like(found),
                                       found.t().t() + 0};
        },
        {{"x", tensor({1.0, -1.0, 2.0}, float64), {"n"}}});
    const Graph before = graph;
    optimize(graph);
    check_same_graphs(graph, before, {tensor({1.0, -1.0, 2.0}, float64)});
    check_same_graphs(graph, before, {tensor({-1.0, -1.0, -1.0, 3.0, 5.0}, float64)});
}

TEST_CASE("optimize reports what each pass has done, and writes to the same parameters") {
    const Tensor w = ones({3}).requires_grad_();
    const auto step = [&](const Tensor& x) {
        Tape tape;
        const Tensor loss = mean(square(x * w * 1 - 2));
        const Tensor g = tape.gradient(loss, {w})[0];
        NoGradScope off;
        Tensor(w).sub_(g * 0.1);
        return loss;
    };
    Graph graph = trace(step, {{"x", ones({4, 3}), {"batch"}}});
    const Graph before = graph;
    const std::vector<PassReport> report = optimize(graph);
    CHECK(report.size() == 6);
    CHECK(std::string(report[0].pass) == "eliminate_dead_code");
    int changes = 0;
    for (const PassReport& line : report) changes += line.changes;
    CHECK(changes > 0);
    INFO(before.str() << graph.str());
    CHECK(graph.nodes().size() * 2 <= before.nodes().size() * 2 - 8);
    REQUIRE(graph.updates().size() == 1);
    CHECK(graph.updates()[0].target->data.is_same(w));
    const Tensor x = randn({5, 3});
    check_same(ran(graph, x, true), ran(before, x, true), 1e-5, 1e-6);
    check_same(ran(graph, x, false), ran(before, x, false), 1e-5, 1e-6);
}

TEST_CASE("an output never shares the memory of an input or a parameter that the program did not share") {
    Tensor w = tensor({1.0F, 2.0F}).requires_grad_();
    TraceOptions options;
    options.parameters = {{"w", w}};
    Graph graph = trace(
        [&](const Tensor& x) {
            const Tensor old = w.detach().clone();
            NoGradScope off;
            w.copy_(x * 1);
            return std::pair(old, x * 1);
        },
        {{"x", zeros({2})}}, options);
    w.copy_(tensor({1.0F, 2.0F}));
    optimize(graph);
    const Tensor x = tensor({5.0F, 6.0F});
    std::vector<Tensor> outputs = graph.run({{"x", x}});
    CHECK(equal(outputs[0], tensor({1.0F, 2.0F})));
    CHECK(equal(w, x));
    outputs[1].fill_(0);
    CHECK(equal(x, tensor({5.0F, 6.0F})));
}

// What a run gives and what it has written, each time from the same state.
namespace {
template <class Fn>
void check_states(const Fn& fn, const std::vector<Tensor>& states, const Tensor& x) {
    std::vector<Tensor> first, copies;
    for (const Tensor& state : states) first.push_back(state.clone());
    const auto reset = [&] {
        for (std::size_t i = 0; i < states.size(); ++i) Tensor(states[i]).copy_(first[i]);
    };
    Graph graph = trace(fn, {{"x", x.clone()}});
    reset();
    const Tensor wanted = fn(x.clone()).clone();
    for (const Tensor& state : states) copies.push_back(state.clone());
    for (const bool is_optimized : {false, true}) {
        if (is_optimized) optimize(graph);
        INFO(graph.str());
        for (int i = 0; i < 3; ++i) {
            for (const bool is_recorded : {false, true}) {
                reset();
                const Tensor given = x.clone();
                Tensor got = is_recorded ? graph({given})[0] : graph.run({{"x", given}})[0];
                CHECK(equal(got, wanted));
                for (std::size_t k = 0; k < states.size(); ++k) CHECK(equal(states[k], copies[k]));
                got.fill_(9);
                CHECK(equal(given, x));
                for (std::size_t k = 0; k < states.size(); ++k) CHECK(equal(states[k], copies[k]));
            }
        }
    }
}
}  // namespace

TEST_CASE("a copy stays whose view is an output or is written to a parameter") {
    const Tensor x = tensor({1.0F, 2.0F, 3.0F, 4.0F});
    const auto add_to = [](const Tensor& to, const Tensor& what) { Tensor(to).add_(what); };
    const Tensor w = zeros({4}), a = full({4}, 1.0F), b = full({4}, 2.0F);
    check_states(
        [&](const Tensor& y) {
            const Tensor old = w.clone().reshape({2, 2});
            add_to(w, y);
            return old;
        },
        {w}, x);
    check_states(
        [&](const Tensor& y) {
            const Tensor old = w.clone().reshape({2, 2}).t().select(0, 1);
            add_to(w, y);
            return old;
        },
        {w}, x);
    check_states(
        [&](const Tensor& y) {
            const Tensor old = w.to(float64).to(float32);
            add_to(w, y);
            return old;
        },
        {w}, x);
    check_states(
        [&](const Tensor& y) {  // nobody else has what the clone is of
            const Tensor old = w.reshape({2, 2}).t().reshape({4}).reshape({2, 2});
            add_to(w, y);
            return old.t();
        },
        {w}, x);
    check_states(
        [&](const Tensor& y) {
            const Tensor old = cond(y.sum() > 0, [&] { return w.clone(); }, [&] { return w * 1; }).reshape({2, 2});
            add_to(w, y);
            return old;
        },
        {w}, x);
    check_states(
        [&](const Tensor& y) {
            const Tensor t = a.clone().reshape({2, 2}), u = b.clone().reshape({2, 2});
            Tensor(a.reshape({2, 2})).copy_(u);
            Tensor(b.reshape({2, 2})).copy_(t);
            return y + 1;
        },
        {a, b}, x);
    check_states([](const Tensor& y) { return y.clone().reshape({2, 2}); }, {}, x);
    check_states([](const Tensor& y) { return (y * 1).unsqueeze(0).t(); }, {}, x);
    check_states([](const Tensor& y) { return (tensor({1.0F, 2.0F}) * 1).clone().reshape({2, 1}) + 0 * y.sum(); }, {}, x);
    // Two outputs that the program made apart.
    Graph graph = trace([](const Tensor& y) { return std::pair(exp(y).reshape({2, 2}), exp(y).reshape({2, 2})); }, {{"x", x}});
    optimize(graph);
    INFO(graph.str());
    const std::vector<Tensor> both = graph({x});
    CHECK_FALSE(both[0].shares_storage(both[1]));
}

TEST_CASE("passes know which ops give views", "[ops]") {
    int views = 0;
    for (const test::Call& call : test::all_calls()) {
        INFO(call.name << ": " << call.torch);
        std::vector<TraceInput> inputs;
        for (const Tensor& x : test::make_inputs(call)) inputs.push_back({"x" + std::to_string(inputs.size()), x});
        manual_seed(5);
        const Graph graph = trace(call.run, inputs);
        for (const auto& node : graph.nodes()) {
            const auto is_sized = [](const Graph::Value* value) {
                return std::all_of(value->shape.begin(), value->shape.end(), [](const SymInt& size) { return size.is_number(); });
            };
            if (node->attributes().is_symbolic() || !std::all_of(node->inputs.begin(), node->inputs.end(), is_sized)) continue;
            std::vector<Tensor> arguments;
            for (const Graph::Value* input : node->inputs) {
                Shape shape;
                for (const SymInt& size : input->shape) shape.push_back(size.number());
                arguments.push_back(input->data.defined() ? input->data : zeros(shape, input->dtype).to(input->device));
            }
            std::vector<const Tensor*> addresses;
            for (const Tensor& argument : arguments) addresses.push_back(&argument);
            std::vector<Tensor> results(256);
            const CallerScope caller(Loc::current());
            try {
                node->form().run({addresses.data(), static_cast<int>(addresses.size()), node->attributes().data()}, results.data());
            } catch (const Error&) {
                continue;  // of zeros it has no result
            }
            for (std::size_t i = 0; i < arguments.size(); ++i) {
                for (std::size_t k = 0; k < node->results.size(); ++k) {
                    if (!results[k].defined() || arguments[i].numel() == 0 || results[k].dtype() != node->results[k]->dtype) continue;
                    INFO(node->op() << ", input " << i << ", result " << k);
                    const rewrite::Sharing sharing = rewrite::sharing_of(*node, i);
                    const bool shares = results[k].shares_storage(arguments[i]);
                    views += shares;
                    if (sharing != rewrite::Sharing::maybe) CHECK(shares == (sharing == rewrite::Sharing::always));
                }
            }
        }
    }
    CHECK(views > 50);
}
