// Initialisers.
#include "tapir/nn/init.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/random/random.h"

namespace tapir::nn::init {
namespace {

void check(const char* op, const Tensor& t, const Loc& loc) {
    tapir::detail::check_defined(In(t, loc), op);
    if (!is_floating(t.dtype())) fail<DTypeError>(loc, "{}: needs a floating dtype, got {}", op, name(t.dtype()));
}

struct Fans {
    double in, out;
};

Fans fans(const char* op, const Tensor& t, const Loc& loc) {
    check(op, t, loc);
    if (t.dim() < 2) fail<ShapeError>(loc, "{}: needs at least 2 dimensions to have fans, got {}", op, t.shape());
    double field = 1;
    for (int d = 2; d < t.dim(); ++d) field *= static_cast<double>(t.shape()[d]);
    return {static_cast<double>(t.shape()[1]) * field, static_cast<double>(t.shape()[0]) * field};
}

double kaiming_std(const char* op, const Tensor& t, const KaimingOptions& options, const Loc& loc) {
    const Fans f = fans(op, t, loc);
    return gain(options.nonlinearity, options.slope) / std::sqrt(options.fan == Fan::in ? f.in : f.out);
}

// Keeps initialisers from being recorded. A graph that is traced still sees them, if they consist of ops only.
class PauseUnlessTraced {
    tapir::detail::Muted muted_{tapir::detail::thread.muted || !tapir::detail::is_tracing()};
    NoGradScope plain_;
};

// For an initialiser that computes with elements, which a graph cannot hold: the error names it.
class PartsOf {
 public:
    PartsOf(const char* op, const Loc& loc) noexcept : named_(op, loc) {}

 private:
    struct Named {
        Named(const char* op, const Loc& loc) noexcept {
            if (tapir::detail::is_tracing()) tapir::detail::name_op(op, loc);
        }
    } named_;
    tapir::detail::UnrecordedParts parts_;
};

Tensor fill(const Tensor& t, const Tensor& values, const Loc& loc) {
    Tensor to = t;
    return to.copy_(values, loc);
}

// a is (m, n) with m >= n, by columns. Replaces it by the Q of its QR decomposition (Householder reflections, Golub and Van Loan
// algorithms 5.1.1 and 5.2.1), with signs of the columns that make R's diagonal positive: only then is Q uniformly distributed
// (Mezzadri 2007).
void orthonormalise(std::vector<double>& a, std::size_t m, std::size_t n) {
    std::vector<double> beta(n), sign(n), q(m * n, 0.0);
    const auto reflect = [m](const double* v, double b, std::size_t from, double* column) {
        double dot = 0;
        for (std::size_t i = from; i < m; ++i) dot += v[i] * column[i];
        for (std::size_t i = from; i < m; ++i) column[i] -= b * dot * v[i];
    };
    for (std::size_t k = 0; k < n; ++k) {
        double* v = &a[k * m];
        double norm = 0;
        for (std::size_t i = k; i < m; ++i) norm += v[i] * v[i];
        norm = std::sqrt(norm);
        // v becomes the reflection's vector: x + sign(x_k) |x| e_k maps x to -sign(x_k) |x| e_k, R's diagonal element.
        sign[k] = v[k] >= 0 ? -1.0 : 1.0;
        v[k] -= sign[k] * norm;
        double square = 0;
        for (std::size_t i = k; i < m; ++i) square += v[i] * v[i];
        beta[k] = square > 0 ? 2 / square : 0;
        for (std::size_t j = k + 1; j < n; ++j) reflect(v, beta[k], k, &a[j * m]);
    }
    for (std::size_t j = 0; j < n; ++j) {
        q[j * m + j] = sign[j];
        for (std::size_t k = j + 1; k-- > 0;) reflect(&a[k * m], beta[k], k, &q[j * m]);
    }
    a = std::move(q);
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// Returns the x with normal_cdf(x) == u, for 0 < u < 1; most exact for small u. Refines Winitzki's approximation by Halley's method.
double normal_quantile(double u) {
    constexpr double kA = 0.147, kPi = 3.14159265358979323846;
    const double log_term = std::log(4 * u * (1 - u)), half = 2 / (kPi * kA) + log_term / 2;
    double x = std::sqrt(2 * (std::sqrt(half * half - log_term / kA) - half));
    if (u < 0.5) x = -x;
    for (int i = 0; i < 3; ++i) {
        const double step = (normal_cdf(x) - u) * std::sqrt(2 * kPi) * std::exp(x * x / 2);
        x -= step / (1 + x * step / 2);
    }
    return x;
}

}  // namespace

Tensor uniform_(const Tensor& t, double low, double high, Loc loc) { return uniform_(t, low, high, default_generator(), loc); }
Tensor uniform_(const Tensor& t, double low, double high, Generator& generator, Loc loc) {
    const PauseUnlessTraced pause;
    Tensor to = t;
    return to.uniform_(low, high, generator, loc);
}

Tensor normal_(const Tensor& t, double mean, double std, Loc loc) { return normal_(t, mean, std, default_generator(), loc); }
Tensor normal_(const Tensor& t, double mean, double std, Generator& generator, Loc loc) {
    if (!std::isfinite(mean) || std::isinf(std))
        fail<ValueError>(loc, "normal_: the mean {} and the standard deviation {} must be finite", mean, std);
    const PauseUnlessTraced pause;
    Tensor to = t;
    return to.normal_(mean, std, generator, loc);
}

Tensor trunc_normal_(const Tensor& t, double mean, double std, double a, double b, Loc loc) {
    return trunc_normal_(t, mean, std, a, b, default_generator(), loc);
}
Tensor trunc_normal_(const Tensor& t, double mean, double std, double a, double b, Generator& generator, Loc loc) {
    check("trunc_normal_", t, loc);
    if (!(std > 0) || !(a < b)) {
        fail<ValueError>(loc, "trunc_normal_: needs std above 0 and a < b, got std {}, a {}, b {}", std, a, b);
    }
    if (!std::isfinite(mean) || std::isinf(std)) fail<ValueError>(loc, "trunc_normal_: mean {} and std {} must be finite", mean, std);
    const CallerScope caller(loc);
    const PartsOf parts("trunc_normal_", loc);
    // Works on the side where the distribution function is small, and so exact.
    double low = (a - mean) / std, high = (b - mean) / std;
    const double side = low > 0 ? -1 : 1;
    if (side < 0) low = -std::exchange(high, -low);
    const double from = normal_cdf(low), to = normal_cdf(high);
    const Tensor draw = rand({t.numel()}, generator, {float64, cpu});
    double* const values = draw.data<double>();
    constexpr std::int64_t kGrain = 512;  // a quantile takes about 0.2 us
    parallel_for(t.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const double u = std::max(from + values[i] * (to - from), 1e-300);
            values[i] = std::clamp(mean + std * side * std::clamp(normal_quantile(u), low, high), a, b);
        }
    });
    return fill(t, draw.reshape(t.shape()), loc);
}

Tensor eye_(const Tensor& t, Loc loc) {
    check("eye_", t, loc);
    if (t.dim() != 2) fail<ShapeError>(loc, "eye_: needs a matrix, got shape {}", t.shape());
    const PauseUnlessTraced pause;
    return fill(t, eye(t.size(0), t.size(1), {t.dtype(), cpu}), loc);
}

Tensor dirac_(const Tensor& t, std::int64_t groups, Loc loc) {
    check("dirac_", t, loc);
    if (t.dim() < 3 || t.dim() > 5) fail<ShapeError>(loc, "dirac_: needs 3 to 5 dimensions, got shape {}", t.shape());
    const std::int64_t out = t.size(0), in = t.size(1);
    if (groups < 1 || out % groups != 0) fail<ValueError>(loc, "dirac_: {} outputs are no multiple of {} groups", out, groups);
    const PartsOf parts("dirac_", loc);
    const Tensor weight = zeros(t.shape(), {t.dtype(), cpu});
    for (std::int64_t g = 0; g < groups; ++g) {
        for (std::int64_t i = 0; i < std::min(out / groups, in); ++i) {
            Tensor filter = weight[g * (out / groups) + i][i];
            while (filter.dim() > 0) filter = filter[filter.size(0) / 2];
            filter.fill_(1);
        }
    }
    return fill(t, weight, loc);
}

Tensor constant_(const Tensor& t, double value, Loc loc) {
    tapir::detail::check_defined(In(t, loc), "constant_");
    const PauseUnlessTraced pause;
    Tensor to = t;
    return to.fill_(value, loc);
}

Tensor zeros_(const Tensor& t, Loc loc) { return constant_(t, 0, loc); }
Tensor ones_(const Tensor& t, Loc loc) { return constant_(t, 1, loc); }

Tensor xavier_uniform_(const Tensor& t, double gain, Loc loc) { return xavier_uniform_(t, gain, default_generator(), loc); }
Tensor xavier_uniform_(const Tensor& t, double gain, Generator& generator, Loc loc) {
    const Fans f = fans("xavier_uniform_", t, loc);
    const double bound = gain * std::sqrt(6 / (f.in + f.out));
    return t.numel() == 0 ? t : uniform_(t, -bound, bound, generator, loc);
}

Tensor xavier_normal_(const Tensor& t, double gain, Loc loc) { return xavier_normal_(t, gain, default_generator(), loc); }
Tensor xavier_normal_(const Tensor& t, double gain, Generator& generator, Loc loc) {
    const Fans f = fans("xavier_normal_", t, loc);
    return t.numel() == 0 ? t : normal_(t, 0, gain * std::sqrt(2 / (f.in + f.out)), generator, loc);
}

double gain(Nonlinearity nonlinearity, double slope) noexcept {
    switch (nonlinearity) {
        case Nonlinearity::linear:
        case Nonlinearity::sigmoid: return 1;
        case Nonlinearity::tanh: return 5.0 / 3;
        case Nonlinearity::relu: return std::sqrt(2.0);
        case Nonlinearity::leaky_relu: return std::sqrt(2 / (1 + slope * slope));
        case Nonlinearity::selu: return 0.75;
    }
    return 1;
}

Tensor kaiming_uniform_(const Tensor& t, const KaimingOptions& options, Loc loc) { return kaiming_uniform_(t, options, default_generator(), loc); }
Tensor kaiming_uniform_(const Tensor& t, const KaimingOptions& options, Generator& generator, Loc loc) {
    const double bound = std::sqrt(3.0) * kaiming_std("kaiming_uniform_", t, options, loc);
    return t.numel() == 0 ? t : uniform_(t, -bound, bound, generator, loc);
}

Tensor kaiming_normal_(const Tensor& t, const KaimingOptions& options, Loc loc) { return kaiming_normal_(t, options, default_generator(), loc); }
Tensor kaiming_normal_(const Tensor& t, const KaimingOptions& options, Generator& generator, Loc loc) {
    const double std = kaiming_std("kaiming_normal_", t, options, loc);
    return t.numel() == 0 ? t : normal_(t, 0, std, generator, loc);
}

Tensor orthogonal_(const Tensor& t, double gain, Loc loc) { return orthogonal_(t, gain, default_generator(), loc); }
Tensor orthogonal_(const Tensor& t, double gain, Generator& generator, Loc loc) {
    fans("orthogonal_", t, loc);
    if (!std::isfinite(gain)) fail<ValueError>(loc, "orthogonal_: gain must be finite, got {}", gain);
    if (t.numel() == 0) return t;
    const CallerScope caller(loc);
    const PartsOf parts("orthogonal_", loc);
    const std::int64_t rows = t.shape()[0], cols = t.numel() / rows;
    const auto m = static_cast<std::size_t>(std::max(rows, cols)), n = static_cast<std::size_t>(std::min(rows, cols));
    const Tensor draw = randn({m * n}, generator, {float64, cpu});
    std::vector<double> a(draw.data<double>(), draw.data<double>() + m * n);
    orthonormalise(a, m, n);
    for (double& x : a) x *= gain;
    // Data by columns is (n, m) row-major: already right if the rows are fewer.
    Tensor q = tensor_from(a.data(), {n, m}, float64);
    if (rows >= cols) q = q.t();
    return fill(t, q.reshape(t.shape()), loc);
}

}  // namespace tapir::nn::init
