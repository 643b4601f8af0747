// embedding and one_hot: from class numbers to vectors.
#include <cstring>

#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/embedding.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;

// Attributes: padding_idx. Saved: the checked indices; in a trace the indices that the op was given, which its graph knows.
void embedding_rule(Backward& b) {
    if (!b.needs(1)) return;
    const auto padding = b.attrs<int64_t>();
    Tensor indices = reshape(to(b.saved(0), int64), {-1});
    Tensor rows = reshape(b.grad(), {indices.numel(), b.output_shape().back()});
    if (padding >= 0 && (!detail::is_readable(rows) || b.rows_to_tell_apart() > 0)) {
        // Their number is not known here, or differs from row to row of a group. Adding 0 to the row does the same.
        rows = where(unsqueeze(indices != padding, 1), rows, 0);
    } else if (padding >= 0) {
        const Tensor kept = reshape(nonzero(indices != padding), {-1});
        if (kept.numel() < indices.numel()) {
            indices = index_select(indices, 0, kept);
            rows = index_select(rows, 0, kept);
        }
    }
    b.give_rows(1, indices, rows);
}

}  // namespace

TAPIR_OP(embedding, embedding_rule, "Rows of a matrix, by number.", TAPIR_SAMPLE("i(5)<4 f(4,3)", embedding(x[0], x[1])),
         TAPIR_SAMPLE("i(2,3)<7 f(7,2)", embedding(x[0], x[1])), TAPIR_SAMPLE("i()<4 f(4,3)", embedding(x[0], x[1])),
         TAPIR_SAMPLE("i(1)<4 f(4,37)", embedding(x[0], x[1])), TAPIR_SAMPLE("i(0)<3 f(3,2)", embedding(x[0], x[1])));
TAPIR_OP(one_hot, NonDiff, "Class numbers as vectors with a single 1.", TAPIR_SAMPLE("i(5)<4", one_hot(x[0], 4)),
         TAPIR_SAMPLE("i(2,3)<3", one_hot(x[0], 5)), TAPIR_SAMPLE("i()<4", one_hot(x[0], 4)));

namespace {

// out[r] = weight[index[r]] for contiguous rows.
void copy_rows(const Tensor& out, const TensorImpl* weight, const int64_t* index, int64_t count, int64_t row_bytes) {
    constexpr int64_t grain = 1 << 18;  // bytes
    const auto bytes = static_cast<std::size_t>(row_bytes);
    parallel_items(count, grain / (row_bytes + 1) + 1, [&](int64_t begin, int64_t end) {
        std::byte* to = out.impl()->data + begin * row_bytes;
        for (int64_t r = begin; r < end; ++r, to += row_bytes) std::memcpy(to, weight->data + index[r] * row_bytes, bytes);
    });
}

[[gnu::noinline]] Tensor embedding_rows(const In& indices, const In& weight, Tensor& checked) {
    Tensor here = indices.tensor;
    if (here.dim() == 0 && here.device() == cpu && on_gpu(weight.tensor)) {  // a number, which can be checked at once
        const Tensor number = checked_index("embedding", here, weight.tensor.shape(), 0, indices.loc, Negative::refused);
        here = index_beside(number, weight.tensor, indices.loc);
    }
    const PickedIndex picked = picked_index("embedding", here, weight.tensor.shape(), 0, indices.loc, Negative::refused);
    checked = picked.checked;
    detail::check_same_device("embedding", here, weight.tensor, indices.loc);
    const int64_t width = weight->sizes[1];
    Shape shape = indices.tensor.shape();
    shape.push_back(width, indices.loc);
    Tensor out = detail::make_empty(shape, weight->dtype, weight->device, indices.loc);
    if (weight->is_contiguous() && !on_gpu(out)) {
        copy_rows(out, weight.tensor.impl(), static_cast<const int64_t*>(checked.raw_data()), checked.numel(),
                  width * static_cast<int64_t>(itemsize(weight->dtype)));
    } else {
        const Region region{Shape(width), Shape(weight->strides[1]), 0, 0, weight->strides[0]};
        read_region(out, weight.tensor.impl(), region, picked);
    }
    return out;
}

}  // namespace

Tensor embedding(In indices, In weight, std::optional<int64_t> padding_idx) {
    detail::check_defined(indices, "embedding");
    detail::check_defined(weight, "embedding");
    const TensorImpl *index = indices.tensor.impl(), *table = weight.tensor.impl();
    if (table->rank != 2) [[unlikely]]
        fail<ShapeError>(indices.loc, "embedding: the weight must be (rows, width), got shape {}", weight.tensor.shape());
    const int64_t padding_row = padding_idx ? detail::padding_row("embedding", *padding_idx, table->sizes[0], indices.loc) : -1;
    if (detail::in_batch()) [[unlikely]] {
        Tensor made;
        const auto rule = [&](const detail::Batched& in, Tensor* out) {
            out[0] = embedding(In(in[0], indices.loc), In(in[1], indices.loc), padding_idx);
        };
        const detail::BatchCall call(embedding_op, indices.loc, {&indices.tensor, &weight.tensor}, detail::batch_key(padding_row), {.same = 0b10});
        if (detail::batched(call, rule, {&made})) return made;
    }
    // The fast path for one vector, as a tree's leaf needs it: only one number is checked.
    const bool on_cpu = index->device.type == DeviceType::cpu && table->device.type == DeviceType::cpu;
    if (on_cpu && index->numel == 1 && index->dtype == int64 && table->is_contiguous() && index->rank < kMaxRank) [[likely]] {
        const int64_t row = *reinterpret_cast<const int64_t*>(index->data);
        if (row >= 0 && row < table->sizes[0]) [[likely]] {
            const int64_t width = table->sizes[1];
            int64_t sizes[kMaxRank];
            for (int d = 0; d < index->rank; ++d) sizes[d] = 1;
            sizes[index->rank] = width;
            Tensor out = detail::make_empty(sizes, index->rank + 1, width, table->dtype, table->device, indices.loc);
            const std::size_t bytes = static_cast<std::size_t>(width) * itemsize(table->dtype);
            std::memcpy(out.raw_data(), table->data + static_cast<std::size_t>(row) * bytes, bytes);
            if (detail::thread.observed) {
                record(embedding_op, indices.loc, {&indices.tensor, &weight.tensor}, out, {&indices.tensor}, padding_row);
            }
            return out;
        }
    }
    Tensor checked;
    Tensor out = embedding_rows(indices, weight, checked);
    const Tensor& kept = detail::is_tracing() ? indices.tensor : checked;
    record(embedding_op, indices.loc, {&indices.tensor, &weight.tensor}, out, {&kept}, padding_row);
    return out;
}

namespace {

// Finds the range of n > 0 classes, on the CPU.
void class_range(const Tensor& packed, int64_t& low, int64_t& high) {
    const Tensor here = packed.to(cpu);
    kernels::index_range(static_cast<const int64_t*>(here.raw_data()), here.numel(), &low, &high);
}

// A known number of classes needs no look at the indices before: the kernel checks them.
Tensor one_hot_on_gpu(const Tensor& packed, const Shape& shape, bool is_checked, const Loc& loc) {
    Tensor out = detail::make_empty(shape, int64, packed.device(), loc);
    if (out.numel() == 0) return out;
    const kernels::IndexSource source{on_stream(packed.impl()), int64, is_checked, nullptr, shape.rank() - 1, shape};
    gpu::one_hot(source, packed.numel(), shape.back(), static_cast<int64_t*>(out.raw_data()));
    return out;
}

// Takes whole numbers.
Tensor one_hot_of(const In& indices, int64_t classes) {
    const CallerScope caller(indices.loc);
    const Tensor packed = to(indices, int64).contiguous(indices.loc);
    const int64_t count = packed.numel();
    if (classes < -1 || (classes <= 0 && (classes == 0 ? count > 0 : count == 0))) {
        fail<ValueError>(indices.loc, "one_hot: the number of classes must be at least 1, or -1 to take it from the elements; got {} for {} elements",
                         classes, count);
    }
    int64_t low = 0, high = -1;
    const bool look = count > 0 && (!on_gpu(packed) || classes == -1);
    if (look) class_range(packed, low, high);
    if (classes == -1) {
        if (low < 0) fail<ValueError>(indices.loc, "one_hot: a class must not be negative, got {}", low);
        if (high == INT64_MAX) fail<OutOfMemory>(indices.loc, "one_hot: {} classes are larger than any memory", high);
        classes = high + 1;
    }
    if (low < 0 || high >= classes) {
        fail<IndexError>(indices.loc, "one_hot: class {} is out of range for {} classes", low < 0 ? low : high, classes);
    }
    Shape shape = packed.shape();
    shape.push_back(classes, indices.loc);
    if (on_gpu(packed)) return one_hot_on_gpu(packed, shape, look, indices.loc);
    Tensor out = gradient_ops::zeros(shape, int64, packed.device());
    const auto* index = static_cast<const int64_t*>(packed.raw_data());
    auto* to = static_cast<int64_t*>(out.raw_data());
    for (int64_t i = 0; i < count; ++i) to[i * classes + index[i]] = 1;
    return out;
}

}  // namespace

Tensor one_hot(In indices, int64_t classes) {
    detail::check_defined(indices, "one_hot");
    const DType dtype = indices->dtype;
    if (dtype != int64 && dtype != int32) {
        fail<DTypeError>(indices.loc, "one_hot: the classes must be int64 or int32, not {}; convert them with to(int64)", name(dtype));
    }
    if (classes < 0 && indices->numel > 0 && detail::is_watched() && detail::is_tracing()) {
        return one_hot(indices, amax(indices).item<int64_t>(indices.loc) + 1);  // the trace says that this is read
    }
    if (detail::in_batch() && classes > 0) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return one_hot(In(in[0], indices.loc), classes); };
        if (Tensor y = detail::in_group({one_hot_op, indices.loc, {&indices.tensor}, detail::batch_key(classes)}, of_group); y.defined()) return y;
    }
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(indices.loc);
        out = one_hot_of(indices, classes);
    }
    record(one_hot_op, indices.loc, {&indices.tensor}, out, {}, classes);
    return out;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

TAPIR_FORM(embedding, 2, int64_t, shaped(t[0], appended(t[0].shape, ranked(t[1], 2, 2), 1), t[1].dtype),
           embedding(x[0], x[1], a < 0 ? std::nullopt : std::optional(a)), f("padding_idx", a));
TAPIR_FORM(one_hot, 1, int64_t, shaped(t[0], appended(t[0].shape, {t.size("num_classes")}), DType::int64), one_hot(x[0], a), f("num_classes", a));

}  // namespace tapir
