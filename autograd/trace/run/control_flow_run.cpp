// Runs cond, while_loop and scan with their parts as plans (runner_impl.h): results of the ops of a step lie in memory that was laid out once,
// and a step allocates nothing.
#include <algorithm>

#include "tapir/autograd/trace/control_flow_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/autograd/trace/turn_bound_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/shapes_only_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir::detail {
namespace {

constinit thread_local TurnBound* innermost_bound = nullptr;

// Tensors; a few need no malloc.
class List {
 public:
    explicit List(std::size_t count) : count_(count) {
        if (count > kFew) many_.resize(count);
    }
    Tensor* data() noexcept { return count_ > kFew ? many_.data() : few_; }
    Tensor& operator[](std::size_t i) noexcept { return data()[i]; }
    std::vector<Tensor> copy(std::size_t count) { return {data(), data() + count}; }

 private:
    static constexpr std::size_t kFew = 16;
    std::size_t count_;
    Tensor few_[kFew];
    std::vector<Tensor> many_;
};

Tensor slice_at(const Tensor& x, std::int64_t at) {
    const TensorImpl* t = x.impl();
    return make_view(t, t->rank - 1, t->sizes + 1, t->strides + 1, at * t->strides[0]);
}

// A tensor for as many values as there are steps, stacked.
Tensor stack_of(const Tensor& like, std::int64_t steps) {
    Shape shape{steps};
    for (const std::int64_t size : like.shape()) shape.push_back(size);
    return make_empty(shape, like.dtype(), like.device(), Loc{});
}

// The tensors carried into the steps of a loop, stacked; grows as steps come.
class Kept {
 public:
    explicit Kept(std::size_t count) : lists_(count) {}
    void add(List& carried) {
        for (std::size_t i = 0; i < lists_.size(); ++i) {
            if (steps_ == room_) grow(lists_[i], carried[i]);
            slice_at(lists_[i], steps_).copy_(carried[i]);
        }
        if (steps_ == room_) room_ = next_room();
        ++steps_;
    }
    Tensor take(std::size_t i, const Tensor& like) const {
        if (steps_ == 0) return stack_of(like, 0);
        return lists_[i].narrow(0, 0, steps_).clone();
    }

 private:
    std::vector<Tensor> lists_;
    std::int64_t steps_ = 0, room_ = 0;
    std::int64_t next_room() const noexcept { return room_ == 0 ? 8 : 2 * room_; }
    void grow(Tensor& list, const Tensor& like) const {
        Tensor more = stack_of(like, next_room());
        if (list.defined()) more.narrow(0, 0, steps_).copy_(list);
        list = more;
    }
};

// Results must be tensors of their own: neither operands nor views of them.
void own_results(const FormCall& x, Tensor* results, std::size_t count) {
    for (std::size_t k = 0; k < count; ++k) {
        const auto is_given = [&](const Tensor* t) { return t->shares_storage(results[k]); };
        const bool is_other = std::any_of(results, results + k, [&](const Tensor& t) { return t.is_same(results[k]); });
        if (is_other || std::any_of(x.inputs, x.inputs + x.count, is_given)) results[k] = results[k].clone();
    }
}

}  // namespace

TurnBound::TurnBound(std::int64_t turns) noexcept : most_(turns), left_(turns), outer_(innermost_bound) { innermost_bound = this; }
TurnBound::~TurnBound() { innermost_bound = outer_; }

void TurnBound::count_turn(const Loc& loc, std::int64_t turns) {
    for (TurnBound* bound = innermost_bound; bound; bound = bound->outer_) {
        bound->left_ -= turns;
        if (bound->left_ >= 0) continue;
        bound->left_ = 0;
        fail<ValueError>(loc, "while_loop: on numbers that are made up it did not end within {} turns", bound->most_);
    }
}

bool TurnBound::take_turn(const Loc& loc) {
    if (shapes_only) {
        for (const TurnBound* bound = innermost_bound; bound; bound = bound->outer_) {
            if (bound->left_ == 0) return false;
        }
    }
    count_turn(loc);
    return true;
}

void run_planned(const FormCall& x, const CondAttrs& a, Tensor* results) {
    const bool takes_then = is_true("cond", x[0], Loc{});
    const Graph& branch = takes_then ? *a.then_branch : *a.else_branch;
    run_in_order(branch, x.inputs + (takes_then ? 1 : 1 + a.then_branch->inputs().size()), results, Loc{});
    own_results(x, results, branch.outputs().size());
}

void run_planned(const FormCall& x, const WhileAttrs& a, Tensor* results) {
    const std::size_t carries = a.body->outputs().size(), middle = a.condition->inputs().size();
    List now(carries), next(carries);
    Given test_given(middle), body_given(a.body->inputs().size());
    for (std::size_t i = 0; i < carries; ++i) {
        now[i] = *x.inputs[i];
        test_given.data[i] = body_given.data[i] = &now[i];
    }
    std::copy(x.inputs + carries, x.inputs + middle, test_given.data + carries);
    std::copy(x.inputs + middle, x.inputs + x.count, body_given.data + carries);
    Kept kept(a.keep_steps ? carries : 0);
    Tensor test;
    while (run_in_order(*a.condition, test_given.data, &test, Loc{}), is_true("while_loop", test, Loc{})) {
        if (!TurnBound::take_turn(Loc{})) break;
        if (a.keep_steps) kept.add(now);
        test = Tensor();
        run_in_order(*a.body, body_given.data, next.data(), Loc{});
        for (std::size_t i = 0; i < carries; ++i) {
            if (!are_alike(now[i], next[i])) check_carried("while_loop", now.copy(carries), next.copy(carries), Loc{});
            now[i].swap(next[i]);
        }
        for (std::size_t i = 0; i < carries; ++i) next[i] = Tensor();
    }
    for (std::size_t i = 0; i < carries; ++i) {
        if (a.keep_steps) results[carries + i] = kept.take(i, now[i]);
        results[i] = std::move(now[i]);
    }
    own_results(x, results, carries);
}

void run_planned(const FormCall& x, const ScanAttrs& a, Tensor* results) {
    const auto carries = static_cast<std::size_t>(a.carries), xs = static_cast<std::size_t>(a.xs), made = a.body->outputs().size();
    const Tensor* const* slices_of = x.inputs + carries;
    const std::int64_t length = slices_of[0]->size(0);
    List now(carries), slices(xs), next(made);
    Given given(a.body->inputs().size());
    for (std::size_t i = 0; i < carries; ++i) {
        now[i] = *x.inputs[i];
        given.data[i] = &now[i];
    }
    for (std::size_t k = 0; k < xs; ++k) given.data[carries + k] = &slices[k];
    std::copy(x.inputs + carries + xs, x.inputs + x.count, given.data + carries + xs);
    List stacks(made - carries), steps(a.keep_steps ? carries : 0);
    for (std::size_t i = 0; a.keep_steps && i < carries; ++i) steps[i] = stack_of(now[i], length);
    const auto step = [&] {
        run_in_order(*a.body, given.data, next.data(), Loc{});
        for (std::size_t i = 0; i < carries; ++i) {
            if (!are_alike(now[i], next[i])) check_carried("scan", now.copy(carries), next.copy(made), Loc{});
        }
    };
    if (length == 0) {  // no step tells the outputs
        for (std::size_t k = 0; k < xs; ++k) slices[k] = slice_of_none(*slices_of[k]);
        step();
        for (std::size_t k = carries; k < made; ++k) stacks[k - carries] = stack_of(next[k], 0);
    }
    for (std::int64_t t = 0; t < length; ++t) {
        const std::int64_t at = a.reverse ? length - 1 - t : t;
        for (std::size_t k = 0; k < xs; ++k) slices[k] = slice_at(*slices_of[k], at);
        for (std::size_t i = 0; a.keep_steps && i < carries; ++i) slice_at(steps[i], at).copy_(now[i]);
        step();
        for (std::size_t k = carries; k < made; ++k) {
            Tensor& stack = stacks[k - carries];
            if (t == 0) stack = stack_of(next[k], length);
            Tensor place = slice_at(stack, at);
            if (!are_alike(place, next[k])) {
                fail<ShapeError>(Loc{}, "scan: output {} has shape {}, and {} before", k - carries, next[k].shape(), place.shape());
            }
            place.copy_(next[k]);
            next[k] = Tensor();
        }
        for (std::size_t i = 0; i < carries; ++i) {
            now[i].swap(next[i]);
            next[i] = Tensor();
        }
    }
    for (std::size_t i = 0; i < carries; ++i) results[i] = std::move(now[i]);
    for (std::size_t k = carries; k < made; ++k) results[k] = std::move(stacks[k - carries]);
    for (std::size_t i = 0; a.keep_steps && i < carries; ++i) results[made + i] = std::move(steps[i]);
    own_results(x, results, carries);
}

}  // namespace tapir::detail
