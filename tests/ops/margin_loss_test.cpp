// CTC against a sum over all paths, and what the losses of margins, distances and distributions refuse or do at their corners. Their
// numbers and derivatives: table_test.cpp.
#include <cmath>
#include <vector>

#include "../nn/check.h"

using namespace tapir;

namespace {

using V = std::vector<double>;

#define THROWS(Type, text, ...)                                                                 \
    do {                                                                                        \
        const std::string said = check::message<Type>([&] { static_cast<void>(__VA_ARGS__); }); \
        CHECK(check::begins(said, "margin_loss_test.cpp:" + std::to_string(__LINE__) + ": "));  \
        CHECK_THAT(said, Catch::Contains(text));                                                \
    } while (false)

// What a path spells: repeats merged, then blanks dropped.
std::vector<std::int64_t> spelled(const std::vector<std::int64_t>& path, std::int64_t blank) {
    std::vector<std::int64_t> result;
    for (std::size_t t = 0; t < path.size(); ++t) {
        if (path[t] != blank && (t == 0 || path[t] != path[t - 1])) result.push_back(path[t]);
    }
    return result;
}

// -log of the sum over all paths of their probability; log_probs (time, classes).
double by_all_paths(const V& log_probs, std::int64_t steps, std::int64_t classes, const std::vector<std::int64_t>& target, std::int64_t blank) {
    double total = 0;
    const auto paths = static_cast<std::int64_t>(std::pow(static_cast<double>(classes), static_cast<double>(steps)) + 0.5);
    for (std::int64_t number = 0; number < paths; ++number) {
        std::vector<std::int64_t> path;
        double log_probability = 0;
        for (std::int64_t t = 0, rest = number; t < steps; ++t, rest /= classes) {
            path.push_back(rest % classes);
            log_probability += log_probs[static_cast<std::size_t>(t * classes + rest % classes)];
        }
        if (spelled(path, blank) == target) total += std::exp(log_probability);
    }
    return -std::log(total);
}

Tensor lengths(const std::vector<std::int64_t>& values) { return tensor(values); }

}  // namespace

TEST_CASE("ctc_loss is the sum over all paths") {
    const Tensor x = check::values({6, 1, 3}, 1);  // not normalised
    const std::vector<std::vector<std::int64_t>> targets = {{}, {1}, {2, 1}, {1, 1}, {1, 2, 1}, {2, 2, 2}, {2, 1, 1, 2}};
    for (const auto& target : targets) {
        for (const std::int64_t steps : {1, 2, 4, 6}) {
            INFO(target.size() << " labels, " << steps << " steps");
            const auto length = static_cast<std::int64_t>(target.size());
            const Tensor t = target.empty() ? zeros({0}, int64) : tensor(target);
            const Tensor loss = ctc_loss(x, t, lengths({steps}), lengths({length}), {.reduction = Reduction::none});
            const double want = by_all_paths(x.to_vector<double>(), steps, 3, target, 0);
            CHECK(loss.shape() == Shape(1));
            if (std::isinf(want)) {
                CHECK(loss.item() == want);
            } else {
                CHECK(loss.item() == Approx(want).epsilon(1e-12));
            }
        }
    }
    // Another blank: the labels are 0 and 1 then.
    const Tensor loss = ctc_loss(x, tensor({0, 1, 0}), lengths({5}), lengths({3}), {.blank = 2});
    CHECK(loss.item() == Approx(by_all_paths(x.to_vector<double>(), 5, 3, {0, 1, 0}, 2) / 3).epsilon(1e-12));
}

TEST_CASE("ctc_loss: one example, padded and joined targets, and no gradient behind the end") {
    const Tensor x = check::values({7, 3, 4}, 2).requires_grad_();
    const Tensor padded = tensor({{1, 2, 3}, {3, -5, 99}, {2, 2, 77}}), joined = tensor({1, 2, 3, 3, 2, 2});
    const Tensor steps = tensor({7, 4, 5}), counts = tensor({3, 1, 2});
    const CTCLossOptions each{.reduction = Reduction::none};
    const V losses = ctc_loss(x, padded, steps, counts, each).to_vector<double>();
    CHECK(ctc_loss(x, joined, steps, counts, each).to_vector<double>() == losses);
    CHECK(ctc_loss(x, joined.to(int32), steps.to(int32), counts.to(int32)).item() ==
          Approx((losses[0] / 3 + losses[1] + losses[2] / 2) / 3).epsilon(1e-12));
    const Tensor one = ctc_loss(x.select(1, 1), tensor({3}), tensor(4), tensor(1), each);
    CHECK(one.shape() == Shape());
    CHECK(one.item() == Approx(losses[1]).epsilon(1e-13));
    Tape tape;
    tape.backward(ctc_loss(x, padded, steps, counts, {.reduction = Reduction::sum}));
    const V behind = x.grad().narrow(0, 4, 3).select(1, 1).to_vector<double>();
    CHECK(behind == V(behind.size(), 0.0));
    // At each step the path is somewhere.
    check::same("sums", sum(x.grad().select(1, 0), {1}), V(7, -1.0), 1e-12);
}

TEST_CASE("ctc_loss of targets that do not fit is infinite, or 0 without a gradient") {
    const Tensor x = check::values({3, 2, 3}, 1).requires_grad_(), steps = tensor({3, 3}), counts = tensor({2, 3});
    const Tensor targets = tensor({{1, 2, 0}, {1, 1, 2}});  // the second needs 4 steps
    const V losses = ctc_loss(x, targets, steps, counts, {.reduction = Reduction::none}).to_vector<double>();
    CHECK(std::isfinite(losses[0]));
    CHECK(losses[1] == INFINITY);
    for (const bool create_graph : {false, true}) {
        Tape tape;
        const Tensor loss = ctc_loss(x, targets, steps, counts, {.reduction = Reduction::sum, .zero_infinity = true});
        CHECK(loss.item() == Approx(losses[0]));
        const Tensor g = tape.gradient(loss, {x}, {.create_graph = create_graph})[0];
        CHECK(norm(g.select(1, 1)).item() == 0);
        CHECK(norm(g.select(1, 0)).item() > 0.1);
        Tape other;
        const Tensor infinite = ctc_loss(x, targets, steps, counts, {.reduction = Reduction::sum});
        const Tensor h = other.gradient(infinite, {x}, {.create_graph = create_graph})[0];
        CHECK(all(isnan(h.select(1, 1))).item<bool>());
        CHECK(equal(h.select(1, 0), g.select(1, 0)));
    }
}

TEST_CASE("ctc_loss hands nan on, and takes what never happens") {
    for (const std::int64_t t : {0, 2, 4}) {
        for (const double bad : {static_cast<double>(NAN), -static_cast<double>(INFINITY)}) {
            for (const int k : {0, 1, 2, 3, 4, 5}) {
                const int c = k % 3;
                const bool create_graph = k >= 3;
                INFO("step " << t << ", class " << c << ": " << bad << (create_graph ? ", recorded" : ""));
                Tensor x = check::values({5, 1, 3}, 1).clone();
                x.index_put_({t, 0, c}, bad);
                x.requires_grad_();
                Tape tape;
                const Tensor loss = ctc_loss(x, tensor({1, 2}), tensor({5}), tensor({2}), {.reduction = Reduction::sum});
                const V g = tape.gradient(loss, {x}, {.create_graph = create_graph})[0].to_vector<double>();
                if (std::isnan(bad)) {
                    // Where no path of the target passes, it does not matter.
                    if ((t == 0 && c == 2) || (t == 4 && c == 1)) continue;
                    CHECK(std::isnan(loss.item()));
                    CHECK(std::isnan(g[0]));
                } else {
                    CHECK(loss.item() == Approx(by_all_paths(x.to_vector<double>(), 5, 3, {1, 2}, 0)).epsilon(1e-12));
                    for (const double v : g) CHECK(std::isfinite(v));
                }
            }
        }
    }
}

TEST_CASE("ctc_loss of long inputs stays finite in float32") {
    manual_seed(3);
    const Tensor x = log_softmax(randn({400, 2, 30}) * 3, 2), targets = randint(1, 30, {2, 120});
    const Tensor steps = tensor({400, 380}), counts = tensor({120, 100});
    const double loss = ctc_loss(x, targets, steps, counts).item();
    CHECK(loss == Approx(ctc_loss(x.to(float64), targets, steps, counts).item()).epsilon(1e-5));
    CHECK(std::isfinite(loss));
}

TEST_CASE("ctc_loss refuses what does not fit, with the user's line") {
    const Tensor x = zeros({4, 2, 3}), t = ones({2, 2}, int64), steps = tensor({4, 4}), counts = tensor({2, 1});
    THROWS(ShapeError, "needs log-probabilities (time, n, classes)", ctc_loss(zeros({3}), t, steps, counts));
    THROWS(DTypeError, "class indices", ctc_loss(x, t.to(float32), steps, counts));
    THROWS(DTypeError, "floating", ctc_loss(x.to(int64), t, steps, counts));
    THROWS(IndexError, "blank 3 is out of range for 3 classes", ctc_loss(x, t, steps, counts, {.blank = 3}));
    THROWS(ShapeError, "targets (n, longest)", ctc_loss(x, ones({3, 2}, int64), steps, counts));
    THROWS(ShapeError, "one of input_lengths for each of 2", ctc_loss(x, t, tensor({4}), counts));
    THROWS(DTypeError, "target_lengths must be integers", ctc_loss(x, t, steps, counts.to(float32)));
    THROWS(ValueError, "one of input_lengths is 5, outside [0, 4]", ctc_loss(x, t, tensor({4, 5}), counts));
    THROWS(ValueError, "one of target_lengths is 3, outside [0, 2]", ctc_loss(x, t, steps, tensor({3, 1})));
    THROWS(ValueError, "3 targets are given, but target_lengths sum to 2", ctc_loss(x, ones({3}, int64), steps, tensor({1, 1})));
    THROWS(IndexError, "target 3 is out of range", ctc_loss(x, t + 2, steps, counts));
    THROWS(IndexError, "target 0 is the blank", ctc_loss(x, t - 1, steps, counts));
    THROWS(ValueError, "undefined", ctc_loss(x, Tensor(), steps, counts));
}

TEST_CASE("losses of classes take a single class, and one target in a dimension of its own") {
    CHECK(multi_margin_loss(tensor(2.0), tensor(0)).shape() == Shape{});
    CHECK(multi_margin_loss(tensor(2.0), tensor(0)).item() == 0);
    CHECK(multilabel_margin_loss(tensor(2.0), tensor(0), Reduction::none).shape() == Shape{});
    CHECK(multilabel_margin_loss(tensor(2.0), tensor(0)).item() == 0);
    CHECK(multi_margin_loss(tensor({1.0, 3.0}), tensor({0}), 1, 1, {}, Reduction::none).shape() == Shape{1});
    CHECK(multi_margin_loss(tensor({1.0, 3.0}), tensor({0})).item() == Approx(1.5));
}

TEST_CASE("losses of margins and distances at their corners") {
    // Where two vectors are the same, or zero, there is a gradient and it is finite.
    const Tensor zero = zeros({2, 3}, float64).requires_grad_(), same = zeros({2, 3}, float64);
    for (int which = 0; which < 3; ++which) {
        Tape tape;
        const Tensor loss = which == 0 ? sum(cosine_similarity(zero, same + 1))
            : which == 1               ? cosine_embedding_loss(zero, same + 1, tensor({1, -1}))
                                       : sum(pairwise_distance(zero, same, 2, 0));
        CHECK(all(isfinite(tape.gradient(loss, {zero})[0])).item<bool>());
    }
    // Large margins do not overflow.
    CHECK(soft_margin_loss(tensor({-1000.0}), tensor({1.0})).item() == Approx(1000));
    CHECK(poisson_nll_loss(tensor({0.5}), tensor({0.0}), true, true).item() == Approx(std::exp(0.5)));
    // A variance below eps is replaced, but still has a gradient.
    const Tensor var = tensor({1e-9, 0.5}, float64).requires_grad_();
    Tape tape;
    const Tensor loss = gaussian_nll_loss(zeros({2}, float64), ones({2}, float64), var, false, 1e-2, Reduction::sum);
    CHECK(loss.item() == Approx(0.5 * (std::log(1e-2) + 1 / 1e-2 + std::log(0.5) + 1 / 0.5)));
    check::same("gradient", tape.gradient(loss, {var})[0], {0.5 * (1e2 - 1e4), 0.5 * (2 - 4)}, 1e-9);
    THROWS(ValueError, "var has negative numbers", gaussian_nll_loss(zeros({2}), zeros({2}), tensor({1.0, -1.0})));
    THROWS(ShapeError, "a var of shape (3,)", gaussian_nll_loss(zeros({2, 2}), zeros({2, 2}), ones({3})));
    const Tensor x = zeros({2, 3});
    THROWS(ValueError, "p must be 1 or 2", multi_margin_loss(x, tensor({0, 1}), 3));
    THROWS(ShapeError, "a weight for each of 3 classes", multi_margin_loss(x, tensor({0, 1}), 1, 1, ones({2})));
    THROWS(ShapeError, "targets of shape (3,)", multi_margin_loss(x, tensor({0, 1, 2})));
    THROWS(IndexError, "3", multi_margin_loss(x, tensor({0, 3})));
    THROWS(DTypeError, "class indices", multi_margin_loss(x, zeros({2})));
    THROWS(ShapeError, "must have the input's shape", multilabel_margin_loss(x, tensor({0, 1})));
    THROWS(ShapeError, "needs inputs (n, d)", cosine_embedding_loss(x, x, zeros({2, 1})));
    THROWS(ShapeError, "margin_ranking_loss", margin_ranking_loss(zeros({2}), zeros({3}), ones({2})));
}
