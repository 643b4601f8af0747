// Convolutions. Note [Closed under gradients]: a convolution, its gradient with respect to the input and the one
// with respect to the weight are three ops, and the gradients of each are the other two. So all are differentiable to any order.
//     y = output(x, w)      gradients: of x: input(g, w),   of w: weight(x, g)
//     x = input(y, w)       gradients: of y: output(g, w),  of w: weight(g, y)
//     w = weight(x, y)      gradients: of x: input(y, g),   of y: output(x, g)
#include "tapir/ops/convolution/convolution.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/size_math_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/convolution/convolution_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/linear/matmul_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;

void convolution_rule(Backward& b);
void conv_transpose_rule(Backward& b);
void conv_weight_rule(Backward& b);

}  // namespace

TAPIR_OP(convolution, convolution_rule, "The cross-correlation of each example with each kernel.",
         TAPIR_SAMPLE_AS("f(2,3,7) f(4,3,3) f(4)", "nn.functional.conv1d(x[0], x[1], x[2])", conv1d(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS("f(2,4,9) f(6,2,3)", "nn.functional.conv1d(x[0], x[1], None, 2, 2, 2, 2)",
                         conv1d(x[0], x[1], {}, {.stride = 2, .padding = 2, .dilation = 2, .groups = 2})),
         TAPIR_SAMPLE_AS("f(2,3,6,5) f(4,3,3,2) f(4)", "nn.functional.conv2d(x[0], x[1], x[2], (2, 1), (1, 0))",
                         conv2d(x[0], x[1], x[2], {.stride = {2, 1}, .padding = {1, 0}})),
         TAPIR_SAMPLE_AS("f(1,2,5,6) f(3,2,2,3)", "nn.functional.conv2d(x[0], x[1], padding='same', dilation=(2, 1))",
                         conv2d(x[0], x[1], {}, {.padding = "same", .dilation = {2, 1}})),
         TAPIR_SAMPLE_AS("f(2,3,4,4) f(6,1,3,3) f(6)", "nn.functional.conv2d(x[0], x[1], x[2], padding=1, groups=3)",
                         conv2d(x[0], x[1], x[2], {.padding = 1, .groups = 3})),
         TAPIR_SAMPLE_AS("f(3,5,5) f(2,3,3,3) f(2)", "nn.functional.conv2d(x[0], x[1], x[2])", conv2d(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS("f(1,2,3,4,5) f(3,2,2,3,2) f(3)", "nn.functional.conv3d(x[0], x[1], x[2], padding=(1, 0, 1))",
                         conv3d(x[0], x[1], x[2], {.padding = {1, 0, 1}})));
TAPIR_OP(conv_transpose, conv_transpose_rule, "The gradient of a convolution with respect to its input.",
         TAPIR_SAMPLE_AS("f(2,3,5) f(3,4,3) f(4)", "nn.functional.conv_transpose1d(x[0], x[1], x[2], 2, 1, 1)",
                         conv_transpose1d(x[0], x[1], x[2], {.stride = 2, .padding = 1, .output_padding = 1})),
         TAPIR_SAMPLE_AS("f(2,4,3,4) f(4,2,2,3)", "nn.functional.conv_transpose2d(x[0], x[1], None, (2, 1), 0, 0, 2)",
                         conv_transpose2d(x[0], x[1], {}, {.stride = {2, 1}, .groups = 2})),
         TAPIR_SAMPLE_AS("f(2,3,4) f(2,3,2,2) f(3)", "nn.functional.conv_transpose2d(x[0], x[1], x[2], dilation=2)",
                         conv_transpose2d(x[0], x[1], x[2], {.dilation = 2})),
         TAPIR_SAMPLE_AS("f(1,2,2,3,2) f(2,1,2,2,2)", "nn.functional.conv_transpose3d(x[0], x[1], stride=2, padding=1)",
                         conv_transpose3d(x[0], x[1], {}, {.stride = 2, .padding = 1})));

namespace {

Tensor weight_of(const Tensor& x, const Tensor& g, const ConvCall& call);

}  // namespace

TAPIR_OP(conv_weight, conv_weight_rule, "The gradient of a convolution with respect to its weight.",
         TAPIR_SAMPLE_AS("f(2,3,4,5) f(2,4,2,3)", "torch.nn.grad.conv2d_weight(x[0], (4, 3, 3, 3), x[1])",
                         weight_of(x[0], x[1], {.kernel_size = 3})));

int threads_for(const Convolution& c) {
    constexpr int64_t least_work = 2'000'000;  // multiplications of a thread
    const int64_t work = c.batch * c.out_volume() * c.kernel_volume() * c.out_channels * c.group_in();
    return detail::in_part() ? 1 : static_cast<int>(std::clamp<int64_t>(work / least_work, 1, num_threads()));
}

namespace {

// --- Running -------------------------------------------------------------------------------------------------------------

const OpInfo& op_of(ConvPart part) {
    return part == ConvPart::output ? convolution_op : part == ConvPart::input ? conv_transpose_op : conv_weight_op;
}

// Adds bias, if there is one, to out (batch, channels, ...).
void add_bias(Tensor& out, const Tensor& bias, const Loc& loc) {
    if (bias.defined() && out.numel() > 0) out.add_(beside_channels(bias, out), loc);
}

// Runs on the CPU: oneDNN if it takes the sizes, else products in float32 or float64.
Tensor on_cpu(ConvPart part, const Convolution& c, const Tensor& a, const Tensor& b, const Tensor& bias, const Loc& loc) {
    const DType dtype = a.dtype();
    if (dtype == float32 || dtype == bfloat16) {
        const Tensor first = channels_last(a, loc), second = part == ConvPart::weight ? channels_last(b, loc) : b.contiguous(loc);
        const Tensor out = make_in_layout(shape_of(part, c), dtype, cpu, /*channels_last=*/part != ConvPart::weight, loc);
        const Tensor added = bias.defined() ? bias.contiguous(loc) : bias;
#ifndef TAPIR_RUNTIME
        if (convolve_by_winograd(part, c, first, second, added, out)) return out;
#endif
        if (convolve_by_onednn(part, c, first, second, added, out)) return out;
    }
    if (const DType compute = computed_in(dtype); compute != dtype) {
        const auto wide = [&](const Tensor& t) { return t.defined() ? t.to(compute, loc) : t; };
        return on_cpu(part, c, wide(a), wide(b), wide(bias), loc).to(dtype, loc);
    }
    Tensor out = detail::make_empty(shape_of(part, c), dtype, cpu, loc);
    convolve_by_products(part, c, a.contiguous(loc), b.contiguous(loc), out);
    add_bias(out, bias, loc);
    return out;
}

// Not recorded. bias: with `output` and `input` only.
Tensor run(ConvPart part, const Convolution& c, const Tensor& a, const Tensor& b, const Tensor& bias, const Loc& loc) {
    const DType dtype = a.dtype();
    const bool is_empty = a.numel() == 0 || b.numel() == 0;  // an empty sum
    if (is_empty) {
        Tensor out = gradient_ops::zeros(shape_of(part, c), dtype, a.device());
        add_bias(out, bias, loc);
        return out;
    }
    const detail::FlopsOf flops(c.flops());
    const auto compute = [&](const Tensor& with) { return on_gpu(a) ? convolve_on_gpu(part, c, a, b, with, loc) : on_cpu(part, c, a, b, with, loc); };
    if (part == ConvPart::output) return compute(bias);
    if (const DType read = read_in(a); bias.defined() && read != dtype) {  // the sums are rounded when the bias is added
        Tensor out = on_cpu(part, c, a.to(read, loc), b.to(read, loc), {}, loc);
        add_bias(out, bias.to(read, loc), loc);
        return out.to(dtype, loc);
    }
    Tensor out = compute({});
    add_bias(out, bias, loc);
    return out;
}

// Returns the call that has these sizes.
ConvCall call_of(ConvPart part, const Convolution& c) {
    ConvCall call{{}, {}, {}, c.groups, {}, {}};
    Shape ends;
    for (int64_t d = 3 - c.dims; d < 3; ++d) {
        const int64_t reach = detail::window_reach(c.kernel[d], c.dilation[d]), span = detail::window_span(c.out[d], reach, c.stride[d]);
        int64_t after = c.after[d];
        // A conv_transpose with much output_padding has a gradient that leaves out some of its operand.
        const int64_t windows = detail::window_count(c.in[d] + c.before[d] + after, reach, c.stride[d]);
        if (part == ConvPart::output && windows != c.out[d]) after = span - c.in[d] - c.before[d];
        call.stride.push_back(c.stride[d]);
        call.padding.push_back(c.before[d]);
        call.dilation.push_back(c.dilation[d]);
        call.output_padding.push_back(c.in[d] - (span - c.before[d] - after));
        call.kernel_size.push_back(c.kernel[d]);
        ends.push_back(after);
    }
    if (part == ConvPart::weight || ends == call.padding) return call;
    for (const int64_t after : ends) call.padding.push_back(after);
    return call;
}

Tensor convolve(ConvPart part, const Convolution& c, const Tensor& a, const Tensor& b, const Tensor& bias, const Loc& loc) {
    detail::begin_op(op_of(part).name, a.impl(), loc);
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(loc);
        out = run(part, c, a, b, bias, loc);
    }
    if (!detail::thread.observed) return out;
    const Tensor* const operands[] = {&a, &b, &bias};
    const int count = bias.defined() ? 3 : 2;
    TensorImpl* const result = out.impl();
    RecordArgs ran{op_of(part), loc, operands, count, &result, 1, operands, 2, &c, sizeof c};
    const bool recorded = recording(loc, {&a, &b, &bias});
    if (!detail::is_watched()) [[likely]] {
        finish_op(ran, recorded);
        return out;
    }
    const ConvCall call = call_of(part, c);
    const RecordArgs told{op_of(part), loc, operands, count, &result, 1, nullptr, 0, &call, sizeof call};
    ran.told = &told;
    finish_op(ran, recorded);
    return out;
}

// --- Gradients: see Note [Closed under gradients] ------------------------------------------------------------------------

Tensor convolve(Backward& b, ConvPart part, const Tensor& first, const Tensor& second) {
    return convolve(part, b.attrs<Convolution>(), first, second, {}, b.record().loc);
}

Tensor weight_gradient(Backward& b, const Tensor& first, const Tensor& second) {
    const Tensor firsts = examples_by_rows(b, first), seconds = examples_by_rows(b, second);
    if (!firsts.defined()) return convolve(b, ConvPart::weight, first, second);
    Convolution of_row = b.attrs<Convolution>();
    of_row.batch = firsts.size(1);
    std::vector<Tensor> each;
    for (int64_t r = 0; r < firsts.size(0); ++r) {
        each.push_back(convolve(ConvPart::weight, of_row, firsts[r].contiguous(), seconds[r].contiguous(), {}, b.record().loc));
    }
    return gradient_ops::stacked(each);
}

void convolution_rule(Backward& b) {
    const Tensor &g = b.grad(), x = b.saved(0), w = b.saved(1);
    if (b.needs(0)) b.give(0, convolve(b, ConvPart::input, g, w));
    if (b.needs(1)) b.give(1, weight_gradient(b, x, g));
    if (b.input_count() > 2 && b.needs(2)) b.give(2, sums_of_channels(b, g));
}

void conv_transpose_rule(Backward& b) {
    const Tensor &g = b.grad(), y = b.saved(0), w = b.saved(1);
    if (b.needs(0)) b.give(0, convolve(b, ConvPart::output, g, w));
    if (b.needs(1)) b.give(1, weight_gradient(b, g, y));
    if (b.input_count() > 2 && b.needs(2)) b.give(2, sums_of_channels(b, g));
}

void conv_weight_rule(Backward& b) {
    const Tensor &g = b.grad(), x = b.saved(0), y = b.saved(1);
    if (b.needs(0)) b.give(0, convolve(b, ConvPart::input, y, g));
    if (b.needs(1)) b.give(1, convolve(b, ConvPart::output, x, g));
}

// --- Arguments -----------------------------------------------------------------------------------------------------------

// Sets the last `dims` of three.
void set(int64_t (&to)[3], const Shape& given, int64_t least, const char* what, int dims, const char* op, const Loc& loc,
         int64_t most = kMostSpatial) {
    for_spatial(given, least, what, dims, op, loc, [&](int d, int64_t number) { to[3 - dims + d] = number; }, most);
}

// `channels`: the weight's dimension with as many elements as a group of the input has channels.
void check_operands(const char* op, int dims, const In& x, const Tensor& weight, const Tensor& bias, int channels, int64_t groups) {
    if (weight.dim() != dims + 2 || (x.tensor.dim() != dims + 2 && x.tensor.dim() != dims + 1)) {
        const bool lacks_channel = weight.dim() == dims + 2 && x.tensor.dim() == dims && weight.impl()->sizes[channels] == 1 && groups == 1;
        fail<ShapeError>(x.loc, "{}: needs an input of {} or {} dimensions and a weight of {}, got {} and {}{}", op, dims + 1, dims + 2, dims + 2,
                         x.tensor.shape(), weight.shape(), detail::missing_hint(lacks_channel, "channels'"));
    }
    const DType dtype = x.tensor.dtype();
    if (!is_floating(dtype) || weight.dtype() != dtype || (bias.defined() && bias.dtype() != dtype)) {
        fail<DTypeError>(x.loc, "{}: input, weight and bias must have one floating dtype, got {}, {} and {}{}", op, name(dtype), name(weight.dtype()),
                         bias.defined() ? name(bias.dtype()) : "no bias", detail::conversion_hint(dtype, weight.dtype()));
    }
    detail::check_same_device(op, x.tensor, weight, x.loc);
    if (bias.defined()) detail::check_same_device(op, x.tensor, bias, x.loc);
}

void check_bias(const char* op, const Convolution& c, int64_t channels, const Tensor& bias, const Loc& loc) {
    if (c.groups < 1) fail<ValueError>(loc, "{}: groups must be at least 1, got {}", op, c.groups);
    if (bias.defined() && bias.shape() != Shape(channels)) {
        fail<ShapeError>(loc, "{}: a bias of shape {} does not fit {} output channels", op, bias.shape(), channels);
    }
}

Tensor lower(const In& t) { return t.tensor.defined() ? detail::autocast_to_low(t) : t.tensor; }

// Sets the padding before and after the elements. ends: see ConvCall.
void set_ends(Convolution& c, const char* op, int dims, const Shape& padding, bool ends, const Loc& loc) {
    if (ends && padding.rank() == 2 * dims) {
        set(c.before, Shape(padding.data(), dims), 0, "padding", dims, op, loc);
        std::copy_n(padding.data() + dims, dims, c.after + (3 - dims));
        return;
    }
    set(c.before, padding, 0, "padding", dims, op, loc);
    std::copy_n(c.before, 3, c.after);
}

void set_padding(Convolution& c, const char* op, int dims, const Padding& padding, bool ends, const Loc& loc) {
    if (!padding.is_same()) {
        set_ends(c, op, dims, padding.sizes(), ends, loc);
    } else {
        for (int d = 3 - dims; d < 3; ++d) {
            if (c.stride[d] != 1) fail<ValueError>(loc, "{}: padding 'same' needs stride 1, got {}", op, c.stride[d]);
            const int64_t both = c.dilation[d] * (c.kernel[d] - 1);
            c.before[d] = both / 2;
            c.after[d] = both - c.before[d];
        }
    }
    for (int d = 3 - dims; d < 3; ++d) {
        check_spatial(op, "padding", c.before[d], kMostSpatial, loc);  // of padding 'same', too
        const int64_t reach = detail::window_reach(c.kernel[d], c.dilation[d]), room = c.in[d] + c.before[d] + c.after[d];
        c.out[d] = detail::window_count(room, reach, c.stride[d]);
        if (c.kernel[d] == 0) fail<ShapeError>(loc, "{}: the kernel has no elements in one of its dimensions", op);
        if (room < reach) {
            fail<ShapeError>(loc, "{}: a kernel that reaches over {} elements does not fit into the input's {} with padding", op, reach, room);
        }
    }
}

// Returns the end of the message about an input (batch, channels, ...) of other channels: it says where they may be instead. An unbatched
// one may be a batch without channels.
std::string channels_hint(const Shape& shape, int64_t channels, bool unbatched) {
    if (unbatched && channels == 1) return "; is dimension 0 the batch? x.unsqueeze(1) has a channel";
    const int last = shape.rank() - 1;
    if (shape.raw(last) != channels) return "";
    const int place = unbatched ? 0 : 1;
    return fmt::format("; are the channels its last dimension? movedim(x, {{{}}}, {{{}}}) has them in dimension {}", last - (unbatched ? 1 : 0),
                       place, place);
}

// Returns the number of channels, -1 if it overflows.
int64_t channels_of(int64_t in_group, int64_t groups) {
    int64_t channels = 0;
    return __builtin_mul_overflow(in_group, groups, &channels) ? -1 : channels;
}

// The result, if the op was computed together with its peers in batch(): convolve(batch, weight, bias) takes the batches of all as one.
template <class Convolve>
Tensor convolved_in_group(const OpInfo& op, const Convolution& c, const In& x, const In& weight, const Tensor& bias, const Convolve& convolve) {
    detail::BatchKey key = detail::batch_key(c.groups);
    for (int64_t d = 3 - c.dims; d < 3; ++d) {
        for (const int64_t number : {c.stride[d], c.dilation[d], c.before[d], c.after[d], c.in[d]}) key.add(number);
    }
    const auto of_group = [&](const detail::Batched& in) {
        return detail::as_one_batch(in, [&](const Tensor& all) { return convolve(In(all, x.loc), In(in[1], weight.loc), in[2]); });
    };
    return detail::in_group({op, x.loc, {&x.tensor, &weight.tensor, &bias}, key, {.same = 0b110, .always_waits = true}}, of_group);
}

// x: with a batch; unbatched: the user's had none. ends: options.padding can have both ends, see ConvCall.
Convolution sizes_of(const char* op, int dims, const In& x, const In& weight, const Tensor& bias, const ConvOptions& options, bool unbatched,
                     bool ends) {
    const TensorImpl *in = x.tensor.impl(), *w = weight.tensor.impl();
    Convolution c;
    c.dims = dims;
    c.batch = in->sizes[0];
    c.in_channels = in->sizes[1];
    c.out_channels = w->sizes[0];
    c.groups = options.groups;
    check_bias(op, c, c.out_channels, bias, x.loc);
    const int64_t expected = channels_of(w->sizes[1], c.groups);
    if (c.in_channels != expected || c.out_channels % c.groups != 0) {
        fail<ShapeError>(x.loc, "{}: an input of shape {} does not fit a weight of shape {} (out, in / groups, ...) in {} group{}{}", op,
                         Shape(in->sizes + unbatched, in->rank - unbatched), weight.tensor.shape(), c.groups, c.groups == 1 ? "" : "s",
                         channels_hint(x.tensor.shape(), expected, unbatched));
    }
    for (int d = 0; d < dims; ++d) {
        c.in[3 - dims + d] = in->sizes[2 + d];
        c.kernel[3 - dims + d] = w->sizes[2 + d];
    }
    set(c.stride, options.stride, 1, "stride", dims, op, x.loc);
    set(c.dilation, options.dilation, 1, "dilation", dims, op, x.loc);
    set_padding(c, op, dims, options.padding, ends, x.loc);
    return c;
}

Tensor conv(const char* op, int dims, const In& x, const In& weight, const Tensor& bias, const ConvOptions& options, bool unbatched = false,
            bool ends = false) {
    detail::check_defined(x, op);
    detail::check_defined(weight, op);
    if (detail::autocast_low(x.tensor, weight.tensor)) [[unlikely]] {
        const Tensor low_x = lower(x), low_weight = lower(weight);
        return conv(op, dims, In(low_x, x.loc), In(low_weight, weight.loc), lower(In(bias, x.loc)), options, unbatched, ends);
    }
    check_operands(op, dims, x, weight.tensor, bias, 1, options.groups);
    if (x.tensor.dim() == dims + 1) {
        const detail::RecordedParts parts(x.loc);
        const Tensor batch = unsqueeze(x, 0);
        return squeeze(conv(op, dims, In(batch, x.loc), weight, bias, options, /*unbatched=*/true), 0);
    }
    const Convolution c = sizes_of(op, dims, x, weight, bias, options, unbatched, ends);
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const In& batch, const In& of, const Tensor& b) { return conv(op, dims, batch, of, b, options, false, ends); };
        if (Tensor y = convolved_in_group(convolution_op, c, x, weight, bias, of_group); y.defined()) return y;
    }
    return convolve(ConvPart::output, c, x.tensor, weight.tensor, bias, x.loc);
}

Tensor conv_transpose(const char* op, int dims, const In& x, const In& weight, const Tensor& bias, const ConvTransposeOptions& options,
                      bool ends = false) {
    detail::check_defined(x, op);
    detail::check_defined(weight, op);
    if (detail::autocast_low(x.tensor, weight.tensor)) [[unlikely]] {
        const Tensor low_x = lower(x), low_weight = lower(weight);
        return conv_transpose(op, dims, In(low_x, x.loc), In(low_weight, weight.loc), lower(In(bias, x.loc)), options, ends);
    }
    check_operands(op, dims, x, weight.tensor, bias, 0, options.groups);
    if (x.tensor.dim() == dims + 1) {
        const detail::RecordedParts parts(x.loc);
        const Tensor batch = unsqueeze(x, 0);
        return squeeze(conv_transpose(op, dims, In(batch, x.loc), weight, bias, options), 0);
    }
    const TensorImpl *in = x.tensor.impl(), *w = weight.tensor.impl();
    Convolution c;  // this op is the gradient of that convolution: its output is x
    c.dims = dims;
    c.batch = in->sizes[0];
    c.out_channels = in->sizes[1];
    c.groups = options.groups;
    c.in_channels = channels_of(w->sizes[1], c.groups);
    check_bias(op, c, c.in_channels, bias, x.loc);
    if (c.out_channels != w->sizes[0] || c.out_channels % c.groups != 0) {
        fail<ShapeError>(x.loc, "{}: an input of shape {} does not fit a weight of shape {} (in, out / groups, ...) in {} group{}", op,
                         x.tensor.shape(), weight.tensor.shape(), c.groups, c.groups == 1 ? "" : "s");
    }
    for (int d = 0; d < dims; ++d) {
        c.out[3 - dims + d] = in->sizes[2 + d];
        c.kernel[3 - dims + d] = w->sizes[2 + d];
    }
    int64_t more[3] = {0, 0, 0};
    set(c.stride, options.stride, 1, "stride", dims, op, x.loc, std::numeric_limits<int64_t>::max());  // the library has its own limit
    set(c.dilation, options.dilation, 1, "dilation", dims, op, x.loc);
    set_ends(c, op, dims, options.padding, ends, x.loc);
    set(more, options.output_padding, 0, "output_padding", dims, op, x.loc);
    for (int d = 3 - dims; d < 3; ++d) {
        if (more[d] >= c.stride[d] && more[d] >= c.dilation[d]) {
            fail<ValueError>(x.loc, "{}: output_padding {} must be below the stride {} or the dilation {}", op, more[d], c.stride[d], c.dilation[d]);
        }
        if (c.out[d] > 1) check_spatial(op, "stride", c.stride[d], (int64_t{1} << 61) / (c.out[d] - 1), x.loc);
        const int64_t reach = detail::window_reach(c.kernel[d], c.dilation[d]);
        c.in[d] = detail::window_span(c.out[d], reach, c.stride[d]) + more[d] - c.before[d] - c.after[d];
        if (c.in[d] <= 0 || c.out[d] == 0 || c.kernel[d] == 0) {
            fail<ShapeError>(x.loc, "{}: an input of shape {} and a weight of shape {} make a result of size {}", op, x.tensor.shape(),
                             weight.tensor.shape(), c.in[d]);
        }
    }
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const In& batch, const In& of, const Tensor& b) { return conv_transpose(op, dims, batch, of, b, options, ends); };
        if (Tensor y = convolved_in_group(conv_transpose_op, c, x, weight, bias, of_group); y.defined()) return y;
    }
    return convolve(ConvPart::input, c, x.tensor, weight.tensor, bias, x.loc);
}

// Returns the gradient for the weight of a convolution that was called so; g is the gradient of its result.
Tensor weight_of(const Tensor& x, const Tensor& g, const ConvCall& call) {
    const Loc loc = Loc::current();
    const char* const op = "conv_weight";
    const int dims = x.dim() - 2;
    if (dims < 1 || dims > 3 || g.dim() != x.dim() || g.size(0) != x.size(0) || x.dtype() != g.dtype() || !is_floating(x.dtype())) {
        fail<ShapeError>(loc, "{}: {} and {} are no input and result of a convolution", op, x.shape(), g.shape());
    }
    Convolution c;
    c.dims = dims;
    c.batch = x.size(0);
    c.in_channels = x.size(1);
    c.out_channels = g.size(1);
    c.groups = call.groups;
    check_bias(op, c, 0, {}, loc);
    if (c.in_channels % c.groups != 0 || c.out_channels % c.groups != 0) {
        fail<ShapeError>(loc, "{}: {} groups do not divide {} and {} channels", op, c.groups, c.in_channels, c.out_channels);
    }
    set(c.kernel, call.kernel_size, 1, "kernel_size", dims, op, loc);
    set(c.stride, call.stride, 1, "stride", dims, op, loc, std::numeric_limits<int64_t>::max());
    set(c.dilation, call.dilation, 1, "dilation", dims, op, loc);
    set_ends(c, op, dims, call.padding, /*ends=*/true, loc);
    for (int d = 0; d < dims; ++d) {
        c.in[3 - dims + d] = x.size(d + 2);
        c.out[3 - dims + d] = g.size(d + 2);
    }
    return convolve(ConvPart::weight, c, x, g, {}, loc);
}

}  // namespace

Padding::Padding(const char* mode, Loc loc) : is_same_(detail::checked_word("padding", mode, loc) == "same") {
    if (!is_same_ && std::strcmp(mode, "valid") != 0) {
        fail<ValueError>(loc, "padding: it must be a number, 'same' or 'valid', not '{}'", mode);
    }
}

Shape shape_of(ConvPart part, const Convolution& c) {
    const auto shape = [&](int64_t first, int64_t second, const int64_t* spatial) {
        Shape sizes{first, second};
        for (int64_t d = 3 - c.dims; d < 3; ++d) sizes.push_back(spatial[d]);
        return sizes;
    };
    switch (part) {
        case ConvPart::output: return shape(c.batch, c.out_channels, c.out);
        case ConvPart::input: return shape(c.batch, c.in_channels, c.in);
        default: return shape(c.out_channels, c.group_in(), c.kernel);
    }
}

Tensor conv1d(In x, In weight, const Tensor& bias, const ConvOptions& options) { return conv("conv1d", 1, x, weight, bias, options); }
Tensor conv2d(In x, In weight, const Tensor& bias, const ConvOptions& options) { return conv("conv2d", 2, x, weight, bias, options); }
Tensor conv3d(In x, In weight, const Tensor& bias, const ConvOptions& options) { return conv("conv3d", 3, x, weight, bias, options); }

Tensor conv_transpose1d(In x, In weight, const Tensor& bias, const ConvTransposeOptions& options) {
    return conv_transpose("conv_transpose1d", 1, x, weight, bias, options);
}
Tensor conv_transpose2d(In x, In weight, const Tensor& bias, const ConvTransposeOptions& options) {
    return conv_transpose("conv_transpose2d", 2, x, weight, bias, options);
}
Tensor conv_transpose3d(In x, In weight, const Tensor& bias, const ConvTransposeOptions& options) {
    return conv_transpose("conv_transpose3d", 3, x, weight, bias, options);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

Tensor bias_of(const FormCall& x) { return x.count > 2 ? x[2] : Tensor(); }

constexpr const char* kConvNames[] = {"conv1d", "conv2d", "conv3d"};
int dims_of(const FormCall& x) { return std::clamp(x[0].dim() - 2, 1, 3); }
ConvOptions options_of(const ConvCall& a) { return {.stride = a.stride, .padding = a.padding, .dilation = a.dilation, .groups = a.groups}; }

}  // namespace

Convolution sizes_of(const FormCall& x, const ConvCall& a) {
    const int dims = dims_of(x);
    const char* const op = kConvNames[dims - 1];
    check_operands(op, dims, x[0], x[1], bias_of(x), 1, a.groups);
    return sizes_of(op, dims, x[0], x[1], bias_of(x), options_of(a), /*unbatched=*/false, /*ends=*/true);
}

Tensor convolution_of(const FormCall& x, const ConvCall& a) {
    const int dims = dims_of(x);
    return conv(kConvNames[dims - 1], dims, x[0], x[1], bias_of(x), options_of(a), /*unbatched=*/false, /*ends=*/true);
}

namespace {

Tensor conv_transpose_of(const FormCall& x, const ConvCall& a) {
    const int dims = dims_of(x);
    const char* const names[] = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"};
    return conv_transpose(names[dims - 1], dims, x[0], x[1], bias_of(x),
                          {.stride = a.stride, .padding = a.padding, .output_padding = a.output_padding, .groups = a.groups, .dilation = a.dilation},
                          /*ends=*/true);
}

// Checks x (batch, channels, spatial...); the other one is a weight, or the gradient of the result.
int checked_dims(const ValueType& x, const ValueType& other) {
    const int dims = types::ranked(x, 3, 5).rank() - 2;
    types::need(other.rank() == x.rank(), "the operands have different numbers of dimensions");
    return dims;
}

// Returns the type of the weight (out, in / groups, kernel...).
ValueType types_of_weight(const TypeCall& t) {
    using namespace types;
    const ValueType &x = t[0], &g = t[1];
    const int dims = checked_dims(x, g);
    const SymInt groups = t.size("groups");
    need(may_equal(size_of(x, 0), size_of(g, 0)), "the operands have different batches");
    static_cast<void>(quotient(size_of(g, 1), groups));
    std::vector<SymInt> shape{size_of(g, 1), quotient(size_of(x, 1), groups)};
    for (int d = 0; d < dims; ++d) shape.push_back(spatial(t.sizes("kernel_size"), d, dims));
    return shaped(x, std::move(shape));
}

}  // namespace

ResultTypes types_of(ConvPart part, const TypeCall& t) {
    using namespace types;
    const ValueType &x = t[0], &weight = t[1];
    if (x.rank() == 2) return unstated();  // without a batch
    const int dims = checked_dims(x, weight);
    const bool is_output = part == ConvPart::output;
    const SymInt &first = size_of(weight, 0), second = size_of(weight, 1) * t.size("groups"), &channels = is_output ? first : second;
    need(may_equal(size_of(x, 1), is_output ? second : first), "the input has other channels than the weight");
    static_cast<void>(quotient(first, t.size("groups")));
    if (t.count > 2) need(may_equal(t[2].shape, {channels}), "the bias does not fit the output's channels");
    const std::vector<SymInt> stride = t.sizes("stride"), padding = t.sizes("padding"), dilation = t.sizes("dilation");
    const bool has_ends = std::ssize(padding) == 2 * dims;
    std::vector<SymInt> shape{size_of(x, 0), channels};
    for (int d = 0; d < dims; ++d) {
        const SymInt &in = size_of(x, d + 2), &kernel = size_of(weight, d + 2), step = spatial(stride, d, dims), wide = spatial(dilation, d, dims);
        const SymInt before = has_ends ? padding[static_cast<std::size_t>(d)] : spatial(padding, d, dims);
        const SymInt both = before + (has_ends ? padding[static_cast<std::size_t>(dims + d)] : before);
        if (is_output) {
            shape.push_back(windows(in + both, kernel, step, wide));
            continue;
        }
        const SymInt span = detail::window_span(in, detail::window_reach(kernel, wide), step);
        const SymInt made = span + spatial(t.sizes("output_padding"), d, dims) - both;
        need(!(kernel == SymInt(0)) && !(in == SymInt(0)) && !(made.is_number() && made.number() <= 0), "there are no elements");
        shape.push_back(made);
    }
    return shaped(x, std::move(shape));
}

TAPIR_FORM(convolution, Operands(2, 3), ConvCall, types_of(ConvPart::output, t), convolution_of(x, a),
           f("stride", a.stride)("padding", a.padding)("dilation", a.dilation)("groups", a.groups));
TAPIR_FORM(conv_transpose, Operands(2, 3), ConvCall, types_of(ConvPart::input, t), conv_transpose_of(x, a),
           f("stride", a.stride)("padding", a.padding)("output_padding", a.output_padding)("dilation", a.dilation)("groups", a.groups));
TAPIR_FORM(conv_weight, 2, ConvCall, types_of_weight(t), weight_of(x[0], x[1], a),
           f("kernel_size", a.kernel_size)("stride", a.stride)("padding", a.padding)("dilation", a.dilation)("groups", a.groups));

}  // namespace tapir
