// packed_linear: linear() of one row by a weight that does not change, in the layout that is fastest for it. Only graphs that are about
// to run have it (autograd/trace/pass_pack.cpp).
#include "tapir/ops/linear/packed_linear_impl.h"

#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/linear/packed_product_kernels.h"
#include "tapir/ops/make/copy.h"

namespace tapir {
namespace {

using std::int64_t;

struct PackedAttrs {
    int64_t out_features = 0;
};

const float* floats(const Tensor& t) { return static_cast<const float*>(t.raw_data()); }

// Returns the row's length; 0 if these cannot be operands of the op.
int64_t row_of(const FormCall& x, int64_t n) {
    if (x.count < 2 || x.count > 3 || n <= 0) return 0;
    const TensorImpl *in = x[0].impl(), *w = x[1].impl();
    const auto is_plain = [](const TensorImpl* t) { return detail::is_plain(t, float32); };
    if (!is_plain(in) || !is_plain(w) || in->rank == 0 || in->numel == 0 || in->numel != in->sizes[in->rank - 1]) return 0;
    const int64_t k = in->numel, most = w->numel / k;  // n may still be large
    if (n > most || w->numel != kernels::packed_size(k, n)) return 0;
    if (x.count == 3 && !(is_plain(x[2].impl()) && x[2].dim() == 1 && x[2].impl()->numel == n)) return 0;
    return k;
}

void run(const FormCall& x, int64_t k, int64_t n, const Tensor& out) {
    kernels::packed_product(floats(x[1]), floats(x[0]), x.count == 3 ? floats(x[2]) : nullptr, k, n, static_cast<float*>(out.raw_data()));
}

bool packed_linear_into(const FormCall& x, const Tensor& out) {
    const int64_t n = static_cast<const PackedAttrs*>(x.attrs)->out_features, k = row_of(x, n);
    if (k == 0 || !detail::is_plain(out.impl(), float32) || out.impl()->numel != n) return false;
    run(x, k, n, out);
    return true;
}

Tensor packed_linear_of(const FormCall& x, const PackedAttrs& a) {
    const Tensor in = contiguous(x[0]);
    const Tensor* const operands[] = {&in, &x[1], x.count > 2 ? &x[2] : nullptr};
    const FormCall call{operands, x.count, &a};
    const int64_t k = row_of(call, a.out_features);
    if (k == 0)
        fail<ValueError>(Loc::current(), "packed_linear: {} and {} are no row and packed weight of {} rows", x[0].shape(), x[1].shape(),
                         a.out_features);
    Shape shape = in.shape();
    shape.raw(shape.rank() - 1) = a.out_features;
    const Tensor out = detail::make_empty(shape, float32, cpu, Loc{});
    run(call, k, a.out_features, out);
    return out;
}

}  // namespace

Tensor packed_weight(const Tensor& weight) {
    const detail::PauseRecording pause;
    const Tensor whole = contiguous(weight);
    const int64_t n = whole.size(0), k = whole.size(1);
    Tensor packed = detail::make_empty(Shape(kernels::packed_size(k, n)), float32, cpu, Loc{});
    kernels::pack_weight(floats(whole), k, n, static_cast<float*>(packed.raw_data()));
    return packed;
}

TAPIR_INTO_FORM(packed_linear, Operands::from(1), PackedAttrs, shaped(t[0], leading(t[0], 1, {t.size("out_features")})), packed_linear_of(x, a),
                packed_linear_into, f("out_features", a.out_features));

}  // namespace tapir
