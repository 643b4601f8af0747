// The emulator's convolutions, from their definition:
//     y[n, o, p] = sum over c, k of x[n, c, p stride + k dilation - padding] w[o, c, k]
// Each part is the sum of the same products, into another of the three arrays.
#include "cudnn.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "tapir/core/dtype.h"

struct EmulatedDnnHandle {
    cudaStream_t stream = nullptr;
};
struct EmulatedDnnActivation {
    cudnnActivationMode_t mode;
};

namespace {

using std::int64_t;
using Spatial = std::array<int64_t, 3>;

constexpr int64_t kMostElements = (int64_t{1} << 31) - 1;

// (first, second, spatial...) with the spatial sizes of 4 dimensions in the last two of three places.
struct Array {
    cudnnDataType_t type{};
    int dims = 0;
    int64_t first = 0, second = 0;
    Spatial size{1, 1, 1};
    int64_t first_stride = 0, second_stride = 0;
    Spatial stride{0, 0, 0};

    void set(cudnnDataType_t t, int rank, const int sizes[], const int64_t strides[]) {
        *this = {};
        type = t;
        dims = rank;
        first = sizes[0];
        second = sizes[1];
        first_stride = strides[0];
        second_stride = strides[1];
        for (int d = 2; d < rank; ++d) {
            size[static_cast<std::size_t>(d + 3 - rank)] = sizes[d];
            stride[static_cast<std::size_t>(d + 3 - rank)] = strides[d];
        }
    }
    int64_t numel() const { return first * second * size[0] * size[1] * size[2]; }
    int64_t at(int64_t i, int64_t j, const Spatial& p) const {
        return i * first_stride + j * second_stride + p[0] * stride[0] + p[1] * stride[1] + p[2] * stride[2];
    }
    // Without gaps, in this order.
    bool is_packed(bool channels_last) const {
        int64_t step = 1;
        const auto is_next = [&](int64_t n, int64_t s) {
            const bool is = s == step;
            step *= n;
            return is;
        };
        bool is = !channels_last || is_next(second, second_stride);
        for (std::size_t d = 3; d-- > static_cast<std::size_t>(5 - dims);) is = is_next(size[d], stride[d]) && is;
        if (!channels_last) is = is_next(second, second_stride) && is;
        return is_next(first, first_stride) && is;
    }
};

}  // namespace

struct EmulatedDnnTensor : Array {};
struct EmulatedDnnFilter : Array {
    cudnnTensorFormat_t format{};
};
struct EmulatedDnnConvolution {
    int dims = 0, groups = 1;
    Spatial padding{0, 0, 0}, stride{1, 1, 1}, dilation{1, 1, 1};
    cudnnDataType_t computed{};
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace {

double load(cudnnDataType_t type, const void* p, int64_t i) {
    switch (type) {
        case CUDNN_DATA_HALF: return static_cast<const tapir::Half*>(p)[i];
        case CUDNN_DATA_BFLOAT16: return static_cast<const tapir::BFloat16*>(p)[i];
        case CUDNN_DATA_FLOAT: return static_cast<const float*>(p)[i];
        default: return static_cast<const double*>(p)[i];
    }
}

void store(cudnnDataType_t type, void* p, int64_t i, double x) {
    switch (type) {
        case CUDNN_DATA_HALF: static_cast<tapir::Half*>(p)[i] = tapir::Half(static_cast<float>(x)); break;
        case CUDNN_DATA_BFLOAT16: static_cast<tapir::BFloat16*>(p)[i] = tapir::BFloat16(static_cast<float>(x)); break;
        case CUDNN_DATA_FLOAT: static_cast<float*>(p)[i] = static_cast<float>(x); break;
        default: static_cast<double*>(p)[i] = x;
    }
}

template <class F>
void for_positions(const Spatial& size, const F& f) {
    for (int64_t i = 0; i < size[0]; ++i)
        for (int64_t j = 0; j < size[1]; ++j)
            for (int64_t k = 0; k < size[2]; ++k) f(Spatial{i, j, k});
}

enum class Part { output, input, weight };

struct Work {
    Part part;
    Array x, w, y;
    EmulatedDnnConvolution conv;
    double alpha, beta;
    const void *a, *b, *bias;
    void *out, *workspace;
    std::size_t workspace_bytes;

    // f(place in x, place in w, place in y) for each product.
    template <class F>
    void for_products(const F& f) const {
        const int64_t group_in = w.second, group_out = w.first / conv.groups;
        for (int64_t n = 0; n < x.first; ++n)
            for (int64_t o = 0; o < w.first; ++o)
                for (int64_t c = 0; c < group_in; ++c)
                    for_positions(y.size, [&](const Spatial& p) {
                        for_positions(w.size, [&](const Spatial& k) {
                            Spatial q;
                            for (std::size_t d = 0; d < 3; ++d) {
                                q[d] = p[d] * conv.stride[d] + k[d] * conv.dilation[d] - conv.padding[d];
                                if (q[d] < 0 || q[d] >= x.size[d]) return;
                            }
                            f(x.at(n, o / group_out * group_in + c, q), w.at(o, c, k), y.at(n, o, p));
                        });
                    });
    }
    void run() const {
        std::memset(workspace, 0x7f, workspace_bytes);
        const Array& target = part == Part::output ? y : part == Part::input ? x : w;
        std::vector<double> sums(static_cast<std::size_t>(target.numel()));  // all are packed
        const auto add = [&](int64_t i, double product) { sums[static_cast<std::size_t>(i)] += product; };
        for_products([&](int64_t in_x, int64_t in_w, int64_t in_y) {
            switch (part) {
                case Part::output: return add(in_y, load(x.type, a, in_x) * load(x.type, b, in_w));
                case Part::input: return add(in_x, load(x.type, a, in_y) * load(x.type, b, in_w));
                case Part::weight: return add(in_w, load(x.type, a, in_x) * load(x.type, b, in_y));
            }
        });
        for (int64_t i = 0; i < target.first; ++i)
            for (int64_t j = 0; j < target.second; ++j)
                for_positions(target.size, [&](const Spatial& p) {
                    const int64_t place = target.at(i, j, p);
                    double value = alpha * sums[static_cast<std::size_t>(place)];
                    if (beta != 0) value += beta * load(target.type, out, place);
                    if (bias) value += load(target.type, bias, j);
                    store(target.type, out, place, value);
                });
    }
};

// --- What is refused -----------------------------------------------------------------------------------------------------

bool is_channels_last(const Array& x, const Array& y) { return !x.is_packed(false) || !y.is_packed(false); }

cudnnStatus_t check_descriptors(const EmulatedDnnTensor& x, const EmulatedDnnFilter& w, const EmulatedDnnConvolution& conv,
                                const EmulatedDnnTensor& y) {
    if (x.dims != y.dims || x.dims != w.dims || x.dims != conv.dims + 2) return CUDNN_STATUS_BAD_PARAM;
    if (x.type != y.type || x.type != w.type) return CUDNN_STATUS_BAD_PARAM;
    if ((x.type == CUDNN_DATA_DOUBLE) != (conv.computed == CUDNN_DATA_DOUBLE)) return CUDNN_STATUS_NOT_SUPPORTED;
    if (conv.computed != CUDNN_DATA_DOUBLE && conv.computed != CUDNN_DATA_FLOAT) return CUDNN_STATUS_NOT_SUPPORTED;
    if (x.first != y.first || y.second != w.first || x.second != w.second * conv.groups || w.first % conv.groups != 0) {
        return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    }
    for (std::size_t d = 0; d < 3; ++d) {
        const int64_t room = x.size[d] + 2 * conv.padding[d] - ((w.size[d] - 1) * conv.dilation[d] + 1);
        if (room < 0 || y.size[d] != room / conv.stride[d] + 1) return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    }
    const bool last = is_channels_last(x, y);
    const bool may_be_last = x.is_packed(true) && y.is_packed(true);  // sizes of 1 leave it open
    if (last && !may_be_last) return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
    if (w.format == CUDNN_TENSOR_NHWC ? !may_be_last : last) return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
    if (last && x.type == CUDNN_DATA_DOUBLE) return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
    // The layers of several groups in three dimensions are among what has no kernel for channels that are last.
    if (last && conv.groups > 1 && conv.dims == 3) return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
    return CUDNN_STATUS_SUCCESS;
}

// --- Algorithms ----------------------------------------------------------------------------------------------------------

// Numbers of the algorithms that compute gradients, where 0 is not deterministic; Winograd's has another number for each part.
constexpr int kWinograd[] = {6, 4, 5};

bool is_deterministic(Part part, int algo) { return part == Part::output || algo != 0; }

std::size_t workspace_of(Part part, const Array& y, int algo) {
    if (algo == kWinograd[static_cast<int>(part)]) return static_cast<std::size_t>(y.numel()) * 16;
    return algo == 1 ? 1024 : 0;
}

bool is_there(Part part, int algo) { return algo == 0 || algo == 1 || algo == kWinograd[static_cast<int>(part)]; }

std::atomic<int> searches{0}, runs{0}, next_status{0};
std::mutex last_mutex;
emulator::LastConvolution last{};

template <class Perf>
cudnnStatus_t search(Part part, const EmulatedDnnTensor& x, const EmulatedDnnFilter& w, const EmulatedDnnConvolution& conv,
                     const EmulatedDnnTensor& y, int most, int* count, Perf* found) {
    ++searches;
    *count = 0;
    if (most <= 0) return CUDNN_STATUS_BAD_PARAM;
    if (const cudnnStatus_t status = check_descriptors(x, w, conv, y); status != CUDNN_STATUS_SUCCESS) return status;
    const bool is_3x3 = w.size[1] == 3 && w.size[2] == 3;
    const auto add = [&](int algo, cudnnStatus_t status) {
        if (*count == most) return;
        Perf& perf = found[(*count)++];
        perf = {};
        perf.algo = static_cast<decltype(perf.algo)>(algo);
        perf.status = status;
        perf.memory = workspace_of(part, y, algo);
        perf.determinism = is_deterministic(part, algo) ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
        perf.mathType = conv.math == CUDNN_TENSOR_OP_MATH && algo != 0 ? CUDNN_TENSOR_OP_MATH : CUDNN_DEFAULT_MATH;
    };
    if (is_3x3) add(kWinograd[static_cast<int>(part)], CUDNN_STATUS_SUCCESS);
    if (part == Part::output) {
        add(1, CUDNN_STATUS_SUCCESS);
        add(0, CUDNN_STATUS_SUCCESS);
    } else {
        add(0, CUDNN_STATUS_SUCCESS);
        add(1, CUDNN_STATUS_SUCCESS);
    }
    add(part == Part::output ? 4 : 2, CUDNN_STATUS_NOT_SUPPORTED);  // FFT
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_workspace(Part part, const EmulatedDnnTensor& x, const EmulatedDnnFilter& w, const EmulatedDnnConvolution& conv,
                            const EmulatedDnnTensor& y, int algo, std::size_t* bytes) {
    if (const cudnnStatus_t status = check_descriptors(x, w, conv, y); status != CUDNN_STATUS_SUCCESS) return status;
    if (!is_there(part, algo)) return CUDNN_STATUS_NOT_SUPPORTED;
    *bytes = workspace_of(part, y, algo);
    return CUDNN_STATUS_SUCCESS;
}

struct Scales {
    const void *alpha, *beta;
};

cudnnStatus_t run(Part part, cudnnHandle_t handle, const EmulatedDnnTensor& x, const EmulatedDnnFilter& w, const EmulatedDnnConvolution& conv,
                  const EmulatedDnnTensor& y, int algo, Scales scales, const void* a, const void* b, const void* bias, void* out, void* workspace,
                  std::size_t workspace_bytes) {
    if (const int status = next_status.exchange(0)) return static_cast<cudnnStatus_t>(status);
    if (const cudnnStatus_t status = check_descriptors(x, w, conv, y); status != CUDNN_STATUS_SUCCESS) return status;
    if (!is_there(part, algo)) return CUDNN_STATUS_NOT_SUPPORTED;
    // What the search proposes and the call refuses.
    const bool is_plain = conv.groups == 1 && conv.stride == Spatial{1, 1, 1} && conv.dilation == Spatial{1, 1, 1};
    if (algo == kWinograd[static_cast<int>(part)] && !is_plain) return CUDNN_STATUS_NOT_SUPPORTED;
    if (!a || !b || !out) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    const std::size_t needed = workspace_of(part, y, algo);
    if (workspace_bytes < needed || (needed > 0 && !workspace)) return CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT;
    for (const void* p : {a, b, static_cast<const void*>(out)}) {
        if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    }
    const auto scale = [&](const void* p) {
        return conv.computed == CUDNN_DATA_DOUBLE ? *static_cast<const double*>(p) : double{*static_cast<const float*>(p)};
    };
    const Work work{part, x, w, y, conv, scale(scales.alpha), scale(scales.beta), a, b, bias, out, workspace, needed};
    ++runs;
    {
        const std::lock_guard lock(last_mutex);
        last = {algo, conv.math, x.type, is_deterministic(part, algo), is_channels_last(x, y), bias != nullptr, needed};
    }
    emulator::enqueue(handle->stream, [work] { work.run(); });
    return CUDNN_STATUS_SUCCESS;
}

template <class Desc>
cudnnStatus_t create(Desc** desc) {
    *desc = new Desc{};
    return CUDNN_STATUS_SUCCESS;
}
template <class Desc>
cudnnStatus_t destroy(Desc* desc) {
    delete desc;
    return CUDNN_STATUS_SUCCESS;
}

bool are_positive(int n, const int numbers[]) {
    for (int i = 0; i < n; ++i) {
        if (numbers[i] <= 0) return false;
    }
    return true;
}

}  // namespace

namespace emulator {

int convolution_searches() { return searches; }
int convolutions_run() { return runs; }
LastConvolution last_convolution() {
    const std::lock_guard lock(last_mutex);
    return last;
}
void fail_next_convolution(cudnnStatus_t status) { next_status = status; }

}  // namespace emulator

const char* cudnnGetErrorString(cudnnStatus_t status) {
    switch (status) {
        case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
        case CUDNN_STATUS_BAD_PARAM_NULL_POINTER: return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
        case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER: return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
        case CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT: return "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT";
        case CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH: return "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH";
        case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
        case CUDNN_STATUS_NOT_SUPPORTED_LAYOUT: return "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT";
        case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED: return "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
        case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
        default: return "CUDNN_STATUS_BAD_PARAM";
    }
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return create(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

// --- Descriptors ---------------------------------------------------------------------------------------------------------

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* desc) { return create(desc); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t desc) { return destroy(desc); }
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t desc, cudnnDataType_t type, int dims, const int sizes[], const int strides[]) {
    if (dims < 4 || dims > 5) return CUDNN_STATUS_NOT_SUPPORTED;
    if (!are_positive(dims, sizes) || !are_positive(dims, strides)) return CUDNN_STATUS_BAD_PARAM;
    int64_t wide[5];
    for (int d = 0; d < dims; ++d) wide[d] = strides[d];
    desc->set(type, dims, sizes, wide);
    return desc->numel() > kMostElements ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* desc) { return create(desc); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t desc) { return destroy(desc); }
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t desc, cudnnDataType_t type, cudnnTensorFormat_t format, int dims,
                                         const int sizes[]) {
    if (dims < 4 || dims > 5) return CUDNN_STATUS_NOT_SUPPORTED;
    if (!are_positive(dims, sizes)) return CUDNN_STATUS_BAD_PARAM;
    int64_t strides[5], step = 1;
    const auto next = [&](int d) {
        strides[d] = step;
        step *= sizes[d];
    };
    if (format == CUDNN_TENSOR_NHWC) next(1);
    for (int d = dims; d-- > 2;) next(d);
    if (format == CUDNN_TENSOR_NCHW) next(1);
    next(0);
    desc->set(type, dims, sizes, strides);
    desc->format = format;
    return step > kMostElements ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* desc) { return create(desc); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t desc) { return destroy(desc); }
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t desc, int dims, const int padding[], const int stride[],
                                              const int dilation[], cudnnConvolutionMode_t mode, cudnnDataType_t computed) {
    if (dims < 2 || dims > 3 || mode != CUDNN_CROSS_CORRELATION) return CUDNN_STATUS_NOT_SUPPORTED;
    if (!are_positive(dims, stride) || !are_positive(dims, dilation)) return CUDNN_STATUS_BAD_PARAM;
    *desc = {};
    desc->dims = dims;
    desc->computed = computed;
    for (int d = 0; d < dims; ++d) {
        if (padding[d] < 0) return CUDNN_STATUS_BAD_PARAM;
        const auto place = static_cast<std::size_t>(3 - dims + d);
        desc->padding[place] = padding[d];
        desc->stride[place] = stride[d];
        desc->dilation[place] = dilation[d];
    }
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t desc, int groups) {
    desc->groups = groups;
    return groups > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t desc, cudnnMathType_t math) {
    desc->math = math;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* desc) { return create(desc); }
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t desc) { return destroy(desc); }
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t desc, cudnnActivationMode_t mode, cudnnNanPropagation_t, double) {
    desc->mode = mode;
    return CUDNN_STATUS_SUCCESS;
}

// --- The three parts -----------------------------------------------------------------------------------------------------

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                     cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y, int most, int* count,
                                                     cudnnConvolutionFwdAlgoPerf_t* found) {
    return search(Part::output, *x, *w, *conv, *y, most, count, found);
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                      cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algo,
                                                      std::size_t* bytes) {
    return get_workspace(Part::output, *x, *w, *conv, *y, algo, bytes);
}
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_desc, const void* x,
                                      cudnnFilterDescriptor_t w_desc, const void* w, cudnnConvolutionDescriptor_t conv,
                                      cudnnConvolutionFwdAlgo_t algo, void* workspace, std::size_t workspace_bytes, const void* beta,
                                      cudnnTensorDescriptor_t y_desc, void* y) {
    return run(Part::output, handle, *x_desc, *w_desc, *conv, *y_desc, algo, {alpha, beta}, x, w, nullptr, y, workspace, workspace_bytes);
}
cudnnStatus_t cudnnConvolutionBiasActivationForward(cudnnHandle_t handle, const void* alpha1, cudnnTensorDescriptor_t x_desc, const void* x,
                                                    cudnnFilterDescriptor_t w_desc, const void* w, cudnnConvolutionDescriptor_t conv,
                                                    cudnnConvolutionFwdAlgo_t algo, void* workspace, std::size_t workspace_bytes, const void* alpha2,
                                                    cudnnTensorDescriptor_t z_desc, const void* z, cudnnTensorDescriptor_t bias_desc,
                                                    const void* bias, cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_desc,
                                                    void* y) {
    if (!z_desc || !z || !bias) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (bias_desc->first != 1 || bias_desc->second != y_desc->second || bias_desc->size != Spatial{1, 1, 1}) return CUDNN_STATUS_BAD_PARAM;
    if (z_desc->type != y_desc->type || z_desc->size != y_desc->size || bias_desc->type != y_desc->type) return CUDNN_STATUS_BAD_PARAM;
    const bool is_zero = conv->computed == CUDNN_DATA_DOUBLE ? *static_cast<const double*>(alpha2) == 0 : *static_cast<const float*>(alpha2) == 0;
    if (!is_zero || activation->mode != CUDNN_ACTIVATION_IDENTITY || algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) {
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
    if (conv->computed == CUDNN_DATA_DOUBLE) return CUDNN_STATUS_NOT_SUPPORTED;  // so that the other way is tested, too
    return run(Part::output, handle, *x_desc, *w_desc, *conv, *y_desc, algo, {alpha1, alpha2}, x, w, bias, y, workspace, workspace_bytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t dx, int most, int* count,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* found) {
    return search(Part::input, *dx, *w, *conv, *dy, most, count, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algo, std::size_t* bytes) {
    return get_workspace(Part::input, *dx, *w, *conv, *dy, algo, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t w_desc, const void* w,
                                           cudnnTensorDescriptor_t dy_desc, const void* dy, cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t algo, void* workspace, std::size_t workspace_bytes, const void* beta,
                                           cudnnTensorDescriptor_t dx_desc, void* dx) {
    return run(Part::input, handle, *dx_desc, *w_desc, *conv, *dy_desc, algo, {alpha, beta}, dy, w, nullptr, dx, workspace, workspace_bytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t conv, cudnnFilterDescriptor_t dw, int most, int* count,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* found) {
    return search(Part::weight, *x, *dw, *conv, *dy, most, count, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
                                                             cudnnConvolutionDescriptor_t conv, cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algo, std::size_t* bytes) {
    return get_workspace(Part::weight, *x, *dw, *conv, *dy, algo, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_desc, const void* x,
                                             cudnnTensorDescriptor_t dy_desc, const void* dy, cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void* workspace, std::size_t workspace_bytes, const void* beta,
                                             cudnnFilterDescriptor_t dw_desc, void* dw) {
    return run(Part::weight, handle, *x_desc, *dw_desc, *conv, *dy_desc, algo, {alpha, beta}, x, dy, nullptr, dw, workspace, workspace_bytes);
}
