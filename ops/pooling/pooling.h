// Pooling: each window of the spatial dimensions becomes one number. Names, shapes and defaults are PyTorch's. The numbers behind the
// kernel's size have names, or PyTorch's order:
//
//     Tensor y = max_pool2d(x, 2);                                  // windows of 2 x 2, side by side
//     Tensor z = avg_pool2d(x, {3, 3}, {.stride = 2, .padding = 1});
//     Tensor w = avg_pool2d(x, {3, 3}, 2, 1);                       // as z
//
// A stride of two numbers as the only argument behind the kernel's size needs its name: {.stride = {2, 1}}; {2, 1} does not compile.
//
// x is (batch, channels, spatial...) or (channels, spatial...). One number stands for all spatial dimensions; a list has one for
// each. Floating dtypes. All throw ShapeError for other numbers of dimensions or windows that do not fit, DTypeError, and
// ValueError for a kernel, stride or dilation below 1 and a padding that is negative or above half the kernel.
#pragma once

#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {

struct MaxPoolOptions {
    [[no_unique_address]] ByName by_name = ByName();
    Shape stride = Shape();  ///< empty: the kernel's size
    Shape padding = 0;       ///< elements of -inf on both sides
    Shape dilation = 1;
    bool ceil_mode = false;  ///< a last window may reach over the end
};

/// Returns the largest element of each window; size' = (size + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded down (or up
/// with ceil_mode). Nan counts as the largest.
Tensor max_pool1d(In x, const Shape& kernel_size, const MaxPoolOptions& options = {});
Tensor max_pool2d(In x, const Shape& kernel_size, const MaxPoolOptions& options = {});
Tensor max_pool3d(In x, const Shape& kernel_size, const MaxPoolOptions& options = {});
/// Returns also the index of each, int64: its number in row-major order within its channel of x.
ValuesIndices max_pool1d_with_indices(In x, const Shape& kernel_size, const MaxPoolOptions& options = {});
ValuesIndices max_pool2d_with_indices(In x, const Shape& kernel_size, const MaxPoolOptions& options = {});
ValuesIndices max_pool3d_with_indices(In x, const Shape& kernel_size, const MaxPoolOptions& options = {});

#define TAPIR_MAX_POOL_BY_POSITION(Result, name)                                                                             \
    template <ShapeArg S>                                                                                                    \
    Result name(In x, const Shape& kernel_size, const S& stride) {                                                           \
        return name(x, kernel_size, MaxPoolOptions{ByName(), stride});                                                       \
    }                                                                                                                        \
    inline Result name(In x, const Shape& kernel_size, const Shape& stride, const Shape& padding, const Shape& dilation = 1, \
                       Flag ceil_mode = false) {                                                                             \
        return name(x, kernel_size, MaxPoolOptions{ByName(), stride, padding, dilation, ceil_mode});                         \
    }
TAPIR_MAX_POOL_BY_POSITION(Tensor, max_pool1d)
TAPIR_MAX_POOL_BY_POSITION(Tensor, max_pool2d)
TAPIR_MAX_POOL_BY_POSITION(Tensor, max_pool3d)
TAPIR_MAX_POOL_BY_POSITION(ValuesIndices, max_pool1d_with_indices)
TAPIR_MAX_POOL_BY_POSITION(ValuesIndices, max_pool2d_with_indices)
TAPIR_MAX_POOL_BY_POSITION(ValuesIndices, max_pool3d_with_indices)
#undef TAPIR_MAX_POOL_BY_POSITION

struct AvgPoolOptions {
    [[no_unique_address]] ByName by_name = ByName();
    Shape stride = Shape();  ///< empty: the kernel's size
    Shape padding = 0;       ///< zeros on both sides
    bool ceil_mode = false;
    bool count_include_pad = true;      ///< the zeros count as elements
    std::int64_t divisor_override = 0;  ///< sums are divided by this; 0: by the number of elements
};

/// Returns the mean of each window.
Tensor avg_pool1d(In x, const Shape& kernel_size, const AvgPoolOptions& options = {});
Tensor avg_pool2d(In x, const Shape& kernel_size, const AvgPoolOptions& options = {});
Tensor avg_pool3d(In x, const Shape& kernel_size, const AvgPoolOptions& options = {});

#define TAPIR_AVG_POOL_BY_POSITION(name)                                                                                        \
    template <ShapeArg S>                                                                                                       \
    Tensor name(In x, const Shape& kernel_size, const S& stride) {                                                              \
        return name(x, kernel_size, AvgPoolOptions{ByName(), stride});                                                          \
    }                                                                                                                           \
    inline Tensor name(In x, const Shape& kernel_size, const Shape& stride, const Shape& padding, Flag ceil_mode = false,       \
                       Flag count_include_pad = true, std::int64_t divisor_override = 0) {                                      \
        return name(x, kernel_size, AvgPoolOptions{ByName(), stride, padding, ceil_mode, count_include_pad, divisor_override}); \
    }
TAPIR_AVG_POOL_BY_POSITION(avg_pool1d)
TAPIR_AVG_POOL_BY_POSITION(avg_pool2d)
TAPIR_AVG_POOL_BY_POSITION(avg_pool3d)
#undef TAPIR_AVG_POOL_BY_POSITION

/// Uses as many windows as the result has elements; number o of n covers [floor(o size / n), ceil((o + 1) size / n)). An
/// output_size of -1 keeps that dimension's.
Tensor adaptive_max_pool1d(In x, const Shape& output_size);
Tensor adaptive_max_pool2d(In x, const Shape& output_size);
Tensor adaptive_max_pool3d(In x, const Shape& output_size);
Tensor adaptive_avg_pool1d(In x, const Shape& output_size);
Tensor adaptive_avg_pool2d(In x, const Shape& output_size);
Tensor adaptive_avg_pool3d(In x, const Shape& output_size);

struct LpPoolOptions {
    [[no_unique_address]] ByName by_name = ByName();
    Shape stride = Shape();  ///< empty: the kernel's size
    bool ceil_mode = false;
};

/// Computes (sum of x^p over each window)^(1/p).
Tensor lp_pool1d(In x, double norm_type, const Shape& kernel_size, const LpPoolOptions& options = {});
Tensor lp_pool2d(In x, double norm_type, const Shape& kernel_size, const LpPoolOptions& options = {});

#define TAPIR_LP_POOL_BY_POSITION(name)                                                                         \
    template <ShapeArg S>                                                                                       \
    Tensor name(In x, double norm_type, const Shape& kernel_size, const S& stride) {                            \
        return name(x, norm_type, kernel_size, LpPoolOptions{ByName(), stride});                                \
    }                                                                                                           \
    inline Tensor name(In x, double norm_type, const Shape& kernel_size, const Shape& stride, Flag ceil_mode) { \
        return name(x, norm_type, kernel_size, LpPoolOptions{ByName(), stride, ceil_mode});                     \
    }
TAPIR_LP_POOL_BY_POSITION(lp_pool1d)
TAPIR_LP_POOL_BY_POSITION(lp_pool2d)
#undef TAPIR_LP_POOL_BY_POSITION

}  // namespace tapir
