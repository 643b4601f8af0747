// Writes matmul.cpp, convolution.cpp, pooling.cpp, the norms and the gates of recurrent cells as ONNX.
#include <algorithm>

#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/onnx_form.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {
namespace {

using std::int64_t;

std::size_t at(int64_t d) { return static_cast<std::size_t>(d); }

// Converts an operand: operators know few small integers.
OnnxValue factor(const OnnxCall& x, int i) {
    const DType dtype = x.result_dtype();
    return x.cast(x.as_result(i), dtype == bool_ || dtype == DType::uint8 ? DType::int32 : dtype);
}

OnnxValue linear_of(const OnnxCall& x) {
    const OnnxValue input = factor(x, 0), weight = factor(x, 1);
    if (x.rank(0) == 2 && x.rank(1) == 2 && is_floating(x.result_dtype()) && (x.count() < 3 || x.rank(2) == 1)) {
        OnnxValues operands = {input, weight};
        if (x.count() > 2) operands.push_back(x.as_result(2));
        return x.node("Gemm", operands, {{"transB", 1}});
    }
    const OnnxValue y = x.node("MatMul", {input, x.matrix_transpose(weight, x.rank(1))});
    return x.count() > 2 ? y + factor(x, 2) : y;
}

// --- Convolutions -----------------------------------------------------------------------------------------------------------------

// Returns one number for each spatial dimension.
OnnxInts spatial(const OnnxCall& x, const char* name, int dims) {
    const OnnxInts numbers = x.integers(name);
    return numbers.size() == 1 ? OnnxInts::of(dims, numbers[0]) : numbers;
}
// Returns the padding before the elements, then the one after them.
OnnxInts pads_of(const OnnxCall& x, int dims) {
    OnnxInts pads = spatial(x, "padding", dims);
    if (pads.count() == dims) pads.append(OnnxInts(pads));
    return pads;
}

// Applies negative padding: ONNX's Conv does not take it, so it is cut off before.
OnnxValue cropped(const OnnxCall& x, OnnxValue v, OnnxInts& pads, int dims) {
    for (int d = 0; d < dims; ++d) {
        const int64_t before = std::max<int64_t>(0, -pads[d]), after = std::max<int64_t>(0, -pads[dims + d]);
        if (before > 0 || after > 0) v = x.slice(v, 2 + d, before, after > 0 ? -after : OnnxCall::kEnd);
        pads[d] = std::max<int64_t>(0, pads[d]);
        pads[dims + d] = std::max<int64_t>(0, pads[dims + d]);
    }
    return v;
}

OnnxValue convolution_of(const OnnxCall& x) {
    const int dims = x.rank() - 2;
    OnnxInts pads = pads_of(x, dims);
    OnnxValues operands = {cropped(x, x[0], pads, dims), x[1]};
    if (x.count() > 2) operands.push_back(x[2]);
    return x.node(
        "Conv", operands,
        {{"strides", spatial(x, "stride", dims)}, {"pads", pads}, {"dilations", spatial(x, "dilation", dims)}, {"group", x.integer("groups")}});
}

OnnxValue conv_transpose_of(const OnnxCall& x) {
    const int dims = x.rank() - 2;
    OnnxInts pads = pads_of(x, dims), output = spatial(x, "output_padding", dims);
    const OnnxInts stride = spatial(x, "stride", dims), dilation = spatial(x, "dilation", dims);
    OnnxInts more = OnnxInts::of(2 * dims, 0);  // zeros around the result that ConvTranspose cannot make itself
    bool any = false;
    for (int d = 0; d < dims; ++d) {
        for (const int side : {0, dims}) {
            int64_t& pad = pads[side + d];
            more[side + d] = std::max<int64_t>(0, -pad);
            pad = std::max<int64_t>(0, pad);
        }
        if (output[d] >= std::max(stride[d], dilation[d]) || more[dims + d] > 0) {
            more[dims + d] += output[d];
            output[d] = 0;
        }
        any = any || more[d] > 0 || more[dims + d] > 0;
    }
    OnnxValues operands = {x[0], x[1]};
    if (x.count() > 2 && !any) operands.push_back(x[2]);
    OnnxValue y = x.node("ConvTranspose", operands,
                         {{"strides", stride}, {"pads", pads}, {"dilations", dilation}, {"output_padding", output}, {"group", x.integer("groups")}});
    if (!any) return y;
    OnnxInts around = {0, 0};
    around.append(more.first(dims));
    around.append({0, 0});
    around.append(more.after(dims));
    y = x.node("Pad", {y, x.ints(around)});
    if (x.count() < 3) return y;
    OnnxInts after;
    for (int d = 0; d < dims; ++d) after.push_back(1 + d);
    return y + x.unsqueeze(x[2], after);
}

// A convolution's weight gradient is a convolution itself: of x, whose batch becomes the channels, with g as the weight.
OnnxValue conv_weight_of(const OnnxCall& x) {
    const int dims = x.rank() - 2;
    const int64_t groups = x.integer("groups");
    if (groups < 1) x.refuse("of less than one group");
    const auto kernel = spatial(x, "kernel_size", dims);
    OnnxInts pads = pads_of(x, dims);
    const OnnxValue input = cropped(x, x[0], pads, dims);
    OnnxInts swap = {1, 0}, order = {2, 1, 0};
    for (int d = 0; d < dims; ++d) {
        swap.push_back(2 + d);
        order.push_back(3 + d);
    }
    OnnxValue images;
    if (groups == 1) {
        images = x.permute(input, swap);
    } else {
        if (!x.shape()[1].is_number()) x.refuse("of channels whose number is a named dimension");
        const int64_t each = x.shape()[1].number() / groups;  // (n, groups, each, ...) -> (each, groups * n, ...)
        const OnnxValue shape = x.shape_of(input), sizes = x.slice(shape, 0, 2, OnnxCall::kEnd), n = x.slice(shape, 0, 0, 1);
        const OnnxValue split = x.node("Reshape", {input, x.concat({n, x.ints({groups, each}), sizes}, 0)});
        images = x.node("Reshape", {x.permute(split, order), x.concat({x.ints({each}), n * x.ints({groups}), sizes}, 0)});
    }
    OnnxValue y = x.node("Conv", {images, x.permute(x[1], swap)},
                         {{"strides", spatial(x, "dilation", dims)}, {"pads", pads}, {"dilations", spatial(x, "stride", dims)}, {"group", groups}});
    for (int d = 0; d < dims; ++d) y = x.slice(y, 2 + d, 0, kernel[d]);
    return x.permute(y, swap);
}

// --- Pooling ----------------------------------------------------------------------------------------------------------------------

// Windows along one dimension: result element i has the window from begin(i) to end(i), which may reach beyond the input.
struct Windows {
    int64_t in, out, kernel, stride, pad, dilation;
    bool is_adaptive;
    int64_t begin(int64_t i) const { return is_adaptive ? i * in / out : i * stride - pad; }
    int64_t end(int64_t i) const { return is_adaptive ? ((i + 1) * in + out - 1) / out : i * stride - pad + dilation * (kernel - 1) + 1; }
};

struct Pool {
    int dims;
    OnnxList<Windows> windows;
    bool is_adaptive = false, has_known_sizes = true;

    // in, out: the spatial sizes of the input of pooling and of its result.
    Pool(const OnnxCall& x, const OnnxSizes& in, const OnnxSizes& out, bool has_dilation) : dims(in.count() - 2) {
        is_adaptive = !x.sizes("output_size").empty();
        OnnxInts kernel, stride, pad, dilation;
        if (!is_adaptive) {
            kernel = spatial(x, "kernel_size", dims);
            stride = spatial(x, "stride", dims);
            if (stride.empty()) stride = kernel;
            pad = spatial(x, "padding", dims);
            dilation = has_dilation ? spatial(x, "dilation", dims) : OnnxInts::of(dims, 1);
        }
        for (int d = 0; d < dims; ++d) {
            const SymInt i = in[2 + d], o = out[2 + d];
            for (const SymInt& size : {i, o}) {  // windows are computed with these
                if (size.is_number() && (size.number() < 0 || size.number() > INT32_MAX)) x.refuse("of images of such sizes");
            }
            has_known_sizes = has_known_sizes && i.is_number() && o.is_number();
            Windows w{i.is_number() ? i.number() : 0, o.is_number() ? o.number() : 0, 1, 1, 0, 1, is_adaptive};
            if (!is_adaptive) {
                w.kernel = kernel[d];
                w.stride = stride[d];
                w.pad = pad[d];
                w.dilation = dilation[d];
            } else if (i.is_number() && o.is_number() && o.number() > 0 && i.number() % o.number() == 0) {
                w.kernel = w.stride = i.number() / o.number();
                w.is_adaptive = false;
            }
            windows.push_back(w);
        }
    }
    bool is_regular() const {
        return std::none_of(windows.begin(), windows.end(), [](const Windows& w) { return w.is_adaptive; });
    }
    // Returns the padding at the end, which reaches beyond the input so that as many windows fit.
    int64_t end_pad(int d) const {
        const Windows& w = windows[d];
        return std::max(w.pad, (w.out - 1) * w.stride + w.dilation * (w.kernel - 1) + 1 - w.in - w.pad);
    }
    OnnxAttributes attributes(const OnnxCall& x) const {
        OnnxInts kernel, stride, pads;
        for (const Windows& w : windows) {
            kernel.push_back(w.kernel);
            stride.push_back(w.stride);
            pads.push_back(w.pad);
        }
        for (int d = 0; d < dims; ++d) pads.push_back(has_known_sizes ? end_pad(d) : windows[d].pad);
        OnnxAttributes list = {{"kernel_shape", kernel}, {"strides", stride}, {"pads", pads}};
        if (!has_unknown_ends(x)) return list;
        for (const Windows& w : windows) {  // windows that begin beyond the elements are none here, but are windows in ONNX
            const bool begins_inside = w.pad + w.stride <= w.dilation * (w.kernel - 1) + 1;
            if (!begins_inside) x.refuse("with ceil_mode and such strides, of images whose sizes are named dimensions");
        }
        list.emplace_back("ceil_mode", 1);
        return list;
    }
    bool has_unknown_ends(const OnnxCall& x) const { return !has_known_sizes && x.flag("ceil_mode"); }
};

// True if it is adaptive, to one window.
bool is_global(const OnnxCall& x) {
    const OnnxSizes sizes = x.sizes("output_size");
    return !sizes.empty() && std::all_of(sizes.begin(), sizes.end(), [](const SymInt& size) { return size == SymInt(1); });
}

void need_sizes(const OnnxCall& x, const Pool& pool) {
    if (!pool.has_known_sizes) x.refuse("of images whose sizes are named dimensions");
}

OnnxValues max_pool_of(const OnnxCall& x) {
    const Pool pool(x, x.shape(), x.result_shape(), true);
    if (pool.is_regular()) {
        OnnxAttributes attributes = pool.attributes(x);
        OnnxInts dilations;
        for (const Windows& w : pool.windows) dilations.push_back(w.dilation);
        attributes.emplace_back("dilations", dilations);
        OnnxValues found = x.nodes("MaxPool", {x.dtype(), int64}, {x[0]}, attributes);
        OnnxValue plane = x.size_0d(x.shape()[2]);  // ONNX counts through all images
        for (int d = 1; d < pool.dims; ++d) plane = plane * x.size_0d(x.shape()[2 + d]);
        return {found[0], x.node("Mod", {found[1], plane})};
    }
    if (is_global(x) && !pool.has_known_sizes) {
        OnnxInts dims;
        SymInt plane = 1;
        for (int d = 2; d < x.rank(); ++d) {
            dims.push_back(d);
            plane = plane * x.shape()[d];
        }
        const OnnxValue lines = x.reshape(x[0], {x.shape()[0], x.shape()[1], plane});
        const OnnxValue place = x.node("ArgMax", int64, {lines}, {{"axis", 2}, {"keepdims", 0}});
        return {x.extreme(true, x[0], dims, true), x.reshape(place, x.result_shape())};
    }
    // Makes each window a mask over its image: (out, in) for each dimension.
    need_sizes(x, pool);
    OnnxValue is_in;
    int64_t elements = 1;
    for (int d = 0; d < pool.dims; ++d) {
        const Windows& w = pool.windows[d];
        OnnxInts numbers;
        x.need_room({w.out, w.in});
        for (int64_t o = 0; o < w.out; ++o) {
            for (int64_t i = 0; i < w.in; ++i) numbers.push_back(i >= w.begin(o) && i < w.end(o) && (i - w.begin(o)) % w.dilation == 0);
        }
        Shape shape;
        for (int e = 0; e < pool.dims; ++e) shape.push_back(e == d ? w.out : 1);
        for (int e = 0; e < pool.dims; ++e) shape.push_back(e == d ? w.in : 1);
        const OnnxValue mask = x.constant(tensor(static_cast<const std::vector<int64_t>&>(numbers)).to(bool_).reshape(shape));
        is_in = is_in.is_left_out() ? mask : is_in & mask;
        elements *= w.in;
    }
    OnnxInts front;
    for (int d = 0; d < pool.dims; ++d) front.push_back(2 + d);
    const OnnxValue seen = where(is_in, x.unsqueeze(x[0], front), -__builtin_inf());  // (n, c, out ..., in ...)
    OnnxSizes flat = x.result_shape();
    flat.push_back(elements);
    const OnnxValue lines = x.reshape(seen, flat);
    const int last = flat.count() - 1;
    return {x.reduce("ReduceMax", lines, {last}, false), x.node("ArgMax", int64, {lines}, {{"axis", last}, {"keepdims", 0}})};
}

// Takes (g, indices): adds each window's gradient at its place, in planes of one dimension.
OnnxValue max_pool_backward_of(const OnnxCall& x) {
    const auto planes = [](const OnnxSizes& shape) {
        SymInt volume = 1;
        for (int d = 2; d < shape.count(); ++d) volume = volume * shape[d];
        return OnnxSizes{shape[0], shape[1], volume};
    };
    const OnnxValue index = x.cast(x[1], int64), is_there = index >= 0;  // -1: a window of padding only
    const OnnxValue places = x.reshape(where(is_there, index, 0), planes(x.shape())), kept = x.reshape(where(is_there, x[0], 0), planes(x.shape()));
    const OnnxValue none = x.filled(planes(x.result_shape()), 0, x.dtype());
    return x.reshape(x.node("ScatterElements", {none, places, kept}, {{"axis", 2}, {"reduction", "add"}}), x.result_shape());
}

// Returns the matrix of averages along a dimension: (out, in), divided by the number of elements that count.
Tensor averages(const Windows& w, bool counts_padding, bool divides) {
    OnnxCall::need_room({w.out, w.in});
    std::vector<double> m(at(w.out * w.in));
    for (int64_t o = 0; o < w.out; ++o) {
        int64_t count = 0;
        for (int64_t i = w.begin(o); i < w.end(o); ++i) {
            const bool is_inside = i >= 0 && i < w.in;
            if (is_inside) m[o * w.in + i] = 1;
            count += is_inside || (counts_padding && i < w.in + w.pad);
        }
        for (int64_t i = 0; i < w.in; ++i) m[o * w.in + i] /= divides ? static_cast<double>(std::max<int64_t>(count, 1)) : 1;
    }
    return tensor(m).reshape({w.out, w.in});
}

// Writes averages as a product with a matrix for each dimension; the gradient uses the transposed matrices.
OnnxValue averaged(const OnnxCall& x, const Pool& pool, bool is_gradient) {
    need_sizes(x, pool);
    const int64_t divisor = x.integer("divisor_override");
    const bool counts_padding = x.flag("count_include_pad");
    const int rank = 2 + pool.dims;
    const DType dtype = is_floating(x.dtype()) ? x.dtype() : DType::float64;
    OnnxValue y = x.cast(x[0], dtype);
    for (int d = 0; d < pool.dims; ++d) {
        const Tensor m = averages(pool.windows[d], counts_padding, divisor == 0).to(dtype);
        OnnxInts order;
        for (int k = 0; k < rank; ++k) order.push_back(k == rank - 1 ? 2 + d : k == 2 + d ? rank - 1 : k);
        const OnnxValue matrix = x.constant((is_gradient ? m : m.t()).contiguous());
        y = x.permute(x.node("MatMul", {x.permute(y, order), matrix}), order);
    }
    return divisor == 0 ? y : y / static_cast<double>(divisor);
}

OnnxValue avg_pool_of(const OnnxCall& x) {
    const Pool pool(x, x.shape(), x.result_shape(), false);
    bool is_plain = pool.is_regular() && x.integer("divisor_override") == 0;
    bool counts_padding = x.flag("count_include_pad");
    for (int d = 0; d < pool.dims && is_plain && pool.has_known_sizes; ++d) {
        // Windows that reach beyond the padding are divided by a smaller number.
        is_plain = !counts_padding || pool.end_pad(d) == pool.windows[d].pad;
    }
    if (is_global(x)) return x.node("GlobalAveragePool", {x[0]});
    if (!is_plain) return averaged(x, pool, false);
    if (counts_padding && pool.has_unknown_ends(x)) {  // padding counts, but not elements beyond it
        const bool is_padded = std::any_of(pool.windows.begin(), pool.windows.end(), [](const Windows& w) { return w.pad > 0; });
        if (is_padded) x.refuse("with ceil_mode and padding that counts, of images whose sizes are named dimensions");
        counts_padding = false;
    }
    OnnxAttributes attributes = pool.attributes(x);
    attributes.emplace_back("count_include_pad", counts_padding);
    return x.node("AveragePool", {x[0]}, attributes);
}

OnnxValue avg_pool_gradient_of(const OnnxCall& x) { return averaged(x, Pool(x, x.result_shape(), x.shape(), false), true); }

// --- Norms ------------------------------------------------------------------------------------------------------------------------

// Returns the next operand, if there is one.
OnnxValue next(const OnnxCall& x, const char* has, int& i) { return x.flag(has) ? x[i++] : OnnxValue(); }

// Reshapes (channels,) so that it broadcasts to the dimensions that follow.
OnnxValue beside(const OnnxCall& x, const OnnxValue& channels) {
    OnnxInts after;
    for (int d = 2; d < x.rank(); ++d) after.push_back(d - 1);
    return x.unsqueeze(channels, after);
}

OnnxValues batch_norm_of(const OnnxCall& x) {
    int i = 1;
    const OnnxValue mean = next(x, "has_running_mean", i), var = next(x, "has_running_var", i), weight = next(x, "has_weight", i),
                    bias = next(x, "has_bias", i);
    const DType dtype = x.dtype();
    const SymInt channels = x.shape()[1];
    const double eps = x.real("eps");
    if (!x.flag("training")) {
        const OnnxValue scale = weight.is_left_out() ? x.filled({channels}, 1, dtype) : weight;
        const OnnxValue shift = bias.is_left_out() ? x.filled({channels}, 0, dtype) : bias;
        const OnnxValue y = x.node("BatchNormalization", {x[0], scale, shift, mean, var}, {{"epsilon", eps}});
        const OnnxValue rstd = 1 / sqrt(x.cast(var, x.result_dtype(1)) + eps);
        return {y, x.concat({x.unsqueeze(x.cast(mean, x.result_dtype(1)), {0}), x.unsqueeze(rstd, {0})}, 0)};
    }
    OnnxInts dims;
    SymInt n = 1;
    for (int d = 0; d < x.rank(); ++d) {
        if (d == 1) continue;
        dims.push_back(d);
        n = n * x.shape()[d];
    }
    const OnnxValue center = x.reduce("ReduceMean", x[0], dims, true), away = x[0] - center;
    const OnnxValue spread = x.reduce("ReduceMean", away * away, dims, true);
    OnnxValue y = away / sqrt(spread + eps);
    if (!weight.is_left_out()) y = y * beside(x, x.cast(weight, dtype));
    if (!bias.is_left_out()) y = y + beside(x, x.cast(bias, dtype));
    OnnxValues results = {y};
    const double momentum = x.real("momentum");
    const auto moved = [&](const OnnxValue& old, const OnnxValue& now) {
        return old * (1 - momentum) + x.cast(x.reshape(now, {channels}), old.dtype()) * momentum;
    };
    if (!mean.is_left_out()) results.push_back(moved(mean, center));
    if (!var.is_left_out()) {
        const OnnxValue count = x.size_as(n, dtype);
        results.push_back(moved(var, spread * (count / (count - 1))));
    }
    return results;
}

std::vector<int64_t> all_but_channels(const OnnxCall& x) {
    std::vector<int64_t> dims;
    for (int d = 0; d < x.rank(); ++d) {
        if (d != 1) dims.push_back(d);
    }
    return dims;
}

// Takes (g, x, weight), in training; returns the gradients of x, and of the weight and the bias if they exist.
OnnxValues batch_norm_backward_of(const OnnxCall& x) {
    const DType dtype = computed_in(x.dtype());  // the parameters' gradients have it, too
    const OnnxValue g = x.cast(x[0], dtype), in = x.cast(x[1], dtype);
    const std::vector<int64_t> dims = all_but_channels(x);
    const auto mean = [&](const OnnxValue& v) { return x.reduce("ReduceMean", v, dims, true); };
    const auto total = [&](const OnnxValue& v) { return x.reduce("ReduceSum", v, dims, false); };
    const OnnxValue away = in - mean(in), rstd = 1 / sqrt(mean(away * away) + x.real("eps")), normal = away * rstd;
    const OnnxValue d = x.flag("has_weight") ? g * beside(x, x.cast(x[2], dtype)) : g;
    OnnxValues results = {x.cast(rstd * (d - mean(d) - normal * mean(d * normal)), x.dtype())};
    if (x.flag("has_weight")) results.push_back(total(g * normal));
    if (x.flag("has_bias")) results.push_back(total(g));
    return results;
}

// Returns the last dimensions, as many as normalized_shape has.
OnnxInts last_dims(const OnnxCall& x) {
    OnnxInts dims;
    const int count = x.sizes("normalized_shape").count();
    for (int d = x.rank() - count; d < x.rank(); ++d) dims.push_back(d);
    return dims;
}

OnnxValue layer_norm_of(const OnnxCall& x) {
    int i = 1;
    const OnnxValue weight = next(x, "has_weight", i), bias = next(x, "has_bias", i);
    OnnxValues operands = {x[0], weight.is_left_out() ? x.filled(x.sizes("normalized_shape"), 1, x.dtype()) : x.cast(weight, x.dtype())};
    if (!bias.is_left_out()) operands.push_back(x.cast(bias, x.dtype()));
    return x.node("LayerNormalization", operands, {{"axis", -last_dims(x).count()}, {"epsilon", x.real("eps")}});
}

// Takes (g, x, weight); returns the gradients of x, and of the weight and the bias if they exist.
OnnxValues layer_norm_backward_of(const OnnxCall& x) {
    const OnnxValue &g = x[0], &in = x[1];
    const OnnxInts dims = last_dims(x);
    OnnxInts leading;
    for (int d = 0; d < x.rank() - dims.count(); ++d) leading.push_back(d);
    const auto mean = [&](const OnnxValue& v) { return x.reduce("ReduceMean", v, dims, true); };
    const auto total = [&](const OnnxValue& v) { return leading.empty() ? v : x.reduce("ReduceSum", v, leading, false); };
    const OnnxValue away = in - mean(in), rstd = 1 / sqrt(mean(away * away) + x.real("eps")), normal = away * rstd;
    const OnnxValue d = x.flag("has_weight") ? g * x[2] : g;
    OnnxValues results = {rstd * (d - mean(d) - normal * mean(d * normal))};
    if (x.flag("has_weight")) results.push_back(total(g * normal));
    if (x.flag("has_bias")) results.push_back(total(g));
    return results;
}

OnnxValue rms_norm_of(const OnnxCall& x) {
    double eps = x.real("eps");
    if (eps < 0) eps = x.dtype() == DType::float64 ? 0x1p-52 : x.dtype() == DType::float32 ? 0x1p-23 : x.dtype() == DType::float16 ? 0x1p-10 : 0x1p-7;
    const OnnxValue y = x[0] / sqrt(x.reduce("ReduceMean", x[0] * x[0], last_dims(x), true) + eps);
    return x.count() > 1 ? y * x.cast(x[1], x.dtype()) : y;
}

// Returns the shape of x as (batch, groups, elements of each group).
OnnxSizes groups_of(const OnnxCall& x) {
    if (x.integer("num_groups") < 1) x.refuse("of less than one group");
    const SymInt groups = x.integer("num_groups"), channels = x.shape()[1];
    SymInt rest = 1;
    for (int d = 2; d < x.rank(); ++d) rest = rest * x.shape()[d];
    if (!channels.is_number() && x.integer("num_groups") != 1) x.refuse("of channels whose number is a named dimension");
    const SymInt each = (channels.is_number() ? SymInt(channels.number() / x.integer("num_groups")) : channels) * rest;
    return {x.shape()[0], groups, each};
}

OnnxValue group_norm_of(const OnnxCall& x) {
    int i = 1;
    const OnnxValue weight = next(x, "has_weight", i), bias = next(x, "has_bias", i);
    const OnnxValue grouped = x.reshape(x[0], groups_of(x));
    const OnnxValue away = grouped - x.reduce("ReduceMean", grouped, {2}, true);
    const OnnxValue normal = away / sqrt(x.reduce("ReduceMean", away * away, {2}, true) + x.real("eps"));
    OnnxValue y = x.reshape(normal, x.shape());
    if (!weight.is_left_out()) y = y * beside(x, x.cast(weight, x.dtype()));
    if (!bias.is_left_out()) y = y + beside(x, x.cast(bias, x.dtype()));
    return y;
}

// Takes (g, x, weight); returns the gradients of x, and of the weight and the bias if they exist.
OnnxValues group_norm_backward_of(const OnnxCall& x) {
    const DType dtype = computed_in(x.dtype());  // the parameters' gradients have it, too
    const OnnxValue g = x.cast(x[0], dtype), in = x.reshape(x.cast(x[1], dtype), groups_of(x));
    const auto mean = [&](const OnnxValue& v) { return x.reduce("ReduceMean", v, {2}, true); };
    const auto total = [&](const OnnxValue& v) { return x.reduce("ReduceSum", v, all_but_channels(x), false); };
    const OnnxValue away = in - mean(in), rstd = 1 / sqrt(mean(away * away) + x.real("eps")), normal = away * rstd;
    const OnnxValue d = x.reshape(x.flag("has_weight") ? g * beside(x, x.cast(x[2], dtype)) : g, groups_of(x));
    OnnxValues results = {x.cast(x.reshape(rstd * (d - mean(d) - normal * mean(d * normal)), x.shape()), x.dtype())};
    if (x.flag("has_weight")) results.push_back(total(g * x.reshape(normal, x.shape())));
    if (x.flag("has_bias")) results.push_back(total(g));
    return results;
}

// --- Gates ------------------------------------------------------------------------------------------------------------------------

OnnxValue block(const OnnxCall& x, const OnnxValue& source, int rank, int64_t number, const SymInt& width) {
    return x.slice(source, rank - 1, SymInt(number) * width, SymInt(number + 1) * width);
}

// layouts: six numbers per source: its number of blocks, then the blocks of the input gate, the first forget gate, one or no step to the
// next child's, the output gate, the update; -1: in another source.
// Returns the block of a gate in a source, by those numbers.
int64_t block_of(const OnnxInts& layouts, int source, int gate, int children) {  // gates: i, f_1 ... f_n, o, u
    const OnnxInts layout = layouts.after(6 * source).first(6);
    if (gate == 0) return layout[1];
    if (gate == children + 1) return layout[4];
    if (gate == children + 2) return layout[5];
    return layout[2] < 0 ? -1 : layout[2] + (gate - 1) * layout[3];
}

// Takes the sources from operand `first` on, then the children's c.
struct LstmStep {
    int children, first, sources;
    OnnxInts layouts;
    OnnxSizes shape;   // the state's
    OnnxValues gates;  // activated, in their order
    OnnxValue c;

    LstmStep(const OnnxCall& x, int first_source, const OnnxSizes& state)
        : children(x.small("children")), first(first_source), sources(x.count() - first - children), layouts(x.integers("layouts")), shape(state) {
        OnnxValues rows;
        for (int s = 0; s < sources; ++s) {  // (..., blocks, width) as (..., blocks * width)
            OnnxSizes of_source = shape;
            of_source.last() = SymInt(layouts[6 * s]) * shape.last();
            rows.push_back(x.shape(first + s) == of_source ? x[first + s] : x.reshape(x[first + s], of_source));
        }
        for (int g = 0; g < children + 3; ++g) {
            OnnxValue sum;
            for (int s = 0; s < sources; ++s) {
                const int64_t number = block_of(layouts, s, g, children);
                if (number < 0) continue;
                const OnnxValue part = block(x, rows[s], shape.count(), number, shape.last());
                sum = sum.is_left_out() ? part : sum + part;
            }
            gates.push_back(g == children + 2 ? tanh(sum) : sigmoid(sum));
        }
        c = gates[0] * gates.last();
        for (int k = 0; k < children; ++k) c = c + gates[1 + k] * child(x, k);
    }
    const OnnxValue& child(const OnnxCall& x, int k) const { return x[first + sources + k]; }
    const OnnxValue& o() const { return gates[children + 1]; }
};

OnnxValues lstm_gates_of(const OnnxCall& x) {
    const LstmStep step(x, 0, x.result_shape());
    const OnnxValue tanh_c = tanh(step.c);
    OnnxValues results = {step.o() * tanh_c, step.c};
    if (x.flag("keep_activations")) {  // (rows, children + 4, width)
        OnnxValues kept = step.gates;
        kept.push_back(tanh_c);
        results.push_back(x.reshape(x.concat(kept, step.shape.count() - 1), x.result_shape(2)));
    }
    return results;
}

OnnxValues lstm_gates_backward_of(const OnnxCall& x) {
    const bool has_h = x.flag("has_grad_h"), has_c = x.flag("has_grad_c");
    const LstmStep step(x, has_h + has_c + x.flag("has_activations"), x.shape(0));
    const int n = step.children;
    const OnnxValue &i = step.gates[0], &o = step.o(), &u = step.gates.last(), tanh_c = tanh(step.c);
    const auto zeros = [&] { return x.filled(step.shape, 0, x.dtype()); };
    OnnxValue grad_c = has_c ? x[has_h] : OnnxValue();
    if (has_h) {
        const OnnxValue through = x[0] * o * (1 - tanh_c * tanh_c);
        grad_c = has_c ? grad_c + through : through;
    }
    OnnxValues grads = {grad_c * u * i * (1 - i)}, results;
    for (int k = 0; k < n; ++k) {
        const OnnxValue& f = step.gates[1 + k];
        grads.push_back(grad_c * step.child(x, k) * f * (1 - f));
    }
    grads.push_back(has_h ? x[0] * tanh_c * o * (1 - o) : zeros());
    grads.push_back(grad_c * i * (1 - u * u));
    const OnnxInts& all = step.layouts;
    const bool is_shared = step.sources == 2 && all.first(6) == all.after(6).first(6);
    for (int s = 0; s < (is_shared ? 1 : step.sources); ++s) {
        OnnxValues blocks = OnnxValues::of(all[6 * s], OnnxValue());
        for (int g = 0; g < n + 3; ++g) {
            const int64_t number = block_of(all, s, g, n);
            if (number < 0) continue;
            OnnxValue& place = blocks[number];
            place = place.is_left_out() ? grads[g] : place + grads[g];
        }
        for (OnnxValue& place : blocks) {
            if (place.is_left_out()) place = zeros();
        }
        const OnnxValue row = x.concat(blocks, step.shape.count() - 1);
        const OnnxSizes& shape = x.shape(step.first + s);
        results.push_back(shape.count() == step.shape.count() ? row : x.reshape(row, shape));
    }
    for (int k = 0; k < n; ++k) results.push_back(grad_c * step.gates[1 + k]);
    return results;
}

// Takes the operands from x[first] on.
struct GruStep {
    OnnxValue r, z, n, h_n, h;
    GruStep(const OnnxCall& x, int first) {
        const SymInt width = x.shape(first + 2).last();
        const auto of_x = [&](int k) { return block(x, x[first], x.rank(first), k, width); };
        const auto of_h = [&](int k) { return block(x, x[first + 1], x.rank(first), k, width); };
        r = sigmoid(of_x(0) + of_h(0));
        z = sigmoid(of_x(1) + of_h(1));
        h_n = of_h(2);
        n = tanh(of_x(2) + r * h_n);
        h = x[first + 2];
    }
};

OnnxValues gru_gates_of(const OnnxCall& x) {
    const GruStep s(x, 0);
    OnnxValues results = {(1 - s.z) * s.n + s.z * s.h};
    if (x.flag("keep_activations")) results.push_back(x.reshape(x.concat({s.r, s.z, s.n}, x.rank(0) - 1), x.result_shape(1)));
    return results;
}

OnnxValues gru_gates_backward_of(const OnnxCall& x) {
    const GruStep s(x, 1 + x.flag("has_activations"));
    const OnnxValue grad_n = x[0] * (1 - s.z) * (1 - s.n * s.n), grad_z = x[0] * (s.h - s.n) * s.z * (1 - s.z);
    const OnnxValue grad_r = grad_n * s.h_n * s.r * (1 - s.r);
    const int last = x.rank(0) - 1;
    return {x.concat({grad_r, grad_z, grad_n}, last), x.concat({grad_r, grad_z, grad_n * s.r}, last), x[0] * s.z};
}

}  // namespace

TAPIR_ONNX(matmul, x.node("MatMul", {factor(x, 0), factor(x, 1)}));
TAPIR_ONNX(linear, linear_of(x));

TAPIR_ONNX(convolution, convolution_of(x));
TAPIR_ONNX(conv_transpose, conv_transpose_of(x));
TAPIR_ONNX(conv_weight, conv_weight_of(x));

TAPIR_ONNX(max_pool, max_pool_of(x));
TAPIR_ONNX(max_pool_backward, max_pool_backward_of(x));
TAPIR_ONNX(avg_pool, avg_pool_of(x));
TAPIR_ONNX(avg_pool_gradient, avg_pool_gradient_of(x));

TAPIR_ONNX(batch_norm, batch_norm_of(x));
TAPIR_ONNX(batch_norm_backward, batch_norm_backward_of(x));
TAPIR_ONNX(layer_norm, layer_norm_of(x));
TAPIR_ONNX(layer_norm_backward, layer_norm_backward_of(x));
TAPIR_ONNX(rms_norm, rms_norm_of(x));
TAPIR_ONNX(group_norm, group_norm_of(x));
TAPIR_ONNX(group_norm_backward, group_norm_backward_of(x));

TAPIR_ONNX(lstm_gates, lstm_gates_of(x));
TAPIR_ONNX(lstm_gates_backward, lstm_gates_backward_of(x));
TAPIR_ONNX(gru_gates, gru_gates_of(x));
TAPIR_ONNX(gru_gates_backward, gru_gates_backward_of(x));

}  // namespace tapir
