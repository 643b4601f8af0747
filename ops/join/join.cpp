// cat and stack: write several tensors one after the other into a new one.
#include <algorithm>
#include <cstring>

#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/arrange/arrange_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_impl.h"

namespace tapir {
namespace {

using std::int64_t;

constexpr std::size_t kMaxInputs = 255;  // of one record

void cat_rule(Backward& b) {  // attributes: the dimension, then each input's size along it
    const int64_t* attrs = &b.attrs<int64_t>();
    const int dim = static_cast<int>(attrs[0]);
    int64_t start = 0;
    for (int i = 0; i < b.input_count(); ++i) {
        const int64_t length = attrs[1 + i];
        if (b.needs(i)) {
            const Tensor part = narrow(b.grad(), dim, start, length);
            b.give(i, b.input_shape(i).rank() == part.dim() ? part : reshape(part, {0}));  // a tensor of shape (0,) among others
        }
        start += length;
    }
}

void stack_rule(Backward& b) {
    const int dim = b.attrs<int>();
    const Tensor g = b.grad();
    if (dim == 0) return give_rows(b, g);
    Shape sizes = g.shape(), strides = g.strides();
    sizes.erase(dim);
    strides.erase(dim);
    for (int i = 0; i < b.input_count(); ++i) {
        if (!b.needs(i)) continue;
        b.give(i, b.recording() ? select(g, dim, i) : detail::make_view(g.impl(), sizes, strides, i * g.strides().raw(dim)));
    }
}

}  // namespace

TAPIR_OP(cat, cat_rule, "Tensors joined along an existing dimension.", TAPIR_SAMPLE("f(3) f(4)", cat({x[0], x[1]})),
         TAPIR_SAMPLE("f(3,2) f(3,4) f(3,1)", cat({x[0], x[1], x[2]}, 1)), TAPIR_SAMPLE("f(2,3) f(1,3)", cat({x[0], x[1], x[0]}, -2)),
         TAPIR_SAMPLE("f(2,3,2) f(2,1,2)", cat({x[0], x[1]}, 1)), TAPIR_SAMPLE("f(0) f(3,2)", cat({x[0], x[1]})),
         TAPIR_SAMPLE("f(2,0,3) f(2,2,3)", cat({x[0], x[1]}, -2)));
TAPIR_OP(stack, stack_rule, "Tensors of one shape joined along a new dimension.", TAPIR_SAMPLE("f(3) f(3)", stack({x[0], x[1]})),
         TAPIR_SAMPLE("f(2,3) f(2,3) f(2,3)", stack({x[0], x[1], x[2]}, 1)), TAPIR_SAMPLE("f(2,3) f(2,3)", stack({x[0], x[1], x[0]}, -1)),
         TAPIR_SAMPLE("f() f()", stack({x[0], x[1]})));

namespace {

struct Join {
    int64_t sizes[kMaxRank];  // of the result
    int rank;
    int dim;
    DType dtype;
    bool plain = true;  // every input is contiguous and of the result's dtype
    bool too_large = false;
    int64_t numel = 0;

    Shape shape() const { return {sizes, rank}; }
    // The runs of elements that each input gives.
    int64_t outer() const noexcept {
        int64_t product = 1;
        for (int d = 0; d < dim; ++d) product *= sizes[d];
        return product;
    }
    // Unrolled by hand: gcc turns the plain loop into `rep movsq`, which takes 15 ns to start.
    void copy_sizes(const TensorImpl* x) {
        rank = x->rank;
#pragma GCC unroll 8
        for (int d = 0; d < kMaxRank; ++d) {
            if (d >= rank) break;
            sizes[d] = x->sizes[d];
        }
    }
};

// PyTorch's exception: tensors of shape (0,) join with anything.
bool is_skipped(const TensorImpl* t) noexcept { return t->rank == 1 && t->sizes[0] == 0; }

// Checks an input for both.
inline void add_input(const char* op, const TensorList& list, const Tensor& t, Join& join) {
    if (!t.defined()) [[unlikely]]
        detail::fail_undefined(op, list.loc);
    const TensorImpl* x = t.impl();
    join.plain &= x->is_contiguous();
    join.too_large |= __builtin_add_overflow(join.numel, x->numel, &join.numel);
    if (x->dtype != join.dtype) [[unlikely]] {
        join.plain = false;
        join.dtype = promote(join.dtype, x->dtype);
    }
    if (x->device != list[0].impl()->device) [[unlikely]]
        detail::check_same_device(op, list[0], t, list.loc);
}

bool same_sizes(const TensorImpl* a, const TensorImpl* b) noexcept {
    if (a->rank != b->rank) return false;
    for (int d = 0; d < a->rank; ++d) {
        if (a->sizes[d] != b->sizes[d]) return false;
    }
    return true;
}

void begin_join(const char* op, const TensorList& list, Join& join) {
    if (list.size == 0) fail<ValueError>(list.loc, "{}: needs at least one tensor", op);
    detail::check_defined(In(list[0], list.loc), op);
    join.dtype = list[0].dtype();
    add_input(op, list, list[0], join);
}

[[noreturn, gnu::cold, gnu::noinline]] void fail_cat(const char* op, const TensorList& list, const TensorImpl* a, const TensorImpl* b, int d) {
    if (a->rank != b->rank) {
        fail<ShapeError>(list.loc, "{}: shapes {} and {} differ in their number of dimensions", op, Shape(a->sizes, a->rank),
                         Shape(b->sizes, b->rank));
    }
    fail<ShapeError>(list.loc, "{}: shapes {} and {} differ in another dimension than {}", op, Shape(a->sizes, a->rank), Shape(b->sizes, b->rank), d);
}

Join plan_cat(const char* op, const TensorList& list, int dim) {
    Join join;
    begin_join(op, list, join);
    std::size_t i = 0;
    while (i + 1 < list.size && is_skipped(list[i].impl())) add_input(op, list, list[++i], join);
    const TensorImpl* first = list[i].impl();
    const int rank = first->rank;
    if (rank == 0) fail<ShapeError>(list.loc, "{}: 0-d tensors have no dimension to be joined along; use stack()", op);
    const int d = join.dim = detail::wrap_dim(dim, rank, op, list.loc);
    join.copy_sizes(first);
    for (++i; i < list.size; ++i) {
        add_input(op, list, list[i], join);
        const TensorImpl* t = list[i].impl();
        if (is_skipped(t)) continue;
        if (t->rank != rank) [[unlikely]]
            fail_cat(op, list, first, t, d);
        for (int k = 0; k < rank; ++k) {
            if (k != d && t->sizes[k] != first->sizes[k]) [[unlikely]]
                fail_cat(op, list, first, t, d);
        }
        join.sizes[d] += t->sizes[d];
    }
    return join;
}

Join plan_stack(const TensorList& list, int dim) {
    Join join;
    begin_join("stack", list, join);
    const TensorImpl* first = list[0].impl();
    const int d = join.dim = detail::wrap_dim(dim, first->rank + 1, "stack", list.loc);
    if (first->rank == kMaxRank) fail<ShapeError>(list.loc, "stack: at most {} dimensions, got {}", kMaxRank, kMaxRank + 1);
    for (std::size_t i = 1; i < list.size; ++i) {
        add_input("stack", list, list[i], join);
        if (!same_sizes(first, list[i].impl())) [[unlikely]]
            fail<ShapeError>(list.loc, "stack: shapes {} and {} differ", list[0].shape(), list[i].shape());
    }
    join.copy_sizes(first);
    for (int k = join.rank++; k > d; --k) join.sizes[k] = join.sizes[k - 1];
    join.sizes[d] = static_cast<int64_t>(list.size);
    return join;
}

// Joins several inputs per launch.
void join_on_gpu(const TensorList& list, const Join& join, bool stacked, const TensorImpl* y) {
    kernels::JoinArgs args;
    const auto item = static_cast<int64_t>(itemsize(join.dtype));
    const int64_t inner = y->strides[join.dim] * item;
    args.out = on_stream(y);
    args.row = join.sizes[join.dim] * inner;
    args.outer = y->numel * item / args.row;
    int64_t start = 0;
    for (const Tensor& t : list) {
        const TensorImpl* x = t.impl();
        if (x->numel == 0) continue;
        if (args.parts == kernels::JoinArgs::kMaxParts) {
            gpu::join(args);
            args.parts = 0;
        }
        const int64_t run = (stacked ? 1 : x->sizes[join.dim]) * inner;
        args.part[args.parts++] = {on_stream(x), start, run};
        start += run;
    }
    gpu::join(args);
}

// Copies `rows` runs of so many bytes, which follow each other in `from`.
void copy_runs(std::byte* to, int64_t step, const std::byte* from, int64_t bytes, int64_t rows) {
    const auto copy = [&](auto size) {
        for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * step, from + r * size, static_cast<std::size_t>(size));
    };
    switch (bytes) {  // a column: a call of memcpy for each element would take most of the time
        case 4: return copy(std::integral_constant<int64_t, 4>());
        case 8: return copy(std::integral_constant<int64_t, 8>());
        default: return copy(bytes);
    }
}

// Copies a few rows of the result at a time from all inputs, so that it is written in order.
void join_rows(const TensorList& list, const Join& join, bool stacked, const TensorImpl* y, int64_t outer) {
    constexpr int64_t bytes_at_once = 16 << 10;
    const int64_t row = y->numel / outer, unit = y->strides[join.dim] * static_cast<int64_t>(itemsize(join.dtype));
    const int64_t row_bytes = join.sizes[join.dim] * unit, rows_at_once = std::max<int64_t>(1, bytes_at_once / row_bytes);
    share_out(outer, row, [&](int64_t begin, int64_t end) {
        for (int64_t first = begin; first < end; first += rows_at_once) {
            const int64_t last = std::min(end, first + rows_at_once);
            std::byte* start = y->data + first * row_bytes;
            for (const Tensor& t : list) {
                const TensorImpl* x = t.impl();
                if (x->numel == 0) continue;
                const int64_t bytes = (stacked ? 1 : x->sizes[join.dim]) * unit;
                copy_runs(start, row_bytes, x->data + first * bytes, bytes, last - first);
                start += bytes;
            }
        }
    });
}

bool are_channels_last(const TensorList& list, const Join& join) {
    if (join.plain || join.rank < 3 || list[0].device() != cpu) return false;
    for (const Tensor& t : list) {
        if (t.dtype() != join.dtype || t.dim() != join.rank || !detail::is_channels_last(t.impl())) return false;
    }
    return true;
}

// Joins tensors (batch, channels, spatial...) with their channels last: in memory these are (batch, spatial..., channels), without gaps.
Tensor join_channels_last(const TensorList& list, const Join& join) {
    const auto in_order = [&](const Tensor& t) {
        Shape sizes = t.shape(), strides = t.strides();
        const int64_t channels = sizes[1], step = strides[1];
        sizes.erase(1), strides.erase(1);
        sizes.push_back(channels), strides.push_back(step);
        return detail::make_view(t.impl(), sizes, strides, 0);
    };
    std::vector<Tensor> ordered;
    for (const Tensor& t : list) ordered.push_back(in_order(t));
    const Tensor out = detail::make_channels_last(join.shape(), join.dtype, cpu, list.loc), y = in_order(out);
    Join turned = join;
    std::copy_n(y.impl()->sizes, join.rank, turned.sizes);
    turned.dim = join.dim == 0 ? 0 : join.dim == 1 ? join.rank - 1 : join.dim - 1;
    join_rows(TensorList(ordered, list.loc), turned, /*stacked=*/false, y.impl(), turned.outer());
    return out;
}

// Writes for both, which write the same: each input is `outer` runs of elements, which follow each other in the result.
Tensor write_join(const TensorList& list, const Join& join, bool stacked) {
    constexpr int64_t most = INT64_MAX / 8;  // elements whose bytes can be counted
    if (join.too_large || join.numel > most) detail::checked_numel(join.shape(), join.dtype, list.loc);
    if (!stacked && join.numel > 0 && are_channels_last(list, join)) [[unlikely]]
        return join_channels_last(list, join);
    Tensor out = detail::make_empty(join.sizes, join.rank, join.numel, join.dtype, list[0].device(), list.loc);
    const TensorImpl* y = out.impl();
    if (y->numel == 0) return out;
    if (on_gpu(y) && join.plain) {
        join_on_gpu(list, join, stacked, y);
        return out;
    }
    const int64_t inner = y->strides[join.dim], outer = join.outer();
    constexpr int64_t parallel_bytes = 1 << 20;  // from this size on copy_elements shares the work out
    if (join.plain && (outer > 1 || y->numel * static_cast<int64_t>(itemsize(join.dtype)) < parallel_bytes)) [[likely]] {
        join_rows(list, join, stacked, y, outer);
        return out;
    }
    int64_t start = 0;  // along the dimension
    for (const Tensor& t : list) {
        const TensorImpl* x = t.impl();
        if (x->numel == 0) continue;
        Shape strides = out.strides();
        if (stacked) strides.erase(join.dim);
        const detail::CallLine call(list.loc);
        copy_elements(detail::make_view(y, t.shape(), strides, start * inner), t);
        start += stacked ? 1 : x->sizes[join.dim];
    }
    return out;
}

bool any_tracked(const TensorList& list) {
    Log* log = detail::thread.log;
    bool any = false;
    for (const Tensor& t : list) any |= tracked(t.impl(), *log, list.loc);
    return any;
}

// Holds as many elements without malloc as one record holds; more are only watched.
template <class T>
class Room {
 public:
    explicit Room(std::size_t count) : many_(count > kMaxInputs + 1 ? count : 0) {}
    T* data() noexcept { return many_.empty() ? few_ : many_.data(); }

 private:
    T few_[kMaxInputs + 1];
    std::vector<T> many_;
};

void finish_cat(const TensorList& list, const Join& join, const Tensor& out, bool recorded) {
    const int count = static_cast<int>(list.size);
    Room<const Tensor*> inputs(list.size), joined(list.size);
    Room<int64_t> attrs(list.size + 1);
    attrs.data()[0] = join.dim;
    int i = 0, joined_count = 0;
    for (const Tensor& t : list) {
        const bool skipped = t.dim() != join.rank;  // a graph does not know of it; here its gradient is one without elements
        attrs.data()[1 + i] = skipped ? 0 : t.impl()->sizes[join.dim];
        inputs.data()[i++] = &t;
        if (!skipped) joined.data()[joined_count++] = &t;
    }
    TensorImpl* result = out.impl();
    const RecordArgs told{cat_op, list.loc, joined.data(), joined_count, &result, 1, nullptr, 0, &join.dim, sizeof(join.dim)};
    finish_op({cat_op, list.loc, inputs.data(), count, &result, 1, nullptr, 0, attrs.data(), static_cast<std::size_t>(1 + count) * sizeof(int64_t),
               false, nullptr, 0, &told},
              recorded);
}

void finish_stack(const TensorList& list, const Join& join, const Tensor& out, bool recorded) {
    Room<const Tensor*> inputs(list.size);
    for (std::size_t i = 0; i < list.size; ++i) inputs.data()[i] = &list[i];
    TensorImpl* result = out.impl();
    finish_op({stack_op, list.loc, inputs.data(), static_cast<int>(list.size), &result, 1, nullptr, 0, &join.dim, sizeof(join.dim)}, recorded);
}

// More tensors than one record holds are joined in groups, and the groups are joined.
Tensor join_in_groups(const TensorList& list, const Join& join, bool stacked) {
    const detail::RecordedParts parts(list.loc);
    std::vector<Tensor> groups, group;
    for (std::size_t i = 0; i < list.size; i += kMaxInputs) {
        group.clear();
        for (std::size_t k = i; k < list.size && k < i + kMaxInputs; ++k) {
            if (stacked || list[k].dim() == join.rank) group.push_back(list[k].to(join.dtype));
        }
        if (!group.empty()) groups.push_back(stacked ? stack(group, join.dim) : cat(group, join.dim));
    }
    return cat(groups, join.dim);
}

}  // namespace

// Returns true if the tensors were joined together with those of peers in batch(). dim: of the result of one.
static bool joined_in_group(const OpInfo& op, const TensorList& tensors, int dim, bool stacked, Tensor& out) {
    constexpr std::size_t few = 8;  // so many groups are not made smaller by their operands being one block
    const Tensor* operands[detail::BatchCall::kMostOperands];
    if (tensors.size > std::size(operands)) return false;
    bool is_one_block = dim == 0 && tensors.size <= few;
    for (std::size_t i = 0; i < tensors.size; ++i) {
        if (tensors[i].dim() != tensors[0].dim()) return false;  // an empty 1-d tensor, which counts for nothing
        is_one_block &= tensors[i].dtype() == tensors[0].dtype() && same_sizes(tensors[i].impl(), tensors[0].impl());
        operands[i] = &tensors[i];
    }
    const auto rule = [&](const detail::Batched& in, Tensor* made) {
        if (is_one_block) {  // it has the elements in the order that the result has
            Shape shape = in[0].shape();
            shape.raw(0) = static_cast<int64_t>(tensors.size);
            if (!stacked) {
                shape.erase(0);
                shape.raw(0) *= static_cast<int64_t>(tensors.size);
            }
            shape.insert(0, in.count());
            made[0] = reshape(in[0], shape);
            return;
        }
        const TensorList blocks(&in[0], tensors.size, tensors.loc);
        made[0] = stacked ? stack(blocks, dim + 1) : cat(blocks, dim + 1);
    };
    detail::BatchCall call(op, tensors.loc, operands, static_cast<int>(tensors.size), detail::batch_key(dim));
    if (is_one_block) call.put_in_one_block();
    return detail::batched(call, rule, {&out});
}

Tensor detail::cat_of(const char* op, const TensorList& tensors, int dim) {
    const Join join = plan_cat(op, tensors, dim);
    if (in_batch()) [[unlikely]] {
        if (Tensor made; joined_in_group(cat_op, tensors, join.dim, /*stacked=*/false, made)) return made;
    }
    const bool recorded = detail::thread.log && any_tracked(tensors);
    if (recorded && tensors.size > kMaxInputs) return join_in_groups(tensors, join, /*stacked=*/false);
    Tensor out = write_join(tensors, join, /*stacked=*/false);
    if (detail::thread.observed) finish_cat(tensors, join, out, recorded);
    return out;
}

Tensor cat(TensorList tensors, Dim dim) { return detail::cat_of("cat", tensors, dim); }

void record_stack(const TensorList& tensors, const Tensor& together) {
    if (!detail::thread.observed) return;
    Join join;
    join.dim = 0;
    finish_stack(tensors, join, together, detail::thread.log && any_tracked(tensors));
}

Tensor stack(TensorList tensors, Dim dim) {
    const Join join = plan_stack(tensors, dim);
    if (detail::in_batch()) [[unlikely]] {
        if (Tensor made; joined_in_group(stack_op, tensors, join.dim, /*stacked=*/true, made)) return made;
    }
    const bool recorded = detail::thread.log && any_tracked(tensors);
    if (recorded && tensors.size > kMaxInputs) return join_in_groups(tensors, join, /*stacked=*/true);
    Tensor out = write_join(tensors, join, /*stacked=*/true);
    if (detail::thread.observed) finish_stack(tensors, join, out, recorded);
    return out;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// Leaves large inputs to the ops themselves, which share them out.
bool join_into(const FormCall& x, const Tensor& out, bool stacked) {
    constexpr std::int64_t most_bytes = 1 << 20;
    const TensorImpl* y = out.impl();
    int dim = *static_cast<const int*>(x.attrs);
    if (dim < 0) dim += y->rank;
    const auto item = static_cast<int64_t>(itemsize(y->dtype));
    if (dim < 0 || dim >= y->rank || y->device != cpu || y->numel * item >= most_bytes) return false;
    int64_t outer = 1, joined = 0;
    for (int d = 0; d < dim; ++d) outer *= y->sizes[d];
    for (int i = 0; i < x.count; ++i) {
        const TensorImpl* t = x[i].impl();
        if (t->dtype != y->dtype || t->device != cpu || (t->numel > 0 && t->rank + stacked != y->rank)) return false;
        for (int d = 0, own = 0; t->numel > 0 && d < y->rank; ++d) {
            if (d == dim) {
                joined += stacked ? 1 : t->sizes[own];
                own += !stacked;
            } else if (t->sizes[own++] != y->sizes[d]) {
                return false;
            }
        }
    }
    if (y->numel > 0 && joined != y->sizes[dim]) return false;
    const int64_t inner = y->strides[dim], row = y->sizes[dim] * inner * item;
    int64_t start = 0;
    for (int i = 0; i < x.count; ++i) {
        const TensorImpl* t = x[i].impl();
        if (t->numel == 0) continue;
        const int64_t length = (stacked ? 1 : t->sizes[dim]) * inner;
        if (t->is_contiguous()) {
            copy_runs(y->data + start * item, row, t->data, length * item, outer);
        } else {
            Shape strides = out.strides();
            if (stacked) strides.erase(dim);
            copy_elements(detail::make_view(y, {t->sizes, t->rank}, strides, start), x[i]);
        }
        start += length;
    }
    return true;
}

bool cat_into(const FormCall& x, const Tensor& out) { return join_into(x, out, /*stacked=*/false); }
bool stack_into(const FormCall& x, const Tensor& out) { return join_into(x, out, /*stacked=*/true); }

}  // namespace

TAPIR_INTO_FORM(cat, Operands::from(1), int, joined(t, a), cat(x.list(), a), cat_into, f("dim", a));
TAPIR_INTO_FORM(stack, Operands::from(1), int, stacked(t, a), stack(x.list(), a), stack_into, f("dim", a));

}  // namespace tapir
