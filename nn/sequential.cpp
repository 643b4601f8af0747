// Sequential.
#include "tapir/nn/sequential.h"

#include "tapir/core/fail_impl.h"

namespace tapir::nn {

Sequential::Sequential(Owned a, Owned b, Owned c, Owned d, Owned e, Owned f, Owned g, Owned h, Owned i, Owned j, Owned k, Owned l,
                       Owned m, Owned n, Owned o, Owned p, Owned q, Owned r, Owned s, Owned t) {
    for (Owned* layer : {&a, &b, &c, &d, &e, &f, &g, &h, &i, &j, &k, &l, &m, &n, &o, &p, &q, &r, &s, &t}) {
        if (*layer) layers_.push_back(std::move(*layer));
    }
}

Module& Sequential::at(std::size_t i, Loc loc) {
    if (i >= layers_.size()) fail<IndexError>(loc, "Sequential: there is no layer {} of {}", i, layers_.size());
    Module* module = (*layers_[i]).module();
    if (!module) fail<ValueError>(loc, "Sequential: layer {} is a function, not a module", i);
    return *module;
}

Tensor Sequential::forward(In x) const {
    const CallerScope caller(x.loc);
    Tensor y = x.tensor;
    for (const Owned& layer : layers_) y = (*layer).call(In(y, x.loc));
    return y;
}

void Sequential::members(Members& m) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        if (Module* module = (*layers_[i]).module()) m("", i, *module);
    }
}

}  // namespace tapir::nn
