// The gates of a GRU step.
#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/copy.h"
#include "tapir/ops/kernels/recurrent.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/recurrent_impl.h"
#include "tapir/ops/view.h"

namespace tapir {
namespace {

using std::int64_t;

void gru_gates_rule(Backward& b);

}  // namespace

TAPIR_OP(gru_gates, NoOnnx("Split, Sigmoid, Tanh, Mul, Add"), gru_gates_rule, "All gates of a GRU step.",
         TAPIR_SAMPLE_AS("f(2,9) f(2,9) f(2,3)",
                         "(lambda a, b, h: (lambda z, n: (1 - z) * n + z * h)(sigmoid(a[:, 3:6] + b[:, 3:6]), "
                         "tanh(a[:, 6:] + sigmoid(a[:, :3] + b[:, :3]) * b[:, 6:])))(x[0], x[1], x[2])",
                         gru_gates(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS("f(6) f(6) f(2)",
                         "(lambda a, b, h: (lambda z, n: (1 - z) * n + z * h)(sigmoid(a[2:4] + b[2:4]), "
                         "tanh(a[4:] + sigmoid(a[:2] + b[:2]) * b[4:])))(x[0], x[1], x[2])",
                         gru_gates(x[0], x[1], x[2])));

namespace {

int64_t grain(int64_t width) { return 16 * 1024 / (width + 1) + 1; }

template <class T>
void run(int64_t rows, int64_t width, const Tensor& x, const Tensor& y, const Tensor& h, const Tensor& out,
         const Tensor& kept) {
    const auto data = [](const Tensor& t) { return static_cast<T*>(t.raw_data()); };
    const kernels::GruGates<T> args{rows,    width,     data(x), data(y),
                                    data(h), data(out), static_cast<kernels::Kept<T>*>(kept.raw_data())};
    if (on_gpu(out)) {
        for (const Tensor* t : {&x, &y, &h}) on_stream(*t);
        if (rows > 0) gpu::gru_gates(args);
    } else if constexpr (sizeof(T) > 2) {
        parallel_for(rows, grain(width), [&](int64_t begin, int64_t end) { kernels::gru_gates(args, begin, end); });
    }
}

template <class T>
void run_backward(int64_t rows, int64_t width, const Tensor& kept, const Tensor& y, const Tensor& h, const Tensor& grad,
                  const Tensor (&out)[3]) {
    const auto data = [](const Tensor& t) { return static_cast<T*>(t.raw_data()); };
    const auto* activations = static_cast<const kernels::Kept<T>*>(kept.raw_data());
    const kernels::GruGatesBackward<T> args{rows,       width,        activations,  data(y),     data(h),
                                            data(grad), data(out[0]), data(out[1]), data(out[2])};
    if (on_gpu(kept)) {
        for (const Tensor* t : {&kept, &y, &h, &grad}) on_stream(*t);
        if (rows > 0) gpu::gru_gates_backward(args);
    } else if constexpr (sizeof(T) > 2) {
        parallel_for(rows, grain(width), [&](int64_t begin, int64_t end) { kernels::gru_gates_backward(args, begin, end); });
    }
}

// saved: r, z, n; then the inputs
void recorded_rule(Backward& b) {
    const Tensor x = b.saved(1), y = b.saved(2), h = b.saved(3), &g = b.grad();
    const int64_t width = h.size(-1);
    const auto part = [width](const Tensor& gates, int64_t k) { return narrow(gates, -1, k * width, width); };
    const Tensor r = sigmoid(part(x, 0) + part(y, 0)), z = sigmoid(part(x, 1) + part(y, 1)), y_n = part(y, 2);
    const Tensor n = tanh(part(x, 2) + r * y_n);
    const Tensor grad_n = g * (1 - z) * (1 - square(n));
    const Tensor grad_z = g * (h - n) * z * (1 - z);
    const Tensor grad_r = grad_n * y_n * r * (1 - r);
    b.give(0, cat({grad_r, grad_z, grad_n}, -1));
    b.give(1, cat({grad_r, grad_z, grad_n * r}, -1));
    b.give(2, g * z);
}

void gru_gates_rule(Backward& b) {
    if (b.recording()) return recorded_rule(b);
    const Tensor kept = b.saved(0);
    const DType dtype = read_in(b.saved(3));
    const Tensor y = ready(b.saved(2), dtype), h = ready(b.saved(3), dtype), g = ready(b.grad(), dtype);
    const Tensor out[] = {detail::make_empty_like(y.impl(), dtype, b.record().loc),
                          detail::make_empty_like(y.impl(), dtype, b.record().loc),
                          detail::make_empty_like(h.impl(), dtype, b.record().loc)};
    const int64_t rows = kept.shape().raw(0), width = kept.shape().raw(2);
    with_element_type(dtype, [&]<class T>() { run_backward<T>(rows, width, kept, y, h, g, out); });
    for (int i = 0; i < 3; ++i) b.give(i, out[i]);
}

void check(const Tensor& x, const char* what, const Tensor& h, const Shape& wanted, const Loc& loc) {
    if (x.shape() != wanted) fail<ShapeError>(loc, "gru_gates: {} have shape {}, expected {}", what, x.shape(), wanted);
    if (x.dtype() != h.dtype()) {
        fail<DTypeError>(loc, "gru_gates: {} have dtype {}, h has {}", what, name(x.dtype()), name(h.dtype()));
    }
    detail::check_same_device("gru_gates", x, h, loc);
}

}  // namespace

Tensor gru_gates(In x_gates, In h_gates, In h) {
    const Loc& loc = x_gates.loc;
    for (const In& t : {x_gates, h_gates, h}) detail::check_defined(In(t.tensor, loc), "gru_gates");
    if (follows_gates(h.tensor, x_gates.tensor)) return gru_gates(x_gates, h_gates, h.tensor.to(x_gates.tensor.dtype(), loc));
    const DType dtype = h.tensor.dtype();
    if (!is_floating(dtype)) fail<DTypeError>(loc, "gru_gates: needs a floating dtype, got {}; convert with to(float32)", name(dtype));
    if (h.tensor.dim() == 0) fail<ShapeError>(loc, "gru_gates: h must have at least one dimension");
    Shape wanted = h.tensor.shape();
    const int64_t width = wanted.back(), rows = width > 0 ? h.tensor.numel() / width : 0;
    wanted.raw(wanted.rank() - 1) *= 3;
    check(x_gates.tensor, "the input's gates", h.tensor, wanted, loc);
    check(h_gates.tensor, "the state's gates", h.tensor, wanted, loc);

    const DType read = read_in(h.tensor);
    const Tensor x = ready(x_gates.tensor, read), y = ready(h_gates.tensor, read), state = ready(h.tensor, read);
    detail::begin_op("gru_gates", state.impl(), loc);
    Tensor kept, out = detail::make_empty_like(state.impl(), read, loc);
    const std::initializer_list<const Tensor*> inputs{&x_gates.tensor, &h_gates.tensor, &h.tensor};
    if (recording(loc, inputs)) kept = detail::make_empty({rows, 3, width}, computed_in(dtype), h.tensor.device(), loc);
    with_element_type(read, [&]<class T>() { run<T>(rows, width, x, y, state, out, kept); });
    if (dtype != read) {
        const detail::UnrecordedParts parts;
        out = out.to(dtype);
    }
    record(gru_gates_op, loc, inputs, out, {&kept, &x_gates.tensor, &h_gates.tensor, &h.tensor});
    return out;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

TAPIR_PLAIN_FORM(gru_gates, gru_gates(x[0], x[1], x[2]));

}  // namespace tapir
