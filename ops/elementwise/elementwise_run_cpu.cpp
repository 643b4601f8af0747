// Drives the element-wise loops: tails, strides, broadcasting, conversion between element types.
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/cpu/vector_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"
#include "tapir/ops/elementwise/fused_kernels.h"
#include "tapir/ops/elementwise/half_cpu.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/copy_kernels.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

constexpr i64 kBlock = 512;  // elements converted at a time: all operands of a block stay in the first-level cache
constexpr i64 kTile = 1024;  // elements of a transposed operand

// --- Conversion ------------------------------------------------------------------------------------------------------

struct Bool {
    std::uint8_t value;
};

// Numbers out of range give the smallest integer, as the machine does; in C++ they would be undefined behaviour.
template <class I, class F>
I to_integer(F x) {
    if constexpr (sizeof(I) == 8) {
        return x >= F(-0x1p63) && x < F(0x1p63) ? static_cast<I>(x) : INT64_MIN;
    } else if constexpr (sizeof(I) == 4) {
        return x >= F(-0x1p31) && x < F(0x1p31) ? static_cast<I>(x) : INT32_MIN;
    } else {
        return static_cast<I>(to_integer<i64>(x));
    }
}

template <class To, class From>
To convert_one(From x) {
    if constexpr (__is_same(From, To)) {
        return x;
    } else if constexpr (__is_same(From, F16) || __is_same(From, BF16)) {
        return convert_one<To>(to_float(x));
    } else if constexpr (__is_same(From, Bool)) {
        return convert_one<To>(static_cast<std::int32_t>(x.value != 0));
    } else if constexpr (__is_same(To, Bool)) {
        return Bool{x != From(0)};
    } else if constexpr (__is_same(To, F16) || __is_same(To, BF16)) {
        return rounded_to<To>(static_cast<float>(x));
    } else if constexpr ((__is_same(From, float) || __is_same(From, double)) && !(__is_same(To, float) || __is_same(To, double))) {
        return to_integer<To>(x);
    } else {
        return static_cast<To>(x);
    }
}

// Not inlined: there are many pairs of types.
template <class T>
[[gnu::noinline]] void spread(T value, T* y, i64 n) {
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] = value;
}

// Rows that are not side by side. Every second element, as the real parts of complex numbers, and the reverse order are vectorised.
template <class T>
void copy_strided(const T* x, i64 from_stride, T* y, i64 to_stride, i64 n) {
    if (from_stride == 2 && to_stride == 1) {
#pragma omp simd
        for (i64 i = 0; i < n; ++i) y[i] = x[2 * i];
    } else if (from_stride == -1 && to_stride == 1) {
#pragma omp simd
        for (i64 i = 0; i < n; ++i) y[i] = x[-i];
    } else {
        for (i64 i = 0; i < n; ++i) y[i * to_stride] = x[i * from_stride];
    }
}

// Between int64 and floating numbers, four at a time, for which AVX2 has no instruction: below 2^51 a float64 that 1.5 * 2^52 is added to ends
// with the bits of the integer.
#if defined(__AVX2__) && !defined(__AVX512F__)
template <class From, class To>
constexpr bool kIsWideInteger = ((__is_same(From, float) || __is_same(From, double)) && __is_same(To, i64)) ||
    (__is_same(From, i64) && (__is_same(To, float) || __is_same(To, double)));
constexpr i64 kWideLanes = 4;

inline __m256d load_doubles(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
inline __m256d load_doubles(const double* x) { return _mm256_loadu_pd(x); }
inline void store_doubles(float* y, __m256d x) { _mm_storeu_ps(y, _mm256_cvtpd_ps(x)); }
inline void store_doubles(double* y, __m256d x) { _mm256_storeu_pd(y, x); }

template <class F>
void convert_wide(const F* x, i64* y) {
    const __m256d numbers = load_doubles(x), size = _mm256_andnot_pd(_mm256_set1_pd(-0.0), numbers), shift = _mm256_set1_pd(0x1.8p52);
    if (_mm256_movemask_pd(_mm256_cmp_pd(size, _mm256_set1_pd(0x1p51), _CMP_LT_OQ)) != 0xf) {
        for (i64 i = 0; i < kWideLanes; ++i) y[i] = convert_one<i64>(x[i]);
        return;
    }
    const __m256d shifted = _mm256_add_pd(_mm256_round_pd(numbers, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC), shift);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm256_sub_epi64(_mm256_castpd_si256(shifted), _mm256_castpd_si256(shift)));
}
template <class F>
void convert_wide(const i64* x, F* y) {
    const __m256d shift = _mm256_set1_pd(0x1.8p52);
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i beyond = _mm256_add_epi64(numbers, _mm256_set1_epi64x(i64{1} << 51));  // from 0 to 2^52, if it fits
    if (!_mm256_testz_si256(beyond, _mm256_set1_epi64x(-(i64{1} << 52)))) {
        for (i64 i = 0; i < kWideLanes; ++i) y[i] = convert_one<F>(x[i]);
        return;
    }
    store_doubles(y, _mm256_sub_pd(_mm256_castsi256_pd(_mm256_add_epi64(numbers, _mm256_castpd_si256(shift))), shift));
}
#endif

// For arrays whose elements are side by side.
template <class From, class To>
void convert_all(const From* x, To* y, i64 n) {
    i64 done = 0;
#if defined(__F16C__)
    if constexpr (kInVectors<From> && __is_same(To, float)) {
        for (; done + kFloatLanes <= n; done += kFloatLanes) {
            const FloatLanes lanes = load_halves(x + done);
            std::memcpy(y + done, &lanes, sizeof lanes);
        }
    } else if constexpr (__is_same(From, float) && kInVectors<To>) {
        for (; done + kFloatLanes <= n; done += kFloatLanes) {
            FloatLanes lanes;
            std::memcpy(&lanes, x + done, sizeof lanes);
            store_halves(y + done, lanes);
        }
    }
#endif
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (kIsWideInteger<From, To>) {
        for (; done + kWideLanes <= n; done += kWideLanes) convert_wide(x + done, y + done);
    }
#endif
#pragma omp simd
    for (i64 i = done; i < n; ++i) y[i] = convert_one<To>(x[i]);
}

template <class From, class To>
void convert_loop(const void* from, i64 from_stride, void* to, i64 to_stride, i64 n) {
    const auto* x = static_cast<const From*>(from);
    auto* y = static_cast<To*>(to);
    if (from_stride == 1 && to_stride == 1) {
        if constexpr (__is_same(From, To)) {
            std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(From));
        } else {
            convert_all(x, y, n);
        }
    } else if (from_stride == 0 && to_stride == 1 && n > 0) {
        spread(convert_one<To>(*x), y, n);
    } else if constexpr (__is_same(From, To)) {
        copy_strided(x, from_stride, y, to_stride, n);
    } else {
        for (i64 i = 0; i < n; ++i) y[i * to_stride] = convert_one<To>(x[i * from_stride]);
    }
}

using ConvertLoop = void (*)(const void*, i64, void*, i64, i64);
#define TAPIR_CONVERT_TO(From)                                                                                              \
    {convert_loop<From, Bool>, convert_loop<From, std::uint8_t>, convert_loop<From, std::int32_t>, convert_loop<From, i64>, \
     convert_loop<From, F16>,  convert_loop<From, BF16>,         convert_loop<From, float>,        convert_loop<From, double>}
const ConvertLoop convert_loops[kDTypes][kDTypes] = {TAPIR_CONVERT_TO(Bool),  TAPIR_CONVERT_TO(std::uint8_t), TAPIR_CONVERT_TO(std::int32_t),
                                                     TAPIR_CONVERT_TO(i64),   TAPIR_CONVERT_TO(F16),          TAPIR_CONVERT_TO(BF16),
                                                     TAPIR_CONVERT_TO(float), TAPIR_CONVERT_TO(double)};

// --- Tails -------------------------------------------------------------------------------------------------------------

// Widens the last count < kLanes elements of an operand to kLanes with copies of the first: a value that occurs
// anyway, so that no lane runs into a slow or trapping special case that the data does not have.
template <class T>
void widen(void* to, const void* from, i64 count) {
    const auto* x = static_cast<const T*>(from);
    auto* y = static_cast<T*>(to);
    for (i64 i = 0; i < kLanes; ++i) y[i] = x[i < count ? i : 0];
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)
inline void load_tail(void* to, const void* from, unsigned size, i64 count) {
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    if (size == 4) {
        const __m512i first = _mm512_set1_epi32(*static_cast<const int*>(from));
        _mm512_store_si512(to, _mm512_mask_loadu_epi32(first, mask, from));
    } else if (size == 8) {
        const __m512i first = _mm512_set1_epi64(*static_cast<const long long*>(from));
        auto* halves = static_cast<__m512i*>(to);
        _mm512_store_si512(halves, _mm512_mask_loadu_epi64(first, static_cast<__mmask8>(mask), from));
        const auto* upper = static_cast<const long long*>(from) + 8;
        _mm512_store_si512(halves + 1, _mm512_mask_loadu_epi64(first, static_cast<__mmask8>(mask >> 8), upper));
    } else {
        widen<std::uint8_t>(to, from, count);
    }
}

inline void store_tail(void* to, const void* from, unsigned size, i64 count) {
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    if (size == 4) {
        _mm512_mask_storeu_epi32(to, mask, _mm512_load_si512(from));
    } else if (size == 8) {
        const auto* halves = static_cast<const __m512i*>(from);
        _mm512_mask_storeu_epi64(to, static_cast<__mmask8>(mask), _mm512_load_si512(halves));
        _mm512_mask_storeu_epi64(static_cast<long long*>(to) + 8, static_cast<__mmask8>(mask >> 8), _mm512_load_si512(halves + 1));
    } else {
        _mm_mask_storeu_epi8(to, mask, _mm_load_si128(static_cast<const __m128i*>(from)));
    }
}
#elif defined(__AVX2__)
// From 16 - count on, masks whose first `count` lanes are set.
constexpr std::int32_t kMasks[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

inline void load_tail(void* to, const void* from, unsigned size, i64 count) {
    const std::int32_t* masks = kMasks + kLanes - count;
    auto* y = static_cast<__m256i*>(to);
    if (size == 4) {
        const auto* x = static_cast<const int*>(from);
        const __m256i first = _mm256_set1_epi32(*x);
        for (int i = 0; i < kLanes; i += 8) {
            const __m256i mask = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(masks + i));
            _mm256_store_si256(y++, _mm256_blendv_epi8(first, _mm256_maskload_epi32(x + i, mask), mask));
        }
    } else if (size == 8) {
        const auto* x = static_cast<const long long*>(from);
        const __m256i first = _mm256_set1_epi64x(*x);
        for (int i = 0; i < kLanes; i += 4) {
            const __m256i mask = _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(masks + i)));
            _mm256_store_si256(y++, _mm256_blendv_epi8(first, _mm256_maskload_epi64(x + i, mask), mask));
        }
    } else {
        widen<std::uint8_t>(to, from, count);
    }
}

inline void store_tail(void* to, const void* from, unsigned size, i64 count) { std::memcpy(to, from, static_cast<std::size_t>(count) * size); }
#else
inline void load_tail(void* to, const void* from, unsigned size, i64 count) {
    if (size == 4) {
        widen<std::uint32_t>(to, from, count);
    } else if (size == 8) {
        widen<std::uint64_t>(to, from, count);
    } else {
        widen<std::uint8_t>(to, from, count);
    }
}

inline void store_tail(void* to, const void* from, unsigned size, i64 count) { std::memcpy(to, from, static_cast<std::size_t>(count) * size); }
#endif

// --- The general path --------------------------------------------------------------------------------------------------

// Walks a strided array in row-major order, a run along the last dimension at a time.
struct Cursor {
    const i64* sizes;
    const i64* strides;
    int rank;
    i64 index[8];
    i64 offset = 0;

    Cursor(const i64* all_sizes, const i64* all_strides, int dims, i64 position) : sizes(all_sizes), strides(all_strides), rank(dims) {
        for (int d = rank; d-- > 0;) {
            index[d] = position % sizes[d];
            position /= sizes[d];
            offset += index[d] * strides[d];
        }
    }
    i64 run() const { return rank == 0 ? 1 : sizes[rank - 1] - index[rank - 1]; }
    i64 stride() const { return rank == 0 ? 0 : strides[rank - 1]; }
    void advance(i64 n) {  // n <= run()
        if (rank == 0) return;
        int d = rank - 1;
        index[d] += n;
        offset += n * strides[d];
        while (d > 0 && index[d] == sizes[d]) {
            offset -= sizes[d] * strides[d];
            index[d] = 0;
            --d;
            ++index[d];
            offset += strides[d];
        }
    }
};

unsigned size_of(DType dtype) { return static_cast<unsigned>(itemsize(dtype)); }

bool is_linear(const i64* sizes, const i64* strides, int rank) {
    i64 expected = 1;
    for (int d = rank; d-- > 0;) {
        if (sizes[d] != 1 && strides[d] != expected) return false;
        expected *= sizes[d];
    }
    return true;
}

bool is_repeated(const i64* sizes, const i64* strides, int rank) {
    for (int d = 0; d < rank; ++d) {
        if (sizes[d] != 1 && strides[d] != 0) return false;
    }
    return true;
}

template <class OneOperand, class Args>  // of ElementwiseArgs or FusedArgs
void gather(const OneOperand& operand, const Args& args, i64 position, i64 count, DType compute, std::byte* to) {
    Cursor cursor(args.sizes, operand.strides, args.rank, position);
    const ConvertLoop loop = convert_loops[static_cast<int>(operand.dtype)][static_cast<int>(compute)];
    const auto* base = static_cast<const std::byte*>(operand.data);
    for (i64 done = 0; done < count;) {
        const i64 n = smaller(cursor.run(), count - done);
        loop(base + cursor.offset * size_of(operand.dtype), cursor.stride(), to + done * size_of(compute), 1, n);
        cursor.advance(n);
        done += n;
    }
}

void scatter(const std::byte* from, DType from_dtype, const ElementwiseArgs& args, i64 position, i64 count) {
    Cursor cursor(args.sizes, args.out_strides, args.rank, position);
    const ConvertLoop loop = convert_loops[static_cast<int>(from_dtype)][static_cast<int>(args.out_dtype)];
    auto* base = static_cast<std::byte*>(args.out);
    for (i64 done = 0; done < count;) {
        const i64 n = smaller(cursor.run(), count - done);
        loop(from + done * size_of(from_dtype), 1, base + cursor.offset * size_of(args.out_dtype), cursor.stride(), n);
        cursor.advance(n);
        done += n;
    }
}

// Returns a loop that needs no conversions beside it, for contiguous operands of one 16-bit type; null if there is none.
HalfLoop half_loop_of(const ElementwiseArgs& args) {
    const DType dtype = args.out_dtype;
    if (args.operands != 2 || args.kernel.gradient_of >= 0 || !is_linear(args.sizes, args.out_strides, args.rank)) return nullptr;
    for (int k = 0; k < 2; ++k) {
        if (args.in[k].dtype != dtype || !is_linear(args.sizes, args.in[k].strides, args.rank)) return nullptr;
    }
    return arithmetic_of_halves(args.kernel.op, dtype);
}

}  // namespace

void convert(DType from_type, const void* from, i64 from_stride, DType to_type, void* to, i64 to_stride, i64 n) {
    convert_loops[static_cast<int>(from_type)][static_cast<int>(to_type)](from, from_stride, to, to_stride, n);
}

void run_contiguous(Loop loop, i64 n, void* out, unsigned out_size, const void* const* in, unsigned in_size, int operands, const double* params) {
    const i64 whole = n / kLanes * kLanes;
    if (whole > 0) loop(whole, out, in, params);
    const i64 rest = n - whole;
    if (rest == 0) return;
    alignas(64) std::byte buffers[kMaxOperands][kLanes * 8];
    alignas(64) std::byte result[kLanes * 8];
    const void* tails[kMaxOperands];
    for (int k = 0; k < operands; ++k) {
        load_tail(buffers[k], static_cast<const std::byte*>(in[k]) + whole * in_size, in_size, rest);
        tails[k] = buffers[k];
    }
    loop(kLanes, result, tails, params);
    store_tail(static_cast<std::byte*>(out) + whole * out_size, result, out_size, rest);
}

void run_repeated(Loop loop, i64 n, void* out, unsigned out_size, const void* const* in, unsigned in_size, int operands, const double* params,
                  unsigned repeated) {
    constexpr i64 block = 256;
    const i64 fill = n < block ? (n + kLanes - 1) / kLanes * kLanes : block;
    alignas(64) std::byte buffers[kMaxOperands][block * 8];
    alignas(64) std::byte result[kLanes * 8];
    const void* parts[kMaxOperands];
    for (int k = 0; k < operands; ++k) {
        if (!(repeated >> k & 1)) continue;
        if (fill == kLanes) {
            load_tail(buffers[k], in[k], in_size, 1);
        } else if (in_size == 4) {
            convert_loops[static_cast<int>(DType::float32)][static_cast<int>(DType::float32)](in[k], 0, buffers[k], 1, fill);
        } else {
            convert_loops[static_cast<int>(DType::int64)][static_cast<int>(DType::int64)](in[k], 0, buffers[k], 1, fill);
        }
        parts[k] = buffers[k];
    }
    for (i64 position = 0; position < n; position += block) {
        const i64 count = smaller(block, n - position), whole = count / kLanes * kLanes, rest = count - whole;
        for (int k = 0; k < operands; ++k) {
            if (!(repeated >> k & 1)) parts[k] = static_cast<const std::byte*>(in[k]) + position * in_size;
        }
        std::byte* to = static_cast<std::byte*>(out) + position * out_size;
        if (whole > 0) loop(whole, to, parts, params);
        if (rest == 0) continue;
        alignas(64) std::byte tails[kMaxOperands][kLanes * 8];
        for (int k = 0; k < operands; ++k) {
            if (repeated >> k & 1) continue;
            load_tail(tails[k], static_cast<const std::byte*>(parts[k]) + whole * in_size, in_size, rest);
            parts[k] = tails[k];
        }
        loop(kLanes, result, parts, params);
        store_tail(to + whole * out_size, result, out_size, rest);
    }
}

void run_general(const ElementwiseArgs& args, i64 begin, i64 end) {
    if (const HalfLoop loop = half_loop_of(args)) {
        const auto at = [&](const void* data) { return static_cast<const std::byte*>(data) + begin * 2; };
        return loop(end - begin, static_cast<std::byte*>(args.out) + begin * 2, at(args.in[0].data), at(args.in[1].data));
    }
    alignas(64) std::byte buffers[kMaxOperands][kBlock * 8];
    alignas(64) std::byte result[kBlock * 8];
    const DType compute = stored_as(args.kernel.compute);
    const DType loop_out = args.kernel.to_bool ? DType::boolean : compute;
    const bool out_linear = args.out_dtype == loop_out && is_linear(args.sizes, args.out_strides, args.rank);
    bool linear[kMaxOperands], filled[kMaxOperands] = {};
    for (int k = 0; k < args.operands; ++k) {
        linear[k] = args.in[k].dtype == compute && is_linear(args.sizes, args.in[k].strides, args.rank);
        if (!linear[k] && is_repeated(args.sizes, args.in[k].strides, args.rank)) {
            gather(args.in[k], args, 0, 1, compute, buffers[k]);
            convert(compute, buffers[k], 0, compute, buffers[k], 1, smaller(kBlock, (end - begin + kLanes - 1) / kLanes * kLanes));
            filled[k] = true;
        }
    }
    for (i64 position = begin; position < end; position += kBlock) {
        const i64 count = smaller(kBlock, end - position);
        const i64 padded = (count + kLanes - 1) / kLanes * kLanes;
        const void* in[kMaxOperands];
        for (int k = 0; k < args.operands; ++k) {
            in[k] = buffers[k];
            if (filled[k]) continue;
            if (linear[k] && padded == count) {
                in[k] = static_cast<const std::byte*>(args.in[k].data) + position * size_of(compute);
                continue;
            }
            gather(args.in[k], args, position, count, compute, buffers[k]);
            std::byte* pad = buffers[k] + count * size_of(compute);
            convert(compute, buffers[k], 0, compute, pad, 1, padded - count);
        }
        if (out_linear && padded == count) {
            args.loop(count, static_cast<std::byte*>(args.out) + position * size_of(loop_out), in, args.kernel.params);
        } else {
            args.loop(padded, result, in, args.kernel.params);
            scatter(result, loop_out, args, position, count);
        }
    }
}

// --- Rows ----------------------------------------------------------------------------------------------------------------

namespace {

// How a row of an operand reaches the loop.
enum class RowWay : std::uint8_t { direct, turned, converted };

// Returns a loop if operand `number` is one number for each row, as of a column or of outer(), and the other one is a row as it is; else null:
// the loops of most ops read copies of the number behind each other.
NumberLoop number_loop_of(const ElementwiseArgs& args, int number) {
    const ElementwiseKernel& kernel = args.kernel;
    const int last = args.rank - 1;
    const Operand &x = args.in[1 - number], &one = args.in[number];
    const DType dtype = stored_as(kernel.compute);
    if (args.operands != 2 || kernel.gradient_of >= 0 || one.strides[last] != 0 || x.strides[last] != 1) return nullptr;
    if (args.out_strides[last] != 1 || x.dtype != dtype || one.dtype != dtype || args.out_dtype != dtype) return nullptr;
    return arithmetic_with_number(kernel.op, dtype, number == 0);
}

RowWay row_way(const Operand& operand, int last, DType compute) {
    if (operand.dtype != compute) return RowWay::converted;
    if (operand.strides[last] == 1) return RowWay::direct;
    return operand.strides[last] != 0 && operand.strides[last - 1] == 1 ? RowWay::turned : RowWay::converted;
}

}  // namespace

void run_rows(const ElementwiseArgs& args, i64 begin, i64 end) {
    constexpr i64 wide = 512, narrow = kTile / kBandRows;
    alignas(64) std::byte buffers[kMaxOperands][kTile * 8];
    alignas(64) std::byte result[wide * 8];
    const int last = args.rank - 1;
    const i64 rows = args.sizes[last - 1], width = args.sizes[last], bands = bands_of_rows(rows);
    const DType compute = stored_as(args.kernel.compute), loop_out = args.kernel.to_bool ? DType::boolean : compute;
    const i64 size = size_of(compute), out_size = size_of(args.out_dtype);
    const bool is_direct = args.out_dtype == loop_out && args.out_strides[last] == 1;
    const int number = args.in[0].strides[last] == 0 ? 0 : 1;
    const NumberLoop number_loop = number_loop_of(args, number);
    RowWay ways[kMaxOperands];
    i64 chunk = is_direct ? width : wide;
    for (int k = 0; k < args.operands; ++k) {
        ways[k] = row_way(args.in[k], last, compute);
        if (ways[k] != RowWay::direct) chunk = smaller(chunk, ways[k] == RowWay::turned ? narrow : wide);
    }
    for (i64 band = begin; band < end; ++band) {
        const i64 first = band % bands * kBandRows, height = smaller(kBandRows, rows - first);
        const auto offset_of = [&](const i64* strides) {
            return Cursor(args.sizes, strides, last - 1, band / bands).offset + first * strides[last - 1];
        };
        const std::byte* base[kMaxOperands];
        for (int k = 0; k < args.operands; ++k) {
            base[k] = static_cast<const std::byte*>(args.in[k].data) + offset_of(args.in[k].strides) * size_of(args.in[k].dtype);
        }
        std::byte* const out = static_cast<std::byte*>(args.out) + offset_of(args.out_strides) * out_size;
        if (number_loop) {
            const auto at = [&](int k, i64 row) { return base[k] + row * args.in[k].strides[last - 1] * size; };
            for (i64 row = 0; row < height; ++row) {
                number_loop(width, out + row * args.out_strides[last - 1] * out_size, at(1 - number, row), at(number, row));
            }
            continue;
        }
        for (i64 column = 0; column < width; column += chunk) {
            const i64 count = smaller(chunk, width - column);
            for (int k = 0; k < args.operands; ++k) {
                if (ways[k] != RowWay::turned) continue;
                const i64 step = args.in[k].strides[last];
                transpose_copy(static_cast<unsigned>(size), buffers[k], narrow, base[k] + column * step * size, step, height, count);
            }
            for (i64 row = 0; row < height; ++row) {
                const void* in[kMaxOperands];
                for (int k = 0; k < args.operands; ++k) {
                    const Operand& x = args.in[k];
                    const std::byte* from = base[k] + (row * x.strides[last - 1] + column * x.strides[last]) * size_of(x.dtype);
                    in[k] = from;
                    if (ways[k] == RowWay::turned) in[k] = buffers[k] + row * narrow * size;
                    if (ways[k] != RowWay::converted) continue;
                    in[k] = buffers[k];
                    convert(x.dtype, from, x.strides[last], compute, buffers[k], 1, count);
                }
                std::byte* const to = out + (row * args.out_strides[last - 1] + column * args.out_strides[last]) * out_size;
                run_contiguous(args.loop, count, is_direct ? to : result, size_of(loop_out), in, static_cast<unsigned>(size), args.operands,
                               args.kernel.params);
                if (!is_direct) convert(loop_out, result, 1, args.out_dtype, to, args.out_strides[last], count);
            }
        }
    }
}

// --- Fused ops -----------------------------------------------------------------------------------------------------------

namespace {

template <class T>
void repeat(const void* from, void* to, i64 n) {
    const T x = *static_cast<const T*>(from);
    auto* y = static_cast<T*>(to);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] = x;
}

template <class T>
void choose(i64 n, void* out, const void* const* in, const double*) {
    n = n / kLanes * kLanes;
    auto* y = static_cast<T*>(out);
    const auto* mask = static_cast<const std::uint8_t*>(in[0]);
    const auto *a = static_cast<const T*>(in[1]), *b = static_cast<const T*>(in[2]);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) {
        const T x = a[i], z = b[i];
        y[i] = mask[i] ? x : z;
    }
}

template <class T>
void as_numbers(i64 n, void* out, const void* const* in, const double*) {
    n = n / kLanes * kLanes;
    auto* y = static_cast<T*>(out);
    const auto* mask = static_cast<const std::uint8_t*>(in[0]);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] = static_cast<T>(mask[i] != 0);
}

template <class Half>
void round_to(i64 n, void* out, const void* const* in, const double*) {
    n = n / kLanes * kLanes;
    auto* y = static_cast<float*>(out);
    const auto* x = static_cast<const float*>(in[0]);
    Half rounded[kLanes];
    for (i64 i = 0; i < n; i += kLanes) {
        convert_all(x + i, rounded, kLanes);
        convert_all(rounded, y + i, kLanes);
    }
}

}  // namespace

Loop where_loop(Compute compute) {
    constexpr Loop loops[] = {choose<std::int32_t>, choose<i64>, choose<float>, choose<double>};
    return loops[static_cast<int>(compute)];
}

Loop number_loop(Compute compute) {
    constexpr Loop loops[] = {as_numbers<std::int32_t>, as_numbers<i64>, as_numbers<float>, as_numbers<double>};
    return loops[static_cast<int>(compute)];
}

Loop rounding_loop(DType dtype) { return dtype == DType::float16 ? round_to<F16> : round_to<BF16>; }

void run_fused(const FusedArgs& args, i64 begin, i64 end) {
    using Way = FusedArgs::Way;
    constexpr i64 tile_bytes = FusedArgs::kTileBytes;
    alignas(64) std::byte buffers[FusedArgs::kMostRegisters][tile_bytes];
    const DType compute = stored_as(args.compute);
    const i64 size = size_of(compute), tile = tile_bytes / size;
    const auto held_as = [compute](DType dtype) { return dtype == DType::boolean ? dtype : compute; };
    const void* place[FusedArgs::kMostRegisters];
    for (int k = 0; k < args.registers; ++k) place[k] = buffers[k];
    const i64 most = smaller(tile, (end - begin + kLanes - 1) / kLanes * kLanes);
    for (int k = 0; k < args.inputs; ++k) {
        if (args.way[k] == Way::filled) place[k] = args.in[k].data;
        if (args.way[k] != Way::repeated) continue;
        const DType dtype = args.in[k].dtype;
        if (dtype != compute) {
            convert(dtype, args.in[k].data, 0, held_as(dtype), buffers[k], 1, most);
        } else if (size == 4) {
            repeat<std::uint32_t>(args.in[k].data, buffers[k], most);
        } else {
            repeat<std::uint64_t>(args.in[k].data, buffers[k], most);
        }
    }
    for (i64 position = begin; position < end; position += tile) {
        const i64 count = smaller(tile, end - position), padded = (count + kLanes - 1) / kLanes * kLanes;
        const bool is_whole = padded == count;
        for (int k = 0; k < args.inputs; ++k) {
            if (args.way[k] == Way::repeated || args.way[k] == Way::filled) continue;
            const DType held = held_as(args.in[k].dtype);
            const i64 item = size_of(held);
            const std::byte* from = static_cast<const std::byte*>(args.in[k].data) + position * item;
            if (args.way[k] == Way::linear && is_whole) {
                place[k] = from;
                continue;
            }
            place[k] = buffers[k];
            if (args.way[k] == Way::linear) {
                std::memcpy(buffers[k], from, static_cast<std::size_t>(count * item));
            } else {
                gather(args.in[k], args, position, count, held, buffers[k]);
            }
            if (!is_whole) convert(held, buffers[k], 0, held, buffers[k] + count * item, 1, padded - count);
        }
        const bool is_direct = is_whole && !args.overlaps;
        const auto is_held = [&](int i) { return args.out_dtype[i] == held_as(args.out_dtype[i]); };
        const auto out_at = [&](int i) { return static_cast<std::byte*>(args.out[i]) + position * size_of(args.out_dtype[i]); };
        for (int i = 0; i < args.outputs; ++i) place[args.out_register[i]] = is_direct && is_held(i) ? out_at(i) : buffers[args.out_register[i]];
        for (int s = 0; s < args.step_count; ++s) {
            const FusedStep& step = args.steps[s];
            const void* in[3];
            for (int k = 0; k < step.count; ++k) in[k] = place[step.in[k]];
            step.loop(padded, const_cast<void*>(place[step.out]), in, step.params);
        }
        for (int i = 0; i < args.outputs; ++i) {
            if (is_direct && is_held(i)) continue;
            const std::byte* from = buffers[args.out_register[i]];
            if (is_held(i)) {
                std::memcpy(out_at(i), from, static_cast<std::size_t>(count * size_of(args.out_dtype[i])));
            } else {
                convert(compute, from, 1, args.out_dtype[i], out_at(i), 1, count);
            }
        }
    }
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
