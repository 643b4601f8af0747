// one_hot. The kernels of indexing.cu read and add the rows of embedding.
#include "tapir/cuda/indexing.cuh"

namespace tapir::gpu {
namespace {

// Writes V elements at once; positions and columns are counted in packs of V.
template <int V>
__global__ void __launch_bounds__(kThreads) one_hot_kernel(i64 n, const i64* index, i64 classes, RowSplit rows, i64* out, FaultSlot* fault) {
    for (int e = 0; e < kPerThread; ++e) {
        const i64 i = blockIdx.x * kPerBlock + e * kThreads + threadIdx.x;
        if (i >= n) return;
        i64 row, column;
        rows.split(i, row, column);
        const i64 wanted = index[row];
        if (fault && column == 0 && (wanted < 0 || wanted >= classes)) report(fault, wanted);
        Pack<i64, V> y;
        for (int v = 0; v < V; ++v) y.value[v] = column * V + v == wanted;
        reinterpret_cast<Pack<i64, V>*>(out)[i] = y;
    }
}

template <int V>
void launch_one_hot(const kernels::IndexSource& index, i64 count, i64 classes, i64* out) {
    const i64 width = classes / V, n = count * width;
    static constexpr char text[] = "class {0} is out of range for {3} classes";
    const OpenFault fault = index.is_checked ? OpenFault() : OpenFault(index.dim, index.shape, text);
    launch(one_hot_kernel<V>, blocks_for(n, kPerBlock), kThreads, n, static_cast<const i64*>(index.data), classes, RowSplit(width, n), out,
           fault.slot());
}

}  // namespace

void one_hot(const kernels::IndexSource& index, i64 count, i64 classes, i64* out) {
    classes % 2 == 0 ? launch_one_hot<2>(index, count, classes, out) : launch_one_hot<1>(index, count, classes, out);
}

}  // namespace tapir::gpu
