// The gates of a GRU step.
#include "tapir/ops/recurrent/gru_gates.h"
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
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/recurrent/recurrent_impl.h"
#include "tapir/ops/recurrent/recurrent_kernels.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_impl.h"

namespace tapir {
namespace {

using std::int64_t;

// keep_activations: makes the activations, which a gradient would compute again, the second result, (rows, 3, width) as
// kernels::GruGates says. No gradient flows back through it.
struct GruCall {
    bool keep_activations = false;
};
struct GruBackwardCall {
    bool has_activations = false;  // an operand after the gradient
};

void gru_gates_rule(Backward& b);
void gru_gates_backward_rule(Backward& b);
std::vector<Tensor> gru_gates_backward(const In& g, const Tensor& x, const Tensor& y, const Tensor& h, const Tensor& activations = {});

}  // namespace

TAPIR_OP(gru_gates, gru_gates_rule, "All gates of a GRU step.",
         TAPIR_SAMPLE_AS("f(2,9) f(2,9) f(2,3)",
                         "(lambda a, b, h: (lambda z, n: (1 - z) * n + z * h)(sigmoid(a[:, 3:6] + b[:, 3:6]), "
                         "tanh(a[:, 6:] + sigmoid(a[:, :3] + b[:, :3]) * b[:, 6:])))(x[0], x[1], x[2])",
                         gru_gates(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS("f(6) f(6) f(2)",
                         "(lambda a, b, h: (lambda z, n: (1 - z) * n + z * h)(sigmoid(a[2:4] + b[2:4]), "
                         "tanh(a[4:] + sigmoid(a[:2] + b[:2]) * b[4:])))(x[0], x[1], x[2])",
                         gru_gates(x[0], x[1], x[2])));
// As an op of its own, the recorded rule is one node in the graph of a gradient.
TAPIR_OP(gru_gates_backward, gru_gates_backward_rule, "The gradients of gru_gates: of the input's gates, the state's gates and the state.",
         TAPIR_SAMPLE_AS("f(2,3) f(2,9) f(2,9) f(2,3)",
                         "torch.autograd.functional.vjp(lambda a, b, h: (lambda z, n: (1 - z) * n + z * h)(sigmoid(a[:, 3:6] + b[:, 3:6]), "
                         "tanh(a[:, 6:] + sigmoid(a[:, :3] + b[:, :3]) * b[:, 6:])), (x[1], x[2], x[3]), x[0])[1]",
                         gru_gates_backward(x[0], x[1], x[2], x[3])),
         TAPIR_SAMPLE_AS("f(2) f(6) f(6) f(2)",
                         "torch.autograd.functional.vjp(lambda a, b, h: (lambda z, n: (1 - z) * n + z * h)(sigmoid(a[2:4] + b[2:4]), "
                         "tanh(a[4:] + sigmoid(a[:2] + b[:2]) * b[4:])), (x[1], x[2], x[3]), x[0])[1]",
                         gru_gates_backward(x[0], x[1], x[2], x[3])));

namespace {

template <class T>
void run(int64_t rows, int64_t width, const Tensor& x, const Tensor& y, const Tensor& h, const Tensor& out, const Tensor& kept) {
    const kernels::GruGates<T> args{
        width, kernel_data<T>(x), kernel_data<T>(y), kernel_data<T>(h), kernel_data<T>(out), kernel_data<kernels::Kept<T>>(kept)};
    TAPIR_LAUNCH(out, rows, 3 * width * kGateWork, gru_gates, args);
}

template <class T>
void run_backward(int64_t rows, int64_t width, const Tensor& kept, const Tensor& y, const Tensor& h, const Tensor& grad, const Tensor (&out)[3]) {
    const auto* activations = kernel_data<kernels::Kept<T>>(kept);
    const kernels::GruGatesBackward<T> args{width,
                                            activations,
                                            kernel_data<T>(y),
                                            kernel_data<T>(h),
                                            kernel_data<T>(grad),
                                            kernel_data<T>(out[0]),
                                            kernel_data<T>(out[1]),
                                            kernel_data<T>(out[2])};
    TAPIR_LAUNCH(kept, rows, 3 * width * kGateGradientWork, gru_gates_backward, args);
}

// Returns the gradients of x, y and h.
std::vector<Tensor> gradients_of_ops(const Tensor& g, const Tensor& x, const Tensor& y, const Tensor& h) {
    const int64_t width = h.size(-1);
    const auto part = [width](const Tensor& gates, int64_t k) { return narrow(gates, -1, k * width, width); };
    const Tensor r = sigmoid(part(x, 0) + part(y, 0)), z = sigmoid(part(x, 1) + part(y, 1)), y_n = part(y, 2);
    const Tensor n = tanh(part(x, 2) + r * y_n);
    const Tensor grad_n = g * (1 - z) * (1 - square(n));
    const Tensor grad_z = g * (h - n) * z * (1 - z);
    const Tensor grad_r = grad_n * y_n * r * (1 - r);
    return {cat({grad_r, grad_z, grad_n}, -1), cat({grad_r, grad_z, grad_n * r}, -1), g * z};
}

// saved: the inputs
void gru_gates_backward_rule(Backward& b) {
    const int more = b.attrs<GruBackwardCall>().has_activations;
    differentiate(b, [&](const std::vector<Tensor>& in) {
        const Tensor* const of_step = in.data() + 1 + more;
        return gradients_of_ops(in[0], of_step[0], of_step[1], of_step[2]);
    });
}

// saved: r, z, n; then the inputs
void gru_gates_rule(Backward& b) {
    if (b.recording()) {
        const std::vector<Tensor> gradients = gru_gates_backward(In(b.grad(), b.record().loc), b.saved(1), b.saved(2), b.saved(3), b.saved(0));
        for (std::size_t i = 0; i < gradients.size(); ++i) b.give(static_cast<int>(i), gradients[i]);
        return;
    }
    const Tensor kept = b.saved(0);
    const DType dtype = read_in(b.saved(3));
    const Tensor y = ready(b.saved(2), dtype), h = ready(b.saved(3), dtype), g = ready(b.grad(), dtype);
    const Tensor of_x = b.needs(0) ? room_for_gradient(b, 0, dtype) : detail::make_empty_like(y.impl(), dtype, b.record().loc);
    const Tensor out[] = {of_x, detail::make_empty_like(y.impl(), dtype, b.record().loc), detail::make_empty_like(h.impl(), dtype, b.record().loc)};
    const int64_t rows = kept.shape().raw(0), width = kept.shape().raw(2);
    with_element_type(dtype, [&]<class T>() { run_backward<T>(rows, width, kept, y, h, g, out); });
    for (int i = 0; i < 3; ++i) b.give(i, out[i]);
}

void check(const char* op, const Tensor& x, const char* what, const Tensor& h, DType dtype, const Shape& wanted, const Loc& loc) {
    if (x.shape() != wanted) fail<ShapeError>(loc, "{}: {} shape {}, expected {}", op, what, x.shape(), wanted);
    if (x.dtype() != dtype) fail<DTypeError>(loc, "{}: {} dtype {}, h has {}", op, what, name(x.dtype()), name(h.dtype()));
    detail::check_same_device(op, x, h, loc);
}

struct Sizes {
    int64_t rows, width;
};

Sizes checked_sizes(const char* op, const Tensor& x_gates, const Tensor& h_gates, const Tensor& h, const Loc& loc) {
    const DType dtype = h.dtype();
    if (!is_floating(dtype)) fail<DTypeError>(loc, "{}: needs a floating dtype, got {}; convert with to(float32)", op, name(dtype));
    if (h.dim() == 0) fail<ShapeError>(loc, "{}: h must have at least one dimension", op);
    Shape wanted = h.shape();
    const int64_t width = wanted.back();
    wanted.raw(wanted.rank() - 1) *= 3;
    check(op, x_gates, "the input's gates have", h, dtype, wanted, loc);
    check(op, h_gates, "the state's gates have", h, dtype, wanted, loc);
    return {width > 0 ? h.numel() / width : 0, width};
}

// activations: null, or a place for them, if they are kept; `keeps`: keeps them in every case.
Tensor step_of(const In& x_gates, const In& h_gates, const In& h, bool keeps, Tensor* activations) {
    const Loc& loc = x_gates.loc;
    for (const In& t : {x_gates, h_gates, h}) detail::check_defined(In(t.tensor, loc), "gru_gates");
    if (follows_gates(h.tensor, x_gates.tensor)) {
        return step_of(x_gates, h_gates, In(h.tensor.to(x_gates.tensor.dtype(), loc), loc), keeps, activations);
    }
    const DType dtype = h.tensor.dtype();
    const auto [rows, width] = checked_sizes("gru_gates", x_gates.tensor, h_gates.tensor, h.tensor, loc);

    if (detail::in_batch() && !keeps && !activations) [[unlikely]] {
        Tensor next;
        const auto rule = [&](const detail::Batched& in, Tensor* out) {
            out[0] = step_of(In(in[0], loc), In(in[1], loc), In(in[2], loc), false, nullptr);
        };
        if (detail::batched({gru_gates_op, loc, {&x_gates.tensor, &h_gates.tensor, &h.tensor}}, rule, {&next})) return next;
    }
    const DType read = read_in(h.tensor);
    const Tensor x = ready(x_gates.tensor, read, loc), y = ready(h_gates.tensor, read, loc), state = ready(h.tensor, read, loc);
    detail::begin_op("gru_gates", state.impl(), loc);
    Tensor kept, out = detail::make_empty_like(state.impl(), read, loc);
    const std::initializer_list<const Tensor*> inputs{&x_gates.tensor, &h_gates.tensor, &h.tensor};
    if (keeps || recording(loc, inputs)) kept = detail::make_empty({rows, 3, width}, computed_in(dtype), h.tensor.device(), loc);
    with_element_type(read, [&, rows = rows, width = width]<class T>() { run<T>(rows, width, x, y, state, out, kept); });
    if (dtype != read) {
        const detail::UnrecordedPartsOf parts(x_gates.loc);
        out = out.to(dtype);
    }
    const std::initializer_list<const Tensor*> saved{&kept, &x_gates.tensor, &h_gates.tensor, &h.tensor};
    if (kept.defined()) {
        record(gru_gates_op, loc, inputs, out, saved, nullptr, Told{gru_gates_op, inputs, {&out, &kept}}, GruCall{true});
    } else {
        record(gru_gates_op, loc, inputs, out, saved, nullptr, Told{gru_gates_op, inputs}, GruCall{});
    }
    if (activations) *activations = std::move(kept);
    return out;
}

// activations: the kept ones; undefined: they are computed again.
std::vector<Tensor> gru_gates_backward(const In& g, const Tensor& x, const Tensor& y, const Tensor& h, const Tensor& activations) {
    constexpr const char* op = "gru_gates_backward";
    for (const Tensor* t : {&g.tensor, &x, &y, &h}) detail::check_defined(In(*t, g.loc), op);
    const DType dtype = h.dtype(), read = read_in(h);
    const auto [rows, width] = checked_sizes(op, x, y, h, g.loc);
    const Shape kept_shape{rows, 3, width};
    check(op, g.tensor, "the gradient has", h, dtype, h.shape(), g.loc);
    if (activations.defined()) check(op, activations, "the activations have", h, computed_in(dtype), kept_shape, g.loc);
    std::vector<Tensor> results;
    {
        const detail::UnrecordedPartsOf parts(g.loc);
        const Tensor from = ready(g.tensor, read), x_gates = ready(x, read), h_gates = ready(y, read), state = ready(h, read);
        detail::begin_op(op, state.impl(), g.loc);
        const Tensor out[] = {detail::make_empty_like(h_gates.impl(), read, g.loc), detail::make_empty_like(h_gates.impl(), read, g.loc),
                              detail::make_empty_like(state.impl(), read, g.loc)};
        const Tensor kept = activations.defined() ? activations.contiguous() : detail::make_empty(kept_shape, computed_in(dtype), h.device(), g.loc);
        with_element_type(read, [&, rows = rows, width = width]<class T>() {
            if (!activations.defined()) run<T>(rows, width, x_gates, h_gates, state, out[2], kept);
            run_backward<T>(rows, width, kept, h_gates, state, from, out);
        });
        for (const Tensor& result : out) results.push_back(result.to(dtype));
    }
    if (!detail::thread.observed) return results;
    std::vector<Tensor> inputs = {g.tensor};
    if (activations.defined()) inputs.push_back(activations);
    inputs.insert(inputs.end(), {x, y, h});
    const GruBackwardCall call{activations.defined()};
    record_many(gru_gates_backward_op, g.loc, inputs, results, inputs, call, call);
    return results;
}

}  // namespace

Tensor gru_gates(In x_gates, In h_gates, In h) { return step_of(x_gates, h_gates, h, false, nullptr); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

std::vector<Tensor> gru_gates_of(const FormCall& x, const GruCall& a) {
    Tensor activations;
    std::vector<Tensor> results = {step_of(x[0], x[1], x[2], a.keep_activations, &activations)};
    if (a.keep_activations) results.push_back(std::move(activations));
    return results;
}

std::vector<Tensor> gru_gates_backward_of(const FormCall& x, const GruBackwardCall& a) {
    const int i = a.has_activations;
    return gru_gates_backward(x[0], x[i + 1], x[i + 2], x[i + 3], a.has_activations ? x[1] : Tensor());
}

// Returns the sizes of operands from x[first] on, if the kernels can take them as they are; otherwise a width of 0.
Sizes plain_sizes(const FormCall& x, int first, DType dtype) {
    const Tensor& h = x[first + 2];
    const int64_t width = h.dim() > 0 ? h.impl()->sizes[h.dim() - 1] : 0, numel = h.numel();
    const bool fits = (dtype == float32 || dtype == float64) && width > 0 && is_plain(h, dtype, numel) && is_plain(x[first], dtype, 3 * numel) &&
        is_plain(x[first + 1], dtype, 3 * numel);
    return fits ? Sizes{numel / width, width} : Sizes{0, 0};
}

bool gru_gates_into(const FormCall& x, const Tensor& out) {
    const GruCall& a = *static_cast<const GruCall*>(x.attrs);
    const DType dtype = out.dtype();
    const auto [rows, width] = plain_sizes(x, 0, dtype);
    const Tensor none, &kept = a.keep_activations ? (&out)[1] : none;
    if (width == 0 || !is_plain(out, dtype, rows * width) || (a.keep_activations && !is_plain(kept, dtype, 3 * rows * width))) return false;
    with_element_type(dtype, [&, rows = rows, width = width]<class T>() { run<T>(rows, width, x[0], x[1], x[2], out, kept); });
    return true;
}

bool gru_gates_backward_into(const FormCall& x, const Tensor& first) {
    const GruBackwardCall& a = *static_cast<const GruBackwardCall*>(x.attrs);
    const DType dtype = first.dtype();
    const int i = 1 + a.has_activations;
    const auto [rows, width] = plain_sizes(x, i, dtype);
    const int64_t numel = rows * width;
    const Tensor out[] = {first, (&first)[1], (&first)[2]};
    if (width == 0 || !is_plain(x[0], dtype, numel) || (a.has_activations && !is_plain(x[1], dtype, 3 * numel))) return false;
    if (!is_plain(out[0], dtype, 3 * numel) || !is_plain(out[1], dtype, 3 * numel) || !is_plain(out[2], dtype, numel)) return false;
    const Tensor kept = a.has_activations ? x[1] : detail::make_empty({rows, 3, width}, dtype, cpu, Loc{});
    with_element_type(dtype, [&, rows = rows, width = width]<class T>() {
        if (!a.has_activations) run<T>(rows, width, x[i], x[i + 1], x[i + 2], out[2], kept);
        run_backward<T>(rows, width, kept, x[i + 1], x[i + 2], x[0], out);
    });
    return true;
}

// Returns the type of the state; gates have three times as many elements; the operands are x's gates, h's, h.
const ValueType& state_type(const TypeCall& t, int first) {
    const ValueType& h = t[first + 2];
    const std::vector<SymInt> gates = types::leading(h, 1, {SymInt(3) * types::size_of(h, -1)});
    types::need(may_equal(t[first].shape, gates) && may_equal(t[first + 1].shape, gates), "needs three gates for each element of h");
    return h;
}

ValueType activations_type(const ValueType& h) {
    const SymInt &width = types::size_of(h, -1), rows = width == SymInt(0) ? SymInt(0) : types::product(types::leading(h, 1));
    return types::shaped(h, {rows, 3, width}, computed_in(h.dtype));
}

ResultTypes types_of(const TypeCall& t, const GruCall& a) {
    const ValueType& h = state_type(t, 0);
    return a.keep_activations ? ResultTypes{h, activations_type(h)} : ResultTypes(h);
}

ResultTypes types_of(const TypeCall& t, const GruBackwardCall& a) {
    const ValueType& h = state_type(t, 1 + a.has_activations);
    types::need(may_equal(t[0].shape, h.shape), "the gradient has not the state's shape");
    if (a.has_activations) types::need(may_equal(t[1].shape, activations_type(h).shape), "the activations have another shape");
    const ValueType gates = types::same(t[1 + a.has_activations], h.dtype);
    return {gates, gates, h};
}

}  // namespace

TAPIR_INTO_FORM(gru_gates, Operands::from(1), GruCall, types_of(t, a), gru_gates_of(x, a), gru_gates_into, f("keep_activations", a.keep_activations));
TAPIR_INTO_FORM(gru_gates_backward, Operands::from(1), GruBackwardCall, types_of(t, a), gru_gates_backward_of(x, a), gru_gates_backward_into,
                f("has_activations", a.has_activations));

}  // namespace tapir
