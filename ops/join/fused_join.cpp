// fused_join: images of a graph that runs, joined along their channels, with the batch normalisation and relu behind that: one pass over memory in
// place of three. See autograd/trace/passes/pass_fuse_joins.cpp.
#include "tapir/ops/join/fused_join_impl.h"

#include <vector>

#include "tapir/autograd/op.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/join/fused_join_kernels.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/normalization/batch_norm.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {
namespace {

struct FusedJoinCall {
    int pieces = 1;
    bool has_norm = false, has_relu = false;
    double eps = 1e-5;
    bool has_weight = false, has_bias = false;
};

const float* floats(const Tensor& t) { return static_cast<const float*>(t.raw_data()); }

// The operands behind the pieces.
struct Normalization {
    Tensor mean, var, weight, bias;
    Normalization(const FormCall& x, const FusedJoinCall& a) {
        if (!a.has_norm) return;
        int i = a.pieces;
        mean = x[i], var = x[i + 1];
        i += 2;
        if (a.has_weight) weight = x[i++];
        if (a.has_bias) bias = x[i];
    }
};

// Returns an undefined tensor where the pieces are not images of float32 with their channels last, in the host's memory.
Tensor by_kernel(const FormCall& x, const FusedJoinCall& a, const Normalization& norm) {
    std::vector<kernels::JoinedChannels::Part> parts;
    Shape shape = x[0].shape();
    std::int64_t channels = 0;
    for (int i = 0; i < a.pieces; ++i) {
        const Tensor& t = x[i];
        if (t.dtype() != float32 || t.device() != cpu || t.numel() == 0 || !detail::is_channels_last(t.impl())) return {};
        Shape as_this = shape;
        as_this.raw(1) = t.size(1);
        if (t.shape() != as_this) return {};
        parts.push_back({floats(t), t.size(1)});
        channels += t.size(1);
    }
    for (const Tensor* t : {&norm.mean, &norm.var, &norm.weight, &norm.bias}) {
        if (t->defined() && (t->dtype() != float32 || t->device() != cpu || t->shape() != Shape{channels})) return {};
    }
    const Loc loc = Loc::current();
    shape.raw(1) = channels;
    const Tensor y = detail::make_channels_last(shape, float32, cpu, loc);
    kernels::JoinedChannels args{parts.data(), a.pieces, channels, nullptr, nullptr, nullptr, a.has_relu, static_cast<float*>(y.raw_data())};
    std::vector<float> slope, start;
    Tensor mean;
    if (a.has_norm) {
        mean = norm.mean.contiguous(loc);
        const Tensor rstd = rsqrt(norm.var + a.eps).contiguous(loc), weight = norm.weight.defined() ? norm.weight.contiguous(loc) : Tensor(),
                     bias = norm.bias.defined() ? norm.bias.contiguous(loc) : Tensor();
        slope.resize(static_cast<std::size_t>(channels)), start.resize(slope.size());
        for (std::size_t c = 0; c < slope.size(); ++c) {
            slope[c] = floats(rstd)[c] * (weight.defined() ? floats(weight)[c] : 1);
            start[c] = bias.defined() ? floats(bias)[c] : 0;
        }
        args.shift = floats(mean), args.a = slope.data(), args.b = start.data();
    }
    parallel_items(y.numel() / channels, 32 * 1024 / channels + 1,
                   [&](std::int64_t begin, std::int64_t end) { kernels::joined_channels(args, begin, end); });
    return y;
}

Tensor fused_join_of(const FormCall& x, const FusedJoinCall& a) {
    const detail::PauseRecording pause;
    const detail::UnrecordedParts parts;
    const Normalization norm(x, a);
    if (Tensor y = by_kernel(x, a, norm); y.defined()) return y;
    Tensor y = x[0];
    if (a.pieces > 1) y = cat(FormCall{x.inputs, a.pieces, nullptr}.list(), 1);
    if (a.has_norm) y = batch_norm(y, norm.mean, norm.var, norm.weight, norm.bias, {.eps = a.eps});
    return a.has_relu ? relu(y) : y;
}

[[maybe_unused]] ResultTypes types_of_fused(const TypeCall& t, const FusedJoinCall& a) {
    const int others = a.has_norm ? 2 + a.has_weight + a.has_bias : 0;
    types::need<ValueError>(a.pieces > 0 && a.pieces == t.count - others, "the operands are not as many as `pieces` and the flags say");
    return {types::joined(TypeCall{t.operands, a.pieces, t.attributes, t.loc}, 1)};
}

}  // namespace

TAPIR_FORM(fused_join, Operands::from(1), FusedJoinCall, types_of_fused(t, a), fused_join_of(x, a),
           f("pieces", a.pieces)("has_norm", a.has_norm)("has_relu", a.has_relu)("eps", a.eps)("has_weight", a.has_weight)("has_bias", a.has_bias));

Attributes fused_join(int pieces, const Attributes* norm, bool has_relu) {
    FusedJoinCall call;
    call.pieces = pieces;
    call.has_norm = norm != nullptr;
    call.has_relu = has_relu;
    if (norm) {
        call.eps = std::get<double>(norm->get("eps"));
        call.has_weight = std::get<bool>(norm->get("has_weight"));
        call.has_bias = std::get<bool>(norm->get("has_bias"));
    }
    return {fused_join_form, &call};
}

}  // namespace tapir
