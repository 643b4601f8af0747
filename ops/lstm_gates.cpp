// The LSTM step of any number of forget gates: LSTMCell, Tree-LSTM leaves and nodes.
#include <algorithm>
#include <new>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/copy.h"
#include "tapir/ops/kernels/recurrent.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/make.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/recurrent_impl.h"
#include "tapir/ops/view.h"

namespace tapir {
namespace {

using std::int64_t;

constexpr int kMaxSources = 3;

struct Step {
    GateLayout layouts[kMaxSources];
    int sources, children;
    int64_t rows, width;
};

// What a graph knows of it: operands are the sources, then the children's c. layouts: of each source the six numbers of its
// GateLayout, in their order.
struct Call {
    int children = 1;
    std::vector<int64_t> layouts = {4, 0, 1, 0, 3, 2};
};

void lstm_gates_rule(Backward& b);

// For the samples.
std::vector<Tensor> both(const LSTMState& state) { return {state.h, state.c}; }
Tensor add_both(const LSTMState& state) { return state.h + state.c; }

}  // namespace

TAPIR_OP(lstm_gates, NoOnnx("Split, Sigmoid, Tanh, Mul, Add"), lstm_gates_rule,
         "All gates of an LSTM or Tree-LSTM step; the results are h and c.",
         TAPIR_SAMPLE_AS("f(2,12) f(2,3)",
                         "(lambda g, c: (lambda d: (sigmoid(g[:, 9:]) * tanh(d), d))"
                         "(sigmoid(g[:, 3:6]) * c + sigmoid(g[:, :3]) * tanh(g[:, 6:9])))(x[0], x[1])",
                         both(lstm_gates(x[0], x[1]))),
         TAPIR_SAMPLE_AS("f(2,12) f(2,3) f(2,12)",
                         "(lambda g, c: (lambda d: (sigmoid(g[:, 9:]) * tanh(d), d))"
                         "(sigmoid(g[:, 3:6]) * c + sigmoid(g[:, :3]) * tanh(g[:, 6:9])))(x[0] + x[2], x[1])",
                         both(lstm_gates(x[0], x[1], x[2]))),
         TAPIR_SAMPLE_AS("f(9)",
                         "(lambda g: (lambda d: sigmoid(g[3:6]) * tanh(d) + d)(sigmoid(g[:3]) * tanh(g[6:])))(x[0])",
                         add_both(tree_lstm_gates(x[0], {}))),
         TAPIR_SAMPLE_AS("f(2,15) f(2,3) f(2,3)",
                         "(lambda g, a, b: (lambda d: (sigmoid(g[:, 9:12]) * tanh(d), d))(sigmoid(g[:, :3]) * "
                         "tanh(g[:, 12:]) + sigmoid(g[:, 3:6]) * a + sigmoid(g[:, 6:9]) * b))(x[0], x[1], x[2])",
                         both(tree_lstm_gates(x[0], {x[1], x[2]}))));

namespace {

// As many tensors as are put in, on the stack.
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

// The shape of the state that the first source's shape implies.
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
    if (x.device() != gates.device()) detail::check_same_device(op, gates, x, loc);
}

// Of a source: (..., blocks * h), or (..., blocks, h) where it holds nothing but one forget gate to a child.
Shape source_shape(const Shape& state, const GateLayout& layout, const Loc& loc) {
    Shape shape = state;
    if (layout.input < 0) {
        shape.insert(shape.rank() - 1, layout.blocks, loc);
    } else {
        shape.raw(shape.rank() - 1) *= layout.blocks;
    }
    return shape;
}

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
    const Args args{step.rows, step.width, step.children, gates, child, static_cast<T*>(h.raw_data()),
                    static_cast<T*>(c.raw_data()),
                    kept.defined() ? static_cast<kernels::Kept<T>*>(kept.raw_data()) : nullptr};
    if (on_gpu(h)) return step.rows > 0 ? gpu::lstm_gates(args) : void();
    if constexpr (sizeof(T) > 2) {
        const int64_t row_cost = step.width * (step.children + 3);
        if (step.rows * row_cost < 32 * 1024) return kernels::lstm_gates(args, 0, step.rows);
        parallel_for(step.rows, 32 * 1024 / (row_cost + 1) + 1,
                     [&](int64_t begin, int64_t end) { kernels::lstm_gates(args, begin, end); });
    }
}

// --- The same with public ops ----------------------------------------------------------------------------------------------

// Block `block` of a source as (..., h).
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

// Each gate, activated, in the order i, f_1 ... f_n, o, u; then c, then tanh(c).
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

// saved: the kept activations, the sources, the children's c.
void recorded_rule(Backward& b, const Step& step) {
    std::vector<Tensor> sources, children;
    std::vector<const Tensor*> c;
    for (int s = 0; s < step.sources; ++s) sources.push_back(b.saved(1 + s));
    for (int k = 0; k < step.children; ++k) children.push_back(b.saved(1 + step.sources + k));
    for (const Tensor& child : children) c.push_back(&child);
    const std::vector<Tensor> gates = activate(step, sources.data(), c.data());
    const auto n = static_cast<std::size_t>(step.children);
    const Tensor &i = gates[0], &o = gates[n + 1], &u = gates[n + 2], &tanh_c = gates[n + 4];
    const Tensor grad_h = b.grad_or_zeros(0);
    const Tensor grad_c = b.grad_or_zeros(1) + grad_h * o * (1 - square(tanh_c));
    std::vector<Tensor> grads(n + 3);  // of the pre-activations
    grads[0] = grad_c * u * i * (1 - i);
    for (std::size_t k = 0; k < n; ++k) {
        const Tensor& f = gates[1 + k];
        grads[1 + k] = grad_c * children[k] * f * (1 - f);
        b.give(step.sources + static_cast<int>(k), grad_c * f);
    }
    grads[n + 1] = grad_h * tanh_c * o * (1 - o);
    grads[n + 2] = grad_c * i * (1 - square(u));
    for (int s = 0; s < step.sources; ++s) {
        if (!b.needs(s)) continue;
        std::vector<Tensor> blocks(static_cast<std::size_t>(step.layouts[s].blocks));
        for (std::size_t g = 0; g < n + 3; ++g) {
            const int block = block_of(step.layouts[s], static_cast<int>(g), step.children);
            if (block < 0) continue;
            Tensor& place = blocks[static_cast<std::size_t>(block)];
            place = place.defined() ? place + grads[g] : grads[g];
        }
        for (Tensor& block : blocks) {  // a shared forget gate without children
            if (!block.defined()) block = zeros(i.shape(), {i.dtype(), i.device()});
        }
        b.give(s, step.layouts[s].input < 0 ? stack(blocks, -2) : cat(blocks, -1));
    }
}

template <class T>
void fused_rule(Backward& b, const Step& step, DType dtype) {
    using Args = kernels::LstmGatesBackward<T>;
    typename Args::Gate gates[kMaxFusedChildren + 3];
    typename Args::Child child[kMaxFusedChildren];
    Handles grads, child_c;  // grads: of the sources, then of the children's c; undefined where not needed
    const Tensor kept = b.saved(0);
    const Tensor grad_h = b.grad(0).defined() ? ready(b.grad(0), dtype) : Tensor();
    const Tensor grad_c = b.grad(1).defined() ? ready(b.grad(1), dtype) : Tensor();
    // Two sources of one layout are only added up: one gradient is both's.
    const bool shares_grad = step.sources == 2 && step.layouts[0] == step.layouts[1] && b.needs(0) && b.needs(1);
    for (int s = 0; s < step.sources; ++s) {
        Tensor& grad = grads.push(Tensor());
        if (!b.needs(s) || (shares_grad && s == 1)) continue;
        grad = detail::make_empty(b.input_shape(s), dtype, kept.device(), b.record().loc);
        const bool has_gap = step.layouts[s].forget_step == 0 && step.layouts[s].forget >= 0 && step.children == 0;
        if (has_gap) grad.zero_();
    }
    for (int g = 0; g < step.children + 3; ++g) {
        typename Args::Gate& gate = gates[g];
        gate = {nullptr, nullptr, 0, 0, false};
        for (int s = 0; s < step.sources; ++s) {
            const GateLayout& layout = step.layouts[s];
            const int block = block_of(layout, g, step.children);
            if (block < 0 || !grads[s].defined()) continue;
            T* place = static_cast<T*>(grads[s].raw_data()) + block * step.width;
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
        const Tensor& c = child_c.push(ready(b.saved(1 + step.sources + k), dtype));
        Tensor& grad = grads.push(Tensor());
        if (b.needs(step.sources + k)) grad = detail::make_empty_like(c.impl(), dtype, b.record().loc);
        child[k] = {static_cast<const T*>(c.raw_data()), grad.defined() ? static_cast<T*>(grad.raw_data()) : nullptr, step.width};
    }
    const auto data = [](const Tensor& t) { return t.defined() ? static_cast<const T*>(t.raw_data()) : nullptr; };
    const auto* activations = static_cast<const kernels::Kept<T>*>(kept.raw_data());
    const Args args{step.rows, step.width, step.children, gates, child, activations, data(grad_h), data(grad_c)};
    if (on_gpu(kept)) {
        for (const Tensor* t : {&kept, &grad_h, &grad_c}) on_stream(*t);
        for (int k = 0; k < step.children; ++k) on_stream(child_c[k]);
        for (int i = 0; i < step.sources + step.children; ++i) on_stream(grads[i]);
        if (step.rows > 0) gpu::lstm_gates_backward(args);
    } else if constexpr (sizeof(T) > 2) {
        const int64_t row_cost = step.width * (step.children + 3);
        parallel_for(step.rows, 64 * 1024 / (row_cost + 1) + 1,
                     [&](int64_t begin, int64_t end) { kernels::lstm_gates_backward(args, begin, end); });
    }
    if (shares_grad) grads[1] = grads[0];
    for (int i = 0; i < step.sources + step.children; ++i) b.give(i, std::move(grads[i]));
}

void lstm_gates_rule(Backward& b) {
    const Step& step = b.attrs<Step>();
    if (b.recording()) return recorded_rule(b, step);
    const DType dtype = on_gpu(b.saved(0)) ? b.output_dtype() : computed_in(b.output_dtype());
    with_element_type(dtype, [&]<class T>() { fused_rule<T>(b, step, dtype); });
}

// --- The op ----------------------------------------------------------------------------------------------------------------------

// Checks the operands; `shape` becomes the state's.
Step checked_step(const char* op, const GateSource* sources, int source_count, const Tensor* const* children_c, int children,
                  Shape& shape, const Loc& loc) {
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

LSTMState step_with_ops(const Step& step, const GateSource* sources, const Tensor* const* children_c, const Loc& loc) {
    const detail::RecordedParts parts(loc);
    Tensor tensors[kMaxSources];
    for (int s = 0; s < step.sources; ++s) tensors[s] = *sources[s].tensor;
    const std::vector<Tensor> gates = activate(step, tensors, children_c);
    const auto n = static_cast<std::size_t>(step.children);
    return {gates[n + 1] * gates[n + 4], gates[n + 3]};
}

}  // namespace

LSTMState lstm_step(const char* op, const GateSource* sources, int source_count, const Tensor* const* children_c,
                    int children, const Loc& loc) {
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
        if (any) return lstm_step(op, sources, source_count, states.data(), children, loc);
    }
    Shape shape;
    const Step step = checked_step(op, sources, source_count, children_c, children, shape, loc);
    const Tensor& gates = *sources[0].tensor;
    const DType dtype = gates.dtype(), read = read_in(gates);
    if (children > kMaxFusedChildren) return step_with_ops(step, sources, children_c, loc);

    const Tensor* inputs[kMaxSources + kMaxFusedChildren];
    const void* places[kMaxSources + kMaxFusedChildren];
    Handles converted;
    Log* log = detail::thread.log;
    bool record_it = false;
    const int input_count = source_count + children;
    for (int i = 0; i < input_count; ++i) {
        inputs[i] = i < source_count ? sources[i].tensor : children_c[i - source_count];
        record_it |= log && tracked(inputs[i]->impl(), *log, loc);
        const bool is_ready = dtype == read && inputs[i]->is_contiguous();
        places[i] = is_ready ? inputs[i]->raw_data() : converted.push(ready(*inputs[i], read)).raw_data();
    }
    for (int i = 0; i < input_count; ++i) detail::begin_op(op, inputs[i]->impl(), loc);
    Tensor kept;
    if (record_it) kept = detail::make_empty({step.rows, children + 4, step.width}, computed_in(dtype), gates.device(), loc);
    const int64_t numel = step.rows * step.width;
    const auto fresh = [&] { return detail::make_empty(shape.data(), shape.rank(), numel, read, gates.device(), loc); };
    LSTMState out{fresh(), fresh()};
    with_element_type(read, [&]<class T>() { run<T>(step, places, out.h, out.c, kept); });
    if (dtype != read) {
        const detail::UnrecordedParts parts;
        out = {out.h.to(dtype), out.c.to(dtype)};
    }
    if (detail::thread.observed) {
        const Tensor* saved[1 + kMaxSources + kMaxFusedChildren];
        saved[0] = &kept;
        for (int i = 0; i < input_count; ++i) saved[1 + i] = inputs[i];
        TensorImpl* const outputs[] = {out.h.impl(), out.c.impl()};
        Call call{children, {}};
        if (detail::is_watched()) {
            for (int s = 0; s < source_count; ++s) {
                const GateLayout& l = step.layouts[s];
                for (const int number : {l.blocks, +l.input, +l.forget, +l.forget_step, +l.output, +l.update}) call.layouts.push_back(number);
            }
        }
        const RecordArgs told{lstm_gates_op, loc, inputs, input_count, outputs, 2, nullptr, 0, &call, sizeof call};
        RecordArgs ran{lstm_gates_op, loc, inputs, input_count, outputs, 2, saved, 1 + input_count, &step, sizeof step};
        ran.told = &told;
        finish_op(ran, record_it);
    }
    return out;
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

// Numbers that are no layout leave blocks 0.
GateLayout layout_of(const int64_t* numbers, int children) {
    const int64_t blocks = numbers[0], step = numbers[3];
    bool fits = blocks >= 1 && blocks <= kMaxFusedChildren + 3 && (step == 0 || step == 1);
    for (const int k : {1, 2, 4, 5}) fits = fits && numbers[k] >= -1 && numbers[k] < blocks;
    if (!fits || (children > 0 && numbers[2] + (children - 1) * step >= blocks)) return {};
    const auto at = [&](int k) { return static_cast<std::int8_t>(numbers[k]); };
    return {static_cast<std::int32_t>(blocks), at(1), at(2), at(3), at(4), at(5)};
}

// Whether each gate is in one or two of the sources.
bool have_gates(const GateSource* sources, int count, int children) {
    bool fits = sources[0].layout.input >= 0;
    for (int s = 0; s < count; ++s) fits = fits && sources[s].layout.blocks > 0;
    for (int g = 0; fits && g < children + 3; ++g) {
        const auto holders = std::count_if(sources, sources + count, [&](const GateSource& s) { return block_of(s.layout, g, children) >= 0; });
        fits = holders == 1 || holders == 2;
    }
    return fits;
}

std::vector<Tensor> lstm_gates_of(const FormCall& x, const Call& a) {
    const Loc loc = Loc::current();
    const int sources = x.count - a.children;
    bool fits = a.children >= 0 && a.children <= kMaxFusedChildren && sources >= 1 && sources <= kMaxSources && std::ssize(a.layouts) == 6 * sources;
    GateSource from[kMaxSources];
    const Tensor* children[kMaxFusedChildren + 1];
    for (int s = 0; fits && s < sources; ++s) from[s] = {&x[s], layout_of(a.layouts.data() + 6 * s, a.children)};
    if (!fits || !have_gates(from, sources, a.children)) {
        fail<ValueError>(loc, "lstm_gates: {} operands, with these layouts, do not hold the gates of {} children", x.count, a.children);
    }
    for (int k = 0; k < a.children; ++k) children[k] = &x[sources + k];
    return both(lstm_step("lstm_gates", from, sources, children, a.children, loc));
}

bool lstm_gates_into(const FormCall& x, const Tensor& out) {
    const Call& a = *static_cast<const Call*>(x.attrs);
    const int sources = x.count - a.children;
    const TensorImpl *h = out.impl(), *c = (&out)[1].impl();
    const DType dtype = h->dtype;
    bool fits = a.children >= 0 && a.children <= kMaxFusedChildren && sources >= 1 && sources <= kMaxSources &&
                std::ssize(a.layouts) == 6 * sources && (dtype == float32 || dtype == float64) && detail::is_plain(c, dtype) && h->rank > 0 &&
                h->sizes[h->rank - 1] > 0 && c->numel == h->numel;
    if (!fits) return false;
    const int64_t width = h->sizes[h->rank - 1];
    Step step{{}, sources, a.children, h->numel / width, width};
    GateSource from[kMaxSources];
    const void* places[kMaxSources + kMaxFusedChildren];
    for (int i = 0; i < x.count; ++i) {
        const TensorImpl* operand = x[i].impl();
        int64_t blocks = 1;
        if (i < sources) {
            from[i].layout = step.layouts[i] = layout_of(a.layouts.data() + 6 * i, a.children);
            blocks = step.layouts[i].blocks;
        }
        if (!detail::is_plain(operand, dtype) || operand->numel != step.rows * width * blocks) return false;
        places[i] = operand->data;
    }
    if (!have_gates(from, sources, a.children)) return false;
    if (step.rows == 0) return true;
    with_element_type(dtype, [&]<class T>() { run<T>(step, places, out, (&out)[1], Tensor()); });
    return true;
}

}  // namespace

TAPIR_INTO_FORM(lstm_gates, Call, lstm_gates_of(x, a), lstm_gates_into, f("children", a.children)("layouts", a.layouts));

}  // namespace tapir
