// ONNX ops that gather and scatter elements.
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

// Negative indices count from the end.
Tensor from_front(Call& c, int operand, int64_t size) {
    const OnnxValuePtr& value = c.value(operand);
    const Tensor index = c.x(operand);
    if (value->known.defined() && !value->by_size) {
        bool has_negative = false;
        for (const int64_t i : c.integers(operand, "indices")) has_negative |= i < 0;
        if (!has_negative) return index;
    }
    return where(index < 0, index + size, index);
}

void gather_op(Call& c) {
    const int rank = c.rank(0), axis = c.axis("axis", 0, rank);
    const int64_t size = c.size(0, axis);
    if (c.is_known(1) && c.rank(1) == 0 && !c.value(1)->by_size) {  // one slice
        const Tensor x = c.x(0);
        int64_t i = c.integer(1, "indices");
        if (i < -size || i >= size) c.reject("the index {} for a dimension of size {}", i, size);
        return c.give(select(x, axis, i < 0 ? i + size : i));
    }
    const Tensor x = c.x(0), index = from_front(c, 1, size);
    const Tensor picked = index_select(x, axis, index.dim() == 1 ? index : reshape(index, {-1}));
    if (index.dim() == 1) return c.give(picked);
    Shape shape;
    for (int d = 0; d < axis; ++d) shape.push_back(x.size(d));
    for (const int64_t n : index.shape()) shape.push_back(n);
    for (int d = axis + 1; d < rank; ++d) shape.push_back(x.size(d));
    c.give(reshape(picked, shape));
}

void gather_elements(Call& c) {
    const int axis = c.axis("axis", 0, c.rank(0));
    c.give(gather(c.x(0), axis, from_front(c, 1, c.size(0, axis)).to(int64)));
}

// Returns one number for each position. indices: (..., k), positions in the k dimensions after the first `batch`; sizes: of these k.
Tensor flat_positions(const Tensor& indices, const std::vector<int64_t>& sizes) {
    Tensor sum;
    int64_t stride = 1;
    for (std::size_t d = sizes.size(); d-- > 0;) {
        Tensor i = select(indices, -1, static_cast<int64_t>(d));
        i = where(i < 0, i + sizes[d], i);
        if (stride != 1) i = i * stride;
        sum = sum.defined() ? sum + i : i;
        stride *= sizes[d];
    }
    return sum;
}

// x as three dimensions: the first `batch` ones, the next k, and the others.
struct Flat {
    Tensor x;
    int64_t batch, lines, rest;
};
Flat flattened(const Tensor& x, int batch, int k) {
    Flat flat{{}, 1, 1, 1};
    for (int d = 0; d < x.dim(); ++d) (d < batch ? flat.batch : d < batch + k ? flat.lines : flat.rest) *= x.size(d);
    flat.x = reshape(x, {flat.batch * flat.lines, flat.rest});
    return flat;
}

void gather_nd(Call& c) {
    const Tensor x = c.x(0), indices = c.x(1);
    const int batch = static_cast<int>(c.integer("batch_dims", 0));
    if (indices.dim() < 1 || batch < 0 || batch >= indices.dim()) c.reject("indices of shape {}, {} batch dimensions", indices.shape(), batch);
    const int k = static_cast<int>(indices.size(-1));
    if (k < 1 || batch + k > x.dim()) c.reject("indices of shape {} for an operand of shape {}", indices.shape(), x.shape());
    const Flat flat = flattened(x, batch, k);
    std::vector<int64_t> sizes;
    for (int d = 0; d < k; ++d) sizes.push_back(x.size(batch + d));
    Tensor positions = flat_positions(indices, sizes);  // the shape of indices without the last dimension
    Shape shape = positions.shape();
    if (batch > 0) {
        positions = reshape(positions, {flat.batch, -1});
        positions = positions + reshape(arange(0, flat.batch * flat.lines, flat.lines, int64), {flat.batch, 1});
    }
    const Tensor picked = index_select(flat.x, 0, reshape(positions, {-1}));
    for (int d = batch + k; d < x.dim(); ++d) shape.push_back(x.size(d));
    if (c.value(1)->sized_by_data && positions.dim() == 1 && flat.rest > 0) shape.raw(0) = -1;  // as many as there are
    c.give(reshape(picked, shape));
}

const char* reduction_of(Call& c) {
    const std::string word = c.text("reduction", "none");
    if (word == "none") return nullptr;
    if (word == "add") return "sum";
    if (word == "mul") return "prod";
    if (word == "max") return "amax";
    if (word == "min") return "amin";
    c.reject("its reduction is \"{}\"", word);
}

void scatter_elements(Call& c) {
    const int axis = c.axis("axis", 0, c.rank(0));
    const Tensor x = c.x(0), index = from_front(c, 1, c.size(0, axis)).to(int64), src = c.x(2);
    const char* reduce = reduction_of(c);
    c.give(reduce ? scatter_reduce(x, axis, index, src, reduce) : scatter(x, axis, index, src));
}

void scatter_nd(Call& c) {
    const Tensor x = c.x(0), indices = c.x(1), updates = c.x(2);
    const int k = indices.dim() < 1 ? 0 : static_cast<int>(indices.size(-1));
    if (k < 1 || k > x.dim()) c.reject("indices of shape {} for an operand of shape {}", indices.shape(), x.shape());
    const Flat flat = flattened(x, 0, k);
    std::vector<int64_t> sizes;
    for (int d = 0; d < k; ++d) sizes.push_back(x.size(d));
    const Tensor positions = reshape(flat_positions(indices, sizes), {-1, 1});
    const Tensor lines = reshape(updates, {positions.size(0), flat.rest});
    const Tensor index = expand(positions, {positions.size(0), flat.rest}).to(int64);
    const char* reduce = reduction_of(c);
    const Tensor result = reduce ? scatter_reduce(flat.x, 0, index, lines, reduce) : scatter(flat.x, 0, index, lines);
    c.give(reshape(result, x.shape()));
}

void one_hot_op(Call& c) {
    const int64_t depth = c.integer(1, "depth");
    const Tensor index = c.x(0), values = c.x(2);
    const int rank = index.dim() + 1, axis = c.axis("axis", -1, rank);
    Shape shape;
    for (int d = 0; d < rank; ++d) shape.push_back(d == axis ? depth : 1);
    const Tensor whole = is_floating(index.dtype()) ? trunc(index).to(int64) : index.to(int64);
    const Tensor here = where(whole < 0, whole + depth, whole);
    const Tensor is_hot = unsqueeze(here, axis) == reshape(arange(depth, int64), shape);
    c.give(where(is_hot, select(values, 0, 1), select(values, 0, 0)), c.type(2));
}

void nonzero_op(Call& c) {
    c.mark_sized_by_data();
    c.give(transpose(nonzero(c.x(0)), 0, 1));
}

void compress(Call& c) {
    c.mark_sized_by_data();
    Tensor x = c.x(0);
    const Tensor mask = c.x(1);
    const bool is_flat = !c.given("axis");
    if (is_flat) x = reshape(x, {-1});
    const int axis = is_flat ? 0 : c.axis("axis", 0, x.dim());
    c.give(index_select(x, axis, select(nonzero(mask), 1, 0)));
}

void topk_op(Call& c) {
    const int64_t k = c.opset() < 10 ? c.integer("k", 1) : c.integer(1, "k");
    const int axis = c.axis("axis", -1, c.rank(0));
    const Tensor x = c.x(0);
    const bool largest = c.flag("largest", true);
    // Among equal elements those with lower indices come first, as in a stable sort.
    const ValuesIndices sorted = sort(x, axis, largest);
    c.give(narrow(sorted.values, axis, 0, k));
    c.give(narrow(sorted.indices, axis, 0, k));
}

void reverse_sequence(Call& c) {
    const Tensor x = c.x(0), lengths = c.x(1);
    const int time = c.axis("time_axis", 0, x.dim()), batch = c.axis("batch_axis", 1, x.dim());
    const int64_t steps = x.size(time);
    Shape row, column;
    for (int d = 0; d < x.dim(); ++d) {
        row.push_back(d == time ? steps : 1);
        column.push_back(d == batch ? x.size(batch) : 1);
    }
    const Tensor t = reshape(arange(steps, int64), row), n = reshape(lengths, column);
    const Tensor index = where(t < n, n - 1 - t, t);
    c.give(gather(x, time, expand(index, x.shape())));
}

constexpr OnnxOp kIndexOps[] = {
    {"Gather", 1, gather_op},
    {"GatherElements", 11, gather_elements},
    {"GatherND", 11, gather_nd},
    {"Scatter", 9, scatter_elements},
    {"ScatterElements", 11, scatter_elements},
    {"ScatterND", 11, scatter_nd},
    {"OneHot", 9, one_hot_op},
    {"NonZero", 9, nonzero_op},
    {"Compress", 9, compress},
    {"TopK", 1, topk_op},
    {"ReverseSequence", 10, reverse_sequence},
};

}  // namespace

std::span<const OnnxOp> onnx_index_ops() { return kIndexOps; }

}  // namespace tapir::detail
