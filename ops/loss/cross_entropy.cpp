// cross_entropy and nll_loss. With class indices cross_entropy is one op with one kernel: the forward pass has the
// softmax at hand, so while recording it writes the gradient of the loss too, and backward only scales that.
#include <array>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/loss/cross_entropy.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/loss/loss_impl.h"
#include "tapir/ops/loss/loss_kernels.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

void cross_entropy_rule(Backward& b);
void nll_loss_rule(Backward& b);
void cross_entropy_backward_rule(Backward& b);
Tensor cross_entropy_backward(const In& g, const In& logits, const In& targets, const CrossEntropyOptions& options);

}  // namespace

TAPIR_HAZARDS(cross_entropy, hazard::rows_of_exponentials | hazard::targets);
TAPIR_OP(cross_entropy, cross_entropy_rule, "-log softmax(logits)[target].", TAPIR_SAMPLE("f(4,5) i(4)<5", cross_entropy(x[0], x[1])),
         TAPIR_SAMPLE("f(1,5) i(1)<5", cross_entropy(x[0], x[1])), TAPIR_SAMPLE("f(40,5) i(40)<5", cross_entropy(x[0], x[1])),
         TAPIR_SAMPLE("f(7) i()<7", cross_entropy(x[0], x[1])), TAPIR_SAMPLE("f(3,70) i(3)<70", cross_entropy(x[0], x[1])),
         TAPIR_SAMPLE("f(2,3,4) i(2,4)<3", cross_entropy(x[0], x[1])), TAPIR_SAMPLE("f(2,3,4,5) i(2,4,5)<3", cross_entropy(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(4,5) i(4)<5", "cross_entropy(x[0], x[1], reduction='sum')", cross_entropy(x[0], x[1], {.reduction = Reduction::sum})),
         TAPIR_SAMPLE_AS("f(4,5) i(4)<5", "cross_entropy(x[0], x[1], reduction='none')", cross_entropy(x[0], x[1], {.reduction = Reduction::none})),
         TAPIR_SAMPLE_AS("f(2,5,3) i(2,3)<5", "cross_entropy(x[0], x[1], reduction='none')",
                         cross_entropy(x[0], x[1], {.reduction = Reduction::none})),
         TAPIR_SAMPLE_AS("f(6,3) i(6)<3", "cross_entropy(x[0], x[1], ignore_index=1)", cross_entropy(x[0], x[1], {.ignore_index = 1})),
         TAPIR_SAMPLE_AS("f(6,3) i(6)<3", "cross_entropy(x[0], x[1], torch.tensor([0.5, 1, 2]).to(x[0].dtype))",
                         cross_entropy(x[0], x[1], {.weight = tensor({0.5, 1.0, 2.0}, {x[0].dtype(), x[0].device()})})),
         TAPIR_SAMPLE_AS("f(6,3) i(6)<3", "cross_entropy(x[0], x[1], torch.tensor([0.5, 1, 2]).to(x[0].dtype), label_smoothing=0.2)",
                         cross_entropy(x[0], x[1], {.weight = tensor({0.5, 1.0, 2.0}, {x[0].dtype(), x[0].device()}), .label_smoothing = 0.2})),
         TAPIR_SAMPLE_AS("f(2,3,5) i(2,5)<3", "cross_entropy(x[0], x[1], label_smoothing=0.1)", cross_entropy(x[0], x[1], {.label_smoothing = 0.1})),
         TAPIR_SAMPLE("f(4,5) p(4,5)", cross_entropy(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(2,3,4) p(2,3,4)", "cross_entropy(x[0], x[1], reduction='none', label_smoothing=0.1)",
                         cross_entropy(x[0], x[1], {.reduction = Reduction::none, .label_smoothing = 0.1})));
TAPIR_HAZARDS(nll_loss, hazard::targets);
TAPIR_OP(
    nll_loss, nll_loss_rule, "-log_probs[target].", TAPIR_SAMPLE("f(4,5) i(4)<5", nll_loss(x[0], x[1])),
    TAPIR_SAMPLE("f(5) i()<5", nll_loss(x[0], x[1])), TAPIR_SAMPLE("f(2,3,4) i(2,4)<3", nll_loss(x[0], x[1])),
    TAPIR_SAMPLE_AS("f(4,5) i(4)<5", "nll_loss(x[0], x[1], reduction='none')", nll_loss(x[0], x[1], {.reduction = Reduction::none})),
    TAPIR_SAMPLE_AS("f(6,3) i(6)<3", "nll_loss(x[0], x[1], torch.tensor([0.5, 1, 2]).to(x[0].dtype), ignore_index=1, reduction='sum')",
                    nll_loss(x[0], x[1],
                             {.weight = tensor({0.5, 1.0, 2.0}, {x[0].dtype(), x[0].device()}), .ignore_index = 1, .reduction = Reduction::sum})));
// As an op of its own, the recorded rule of cross_entropy with class indices is one node in the graph of a gradient.
TAPIR_OP(cross_entropy_backward, cross_entropy_backward_rule, "The gradient of cross_entropy: g (softmax(logits) - one_hot(target)).",
         TAPIR_SAMPLE_AS("f() f(4,5) i(4)<5", "torch.autograd.functional.vjp(lambda t: cross_entropy(t, x[2]), x[1], x[0])[1]",
                         cross_entropy_backward(x[0], x[1], x[2], {})),
         TAPIR_SAMPLE_AS("f() f(7) i()<7", "torch.autograd.functional.vjp(lambda t: cross_entropy(t, x[2]), x[1], x[0])[1]",
                         cross_entropy_backward(x[0], x[1], x[2], {})),
         TAPIR_SAMPLE_AS("f() f(3,70) i(3)<70", "torch.autograd.functional.vjp(lambda t: cross_entropy(t, x[2], reduction='sum'), x[1], x[0])[1]",
                         cross_entropy_backward(x[0], x[1], x[2], {.reduction = Reduction::sum})),
         TAPIR_SAMPLE_AS("f(2,3) f(2,5,3) i(2,3)<5",
                         "torch.autograd.functional.vjp(lambda t: cross_entropy(t, x[2], reduction='none'), x[1], x[0])[1]",
                         cross_entropy_backward(x[0], x[1], x[2], {.reduction = Reduction::none})),
         TAPIR_SAMPLE_AS("f() f(6,3) i(6)<3", "torch.autograd.functional.vjp(lambda t: cross_entropy(t, x[2], ignore_index=1), x[1], x[0])[1]",
                         cross_entropy_backward(x[0], x[1], x[2], {.ignore_index = 1})),
         TAPIR_SAMPLE_AS("f() f(6,3) i(6)<3",
                         "torch.autograd.functional.vjp(lambda t: cross_entropy(t, x[2], torch.tensor([0.5, 1, 2]).to(x[1].dtype), "
                         "label_smoothing=0.2), x[1], x[0])[1]",
                         cross_entropy_backward(x[0], x[1], x[2],
                                                {.weight = tensor({0.5, 1.0, 2.0}, {x[1].dtype(), x[1].device()}), .label_smoothing = 0.2})),
         TAPIR_SAMPLE_AS("f(2,5) f(2,3,5) i(2,5)<3",
                         "torch.autograd.functional.vjp(lambda t: cross_entropy(t, x[2], reduction='none', label_smoothing=0.1), x[1], x[0])[1]",
                         cross_entropy_backward(x[0], x[1], x[2], {.reduction = Reduction::none, .label_smoothing = 0.1})));

namespace {

using std::int64_t;

struct CrossEntropyAttrs {
    int64_t ignore_index;
    double smoothing;
    double scale;  // of every loss in the result: 1, or 1 / the summed weights; on a GPU it is not known here, see Loss
    Reduction reduction;
    bool weighted;
    bool scale_saved;
};
struct CrossEntropyCall {
    int64_t ignore_index = -100;
    Reduction reduction = Reduction::mean;
    double label_smoothing = 0;
};

int class_dim(int rank) { return rank == 1 ? 0 : 1; }

// Returns x in the form that the kernels read.
Tensor plain(const Tensor& x, DType dtype, const Loc& loc = {}) {
    const detail::UnrecordedPartsOf parts(loc);
    return to(contiguous(x), dtype);
}

// --- What the targets say --------------------------------------------------------------------------------------------------

// Input and targets after all checks: (outer, classes, inner) and (outer, inner).
struct Classes {
    Tensor input, targets, weight;
    int64_t outer = 1, classes = 0, inner = 1;
    double weight_sum = 0;  // of the targets that count

    const int64_t* indices() const { return static_cast<const int64_t*>(targets.raw_data()); }
    int64_t positions() const { return outer * inner; }
    void set_shape(const int64_t* sizes, int rank) {
        const int dim = class_dim(rank);
        classes = sizes[dim];
        outer = dim == 0 ? 1 : sizes[0];
        inner = 1;
        for (int d = dim + 1; d < rank; ++d) inner *= sizes[d];
    }
};

Shape target_shape(const Tensor& x) {
    Shape shape = x.shape();
    shape.erase(class_dim(x.dim()));
    return shape;
}

void check_shapes(const char* op, const In& x, const In& targets, const CrossEntropyOptions& options) {
    if (x.tensor.dim() == 0) fail<ShapeError>(x.loc, "{}: needs an input (classes,) or (n, classes, ...), got ()", op);
    const int64_t classes = x->sizes[class_dim(x.tensor.dim())];
    detail::check_same_device(op, x.tensor, targets.tensor, x.loc);
    if (options.weight.defined()) {
        if (options.weight.shape() != Shape(classes)) {
            fail<ShapeError>(x.loc, "{}: weight must have shape ({},), got {}", op, classes, options.weight.shape());
        }
        detail::check_same_device(op, x.tensor, options.weight, x.loc);
    }
    if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
        fail<ValueError>(x.loc, "{}: label_smoothing must be in [0, 1], got {}", op, options.label_smoothing);
    }
}

// Checks every target before anything is computed, and returns the sum of their weights.
template <class T>
double check_targets(const char* op, const Classes& c, int64_t ignore_index, const Loc& loc) {
    const int64_t* target = c.indices();
    const T* weight = c.weight.defined() ? static_cast<const T*>(c.weight.raw_data()) : nullptr;
    double sum = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < c.positions(); ++i) {
        const int64_t t = target[i];
        if (t == ignore_index) continue;
        if (t < 0 || t >= c.classes) [[unlikely]]
            fail<IndexError>(loc, "{}: target {} at position {} is out of range for {} classes{}", op, t, i, c.classes,
                             t == c.classes ? "; they are counted from 0" : "");
        ++count;
        if (weight) sum += static_cast<double>(weight[t]);
    }
    return weight ? sum : static_cast<double>(count);
}

// Returns the end of the message about targets that do not fit: the shape that would.
std::string class_hint(const Tensor& x, const Tensor& targets) {
    const int rank = x.dim();
    const std::string where = fmt::format("; the classes are dimension {}", class_dim(rank));
    if (targets.dim() == rank - 1 && rank > 2 && targets.shape() == Shape(x.impl()->sizes, rank - 1)) {
        return where + fmt::format(", not the last: write movedim(input, {{{}}}, {{1}})", rank - 1);
    }
    if (targets.shape() == x.shape()) return where + ": take the argmax of one-hot targets, or convert probabilities to a floating dtype";
    if (targets.dim() == rank && targets.numel() == x.numel() / std::max<int64_t>(x.size(class_dim(rank)), 1)) {
        return where + fmt::format(": write targets.squeeze({})", class_dim(rank));
    }
    return where;
}

Classes prepare(const char* op, const In& x, const In& given, const CrossEntropyOptions& options) {
    const Tensor beside = index_beside(given.tensor, x.tensor, x.loc);
    const In targets(beside, given.loc);
    check_shapes(op, x, targets, options);
    const DType dtype = x.tensor.dtype();
    if (is_floating(targets.tensor.dtype()) || targets.tensor.dtype() == bool_) {
        fail<DTypeError>(x.loc, "{}: targets must be class indices, not {}: convert them with targets.to(int64)", op, name(targets.tensor.dtype()));
    }
    const TensorImpl *xi = x.tensor.impl(), *ti = targets.tensor.impl();
    const int dim = class_dim(x.tensor.dim());
    bool fits = ti->rank == xi->rank - 1;
    for (int d = 0; d < ti->rank && fits; ++d) fits = ti->sizes[d] == xi->sizes[d < dim ? d : d + 1];
    if (!fits) {
        fail<ShapeError>(x.loc, "{}: an input of shape {} needs targets of shape {}, got {}{}", op, x.tensor.shape(), target_shape(x.tensor),
                         targets.tensor.shape(), class_hint(x.tensor, targets.tensor));
    }
    Classes c;
    c.input = xi->is_contiguous() ? x.tensor : plain(x.tensor, dtype, x.loc);
    c.targets = ti->is_contiguous() && ti->dtype == int64 ? targets.tensor : plain(targets.tensor, int64, x.loc);
    if (options.weight.defined()) c.weight = plain(options.weight, dtype, x.loc);
    c.set_shape(xi->sizes, xi->rank);
    if (on_gpu(xi)) return c;  // the kernels check the targets
    c.weight_sum =
        dtype == float64 ? check_targets<double>(op, c, options.ignore_index, x.loc) : check_targets<float>(op, c, options.ignore_index, x.loc);
    return c;
}

CrossEntropyAttrs attrs_of(const Classes& c, const CrossEntropyOptions& options) {
    const bool is_scaled = options.reduction == Reduction::mean, later = on_gpu(c.input);
    return {options.ignore_index, options.label_smoothing, is_scaled && !later ? 1 / c.weight_sum : 1,
            options.reduction,    c.weight.defined(),      is_scaled && later};
}

kernels::CrossEntropyArgs kernel_args(const Classes& c, const CrossEntropyAttrs& attrs, void* losses, void* grad) {
    return {c.input.dtype(),
            c.input.raw_data(),
            c.indices(),
            c.weight.defined() ? c.weight.raw_data() : nullptr,
            c.classes,
            c.inner,
            attrs.ignore_index,
            attrs.smoothing,
            attrs.scale,
            losses,
            grad};
}

// Reduces `losses`, a tensor of T, to a 0-d tensor.
template <class T>
void sum_losses(const T* losses, int64_t n, double scale, const Tensor& out) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(losses[i]);
    *static_cast<T*>(out.raw_data()) = static_cast<T>(sum * scale);
}

// Holds a number for each position.
class Losses {
 public:
    explicit Losses(const Classes& c) {
        if (c.positions() <= few) return;
        on_heap_ = detail::make_empty({c.positions()}, c.input.dtype(), cpu, Loc{});
        data_ = on_heap_.raw_data();
    }
    Losses(const Losses&) = delete;
    Losses& operator=(const Losses&) = delete;
    void* data() noexcept { return data_; }

 private:
    static constexpr int64_t few = 128;
    std::array<double, few> on_stack_;
    Tensor on_heap_;
    void* data_ = on_stack_.data();
};

// Runs compute(losses) into out, or reduces its losses into out.
template <class Compute>
void reduce_into(const Classes& c, Reduction reduction, double scale, const Tensor& out, const Compute& compute) {
    if (reduction == Reduction::none) return compute(out.raw_data());
    Losses losses(c);
    compute(losses.data());
    if (c.input.dtype() == float64) {
        sum_losses(static_cast<const double*>(losses.data()), c.positions(), scale, out);
    } else {
        sum_losses(static_cast<const float*>(losses.data()), c.positions(), scale, out);
    }
}

// Overload that makes a new tensor.
template <class Compute>
Tensor reduced(const Classes& c, const Shape& shape, Reduction reduction, double scale, const Loc& loc, const Compute& compute) {
    const bool is_none = reduction == Reduction::none;
    Tensor out = is_none ? detail::make_empty(shape, c.input.dtype(), c.input.device(), loc)
                         : detail::make_empty(nullptr, 0, 1, c.input.dtype(), c.input.device(), loc);
    reduce_into(c, reduction, scale, out, compute);
    return out;
}

// The result of a GPU.
struct Loss {
    Tensor out;
    Tensor scale;  // float64, of every loss in the result; undefined for 1
};

// grad may be undefined; it becomes the gradient of the losses, without `scale`.
template <class Kernel>
Loss reduced_on_gpu(const char* op, const Kernel& kernel, const Classes& c, const Shape& shape, const CrossEntropyAttrs& attrs, const Tensor& grad,
                    const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    detail::begin_op(op, c.input.impl(), loc);
    const DType dtype = c.input.dtype();
    const Tensor losses = detail::make_empty(shape, computed_in(dtype), c.input.device(), loc);
    Loss loss;
    if (attrs.reduction != Reduction::none) loss.out = detail::make_empty(nullptr, 0, 1, dtype, c.input.device(), loc);
    if (attrs.scale_saved) loss.scale = detail::make_empty(nullptr, 0, 1, float64, c.input.device(), loc);
    for (const Tensor* t : {&c.targets, &c.weight, &grad}) on_stream(*t);
    const kernels::CrossEntropyArgs args = kernel_args(c, attrs, losses.raw_data(), grad.raw_data());
    if (c.positions() > 0) kernel(args, c.positions(), class_dim(c.input.dim()), c.input.shape());
    if (attrs.reduction == Reduction::none) {
        loss.out = to(losses, dtype);
    } else {
        gpu::total_loss(args, c.positions(), attrs.reduction == Reduction::mean, loss.out.raw_data(), static_cast<double*>(loss.scale.raw_data()));
    }
    return loss;
}

// Saves these, the weight and the scale, if there are any.
void finish_loss(const OpInfo& op, const In& x, const Tensor& targets, const Tensor& weight, const Loss& loss, const CrossEntropyAttrs& attrs,
                 std::initializer_list<const Tensor*> more, bool recorded) {
    const Tensor* const inputs[] = {&x.tensor, &targets, &weight};
    const Tensor* saved[5];
    int count = 0;
    for (const Tensor* t : more) saved[count++] = t;
    for (const Tensor* t : {&weight, &loss.scale}) {
        if (t->defined()) saved[count++] = t;
    }
    TensorImpl* const out = loss.out.impl();
    const int input_count = attrs.weighted ? 3 : 2;
    const CrossEntropyCall call{attrs.ignore_index, attrs.reduction, attrs.smoothing};
    const RecordArgs told{op, x.loc, inputs, input_count, &out, 1, nullptr, 0, &call, sizeof call};
    RecordArgs ran{op, x.loc, inputs, input_count, &out, 1, saved, count, &attrs, sizeof attrs};
    ran.told = &told;
    finish_op(ran, recorded);
}

// --- Cross-entropy with class indices ----------------------------------------------------------------------------------------

void run_kernel(const Classes& c, const CrossEntropyAttrs& attrs, void* losses, void* grad) {
    const kernels::CrossEntropyArgs args = kernel_args(c, attrs, losses, grad);
    const int64_t positions = c.positions();
    if (positions * c.classes < 16 * 1024) [[likely]]
        return kernels::cross_entropy(args, 0, positions);
    const int64_t grain = 8 * 1024 / c.classes + 1;
    const auto run = [&](int64_t begin, int64_t end) { kernels::cross_entropy(args, begin, end); };
    c.inner == 1 ? parallel_items(positions, grain, run) : parallel_for(positions, grain, run);
}

// The losses of a group in batch(): each() gives those of all positions, with an instance's batch, if there is one, beside those of others.
template <class Each>
Tensor losses_of_group(const detail::Batched& in, const CrossEntropyOptions& options, const Each& each) {
    const bool has_batch = in[0].dim() > 2;
    const Tensor x = has_batch ? detail::folded(in[0]) : in[0], targets = has_batch ? detail::folded(in[1]) : in[1];
    CrossEntropyOptions of_each = options;
    of_each.weight = in[2];
    of_each.reduction = Reduction::none;
    const Tensor losses = reshape(each(x, targets, of_each), in[1].shape());
    if (options.reduction != Reduction::mean) return reduced_each(losses, options.reduction);
    Tensor counts = ne(targets, options.ignore_index).to(losses.dtype());
    if (in[2].defined())
        counts = counts * reshape(index_select(in[2], 0, reshape(where(ne(targets, options.ignore_index), targets, 0), {-1})), counts.shape());
    return reduced_each(losses, Reduction::sum) / reduced_each(reshape(counts, in[1].shape()), Reduction::sum);
}

// Returns true if the losses were computed together with those of peers.
template <class Each>
bool loss_in_group(const OpInfo& op, const In& x, const In& targets, const CrossEntropyOptions& options, const Each& each, Tensor& loss) {
    if (x.tensor.numel() == 0) return false;
    const auto rule = [&](const detail::Batched& in, Tensor* out) { out[0] = losses_of_group(in, options, each); };
    const detail::BatchKey key = detail::batch_key(options.ignore_index, options.reduction, options.label_smoothing);
    return detail::batched({op, x.loc, {&x.tensor, &targets.tensor, &options.weight}, key, {.same = 0b100, .rounds_otherwise = true}}, rule, {&loss});
}

Tensor fused_cross_entropy(const In& logits, const In& targets, const CrossEntropyOptions& options) {
    const Classes c = prepare("cross_entropy", logits, targets, options);
    if (detail::in_batch()) [[unlikely]] {
        const auto each = [&](const Tensor& x, const Tensor& t, const CrossEntropyOptions& o) { return cross_entropy(In(x, logits.loc), t, o); };
        if (Tensor made; loss_in_group(cross_entropy_op, logits, targets, options, each, made)) return made;
    }
    const CrossEntropyAttrs attrs = attrs_of(c, options);
    const bool keep = recording(logits.loc, {&logits.tensor}) != nullptr;
    Tensor grad;  // of the logits, for a result's gradient of 1
    if (keep) grad = detail::make_empty_like(logits.tensor.impl(), logits.tensor.dtype(), logits.loc);
    Loss loss;
    if (on_gpu(c.input)) {
        loss = reduced_on_gpu("cross_entropy", gpu::cross_entropy, c, targets.tensor.shape(), attrs, grad, logits.loc);
    } else {
        loss.out = reduced(c, targets.tensor.shape(), options.reduction, attrs.scale, logits.loc,
                           [&](void* losses) { run_kernel(c, attrs, losses, keep ? grad.raw_data() : nullptr); });
    }
    if (detail::thread.observed) {
        finish_loss(cross_entropy_op, logits, targets.tensor, options.weight, loss, attrs, {&logits.tensor, &targets.tensor, &grad}, keep);
    }
    return loss.out;
}

// --- Backward ----------------------------------------------------------------------------------------------------------------

// See DistributionArgs. Both are scaled.
struct Distribution {
    Tensor q;     // of x's shape
    Tensor mass;  // the same with one class
};

template <class T>
void fill_distribution(const Classes& c, const CrossEntropyAttrs& attrs, const Distribution& d) {
    auto* q = static_cast<T*>(d.q.raw_data());
    auto* mass = static_cast<T*>(d.mass.raw_data());
    const T* weight = c.weight.defined() ? static_cast<const T*>(c.weight.raw_data()) : nullptr;
    const double soft = attrs.smoothing / static_cast<double>(c.classes);
    const auto weight_of = [&](int64_t k) { return (weight ? static_cast<double>(weight[k]) : 1.0) * attrs.scale; };
    double total = 0;
    for (int64_t k = 0; k < c.classes; ++k) total += weight_of(k);
    for (int64_t i = 0; i < c.positions(); ++i) {
        const int64_t t = c.indices()[i];
        if (t == attrs.ignore_index) continue;
        T* at = q + i / c.inner * c.classes * c.inner + i % c.inner;
        if (soft != 0) {
            for (int64_t k = 0; k < c.classes; ++k) at[k * c.inner] = static_cast<T>(soft * weight_of(k));
        }
        const double hard = (1 - attrs.smoothing) * weight_of(t);
        at[t * c.inner] += static_cast<T>(hard);
        mass[i] = static_cast<T>(hard + soft * total);
    }
}

// Return the weight and the scale of the record, which are saved after `first` other tensors.
Tensor saved_weight(const Backward& b, int first) { return b.attrs<CrossEntropyAttrs>().weighted ? b.saved(first) : Tensor(); }
Tensor saved_scale(const Backward& b, int first) {
    const CrossEntropyAttrs& attrs = b.attrs<CrossEntropyAttrs>();
    return attrs.scale_saved ? b.saved(first + (attrs.weighted ? 1 : 0)) : Tensor();
}

void fill_on_gpu(const Classes& c, const CrossEntropyAttrs& attrs, const Tensor& scale, const Distribution& d) {
    gpu::distribution({d.q.dtype(), on_stream<int64_t>(c.targets), on_stream(c.weight), c.outer, c.classes, c.inner, attrs.ignore_index,
                       attrs.smoothing, on_stream<double>(scale), on_stream(d.q), on_stream(d.mass)});
}

Distribution distribution(const Backward& b, const Tensor& targets, const Tensor& weight, const Tensor& scale) {
    const detail::UnrecordedParts parts;
    const Shape shape = b.input_shape(0);
    const DType dtype = computed_in(b.input_dtype(0));
    Classes c;
    c.targets = plain(targets, int64);
    if (weight.defined()) c.weight = plain(weight, dtype);
    c.set_shape(shape.data(), shape.rank());
    Shape one_class = shape;
    one_class.raw(class_dim(shape.rank())) = 1;
    if (on_gpu(targets)) {
        const Distribution d{detail::make_empty(shape, dtype, targets.device(), Loc{}),
                             detail::make_empty(one_class, dtype, targets.device(), Loc{})};
        if (shape.numel() > 0) fill_on_gpu(c, b.attrs<CrossEntropyAttrs>(), scale, d);
        return d;
    }
    const Distribution d{gradient_ops::zeros(shape, dtype, targets.device()), gradient_ops::zeros(one_class, dtype, targets.device())};
    if (dtype == float64) {
        fill_distribution<double>(c, b.attrs<CrossEntropyAttrs>(), d);
    } else {
        fill_distribution<float>(c, b.attrs<CrossEntropyAttrs>(), d);
    }
    return d;
}

// Makes the same of ops, for rules that are recorded; the input is like x.
struct Like {
    Shape shape;
    DType dtype;
    Device device;
};

Distribution distribution_of_ops(const Like& x, const CrossEntropyAttrs& attrs, const Tensor& given, const Tensor& weight) {
    const DType dtype = computed_in(x.dtype);
    const int dim = class_dim(x.shape.rank());
    const int64_t classes = x.shape.raw(dim);
    Shape beside(classes);
    for (int d = dim + 1; d < x.shape.rank(); ++d) beside.push_back(1);
    const Tensor targets = unsqueeze(to(to(given, x.device), int64), dim), counts = ne(targets, attrs.ignore_index);
    const Tensor is_own = logical_and(eq(targets, reshape(arange(classes, {int64, x.device}), beside)), counts);
    const Tensor weights = weight.defined() ? reshape(to(weight, dtype), beside) : ones(beside, {dtype, x.device});
    const Tensor own = where(is_own, weights, 0), own_mass = sum(own, {dim}, /*keepdim=*/true);
    Distribution d{own * (1 - attrs.smoothing), own_mass * (1 - attrs.smoothing)};
    if (attrs.smoothing > 0) {
        const Tensor all = where(counts, weights * (attrs.smoothing / static_cast<double>(classes)), 0);
        d = {d.q + all, d.mass + sum(all, {dim}, /*keepdim=*/true)};
    }
    if (attrs.reduction != Reduction::mean) return d;
    const Tensor total = sum(own_mass), scale = where(eq(total, 0), 1, total);
    return {d.q / scale, d.mass / scale};
}

// Returns the gradient of the result as a factor for an input of this rank.
Tensor grad_factor(const Tensor& g, Reduction reduction, int rank) { return reduction != Reduction::none ? g : unsqueeze(g, class_dim(rank)); }

// True if only the record holds it, and the record is about to drop it.
bool may_overwrite(const Backward& b, const Tensor& saved) {
    return b.walk().releasing && __atomic_load_n(&saved.impl()->refs, __ATOMIC_ACQUIRE) == 2;
}

// d[o][c][i] g[o][i] (or one g), written into `out`.
void scale_gradient(const Tensor& d, const Tensor& g, const Tensor& scale, Reduction reduction, const Tensor& out) {
    Classes c;
    c.set_shape(d.impl()->sizes, d.dim());
    const bool of_lines = reduction == Reduction::none;
    const auto *of_d = kernel_data(d), *of_g = kernel_data(g);
    const auto* factor = kernel_data<double>(scale);
    auto* to = kernel_data(out);
    TAPIR_LAUNCH(d, c.outer, 2 * c.classes * c.inner, scale_classes, d.dtype(), of_d, of_g, of_lines, factor, to, c.classes, c.inner);
}

void cross_entropy_rule(Backward& b) {
    if (!b.needs(0)) return;
    const CrossEntropyAttrs& attrs = b.attrs<CrossEntropyAttrs>();
    const Tensor x = b.saved(0);
    if (b.recording()) {
        const Loc& loc = b.record().loc;
        return b.give(0,
                      cross_entropy_backward(In(b.grad(), loc), In(x, loc), In(b.saved(1), loc),
                                             {saved_weight(b, 3), attrs.ignore_index, attrs.reduction, attrs.smoothing}));
    }
    const Tensor unscaled = b.saved(2), g = contiguous(b.grad());
    Tensor out = may_overwrite(b, unscaled) ? unscaled : detail::make_empty_like(x.impl(), x.dtype(), Loc{});
    if (x.numel() > 0) scale_gradient(unscaled, g, saved_scale(b, 3), attrs.reduction, out);
    b.give(0, std::move(out));
}

// saved: g, x, the targets, the weight if there is one. The gradient is (p mass - q) g, p = softmax(x).
void cross_entropy_backward_rule(Backward& b) {
    const CrossEntropyAttrs& attrs = b.attrs<CrossEntropyAttrs>();
    const Tensor g = b.saved(0), x = b.saved(1), &v = b.grad();
    const int dim = class_dim(x.dim());
    const Distribution d = distribution_of_ops({x.shape(), x.dtype(), x.device()}, attrs, b.saved(2), saved_weight(b, 3));
    const Tensor p = softmax(to(x, d.q.dtype()), dim);
    if (b.needs(0)) {
        const Tensor along = v * (p * d.mass - d.q);
        b.give(0, attrs.reduction == Reduction::none ? sum(along, {dim}) : sum(along));
    }
    if (!b.needs(1)) return;
    const Tensor into_p = v * d.mass * grad_factor(g, attrs.reduction, x.dim());
    b.give(1, p * (into_p - sum(p * into_p, {dim}, /*keepdim=*/true)));
}

void nll_loss_rule(Backward& b) {
    if (!b.needs(0)) return;
    const CrossEntropyAttrs& attrs = b.attrs<CrossEntropyAttrs>();
    const Tensor targets = b.saved(0), weight = saved_weight(b, 1);
    const Shape shape = b.input_shape(0);
    const Distribution d = b.recording() ? distribution_of_ops({shape, b.input_dtype(0), b.grad().device()}, attrs, targets, weight)
                                         : distribution(b, targets, weight, saved_scale(b, 1));
    b.give(0, d.q * -grad_factor(b.grad(), attrs.reduction, shape.rank()));
}

// Writes to `out`: contiguous, like c.input.
void run_gradient(const Classes& c, CrossEntropyAttrs attrs, const Tensor& g, const Tensor& out) {
    const bool of_lines = attrs.reduction == Reduction::none;
    if (c.input.numel() == 0) return;
    if (!of_lines)
        attrs.scale *=
            g.dtype() == float64 ? *static_cast<const double*>(g.raw_data()) : static_cast<double>(*static_cast<const float*>(g.raw_data()));
    Losses losses(c);
    run_kernel(c, attrs, losses.data(), out.raw_data());
    if (of_lines) scale_gradient(out, g, Tensor(), attrs.reduction, out);
}

Tensor cross_entropy_backward(const In& g, const In& x, const In& targets, const CrossEntropyOptions& options) {
    constexpr const char* op = "cross_entropy_backward";
    detail::check_defined(g, op);
    detail::check_defined(x, op);
    detail::check_defined(targets, op);
    const DType dtype = x.tensor.dtype();
    if (!is_floating(dtype)) fail<DTypeError>(x.loc, "{}: needs an input of a floating dtype, not {}", op, name(dtype));
    if (const DType read = read_in(x.tensor); read != dtype) {
        const detail::RecordedParts parts(x.loc);
        return to(cross_entropy_backward(In(to(g, read), g.loc), In(to(x, read), x.loc), targets, options), dtype);
    }
    const Classes c = prepare(op, x, targets, options);
    const Shape shape = options.reduction == Reduction::none ? target_shape(x.tensor) : Shape();
    if (g.tensor.shape() != shape || g.tensor.dtype() != dtype) {
        fail<ShapeError>(x.loc, "{}: needs a gradient of shape {} and {}, got {} and {}", op, shape, name(dtype), g.tensor.shape(),
                         name(g.tensor.dtype()));
    }
    detail::check_same_device(op, x.tensor, g.tensor, x.loc);
    const CrossEntropyAttrs attrs = attrs_of(c, options);
    Tensor out = detail::make_empty_like(c.input.impl(), dtype, x.loc);
    const Tensor factor = plain(g.tensor, dtype, x.loc);
    Loss loss{out, {}};
    if (on_gpu(c.input)) {
        loss.scale = reduced_on_gpu(op, gpu::cross_entropy, c, targets.tensor.shape(), attrs, out, x.loc).scale;
        if (x.tensor.numel() > 0) scale_gradient(out, factor, loss.scale, attrs.reduction, out);
    } else {
        detail::begin_op(op, c.input.impl(), x.loc);
        run_gradient(c, attrs, factor, out);
    }
    if (!detail::thread.observed) return out;
    const Tensor* const inputs[] = {&g.tensor, &x.tensor, &targets.tensor, &options.weight};
    const int count = attrs.weighted ? 4 : 3;
    TensorImpl* const result = out.impl();
    const CrossEntropyCall call{options.ignore_index, options.reduction, options.label_smoothing};
    const RecordArgs told{cross_entropy_backward_op, x.loc, inputs, count, &result, 1, nullptr, 0, &call, sizeof call};
    RecordArgs ran{cross_entropy_backward_op, x.loc, inputs, count, &result, 1, inputs, count, &attrs, sizeof attrs};
    ran.told = &told;
    finish_op(ran, recording(x.loc, {&g.tensor, &x.tensor}));
    return out;
}

// --- From log-probabilities, and probabilities as targets --------------------------------------------------------------------

template <class T>
void nll_losses(const Classes& c, const CrossEntropyAttrs& attrs, T* losses) {
    const auto* x = static_cast<const T*>(c.input.raw_data());
    const T* weight = c.weight.defined() ? static_cast<const T*>(c.weight.raw_data()) : nullptr;
    const T hard = static_cast<T>(1 - attrs.smoothing), soft = static_cast<T>(attrs.smoothing / static_cast<double>(c.classes));
    for (int64_t i = 0; i < c.positions(); ++i) {
        const int64_t t = c.indices()[i];
        losses[i] = 0;
        if (t == attrs.ignore_index) continue;
        const T* at = x + i / c.inner * c.classes * c.inner + i % c.inner;
        losses[i] = -hard * (weight ? weight[t] : T(1)) * at[t * c.inner];
        if (soft == 0) continue;
        for (int64_t k = 0; k < c.classes; ++k) losses[i] -= soft * (weight ? weight[k] : T(1)) * at[k * c.inner];
    }
}

Tensor with_probabilities(const In& logits, const In& targets, const CrossEntropyOptions& options) {
    check_shapes("cross_entropy", logits, targets, options);
    if (logits.tensor.shape() != targets.tensor.shape()) {
        const char* hint = targets.tensor.shape() == target_shape(logits.tensor) ? "; convert class indices with targets.to(int64)" : "";
        fail<ShapeError>(logits.loc, "cross_entropy: targets that are probabilities ({}) must have the logits' shape {}, got {}{}",
                         name(targets.tensor.dtype()), logits.tensor.shape(), targets.tensor.shape(), hint);
    }
    const detail::RecordedParts parts(logits.loc);
    const int dim = class_dim(logits.tensor.dim());
    const int64_t classes = logits->sizes[dim];
    Tensor q = targets.tensor;
    if (options.label_smoothing > 0) {
        q = q * (1 - options.label_smoothing) + options.label_smoothing / static_cast<double>(classes);
    }
    if (options.weight.defined()) {
        Shape shape = Shape(classes);
        for (int d = dim + 1; d < logits.tensor.dim(); ++d) shape.push_back(1);
        q = q * reshape(options.weight, shape);
    }
    const Tensor losses = -absorbing_mul(q, log_softmax(logits, dim));  // 0 log(0) = 0
    if (options.reduction == Reduction::none) return sum(losses, {dim});
    if (options.reduction == Reduction::sum) return sum(losses);
    return mean(losses) * classes;
}

void check_input(const char* op, const In& x, const In& targets) {
    detail::check_defined(x, op);
    detail::check_defined(In(targets.tensor, x.loc), op);
    if (!is_floating(x.tensor.dtype())) {
        const bool swapped = is_floating(targets.tensor.dtype()) && targets.tensor.dim() >= x.tensor.dim();
        fail<DTypeError>(x.loc, "{}: needs an input of a floating dtype, not {}{}", op, name(x.tensor.dtype()),
                         swapped ? "; the order is (input, target)" : "");
    }
}

}  // namespace

Tensor cross_entropy(In logits, In targets, const CrossEntropyOptions& options) {
    check_input("cross_entropy", logits, targets);
    check_reduction("cross_entropy", options.reduction, logits.loc);
    if (const Tensor wide = detail::autocast_wide(logits); wide.defined()) {
        return cross_entropy(In(wide, logits.loc), targets, options);
    }
    const DType dtype = logits.tensor.dtype(), given = targets.tensor.dtype();
    const bool by_ops = is_floating(given);
    const DType read = by_ops ? computed_in(dtype) : read_in(logits.tensor);
    if (read != dtype) {  // the conversions are recorded
        const detail::RecordedParts parts(logits.loc);
        return to(cross_entropy(to(logits, read), targets, options), by_ops ? promote(dtype, given) : dtype);
    }
    if (by_ops) return with_probabilities(logits, targets, options);
    return fused_cross_entropy(logits, targets, options);
}

Tensor nll_loss(In log_probs, In targets, const CrossEntropyOptions& options) {
    check_input("nll_loss", log_probs, targets);
    check_reduction("nll_loss", options.reduction, log_probs.loc);
    if (const Tensor wide = detail::autocast_wide(log_probs); wide.defined()) {
        return nll_loss(In(wide, log_probs.loc), targets, options);
    }
    const DType dtype = log_probs.tensor.dtype(), read = read_in(log_probs.tensor);
    if (read != dtype) {
        const detail::RecordedParts parts(log_probs.loc);
        return to(nll_loss(to(log_probs, read), targets, options), dtype);
    }
    const Classes c = prepare("nll_loss", log_probs, targets, options);
    if (detail::in_batch()) [[unlikely]] {
        const auto each = [&](const Tensor& x, const Tensor& t, const CrossEntropyOptions& o) { return nll_loss(In(x, log_probs.loc), t, o); };
        if (Tensor made; loss_in_group(nll_loss_op, log_probs, targets, options, each, made)) return made;
    }
    const CrossEntropyAttrs attrs = attrs_of(c, options);
    Loss loss;
    if (on_gpu(c.input)) {
        loss = reduced_on_gpu("nll_loss", gpu::nll_loss, c, targets.tensor.shape(), attrs, Tensor(), log_probs.loc);
    } else {
        loss.out = reduced(c, targets.tensor.shape(), options.reduction, attrs.scale, log_probs.loc, [&](void* losses) {
            if (c.input.dtype() == float64) {
                nll_losses(c, attrs, static_cast<double*>(losses));
            } else {
                nll_losses(c, attrs, static_cast<float*>(losses));
            }
        });
    }
    if (detail::thread.observed) {
        finish_loss(nll_loss_op, log_probs, targets.tensor, options.weight, loss, attrs, {&targets.tensor},
                    recording(log_probs.loc, {&log_probs.tensor, &targets.tensor, &options.weight}));
    }
    return loss.out;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

CrossEntropyOptions options_of(const FormCall& x, const CrossEntropyCall& a) {
    return {x.count > 2 ? x[2] : Tensor(), a.ignore_index, a.reduction, a.label_smoothing};
}

void call_fields(Fields& f, CrossEntropyCall& a) {
    f("ignore_index", a.ignore_index)("reduction", a.reduction, {"none", "mean", "sum", "batchmean"})("label_smoothing", a.label_smoothing);
}

Tensor cross_entropy_backward_of(const FormCall& x, const CrossEntropyCall& a) {
    return cross_entropy_backward(x[0], x[1], x[2], {x.count > 3 ? x[3] : Tensor(), a.ignore_index, a.reduction, a.label_smoothing});
}

// Takes operands of the op that the kernel can read as they are: x[from], targets and weight. Checks targets.
bool take(const char* op, const FormCall& x, int from, Classes& c) {
    const CrossEntropyCall& a = *static_cast<const CrossEntropyCall*>(x.attrs);
    const TensorImpl *in = x[from].impl(), *targets = x[from + 1].impl();
    const bool is_plain = (in->dtype == float32 || in->dtype == float64) && detail::is_plain(in, in->dtype) && detail::is_plain(targets, int64);
    if (!is_plain || in->rank == 0 || x.count > from + 2 || a.reduction == Reduction::batchmean ||
        !(a.label_smoothing >= 0 && a.label_smoothing <= 1))
        return false;
    c.set_shape(in->sizes, in->rank);
    if (targets->rank != in->rank - 1 || targets->numel != c.positions()) return false;
    c.input = x[from];
    c.targets = x[from + 1];
    c.weight_sum = check_targets<float>(op, c, a.ignore_index, Loc::current());
    return true;
}

bool cross_entropy_into(const FormCall& x, const Tensor& out) {
    const CrossEntropyCall& a = *static_cast<const CrossEntropyCall*>(x.attrs);
    Classes c;
    if (!take("cross_entropy", x, 0, c) || !detail::is_plain(out.impl(), c.input.dtype())) return false;
    const bool is_none = a.reduction == Reduction::none;
    if (out.numel() != (is_none ? c.positions() : 1)) return false;
    const CrossEntropyAttrs attrs = attrs_of(c, {{}, a.ignore_index, a.reduction, a.label_smoothing});
    reduce_into(c, a.reduction, attrs.scale, out, [&](void* losses) { run_kernel(c, attrs, losses, nullptr); });
    return true;
}

bool cross_entropy_backward_into(const FormCall& x, const Tensor& out) {
    const CrossEntropyCall& a = *static_cast<const CrossEntropyCall*>(x.attrs);
    Classes c;
    if (!take("cross_entropy_backward", x, 1, c)) return false;
    const DType dtype = c.input.dtype();
    const int64_t lines = a.reduction == Reduction::none ? c.positions() : 1;
    if (!detail::is_plain(out.impl(), dtype) || out.numel() != c.input.numel() || !detail::is_plain(x[0].impl(), dtype) || x[0].numel() != lines)
        return false;
    run_gradient(c, attrs_of(c, {{}, a.ignore_index, a.reduction, a.label_smoothing}), x[0], out);
    return true;
}

// Takes the operands from t[first] on: an input, class indices, and weights, if there are any.
ResultTypes types_of(const TypeCall& t, int first, const CrossEntropyCall& a) {
    using namespace types;
    const ValueType &x = ranked(t[first], 1), &targets = t[first + 1];
    if (is_floating(targets.dtype)) return unstated();  // probabilities
    const int dim = class_dim(x.rank());
    ValueType losses = dropped(x, dim);
    need(may_equal(targets.shape, losses.shape), "the targets do not fit the input; the classes are dimension 1");
    if (t.count > first + 2) need(may_equal(t[first + 2].shape, {size_of(x, dim)}), "needs a weight for each class");
    return reduced_type(alike(losses, targets), a.reduction);
}

ResultTypes types_of_backward(const TypeCall& t, const CrossEntropyCall& a) {
    const ResultTypes loss = types_of(t, 1, a);
    if (loss.empty()) return {};
    types::need(may_equal(t[0].shape, loss[0].shape), "the gradient has not the loss's shape");
    return t[1];
}

}  // namespace

TAPIR_INTO_FORM(cross_entropy, Operands(2, 3), CrossEntropyCall, types_of(t, 0, a), cross_entropy(x[0], x[1], options_of(x, a)), cross_entropy_into,
                call_fields(f, a));
TAPIR_INTO_FORM(cross_entropy_backward, Operands::from(2), CrossEntropyCall, types_of_backward(t, a), cross_entropy_backward_of(x, a),
                cross_entropy_backward_into, call_fields(f, a));
TAPIR_FORM(nll_loss, Operands(2, 3), CrossEntropyCall, types_of(t, 0, a), nll_loss(x[0], x[1], options_of(x, a)), call_fields(f, a));

}  // namespace tapir
