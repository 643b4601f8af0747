// tapir.h beside the names of std: calls that both could mean are Tapir's.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include <tapir/tapir.h>

using namespace std;
using namespace tapir;

Tensor beside_std(const Tensor& x, const Tensor& y) {
    const Tensor a = max(x, y) + min(x, y) + clamp(x, x, y) + abs(x) + exp(x) + log(x) + sqrt(x) + pow(x, y) + pow(x, 2) + pow(2, x);
    const Tensor b = fmod(x, y) + remainder(x, y) + hypot(x, y) + atan2(x, y) + round(x) + floor(x) + ceil(x) + trunc(x) + lerp(x, y, 0.5);
    const Tensor c = sin(x) + cos(x) + tanh(x) + erf(x) + lgamma(x) + exp2(x) + log1p(x) + expm1(x) + log2(x) + log10(x) + copysign(x, y);
    const auto [values, indices] = max(x, 1);
    const auto [sorted, order] = sort(x, 1);
    Tensor d = empty(x.shape());
    swap(d, d);
    return a + b + c + values + sorted + d + norm(x) + sum(x) + isnan(x).sum() + isinf(x).sum() + ldexp(x, y) + move(d);
}
