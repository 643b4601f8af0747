// Chooses who computes a matrix product: the kernels of ops/cpu/gemm_kernels.h, on one thread or several, or oneDNN.
#include "tapir/ops/linear/gemm_cpu.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "tapir/core/deterministic.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/parallel.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/linear/gemm_impl.h"
#include "tapir/ops/parallel_impl.h"
#ifdef TAPIR_HAVE_ONEDNN
#include <dnnl.h>
#endif

namespace tapir::kernels {
namespace {

struct Aligned {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
};

struct Workspace {
    std::unique_ptr<std::byte[], Aligned> bytes;
    std::size_t size = 0;
};

GemmMethod method_of(const Gemm<float>& g) { return gemm_method_f32(g); }
GemmMethod method_of(const Gemm<double>& g) { return gemm_method_f64(g); }
void run(const Gemm<float>& g) { gemm_f32(g); }
void run(const Gemm<double>& g) { gemm_f64(g); }
void run_part(const Gemm<float>& g, GemmMethod method) { gemm_part_f32(g, method); }
void run_part(const Gemm<double>& g, GemmMethod method) { gemm_part_f64(g, method); }

bool run_batch(const GemmBatch<float>& g) { return gemm_batch_f32(g); }
bool run_batch(const GemmBatch<double>& g) { return gemm_batch_f64(g); }

/// C = beta * C + bias: a product with k == 0.
template <class T>
void scale(const Gemm<T>& g) {
    for (int64_t i = 0; i < g.m; ++i) {
        T* c = g.c + i * g.c_row;
        for (int64_t j = 0; j < g.n; ++j) c[j] = (g.bias ? g.bias[j] : T{0}) + (g.beta == 0 ? T{0} : g.beta * c[j]);
    }
}

/// From this size on oneDNN's blocking is ahead of ours (by 10 to 20%; below they are equal).
constexpr int64_t onednn_from = 400 * 400 * 400;

#ifdef TAPIR_HAVE_ONEDNN
/// Does the product with oneDNN, on this thread, if it is large and oneDNN takes its layout: one stride of A and of B is 1.
bool with_onednn(const Gemm<float>& g) {
    if (g.m < 64 || g.n < 64 || g.k < 64 || (g.bias && g.beta != 0)) return false;
    if ((g.a_row != 1 && g.a_col != 1) || (g.b_row != 1 && g.b_col != 1)) return false;
    const bool a_rows = g.a_col == 1, b_rows = g.b_col == 1;
    const int64_t a_leading = a_rows ? g.a_row : g.a_col, b_leading = b_rows ? g.b_row : g.b_col;
    // A broadcast operand (stride 0) or overlapping rows are not a matrix to oneDNN.
    if (a_leading < (a_rows ? g.k : g.m) || b_leading < (b_rows ? g.n : g.k)) return false;
    // Measured: oneDNN runs at half the speed, since the lines of such columns drive each other out of its cache.
    if (!a_rows && a_leading % 512 == 0 && g.n < 1024) return false;
    const OpenMPThreadsScope scope(1);
    float beta = g.beta;
    if (g.bias) {  // the product is added to the bias
        const auto row = static_cast<std::size_t>(g.n) * sizeof(float);
        for (int64_t i = 0; i < g.m; ++i) std::memcpy(g.c + i * g.c_row, g.bias, row);
        beta = 1;
    }
    if (dnnl_sgemm(a_rows ? 'N' : 'T', b_rows ? 'N' : 'T', g.m, g.n, g.k, g.alpha, g.a, a_leading, g.b, b_leading, beta, g.c, g.c_row) !=
        dnnl_success)
        return false;  // it checks before it writes
    return true;
}
#else
bool with_onednn(const Gemm<float>&) { return false; }
#endif
bool with_onednn(const Gemm<double>&) { return false; }

template <class T>
void serial(const Gemm<T>& g) {
    if (g.m <= 0 || g.n <= 0) return;
    if (g.k <= 0) return scale(g);
    if (g.m * g.n * g.k >= onednn_from && with_onednn(g)) return;
    run(g);
}

constexpr int64_t most_alone = 100'000;  // multiplications of a small product: with no more, no shape takes shared_from_ns

// Work below this is not shared: waking the other threads costs microseconds, more when they sleep.
constexpr int64_t shared_from_ns = 30'000;
// To pack operands once more costs a part of this length 2%.
constexpr int64_t long_part_ns = 1'000'000;

/// Estimates how long the product takes on one thread of a 2020s core: arithmetic or memory, whichever is slower.
template <class T>
int64_t estimated_ns(const Gemm<T>& g) {
    constexpr int64_t fma_per_ns = 280 / sizeof(T), bytes_per_ns = 30;
    const int64_t bytes = (g.m * g.k + g.k * g.n + 2 * g.m * g.n) * int64_t{sizeof(T)};
    const int64_t compute = g.m * g.n * g.k / fma_per_ns, memory = bytes / bytes_per_ns;
    return compute > memory ? compute : memory;
}

/// Returns the number of threads to share work among: 1 below shared_from_ns and inside another parallel region.
int64_t threads_for(int64_t ns) {
    if (ns < shared_from_ns) return 1;
    const int64_t threads = num_threads();
    if (threads <= 1 || tapir::detail::in_part()) return 1;
    const int64_t useful = 1 + ns / (shared_from_ns / 2);
    return useful < threads ? useful : threads;
}

/// Runs part(i) for 0 <= i < parts on `threads` threads. If a part throws, as it does without memory, this throws it
/// here.
template <class Part>
void share(int64_t parts, int64_t threads, const Part& part) {
    try {
        tapir::detail::share_parts(parts, static_cast<int>(threads), part);
    } catch (...) {
        tapir::detail::fail_no_memory(tapir::detail::thread.caller);
    }
}

/// Cuts C into rows x columns parts, each a whole number of units (but the last).
struct Grid {
    int64_t rows = 1, columns = 1;
    static constexpr int64_t row_unit = 8, column_unit = 48;
};

int64_t units(int64_t size, int64_t unit) { return (size + unit - 1) / unit; }

/// Returns the grid of `threads` parts with the least reading of A and B: the shortest sides.
template <class T>
Grid grid_for(const Gemm<T>& g, int64_t threads) {
    Grid best;
    int64_t least = -1;
    for (int64_t rows = 1; rows <= threads; ++rows) {
        const int64_t columns = threads / rows;
        if (rows > units(g.m, Grid::row_unit) || columns > units(g.n, Grid::column_unit)) continue;
        const int64_t side = units(g.m, rows) + units(g.n, columns) + (threads - rows * columns) * (g.m + g.n);
        if (least < 0 || side < least) best = {rows, columns}, least = side;
    }
    return best;
}

/// Returns the begin of part i of `parts`, in elements.
int64_t part_begin(int64_t i, int64_t parts, int64_t size, int64_t unit) {
    const int64_t begin = units(size, unit) * i / parts * unit;
    return begin < size ? begin : size;
}

template <class T>
void shared(const Gemm<T>& g, int64_t threads) {
    const GemmMethod method = method_of(g);
    // Two parts a thread, where they are long: if a core is busy with something else, another thread takes the second.
    const Grid grid = grid_for(g, estimated_ns(g) > threads * 2 * long_part_ns ? 2 * threads : threads);
    share(grid.rows * grid.columns, threads, [&](int64_t part) {
        const int64_t r = part / grid.columns, c = part % grid.columns;
        const int64_t i = part_begin(r, grid.rows, g.m, Grid::row_unit);
        const int64_t j = part_begin(c, grid.columns, g.n, Grid::column_unit);
        Gemm<T> piece = g;
        piece.m = part_begin(r + 1, grid.rows, g.m, Grid::row_unit) - i;
        piece.n = part_begin(c + 1, grid.columns, g.n, Grid::column_unit) - j;
        if (piece.m == 0 || piece.n == 0) return;
        piece.a += i * g.a_row;
        piece.b += j * g.b_col;
        piece.c += i * g.c_row + j;
        if (g.bias) piece.bias += j;
        if (piece.m * piece.n * piece.k >= onednn_from && with_onednn(piece)) return;
        run_part(piece, method);
    });
}

template <class T>
void product(const Gemm<T>& g) {
    const bool is_large = g.m * g.n * g.k > most_alone && g.m > 0 && g.n > 0;
    if (is_large && tapir::detail::shapes_only) [[unlikely]]
        return;
    if (is_large) {
        if (const int64_t threads = threads_for(estimated_ns(g)); threads > 1) return shared(g, threads);
    }
    serial(g);
}

/// Products [begin, end) of a batch.
template <class T>
GemmBatch<T> part_of(const GemmBatch<T>& g, int64_t begin, int64_t end) {
    GemmBatch<T> part = g;
    part.first.a += begin * g.a_batch;
    part.first.b += begin * g.b_batch;
    part.first.c += begin * g.c_batch;
    part.batch = end - begin;
    return part;
}

template <class T>
Gemm<T> product_of(const GemmBatch<T>& g, int64_t i) {
    return part_of(g, i, i + 1).first;
}

template <class T>
void serial(const GemmBatch<T>& g) {
    const Gemm<T>& one = g.first;
    if (one.m > 0 && one.n > 0 && one.k > 0 && one.m * one.n * one.k < onednn_from && run_batch(g)) return;
    for (int64_t i = 0; i < g.batch; ++i) serial(product_of(g, i));
}

/// True when the batch is one taller product: the rows of A and of C continue from one product to the next. It may add in another order.
template <class T>
bool is_one_product(const GemmBatch<T>& g) {
    return !is_deterministic() && g.b_batch == 0 && g.a_batch == g.first.m * g.first.a_row && g.c_batch == g.first.m * g.first.c_row;
}

template <class T>
void batched(const GemmBatch<T>& g) {
    if (g.batch <= 0) return;
    if (tapir::detail::shapes_only && g.batch * g.first.m * g.first.n * g.first.k > most_alone) [[unlikely]]
        return;
    if (is_one_product(g)) {
        Gemm<T> tall = g.first;
        tall.m *= g.batch;
        return product(tall);
    }
    const int64_t ns = estimated_ns(g.first), threads = threads_for(ns * g.batch);
    if (threads <= 1) return serial(g);
    // Large products are shared one by one unless there are many: then each thread takes whole ones.
    if (g.batch >= 4 * threads || ns < 2 * shared_from_ns) {
        const int64_t parts = g.batch < 8 * threads ? g.batch : 8 * threads;
        return share(parts, threads, [&](int64_t i) { serial(part_of(g, g.batch * i / parts, g.batch * (i + 1) / parts)); });
    }
    for (int64_t i = 0; i < g.batch; ++i) product(product_of(g, i));
}

}  // namespace

void* gemm_workspace(std::size_t bytes) {
    static thread_local Workspace workspace;
    if (bytes > workspace.size) {
        workspace.bytes.reset();
        workspace.size = 0;
        workspace.bytes.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
        workspace.size = bytes;
    }
    return workspace.bytes.get();
}

void gemm(const Gemm<float>& g) { product(g); }
void gemm(const Gemm<double>& g) { product(g); }
void gemm(const GemmBatch<float>& g) { batched(g); }
void gemm(const GemmBatch<double>& g) { batched(g); }

}  // namespace tapir::kernels
