// Convolutions by cuDNN, through its older interface of descriptors and numbered algorithms.
//
// The data that cuDNN needs for a convolution (descriptors, the algorithms in the order of its heuristics) is made once for
// each set of sizes, layout and type, and kept for the thread. Its convolutions have two or three spatial dimensions:
// with one, a row is an image of height 1.
#include <cudnn.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tapir/core/deterministic.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/hash_impl.h"
#include "tapir/cuda/allocator.h"
#include "tapir/cuda/thread_own.h"
#include "tapir/ops/convolution/convolution_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"
#include "tapir/ops/linear/matmul.h"

namespace tapir::gpu {
namespace {

using std::int64_t;

constexpr std::size_t kUsualWorkspace = std::size_t{512} << 20;  // algorithms that need more come after all others
constexpr int64_t kMost = (int64_t{1} << 31) - 1;                // the most of anything that cuDNN counts, elements too

const char* op_name() { return detail::thread.op ? detail::thread.op : "convolution"; }

[[noreturn]] void fail_cudnn(cudnnStatus_t status, const char* call) {
    // An earlier kernel's error is reported by whichever CUDA call comes next.
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) fail_cuda(error, call);
    const Loc loc = detail::thread.op_loc;
    const bool is_memory =
        status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED || status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    if (is_memory) fail<OutOfMemory>(loc, "{}: {}: {}", op_name(), call, cudnnGetErrorString(status));
    fail<DeviceError>(loc, "{}: {}: {}", op_name(), call, cudnnGetErrorString(status));
}
void check(cudnnStatus_t status, const char* call) {
    if (status != CUDNN_STATUS_SUCCESS) fail_cudnn(status, call);
}
bool is_unsupported(cudnnStatus_t status) { return status >= CUDNN_STATUS_NOT_SUPPORTED && status < CUDNN_STATUS_INTERNAL_ERROR; }

// --- Handles and descriptors ---------------------------------------------------------------------------------------------

template <auto destroy>
struct Destroy {
    template <class T>
    void operator()(T* made) const {
        destroy(made);
    }
};
template <class Handle, auto create, auto destroy>
struct Owned : std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>> {
    Owned() {
        Handle made;
        check(create(&made), "cuDNN, making a descriptor");
        this->reset(made);
    }
};
using TensorDesc = Owned<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDesc = Owned<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvDesc = Owned<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;
using ActivationDesc = Owned<cudnnActivationDescriptor_t, cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor>;

struct Handles {
    cudnnHandle_t of[kMaxDevices];
    Stream* stream[kMaxDevices];  // the stream that calls go to
    bool made[kMaxDevices];
};

// Returns the thread's handle, set to the current stream.
cudnnHandle_t handle() {
    auto& handles = thread_own<Handles>();
    const int device = selected_device();
    if (!handles.made[device]) {
        check(cudnnCreate(&handles.of[device]), "cudnnCreate");
        handles.made[device] = true;
    }
    if (Stream& stream = current(); handles.stream[device] != &stream) {
        check(cudnnSetStream(handles.of[device], stream.handle), "cudnnSetStream");
        handles.stream[device] = &stream;
    }
    return handles.of[device];
}

// --- Plans ---------------------------------------------------------------------------------------------------------------

// Everything that the choice of an algorithm depends on. Has no gaps, because it is compared and hashed as bytes.
struct Key {
    Convolution conv;
    ConvPart part;
    std::uint8_t dtype, device, allows_tf32, channels_last, deterministic;
    std::uint8_t none[2];
};

struct Algorithm {
    int number;
    cudnnMathType_t math;
    std::size_t workspace;
};

struct Plan {
    TensorDesc x, y, bias;
    FilterDesc w;
    ConvDesc conv;
    ActivationDesc identity;
    std::vector<Algorithm> algorithms;  // the best first; those that fail are removed
    bool fuses_bias = true;             // until cuDNN says that it does not
};
constexpr std::size_t kMostPlans = 1024;  // for each thread: then it begins anew

cudnnDataType_t data_type(DType dtype) {
    switch (dtype) {
        case DType::float16: return CUDNN_DATA_HALF;
        case DType::bfloat16: return CUDNN_DATA_BFLOAT16;
        case DType::float64: return CUDNN_DATA_DOUBLE;
        default: return CUDNN_DATA_FLOAT;
    }
}

int to_int(int64_t number) {
    if (number > kMost) {
        fail<DeviceError>(detail::thread.op_loc, "{}: {} is more than cuDNN counts to", op_name(), number);
    }
    return static_cast<int>(number);
}

// The first two sizes, then the spatial ones.
struct Sizes {
    int of[5], rank;
    Sizes(const Convolution& c, int64_t first, int64_t second, const int64_t* spatial) : rank(c.dims == 3 ? 5 : 4) {
        of[0] = to_int(first);
        of[1] = to_int(second);
        for (int d = 2; d < rank; ++d) of[d] = to_int(spatial[3 - rank + d]);
    }
};

void set_tensor(const TensorDesc& desc, const Sizes& sizes, DType dtype, bool channels_last) {
    int strides[5];
    int64_t step = 1;
    const auto next = [&](int d) {
        strides[d] = to_int(step);
        step *= sizes.of[d];
    };
    if (channels_last) next(1);
    for (int d = sizes.rank; d-- > 2;) next(d);
    if (!channels_last) next(1);
    next(0);
    check(cudnnSetTensorNdDescriptor(desc.get(), data_type(dtype), sizes.rank, sizes.of, strides), "cudnnSetTensorNdDescriptor");
}

void set_convolution(const ConvDesc& desc, const Convolution& c, DType dtype) {
    int padding[3], stride[3], dilation[3];
    const int dims = c.dims == 3 ? 3 : 2;
    for (int d = 0; d < dims; ++d) {
        padding[d] = to_int(c.before[3 - dims + d]);
        stride[d] = to_int(c.stride[3 - dims + d]);
        dilation[d] = to_int(c.dilation[3 - dims + d]);
    }
    // 16-bit types are summed in float32.
    const cudnnDataType_t computed = dtype == float64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    check(cudnnSetConvolutionNdDescriptor(desc.get(), dims, padding, stride, dilation, CUDNN_CROSS_CORRELATION, computed),
          "cudnnSetConvolutionNdDescriptor");
    check(cudnnSetConvolutionGroupCount(desc.get(), to_int(c.groups)), "cudnnSetConvolutionGroupCount");
}

// The calls of cuDNN that choose an algorithm, by part.
struct OutputCalls {
    using Found = cudnnConvolutionFwdAlgoPerf_t;
    using Algo = cudnnConvolutionFwdAlgo_t;
    static constexpr int kAlgorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;
    static cudnnStatus_t search(const Plan& p, int most, int* count, Found* found) {
        return cudnnGetConvolutionForwardAlgorithm_v7(handle(), p.x.get(), p.w.get(), p.conv.get(), p.y.get(), most, count, found);
    }
    static cudnnStatus_t workspace(const Plan& p, Algo algo, std::size_t* bytes) {
        return cudnnGetConvolutionForwardWorkspaceSize(handle(), p.x.get(), p.w.get(), p.conv.get(), p.y.get(), algo, bytes);
    }
};
struct InputCalls {
    using Found = cudnnConvolutionBwdDataAlgoPerf_t;
    using Algo = cudnnConvolutionBwdDataAlgo_t;
    static constexpr int kAlgorithms = CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT;
    static cudnnStatus_t search(const Plan& p, int most, int* count, Found* found) {
        return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle(), p.w.get(), p.y.get(), p.conv.get(), p.x.get(), most, count, found);
    }
    static cudnnStatus_t workspace(const Plan& p, Algo algo, std::size_t* bytes) {
        return cudnnGetConvolutionBackwardDataWorkspaceSize(handle(), p.w.get(), p.y.get(), p.conv.get(), p.x.get(), algo, bytes);
    }
};
struct WeightCalls {
    using Found = cudnnConvolutionBwdFilterAlgoPerf_t;
    using Algo = cudnnConvolutionBwdFilterAlgo_t;
    static constexpr int kAlgorithms = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT;
    static cudnnStatus_t search(const Plan& p, int most, int* count, Found* found) {
        return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle(), p.x.get(), p.y.get(), p.conv.get(), p.w.get(), most, count, found);
    }
    static cudnnStatus_t workspace(const Plan& p, Algo algo, std::size_t* bytes) {
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle(), p.x.get(), p.y.get(), p.conv.get(), p.w.get(), algo, bytes);
    }
};

template <class Calls>
std::vector<Algorithm> find_algorithms(const Plan& plan, const Key& key) {
    constexpr int most = 2 * Calls::kAlgorithms;  // each with tensor cores and without
    typename Calls::Found found[most];
    int count = 0;
    const cudnnStatus_t status = Calls::search(plan, most, &count, found);
    if (is_unsupported(status)) return {};
    check(status, "cuDNN, choosing an algorithm");
    const bool fma_only = key.dtype == static_cast<std::uint8_t>(float32) && !key.allows_tf32;
    std::vector<Algorithm> algorithms;
    for (int i = 0; i < count; ++i) {
        if (found[i].status != CUDNN_STATUS_SUCCESS) continue;
        if (key.deterministic && found[i].determinism != CUDNN_DETERMINISTIC) continue;
        Algorithm algorithm{found[i].algo, fma_only ? CUDNN_FMA_MATH : found[i].mathType, 0};
        check(cudnnSetConvolutionMathType(plan.conv.get(), algorithm.math), "cudnnSetConvolutionMathType");
        const bool is_there = Calls::workspace(plan, found[i].algo, &algorithm.workspace) == CUDNN_STATUS_SUCCESS;
        if (is_there) algorithms.push_back(algorithm);
    }
    const auto excess = [](const Algorithm& a) { return a.workspace > kUsualWorkspace ? a.workspace : 0; };
    std::stable_sort(algorithms.begin(), algorithms.end(), [&](const auto& a, const auto& b) { return excess(a) < excess(b); });
    return algorithms;
}

cudnnMathType_t wanted_math(const Key& key) {
    const auto dtype = static_cast<DType>(key.dtype);
    if (dtype == float32) return key.allows_tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
    return dtype == float64 ? CUDNN_DEFAULT_MATH : CUDNN_TENSOR_OP_MATH;
}

Plan make_plan(const Key& key) {
    const Convolution& c = key.conv;
    const auto dtype = static_cast<DType>(key.dtype);
    const bool last = key.channels_last;
    constexpr int64_t ones[3] = {1, 1, 1};
    Plan plan;
    set_tensor(plan.x, {c, c.batch, c.in_channels, c.in}, dtype, last);
    set_tensor(plan.y, {c, c.batch, c.out_channels, c.out}, dtype, last);
    set_tensor(plan.bias, {c, 1, c.out_channels, ones}, dtype, last);
    const Sizes filter(c, c.out_channels, c.group_in(), c.kernel);
    check(cudnnSetFilterNdDescriptor(plan.w.get(), data_type(dtype), last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW, filter.rank, filter.of),
          "cudnnSetFilterNdDescriptor");
    set_convolution(plan.conv, c, dtype);
    check(cudnnSetConvolutionMathType(plan.conv.get(), wanted_math(key)), "cudnnSetConvolutionMathType");
    check(cudnnSetActivationDescriptor(plan.identity.get(), CUDNN_ACTIVATION_IDENTITY, CUDNN_PROPAGATE_NAN, 0), "cudnnSetActivationDescriptor");
    plan.algorithms = key.part == ConvPart::output ? find_algorithms<OutputCalls>(plan, key)
        : key.part == ConvPart::input              ? find_algorithms<InputCalls>(plan, key)
                                                   : find_algorithms<WeightCalls>(plan, key);
    return plan;
}

Plan& plan_of(const ConvolutionArgs& a) {
    Key key{};
    key.conv = a.conv;
    key.part = a.part;
    key.dtype = static_cast<std::uint8_t>(a.dtype);
    key.device = static_cast<std::uint8_t>(selected_device());
    key.allows_tf32 = a.dtype == float32 && float32_matmul_precision() != MatmulPrecision::highest;
    key.channels_last = a.channels_last;
    key.deterministic = is_deterministic();
    auto& plans = thread_own<std::unordered_map<Key, Plan, detail::HashOfBytes<Key>, detail::EqualBytes<Key>>>();
    if (const auto found = plans.find(key); found != plans.end()) return found->second;
    if (plans.size() == kMostPlans) plans.clear();
    return plans.emplace(key, make_plan(key)).first->second;
}

// --- Running -------------------------------------------------------------------------------------------------------------

// Computes y = conv(x, w) + bias in one call. Returns false, without effect, if cuDNN cannot do that.
bool run_with_bias(const ConvolutionArgs& a, Plan& plan, const Algorithm& algorithm, void* workspace, const void* one, const void* zero) {
    // Without a nonlinearity only one algorithm can.
    if (!plan.fuses_bias || algorithm.number != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) return false;
    const auto algo = static_cast<cudnnConvolutionFwdAlgo_t>(algorithm.number);
    const cudnnStatus_t status = cudnnConvolutionBiasActivationForward(handle(), one, plan.x.get(), a.a, plan.w.get(), a.b, plan.conv.get(), algo,
                                                                       workspace, algorithm.workspace, zero, plan.y.get(), a.out, plan.bias.get(),
                                                                       a.bias, plan.identity.get(), plan.y.get(), a.out);
    plan.fuses_bias = status == CUDNN_STATUS_SUCCESS;  // the call without a bias reports other errors, too
    return plan.fuses_bias;
}

// Adds the bias: out (batch, out_channels, spatial...) += bias.
void add_bias(const ConvolutionArgs& a) {
    const Convolution& c = a.conv;
    const int64_t sizes[] = {c.batch, c.out_channels, c.out_volume()};
    const int64_t next_channel = a.channels_last ? 1 : c.out_volume();
    const int64_t next_pixel = a.channels_last ? c.out_channels : 1;
    kernels::ElementwiseArgs args;
    args.kernel = {Elementwise::add, -1, kernels::compute_of(a.dtype), false, nullptr};
    args.operands = 2;
    args.in[0] = {a.out, a.dtype, {c.out_channels * c.out_volume(), next_channel, next_pixel}};
    args.in[1] = {a.bias, a.dtype, {0, 1, 0}};
    args.out = a.out;
    args.out_dtype = a.dtype;
    args.numel = sizes[0] * sizes[1] * sizes[2];
    args.rank = 3;
    for (int d = 0; d < 3; ++d) {
        args.sizes[d] = sizes[d];
        args.out_strides[d] = args.in[0].strides[d];
    }
    elementwise(args);
}

cudnnStatus_t run(const ConvolutionArgs& a, Plan& plan, const Algorithm& algorithm, bool accumulate, bool& has_bias) {
    const Scratch scratch(algorithm.workspace);
    void* const workspace = algorithm.workspace > 0 ? scratch.as<void>() : nullptr;
    constexpr float numbers32[] = {0, 1};
    constexpr double numbers64[] = {0, 1};
    const auto number = [&](int i) { return a.dtype == float64 ? static_cast<const void*>(numbers64 + i) : numbers32 + i; };
    const void *one = number(1), *beta = number(accumulate ? 1 : 0);
    check(cudnnSetConvolutionMathType(plan.conv.get(), algorithm.math), "cudnnSetConvolutionMathType");
    switch (a.part) {
        case ConvPart::output:
            has_bias = a.bias && run_with_bias(a, plan, algorithm, workspace, one, number(0));
            if (has_bias) return CUDNN_STATUS_SUCCESS;
            return cudnnConvolutionForward(handle(), one, plan.x.get(), a.a, plan.w.get(), a.b, plan.conv.get(),
                                           static_cast<OutputCalls::Algo>(algorithm.number), workspace, algorithm.workspace, beta, plan.y.get(),
                                           a.out);
        case ConvPart::input:
            return cudnnConvolutionBackwardData(handle(), one, plan.w.get(), a.b, plan.y.get(), a.a, plan.conv.get(),
                                                static_cast<InputCalls::Algo>(algorithm.number), workspace, algorithm.workspace, beta, plan.x.get(),
                                                a.out);
        default:
            return cudnnConvolutionBackwardFilter(handle(), one, plan.x.get(), a.a, plan.y.get(), a.b, plan.conv.get(),
                                                  static_cast<WeightCalls::Algo>(algorithm.number), workspace, algorithm.workspace, beta,
                                                  plan.w.get(), a.out);
    }
}

bool with_cudnn(const ConvolutionArgs& a, bool accumulate) {
    Plan& plan = plan_of(a);
    // Algorithms that the heuristics propose are sometimes refused when they are to run.
    while (!plan.algorithms.empty()) {
        bool has_bias = false;
        const cudnnStatus_t status = run(a, plan, plan.algorithms.front(), accumulate, has_bias);
        if (is_unsupported(status)) {
            plan.algorithms.erase(plan.algorithms.begin());
            continue;
        }
        check(status, "cuDNN");
        launched(current(), cudaSuccess);
        if (a.bias && !has_bias) add_bias(a);
        return true;
    }
    if (a.channels_last) return false;
    fail<DeviceError>(detail::thread.op_loc, "{}: cuDNN has no {}algorithm for these sizes in {}", op_name(),
                      is_deterministic() ? "deterministic " : "", name(a.dtype));
}

int64_t largest_tensor(const Convolution& c) { return c.batch * std::max(c.in_channels * c.in_volume(), c.out_channels * c.out_volume()); }

bool in_parts(const ConvolutionArgs& a, bool accumulate) {
    const Convolution& c = a.conv;
    if (largest_tensor(c) <= kMost || c.batch == 1) return with_cudnn(a, accumulate);
    // Runs one part of the batch after the other; the gradients of the weight add up. Eight images of any size are a multiple of
    // 16 bytes.
    const auto size = static_cast<int64_t>(itemsize(a.dtype));
    ConvolutionArgs first = a, second = a;
    first.conv.batch = c.batch < 16 ? c.batch / 2 : c.batch / 16 * 8;
    second.conv.batch = c.batch - first.conv.batch;
    const int64_t x_bytes = first.conv.batch * c.in_channels * c.in_volume() * size;
    const int64_t y_bytes = first.conv.batch * c.out_channels * c.out_volume() * size;
    const auto after = [](const void* p, int64_t bytes) { return static_cast<const std::byte*>(p) + bytes; };
    second.a = after(a.a, a.part == ConvPart::input ? y_bytes : x_bytes);
    if (a.part == ConvPart::weight) {
        second.b = after(a.b, y_bytes);
    } else {
        second.out = static_cast<std::byte*>(a.out) + (a.part == ConvPart::input ? x_bytes : y_bytes);
    }
    return in_parts(first, accumulate) && in_parts(second, accumulate || a.part == ConvPart::weight);
}

}  // namespace

bool convolve(const ConvolutionArgs& args) { return in_parts(args, /*accumulate=*/false); }

}  // namespace tapir::gpu
