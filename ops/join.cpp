// cat and stack: several tensors written one after the other into a new one.
#include <cstring>

#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/elementwise_impl.h"
#include "tapir/ops/indexing.h"
#include "tapir/ops/view.h"

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
        if (b.needs(i)) b.give(i, narrow(b.grad(), dim, start, length));
        start += length;
    }
}

void stack_rule(Backward& b) {
    const int dim = b.attrs<int>();
    for (int i = 0; i < b.input_count(); ++i) {
        if (b.needs(i)) b.give(i, select(b.grad(), dim, i));
    }
}

}  // namespace

TAPIR_OP(cat, "Concat", cat_rule, "Tensors joined along an existing dimension.",
         TAPIR_SAMPLE("f(3) f(4)", cat({x[0], x[1]})), TAPIR_SAMPLE("f(3,2) f(3,4) f(3,1)", cat({x[0], x[1], x[2]}, 1)),
         TAPIR_SAMPLE("f(2,3) f(1,3)", cat({x[0], x[1], x[0]}, -2)),
         TAPIR_SAMPLE("f(2,3,2) f(2,1,2)", cat({x[0], x[1]}, 1)), TAPIR_SAMPLE("f(0) f(3,2)", cat({x[0], x[1]})),
         TAPIR_SAMPLE("f(2,0,3) f(2,2,3)", cat({x[0], x[1]}, -2)));
TAPIR_OP(stack, NoOnnx("Unsqueeze, Concat"), stack_rule, "Tensors of one shape joined along a new dimension.",
         TAPIR_SAMPLE("f(3) f(3)", stack({x[0], x[1]})), TAPIR_SAMPLE("f(2,3) f(2,3) f(2,3)", stack({x[0], x[1], x[2]}, 1)),
         TAPIR_SAMPLE("f(2,3) f(2,3)", stack({x[0], x[1], x[0]}, -1)), TAPIR_SAMPLE("f() f()", stack({x[0], x[1]})));

namespace {

struct Join {
    Shape shape;  // of the result
    int dim = 0;
    DType dtype = float32;
    bool plain = true;  // every input is contiguous and of the result's dtype
};

// PyTorch's exception: tensors of shape (0,) join with anything.
bool is_skipped(const Tensor& t) noexcept { return t.dim() == 1 && t.impl()->sizes[0] == 0; }

// What both check, and the dtype of the result.
void begin_join(const char* op, const TensorList& list, Join& join) {
    if (list.size == 0) fail<ValueError>(list.loc, "{}: needs at least one tensor", op);
    const auto& first = list[0];
    detail::check_defined(In(first, list.loc), op);
    join.dtype = first.dtype();
    for (std::size_t i = 0; i < list.size; ++i) {
        const Tensor& t = list[i];
        detail::check_defined(In(t, list.loc), op);
        join.plain &= t.is_contiguous();
        if (t.dtype() != join.dtype) [[unlikely]] {
            join.plain = false;
            join.dtype = promote(join.dtype, t.dtype());
        }
        if (t.device() != first.device()) [[unlikely]]
            detail::check_same_device(op, first, t, list.loc);
    }
}

Join plan_cat(const TensorList& list, int dim) {
    Join join;
    begin_join("cat", list, join);
    std::size_t i = 0;
    while (i + 1 < list.size && is_skipped(list[i])) ++i;
    const TensorImpl* first = list[i].impl();
    if (first->rank == 0) fail<ShapeError>(list.loc, "cat: 0-d tensors have no dimension to be joined along; use stack()");
    const int d = join.dim = detail::wrap_dim(dim, first->rank, "cat", list.loc);
    join.shape = Shape(first->sizes, first->rank);
    for (++i; i < list.size; ++i) {
        const TensorImpl* t = list[i].impl();
        if (is_skipped(list[i])) continue;
        bool fits = t->rank == first->rank;
        for (int k = 0; k < t->rank && fits; ++k) fits = k == d || t->sizes[k] == first->sizes[k];
        if (!fits) [[unlikely]] {
            fail<ShapeError>(list.loc, "cat: shapes {} and {} differ in another dimension than {}",
                             Shape(first->sizes, first->rank), list[i].shape(), d);
        }
        join.shape[d] += t->sizes[d];
    }
    return join;
}

Join plan_stack(const TensorList& list, int dim) {
    Join join;
    begin_join("stack", list, join);
    const TensorImpl* first = list[0].impl();
    join.dim = detail::wrap_dim(dim, first->rank + 1, "stack", list.loc);
    join.shape = Shape(first->sizes, first->rank);
    for (std::size_t i = 1; i < list.size; ++i) {
        if (!(list[i].shape() == join.shape)) [[unlikely]]
            fail<ShapeError>(list.loc, "stack: shapes {} and {} differ", join.shape, list[i].shape());
    }
    join.shape.insert(join.dim, static_cast<int64_t>(list.size), list.loc);
    return join;
}

// Both write the same: each input is `outer` runs of elements, which follow each other in the result.
Tensor write_join(const TensorList& list, const Join& join, bool stacked) {
    Tensor out = detail::make_empty(join.shape, join.dtype, list[0].device(), list.loc);
    const TensorImpl* y = out.impl();
    if (y->numel == 0) return out;
    const int64_t inner = y->strides[join.dim];
    const int64_t outer = y->numel / (join.shape[join.dim] * inner);
    const auto item = static_cast<int64_t>(itemsize(join.dtype));
    const int64_t row_bytes = join.shape[join.dim] * inner * item;
    constexpr int64_t parallel_bytes = 1 << 20;  // from here copy_elements shares the work out
    const bool in_place = join.plain && y->numel * item < parallel_bytes;
    int64_t start = 0;  // along the dimension
    for (const Tensor& t : list) {
        if (t.numel() == 0) continue;
        const int64_t length = stacked ? 1 : t.impl()->sizes[join.dim];
        if (in_place) [[likely]] {
            const auto bytes = static_cast<std::size_t>(length * inner * item);
            const std::byte* from = t.impl()->data;
            std::byte* to = y->data + start * inner * item;
            for (int64_t row = 0; row < outer; ++row, from += bytes, to += row_bytes) std::memcpy(to, from, bytes);
        } else {
            Shape strides = out.strides();
            if (stacked) strides.erase(join.dim);
            copy_elements(detail::make_view(y, t.shape(), strides, start * inner), t);
        }
        start += length;
    }
    return out;
}

bool any_tracked(const TensorList& list) {
    Log* log = detail::thread.log;
    bool any = false;
    for (const Tensor& t : list) any |= tracked(t.impl(), *log, list.loc);
    return any;
}

void record_cat(const TensorList& list, const Join& join, const Tensor& out) {
    const Tensor* inputs[kMaxInputs];
    int64_t attrs[kMaxInputs + 1] = {join.dim};
    int count = 0;
    for (const Tensor& t : list) {
        if (is_skipped(t)) continue;
        attrs[1 + count] = t.impl()->sizes[join.dim];
        inputs[count++] = &t;
    }
    TensorImpl* result = out.impl();
    append_record(*detail::thread.log, {cat_op, list.loc, inputs, count, &result, 1, nullptr, 0, attrs,
                                        static_cast<std::size_t>(1 + count) * sizeof(int64_t)});
}

// More tensors than one record holds are joined in groups, and the groups are joined.
Tensor join_in_groups(const TensorList& list, const Join& join, bool stacked) {
    const CallerScope caller(list.loc);
    std::vector<Tensor> groups, group;
    for (std::size_t i = 0; i < list.size; i += kMaxInputs) {
        group.clear();
        for (std::size_t k = i; k < list.size && k < i + kMaxInputs; ++k) {
            if (stacked || !is_skipped(list[k])) group.push_back(list[k].to(join.dtype));
        }
        if (!group.empty()) groups.push_back(stacked ? stack(group, join.dim) : cat(group, join.dim));
    }
    return cat(groups, join.dim);
}

}  // namespace

Tensor cat(TensorList tensors, int dim) {
    const Join join = plan_cat(tensors, dim);
    const bool recorded = detail::thread.log && any_tracked(tensors);
    if (recorded && tensors.size > kMaxInputs) return join_in_groups(tensors, join, /*stacked=*/false);
    Tensor out = write_join(tensors, join, /*stacked=*/false);
    if (recorded) record_cat(tensors, join, out);
    return out;
}

Tensor stack(TensorList tensors, int dim) {
    const Join join = plan_stack(tensors, dim);
    const bool recorded = detail::thread.log && any_tracked(tensors);
    if (recorded && tensors.size > kMaxInputs) return join_in_groups(tensors, join, /*stacked=*/true);
    Tensor out = write_join(tensors, join, /*stacked=*/true);
    if (recorded) {
        const Tensor* inputs[kMaxInputs];
        for (std::size_t i = 0; i < tensors.size; ++i) inputs[i] = &tensors[i];
        TensorImpl* result = out.impl();
        append_record(*detail::thread.log, {stack_op, tensors.loc, inputs, static_cast<int>(tensors.size), &result, 1,
                                            nullptr, 0, &join.dim, sizeof(join.dim)});
    }
    return out;
}

}  // namespace tapir
