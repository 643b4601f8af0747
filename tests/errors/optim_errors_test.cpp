// Messages of optimizers and schedules that no other test asks for.
#include <cstdint>
#include <functional>
#include <vector>

#include "../fails.h"
#include "tapir/ops/index/coalesce_impl.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("errors of schedules") {
    optim::SGD optimizer({ones({2}).requires_grad_()}, {.lr = 0.1});
    FAILS(ValueError, "MultiplicativeLR: the function is empty", optim::MultiplicativeLR(optimizer, std::function<double(std::int64_t)>()));
    FAILS(ValueError, "CyclicLR: base_lr -1, max_lr 1 and gamma 1 must not be negative", optim::CyclicLR(optimizer, {.base_lr = -1, .max_lr = 1}));
    optim::StepLR first(optimizer, {.step_size = 1}), second(optimizer, {.step_size = 1}), third(optimizer, {.step_size = 1});
    FAILS(ValueError, "SequentialLR: the milestones must rise", optim::SequentialLR(optimizer, {&first, &second, &third}, {5, 3}));
    NamedTensors state = first.state_dict();
    for (NamedTensor& t : state) {
        if (t.name == "lr") t.tensor = t.tensor - 1;
    }
    FAILS(ValueError, "load_state_dict: a schedule's learning rate must be 0 or a finite number above it, got -0.9", first.load_state_dict(state));
}

TEST_CASE("errors of gradients of rows") {
    const SparseRows rows{tensor({1, 0}), ones({2, 1})};
    FAILS(ValueError, "a gradient of 2 rows for 4294967296: at most 2147483648 can be summed up",
          detail::coalesce(rows, std::int64_t{1} << 32, Loc::current()));
}
