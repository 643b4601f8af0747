// The routines of linalg_impl.h: LAPACK's on the host, cuSOLVER's on a CUDA device.
#include "tapir/ops/linalg/linalg_impl.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "tapir/core/make_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/linalg/linalg.h"
#include "tapir/ops/linalg/linalg_kernels.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"
#ifdef TAPIR_HAVE_LAPACK
#include "tapir/ops/linalg/blocked_impl.h"
#include "tapir/ops/linalg/lapack_impl.h"
#include "tapir/ops/linalg/openblas_impl.h"
#include "tapir/ops/linalg/reduced_impl.h"
#endif

namespace tapir::matrices {

using std::int64_t;

namespace {

#ifdef TAPIR_HAVE_LAPACK
constexpr bool kHaveLapack = true;
#else
constexpr bool kHaveLapack = false;
#endif

// The matrices of an operand.
struct Matrices {
    int64_t rows, columns, count;  // count: in the batch
    explicit Matrices(const Tensor& x) : rows(x.size(-2)), columns(x.size(-1)), count(1) {
        for (int d = 0; d + 2 < x.dim(); ++d) count *= x.size(d);
    }
};

}  // namespace

// --- What the ops share ----------------------------------------------------------------------------------------------------------

Tensor mt(const Tensor& x) { return transpose(x, -1, -2); }
Shape batch_of(const Tensor& x, int without) { return {x.impl()->sizes, x.dim() - without}; }
Shape with_sizes(Shape batch, std::initializer_list<int64_t> sizes) {
    for (const int64_t size : sizes) batch.push_back(size);
    return batch;
}

void check_matrices(const char* op, const In& x, bool square) {
    detail::check_defined(x, op);
    if (x.tensor.dim() < 2) fail<ShapeError>(x.loc, "{}: needs matrices, got shape {}", op, x.tensor.shape());
    if (square && x.tensor.size(-1) != x.tensor.size(-2)) fail<ShapeError>(x.loc, "{}: needs square matrices, got shape {}", op, x.tensor.shape());
    if (x->dtype != float32 && x->dtype != float64) fail<DTypeError>(x.loc, "{}: needs float32 or float64, got {}", op, name(x->dtype));
    if (std::max(x.tensor.size(-1), x.tensor.size(-2)) >= INT32_MAX / 4)
        fail<ShapeError>(x.loc, "{}: matrices of shape {} are too large", op, x.tensor.shape());
}
void check_alike(const char* op, const In& a, const In& b) {
    detail::check_same_device(op, a.tensor, b.tensor, a.loc);
    if (a->dtype != b->dtype) fail<DTypeError>(a.loc, "{}: operands must have one dtype, got {} and {}", op, name(a->dtype), name(b->dtype));
}

std::string which(const Tensor& x, int64_t index) { return x.dim() > 2 ? "matrix " + std::to_string(index) + " of the batch" : "the matrix"; }

Device place_of(const Tensor& x) { return on_gpu(x) && gpu::has_cusolver() ? x.device() : cpu; }
Tensor columns_of(const Tensor& x) {
    const Tensor turned = mt(x).to(place_of(x)), packed = turned.contiguous();
    return packed.shares_storage(x) ? clone(packed) : packed;
}
Tensor result_of(const Tensor& columns, Device device) { return mt(columns).contiguous().to(device); }

void begin(const OpInfo& op, const In& a) {
    if (!kHaveLapack && place_of(a.tensor) == cpu) {
        fail<DeviceError>(a.loc, "{}: the library was built without LAPACK; install liblapack-dev and build with -DTAPIR_LAPACK=ON", op.name);
    }
    detail::begin_op(op.name, a.tensor.impl(), a.loc);
}

[[noreturn]] void fail_singular(const char* op, const Tensor& a, int64_t index, const Loc& loc) {
    fail<ValueError>(loc, "{}: {} is singular", op, which(a, index));
}
[[noreturn]] void fail_to_converge(const char* op, const Tensor& a, int64_t index, const Loc& loc) {
    fail<ValueError>(loc, "{}: the algorithm did not converge for {}, which may hold nan or infinities", op, which(a, index));
}

// --- On the host -----------------------------------------------------------------------------------------------------------------

namespace on_host {
namespace {

#ifdef TAPIR_HAVE_LAPACK

using lapack::Int;

constexpr int64_t kThreadsFrom = 512;  // measured: on smaller ones they cost more than they save

// Calls f(k) for each matrix of a batch: on several threads if they are small, one after the other if the library may use threads itself.
template <class F>
void for_matrices(int64_t count, int64_t size, const F& f, int64_t threads_from = kThreadsFrom) {
    openblas::set_threads(size >= threads_from && !detail::in_part() ? num_threads() : 1);
    if (size > 96 || count < 2) {
        for (int64_t k = 0; k < count; ++k) f(k);
        return;
    }
    const int64_t work = size * size * size + 1;
    parallel_items(count, 32 * 1024 / work + 1, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) f(k);
    });
}

// The same, for routines of blocked_impl.h: the library has the small parts alone.
template <class F>
void for_blocked(int64_t count, int64_t size, const F& f) {
    for_matrices(count, size, f, /*threads_from=*/INT64_MAX);
}

template <class T>
T* matrix(const Tensor& batch, int64_t k) {
    return static_cast<T*>(batch.raw_data()) + k * batch.size(-1) * batch.size(-2);
}
template <class T>
T* row(const Tensor& batch, int64_t k) {
    return static_cast<T*>(batch.raw_data()) + k * batch.size(-1);
}
Int as_int(int64_t n) { return static_cast<Int>(n); }
Int leading(int64_t n) { return static_cast<Int>(std::max<int64_t>(n, 1)); }

// Finds the first matrix that a routine stopped at, over several threads.
class FirstStopped {
 public:
    void at(int64_t k) {
        int64_t seen = first_;
        while (k < seen && !__atomic_compare_exchange_n(&first_, &seen, k, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    }
    operator Stopped() const { return {first_ == INT64_MAX ? -1 : first_}; }

 private:
    int64_t first_ = INT64_MAX;
};

template <class F>
void with_type(DType dtype, const F& f) {
    dtype == float64 ? f.template operator()<double>() : f.template operator()<float>();
}

// Calls then(k, factors, pivots) for each matrix that has an inverse.
template <class T, class F>
Stopped factor_each(const Tensor& lu, const F& then) {
    const Matrices a(lu);
    FirstStopped stopped;
    for_blocked(a.count, a.rows, [&](int64_t k) {
        std::vector<Int> pivots(static_cast<std::size_t>(a.rows));
        const lapack::Columns<T> factors{matrix<T>(lu, k), leading(a.rows)};
        if (lapack::factor_lu(as_int(a.rows), as_int(a.rows), factors, pivots.data()) != 0) return stopped.at(k);
        then(k, factors, pivots.data());
    });
    return stopped;
}

Stopped lu_solve(const Tensor& lu, const Tensor& b) {
    Stopped stopped;
    with_type(lu.dtype(), [&]<class T>() {
        stopped = factor_each<T>(lu, [&](int64_t k, const lapack::Columns<T>& factors, const Int* pivots) {
            lapack::solve_lu(as_int(lu.size(-1)), as_int(b.size(-2)), factors, pivots, {matrix<T>(b, k), factors.ld});
        });
    });
    return stopped;
}

Stopped invert(const Tensor& lu, const Tensor& x) {
    Stopped stopped;
    with_type(lu.dtype(), [&]<class T>() {
        stopped = factor_each<T>(lu, [&](int64_t k, const lapack::Columns<T>& factors, const Int* pivots) {
            lapack::invert_lu(as_int(lu.size(-1)), factors, pivots, {matrix<T>(x, k), factors.ld});
        });
    });
    return stopped;
}

Determinants determinants(const Tensor& lu) {
    const Matrices a(lu);
    Determinants made;
    for (Tensor* t : {&made.sign, &made.logarithm, &made.det}) *t = detail::make_empty(batch_of(lu), lu.dtype(), cpu, Loc{});
    with_type(lu.dtype(), [&]<class T>() {
        for_blocked(a.count, a.rows, [&](int64_t k) {
            std::vector<Int> pivots(static_cast<std::size_t>(a.rows));
            T* m = matrix<T>(lu, k);
            lapack::factor_lu<T>(as_int(a.rows), as_int(a.rows), {m, leading(a.rows)}, pivots.data());
            T s = 1, l = 0, d = 1;
            for (int64_t i = 0; i < a.rows; ++i) {
                const T x = m[i * a.rows + i];
                const bool is_swapped = pivots[static_cast<std::size_t>(i)] != i + 1;
                s *= (is_swapped ? T(-1) : T(1)) * (x > 0 ? T(1) : x < 0 ? T(-1) : x);
                l += std::log(std::abs(x));
                d *= is_swapped ? -x : x;
            }
            static_cast<T*>(made.sign.raw_data())[k] = s;
            static_cast<T*>(made.logarithm.raw_data())[k] = l;
            static_cast<T*>(made.det.raw_data())[k] = s == 0 ? T(0) : d;  // other pivots' product may be infinite
        });
    });
    return made;
}

Stopped factor_definite(const Tensor& a) {
    const Matrices size(a);
    FirstStopped stopped;
    with_type(a.dtype(), [&]<class T>() {
        for_matrices(size.count, size.rows, [&](int64_t k) {
            const Int n = as_int(size.rows), lda = leading(size.rows);
            Int info = 0;
            T* m = matrix<T>(a, k);
            lapack::call<T>(lapack::spotrf_, lapack::dpotrf_)("L", &n, m, &lda, &info, 1);
            if (info != 0) return stopped.at(k);
            for (int64_t column = 1; column < size.rows; ++column) std::fill(m + column * size.rows, m + column * size.rows + column, T(0));
        });
    });
    return stopped;
}

void triangular_solve(const Tensor& a, const Tensor& b, bool upper, bool unit) {
    const Matrices size(a);
    with_type(a.dtype(), [&]<class T>() {
        for_blocked(size.count, size.rows, [&](int64_t k) {
            const Int n = as_int(size.rows), ld = leading(size.rows);
            const lapack::Columns<T> triangle{matrix<T>(a, k), ld}, all{matrix<T>(b, k), ld};
            lapack::in_parts(n, as_int(b.size(-2)), all,
                             [&](lapack::Columns<T> part, Int columns) { lapack::solve_triangle(upper, unit, n, columns, triangle, part); });
        });
    });
}

void factor_orthogonal(const Tensor& a, const Tensor& q, const Tensor& r) {
    const Matrices size(a);
    const int64_t m = size.rows, n = size.columns, least = std::min(n, m);
    with_type(a.dtype(), [&]<class T>() {
        for_matrices(size.count, std::max(n, m), [&](int64_t k) {
            const Int rows = as_int(n), columns = as_int(m), lda = leading(n), count = as_int(least);
            const Int q_columns = q.defined() ? as_int(q.size(-2)) : 0;
            Int info = 0;
            std::vector<T> tau(static_cast<std::size_t>(std::max<int64_t>(least, 1)));
            T* from = matrix<T>(a, k);
            lapack::with_work<T>([&](T* work, const Int* lwork) {
                lapack::call<T>(lapack::sgeqrf_, lapack::dgeqrf_)(&rows, &columns, from, &lda, tau.data(), work, lwork, &info);
            });
            const int64_t r_rows = r.size(-1);
            T* to = matrix<T>(r, k);
            for (int64_t j = 0; j < m; ++j) {
                for (int64_t i = 0; i < r_rows; ++i) to[j * r_rows + i] = i <= j && i < n ? from[j * n + i] : T(0);
            }
            if (!q.defined()) return;
            T* of_q = matrix<T>(q, k);
            std::copy(from, from + std::min<int64_t>(m, q_columns) * n, of_q);
            lapack::with_work<T>([&](T* work, const Int* lwork) {
                lapack::call<T>(lapack::sorgqr_, lapack::dorgqr_)(&rows, &q_columns, &count, of_q, &lda, tau.data(), work, lwork, &info);
            });
        });
    });
}

Stopped eigen(const Tensor& a, const Tensor& values, bool vectors) {
    const Matrices size(a);
    FirstStopped stopped;
    with_type(a.dtype(), [&]<class T>() {
        for_matrices(size.count, size.rows, [&](int64_t k) {
            Int info = 0;
            if (lapack::find_eigen(as_int(size.rows), matrix<T>(a, k), row<T>(values, k), vectors, info)) {
                if (info != 0) stopped.at(k);
                return;
            }
            const Int n = as_int(size.rows), lda = leading(size.rows);
            Int lwork = -1, liwork = -1, iwish = 0;
            T wish = 0;
            const auto run = [&](T* work, Int* iwork) {
                lapack::call<T>(lapack::ssyevd_, lapack::dsyevd_)(vectors ? "V" : "N", "L", &n, matrix<T>(a, k), &lda, row<T>(values, k), work,
                                                                  &lwork, iwork, &liwork, &info, 1, 1);
            };
            run(&wish, &iwish);
            lwork = std::max(1, static_cast<Int>(wish));
            liwork = std::max(1, iwish);
            std::vector<T> work(static_cast<std::size_t>(lwork));
            std::vector<Int> iwork(static_cast<std::size_t>(liwork));
            run(work.data(), iwork.data());
            if (info != 0) stopped.at(k);
        });
    });
    return stopped;
}

SingularValues singular_values(const Tensor& a, char job) {
    const Matrices size(a);
    const int64_t m = size.rows, n = size.columns, least = std::min(n, m);
    const Shape batch = batch_of(a);
    const auto make = [&](std::initializer_list<int64_t> sizes) { return detail::make_empty(with_sizes(batch, sizes), a.dtype(), cpu, Loc{}); };
    Tensor u, vt;
    const Tensor s = make({least});
    if (job != 'N') {
        u = make({job == 'A' ? n : least, n});
        vt = make({m, job == 'A' ? m : least});
    }
    FirstStopped stopped;
    with_type(a.dtype(), [&]<class T>() {
        for_matrices(size.count, std::max(n, m), [&](int64_t k) {
            Int info = 0;
            if (lapack::find_singular(as_int(n), as_int(m), matrix<T>(a, k), row<T>(s, k), u.defined() ? matrix<T>(u, k) : nullptr,
                                      vt.defined() ? matrix<T>(vt, k) : nullptr, job == 'A', info)) {
                if (info != 0) stopped.at(k);
                return;
            }
            const Int rows = as_int(n), columns = as_int(m), lda = leading(n), ldvt = leading(vt.defined() ? vt.size(-1) : 1);
            T none = 0;
            std::vector<Int> iwork(static_cast<std::size_t>(8 * std::max<int64_t>(std::min(m, n), 1)));
            lapack::with_work<T>([&](T* work, const Int* lwork) {
                lapack::call<T>(lapack::sgesdd_, lapack::dgesdd_)(
                    &job, &rows, &columns, matrix<T>(a, k), &lda, row<T>(s, k), u.defined() ? matrix<T>(u, k) : &none, &lda,
                    vt.defined() ? matrix<T>(vt, k) : &none, &ldvt, work, lwork, iwork.data(), &info, 1);
            });
            if (info != 0) stopped.at(k);
        });
    });
    return {u, s, vt, stopped};
}

#else

Stopped lu_solve(const Tensor&, const Tensor&) { return {}; }
Stopped invert(const Tensor&, const Tensor&) { return {}; }
Determinants determinants(const Tensor&) { return {}; }
Stopped factor_definite(const Tensor&) { return {}; }
void triangular_solve(const Tensor&, const Tensor&, bool, bool) {}
void factor_orthogonal(const Tensor&, const Tensor&, const Tensor&) {}
Stopped eigen(const Tensor&, const Tensor&, bool) { return {}; }
SingularValues singular_values(const Tensor&, char) { return {}; }

#endif

}  // namespace
}  // namespace on_host

// --- On a device -----------------------------------------------------------------------------------------------------------------

namespace on_device {
namespace {

kernels::MatrixBatch batch(const Tensor& columns) {
    const Matrices size(columns);
    return {columns.dtype(), size.count, size.columns, size.rows, on_stream(columns)};
}

// Holds for a routine that stops at matrices a number for each.
struct Info {
    Tensor of_matrices;
    explicit Info(const Tensor& a) : of_matrices(zeros({Matrices(a).count}, {int32, a.device()})) {}
    int* address() const { return on_stream<int>(of_matrices); }
    Stopped first() const {
        const Tensor here = of_matrices.to(cpu);
        const auto* info = static_cast<const std::int32_t*>(here.raw_data());
        const auto* found = std::find_if(info, info + here.numel(), [](std::int32_t i) { return i != 0; });
        return {found == info + here.numel() ? -1 : found - info};
    }
};

Tensor make_pivots(const Tensor& lu) { return detail::make_empty(with_sizes(batch_of(lu), {lu.size(-1)}), int32, lu.device(), Loc{}); }

Stopped lu_solve(const Tensor& lu, const Tensor& b) {
    if (lu.numel() == 0) return {};
    const Info info(lu);
    const Tensor pivots = make_pivots(lu);
    gpu::factor_lu(batch(lu), on_stream<int>(pivots), info.address());
    if (b.numel() > 0) gpu::solve_lu(batch(lu), on_stream<int>(pivots), batch(b));
    return info.first();
}

Stopped invert(const Tensor& lu, const Tensor& x) {
    diagonal(x, 0, -2, -1).fill_(1);
    return lu_solve(lu, x);
}

// Uses the diagonal and the number of row swaps. Nothing waits: if a pivot is 0 so is the determinant, whatever the
// routine made of the rest.
Determinants determinants(const Tensor& lu) {
    const Tensor pivots = make_pivots(lu);
    const Info info(lu);
    if (lu.numel() > 0) gpu::factor_lu(batch(lu), on_stream<int>(pivots), info.address());
    const Tensor pivot = diagonal(lu, 0, -2, -1), in_place = arange(1, lu.size(-1) + 1, {int32, lu.device()});
    const Tensor swaps = sum(ne(pivots, in_place), {-1});
    const Tensor parity = (1 - 2 * (swaps % 2)).to(lu.dtype()), has_zero = any(eq(pivot, 0), -1);
    return {where(has_zero, 0, prod(sign(pivot), -1) * parity), where(has_zero, -INFINITY, sum(log(abs(pivot)), {-1})),
            where(has_zero, 0, prod(pivot, -1) * parity)};
}

Stopped factor_definite(Tensor& a) {
    if (a.numel() == 0) return {};
    const Info info(a);
    gpu::factor_cholesky(batch(a), info.address());
    a = triu(a);  // columns of a lower triangle
    return info.first();
}

void triangular_solve(const Tensor& a, const Tensor& b, bool upper, bool unit) {
    if (b.numel() > 0) gpu::solve_triangular(batch(a), batch(b), upper, unit);
}

void factor_orthogonal(const Tensor& a, const Tensor& q, const Tensor& r) {
    const int64_t m = a.size(-2), n = a.size(-1), least = std::min(n, m);
    if (a.numel() == 0) {  // no reflectors
        if (q.defined() && q.numel() > 0) copy_elements(q, eye(n, -1, {q.dtype(), q.device()}));
        return;
    }
    const Tensor tau = detail::make_empty({Matrices(a).count, least}, a.dtype(), a.device(), Loc{});
    gpu::factor_qr(batch(a), on_stream(tau));
    copy_elements(r, tril(narrow(a, -1, 0, r.size(-1))));
    if (!q.defined()) return;
    const int64_t given = std::min(m, q.size(-2));
    copy_elements(narrow(q, -2, 0, given), narrow(a, -2, 0, given));
    gpu::form_q(batch(q), least, on_stream(tau));
}

Stopped eigen(const Tensor& a, const Tensor& values, bool vectors) {
    if (a.numel() == 0) return {};
    const Info info(a);
    gpu::eigen(batch(a), on_stream(values), vectors, info.address());
    return info.first();
}

SingularValues singular_values(const Tensor& a, char job) {
    const int64_t m = a.size(-2), n = a.size(-1), least = std::min(n, m);
    const auto make = [&](std::initializer_list<int64_t> sizes) {
        return detail::make_empty(with_sizes(batch_of(a), sizes), a.dtype(), a.device(), Loc{});
    };
    const bool whole = job == 'A' || (job == 'S' && a.numel() > 0 && gpu::has_whole_vectors(batch(a)));
    Tensor u, v;
    const Tensor s = make({least});
    if (job != 'N') {
        u = make({whole ? n : least, n});
        v = make({whole ? m : least, m});
    }
    if (a.numel() == 0) return {u, s, job == 'N' ? v : mt(v), {}};
    const Info info(a);
    gpu::singular_values(batch(a), on_stream(u), on_stream(s), on_stream(v), whole, info.address());
    if (job == 'N') return {u, s, v, info.first()};
    const auto wanted = [&](const Tensor& t) { return job == 'A' ? t : narrow(t, -2, 0, least); };
    return {wanted(u), s, mt(wanted(v)), info.first()};
}

}  // namespace
}  // namespace on_device

// --- Routines --------------------------------------------------------------------------------------------------------------------

Stopped lu_solve(const Tensor& lu, const Tensor& b) { return on_gpu(lu) ? on_device::lu_solve(lu, b) : on_host::lu_solve(lu, b); }
Stopped invert(const Tensor& lu, const Tensor& x) { return on_gpu(lu) ? on_device::invert(lu, x) : on_host::invert(lu, x); }
Determinants determinants(const Tensor& lu) { return on_gpu(lu) ? on_device::determinants(lu) : on_host::determinants(lu); }
Stopped factor_definite(Tensor& a) { return on_gpu(a) ? on_device::factor_definite(a) : on_host::factor_definite(a); }
void triangular_solve(const Tensor& a, const Tensor& b, bool upper, bool unit) {
    on_gpu(a) ? on_device::triangular_solve(a, b, upper, unit) : on_host::triangular_solve(a, b, upper, unit);
}
void factor_orthogonal(const Tensor& a, const Tensor& q, const Tensor& r) {
    on_gpu(a) ? on_device::factor_orthogonal(a, q, r) : on_host::factor_orthogonal(a, q, r);
}

namespace {

template <class T>
int64_t first_not_finite(const T* element, int64_t matrices, int64_t size) {
    const T* const end = element + matrices * size;
    const T* const found = std::find_if(element, end, [](T x) { return !std::isfinite(x); });
    return found == end ? -1 : (found - element) / size;
}

// Stops at a matrix with elements that are nan or infinite. For these an iteration gives what it likes, or does not end: LAPACK's of singular values.
Stopped stops_at_infinity(const Tensor& a) {
    if (a.numel() == 0) return {};
    const int64_t count = Matrices(a).count, size = a.numel() / count;
    if (on_gpu(a)) {
        const Tensor is_odd = any(logical_not(isfinite(reshape(a, {count, size}))), {1}).to(cpu);
        const auto* const first = static_cast<const bool*>(is_odd.raw_data());
        const bool* const found = std::find(first, first + count, true);
        return {found == first + count ? -1 : found - first};
    }
    const Tensor plain = contiguous(a);
    if (a.dtype() == float64) return {first_not_finite(static_cast<const double*>(plain.raw_data()), count, size)};
    return {first_not_finite(static_cast<const float*>(plain.raw_data()), count, size)};
}

}  // namespace

Stopped eigen(const Tensor& a, const Tensor& values, bool vectors) {
    if (const Stopped stopped = stops_at_infinity(a); stopped.any()) return stopped;
    return on_gpu(a) ? on_device::eigen(a, values, vectors) : on_host::eigen(a, values, vectors);
}
SingularValues singular_values(const Tensor& a, char job) {
    if (const Stopped stopped = stops_at_infinity(a); stopped.any()) return {{}, {}, {}, stopped};
    return on_gpu(a) ? on_device::singular_values(a, job) : on_host::singular_values(a, job);
}

}  // namespace tapir::matrices

bool tapir::linalg::is_available() noexcept { return tapir::matrices::kHaveLapack; }
