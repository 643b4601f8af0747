// Sequential.
#include "tapir/nn/sequential.h"

#include "tapir/core/fail_impl.h"

namespace tapir::nn {

Sequential::Sequential(AnyModule a, AnyModule b, AnyModule c, AnyModule d, AnyModule e, AnyModule f, AnyModule g, AnyModule h,
                       AnyModule i, AnyModule j, AnyModule k, AnyModule l, AnyModule m, AnyModule n, AnyModule o, AnyModule p,
                       AnyModule q, AnyModule r, AnyModule s, AnyModule t) {
    for (AnyModule* layer : {&a, &b, &c, &d, &e, &f, &g, &h, &i, &j, &k, &l, &m, &n, &o, &p, &q, &r, &s, &t}) {
        if (layer->has_value()) layers_.push_back(std::move(*layer));
    }
}

const AnyModule& Sequential::operator[](Position i) const {
    if (i.value >= layers_.size()) fail<IndexError>(i.loc, "Sequential: there is no layer {} of {}", i.value, layers_.size());
    return layers_[i.value];
}

Module& Sequential::at(std::size_t i, Loc loc) {
    Module* module = (*this)[{i, loc}].get();
    if (!module) fail<ValueError>(loc, "Sequential: layer {} is a function, not a module", i);
    return *module;
}

Tensor Sequential::forward(In x) const {
    const CallerScope caller(x.loc);
    Tensor y = x.tensor;
    for (const AnyModule& layer : layers_) y = layer(In(y, x.loc));
    return y;
}

void Sequential::members(Members& m) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        if (Module* module = layers_[i].get()) m("", i, *module);
    }
}

}  // namespace tapir::nn
