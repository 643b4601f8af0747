// Element-wise kernels by op and type; copies with conversion; fills.
#include <algorithm>
#include <cstdlib>

#include "tapir/cuda/elementwise.cuh"

namespace tapir::gpu {
namespace {

Launcher launcher_of(const kernels::ElementwiseKernel& k) {
    const int op = static_cast<int>(k.op), type = static_cast<int>(k.compute);
    if (k.gradient_of < 0) {
        const Launcher found = unary_launchers.of[op][type];
        return found ? found : binary_launchers.of[op][type];
    }
    const int real = type - static_cast<int>(kernels::Compute::f32);
    const Launcher found = unary_gradient_launchers.of[op][k.gradient_of][real];
    return found ? found : binary_gradient_launchers.of[op][k.gradient_of][real];
}

// The dimension to halve so that all offsets come to be below kMostPositions; -1 where they are. No two elements of the
// result are one, so its offsets say how many there are, too.
int too_wide(const ElementwiseArgs& args) {
    const auto widest = [&](const i64* strides) {
        i64 last = 0, most = 0;
        int dimension = -1;
        for (int d = 0; d < args.rank; ++d) {
            const i64 reach = (args.sizes[d] - 1) * std::abs(strides[d]);
            last += reach;
            if (reach > most) dimension = d;
            most = std::max(most, reach);
        }
        return last < kMostPositions ? -1 : dimension;
    };
    int dimension = widest(args.out_strides);
    for (int k = 0; k < args.operands && dimension < 0; ++k) {
        if (args.in[k].data) dimension = widest(args.in[k].strides);
    }
    return dimension;
}

bool is_one(const ElementwiseArgs& args, const i64* strides) {
    for (int d = 0; d < args.rank; ++d) {
        if (strides[d] != 0 && args.sizes[d] != 1) return false;
    }
    return true;
}

// --- Copies --------------------------------------------------------------------------------------------------------------

template <int V, class From, class To>
__device__ __forceinline__ void convert_pack(const From* from, To* to) {
    const auto x = *reinterpret_cast<const Pack<From, V>*>(from);
    Pack<To, V> y;
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) y.value[v] = convert<To>(x.value[v]);
    store_pack(to, y);
}

// V: elements of a pack, which a thread does.
template <class From, class To, int V>
__global__ void __launch_bounds__(kThreads) convert_kernel(i64 n, const From* from, To* to, bool aligned) {
    const i64 first = global_index() * V;
    if (aligned && first + V <= n) return convert_pack<V>(from + first, to + first);
    for (i64 i = first; i < n && i < first + V; ++i) to[i] = convert<To>(from[i]);
}

// n and the offsets count packs.
template <class From, class To, int V>
__global__ void __launch_bounds__(kThreads) convert_strided_kernel(u32 n, const From* from, To* to, Offsets<2, i32> offsets) {
    u32 position = blockIdx.x * (kThreads * kPerThread) + threadIdx.x;
    for (int e = 0; e < kPerThread && position < n; ++e, position += kThreads) {
        i32 offset[2];
        offsets.at(position, offset);
        convert_pack<V>(from + offset[0], to + offset[1]);
    }
}

template <class From, class To, int V>
void launch_strided(const ElementwiseArgs& part) {
    Offsets<2, i32> offsets;
    set_offsets(part, offsets, V);
    const auto n = static_cast<u32>(part.numel / V);
    launch(convert_strided_kernel<From, To, V>, blocks_for(n, kThreads * kPerThread), kThreads, n,
           static_cast<const From*>(part.in[0].data), static_cast<To*>(part.out), offsets);
}

template <class From, class To>
void launch_convert(const ElementwiseArgs& args) {
    if (is_flat(args, args.in[0].strides) && is_flat(args, args.out_strides)) {
        constexpr int V = 16 / static_cast<int>(std::max(sizeof(From), sizeof(To)));
        const auto* from = static_cast<const From*>(args.in[0].data);
        auto* to = static_cast<To*>(args.out);
        const bool aligned = is_aligned(from, V * sizeof(From)) && is_aligned(to, V * sizeof(To));
        return launch(convert_kernel<From, To, V>, blocks_for(args.numel, kThreads * V), kThreads, args.numel, from, to, aligned);
    }
    in_parts(args, [](const ElementwiseArgs& part) {
        if constexpr (std::is_same_v<From, To>) {
            constexpr int V = 16 / sizeof(To);
            const AlikeLayout layout = layout_of(part, V, sizeof(To));
            if (layout.in_packs && !layout.is_flat && layout.source[0] == Source::array) return launch_strided<From, To, V>(part);
        }
        launch_strided<From, To, 1>(part);
    });
}

// --- Fills ---------------------------------------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kThreads) fill_kernel(i64 n, T value, T* out, Offsets<1> offsets) {
    for (i64 i = global_index(); i < n; i += global_threads()) {
        if (offsets.rank == 0) {
            out[i] = value;
        } else {
            i64 offset[1];
            offsets.at(static_cast<u32>(i), offset);
            out[offset[0]] = value;
        }
    }
}

}  // namespace

void in_parts(const ElementwiseArgs& args, const std::function<void(const ElementwiseArgs&)>& f) {
    const int d = too_wide(args);
    if (d < 0) return f(args);
    ElementwiseArgs parts[2] = {args, args};
    i64 half = args.sizes[d] / 2;
    if (half > 16) half -= half % 16;  // packs stay aligned
    parts[0].sizes[d] = half;
    parts[1].sizes[d] -= half;
    for (ElementwiseArgs& part : parts) part.numel = args.numel / args.sizes[d] * part.sizes[d];
    parts[1].out = static_cast<std::byte*>(args.out) + half * args.out_strides[d] * static_cast<i64>(itemsize(args.out_dtype));
    for (int k = 0; k < args.operands; ++k) {
        if (!args.in[k].data) continue;
        const i64 bytes = half * args.in[k].strides[d] * static_cast<i64>(itemsize(args.in[k].dtype));
        parts[1].in[k].data = static_cast<const std::byte*>(args.in[k].data) + bytes;
    }
    for (const ElementwiseArgs& part : parts) in_parts(part, f);
}

AlikeLayout layout_of(const ElementwiseArgs& args, i64 V, std::size_t out_size) {
    AlikeLayout layout;
    const int inner = args.rank - 1;
    const auto fits = [&](const i64* strides) {  // all of its packs are as aligned as the first, and within a row
        for (int d = 0; d < inner; ++d) {
            if (strides[d] % V != 0) return false;
        }
        return strides[inner] == 1;
    };
    layout.is_flat = is_flat(args, args.out_strides);
    layout.in_packs = is_aligned(args.out, static_cast<std::size_t>(V) * out_size);
    for (int k = 0; k < args.operands; ++k) {
        const kernels::Operand& operand = args.in[k];
        if (!operand.data || is_one(args, operand.strides)) {
            layout.source[k] = operand.data ? Source::one : Source::number;
            continue;
        }
        layout.source[k] = operand.strides[inner] == 0 ? Source::repeated : Source::array;
        layout.is_flat = layout.is_flat && is_flat(args, operand.strides);
        if (layout.source[k] == Source::repeated) continue;
        layout.in_packs = layout.in_packs && is_aligned(operand.data, 16) && fits(operand.strides);
    }
    if (!layout.is_flat) layout.in_packs = layout.in_packs && fits(args.out_strides) && args.sizes[inner] % V == 0;
    return layout;
}

void elementwise(const ElementwiseArgs& args) { in_parts(args, launcher_of(args.kernel)); }
bool has_elementwise(const kernels::ElementwiseKernel& kernel) { return launcher_of(kernel) != nullptr; }

void copy(const ElementwiseArgs& args) {
    const DType from = args.in[0].dtype, to = args.out_dtype;
    if (from != to) {
        return with_dtype(from, [&]<class From>() {
            with_dtype(to, [&]<class To>() {
                if constexpr (!std::is_same_v<From, To>) launch_convert<From, To>(args);
            });
        });
    }
    if (is_flat(args, args.in[0].strides) && is_flat(args, args.out_strides)) {
        return copy_bytes(args.out, args.in[0].data, static_cast<std::size_t>(args.numel) * itemsize(from));
    }
    with_size(itemsize(from), [&]<class T>() { launch_convert<T, T>(args); });
}

void fill(const kernels::FillArgs& args) {
    if (args.rank > 0 && args.numel > kMostPositions) {  // in two halves of a dimension
        int d = 0;
        while (args.sizes[d] == 1) ++d;
        kernels::FillArgs parts[2] = {args, args};
        parts[0].sizes[d] = args.sizes[d] / 2;
        parts[1].sizes[d] -= parts[0].sizes[d];
        parts[1].out = static_cast<std::byte*>(args.out) + parts[0].sizes[d] * args.strides[d] * static_cast<i64>(args.size);
        for (kernels::FillArgs& part : parts) {
            part.numel = args.numel / args.sizes[d] * part.sizes[d];
            fill(part);
        }
        return;
    }
    Offsets<1> offsets;
    offsets.rank = args.rank;
    for (int d = 0; d < args.rank; ++d) {
        offsets.sizes[d] = Divider(args.sizes[d]);
        offsets.strides[d][0] = args.strides[d];
    }
    const unsigned blocks = std::min(blocks_for(args.numel, kThreads * 8), 1u << 20);
    with_size(args.size, [&]<class T>() {
        launch(fill_kernel<T>, blocks, kThreads, args.numel, static_cast<T>(args.value), static_cast<T*>(args.out), offsets);
    });
}

}  // namespace tapir::gpu
