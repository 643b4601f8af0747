// Matrix products by cuBLASLt.
//
// The data that cuBLASLt needs for a product (descriptors, the algorithm that its heuristics choose) is made once for each
// shape, layout and type, and kept for the thread. It is column-major: row-major c = a b is computed as c^T = b^T a^T.
#include <cublasLt.h>

#include <algorithm>
#include <unordered_map>

#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/hash_impl.h"
#include "tapir/cuda/allocator.h"
#include "tapir/cuda/small_products.h"
#include "tapir/cuda/thread_own.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/linear/matmul_impl.h"

namespace tapir::gpu {
namespace {

constexpr std::size_t kMostWorkspace = std::size_t{32} << 20;

[[noreturn]] void fail_cublas(cublasStatus_t status, const char* call) {
    const char* op = detail::thread.op ? detail::thread.op : "matmul";
    fail<DeviceError>(detail::thread.op_loc, "{}: {}: {}", op, call, cublasLtGetStatusString(status));
}
void check(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS) fail_cublas(status, call);
}

// One side of a product as cuBLASLt sees it: stored as `rows` by `cols`, in columns `leading` apart.
struct Matrix {
    bool transposed;
    std::int64_t rows, cols, leading;

    // Describes `rows` x `cols` elements, where element (r, c) is at r * row + c * col and one of the two is 1.
    static Matrix of(std::int64_t rows, std::int64_t cols, std::int64_t row, std::int64_t col) {
        const bool by_columns = row == 1 ? cols == 1 || col >= rows : rows == 1 && (cols == 1 || col >= 1);
        if (by_columns) return {false, rows, cols, cols == 1 ? rows : std::max(col, rows)};
        return {true, cols, rows, rows == 1 ? cols : std::max(row, cols)};
    }
};

// Returns the largest power of two, at most 256, that divides the address and the steps of a batch.
std::uint32_t alignment_of(const void* p, std::int64_t step_bytes) {
    const auto bits = reinterpret_cast<std::uintptr_t>(p) | static_cast<std::uintptr_t>(step_bytes) | 256;
    return static_cast<std::uint32_t>(bits & ~(bits - 1));
}

// Everything that the choice of an algorithm depends on. Has no gaps, because it is compared and hashed as bytes.
struct Key {
    std::int64_t m, n, k, batch;
    std::int64_t a_leading, b_leading, c_leading;
    std::int64_t a_batch, b_batch, c_batch;
    std::uint32_t a_alignment, b_alignment, c_alignment;
    std::uint8_t dtype, device, precision, flags;
};

struct Plan {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t left, right, out;
    bool is_possible;
    cublasLtMatmulAlgo_t algo;
    std::size_t workspace;
};
constexpr std::size_t kMostPlans = 4096;  // for each thread: then it begins anew

cudaDataType_t data_type(DType dtype) {
    switch (dtype) {
        case DType::float16: return CUDA_R_16F;
        case DType::bfloat16: return CUDA_R_16BF;
        case DType::float64: return CUDA_R_64F;
        default: return CUDA_R_32F;
    }
}

cublasComputeType_t compute_type(DType dtype, MatmulPrecision precision) {
    if (dtype == float64) return CUBLAS_COMPUTE_64F;
    if (dtype != float32 || precision == MatmulPrecision::highest) return CUBLAS_COMPUTE_32F;
    return precision == MatmulPrecision::high ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F_FAST_16BF;
}

struct Handles {
    cublasLtHandle_t of[kMaxDevices];
    bool made[kMaxDevices];
};

cublasLtHandle_t handle() {
    auto& handles = thread_own<Handles>();
    const int device = selected_device();
    if (!handles.made[device]) {
        check(cublasLtCreate(&handles.of[device]), "cublasLtCreate");
        handles.made[device] = true;
    }
    return handles.of[device];
}

cublasLtMatrixLayout_t layout(const MatrixProduct& p, std::int64_t rows, std::int64_t cols, std::int64_t leading, std::int64_t batch_step) {
    cublasLtMatrixLayout_t made;
    check(cublasLtMatrixLayoutCreate(&made, data_type(p.dtype), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols), leading),
          "cublasLtMatrixLayoutCreate");
    if (p.batch > 1) {
        const auto count = static_cast<std::int32_t>(p.batch);
        check(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)), "batch count");
        check(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_step, sizeof(batch_step)), "batch offset");
    }
    return made;
}

Plan make_plan(const MatrixProduct& p, const Matrix& left, const Matrix& right, const Key& key) {
    Plan plan{};
    const cudaDataType_t scale = p.dtype == float64 ? CUDA_R_64F : CUDA_R_32F;
    check(cublasLtMatmulDescCreate(&plan.desc, compute_type(p.dtype, static_cast<MatmulPrecision>(key.precision)), scale),
          "cublasLtMatmulDescCreate");
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
        check(cublasLtMatmulDescSetAttribute(plan.desc, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias) {
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    plan.left = layout(p, left.rows, left.cols, left.leading, p.b_batch);
    plan.right = layout(p, right.rows, right.cols, right.leading, p.a_batch);
    plan.out = layout(p, p.n, p.m, key.c_leading, p.c_batch);

    cublasLtMatmulPreference_t preference;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
        check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle(), plan.desc, plan.left, plan.right, plan.out, plan.out, preference, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    plan.is_possible = status == CUBLAS_STATUS_SUCCESS && count > 0;
    if (!plan.is_possible && !p.bias) {
        fail_cublas(status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status, "cublasLtMatmulAlgoGetHeuristic");
    }
    plan.algo = found.algo;
    plan.workspace = found.workspaceSize;
    return plan;
}

void give_back(Plan& plan) {
    for (const cublasLtMatrixLayout_t made : {plan.left, plan.right, plan.out}) cublasLtMatrixLayoutDestroy(made);
    cublasLtMatmulDescDestroy(plan.desc);
}

Plan& plan_of(const MatrixProduct& p, const Matrix& left, const Matrix& right) {
    const auto size = static_cast<std::int64_t>(itemsize(p.dtype));
    Key key{};
    key.m = p.m;
    key.n = p.n;
    key.k = p.k;
    key.batch = p.batch;
    key.b_leading = left.leading;
    key.a_leading = right.leading;
    key.c_leading = std::max(p.m == 1 ? p.n : p.c_row, p.n);
    key.a_batch = p.a_batch;
    key.b_batch = p.b_batch;
    key.c_batch = p.c_batch;
    key.a_alignment = alignment_of(p.a, p.a_batch * size);
    key.b_alignment = alignment_of(p.b, p.b_batch * size);
    key.c_alignment = alignment_of(p.c, p.c_batch * size);
    if (p.bias) key.c_alignment = std::min(key.c_alignment, alignment_of(p.bias, 0));
    key.dtype = static_cast<std::uint8_t>(p.dtype);
    key.device = static_cast<std::uint8_t>(selected_device());
    key.precision = static_cast<std::uint8_t>(p.dtype == float32 ? float32_matmul_precision() : MatmulPrecision::highest);
    key.flags = static_cast<std::uint8_t>(left.transposed | right.transposed << 1 | (p.bias != nullptr) << 2);
    auto& plans = thread_own<std::unordered_map<Key, Plan, detail::HashOfBytes<Key>, detail::EqualBytes<Key>>>();
    if (const auto found = plans.find(key); found != plans.end()) return found->second;
    if (plans.size() == kMostPlans) {
        for (auto& [_, plan] : plans) give_back(plan);
        plans.clear();
    }
    return plans.emplace(key, make_plan(p, left, right, key)).first->second;
}

// Adds the bias to c, if cuBLASLt cannot do it with the product.
void add_bias(const MatrixProduct& p) {
    kernels::ElementwiseArgs args;
    args.kernel = {Elementwise::add, -1, kernels::compute_of(p.dtype), false, nullptr};
    args.operands = 2;
    args.in[0] = {p.c, p.dtype, {p.c_batch, p.c_row, 1}};
    args.in[1] = {p.bias, p.dtype, {0, 0, 1}};
    args.out = p.c;
    args.out_dtype = p.dtype;
    args.numel = p.batch * p.m * p.n;
    args.rank = 3;
    const std::int64_t sizes[] = {p.batch, p.m, p.n};
    for (int d = 0; d < 3; ++d) {
        args.sizes[d] = sizes[d];
        args.out_strides[d] = args.in[0].strides[d];
    }
    elementwise(args);
}

void with_cublas(const MatrixProduct& p) {
    const Matrix left = Matrix::of(p.n, p.k, p.b_col, p.b_row), right = Matrix::of(p.k, p.m, p.a_col, p.a_row);
    const Plan& plan = plan_of(p, left, right);
    if (!plan.is_possible) {
        MatrixProduct without = p;
        without.bias = nullptr;
        with_cublas(without);
        return add_bias(p);
    }
    if (p.bias) {
        check(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias, sizeof(p.bias)), "bias pointer");
    }
    const double alpha64 = 1, beta64 = p.accumulate ? 1 : 0;
    const float alpha32 = 1, beta32 = p.accumulate ? 1.0f : 0.0f;
    const bool is_double = p.dtype == float64;
    const void* alpha = is_double ? static_cast<const void*>(&alpha64) : &alpha32;
    const void* beta = is_double ? static_cast<const void*>(&beta64) : &beta32;
    const Scratch workspace(plan.workspace);
    Stream& stream = current();
    const cublasStatus_t status = cublasLtMatmul(handle(), plan.desc, alpha, p.b, plan.left, p.a, plan.right, beta, p.c, plan.out, p.c, plan.out,
                                                 &plan.algo, workspace.as<void>(), plan.workspace, stream.handle);
    if (status != CUBLAS_STATUS_SUCCESS) fail_cublas(status, "cublasLtMatmul");
    launched(stream, cudaSuccess);
}

}  // namespace

void matmul(const MatrixProduct& p) {
    if (p.m == 0 || p.n == 0 || p.batch == 0) return;
    if (!is_floating(p.dtype)) return multiply_integers(p);
    if (multiply_small(p)) return;
    with_cublas(p);
}

}  // namespace tapir::gpu
