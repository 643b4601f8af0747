// Losses and dropout: PyTorch's numbers (libtorch 1.13), a plain double-precision reference over every path of the fused
// kernel, first and second derivatives by finite differences, and what is refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "../fails.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/parallel.h"
#include "tapir/ops/elementwise/compare.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/loss/cross_entropy.h"
#include "tapir/ops/loss/ctc_loss.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/loss/loss_kernels.h"
#include "tapir/ops/loss/margin_loss.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/random/dropout.h"
#include "tapir/ops/random/random.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/view/view.h"

using namespace tapir;

namespace {

using V = std::vector<double>;
constexpr double inf = std::numeric_limits<double>::infinity();
V values(const Tensor& t) { return t.to_vector<double>(); }

void check_close(const V& got, const V& wanted, double tolerance) {
    REQUIRE(got.size() == wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        if (std::isfinite(wanted[i])) {
            CHECK(got[i] == Approx(wanted[i]).epsilon(tolerance).margin(tolerance));
        } else {
            CHECK((got[i] == wanted[i] || (std::isnan(got[i]) && std::isnan(wanted[i]))));
        }
    }
}

template <class E, class F>
void throws_here(int line, const std::string& text, const F& f) {
    CAPTURE(line, text);
    try {
        f();
        FAIL_CHECK("no error");
    } catch (const E& e) {
        CHECK_THAT(e.what(), Catch::StartsWith("loss_test.cpp:" + std::to_string(line) + ": "));
        CHECK_THAT(e.what(), Catch::Contains(text));
    }
}
#define THROWS(Type, text, ...) throws_here<Type>(__LINE__, text, [&] { static_cast<void>(__VA_ARGS__); })

using LossOf = std::function<Tensor(const Tensor&)>;

// d sum(f(x) * seed) / dx
Tensor gradient_of(const LossOf& f, const Tensor& x, bool twice = false) {
    const Tensor leaf = x.clone().requires_grad_();
    Tape tape;
    const Tensor y = f(leaf);
    const Tensor seed = (arange(y.numel()).to(y.dtype()) * 0.3 + 1).reshape(y.shape());
    const Tensor g = tape.gradient(y, {leaf}, {.gradient = seed, .create_graph = twice})[0];
    if (!twice) return g;
    const Tensor direction = (arange(g.numel()).to(g.dtype()) * 0.7 - 1).reshape(g.shape());
    return tape.gradient(g, {leaf}, {.gradient = direction})[0];
}

// Central differences of h at x, h a scalar.
V differences(const std::function<double(const Tensor&)>& h, const Tensor& x) {
    constexpr double step = 1e-5;
    V result;
    const Tensor moved = x.clone();
    auto* elements = moved.data<double>();
    for (std::int64_t i = 0; i < moved.numel(); ++i) {
        const double before = elements[i];
        elements[i] = before + step;
        const double above = h(moved);
        elements[i] = before - step;
        const double below = h(moved);
        elements[i] = before;
        result.push_back((above - below) / (2 * step));
    }
    return result;
}

double weighted_sum(const Tensor& y, double slope, double start) {
    double total = 0, factor = start;
    for (const double v : values(y)) {
        total += v * factor;
        factor += slope;
    }
    return total;
}

// First and second derivatives of f at the float64 tensor x, and the recorded against the unrecorded gradient.
void check_derivatives(const LossOf& f, const Tensor& x) {
    check_close(values(gradient_of(f, x)), differences([&](const Tensor& at) { return weighted_sum(f(at), 0.3, 1); }, x), 1e-6);
    check_close(values(gradient_of(f, x, true)), differences([&](const Tensor& at) { return weighted_sum(gradient_of(f, at), 0.7, -1); }, x), 1e-6);
    const Tensor leaf = x.clone().requires_grad_();
    Tape tape;
    const Tensor y = f(leaf);
    const BackwardOptions recorded{.gradient = ones_like(y), .create_graph = true}, plain{.gradient = ones_like(y)};
    const V with = values(tape.gradient(y, {leaf}, recorded)[0]);
    check_close(values(tape.gradient(y, {leaf}, plain)[0]), with, 1e-12);
}

// --- A plain cross-entropy ---------------------------------------------------------------------------------------------------

struct Reference {
    V losses;
    double mean = 0, sum = 0;
};

// logits (outer, classes, inner), targets (outer, inner).
Reference plain_cross_entropy(const V& x, const std::vector<std::int64_t>& targets, std::size_t classes, std::size_t inner, const V& weight,
                              std::int64_t ignore, double smoothing) {
    Reference r;
    double weights = 0;
    for (std::size_t i = 0; i < targets.size(); ++i) {
        const double* at = x.data() + i / inner * classes * inner + i % inner;
        double top = -inf, sum = 0, loss = 0;
        for (std::size_t c = 0; c < classes; ++c) top = std::max(top, at[c * inner]);
        for (std::size_t c = 0; c < classes; ++c) sum += std::exp(at[c * inner] - top);
        if (targets[i] != ignore) {
            for (std::size_t c = 0; c < classes; ++c) {
                const double q = (static_cast<std::int64_t>(c) == targets[i] ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
                loss -= q * weight[c] * (at[c * inner] - top - std::log(sum));
            }
            weights += weight[static_cast<std::size_t>(targets[i])];
        }
        r.losses.push_back(loss);
        r.sum += loss;
    }
    r.mean = r.sum / weights;
    return r;
}

struct Layout {
    Shape logits;
    std::int64_t classes, inner;
};

}  // namespace

TEST_CASE("cross_entropy gives PyTorch's numbers") {
    const Tensor x = tensor({{0.5, -1.0, 2.0}, {1.5, 0.25, -0.75}, {-2.0, 0.0, 1.0}, {3.0, -0.5, 0.5}}, float64);
    const Tensor t = tensor({2, 0, 1, 2}), w = tensor({0.5, 1.0, 2.0}, float64);
    const Tensor q = tensor({{0.2, 0.3, 0.5}, {1.0, 0.0, 0.0}, {0.1, 0.1, 0.8}, {0.0, 0.6, 0.4}}, float64);
    const struct {
        CrossEntropyOptions options;
        Tensor targets;
        V loss, grad;
    } cases[] = {
        {{},
         t,
         {1.13185256},
         {0.043822598, 0.00977814332, -0.0536007414, -0.0703899147, 0.051459151, 0.0189307637, 0.00877975674, -0.185125885, 0.176346128, 0.224763067,
          0.00678725653, -0.231550324}},
        {{.weight = w, .reduction = Reduction::none},
         t,
         {0.482622593, 0.165336305, 1.34901222, 5.21282821},
         {0.350580784, 0.0782251465, -0.428805931, -0.140779829, 0.102918302, 0.0378615274, 0.035119027, -0.74050354, 0.705384513, 1.79810454,
          0.0542980522, -1.85240259}},
        {{.weight = w},
         t,
         {1.3108726},
         {0.0637419608, 0.0142227539, -0.0779647147, -0.0255963326, 0.0187124185, 0.00688391408, 0.00638527763, -0.134637007, 0.12825173, 0.326928098,
          0.00987237313, -0.336800471}},
        {{.ignore_index = 2}, t, {0.839842413}, {0, 0, 0, -0.140779829, 0.102918302, 0.0378615274, 0.0175595135, -0.37025177, 0.352692256, 0, 0, 0}},
        {{.weight = w, .ignore_index = 1, .label_smoothing = 0.2},
         t,
         {1.34376057},
         {0.0640071968, 0.00111993726, -0.0651271341, 0.0048175295, 0.0141547813, -0.0189723108, 0, 0, 0, 0.358873147, -0.00375410048, -0.355119046}},
        {{.ignore_index = 1, .label_smoothing = 0.2},
         t,
         {1.20391045},
         {0.0362079085, -0.0091846978, -0.0270232107, -0.0494087752, 0.0463899791, 0.00301879606, 0, 0, 0, 0.277461868, -0.0131725469, -0.264289321}},
        {{.weight = w, .ignore_index = 0, .reduction = Reduction::none, .label_smoothing = 0.3},
         t,
         {0.797294769, 0, 1.31646283, 4.53622468},
         {0.256758186, -0.0315529968, -0.225205189, 0, 0, 0, -0.0131250217, -0.527528717, 0.540653738, 1.52334147, -0.0524892043, -1.47085227}},
        {{},
         q,
         {1.43185256},
         {-0.00617740196, -0.0652218567, 0.0713992586, -0.0703899147, 0.051459151, 0.0189307637, -0.0162202433, 0.0398741151, -0.0236538718,
          0.224763067, -0.143212743, -0.0815503239}},
        {{.weight = w, .label_smoothing = 0.1},
         q,
         {1.6999572},
         {0.0336624433, -0.0623720894, 0.0287096461, -0.0148876183, 0.0208268522, -0.0059392339, -0.000564244848, 0.0789120447, -0.0783477998,
          0.305257156, -0.133989544, -0.171267613}},
        {{.weight = w, .reduction = Reduction::none},
         q,
         {1.38783582, 0.165336305, 0.860771379, 4.24897975},
         {0.145406549, -0.245242397, 0.0998358484, -0.140779829, 0.102918302, 0.0378615274, 0.0114582972, 0.354118806, -0.365577103, 1.25867318,
          -0.561991363, -0.696681814}},
    };
    for (const auto& c : cases) {
        check_close(values(cross_entropy(x, c.targets, c.options)), c.loss, 1e-8);
        const Tensor leaf = x.clone().requires_grad_();
        Tape tape;
        const Tensor y = cross_entropy(leaf, c.targets, c.options);
        check_close(values(y), c.loss, 1e-8);
        check_close(values(tape.gradient(y, {leaf}, {.gradient = ones_like(y)})[0]), c.grad, 1e-8);
        if (is_floating(c.targets.dtype())) continue;
        check_close(values(nll_loss(log_softmax(x, 1), c.targets, c.options)), c.loss, 1e-8);
    }
}

TEST_CASE("cross_entropy agrees with the plain formula in every layout") {
    manual_seed(4);
    const Layout layouts[] = {
        {{1, 5}, 5, 1},        {{3, 5}, 5, 1},       {{40, 5}, 5, 1},   {{16, 1}, 1, 1},       {{17, 64}, 64, 1}, {{7, 65}, 65, 1},
        {{2, 1000}, 1000, 1},  {{300, 9}, 9, 1},     {{6}, 6, 1},       {{20}, 20, 1},         {{2, 3, 4}, 3, 4}, {{3, 4, 70}, 4, 70},
        {{2, 5, 3, 7}, 5, 21}, {{2, 3, 1, 1}, 3, 1}, {{4, 1, 5}, 1, 5}, {{1, 2, 300}, 2, 300}, {{0, 5}, 5, 1},    {{2, 3, 0}, 3, 0},
    };
    for (const Layout& layout : layouts) {
        for (const double smoothing : {0.0, 0.15}) {
            for (const bool weighted : {false, true}) {
                for (const std::int64_t ignore : {std::int64_t{-100}, std::int64_t{0}}) {
                    CAPTURE(layout.logits.str(), smoothing, weighted, ignore);
                    const Tensor x = randn(layout.logits, float64) * 3;
                    Shape target_shape = layout.logits;
                    target_shape.erase(layout.logits.rank() == 1 ? 0 : 1);
                    Tensor targets = randint(layout.classes, target_shape);
                    const Tensor weight = weighted ? rand({layout.classes}, float64) + 0.5 : Tensor();
                    const Reference r =
                        plain_cross_entropy(values(x), targets.to_vector<std::int64_t>(), static_cast<std::size_t>(layout.classes),
                                            static_cast<std::size_t>(layout.inner),
                                            weighted ? values(weight) : V(static_cast<std::size_t>(layout.classes), 1), ignore, smoothing);
                    CrossEntropyOptions options{.weight = weight, .ignore_index = ignore, .label_smoothing = smoothing};
                    for (const DType dtype : {float64, float32, float16, bfloat16}) {
                        const double tolerance = dtype == float64 ? 1e-12 : dtype == float32 ? 2e-6 : dtype == float16 ? 1e-2 : 8e-2;
                        const Tensor logits = x.to(dtype);
                        CHECK(cross_entropy(logits, targets, options).dtype() == dtype);
                        options.reduction = Reduction::none;
                        CHECK(cross_entropy(logits, targets, options).shape() == target_shape);
                        check_close(values(cross_entropy(logits, targets, options)), r.losses, tolerance);
                        check_close(values(nll_loss(log_softmax(logits, layout.logits.rank() == 1 ? 0 : 1), targets, options)), r.losses, tolerance);
                        options.reduction = Reduction::mean;
                        check_close(values(cross_entropy(logits, targets, options)), {r.mean}, tolerance);
                        if (dtype == float16 || dtype == bfloat16) continue;  // the sum may leave their range
                        options.reduction = Reduction::sum;
                        check_close(values(cross_entropy(logits, targets, options)), {r.sum}, tolerance * 10);
                    }
                    options.reduction = Reduction::none;
                    if (layout.logits.rank() < 2 || layout.logits.numel() > 100) continue;
                    // The same from other strides and another index dtype.
                    const Tensor turned = x.transpose(0, 1).contiguous().transpose(0, 1);
                    check_close(values(cross_entropy(turned, targets.to(int32), options)), r.losses, 1e-12);
                }
            }
        }
    }
}

TEST_CASE("cross_entropy's derivatives, first and second") {
    manual_seed(5);
    const Layout layouts[] = {{{1, 5}, 5, 1}, {{6, 3}, 3, 1}, {{4}, 4, 1}, {{2, 70}, 70, 1}, {{2, 3, 4}, 3, 4}};
    for (const Layout& layout : layouts) {
        for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
            for (const bool special : {false, true}) {
                CAPTURE(layout.logits.str(), static_cast<int>(reduction), special);
                const Tensor x = randn(layout.logits, float64);
                Shape target_shape = layout.logits;
                target_shape.erase(layout.logits.rank() == 1 ? 0 : 1);
                Tensor targets = randint(layout.classes, target_shape);
                if (special && targets.numel() > 1) targets.view({-1}).select(0, 1).fill_(-100);
                CrossEntropyOptions options{.reduction = reduction};
                if (special) {
                    options.weight = rand({layout.classes}, float64) + 0.5;
                    options.label_smoothing = 0.2;
                }
                check_derivatives([&](const Tensor& at) { return cross_entropy(at, targets, options); }, x);
                check_derivatives([&](const Tensor& at) { return square(nll_loss(at, targets, options)); }, x);
                const Tensor q = rand(layout.logits, float64);
                check_derivatives([&](const Tensor& at) { return cross_entropy(at, q, options); }, x);
                check_derivatives([&](const Tensor& at) { return square(cross_entropy(x, at, options)); }, q);
            }
        }
    }
}

TEST_CASE("cross_entropy in float32 and 16-bit floats has the gradient of float64") {
    manual_seed(6);
    for (const DType dtype : {float32, float16, bfloat16}) {
        const double tolerance = dtype == float32 ? 1e-6 : dtype == float16 ? 1e-3 : 1e-2;
        const Tensor x = randn({40, 5}, dtype), targets = randint(5, {40});
        const LossOf f = [&](const Tensor& at) { return cross_entropy(at, targets); };
        const Tensor g = gradient_of(f, x);
        CHECK(g.dtype() == dtype);
        check_close(values(g), values(gradient_of(f, x.to(float64))), tolerance);
        check_close(values(gradient_of(f, x, true)), values(gradient_of(f, x.to(float64), true)), tolerance);
    }
}

TEST_CASE("cross_entropy at the ends") {
    const Tensor t = tensor({0});
    CHECK(values(cross_entropy(tensor({{1000.0, -1000.0}}), t)) == V{0});
    CHECK(values(cross_entropy(tensor({{-1000.0, 1000.0}}), t)) == V{2000});
    CHECK(values(cross_entropy(tensor({{0.0, -inf}}), t)) == V{0});
    CHECK(values(cross_entropy(tensor({{-inf, 0.0}}), t)) == V{inf});
    CHECK(std::isnan(cross_entropy(tensor({{std::nan(""), 0.0}}), t).item()));
    CHECK(std::isnan(cross_entropy(tensor({{-inf, -inf}}), t).item()));
    // Nothing counts: the mean is 0 / 0, as in PyTorch, and no gradient flows.
    const Tensor leaf = tensor({{1.0, 2.0}}).requires_grad_();
    Tape tape;
    const Tensor y = cross_entropy(leaf, tensor({-100}));
    CHECK(std::isnan(y.item()));
    CHECK(values(tape.gradient(y, {leaf})[0]) == V{0, 0});
    // An ignored row may hold anything.
    const Tensor x = tensor({{1.0, 2.0}, {std::nan(""), inf}, {0.0, 1.0}, {0.0, 1.0}, {0.0, 1.0}}).requires_grad_();
    const Tensor z = cross_entropy(x, tensor({0, -100, 1, 1, 1}), {.reduction = Reduction::sum});
    CHECK(std::isfinite(z.item()));
    for (const double g : values(tape.gradient(z, {x})[0])) CHECK(std::isfinite(g));
}

TEST_CASE("a large cross_entropy is the same at any thread count and in every instruction set") {
    manual_seed(7);
    const int threads = num_threads();
    for (const Shape& shape : {Shape{3000, 20}, Shape{50, 3000}, Shape{4, 6, 5000}}) {
        const Tensor x = randn(shape), targets = randint(shape[1], shape.rank() == 2 ? Shape{shape[0]} : Shape{shape[0], shape[2]});
        const LossOf f = [&](const Tensor& at) { return cross_entropy(at, targets); };
        set_num_threads(1);
        const V loss = values(f(x)), grad = values(gradient_of(f, x));
        set_num_threads(4);
        CHECK(values(f(x)) == loss);
        CHECK(values(gradient_of(f, x)) == grad);
        set_num_threads(threads);

        const Tensor losses = empty(targets.shape()), out = empty(shape);
        V first;
        for (int isa = 0; isa <= static_cast<int>(kernels::chosen_isa); ++isa) {
            const std::int64_t inner = shape.rank() == 2 ? 1 : shape[2];
            const kernels::CrossEntropyArgs args{float32,           x.raw_data(),  targets.data<std::int64_t>(), nullptr, shape[1], inner, -100, 0, 1,
                                                 losses.raw_data(), out.raw_data()};
            kernels::cross_entropy.fn[isa](args, 0, targets.numel());
            if (isa == 0) first = values(losses);
            check_close(values(losses), first, 1e-5);
        }
    }
}

TEST_CASE("one record for a cross_entropy, and backward can run again on a persistent tape") {
    const Tensor x = randn({4, 5}).requires_grad_(), t = randint(5, {4});
    Tape tape({.persistent = true});
    const Tensor y = cross_entropy(x, t);
    CHECK(tape.size() == 2);  // the leaf's and its own
    tape.backward(y);
    const V once = values(x.grad());
    tape.backward(y);
    V twice = values(x.grad());
    for (double& g : twice) g /= 2;
    check_close(twice, once, 1e-6);
}

TEST_CASE("what cross_entropy and nll_loss refuse") {
    const Tensor x = zeros({2, 3}), t = tensor({0, 1});
    const Tensor none;
    THROWS(ValueError, "cross_entropy: the tensor is undefined", cross_entropy(none, t));
    THROWS(ValueError, "cross_entropy: the tensor is undefined", cross_entropy(x, none));
    THROWS(DTypeError, "floating", cross_entropy(tensor({{1, 2}}), t));
    THROWS(DTypeError, "class indices, not bool", cross_entropy(x, tensor({true, false})));
    THROWS(DTypeError, "class indices, not float32", nll_loss(x, zeros({2, 3})));
    CHECK(cross_entropy(x, tensor({0, 1}), Reduction::sum).item() == cross_entropy(x, tensor({0, 1}), {.reduction = Reduction::sum}).item());
    CHECK(nll_loss(x, tensor({0, 1}), Reduction::none).shape() == Shape(2));
    CHECK(cross_entropy(x, tensor({0, 1}), {}).item() == cross_entropy(x, tensor({0, 1})).item());
    THROWS(ShapeError, "needs targets of shape (2,), got (3,)", cross_entropy(x, tensor({0, 1, 2})));
    THROWS(ShapeError, "needs targets of shape (2,), got ()", cross_entropy(x, tensor(0)));
    THROWS(ShapeError, "(classes,)", cross_entropy(tensor(1.0), tensor(0)));
    THROWS(ShapeError, "logits' shape (2, 3), got (2,)", cross_entropy(x, zeros({2})));
    THROWS(IndexError, "target 3 at position 1 is out of range for 3 classes", cross_entropy(x, tensor({0, 3})));
    THROWS(IndexError, "target -1 at position 0", nll_loss(x, tensor({-1, 0})));
    THROWS(ShapeError, "weight must have shape (3,), got (2,)", cross_entropy(x, t, {.weight = zeros({2})}));
    THROWS(ValueError, "label_smoothing", cross_entropy(x, t, {.label_smoothing = 1.5}));
    THROWS(ValueError, "label_smoothing", cross_entropy(x, t, {.label_smoothing = std::nan("")}));
    const Tensor leaf = x.clone().requires_grad_();
    Tape tape;
    THROWS(IndexError, "out of range", cross_entropy(leaf, tensor({0, 3})));
    CHECK(tape.size() == 0);
}

TEST_CASE("the other losses give PyTorch's numbers") {
    const Tensor a = tensor({0.5, -1.0, 2.0, 0.0}, float64), b = tensor({0.25, 1.0, -1.0, 0.0}, float64);
    CHECK(values(mse_loss(a, b)) == V{3.265625});
    CHECK(values(mse_loss(a, b, Reduction::sum)) == V{13.0625});
    CHECK(values(mse_loss(a, b, Reduction::none)) == V{0.0625, 4, 9, 0});
    CHECK(values(l1_loss(a, b)) == V{1.3125});
    CHECK(values(huber_loss(a, b, Reduction::none, 0.5)) == V{0.03125, 0.875, 1.375, 0});
    CHECK(values(smooth_l1_loss(a, b, Reduction::none, 0.5)) == V{0.0625, 1.75, 2.75, 0});
    CHECK(values(smooth_l1_loss(a, b, Reduction::none, 0)) == V{0.25, 2, 3, 0});
    CHECK(values(hinge_loss(a, tensor({1.0, -1.0, 1.0, -1.0}, float64), Reduction::none)) == V{0.5, 0, 0, 1});

    const Tensor p = tensor({0.0, 1.0, 0.3, 1.0}, float64), t = tensor({0.0, 0.0, 0.8, 1.0}, float64);
    check_close(values(binary_cross_entropy(p, t, {}, Reduction::none)), {0, 100, 1.03451323, 0}, 1e-8);
    const LossOf bce = [&](const Tensor& at) { return binary_cross_entropy(at, t, {}, Reduction::sum); };
    check_close(values(gradient_of(bce, p)), {0, 1e12, -2.38095238, 0}, 1e-8);
    const Tensor logits = tensor({-100.0, 100.0, 0.3, -1.0}, float64);
    const LossOf bce_logits = [&](const Tensor& at) {
        return binary_cross_entropy_with_logits(at, t, tensor({1.0, 1.0, 0.5, 1.0}, float64), tensor({2.0, 2.0, 2.0, 3.0}, float64), Reduction::none);
    };
    check_close(values(bce_logits(logits)), {0, 100, 0.52891972, 3.93978506}, 1e-8);
    check_close(values(gradient_of([&](const Tensor& at) { return sum(bce_logits(at)); }, logits)), {0, 1, -0.283001735, -2.19317574}, 1e-8);

    const Tensor lp = tensor({{-0.5, -1.0, -2.0}, {-1.5, -0.25, -0.75}}, float64);
    const Tensor q = tensor({{0.2, 0.0, 0.8}, {0.5, 0.25, 0.25}}, float64);
    check_close(values(kl_div(lp, q)), {0.193312801}, 1e-8);
    check_close(values(kl_div(lp, q, Reduction::none)), {-0.221887582, 0, 1.42148516, 0.40342641, -0.28407359, -0.15907359}, 1e-8);
    check_close(values(kl_div(lp, lp * 0.5, Reduction::sum, true)), {1.58816547}, 1e-8);
    check_close(values(kl_div(lp, q, Reduction::batchmean)), {0.193312801 * 3}, 1e-8);
    check_close(values(kl_div(lp, lp * 0.5, Reduction::batchmean, true)), {1.58816547 / 2}, 1e-8);
}

TEST_CASE("the other losses' derivatives, first and second") {
    manual_seed(8);
    const Tensor a = randn({3, 4}, float64), b = randn({3, 4}, float64), row = randn({4}, float64);
    const Tensor p = rand({3, 4}, float64) * 0.8 + 0.1, t = rand({3, 4}, float64) * 0.8 + 0.1;
    const Tensor w = rand({4}, float64) + 0.5;
    for (const Reduction r : {Reduction::mean, Reduction::sum, Reduction::none}) {
        CAPTURE(static_cast<int>(r));
        check_derivatives([&](const Tensor& x) { return mse_loss(x, b, r); }, a);
        check_derivatives([&](const Tensor& x) { return square(mse_loss(b, x, r)); }, a);
        check_derivatives([&](const Tensor& x) { return mse_loss(a, x, r); }, row);
        check_derivatives([&](const Tensor& x) { return mse_loss(x, x.t().contiguous().t() * 2, r); }, a);
        check_derivatives([&](const Tensor& x) { return square(l1_loss(x, b, r)); }, a);
        check_derivatives([&](const Tensor& x) { return huber_loss(x, row, r, 0.7); }, a);
        check_derivatives([&](const Tensor& x) { return smooth_l1_loss(b, x, r, 0.7); }, a);
        check_derivatives([&](const Tensor& x) { return square(hinge_loss(x, b, r)); }, a);
        check_derivatives([&](const Tensor& x) { return binary_cross_entropy(x, t, w, r); }, p);
        check_derivatives([&](const Tensor& x) { return square(binary_cross_entropy(p, x, w, r)); }, t);
        check_derivatives([&](const Tensor& x) { return binary_cross_entropy_with_logits(x, t, w, w, r); }, a);
        check_derivatives([&](const Tensor& x) { return kl_div(a, x, r); }, t);
        check_derivatives([&](const Tensor& x) { return square(kl_div(x, t, r, true)); }, a);
    }
}

TEST_CASE("losses in other dtypes and sizes") {
    const Tensor a = tensor({1.0, 300.0}, float16), b = tensor({0.0, 0.0}, float16);
    CHECK(mse_loss(a, b).dtype() == float16);
    CHECK(values(mse_loss(a, b)) == V{44992});  // 45000.5 rounded; 300^2 alone is beyond float16
    CHECK(mse_loss(tensor({1.0f}), tensor({2.0}, float64)).dtype() == float64);
    CHECK(values(mse_loss(tensor({1, 2}), tensor({3, 5}))) == V{6.5});
    CHECK(std::isnan(mse_loss(zeros({0}), zeros({0})).item()));
    CHECK(mse_loss(zeros({0}), zeros({0}), Reduction::sum).item() == 0);
    CHECK(binary_cross_entropy(tensor({0.5}, bfloat16), tensor({1.0}, bfloat16)).dtype() == bfloat16);
    CHECK(values(binary_cross_entropy(tensor({0.5}), tensor({1}))).at(0) == Approx(std::log(2)));
    const int threads = num_threads();
    const Tensor x = randn({400000}), y = randn({400000});
    set_num_threads(1);
    const double one = mse_loss(x, y).item();
    set_num_threads(3);
    CHECK(mse_loss(x, y).item() == one);
    set_num_threads(threads);
    CHECK(one == Approx(mse_loss(x.to(float64), y.to(float64)).item()).epsilon(1e-6));
}

TEST_CASE("what the other losses refuse") {
    const Tensor x = zeros({2, 3}), none;
    THROWS(ValueError, "mse_loss: the tensor is undefined", mse_loss(none, x));
    THROWS(ValueError, "l1_loss: the tensor is undefined", l1_loss(x, none));
    THROWS(ShapeError, "mse_loss", mse_loss(x, zeros({4})));
    THROWS(ShapeError, "kl_div", kl_div(x, zeros({4})));
    THROWS(ShapeError, "kl_div: batchmean needs an input with a batch", kl_div(zeros({}), zeros({}), Reduction::batchmean));
    constexpr Reduction b = Reduction::batchmean;
    const Tensor t = zeros({2}, int64), y = zeros({2, 3}, int64), three = zeros({3});
    const char* only = ": only kl_div has Reduction::batchmean";
    THROWS(ValueError, only, mse_loss(x, x, b));
    THROWS(ValueError, only, l1_loss(x, x, b));
    THROWS(ValueError, only, huber_loss(x, x, b));
    THROWS(ValueError, only, smooth_l1_loss(x, x, b));
    THROWS(ValueError, only, hinge_loss(x, x, b));
    THROWS(ValueError, only, binary_cross_entropy(x, x, {}, b));
    THROWS(ValueError, only, binary_cross_entropy_with_logits(x, x, {}, {}, b));
    THROWS(ValueError, only, cross_entropy(x, t, {.reduction = b}));
    THROWS(ValueError, only, cross_entropy(x, x, {.reduction = b}));
    THROWS(ValueError, only, nll_loss(x, t, {.reduction = b}));
    THROWS(ValueError, only, soft_margin_loss(x, x, b));
    THROWS(ValueError, only, margin_ranking_loss(x, x, x, 0, b));
    THROWS(ValueError, only, hinge_embedding_loss(x, x, 1, b));
    THROWS(ValueError, only, cosine_embedding_loss(x, x, zeros({2}), 0, b));
    THROWS(ValueError, only, multi_margin_loss(x, t, 1, 1, {}, b));
    THROWS(ValueError, only, multilabel_margin_loss(x, y, b));
    THROWS(ValueError, only, multilabel_soft_margin_loss(x, x, {}, b));
    THROWS(ValueError, only, triplet_margin_loss(x, x, x, 1, 2, 1e-6, false, b));
    THROWS(ValueError, only, triplet_margin_with_distance_loss(x, x, x, {}, 1, false, b));
    THROWS(ValueError, only, poisson_nll_loss(x, x, true, false, 1e-8, b));
    THROWS(ValueError, only, gaussian_nll_loss(x, x, x, false, 1e-6, b));
    const Tensor one = tensor({1});
    THROWS(ValueError, only, ctc_loss(zeros({2, 1, 3}), ones({1, 1}, int64), one, one, {.reduction = b}));
    THROWS(ValueError, "delta", huber_loss(x, x, Reduction::mean, 0));
    THROWS(ValueError, "beta", smooth_l1_loss(x, x, Reduction::mean, -1));
    THROWS(ShapeError, "binary_cross_entropy", binary_cross_entropy(x, zeros({3})));
    THROWS(ValueError, "in [0, 1]", binary_cross_entropy(x - 0.5, x));
    THROWS(ValueError, "in [0, 1]", binary_cross_entropy(full({100}, std::nan("")), zeros({100})));
    THROWS(DTypeError, "floating", binary_cross_entropy(zeros({2}, int64), zeros({2})));
}

TEST_CASE("dropout keeps with probability 1 - p and scales what it keeps") {
    manual_seed(9);
    for (const DType dtype : {float16, bfloat16, float32, float64}) {
        const Tensor x = ones({100000}, dtype);
        const V y = values(dropout(x, 0.25));
        std::size_t kept = 0;
        for (const double v : y) {
            if (v == 0) continue;
            ++kept;
            REQUIRE(v == Approx(4.0 / 3).epsilon(dtype == bfloat16 ? 4e-3 : 4e-4));
        }
        CHECK(static_cast<double>(kept) == Approx(75000).margin(700));
        CHECK(dropout(x, 0.25).dtype() == dtype);
    }
    const Tensor x = randn({3, 4});
    CHECK(dropout(x, 0.5, false).is_same(x));
    CHECK(dropout(arange(3), 0.5, false).dtype() == int64);
    CHECK(values(dropout(x, 0)) == values(x));
    CHECK(values(dropout(x, 1)) == V(12, 0));
    CHECK(values(dropout(tensor({inf, std::nan("")}), 1)) == V{0, 0});
    CHECK(dropout(zeros({0, 3}), 0.5).shape() == Shape{0, 3});
    CHECK(dropout(tensor(1.0), 0.5).shape() == Shape{});

    // The same mask from the same generator, whatever the strides and the number of threads.
    Generator g(3);
    const Tensor m = randn({300, 200});
    const V once = values(dropout(m, 0.4, true, g));
    g.manual_seed(3);
    const int threads = num_threads();
    set_num_threads(4);
    CHECK(values(dropout(m.t().contiguous().t(), 0.4, true, g)) == once);
    set_num_threads(threads);
    CHECK(values(dropout(m, 0.4, true, g)) != once);
}

TEST_CASE("dropout's derivatives, first and second") {
    const LossOf f = [](const Tensor& x) {
        Generator g(11);
        return square(dropout(x, 0.4, true, g)) * x;
    };
    manual_seed(10);
    check_derivatives(f, randn({4, 5}, float64));
    const Tensor x = randn({6}, float16).requires_grad_();
    Tape tape;
    const Tensor y = dropout(x, 0.5);
    CHECK(tape.size() == 2);
    const V factor = values(tape.gradient(y, {x}, {.gradient = ones_like(y)})[0]);
    const V out = values(y), in = values(x);
    for (std::size_t i = 0; i < 6; ++i) CHECK(out[i] == in[i] * factor[i]);
}

TEST_CASE("what dropout refuses") {
    const Tensor none;
    const Generator::State before = default_generator().state();
    THROWS(ValueError, "undefined", dropout(none, 0.5));
    THROWS(ValueError, "p must be in [0, 1], got 1.5", dropout(zeros({2}), 1.5));
    THROWS(ValueError, "p must be in [0, 1]", dropout(zeros({2}), -0.1, false));
    THROWS(ValueError, "p must be in [0, 1]", dropout(zeros({2}), std::nan("")));
    THROWS(DTypeError, "floating", dropout(zeros({2}, int64), 0.5));
    CHECK(default_generator().state().offset == before.offset);
}

TEST_CASE("losses of many pairs are their definitions, with gradients, at any number of threads") {
    manual_seed(12);
    const Tensor x = randn({70, 1100}) * 2, t = randn({70, 1100}), p = sigmoid(t), g = randn({70, 1100});
    const auto check = [&](const Tensor& target, auto&& loss, auto&& definition) {
        for (const Reduction r : {Reduction::mean, Reduction::sum, Reduction::none}) {
            const auto run = [&](DType dtype, auto&& f) {
                const Tensor a = x.to(dtype).detach().requires_grad_(), b = target.to(dtype).detach().requires_grad_();
                Tape tape;
                Tensor y = f(a, b, r);
                tape.backward(r == Reduction::none ? sum(y * g.to(dtype)) : y * 3);
                return std::vector<Tensor>{y.detach(), a.grad(), b.grad()};
            };
            const auto reduced = [&](const Tensor& a, const Tensor& b, Reduction how) {
                const Tensor each = definition(a, b);
                return how == Reduction::none ? each : how == Reduction::sum ? sum(each) : mean(each);
            };
            const auto want = run(float64, reduced), exact = run(float64, loss), got = run(float32, loss);
            const int threads = num_threads();
            set_num_threads(1);
            const auto single = run(float32, loss);
            set_num_threads(threads);
            for (std::size_t i = 0; i < 3; ++i) {
                CHECK(allclose(exact[i], want[i], 1e-10, 1e-12));
                CHECK(allclose(got[i].to(float64), want[i], 1e-5, 1e-5));
                CHECK(equal(got[i], single[i]));
            }
        }
    };
    check(
        t, [](const Tensor& a, const Tensor& b, Reduction r) { return huber_loss(a, b, r, 0.8); },
        [](const Tensor& a, const Tensor& b) {
            const Tensor d = abs(a - b);
            return where(d <= 0.8, d * d / 2, 0.8 * (d - 0.4));
        });
    check(
        t, [](const Tensor& a, const Tensor& b, Reduction r) { return smooth_l1_loss(a, b, r, 0.8); },
        [](const Tensor& a, const Tensor& b) {
            const Tensor d = abs(a - b);
            return where(d < 0.8, d * d / 1.6, d - 0.4);
        });
    check(
        p, [](const Tensor& a, const Tensor& b, Reduction r) { return binary_cross_entropy_with_logits(a, b, {}, {}, r); },
        [](const Tensor& a, const Tensor& b) { return -(b * log(sigmoid(a)) + (1 - b) * log(sigmoid(-a))); });
    const Tensor far = tensor({1000.0f, -1000.0f});
    CHECK(binary_cross_entropy_with_logits(far, tensor({0.0f, 1.0f}), {}, {}, Reduction::none).to_vector<float>() == std::vector<float>{1000, 1000});
    CHECK(binary_cross_entropy_with_logits(far, tensor({1.0f, 0.0f}), {}, {}, Reduction::sum).item() == 0);
}

TEST_CASE("losses refuse operands that only together have the result's shape") {
    const Tensor column = rand({4, 1}), row = rand({4});
    FAILS(ShapeError, "mse_loss: the input has shape (4, 1), the target has (4,), and together they would be (4, 4)", mse_loss(column, row));
    FAILS(ShapeError, "huber_loss: the input has shape (4,)", huber_loss(row, column));
    FAILS(ShapeError, "binary_cross_entropy_with_logits: the input has shape (4, 1), the target has (4,)",
          binary_cross_entropy_with_logits(column, row));
    FAILS(ShapeError, "binary_cross_entropy_with_logits: the input has shape (4,), the target has ()",
          binary_cross_entropy_with_logits(row, tensor(1.0)));
    CHECK(mse_loss(row, tensor(0.5)).dim() == 0);
}
