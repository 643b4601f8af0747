// Ops with several outputs, a Function of the program's, optimizers: for the tests of tapir_gdb.py.
#include <tapir/tapir.h>

namespace nn = tapir::nn;
using tapir::Tensor;

namespace {

template <class... T>
[[gnu::noinline]] void look(const T&... values) {
    const void* addresses[] = {&values...};
    asm volatile("" : : "r"(addresses) : "memory");
}

struct Square : tapir::Function<Square> {
    static Tensor forward(tapir::FunctionContext& context, const std::vector<Tensor>& x) {
        context.save({x[0]});
        return x[0] * x[0];
    }
    static std::vector<Tensor> backward(tapir::FunctionContext& context, const std::vector<Tensor>& g) {
        return {g[0] * 2 * context.saved(0)};
    }
};

struct Layer : nn::Module {
    nn::Linear inner{2, 2};
    void members(nn::Members& m) override { m("inner", inner); }
    Tensor forward(const Tensor& x) const {
        const nn::ModuleScope scope(*this);
        return inner(x);
    }
};

struct Net : nn::Module {
    Layer encoder;
    void members(nn::Members& m) override { m("encoder", encoder); }
};

}  // namespace

void outputs() {
    const Tensor w = tapir::ones({3, 2}).requires_grad_();
    tapir::Tape tape;
    const std::vector<Tensor> parts = unbind(w);
    const Tensor y = Square::apply({parts[2]});
    const Tensor loss = sum(y);
    look(parts, y, tape);
    tape.backward(loss);
    look(tape);
}

void optimizers() {
    Net net;
    const std::vector<Tensor> parameters = net.parameters();
    tapir::optim::SGD sgd(parameters, {.lr = 0.1, .momentum = 0.5});
    tapir::optim::Adam adam({parameters[0]});
    adam.add_param_group({parameters[1]}, {.lr = 0.02});
    for (int i = 0; i < 3; ++i) {
        tapir::Tape tape;
        tape.backward(sum(net.encoder.forward(tapir::ones({1, 2}))));
        sgd.step();
    }
    look(sgd, adam);
}

#include <tapir/autograd/trace/trace.h>  // here, since expected output names the lines above

void graphs() {
    Net net;
    (void)net.parameters();
    const auto fn = [&](const Tensor& x) { return net.encoder.forward(x).reshape({x.size(0) * 2}) / x.size(0); };
    const tapir::Graph graph = tapir::trace(fn, {{"x", tapir::ones({3, 2}), {"batch"}}});
    const tapir::Graph::Node& node = *graph.nodes().back();
    const tapir::Graph::Value &x = *graph.inputs()[0], &y = *node.results[0];
    const tapir::SymInt size = (tapir::SymInt::dim("time") * tapir::SymInt(2) + tapir::SymInt(-3)).floor_div(3) + tapir::SymInt(4);
    look(graph, node, x, y, size);
}

// A type that a header names and a .cpp of the library defines: of the library, parts.gdb has line numbers alone.
#include "tapir/optim/rule_impl.h"
[[gnu::used]] const tapir::optim::Slot* const described = nullptr;
