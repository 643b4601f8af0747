// How interpolate.cpp, grid_sample.cpp and ctc_loss.cpp are written as ONNX.
#include <algorithm>
#include <cmath>

#include "tapir/autograd/onnx_form.h"
#include "tapir/ops/kernels/interpolate.h"
#include "tapir/ops/make.h"

namespace tapir {
namespace {

using std::int64_t;

std::size_t at(int64_t d) { return static_cast<std::size_t>(d); }

double factor_of(const OnnxCall& x, int d) {
    const char* const names[] = {"scale_factor_d", "scale_factor_h", "scale_factor_w"};
    if (d < 0 || d > 2) x.refuse("of more than three dimensions beside those of examples and channels");
    return x.real(names[d]);
}

// Its gradient is a product with a matrix for each dimension: what each element of the input has given to those of the result.
OnnxValue resampling_gradient(const OnnxCall& x) {
    const int rank = x.rank(), dims = rank - 2;
    const auto sizes = x.integers("input_size");
    const std::string mode = x.choice("mode");
    OnnxValue y = x[0];
    for (int k = 0; k < dims; ++k) {
        kernels::ResampleDim dim;
        dim.in = sizes.size() == 1 ? sizes[0] : sizes[k];
        if (!x.shape()[2 + k].is_number()) x.refuse("of images whose sizes are named dimensions");
        dim.out = x.shape()[2 + k].number();
        dim.mode = mode == "nearest" ? kernels::Resampling::nearest : mode == "linear" ? kernels::Resampling::linear
                   : mode == "cubic" ? kernels::Resampling::cubic : kernels::Resampling::nearest_exact;
        dim.align_corners = x.flag("align_corners");
        const double factor = factor_of(x, 3 - dims + k);
        dim.scale = factor != 0 && !dim.align_corners ? 1 / factor : static_cast<double>(dim.in) / static_cast<double>(dim.out);
        if (dim.align_corners) dim.scale = dim.out > 1 ? static_cast<double>(dim.in - 1) / static_cast<double>(dim.out - 1) : 0;
        x.need_room({dim.in, dim.out});
        std::vector<double> m(at(dim.in * dim.out));  // (out, in)
        for (int64_t o = 0; o < dim.out; ++o) {
            int64_t first = 0;
            double weights[4];
            const int count = dim.taps(o, first, weights);
            if (first < 0 || first + count > dim.in) x.refuse("with a factor of which it reads beyond the image");
            for (int t = 0; t < count; ++t) m[o * dim.in + first + t] += weights[t];
        }
        OnnxInts order;
        for (int d = 0; d < rank; ++d) order.push_back(d == rank - 1 ? 2 + k : d == 2 + k ? rank - 1 : d);
        y = x.permute(x.node("MatMul", {x.permute(y, order), x.constant(tensor(m, x.dtype()).reshape({dim.out, dim.in}))}), order);
    }
    return y;
}

OnnxValue interpolate_of(const OnnxCall& x) {
    if (!x.sizes("input_size").empty()) return resampling_gradient(x);
    const int dims = x.rank() - 2;
    const std::string mode = x.choice("mode");
    const bool is_line = dims == 1;  // as an image of one row
    const OnnxValue images = is_line ? x.unsqueeze(x[0], {2}) : x[0];
    std::vector<double> scales = {1, 1};
    OnnxSizes sizes = {x.shape()[0], x.shape()[1]};
    if (is_line) {
        scales.push_back(1);
        sizes.emplace_back(1);
    }
    bool by_factor = x.sizes("size").empty();
    for (int k = 0; k < dims; ++k) {
        scales.push_back(factor_of(x, 3 - dims + k));
        sizes.push_back(x.result_shape()[2 + k]);
    }
    const char* const place = x.flag("align_corners") ? "align_corners" : mode == "nearest" ? "asymmetric" : "half_pixel";
    OnnxAttributes attributes = {{"coordinate_transformation_mode", place},
                                 {"mode", mode == "linear" ? "linear" : mode == "cubic" ? "cubic" : "nearest"}};
    if (mode == "cubic") attributes.emplace_back("cubic_coeff_a", -0.75);
    if (mode.substr(0, 7) == "nearest") attributes.emplace_back("nearest_mode", mode == "nearest" ? "floor" : "round_prefer_ceil");
    const OnnxValue none;
    const OnnxValue y = by_factor ? x.node("Resize", {images, none, x.constant(tensor(scales, float32))}, attributes)
                                  : x.node("Resize", {images, none, none, x.sizes(sizes)}, attributes);
    return is_line ? x.squeeze(y, {2}) : y;
}

// (..., c r r, h, w) <-> (..., c, h r, w r)
OnnxValue shuffled(const OnnxCall& x, const char* attribute, bool is_back) {
    const int64_t r = x.integer(attribute);
    const auto& in = x.shape();
    const auto& out = x.result_shape();
    OnnxSizes split = in.without_last(3);
    const auto& small = is_back ? out : in;    // with many channels
    const auto& large = is_back ? in : out;
    OnnxInts order;
    const int n = split.count();
    for (int d = 0; d < n; ++d) order.push_back(d);
    if (is_back) {
        for (const SymInt& size : {large.last(3), small.last(2), SymInt(r), small.last(1), SymInt(r)}) split.push_back(size);
        for (const int d : {0, 2, 4, 1, 3}) order.push_back(n + d);
    } else {
        for (const SymInt& size : {large.last(3), SymInt(r), SymInt(r), small.last(2), small.last(1)}) split.push_back(size);
        for (const int d : {0, 3, 1, 4, 2}) order.push_back(n + d);
    }
    return x.reshape(x.permute(x.reshape(x[0], split), order), out);
}
OnnxValue pixel_shuffle_of(const OnnxCall& x) {
    if (x.rank() != 4 || !is_floating(x.dtype())) return shuffled(x, "upscale_factor", false);
    return x.node("DepthToSpace", {x[0]}, {{"blocksize", x.integer("upscale_factor")}, {"mode", "CRD"}});
}

OnnxValue grid_sample_of(const OnnxCall& x) {
    const std::string mode = x.choice("mode"), padding = x.choice("padding_mode");
    const char* const word = mode == "nearest" ? "nearest" : x.opset() >= 20 ? "linear" : "bilinear";
    return x.node("GridSample", {x[0], x[1]}, {{"mode", word}, {"padding_mode", padding.c_str()}, {"align_corners", x.flag("align_corners")}});
}

// --- CTC --------------------------------------------------------------------------------------------------------------------------

// log(exp(a) + exp(b) + ...), where all may be -infinity.
OnnxValue log_sum(const OnnxCall& x, const OnnxValues& terms) {
    const OnnxValue most = x.node("Max", terms), from = where(most == -INFINITY, 0, most);
    OnnxValue sum;
    for (const OnnxValue& term : terms) sum = sum.is_left_out() ? exp(term - from) : sum + exp(term - from);
    return log(sum) + from;
}

// Forward through time, for all examples at once: a Scan whose state is the log-probability of each place among the labels.
OnnxValue ctc_loss_of(const OnnxCall& x) {
    const DType dtype = x.result_dtype();
    const auto int_of = [&](int i) { return x.cast(x[i].is_number() ? x.scalar(x[i].number(), int64) : x[i], int64); };
    const bool is_single = x.rank() == 2;  // (time, classes)
    const OnnxValue log_probs = is_single ? x.unsqueeze(x.as_result(0), {1}) : x.as_result(0);
    const SymInt n = is_single ? SymInt(1) : x.shape()[1];
    const OnnxValue steps = x.reshape(int_of(2), {n}), lengths = x.reshape(int_of(3), {n});
    const SymInt longest = x.shape(1).empty() ? SymInt(1) : x.shape(1).last();
    OnnxValue targets = int_of(1);
    if (x.rank(1) != 2) {  // one after the other
        const OnnxValue begins = x.node("CumSum", {lengths, x.scalar(0, int64)}) - lengths;
        const OnnxValue places = x.unsqueeze(begins, {1}) + x.range(longest);
        const OnnxValue last = x.size_0d(longest + SymInt(-1));
        targets = x.gather(targets, x.node("Min", {places, last}), 0);
    }
    const auto blank = x.integer("blank");
    const SymInt places = SymInt(2) * longest + SymInt(1);
    const OnnxValue l = x.range(places), is_label = remainder(l, 2) == 1;
    // Each label between blanks.
    const OnnxValue all = x.concat({targets, x.expand(x.scalar(blank, int64), {n, SymInt(1)})}, 1);
    const OnnxValue labels = where(is_label, x.gather(all, floor_divide(l, 2), 1), blank);
    const OnnxValue width = x.size_1d(places);
    const auto back = [&](const OnnxValue& v, int by, const OnnxValue& filler) {  // what is `by` places before
        const OnnxValue padded = x.node("Pad", {v, x.ints({0, 2, 0, 0}), filler});
        return x.node("Slice", {padded, x.ints({2 - by}), width + (2 - by), x.ints({1})});
    };
    const OnnxValue skips = is_label & (l >= 3) & (labels != back(labels, 2, x.scalar(-1, int64)));
    const OnnxValue never = x.scalar(-INFINITY, dtype);
    OnnxBuilder& builder = x.builder();
    const OnnxValue first = where(l == 0, x.scalar(0, dtype), never);  // before the first step
    const OnnxValue begun = x.expand(first, {n, places});
    builder.begin_graph();
    const OnnxValue t = builder.graph_input(int64, nullptr), alpha = builder.graph_input(dtype, nullptr), probs = builder.graph_input(dtype, nullptr);
    const OnnxValue emission = x.node("GatherElements", {probs, labels}, {{"axis", 1}});
    const OnnxValue moved = log_sum(x, {alpha, back(alpha, 1, never), where(skips, back(alpha, 2, never), never)});
    const OnnxValue now = where(x.unsqueeze(t < steps, {1}), moved + emission, alpha);
    const int body = builder.end_graph({t + 1, now});
    const OnnxValue end = x.nodes("Scan", {int64, dtype}, {x.scalar(0, int64), begun, log_probs},
                                  {{"num_scan_inputs", 1}, OnnxAttribute::graph("body", body)})[1];
    const OnnxValue last = x.unsqueeze(lengths * 2, {1}), zero = x.scalar(0, int64);
    const OnnxValue at_blank = x.node("GatherElements", {end, last}, {{"axis", 1}});
    const OnnxValue before = x.node("GatherElements", {end, x.node("Max", {last - 1, zero})}, {{"axis", 1}});
    OnnxValue loss = -x.squeeze(log_sum(x, {at_blank, where(last == 0, never, before)}), {1});
    loss = where(steps == 0, where(lengths == 0, x.scalar(0, dtype), x.scalar(INFINITY, dtype)), loss);
    return x.flag("zero_infinity") ? where(is_infinite(loss), 0, loss) : loss;
}

}  // namespace

TAPIR_ONNX(interpolate, interpolate_of(x));
TAPIR_ONNX(pixel_shuffle, pixel_shuffle_of(x));
TAPIR_ONNX(pixel_unshuffle, shuffled(x, "downscale_factor", true));
TAPIR_ONNX(grid_sample, grid_sample_of(x));
TAPIR_ONNX(ctc_loss, ctc_loss_of(x));

}  // namespace tapir
