// Multiplies bfloat16 matrices on the CPU by oneDNN, on processors with instructions for them (AVX-512 BF16, AMX), without a
// conversion. Elsewhere the ops convert to float32 instead.
#include "tapir/ops/linear/matmul_impl.h"

#ifdef TAPIR_HAVE_ONEDNN
#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "tapir/ops/onednn_impl.h"
#include "tapir/ops/parallel_impl.h"
#endif

namespace tapir {

#ifdef TAPIR_HAVE_ONEDNN
namespace {

using dnnl::memory;
using onednn::around;
using onednn::engine;

memory::desc matrices(std::int64_t batch, std::int64_t rows, std::int64_t cols, std::int64_t step, std::int64_t row, std::int64_t col) {
    return {{batch, rows, cols}, memory::data_type::bf16, {step, row, col}};
}

}  // namespace

bool has_fast_bfloat16() {
    static const bool has = [] {
        const auto isa = static_cast<int>(dnnl::get_effective_cpu_isa());
        return (isa & static_cast<int>(dnnl::cpu_isa::avx512_core_bf16)) == static_cast<int>(dnnl::cpu_isa::avx512_core_bf16);
    }();
    return has;
}

static bool multiply_alone(const MatrixProduct& p) {
    const OpenMPThreadsScope threads(1);
    try {
        // A batch of one, or an operand that the batch shares, does not use the step.
        const auto step = [&](std::int64_t given, std::int64_t size) { return given == 0 ? size : given; };
        if ((p.batch > 1) && (p.a_batch == 0 || p.b_batch == 0)) return false;
        const memory::desc a = matrices(p.batch, p.m, p.k, step(p.a_batch, p.m * p.k), p.a_row, p.a_col);
        const memory::desc b = matrices(p.batch, p.k, p.n, step(p.b_batch, p.k * p.n), p.b_row, p.b_col);
        const memory::desc c = matrices(p.batch, p.m, p.n, step(p.c_batch, p.m * p.n), p.c_row, 1);
        const memory::desc bias = p.bias ? matrices(1, 1, p.n, p.n, p.n, 1) : memory::desc();
        // oneDNN caches what it has made before.
#if DNNL_VERSION_MAJOR < 3
        const dnnl::matmul::desc op = p.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
        const dnnl::matmul product(dnnl::matmul::primitive_desc(op, engine()));
#else
        const dnnl::matmul product(p.bias ? dnnl::matmul::primitive_desc(engine(), a, b, bias, c) : dnnl::matmul::primitive_desc(engine(), a, b, c));
#endif
        std::unordered_map<int, memory> args{{DNNL_ARG_SRC, around(a, p.a)}, {DNNL_ARG_WEIGHTS, around(b, p.b)}, {DNNL_ARG_DST, around(c, p.c)}};
        if (p.bias) args.emplace(DNNL_ARG_BIAS, around(bias, p.bias));
        dnnl::stream stream(engine());
        product.execute(stream, args);
        stream.wait();
        return true;
    } catch (const dnnl::error&) {  // oneDNN does not take this layout
        return false;
    }
}

bool multiply_bfloat16(const MatrixProduct& p) {
    if (p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0 || p.accumulate) return false;
    if (detail::shapes_only) return true;
    constexpr std::int64_t least_work = 4'000'000;  // multiplications of a thread
    const bool by_batch = p.batch > 1;
    const std::int64_t size = by_batch ? p.batch : p.m;
    const std::int64_t threads = std::min<std::int64_t>({num_threads(), size, p.batch * p.m * p.n * p.k / least_work});
    if (threads < 2 || detail::in_part()) return multiply_alone(p);
    std::atomic<bool> are_done{true};
    detail::share_parts(threads, static_cast<int>(threads), [&](std::int64_t part) {
        const std::int64_t begin = size * part / threads, count = size * (part + 1) / threads - begin;
        const auto at = [&](const void* data, std::int64_t step) { return static_cast<const BFloat16*>(data) + begin * step; };
        MatrixProduct own = p;
        (by_batch ? own.batch : own.m) = count;
        own.a = at(p.a, by_batch ? p.a_batch : p.a_row);
        if (by_batch) own.b = at(p.b, p.b_batch);
        own.c = const_cast<BFloat16*>(at(p.c, by_batch ? p.c_batch : p.c_row));
        if (!multiply_alone(own)) are_done = false;
    });
    return are_done;
}
#else
bool has_fast_bfloat16() { return false; }
bool multiply_bfloat16(const MatrixProduct&) { return false; }
#endif

}  // namespace tapir
