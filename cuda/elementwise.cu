// Element-wise kernels by op and type; copies with conversion; fills.
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

// --- Copies --------------------------------------------------------------------------------------------------------------

template <class From, class To>
__global__ void __launch_bounds__(kThreads) convert_kernel(i64 n, const From* from, To* to) {
    const i64 first = static_cast<i64>(blockIdx.x) * (kThreads * kPerThread) + threadIdx.x;
    for (int e = 0; e < kPerThread; ++e) {
        const i64 i = first + e * kThreads;
        if (i < n) to[i] = convert<To>(from[i]);
    }
}

template <class From, class To>
__global__ void __launch_bounds__(kThreads) convert_strided_kernel(u32 n, const From* from, To* to, Offsets<2> offsets) {
    u32 position = blockIdx.x * (kThreads * kPerThread) + threadIdx.x;
    for (int e = 0; e < kPerThread && position < n; ++e, position += kThreads) {
        i64 offset[2];
        offsets.at(position, offset);
        to[offset[1]] = convert<To>(from[offset[0]]);
    }
}

template <class From, class To>
void launch_convert(const ElementwiseArgs& args) {
    const auto* from = static_cast<const From*>(args.in[0].data);
    auto* to = static_cast<To*>(args.out);
    if (is_flat(args, args.in[0].strides) && is_flat(args, args.out_strides)) {
        return launch(convert_kernel<From, To>, blocks_for(args.numel, kThreads * kPerThread), kThreads, args.numel, from, to);
    }
    in_parts(args, [](const ElementwiseArgs& part) {
        Offsets<2> offsets;
        set_offsets(part, offsets);
        launch(convert_strided_kernel<From, To>, blocks_for(part.numel, kThreads * kPerThread), kThreads,
               static_cast<u32>(part.numel), static_cast<const From*>(part.in[0].data), static_cast<To*>(part.out), offsets);
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

void elementwise(const ElementwiseArgs& args) { launcher_of(args.kernel)(args); }
bool has_elementwise(const kernels::ElementwiseKernel& kernel) { return launcher_of(kernel) != nullptr; }

void copy(const ElementwiseArgs& args) {
    const DType from = args.in[0].dtype, to = args.out_dtype;
    if (from != to) {
        return with_dtype(from, [&]<class From>() { with_dtype(to, [&]<class To>() { launch_convert<From, To>(args); }); });
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
