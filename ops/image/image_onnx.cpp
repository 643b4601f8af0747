// Writes interpolate.cpp, grid_sample.cpp and ctc_loss.cpp as ONNX.
#include <algorithm>
#include <cmath>

#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/image/interpolate_kernels.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

using std::int64_t;

std::size_t at(int64_t d) { return static_cast<std::size_t>(d); }

double factor_of(const OnnxCall& x, int d) {
    const char* const names[] = {"scale_factor_d", "scale_factor_h", "scale_factor_w"};
    if (d < 0 || d > 2) x.refuse("of more than three dimensions beside those of examples and channels");
    return x.real(names[d]);
}

// Writes the gradient as a product with a matrix for each dimension: the weight of each input element in those of the result.
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
        dim.mode = mode == "nearest" ? kernels::Resampling::nearest
            : mode == "linear"       ? kernels::Resampling::linear
            : mode == "cubic"        ? kernels::Resampling::cubic
                                     : kernels::Resampling::nearest_exact;
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
    const bool is_line = dims == 1;  // written as an image of one row
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
                                 {"mode",
                                  mode == "linear"      ? "linear"
                                      : mode == "cubic" ? "cubic"
                                                        : "nearest"}};
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
    const auto& small = is_back ? out : in;  // with many channels
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

// One of the two numbers of each grid position as a position among `size` pixels: pixel `below` and, with weight t, the next one.
struct GridColumn {
    OnnxValue below, t, slope;

    GridColumn(const OnnxCall& x, const OnnxValue& number, const SymInt& size) {
        const bool is_nearest = x.choice("mode") == "nearest", align_corners = x.flag("align_corners");
        const std::string padding = x.choice("padding_mode");
        const OnnxValue known = number == number, n = x.size_as(size, number.dtype()), none = x.scalar(0, number.dtype());
        OnnxValue from = where(known, number + 1, none);
        slope = where(known, align_corners ? (n - 1) / 2 : n / 2, none);
        if (padding == "border") from = where(from < 0, none, where(from > 2, x.scalar(2, number.dtype()), from));
        if (padding == "reflection") {
            slope = where(from < 0, -slope, slope);
            from = abs(from);
            from = from - trunc(from / 4) * 4;
            slope = where(from > 2, -slope, slope);
            from = where(from > 2, 4 - from, from);
        }
        OnnxValue at = align_corners ? from / 2 * (n - 1) : (from * n - 1) / 2;
        if (padding != "zeros") {
            slope = where((at <= 0) | (at >= n - 1), none, slope);
            at = where(at <= 0, none, where(at >= n - 1, n - 1, at));
        }
        const OnnxValue is_near = (at > -2) & (at < n + 1), near = where(is_near, at, x.scalar(-2, number.dtype()));
        const OnnxValue whole = is_nearest ? round(near) : floor(near);
        slope = is_nearest ? slope * 0 : where(is_near, slope, none);
        t = is_nearest ? slope : where(is_near, near - whole, none);
        below = x.cast(whole, int64);
    }
};

// Takes (g, x, grid); returns the wanted gradients of the images and of the grid. As gradients_of_ops() in grid_sample.cpp.
OnnxValues grid_sample_backward_of(const OnnxCall& x) {
    const DType dtype = computed_in(x.dtype());
    const OnnxValue g = x.cast(x[0], dtype), images = x.cast(x[1], dtype), grid = x.cast(x[2], dtype), none = x.scalar(0, dtype);
    const OnnxSizes &in = x.shape(1), &out = x.shape(0);
    const SymInt n = in[0], channels = in[1], pixels = in[2] * in[3], places = out[2] * out[3];
    const auto number = [&](int k) { return x.squeeze(x.slice(grid, 3, k, k + 1), {3}); };
    const GridColumn along(x, number(0), in[3]), down(x, number(1), in[2]);
    const OnnxValue flat = x.reshape(images, {n, channels, pixels}), width = x.size_0d(in[3]), height = x.size_0d(in[2]);
    const auto counted = [&](const OnnxValue& v, const OnnxValue& times) { return where((times != 0) | is_finite(v), v, none); };
    OnnxValue dx = x.filled({n, channels, pixels}, 0, dtype), by_x, by_y;
    for (int k = 0; k < 4; ++k) {
        const OnnxValue column = along.below + k % 2, row = down.below + k / 2;
        const OnnxValue is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height), inside = x.cast(is_inside, dtype);
        const OnnxValue offset = where(is_inside, row * width + column, x.scalar(0, int64));
        const OnnxValue index = x.expand(x.reshape(offset, {n, SymInt(1), places}), {n, channels, places});
        const OnnxValue by_row = k % 2 ? along.t : 1 - along.t, by_column = (k / 2 ? down.t : 1 - down.t) * inside;
        if (x.flag("of_input")) {
            const OnnxValue weight = x.unsqueeze(by_row * by_column, {1});
            const OnnxValue part = x.reshape(counted(g, weight) * weight, {n, channels, places});
            dx = x.node("ScatterElements", {dx, index, part}, {{"axis", 2}, {"reduction", "add"}});
        }
        if (x.flag("of_grid")) {
            const OnnxValue gathered = x.reshape(x.node("GatherElements", {flat, index}, {{"axis", 2}}), out);
            const OnnxValue pixel = x.reduce("ReduceSum", g * where(x.unsqueeze(is_inside, {1}), gathered, none), {1}, false);
            const OnnxValue times_x = by_column * (k % 2 ? along.slope : -along.slope),
                            times_y = by_row * inside * (k / 2 ? down.slope : -down.slope);
            const OnnxValue of_x = counted(pixel, times_x) * times_x, of_y = counted(pixel, times_y) * times_y;
            by_x = by_x.is_left_out() ? of_x : by_x + of_x;
            by_y = by_y.is_left_out() ? of_y : by_y + of_y;
        }
    }
    OnnxValues results;
    if (x.flag("of_input")) results.push_back(x.cast(x.reshape(dx, in), x.result_dtype()));
    if (x.flag("of_grid")) results.push_back(x.cast(x.concat({x.unsqueeze(by_x, {3}), x.unsqueeze(by_y, {3})}, 3), x.result_dtype()));
    return results;
}

// --- CTC --------------------------------------------------------------------------------------------------------------------------

// Returns log(exp(a) + exp(b) + ...); all may be -infinity.
OnnxValue log_sum(const OnnxCall& x, const OnnxValues& terms) {
    const OnnxValue most = x.node("Max", terms), from = where(most == -INFINITY, 0, most);
    OnnxValue sum;
    for (const OnnxValue& term : terms) sum = sum.is_left_out() ? exp(term - from) : sum + exp(term - from);
    return log(sum) + from;
}

// Computes all examples at once. A target's labels have blanks between them, at `places`: 2 longest + 1.
class Ctc {
 public:
    explicit Ctc(const OnnxCall& call) : x_(call), dtype_(call.result_dtype()), never_(call.scalar(-INFINITY, dtype_)) {
        const auto int_of = [&](int i) { return x_.cast(x_[i].is_number() ? x_.scalar(x_[i].number(), int64) : x_[i], int64); };
        const bool is_single = x_.rank() == 2;  // (time, classes)
        log_probs_ = is_single ? x_.unsqueeze(x_.as_result(0), {1}) : x_.as_result(0);
        n_ = is_single ? SymInt(1) : x_.shape()[1];
        steps_ = x_.reshape(int_of(2), {n_});
        const OnnxValue lengths = x_.reshape(int_of(3), {n_});
        const SymInt longest = x_.shape(1).empty() ? SymInt(1) : x_.shape(1).last();
        OnnxValue targets = int_of(1);
        if (x_.rank(1) != 2) {  // one after the other
            const OnnxValue begins = x_.node("CumSum", {lengths, x_.scalar(0, int64)}) - lengths;
            const OnnxValue at = x_.unsqueeze(begins, {1}) + x_.range(longest);
            const OnnxValue last = x_.size_0d(longest + SymInt(-1));
            targets = x_.gather(targets, x_.node("Min", {at, last}), 0);
        }
        const auto blank = x_.integer("blank");
        places_ = SymInt(2) * longest + SymInt(1);
        place_ = x_.range(places_);
        last_ = x_.unsqueeze(lengths * 2, {1});
        const OnnxValue is_label = remainder(place_, 2) == 1;
        const OnnxValue all = x_.concat({targets, x_.expand(x_.scalar(blank, int64), {n_, SymInt(1)})}, 1);
        labels_ = where(is_label, x_.gather(all, floor_divide(place_, 2), 1), blank);
        may_skip_ = is_label & (place_ >= 3) & (labels_ != moved(labels_, 2, x_.scalar(-1, int64)));
    }

    OnnxValues results() const {
        const bool keeps = x_.flag("keep_gradient"), zero_infinity = x_.flag("zero_infinity");
        const OnnxValues alpha = prefixes(keeps);
        const OnnxValue at_blank = x_.node("GatherElements", {alpha[0], last_}, {{"axis", 1}});
        const OnnxValue before = x_.node("GatherElements", {alpha[0], x_.node("Max", {last_ - 1, x_.scalar(0, int64)})}, {{"axis", 1}});
        OnnxValue loss = -log_sum(x_, {at_blank, where(last_ == 0, never_, before)});
        loss = where(x_.unsqueeze(steps_ == 0, {1}), where(last_ == 0, x_.scalar(0, dtype_), x_.scalar(INFINITY, dtype_)), loss);
        OnnxValues list = {x_.squeeze(zero_infinity ? where(is_infinite(loss), 0, loss) : loss, {1})};
        if (keeps) list.push_back(gradient(alpha[1], loss, zero_infinity ? 0 : NAN));
        return list;
    }

 private:
    // Moves v from `by` places before, at most 2 either way.
    OnnxValue moved(const OnnxValue& v, int by, const OnnxValue& filler) const {
        const OnnxValue padded = x_.node("Pad", {v, x_.ints({0, 2, 0, 2}), filler});
        return x_.node("Slice", {padded, x_.ints({2 - by}), x_.size_1d(places_) + (2 - by), x_.ints({1})});
    }
    OnnxValue emission(const OnnxValue& log_probs) const { return x_.node("GatherElements", {log_probs, labels_}, {{"axis", 1}}); }

    // Goes forward through time, a Scan whose state is the log-probability of all prefixes that end at each place: returns those at the end,
    // and for `each` those of each step.
    OnnxValues prefixes(bool each) const {
        OnnxBuilder& builder = x_.builder();
        const OnnxValue first = where(place_ == 0, x_.scalar(0, dtype_), never_);  // before the first step
        const OnnxValue begun = x_.expand(first, {n_, places_});
        builder.begin_graph();
        const OnnxValue t = builder.graph_input(int64, nullptr), alpha = builder.graph_input(dtype_, nullptr),
                        probs = builder.graph_input(dtype_, nullptr);
        const OnnxValue sum = log_sum(x_, {alpha, moved(alpha, 1, never_), where(may_skip_, moved(alpha, 2, never_), never_)});
        const OnnxValue now = where(x_.unsqueeze(t < steps_, {1}), sum + emission(probs), alpha);
        OnnxValues outputs = {t + 1, now};
        OnnxDTypes dtypes = {int64, dtype_};
        if (each) {
            outputs.push_back(x_.node("Identity", {now}));
            dtypes.push_back(dtype_);
        }
        const int body = builder.end_graph(outputs);
        return x_.nodes("Scan", dtypes, {x_.scalar(0, int64), begun, log_probs_}, {{"num_scan_inputs", 1}, OnnxAttribute::graph("body", body)})
            .after(1);
    }

    // Goes back through time, a Scan whose state is the log-probability of all suffixes that begin at each place: returns each step's, without
    // its own emission.
    OnnxValue suffixes() const {
        OnnxBuilder& builder = x_.builder();
        const OnnxValue begun = x_.filled({n_, places_}, -INFINITY, dtype_), end = x_.size_0d(x_.shape()[0]) - 1;
        builder.begin_graph();
        const OnnxValue t = builder.graph_input(int64, nullptr), beta = builder.graph_input(dtype_, nullptr),
                        probs = builder.graph_input(dtype_, nullptr);
        const OnnxValue sum = log_sum(x_, {beta, moved(beta, -1, never_), moved(where(may_skip_, beta, never_), -2, never_)});
        const OnnxValue at_end = where((place_ == last_) | (place_ == last_ - 1), x_.scalar(0, dtype_), never_);
        const OnnxValue behind = where(x_.unsqueeze(t == steps_ - 1, {1}), at_end, sum);
        const int body = builder.end_graph({t - 1, behind + emission(probs), behind});
        return x_.nodes("Scan", {int64, dtype_, dtype_}, {end, begun, log_probs_},
                        {{"num_scan_inputs", 1},
                         {"scan_input_directions", OnnxInts{1}},
                         {"scan_output_directions", OnnxInts{1}},
                         OnnxAttribute::graph("body", body)})[2];
    }

    // A log-probability's gradient is minus the probability that the path is there, given the target.
    OnnxValue gradient(const OnnxValue& alpha, const OnnxValue& loss, double of_infinite) const {
        const SymInt time = x_.shape()[0];
        const OnnxValue has_step = x_.unsqueeze(x_.unsqueeze(x_.range(time), {1}) < steps_, {2});
        const OnnxValue path = where(is_infinite(loss), x_.scalar(of_infinite, dtype_), exp(alpha + suffixes() + loss));
        const OnnxValue given = -where(has_step & (place_ <= last_), path, 0), none = x_.filled({time, n_, x_.shape().last()}, 0, dtype_);
        return x_.node("ScatterElements", {none, x_.expand(labels_, {time, n_, places_}), given}, {{"axis", 2}, {"reduction", "add"}});
    }

    const OnnxCall& x_;
    const DType dtype_;
    SymInt n_ = 1, places_ = 1;
    // never: a log-probability; log_probs: (time, n, classes); steps: (n,); place: the number of each place; last: each example's last
    // place, (n, 1); labels, may_skip (from two places before): (n, places).
    OnnxValue never_, log_probs_, steps_, place_, last_, labels_, may_skip_;
};

}  // namespace

TAPIR_ONNX(interpolate, interpolate_of(x));
TAPIR_ONNX(pixel_shuffle, pixel_shuffle_of(x));
TAPIR_ONNX(pixel_unshuffle, shuffled(x, "downscale_factor", true));
TAPIR_ONNX(grid_sample, grid_sample_of(x));
TAPIR_ONNX(grid_sample_backward, grid_sample_backward_of(x));
TAPIR_ONNX(ctc_loss, Ctc(x).results());

}  // namespace tapir
