// Tape::per_example_gradients: one pass gives what a pass for each loss gives. And gradient_by_use of groups.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "../fails.h"
#include "../numbers.h"
#include "tapir/core/fiber_impl.h"
#include "tapir/tapir.h"

using namespace tapir;
using tapir::test::numbers;

namespace {

// Counts the rules that run.
struct Passes {
    int count = 0;
    Tensor watch(const Tensor& x) {
        Tensor copy = x * 1;
        copy.register_hook([this](const Tensor& g) {
            ++count;
            return g;
        });
        return copy;
    }
};

// x^3 scale, for one tensor or a block of them that share the scale; the scale's gradient comes by rows, or summed.
template <bool is_summed>
struct ScaledCube : Function<ScaledCube<is_summed>> {
    using Batched = ScaledCube;
    static constexpr std::uint64_t shared_in_batch = 0b10;
    static Tensor forward(FunctionContext& context, const Tensor& x, const Tensor& scale) {
        context.save({x, scale});
        return x * x * x * scale;
    }
    static std::pair<Tensor, Tensor> backward(FunctionContext& context, const Tensor& g) {
        const Tensor x = context.saved(0), scale = context.saved(1), of_scale = g * x * x * x;
        return {g * 3 * x * x * scale, is_summed && of_scale.dim() > scale.dim() ? of_scale.sum(0) : of_scale};
    }
};

void check_each(Tape& tape, const std::vector<Tensor>& losses, const std::vector<Tensor>& parameters) {
    const std::vector<Tensor> together = tape.per_example_gradients(losses, parameters);
    REQUIRE(together.size() == parameters.size());
    for (std::size_t k = 0; k < parameters.size(); ++k) {
        Shape shape = parameters[k].shape();
        shape.insert(0, static_cast<std::int64_t>(losses.size()));
        REQUIRE(together[k].shape() == shape);
        for (std::size_t i = 0; i < losses.size(); ++i) {
            const Tensor wanted = tape.gradient(losses[i], parameters[k], {.retain_graph = true});
            INFO("loss " << i << ", parameter " << k << ": " << together[k][static_cast<std::int64_t>(i)].str() << ", wanted " << wanted.str());
            CHECK(allclose(together[k][static_cast<std::int64_t>(i)], wanted, 1e-10, 1e-10));
        }
    }
}

}  // namespace

TEST_CASE("gradients of each example of a linear model are what they are by hand") {
    manual_seed(1);
    const Tensor w = randn({2, 3}, float64).requires_grad_(), bias = randn({2}, float64).requires_grad_(), x = randn({5, 3}, float64);
    Tape tape;
    const std::vector<Tensor> losses = batch(numbers(5), [&](int n) { return square(linear(x[n], w, bias)).sum(); });
    const std::vector<Tensor> each = tape.per_example_gradients(losses, {w, bias});
    for (int n = 0; n < 5; ++n) {
        const Tensor y = 2 * (matmul(w, x[n]) + bias);
        CHECK(allclose(each[0][n], outer(y, x[n]), 1e-12, 1e-12));
        CHECK(allclose(each[1][n], y, 1e-12, 1e-12));
    }
    tape.backward(sum(stack(losses)));  // the records are still there
    CHECK(allclose(w.grad(), each[0].sum(0), 1e-12, 1e-12));
}

TEST_CASE("gradients of each example, for parameters of every kind of op") {
    manual_seed(2);
    const auto leaf = [](const Shape& shape) { return randn(shape, float64).requires_grad_(); };
    const Tensor table = leaf({7, 4}), w = leaf({4, 4}), bias = leaf({4}), scale = leaf({4}), shift = leaf({4}), m = leaf({4, 4}), v = leaf({4});
    const Tensor filter = leaf({2, 1, 3}), filter_bias = leaf({2}), gain = leaf({4}), number = leaf({});
    const std::vector<Tensor> parameters = {table, w, bias, scale, shift, m, v, filter, filter_bias, gain, number};
    const auto loss_of = [&](int n) {
        Tensor h = embedding(tensor({n % 7, (3 * n) % 7}), table, 3);
        h = tanh(linear(h, w, bias)) * number;
        h = layer_norm(h, {4}, scale, shift) + rms_norm(h, {4}, gain);
        if (n % 3 == 0) h = matmul(h, m) * scale;  // not all do the same
        h = h.sum(0);
        const Tensor c = conv1d(reshape(h, {1, 4}), filter, filter_bias);
        return dot(h, v) + square(c).sum() + matmul(m, h).sum();
    };
    for (const bool together : {true, false}) {
        Tape tape({.persistent = true});
        const std::vector<Tensor> losses = batch(numbers(9), loss_of, {.together = together});
        check_each(tape, losses, parameters);
        const std::vector<Tensor> some = {losses[7], losses[2]};
        check_each(tape, some, {w, m, table});
    }
}

TEST_CASE("gradients of each example take one pass where items do not mix, and are right where they do") {
    manual_seed(3);
    const Tensor w = randn({3, 3}, float64).requires_grad_(), start = randn({3}, float64).requires_grad_();
    Tape tape({.persistent = true});
    Passes passes;
    const std::vector<Tensor> losses = batch(numbers(6), [&](int n) { return tanh(linear(passes.watch(start + n), w)).sum(); });
    static_cast<void>(tape.per_example_gradients(losses, {w, start}));
    CHECK(passes.count == 6);  // once for each item
    check_each(tape, losses, {w, start});

    const Tensor shared = tanh(start);  // outside of all items
    check_each(tape, batch(numbers(6), [&](int n) { return (linear(shared, w) * n).sum(); }), {w, start});

    Tensor first;  // made by one item, used by all
    const std::vector<Tensor> mixed = batch(numbers(6), [&](int n) {
        const Tensor h = tanh(linear(start * (n + 1), w));
        if (n == 0) first = h;
        return (linear(h, w) * first).sum();
    });
    check_each(tape, mixed, {w, start});

    check_each(tape, {losses[1], mixed[1]}, {w});                          // of two batches
    check_each(tape, {losses[1], losses[1]}, {w});                         // twice the same
    check_each(tape, {(w * 2).sum(), (w * start).sum()}, {w, start});      // of none
    check_each(tape, {losses[0] + losses[1], losses[2] * 1}, {w, start});  // computed with afterwards
    check_each(tape, losses, {w, start, w});
    const Tensor by_function = per_example_gradients(losses, {w})[0];
    CHECK(allclose(by_function, tape.per_example_gradients(losses, {w})[0], 0, 0));
}

TEST_CASE("gradients of each example for weights of batch_norm and group_norm take one pass") {
    manual_seed(6);
    const auto leaf = [](const Shape& shape) { return randn(shape, float64).requires_grad_(); };
    Tensor weight = leaf({4}), bias = leaf({4});
    const Tensor mean = randn({4}, float64), var = rand({4}, float64) + 0.5;
    for (const Shape& shape : {Shape{2, 4}, Shape{2, 4, 3}, Shape{1, 4, 5, 4}, Shape{3, 4, 4, 4}}) {
        const Tensor x = randn({5, shape.numel()}, float64), target = randn(shape, float64);
        for (int which = 0; which < 6; ++which) {
            INFO("shape " << Shape(shape).str() << ", call " << which);
            const auto loss_of = [&](int n) {
                const Tensor own = reshape(x[n], shape), w = which % 3 == 1 ? Tensor() : weight, shift = which % 3 == 2 ? Tensor() : bias;
                return sum(square((which < 3 ? batch_norm(own, mean, var, w, shift) : group_norm(own, 2, w, shift)) - target));
            };
            std::vector<Tensor> wanted;  // one after the other, without batch()
            for (int n = 0; n < 5; ++n) {
                Tape tape;
                weight.zero_grad();
                bias.zero_grad();
                tape.backward(loss_of(n));
                for (const Tensor& parameter : {weight, bias}) {
                    wanted.push_back(parameter.grad().defined() ? parameter.grad().clone() : zeros({4}, float64));
                }
            }
            Tape tape({.persistent = true});
            Passes passes;
            const std::vector<Tensor> losses = batch(numbers(5), [&](int n) { return passes.watch(loss_of(n)); });
            const std::vector<Tensor> each = tape.per_example_gradients(losses, {weight, bias});
            CHECK(passes.count == 5);  // once for each item
            check_each(tape, losses, {weight, bias});
            for (int n = 0; n < 5; ++n) {
                CHECK(allclose(each[0][n], wanted[static_cast<std::size_t>(2 * n)], 1e-10, 1e-10));
                CHECK(allclose(each[1][n], wanted[static_cast<std::size_t>(2 * n + 1)], 1e-10, 1e-10));
            }
        }
    }
}

TEST_CASE("gradients of each example for custom functions of groups") {
    manual_seed(8);
    const Tensor scale = randn({3}, float64).requires_grad_(), x = randn({6, 3}, float64);
    const auto passes_with = [&](const auto& cube) {
        Tape tape({.persistent = true});
        Passes passes;
        const std::vector<Tensor> losses = batch(numbers(6), [&](int n) { return passes.watch(square(cube(x[n] + 1)).sum()); });
        static_cast<void>(tape.per_example_gradients(losses, {scale}));
        const int count = passes.count;
        check_each(tape, losses, {scale});
        return count;
    };
    CHECK(passes_with([&](const Tensor& t) { return ScaledCube<false>::apply(t, scale); }) == 6);
    const int when_summed = passes_with([&](const Tensor& t) { return ScaledCube<true>::apply(t, scale); });
    CHECK(when_summed == (detail::has_fibers() ? 12 : 6));
}

TEST_CASE("gradients of each example through forks and trees of different shapes") {
    manual_seed(4);
    const nn::NaryTreeLSTMCell cell(3, 4, 2);
    const std::vector<Tensor> parameters = {cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh};
    const auto encode = [&](int size, const auto& self) -> LSTMState {
        if (size < 2) return cell(full({3}, 0.1 * size));
        const std::vector<int> parts = {size / 2, size - size / 2 - 1};
        const std::vector<LSTMState> states = batch(parts, [&](int part) { return self(part, self); });
        return cell(states[0], states[1]);
    };
    Tape tape({.persistent = true});
    const std::vector<Tensor> losses = batch(numbers(12), [&](int n) { return square(encode(1 + n % 5, encode).h).sum(); });
    const std::vector<Tensor> each = tape.per_example_gradients(losses, parameters);
    for (std::size_t k = 0; k < parameters.size(); ++k) {
        for (std::int64_t i = 0; i < 12; ++i) {
            CHECK(allclose(each[k][i], tape.gradient(losses[static_cast<std::size_t>(i)], parameters[k]), 1e-5, 1e-6));
        }
    }
}

TEST_CASE("gradients of each example refuse what has none") {
    const Tensor w = ones({2}).requires_grad_();
    Tape tape;
    const Tensor loss = (w * 2).sum();
    FAILS(ValueError, "per_example_gradients: there is no loss", tape.per_example_gradients({}, {w}));
    FAILS(ShapeError, "per_example_gradients: a loss must have one element, got shape (2,)", tape.per_example_gradients({w * 2}, {w}));
    FAILS(ShapeError, "per_example_gradients: the losses have shapes () and (1,)", tape.per_example_gradients({loss, loss.reshape({1})}, {w}));
    FAILS(ValueError, "per_example_gradients: the tensor is undefined", tape.per_example_gradients({loss, Tensor()}, {w}));
    CHECK_THROWS_AS(tape.per_example_gradients({loss}, {ones({2})}), TapeError);
    CHECK_THROWS_AS(tape.per_example_gradients({ones({})}, {w}), TapeError);
}

TEST_CASE("uses of a weight in groups are those of each item, with its line") {
    manual_seed(5);
    const Tensor w = randn({3, 3}, float64).requires_grad_(), x = randn({4, 3}, float64);
    Tape tape({.persistent = true});
    int first_line = 0, second_line = 0;
    const std::vector<Tensor> losses = batch(numbers(4), [&](int n) {
        Tensor h = x[n];
        if (n % 2 == 0) {
            first_line = __LINE__ + 1;
            h = linear(h, w);
        } else {
            second_line = __LINE__ + 1;
            h = linear(h, w);
        }
        return square(h).sum();
    });
    const std::vector<GradientUse> uses = tape.gradient_by_use(sum(stack(losses)), w);
    REQUIRE(uses.size() == 4);
    for (int n = 0; n < 4; ++n) {
        const GradientUse& use = uses[static_cast<std::size_t>(n)];
        CHECK(use.op == std::string("linear"));
        CHECK(static_cast<int>(use.loc.line()) == (n % 2 == 0 ? first_line : second_line));
        CHECK(allclose(use.gradient, outer(2 * matmul(w, x[n]), x[n]), 1e-12, 1e-12));
    }
}
