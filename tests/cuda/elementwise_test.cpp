// Element-wise ops on a CUDA device by the layout of their operands: rows and columns that repeat, slices, transposed and
// shifted arrays, several dtypes, and elements that are far apart.
#include "compare.h"
#ifdef TAPIR_CUDA_EMULATED
#include <algorithm>

#include "tapir/cuda/elementwise.cuh"
#include "tapir/cuda/parts.cuh"
#endif

using namespace tapir;
using tapir::test::check_close;

namespace {

using Inputs = std::vector<Tensor>;

Tensor numbers(const Shape& shape, DType dtype) {
    return is_floating(dtype) ? (rand(shape, float64) * 4 + 1).to(dtype) : randint(1, 9, shape).to(dtype);
}

// Values alone; op makes its views by itself, so that the device's memory is laid out as the CPU's.
void compare(const Inputs& inputs, const std::function<Tensor(const Inputs&)>& op, double limit) {
    const NoGradScope pause;
    Inputs here, there;
    for (const Tensor& x : inputs) {
        here.push_back(x.clone());
        there.push_back(x.to(cuda));
    }
    check_close(op(there).cpu(), op(here), limit);
}

double limit_of(DType dtype) { return is_floating(dtype) ? test::limit_of(dtype) : 0; }

}  // namespace

TEST_CASE("element-wise ops take operands of any layout", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    const auto sum = [](const Inputs& v) { return add(v[0], v[1]); };
    for (const DType dtype : {float32, float64, float16, bfloat16, int32, int64}) {
        for (const int width : {1, 7, 16, 100, 1000, 2048}) {
            INFO(name(dtype) << ", rows of " << width);
            const double limit = limit_of(dtype);
            const Tensor x = numbers({37, width}, dtype), row = numbers({width}, dtype), column = numbers({37, 1}, dtype);
            compare({x, row}, sum, limit);
            compare({x, column}, sum, limit);
            compare({row, column}, sum, limit);
            compare({x, row, column}, [](const Inputs& v) { return addcmul(v[0], v[1], v[2]); }, limit);
            compare({x, row}, [](const Inputs& v) { return v[0] < v[1]; }, 0);  // bools
            compare({x, column}, [](const Inputs& v) { return eq(v[0], v[1]); }, 0);
            compare({numbers({3, 1, width}, dtype), numbers({5, 1}, dtype)}, sum, limit);
            compare({numbers({4, 3, 1, width}, dtype), numbers({4, 1, 5, 1}, dtype)}, sum, limit);
            compare({x, numbers({width, 37}, dtype)}, [](const Inputs& v) { return add(v[0], v[1].t()); }, limit);
            compare({numbers({37, 3, width}, dtype), row}, [](const Inputs& v) { return add(v[0].transpose(0, 1), v[1]); }, limit);
        }
    }
}

TEST_CASE("element-wise ops read and write slices wherever they begin", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(4);
    for (const DType dtype : {float32, float16, int64, uint8}) {
        const double limit = limit_of(dtype);
        for (const int pitch : {64, 67}) {
            for (const int first : {0, 1, 8}) {
                for (const int width : {16, 17, 48}) {
                    INFO(name(dtype) << ", [" << first << ", " << first + width << ") of rows of " << pitch);
                    const Tensor x = numbers({70, pitch}, dtype), row = numbers({width}, dtype);
                    const auto slice = [=](const Tensor& t) { return t.narrow(1, first, width); };
                    compare({x, row}, [&](const Inputs& v) { return mul(slice(v[0]), v[1]); }, limit);
                    compare({x}, [&](const Inputs& v) { return slice(v[0]) * 3; }, limit);
                    compare({x}, [&](const Inputs& v) { return slice(v[0]).contiguous(); }, 0);
                    compare({x}, [&](const Inputs& v) { return ge(slice(v[0]), 3); }, 0);
                    compare({x}, [&](const Inputs& v) { return flip(slice(v[0]), {1}); }, 0);
                    compare({x}, [&](const Inputs& v) { return flip(slice(v[0]), {0}); }, 0);
                    compare(
                        {x, row},
                        [&](const Inputs& v) {
                            slice(v[0]).add_(v[1]);
                            return v[0];
                        },
                        limit);
                    compare(
                        {x, numbers({width, 70}, dtype)},
                        [&](const Inputs& v) {
                            slice(v[0]).mul_(v[1].t());
                            return v[0];
                        },
                        limit);
                }
            }
        }
        // Without gaps, but not where packs begin.
        compare(
            {numbers({5001}, dtype), numbers({5001}, dtype)}, [](const Inputs& v) { return add(v[0].narrow(0, 1, 5000), v[1].narrow(0, 0, 5000)); },
            limit);
    }
}

TEST_CASE("element-wise ops take operands of several dtypes and layouts", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(5);
    const DType dtypes[] = {bool_, uint8, int32, int64, float16, bfloat16, float32, float64};
    for (const DType a : dtypes) {
        for (const DType b : dtypes) {
            INFO(name(a) << " and " << name(b));
            const Tensor x = numbers({33, 40}, a), row = numbers({40}, b), column = numbers({33, 1}, b);
            const double limit = 1e-2;
            for (const int first : {0, 1, 16}) {
                compare({numbers({5001}, a)}, [&](const Inputs& v) { return v[0].narrow(0, first, 4980).to(b); }, limit);
            }
            compare({x, row}, [](const Inputs& v) { return mul(v[0], v[1]); }, limit);
            compare({x, column}, [](const Inputs& v) { return mul(v[0].narrow(1, 3, 30), v[1]); }, limit);
            compare({x, row}, [](const Inputs& v) { return v[0] < v[1]; }, 0);
            compare(
                {x, numbers({40, 33}, b)},
                [](const Inputs& v) {
                    v[0].narrow(1, 1, 33).t().copy_(v[1].narrow(0, 2, 33));
                    return v[0];
                },
                limit);
        }
    }
}

#ifdef TAPIR_CUDA_EMULATED

TEST_CASE("element-wise ops reach elements that are more than 2^31 apart", "[cuda]") {
    NEEDS_CUDA;
    emulator::set_memory(std::size_t{16} << 30);
    for (const DType dtype : {float16, uint8}) {
        INFO(name(dtype));
        const Tensor wide = empty({3, (1 << 30) + 8}, {dtype, cuda}), row = numbers({16}, dtype);
        Tensor slice = wide.narrow(1, 0, 16), last = wide.narrow(1, 1 << 30, 8);
        Tensor want = numbers({3, 16}, dtype);
        slice.copy_(want.to(cuda));
        last.fill_(7);
        check_close(add(slice, row.to(cuda)).cpu(), add(want, row), 1e-2);
        slice.t().mul_(slice.t());
        check_close(slice.cpu(), mul(want, want), 1e-2);
        check_close((last.narrow(1, 0, 1) + row.to(cuda)).cpu(), zeros({3, 1}, dtype) + 7 + row, 1e-2);
    }
    empty_cache(cuda);
    emulator::set_memory(std::size_t{256} << 20);
}

namespace {

// The layout of two float arrays of sizes (4, width) and their sum, all in rows that are so many elements apart.
gpu::AlikeLayout layout_of(std::int64_t width, std::int64_t a, std::int64_t b, std::int64_t out, int first = 0) {
    alignas(16) static float memory[8];
    kernels::ElementwiseArgs args{};
    args.operands = 2;
    args.rank = 2;
    args.numel = 4 * width;
    args.sizes[0] = 4;
    args.sizes[1] = width;
    args.in[0] = {memory + first, float32, {a, 1}};
    args.in[1] = {memory, float32, {b, b == 1 ? 0 : 1}};  // 1: a column
    args.out = memory;
    args.out_dtype = float32;
    args.out_strides[0] = out;
    args.out_strides[1] = 1;
    return gpu::layout_of(args, /*V=*/4, sizeof(float));
}

}  // namespace

TEST_CASE("element-wise kernels go in packs where all rows are aligned", "[cuda]") {
    CHECK(layout_of(64, 64, 0, 64).in_packs);
    CHECK(layout_of(64, 64, 1, 64).in_packs);
    CHECK(layout_of(64, 100, 0, 64).in_packs);
    CHECK_FALSE(layout_of(66, 66, 0, 66).in_packs);
    CHECK_FALSE(layout_of(64, 66, 0, 64).in_packs);
    CHECK_FALSE(layout_of(64, 64, 0, 66).in_packs);
    CHECK_FALSE(layout_of(64, 64, 0, 64, /*first=*/1).in_packs);
    const gpu::AlikeLayout column = layout_of(64, 64, 1, 64), row = layout_of(64, 64, 0, 64);
    CHECK((column.source[0] == gpu::Source::array && column.source[1] == gpu::Source::repeated));
    CHECK((row.source[0] == gpu::Source::array && row.source[1] == gpu::Source::array));
    CHECK_FALSE(row.is_flat);
}

TEST_CASE("element-wise work is parted where offsets would not fit in 31 bits", "[cuda]") {
    kernels::ElementwiseArgs args{};
    args.operands = 2;
    args.rank = 3;
    const std::int64_t sizes[] = {6, 3, std::int64_t{5} << 30};
    args.numel = 1;
    for (int d = 0; d < 3; ++d) args.numel *= args.sizes[d] = sizes[d];
    args.out_dtype = args.in[0].dtype = args.in[1].dtype = uint8;
    args.out_strides[2] = 1;
    args.out_strides[1] = sizes[2];
    args.out_strides[0] = sizes[1] * sizes[2];
    args.in[0] = {reinterpret_cast<void*>(std::uintptr_t{1} << 40), uint8, {}};
    args.in[1] = {nullptr, uint8, {}};
    args.in[0].strides[2] = 1;  // the same row everywhere
    args.out = reinterpret_cast<void*>(std::uintptr_t{1} << 50);
    std::int64_t elements = 0, expected = reinterpret_cast<std::intptr_t>(args.out);
    gpu::in_parts(args, [&](const kernels::ElementwiseArgs& part) {
        elements += part.numel;
        const std::int64_t begin = reinterpret_cast<std::intptr_t>(part.out), column = begin - (std::int64_t{1} << 50);
        CHECK(begin == expected);  // in order, without gaps
        expected = begin + part.numel;
        CHECK(reinterpret_cast<std::intptr_t>(part.in[0].data) == (std::int64_t{1} << 40) + column % sizes[2]);
        CHECK(part.in[1].data == nullptr);
        std::int64_t last = 0, numel = 1;
        for (int d = 0; d < 3; ++d) {
            last += (part.sizes[d] - 1) * part.out_strides[d];
            numel *= part.sizes[d];
        }
        CHECK(last < gpu::kMostPositions);
        CHECK(numel == part.numel);
        CHECK(begin % 16 == 0);
    });
    CHECK(elements == args.numel);
}

TEST_CASE("halves come in either order, and each knows where it begins", "[cuda]") {
    struct Args {
        std::int64_t numel, sizes[2], begin = 0;
    };
    const auto begin_at = [](Args& part, int d, std::int64_t first) { part.begin += first * (part.numel / part.sizes[d]); };
    for (const gpu::Order order : {gpu::Order::forwards, gpu::Order::backwards}) {
        std::vector<std::int64_t> begins;
        std::int64_t elements = 0;
        const std::int64_t row = std::int64_t{1} << 30;
        gpu::in_halves(
            Args{5 * row, {1, 5 * row}}, order, [](const Args& part) { return gpu::too_many(part, part.numel); }, begin_at,
            [&](const Args& part) {
                CHECK(part.numel == part.sizes[1]);
                CHECK(part.numel <= gpu::kMostPositions);
                elements += part.numel;
                begins.push_back(part.begin);
            });
        CHECK(elements == 5 * row);
        if (order == gpu::Order::backwards) std::reverse(begins.begin(), begins.end());
        CHECK(begins == std::vector<std::int64_t>{0, 5 * row / 4, 5 * row / 2, 15 * row / 4});
    }
}
#endif
