// Sequential.
#include "tapir/nn/sequential.h"

#include "tapir/core/fail_impl.h"

namespace tapir::nn {

Sequential::Sequential(AnyModule a, AnyModule b, AnyModule c, AnyModule d, AnyModule e, AnyModule f, AnyModule g, AnyModule h, AnyModule i,
                       AnyModule j, AnyModule k, AnyModule l, AnyModule m, AnyModule n, AnyModule o, AnyModule p, AnyModule q, AnyModule r,
                       AnyModule s, AnyModule t) {
    for (AnyModule* layer : {&a, &b, &c, &d, &e, &f, &g, &h, &i, &j, &k, &l, &m, &n, &o, &p, &q, &r, &s, &t}) {
        if (layer->has_value()) layers_.push_back(std::move(*layer));
    }
}

Module& Sequential::at(IndexArg i) {
    Module* module = (*this)[i].get();
    if (!module) fail<ValueError>(i.loc, "Sequential: layer {} is a function, not a module", i.value);
    return *module;
}

Tensor Sequential::forward(In x) const {
    const ModuleScope scope(*this);
    const CallerScope caller(x.loc);
    Tensor y = x.tensor;
    for (const AnyModule& layer : layers_) y = layer(In(y, x.loc));
    return y;
}

void Sequential::members(Members& m) { m("", layers_); }

}  // namespace tapir::nn
