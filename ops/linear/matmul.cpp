// Matrix products: this file handles shapes and strides, kernels::gemm the arithmetic.
#include "tapir/ops/linear/matmul.h"

#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/broadcast_impl.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/deterministic.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/batch/rows_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/linear/gemm_impl.h"
#include "tapir/ops/linear/matmul_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;

void matmul_rule(Backward& b);
void linear_rule(Backward& b);

}  // namespace

TAPIR_HAZARDS(matmul, hazard::products);
TAPIR_OP(matmul, matmul_rule, "Matrix product with broadcast batch dimensions.", TAPIR_SAMPLE("f(2,3) f(3,4)", matmul(x[0], x[1])),
         TAPIR_SAMPLE("f(3) f(3)", matmul(x[0], x[1])), TAPIR_SAMPLE("f(2,3) f(3)", matmul(x[0], x[1])),
         TAPIR_SAMPLE("f(3) f(3,2)", matmul(x[0], x[1])), TAPIR_SAMPLE("f(2,3,4) f(4,2)", matmul(x[0], x[1])),
         TAPIR_SAMPLE("f(2,3,4) f(4)", matmul(x[0], x[1])), TAPIR_SAMPLE("f(4) f(2,4,3)", matmul(x[0], x[1])),
         TAPIR_SAMPLE("f(2,1,3,4) f(3,4,2)", matmul(x[0], x[1])), TAPIR_SAMPLE("f(2,3) f(2,3,2)", matmul(x[0], x[1])),
         TAPIR_SAMPLE("f(2,3) f(3,4)", mm(x[0], x[1])), TAPIR_SAMPLE("f(2,3,4) f(2,4,2)", bmm(x[0], x[1])),
         TAPIR_SAMPLE("f(2,3) f(3)", mv(x[0], x[1])), TAPIR_SAMPLE("f(3) f(3)", dot(x[0], x[1])), TAPIR_SAMPLE("f(3) f(2)", outer(x[0], x[1])));
TAPIR_OP(baddbmm, Composed, "beta * c + alpha * a b, of batches.",
         TAPIR_SAMPLE_AS("f(2,3,2) f(2,3,4) f(2,4,2)", "baddbmm(x[0], x[1], x[2], beta=3, alpha=2)", baddbmm(x[0], x[1], x[2], 3, 2)),
         TAPIR_SAMPLE("f(3) f(3,4) f(4)", addmv(x[0], x[1], x[2])), TAPIR_SAMPLE("f(4) f(4)", vdot(x[0], x[1])));
TAPIR_OP(bilinear, Composed, "Sums over products of two inputs.", TAPIR_SAMPLE("f(2,3) f(2,4) f(5,3,4) f(5)", bilinear(x[0], x[1], x[2], x[3])),
         TAPIR_SAMPLE("f(2,3,2) f(2,3,2) f(1,2,2)", bilinear(x[0], x[1], x[2])), TAPIR_SAMPLE("f(2) f(3) f(4,2,3)", bilinear(x[0], x[1], x[2])));
TAPIR_HAZARDS(linear, hazard::products);
TAPIR_OP(linear, linear_rule, "x W^T + b.", TAPIR_SAMPLE("f(2,3) f(4,3) f(4)", linear(x[0], x[1], x[2])),
         TAPIR_SAMPLE("f(3) f(4,3) f(4)", linear(x[0], x[1], x[2])), TAPIR_SAMPLE("f(2,3) f(4,3)", linear(x[0], x[1])),
         TAPIR_SAMPLE("f(2,3,4) f(2,4) f(2)", linear(x[0], x[1], x[2])), TAPIR_SAMPLE("f(1,5) f(3,5) f(3)", linear(x[0], x[1], x[2])));

// --- Arithmetic ------------------------------------------------------------------------------------------------------------

namespace {

template <class T>
void naive(const MatrixProduct& p) {
    for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
            T sum = 0;
            for (int64_t q = 0; q < p.k; ++q) {
                // Unsigned: wraps instead of overflowing.
                sum += static_cast<const T*>(p.a)[i * p.a_row + q * p.a_col] * static_cast<const T*>(p.b)[q * p.b_row + j * p.b_col];
            }
            static_cast<T*>(p.c)[i * p.c_row + j] = sum;
        }
    }
}

void naive_bfloat16(const MatrixProduct& p, int64_t i) {
    const auto* a = static_cast<const BFloat16*>(p.a) + i * p.a_batch;
    const auto* b = static_cast<const BFloat16*>(p.b) + i * p.b_batch;
    auto* c = static_cast<BFloat16*>(p.c) + i * p.c_batch;
    for (int64_t row = 0; row < p.m; ++row) {
        for (int64_t col = 0; col < p.n; ++col) {
            float sum = p.bias ? static_cast<float>(static_cast<const BFloat16*>(p.bias)[col]) : 0.0f;
            for (int64_t q = 0; q < p.k; ++q) sum += a[row * p.a_row + q * p.a_col] * b[q * p.b_row + col * p.b_col];
            c[row * p.c_row + col] = BFloat16(sum);
        }
    }
}

template <class T>
void call_gemm(const MatrixProduct& p) {
    const kernels::Gemm<T> one{p.m,
                               p.n,
                               p.k,
                               static_cast<const T*>(p.a),
                               p.a_row,
                               p.a_col,
                               static_cast<const T*>(p.b),
                               p.b_row,
                               p.b_col,
                               static_cast<T*>(p.c),
                               p.c_row,
                               p.accumulate ? T(1) : T(0),
                               T(1),
                               static_cast<const T*>(p.bias)};
    if (p.batch == 1) [[likely]] {
        kernels::gemm(one);
    } else {
        kernels::gemm(kernels::GemmBatch<T>{one, p.batch, p.a_batch, p.b_batch, p.c_batch});
    }
}

template <class T>
void naive_batch(MatrixProduct p) {
    for (int64_t i = 0; i < p.batch; ++i) {
        naive<T>(p);
        p.a = static_cast<const T*>(p.a) + p.a_batch;
        p.b = static_cast<const T*>(p.b) + p.b_batch;
        p.c = static_cast<T*>(p.c) + p.c_batch;
    }
}

}  // namespace

void multiply(const MatrixProduct& p, Device device) {
    if (detail::watching_ops) [[unlikely]]
        detail::thread.flops += 2.0 * static_cast<double>(p.batch * p.m) * static_cast<double>(p.n * p.k);
    if (device.type != DeviceType::cpu) [[unlikely]]
        return gpu::matmul(p);
    switch (p.dtype) {
        case DType::float32: return call_gemm<float>(p);
        case DType::float64: return call_gemm<double>(p);
        case DType::bfloat16:
            if (multiply_bfloat16(p)) return;
            for (int64_t i = 0; i < p.batch; ++i) naive_bfloat16(p, i);
            return;
        case DType::int32: return naive_batch<std::uint32_t>(p);
        default: return naive_batch<std::uint64_t>(p);  // int64
    }
}

namespace {

MatmulPrecision matmul_precision = MatmulPrecision::highest;

constexpr int64_t kWorthBFloat16 = 64 * 64 * 64;  // multiplications from which oneDNN's overhead does not count

// Returns the dtype a product is computed in. CUDA multiplies 16-bit floats as they are, and sums in float32; so do processors that can.
DType product_dtype(DType dtype, Device device, int64_t multiplications) {
    const bool is_16_bit = dtype == float16 || dtype == bfloat16;
    if (is_16_bit && device.type == DeviceType::cpu) {
        return dtype == bfloat16 && multiplications >= kWorthBFloat16 && has_fast_bfloat16() ? bfloat16 : float32;
    }
    if (dtype == bool_ || dtype == uint8) return int64;
    return dtype;
}

struct Side {
    const std::byte* data;
    int64_t row, col;
    Shape batch, batch_strides;
};

// Takes the last two dimensions as a matrix, the others as a batch. A vector is a row on the left, a column on the right.
Side side_of(const Tensor& t, bool left) {
    const TensorImpl* x = t.impl();
    Side side{x->data, 0, 0, {}, {}};
    if (x->rank == 1) {
        (left ? side.col : side.row) = x->strides[0];
        return side;
    }
    side.row = x->strides[x->rank - 2];
    side.col = x->strides[x->rank - 1];
    side.batch = Shape(x->sizes, x->rank - 2);
    side.batch_strides = Shape(x->strides, x->rank - 2);
    return side;
}

int64_t batch_stride(const Side& side, int d, int rank) {
    const int own = d - (rank - side.batch.rank());
    return own < 0 || side.batch.raw(own) == 1 ? 0 : side.batch_strides.raw(own);
}

// Batch dimensions, and the strides between their matrices.
struct Batch {
    int rank = 0;
    int64_t size[kMaxRank], a_step[kMaxRank], b_step[kMaxRank];
};

// Merges dimensions that lie behind each other on both sides: fewer calls.
Batch merged_batch(const Shape& batch, const Side& left, const Side& right) {
    Batch merged;
    for (int d = 0; d < batch.rank(); ++d) {
        if (batch.raw(d) == 1) continue;
        const int64_t a_step = batch_stride(left, d, batch.rank()), b_step = batch_stride(right, d, batch.rank());
        const int before = merged.rank - 1;
        const bool follows = before >= 0 && merged.a_step[before] == a_step * batch.raw(d) && merged.b_step[before] == b_step * batch.raw(d);
        const int at = follows ? before : merged.rank++;
        merged.size[at] = follows ? merged.size[at] * batch.raw(d) : batch.raw(d);
        merged.a_step[at] = a_step;
        merged.b_step[at] = b_step;
    }
    return merged;
}

constexpr int64_t kMostCalls = 8;  // on a device; to avoid more of them, operands are copied into order
// A product with at least so many columns takes much longer than a copy of its rows, and one of fewer rows than these is slower than a part of
// a taller one, which reads b once.
constexpr int64_t kColumnsWorthCopy = 32, kTallRows = 256;

// out (contiguous) = a b, for a and b of the computed dtype.
void multiply_all(const Tensor& out, const Tensor& a, const Tensor& b, int64_t m, int64_t n, int64_t k) {
    const Side left = side_of(a, true), right = side_of(b, false);
    const Device device = out.impl()->device;
    MatrixProduct p{out.dtype(), m, n, k, left.data, left.row, left.col, right.data, right.row, right.col, out.raw_data(), n};
    const Shape batch = broadcast_shapes(left.batch, right.batch);
    const int64_t count = batch.numel();
    if (count == 0 || m * n == 0) return;
    // Leading dimensions of a are rows of one product when b is the same for all of them. Such a product may add in another order.
    int64_t row = left.row;
    if (m == 1 && left.col == 1) {  // the stride of a single row says nothing: rows lie as far apart as the innermost batch's
        for (int d = left.batch.rank(); d-- > 0;) {
            if (left.batch.raw(d) == 1) continue;
            row = std::max(k, left.batch_strides.raw(d));
            break;
        }
    }
    int64_t stride = m * row;
    bool rows = !is_deterministic();
    for (int d = left.batch.rank(); d-- > 0;) {
        rows &= left.batch.raw(d) == 1 || left.batch_strides.raw(d) == stride;
        stride *= left.batch.raw(d);
    }
    const bool has_one_b = right.batch.numel() == 1 && left.batch.numel() == count;
    if (has_one_b && (count == 1 || rows)) {
        p.m = count * m;
        p.a_row = row;
        return multiply(p, device);
    }
    // Rows in another order, as of (batch, length, features) turned to (length, batch, features), are copied into order to be one product.
    bool may_be_one = has_one_b && device == cpu && left.col == 1 && !is_deterministic();
    for (int d = 0; d < left.batch.rank(); ++d) may_be_one &= left.batch.raw(d) == 1 || left.batch_strides.raw(d) > 0;  // a broadcast would grow
    if (may_be_one && m < kTallRows && n >= kColumnsWorthCopy && !a.is_contiguous()) {
        const detail::UnrecordedParts parts;
        return multiply_all(out, a.contiguous(), b, m, n, k);
    }
    const Batch dims = merged_batch(batch, left, right);
    const int last = dims.rank - 1;
    const int64_t inner = dims.size[last], calls = count / inner;
    if (device != cpu && calls > kMostCalls && !(a.is_contiguous() && b.is_contiguous())) {
        const detail::UnrecordedParts parts;
        return multiply_all(out, a.contiguous(), b.contiguous(), m, n, k);
    }
    const auto size = static_cast<int64_t>(itemsize(out.dtype()));
    int64_t index[kMaxRank] = {};
    // The last dimension is one call; a loop counts through the others.
    p.batch = inner;
    p.a_batch = dims.a_step[last];
    p.b_batch = dims.b_step[last];
    p.c_batch = m * n;
    for (int64_t done = 0; done < count; done += inner) {
        int64_t a_offset = 0, b_offset = 0;
        for (int d = 0; d < last; ++d) {
            a_offset += index[d] * dims.a_step[d];
            b_offset += index[d] * dims.b_step[d];
        }
        p.a = left.data + a_offset * size;
        p.b = right.data + b_offset * size;
        p.c = static_cast<std::byte*>(out.raw_data()) + done * m * n * size;
        multiply(p, device);
        for (int d = last; d-- > 0;) {
            if (++index[d] < dims.size[d]) break;
            index[d] = 0;
        }
    }
}

// True if it is a matrix to cuBLAS (or many of one layout): rows or columns without gaps between elements, and without overlap.
bool is_matrix(const TensorImpl* x) {
    if (x->rank < 2) return x->rank == 1 && (x->strides[0] == 1 || x->sizes[0] == 1);
    const int64_t rows = x->sizes[x->rank - 2], cols = x->sizes[x->rank - 1];
    const int64_t row = x->strides[x->rank - 2], col = x->strides[x->rank - 1];
    return ((col == 1 || cols == 1) && (row >= cols || rows == 1)) || ((row == 1 || rows == 1) && (col >= rows || cols == 1));
}

}  // namespace

Tensor matrix_for_device(const Tensor& t, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    return is_matrix(t.impl()) ? t : t.contiguous(loc);
}

namespace {

// Converts an operand to this dtype, in a form that the device multiplies; not recorded.
Tensor operand(const Tensor& t, DType computed, const Loc& loc) {
    Tensor ready = t.to(computed, loc);
    return on_gpu(ready) ? matrix_for_device(ready, loc) : ready;
}

// Returns the end of the message about inner dimensions that differ: the operand that would fit transposed, or that the other order would.
std::string product_hint(const Shape& a, const Shape& b) {
    const int64_t m = a.rank() < 2 ? 0 : a.raw(a.rank() - 2), k = a.back(), l = b.rank() < 2 ? b.back() : b.raw(b.rank() - 2), n = b.back();
    const auto turned = [](const char* which, const Shape& of) {
        return fmt::format("; the {} would fit transposed, by {}", which, of.rank() == 2 ? "t()" : "transpose(-2, -1)");
    };
    if (b.rank() > 1 && n == k) return turned("second", b);
    if (a.rank() > 1 && m == l) return turned("first", a);
    if (a.rank() > 1 && b.rank() > 1 && n == m) return "; in the other order they would fit";
    return "";
}

// Returns the end of the message about an input whose width differs from the weight's.
std::string linear_hint(const Shape& x, const Shape& weight) {
    if (weight.rank() != 2 || x.rank() == 0) return "";
    const int64_t in = weight[1];
    if (x.back() == weight[0]) return "; the weight would fit transposed, by t()";
    if (x.rank() == 1) return "";
    int64_t rest = 1;
    for (int d = 1; d < x.rank(); ++d) rest *= x.raw(d);
    if (x.rank() > 2 && rest == in) return "; flatten(x, 1) would fit";
    if (x.raw(x.rank() - 2) == in) return fmt::format("; the input would fit transposed, by {}", x.rank() == 2 ? "t()" : "transpose(-2, -1)");
    return "";
}

// Returns the batch dimensions of a b.
Shape batch_of(const char* op, const Tensor& a, const Tensor& b, const Loc& loc) {
    const Shape x(a.impl()->sizes, std::max(a.dim() - 2, 0)), y(b.impl()->sizes, std::max(b.dim() - 2, 0));
    if (!detail::do_broadcast(x, y)) fail<ShapeError>(loc, "{}: batch dimensions do not broadcast: {} x {}", op, a.shape(), b.shape());
    return broadcast_shapes(x, y, op, loc);
}

// Computes a b without a record. The result has the promoted dtype.
Tensor product(const char* op, const Tensor& a, const Tensor& b, const Loc& loc) {
    detail::check_same_device(op, a, b, loc);
    const TensorImpl *x = a.impl(), *y = b.impl();
    if (x->rank == 0 || y->rank == 0) {
        fail<ShapeError>(loc, "{}: both operands need at least 1 dimension: {} x {}", op, a.shape(), b.shape());
    }
    const int64_t m = x->rank == 1 ? 1 : x->sizes[x->rank - 2], k = x->sizes[x->rank - 1];
    const int64_t n = y->rank == 1 ? 1 : y->sizes[y->rank - 1], k2 = y->rank == 1 ? y->sizes[0] : y->sizes[y->rank - 2];
    if (k != k2) fail<ShapeError>(loc, "{}: inner dimensions differ: {} x {}{}", op, a.shape(), b.shape(), product_hint(a.shape(), b.shape()));
    Shape shape = x->rank > 2 || y->rank > 2 ? batch_of(op, a, b, loc) : Shape();
    if (x->rank > 1) shape.push_back(m, loc);
    if (y->rank > 1) shape.push_back(n, loc);
    // This wraps for sizes beyond any memory, whose result is refused below.
    const auto products = static_cast<int64_t>(static_cast<std::uint64_t>(m) * static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(k));
    const DType dtype = promote(x->dtype, y->dtype), computed = product_dtype(dtype, x->device, products);
    const bool as_it_is = !on_gpu(x) || (is_matrix(x) && is_matrix(y));
    if (x->dtype == computed && y->dtype == computed && as_it_is) [[likely]] {
        Tensor out = detail::make_empty(shape, dtype, x->device, loc);
        detail::at_line(loc, [&] { multiply_all(out, a, b, m, n, k); });
        return out;
    }
    const detail::UnrecordedPartsOf parts(loc);
    Tensor out = detail::make_empty(shape, computed, x->device, loc);
    multiply_all(out, operand(a, computed, loc), operand(b, computed, loc), m, n, k);
    return out.to(dtype, loc);
}

// Views a tensor as a matrix: leading dimensions become rows, a vector one row.
Tensor rows_of(const Tensor& t) {
    if (t.dim() == 2) return t;
    const int64_t width = t.impl()->sizes[t.dim() - 1];
    return reshape(t, {Shape(t.impl()->sizes, t.dim() - 1).numel(), width});
}

void matmul_rule(Backward& b) {
    const Tensor x = b.saved(0), y = b.saved(1), &g = b.grad();
    if (x.dim() == 1 && y.dim() == 1) {
        if (b.needs(0)) b.give(0, g * y);
        if (b.needs(1)) b.give(1, g * x);
        return;
    }
    // Vectors become matrices, and the gradient gets their dimension back.
    if (y.dim() == 1) {  // (..., n, k) x (k,): g is (..., n)
        if (b.needs(0)) {
            if (x.dim() == 2) {
                b.give_product(0, unsqueeze(g, 0), unsqueeze(y, 0));
            } else {
                b.give(0, unsqueeze(g, -1) * y);
            }
        }
        if (b.needs(1)) {
            const bool are_dots = x.dim() == 2 && b.rows_to_tell_apart() > 0;
            b.give(1, are_dots ? unsqueeze(g, -1) * x : squeeze(matmul(transpose(x, -1, -2), unsqueeze(g, -1)), -1));
        }
        return;
    }
    if (x.dim() == 1) {  // (k,) x (..., k, m): g is (..., m)
        if (b.needs(0)) b.give(0, squeeze(matmul(y, unsqueeze(g, -1)), -1));
        if (b.needs(1)) {
            if (y.dim() == 2) {
                b.give_product(1, unsqueeze(x, 0), unsqueeze(g, 0));
            } else {
                b.give(1, unsqueeze(x, -1) * unsqueeze(g, -2));
            }
        }
        return;
    }
    if (b.needs(0)) {
        if (x.dim() == 2 && y.dim() == 2) {
            b.give_product(0, transpose(g, 0, 1), transpose(y, 0, 1));
        } else {
            b.give(0, matmul(g, transpose(y, -1, -2)));
        }
    }
    if (b.needs(1)) {
        if (y.dim() == 2) {
            b.give_product(1, rows_of(x), rows_of(g));
        } else {
            b.give(1, matmul(transpose(x, -1, -2), g));
        }
    }
}

void linear_rule(Backward& b) {
    const Tensor &g = b.grad(), x = b.saved(0), weight = b.saved(1);
    if (b.needs(0)) b.give(0, b.recording() ? matmul(g, weight) : product("linear", g, weight, b.record().loc));
    if (b.needs(1)) b.give_product(1, rows_of(g), rows_of(x));
    if (b.input_count() > 2) b.give(2, g);
}

}  // namespace

void set_float32_matmul_precision(MatmulPrecision precision) noexcept { __atomic_store_n(&matmul_precision, precision, __ATOMIC_RELAXED); }
MatmulPrecision float32_matmul_precision() noexcept { return __atomic_load_n(&matmul_precision, __ATOMIC_RELAXED); }

// --- The public functions ----------------------------------------------------------------------------------------------------

namespace {

Tensor recorded_product(const char* op, const In& a, const In& b);

// Products of a group in batch(). Vectors become matrices where the other operand has a batch, and blocks get as many dimensions in an instance
// as the other operand has, so that batches broadcast as in one instance.
Tensor product_of_group(const char* op, const detail::Batched& in, bool a_is_vector, bool b_is_vector, const Loc& loc) {
    const bool is_row = a_is_vector && in.is_block(0) && (in.is_block(1) || in[1].dim() > 2 || is_deterministic()),
               is_column = b_is_vector && in.is_block(1);
    Tensor a = is_row ? unsqueeze(in[0], 1) : in[0], b = is_column ? unsqueeze(in[1], -1) : in[1];
    const int rank = std::max({2, a.dim() - in.is_block(0), b.dim() - in.is_block(1)});
    if (in.is_block(0) && (is_row || !a_is_vector)) a = detail::with_rank(a, rank);
    if (in.is_block(1)) b = detail::with_rank(b, rank);
    Tensor y = recorded_product(op, In(a, loc), In(b, loc));
    if (is_column) y = squeeze(y, -1);
    return is_row ? squeeze(y, is_column ? -1 : -2) : y;
}

Tensor recorded_product(const char* op, const In& a, const In& b) {
    detail::check_defined(a, op);
    detail::check_defined(b, op);
    if (detail::in_batch()) [[unlikely]] {
        Tensor y;
        const bool a_is_vector = a.tensor.dim() == 1, b_is_vector = b.tensor.dim() == 1;
        const auto rule = [&](const detail::Batched& in, Tensor* out) { out[0] = product_of_group(op, in, a_is_vector, b_is_vector, a.loc); };
        const bool waits = detail::is_worth_waiting(a.tensor) || detail::is_worth_waiting(b.tensor);
        if (detail::batched({matmul_op, a.loc, {&a.tensor, &b.tensor}, {}, {.shared = 0b11, .always_waits = waits}}, rule, {&y})) return y;
    }
    if (detail::autocast_low(a.tensor, b.tensor)) [[unlikely]] {
        const Tensor low_a = detail::autocast_to_low(a), low_b = detail::autocast_to_low(b);
        return recorded_product(op, In(low_a, a.loc), In(low_b, b.loc));
    }
    Tensor out = product(op, a.tensor, b.tensor, a.loc);
    record(matmul_op, a.loc, {&a.tensor, &b.tensor}, out, {&a.tensor, &b.tensor});
    return out;
}

Tensor matmul_of(const char* op, const In& a, int a_dim, const In& b, int b_dim) {
    detail::check_defined(a, op);
    detail::check_defined(b, op);
    if (a.tensor.dim() != a_dim || b.tensor.dim() != b_dim) {
        fail<ShapeError>(a.loc, "{}: needs a {}-d and a {}-d tensor, got {} and {}{}", op, a_dim, b_dim, a.tensor.shape(), b.tensor.shape(),
                         a_dim > 1 ? "; matmul() takes others" : "");
    }
    if (a_dim == 3 && a->sizes[0] != b->sizes[0]) {
        fail<ShapeError>(a.loc, "{}: batch sizes differ: {} x {}", op, a.tensor.shape(), b.tensor.shape());
    }
    return recorded_product(op, a, b);
}

}  // namespace

Tensor matmul(In a, In b) { return recorded_product("matmul", a, b); }

Tensor mm(In a, In b) { return matmul_of("mm", a, 2, b, 2); }
Tensor bmm(In a, In b) { return matmul_of("bmm", a, 3, b, 3); }
Tensor mv(In a, In x) { return matmul_of("mv", a, 2, x, 1); }
Tensor dot(In a, In b) { return matmul_of("dot", a, 1, b, 1); }

Tensor outer(In a, In b) {
    detail::check_defined(a, "outer");
    detail::check_defined(b, "outer");
    if (a.tensor.dim() != 1 || b.tensor.dim() != 1) {
        fail<ShapeError>(a.loc, "outer: needs two vectors, got {} and {}", a.tensor.shape(), b.tensor.shape());
    }
    const detail::RecordedParts parts(a.loc);
    return unsqueeze(a, 1) * b.tensor;
}

namespace {

// True for a weight (in,), of one output without a dimension of its own, and for a bias of any other shape that the result takes.
bool is_composed_linear(const TensorImpl* x, const TensorImpl* weight, const TensorImpl* bias) noexcept {
    if (weight->rank == 1) return !bias || bias->rank == 0;
    if (!bias || weight->rank != 2 || x->rank == 0 || (bias->rank == 1 && bias->sizes[0] == weight->sizes[0]) || bias->rank > x->rank) return false;
    for (int d = 1; d <= bias->rank; ++d) {
        const int64_t size = d == 1 ? weight->sizes[0] : x->sizes[x->rank - d];
        if (bias->sizes[bias->rank - d] != 1 && bias->sizes[bias->rank - d] != size) return false;
    }
    return true;
}

Tensor composed_linear(const In& x, const In& weight, const Tensor& bias) {
    const detail::RecordedParts parts(x.loc);
    const Tensor y = weight->rank == 1 ? recorded_product("linear", x, weight) : linear(x, weight);
    return bias.defined() ? y + bias : y;
}

// linear() of operands that fit. laid: the weight, or its elements with other strides. products: the rows are computed in so many.
template <bool in_group>  // each its own, so that a call outside of batch() pays nothing
[[gnu::always_inline]] inline Tensor linear_of(const In& x, const In& weight, const Tensor& bias, const TensorImpl* laid, std::int64_t products) {
    const TensorImpl *const in = x.tensor.impl(), *const w = weight.tensor.impl(), *const b = bias.impl();
    Tensor out;
    const DType computed = product_dtype(in->dtype, in->device, in->numel * w->sizes[0]);
    const bool as_it_is = computed == in->dtype && is_floating(in->dtype);
    const bool direct = as_it_is && in->is_contiguous() && (!b || b->is_contiguous()) && (!on_gpu(w) || is_matrix(w));
    if (direct) [[likely]] {
        std::int64_t sizes[kMaxRank];
        for (int d = 0; d < in->rank; ++d) sizes[d] = in->sizes[d];
        const std::int64_t rows = w->sizes[1] > 0 ? in->numel / w->sizes[1] : Shape(sizes, in->rank - 1).numel();
        sizes[in->rank - 1] = w->sizes[0];
        out = detail::make_empty(sizes, in->rank, rows * w->sizes[0], in->dtype, in->device, x.loc);
        const auto whole = [&]() __attribute__((always_inline)) {
            return MatrixProduct{in->dtype,      rows,        w->sizes[0],          w->sizes[1],      in->data,
                                 w->sizes[1],    1,           laid->data,           laid->strides[1], laid->strides[0],
                                 out.raw_data(), w->sizes[0], b ? b->data : nullptr};
        };
        detail::at_line(x.loc, [&] {
            if constexpr (in_group) {
                MatrixProduct p = whole();
                p.m /= products;
                p.batch = products;
                p.a_batch = p.m * p.k;
                p.c_batch = p.m * p.n;
                multiply(p, in->device);
            } else {
                multiply(whole(), in->device);
            }
        });
    } else if (b && is_floating(in->dtype) && !as_it_is) {  // 16-bit floats are rounded once, after the bias
        const detail::UnrecordedPartsOf parts(x.loc);
        const Tensor wide_weight = weight.tensor.to(computed, x.loc);
        const Tensor wide = product("linear", x.tensor.to(computed, x.loc), transpose(wide_weight, 0, 1), x.loc);
        out = (wide + bias.to(computed, x.loc)).to(in->dtype, x.loc);
    } else {
        const detail::UnrecordedPartsOf parts(x.loc);
        out = product("linear", x.tensor, transpose(weight, 0, 1), x.loc);
        if (b) out = out + bias;
    }
    if (b) {
        record(linear_op, x.loc, {&x.tensor, &weight.tensor, &bias}, out, {&x.tensor, &weight.tensor});
    } else {
        record(linear_op, x.loc, {&x.tensor, &weight.tensor}, out, {&x.tensor, &weight.tensor});
    }
    return out;
}

}  // namespace

Tensor linear(In x, In weight, const Tensor& bias) {
    detail::check_defined(x, "linear");
    detail::check_defined(weight, "linear");
    if (detail::autocast_low(x.tensor, weight.tensor)) [[unlikely]] {
        const Tensor low_x = detail::autocast_to_low(x), low_weight = detail::autocast_to_low(weight);
        return linear(In(low_x, x.loc), In(low_weight, weight.loc), bias.defined() ? detail::autocast_to_low(In(bias, x.loc)) : bias);
    }
    const TensorImpl *in = x.tensor.impl(), *w = weight.tensor.impl();
    const TensorImpl* b = bias.impl();
    if (is_composed_linear(in, w, b)) [[unlikely]]
        return composed_linear(x, weight, bias);
    if (w->rank != 2 || in->rank == 0 || in->sizes[in->rank - 1] != w->sizes[1]) {
        fail<ShapeError>(x.loc, "linear: an input of shape {} does not fit a weight of shape {} (out, in){}", x.tensor.shape(), weight.tensor.shape(),
                         linear_hint(x.tensor.shape(), weight.tensor.shape()));
    }
    if (b && (b->rank != 1 || b->sizes[0] != w->sizes[0])) {
        fail<ShapeError>(x.loc, "linear: a bias of shape {} does not fit a weight of shape {} (out, in)", bias.shape(), weight.tensor.shape());
    }
    if (in->dtype != w->dtype || (b && b->dtype != w->dtype)) {
        fail<DTypeError>(x.loc, "linear: input, weight and bias must have one dtype, got {}, {} and {}{}", name(in->dtype), name(w->dtype),
                         b ? name(b->dtype) : "no bias", detail::conversion_hint(in->dtype, w->dtype));
    }
    detail::check_same_device("linear", x.tensor, weight.tensor, x.loc);
    if (b) {
        detail::check_same_device("linear", x.tensor, bias, x.loc);
        detail::begin_op("linear", b, x.loc);
    }
    if (detail::in_batch()) [[unlikely]] {
        const auto rule = [&](const detail::Batched& g, Tensor* made) {
            const bool is_exact = is_deterministic();
            const Tensor laid = is_exact ? g[1] : detail::laid_for_groups(g[1], g[0].numel() / std::max<std::int64_t>(w->sizes[1], 1));
            made[0] = linear_of<true>(In(g[0], x.loc), In(g[1], x.loc), g[2], laid.impl(), is_exact ? g.count() : 1);
        };
        Tensor out;
        const detail::Grouping grouping{.same = 0b110, .always_waits = detail::is_worth_waiting(weight.tensor)};
        if (detail::batched({linear_op, x.loc, {&x.tensor, &weight.tensor, &bias}, {}, grouping}, rule, {&out})) return out;
    }
    return linear_of<false>(x, weight, bias, w, /*products=*/1);
}

namespace {

// True if x * factor is x.
bool is_one(Scalar factor, const Tensor& x) { return factor.as_double() == 1 && is_floating(x.dtype()); }

// A beta or an alpha of 0 drops its term, even nan and infinity, as in PyTorch.
Tensor plus_product(const char* op, const In& c, const Tensor& product, Scalar beta, Scalar alpha) {
    const Tensor scaled = is_one(alpha, product) ? product : alpha.as_double() != 0 ? product * alpha : gated_mul(alpha, In(product, c.loc));
    if (beta.as_double() != 0) return (is_one(beta, c.tensor) ? c.tensor : c.tensor * beta) + scaled;
    if (broadcast_shapes(c.tensor.shape(), product.shape(), op, c.loc) == product.shape()) return scaled;
    return scaled + zeros_like(c);
}

// True if the product of 16-bit floats is computed in float32: then the sum is, too, and rounded once.
bool is_summed_wide(const In& c, const In& a, const In& b) {
    const DType dtype = a->dtype;
    if ((dtype != float16 && dtype != bfloat16) || c->dtype != dtype || b->dtype != dtype || detail::thread.autocast) return false;
    const int64_t multiplications = a->numel * (b->rank > 1 ? b->sizes[b->rank - 1] : 1);
    return product_dtype(dtype, a->device, multiplications) == float32;
}

// Computes beta * c + alpha * a b, for tensors with a_dim and b_dim dimensions.
Tensor add_product(const char* op, const In& c, const In& a, int a_dim, const In& b, int b_dim, Scalar beta, Scalar alpha) {
    const detail::ComposedOp composed(op);
    for (const In* t : {&c, &a, &b}) detail::check_defined(*t, op);
    const detail::RecordedParts parts(c.loc);
    if (!is_summed_wide(c, a, b)) return plus_product(op, c, matmul_of(op, a, a_dim, b, b_dim), beta, alpha);
    const Tensor wide_c = to(c, float32), wide_a = to(a, float32), wide_b = to(b, float32);
    const Tensor product = matmul_of(op, In(wide_a, a.loc), a_dim, In(wide_b, b.loc), b_dim);
    return to(plus_product(op, In(wide_c, c.loc), product, beta, alpha), c->dtype);
}

}  // namespace

// A row that is added to each row of a product: one op. (In batch() a weight turned anew would be another one in each instance.)
static bool is_linear(const Tensor& c, const Tensor& a, const Tensor& b, Scalar beta, Scalar alpha) {
    if (!c.defined() || !a.defined() || !b.defined() || c.dim() != 1 || a.dim() != 2 || b.dim() != 2 || detail::thread.autocast || detail::in_batch())
        return false;
    const bool fits = a.size(1) == b.size(0) && c.size(0) == b.size(1) && c.dtype() == a.dtype() && a.dtype() == b.dtype();
    return fits && is_one(alpha, a) && is_one(beta, c) && c.device() == a.device() && a.device() == b.device();
}

Tensor addmm(In c, In a, In b, Scalar beta, Scalar alpha) {
    if (is_linear(c.tensor, a.tensor, b.tensor, beta, alpha)) return linear(a, In(transpose(b, 0, 1), c.loc), c.tensor);
    return add_product("addmm", c, a, 2, b, 2, beta, alpha);
}
Tensor baddbmm(In c, In a, In b, Scalar beta, Scalar alpha) { return add_product("baddbmm", c, a, 3, b, 3, beta, alpha); }
Tensor addmv(In c, In a, In x, Scalar beta, Scalar alpha) { return add_product("addmv", c, a, 2, x, 1, beta, alpha); }

Tensor vdot(In a, In b) { return matmul_of("vdot", a, 1, b, 1); }

Tensor bilinear(In a, In b, In weight, const Tensor& bias) {
    const char* const op = "bilinear";
    for (const In* t : {&a, &b, &weight}) detail::check_defined(*t, op);
    const Shape &of_a = a.tensor.shape(), of_b = b.tensor.shape(), of_weight = weight.tensor.shape();
    const int rank = of_a.rank();
    if (rank == 0 || of_b.rank() != rank || of_weight.rank() != 3 || of_weight[1] != of_a.back() || of_weight[2] != of_b.back()) {
        fail<ShapeError>(a.loc, "{}: needs (..., n), (..., m) and a weight (outputs, n, m): {}, {}, {}", op, of_a, of_b, of_weight);
    }
    for (int d = 0; d < rank - 1; ++d) {
        if (of_a[d] != of_b[d]) fail<ShapeError>(a.loc, "{}: leading dimensions differ: {}, {}", op, of_a, of_b);
    }
    const int64_t outputs = of_weight[0], n = of_weight[1], m = of_weight[2], count = Shape(of_a.data(), rank - 1).numel();
    if (bias.defined() && bias.shape() != Shape(outputs)) {
        fail<ShapeError>(a.loc, "{}: a bias of shape {} does not fit a weight of shape {}", op, bias.shape(), of_weight);
    }
    const detail::RecordedParts parts(a.loc);
    const Tensor rows = reshape(a, {count, n}), columns = reshape(b, {count, m, 1});
    const Tensor mixed = reshape(mm(rows, reshape(transpose(weight, 0, 1), {n, outputs * m})), {count, outputs, m});
    Shape shape = of_a;
    shape[rank - 1] = outputs;
    const Tensor y = reshape(bmm(mixed, columns), shape);
    return bias.defined() ? y + bias : y;
}

Tensor Tensor::matmul(const Tensor& other, Loc loc) const { return tapir::matmul(In(*this, loc), In(other, loc)); }
Tensor Tensor::mm(const Tensor& other, Loc loc) const { return tapir::mm(In(*this, loc), In(other, loc)); }
Tensor Tensor::bmm(const Tensor& other, Loc loc) const { return tapir::bmm(In(*this, loc), In(other, loc)); }
Tensor Tensor::mv(const Tensor& vector, Loc loc) const { return tapir::mv(In(*this, loc), In(vector, loc)); }
Tensor Tensor::dot(const Tensor& other, Loc loc) const { return tapir::dot(In(*this, loc), In(other, loc)); }
Tensor Tensor::outer(const Tensor& other, Loc loc) const { return tapir::outer(In(*this, loc), In(other, loc)); }
Tensor Tensor::addmm(const Tensor& a, const Tensor& b, Scalar beta, Scalar alpha, Loc loc) const {
    return tapir::addmm(In(*this, loc), In(a, loc), In(b, loc), beta, alpha);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// True if operands of float32 and float64 can be multiplied without a conversion.
bool can_multiply(const Tensor& a, const Tensor& b, const Tensor& out) noexcept {
    const TensorImpl *x = a.impl(), *y = b.impl(), *z = out.impl();
    const bool is_here = x->device == cpu && y->device == cpu && z->device == cpu;
    return is_here && (z->dtype == float32 || z->dtype == float64) && x->dtype == z->dtype && y->dtype == z->dtype;
}

bool matmul_into(const FormCall& x, const Tensor& out) {
    if (x.count != 2 || !can_multiply(x[0], x[1], out)) return false;
    const TensorImpl *a = x[0].impl(), *b = x[1].impl(), *y = out.impl();
    if (a->rank == 0 || b->rank == 0) return false;
    const int64_t m = a->rank == 1 ? 1 : a->sizes[a->rank - 2], k = a->sizes[a->rank - 1];
    const int64_t n = b->rank == 1 ? 1 : b->sizes[b->rank - 1], k2 = b->rank == 1 ? b->sizes[0] : b->sizes[b->rank - 2];
    if (k != k2) return false;
    if (a->rank == 2 && b->rank == 2) {
        if (y->numel != m * n) return false;
        if (y->numel > 0)
            multiply({y->dtype, m, n, k, a->data, a->strides[0], a->strides[1], b->data, b->strides[0], b->strides[1], y->data, n}, cpu);
        return true;
    }
    const Shape of_a(a->sizes, std::max(a->rank - 2, 0)), of_b(b->sizes, std::max(b->rank - 2, 0));
    if (!detail::do_broadcast(of_a, of_b) || broadcast_shapes(of_a, of_b).numel() * m * n != y->numel) return false;
    multiply_all(out, x[0], x[1], m, n, k);
    return true;
}

bool linear_into(const FormCall& x, const Tensor& out) {
    if (x.count < 2 || x.count > 3 || !can_multiply(x[0], x[1], out)) return false;
    const TensorImpl *in = x[0].impl(), *w = x[1].impl(), *y = out.impl();
    const TensorImpl* b = x.count > 2 ? x[2].impl() : nullptr;
    if (!in->is_contiguous() || w->rank != 2 || in->rank == 0 || in->sizes[in->rank - 1] != w->sizes[1] || w->sizes[1] == 0) return false;
    if (b && !(detail::is_plain(b, y->dtype) && b->rank == 1 && b->sizes[0] == w->sizes[0])) return false;
    const int64_t k = w->sizes[1], n = w->sizes[0], rows = in->numel / k;
    if (y->numel != rows * n) return false;
    if (y->numel > 0) multiply({y->dtype, rows, n, k, in->data, k, 1, w->data, w->strides[1], w->strides[0], y->data, n, b ? b->data : nullptr}, cpu);
    return true;
}

}  // namespace

// Takes a weight (out, in), or (in,) of one output without a dimension; the result holds the bias.
[[maybe_unused]] static ValueType types_of_linear(const TypeCall& t) {
    using namespace types;
    const ValueType &x = ranked(t[0], 1), &weight = ranked(t[1], 1, 2);
    need(may_equal(size_of(x, -1), size_of(weight, -1)), "the input does not fit the weight (out, in)");
    const ValueType y = shaped(x, appended(leading(x, 1), weight, 0, weight.rank() - 1), promoted(t));
    if (t.count > 2) static_cast<void>(weight.rank() == 1 ? ranked(t[2], 0, 0) : holding(y, t[2]));
    return y;
}

TAPIR_INTO_FORM(matmul, 2, detail::NoAttrs, multiplied(t[0], t[1]), matmul(x[0], x[1]), matmul_into, static_cast<void>(f));
TAPIR_INTO_FORM(linear, Operands(2, 3), detail::NoAttrs, types_of_linear(t), (x.count > 2 ? linear(x[0], x[1], x[2]) : linear(x[0], x[1])),
                linear_into, static_cast<void>(f));

}  // namespace tapir
