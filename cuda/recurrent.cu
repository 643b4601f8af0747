// The gates of recurrent cells: everything of a step after its matrix products, with one thread for V columns of a row.
#include <algorithm>

#include "tapir/cuda/math.cuh"
#include "tapir/cuda/unroll.cuh"
#include "tapir/ops/recurrent/recurrent_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::GruGates;
using kernels::GruGatesBackward;
using kernels::LstmGates;
using kernels::LstmGatesBackward;

// --- Columns -----------------------------------------------------------------------------------------------------------------

// V neighbouring numbers in the computed type.
template <class C, int V>
struct Numbers {
    C value[V] = {};
};

template <int V, class T>
__device__ __forceinline__ Numbers<Computed<T>, V> load(const T* p) {
    const auto pack = *reinterpret_cast<const Pack<T, V>*>(p);
    Numbers<Computed<T>, V> x;
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) x.value[v] = convert<Computed<T>>(pack.value[v]);
    return x;
}
/// Loads from a place that may be missing; then it gives zeros.
template <int V, class T>
__device__ __forceinline__ Numbers<Computed<T>, V> load_if(const T* p, i64 offset) {
    return p ? load<V>(p + offset) : Numbers<Computed<T>, V>{};
}
template <class T, class C, int V>
__device__ __forceinline__ void store(T* p, const Numbers<C, V>& x) {
    Pack<T, V> pack;
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) pack.value[v] = convert<T>(x.value[v]);
    *reinterpret_cast<Pack<T, V>*>(p) = pack;
}

/// Position of a thread's columns in an array (rows, width).
struct Place {
    i64 row, column;
};
/// Kernels' view of the rows of a launch: `packs` of V columns make a row.
struct Rows {
    i64 first, width;
    u32 count;  // of packs
    Divider packs;
    template <int V>
    __device__ __forceinline__ Place place(u32 position) const {
        const u32 row = packs.quotient(position);
        return {first + row, static_cast<i64>(position - row * packs.divisor) * V};
    }
};

/// Calls f(rows) for as many rows at a time as have at most kMostPositions packs.
template <class F>
void in_launches(i64 rows, i64 width, int columns, const F& f) {
    const i64 packs = width / columns, at_once = std::max<i64>(kMostPositions / packs, 1);
    for (i64 first = 0; first < rows; first += at_once) {
        const i64 count = std::min(at_once, rows - first);
        f(Rows{first, width, static_cast<u32>(count * packs), Divider(packs)});
    }
}
template <class T>
constexpr int kColumns = sizeof(T) == 8 ? 2 : 4;

/// True if packs are worth it: even with packs all multiprocessors have enough work.
inline bool many(i64 rows, i64 width) { return rows * width >= 4096 * i64{multiprocessors()}; }

// --- LSTM --------------------------------------------------------------------------------------------------------------------

/// The arguments with their lists, of at most `Most` children, as a kernel receives them.
template <class Args, int Most>
struct Listed {
    Args args;  // its pointers to lists are the host's
    typename Args::Gate gates[Most + 3];
    typename Args::Child child[Most];
    explicit Listed(const Args& from) : args(from) {
        std::copy_n(from.gates, from.children + 3, gates);
        std::copy_n(from.child, from.children, child);
    }
};
constexpr int kFewChildren = 4, kManyChildren = 100;

template <class T, int V, int Most>
__global__ void __launch_bounds__(kThreads) lstm_kernel(Rows rows, Listed<LstmGates<T>, Most> step) {
    using C = Computed<T>;
    const u32 position = blockIdx.x * kThreads + threadIdx.x;
    if (position >= rows.count) return;
    const auto [row, column] = rows.place<V>(position);
    const i64 width = rows.width, at = row * width + column;
    const int children = step.args.children;
    const auto pre = [&, row = row, column = column](int gate) {
        const auto& g = step.gates[gate];
        auto a = load<V>(g.a + row * g.a_row + column);
        const auto b = load_if<V>(g.b, row * g.b_row + column);
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) a.value[v] += b.value[v];
        return a;
    };
    C* kept = step.args.activations ? step.args.activations + row * (children + 4) * width + column : nullptr;
    auto i = pre(0), o = pre(children + 1), u = pre(children + 2);
    Numbers<C, V> cell, h;
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) {
        i.value[v] = sigmoid(i.value[v]);
        o.value[v] = sigmoid(o.value[v]);
        u.value[v] = tanh(u.value[v]);
        cell.value[v] = i.value[v] * u.value[v];
    }
    for (int k = 0; k < children; ++k) {
        auto f = pre(1 + k);
        const auto c = load<V>(step.child[k].c + row * step.child[k].row + column);
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) {
            f.value[v] = sigmoid(f.value[v]);
            cell.value[v] += f.value[v] * c.value[v];
        }
        if (kept) store(kept + (1 + k) * width, f);
    }
    if (step.args.c) store(step.args.c + at, cell);
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) {
        cell.value[v] = tanh(cell.value[v]);
        h.value[v] = o.value[v] * cell.value[v];
    }
    if (step.args.h) store(step.args.h + at, h);
    if (!kept) return;
    store(kept, i);
    store(kept + (children + 1) * width, o);
    store(kept + (children + 2) * width, u);
    store(kept + (children + 3) * width, cell);
}

template <class T, int V, int Most>
__global__ void __launch_bounds__(kThreads) lstm_backward_kernel(Rows rows, Listed<LstmGatesBackward<T>, Most> step) {
    using C = Computed<T>;
    const u32 position = blockIdx.x * kThreads + threadIdx.x;
    if (position >= rows.count) return;
    const auto [row, column] = rows.place<V>(position);
    const i64 width = rows.width, at = row * width + column;
    const int children = step.args.children;
    const C* kept = step.args.activations + row * (children + 4) * width + column;
    const auto i = load<V>(kept), o = load<V>(kept + (children + 1) * width), u = load<V>(kept + (children + 2) * width);
    const auto tanh_c = load<V>(kept + (children + 3) * width);
    const auto grad_h = load_if<V>(step.args.grad_h, at);
    auto grad_cell = load_if<V>(step.args.grad_c, at);
    Numbers<C, V> out;
    const auto write = [&, row = row, column = column](int gate) {
        const auto& to = step.gates[gate];
        if (to.a) store(to.a + row * to.a_row + column, out);
        if (to.b) store(to.b + row * to.b_row + column, out);
    };
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) {
        const C g = grad_h.value[v], t = tanh_c.value[v], gate = o.value[v];
        grad_cell.value[v] += g * gate * (C(1) - t * t);
        out.value[v] = g * t * gate * (C(1) - gate);
    }
    write(children + 1);
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) out.value[v] = grad_cell.value[v] * u.value[v] * i.value[v] * (C(1) - i.value[v]);
    write(0);
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) out.value[v] = grad_cell.value[v] * i.value[v] * (C(1) - u.value[v] * u.value[v]);
    write(children + 2);
    Numbers<C, V> shared;  // of forget gates with one place, which is written once
    for (int k = 0; k < children; ++k) {
        const auto& to = step.gates[1 + k];
        const auto f = load<V>(kept + (1 + k) * width), c = load<V>(step.child[k].c + row * step.child[k].row + column);
        Numbers<C, V> grad;
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) {
            grad.value[v] = grad_cell.value[v] * f.value[v];
            out.value[v] = grad.value[v] * c.value[v] * (C(1) - f.value[v]);
            shared.value[v] = (to.a_adds ? shared.value[v] : C(0)) + out.value[v];
        }
        const bool goes_on = k + 1 < children && step.gates[2 + k].a_adds;
        if (to.a && !goes_on) store(to.a + row * to.a_row + column, shared);
        if (to.b) store(to.b + row * to.b_row + column, out);
        if (step.child[k].grad) store(step.child[k].grad + at, grad);
    }
}

template <int V, class T>
bool is_packed(const T* p, i64 row) {
    return is_aligned(p, V * sizeof(T)) && row % V == 0;
}

template <int V, class Args>
bool are_gates_packed(const Args& args) {
    bool packed = args.width % V == 0 && is_packed<V>(args.activations, 0);
    for (int g = 0; g < args.children + 3; ++g) {
        const auto& gate = args.gates[g];
        packed = packed && is_packed<V>(gate.a, gate.a_row) && is_packed<V>(gate.b, gate.b_row);
    }
    return packed;
}

template <int V, class T>
bool is_packed(const LstmGates<T>& args) {
    bool packed = are_gates_packed<V>(args) && is_packed<V>(args.h, 0) && is_packed<V>(args.c, 0);
    for (int k = 0; k < args.children; ++k) packed = packed && is_packed<V>(args.child[k].c, args.child[k].row);
    return packed;
}
template <int V, class T>
bool is_packed(const LstmGatesBackward<T>& args) {
    bool packed = are_gates_packed<V>(args) && is_packed<V>(args.grad_h, 0) && is_packed<V>(args.grad_c, 0);
    for (int k = 0; k < args.children; ++k) {
        packed = packed && is_packed<V>(args.child[k].c, args.child[k].row) && is_packed<V>(args.child[k].grad, 0);
    }
    return packed;
}

template <int V, class Args, int Most>
void launch_lstm(void (*kernel)(Rows, Listed<Args, Most>), const Args& args, i64 count) {
    const Listed<Args, Most> step(args);
    in_launches(count, args.width, V, [&](const Rows& rows) { launch(kernel, blocks_for(rows.count, kThreads), kThreads, rows, step); });
}

/// Launches the kernel for one column a thread, for V columns, or, one column again, for many children.
template <int V, class Args>
void run_lstm(void (*one)(Rows, Listed<Args, kFewChildren>), void (*packed)(Rows, Listed<Args, kFewChildren>),
              void (*for_many)(Rows, Listed<Args, kManyChildren>), const Args& args, i64 count) {
    if (args.children > kFewChildren) return launch_lstm<1>(for_many, args, count);
    if (many(count, args.width) && is_packed<V>(args)) return launch_lstm<V>(packed, args, count);
    launch_lstm<1>(one, args, count);
}

// --- GRU ---------------------------------------------------------------------------------------------------------------------

template <class T, int V>
__global__ void __launch_bounds__(kThreads) gru_kernel(Rows rows, GruGates<T> args) {
    using C = Computed<T>;
    const u32 position = blockIdx.x * kThreads + threadIdx.x;
    if (position >= rows.count) return;
    const auto [row, column] = rows.place<V>(position);
    const i64 width = rows.width, at = row * width + column, gates = row * 3 * width + column;
    auto r = load<V>(args.x + gates), z = load<V>(args.x + gates + width), n = load<V>(args.x + gates + 2 * width);
    const auto y_r = load<V>(args.y + gates), y_z = load<V>(args.y + gates + width);
    const auto y_n = load<V>(args.y + gates + 2 * width), h = load<V>(args.h + at);
    Numbers<C, V> out;
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) {
        r.value[v] = sigmoid(r.value[v] + y_r.value[v]);
        z.value[v] = sigmoid(z.value[v] + y_z.value[v]);
        n.value[v] = tanh(n.value[v] + r.value[v] * y_n.value[v]);
        out.value[v] = (C(1) - z.value[v]) * n.value[v] + z.value[v] * h.value[v];
    }
    store(args.out + at, out);
    if (!args.activations) return;
    store(args.activations + gates, r);
    store(args.activations + gates + width, z);
    store(args.activations + gates + 2 * width, n);
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads) gru_backward_kernel(Rows rows, GruGatesBackward<T> args) {
    using C = Computed<T>;
    const u32 position = blockIdx.x * kThreads + threadIdx.x;
    if (position >= rows.count) return;
    const auto [row, column] = rows.place<V>(position);
    const i64 width = rows.width, at = row * width + column, gates = row * 3 * width + column;
    const auto r = load<V>(args.activations + gates), z = load<V>(args.activations + gates + width);
    const auto n = load<V>(args.activations + gates + 2 * width), y_n = load<V>(args.y + gates + 2 * width);
    const auto h = load<V>(args.h + at), g = load<V>(args.grad + at);
    Numbers<C, V> grad_r, grad_z, grad_n, grad_y_n, grad_h;
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) {
        grad_n.value[v] = g.value[v] * (C(1) - z.value[v]) * (C(1) - n.value[v] * n.value[v]);
        grad_z.value[v] = g.value[v] * (h.value[v] - n.value[v]) * z.value[v] * (C(1) - z.value[v]);
        grad_r.value[v] = grad_n.value[v] * y_n.value[v] * r.value[v] * (C(1) - r.value[v]);
        grad_y_n.value[v] = grad_n.value[v] * r.value[v];
        grad_h.value[v] = g.value[v] * z.value[v];
    }
    store(args.grad_x + gates, grad_r);
    store(args.grad_x + gates + width, grad_z);
    store(args.grad_x + gates + 2 * width, grad_n);
    store(args.grad_y + gates, grad_r);
    store(args.grad_y + gates + width, grad_z);
    store(args.grad_y + gates + 2 * width, grad_y_n);
    store(args.grad_h + at, grad_h);
}

template <class Args, class... Pointers>
void run_gru(void (*one)(Rows, Args), void (*packed)(Rows, Args), int columns, const Args& args, i64 count, Pointers... pointers) {
    const bool in_packs = many(count, args.width) && args.width % columns == 0 && (is_aligned(pointers, 16) && ...);
    in_launches(count, args.width, in_packs ? columns : 1,
                [&](const Rows& rows) { launch(in_packs ? packed : one, blocks_for(rows.count, kThreads), kThreads, rows, args); });
}

}  // namespace

template <class T>
void lstm_gates(const LstmGates<T>& args, i64 count) {
    constexpr int V = kColumns<T>;
    run_lstm<V>(lstm_kernel<T, 1, kFewChildren>, lstm_kernel<T, V, kFewChildren>, lstm_kernel<T, 1, kManyChildren>, args, count);
}

template <class T>
void lstm_gates_backward(const LstmGatesBackward<T>& args, i64 count) {
    constexpr int V = kColumns<T>;
    run_lstm<V>(lstm_backward_kernel<T, 1, kFewChildren>, lstm_backward_kernel<T, V, kFewChildren>, lstm_backward_kernel<T, 1, kManyChildren>, args,
                count);
}

template <class T>
void gru_gates(const GruGates<T>& args, i64 count) {
    constexpr int V = kColumns<T>;
    run_gru(gru_kernel<T, 1>, gru_kernel<T, V>, V, args, count, args.x, args.y, args.h, args.out, args.activations);
}

template <class T>
void gru_gates_backward(const GruGatesBackward<T>& args, i64 count) {
    constexpr int V = kColumns<T>;
    run_gru(gru_backward_kernel<T, 1>, gru_backward_kernel<T, V>, V, args, count, args.activations, args.y, args.h, args.grad, args.grad_x,
            args.grad_y, args.grad_h);
}

#define TAPIR_INSTANTIATE(T)                                             \
    template void lstm_gates(const LstmGates<T>&, i64);                  \
    template void lstm_gates_backward(const LstmGatesBackward<T>&, i64); \
    template void gru_gates(const GruGates<T>&, i64);                    \
    template void gru_gates_backward(const GruGatesBackward<T>&, i64);
TAPIR_INSTANTIATE(float)
TAPIR_INSTANTIATE(double)
TAPIR_INSTANTIATE(Half)
TAPIR_INSTANTIATE(BFloat16)
#undef TAPIR_INSTANTIATE

}  // namespace tapir::gpu
