// sort, argsort and topk; and the picking of median and kthvalue.
//
// Elements become unsigned keys in the same order (nan the largest, both zeros equal) beside their index. Long lines are
// sorted by radix, least significant byte first: stable, and several times faster than by comparison. Short ones are sorted by
// comparing (key, index), which is stable too.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/arrange/order_impl.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/arrange/sort_kernels.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/reduce_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {

using namespace reduction;
using std::int64_t;

TAPIR_OP(sort, pick_rule, "The elements in order along a dimension, and where they were.", TAPIR_SAMPLE("d(6)", sort(x[0]).values),
         TAPIR_SAMPLE("d(3,4)", sort(x[0], 0).values), TAPIR_SAMPLE("d(3,4)", sort(x[0], -1, true).values),
         TAPIR_SAMPLE("d(2,3,4)", sort(x[0], 1).values), TAPIR_SAMPLE("d(2,3,4)", sort(x[0], 1, true).indices),
         TAPIR_SAMPLE("i(3,4)<99", sort(x[0]).values));
TAPIR_OP(argsort, NonDiff, "The indices that put the elements in order along a dimension.", TAPIR_SAMPLE("d(3,4)", argsort(x[0])),
         TAPIR_SAMPLE("d(3,4)", argsort(x[0], 0, true)));
TAPIR_OP(topk, pick_rule, "The k largest or smallest elements along a dimension, in order, and their indices.",
         TAPIR_SAMPLE("d(6)", topk(x[0], 2).values), TAPIR_SAMPLE("d(3,4)", topk(x[0], 2, 0).values),
         TAPIR_SAMPLE("d(3,5)", topk(x[0], 3, -1, false).values), TAPIR_SAMPLE("d(2,5,3)", topk(x[0], 2, 1).values),
         TAPIR_SAMPLE("d(2,5,3)", topk(x[0], 2, 1, false).indices), TAPIR_SAMPLE("d(3,4)", topk(x[0], 4).values));

namespace {

struct SortCall {
    int dim = -1;
    bool descending = false;
};
struct TopkCall {
    int64_t k = 1;
    int dim = -1;
    bool largest = true;
};

template <class Key>
struct Item {
    Key key, index;
    bool operator<(const Item& other) const noexcept { return key != other.key ? key < other.key : index < other.index; }
};

template <class Key, class T>
Key key_of(T value) noexcept {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
        using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
        if (value != value) return ~Key{0};
        const auto bits = std::bit_cast<Bits>(value + T(0));  // -0 + 0 is 0
        constexpr Bits sign = Bits{1} << (sizeof(T) * 8 - 1);
        return bits & sign ? static_cast<Bits>(~bits) : static_cast<Bits>(bits | sign);
    } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
        return key_of<Key>(static_cast<float>(value));
    } else if constexpr (std::is_signed_v<T>) {
        using Bits = std::make_unsigned_t<T>;
        return static_cast<Bits>(static_cast<Bits>(value) ^ Bits{1} << (sizeof(T) * 8 - 1));
    } else {
        return static_cast<Key>(value);
    }
}

template <class Key, class T>
void make_items(const std::byte* from, int64_t n, int64_t step, bool descending, Item<Key>* items) {
    const Key flip = descending ? ~Key{0} : Key{0};
    for (int64_t i = 0; i < n; ++i) {
        T value;
        std::memcpy(&value, from + static_cast<std::size_t>(i * step) * sizeof(T), sizeof(T));
        items[i] = {static_cast<Key>(key_of<Key>(value) ^ flip), static_cast<Key>(i)};
    }
}

template <class Key>
void make_items(DType dtype, const std::byte* from, int64_t n, int64_t step, bool descending, Item<Key>* items) {
    switch (dtype) {
        case DType::boolean:
        case DType::uint8: return make_items<Key, unsigned char>(from, n, step, descending, items);
        case DType::int32: return make_items<Key, std::int32_t>(from, n, step, descending, items);
        case DType::float16: return make_items<Key, Half>(from, n, step, descending, items);
        case DType::bfloat16: return make_items<Key, BFloat16>(from, n, step, descending, items);
        case DType::float32: return make_items<Key, float>(from, n, step, descending, items);
        default: break;
    }
    if constexpr (sizeof(Key) == 8) {
        if (dtype == DType::int64) {
            make_items<Key, int64_t>(from, n, step, descending, items);
        } else {
            make_items<Key, double>(from, n, step, descending, items);
        }
    }
}

constexpr int64_t kRadixLength = 512;  // below, sorting by comparison is faster

// Sorts by key, byte by byte; skips bytes that all keys share. The result may lie in either buffer.
template <class Key>
Item<Key>* radix_sort(Item<Key>* items, Item<Key>* other, int64_t n) {
    constexpr int bytes = sizeof(Key);
    int64_t counts[bytes][256] = {};
    for (int64_t i = 0; i < n; ++i) {
        for (int b = 0; b < bytes; ++b) ++counts[b][items[i].key >> (8 * b) & 255];
    }
    for (int b = 0; b < bytes; ++b) {
        if (counts[b][items[0].key >> (8 * b) & 255] == n) continue;
        int64_t at = 0;
        for (int64_t& count : counts[b]) at += std::exchange(count, at);
        for (int64_t i = 0; i < n; ++i) other[counts[b][items[i].key >> (8 * b) & 255]++] = items[i];
        std::swap(items, other);
    }
    return items;
}

// Puts the first k of the sorted items in front: goes through all, and inserts those that are smaller than the k-th. Few are, unless the
// items come from the largest to the smallest: returns false when that would take longer than another way.
template <class Key>
bool insert_first(Item<Key>* items, int64_t n, int64_t k) {
    std::sort(items, items + k);
    Item<Key>& worst = items[k - 1];
    for (int64_t i = k, left = n / 4; i < n; ++i) {
        if (!(items[i].key < worst.key)) continue;
        if (left-- == 0) return false;
        const Item<Key> item = std::exchange(items[i], worst);
        int64_t at = k - 1;
        for (; at > 0 && item.key < items[at - 1].key; --at) items[at] = items[at - 1];
        items[at] = item;
    }
    return true;
}

// Puts the first k of the sorted items in front; returns their buffer.
template <class Key>
Item<Key>* order(Item<Key>* items, Item<Key>* other, int64_t n, int64_t k) {
    constexpr int64_t few = 32;
    if (k > 0 && k <= few && k < n / 8 && insert_first(items, n, k)) return items;
    if (k < n / 4) {
        if (k > 0) std::nth_element(items, items + k - 1, items + n);
        std::sort(items, items + k);
        return items;
    }
    if (n >= kRadixLength) return radix_sort(items, other, n);
    std::sort(items, items + n);
    return items;
}

struct Job {
    const TensorImpl* x;  // contiguous
    std::byte* values;    // may be null
    int64_t* indices;
    Lines lines;
    int64_t k;
    bool descending;
};

template <class Key>
void run_lines(const Job& job, int64_t begin, int64_t end) {
    const auto [outer, n, inner] = job.lines;
    const bool radix = n >= kRadixLength && job.k >= n / 4;
    const std::unique_ptr<Item<Key>[]> buffer(new Item<Key>[static_cast<std::size_t>(radix ? 2 * n : n)]);
    const std::size_t bytes = itemsize(job.x->dtype);
    for (int64_t line = begin; line < end; ++line) {
        const int64_t first = line / inner * n * inner + line % inner, to = line / inner * job.k * inner + line % inner;
        const std::byte* from = job.x->data + static_cast<std::size_t>(first) * bytes;
        make_items(job.x->dtype, from, n, inner, job.descending, buffer.get());
        const Item<Key>* items = order(buffer.get(), buffer.get() + (radix ? n : 0), n, job.k);
        for (int64_t i = 0; i < job.k; ++i) {
            const auto index = static_cast<int64_t>(items[i].index);
            job.indices[to + i * inner] = index;
            if (!job.values) continue;
            std::memcpy(job.values + static_cast<std::size_t>(to + i * inner) * bytes, from + static_cast<std::size_t>(index * inner) * bytes, bytes);
        }
    }
}

void sort_on_gpu(const Tensor& x, int dim, int64_t k, bool descending, const ValuesIndices& out) {
    const Lines lines(x.impl(), dim);
    kernels::SortArgs args;
    args.dtype = x.dtype();
    args.x = x.raw_data();
    args.values = out.values.defined() ? out.values.raw_data() : nullptr;
    args.indices = static_cast<int64_t*>(out.indices.raw_data());
    args.lines = lines.outer * lines.inner;
    args.size = lines.size;
    args.inner = lines.inner;
    args.k = k;
    args.descending = descending;
    gpu::sort(args);
}

// Returns the first k of the sorted elements along dim.
ValuesIndices first_sorted(const In& x, int dim, int64_t k, bool descending, bool with_values) {
    Tensor in;
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        in = contiguous(x.tensor);
    }
    Shape shape = in.shape();
    if (shape.rank() > 0) shape.raw(dim) = k;
    ValuesIndices out;
    out.indices = detail::make_empty(shape, int64, in.device(), x.loc);
    if (with_values) out.values = detail::make_empty(shape, in.dtype(), in.device(), x.loc);
    if (out.indices.numel() == 0) return out;
    if (on_gpu(in)) {
        sort_on_gpu(in, dim, k, descending, out);
        return out;
    }
    const Job job{in.impl(),
                  with_values ? static_cast<std::byte*>(out.values.raw_data()) : nullptr,
                  static_cast<int64_t*>(out.indices.raw_data()),
                  Lines(in.impl(), dim),
                  k,
                  descending};
    const bool narrow = itemsize(in.dtype()) <= 4 && job.lines.size <= UINT32_MAX;
    share_out(job.lines.outer * job.lines.inner, job.lines.size * 8, [&](int64_t begin, int64_t end) {
        if (narrow) {
            run_lines<std::uint32_t>(job, begin, end);
        } else {
            run_lines<std::uint64_t>(job, begin, end);
        }
    });
    return out;
}

// --- One element of each line --------------------------------------------------------------------------------------------

// Moves to the front, in order, the items that may be the one at place k of the sorted ones; k becomes its place among them.
// Returns their number. It uses the most significant digits as far as that helps.
template <class Key>
int64_t keep_near(Item<Key>* items, int64_t n, int64_t& k) {
    constexpr int digit = 11, bits = sizeof(Key) * 8;
    for (int shift = bits - digit; n >= kRadixLength; shift = std::max(shift - digit, 0)) {
        std::uint32_t counts[1 << digit] = {};
        const auto bucket_of = [shift](const Item<Key>& item) { return item.key >> shift & ((1u << digit) - 1); };
        for (int64_t i = 0; i < n; ++i) ++counts[bucket_of(items[i])];
        unsigned bucket = 0;
        for (; k >= counts[bucket]; ++bucket) k -= counts[bucket];
        int64_t kept = 0;
        for (int64_t i = 0; i < n; ++i) {
            const bool is_in = bucket_of(items[i]) == bucket;
            items[kept] = items[i];  // this has no branch
            kept += is_in;
        }
        n = kept;
        if (shift == 0) break;
    }
    return n;
}

template <class Key>
void pick_lines(const Job& job, bool nan_wins, int64_t begin, int64_t end) {
    const auto [outer, n, inner] = job.lines;
    const std::unique_ptr<Item<Key>[]> items(new Item<Key>[static_cast<std::size_t>(n)]);
    Item<Key>* const last = items.get() + n;
    const std::size_t bytes = itemsize(job.x->dtype);
    for (int64_t line = begin; line < end; ++line) {
        const int64_t first = line / inner * n * inner + line % inner;
        const std::byte* from = job.x->data + static_cast<std::size_t>(first) * bytes;
        make_items(job.x->dtype, from, n, inner, /*descending=*/false, items.get());
        Item<Key>* found = last;
        if (nan_wins) found = std::find_if(items.get(), last, [](const Item<Key>& item) { return item.key == ~Key{0}; });
        if (found == last) {
            int64_t place = job.k;
            const int64_t left = n <= UINT32_MAX ? keep_near(items.get(), n, place) : n;
            found = items.get() + place;
            std::nth_element(items.get(), found, items.get() + left);
        }
        job.indices[line] = static_cast<int64_t>(found->index);
        std::memcpy(job.values + static_cast<std::size_t>(line) * bytes, from + static_cast<std::size_t>(job.indices[line] * inner) * bytes, bytes);
    }
}

// Sorts whole lines.
ValuesIndices pick_on_gpu(const Tensor& x, int dim, int64_t place, bool nan_wins) {
    const ValuesIndices sorted = sort(x, dim);
    ValuesIndices out{narrow(sorted.values, dim, place, 1), narrow(sorted.indices, dim, place, 1)};
    if (nan_wins) {
        const Tensor most = narrow(sorted.values, dim, x.size(dim) - 1, 1), is_nan = ne(most, most);
        out = {where(is_nan, most, out.values), where(is_nan, argmax(x, dim, true), out.indices)};
    }
    return {clone(out.values), clone(out.indices)};
}

}  // namespace

ValuesIndices sort(In x, Dim dim, bool descending) {
    detail::check_defined(x, "sort");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "sort", x.loc);
    ValuesIndices out;
    if (detail::in_batch() && x.tensor.dim() > 0) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return sort(In(in[0], x.loc), d + 1, descending); };
        if (detail::in_group({sort_op, x.loc, {&x.tensor}, detail::batch_key(d, descending)}, of_group, out)) return out;
    }
    out = first_sorted(x, d, size_along(x.tensor, d), descending, true);
    if (detail::thread.observed) {
        record(sort_op, x.loc, {&x.tensor}, out.values, {&out.indices}, PickAttrs{d, false}, Told{sort_op, {&x.tensor}, {&out.values, &out.indices}},
               SortCall{d, descending});
    }
    return out;
}

Tensor argsort(In x, Dim dim, bool descending) {
    detail::check_defined(x, "argsort");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "argsort", x.loc);
    if (detail::in_batch() && x.tensor.dim() > 0) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return argsort(In(in[0], x.loc), d + 1, descending); };
        if (Tensor y = detail::in_group({argsort_op, x.loc, {&x.tensor}, detail::batch_key(d, descending)}, of_group); y.defined()) return y;
    }
    Tensor out = first_sorted(x, d, size_along(x.tensor, d), descending, false).indices;
    if (detail::thread.observed) record(argsort_op, x.loc, {&x.tensor}, out, {}, SortCall{d, descending});
    return out;
}

ValuesIndices topk(In x, int64_t k, Dim dim, bool largest) {
    detail::check_defined(x, "topk");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "topk", x.loc);
    const int64_t size = size_along(x.tensor, d);
    if (k < 0 || k > size) {
        fail<ValueError>(x.loc, "topk: k is {}, dimension {} of shape {} has {} elements", k, d, x.tensor.shape(), size);
    }
    ValuesIndices out;
    if (detail::in_batch() && x.tensor.dim() > 0) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return topk(In(in[0], x.loc), k, d + 1, largest); };
        if (detail::in_group({topk_op, x.loc, {&x.tensor}, detail::batch_key(k, d, largest)}, of_group, out)) return out;
    }
    out = first_sorted(x, d, k, largest, true);
    if (detail::thread.observed) {
        record(topk_op, x.loc, {&x.tensor}, out.values, {&out.indices}, PickAttrs{d, false}, Told{topk_op, {&x.tensor}, {&out.values, &out.indices}},
               TopkCall{k, d, largest});
    }
    return out;
}

ValuesIndices pick_at(const OpInfo& op, const In& x, int dim, int64_t place, bool nan_wins, bool keepdim) {
    ValuesIndices out;
    if (detail::in_batch() && x.tensor.dim() > 0) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return pick_at(op, In(in[0], x.loc), dim + 1, place, nan_wins, keepdim); };
        if (detail::in_group({op, x.loc, {&x.tensor}, detail::batch_key(dim, place, nan_wins, keepdim)}, of_group, out)) return out;
    }
    {
        detail::begin_op(op.name, x.tensor.impl(), x.loc);
        const detail::UnrecordedPartsOf parts(x.loc);
        const Tensor in = contiguous(x->rank == 0 ? reshape(x, {1}) : x.tensor);
        Shape shape = in.shape();
        shape.raw(dim) = 1;
        nan_wins = nan_wins && is_floating(in.dtype());
        if (on_gpu(in) && in.numel() > 0) {
            out = pick_on_gpu(in, dim, place, nan_wins);
        } else {
            out = {detail::make_empty(shape, in.dtype(), in.device(), x.loc), detail::make_empty(shape, int64, in.device(), x.loc)};
        }
        if (!on_gpu(in) && in.numel() > 0) {
            const Job job{in.impl(),
                          static_cast<std::byte*>(out.values.raw_data()),
                          static_cast<int64_t*>(out.indices.raw_data()),
                          Lines(in.impl(), dim),
                          place,
                          /*descending=*/false};
            const bool narrow = itemsize(in.dtype()) <= 4 && job.lines.size <= UINT32_MAX;
            share_out(job.lines.outer * job.lines.inner, job.lines.size * 4, [&](int64_t begin, int64_t end) {
                narrow ? pick_lines<std::uint32_t>(job, nan_wins, begin, end) : pick_lines<std::uint64_t>(job, nan_wins, begin, end);
            });
        }
        if (x->rank == 0 || !keepdim) {
            shape.erase(dim);
            out = {reshape(out.values, shape), reshape(out.indices, shape)};
        }
    }
    if (detail::thread.observed) {
        record(op, x.loc, {&x.tensor}, out.values, {&out.indices}, PickAttrs{dim, x->rank == 0 || !keepdim},
               Told{op, {&x.tensor}, {&out.values, &out.indices}}, PickCall{place + 1, dim, keepdim});
    }
    return out;
}

// --- Methods -----------------------------------------------------------------------------------------------------------

ValuesIndices Tensor::sort(Dim dim, bool descending, Loc loc) const { return tapir::sort(In(*this, loc), dim, descending); }
Tensor Tensor::argsort(Dim dim, bool descending, Loc loc) const { return tapir::argsort(In(*this, loc), dim, descending); }
ValuesIndices Tensor::topk(int64_t k, Dim dim, bool largest, Loc loc) const { return tapir::topk(In(*this, loc), k, dim, largest); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

[[maybe_unused]] static ResultTypes types_of_topk(const TypeCall& t, int dim) {
    const SymInt k = t.size("k"), size = t[0].rank() == 0 ? SymInt(1) : types::size_of(t[0], dim);
    types::need<ValueError>(!k.is_number() || !size.is_number() || (k.number() >= 0 && k.number() <= size.number()),
                            "k is more than there are elements");
    const ValueType values = types::resized(t[0], dim, k);
    return {values, types::same(values, DType::int64)};
}

TAPIR_FORM(sort, 1, SortCall, several(same(along(t[0], a.dim)), same(t[0], DType::int64)), detail::outputs(sort(x[0], a.dim, a.descending)),
           f("dim", a.dim)("descending", a.descending));
TAPIR_FORM(argsort, 1, SortCall, same(along(t[0], a.dim), DType::int64), argsort(x[0], a.dim, a.descending),
           f("dim", a.dim)("descending", a.descending));
TAPIR_FORM(topk, 1, TopkCall, types_of_topk(t, a.dim), detail::outputs(topk(x[0], a.k, a.dim, a.largest)),
           f("k", a.k)("dim", a.dim)("largest", a.largest));

}  // namespace tapir
