// Views that are composed of other views.
#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_composed.h"

namespace tapir {

TAPIR_OP(movedim, Composed, "Dimensions at other places.", TAPIR_SAMPLE("f(2,3,4)", movedim(x[0], {0}, {2})),
         TAPIR_SAMPLE("f(2,3,4)", movedim(x[0], {2, 0}, {0, 1})));
TAPIR_OP(swapaxes, Composed, "transpose.", TAPIR_SAMPLE("f(2,3,4)", swapaxes(x[0], 0, -1)), TAPIR_SAMPLE("f(2,3,4)", moveaxis(x[0], {0}, {2})),
         TAPIR_SAMPLE("f(2,3)", ravel(x[0])));
TAPIR_OP(atleast_1d, Composed, "With 1, 2 or 3 dimensions at least.", TAPIR_SAMPLE("f()", atleast_1d(x[0])), TAPIR_SAMPLE("f()", atleast_2d(x[0])),
         TAPIR_SAMPLE("f(3)", atleast_2d(x[0])), TAPIR_SAMPLE("f(3)", atleast_3d(x[0])), TAPIR_SAMPLE("f(3,2)", atleast_3d(x[0])),
         TAPIR_SAMPLE("f(2,1,2)", atleast_3d(x[0])));
TAPIR_OP(tensor_split, Composed, "Nearly equal parts.", TAPIR_SAMPLE("f(7,2)", tensor_split(x[0], 3)),
         TAPIR_SAMPLE("f(2,5)", tensor_split(x[0], 2, 1)),
         TAPIR_SAMPLE_AS("f(6)", "tensor_split(x[0], (1, 4, 9))", tensor_split(x[0], std::vector<std::int64_t>{1, 4, 9})),
         TAPIR_SAMPLE_AS("f(6)", "tensor_split(x[0], (4, 2))", tensor_split(x[0], std::vector<std::int64_t>{4, 2})));
TAPIR_OP(broadcast_tensors, Composed, "Expanded to one shape.",
         TAPIR_SAMPLE_AS("f(3,1) f(2)", "broadcast_tensors(x[0], x[1])", broadcast_tensors({x[0], x[1]})));

using std::int64_t;

Tensor movedim(In x, const Dims& source, const Dims& destination) {
    detail::check_defined(x, "movedim");
    const int rank = x.tensor.dim();
    if (source.rank() != destination.rank()) {
        fail<ShapeError>(x.loc, "movedim: {} dimension{} to {} place{}", source.rank(), source.rank() == 1 ? "" : "s", destination.rank(),
                         destination.rank() == 1 ? "" : "s");
    }
    Dims order;
    unsigned taken = 0, filled = 0;
    for (int d = 0; d < rank; ++d) order.push_back(-1);
    for (int i = 0; i < source.rank(); ++i) {
        const int from = detail::wrap_dim(source[i], rank, "movedim", x.loc), to = detail::wrap_dim(destination[i], rank, "movedim", x.loc);
        if (taken >> from & 1 || filled >> to & 1) fail<IndexError>(x.loc, "movedim: a dimension is named twice in {} or {}", source, destination);
        taken |= 1u << from;
        filled |= 1u << to;
        if (rank > 0) order[to] = from;
    }
    int next = 0;
    for (int d = 0; d < rank; ++d) {
        if (order[d] >= 0) continue;
        while (taken >> next & 1) ++next;
        order[d] = next++;
    }
    return permute(x, order);
}

Tensor Tensor::movedim(const Dims& source, const Dims& destination, Loc loc) const { return tapir::movedim(In(*this, loc), source, destination); }
Tensor moveaxis(In x, const Dims& source, const Dims& destination) {
    const detail::ComposedOp composed("moveaxis");
    return movedim(x, source, destination);
}
Tensor swapaxes(In x, Dim axis0, Dim axis1) { return transpose(x, axis0, axis1); }
Tensor ravel(In x) { return flatten(x); }

namespace {

Tensor with_dims(const char* op, const In& x, int least) {
    detail::check_defined(x, op);
    const int rank = x.tensor.dim();
    if (rank >= least) return x.tensor;
    const detail::RecordedParts parts(x.loc);
    Shape shape = x.tensor.shape();
    if (rank == 1 && least > 1) shape.insert(0, 1);  // a row
    while (shape.rank() < least) shape.push_back(1);
    return reshape(x, shape);
}

}  // namespace

Tensor atleast_1d(In x) { return with_dims("atleast_1d", x, 1); }
Tensor atleast_2d(In x) { return with_dims("atleast_2d", x, 2); }
Tensor atleast_3d(In x) { return with_dims("atleast_3d", x, 3); }

std::vector<Tensor> tensor_split(In x, int64_t sections, Dim dim) {
    detail::check_defined(x, "tensor_split");
    if (x.tensor.dim() == 0) fail<ShapeError>(x.loc, "tensor_split: a tensor without dimensions cannot be split");
    if (sections <= 0) fail<ValueError>(x.loc, "tensor_split: the number of parts must be above 0, got {}", sections);
    if (sections > 1 << 24) fail<ValueError>(x.loc, "tensor_split: {} parts are too many: at most 2^24", sections);
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "tensor_split", x.loc);
    const int64_t n = x->sizes[d], least = n / sections, larger = n % sections;
    std::vector<int64_t> sizes(static_cast<std::size_t>(sections), least);
    std::fill_n(sizes.begin(), larger, least + 1);
    return split(x, sizes, d);
}

std::vector<Tensor> tensor_split(In x, const std::vector<int64_t>& indices, Dim dim) {
    detail::check_defined(x, "tensor_split");
    if (x.tensor.dim() == 0) fail<ShapeError>(x.loc, "tensor_split: a tensor without dimensions cannot be split");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "tensor_split", x.loc);
    std::vector<Tensor> result;
    const detail::RecordedParts parts(x.loc);
    int64_t begin = 0;
    for (std::size_t i = 0; i <= indices.size(); ++i) {
        const int64_t end = i == indices.size() ? Slice::kOpen : std::max(indices[i], Slice::kOpen + 1);  // a number, however low
        result.push_back(slice(x, d, Slice(begin, end)));
        begin = end;
    }
    return result;
}

std::vector<Tensor> broadcast_tensors(TensorList tensors) {
    Shape shape;
    for (const Tensor& t : tensors) {
        detail::check_defined(In(t, tensors.loc), "broadcast_tensors");
        shape = broadcast_shapes(shape, t.shape(), "broadcast_tensors", tensors.loc);
    }
    const detail::RecordedParts parts(tensors.loc);
    std::vector<Tensor> result;
    for (const Tensor& t : tensors) result.push_back(expand(t, shape));
    return result;
}

}  // namespace tapir
