// Reading and writing regions of a tensor (see index_impl.h), and checking indices.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {

using std::int64_t;

namespace {

void check_index_dtype(const char* op, const Tensor& index, const Loc& loc) {
    if (!index.defined()) detail::fail_undefined(op, loc);
    const DType dtype = index.dtype();
    if (dtype != int64 && dtype != int32) {
        fail<DTypeError>(loc, "{}: an index tensor must be int64 or int32, not {}; convert it with to(int64){}", op, name(dtype),
                         dtype == uint8 ? ", or a mask with to(bool_)" : "");
    }
}

// True if the CPU checks the index here: no index fits a dimension of size 0, so that error need not wait.
bool is_checked_here(const Tensor& index, int64_t size) { return !on_gpu(index) || size == 0 || index.numel() == 0; }

}  // namespace

Tensor checked_index(const char* op, const Tensor& index, const Shape& shape, int dim, const Loc& loc, Negative negative) {
    check_index_dtype(op, index, loc);
    const detail::UnrecordedPartsOf parts(loc);
    const int64_t n = index.numel(), size = shape.raw(dim);
    if (!is_checked_here(index, size)) {
        const PickedIndex picked = picked_index(op, index, shape, dim, loc, negative);
        gpu::check_index(picked.source(), n);
        return picked.checked;
    }
    Tensor packed = index.to(int64, loc).contiguous(loc);
    if (n == 0) return packed;
    if (on_gpu(packed)) packed = packed.to(cpu, /*non_blocking=*/false, loc);
    int64_t low, high;
    kernels::index_range(static_cast<const int64_t*>(packed.raw_data()), n, &low, &high);
    if (low < (negative == Negative::from_end ? -size : 0) || high >= size) {
        const bool is_refused = high < size && low >= -size;
        fail<IndexError>(loc, "{}: index {} is out of range for dimension {} of shape {}{}", op, high >= size ? high : low, dim, shape,
                         is_refused ? "; negative ones do not count from the end here" : "");
    }
    if (low >= 0) return packed;
    Tensor wrapped = detail::make_empty_like(packed.impl(), int64, loc);
    const auto* from = static_cast<const int64_t*>(packed.raw_data());
    auto* to = static_cast<int64_t*>(wrapped.raw_data());
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] < 0 ? from[i] + size : from[i];
    return wrapped;
}

PickedIndex picked_index(const char* op, const Tensor& index, const Shape& shape, int dim, const Loc& loc, Negative negative) {
    check_index_dtype(op, index, loc);
    if (is_checked_here(index, shape.raw(dim))) return {checked_index(op, index, shape, dim, loc, negative), {}, dim, shape, negative};
    const detail::UnrecordedPartsOf parts(loc);
    const Tensor packed = index.contiguous(loc);
    detail::begin_op(op, packed.impl(), loc);
    return {detail::make_empty_like(packed.impl(), int64, loc), packed, dim, shape, negative};
}

kernels::IndexSource PickedIndex::source() const {
    if (!given.defined()) return {on_stream(checked.impl())};
    return {on_stream(given.impl()),
            given.dtype(),
            /*is_checked=*/false,
            reinterpret_cast<int64_t*>(on_stream(checked.impl())),
            dim,
            shape,
            negative == Negative::from_end};
}

void check_region(const char* op, int64_t numel, const Region& region, const Tensor& positions) {
    bool fits = region.sizes.rank() == region.strides.rank() && region.at >= 0 && region.at <= region.sizes.rank(), is_empty = false;
    int64_t low = region.offset, high = region.offset;
    const auto reach = [&](int64_t place, int64_t step) {
        int64_t way = 0;
        fits = fits && !__builtin_mul_overflow(place, step, &way) && !__builtin_add_overflow(low, std::min<int64_t>(way, 0), &low) &&
            !__builtin_add_overflow(high, std::max<int64_t>(way, 0), &high);
    };
    for (int d = 0; fits && d < region.sizes.rank(); ++d) {
        is_empty |= region.sizes.raw(d) == 0;
        fits = region.sizes.raw(d) >= 0;
        reach(std::max<int64_t>(region.sizes.raw(d) - 1, 0), region.strides.raw(d));
    }
    if (fits && positions.defined()) {
        const Tensor here = positions.to(cpu);
        fits = here.dtype() == int64 && positions.is_contiguous() && here.dim() + region.sizes.rank() <= kMaxRank;
        is_empty |= here.numel() == 0;
        int64_t first = 0, last = 0;
        if (fits && here.numel() > 0) kernels::index_range(static_cast<const int64_t*>(here.raw_data()), here.numel(), &first, &last);
        const int64_t least = std::min<int64_t>(first, 0), most = std::max<int64_t>(last, 0);
        reach(least, region.scale);
        reach(most, region.scale);
    }
    if (!fits || (!is_empty && (low < 0 || high >= numel))) {
        fail<IndexError>(Loc{}, "{}: the region of sizes {}, strides {} and offset {} is none of a tensor of {} elements", op, region.sizes,
                         region.strides, region.offset, numel);
    }
}

Shape Region::shape(const Shape& positions) const {
    Shape all = sizes;
    for (int d = 0; d < positions.rank(); ++d) all.insert(at + d, positions.raw(d));
    return all;
}

namespace {

// The loops over a region: every place in the dimensions before `at`, every position, and, in the dimensions from `at`
// on, runs of elements at one step. Items are the pairs of the first two, in order.
class RegionLoop {
 public:
    RegionLoop(const Region& region, const Tensor& positions)
        : region_(region), index_(static_cast<const int64_t*>(positions.raw_data())), count_(positions.numel()) {
        for (int d = 0; d < region.at; ++d) outer_ *= region.sizes.raw(d);
        for (int d = region.sizes.rank(); d-- > region.at;) {  // runs: the last dimensions, as far as they are one step apart
            if (region.sizes.raw(d) == 1) continue;
            if (run_ == 1) {
                run_step_ = region.strides.raw(d);
            } else if (runs_ > 1 || region.strides.raw(d) != run_ * run_step_) {
                runs_ *= region.sizes.raw(d);
                continue;
            }
            run_ *= region.sizes.raw(d);
        }
    }

    int64_t outer() const { return outer_; }
    int64_t items() const { return outer_ * count_; }
    int64_t inner() const { return runs_ * run_; }  // elements an item
    int64_t numel() const { return items() * inner(); }
    int64_t step() const { return run_step_; }
    int64_t scale() const { return region_.scale; }

    // If inner() is 1: elements(first item, memory offset of position 0, indices, how many).
    template <class Elements>
    void elements(int64_t begin, int64_t end, const Elements& body) const {
        for (int64_t item = begin; item < end;) {
            const int64_t first = item % count_, n = std::min(count_ - first, end - item);
            body(item, outer_offset(item / count_), index_ + first, n);
            item += n;
        }
    }
    // Otherwise: run(first element, memory offset, how many), the items forwards or backwards.
    template <bool Backwards = false, class Run>
    void runs(int64_t begin, int64_t end, const Run& body) const {
        for (int64_t i = begin; i < end;) {
            const int64_t first = Backwards ? begin + end - 1 - i : i, place = first / count_, at = first % count_;
            const int64_t count = std::min(Backwards ? at + 1 : count_ - at, end - i), outer = outer_offset(place);
            for (int64_t k = 0; k < count; ++k) {
                const int64_t item = Backwards ? first - k : first + k, offset = outer + index_[Backwards ? at - k : at + k] * region_.scale;
                for (int64_t r = 0; r < runs_; ++r) body((item * runs_ + r) * run_, offset + run_offset(r), run_);
            }
            i += count;
        }
    }

 private:
    int64_t outer_offset(int64_t place) const { return region_.offset + offset_in(place, 0, region_.at); }
    int64_t run_offset(int64_t r) const { return runs_ == 1 ? 0 : offset_in(r * run_, region_.at, region_.sizes.rank()); }
    int64_t offset_in(int64_t place, int from, int to) const {
        int64_t offset = 0;
        for (int d = to; d-- > from && place > 0;) {
            offset += place % region_.sizes.raw(d) * region_.strides.raw(d);
            place /= region_.sizes.raw(d);
        }
        return offset;
    }

    const Region& region_;
    const int64_t* index_;
    int64_t count_;
    int64_t outer_ = 1, runs_ = 1, run_ = 1, run_step_ = 1;
};

constexpr int64_t kParallelRegion = 32 * 1024;

// Shares the items out to threads. If items may meet in memory, all items of one place stay on one thread.
template <class Body>
void share(const RegionLoop& loop, bool may_meet, const Body& body) {
    if (loop.numel() == 0) return;
    if (loop.numel() < 2 * kParallelRegion) return body(int64_t{0}, loop.items());
    const int64_t group = may_meet ? loop.items() / loop.outer() : 1;
    parallel_for(loop.items() / group, kParallelRegion / (group * loop.inner()) + 1,
                 [&](int64_t begin, int64_t end) { body(begin * group, end * group); });
}

// Makes the same loops for the GPU, but for `other`: leaves out dimensions of size 1, and merges those that are evenly spaced.
kernels::RegionArgs region_args(const TensorImpl* x, const Region& region, const Tensor& positions) {
    kernels::RegionArgs args{};
    device_api::select(x->device);
    args.size = static_cast<unsigned>(itemsize(x->dtype));
    args.numel = args.count = positions.numel();
    args.scale = region.scale;
    args.distinct = region.distinct;
    args.x = on_stream(x) + region.offset * static_cast<int64_t>(args.size);
    args.place = -1;
    const auto add = [&](int64_t size, int64_t stride) {
        args.sizes[args.rank] = size;
        args.strides[args.rank++] = stride;
    };
    for (int d = 0; d <= region.sizes.rank(); ++d) {
        if (d == region.at && args.count != 1) {
            args.place = args.rank;
            add(args.count, 0);
        }
        if (d == region.sizes.rank() || region.sizes.raw(d) == 1) continue;
        args.numel *= region.sizes.raw(d);
        const int last = args.rank - 1;
        if (last >= 0 && last != args.place && args.strides[last] == region.strides.raw(d) * region.sizes.raw(d)) {
            args.sizes[last] *= region.sizes.raw(d);
            args.strides[last] = region.strides.raw(d);
        } else {
            add(region.sizes.raw(d), region.strides.raw(d));
        }
    }
    return args;
}

void read_on_gpu(const Tensor& out, const TensorImpl* x, const Region& region, const Tensor& positions, const kernels::IndexSource& source) {
    kernels::RegionArgs args = region_args(x, region, positions);
    if (args.numel == 0) return;
    args.positions = source;
    args.other = on_stream(out.impl());
    gpu::read_region(args);
}

}  // namespace

void read_region(const Tensor& out, const TensorImpl* x, const Region& region, const PickedIndex& positions) {
    if (!on_gpu(x)) return read_region(out, x, region, positions.checked);
    if (positions.given.defined() && out.numel() == 0) {  // nothing is read, but the index may be wrong
        device_api::select(x->device);
        return gpu::check_index(positions.source(), positions.given.numel());
    }
    read_on_gpu(out, x, region, positions.checked, positions.source());
}

void read_region(const Tensor& out, const TensorImpl* x, const Region& region, const Tensor& positions) {
    if (on_gpu(x)) return read_on_gpu(out, x, region, positions, {on_stream(positions.impl())});
    const RegionLoop loop(region, positions);
    const auto size = static_cast<unsigned>(itemsize(x->dtype));
    std::byte* to = out.impl()->data;
    share(loop, false, [&](int64_t begin, int64_t end) {
        if (loop.inner() == 1) {
            loop.elements(begin, end, [&](int64_t item, int64_t offset, const int64_t* index, int64_t n) {
                kernels::gather_run(size, n, to + item * size, x->data + offset * size, index, loop.scale(), 0);
            });
        } else if (loop.step() == 1) {
            loop.runs(begin, end, [&](int64_t element, int64_t offset, int64_t n) {
                std::memcpy(to + element * size, x->data + offset * size, static_cast<std::size_t>(n) * size);
            });
        } else {
            loop.runs(begin, end, [&](int64_t element, int64_t offset, int64_t n) {
                kernels::convert(x->dtype, x->data + offset * size, loop.step(), x->dtype, to + element * size, 1, n);
            });
        }
    });
}

void write_region(const TensorImpl* x, const Region& region, const Tensor& positions, const Tensor& value) {
    if (on_gpu(x)) {
        kernels::RegionArgs args = region_args(x, region, positions);
        if (args.numel == 0) return;
        args.positions = {on_stream(positions.impl())};
        args.other_step = value.numel() == 1 ? 0 : 1;
        if (on_gpu(value)) {
            args.other = on_stream(value.impl());
        } else {
            args.number = number_bits(value.impl());
        }
        return gpu::write_region(args);
    }
    const RegionLoop loop(region, positions);
    const auto size = static_cast<unsigned>(itemsize(x->dtype));
    const std::byte* from = value.impl()->data;
    const int64_t step = value.numel() == 1 ? 0 : 1;
    share(loop, true, [&](int64_t begin, int64_t end) {
        if (loop.inner() == 1) {
            loop.elements(begin, end, [&](int64_t item, int64_t offset, const int64_t* index, int64_t n) {
                kernels::scatter_run(size, n, x->data + offset * size, index, loop.scale(), 0, from + item * step * size, step);
            });
        } else {
            loop.runs(begin, end, [&](int64_t element, int64_t offset, int64_t n) {
                kernels::convert(x->dtype, from + element * step * size, step, x->dtype, x->data + offset * size, loop.step(), n);
            });
        }
    });
}

void take_region(const Tensor& out, const TensorImpl* x, const Region& region, const Tensor& positions) {
    if (on_gpu(x)) {
        kernels::RegionArgs args = region_args(x, region, positions);
        if (args.numel == 0) return;
        args.positions = {on_stream(positions.impl())};
        args.other = on_stream(out.impl());
        return gpu::take_region(args);
    }
    const RegionLoop loop(region, positions);
    const auto size = static_cast<unsigned>(itemsize(x->dtype));
    std::byte* to = out.impl()->data;
    const std::uint64_t zero = 0;
    share(loop, true, [&](int64_t begin, int64_t end) {
        if (loop.inner() == 1) {
            loop.elements(begin, end, [&](int64_t item, int64_t offset, const int64_t* index, int64_t n) {
                kernels::take_run(size, n, to + item * size, x->data + offset * size, index, loop.scale(), 0);
            });
        } else {
            loop.runs<true>(begin, end, [&](int64_t element, int64_t offset, int64_t n) {
                std::byte* taken = x->data + offset * size;
                kernels::convert(x->dtype, taken, loop.step(), x->dtype, to + element * size, 1, n);
                kernels::convert(x->dtype, &zero, 0, x->dtype, taken, loop.step(), n);
            });
        }
    });
}

// As add_region for bytes, without a wider copy of x: sums wrap, and a sum of bools is true if any is.
static void add_region_of_bytes(const TensorImpl* x, const Region& region, const Tensor& positions, const Tensor& value) {
    const Tensor values = value.to(x->dtype).contiguous();
    const RegionLoop loop(region, positions);
    auto* const to = reinterpret_cast<std::uint8_t*>(x->data);
    const auto* const from = reinterpret_cast<const std::uint8_t*>(values.impl()->data);
    const int64_t step = values.numel() == 1 ? 0 : 1;
    const bool is_bool = x->dtype == bool_;
    const auto add = [is_bool](std::uint8_t& sum, std::uint8_t more) { sum = static_cast<std::uint8_t>(is_bool ? sum | more : sum + more); };
    share(loop, true, [&](int64_t begin, int64_t end) {
        if (loop.inner() == 1) {
            loop.elements(begin, end, [&](int64_t item, int64_t offset, const int64_t* index, int64_t n) {
                for (int64_t i = 0; i < n; ++i) add(to[offset + index[i] * loop.scale()], from[(item + i) * step]);
            });
        } else {
            loop.runs(begin, end, [&](int64_t element, int64_t offset, int64_t n) {
                for (int64_t i = 0; i < n; ++i) add(to[offset + i * loop.step()], from[(element + i) * step]);
            });
        }
    });
}

// As add_region for 16-bit floats, summed in float32: it goes part by part of x's memory, and only over parts with positions, so that it
// never makes a wider copy of all of x. The passes over the positions take no longer than one over x. Returns false, without work done,
// if there is one part.
static bool add_region_in_parts(const TensorImpl* x, const Region& region, const Tensor& positions, const Tensor& value) {
    constexpr int64_t kPart = 64 * 1024;
    const int64_t count = region.shape(positions.shape()).numel(), length = std::max(kPart, count), parts = (x->numel + length - 1) / length;
    if (count == 0 || parts == 1) return false;
    const Tensor values = value.to(float32).contiguous();
    const auto* const from = static_cast<const float*>(values.raw_data());
    const int64_t step = values.numel() == 1 ? 0 : 1;
    const RegionLoop loop(region, positions);
    const auto each = [&](const auto& body) {  // body(the place in x, the number of the value)
        share(loop, true, [&](int64_t begin, int64_t end) {
            if (loop.inner() == 1) {
                loop.elements(begin, end, [&](int64_t item, int64_t offset, const int64_t* index, int64_t n) {
                    for (int64_t i = 0; i < n; ++i) body(offset + index[i] * loop.scale(), (item + i) * step);
                });
            } else {
                loop.runs(begin, end, [&](int64_t element, int64_t offset, int64_t n) {
                    for (int64_t i = 0; i < n; ++i) body(offset + i * loop.step(), (element + i) * step);
                });
            }
        });
    };
    std::vector<std::uint8_t> is_named(static_cast<std::size_t>(parts));
    each([&](int64_t at, int64_t) {
        std::atomic_ref<std::uint8_t>(is_named[static_cast<std::size_t>(at / length)]).store(1, std::memory_order_relaxed);
    });
    const Tensor wide = detail::make_empty({length}, float32, cpu, Loc::current());
    auto* const sums = static_cast<float*>(wide.raw_data());
    const auto size = static_cast<int64_t>(itemsize(x->dtype));
    for (int64_t part = 0; part < parts; ++part) {
        if (!is_named[static_cast<std::size_t>(part)]) continue;
        const int64_t first = part * length, n = std::min(length, x->numel - first);
        kernels::convert(x->dtype, x->data + first * size, 1, float32, sums, 1, n);
        each([&](int64_t at, int64_t number) {
            if (at >= first && at < first + n) sums[at - first] += from[number];
        });
        kernels::convert(float32, sums, 1, x->dtype, x->data + first * size, 1, n);
    }
    return true;
}

void add_region(const TensorImpl* x, const Region& region, const Tensor& positions, const Tensor& value) {
    const kernels::Compute type = kernels::compute_of(x->dtype);
    const DType dtype = kernels::stored_as(type);
    const detail::UnrecordedParts parts;
    if (itemsize(x->dtype) == 1 && !on_gpu(x)) return add_region_of_bytes(x, region, positions, value);
    if (x->dtype != dtype) {  // sums of many small numbers need the wider type
        if (!on_gpu(x) && dtype == float32 && add_region_in_parts(x, region, positions, value)) return;
        const Tensor narrow = detail::alias(x), wide = narrow.to(dtype);
        add_region(wide.impl(), region, positions, value);
        copy_elements(narrow, wide);
        return;
    }
    const Tensor values = value.to(dtype).contiguous();
    if (on_gpu(x)) {
        kernels::RegionArgs args = region_args(x, region, positions);
        if (args.numel == 0) return;
        args.positions = {on_stream(positions.impl())};
        args.other = on_stream(values.impl());
        args.other_step = values.numel() == 1 ? 0 : 1;
        return gpu::add_region(args, dtype);
    }
    const RegionLoop loop(region, positions);
    const auto size = static_cast<unsigned>(itemsize(dtype));
    const std::byte* from = values.impl()->data;
    const int64_t step = values.numel() == 1 ? 0 : 1;
    share(loop, true, [&](int64_t begin, int64_t end) {
        if (loop.inner() == 1) {
            loop.elements(begin, end, [&](int64_t item, int64_t offset, const int64_t* index, int64_t n) {
                kernels::scatter_add_run(type, n, x->data + offset * size, index, loop.scale(), 0, from + item * step * size, step);
            });
        } else {
            loop.runs(begin, end, [&](int64_t element, int64_t offset, int64_t n) {
                kernels::add_run(type, n, x->data + offset * size, loop.step(), from + element * step * size, step);
            });
        }
    });
}

}  // namespace tapir
