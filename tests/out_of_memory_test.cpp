// Calls that find no memory. Each malloc of a call fails once, in one run of it after the other: every error is an OutOfMemory of the
// program's line, what the call was given is as before, and the same call gives the same numbers afterwards. ctest runs it with
// TAPIR_ALLOCATOR=system, so that each tensor is a malloc.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <thread>

#include "core/failing_malloc.h"
#include "ops/samples.h"
#include "tapir/autograd/checkpoint.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/autograd/watch/profiler.h"
#include "tapir/core/parallel.h"
#include "tapir/tapir.h"

using namespace tapir;
using test::fail_malloc;
using test::has_malloc_failed;

namespace {

// How a call ended for which one malloc failed.
struct Ending {
    enum How { done, untouched, out_of_memory, bad_alloc, other } how = done;  // untouched: no malloc was left to fail
    std::string text;
    Loc line;
};

Ending with_failure(std::int64_t n, const std::function<void()>& call, bool all_after = false) {
    Ending ending;
    try {
        fail_malloc(n, all_after);
        call();
        fail_malloc(0);
        return ending;
    } catch (const OutOfMemory& error) {
        fail_malloc(0);
        return {Ending::out_of_memory, error.what(), error.where()};
    } catch (const std::bad_alloc&) {
        fail_malloc(0);
        return {Ending::bad_alloc, "bad_alloc", {}};
    } catch (const std::exception& error) {
        fail_malloc(0);
        return {Ending::other, error.what(), {}};
    }
}

bool are_same(const Tensor& a, const Tensor& b) {
    if (a.defined() != b.defined()) return false;
    if (!a.defined()) return true;
    if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
    const Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
    return std::memcmp(x.raw_data(), y.raw_data(), static_cast<std::size_t>(x.numel()) * itemsize(x.dtype())) == 0;
}
bool are_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tensor& x, const Tensor& y) { return are_same(x, y); });
}
std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> result;
    for (const Tensor& t : tensors) result.push_back(t.defined() ? t.detach().clone() : t);
    return result;
}

class OneThread {
 public:
    OneThread() { set_num_threads(1); }
    ~OneThread() { set_num_threads(threads_); }
    OneThread(const OneThread&) = delete;
    OneThread& operator=(const OneThread&) = delete;

 private:
    int threads_ = num_threads();
};

// How many fail at least: blocks that are kept are given back where the system has no other.
const int kLeast = std::getenv("TAPIR_ALLOCATOR") ? 1 : 0;

// Calls call() again and again, with its first malloc failing, the second, and so on to the last; unchanged() checks what a call that
// throws leaves, prepare() sets it up each time. The call's own vectors, of which `own` fail, are the program's. Returns how many failed.
int with_each_failure(const std::function<void()>& prepare, const std::function<void()>& call, const std::function<void()>& unchanged, int own = 0) {
    int failures = 0;
    for (int n = 1; n < 20'000; ++n) {
        prepare();
        empty_cache();
        bool is_over = false;
        const Ending ending = with_failure(n, [&] {
            call();
            is_over = !has_malloc_failed();
        });
        if (is_over) return failures;
        if (ending.how == Ending::done) continue;  // it could do without
        ++failures;
        INFO("malloc " << n << ": " << ending.text);
        if (ending.how == Ending::bad_alloc && own-- > 0) continue;
        CHECK(ending.how == Ending::out_of_memory);
        CHECK(ending.text.find("out_of_memory_test.cpp:") == 0);
        unchanged();
    }
    CHECK(std::string("too many calls of malloc") == "");
    return failures;
}

}  // namespace

TEST_CASE("operator new without memory is an error of the program's line, of the library's calls alone") {
    const Tensor x = tensor({3.0f, 1.0f, 3.0f});
    int line = 0;
    bool any = false;
    for (int n = 1; n < 200; ++n) {
        const Ending ending = with_failure(n, [&] {
            line = __LINE__ + 1;
            unique(x);
        });
        if (ending.how == Ending::done) break;
        any = true;
        INFO(ending.text);
        CHECK(ending.how == Ending::out_of_memory);
        CHECK(ending.text.find("out_of_memory_test.cpp:" + std::to_string(line) + ": no memory for ") == 0);
    }
    CHECK(any);
    CHECK(with_failure(1, [] { std::vector<int> own(3); }).how == Ending::bad_alloc);
    CHECK(with_failure(1, [] {
              const CallerScope caller(Loc::current());
              std::vector<int> own(3);
          }).how == Ending::out_of_memory);
    CHECK(with_failure(1, [] {
              const CallerScope caller(Loc::current());
              ::operator delete(::operator new(8, std::nothrow));
          }).how == Ending::done);
}

TEST_CASE("an error of memory is thrown where there is none for its text either") {
    const Tensor x = ones({100, 100});
    for (const auto& call : std::vector<std::function<void()>>{[&] { x.exp(); }, [&] { unique(x); }, [&] { empty({1 << 20}); }}) {
        empty_cache();
        for (int n = 1; n < 4; ++n) {
            const Ending ending = with_failure(n, call, /*all_after=*/true);
            if (ending.how == Ending::done) break;
            INFO(ending.text);
            CHECK(ending.how == Ending::out_of_memory);
            CHECK(ending.text.find("out_of_memory_test.cpp:") == 0);
            CHECK(ending.text.find(": no memory for ") != std::string::npos);
        }
    }
}

namespace {
int asked = 0;
std::new_handler before = nullptr;
}  // namespace

TEST_CASE("a program's own new_handler may go on to the library's") {
    before = std::set_new_handler([] {
        ++asked;
        before();
    });
    const Ending ending = with_failure(1, [] {
        const CallerScope caller(Loc::current());
        std::vector<int> own(3);
    });
    std::set_new_handler(before);
    CHECK(ending.how == Ending::out_of_memory);
    CHECK(asked == 1);
}

TEST_CASE("a draw that finds no memory does not move the generator") {
    const OneThread one;
    const std::int64_t n = 100'000;
    Generator random(3);
    Tensor x = zeros({n});
    const Tensor p = full({n}, 0.5), weights = ones({n});
    const std::pair<const char*, std::function<void()>> calls[] = {
        {"normal_", [&] { x.normal_(0, 1, random); }},   {"uniform_", [&] { x.uniform_(0, 1, random); }},
        {"randn", [&] { randn({n}, random); }},          {"randint", [&] { randint(0, 9, {n}, random, int32); }},
        {"randperm", [&] { randperm(n, random); }},      {"bernoulli", [&] { bernoulli({n}, 0.5, random); }},
        {"bernoulli of", [&] { bernoulli(p, random); }}, {"multinomial", [&] { multinomial(weights, 9, false, random); }},
    };
    for (const auto& [name, call] : calls) {
        INFO(name);
        CHECK(with_each_failure(
                  [&] {
                      x.zero_();
                      random.set_state({3, 5});
                  },
                  call,
                  [&] {
                      CHECK(random.state().offset == 5);
                      CHECK(x.abs().max().item() == 0);
                  }) >= kLeast);
        CHECK(random.state().offset > 5);
    }
}

TEST_CASE("clipping that finds no memory has changed no gradient") {
    const OneThread one;
    const std::int64_t n = 100'000;
    Tensor a = zeros({n}).requires_grad_(), b = zeros({n}, bfloat16).requires_grad_(), c = zeros({2, 3}, float16).requires_grad_();
    const std::vector<Tensor> all = {a, b, c};
    const auto prepare = [&] {
        a.set_grad(full({n}, 4.0));
        b.set_grad(full({n}, 4.0, bfloat16));
        c.set_grad(full({2, 3}, 4.0, float16));
    };
    const auto all_are = [](const Tensor& t, double value) { return t.to(float64).min().item() == value && t.to(float64).max().item() == value; };
    const auto unchanged = [&] {
        for (const Tensor& t : all) CHECK(all_are(t.grad(), 4));
    };
    CHECK(with_each_failure(prepare, [&] { optim::clip_grad_value_(all, 2); }, unchanged) >= kLeast);
    for (const Tensor& t : all) CHECK(all_are(t.grad(), 2));
    CHECK(with_each_failure(prepare, [&] { optim::clip_grad_norm_(all, 1); }, unchanged) >= kLeast);
    for (const Tensor& t : all) CHECK(t.grad().to(float64).max().item() == Approx(1 / std::sqrt(2.0 * n + 6)).epsilon(0.005));
}

// --- The op table ------------------------------------------------------------------------------------------------------------

namespace {

// The line of a sample. samples.cpp calls those of elementwise.def by including it, an optimizer's are in a header.
bool is_program(const Loc& line) {
    static std::map<std::string, std::vector<std::string>> sources;
    std::string file = line.file_name();
    if (file.find("/tests/") != file.npos || file.ends_with("/elementwise.def") || file.ends_with("/rule_impl.h")) return true;
    file = std::filesystem::path(file).lexically_normal().string();
    while (file.starts_with("../")) file = file.substr(3);
    std::vector<std::string>& lines = sources[file];
    if (lines.empty()) {
        std::ifstream in(std::filesystem::path(TAPIR_SOURCE) / file);
        for (std::string text; std::getline(in, text);) lines.push_back(text);
    }
    if (line.line() == 0 || line.line() > lines.size()) return false;
    return lines[line.line() - 1].find("TAPIR_") != std::string::npos;
}

bool is_line_of(const test::Call& call, const Loc& line) {
    // detach() knows no line.
    if (line.line() == 0) return call.code.find("detach") != call.code.npos || call.code.find("stepped") != call.code.npos;
    // Their samples call helpers of their files, whose lines are the program's.
    static const std::set<std::string_view> with_helpers = {"avg_pool_gradient",   "batch_norm",       "conv_weight", "linalg_cholesky",
                                                            "linalg_eigh",         "linalg_eigvalsh",  "linalg_svd",  "lstm_gates",
                                                            "lstm_gates_backward", "max_pool_backward"};
    return with_helpers.contains(call.op->name) || is_program(line);
}

// A call, recorded, and its gradients.
class Run {
 public:
    Run(const test::Call& call, std::vector<Tensor> inputs) : call_(call), inputs_(std::move(inputs)) {
        for (const Tensor& x : inputs_) {
            if (is_floating(x.dtype())) sources_.push_back(Tensor(x).requires_grad_());
        }
        results.reserve(64);
        gradients.reserve(64);
    }

    std::vector<Tensor> results, gradients;
    enum { before, forward, around, backward } stage = before;

    void operator()() {
        results.clear();
        gradients.clear();
        manual_seed(7);
        Tape tape;
        stage = forward;
        results = call_.run(inputs_);
        stage = around;
        Tensor total;
        for (const Tensor& y : results) {
            if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
            const Tensor part = sum(y * cos(y));
            total = total.defined() ? total + part : part;
        }
        stage = backward;
        if (total.defined()) gradients = tape.gradient(total, sources_);
        stage = before;
    }

 private:
    const test::Call& call_;
    std::vector<Tensor> inputs_, sources_;
};

void check_call(const test::Call& call, const std::vector<Tensor>& inputs) {
    Run run(call, inputs);
    try {
        run();
    } catch (const Error&) {
        return;  // not of these operands
    }
    run();
    const std::vector<Tensor> given = copies(inputs), results = copies(run.results), gradients = copies(run.gradients);
    for (int n = 1; n < 5000; ++n) {
        bool is_over = false;
        const Ending ending = with_failure(n, [&] {
            run();
            is_over = !has_malloc_failed();
        });
        if (is_over) return;
        INFO(call.name << ", malloc " << n << ", stage " << run.stage << ": " << ending.text);
        if (ending.how != Ending::done) {
            // The list that a sample gives its results in, and those that it calls an op with, are the program's.
            const bool is_programs = ending.how == Ending::bad_alloc && run.stage == Run::forward;
            if (!is_programs) CHECK(ending.how == Ending::out_of_memory);
            if (ending.how == Ending::out_of_memory) CHECK(is_line_of(call, ending.line));
            const bool draws_and_goes_on = call.code.find("* 0") != call.code.npos || call.code.find("sort(") == 0;
            if (ending.how == Ending::out_of_memory && run.stage == Run::forward && !draws_and_goes_on) {
                CHECK(default_generator().state().offset == 0);
            }
        }
        CHECK(are_same(inputs, given));
        run();
        CHECK(are_same(run.results, results));
        CHECK(are_same(run.gradients, gradients));
    }
    CHECK(std::string("too many calls of malloc") == call.name);
}

// x as it is, or expanded from its first element, so that what an op reads in a row is a copy.
Tensor laid(const Tensor& x, bool is_expanded) {
    return is_expanded && x.dim() > 0 && x.numel() > 0 ? x.reshape({-1})[0].clone().expand(x.shape()) : x;
}

void check_table(DType dtype, bool is_expanded) {
    const OneThread one;
    for (const test::Call& call : test::all_calls()) {
        if (call.extreme || (call.wide_only && dtype != float64)) continue;
        std::vector<Tensor> inputs;
        for (const Tensor& x : test::make_inputs(call)) {
            inputs.push_back(laid(is_floating(x.dtype()) ? x.to(dtype) : x, is_expanded));
        }
        check_call(call, inputs);
    }
}

}  // namespace

TEST_CASE("each op of the table, and its gradient, with each malloc failing") { check_table(float64, false); }
TEST_CASE("each op of expanded operands, with each malloc failing") { check_table(float32, true); }
TEST_CASE("each op of 16 bits, with each malloc failing") { check_table(float16, true); }

// --- Programs ----------------------------------------------------------------------------------------------------------------

namespace {

struct Net : nn::Module {
    nn::Linear first{6, 8};
    nn::BatchNorm1d norm{8};
    nn::LSTM cell{8, 5};
    nn::Linear last{5, 3};
    Tensor forward(In x) {
        const Tensor h = relu(norm(first(x)));
        return last(cell(h.unsqueeze(0)).output[0]);
    }
    void members(nn::Members& m) override { m("first", first)("norm", norm)("cell", cell)("last", last); }
};

std::vector<Tensor> tensors_of(const NamedTensors& named) {
    std::vector<Tensor> tensors;
    for (const NamedTensor& t : named) tensors.push_back(t.tensor);
    return copies(tensors);
}

// Trained one step, of a model and an optimizer that are made anew, from the same numbers.
template <class MakeOptimizer>
class Training {
 public:
    explicit Training(const MakeOptimizer& make) : optimizer_(made(model, make)) {}

    Net model;
    Tensor x = randn({4, 6}), labels = tensor({0, 2, 1, 2});

    void step() {
        Tape tape;
        tape.backward(cross_entropy(model.forward(x), labels));
        optimizer_.step();
        optimizer_.zero_grad();
    }
    void zero_grad() { optimizer_.zero_grad(); }
    // By name, but for what batch_norm knows of the batches, which is as after its call.
    std::map<std::string, Tensor> state() const {
        std::map<std::string, Tensor> all;
        for (const NamedTensor& t : optimizer_.state_dict()) all[t.name] = t.tensor.clone();
        for (const NamedTensor& t : model.state_dict()) {
            if (t.name.find("running_") == t.name.npos && t.name.find("num_batches") == t.name.npos) all[t.name] = t.tensor.clone();
        }
        return all;
    }

 private:
    static auto made(Net& model, const MakeOptimizer& make) { return make(model.parameters()); }
    decltype(std::declval<MakeOptimizer>()(std::vector<Tensor>())) optimizer_;
};

template <class MakeOptimizer>
void check_training(const char* name, const MakeOptimizer& make) {
    INFO(name);
    const OneThread one;
    const auto begun = [&] {
        manual_seed(3);
        return std::make_unique<Training<MakeOptimizer>>(make);
    };
    const auto are_as = [](const std::map<std::string, Tensor>& now, const std::map<std::string, Tensor>& wanted) {
        for (const auto& [key, value] : wanted) {
            INFO(key);
            CHECK((now.contains(key) && are_same(now.at(key), value)));
        }
    };
    auto reference = begun();
    reference->step();
    const auto stepped = reference->state();
    std::unique_ptr<Training<MakeOptimizer>> training;
    std::map<std::string, Tensor> at_first;
    with_each_failure(
        [&] {
            training = begun();
            at_first = training->state();
        },
        [&] { training->step(); },
        [&] {
            are_as(training->state(), at_first);
            training->zero_grad();
            training->step();
            are_as(training->state(), stepped);
        });
}

}  // namespace

TEST_CASE("a step of training with each malloc failing") {
    check_training("SGD", [](const std::vector<Tensor>& p) { return optim::SGD(p, {.lr = 0.1, .momentum = 0.9}); });
    check_training("Adam", [](const std::vector<Tensor>& p) { return optim::Adam(p, {.lr = 0.01}); });
    check_training("RMSprop", [](const std::vector<Tensor>& p) { return optim::RMSprop(p, {.lr = 0.01, .momentum = 0.5}); });
    check_training("Adagrad", [](const std::vector<Tensor>& p) { return optim::Adagrad(p, {.lr = 0.01}); });
}

namespace {

// Of 16 bits and of 32; one lies transposed, and the gradient of another does.
std::vector<Tensor> of_several_dtypes() {
    manual_seed(11);
    std::vector<Tensor> all = {randn({5000}).to(bfloat16), randn({40, 30}).to(float16).t(), randn({7}), randn({3, 4}).to(float16)};
    for (Tensor& p : all) {
        p.requires_grad_();
        const bool is_last = p.is_same(all.back());
        p.set_grad(is_last ? randn({4, 3}).to(float16).t() : randn(p.shape()).to(p.dtype()));
    }
    return all;
}

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Tensor>&)>;

template <class O, class Options>
MakeOptimizer making(Options options) {
    return [options](const std::vector<Tensor>& p) { return std::make_unique<O>(p, options); };
}

const std::pair<const char*, MakeOptimizer> optimizers_of_steps[] = {
    {"SGD", making<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9})},
    {"Adam", making<optim::Adam>(optim::AdamOptions{.lr = 0.01, .amsgrad = true})},
    {"AdamW", making<optim::AdamW>(optim::AdamWOptions{.lr = 0.01})},
    {"Adamax", making<optim::Adamax>(optim::AdamaxOptions{.lr = 0.01})},
    {"NAdam", making<optim::NAdam>(optim::NAdamOptions{.lr = 0.01})},
    {"RAdam", making<optim::RAdam>(optim::RAdamOptions{.lr = 0.01})},
    {"RMSprop", making<optim::RMSprop>(optim::RMSpropOptions{.lr = 0.01, .momentum = 0.5})},
    {"Adagrad", making<optim::Adagrad>(optim::AdagradOptions{.lr = 0.01})},
    {"ASGD", making<optim::ASGD>(optim::ASGDOptions{.lr = 0.01})},
    {"Rprop", making<optim::Rprop>(optim::RpropOptions{.lr = 0.01})},
    {"Lion", making<optim::Lion>(optim::LionOptions{.lr = 0.01})},
};

}  // namespace

TEST_CASE("a step over several 16-bit parameters changes all of them or none") {
    const OneThread one;
    for (const auto& [name, make] : optimizers_of_steps) {
        for (const int before : {0, 1}) {
            INFO(name << ", step " << before);
            std::vector<Tensor> parameters = of_several_dtypes();
            std::unique_ptr<optim::Optimizer> optimizer = make(parameters);
            for (int i = 0; i <= before; ++i) optimizer->step();
            const std::vector<Tensor> stepped = copies(parameters);
            std::vector<Tensor> begun;
            with_each_failure(
                [&] {
                    parameters = of_several_dtypes();
                    optimizer = make(parameters);
                    for (int i = 0; i < before; ++i) optimizer->step();
                    begun = copies(parameters);
                },
                [&] { optimizer->step(); },
                [&] {
                    CHECK(are_same(parameters, begun));
                    optimizer->step();
                    CHECK(are_same(parameters, stepped));
                });
        }
    }
}

TEST_CASE("a step of 16 bits is the one of float32, rounded, and takes no memory") {
    const OneThread one;
    for (const auto& [name, make] : optimizers_of_steps) {
        INFO(name);
        const std::vector<Tensor> parameters = of_several_dtypes();
        std::vector<Tensor> wide;
        for (const Tensor& p : parameters) {
            wide.push_back(p.detach().to(float32).contiguous().clone().requires_grad_());
            wide.back().set_grad(p.grad().to(float32).contiguous());
        }
        make(parameters)->step();
        make(wide)->step();
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            CHECK(are_same(parameters[i].detach().contiguous(), wide[i].detach().to(parameters[i].dtype())));
        }

        const std::int64_t n = 1 << 20;
        const std::vector<Tensor> large = {ones({n}, float16).requires_grad_(), ones({n}, bfloat16).requires_grad_()};
        for (Tensor p : large) p.set_grad(ones({n}, p.dtype()));
        const std::unique_ptr<optim::Optimizer> optimizer = make(large);
        optimizer->step();  // makes what is kept
        reset_peak_memory();
        const std::int64_t live = memory_stats().live_bytes;
        optimizer->step();
        CHECK(memory_stats().peak_bytes - live < 64 * 1024);
    }
}

TEST_CASE("averages of weights and gradients that are unscaled change all together or not at all") {
    const OneThread one;
    std::vector<Tensor> parameters = of_several_dtypes();
    std::unique_ptr<optim::ExponentialMovingAverage> average;
    std::vector<Tensor> begun, updated;
    const auto begin = [&] {
        parameters = of_several_dtypes();
        average = std::make_unique<optim::ExponentialMovingAverage>(parameters, optim::ExponentialMovingAverageOptions{.decay = 0.75});
        for (Tensor p : parameters) p.requires_grad_(false).mul_(2).requires_grad_();
        begun = copies(average->averages());
    };
    begin();
    average->update();
    updated = copies(average->averages());
    for (std::size_t i = 0; i < updated.size(); ++i) {  // 0.75 p + 0.25 * 2 p
        CHECK(allclose(updated[i], begun[i] * 1.25, 1e-2, 1e-6));
    }
    with_each_failure(
        begin, [&] { average->update(); },
        [&] {
            CHECK(are_same(average->averages(), begun));
            CHECK(average->updates() == 0);
            average->update();
            CHECK(are_same(average->averages(), updated));
        });

    std::unique_ptr<optim::SGD> sgd;
    std::unique_ptr<optim::GradScaler> scaler;
    const auto gradients = [&] {
        std::vector<Tensor> all;
        for (const Tensor& p : parameters) all.push_back(p.grad());
        return copies(all);
    };
    const auto scaled = [&] {
        parameters = of_several_dtypes();
        sgd = std::make_unique<optim::SGD>(parameters, optim::SGDOptions{.lr = 0.1});
        scaler = std::make_unique<optim::GradScaler>(optim::GradScalerOptions{.init_scale = 4});
        begun = gradients();
    };
    scaled();
    scaler->unscale_(*sgd);
    updated = gradients();
    for (std::size_t i = 0; i < updated.size(); ++i) CHECK(equal(updated[i] * 4, begun[i]));
    with_each_failure(
        scaled, [&] { scaler->unscale_(*sgd); },
        [&] {
            CHECK(are_same(gradients(), begun));
            scaler->unscale_(*sgd);  // a ValueError had it noted that they were
            CHECK(are_same(gradients(), updated));
        });
}

TEST_CASE("clone, save, load, trace and profile with each malloc failing") {
    const OneThread one;
    manual_seed(5);
    Net model, other;
    const Tensor x = randn({4, 6});
    model.eval();
    const std::vector<Tensor> weights = tensors_of(model.state_dict()), others = tensors_of(other.state_dict());
    const auto nothing = [] {};
    const auto model_is_whole = [&] { CHECK(are_same(tensors_of(model.state_dict()), weights)); };
    const Tensor y = model.forward(x);
    with_each_failure(nothing, [&] { const Net copy = nn::clone(model); }, model_is_whole, /*own=*/3);
    const std::string path = "out_of_memory_test.safetensors";
    nn::save(model, path);
    const auto bytes = [&] {
        std::ifstream in(path);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    const std::string before = bytes();
    with_each_failure(nothing, [&] { nn::save(model, path); }, [&] { CHECK(bytes() == before); });
    with_each_failure([&] { other.load_state_dict(other.state_dict()); }, [&] { nn::load(other, path); },
                      [&] { CHECK((are_same(tensors_of(other.state_dict()), others))); });
    std::remove(path.c_str());
    CHECK(are_same(tensors_of(other.state_dict()), weights));
    { const Profiler first; }  // what it registers for the end of the thread is glibc's, which aborts without memory
    with_each_failure(nothing, [&] { const Profiler profiler; }, nothing);
    const auto fn = [&](const Tensor& t) { return model.forward(t); };
    const std::vector<TraceInput> inputs = {{"x", x}};
    with_each_failure(nothing, [&] { const Graph graph = trace(fn, inputs); }, model_is_whole, /*own=*/20);
    const Graph graph = trace(fn, inputs);
    with_each_failure(nothing, [&] { const CompiledGraph compiled = graph.compile(); }, model_is_whole);
    const std::vector<Tensor> given = {x};
    const std::vector<std::string> all;
    std::vector<Tensor> ran;
    ran.reserve(1);
    with_each_failure(nothing, [&] { ran = graph.compile()(given); }, model_is_whole);
    CHECK(allclose(ran[0], y));
}

TEST_CASE("what reads tensors, gradients and states, with each malloc failing") {
    const OneThread one;
    const Tensor x = randn({3, 4});
    nn::Linear layer(4, 3);
    optim::Adam adam(layer.parameters(), {.lr = 0.1});
    optim::StepLR schedule(adam, {.step_size = 1});
    optim::GradScaler scaler;
    nn::Embedding table(6, 2);
    Tensor rows = table.weight;
    const auto prepare_rows = [&] {  // a gradient of rows, which grad() makes dense
        rows.zero_grad();
        Tape tape;
        tape.backward(sum(table(tensor({1, 2}))));
    };
    const auto nothing = [] {};
    int failures = with_each_failure(nothing, [&] { x.to_vector<double>(); }, nothing);
    failures += with_each_failure(nothing, [&] { x.to_vector<bool>(); }, nothing);
    CHECK(failures >= 2);
    CHECK(with_each_failure(nothing, [&] { x.detach(); }, nothing) >= 0);  // it may find a block that is kept
    CHECK(with_each_failure(prepare_rows, [&] { rows.grad(); }, nothing) >= kLeast);
    CHECK(are_same(rows.grad().sum(), full({}, 4.0f)));
    CHECK(with_each_failure(nothing, [&] { layer.state_dict(); }, nothing) >= 1);
    CHECK(with_each_failure(nothing, [&] { adam.state_dict(); }, nothing) >= 1);
    CHECK(with_each_failure(nothing, [&] { schedule.state_dict(); }, nothing) >= 1);
    CHECK(with_each_failure(nothing, [&] { scaler.state_dict(); }, nothing) >= 1);
    // More than any machine has, and more than a vector may hold.
    const Tensor large = zeros({1}).expand({std::int64_t{1} << 40}), larger = zeros({1}).expand({std::int64_t{1} << 60});
    for (const Tensor& y : {large, larger}) {
        const Ending ending = with_failure(0, [&] { y.to_vector<double>(); });
        CHECK(ending.how == Ending::out_of_memory);
        CHECK(ending.text.find("out_of_memory_test.cpp:") == 0);
    }
}

TEST_CASE("the first tape, op and backward of a thread with each malloc failing") {
    const OneThread one;
    const Tensor w = tensor({2.0f, 3.0f}).requires_grad_();
    for (int n = 1; n < 200; ++n) {
        bool is_over = false;
        Ending ending;
        std::thread([&] {
            const Tensor other = ones({}).requires_grad_();
            {
                Tape tape;
                tape.backward(other * 1);
            }  // what a thread registers to be called at its end is glibc's, which aborts without memory
            ending = with_failure(n, [&] {
                Tape tape;
                tape.backward(sum(w * w));
                is_over = !has_malloc_failed();
            });
        }).join();
        if (ending.how != Ending::done) {
            INFO("malloc " << n << ": " << ending.text);
            CHECK(ending.how == Ending::out_of_memory);
            CHECK(ending.text.find("out_of_memory_test.cpp:") == 0);
            CHECK(!w.grad().defined());
        }
        Tensor(w).zero_grad();
        if (is_over) return;
    }
}

TEST_CASE("ops in place with each malloc failing leave the tensor as it was") {
    const OneThread one;
    const Tensor begun = arange(12, float64).reshape({3, 4}), row = tensor({5.0, 6.0, 7.0, 8.0}), index = tensor({2, 0});
    const Tensor rows = ones({2, 4}, float64), mask = begun > 4.0, places = tensor({0, 1, 2, 0}).reshape({1, 4}), narrow = row.to(float32);
    const Index at(index), first(1);
    const std::vector<Index> whole = {at}, single = {first}, masked = {Index(mask)};
    const std::pair<const char*, std::function<void(Tensor&)>> calls[] = {
        {"add_", [&](Tensor& x) { x.add_(row); }},
        {"add_ of another dtype", [&](Tensor& x) { x.add_(narrow); }},
        {"mul_ by a number", [&](Tensor& x) { x.mul_(2); }},
        {"sub_ of itself turned", [&](Tensor& x) { x.sub_(x.flip({0})); }},
        {"exp_", [&](Tensor& x) { x.exp_(); }},
        {"clamp_", [&](Tensor& x) { x.clamp_(1, 2); }},
        {"fill_", [&](Tensor& x) { x.fill_(3); }},
        {"zero_", [&](Tensor& x) { x.zero_(); }},
        {"copy_", [&](Tensor& x) { x.copy_(row); }},
        {"copy_ of another dtype", [&](Tensor& x) { x.copy_(narrow); }},
        {"masked_fill_", [&](Tensor& x) { x.masked_fill_(mask, 7); }},
        {"index_put_", [&](Tensor& x) { x.index_put_(whole, rows); }},
        {"index_put_ that adds", [&](Tensor& x) { x.index_put_(whole, rows, /*accumulate=*/true); }},
        {"index_put_ of one", [&](Tensor& x) { x.index_put_(single, row); }},
        {"index_put_ of a mask", [&](Tensor& x) { x.index_put_(masked, ones({}, float64)); }},
        {"index_add_", [&](Tensor& x) { x.index_add_(0, index, rows); }},
        {"index_copy_", [&](Tensor& x) { x.index_copy_(0, index, rows); }},
        {"index_fill_", [&](Tensor& x) { x.index_fill_(0, index, 4); }},
        {"scatter_", [&](Tensor& x) { x.scatter_(0, places, rows); }},
        {"scatter_add_", [&](Tensor& x) { x.scatter_add_(0, places, rows); }},
    };
    Tensor x, over;
    for (const bool is_recorded : {false, true}) {
        for (const auto& [name, call] : calls) {
            INFO(name << (is_recorded ? ", recorded" : ""));
            std::optional<Tape> tape;
            with_each_failure(
                [&] {
                    x = begun.clone();
                    tape.reset();
                    if (is_recorded) tape.emplace();
                    if (is_recorded) x = x * ones({}, float64).requires_grad_();
                },
                [&] { call(x); },
                [&] {
                    CHECK(are_same(x, begun));
                    call(x);
                    over = begun.clone();
                    call(over);
                    CHECK(are_same(x, over));
                });
        }
    }
}

TEST_CASE("batch() with each malloc failing") {
    const OneThread one;
    manual_seed(3);
    Tensor w = (randn({6, 6}) / 3).requires_grad_(), bias = randn({6}).requires_grad_();
    const Tensor x = randn({5, 6});
    const std::vector<int> items = {0, 1, 2, 3, 4};
    Tensor losses;
    const auto grow = [&](const Tensor& from, int depth, const auto& self) -> Tensor {
        const Tensor h = tanh(linear(from, w, bias));
        if (depth == 0) return h;
        const std::array<int, 2> children = {1, 2};
        const std::vector<Tensor> grown = batch(children, [&](int times) { return self(h * times, depth - 1, self); });
        return grown[0] + grown[1];
    };
    // Items stop at different lengths, so that some ops are alone.
    const auto loss_of = [&](int n) { return sum(grow(x[n], n % 3, grow)); };
    const auto step = [&](const BatchOptions& options) {
        Tape tape;
        losses = stack(batch(items, loss_of, options));
        tape.backward(sum(losses));
    };
    const auto forget = [&] {
        w.zero_grad();
        bias.zero_grad();
        losses = Tensor();
    };
    for (const BatchOptions& options : {BatchOptions{}, BatchOptions{.most = 2}, BatchOptions{.stack = 64 * 1024, .all_wait = true}}) {
        forget();
        step(options);
        const std::vector<Tensor> wanted = copies({losses, w.grad(), bias.grad()}), before = copies({w, bias, x});
        forget();
        const std::int64_t live = memory_stats().live_bytes;
        const int failed = with_each_failure(
            forget, [&] { step(options); },
            [&] {
                CHECK(are_same(before, {w, bias, x}));
                CHECK(!Tape::current());
            });
        CHECK(failed >= kLeast);
        forget();
        CHECK(memory_stats().live_bytes == live);
        step(options);
        CHECK(are_same(wanted, {losses, w.grad(), bias.grad()}));
    }
    const std::vector<Tensor> wanted = copies(batch(items, loss_of, {.all_wait = true}));
    std::vector<Tensor> made;
    with_each_failure([&] { made.clear(); }, [&] { made = batch(items, loss_of, {.all_wait = true}); }, [&] { CHECK(made.empty()); });
    CHECK(are_same(wanted, made));
}
