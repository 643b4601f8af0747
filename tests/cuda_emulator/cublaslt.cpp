// The emulator's matrix products. Column-major, as cuBLASLt's.
#include <cstring>

#include "cublasLt.h"
#include "tapir/core/dtype.h"

namespace {

double load(cudaDataType_t type, const void* p, std::int64_t i) {
    switch (type) {
        case CUDA_R_16F: return static_cast<const tapir::Half*>(p)[i];
        case CUDA_R_16BF: return static_cast<const tapir::BFloat16*>(p)[i];
        case CUDA_R_32F: return static_cast<const float*>(p)[i];
        default: return static_cast<const double*>(p)[i];
    }
}

void store(cudaDataType_t type, void* p, std::int64_t i, double x) {
    switch (type) {
        case CUDA_R_16F: static_cast<tapir::Half*>(p)[i] = tapir::Half(static_cast<float>(x)); break;
        case CUDA_R_16BF: static_cast<tapir::BFloat16*>(p)[i] = tapir::BFloat16(static_cast<float>(x)); break;
        case CUDA_R_32F: static_cast<float*>(p)[i] = static_cast<float>(x); break;
        default: static_cast<double*>(p)[i] = x;
    }
}

struct Product {
    EmulatedLtDesc desc;
    EmulatedLtLayout a, b, c, d;
    double alpha, beta;
    const void *a_data, *b_data, *c_data;
    void* d_data;

    double element(const EmulatedLtLayout& m, const void* data, bool transposed, std::int64_t batch, std::int64_t row, std::int64_t col) const {
        return load(m.type, data, batch * m.offset + (transposed ? col + row * m.ld : row + col * m.ld));
    }

    void run() const {
        const bool ta = desc.transa == CUBLAS_OP_T, tb = desc.transb == CUBLAS_OP_T;
        const auto m = static_cast<std::int64_t>(d.rows), n = static_cast<std::int64_t>(d.cols);
        const auto k = static_cast<std::int64_t>(ta ? a.rows : a.cols);
        for (std::int64_t batch = 0; batch < d.batch; ++batch) {
            for (std::int64_t j = 0; j < n; ++j) {
                for (std::int64_t i = 0; i < m; ++i) {
                    double sum = 0;
                    for (std::int64_t p = 0; p < k; ++p) sum += element(a, a_data, ta, batch, i, p) * element(b, b_data, tb, batch, p, j);
                    sum *= alpha;
                    if (beta != 0) sum += beta * element(c, c_data, false, batch, i, j);
                    if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += load(d.type, desc.bias, i);
                    store(d.type, d_data, batch * d.offset + i + j * d.ld, sum);
                }
            }
        }
    }
};

bool fits(const EmulatedLtDesc& desc, const EmulatedLtLayout& a, const EmulatedLtLayout& b, const EmulatedLtLayout& d) {
    const bool ta = desc.transa == CUBLAS_OP_T, tb = desc.transb == CUBLAS_OP_T;
    const bool sizes = (ta ? a.cols : a.rows) == d.rows && (tb ? b.rows : b.cols) == d.cols && (ta ? a.rows : a.cols) == (tb ? b.cols : b.rows);
    const bool types = a.type == b.type && (a.type == d.type) && (desc.scale == (a.type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F)) &&
        ((desc.compute == CUBLAS_COMPUTE_64F) == (a.type == CUDA_R_64F));
    return sizes && types && a.batch == d.batch && b.batch == d.batch && a.rows * a.cols * b.cols > 0;
}

template <class T>
void set(T& place, const void* value) {
    std::memcpy(&place, value, sizeof(T));
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    *handle = nullptr;
    return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "invalid value"; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
    *desc = new EmulatedLtDesc{compute, scale};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, std::size_t) {
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA: set(desc->transa, value); break;
        case CUBLASLT_MATMUL_DESC_TRANSB: set(desc->transb, value); break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE: set(desc->epilogue, value); break;
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: set(desc->bias, value); break;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t ld) {
    if (ld < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
    *layout = new EmulatedLtLayout{type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t) {
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
        set(layout->batch, value);
    } else {
        set(layout->offset, value);
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    *preference = new EmulatedLtPreference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*, std::size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
    // The real one has no algorithm for some: here for sums with a bias in float64.
    const bool has = desc->compute != CUBLAS_COMPUTE_64F || desc->epilogue != CUBLASLT_EPILOGUE_BIAS;
    *found = has && fits(*desc, *a, *b, *d) ? 1 : 0;
    if (!*found) return CUBLAS_STATUS_NOT_SUPPORTED;
    *results = {{{1}}, 1024, CUBLAS_STATUS_SUCCESS, 1};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta, const void* c, cublasLtMatrixLayout_t c_layout,
                              void* d, cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void*, std::size_t workspace_bytes,
                              cudaStream_t stream) {
    if (!fits(*desc, *a_layout, *b_layout, *d_layout)) return CUBLAS_STATUS_INVALID_VALUE;
    if (algo->data[0] != 1 || workspace_bytes < 1024) return CUBLAS_STATUS_INVALID_VALUE;
    const auto scale = [&](const void* p) {
        return desc->scale == CUDA_R_64F ? *static_cast<const double*>(p) : double{*static_cast<const float*>(p)};
    };
    const Product product{*desc, *a_layout, *b_layout, *c_layout, *d_layout, scale(alpha), scale(beta), a, b, c, d};
    emulator::enqueue(stream, [product] { product.run(); });
    return CUBLAS_STATUS_SUCCESS;
}
