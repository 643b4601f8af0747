// Convolution by matrix products: the patches under the kernel become the columns of a matrix (im2col; Chellapilla et al. 2006).
#include <algorithm>
#include <vector>

#include "tapir/core/make_impl.h"
#include "tapir/ops/convolution/convolution_impl.h"
#include "tapir/ops/linear/matmul_impl.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {
namespace {

using std::int64_t;

// Calls f(row of the column matrix, first column, first element of x, step of x, count) for each run of columns that lie
// inside the input, for one group's channels [0, channels).
template <class F>
void for_runs(const Convolution& c, int64_t channel, const F& f) {
    const int64_t plane = c.in_volume();
    int64_t row = channel * c.kernel_volume();
    for (int64_t k0 = 0; k0 < c.kernel[0]; ++k0) {
        for (int64_t k1 = 0; k1 < c.kernel[1]; ++k1) {
            for (int64_t k2 = 0; k2 < c.kernel[2]; ++k2, ++row) {
                // In the last dimension: the outputs whose input exists.
                const int64_t shift = k2 * c.dilation[2] - c.before[2];
                const int64_t begin = std::min(c.out[2], shift >= 0 ? 0 : (-shift + c.stride[2] - 1) / c.stride[2]);
                const int64_t last = c.in[2] - 1 - shift;  // of output * stride
                const int64_t end = last < 0 ? begin : std::max(begin, std::min(c.out[2], last / c.stride[2] + 1));
                for (int64_t o0 = 0; o0 < c.out[0]; ++o0) {
                    const int64_t i0 = o0 * c.stride[0] + k0 * c.dilation[0] - c.before[0];
                    for (int64_t o1 = 0; o1 < c.out[1]; ++o1) {
                        const int64_t i1 = o1 * c.stride[1] + k1 * c.dilation[1] - c.before[1];
                        const bool is_inside = i0 >= 0 && i0 < c.in[0] && i1 >= 0 && i1 < c.in[1];
                        const int64_t from = channel * plane + (i0 * c.in[1] + i1) * c.in[2] + begin * c.stride[2] + shift;
                        const int64_t column = (o0 * c.out[1] + o1) * c.out[2];
                        f(row, column, is_inside ? begin : 0, is_inside ? end : 0, from);
                    }
                }
            }
        }
    }
}

template <class T>
void to_columns(const Convolution& c, const T* x, T* columns) {
    const int64_t width = c.out_volume();
    parallel_items(c.group_in(), 32 * 1024 / (c.kernel_volume() * width + 1) + 1, [&](int64_t first, int64_t end_channel) {
        for (int64_t channel = first; channel < end_channel; ++channel) {
            for_runs(c, channel, [&](int64_t row, int64_t column, int64_t begin, int64_t end, int64_t from) {
                T* to = columns + row * width + column;
                std::fill(to, to + begin, T(0));
                for (int64_t o = begin; o < end; ++o) to[o] = x[from + (o - begin) * c.stride[2]];
                std::fill(to + end, to + c.out[2], T(0));
            });
        }
    });
}

template <class T>
void add_columns(const Convolution& c, const T* columns, T* x) {
    const int64_t width = c.out_volume();
    parallel_items(c.group_in(), 32 * 1024 / (c.kernel_volume() * width + 1) + 1, [&](int64_t first, int64_t end_channel) {
        for (int64_t channel = first; channel < end_channel; ++channel) {
            for_runs(c, channel, [&](int64_t row, int64_t column, int64_t begin, int64_t end, int64_t from) {
                const T* of = columns + row * width + column;
                for (int64_t o = begin; o < end; ++o) x[from + (o - begin) * c.stride[2]] += of[o];
            });
        }
    });
}

template <class T>
void convolve(ConvPart part, const Convolution& c, DType dtype, const T* a, const T* b, T* out) {
    const int64_t width = c.out_volume(), depth = c.group_in() * c.kernel_volume(), rows = c.group_out();
    const int64_t x_group = c.group_in() * c.in_volume(), y_group = rows * width, w_group = rows * depth;
    const Tensor patches = detail::make_empty({depth, width}, dtype, cpu, Loc{});
    T* columns = static_cast<T*>(patches.raw_data());
    if (part != ConvPart::output) {
        const int64_t n = part == ConvPart::input ? c.batch * c.groups * x_group : c.groups * w_group;
        std::fill(out, out + n, T(0));
    }
    for (int64_t i = 0; i < c.batch * c.groups; ++i) {
        const int64_t group = i % c.groups;
        switch (part) {
            case ConvPart::output:
                to_columns(c, a + i * x_group, columns);
                multiply({dtype, rows, width, depth, b + group * w_group, depth, 1, columns, width, 1, out + i * y_group, width}, cpu);
                break;
            case ConvPart::input:
                multiply({dtype, depth, width, rows, b + group * w_group, 1, depth, a + i * y_group, width, 1, columns, width}, cpu);
                add_columns(c, columns, out + i * x_group);
                break;
            case ConvPart::weight:
                to_columns(c, a + i * x_group, columns);
                multiply({.dtype = dtype,
                          .m = rows,
                          .n = depth,
                          .k = width,
                          .a = b + i * y_group,
                          .a_row = width,
                          .a_col = 1,
                          .b = columns,
                          .b_row = 1,
                          .b_col = width,
                          .c = out + group * w_group,
                          .c_row = depth,
                          .accumulate = true},
                         cpu);
                break;
        }
    }
}

}  // namespace

void convolve_by_products(ConvPart part, const Convolution& conv, const Tensor& a, const Tensor& b, const Tensor& out) {
    const auto run = [&]<class T>(T* to) {
        convolve(part, conv, out.dtype(), static_cast<const T*>(a.raw_data()), static_cast<const T*>(b.raw_data()), to);
    };
    if (out.dtype() == float64) {
        run(static_cast<double*>(out.raw_data()));
    } else {
        run(static_cast<float*>(out.raw_data()));
    }
}

}  // namespace tapir
