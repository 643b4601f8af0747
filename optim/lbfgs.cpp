// L-BFGS.
#include "tapir/optim/lbfgs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/watch/profiler.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/state_reader_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"
#include "tapir/optim/rule_impl.h"

namespace tapir::optim {

namespace {

struct LBFGSRule : Rule<LBFGSOptions> {
    static constexpr const char* name = "LBFGS";
    static constexpr OptimizerOption options[] = {
        option<&Options::lr>("lr", Domain::not_negative),
        option<&Options::max_iter>("max_iter", Domain::at_least_one),
        option<&Options::max_eval>("max_eval"),
        option<&Options::tolerance_grad>("tolerance_grad", Domain::limit),
        option<&Options::tolerance_change>("tolerance_change", Domain::limit),
        option<&Options::history_size>("history_size", Domain::at_least_one),
        option<&Options::line_search_fn>("line_search_fn"),
    };
};

DType computed_in(const std::vector<Tensor>& parameters) {
    const auto is_double = [](const Tensor& p) { return p.dtype() == float64; };
    return std::any_of(parameters.begin(), parameters.end(), is_double) ? float64 : float32;
}

// Does not use dot(), which an AutocastScope would run in 16 bits.
double product(const Tensor& a, const Tensor& b) { return sum(a * b).item(); }
double largest(const Tensor& x) { return x.numel() ? max(abs(x)).item() : 0; }
}  // namespace

constinit const OptimizerRule LBFGSOptions::rule = rule_of<LBFGSRule>;

// --- Positions and gradients of all parameters as one vector ------------------------------------------------------------------

Tensor LBFGS::flat_gradient() const {
    const detail::UnrecordedParts parts;
    const std::vector<Tensor> all = parameters();
    std::vector<Tensor> flat;
    for (const Tensor& p : all) {
        const Tensor g = p.grad();
        flat.push_back((g.defined() ? g : zeros_like(p)).reshape({-1}).to(computed_in(all)));
    }
    return cat(flat);
}

Tensor LBFGS::flat_position() const {
    const detail::UnrecordedParts parts;
    const std::vector<Tensor> all = parameters();
    std::vector<Tensor> flat;
    for (const Tensor& p : all) flat.push_back(p.detach().reshape({-1}).to(computed_in(all)));
    return cat(flat);
}

void LBFGS::move_to(const Tensor& position, const Loc& loc) const {
    const detail::UnrecordedParts parts;
    std::int64_t begin = 0;
    for (Tensor p : parameters()) {
        if (p.requires_grad()) p.copy_(position.narrow(0, begin, p.numel()).reshape(p.shape()), loc);
        begin += p.numel();
    }
}

// --- The direction ----------------------------------------------------------------------------------------------------------

// Returns -H g, by the two loops of algorithm 7.4 of Nocedal and Wright.
Tensor LBFGS::direction(const Tensor& gradient) {
    const detail::UnrecordedParts parts;
    if (iterations_ == 1) {
        history_.clear();
        scale_ = 1;
        return -gradient;
    }
    const Tensor y = gradient - gradient_, s = direction_ * step_size_;
    if (const double ys = product(y, s); ys > 1e-10) {  // otherwise the curvature is not positive and would spoil the estimate
        if (history_.size() >= static_cast<std::size_t>(options().history_size)) history_.erase(history_.begin());
        history_.push_back({y, s, 1 / ys});
        scale_ = ys / product(y, y);
    }
    Tensor d = -gradient;
    std::vector<double> along(history_.size());
    for (std::size_t i = history_.size(); i-- > 0;) {
        along[i] = product(history_[i].position, d) * history_[i].rho;
        d = d - history_[i].gradient * along[i];
    }
    d = d * scale_;
    for (std::size_t i = 0; i < history_.size(); ++i) {
        d = d + history_[i].position * (along[i] - product(history_[i].gradient, d) * history_[i].rho);
    }
    return d;
}

// --- The line search --------------------------------------------------------------------------------------------------------

// A step along the direction, with the loss and slope there.
struct LBFGS::Point {
    double step = 0, loss = 0, slope = 0;
    Tensor gradient;
};

// Searches along a direction for a point that satisfies the strong Wolfe conditions.
class LBFGS::Line {
 public:
    Line(LBFGS& owner, const std::function<Tensor()>& closure, const Tensor& start, const Tensor& direction, const Point& zero, const Loc& loc)
        : owner_(owner), closure_(closure), start_(start), direction_(direction), zero_(zero), loc_(loc) {}

    /// The parameters stay at the point that was evaluated last.
    Point at(double step) {
        {
            const detail::UnrecordedParts parts;
            owner_.move_to(start_ + direction_ * step, loc_);
        }
        ++evaluations_;
        Point p{step, closure_().item(), 0, owner_.flat_gradient()};
        p.slope = product(p.gradient, direction_);
        return p;
    }

    Point search(double first, double tolerance_change) {
        double before_step = 0;
        Point before = zero_, now = at(first);
        int round = 0;
        for (; round < kMost; ++round) {
            if (is_too_high(now) || (round > 1 && now.loss >= before.loss)) return zoom(before, now, round, tolerance_change);
            if (is_flat(now)) return now;
            if (now.slope >= 0) return zoom(before, now, round, tolerance_change);
            const double low = now.step + 0.01 * (now.step - before_step), high = now.step * 10;
            const double next = lowest_of_cubic(before, now, low, high);
            before_step = now.step;
            before = std::exchange(now, at(next));
        }
        return zero_.loss <= now.loss ? zero_ : now;
    }
    int evaluations() const noexcept { return evaluations_; }

 private:
    static constexpr int kMost = 25;                             // evaluations
    static constexpr double kDecrease = 1e-4, kCurvature = 0.9;  // c1 and c2 of the conditions

    bool is_too_high(const Point& p) const { return !(p.loss <= zero_.loss + kDecrease * p.step * zero_.slope); }  // nan is
    bool is_flat(const Point& p) const { return std::abs(p.slope) <= -kCurvature * zero_.slope; }

    // Returns the minimum, within bounds, of the cubic through two points with their slopes: equation 3.59.
    static double lowest_of_cubic(const Point& a, const Point& b, double low, double high) {
        const Point &left = a.step <= b.step ? a : b, &right = a.step <= b.step ? b : a;
        const double d1 = left.slope + right.slope - 3 * (left.loss - right.loss) / (left.step - right.step);
        const double square = d1 * d1 - left.slope * right.slope;
        if (!(square >= 0)) return (low + high) / 2;
        const double d2 = std::sqrt(square);
        const double lowest = right.step - (right.step - left.step) * ((right.slope + d2 - d1) / (right.slope - left.slope + 2 * d2));
        return std::isfinite(lowest) ? std::clamp(lowest, low, high) : (low + high) / 2;
    }

    // Narrows the interval between two points, one of which is lower than all seen, until one satisfies the conditions.
    Point zoom(const Point& a, const Point& b, int round, double tolerance_change) {
        Point low = a, high = b;
        if (!(a.loss <= b.loss) && !std::isnan(b.loss)) std::swap(low, high);
        const double size = largest(direction_);
        bool was_near_an_end = false;
        for (; round < kMost; ++round) {
            const double left = std::min(low.step, high.step), right = std::max(low.step, high.step);
            if ((right - left) * size < tolerance_change) break;
            double step = lowest_of_cubic(low, high, left, right);
            // Two steps near an end of the interval are little progress: then it takes a point a tenth away from that end.
            const double margin = 0.1 * (right - left);
            const bool is_near = std::min(right - step, step - left) < margin;
            if (is_near && (was_near_an_end || step >= right || step <= left)) {
                step = std::abs(step - right) < std::abs(step - left) ? right - margin : left + margin;
                was_near_an_end = false;
            } else {
                was_near_an_end = is_near;
            }
            const Point now = at(step);
            if (is_too_high(now) || now.loss >= low.loss) {
                high = now;
                if (high.loss < low.loss) std::swap(low, high);
                continue;
            }
            if (is_flat(now)) return now;
            if (now.slope * (high.step - low.step) >= 0) high = low;
            low = now;
        }
        return low;
    }

    LBFGS& owner_;
    const std::function<Tensor()>& closure_;
    const Tensor &start_, &direction_;
    const Point& zero_;
    const Loc loc_;
    int evaluations_ = 0;
};

// --- The step ---------------------------------------------------------------------------------------------------------------

Tensor LBFGS::step(const std::function<Tensor()>& closure, Loc loc) {
    tapir::detail::check_function("LBFGS.step", closure, loc);
    const tapir::detail::CallLine call(loc);
    check_options(0, loc);
    const ProfileScope scope("LBFGS.step", loc);
    const LBFGSOptions o = options();
    const int most = o.max_eval >= 0 ? o.max_eval : o.max_iter * 5 / 4;
    const Tensor first = closure();
    Point now{0, first.item(loc), 0, flat_gradient()};
    int evaluations = 1;
    ++evaluations_;
    if (largest(now.gradient) <= o.tolerance_grad) return first;
    for (int iteration = 1; iteration <= o.max_iter; ++iteration) {
        ++iterations_;
        direction_ = direction(now.gradient);
        gradient_ = now.gradient;
        step_size_ = o.lr;
        if (iterations_ == 1) step_size_ *= std::min(1.0, 1 / sum(abs(gradient_)).item());
        now.step = 0;
        now.slope = product(gradient_, direction_);
        if (now.slope > -o.tolerance_change) break;
        const double loss_before = now.loss;
        const Tensor start = flat_position();
        Line line(*this, closure, start, direction_, now, loc);
        Point next = now;
        try {
            if (o.line_search_fn == LineSearch::strong_wolfe) {
                next = line.search(step_size_, o.tolerance_change);
                step_size_ = next.step;
            } else if (iteration < o.max_iter) {  // no evaluation after the last iteration
                next = line.at(step_size_);
            }
        } catch (...) {
            move_to(start, loc);
            throw;
        }
        {
            const detail::UnrecordedParts parts;
            move_to(start + direction_ * step_size_, loc);
        }
        evaluations += line.evaluations();
        evaluations_ += line.evaluations();
        now = next;
        if (evaluations >= most || largest(now.gradient) <= o.tolerance_grad) break;
        if (largest(direction_) * std::abs(step_size_) <= o.tolerance_change) break;
        if (iteration < o.max_iter && std::abs(now.loss - loss_before) < o.tolerance_change) break;
    }
    return first;
}

// --- State ------------------------------------------------------------------------------------------------------------------

NamedTensors LBFGS::state_dict(Loc loc) const {
    const CallerScope caller(loc);
    NamedTensors state = Optimizer::state_dict(loc);
    state.push_back({"iterations", number(static_cast<double>(iterations_))});
    state.push_back({"evaluations", number(static_cast<double>(evaluations_))});
    if (iterations_ == 0) return state;
    state.push_back({"step_size", number(step_size_)});
    state.push_back({"scale", number(scale_)});
    state.push_back({"direction", direction_.clone()});
    state.push_back({"gradient", gradient_.clone()});
    for (std::size_t i = 0; i < history_.size(); ++i) {
        state.push_back({fmt::format("history.{}.gradient", i), history_[i].gradient.clone()});
        state.push_back({fmt::format("history.{}.position", i), history_[i].position.clone()});
        state.push_back({fmt::format("history.{}.rho", i), number(history_[i].rho)});
    }
    return state;
}

void LBFGS::load_state_dict(const NamedTensors& state, Loc loc) {
    const CallerScope caller(loc);
    NamedTensors options, own;
    for (const NamedTensor& t : state) (t.name.starts_with("0.") ? options : own).push_back(t);
    const Tensor like = flat_position();
    StateReader reader("LBFGS", own, loc);
    const auto vector = [&](const std::string& name) {
        const Tensor* t = reader.tensor(name, like.shape());
        return t ? t->to(like.dtype()).clone().to(like.device()) : Tensor();
    };
    const std::int64_t iterations = reader.count("iterations"), evaluations = reader.count("evaluations");
    double step_size = 0, scale = 1;
    Tensor direction, gradient;
    std::vector<Change> history;
    if (iterations > 0) {
        step_size = reader.number("step_size");
        scale = reader.number("scale");
        direction = vector("direction");
        gradient = vector("gradient");
        for (std::size_t i = 0; reader.has(fmt::format("history.{}.rho", i)); ++i) {
            history.push_back({vector(fmt::format("history.{}.gradient", i)), vector(fmt::format("history.{}.position", i)),
                               reader.number(fmt::format("history.{}.rho", i))});
        }
    }
    reader.finish();
    Optimizer::load_state_dict(options, loc);
    iterations_ = iterations;
    evaluations_ = evaluations;
    step_size_ = step_size;
    scale_ = scale;
    direction_ = std::move(direction);
    gradient_ = std::move(gradient);
    history_ = std::move(history);
}

}  // namespace tapir::optim
