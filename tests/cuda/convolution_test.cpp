// Convolutions on a CUDA device against the CPU: every kind of sizes, layouts, dtypes, gradients to the second order, and what
// is asked of cuDNN. The emulator's cuDNN refuses arguments that the real one documents that it refuses.
#include <string>
#include <vector>

#include "../fails.h"
#include "compare.h"

#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>
#include <cudnn.h>
#endif

using namespace tapir;
using namespace tapir::test;
using std::int64_t;

namespace {

using Inputs = std::vector<Tensor>;

struct Case {
    const char* what;
    Shape x, weight;
    ConvOptions options;
};

Tensor conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options) {
    return w.dim() == 3 ? conv1d(x, w, bias, options) : w.dim() == 4 ? conv2d(x, w, bias, options) : conv3d(x, w, bias, options);
}

const Case kCases[] = {
    {"3 x 3", {2, 3, 7, 6}, {4, 3, 3, 3}, {}},
    {"1 x 1", {2, 4, 5, 5}, {3, 4, 1, 1}, {}},
    {"the whole image", {2, 2, 4, 4}, {3, 2, 4, 4}, {}},
    {"stride, and elements at the end that no kernel reaches", {2, 3, 9, 8}, {2, 3, 2, 2}, {.stride = {4, 5}}},
    {"everything at once", {2, 3, 7, 6}, {4, 3, 3, 2}, {.stride = {2, 3}, .padding = {2, 1}, .dilation = {1, 2}}},
    {"more padding than kernel", {1, 2, 3, 3}, {2, 2, 2, 2}, {.padding = {5, 4}}},
    {"same, odd", {2, 3, 6, 7}, {4, 3, 3, 5}, {.padding = "same"}},
    {"same, even", {2, 3, 6, 7}, {4, 3, 2, 4}, {.padding = "same"}},
    {"same, even in one dimension", {2, 3, 6, 7}, {4, 3, 3, 4}, {.padding = "same", .dilation = {2, 1}}},
    {"same, even, in groups", {2, 4, 6, 7}, {6, 2, 4, 2}, {.padding = "same", .groups = 2}},
    {"groups", {2, 6, 5, 8}, {9, 2, 2, 3}, {.stride = {1, 2}, .padding = {1, 0}, .dilation = {2, 1}, .groups = 3}},
    {"depthwise", {2, 8, 6, 6}, {8, 1, 3, 3}, {.padding = 1, .groups = 8}},
    {"depthwise, two a channel", {2, 4, 6, 6}, {8, 1, 3, 3}, {.stride = 2, .groups = 4}},
    {"one channel", {3, 1, 8, 8}, {2, 1, 5, 5}, {.padding = 2}},
    {"one pixel", {3, 4, 1, 1}, {2, 4, 3, 3}, {.padding = 1}},
    {"unbatched", {3, 6, 5}, {2, 3, 3, 3}, {.padding = 1}},
    {"1-d", {2, 3, 11}, {4, 3, 3}, {.stride = 2, .padding = 2}},
    {"1-d, same, even, dilated", {2, 4, 9}, {6, 2, 4}, {.padding = "same", .dilation = 2, .groups = 2}},
    {"1-d, unbatched", {3, 11}, {4, 3, 3}, {}},
    {"3-d", {2, 3, 4, 5, 6}, {4, 3, 2, 3, 2}, {.stride = {1, 2, 1}, .padding = {1, 0, 1}}},
    {"3-d, same, even, in groups", {1, 4, 4, 3, 5}, {4, 2, 2, 3, 4}, {.padding = "same", .groups = 2}},
};

Inputs inputs_of(const Case& c, DType dtype) { return {randn(c.x, dtype), randn(c.weight, dtype), randn({c.weight[0]}, dtype)}; }

// The same values, with channels side by side in memory where there is a batch.
Tensor channels_last(const Tensor& x) {
    const int dims = x.dim();
    if (dims < 3) return x;
    Dims there(0), back(0);
    for (int d = 2; d < dims; ++d) there.push_back(d);
    there.push_back(1);
    back.push_back(dims - 1);
    for (int d = 1; d < dims - 1; ++d) back.push_back(d);
    return permute(permute(x, there).contiguous(), back);
}

// Sums of many products: float32's are compared a little less closely.
double limit(DType dtype) { return dtype == float32 ? 3e-5 : limit_of(dtype); }

}  // namespace

TEST_CASE("convolutions on a CUDA device are the CPU's", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(1);
    for (const Case& c : kCases) {
        for (const DType dtype : {float32, float64, float16, bfloat16}) {
            INFO(c.what << ", " << name(dtype));
            const Inputs inputs = inputs_of(c, dtype);
            const auto with_bias = [&](const Inputs& x) { return conv(x[0], x[1], x[2], c.options); };
            compare(inputs, limit(dtype), with_bias);
            compare({inputs[0], inputs[1]}, limit(dtype), [&](const Inputs& x) { return conv(x[0], x[1], {}, c.options); });
            const bool is_batch = c.x.rank() == c.weight.rank();
            if (!is_batch) continue;
            INFO("channels last");
            const Tensor x = channels_last(inputs[0].to(cuda)), w = inputs[1].to(cuda), b = inputs[2].to(cuda);
            compare_on(inputs, {x, w, b}, limit(dtype), with_bias);
            compare_on(inputs, {x, channels_last(w), b}, limit(dtype), with_bias);
        }
    }
}

TEST_CASE("transposed convolutions on a CUDA device are the CPU's", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(2);
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        INFO(name(dtype));
        const auto check = [&](const Shape& x, const Shape& w, int64_t out, const ConvTransposeOptions& options) {
            INFO("a weight of shape " << w);
            const Inputs inputs = {randn(x, dtype), randn(w, dtype), randn({out}, dtype)};
            const OpCall f = [&](const Inputs& i) {
                return w.rank() == 3 ? conv_transpose1d(i[0], i[1], i[2], options)
                    : w.rank() == 4  ? conv_transpose2d(i[0], i[1], i[2], options)
                                     : conv_transpose3d(i[0], i[1], i[2], options);
            };
            compare(inputs, limit(dtype), f);
            compare_on(inputs, {channels_last(inputs[0].to(cuda)), inputs[1].to(cuda), inputs[2].to(cuda)}, limit(dtype), f);
        };
        check({2, 3, 5}, {3, 4, 3}, 4, {.stride = 2, .padding = 1, .output_padding = 1});
        check({2, 4, 3, 4}, {4, 2, 2, 3}, 4, {.stride = {2, 1}, .groups = 2});
        check({2, 3, 4, 5}, {3, 2, 2, 2}, 2, {.output_padding = {1, 0}, .dilation = 2});  // more at the end than the stride
        check({1, 2, 2, 3, 2}, {2, 1, 2, 2, 2}, 1, {.stride = 2, .padding = 1});
    }
}

TEST_CASE("the gradients of convolutions on a CUDA device have gradients", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    for (const Case& c : kCases) {
        INFO(c.what);
        const Inputs inputs = inputs_of(c, float64);
        const OpCall f = [&](const Inputs& x) { return tanh(conv(x[0], x[1], x[2], c.options)); };
        compare_twice(inputs, 1e-10, f);
        compare_twice({inputs[1], inputs[0], inputs[2]}, 1e-10, [&](const Inputs& x) { return f({x[1], x[0], x[2]}); });
    }
}

TEST_CASE("a convolution's result on a CUDA device lies in memory as its input does", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = randn({2, 4, 6, 6}, cuda), w = randn({8, 4, 3, 3}, cuda), g = channels_last(randn({2, 8, 4, 4}, cuda));
    CHECK(conv2d(x, w).is_contiguous());
    const Tensor y = conv2d(channels_last(x), w);
    CHECK_FALSE(y.is_contiguous());
    CHECK(permute(y, {0, 2, 3, 1}).is_contiguous());
    CHECK(permute(conv_transpose2d(g, w), {0, 2, 3, 1}).is_contiguous());
    CHECK(permute(conv2d(channels_last(x), randn({8, 4, 2, 2}, cuda), {}, {.padding = "same"}), {0, 2, 3, 1}).is_contiguous());
    Tensor leaf = w.detach().requires_grad_();
    Tape tape;
    tape.backward(sum(conv2d(channels_last(x), leaf)));
    CHECK(leaf.grad().is_contiguous());
}

TEST_CASE("convolutions on a CUDA device: views, no elements, autocast, streams", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(4);
    const Tensor x = randn({3, 3, 5, 5}), w = randn({4, 3, 3, 3}), b = randn({4});
    const OpCall f = [](const Inputs& i) { return conv2d(i[0], i[1], i[2], {.padding = 1}); };
    SECTION("one element off from where memory is aligned") {
        for (const DType dtype : {float32, float16}) {
            const Inputs inputs = {x.to(dtype), w.to(dtype), b.to(dtype)};
            compare_on(inputs, {shifted(inputs[0]), shifted(inputs[1]), shifted(inputs[2])}, limit(dtype), f);
        }
    }
    SECTION("neither contiguous nor channels last") {
        const auto turned = [](const Tensor& t, int a, int c) { return t.to(cuda).transpose(a, c).contiguous().transpose(a, c); };
        const Tensor every_second = stack({b, b}, 1).to(cuda).select(1, 0);
        compare_on({x, w, b}, {turned(x, 2, 3), turned(w, 0, 1), every_second}, limit(float32), f);
        const Tensor wide = randn({3, 3, 5, 9}, cuda);
        compare_on({wide.narrow(3, 2, 5).to(cpu), w, b}, {wide.narrow(3, 2, 5), w.to(cuda), b.to(cuda)}, limit(float32), f);
    }
    SECTION("an empty batch") {
        compare({zeros({0, 3, 5, 5}), w, b}, 0, f);
        compare({zeros({2, 0, 5, 5}), zeros({4, 0, 3, 3}), b}, 0, f);
    }
    SECTION("autocast") {
        for (const DType dtype : {float16, bfloat16}) {
            const AutocastScope scope(dtype);
            CHECK(conv2d(x.to(cuda), w.to(cuda), b.to(cuda)).dtype() == dtype);
            compare({x, w, b}, limit(dtype), f);
            compare({x, w.transpose(0, 1)}, limit(dtype), [](const Inputs& i) { return conv_transpose2d(i[0], i[1]); });
        }
    }
    SECTION("on another stream") {
        const Tensor want = f({x, w, b});
        const Stream stream(cuda);
        Tensor y;
        {
            const StreamScope scope(stream);
            y = f({x.to(cuda), w.to(cuda), b.to(cuda)});
        }
        check_close(y, want, limit(float32));
        check_close(f({x.to(cuda), w.to(cuda), b.to(cuda)}), want, limit(float32));
    }
    SECTION("deterministic") {
        const DeterministicScope scope;
        const Inputs inputs = {x.to(cuda), w.to(cuda), b.to(cuda)};
        const std::vector<Tensor> first = outcome(f, inputs), second = outcome(f, inputs);
        for (std::size_t i = 0; i < first.size(); ++i) CHECK(first[i].to_vector<float>() == second[i].to_vector<float>());
        compare({x, w, b}, limit(float32), f);
    }
}

TEST_CASE("what convolutions refuse on a CUDA device", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({2, 3, 8, 8}, cuda), w = ones({4, 3, 3, 3}, cuda);
    FAILS(DeviceError, "conv2d: operands are on different devices: (2, 3, 8, 8) on cuda:0 and (4, 3, 3, 3) on cpu", conv2d(x, w.to(cpu)));
    FAILS(DeviceError, "conv2d: operands are on different devices", conv2d(x, w, ones({4})));
    FAILS(DTypeError, "conv2d: input, weight and bias must have one floating dtype", conv2d(x, w.to(float16)));
    FAILS(ShapeError, "conv2d: a bias of shape (3,) does not fit 4 output channels", conv2d(x, w, ones({3}, cuda)));
    FAILS(DeviceError, "convolution: 2147483648 is more than cuDNN counts to", conv2d(x, w, {}, {.stride = int64_t{1} << 31}));
}

TEST_CASE("a convolution that runs out of memory can be repeated", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({1, 1, 128, 128}, {float64, cuda}), w = ones({96, 1, 3, 3}, {float64, cuda});
    for (const int more : {1, 16}) {  // there is no room for the result (12 MiB); there is, but none for the emulator's workspace
#ifndef TAPIR_CUDA_EMULATED
        if (more == 16) continue;
#endif
        synchronize();
        empty_cache(cuda);
        set_memory_limit(static_cast<std::size_t>(memory_stats(cuda).live_bytes + (more << 20)), cuda);
        FAILS_IN(OutOfMemory, "convolution: ", "MiB", conv2d(x, w, {}, {.padding = 1}));
        set_memory_limit(0, cuda);
        const Tensor y = conv2d(x, w, {}, {.padding = 1});
        CHECK(y[0][0][0][0].item() == 4);
        CHECK(y[0][95][5][5].item() == 9);
    }
}

#ifdef TAPIR_CUDA_EMULATED
namespace {

int searches_of(const std::function<void()>& f) {
    const int before = emulator::convolution_searches();
    f();
    return emulator::convolution_searches() - before;
}

}  // namespace

TEST_CASE("an algorithm is searched once for equal sizes", "[cuda]") {
    const Tensor x = randn({2, 3, 13, 9}, cuda), w = randn({5, 3, 2, 3}, cuda), b = randn({5}, cuda);
    const auto step = [](const Tensor& in, const Tensor& weight, const Tensor& bias, const ConvOptions& options = {}) {
        return [=] {
            Tensor leaf = in.detach().requires_grad_(), leaf_weight = weight.detach().requires_grad_();
            Tape tape;
            tape.backward(sum(conv2d(leaf, leaf_weight, bias, options)));
        };
    };
    CHECK(searches_of(step(x, w, b)) == 3);
    CHECK(searches_of(step(x, w, b)) == 0);
    CHECK(searches_of(step(x + 1, w * 2, {})) == 0);
    const Tensor last = channels_last(x);
    CHECK(searches_of([&] { conv2d(last, w); }) == 1);
    CHECK(searches_of([&] { conv2d(last, w, b); }) == 0);
    CHECK(searches_of([&] { conv2d(x.to(float16), w.to(float16)); }) == 1);
    CHECK(searches_of([&] { conv2d(x, w, b, {.stride = 2}); }) == 1);
    CHECK(searches_of([&] { conv2d(x, w, b, {.stride = 2}); }) == 0);
    {
        const DeterministicScope scope;
        CHECK(searches_of(step(x, w, b)) == 3);
        CHECK(searches_of(step(x, w, b)) == 0);
    }
    CHECK(searches_of(step(x, w, b)) == 0);
}

TEST_CASE("what cuDNN is asked for", "[cuda]") {
    const Tensor x = randn({2, 4, 9, 10}, cuda), w = randn({6, 4, 2, 2}, cuda), b = randn({6}, cuda);
    SECTION("TF32 only where it is allowed, tensor cores in 16 bits") {
        conv2d(x, w);
        CHECK(emulator::last_convolution().math == CUDNN_FMA_MATH);
        set_float32_matmul_precision(MatmulPrecision::high);
        conv2d(x, w);
        set_float32_matmul_precision(MatmulPrecision::highest);
        CHECK(emulator::last_convolution().math == CUDNN_DEFAULT_MATH);
        conv2d(x.to(bfloat16), w.to(bfloat16));
        CHECK(emulator::last_convolution().math == CUDNN_TENSOR_OP_MATH);
        CHECK(emulator::last_convolution().type == CUDNN_DATA_BFLOAT16);
    }
    SECTION("the layout of the first operand") {
        conv2d(channels_last(x), w);
        CHECK(emulator::last_convolution().has_channels_last);
        conv2d(x, channels_last(w));
        CHECK_FALSE(emulator::last_convolution().has_channels_last);
        conv2d(channels_last(x.to(float64)), w.to(float64));
        CHECK_FALSE(emulator::last_convolution().has_channels_last);
    }
    SECTION("no copies of what lies right already") {
        const Tensor last = channels_last(x.to(float16)), weight = channels_last(w.to(float16)), bias = b.to(float16);
        conv2d(last, weight, bias);
        const int kernels = emulator::kernels_launched();
        conv2d(last, weight, bias);
        conv2d(x, w, b);
        CHECK(emulator::kernels_launched() == kernels);
    }
    SECTION("the bias in the same call, where there is one that takes it") {
        conv2d(x, w, b);
        CHECK(emulator::last_convolution().has_bias);
        conv2d(x.to(float64), w.to(float64), b.to(float64));
        CHECK_FALSE(emulator::last_convolution().has_bias);
    }
    SECTION("deterministic algorithms") {
        const Tensor g = randn({2, 6, 8, 9}, cuda);
        conv_transpose2d(g, w);
        CHECK_FALSE(emulator::last_convolution().is_deterministic);
        const DeterministicScope scope;
        conv_transpose2d(g, w);
        CHECK(emulator::last_convolution().is_deterministic);
    }
    SECTION("another algorithm where the first is refused, from then on") {
        const Tensor weight = randn({6, 4, 3, 3}, cuda);
        conv2d(x, weight);
        const int winograd = emulator::last_convolution().algorithm;
        CHECK(winograd == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD);
        conv2d(x, weight, {}, {.stride = 2});
        CHECK(emulator::last_convolution().algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
    }
    SECTION("contiguous tensors where it takes no channels that are last") {
        const Tensor wide = channels_last(randn({2, 4, 3, 4, 5}, cuda)), weight = randn({4, 2, 2, 2, 2}, cuda);
        const Tensor y = conv3d(wide, weight, {}, {.groups = 2});
        check_close(y, conv3d(wide.to(cpu), weight.to(cpu), {}, {.groups = 2}), limit(float32));
        CHECK_FALSE(emulator::last_convolution().has_channels_last);
    }
}

TEST_CASE("errors of cuDNN name the line", "[cuda]") {
    const Tensor x = randn({2, 4, 9, 10}, cuda), w = randn({6, 4, 2, 2}, cuda);
    synchronize();
    emulator::fail_next_convolution(CUDNN_STATUS_EXECUTION_FAILED);
    FAILS(DeviceError, "convolution: cuDNN: CUDNN_STATUS_EXECUTION_FAILED", conv2d(x, w));
    emulator::fail_next_convolution(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
    FAILS(OutOfMemory, "convolution: cuDNN: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", conv2d(x, w));
    check_close(conv2d(x, w), conv2d(x.to(cpu), w.to(cpu)), limit(float32));

    // A kernel before it went wrong: that one is named.
    emulator::fail_next_kernel(cudaErrorIllegalAddress);
    const Tensor y = exp(x);
    while (cudaPeekAtLastError() == cudaSuccess) {}
    emulator::fail_next_convolution(CUDNN_STATUS_EXECUTION_FAILED);
    std::string what;
    try {
        conv2d(x, w);
    } catch (const DeviceError& error) {
        what = error.what();
    }
    emulator::clear_errors();
    CHECK(what.find("an illegal memory access was encountered") != std::string::npos);
}

TEST_CASE("a batch with more elements than cuDNN counts goes in parts", "[cuda]") {
    // Nobody touches most of the memory. Strides this large leave few elements to compute with.
    synchronize();
    empty_cache(cuda);
    emulator::set_memory(std::size_t{12} << 30);
    {
        constexpr int64_t side = 1 << 15;
        const Tensor x = empty({3, 1, side, side}, {float16, cuda});
        const auto at = [&](int64_t row, int64_t column) { return x.narrow(2, row, 1).narrow(3, column, 1); };
        for (const int64_t row : {int64_t{0}, side / 2}) {
            for (const int64_t column : {int64_t{0}, side / 2}) at(row, column).zero_();
        }
        at(0, 0).copy_(tensor({1, 2, 3}).to(float16).view({3, 1, 1, 1}).to(cuda));
        at(side / 2, side / 2).copy_(tensor({10, 20, 30}).to(float16).view({3, 1, 1, 1}).to(cuda));
        Tensor w = tensor({1, 3}).to(float16).view({2, 1, 1, 1}).to(cuda).requires_grad_();
        Tape tape;
        const Tensor y = conv2d(x, w, {}, {.stride = side / 2});
        CHECK(y.to_vector<float>() == std::vector<float>{1, 0, 0, 10, 3, 0, 0, 30, 2, 0, 0, 20, 6, 0, 0, 60, 3, 0, 0, 30, 9, 0, 0, 90});
        tape.backward(sum(y));
        CHECK(w.grad().to_vector<float>() == std::vector<float>{66, 66});
    }
    synchronize();
    empty_cache(cuda);
    emulator::set_memory(std::size_t{256} << 20);
}
#endif
