// fused_convolution: a convolution in a graph that runs, with the addition and the element-wise op behind it. Its weight is kept in the layout
// that the kernel wants. What follows writes where its operand lies, which is in the cache then. See autograd/trace/passes/pass_fuse_convolution.cpp.
#include "tapir/ops/convolution/fused_convolution_impl.h"

#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/convolution/convolution_impl.h"
#include "tapir/ops/convolution/kept_weight_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/normalization/channels_impl.h"

namespace tapir {
namespace {

constexpr Elementwise kEndings[] = {Elementwise::relu,      Elementwise::relu6,       Elementwise::silu,
                                    Elementwise::hardswish, Elementwise::hardsigmoid, Elementwise::sigmoid};
enum class Ending : int { none };  // else one of kEndings, counted from 1

struct FusedConvCall {
    ConvCall conv;
    bool has_addend = false;
    Ending ending = Ending::none;
    std::shared_ptr<KeptWeight> kept;  // null: each run lays the weight out anew
};

// Adds, and applies what ends the convolution, in place.
void finish(Tensor& y, const Tensor* addend, Ending ending) {
    if (addend) y.add_(*addend);
    if (ending != Ending::none) elementwise::unary_(row_of(kEndings[static_cast<int>(ending) - 1]), y, nullptr, Loc::current());
}

// Returns an undefined tensor if no algorithm for images with their channels last takes it.
Tensor channels_last_result(const FormCall& x, const FusedConvCall& a, const Tensor* addend) {
    const auto is_plain = [](const Tensor& t) { return t.dtype() == float32 && t.device() == cpu && t.numel() > 0; };
    for (int i = 0; i < x.count; ++i) {
        if (!is_plain(x[i])) return {};
    }
    if (x[0].dim() < 3) return {};
    const Loc loc = Loc::current();
    const Convolution c = sizes_of(x, a.conv);
    const detail::FlopsOf flops(c.flops());
    Tensor out = make_in_layout(shape_of(ConvPart::output, c), float32, cpu, /*channels_last=*/true, loc);
    const Tensor bias = x.count > 2 ? x[2].contiguous(loc) : Tensor();
    const Tensor image = channels_last(x[0], loc), weight = x[1].contiguous(loc);
    const bool is_joined = !addend || (is_plain(*addend) && addend->shape() == out.shape() && detail::is_channels_last(addend->impl()));
    const bool has_relu = a.ending != Ending::none && kEndings[static_cast<int>(a.ending) - 1] == Elementwise::relu;
    const Tensor joined = addend && is_joined ? *addend : Tensor();
    if (convolve_by_winograd(ConvPart::output, c, image, weight, bias, out, a.kept.get(), joined, is_joined && has_relu)) {
        finish(out, is_joined ? nullptr : addend, is_joined && has_relu ? Ending::none : a.ending);
        return out;
    }
    if (!convolve_by_onednn(ConvPart::output, c, image, weight, bias, out, a.kept.get())) return {};
    finish(out, addend, a.ending);
    return out;
}

Tensor fused_convolution_of(const FormCall& x, const FusedConvCall& a) {
    const detail::PauseRecording pause;
    const detail::UnrecordedParts parts;
    const FormCall call{x.inputs, x.count - a.has_addend, &a.conv};
    const Tensor* const addend = a.has_addend ? &x[call.count] : nullptr;
    Tensor y = channels_last_result(call, a, addend);
    if (y.defined()) return y;
    y = convolution_of(call, a.conv);
    finish(y, addend, a.ending);
    return y;
}

[[maybe_unused]] ResultTypes types_of_fused(const TypeCall& t, const FusedConvCall& a) {
    ResultTypes y = types_of(ConvPart::output, TypeCall{t.operands, t.count - a.has_addend, t.attributes, t.loc});
    if (a.has_addend && !y.empty()) y[0] = types::alike(y[0], t[t.count - 1]);
    return y;
}

}  // namespace

TAPIR_FORM(fused_convolution, Operands(2, 4), FusedConvCall, types_of_fused(t, a), fused_convolution_of(x, a),
           f("stride", a.conv.stride)("padding", a.conv.padding)("dilation", a.conv.dilation)("groups", a.conv.groups)("has_addend", a.has_addend);
           f("ending", a.ending, {"none", "relu", "relu6", "silu", "hardswish", "hardsigmoid", "sigmoid"}));

int ending_of(const OpForm& form) noexcept {
    const int op = elementwise_index(form);
    for (int i = 0; i < static_cast<int>(std::size(kEndings)); ++i) {
        if (op == static_cast<int>(kEndings[i])) return i + 1;
    }
    return 0;
}

Attributes fused_convolution(const Attributes& of, bool has_addend, int ending, bool keeps_weight) {
    FusedConvCall call;
    call.has_addend = has_addend;
    call.ending = static_cast<Ending>(ending);
    if (keeps_weight) call.kept = std::make_shared<KeptWeight>();
    Attributes result(fused_convolution_form, &call);
    for (const auto& [name, value] : of.all()) result.set(name, value);
    return result;
}

}  // namespace tapir
