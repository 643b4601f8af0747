// dropout. The mask is kept, one byte an element: drawing it again in backward would cost several times what reading it
// does (Philox takes ten rounds of multiplications), and the vectors of tree nodes are small.
#include "tapir/autograd/backward_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/copy.h"
#include "tapir/ops/kernels/random.h"
#include "tapir/ops/loss.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {
namespace {
void dropout_rule(Backward& b);
}

// Only probabilities that leave nothing to chance have the same result in PyTorch.
TAPIR_OP(dropout, "Dropout", dropout_rule, "Zero with probability p, else x / (1 - p) (Srivastava et al. 2014).",
         TAPIR_SAMPLE("f(3,4)", dropout(x[0], 0.0, true)), TAPIR_SAMPLE("f(3,4)", dropout(x[0], 1.0, true)));

namespace {

using std::int64_t;

struct Attrs {
    double scale;
};

constexpr int64_t kGrain = 16 * 1024;

Tensor plain(const In& x) {
    const detail::UnrecordedParts parts;
    return contiguous(x);
}

// mask ? x * scale : 0. A linear op, so its gradient is the same op of the gradient.
Tensor apply(const In& x, const Tensor& mask, double scale) {
    const Tensor packed = plain(x);
    const TensorImpl* from = packed.impl();
    detail::begin_op("dropout", from, x.loc);
    Tensor out = detail::make_empty_like(from, from->dtype, x.loc);
    if (on_gpu(from)) {
        if (from->numel > 0) {
            const auto* keep = on_stream<const std::uint8_t>(mask);
            gpu::masked_scale(from->dtype, on_stream(packed), keep, on_stream(out), from->numel, scale);
        }
        record(dropout_op, x.loc, {&x.tensor}, out, {&mask}, Attrs{scale});
        return out;
    }
    const auto* keep = static_cast<const std::uint8_t*>(mask.raw_data());
    const auto size = static_cast<int64_t>(itemsize(from->dtype));
    parallel_for(from->numel, kGrain, [&](int64_t begin, int64_t end) {
        kernels::masked_scale(from->dtype, from->data + begin * size, keep + begin, out.impl()->data + begin * size,
                              end - begin, scale);
    });
    record(dropout_op, x.loc, {&x.tensor}, out, {&mask}, Attrs{scale});
    return out;
}

// Draws the mask and applies it at once.
Tensor draw_on_gpu(const In& x, kernels::Draw draw, double p_keep, double scale) {
    const Tensor packed = plain(x);
    const TensorImpl* from = packed.impl();
    detail::begin_op("dropout", from, x.loc);
    Tensor out = detail::make_empty_like(from, from->dtype, x.loc), mask;
    if (recording(x.loc, {&x.tensor})) mask = detail::make_empty_like(from, bool_, x.loc);
    if (from->numel > 0) {
        auto* keep = on_stream<std::uint8_t>(mask);
        gpu::dropout({from->dtype, on_stream(packed), keep, on_stream(out), from->numel, draw, p_keep, scale});
    }
    record(dropout_op, x.loc, {&x.tensor}, out, {&mask}, Attrs{scale});
    return out;
}

void dropout_rule(Backward& b) {
    if (b.needs(0)) b.give(0, apply(In(b.grad(), b.record().loc), b.saved(0), b.attrs<Attrs>().scale));
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
    if (p == 0) return x.tensor;  // and draws nothing, as PyTorch
    const int64_t n = x.tensor.numel();
    const double scale = p < 1 ? 1 / (1 - p) : 0;
    const std::uint64_t first = generator.take((static_cast<std::uint64_t>(n) + 3) / 4);
    if (on_gpu(x.tensor)) return draw_on_gpu(x, {generator.seed(), first}, 1 - p, scale);
    const Tensor mask = detail::make_empty_like(x.tensor.impl(), bool_, x.loc);
    auto* keep = static_cast<std::uint8_t*>(mask.raw_data());
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        const kernels::Draw draw{generator.seed(), first + static_cast<std::uint64_t>(begin / 4)};
        kernels::random_bernoulli(draw, 1 - p, keep + begin, end - begin);
    });
    return apply(x, mask, scale);
}

}  // namespace tapir
