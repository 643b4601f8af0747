// Element-wise kernels by op and type; copies with conversion; fills.
#include <algorithm>

#include "tapir/cuda/elementwise.cuh"
#include "tapir/cuda/parts.cuh"

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

// A thread converts a pack of V elements.
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
    launch(convert_strided_kernel<From, To, V>, blocks_for(n, kThreads * kPerThread), kThreads, n, static_cast<const From*>(part.in[0].data),
           static_cast<To*>(part.out), offsets);
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

void launch_fill(const kernels::FillArgs& args) {
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

}  // namespace

void in_parts(const ElementwiseArgs& args, const std::function<void(const ElementwiseArgs&)>& f) {
    const auto dimension = [](const ElementwiseArgs& part) {
        int d = too_wide(part.rank, part.sizes, part.out_strides);
        for (int k = 0; k < part.operands && d < 0; ++k) {
            if (part.in[k].data) d = too_wide(part.rank, part.sizes, part.in[k].strides);
        }
        return d;
    };
    const auto begin_at = [](ElementwiseArgs& part, int d, i64 first) {
        const auto bytes = [&](const i64* strides, DType dtype) { return first * strides[d] * static_cast<i64>(itemsize(dtype)); };
        part.out = moved(part.out, bytes(part.out_strides, part.out_dtype));
        for (int k = 0; k < part.operands; ++k) {
            kernels::Operand& operand = part.in[k];
            operand.data = moved(operand.data, bytes(operand.strides, operand.dtype));
        }
    };
    in_halves(args, Order::forwards, dimension, begin_at, f);
}

AlikeLayout layout_of(const ElementwiseArgs& args, i64 V, std::size_t out_size) {
    AlikeLayout layout;
    const int inner = args.rank - 1;
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
        layout.in_packs = layout.in_packs && is_aligned(operand.data, 16) && has_packs(args.rank, operand.strides, V);
    }
    if (layout.is_flat || !layout.in_packs) return layout;
    layout.in_packs = has_packs(args.rank, args.out_strides, V) && args.sizes[inner] % V == 0;
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

void fill(const kernels::FillArgs& all) {
    const auto dimension = [](const kernels::FillArgs& part) { return part.rank == 0 ? -1 : too_many(part, part.numel); };
    const auto begin_at = [](kernels::FillArgs& part, int d, i64 first) {
        part.out = moved(part.out, first * part.strides[d] * static_cast<i64>(part.size));
    };
    in_halves(all, Order::forwards, dimension, begin_at, launch_fill);
}

}  // namespace tapir::gpu
