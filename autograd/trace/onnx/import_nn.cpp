// ONNX ops of networks: products, convolutions, normalisations.
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/onnx/window_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/convolution/convolution.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/linalg/linalg.h"
#include "tapir/ops/linear/einsum.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/normalization/batch_norm.h"
#include "tapir/ops/normalization/group_norm.h"
#include "tapir/ops/normalization/layer_norm.h"
#include "tapir/ops/normalization/rms_norm.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {

OnnxWindow onnx_window(OnnxCall& c, const Shape& sizes, std::vector<std::int64_t> kernel) {
    OnnxWindow window;
    window.dims = sizes.rank() - 2;
    if (window.dims < 1 || window.dims > 3) c.reject("its operand has shape {}: 1, 2 or 3 spatial dimensions are supported", sizes);
    const auto count = static_cast<std::size_t>(window.dims);
    const auto list = [&](const char* name, std::int64_t otherwise) {
        std::vector<std::int64_t> values = c.integers(name);
        if (values.empty()) values.assign(count, otherwise);
        if (values.size() != count) c.reject("it has {} {} for {} dimensions", values.size(), name, count);
        for (const std::int64_t value : values) {
            if (value < 1 || value > 1 << 30) c.reject("{} of {}", name, value);
        }
        return values;
    };
    window.kernel = kernel.empty() ? list("kernel_shape", 0) : std::move(kernel);
    window.stride = list("strides", 1);
    window.dilation = list("dilations", 1);
    std::vector<std::int64_t> pads = c.integers("pads");
    if (pads.empty()) pads.assign(2 * count, 0);
    if (pads.size() != 2 * count) c.reject("it has {} pads for {} dimensions", pads.size(), count);
    window.before.assign(pads.begin(), pads.begin() + window.dims);
    window.after.assign(pads.begin() + window.dims, pads.end());
    const std::string automatic = c.text("auto_pad", "NOTSET");
    if (automatic == "NOTSET" || automatic.empty()) return window;
    for (std::size_t d = 0; d < count; ++d) {
        std::int64_t needed = 0;
        if (automatic != "VALID") {
            const std::int64_t size = sizes.raw(static_cast<int>(d) + 2), extent = (window.kernel[d] - 1) * window.dilation[d] + 1;
            const std::int64_t steps = (size + window.stride[d] - 1) / window.stride[d];
            needed = std::max<std::int64_t>((steps - 1) * window.stride[d] + extent - size, 0);
        }
        window.before[d] = automatic == "SAME_LOWER" ? needed - needed / 2 : needed / 2;
        window.after[d] = needed - window.before[d];
        window.is_by_size |= automatic != "VALID" && window.stride[d] > 1 && c.interpreter().has_named_dims();
    }
    return window;
}

namespace {

using Call = OnnxCall;
using std::int64_t;

void matmul_op(Call& c) { c.give(matmul(c.x(0), c.x(1))); }

void gemm(Call& c) {
    Tensor a = c.x(0), b = c.x(1);
    const double alpha = c.real("alpha", 1), beta = c.real("beta", 1);
    const bool is_linear = alpha == 1 && beta == 1 && !c.flag("transA", false) && c.flag("transB", false) && b.dim() == 2;
    if (is_linear && (!c.has(2) || (c.rank(2) == 1 && c.size(2, 0) == b.size(0)))) return c.give(linear(a, b, c.maybe(2)));
    if (c.flag("transA", false)) a = transpose(a, 0, 1);
    if (c.flag("transB", false)) b = transpose(b, 0, 1);
    Tensor y = matmul(a, b);
    if (alpha != 1) y = is_floating(y.dtype()) ? y * alpha : y * static_cast<int64_t>(alpha);
    if (c.has(2) && beta != 0) y = y + (beta == 1 ? c.x(2) : c.x(2) * beta);
    c.give(y);
}

Tensor convolve(int dims, const Tensor& x, const Tensor& w, const Tensor& bias, const OnnxWindow& window, int64_t groups) {
    ConvOptions options;
    options.stride = window.stride;
    options.padding = Padding(window.padding());
    options.dilation = window.dilation;
    options.groups = groups;
    return dims == 1 ? conv1d(x, w, bias, options) : dims == 2 ? conv2d(x, w, bias, options) : conv3d(x, w, bias, options);
}

std::vector<int64_t> kernel_of(const Tensor& w) {
    const Shape shape = w.shape();
    return {shape.begin() + std::min(2, shape.rank()), shape.end()};
}

void conv(Call& c) {
    Tensor x = c.x(0);
    const Tensor w = c.x(1);
    if (w.dim() != x.dim()) c.reject("a weight of shape {} for an operand of shape {}", w.shape(), x.shape());
    OnnxWindow window = onnx_window(c, x.shape(), kernel_of(w));
    if (!window.is_symmetric()) {
        x = pad(x, window.widths());
        window.before.assign(window.before.size(), 0);
    }
    c.give(convolve(window.dims, x, w, c.maybe(2), window, c.integer("group", 1)));
}

void conv_transpose(Call& c) {
    const Tensor x = c.x(0), w = c.x(1);
    if (w.dim() != x.dim()) c.reject("a weight of shape {} for an operand of shape {}", w.shape(), x.shape());
    const std::string automatic = c.text("auto_pad", "NOTSET");
    OnnxWindow window = onnx_window(c, x.shape(), kernel_of(w));
    const auto count = static_cast<std::size_t>(window.dims);
    std::vector<int64_t> more = c.integers("output_padding");
    if (more.empty()) more.assign(count, 0);
    if (more.size() != count) c.reject("it has {} output_padding for {} dimensions", more.size(), count);
    std::vector<int64_t> wanted = c.integers("output_shape");
    if (!wanted.empty() && wanted.size() == count + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
    const bool is_same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
    if (wanted.empty() && is_same) {
        for (std::size_t d = 0; d < count; ++d) wanted.push_back(x.size(static_cast<int>(d) + 2) * window.stride[d]);
    }
    for (std::size_t d = 0; d < count && !wanted.empty(); ++d) {
        if (wanted.size() != count) c.reject("it has {} sizes of the result for {} dimensions", wanted.size(), count);
        const int64_t full = (x.size(static_cast<int>(d) + 2) - 1) * window.stride[d] + more[d] + (window.kernel[d] - 1) * window.dilation[d] + 1;
        const int64_t total = full - wanted[d];
        // A negative total is split as in onnxruntime: the standard's text and its tests differ there.
        window.before[d] = automatic == "SAME_UPPER" || (!is_same && total < 0) ? total / 2 : total - total / 2;
        window.after[d] = total - window.before[d];
    }
    // Computes all of it, and then removes the pads; output_padding removes less at the end.
    ConvTransposeOptions options;
    options.stride = window.stride;
    options.dilation = window.dilation;
    options.groups = c.integer("group", 1);
    bool is_plain = true;
    for (std::size_t d = 0; d < count; ++d)
        is_plain &= window.before[d] >= 0 && window.before[d] == window.after[d] && more[d] < std::max(window.stride[d], window.dilation[d]);
    if (is_plain) {
        options.padding = window.padding();
        options.output_padding = more;
    }
    Tensor y = window.dims == 1 ? conv_transpose1d(x, w, c.maybe(2), options)
        : window.dims == 2      ? conv_transpose2d(x, w, c.maybe(2), options)
                                : conv_transpose3d(x, w, c.maybe(2), options);
    if (!is_plain) {
        if (c.has(2)) {  // elements that are added at the end have the bias, too
            y = window.dims == 1   ? conv_transpose1d(x, w, {}, options)
                : window.dims == 2 ? conv_transpose2d(x, w, {}, options)
                                   : conv_transpose3d(x, w, {}, options);
        }
        std::vector<int64_t> widths;
        for (std::size_t d = count; d-- > 0;) widths.insert(widths.end(), {-window.before[d], more[d] - window.after[d]});
        y = pad(y, widths);
        if (c.has(2)) {
            Shape shape{1, -1};
            for (std::size_t d = 0; d < count; ++d) shape.push_back(1);
            y = y + reshape(c.x(2), shape);
        }
    }
    c.give(y);
}

// (channels,) reshaped to broadcast to (N, channels, ...).
Tensor per_channel(const Tensor& values, int rank) {
    Shape shape{1, values.numel()};
    for (int d = 2; d < rank; ++d) shape.push_back(1);
    return reshape(values, shape);
}

void batch_normalization(Call& c) {
    const Tensor x = c.x(0), scale = c.x(1), bias = c.x(2), mean = c.x(3), var = c.x(4);
    const double eps = c.real("epsilon", 1e-5), momentum = c.real("momentum", 0.9);
    if (!c.flag("spatial", true)) c.reject("spatial = 0, a mean for each place, is not supported");
    const bool training = c.opset() >= 14 ? c.flag("training_mode", false) : c.opset() < 7 && !c.flag("is_test", false);
    if (x.dim() < 2) c.reject("its operand has shape {}", x.shape());
    if (!training) {
        // PyTorch's statistics have the operand's dtype, as its weights do; ONNX's may be wider.
        const DType dtype = x.dtype();
        return c.give(batch_norm(x, mean.to(dtype), var.to(dtype), scale.to(dtype), bias.to(dtype), {.training = false, .momentum = 0, .eps = eps}));
    }
    Dims others{0};
    for (int d = 2; d < x.dim(); ++d) others.push_back(d);
    const Tensor now_mean = tapir::mean(x, others), now_var = tapir::var(x, others, 0);
    const Tensor scaled = (x - per_channel(now_mean, x.dim())) * rsqrt(per_channel(now_var, x.dim()) + eps);
    c.give(scaled * per_channel(scale, x.dim()) + per_channel(bias, x.dim()));
    if (!c.wants(1)) return;
    c.give(mean * momentum + now_mean * (1 - momentum));
    c.give(var * momentum + now_var * (1 - momentum));
}

void instance_normalization(Call& c) { c.give(instance_norm(c.x(0), c.x(1), c.x(2), c.real("epsilon", 1e-5))); }

void layer_normalization(Call& c) {
    const Tensor x = c.x(0), scale = c.x(1);
    const int axis = c.axis("axis", -1, x.dim());
    const double eps = c.real("epsilon", 1e-5);
    Shape normalized;
    Dims dims;
    for (int d = axis; d < x.dim(); ++d) {
        normalized.push_back(x.size(d));
        dims.push_back(d);
    }
    if (!c.wants(1) && !c.wants(2) && scale.shape() == normalized && (!c.has(2) || c.shape(2) == normalized)) {
        return c.give(layer_norm(x, normalized, scale, c.maybe(2), eps));
    }
    const Tensor mean = tapir::mean(x, dims, true), scatter = reciprocal(sqrt(tapir::var(x, dims, 0, true) + eps));
    Tensor y = (x - mean) * scatter * scale;
    if (c.has(2)) y = y + c.x(2);
    c.give(y);
    c.give(mean);
    c.give(scatter);
}

void rms_normalization(Call& c) {
    const Tensor x = c.x(0), scale = c.x(1);
    const double eps = c.real("epsilon", 1e-5);
    Shape normalized;
    Dims dims;
    for (int d = c.axis("axis", -1, x.dim()); d < x.dim(); ++d) {
        normalized.push_back(x.size(d));
        dims.push_back(d);
    }
    if (scale.shape() == normalized && scale.dtype() == x.dtype()) return c.give(rms_norm(x, normalized, scale, eps));
    const Tensor wide = x.to(computed_in(x.dtype()));
    c.give((wide * rsqrt(tapir::mean(square(wide), dims, true) + eps)).to(scale.dtype()) * scale);
}

void group_normalization(Call& c) {
    const Tensor x = c.x(0);
    const int64_t groups = c.integer("num_groups", 1);
    Tensor scale = c.x(1), bias = c.x(2);
    if (scale.numel() == groups && groups != x.size(1)) {  // before opset 21: one scale per group
        const int64_t each = x.size(1) / groups;
        scale = reshape(expand(reshape(scale, {groups, 1}), {groups, each}), {-1});
        bias = reshape(expand(reshape(bias, {groups, 1}), {groups, each}), {-1});
    }
    c.give(group_norm(x, groups, scale, bias, c.real("epsilon", 1e-5)));
}

void lrn(Call& c) { c.give(local_response_norm(c.x(0), c.integer("size", 1), c.real("alpha", 1e-4), c.real("beta", 0.75), c.real("bias", 1))); }

void lp_normalization(Call& c) {
    const Tensor x = c.x(0);
    const int axis = c.axis("axis", -1, x.dim());
    const Tensor length = norm(x, static_cast<double>(c.integer("p", 2)), {axis}, true);
    c.give(x / where(eq(length, 0), 1, length));  // zeros stay zeros
}

void mean_variance_normalization(Call& c) {
    const Tensor x = c.x(0);
    Dims dims;
    for (const int64_t axis : c.given("axes") ? c.integers("axes") : std::vector<int64_t>{0, 2, 3}) dims.push_back(c.axis(axis, x.dim()));
    const Tensor centred = x - mean(x, dims, true);
    c.give(centred / (sqrt(mean(square(centred), dims, true)) + 1e-9));
}

void einsum_op(Call& c) { c.give(einsum(c.text("equation", "").c_str(), c.all())); }
void det_op(Call& c) { c.give(linalg::det(c.x(0))); }

constexpr OnnxOp kNnOps[] = {
    {"MatMul", 1, matmul_op},
    {"Gemm", 1, gemm},
    {"Conv", 1, conv},
    {"ConvTranspose", 1, conv_transpose},
    {"BatchNormalization", 1, batch_normalization},
    {"InstanceNormalization", 1, instance_normalization},
    {"LayerNormalization", 17, layer_normalization},
    {"RMSNormalization", 23, rms_normalization},
    {"GroupNormalization", 18, group_normalization},
    {"LRN", 1, lrn},
    {"LpNormalization", 1, lp_normalization},
    {"MeanVarianceNormalization", 9, mean_variance_normalization},
    {"Einsum", 12, einsum_op},
    {"Det", 11, det_op},
};

}  // namespace

std::span<const OnnxOp> onnx_nn_ops() { return kNnOps; }

}  // namespace tapir::detail
