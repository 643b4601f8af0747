// Stochastic gradient descent.
#pragma once

#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct SGDOptions {
    double lr = 1e-3;
    double momentum = 0;
    double dampening = 0;
    double weight_decay = 0;
    bool nesterov = false;  ///< needs momentum and no dampening
};
extern template class GroupsOf<SGDOptions>;

/// d = g + weight_decay p; with momentum b = momentum b + (1 - dampening) d (b = d at first), d = b or, with nesterov,
/// d + momentum b; p -= lr d. Throws ValueError for negative options. Momentum: Polyak 1964; Sutskever et al. 2013.
class SGD : public GroupsOf<SGDOptions> {
 public:
    explicit SGD(const std::vector<Tensor>& parameters, const SGDOptions& options = {}, Loc loc = Loc::current())
        : GroupsOf(parameters, options, loc) {}

 protected:
    void buffer_names(std::size_t group, const char* (&names)[kMaxBuffers]) const override;
    bool rows_suffice(std::size_t group) const override;
    void update(std::size_t group, Slot& slot, Update& work) override;
};

}  // namespace tapir::optim
