// ONNX ops on signals and words: Fourier transforms, windows, mel filters, n-grams.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/arrange/unique.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

// cos and sin of 2 pi k n / length: (kept, length) each.
std::pair<Tensor, Tensor> waves(int64_t kept, int64_t length, DType dtype) {
    std::vector<double> cosines, sines;
    for (int64_t k = 0; k < kept; ++k) {
        for (int64_t n = 0; n < length; ++n) {
            const double angle = 2 * std::numbers::pi * static_cast<double>(k * n % length) / static_cast<double>(length);
            cosines.push_back(std::cos(angle));
            sines.push_back(std::sin(angle));
        }
    }
    const OutsideTrace outside;
    return {tensor(cosines, dtype).reshape({kept, length}), tensor(sines, dtype).reshape({kept, length})};
}

constexpr int64_t kLongest = 1 << 14;  // limit on the length of a transform, which is a product with a matrix

// Transforms along the last dimension: re and im (..., length), im may be undefined; the result is (..., kept, 2).
Tensor transformed(Call& c, const Tensor& re, const Tensor& im, int64_t kept, bool inverse) {
    const int64_t length = re.size(-1);
    if (length > kLongest) c.reject("a transform of length {}; up to {} are supported", length, kLongest);
    const auto [cosines, sines] = waves(kept, length, re.dtype());
    const double sign = inverse ? 1 : -1;  // of the exponent
    Tensor y_re = linear(re, cosines), y_im = linear(re, sines) * sign;
    if (im.defined()) {
        y_re = y_re - linear(im, sines) * sign;
        y_im = y_im + linear(im, cosines);
    }
    const Tensor y = stack({y_re, y_im}, -1);
    return inverse ? y / static_cast<double>(length) : y;
}

// x truncated, or padded with zeros, along the last dimension.
Tensor of_length(const Tensor& x, int64_t length) {
    const int64_t have = x.size(-1);
    if (have == length) return x;
    return have > length ? narrow(x, -1, 0, length) : pad(x, {0, length - have});
}

// Real signals (..., length) from the half of their spectrum that determines the other, (..., length / 2 + 1) each.
Tensor real_signal(Call& c, const Tensor& re, const Tensor& im, int64_t length) {
    if (length < 1 || length > kLongest) c.reject("a transform of length {}; 1 to {} are supported", length, kLongest);
    const int64_t kept = re.size(-1);
    const auto [cosines, sines] = waves(kept, length, re.dtype());
    std::vector<double> counts(static_cast<std::size_t>(kept), 2);  // counts the mirror image
    counts[0] = 1;
    if (length % 2 == 0) counts.back() = 1;
    Tensor count;
    {
        const OutsideTrace outside;
        count = tensor(counts, re.dtype()) / static_cast<double>(length);
    }
    const Tensor y = matmul(re * count, cosines);
    return im.defined() ? y - matmul(im * count, sines) : y;
}

void dft(Call& c) {
    const Tensor x = c.x(0);  // (batch, ..., 1 or 2)
    const int rank = x.dim();
    if (rank < 2 || x.size(-1) > 2) c.reject("its operand has shape {}", x.shape());
    int64_t axis = c.opset() < 20 ? c.integer("axis", 1) : c.has(2) ? c.integer(2, "axis") : -2;
    const int dim = c.axis(axis, rank);
    if (dim == rank - 1) c.reject("its axis is the last dimension");
    const bool inverse = c.flag("inverse", false), onesided = c.flag("onesided", false), is_to_real = inverse && onesided;
    const int64_t length = c.has(1) ? c.integer(1, "dft_length") : is_to_real ? 2 * (x.size(dim) - 1) : x.size(dim);
    if (length < 1) c.reject("a transform of length {}", length);
    // In float64, so that terms which cancel leave 0 up to the operand's precision.
    const auto row = [&](int part) { return of_length(transpose(select(x, -1, part), dim, -1), is_to_real ? length / 2 + 1 : length).to(float64); };
    const Tensor re = row(0), im = x.size(-1) == 2 ? row(1) : Tensor();
    if (is_to_real) return c.give(unsqueeze(transpose(real_signal(c, re, im, length), dim, -1), -1).to(x.dtype()));
    const Tensor y = transformed(c, re, im, onesided ? length / 2 + 1 : length, inverse);
    c.give(transpose(y, dim, -2).to(x.dtype()));
}

void stft(Call& c) {
    Tensor x = c.x(0);  // (batch, length), (batch, length, 1 or 2)
    const int64_t step = c.integer(1, "frame_step");
    if (x.dim() == 2) x = unsqueeze(x, -1);
    if (x.dim() != 3 || step < 1) c.reject("its operand has shape {}, its frame_step is {}", x.shape(), step);
    const int64_t length = c.has(3) ? c.integer(3, "frame_length") : c.has(2) ? c.size(2, 0) : 0;
    if (length < 1 || length > x.size(1)) c.reject("frames of {} of a signal of {}", length, x.size(1));
    const bool onesided = c.flag("onesided", true);
    const auto frames = [&](int part) {
        const Tensor framed = select(x, -1, part).unfold(1, length, step);  // (batch, frames, length)
        return c.has(2) ? framed * c.x(2) : framed;
    };
    c.give(transformed(c, frames(0), x.size(-1) == 2 ? frames(1) : Tensor(), onesided ? length / 2 + 1 : length, false));
}

// a0 - a1 cos(2 pi n / N) + a2 cos(4 pi n / N)
void window(Call& c, double a0, double a1, double a2) {
    const int64_t size = c.integer(0, "size");
    if (size < 0 || size > int64_t{1} << 30) c.reject("its size is {}", size);
    const auto type = static_cast<int>(c.integer("output_datatype", onnx::TensorProto::FLOAT));
    const std::optional<DType> dtype = dtype_for_onnx(type);
    if (!dtype) c.reject("there is no type {} in Tapir", onnx_type_name(type));
    const auto period = static_cast<double>(c.flag("periodic", true) ? size : size - 1);
    const Tensor angle = arange(size, int64).to(float64) * (2 * std::numbers::pi / std::max(period, 1.0));
    c.give((a0 - a1 * cos(angle) + a2 * cos(angle * 2)).to(*dtype), type);
}
void hann_window(Call& c) { window(c, 0.5, 0.5, 0); }
void hamming_window(Call& c) { window(c, 25.0 / 46, 21.0 / 46, 0); }
void blackman_window(Call& c) { window(c, 0.42, 0.5, 0.08); }

void mel_weight_matrix(Call& c) {
    const int64_t bins = c.integer(0, "num_mel_bins"), length = c.integer(1, "dft_length"), rate = c.integer(2, "sample_rate");
    const double low = c.real(3, "lower_edge_hertz"), high = c.real(4, "upper_edge_hertz");
    if (bins < 1 || bins > 1 << 20 || length < 1 || length > 1 << 24 || rate < 1) c.reject("{} bins, length {}, rate {}", bins, length, rate);
    const auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
    const int64_t rows = length / 2 + 1;
    std::vector<int64_t> edges;
    const double step = (mel(high) - mel(low)) / static_cast<double>(bins + 2);
    for (int64_t i = 0; i < bins + 2; ++i) {
        const double hertz = 700 * (std::pow(10, (static_cast<double>(i) * step + mel(low)) / 2595) - 1);
        edges.push_back(static_cast<int64_t>(std::floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate))));
    }
    std::vector<double> values(static_cast<std::size_t>(rows * bins), 0);
    const auto set = [&](int64_t row, int64_t bin, double value) {
        if (row >= 0 && row < rows) values[static_cast<std::size_t>(row * bins + bin)] = value;
    };
    for (int64_t i = 0; i < bins; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const int64_t from = edges[at], middle = edges[at + 1], to = edges[at + 2];
        if (from == middle) set(middle, i, 1);
        for (int64_t k = from; from < middle && k <= middle; ++k) set(k, i, static_cast<double>(k - from) / static_cast<double>(middle - from));
        for (int64_t k = middle; middle < to && k < to; ++k) set(k, i, static_cast<double>(to - k) / static_cast<double>(to - middle));
    }
    const auto type = static_cast<int>(c.integer("output_datatype", onnx::TensorProto::FLOAT));
    const std::optional<DType> dtype = dtype_for_onnx(type);
    if (!dtype) c.reject("there is no type {} in Tapir", onnx_type_name(type));
    c.give(tensor(values, *dtype).reshape({rows, bins}), type);
}

// Counts the occurrences of each n-gram of a pool in a row of numbers.
void tf_idf(Call& c) {
    Tensor x = c.x(0);
    if (c.given("pool_strings")) c.reject("strings are not supported");
    const std::vector<int64_t> starts = c.integers("ngram_counts"), columns = c.integers("ngram_indexes"), pool = c.integers("pool_int64s");
    const std::vector<double> given_weights = c.reals("weights");
    const int64_t shortest = c.integer("min_gram_length", 1), longest = c.integer("max_gram_length", 1), skips = c.integer("max_skip_count", 0);
    const std::string mode = c.text("mode", "TF");
    const bool is_row = x.dim() == 1;
    if (is_row) x = unsqueeze(x, 0);
    if (x.dim() != 2 || shortest < 1 || longest < shortest || longest > 64 || skips < 0 || skips > 1000 || columns.empty())
        c.reject("its attributes do not fit");
    const int64_t batch = x.size(0), length = x.size(1), width = *std::max_element(columns.begin(), columns.end()) + 1;
    if (*std::min_element(columns.begin(), columns.end()) < 0 || width > 1 << 24) c.reject("its ngram_indexes are out of range");
    Tensor counts = zeros({batch, width}, float32);
    std::size_t gram = 0;  // index over all, in the pool's order
    std::vector<double> weights(static_cast<std::size_t>(width), 1);
    for (std::size_t k = 0; k < starts.size(); ++k) {
        const auto n = static_cast<int64_t>(k) + 1;
        const int64_t begin = starts[k], end = k + 1 < starts.size() ? starts[k + 1] : static_cast<int64_t>(pool.size());
        if (begin < 0 || end < begin || end > static_cast<int64_t>(pool.size()) || (end - begin) % n != 0) c.reject("its ngram_counts do not fit");
        const auto grams = static_cast<std::size_t>((end - begin) / n);
        if (gram + grams > columns.size()) c.reject("its ngram_indexes are too few");
        const std::vector<int64_t> here(columns.begin() + static_cast<std::ptrdiff_t>(gram),
                                        columns.begin() + static_cast<std::ptrdiff_t>(gram + grams));
        for (std::size_t i = 0; i < grams && gram + i < given_weights.size(); ++i)
            weights[static_cast<std::size_t>(here[i])] = given_weights[gram + i];
        gram += grams;
        if (n < shortest || n > longest || grams == 0) continue;
        const Tensor words =
            tensor(std::vector<int64_t>(pool.begin() + begin, pool.begin() + end), x.dtype()).reshape({static_cast<int64_t>(grams), n});
        const Tensor places = tensor(here, int64);
        for (int64_t skip = 0; skip <= (n == 1 ? 0 : skips); ++skip) {
            const int64_t reach = (n - 1) * (skip + 1) + 1, windows = length - reach + 1;
            if (windows < 1) break;
            Tensor found;  // (batch, windows, grams)
            for (int64_t i = 0; i < n; ++i) {
                const Tensor token = unsqueeze(narrow(x, 1, i * (skip + 1), windows), 2);
                const Tensor same = token == reshape(select(words, 1, i), {1, 1, -1});
                found = found.defined() ? logical_and(found, same) : same;
            }
            counts = index_add(counts, 1, places, sum(found.to(float32), {1}));
        }
    }
    const Tensor weight = tensor(weights, float32);
    Tensor y = counts;
    if (mode == "IDF") y = (counts > 0).to(float32) * weight;
    if (mode == "TFIDF") y = counts * weight;
    c.give(is_row ? select(y, 0, 0) : y);
}

// --- Distinct elements ------------------------------------------------------------------------------------------------------------------

constexpr int64_t kMostColumns = 1000;

// Sorts rows (n, m) in lexicographic order: by one column after the other, from the last on.
Tensor row_order(Call& c, const Tensor& rows) {
    if (rows.size(1) > kMostColumns) c.reject("slices of {} elements; up to {} are supported", rows.size(1), kMostColumns);
    Tensor order = arange(rows.size(0), int64);
    for (int64_t m = rows.size(1); m-- > 0;) {
        order = index_select(order, 0, sort(index_select(select(rows, 1, m), 0, order), 0).indices);
    }
    return order;
}

void unique_op(Call& c) {
    const Tensor x = c.x(0);
    const bool has_axis = c.given("axis");
    const int axis = has_axis ? c.axis("axis", 0, x.dim()) : 0;
    const Tensor moved = has_axis ? transpose(x, 0, axis) : x;
    const Tensor rows = has_axis ? reshape(moved, {x.size(axis), -1}) : reshape(x, {-1, 1});
    const Tensor order = row_order(c, rows), ordered = index_select(rows, 0, order);
    const int64_t n = rows.size(0);
    // The number of each row's group, in sorted order, and then for each row.
    const Tensor begins = any(ne(narrow(ordered, 0, 1, n - 1), narrow(ordered, 0, 0, n - 1)), {1}).to(int64);
    const Tensor group = cat({zeros({1}, int64), cumsum(begins, 0)}, 0);
    Tensor inverse = scatter(zeros({n}, int64), 0, order, group);
    const UniqueResult groups = unique(group, true, false, true);
    Tensor first = scatter_reduce(zeros_like(groups.values), 0, inverse, arange(n, int64), "amin", /*include_self=*/false);
    Tensor counts = groups.counts;
    if (!c.flag("sorted", true)) {  // ordered by first occurrence
        const Tensor by_first = argsort(first, 0);
        first = index_select(first, 0, by_first);
        counts = index_select(counts, 0, by_first);
        inverse = index_select(argsort(by_first, 0), 0, inverse);
    }
    c.mark_sized_by_data();
    c.give(has_axis ? index_select(x, axis, first) : index_select(reshape(x, {-1}), 0, first), c.type(0));
    c.give(first);
    c.give(inverse);
    c.give(counts);
}

constexpr OnnxOp kSignalOps[] = {
    {"DFT", 17, dft},
    {"STFT", 17, stft},
    {"HannWindow", 17, hann_window},
    {"HammingWindow", 17, hamming_window},
    {"BlackmanWindow", 17, blackman_window},
    {"MelWeightMatrix", 17, mel_weight_matrix},
    {"TfIdfVectorizer", 9, tf_idf},
    {"Unique", 11, unique_op},
};

}  // namespace

std::span<const OnnxOp> onnx_signal_ops() { return kSignalOps; }

}  // namespace tapir::detail
