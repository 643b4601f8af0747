// dropout. The mask is kept, one byte an element: drawing it again in backward would cost several times as much as reading it
// (Philox takes ten rounds of multiplications), and the vectors of tree nodes are small.
#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/random/dropout.h"
#include "tapir/ops/random/random_kernels.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {
void dropout_rule(Backward& b);
}

// PyTorch gives the same result only for probabilities that leave nothing to chance.
TAPIR_OP(dropout, dropout_rule, "Zero with probability p, else x / (1 - p) (Srivastava et al. 2014).",
         TAPIR_SAMPLE("f(3,4)", dropout(x[0], 0.0, true)), TAPIR_SAMPLE("f(3,4)", dropout(x[0], 1.0, true)));

namespace {

using std::int64_t;

struct Attrs {
    double p = 0.5;
};

double scale_of(double p) { return p < 1 ? 1 / (1 - p) : 0; }

constexpr int64_t kDropoutGrain = 16 * 1024;

Tensor plain(const In& x) {
    const detail::UnrecordedPartsOf parts(x.loc);
    return contiguous(x);
}

// mask: drawn as a result of the op; in the gradient it is one of the operands.
void finish(const In& x, const Tensor& mask, bool is_drawn, double p, const Tensor& out) {
    const Attrs attrs{p};
    if (!detail::is_watched()) [[likely]] {
        record(dropout_op, x.loc, {&x.tensor}, out, {&mask}, attrs);
    } else if (is_drawn) {
        record(dropout_op, x.loc, {&x.tensor}, out, {&mask}, attrs, Told{dropout_op, {&x.tensor}, {&out, &mask}}, attrs);
    } else {
        record(dropout_op, x.loc, {&x.tensor}, out, {&mask}, attrs, Told{dropout_op, {&x.tensor, &mask}}, attrs);
    }
}

// Computes mask ? x * scale : 0. This is a linear op, so its gradient is the same op of the gradient.
Tensor apply(const In& x, const Tensor& mask, bool is_drawn, double p) {
    const double scale = scale_of(p);
    if (detail::in_batch()) [[unlikely]] {  // each instance has drawn its own mask
        Tensor y;
        const auto rule = [&](const detail::Batched& in, Tensor* out) { out[0] = apply(In(in[0], x.loc), in[1], is_drawn, p); };
        if (detail::batched({dropout_op, x.loc, {&x.tensor, &mask}, detail::batch_key(p)}, rule, {&y})) return y;
    }
    const Tensor packed = plain(x);
    const TensorImpl* from = packed.impl();
    detail::begin_op("dropout", from, x.loc);
    Tensor out = detail::make_empty_like(from, from->dtype, x.loc);
    const auto* keep = kernel_data<std::uint8_t>(mask);
    TAPIR_LAUNCH(from, from->numel, /*work=*/2, masked_scale, from->dtype, kernel_data(from), keep, kernel_data(out), scale);
    finish(x, mask, is_drawn, p, out);
    return out;
}

// Draws the mask and applies it at once.
Tensor draw_on_gpu(const In& x, kernels::Draw draw, double p, bool keeps_mask, Tensor& mask) {
    const Tensor packed = plain(x);
    const TensorImpl* from = packed.impl();
    detail::begin_op("dropout", from, x.loc);
    const Tensor out = detail::make_empty_like(from, from->dtype, x.loc);
    if (keeps_mask || recording(x.loc, {&x.tensor}) || detail::is_watched()) mask = detail::make_empty_like(from, bool_, x.loc);
    if (from->numel > 0) {
        auto* keep = on_stream<std::uint8_t>(mask);
        gpu::dropout({from->dtype, on_stream(packed), keep, on_stream(out), from->numel, draw, 1 - p, scale_of(p)});
    }
    finish(x, mask, /*is_drawn=*/true, p, out);
    return out;
}

void dropout_rule(Backward& b) {
    if (b.needs(0)) b.give(0, apply(In(b.grad(), b.record().loc), b.saved(0), /*is_drawn=*/false, b.attrs<Attrs>().p));
}

Tensor draw(const In& x, double p, Generator& generator, bool keeps_mask, Tensor& mask) {
    const int64_t n = x.tensor.numel();
    detail::check_traced(generator);
    const detail::UndoneByError undone(generator);
    const std::uint64_t first = generator.take((static_cast<std::uint64_t>(n) + 3) / 4);
    if (on_gpu(x.tensor)) return draw_on_gpu(x, {generator.seed(), first}, p, keeps_mask, mask);
    mask = detail::make_empty_like(x.tensor.impl(), bool_, x.loc);
    auto* keep = static_cast<std::uint8_t*>(mask.raw_data());
    parallel_for(n, kDropoutGrain, [&](int64_t begin, int64_t end) {
        const kernels::Draw from{generator.seed(), first + static_cast<std::uint64_t>(begin / 4)};
        kernels::random_bernoulli(from, 1 - p, keep + begin, end - begin);
    });
    return apply(x, mask, /*is_drawn=*/true, p);
}

}  // namespace

Tensor dropout(In x, double p, bool training) { return dropout(x, p, training, default_generator()); }

Tensor dropout(In x, double p, bool training, Generator& generator) {
    detail::check_defined(x, "dropout");
    if (!(p >= 0 && p <= 1)) fail<ValueError>(x.loc, "dropout: p must be in [0, 1], got {}", p);
    if (!training) return x.tensor;
    if (!is_floating(x.tensor.dtype())) {
        fail<DTypeError>(x.loc, "dropout: needs a floating dtype, got {}; convert with to(float32)", name(x.tensor.dtype()));
    }
    if (p == 0) return x.tensor;  // this draws nothing, as PyTorch
    Tensor mask;
    return draw(x, p, generator, /*keeps_mask=*/false, mask);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// (x) -> (y, mask), drawn again; (g, mask) -> (the gradient,)
std::vector<Tensor> dropout_of(const FormCall& x, const Attrs& a) {
    if (x.count > 1) {
        detail::check_same_device("dropout", x[0], x[1], Loc::current());
        const Tensor mask = expand(x[1].to(bool_), x[0].shape()).contiguous();
        return {apply(x[0], mask, /*is_drawn=*/false, a.p)};
    }
    if (!(a.p >= 0 && a.p <= 1)) fail<ValueError>(Loc::current(), "dropout: p must be in [0, 1], got {}", a.p);
    Tensor mask;
    const Tensor y = draw(x[0], a.p, default_generator(), /*keeps_mask=*/true, mask);
    return {y, mask};
}

}  // namespace

TAPIR_RANDOM_FORM(dropout, Operands(1, 2), Attrs, t.count > 1 ? ResultTypes(holding(t[0], t[1])) : several(same(t[0]), same(t[0], DType::boolean)),
                  dropout_of(x, a), f("p", a.p));

}  // namespace tapir
