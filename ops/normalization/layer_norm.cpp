// Layer normalisation.
#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/composed_gradient_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/normalization/layer_norm.h"
#include "tapir/ops/normalization/normalization_impl.h"
#include "tapir/ops/normalization/normalization_kernels.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;

void layer_norm_rule(Backward& b);
void layer_norm_backward_rule(Backward& b);
std::vector<Tensor> layer_norm_backward(const In& g, const In& x, const Shape& normalized_shape, const Tensor& weight, bool has_bias, double eps);

}  // namespace

TAPIR_OP(layer_norm, layer_norm_rule, "Each row to mean 0 and variance 1, then scaled and shifted.",
         TAPIR_SAMPLE_AS("f(3,5)", "nn.functional.layer_norm(x[0], (5,))", layer_norm(x[0], {5})),
         TAPIR_SAMPLE_AS("f(2,3,4) f(3,4) f(3,4)", "nn.functional.layer_norm(x[0], (3, 4), x[1], x[2], 0.001)",
                         layer_norm(x[0], {3, 4}, x[1], x[2], 1e-3)),
         TAPIR_SAMPLE_AS("f(4,6) f(6)", "nn.functional.layer_norm(x[0], (6,), x[1])", layer_norm(x[0], {6}, x[1])),
         TAPIR_SAMPLE_AS("f(7) f(7)", "nn.functional.layer_norm(x[0], (7,), None, x[1])", layer_norm(x[0], {7}, {}, x[1])));
// As an op of its own, the recorded rule is one node in the graph of a gradient.
TAPIR_OP(layer_norm_backward, layer_norm_backward_rule, "The gradients of layer_norm: of x, and of the weight and the bias where there are such.",
         TAPIR_SAMPLE_AS("f(3,5) f(3,5)", "torch.autograd.functional.vjp(lambda t: layer_norm(t, (5,)), x[1], x[0])[1]",
                         layer_norm_backward(x[0], x[1], {5}, {}, false, 1e-5)),
         TAPIR_SAMPLE_AS("f(2,3,4) f(2,3,4) f(3,4)",
                         "torch.autograd.functional.vjp(lambda t, w, v: layer_norm(t, (3, 4), w, v, 0.001), (x[1], x[2], x[2]), x[0])[1]",
                         layer_norm_backward(x[0], x[1], {3, 4}, x[2], true, 1e-3)),
         TAPIR_SAMPLE_AS("f(4,6) f(4,6) f(6)", "torch.autograd.functional.vjp(lambda t, w: layer_norm(t, (6,), w), (x[1], x[2]), x[0])[1]",
                         layer_norm_backward(x[0], x[1], {6}, x[2], false, 1e-5)),
         TAPIR_SAMPLE_AS("f(7) f(7)", "torch.autograd.functional.vjp(lambda t, v: layer_norm(t, (7,), None, v), (x[1], x[1]), x[0])[1]",
                         layer_norm_backward(x[0], x[1], {7}, {}, true, 1e-5)));

namespace {

struct LayerNormAttrs {
    double eps;
    int dims;  // number of the last dimensions that are normalised
    bool has_weight, has_bias;
};
struct LayerNormCall {
    Shape normalized_shape;
    double eps = 1e-5;
    bool has_weight = false, has_bias = false;
};

Tensor as_rows(const Tensor& x, DType dtype, const Loc& loc = {}) {
    if (!x.defined() || (x.dtype() == dtype && x.is_contiguous())) return x;
    const detail::UnrecordedPartsOf parts(loc);
    return x.to(dtype).contiguous();
}

// All have a dtype that the kernels read. stats: mean and rstd of each row; may be undefined.
void run_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& y, const Tensor& stats, int64_t width) {
    if (width == 0) return;
    const int64_t rows = x.numel() / width;
    with_element_type(x.dtype(), [&]<class T>() {
        auto* const mean = kernel_data<kernels::Kept<T>>(stats);
        const kernels::LayerNorm<T> args{
            width, eps, kernel_data<T>(x), kernel_data<T>(weight), kernel_data<T>(bias), kernel_data<T>(y), mean, mean ? mean + rows : nullptr};
        TAPIR_LAUNCH(x, rows, width, layer_norm, args);
    });
}

void run_backward_on_gpu(const Tensor& g, const Tensor& x, const Tensor& weight, const Tensor& stats, const Tensor& grad_x, const Tensor& grad_weight,
                         const Tensor& grad_bias, int64_t width) {
    const int64_t rows = x.numel() / width;
    if (rows == 0) {
        const detail::UnrecordedParts parts;
        for (Tensor sum : {grad_weight, grad_bias}) {
            if (sum.defined()) sum.zero_();
        }
        return;
    }
    const std::byte* mean = on_stream<std::byte>(stats);
    gpu::layer_norm_backward({x.dtype(), rows, width, on_stream(g), on_stream(x), on_stream(weight), mean,
                              mean + rows * static_cast<int64_t>(itemsize(stats.dtype())), on_stream(grad_x), on_stream(grad_weight),
                              on_stream(grad_bias)});
}

// Adds the sums over rows to as many buffers as the rows alone say, so that the number of threads does not change them.
template <class T>
void run_backward(const Tensor& g, const Tensor& x, const Tensor& weight, const Tensor& stats, const Tensor& grad_x, const Tensor& grad_weight,
                  const Tensor& grad_bias, int64_t width) {
    const int64_t rows = x.numel() / width;
    const int64_t block = std::max<int64_t>((rows + 15) / 16, 32 * 1024 / width + 1);
    const int64_t blocks = std::max<int64_t>((rows + block - 1) / block, 1);  // no rows sum up to zeros
    const auto sums = [&](const Tensor& total) { return total.defined() ? zeroed_sums(blocks, width) : Tensor(); };
    const Tensor weight_sums = sums(grad_weight), bias_sums = sums(grad_bias);
    const auto part = [&](const Tensor& t, int64_t i) { return t.defined() ? data<double>(t) + i * width : nullptr; };
    const auto one_block = [&](int64_t i) {
        const kernels::LayerNormBackward<T> args{width,           data<T>(g),           data<T>(x),
                                                 data<T>(weight), data<T>(stats),       data<T>(stats) + rows,
                                                 data<T>(grad_x), part(weight_sums, i), part(bias_sums, i)};
        kernels::layer_norm_backward(args, i * block, std::min((i + 1) * block, rows));
    };
    parallel_blocks(blocks, one_block);
    add_up<T>(grad_weight, weight_sums);
    add_up<T>(grad_bias, bias_sums);
}

struct LayerNormGradients {
    Tensor x, weight, bias;  // undefined: not wanted
};

void run_backward(const Tensor& g, const Tensor& x, const Tensor& weight, const Tensor& stats, const LayerNormGradients& to, int64_t width) {
    if (width > 0 && on_gpu(x)) {
        run_backward_on_gpu(g, x, weight, stats, to.x, to.weight, to.bias, width);
    } else if (width > 0 && x.dtype() == DType::float64) {
        run_backward<double>(g, x, weight, stats, to.x, to.weight, to.bias, width);
    } else if (width > 0) {
        run_backward<float>(g, x, weight, stats, to.x, to.weight, to.bias, width);
    }
}

// Computes the gradients of x, the weight and the bias, made of ops; are_summed: over the rows.
std::vector<Tensor> gradients_of_ops(const Tensor& g, const Tensor& x, const Tensor& weight, const LayerNormAttrs& attrs, bool are_summed = true) {
    Dims dims, leading;
    for (int d = 0; d < x.dim(); ++d) (d < x.dim() - attrs.dims ? leading : dims).push_back(d);
    if (!are_summed) leading = {};
    const Tensor centred = x - mean(x, dims, true);
    const Tensor rstd = rsqrt(mean(square(centred), dims, true) + attrs.eps);
    const Tensor normal = centred * rstd;
    const Tensor d = attrs.has_weight ? g * weight : g;
    std::vector<Tensor> gradients = {rstd * (d - mean(d, dims, true) - normal * mean(d * normal, dims, true))};
    if (attrs.has_weight) gradients.push_back(leading.empty() ? g * normal : sum(g * normal, leading));
    if (attrs.has_bias) gradients.push_back(leading.empty() ? g : sum(g, leading));
    return gradients;
}

// saved: g, x, the weight if there is one
void layer_norm_backward_rule(Backward& b) {
    const LayerNormAttrs& attrs = b.attrs<LayerNormAttrs>();
    differentiate(b, [&](const std::vector<Tensor>& in) { return gradients_of_ops(in[0], in[1], attrs.has_weight ? in[2] : Tensor(), attrs); });
}

// saved: mean and rstd, x, the weight if there is one
void layer_norm_rule(Backward& b) {
    const LayerNormAttrs& attrs = b.attrs<LayerNormAttrs>();
    if (b.recording() || b.rows_to_tell_apart() > 0) {
        const Tensor x = b.saved(1), weight = attrs.has_weight ? b.saved(2) : Tensor();
        const Shape rows(x.impl()->sizes + x.dim() - attrs.dims, attrs.dims);
        const std::vector<Tensor> gradients = b.recording()
            ? layer_norm_backward(In(b.grad(), b.record().loc), In(x, b.record().loc), rows, weight, attrs.has_bias, attrs.eps)
            : gradients_of_ops(b.grad(), x, weight, attrs, /*are_summed=*/false);
        for (std::size_t i = 0; i < gradients.size(); ++i) b.give(static_cast<int>(i), gradients[i]);
        return;
    }
    const Tensor stats = b.saved(0);
    const DType dtype = read_in(b.saved(1));
    const Tensor x = as_rows(b.saved(1), dtype), g = as_rows(b.grad(), dtype);
    const Tensor weight = attrs.has_weight ? as_rows(b.saved(2), dtype) : Tensor();
    const int bias_input = attrs.has_weight ? 2 : 1;
    Shape row_shape;
    for (int d = x.dim() - attrs.dims; d < x.dim(); ++d) row_shape.push_back(x.shape().raw(d));
    const auto wanted = [&](bool has, int input, const Shape& shape) {
        return has && b.needs(input) ? detail::make_empty(shape, dtype, x.device(), b.record().loc) : Tensor();
    };
    const Tensor grad_x = wanted(true, 0, x.shape()), grad_weight = wanted(attrs.has_weight, 1, row_shape);
    const Tensor grad_bias = wanted(attrs.has_bias, bias_input, row_shape);
    const int64_t width = row_shape.numel();
    run_backward(g, x, weight, stats, {grad_x, grad_weight, grad_bias}, width);
    b.give(0, grad_x);
    if (grad_weight.defined()) b.give(1, grad_weight);
    if (grad_bias.defined()) b.give(bias_input, grad_bias);
}

void check(const In& x, const Shape& row_shape, const Tensor& parameter, const char* what) {
    if (!parameter.defined()) return;
    if (parameter.shape() != row_shape) {
        fail<ShapeError>(x.loc, "layer_norm: the {} has shape {}, expected {}", what, parameter.shape(), row_shape);
    }
    if (parameter.dtype() != x.tensor.dtype()) {
        fail<DTypeError>(x.loc, "layer_norm: the {} has dtype {}, the input has {}", what, name(parameter.dtype()), name(x.tensor.dtype()));
    }
    detail::check_same_device("layer_norm", x.tensor, parameter, x.loc);
}

// Computes the rows' statistics again: a graph's layer_norm has one result.
std::vector<Tensor> layer_norm_backward(const In& g, const In& x, const Shape& normalized_shape, const Tensor& weight, bool has_bias, double eps) {
    check_gradient("layer_norm_backward", g, x);
    const DType dtype = x.tensor.dtype();
    check_last_dims("layer_norm_backward", x, normalized_shape);
    check(x, normalized_shape, weight, "weight");
    std::vector<Tensor> results;
    {
        const detail::UnrecordedPartsOf parts(g.loc);
        const DType read = read_in(x.tensor);
        const Tensor rows = as_rows(x.tensor, read), from = as_rows(g.tensor, read), scale = as_rows(weight, read);
        detail::begin_op("layer_norm_backward", rows.impl(), x.loc);
        const int64_t width = normalized_shape.numel();
        const auto made = [&](bool is_there, const Shape& shape) {
            return is_there ? detail::make_empty(shape, read, x.tensor.device(), x.loc) : Tensor();
        };
        const LayerNormGradients to{made(true, x.tensor.shape()), made(weight.defined(), normalized_shape), made(has_bias, normalized_shape)};
        const Tensor stats = detail::make_empty({2, width > 0 ? rows.numel() / width : 0}, computed_in(read), x.tensor.device(), x.loc);
        run_forward(rows, Tensor(), Tensor(), eps, to.x, stats, width);
        run_backward(from, rows, scale, stats, to, width);
        for (const Tensor* t : {&to.x, &to.weight, &to.bias}) {
            if (t->defined()) results.push_back(t->to(dtype));
        }
    }
    if (!detail::thread.observed) return results;
    const LayerNormAttrs attrs{eps, normalized_shape.rank(), weight.defined(), has_bias};
    std::vector<Tensor> inputs = {g.tensor, x.tensor};
    if (weight.defined()) inputs.push_back(weight);
    const LayerNormCall call{normalized_shape, eps, weight.defined(), has_bias};
    record_many(layer_norm_backward_op, x.loc, inputs, results, inputs, attrs, call);
    return results;
}

}  // namespace

Tensor layer_norm(In x, const Shape& normalized_shape, const Tensor& weight, const Tensor& bias, double eps) {
    detail::check_defined(x, "layer_norm");
    if (detail::thread.autocast && (x->dtype == float16 || x->dtype == bfloat16)) [[unlikely]] {
        const auto wide = [&](const Tensor& t) { return t.defined() ? detail::widened(In(t, x.loc)) : t; };
        return layer_norm(In(wide(x.tensor), x.loc), normalized_shape, wide(weight), wide(bias), eps);
    }
    const DType dtype = x.tensor.dtype();
    if (!is_floating(dtype)) fail<DTypeError>(x.loc, "layer_norm: needs a floating dtype, got {}; convert with to(float32)", name(dtype));
    const auto is_wide = [](const Tensor& t) { return t.defined() && t.dtype() == float32; };
    if ((dtype == float16 || dtype == bfloat16) && (is_wide(weight) || is_wide(bias))) [[unlikely]] {
        const detail::RecordedParts parts(x.loc);
        const Tensor wide = to(x, float32);
        return to(layer_norm(In(wide, x.loc), normalized_shape, weight, bias, eps), dtype);
    }
    const Shape shape = x.tensor.shape();
    check_eps("layer_norm", eps, x.loc);
    check_last_dims("layer_norm", x, normalized_shape);
    check(x, normalized_shape, weight, "weight");
    check(x, normalized_shape, bias, "bias");

    if (detail::in_batch()) [[unlikely]] {
        Tensor made;
        const auto rule = [&](const detail::Batched& in, Tensor* out) { out[0] = layer_norm(In(in[0], x.loc), normalized_shape, in[1], in[2], eps); };
        const detail::BatchCall call(layer_norm_op, x.loc, {&x.tensor, &weight, &bias}, detail::batch_key(normalized_shape.rank(), eps),
                                     {.same = 0b110});
        if (detail::batched(call, rule, {&made})) return made;
    }
    const DType compute = computed_in(dtype), read = read_in(x.tensor);
    const int64_t width = normalized_shape.numel();
    const Tensor rows = as_rows(x.tensor, read, x.loc), scale = as_rows(weight, read, x.loc), shift = as_rows(bias, read, x.loc);
    detail::begin_op("layer_norm", rows.impl(), x.loc);
    Tensor y = detail::make_empty_like(rows.impl(), read, x.loc), stats;
    const bool record_it = recording(x.loc, {&x.tensor, &weight, &bias}) != nullptr;
    if (record_it) {
        stats = detail::make_empty({2, width > 0 ? shape.numel() / width : 0}, compute, x.tensor.device(), x.loc);
    }
    run_forward(rows, scale, shift, eps, y, stats, width);
    if (dtype != read) {
        const detail::UnrecordedPartsOf parts(x.loc);
        y = y.to(dtype);
    }
    if (!detail::thread.observed) return y;
    const LayerNormAttrs attrs{eps, normalized_shape.rank(), weight.defined(), bias.defined()};
    record_norm(layer_norm_op, x.loc, x.tensor, weight, bias, y, stats, attrs,
                [&] { return LayerNormCall{normalized_shape, eps, weight.defined(), bias.defined()}; });
    return y;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

Tensor layer_norm_of(const FormCall& x, const LayerNormCall& a) {
    int i = 1;
    const Tensor weight = operand_if(a.has_weight, x, i), bias = operand_if(a.has_bias, x, i);
    return layer_norm(x[0], a.normalized_shape, weight, bias, a.eps);
}

// True if the kernels can take them as they are.
bool are_plain(std::initializer_list<const Tensor*> tensors, DType dtype) {
    return (dtype == float32 || dtype == float64) &&
        std::all_of(tensors.begin(), tensors.end(), [&](const Tensor* t) { return !t->defined() || detail::is_plain(t->impl(), dtype); });
}

// Returns the width of the rows; 0 if there are none, or if these cannot be operands of the op.
int64_t width_of(const Tensor& x, const LayerNormCall& a, std::initializer_list<const Tensor*> parameters) {
    const int dims = a.normalized_shape.rank(), leading = x.dim() - dims;
    if (dims == 0 || leading < 0) return 0;
    for (int d = 0; d < dims; ++d) {
        if (x.impl()->sizes[leading + d] != a.normalized_shape.raw(d)) return 0;
    }
    const int64_t width = a.normalized_shape.numel();
    for (const Tensor* t : parameters) {
        if (t->defined() && (t->dim() != dims || t->impl()->numel != width)) return 0;
    }
    return width;
}

bool layer_norm_into(const FormCall& x, const Tensor& out) {
    const LayerNormCall& a = *static_cast<const LayerNormCall*>(x.attrs);
    int i = 1;
    const Tensor weight = operand_if(a.has_weight, x, i), bias = operand_if(a.has_bias, x, i);
    const int64_t width = width_of(x[0], a, {&weight, &bias});
    if (width == 0 || out.numel() != x[0].numel() || !are_plain({&x[0], &weight, &bias, &out}, out.dtype())) return false;
    run_forward(x[0], weight, bias, a.eps, out, Tensor(), width);
    return true;
}

std::vector<Tensor> layer_norm_backward_of(const FormCall& x, const LayerNormCall& a) {
    return layer_norm_backward(x[0], x[1], a.normalized_shape, a.has_weight ? x[2] : Tensor(), a.has_bias, a.eps);
}

bool layer_norm_backward_into(const FormCall& x, const Tensor& out) {
    const LayerNormCall& a = *static_cast<const LayerNormCall*>(x.attrs);
    const Tensor weight = a.has_weight ? x[2] : Tensor();
    const int64_t width = width_of(x[1], a, {&weight});
    const Tensor* const results = &out;
    const LayerNormGradients to{results[0], a.has_weight ? results[1] : Tensor(), a.has_bias ? results[a.has_weight ? 2 : 1] : Tensor()};
    const DType dtype = out.dtype();
    if (width == 0 || x[0].shape() != x[1].shape() || to.x.numel() != x[1].numel()) return false;
    if (!are_plain({&x[0], &x[1], &weight, &to.x, &to.weight, &to.bias}, dtype)) return false;
    for (const Tensor* t : {&to.weight, &to.bias}) {
        if (t->defined() && t->numel() != width) return false;
    }
    const Tensor stats = detail::make_empty({2, x[1].numel() / width}, dtype, cpu, Loc{});
    run_forward(x[1], Tensor(), Tensor(), a.eps, to.x, stats, width);
    run_backward(x[0], x[1], weight, stats, to, width);
    return true;
}

void call_fields(Fields& f, LayerNormCall& a) {
    f("normalized_shape", a.normalized_shape)("eps", a.eps)("has_weight", a.has_weight)("has_bias", a.has_bias);
}

}  // namespace

TAPIR_INTO_FORM(layer_norm, Operands(1, 3), LayerNormCall, type_with_last(t, t[0], 1), layer_norm_of(x, a), layer_norm_into, call_fields(f, a));
TAPIR_INTO_FORM(layer_norm_backward, Operands::from(2), LayerNormCall,
                gradient_types(alike(type_with_last(t, t[1], 2), t[0]), shaped(t[1], t.sizes("normalized_shape")), a.has_weight, a.has_bias),
                layer_norm_backward_of(x, a), layer_norm_backward_into, call_fields(f, a));

}  // namespace tapir
