// ONNX ops on images: resizing, sampling, regions, boxes.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/image/grid_sample.h"
#include "tapir/ops/image/interpolate.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_composed.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

// --- Resize ---------------------------------------------------------------------------------------------------------------------------

struct Resizing {
    std::string mode = "nearest", coordinates = "half_pixel", nearest = "round_prefer_floor";
    double cubic_a = -0.75, extrapolation = 0;
    bool exclude_outside = false, antialias = false;
};
struct Axis {
    int dim;
    int64_t in, out;
    double scale;
    bool is_scaled = false;  // a number of the model, which determines the size; else the ratio of sizes
    double roi_start = 0, roi_end = 1;
};

// Clamps to existing elements.
Tensor clamp_place(const Tensor& place, int64_t size) { return minimum(clamp_min(place, 0).to(int64), tensor(Literal(size - 1), int64)); }

// The places of the result's elements in the operand, (out), float64. Sizes that depend on named dimensions are numbers of the trace,
// which finds their formulas.
Tensor positions(Call& c, const Resizing& how, const Axis& axis) {
    const auto number = [](int64_t size) { return tensor(Literal(size), int64).to(float64); };
    const Tensor at = arange(axis.out, int64).to(float64), in = number(axis.in), out = number(axis.out);
    const Tensor scale = axis.is_scaled ? tensor(Literal(axis.scale), float64) : out / in;
    const auto where_several = [&](const Tensor& several, const Tensor& one) { return where(out > 1, several, one); };
    const Tensor gaps = clamp_min(out - 1, 1);  // between the result's elements
    if (how.coordinates == "half_pixel") return (at + 0.5) / scale - 0.5;
    if (how.coordinates == "pytorch_half_pixel") return where_several((at + 0.5) / scale - 0.5, at);
    if (how.coordinates == "align_corners") return at * (in - 1) / gaps;
    if (how.coordinates == "asymmetric") return at / scale;
    if (how.coordinates == "tf_half_pixel_for_nn") return (at + 0.5) / scale;
    if (how.coordinates == "half_pixel_symmetric") return in / 2 * (1 - out / (in * scale)) + (at + 0.5) / scale - 0.5;
    if (how.coordinates == "tf_crop_and_resize") {
        const Tensor several = axis.roi_start * (in - 1) + at * (axis.roi_end - axis.roi_start) * (in - 1) / gaps;
        return where_several(several, at + 0.5 * (axis.roi_start + axis.roi_end) * (in - 1));
    }
    c.reject("its coordinate_transformation_mode is \"{}\"", how.coordinates);
}

// (out), int64
Tensor nearest_of(Call& c, const Resizing& how, const Axis& axis, const Tensor& at) {
    const auto rounded = [&] {
        if (how.nearest == "simple") return axis.scale < 1 ? ceil(at) : floor(at);  // of opset 10, as in onnxruntime
        if (how.nearest == "floor") return floor(at);
        if (how.nearest == "ceil") return ceil(at);
        if (how.nearest == "round_prefer_floor") return ceil(at - 0.5);
        if (how.nearest == "round_prefer_ceil") return floor(at + 0.5);
        c.reject("its nearest_mode is \"{}\"", how.nearest);
    };
    return clamp_place(rounded(), axis.in);
}

// The weight of each element of the operand in each element of the result, (out, in), float64. Cubic: Keys 1981.
Tensor weights_of(const Resizing& how, const Axis& axis, const Tensor& at) {
    const double a = how.cubic_a, stretch = how.antialias ? std::max(1 / axis.scale, 1.0) : 1;  // widening of the filter
    const bool is_linear = how.mode == "linear";
    const auto reach = static_cast<int64_t>(std::ceil((is_linear ? 1 : 2) * stretch));
    const Tensor whole = floor(at), taps = arange(1 - reach, reach + 1, 1, int64).to(float64);
    const Tensor d = abs(taps - unsqueeze(at - whole, 1)) / stretch, place = unsqueeze(whole, 1) + taps;  // (out, taps)
    Tensor weight;
    if (is_linear) {
        weight = clamp_min(1 - d, 0);
    } else {
        const Tensor near = ((a + 2) * d - (a + 3)) * d * d + 1, far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
        weight = where(d <= 1, near, where(d < 2, far, 0.0));
    }
    if (stretch != 1) weight = weight / sum(weight, 1, true);
    if (how.exclude_outside) {
        const Tensor last = tensor(Literal(axis.in - 1), int64);
        weight = where(logical_and(place >= 0, place <= last), weight, 0.0);
        const Tensor all = sum(weight, 1, true);
        weight = where(all == 0, weight, weight / all);
    }
    return scatter_add(zeros({axis.out, axis.in}, float64), 1, clamp_place(place, axis.in), weight);
}

// Along one dimension each mode is a product with a matrix, except for those that pick elements.
Tensor resized(Call& c, const Tensor& x, const Resizing& how, const Axis& axis) {
    const bool is_picked = how.mode == "nearest";  // one element each
    constexpr int64_t most = int64_t{1} << 31;     // limit on the numbers of such a matrix, or on indices
    if (axis.out > (is_picked ? most : most / axis.in)) throw std::length_error("Resize");
    const bool is_crop = how.coordinates == "tf_crop_and_resize";
    const DType dtype = is_floating(x.dtype()) ? x.dtype() : float64;
    Tensor choice, outside;  // places, or weights; true where the place is outside of the operand
    {
        std::optional<OutsideTrace> constant;  // equal in each run
        if (!c.interpreter().has_named_dims()) constant.emplace();
        const Tensor at = positions(c, how, axis);
        choice = is_picked ? nearest_of(c, how, axis, at) : weights_of(how, axis, at).to(dtype);
        if (is_crop) outside = logical_or(at<0, at> tensor(Literal(axis.in - 1), int64));
    }
    Tensor y;
    if (is_picked) {
        y = index_select(x, axis.dim, choice);
    } else {  // (..., in) x (in, out)
        y = transpose(linear(transpose(x.to(dtype), axis.dim, -1), choice), axis.dim, -1);
    }
    if (!is_crop) return y.to(x.dtype());
    Shape along;
    for (int d = 0; d < x.dim(); ++d) along.push_back(d == axis.dim ? axis.out : 1);
    return where(reshape(outside, along), how.extrapolation, y.to(dtype)).to(x.dtype());
}

// PyTorch's name for the mode, if it has it; that holds for any size.
const char* interpolation_of(const Resizing& how, const std::vector<Axis>& axes, int rank, bool has_named_dims, bool& align_corners) {
    const auto spatial = static_cast<int>(axes.size());
    if (rank != spatial + 2 || axes[0].dim != 2) return nullptr;
    if (how.coordinates == "pytorch_half_pixel") {  // takes the first element for a single one
        for (const Axis& axis : axes) {
            if (has_named_dims && axis.is_scaled ? axis.scale < 2 : axis.out < 2) return nullptr;
        }
    }
    align_corners = how.coordinates == "align_corners";
    const bool is_half = how.coordinates == "half_pixel" || how.coordinates == "pytorch_half_pixel";
    if (how.mode == "nearest") return how.coordinates == "asymmetric" && how.nearest == "floor" ? "nearest" : nullptr;
    if ((!align_corners && !is_half) || how.exclude_outside || how.antialias) return nullptr;
    if (how.mode == "linear") return spatial == 1 ? "linear" : spatial == 2 ? "bilinear" : spatial == 3 ? "trilinear" : nullptr;
    return how.mode == "cubic" && spatial == 2 && how.cubic_a == -0.75 ? "bicubic" : nullptr;
}

void give_resized(Call& c, const Resizing& how, std::vector<Axis> axes, bool by_scales) {
    const Tensor x = c.x(0);
    // Sizes that are equal here may differ in another run, except those of batches and channels.
    const bool may_differ = !by_scales && c.interpreter().has_named_dims() && x.dim() > 2;
    axes.erase(std::remove_if(axes.begin(), axes.end(),
                              [&](const Axis& axis) {
                                  return axis.in == axis.out && axis.scale == 1 && how.coordinates != "tf_crop_and_resize" &&
                                      !(may_differ && axis.dim > 1);
                              }),
               axes.end());
    if (axes.empty()) return c.give(x.clone());
    for (const Axis& axis : axes) {
        if (axis.in < 1 || axis.out < 1) c.reject("a dimension of size {} becomes one of size {}", axis.in, axis.out);
    }
    std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.dim < b.dim; });
    bool align_corners = false;
    const char* mode = interpolation_of(how, axes, x.dim(), c.interpreter().has_named_dims(), align_corners);
    const bool is_as_interpolate = !by_scales || std::all_of(axes.begin(), axes.end(), [](const Axis& axis) {
        return std::floor(static_cast<double>(axis.in) * axis.scale) == static_cast<double>(axis.out);
    });
    if (mode && is_as_interpolate && is_floating(x.dtype())) {
        InterpolateOptions options;
        options.mode = mode;
        options.align_corners = align_corners;
        if (by_scales) {
            const auto scale = [&](std::size_t i) { return axes[i].scale; };
            options.scale_factor = axes.size() == 1 ? ScaleFactor{scale(0)}
                : axes.size() == 2                  ? ScaleFactor{scale(0), scale(1)}
                                                    : ScaleFactor{scale(0), scale(1), scale(2)};
        } else {
            for (const Axis& axis : axes) options.size.push_back(axis.out);
        }
        return c.give(interpolate(x, options));
    }
    Tensor y = x;
    for (const Axis& axis : axes) y = resized(c, y, how, axis);
    c.give(y);
}

std::vector<Axis> by_scales(Call& c, const std::vector<double>& scales, const std::vector<int>& dims) {
    if (scales.size() != dims.size()) c.reject("it has {} scales for {} dimensions", scales.size(), dims.size());
    std::vector<Axis> axes;
    for (std::size_t i = 0; i < dims.size(); ++i) {
        const int64_t in = c.shape(0).raw(dims[i]);
        const auto scale = static_cast<double>(static_cast<float>(scales[i]));
        if (!(scale > 0)) c.reject("a scale is {}", scale);
        const float product = static_cast<float>(in) * static_cast<float>(scale);  // rounded as in onnxruntime: 10 by 0.7 are 7
        axes.push_back({dims[i], in, static_cast<int64_t>(std::floor(product)), scale, /*is_scaled=*/true});
    }
    return axes;
}

// One scale for all: the smallest, which exceeds no requested size, or the largest.
void keep_aspect_ratio(Call& c, std::vector<Axis>& axes) {
    const std::string policy = c.text("keep_aspect_ratio_policy", "stretch");
    if (policy == "stretch" || axes.empty()) return;
    if (policy != "not_larger" && policy != "not_smaller") c.reject("its keep_aspect_ratio_policy is \"{}\"", policy);
    const auto by_scale = [](const Axis& a, const Axis& b) { return a.scale < b.scale; };
    const auto [least, most] = std::minmax_element(axes.begin(), axes.end(), by_scale);
    const double scale = policy == "not_larger" ? least->scale : most->scale;
    for (Axis& axis : axes) {
        axis.out = static_cast<int64_t>(std::floor(scale * static_cast<double>(axis.in) + 0.5));
        axis.scale = scale;
        axis.is_scaled = true;
    }
}

void resize(Call& c) {
    Resizing how;
    how.mode = c.text("mode", "nearest");
    how.coordinates = c.text("coordinate_transformation_mode", "half_pixel");
    how.nearest = c.text("nearest_mode", "round_prefer_floor");
    how.cubic_a = c.real("cubic_coeff_a", -0.75);
    how.extrapolation = c.real("extrapolation_value", 0);
    how.exclude_outside = c.flag("exclude_outside", false);
    if (how.mode != "nearest" && how.mode != "linear" && how.mode != "cubic") c.reject("its mode is \"{}\"", how.mode);
    how.antialias = c.flag("antialias", false) && how.mode != "nearest";
    const int rank = c.rank(0);
    std::vector<int> dims;
    for (const int64_t axis : c.integers("axes")) dims.push_back(c.axis(axis, rank));
    if (dims.empty()) {
        dims.resize(static_cast<std::size_t>(rank));
        std::iota(dims.begin(), dims.end(), 0);
    }
    const std::vector<double> scales = c.has(2) ? c.reals(2, "scales") : std::vector<double>();
    std::vector<Axis> axes;
    const bool scaled = !scales.empty();
    if (scaled) {
        axes = by_scales(c, scales, dims);
    } else {
        const std::vector<int64_t> sizes = c.integers(3, "sizes");
        if (sizes.size() != dims.size()) c.reject("it has {} sizes for {} dimensions", sizes.size(), dims.size());
        for (std::size_t i = 0; i < dims.size(); ++i) {
            const int64_t in = c.shape(0).raw(dims[i]);
            axes.push_back({dims[i], in, sizes[i], static_cast<double>(sizes[i]) / static_cast<double>(std::max<int64_t>(in, 1))});
        }
        keep_aspect_ratio(c, axes);
    }
    if (how.coordinates == "tf_crop_and_resize") {
        const std::vector<double> roi = c.reals(1, "roi");
        if (roi.size() != 2 * dims.size()) c.reject("its roi has {} numbers for {} dimensions", roi.size(), dims.size());
        for (std::size_t i = 0; i < dims.size(); ++i) {
            axes[i].roi_start = roi[i];
            axes[i].roi_end = roi[i + dims.size()];
        }
    }
    give_resized(c, how, axes, scaled);
}

// Upsample, and Resize before opset 11: by scales, aligned at the beginnings of elements.
void upsample(Call& c) {
    Resizing how;
    how.mode = c.text("mode", "nearest");
    how.coordinates = "asymmetric";
    how.nearest = "floor";
    if (how.mode == "bilinear") how.mode = "linear";
    std::vector<int> dims(static_cast<std::size_t>(c.rank(0)));
    std::iota(dims.begin(), dims.end(), 0);
    std::vector<Axis> axes = by_scales(c, c.given("scales") ? c.reals("scales") : c.reals(1, "scales"), dims);
    if (std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.scale < 1; })) how.nearest = "simple";
    give_resized(c, how, std::move(axes), true);
}

// --- Sampling -------------------------------------------------------------------------------------------------------------------------

// Samples the 16 pixels around each place, weighted by Keys' cubic with a = -0.75.
Tensor sample_cubic(const Tensor& x, const Tensor& grid, GridSampleOptions options) {
    const auto height = static_cast<double>(x.size(2)), width = static_cast<double>(x.size(3));
    const bool corners = options.align_corners;
    const auto pixel = [&](const Tensor& g, double size) { return corners ? (g + 1) * ((size - 1) / 2) : ((g + 1) * size - 1) * 0.5; };
    const auto grid_of = [&](const Tensor& p, double size) { return corners ? p * (2 / std::max(size - 1, 1.0)) - 1 : (p * 2 + 1) * (1 / size) - 1; };
    const Tensor px = pixel(select(grid, -1, 0), width), py = pixel(select(grid, -1, 1), height);
    const Tensor fx = floor(px), fy = floor(py);
    const auto weights = [](const Tensor& t) {
        const double a = -0.75;
        const auto near = [&](const Tensor& d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
        const auto far = [&](const Tensor& d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
        return std::vector<Tensor>{far(t + 1), near(t), near(1 - t), far(2 - t)};
    };
    const std::vector<Tensor> wx = weights(px - fx), wy = weights(py - fy);
    options.mode = "nearest";
    Tensor sum;
    for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 4; ++k) {
            const Tensor place = stack({grid_of(fx + (k - 1), width), grid_of(fy + (i - 1), height)}, -1);
            const Tensor weight = unsqueeze(wy[static_cast<std::size_t>(i)] * wx[static_cast<std::size_t>(k)], 1);
            const Tensor part = grid_sample(x, place, options) * weight;
            sum = sum.defined() ? sum + part : part;
        }
    }
    return sum;
}

// x (n, channels, depth, height, width) at grid (n, d, h, w, 3) of (x, y, z): the 8 elements around each place.
Tensor sample_volume(Call& c, const Tensor& x, const Tensor& grid, const std::string& mode, const std::string& padding, bool corners) {
    const bool nearest = mode == "nearest";
    if (!nearest && mode != "bilinear" && mode != "linear" && mode != "trilinear") c.reject("its mode is \"{}\" for a shape {}", mode, x.shape());
    if (padding != "zeros" && padding != "border" && padding != "reflection") c.reject("its padding_mode is \"{}\"", padding);
    if (grid.dim() != 5 || grid.size(4) != 3) c.reject("a grid of shape {} for a shape {}", grid.shape(), x.shape());
    const int64_t n = x.size(0), channels = x.size(1), places = grid.size(1) * grid.size(2) * grid.size(3);
    struct Side {
        Tensor low, fraction;
        int64_t size;
    };
    std::vector<Side> sides;  // z, y, x
    for (int d = 0; d < 3; ++d) {
        const int64_t size = x.size(d + 2);
        const auto last = static_cast<double>(size - 1);
        const Tensor g = select(grid, -1, 2 - d);
        Tensor at = corners ? (g + 1) * (last / 2) : ((g + 1) * static_cast<double>(size) - 1) / 2;
        if (padding == "reflection") {  // reflects between the centres of the outermost elements, or their edges
            const double low = corners ? 0 : -0.5, span = corners ? last : last + 1;
            const Tensor back = span > 0 ? span - abs(remainder(at - low, 2 * span) - span) + low : at * 0;
            at = back;
        }
        if (padding != "zeros") at = clamp(at, 0, last);
        const Tensor low = nearest ? round(at) : floor(at);
        sides.push_back({low, at - low, size});
    }
    const Tensor flat = reshape(x, {n, channels, -1});
    Tensor total;
    for (int corner = 0; corner < (nearest ? 1 : 8); ++corner) {
        Tensor index, weight;
        for (std::size_t d = 0; d < 3; ++d) {
            const bool is_high = (corner >> (2 - d)) & 1;
            const auto& [low, fraction, size] = sides[d];
            const Tensor at = is_high ? low + 1 : low;
            const auto last = static_cast<double>(size - 1);
            const Tensor inside = logical_and(at >= 0, at <= last).to(x.dtype());
            const Tensor part = nearest ? inside : inside * (is_high ? fraction : 1 - fraction);
            const Tensor place = clamp(at, 0, last).to(int64);
            index = index.defined() ? index * size + place : place;
            weight = weight.defined() ? weight * part : part;
        }
        const Tensor picked = gather(flat, 2, expand(reshape(index, {n, 1, places}), {n, channels, places}));
        const Tensor term = picked * reshape(weight, {n, 1, places});
        total = total.defined() ? total + term : term;
    }
    return reshape(total, {n, channels, grid.size(1), grid.size(2), grid.size(3)});
}

void grid_sample_op(Call& c) {
    GridSampleOptions options;
    const std::string mode = c.text("mode", "bilinear"), padding = c.text("padding_mode", "zeros");
    options.align_corners = c.flag("align_corners", false);
    options.padding_mode = padding.c_str();
    if (c.rank(0) == 5) return c.give(sample_volume(c, c.x(0), c.x(1), mode, padding, options.align_corners));
    if (mode == "bicubic" || mode == "cubic") return c.give(sample_cubic(c.x(0), c.x(1), options));
    options.mode = mode == "nearest" ? "nearest" : "bilinear";
    if (mode != "nearest" && mode != "bilinear" && mode != "linear") c.reject("its mode is \"{}\"", mode);
    c.give(grid_sample(c.x(0), c.x(1), options));
}

// Averages samples in the cells of regions.
void roi_align(Call& c) {
    const Tensor x = c.x(0), rois = c.x(1);
    if (c.text("mode", "avg") != "avg") c.reject("its mode is \"{}\"; avg is supported", c.text("mode", ""));
    const int64_t height = c.integer("output_height", 1), width = c.integer("output_width", 1), ratio = c.integer("sampling_ratio", 0);
    if (ratio < 1) c.reject("sampling_ratio 0, by which the number of samples depends on data, is not supported");
    const double scale = c.real("spatial_scale", 1);
    const bool half = c.opset() >= 16 && c.text("coordinate_transformation_mode", "half_pixel") == "half_pixel";
    const int64_t n = rois.size(0);
    const auto side = [&](int begin, int64_t cells, int64_t size) {
        const double offset = half ? 0.5 : 0;
        const Tensor start = select(rois, 1, begin) * scale - offset, end = select(rois, 1, begin + 2) * scale - offset;
        Tensor length = end - start;
        if (!half) length = clamp_min(length, 1);
        const Tensor step = (arange(cells * ratio, int64).to(x.dtype()) + 0.5) / static_cast<double>(cells * ratio);
        const Tensor at = reshape(start, {n, 1}) + reshape(length, {n, 1}) * step;  // (n, cells * ratio), in pixels
        const Tensor inside = logical_and(at >= -1, at <= static_cast<double>(size));
        const Tensor grid = (clamp(at, 0, static_cast<double>(size - 1)) * 2 + 1) / static_cast<double>(size) - 1;
        return std::pair(grid, inside);
    };
    const auto [gy, in_y] = side(1, height, x.size(2));
    const auto [gx, in_x] = side(0, width, x.size(3));
    const Shape whole{n, height * ratio, width * ratio};
    const Tensor grid = stack({expand(reshape(gx, {n, 1, -1}), whole), expand(reshape(gy, {n, -1, 1}), whole)}, -1);
    const Tensor inside = logical_and(reshape(in_x, {n, 1, 1, -1}), reshape(in_y, {n, 1, -1, 1})).to(x.dtype());
    GridSampleOptions options;
    options.padding_mode = "border";
    const Tensor samples = grid_sample(index_select(x, 0, c.x(2)), grid, options) * inside;  // (n, channels, ...)
    c.give(mean(reshape(samples, {n, x.size(1), height, ratio, width, ratio}), {3, 5}));
}

// --- Boxes ----------------------------------------------------------------------------------------------------------------------------

// Treats all batches and classes at once: boxes by falling scores, each of which, if it is still there, removes later ones that it
// overlaps. A scan along the boxes, so that each run may have another number of them.
void non_max_suppression(Call& c) {
    const Tensor boxes = c.x(0), scores = c.x(1);  // (batch, n, 4), (batch, classes, n)
    const int64_t most = c.has(2) ? c.integer(2, "max_output_boxes_per_class") : 0;
    const double iou_threshold = c.has(3) ? c.real(3, "iou_threshold") : 0;
    if (boxes.dim() != 3 || scores.dim() != 3) c.reject("boxes of shape {}, scores of shape {}", boxes.shape(), scores.shape());
    const int64_t batch = scores.size(0), classes = scores.size(1), n = scores.size(2);
    const auto part = [&](int i) { return select(boxes, 2, i); };
    Tensor y1, x1, y2, x2;
    if (c.flag("center_point_box", false)) {
        const Tensor half_w = part(2) / 2, half_h = part(3) / 2;
        x1 = part(0) - half_w, x2 = part(0) + half_w, y1 = part(1) - half_h, y2 = part(1) + half_h;
    } else {  // any two opposite corners
        y1 = minimum(part(0), part(2)), y2 = maximum(part(0), part(2));
        x1 = minimum(part(1), part(3)), x2 = maximum(part(1), part(3));
    }
    const ValuesIndices sorted = sort(scores, 2, /*descending=*/true);
    const auto in_order = [&](const Tensor& side) { return gather(expand(unsqueeze(side, 1), {batch, classes, n}), 2, sorted.indices); };
    y1 = in_order(y1), x1 = in_order(x1), y2 = in_order(y2), x2 = in_order(x2);
    const Tensor area = (y2 - y1) * (x2 - x1), places_of_boxes = arange(n, int64);
    const Tensor all_kept = c.has(4) ? sorted.values > c.real(4, "score_threshold") : ones({batch, classes, n}, bool_);
    // x: the boxes that are kept, (batch, classes, n), then one box of each batch and class, (batch, classes), and its place.
    const auto step = [&](const std::vector<Tensor>& x) {
        const auto one = [](const Tensor& side) { return unsqueeze(side, -1); };
        const auto overlap = [&](const Tensor& low, const Tensor& high, const Tensor& own_low, const Tensor& own_high) {
            return clamp_min(minimum(high, one(own_high)) - maximum(low, one(own_low)), 0);
        };
        const Tensor common = overlap(y1, y2, x[1], x[2]) * overlap(x1, x2, x[3], x[4]);
        const Tensor all_area = area + one(x[5]) - common;
        const Tensor covers = logical_and(all_area > 0, common > all_area * iou_threshold);
        const Tensor is_kept = index_select(x[0], 2, reshape(x[6], {1}));
        const Tensor taken = logical_and(logical_and(covers, is_kept), places_of_boxes > x[6]);
        return std::vector<Tensor>{logical_and(x[0], logical_not(taken))};
    };
    std::vector<Tensor> boxes_in_order;
    for (const Tensor& side : {y1, y2, x1, x2, area}) boxes_in_order.push_back(movedim(side, 2, 0));
    boxes_in_order.push_back(places_of_boxes);
    Tensor kept = scan(step, {all_kept}, boxes_in_order).carry[0];
    kept = logical_and(kept, cumsum(kept.to(int64), 2) <= most);
    const Tensor places = nonzero(kept);  // (found, 3)
    const Tensor flat = select(places, 1, 0) * (classes * n) + select(places, 1, 1) * n + select(places, 1, 2);
    const Tensor box = index_select(reshape(sorted.indices, {-1, 1}), 0, flat);
    c.mark_sized_by_data();
    c.give(cat({narrow(places, 1, 0, 2), box}, 1));
}

constexpr OnnxOp kImageOps[] = {
    {"Resize", 10, upsample},           {"Resize", 11, resize},      {"Upsample", 7, upsample},
    {"GridSample", 16, grid_sample_op}, {"RoiAlign", 10, roi_align}, {"NonMaxSuppression", 10, non_max_suppression},
};

}  // namespace

std::span<const OnnxOp> onnx_image_ops() { return kImageOps; }

}  // namespace tapir::detail
