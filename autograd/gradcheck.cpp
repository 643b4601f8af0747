// Checks gradients against finite differences.
#include "tapir/autograd/gradcheck.h"

#include <algorithm>
#include <cmath>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"

namespace tapir {
namespace {

using Fn = std::function<Tensor(const std::vector<Tensor>&)>;

// A fixed weighting of outputs, which makes a scalar of them in which no two elements can cancel.
double weight(std::int64_t i) { return 0.5 + std::fmod(static_cast<double>(i) * 0.6180339887498949, 1.0); }

Tensor weights_like(const Tensor& y) {
    Tensor w = detail::make_empty(y.shape(), float64, y.device(), Loc{});
    for (std::int64_t i = 0; i < w.numel(); ++i) w.data<double>()[i] = weight(i);
    return w;
}

double weighted_sum(const Tensor& y) {
    double sum = 0;
    const std::vector<double> values = y.to_vector<double>();
    for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * weight(static_cast<std::int64_t>(i));
    return sum;
}

std::vector<Tensor> leaves_of(const std::vector<Tensor>& inputs, const Loc& loc) {
    std::vector<Tensor> leaves;
    for (const Tensor& x : inputs) {
        if (!x.defined()) detail::fail_undefined("gradcheck", loc);
        if (is_floating(x.dtype()) && x.dtype() != float64) {
            fail<DTypeError>(loc, "gradcheck: inputs must be float64 for differences to mean anything, got {}", name(x.dtype()));
        }
        const NoGradScope pause;
        leaves.push_back(x.clone());
        if (is_floating(x.dtype())) leaves.back().requires_grad_();
    }
    return leaves;
}

// d(weighted sum of fn)/d(each input), by fn's own gradient.
std::vector<Tensor> analytic(const Fn& fn, const std::vector<Tensor>& leaves, const std::vector<Tensor>& wanted, bool create_graph, const Loc& loc) {
    Tape tape({}, loc);
    const Tensor y = fn(leaves);
    if (y.defined() && !is_floating(y.dtype())) {
        fail<DTypeError>(loc, "gradcheck: the function gives {}, which has no gradients", name(y.dtype()));
    }
    if (!y.requires_grad()) {
        std::vector<Tensor> zeros;
        for (const Tensor& x : wanted) zeros.push_back(Tensor(detail::make_empty_like(x.impl(), float64, Loc{})).zero_());
        return zeros;
    }
    return tape.gradient(y, wanted, {.gradient = weights_like(y), .create_graph = create_graph}, loc);
}

// An element whose gradient and difference quotient differ by more than allowed.
struct Disagreement {
    std::size_t input;
    Shape shape;
    std::int64_t element;
    double gradient, quotient;

    // A nan is off by more than any number.
    double off() const { return std::isnan(gradient - quotient) ? HUGE_VAL : std::abs(gradient - quotient); }
};

std::size_t number_of(const Tensor& x, const std::vector<Tensor>& leaves) {
    return static_cast<std::size_t>(std::find_if(leaves.begin(), leaves.end(), [&](const Tensor& leaf) { return leaf.is_same(x); }) - leaves.begin());
}

// "(1, 2)" in row-major order.
std::string position(std::int64_t element, const Shape& shape) {
    Shape at = shape;
    for (int d = shape.rank(); d-- > 0;) {
        at.raw(d) = element % shape.raw(d);
        element /= shape.raw(d);
    }
    return fmt::format("{}", at);
}

// The factor by which all of them are off; 0 if there is none.
double common_factor(const std::vector<Disagreement>& found) {
    const double factor = found[0].gradient / found[0].quotient;
    for (const Disagreement& d : found) {
        if (!(std::abs(d.gradient - factor * d.quotient) <= 1e-4 * std::abs(d.gradient))) return 0;
    }
    return factor;
}

// Drops the sign of nan.
double unsigned_nan(double x) { return std::isnan(x) ? NAN : x; }

std::string report(std::vector<Disagreement>& found, std::int64_t compared) {
    if (found.empty()) return "";
    constexpr std::size_t kShown = 10;
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.off() > b.off(); });
    std::string text = fmt::format("{} of {} elements disagree", found.size(), compared);
    for (std::size_t i = 0; i < std::min(found.size(), kShown); ++i) {
        const Disagreement& d = found[i];
        text += fmt::format("\n  input {} of shape {}, element {}: gradient {:.9g}, difference quotient {:.9g}, off by {:.3g}", d.input, d.shape,
                            position(d.element, d.shape), unsigned_nan(d.gradient), unsigned_nan(d.quotient), unsigned_nan(d.gradient - d.quotient));
    }
    if (found.size() > kShown) text += fmt::format("\n  and {} more that are off by less", found.size() - kShown);
    if (const double factor = common_factor(found); factor != 0 && found.size() > 1) {
        text += fmt::format("\n  each gradient is {:.4g} times its difference quotient", factor);
    }
    return text;
}

GradcheckResult check(const char* called, const Fn& fn, const std::vector<Tensor>& inputs, const GradcheckOptions& options, const Loc& loc) {
    if (!fn) fail<ValueError>(loc, "{}: the function is null", called);
    const std::vector<Tensor> leaves = leaves_of(inputs, loc);
    std::vector<Tensor> wanted;
    for (const Tensor& x : leaves) {
        if (x.requires_grad()) wanted.push_back(x);
    }
    if (wanted.empty()) fail<ValueError>(loc, "{}: none of the {} inputs is floating, and only such have gradients", called, inputs.size());
    const std::vector<Tensor> gradients = analytic(fn, leaves, wanted, false, loc);
    const NoGradScope pause;
    std::vector<Disagreement> found;
    std::int64_t compared = 0;
    for (std::size_t k = 0; k < wanted.size(); ++k) {
        const Tensor& x = wanted[k];
        const std::vector<double> have = gradients[k].to_vector<double>();
        for (std::int64_t i = 0; i < x.numel(); ++i) {
            double& element = x.data<double>()[i];  // a clone is contiguous
            const double before = element;
            element = before + options.eps;
            const double above = weighted_sum(fn(leaves));
            element = before - options.eps;
            const double below = weighted_sum(fn(leaves));
            element = before;
            const double numeric = (above - below) / (2 * options.eps);
            const double analytic_value = have[static_cast<std::size_t>(i)];
            ++compared;
            if (std::abs(analytic_value - numeric) <= options.atol + options.rtol * std::abs(numeric)) continue;
            found.push_back({number_of(x, leaves), x.shape(), i, analytic_value, numeric});
        }
    }
    const GradcheckResult result{found.empty(), report(found, compared)};
    if (!result.ok && options.raise_exception) fail<ValueError>(loc, "{}: {}", called, result.message);
    return result;
}

}  // namespace

GradcheckResult gradcheck(const Fn& fn, const std::vector<Tensor>& inputs, const GradcheckOptions& options, Loc loc) {
    const detail::CallLine call(loc);
    return check("gradcheck", fn, inputs, options, loc);
}

GradcheckResult gradgradcheck(const Fn& fn, const std::vector<Tensor>& inputs, const GradcheckOptions& options, Loc loc) {
    const detail::CallLine call(loc);
    if (!fn) fail<ValueError>(loc, "gradgradcheck: the function is null");
    // The function to check: all first gradients of fn, in one vector.
    const Fn first = [&fn, loc](const std::vector<Tensor>& x) {
        std::vector<Tensor> wanted;
        for (const Tensor& t : x) {
            if (t.requires_grad()) wanted.push_back(t);
        }
        const std::vector<Tensor> gradients = analytic(fn, x, wanted, true, loc);
        std::vector<Tensor> flat;
        for (const Tensor& g : gradients) flat.push_back(g.reshape({g.numel()}));
        return gradient_ops::concatenate(flat);
    };
    return check("gradgradcheck", first, inputs, options, loc);
}

}  // namespace tapir
