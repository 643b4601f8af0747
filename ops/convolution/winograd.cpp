// Convolutions of 3 x 3 with fewer multiplications: 16 for 2 x 2 results in place of 36. Lavin and Gray 2016, "Fast algorithms for convolutional neural
// networks": y = A^T [(G g G^T) * (B^T d B)] A, where the products in brackets, summed over the channels, are 16 matrix products.
//
// Results are rounded in another way: on random numbers the largest error is a third of oneDNN's, as the sums are shorter. But it is relative to the
// largest number of a tile, not of the nine that a result is made of. Larger tiles would multiply less, and err by more. A number that is not finite, or
// nearly so, would spread over its tile: then the call is left to another algorithm.
#include <algorithm>
#include <atomic>
#include <vector>

#include "tapir/core/deterministic.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/convolution/convolution_impl.h"
#include "tapir/ops/convolution/kept_weight_impl.h"
#include "tapir/ops/convolution/winograd_kernels.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/linear/gemm_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {

using std::int64_t;

namespace {

constexpr int64_t kProducts = 16, kTilesAtOnce = 64, kChannelsAtOnce = 256;  // what they need stays in a cache of 2 MB
constexpr int64_t kTilesOfGradient = 96;
constexpr int64_t kPad = 80;  // elements between planes, which else would be a multiple of 4 KB apart: such addresses share their place in a cache

// A convolution as products: y (batch, height, width, n) from x (batch, ..., k), each with its channels last. For the gradient of a weight: of the
// convolution that it belongs to.
struct Sizes {
    int64_t k, n, tiles;
    int64_t before[2];
    kernels::WinogradImages from, to;

    Sizes(ConvPart part, const Convolution& c) {
        const bool is_output = part != ConvPart::input;
        const int64_t *in = (is_output ? c.in : c.out) + 1, *out = (is_output ? c.out : c.in) + 1;
        k = is_output ? c.in_channels : c.out_channels, n = is_output ? c.out_channels : c.in_channels;
        for (int d = 0; d < 2; ++d) before[d] = is_output ? c.before[1 + d] : 2 - c.before[1 + d];
        const int64_t down = (out[0] + 1) / 2, across = (out[1] + 1) / 2;
        from = {in[0], in[1], k, down, across};
        to = {out[0], out[1], n, down, across};
        tiles = c.batch * down * across;
    }
    int64_t plane_of_weight() const { return k * n + kPad; }
};

struct Layout {
    bool is_flipped;
    bool operator==(const Layout&) const = default;
};

bool is_faster(ConvPart part, const Convolution& c, bool is_kept) {
    if (c.dims != 2 || c.groups != 1) return false;
    for (int d = 1; d < 3; ++d) {
        if (c.kernel[d] != 3 || c.stride[d] != 1 || c.dilation[d] != 1) return false;
    }
    constexpr int64_t least_channels = 32, least_tiles = 16, least_tiles_to_pay_for_the_weight = 150;
    const Sizes s(part, c);
    const int64_t results = c.batch * s.to.height * s.to.width;
    return std::min(s.k, s.n) >= least_channels && s.tiles >= (is_kept ? least_tiles : least_tiles_to_pay_for_the_weight) &&
        4 * s.tiles * 10 <= results * 14;  // at most 40% of the tiles' results lie outside of the images
}

float* floats(const Tensor& t) { return static_cast<float*>(t.raw_data()); }
Tensor room_for(int64_t count) { return detail::make_empty({count}, float32, cpu, Loc{}); }

// Returns the 16 planes, each (k, n); undefined if there is a number that is not finite.
Tensor transformed(const Tensor& weight, ConvPart part, const Sizes& s) {
    const bool is_output = part == ConvPart::output;
    const Tensor g = permute(weight, is_output ? Dims{2, 3, 1, 0} : Dims{2, 3, 0, 1}).contiguous();
    const Tensor u = room_for(kProducts * s.plane_of_weight());
    const kernels::WinogradWeight args{floats(g), s.k * s.n, !is_output, floats(u), s.plane_of_weight()};
    std::atomic<bool> is_finite{true};
    parallel_for(s.k * s.n, 4096, [&](int64_t begin, int64_t end) {
        if (!kernels::winograd_weight(args, begin, end)) is_finite = false;
    });
    return is_finite ? u : Tensor();
}

// Computes channels [first, first + channels) of tiles [begin, begin + count). `to` has all but the products and the channels.
bool compute(const Sizes& s, const kernels::WinogradInput& from, const float* u, kernels::WinogradOutput to, int64_t begin, int64_t count,
             int64_t first, int64_t channels) {
    const int64_t at_once = std::min(channels, kChannelsAtOnce), v_plane = count * s.k + kPad, m_plane = count * at_once + kPad;
    const Tensor room = room_for(kProducts * (v_plane + m_plane));
    float *const v = floats(room), *const m = v + kProducts * v_plane;
    kernels::WinogradInput input = from;
    input.v = v, input.plane = v_plane;
    bool is_finite = kernels::winograd_input(input, begin, count);
    to.m = m, to.plane = m_plane;
    const int64_t parts = (channels + at_once - 1) / at_once;
    for (int64_t part = 0; part < parts && is_finite; ++part) {
        const int64_t start = first + channels * part / parts, n = first + channels * (part + 1) / parts - start;
        kernels::GemmBatch<float> products{};
        products.first.m = count, products.first.n = n, products.first.k = s.k;
        products.first.a = v, products.first.a_row = s.k, products.first.a_col = 1;
        products.first.b = u + start, products.first.b_row = s.n, products.first.b_col = 1;
        products.first.c = m, products.first.c_row = n;
        products.batch = kProducts, products.a_batch = v_plane, products.b_batch = s.plane_of_weight(), products.c_batch = m_plane;
        kernels::gemm(products);
        to.first = start, to.channels = n;
        is_finite = kernels::winograd_output(to, begin, count);
    }
    return is_finite;
}

// Adds up the products of tiles [begin, end) in m: 16 planes, each (k, n).
bool add_gradients(const Sizes& s, const kernels::WinogradInput& from, const float* g, float* m, int64_t begin, int64_t end) {
    const int64_t most = std::min(end - begin, kTilesOfGradient), v_plane = most * s.k + kPad, w_plane = most * s.n + kPad;
    const Tensor room = room_for(kProducts * (v_plane + w_plane));
    float *const v = floats(room), *const w = v + kProducts * v_plane;
    kernels::WinogradInput input = from;
    input.v = v, input.plane = v_plane;
    for (int64_t tile = begin; tile < end; tile += most) {
        const int64_t count = std::min(most, end - tile);
        if (!kernels::winograd_input(input, tile, count) || !kernels::winograd_gradient({s.to, g, w, w_plane}, tile, count)) return false;
        kernels::GemmBatch<float> products{};
        products.first.m = s.k, products.first.n = s.n, products.first.k = count;
        products.first.a = v, products.first.a_row = 1, products.first.a_col = s.k;
        products.first.b = w, products.first.b_row = s.n, products.first.b_col = 1;
        products.first.c = m, products.first.c_row = s.n;
        products.first.beta = tile == begin ? 0 : 1;
        products.batch = kProducts, products.a_batch = v_plane, products.b_batch = w_plane, products.c_batch = s.plane_of_weight();
        kernels::gemm(products);
    }
    return true;
}

// out (n, k, 3, 3) becomes the gradient of the weight, from x and the gradient g of y.
bool weight_gradient(const Convolution& c, const Sizes& s, const kernels::WinogradInput& from, const Tensor& g, const Tensor& out) {
    const int threads = threads_for(c);
    const int64_t parts = std::clamp<int64_t>(s.tiles / kTilesOfGradient, 1, threads);
    std::vector<Tensor> sums;
    for (int64_t k = 0; k < parts; ++k) sums.push_back(room_for(kProducts * s.plane_of_weight()));
    std::atomic<bool> is_finite{true};
    detail::share_parts(parts, threads, [&](int64_t k) {
        float* const m = floats(sums[static_cast<std::size_t>(k)]);
        if (!add_gradients(s, from, floats(g), m, s.tiles * k / parts, s.tiles * (k + 1) / parts)) is_finite = false;
    });
    if (!is_finite) return false;
    const Tensor planes = detail::make_empty({3, 3, s.k, s.n}, float32, cpu, Loc{});
    const kernels::WinogradWeightGradient args{floats(sums[0]), s.plane_of_weight(), s.k * s.n, floats(planes)};
    parallel_for(s.k * s.n, 4096, [&](int64_t begin, int64_t end) {
        for (std::size_t part = 1; part < sums.size(); ++part) {
            for (int64_t p = 0; p < kProducts; ++p) {
                float* const sum = floats(sums[0]) + p * s.plane_of_weight();
                const float* const more = floats(sums[part]) + p * s.plane_of_weight();
                for (int64_t i = begin; i < end; ++i) sum[i] += more[i];
            }
        }
        if (!kernels::winograd_weight_gradient(args, begin, end)) is_finite = false;
    });
    if (is_finite) copy_elements(out, permute(planes, {3, 2, 0, 1}));
    return is_finite;
}

}  // namespace

bool convolve_by_winograd(ConvPart part, const Convolution& c, const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                          KeptWeight* kept, const Tensor& addend, bool has_relu) {
    if (out.dtype() != float32 || is_deterministic() || !is_faster(part, c, kept != nullptr)) return false;
    if (detail::shapes_only) return true;
    const detail::UnrecordedParts parts_are_unrecorded;
    const Sizes s(part, c);
    const std::vector<float> zeros(static_cast<std::size_t>(s.k));
    const kernels::WinogradInput from{s.from, {s.before[0], s.before[1]}, floats(a), zeros.data(), nullptr, 0};
    if (part == ConvPart::weight) return weight_gradient(c, s, from, b, out);
    const Layout layout{part == ConvPart::input};
    const std::uint32_t version = b.impl()->storage->version_now();
    Tensor u = kept ? kept->find(b, version, layout) : Tensor();
    if (!u.defined()) {
        u = transformed(b, part, s);
        if (!u.defined()) return false;
        if (kept) kept->keep(b, version, layout, u);
    }
    const auto floats_of = [](const Tensor& t) { return t.defined() ? floats(t) : nullptr; };
    const kernels::WinogradOutput to{s.to, 0, 0, nullptr, 0, floats_of(bias), floats_of(addend), has_relu, floats(out)};
    const int threads = threads_for(c);
    const int64_t blocks = (s.tiles + kTilesAtOnce - 1) / kTilesAtOnce;
    const int64_t groups = std::clamp<int64_t>(threads / blocks, 1, s.n / 32);  // of channels, where there are too few tiles for the threads
    std::atomic<bool> is_finite{true};
    const auto compute_part = [&](int64_t i) {
        const int64_t block = i / groups, group = i % groups;
        const int64_t begin = s.tiles * block / blocks, count = s.tiles * (block + 1) / blocks - begin;
        const int64_t first = s.n * group / groups, channels = s.n * (group + 1) / groups - first;
        if (!compute(s, from, floats(u), to, begin, count, first, channels)) is_finite = false;
    };
    detail::share_parts(blocks * groups, threads, compute_part);
    return is_finite;
}

}  // namespace tapir
