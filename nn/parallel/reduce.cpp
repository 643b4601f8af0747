// Sums and the like of numbers of two ranks, for engines that have none of their own for a dtype.
#include <algorithm>
#include <cmath>

#include "tapir/nn/parallel/engine_impl.h"

namespace tapir::parallel {
namespace {

// As amin() and amax(): a nan wins.
template <class T>
bool wins(T a, T than, Reduce reduce) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) || std::isnan(than)) return std::isnan(a);
    }
    return reduce == Reduce::min ? a < than : a > than;
}

template <class T, class Compute = T>
void run(void* dst, const void* src, std::int64_t count, Reduce reduce) {
    T* const to = static_cast<T*>(dst);
    const T* const from = static_cast<const T*>(src);
    const auto each = [&](const auto& op) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(op(static_cast<Compute>(to[i]), static_cast<Compute>(from[i])));
    };
    switch (reduce) {
        case Reduce::sum:
        case Reduce::mean: return each([](Compute a, Compute b) { return a + b; });
        case Reduce::product: return each([](Compute a, Compute b) { return a * b; });
        case Reduce::min:
        case Reduce::max: return each([reduce](Compute a, Compute b) { return wins(b, a, reduce) ? b : a; });
    }
}

}  // namespace

void reduce_into(void* dst, const void* src, std::int64_t count, DType dtype, Reduce reduce) {
    switch (dtype) {
        case DType::boolean:
        case DType::uint8: return run<std::uint8_t, int>(dst, src, count, reduce);
        case DType::int32: return run<std::int32_t, std::uint32_t>(dst, src, count, reduce);
        case DType::int64: return run<std::int64_t, std::uint64_t>(dst, src, count, reduce);
        case DType::float16: return run<Half, float>(dst, src, count, reduce);
        case DType::bfloat16: return run<BFloat16, float>(dst, src, count, reduce);
        case DType::float32: return run<float>(dst, src, count, reduce);
        case DType::float64: return run<double>(dst, src, count, reduce);
    }
}

}  // namespace tapir::parallel
