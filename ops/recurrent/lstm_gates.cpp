// The LSTM step with any number of forget gates: LSTMCell, Tree-LSTM leaves and nodes.
#include <algorithm>
#include <array>
#include <new>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/composed_gradient_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/recurrent/lstm_gates.h"
#include "tapir/ops/recurrent/recurrent_impl.h"
#include "tapir/ops/recurrent/recurrent_kernels.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_impl.h"

namespace tapir {
namespace {

using std::int64_t;

constexpr int kMaxSources = 3;

struct Step {
    GateLayout layouts[kMaxSources];
    int sources, children;
    int64_t rows, width;
};

// The op as a graph knows it: operands are the sources, then the children's c. layouts: for each source the six numbers of its
// GateLayout, in their order. keep_activations: makes the activations, which a gradient would compute again, the third result,
// (rows, children + 4, width) as kernels::LstmGates says. No gradient flows back through it.
struct Gates {
    int children = 1;
    std::vector<int64_t> layouts = {4, 0, 1, 0, 3, 2};
};
struct LstmCall : Gates {
    bool keep_activations = false;
};
struct LstmBackwardCall : Gates {
    bool has_grad_h = true, has_grad_c = true, has_activations = false;  // operands before the sources
    int operands() const { return has_grad_h + has_grad_c + has_activations; }
};

void lstm_gates_rule(Backward& b);
void lstm_gates_backward_rule(Backward& b);
std::vector<Tensor> backward_of(const Tensor& grad_h, const Tensor& grad_c, const GateSource* sources, int source_count,
                                const Tensor* const* children_c, int children, const Tensor& activations, const Loc& loc);

// For the samples.
std::vector<Tensor> lstm_gates_backward(const Tensor& grad_h, const Tensor& grad_c, const std::vector<Tensor>& sources,
                                        const std::vector<GateLayout>& layouts, const std::vector<Tensor>& children_c) {
    GateSource from[kMaxSources];
    std::vector<const Tensor*> c;
    for (std::size_t s = 0; s < sources.size(); ++s) from[s] = {&sources[s], layouts[s]};
    for (const Tensor& child : children_c) c.push_back(&child);
    return backward_of(grad_h, grad_c, from, static_cast<int>(sources.size()), c.data(), static_cast<int>(c.size()), {}, Loc::current());
}
std::vector<Tensor> both(const LSTMState& state) { return {state.h, state.c}; }
Tensor add_both(const LSTMState& state) { return state.h + state.c; }

}  // namespace

TAPIR_OP(lstm_gates, lstm_gates_rule, "All gates of an LSTM or Tree-LSTM step; the results are h and c.",
         TAPIR_SAMPLE_AS("f(2,12) f(2,3)",
                         "(lambda g, c: (lambda d: (sigmoid(g[:, 9:]) * tanh(d), d))"
                         "(sigmoid(g[:, 3:6]) * c + sigmoid(g[:, :3]) * tanh(g[:, 6:9])))(x[0], x[1])",
                         both(lstm_gates(x[0], x[1]))),
         TAPIR_SAMPLE_AS("f(2,12) f(2,3) f(2,12)",
                         "(lambda g, c: (lambda d: (sigmoid(g[:, 9:]) * tanh(d), d))"
                         "(sigmoid(g[:, 3:6]) * c + sigmoid(g[:, :3]) * tanh(g[:, 6:9])))(x[0] + x[2], x[1])",
                         both(lstm_gates(x[0], x[1], x[2]))),
         TAPIR_SAMPLE_AS("f(9)", "(lambda g: (lambda d: sigmoid(g[3:6]) * tanh(d) + d)(sigmoid(g[:3]) * tanh(g[6:])))(x[0])",
                         add_both(tree_lstm_gates(x[0], {}))),
         TAPIR_SAMPLE_AS("f(2,15) f(2,3) f(2,3)",
                         "(lambda g, a, b: (lambda d: (sigmoid(g[:, 9:12]) * tanh(d), d))(sigmoid(g[:, :3]) * "
                         "tanh(g[:, 12:]) + sigmoid(g[:, 3:6]) * a + sigmoid(g[:, 6:9]) * b))(x[0], x[1], x[2])",
                         both(tree_lstm_gates(x[0], {x[1], x[2]}))));
// As an op of its own, the recorded rule is one node in the graph of a gradient.
TAPIR_OP(lstm_gates_backward, lstm_gates_backward_rule,
         "The gradients of lstm_gates: of each source, of two of one layout once, then of each child's c.",
         TAPIR_SAMPLE_AS("f(2,3) f(2,3) f(2,12) f(2,3)",
                         "torch.autograd.functional.vjp(lambda g, c: (lambda d: (sigmoid(g[:, 9:]) * tanh(d), d))"
                         "(sigmoid(g[:, 3:6]) * c + sigmoid(g[:, :3]) * tanh(g[:, 6:9])), (x[2], x[3]), (x[0], x[1]))[1]",
                         lstm_gates_backward(x[0], x[1], {x[2]}, {kLstmLayout}, {x[3]})),
         TAPIR_SAMPLE_AS("f(2,3) f(2,12) f(2,12) f(2,3)",
                         "torch.autograd.functional.vjp(lambda g, c: sigmoid(g[:, 9:]) * "
                         "tanh(sigmoid(g[:, 3:6]) * c + sigmoid(g[:, :3]) * tanh(g[:, 6:9])), (x[1] + x[2], x[3]), x[0])[1]",
                         lstm_gates_backward(x[0], {}, {x[1], x[2]}, {kLstmLayout, kLstmLayout}, {x[3]})),
         TAPIR_SAMPLE_AS("f(3) f(9)", "torch.autograd.functional.vjp(lambda g: sigmoid(g[:3]) * tanh(g[6:]), x[1], x[0])[1]",
                         lstm_gates_backward({}, x[0], {x[1]}, {tree_layout(0)}, {})),
         TAPIR_SAMPLE_AS("f(2,3) f(2,3) f(2,15) f(2,3) f(2,3)",
                         "torch.autograd.functional.vjp(lambda g, a, b: (lambda d: (sigmoid(g[:, 9:12]) * tanh(d), d))(sigmoid(g[:, :3]) * "
                         "tanh(g[:, 12:]) + sigmoid(g[:, 3:6]) * a + sigmoid(g[:, 6:9]) * b), (x[2], x[3], x[4]), (x[0], x[1]))[1]",
                         lstm_gates_backward(x[0], x[1], {x[2]}, {tree_layout(2)}, {x[3], x[4]})));

namespace {

// Holds as many tensors as are put in, on the stack.
class Handles {
 public:
    Handles() noexcept {}
    Handles(const Handles&) = delete;
    Handles& operator=(const Handles&) = delete;
    ~Handles() {
        for (int i = 0; i < size_; ++i) (*this)[i].~Tensor();
    }
    Tensor& push(Tensor t) noexcept { return *new (memory_ + sizeof(Tensor) * static_cast<unsigned>(size_++)) Tensor(std::move(t)); }
    Tensor& operator[](int i) noexcept { return *std::launder(reinterpret_cast<Tensor*>(memory_) + i); }

 private:
    int size_ = 0;
    alignas(Tensor) std::byte memory_[sizeof(Tensor) * (kMaxSources + kMaxFusedChildren)];
};

int block_of(const GateLayout& layout, int gate, int children) {
    if (gate == 0) return layout.input;
    if (gate == children + 1) return layout.output;
    if (gate == children + 2) return layout.update;
    return layout.forget < 0 ? -1 : layout.forget + (gate - 1) * layout.forget_step;
}

// --- Forward -----------------------------------------------------------------------------------------------------------------

// Returns the shape of the state that the first source's shape implies.
Shape state_shape(const char* op, const Tensor& gates, int blocks, const Loc& loc) {
    Shape shape = gates.shape();
    if (shape.empty() || shape.back() % blocks != 0) {
        fail<ShapeError>(loc, "{}: the last dimension of the gates, {}, must be a multiple of {}", op, shape, blocks);
    }
    shape.raw(shape.rank() - 1) /= blocks;
    return shape;
}

bool has_shape(const TensorImpl* x, const Shape& shape) noexcept {
    if (x->rank != shape.rank()) return false;
    for (int d = 0; d < x->rank; ++d) {
        if (x->sizes[d] != shape.raw(d)) return false;
    }
    return true;
}

void check(const char* op, const Tensor& x, const char* what, const Tensor& gates, const Shape& wanted, const Loc& loc) {
    if (!has_shape(x.impl(), wanted)) fail<ShapeError>(loc, "{}: {} has shape {}, expected {}", op, what, x.shape(), wanted);
    if (x.dtype() != gates.dtype()) {
        fail<DTypeError>(loc, "{}: {} has dtype {}, the gates have {}", op, what, name(x.dtype()), name(gates.dtype()));
    }
    detail::check_same_device(op, gates, x, loc);
}

// Returns a source's shape: (..., blocks * h), or (..., blocks, h) if it holds only one forget gate per child.
Shape source_shape(const Shape& state, const GateLayout& layout, const Loc& loc) {
    Shape shape = state;
    if (layout.input < 0) {
        shape.insert(shape.rank() - 1, layout.blocks, loc);
    } else {
        shape.raw(shape.rank() - 1) *= layout.blocks;
    }
    return shape;
}

// h, c: undefined if only the kept activations are wanted.
template <class T>
void run(const Step& step, const void* const* inputs, const Tensor& h, const Tensor& c, const Tensor& kept) {
    using Args = kernels::LstmGates<T>;
    typename Args::Gate gates[kMaxFusedChildren + 3];
    typename Args::Child child[kMaxFusedChildren];
    for (int g = 0; g < step.children + 3; ++g) {
        typename Args::Gate& gate = gates[g];
        gate = {nullptr, nullptr, 0, 0};
        for (int s = 0; s < step.sources; ++s) {
            const int block = block_of(step.layouts[s], g, step.children);
            if (block < 0) continue;
            const T* place = static_cast<const T*>(inputs[s]) + block * step.width;
            const int64_t row = step.layouts[s].blocks * step.width;
            if (!gate.a) {
                gate.a = place;
                gate.a_row = row;
            } else {
                gate.b = place;
                gate.b_row = row;
            }
        }
    }
    for (int k = 0; k < step.children; ++k) child[k] = {static_cast<const T*>(inputs[step.sources + k]), step.width};
    const Args args{step.width, step.children, gates, child, kernel_data<T>(h), kernel_data<T>(c), kernel_data<kernels::Kept<T>>(kept)};
    TAPIR_LAUNCH(h.defined() ? h : kept, step.rows, step.width * (step.children + 3) * kGateWork, lstm_gates, args);
}

// --- The same with public ops ----------------------------------------------------------------------------------------------

// Returns block `block` of a source as (..., h).
Tensor take_block(const Tensor& source, const GateLayout& layout, int block, int64_t width) {
    return layout.input < 0 ? select(source, -2, block) : narrow(source, -1, block * width, width);
}

Tensor pre_activation(const Step& step, const Tensor* sources, int gate) {
    Tensor sum;
    for (int s = 0; s < step.sources; ++s) {
        const int block = block_of(step.layouts[s], gate, step.children);
        if (block < 0) continue;
        const Tensor part = take_block(sources[s], step.layouts[s], block, step.width);
        sum = sum.defined() ? sum + part : part;
    }
    return sum;
}

// Returns each gate, activated, in the order i, f_1 ... f_n, o, u; then c, then tanh(c).
std::vector<Tensor> activate(const Step& step, const Tensor* sources, const Tensor* const* children) {
    std::vector<Tensor> gates;
    for (int g = 0; g < step.children + 3; ++g) {
        const Tensor pre = pre_activation(step, sources, g);
        gates.push_back(g == step.children + 2 ? tanh(pre) : sigmoid(pre));
    }
    Tensor c = gates.front() * gates.back();
    for (int k = 0; k < step.children; ++k) c = c + gates[static_cast<std::size_t>(1 + k)] * *children[k];
    gates.push_back(c);
    gates.push_back(tanh(c));
    return gates;
}

// --- Backward ------------------------------------------------------------------------------------------------------------------

// Two sources of one layout are only added up: both have the same gradient.
bool shares_grad(const Step& step) { return step.sources == 2 && step.layouts[0] == step.layouts[1]; }

// Returns the gradients of the sources (two that share one: once) and of the children's c. in: these; an undefined gradient is zeros.
std::vector<Tensor> gradients_of_ops(const Step& step, const Tensor& grad_of_h, const Tensor& grad_of_c, const Tensor* in) {
    const Tensor* const children = in + step.sources;
    const Tensor* c[kMaxFusedChildren + 1];
    for (int k = 0; k < step.children; ++k) c[k] = children + k;
    const std::vector<Tensor> gates = activate(step, in, c);
    const auto n = static_cast<std::size_t>(step.children);
    const Tensor &i = gates[0], &o = gates[n + 1], &u = gates[n + 2], &tanh_c = gates[n + 4];
    const auto or_zeros = [&](const Tensor& g) { return g.defined() ? g : zeros(i.shape(), {i.dtype(), i.device()}); };
    const Tensor grad_h = or_zeros(grad_of_h), grad_c = or_zeros(grad_of_c) + grad_h * o * (1 - square(tanh_c));
    std::vector<Tensor> grads(n + 3), results;  // grads: of the pre-activations
    grads[0] = grad_c * u * i * (1 - i);
    for (std::size_t k = 0; k < n; ++k) grads[1 + k] = grad_c * children[k] * gates[1 + k] * (1 - gates[1 + k]);
    grads[n + 1] = grad_h * tanh_c * o * (1 - o);
    grads[n + 2] = grad_c * i * (1 - square(u));
    for (int s = 0; s < (shares_grad(step) ? 1 : step.sources); ++s) {
        std::vector<Tensor> blocks(static_cast<std::size_t>(step.layouts[s].blocks));
        for (std::size_t g = 0; g < n + 3; ++g) {
            const int block = block_of(step.layouts[s], static_cast<int>(g), step.children);
            if (block < 0) continue;
            Tensor& place = blocks[static_cast<std::size_t>(block)];
            place = place.defined() ? place + grads[g] : grads[g];
        }
        for (Tensor& block : blocks) block = or_zeros(block);  // a shared forget gate without children
        results.push_back(step.layouts[s].input < 0 ? stack(blocks, -2) : cat(blocks, -1));
    }
    for (std::size_t k = 0; k < n; ++k) results.push_back(grad_c * gates[1 + k]);
    return results;
}

// True if a block has no gate in it: that of a shared forget gate without children.
bool has_gap(const Step& step, int source) {
    const GateLayout& layout = step.layouts[source];
    return layout.forget_step == 0 && layout.forget >= 0 && step.children == 0;
}

// grads: of the sources, then of the children's c; null if not wanted. child_c, grads: addresses of arrays of T.
template <class T>
void run_backward(const Step& step, const Tensor& kept, const Tensor& grad_h, const Tensor& grad_c, const void* const* child_c, void* const* grads) {
    using Args = kernels::LstmGatesBackward<T>;
    typename Args::Gate gates[kMaxFusedChildren + 3];
    typename Args::Child child[kMaxFusedChildren];
    for (int g = 0; g < step.children + 3; ++g) {
        typename Args::Gate& gate = gates[g];
        gate = {nullptr, nullptr, 0, 0, false};
        for (int s = 0; s < step.sources; ++s) {
            const GateLayout& layout = step.layouts[s];
            const int block = block_of(layout, g, step.children);
            if (block < 0 || !grads[s]) continue;
            T* place = static_cast<T*>(grads[s]) + block * step.width;
            const bool shared = layout.forget_step == 0 && g >= 1 && g <= step.children;
            if (!gate.a && (shared || !gate.b)) {
                gate.a = place;
                gate.a_row = layout.blocks * step.width;
                gate.a_adds = shared && g > 1;
            } else {
                gate.b = place;
                gate.b_row = layout.blocks * step.width;
            }
        }
    }
    for (int k = 0; k < step.children; ++k) {
        child[k] = {static_cast<const T*>(child_c[k]), static_cast<T*>(grads[step.sources + k]), step.width};
    }
    const Args args{step.width, step.children, gates, child, kernel_data<kernels::Kept<T>>(kept), kernel_data<T>(grad_h), kernel_data<T>(grad_c)};
    TAPIR_LAUNCH(kept, step.rows, step.width * (step.children + 3) * kGateGradientWork, lstm_gates_backward, args);
}

// The rule, unrecorded. saved: the kept activations, the sources, the children's c.
void fused_rule(Backward& b, const Step& step, DType dtype) {
    Handles grads, child_c;
    void* grad_places[kMaxSources + kMaxFusedChildren] = {};
    const void* child_places[kMaxFusedChildren];
    const Tensor kept = b.saved(0);
    const Tensor grad_h = b.grad(0).defined() ? ready(b.grad(0), dtype) : Tensor();
    const Tensor grad_c = b.grad(1).defined() ? ready(b.grad(1), dtype) : Tensor();
    const bool is_shared = shares_grad(step) && b.needs(0) && b.needs(1);
    for (int s = 0; s < step.sources; ++s) {
        Tensor& grad = grads.push(Tensor());
        if (!b.needs(s) || (is_shared && s == 1)) continue;
        grad = room_for_gradient(b, s, dtype);
        if (has_gap(step, s)) grad.zero_();
    }
    for (int k = 0; k < step.children; ++k) {
        const Tensor& c = child_c.push(ready(b.saved(1 + step.sources + k), dtype));
        child_places[k] = kernel_data(c);
        Tensor& grad = grads.push(Tensor());
        if (b.needs(step.sources + k)) grad = detail::make_empty_like(c.impl(), dtype, b.record().loc);
    }
    for (int i = 0; i < step.sources + step.children; ++i) grad_places[i] = kernel_data(grads[i]);
    with_element_type(dtype, [&]<class T>() { run_backward<T>(step, kept, grad_h, grad_c, child_places, grad_places); });
    if (is_shared) grads[1] = grads[0];
    for (int i = 0; i < step.sources + step.children; ++i) b.give(i, std::move(grads[i]));
}

void recorded_rule(Backward& b, const Step& step) {
    Handles inputs;
    GateSource sources[kMaxSources];
    const Tensor* children[kMaxFusedChildren + 1];
    for (int i = 0; i < step.sources + step.children; ++i) {
        const Tensor& input = inputs.push(b.saved(1 + i));
        if (i < step.sources) {
            sources[i] = {&input, step.layouts[i]};
        } else {
            children[i - step.sources] = &input;
        }
    }
    const std::vector<Tensor> gradients =
        backward_of(b.grad(0), b.grad(1), sources, step.sources, children, step.children, b.saved(0), b.record().loc);
    std::size_t at = 0;
    for (int i = 0; i < step.sources + step.children; ++i) {
        if (i == 1 && shares_grad(step)) at = 0;
        b.give(i, gradients[at++]);
    }
}

void lstm_gates_rule(Backward& b) {
    const Step& step = b.attrs<Step>();
    if (b.recording()) return recorded_rule(b, step);
    fused_rule(b, step, on_gpu(b.saved(0)) ? b.output_dtype() : computed_in(b.output_dtype()));
}

struct BackwardAttrs {
    Step step;
    bool has_grad_h, has_grad_c, has_activations;
};

// saved: the inputs
void lstm_gates_backward_rule(Backward& b) {
    const BackwardAttrs& a = b.attrs<BackwardAttrs>();
    differentiate(b, [&](const std::vector<Tensor>& in) {
        const Tensor* const grads = in.data();
        return gradients_of_ops(a.step, a.has_grad_h ? grads[0] : Tensor(), a.has_grad_c ? grads[a.has_grad_h] : Tensor(),
                                grads + a.has_grad_h + a.has_grad_c + a.has_activations);
    });
}

// --- The op ----------------------------------------------------------------------------------------------------------------------

// Checks the operands; `shape` becomes the state's shape.
Step checked_step(const char* op, const GateSource* sources, int source_count, const Tensor* const* children_c, int children, Shape& shape,
                  const Loc& loc) {
    for (int s = 0; s < source_count; ++s) detail::check_defined(In(*sources[s].tensor, loc), op);
    for (int k = 0; k < children; ++k) detail::check_defined(In(*children_c[k], loc), op);
    const Tensor& gates = *sources[0].tensor;
    if (!is_floating(gates.dtype())) fail<DTypeError>(loc, "{}: needs a floating dtype, got {}; convert with to(float32)", op, name(gates.dtype()));
    shape = state_shape(op, gates, sources[0].layout.blocks, loc);
    Step step;
    step.layouts[0] = sources[0].layout;
    for (int s = 1; s < source_count; ++s) {
        step.layouts[s] = sources[s].layout;
        check(op, *sources[s].tensor, "a part of the gates", gates, source_shape(shape, sources[s].layout, loc), loc);
    }
    for (int k = 0; k < children; ++k) check(op, *children_c[k], "c", gates, shape, loc);
    step.sources = source_count;
    step.children = children;
    step.width = shape.back();
    step.rows = step.width > 0 ? shape.numel() / step.width : 0;
    return step;
}

std::vector<int64_t> layout_numbers(const Step& step) {
    std::vector<int64_t> numbers;
    for (int s = 0; s < step.sources; ++s) {
        const GateLayout& l = step.layouts[s];
        for (const int number : {l.blocks, +l.input, +l.forget, +l.forget_step, +l.output, +l.update}) numbers.push_back(number);
    }
    return numbers;
}

// Runs the op lstm_gates_backward. activations: the kept ones; undefined: they are computed again.
std::vector<Tensor> backward_of(const Tensor& grad_h, const Tensor& grad_c, const GateSource* sources, int source_count,
                                const Tensor* const* children_c, int children, const Tensor& activations, const Loc& loc) {
    constexpr const char* op = "lstm_gates_backward";
    Shape shape;
    const Step step = checked_step(op, sources, source_count, children_c, children, shape, loc);
    const Tensor& gates = *sources[0].tensor;
    if (!grad_h.defined() && !grad_c.defined()) fail<ValueError>(loc, "{}: needs the gradient of h or that of c", op);
    if (grad_h.defined()) check(op, grad_h, "the gradient of h", gates, shape, loc);
    if (grad_c.defined()) check(op, grad_c, "the gradient of c", gates, shape, loc);
    const DType read = read_in(gates);
    const Shape kept_shape{step.rows, step.children + 4, step.width};
    if (activations.defined()) {
        if (activations.shape() != kept_shape || activations.dtype() != computed_in(read)) {
            fail<ShapeError>(loc, "{}: the activations must have shape {} and {}, got {} and {}", op, kept_shape, name(computed_in(read)),
                             activations.shape(), name(activations.dtype()));
        }
        detail::check_same_device(op, gates, activations, loc);
    }
    std::vector<Tensor> inputs, results;
    for (const Tensor* g : {&grad_h, &grad_c, &activations}) {
        if (g->defined()) inputs.push_back(*g);
    }
    const std::size_t first = inputs.size();
    for (int s = 0; s < step.sources; ++s) inputs.push_back(*sources[s].tensor);
    for (int k = 0; k < step.children; ++k) inputs.push_back(*children_c[k]);
    {
        const detail::UnrecordedPartsOf parts(loc);
        const auto as_read = [&](const Tensor& t) { return t.defined() ? ready(t, read) : Tensor(); };
        const void* places[kMaxSources + kMaxFusedChildren];
        void* grads[kMaxSources + kMaxFusedChildren] = {};
        std::vector<Tensor> operands;
        const Tensor from_h = as_read(grad_h), from_c = as_read(grad_c);
        for (int i = 0; i < step.sources + step.children; ++i) {
            operands.push_back(as_read(inputs[first + static_cast<std::size_t>(i)]));
            places[i] = kernel_data(operands.back());
            if (i == 1 && shares_grad(step)) continue;
            results.push_back(detail::make_empty(operands.back().shape(), read, gates.device(), loc));
            if (i < step.sources && has_gap(step, i)) results.back().zero_();
            grads[i] = kernel_data(results.back());
        }
        detail::begin_op(op, operands[0].impl(), loc);
        const Tensor kept = activations.defined() ? activations.contiguous() : detail::make_empty(kept_shape, computed_in(read), gates.device(), loc);
        with_element_type(read, [&]<class T>() {
            if (!activations.defined()) run<T>(step, places, Tensor(), Tensor(), kept);
            run_backward<T>(step, kept, from_h, from_c, places + step.sources, grads);
        });
        for (Tensor& result : results) result = result.to(gates.dtype());
    }
    if (!detail::thread.observed) return results;
    const BackwardAttrs attrs{step, grad_h.defined(), grad_c.defined(), activations.defined()};
    const LstmBackwardCall call{{step.children, layout_numbers(step)}, grad_h.defined(), grad_c.defined(), activations.defined()};
    record_many(lstm_gates_backward_op, loc, inputs, results, inputs, attrs, call);
    return results;
}

LSTMState step_with_ops(const Step& step, const GateSource* sources, const Tensor* const* children_c, const Loc& loc) {
    const detail::RecordedParts parts(loc);
    Tensor tensors[kMaxSources];
    for (int s = 0; s < step.sources; ++s) tensors[s] = *sources[s].tensor;
    const std::vector<Tensor> gates = activate(step, tensors, children_c);
    const auto n = static_cast<std::size_t>(step.children);
    return {gates[n + 1] * gates[n + 4], gates[n + 3]};
}

LSTMState step_of(const char* op, const GateSource* sources, int source_count, const Tensor* const* children_c, int children, bool keeps,
                  Tensor* activations, const Loc& loc);

// Returns true if the step was computed together with its peers in batch().
bool step_in_group(const char* op, const GateSource* sources, int source_count, const Tensor* const* children_c, int children, const Loc& loc,
                   LSTMState& state) {
    const Tensor* operands[kMaxSources + kMaxFusedChildren];
    detail::BatchKey key = detail::batch_key(source_count, children);
    for (int s = 0; s < source_count; ++s) {
        const GateLayout& l = sources[s].layout;
        key.add(l.blocks);
        key.add(std::array{l.input, l.forget, l.forget_step, l.output, l.update});
        operands[s] = sources[s].tensor;
    }
    std::copy(children_c, children_c + children, operands + source_count);
    const auto of_group = [&](const detail::Batched& in) {
        GateSource blocks[kMaxSources];
        const Tensor* c[kMaxFusedChildren + 1];
        for (int s = 0; s < source_count; ++s) blocks[s] = {&in[s], sources[s].layout};
        for (int k = 0; k < children; ++k) c[k] = &in[source_count + k];
        return step_of(op, blocks, source_count, c, children, /*keeps=*/false, nullptr, loc);
    };
    const detail::BatchCall call(lstm_gates_op, loc, operands, source_count + children, key);
    return detail::in_group(call, of_group, state, &LSTMState::h, &LSTMState::c);
}

// activations: null, or a place for them, if they are kept; `keeps`: keeps them in every case.
LSTMState step_of(const char* op, const GateSource* sources, int source_count, const Tensor* const* children_c, int children, bool keeps,
                  Tensor* activations, const Loc& loc) {
    if (detail::thread.autocast) [[unlikely]] {
        const Tensor& gates = *sources[0].tensor;
        std::vector<Tensor> converted(static_cast<std::size_t>(children));
        std::vector<const Tensor*> states(children_c, children_c + children);
        bool any = false;
        for (std::size_t k = 0; k < states.size(); ++k) {
            if (!follows_gates(*states[k], gates)) continue;
            converted[k] = states[k]->to(gates.dtype(), loc);
            states[k] = &converted[k];
            any = true;
        }
        if (any) return step_of(op, sources, source_count, states.data(), children, keeps, activations, loc);
    }
    Shape shape;
    const Step step = checked_step(op, sources, source_count, children_c, children, shape, loc);
    const Tensor& gates = *sources[0].tensor;
    const DType dtype = gates.dtype(), read = read_in(gates);
    if (children > kMaxFusedChildren) return step_with_ops(step, sources, children_c, loc);

    const Tensor* inputs[kMaxSources + kMaxFusedChildren];
    if (detail::in_batch() && !activations) [[unlikely]] {
        LSTMState state;
        if (step_in_group(op, sources, source_count, children_c, children, loc, state)) return state;
    }
    const void* places[kMaxSources + kMaxFusedChildren];
    Handles converted;
    Log* log = detail::thread.log;
    bool record_it = false;
    const int input_count = source_count + children;
    for (int i = 0; i < input_count; ++i) {
        inputs[i] = i < source_count ? sources[i].tensor : children_c[i - source_count];
        record_it |= log && tracked(inputs[i]->impl(), *log, loc);
        const bool is_ready = dtype == read && inputs[i]->is_contiguous();
        places[i] = is_ready ? inputs[i]->raw_data() : converted.push(ready(*inputs[i], read, loc)).raw_data();
    }
    for (int i = 0; i < input_count; ++i) detail::begin_op(op, inputs[i]->impl(), loc);
    Tensor kept;
    if (record_it || keeps) kept = detail::make_empty({step.rows, children + 4, step.width}, computed_in(dtype), gates.device(), loc);
    const int64_t numel = step.rows * step.width;
    const auto fresh = [&] { return detail::make_empty(shape.data(), shape.rank(), numel, read, gates.device(), loc); };
    LSTMState out{fresh(), fresh()};
    with_element_type(read, [&]<class T>() { run<T>(step, places, out.h, out.c, kept); });
    if (dtype != read) {
        const detail::UnrecordedPartsOf parts(loc);
        out = {out.h.to(dtype), out.c.to(dtype)};
    }
    if (detail::thread.observed) {
        const Tensor* saved[1 + kMaxSources + kMaxFusedChildren];
        saved[0] = &kept;
        for (int i = 0; i < input_count; ++i) saved[1 + i] = inputs[i];
        TensorImpl* const outputs[] = {out.h.impl(), out.c.impl(), kept.impl()};
        LstmCall call{{children, {}}, kept.defined()};
        if (detail::is_watched()) call.layouts = layout_numbers(step);
        const RecordArgs told{lstm_gates_op, loc, inputs, input_count, outputs, kept.defined() ? 3 : 2, nullptr, 0, &call, sizeof call};
        RecordArgs ran{lstm_gates_op, loc, inputs, input_count, outputs, 2, saved, 1 + input_count, &step, sizeof step};
        ran.told = &told;
        finish_op(ran, record_it);
    }
    if (activations) *activations = std::move(kept);
    return out;
}

}  // namespace

LSTMState lstm_step(const char* op, const GateSource* sources, int source_count, const Tensor* const* children_c, int children, const Loc& loc) {
    return step_of(op, sources, source_count, children_c, children, false, nullptr, loc);
}

LSTMState lstm_gates(In gates, In c, const Tensor& more) {
    const GateSource sources[] = {{&gates.tensor, kLstmLayout}, {&more, kLstmLayout}};
    const Tensor* const child[] = {&c.tensor};
    return lstm_step("lstm_gates", sources, more.defined() ? 2 : 1, child, 1, gates.loc);
}

LSTMState tree_lstm_gates(In gates, TensorList children_c) {
    const auto n = static_cast<int>(children_c.size);
    if (n > kMaxFusedChildren) {
        fail<ValueError>(gates.loc, "tree_lstm_gates: {} children, at most {} are possible", n, kMaxFusedChildren);
    }
    const Tensor* c[kMaxFusedChildren + 1];
    for (int k = 0; k < n; ++k) c[k] = children_c.begin() + k;
    const GateSource source{&gates.tensor, tree_layout(n)};
    return lstm_step("tree_lstm_gates", &source, 1, c, n, gates.loc);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// Numbers that form no layout give 0 blocks.
GateLayout layout_of(const int64_t* numbers, int children) {
    const int64_t blocks = numbers[0], step = numbers[3];
    bool fits = blocks >= 1 && blocks <= kMaxFusedChildren + 3 && (step == 0 || step == 1);
    for (const int k : {1, 2, 4, 5}) fits = fits && numbers[k] >= -1 && numbers[k] < blocks;
    if (!fits || (children > 0 && numbers[2] + (children - 1) * step >= blocks)) return {};
    const auto at = [&](int k) { return static_cast<std::int8_t>(numbers[k]); };
    return {static_cast<std::int32_t>(blocks), at(1), at(2), at(3), at(4), at(5)};
}

// True if each gate is in one or two of the sources.
bool have_gates(const GateSource* sources, int count, int children) {
    bool fits = sources[0].layout.input >= 0;
    for (int s = 0; s < count; ++s) fits = fits && sources[s].layout.blocks > 0;
    for (int g = 0; fits && g < children + 3; ++g) {
        const auto holders = std::count_if(sources, sources + count, [&](const GateSource& s) { return block_of(s.layout, g, children) >= 0; });
        fits = holders == 1 || holders == 2;
    }
    return fits;
}

// Returns the next operand, if there is one.
Tensor next(bool has, const FormCall& x, int& i) { return has ? x[i++] : Tensor(); }

// Takes the operands from x[first] on. Returns false if they are not valid.
bool take(const FormCall& x, int first, const Gates& a, GateSource* from, const Tensor** children, int& sources) {
    sources = x.count - first - a.children;
    if (a.children < 0 || a.children > kMaxFusedChildren || sources < 1 || sources > kMaxSources || std::ssize(a.layouts) != 6 * sources)
        return false;
    for (int s = 0; s < sources; ++s) from[s] = {&x[first + s], layout_of(a.layouts.data() + 6 * s, a.children)};
    for (int k = 0; k < a.children; ++k) children[k] = &x[first + sources + k];
    return have_gates(from, sources, a.children);
}

[[noreturn]] void fail_operands(const char* op, const FormCall& x, const Gates& a, const Loc& loc) {
    fail<ValueError>(loc, "{}: {} operands, with these layouts, do not hold the gates of {} children", op, x.count, a.children);
}

std::vector<Tensor> lstm_gates_of(const FormCall& x, const LstmCall& a) {
    const Loc loc = Loc::current();
    GateSource from[kMaxSources];
    const Tensor* children[kMaxFusedChildren + 1];
    int sources = 0;
    if (!take(x, 0, a, from, children, sources)) fail_operands("lstm_gates", x, a, loc);
    Tensor activations;
    std::vector<Tensor> results = both(step_of("lstm_gates", from, sources, children, a.children, a.keep_activations, &activations, loc));
    if (a.keep_activations) results.push_back(std::move(activations));
    return results;
}

std::vector<Tensor> lstm_gates_backward_of(const FormCall& x, const LstmBackwardCall& a) {
    const Loc loc = Loc::current();
    const int first = a.operands();
    GateSource from[kMaxSources];
    const Tensor* children[kMaxFusedChildren + 1];
    int sources = 0;
    if (!take(x, first, a, from, children, sources)) fail_operands("lstm_gates_backward", x, a, loc);
    int i = 0;
    const Tensor grad_h = next(a.has_grad_h, x, i), grad_c = next(a.has_grad_c, x, i), activations = next(a.has_activations, x, i);
    return backward_of(grad_h, grad_c, from, sources, children, a.children, activations, loc);
}

// Makes the step of operands from x[first] on that the kernels can take as they are, and their addresses. Returns false if they cannot.
bool take_plain(const FormCall& x, int first, const Gates& a, DType dtype, Step& step, const void** places) {
    GateSource from[kMaxSources];
    const Tensor* children[kMaxFusedChildren + 1];
    if (dtype != float32 && dtype != float64) return false;
    if (!take(x, first, a, from, children, step.sources)) return false;
    const TensorImpl* gates = from[0].tensor->impl();
    const int64_t columns = gates->rank > 0 ? gates->sizes[gates->rank - 1] : 0;
    step.children = a.children;
    step.width = columns / from[0].layout.blocks;
    if (step.width == 0 || columns % from[0].layout.blocks != 0) return false;
    step.rows = gates->numel / columns;
    for (int i = 0; i < step.sources + step.children; ++i) {
        if (i < step.sources) step.layouts[i] = from[i].layout;
        const TensorImpl* operand = x[first + i].impl();
        const int64_t blocks = i < step.sources ? from[i].layout.blocks : 1;
        if (!detail::is_plain(operand, dtype) || operand->numel != step.rows * step.width * blocks) return false;
        places[i] = operand->data;
    }
    return true;
}

bool lstm_gates_into(const FormCall& x, const Tensor& out) {
    const LstmCall& a = *static_cast<const LstmCall*>(x.attrs);
    const Tensor &h = out, &c = (&out)[1];
    const DType dtype = h.dtype();
    Step step;
    const void* places[kMaxSources + kMaxFusedChildren];
    if (!take_plain(x, 0, a, dtype, step, places)) return false;
    const int64_t numel = step.rows * step.width;
    const Tensor none, &kept = a.keep_activations ? (&out)[2] : none;
    if (!is_plain(h, dtype, numel) || !is_plain(c, dtype, numel)) return false;
    if (a.keep_activations && !is_plain(kept, dtype, numel * (step.children + 4))) return false;
    if (step.rows == 0) return true;
    with_element_type(dtype, [&]<class T>() { run<T>(step, places, h, c, kept); });
    return true;
}

bool lstm_gates_backward_into(const FormCall& x, const Tensor& out) {
    const LstmBackwardCall& a = *static_cast<const LstmBackwardCall*>(x.attrs);
    const DType dtype = out.dtype();
    Step step;
    const void* places[kMaxSources + kMaxFusedChildren];
    void* grads[kMaxSources + kMaxFusedChildren] = {};
    if (!(a.has_grad_h || a.has_grad_c) || !take_plain(x, a.operands(), a, dtype, step, places)) return false;
    const int64_t numel = step.rows * step.width;
    int first = 0;
    const Tensor grad_h = next(a.has_grad_h, x, first), grad_c = next(a.has_grad_c, x, first);
    Tensor kept = next(a.has_activations, x, first);
    for (const Tensor* t : {&grad_h, &grad_c}) {
        if (t->defined() && !is_plain(*t, dtype, numel)) return false;
    }
    if (kept.defined() && !is_plain(kept, dtype, numel * (step.children + 4))) return false;
    const Tensor* result = &out;
    for (int i = 0; i < step.sources + step.children; ++i) {
        if (i == 1 && shares_grad(step)) continue;
        const int64_t blocks = i < step.sources ? step.layouts[i].blocks : 1;
        if (!is_plain(*result, dtype, numel * blocks) || (i < step.sources && has_gap(step, i))) return false;
        grads[i] = (result++)->raw_data();
    }
    if (step.rows == 0) return true;
    with_element_type(dtype, [&]<class T>() {
        if (!kept.defined()) {
            kept = detail::make_empty({step.rows, step.children + 4, step.width}, dtype, cpu, Loc{});
            run<T>(step, places, Tensor(), Tensor(), kept);
        }
        run_backward<T>(step, kept, grad_h, grad_c, places + step.sources, grads);
    });
    return true;
}

void gate_fields(Fields& f, Gates& a) { f("children", a.children)("layouts", a.layouts); }
void backward_fields(Fields& f, LstmBackwardCall& a) {
    gate_fields(f, a);
    f("has_grad_h", a.has_grad_h)("has_grad_c", a.has_grad_c)("has_activations", a.has_activations);
}

// Returns the state's type. The operands from t[first] on: sources of gates, then the children's c.
ValueType state_type(const TypeCall& t, int first, const Gates& a) {
    using namespace types;
    const int sources = t.count - first - a.children;
    need<ValueError>(sources >= 1 && sources <= kMaxSources && std::ssize(a.layouts) == 6 * sources, "the operands do not fit the layouts");
    ValueType state = t[first];
    for (int s = 0; s < sources; ++s) {
        const ValueType& source = t[first + s];
        const int64_t* layout = a.layouts.data() + std::ptrdiff_t{6} * s;
        const SymInt blocks = layout[0];
        if (s == 0) state = shaped(source, leading(source, 1, {quotient(size_of(source, -1), blocks)}));
        const bool is_of_forgets = layout[1] < 0;
        const std::vector<SymInt> wanted =
            is_of_forgets ? leading(state, 1, {blocks, size_of(state, -1)}) : leading(state, 1, {blocks * size_of(state, -1)});
        need(may_equal(source.shape, wanted), "a part of the gates has another shape");
    }
    for (int k = first + sources; k < t.count; ++k) need(may_equal(t[k].shape, state.shape), "c has not the state's shape");
    return state;
}

ValueType activations_type(const ValueType& state, int children) {
    const SymInt &width = types::size_of(state, -1), rows = width == SymInt(0) ? SymInt(0) : types::product(types::leading(state, 1));
    return types::shaped(state, {rows, children + 4, width}, computed_in(state.dtype));
}

ResultTypes types_of(const TypeCall& t, const LstmCall& a) {
    const ValueType state = state_type(t, 0, a);
    ResultTypes results{state, state};
    if (a.keep_activations) results.push_back(activations_type(state, a.children));
    return results;
}

// Returns the types of the gradients of the sources (two of one layout: once), and of the children's c.
ResultTypes types_of(const TypeCall& t, const LstmBackwardCall& a) {
    const int first = a.operands(), grads = a.has_grad_h + a.has_grad_c;
    const ValueType state = state_type(t, first, a);
    for (int i = 0; i < grads; ++i) types::need(may_equal(t[i].shape, state.shape), "a gradient has not the state's shape");
    if (a.has_activations) types::need(may_equal(t[grads].shape, activations_type(state, a.children).shape), "the activations have another shape");
    const bool is_shared = std::ssize(a.layouts) == 12 && std::equal(a.layouts.begin(), a.layouts.begin() + 6, a.layouts.begin() + 6);
    ResultTypes results;
    for (int i = first; i < t.count; ++i) {
        if (!(is_shared && i == first + 1)) results.push_back(types::same(t[i], state.dtype));
    }
    return results;
}

}  // namespace

TAPIR_INTO_FORM(lstm_gates, Operands::from(1), LstmCall, types_of(t, a), lstm_gates_of(x, a), lstm_gates_into,
                (gate_fields(f, a), f("keep_activations", a.keep_activations)));
TAPIR_INTO_FORM(lstm_gates_backward, Operands::from(1), LstmBackwardCall, types_of(t, a), lstm_gates_backward_of(x, a), lstm_gates_backward_into,
                backward_fields(f, a));

}  // namespace tapir
