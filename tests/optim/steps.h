// What tests of optimizers share: parameters, the gradients that tests/goldens/optim.py gives them, and all the optimizers.
#pragma once

#include <vector>

#include "../nn/check.h"
#include "tapir/optim/optim.h"

namespace tapir::test {

inline constexpr int kSteps = 20;

// As in tests/goldens/optim.py.
inline Tensor values(const Shape& shape, double seed, DType dtype) { return check::values(shape, seed, dtype); }

struct Parameters {
    Tensor a, b;
    explicit Parameters(DType dtype) : a(values({3, 4}, 1, dtype)), b(values({5}, 2, dtype)) {
        a.requires_grad_();
        b.requires_grad_();
    }
    std::vector<Tensor> all() const { return {a, b}; }
};

inline void give_gradients(const Parameters& p, int t) {
    double seed = 3 + 0.9 * t;
    for (Tensor x : p.all()) x.set_grad(values(x.shape(), seed++, x.dtype()) + x.detach() * 0.1);
}

template <class Opt>
void run(Opt& opt, const Parameters& p, int from = 0, int to = kSteps) {
    for (int t = from; t < to; ++t) {
        give_gradients(p, t);
        opt.step();
    }
}

// Calls test.operator()<Optimizer>(options) for every one that steps without a closure.
template <class Test>
void for_all(const Test& test) {
    using namespace optim;
    test.template operator()<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
    test.template operator()<Adagrad>(AdagradOptions{.lr_decay = 0.1, .weight_decay = 0.1});
    test.template operator()<AdagradDA>(AdagradDAOptions{.lr = 0.3, .l1 = 0.02, .l2 = 0.05});
    test.template operator()<RMSprop>(RMSpropOptions{.weight_decay = 0.1, .momentum = 0.8, .centered = true});
    test.template operator()<Adadelta>(AdadeltaOptions{.weight_decay = 0.1});
    test.template operator()<Adam>(AdamOptions{.weight_decay = 0.1, .amsgrad = true});
    test.template operator()<AdamW>(AdamWOptions{.lr = 0.01});
    test.template operator()<Adamax>(AdamaxOptions{.weight_decay = 0.1});
    test.template operator()<NAdam>(NAdamOptions{.weight_decay = 0.1});
    test.template operator()<RAdam>(RAdamOptions{.lr = 0.01, .weight_decay = 0.1});
    test.template operator()<Lion>(LionOptions{.lr = 0.01, .weight_decay = 0.1});
    test.template operator()<Rprop>(RpropOptions{.lr = 0.1, .step_size_max = 0.15});
    test.template operator()<ASGD>(ASGDOptions{.lr = 0.1, .lambd = 0.1, .t0 = 2, .weight_decay = 0.1});
}

}  // namespace tapir::test
