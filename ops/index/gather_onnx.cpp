// Writes gather.cpp, mask.cpp, embedding.cpp, embedding_bag.cpp and index.cpp as ONNX.
#include <cmath>

#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

using std::int64_t;

OnnxValue full_value(const OnnxCall& x, int i) { return x[i].is_number() ? x.scalar(x[i].number(), x.dtype(i)) : x[i]; }

OnnxValue index_select_of(const OnnxCall& x) {
    const OnnxValue index = x.cast(full_value(x, 1), int64);
    if (x.rank() == 0) return x.reshape(x[0], x.result_shape());
    return x.gather(x[0], x.rank(1) == 0 ? x.unsqueeze(index, {0}) : index, x.small("dim"));
}

OnnxValue gather_of(const OnnxCall& x) {
    if (x.rank() == 0) return x.reshape(x.expand(x.reshape(full_value(x, 0), {1}), {1}), x.result_shape());
    const int dim = x.small("dim");
    OnnxValue source = x[0];
    for (int d = 0; d < x.rank(); ++d) {  // operators need the other dimensions to have equal sizes
        const SymInt size = x.shape(1)[d];
        if (d != dim && !(size == x.shape()[d])) source = x.slice(source, d, 0, size);
    }
    return x.node("GatherElements", {source, x.cast(full_value(x, 1), int64)}, {{"axis", dim}});
}

// Returns the values to scatter: of the index's shape and the result's dtype.
OnnxValue scattered(const OnnxCall& x) {
    OnnxValue source = x[2].is_number() ? x.scalar(x[2].number(), x.result_dtype()) : x.as_result(2);
    if (x.rank(2) == 0 && x.rank(1) > 0) return x.expand(source, x.shape(1));
    for (int d = 0; d < x.rank(2); ++d) {
        const SymInt size = x.shape(1)[d];
        if (!(size == x.shape(2)[d])) source = x.slice(source, d, 0, size);
    }
    return source;
}

OnnxValue scatter(const OnnxCall& x, const OnnxValue& self, const OnnxValue& source, const char* reduction) {
    const OnnxValue index = x.cast(full_value(x, 1), int64);
    OnnxAttributes attributes = {{"axis", x.small("dim")}};
    if (reduction) attributes.emplace_back("reduction", reduction);
    if (x.rank() > 0) return x.node("ScatterElements", {self, index, source}, attributes);
    attributes[0].integer = 0;
    const OnnxValue one_index = x.reshape(index, {1}), one = x.reshape(source, {1});
    return x.reshape(x.node("ScatterElements", {x.reshape(self, {1}), one_index, one}, attributes), OnnxSizes{});
}

// Returns the largest or smallest of the elements for each place, `least` if there are none: opset 17 compares all pairs of places and elements.
OnnxValue extreme_scattered(const OnnxCall& x, const OnnxValue& self, OnnxValue source, bool largest, const OnnxValue& least) {
    if (x.opset() >= 18) return scatter(x, self, source, largest ? "max" : "min");
    const int dim = x.small("dim"), rank = x.rank();
    const OnnxValue count = x.size_0d(rank == 0 ? SymInt(1) : x.shape()[dim]);
    OnnxValue index = x.cast(full_value(x, 1), int64);
    if (rank == 0) return x.node(largest ? "Max" : "Min", {self, source});
    index = where(index < 0, index + count, index);
    OnnxSizes pads = OnnxSizes::of(2 * rank, SymInt(0));
    bool is_smaller = false;
    for (int d = 0; d < rank; ++d) {
        if (d == dim || x.shape()[d] == x.shape(1)[d]) continue;
        pads[rank + d] = x.shape()[d] - x.shape(1)[d];
        is_smaller = true;
    }
    if (is_smaller) {
        const OnnxValue widths = x.sizes(pads);
        index = x.node("Pad", {index, widths, x.scalar(0, int64)});
        source = x.node("Pad", {source, widths, least});
    }
    OnnxInts after;
    for (int d = dim + 1; d <= rank; ++d) after.push_back(d - dim);
    const OnnxValue places = x.unsqueeze(x.range(x.shape()[dim]), after);
    const OnnxValue hits = x.unsqueeze(index, {dim}) == places;
    const OnnxValue values = where(hits, x.unsqueeze(source, {dim}), least);
    return x.node(largest ? "Max" : "Min", {self, x.reduce(largest ? "ReduceMax" : "ReduceMin", values, {dim + 1}, false)});
}

OnnxValue scatter_reduce_of(const OnnxCall& x) {
    const std::string how = x.choice("reduce");
    const bool includes_self = x.flag("include_self");
    const DType given = x.result_dtype(), dtype = given == bool_ || given == DType::uint8 ? DType::int32 : given;
    const OnnxValue self = x.cast(full_value(x, 0), dtype), source = x.cast(scattered(x), dtype);
    const OnnxValue ones = x.expand(x.scalar(1, dtype), x.shape(1));
    const OnnxValue zeros = x.filled(x.shape(), 0, dtype);
    const OnnxValue counts = scatter(x, zeros, ones, "add"), is_hit = counts > 0;
    const auto begun = [&](const OnnxValue& neutral) { return includes_self ? self : where(is_hit, neutral, self); };
    if (how == "sum") return scatter(x, begun(0), source, "add");
    if (how == "prod") return scatter(x, begun(1), source, "mul");
    if (how == "mean") {
        const OnnxValue sum = scatter(x, begun(0), source, "add");
        const OnnxValue n = includes_self ? counts + 1 : where(is_hit, counts, 1);
        return is_floating(dtype) ? sum / n : floor_divide(sum, n);
    }
    const bool largest = how == "amax";
    const OnnxValue least = x.end_of(dtype, !largest);
    return extreme_scattered(x, begun(least), source, largest, least);
}

// Adds source to whole rows of `dim`.
OnnxValue index_add_of(const OnnxCall& x) {
    const int dim = x.small("dim");
    const OnnxValue index = x.reshape(x.cast(full_value(x, 1), int64), {x.rank(1) == 0 ? SymInt(1) : x.shape(1)[0]});
    OnnxValue source = full_value(x, 2);
    source = x.cast(source, x.result_dtype());
    if (x.rank() == 0) {
        const OnnxValue sum = x.reduce("ReduceSum", x.reshape(source, {x.rank(2) == 0 ? SymInt(1) : x.shape(2)[0]}), {0}, false);
        return full_value(x, 0) + sum;
    }
    if (dim == 0) return x.node("ScatterND", {x[0], x.unsqueeze(index, {1}), source}, {{"reduction", "add"}});
    OnnxInts after;
    for (int d = dim + 1; d < x.rank(); ++d) after.push_back(d - dim);
    const OnnxValue places = x.expand(x.unsqueeze(index, after), x.shape(2));
    return x.node("ScatterElements", {x[0], places, source}, {{"axis", dim}, {"reduction", "add"}});
}

OnnxValue nonzero_of(const OnnxCall& x) {
    x.builder().note_data_dependent();
    if (x.rank() == 0) x.refuse("of a 0-d tensor");
    return x.permute(x.node("NonZero", int64, {x[0]}), {1, 0});
}

OnnxValue where_of(const OnnxCall& x) { return where(full_value(x, 0), x.as_result(1), x.as_result(2)); }
OnnxValue masked_fill_of(const OnnxCall& x) { return where(full_value(x, 1), x.as_result(2), x.as_result(0)); }

OnnxValue embedding_of(const OnnxCall& x) { return x.gather(x[1], x.cast(full_value(x, 0), int64), 0); }
OnnxValue one_hot_of(const OnnxCall& x) {
    if (x.integer("num_classes") < 0) throw OnnxRefusal{"the number of classes depends on the elements: give one_hot num_classes"};
    const OnnxValue values = x.concat({x.cast(x.ints({0}), x.result_dtype()), x.cast(x.ints({1}), x.result_dtype())}, 0);
    const OnnxValue classes = x.cast(full_value(x, 0), int64);
    const OnnxValue y = x.node("OneHot", x.result_dtype(),
                               {x.rank() == 0 ? x.unsqueeze(classes, {0}) : classes, x.size_0d(x.result_shape().last()), values}, {{"axis", -1}});
    return x.rank() == 0 ? x.squeeze(y, {0}) : y;
}

// Takes the table, the rows, the bag that each row goes to, and weights of the rows.
OnnxValues embedding_bag_of(const OnnxCall& x) {
    const std::string mode = x.choice("mode");
    const SymInt bags = x.size("num_bags"), width = x.shape(0)[1];
    const int64_t padding = x.integer("padding_idx");
    const DType dtype = x.result_dtype();
    const OnnxValue rows = x.gather(x.as_result(0), x[1], 0), bag = x.cast(x[2], int64), bag_column = x.unsqueeze(bag, {1});
    const OnnxValue counts_one = padding >= 0 ? x.cast(x[1] != padding, dtype) : x.expand(x.scalar(1, dtype), x.shape(1));
    if (mode == "max") {
        OnnxValue is_here = x.unsqueeze(x.range(bags), {1}) == x.unsqueeze(bag, {0});  // (bags, n)
        if (padding >= 0) is_here = is_here & (x[1] != padding);
        const OnnxValue values = where(x.unsqueeze(is_here, {2}), rows, -INFINITY);
        const OnnxValue any = x.reduce("ReduceMax", x.cast(is_here, DType::int32), {1}, true) != 0;
        const OnnxValue largest = where(any, x.reduce("ReduceMax", values, {1}, false), 0);
        const OnnxValue from = where(any, x.node("ArgMax", int64, {values}, {{"axis", 1}, {"keepdims", 0}}), x.scalar(-1, int64));
        return {largest, from};
    }
    OnnxValue weights = counts_one;
    if (x.count() > 3) weights = weights * x.cast(x[3], dtype);
    const OnnxValue zeros = x.filled({bags, width}, 0, dtype);
    const OnnxValue sums = x.node("ScatterND", {zeros, bag_column, rows * x.unsqueeze(weights, {1})}, {{"reduction", "add"}});
    if (mode == "sum") return {sums};
    const OnnxValue counts = x.node("ScatterND", {x.filled({bags}, 0, dtype), bag_column, counts_one}, {{"reduction", "add"}});
    const OnnxValue shares = 1 / x.node("Max", {x.unsqueeze(counts, {1}), x.scalar(1, dtype)});
    return {sums * shares, shares};
}

// Returns places of elements of a region of x in row-major order: strides, and for one dimension, `at`, positions times a scale.
OnnxValue region_places(const OnnxCall& x, const OnnxValue& positions, const OnnxSizes& shape, int positions_rank) {
    const auto strides = x.integers("strides");
    const int at_dim = x.small("at");
    const int64_t scale = x.integer("scale");
    OnnxValue places = x.scalar(x.integer("offset"), int64);
    const int rank = shape.count();
    int k = 0;
    for (int d = 0; d < rank; ++d) {
        if (d >= at_dim && d < at_dim + positions_rank) continue;
        OnnxInts after;
        for (int e = d + 1; e < rank; ++e) after.push_back(e - d);
        places = places + x.unsqueeze(x.range(shape[d]) * strides[k++], after);
    }
    OnnxInts after;
    for (int e = at_dim + positions_rank; e < rank; ++e) after.push_back(e - at_dim);
    return places + x.unsqueeze(positions * scale, after);
}
OnnxValue index_of(const OnnxCall& x) {
    const OnnxValue places = region_places(x, x.cast(full_value(x, 1), int64), x.result_shape(), x.rank(1));
    return x.gather(x.reshape(x[0], {numel(x.shape())}), places, 0);
}
// Puts value (of the region's shape) at its places in a flat `whole`.
OnnxValue put(const OnnxCall& x, const OnnxValue& whole, const OnnxValue& positions, int positions_rank, const OnnxValue& value,
              const OnnxSizes& region, bool adds) {
    const OnnxValue places = x.node("Reshape", {region_places(x, positions, region, positions_rank), x.ints({-1})});
    const OnnxValue flat_value = x.node("Reshape", {value, x.ints({-1})});
    OnnxAttributes attributes = {{"axis", 0}};
    if (adds) attributes.emplace_back("reduction", "add");
    return x.node("ScatterElements", {whole, places, flat_value}, attributes);
}
OnnxValue index_place_of(const OnnxCall& x) {
    const auto whole = x.sizes("whole");
    const OnnxValue zeros = x.filled({numel(whole)}, 0, x.dtype());
    return x.reshape(put(x, zeros, x.cast(full_value(x, 1), int64), x.rank(1), x[0], x.shape(), !x.flag("distinct")), whole);
}
OnnxValue index_put_of(const OnnxCall& x, bool adds) {
    const auto sizes = x.sizes("sizes");
    OnnxSizes region;
    const int at_dim = x.small("at"), count = x.count() > 2 ? x.rank(2) : 0;
    for (int d = 0; d <= sizes.count(); ++d) {
        if (d == at_dim && count > 0) region.append(x.shape(2));
        if (d < sizes.count()) region.push_back(sizes[d]);
    }
    const OnnxValue value = x.expand(x[1].is_number() ? x.scalar(x[1].number(), x.result_dtype()) : x.as_result(1), region);
    const OnnxValue positions = count > 0 || x.count() > 2 ? x.cast(full_value(x, 2), int64) : x.scalar(0, int64);
    return x.reshape(put(x, x.reshape(x[0], {numel(x.shape())}), positions, count, value, region, adds), x.shape());
}

}  // namespace

TAPIR_ONNX(gather, gather_of(x));
TAPIR_ONNX(scatter, scatter(x, full_value(x, 0), scattered(x), nullptr));
TAPIR_ONNX(scatter_add, scatter(x, full_value(x, 0), scattered(x), "add"));
TAPIR_ONNX(scatter_reduce, scatter_reduce_of(x));
TAPIR_ONNX(index_select, index_select_of(x));
TAPIR_ONNX(index_add, index_add_of(x));

TAPIR_ONNX(where, where_of(x));
TAPIR_ONNX(masked_fill, masked_fill_of(x));
TAPIR_ONNX(nonzero, nonzero_of(x));

TAPIR_ONNX(embedding, embedding_of(x));
TAPIR_ONNX(one_hot, one_hot_of(x));
TAPIR_ONNX(embedding_bag, embedding_bag_of(x));

TAPIR_ONNX(index, index_of(x));
TAPIR_ONNX(index_place, index_place_of(x));
TAPIR_ONNX(index_put, index_put_of(x, false));
TAPIR_ONNX(index_put_add, index_put_of(x, true));

}  // namespace tapir
