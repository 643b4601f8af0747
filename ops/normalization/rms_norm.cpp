// Root mean square normalisation, by the kernels of layer normalisation, without the mean.
#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/normalization/normalization_impl.h"
#include "tapir/ops/normalization/normalization_kernels.h"
#include "tapir/ops/normalization/rms_norm.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {
namespace {

void rms_norm_rule(Backward& b);

}  // namespace

TAPIR_OP(rms_norm, rms_norm_rule, "Each row to a mean square of 1, then scaled.",
         TAPIR_SAMPLE_AS("f(2,3,4) f(3,4)", "x[0] / (x[0].square().mean((1, 2), keepdim=True) + 0.01).sqrt() * x[1]",
                         rms_norm(x[0], {3, 4}, x[1], 0.01)),
         TAPIR_SAMPLE_AS("f(3,5)", "x[0] / (x[0].square().mean(1, keepdim=True) + 0.001).sqrt()", rms_norm(x[0], {5}, {}, 1e-3)));

namespace {

using std::int64_t;

struct RmsNormAttrs {
    double eps;
    int dims;  // number of the last dimensions that are normalised
    bool has_weight;
};
struct RmsNormCall {
    Shape normalized_shape;
    double eps = -1;
};

Dims last_dims(const Tensor& x, int count) {
    Dims last(x.dim() - count);
    for (int d = x.dim() - count + 1; d < x.dim(); ++d) last.push_back(d);
    return last;
}

template <class T>
void run(const Tensor& x, const Tensor& weight, double eps, const Tensor& y, const Tensor& rstd, int64_t width) {
    const kernels::LayerNorm<T> args{width, eps, data<T>(x), data<T>(weight), nullptr, data<T>(y), nullptr, data<T>(rstd)};
    parallel_for(rstd.numel(), 32 * 1024 / width + 1, [&](int64_t begin, int64_t end) { kernels::rms_norm(args, begin, end); });
}

// Adds the sums over rows to as many buffers as the rows alone say, so that the number of threads does not change them.
template <class T>
void run_backward(const Tensor& g, const Tensor& x, const Tensor& weight, const Tensor& rstd, const Tensor& grad_x, const Tensor& grad_weight,
                  int64_t width) {
    const int64_t rows = rstd.numel(), block = std::max<int64_t>((rows + 15) / 16, 32 * 1024 / width + 1);
    const int64_t blocks = std::max<int64_t>((rows + block - 1) / block, 1);  // no rows sum up to zeros
    const Tensor sums = grad_weight.defined() ? zeroed_sums(blocks, width) : Tensor();
    parallel_blocks(blocks, [&](int64_t i) {
        const kernels::LayerNormBackward<T> args{width,   data<T>(g),    data<T>(x),      data<T>(weight),
                                                 nullptr, data<T>(rstd), data<T>(grad_x), sums.defined() ? data<double>(sums) + i * width : nullptr,
                                                 nullptr};
        kernels::rms_norm_backward(args, i * block, std::min((i + 1) * block, rows));
    });
    add_up<T>(grad_weight, sums);
}

// Made of ops, to be differentiated again. saved: rstd (rows,), x, the weight if there is one.
void rule_of_ops(Backward& b, const RmsNormAttrs& attrs) {
    const DType dtype = b.saved(0).dtype();
    const Tensor x = b.saved(1).to(dtype), g = b.grad().to(dtype);
    const Dims dims = last_dims(x, attrs.dims);
    const Tensor rstd = rsqrt(mean(square(x), dims, true) + attrs.eps), normal = x * rstd;
    const Tensor d = attrs.has_weight ? g * b.saved(2) : g;
    b.give(0, rstd * (d - normal * mean(d * normal, dims, true)));
    if (attrs.has_weight) b.give(1, g * normal);
}

void rms_norm_rule(Backward& b) {
    const RmsNormAttrs& attrs = b.attrs<RmsNormAttrs>();
    if (b.recording() || b.rows_to_tell_apart() > 0) return rule_of_ops(b, attrs);
    const Tensor rstd = b.saved(0);
    const DType dtype = rstd.dtype();
    const auto ready_rows = [&](const Tensor& t) { return t.to(dtype).contiguous(); };
    const Tensor x = ready_rows(b.saved(1)), g = ready_rows(b.grad()), weight = attrs.has_weight ? ready_rows(b.saved(2)) : Tensor();
    Shape row_shape;
    for (int d = x.dim() - attrs.dims; d < x.dim(); ++d) row_shape.push_back(x.size(d));
    const auto wanted = [&](bool is, const Shape& shape) { return is ? detail::make_empty(shape, dtype, cpu, b.record().loc) : Tensor(); };
    const Tensor grad_x = wanted(b.needs(0), x.shape()), grad_weight = wanted(attrs.has_weight && b.needs(1), row_shape);
    if (dtype == float64) {
        run_backward<double>(g, x, weight, rstd, grad_x, grad_weight, row_shape.numel());
    } else {
        run_backward<float>(g, x, weight, rstd, grad_x, grad_weight, row_shape.numel());
    }
    if (grad_x.defined()) b.give(0, grad_x);
    if (grad_weight.defined()) b.give(1, grad_weight);
}

Tensor fused(const In& x, const Tensor& weight, const Shape& normalized_shape, const RmsNormAttrs& attrs) {
    const int64_t width = normalized_shape.numel();
    Tensor y, rstd;
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        const DType dtype = computed_in(x->dtype);
        const Tensor in = x.tensor.to(dtype, x.loc).contiguous(x.loc), w = weight.defined() ? weight.to(dtype, x.loc).contiguous(x.loc) : weight;
        y = detail::make_empty(x.tensor.shape(), dtype, cpu, x.loc);
        rstd = detail::make_empty({in.numel() / width}, dtype, cpu, x.loc);
        dtype == float64 ? run<double>(in, w, attrs.eps, y, rstd, width) : run<float>(in, w, attrs.eps, y, rstd, width);
        y = y.to(x->dtype, x.loc);
    }
    record_norm(rms_norm_op, x.loc, x.tensor, weight, /*bias=*/{}, y, rstd, attrs, [&] { return RmsNormCall{normalized_shape, attrs.eps}; });
    return y;
}

}  // namespace

Tensor rms_norm(In x, const Shape& normalized_shape, const Tensor& weight, double eps) {
    check_input("rms_norm", x, 1);
    const int dims = normalized_shape.rank();
    check_last_dims("rms_norm", x, normalized_shape);
    if (weight.defined() && weight.shape() != normalized_shape) {
        fail<ShapeError>(x.loc, "rms_norm: the weight has shape {}, expected {}", weight.shape(), normalized_shape);
    }
    if (weight.defined()) detail::check_same_device("rms_norm", x.tensor, weight, x.loc);
    const double epsilon = x->dtype == float64 ? 0x1p-52 : x->dtype == float32 ? 0x1p-23 : x->dtype == float16 ? 0x1p-10 : 0x1p-7;
    if (std::isnan(eps)) fail<ValueError>(x.loc, "rms_norm: eps is nan");
    if (eps < 0) eps = epsilon;
    const bool one_dtype = !weight.defined() || weight.dtype() == x->dtype;
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return rms_norm(In(in[0], x.loc), normalized_shape, in[1], eps); };
        const detail::BatchCall call(rms_norm_op, x.loc, {&x.tensor, &weight}, detail::batch_key(dims, eps), {.same = 0b10});
        if (Tensor y = detail::in_group(call, of_group); y.defined()) return y;
    }
    if (!on_gpu(x.tensor) && one_dtype && x->numel > 0) return fused(x, weight, normalized_shape, {eps, dims, weight.defined()});
    const detail::RecordedParts parts(x.loc);
    const Tensor wide = to(x, computed_in(x->dtype));
    const Tensor y = (wide * rsqrt(mean(square(wide), last_dims(x.tensor, dims), true) + eps)).to(x->dtype, x.loc);
    return weight.defined() ? y * weight : y;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

TAPIR_FORM(rms_norm, Operands(1, 2), RmsNormCall, same(type_with_last(t, t[0], 1), promoted(t)),
           rms_norm(x[0], a.normalized_shape, x.count > 1 ? x[1] : Tensor(), a.eps), f("normalized_shape", a.normalized_shape)("eps", a.eps));

}  // namespace tapir
