// The ops of combine.h: they are made of views, copies and products, which are recorded in their place.
#include <algorithm>
#include <string>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/arrange/arrange_impl.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/arrange/counting.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/elementwise/rounded_once_impl.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_composed.h"

namespace tapir {

namespace {
Tensor repeated_indices(const Tensor& repeats, const Loc& loc);
}  // namespace

TAPIR_OP(tile, Composed, "Copies side by side.", TAPIR_SAMPLE("f(2,3)", tile(x[0], {2})), TAPIR_SAMPLE("f(3)", tile(x[0], {2, 1, 2})));
TAPIR_OP(repeated_indices, NonDiff, "Each position as often as a number says: repeat_interleave(repeats).",
         TAPIR_SAMPLE_AS("i(5)<4", "repeat_interleave(x[0])", repeated_indices(x[0], Loc::current())));
TAPIR_OP(repeat_interleave, Composed, "Each element several times.", TAPIR_SAMPLE("f(2,3)", repeat_interleave(x[0], 2)),
         TAPIR_SAMPLE("f(2,3)", repeat_interleave(x[0], 3, 1)), TAPIR_SAMPLE("f(3,2) i(3)<4", repeat_interleave(x[0], x[1], 0)),
         TAPIR_SAMPLE("f(4) i(4)<3", repeat_interleave(x[0], x[1])));
TAPIR_OP(rot90, Composed, "Turned by 90 degrees.", TAPIR_SAMPLE("f(2,3)", rot90(x[0])), TAPIR_SAMPLE("f(2,3,2)", rot90(x[0], 2, {1, 2})),
         TAPIR_SAMPLE("f(2,3)", rot90(x[0], -1)), TAPIR_SAMPLE("f(2,3)", fliplr(x[0])), TAPIR_SAMPLE("f(2,3)", flipud(x[0])));
TAPIR_OP(diag, Composed, "A vector as a diagonal, or a matrix's diagonal.", TAPIR_SAMPLE("f(3)", diag(x[0])), TAPIR_SAMPLE("f(3)", diag(x[0], -1)),
         TAPIR_SAMPLE("f(3,4)", diag(x[0], 1)), TAPIR_SAMPLE("f(2,3)", diag_embed(x[0], 1)));
TAPIR_OP(meshgrid, Composed, "Coordinates of a grid.", TAPIR_SAMPLE_AS("f(3) f(2)", "meshgrid(x[0], x[1], indexing='ij')", meshgrid({x[0], x[1]})),
         TAPIR_SAMPLE_AS("f(3) f(2)", "meshgrid(x[0], x[1], indexing='xy')", meshgrid({x[0], x[1]}, "xy")),
         TAPIR_SAMPLE_AS("f(3) f(2) f(2)", "cartesian_prod(x[0], x[1], x[2])", cartesian_prod({x[0], x[1], x[2]})));
TAPIR_OP(vstack, Composed, "Tensors one below the other.", TAPIR_SAMPLE_AS("f(3) f(2,3)", "vstack((x[0], x[1]))", vstack({x[0], x[1]})),
         TAPIR_SAMPLE_AS("f() f()", "vstack((x[0], x[1]))", vstack({x[0], x[1]})));
TAPIR_OP(hstack, Composed, "Tensors side by side.", TAPIR_SAMPLE_AS("f(3) f(2)", "hstack((x[0], x[1]))", hstack({x[0], x[1]})),
         TAPIR_SAMPLE_AS("f(2,3) f(2,1)", "hstack((x[0], x[1]))", hstack({x[0], x[1]})),
         TAPIR_SAMPLE_AS("f() f(2)", "hstack((x[0], x[1]))", hstack({x[0], x[1]})));
TAPIR_OP(dstack, Composed, "Tensors one behind the other.", TAPIR_SAMPLE_AS("f(3) f(3)", "dstack((x[0], x[1]))", dstack({x[0], x[1]})),
         TAPIR_SAMPLE_AS("f(2,3) f(2,3,2)", "dstack((x[0], x[1]))", dstack({x[0], x[1]})));
TAPIR_OP(diff, Composed, "Differences of neighbours.", TAPIR_SAMPLE("f(3,5)", diff(x[0])), TAPIR_SAMPLE("f(4,2)", diff(x[0], 2, 0)));
TAPIR_OP(cross, Composed, "The cross product.", TAPIR_SAMPLE_AS("f(2,3) f(2,3)", "linalg.cross(x[0], x[1])", cross(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(3,2) f(3,1)", "linalg.cross(x[0], x[1], dim=0)", cross(x[0], x[1], 0)));
TAPIR_OP(trace, Composed, "The sum of the diagonal.", TAPIR_SAMPLE("f(3,4)", trace(x[0])));
TAPIR_OP(kron, Composed, "The Kronecker product.", TAPIR_SAMPLE("f(2,3) f(2,2)", kron(x[0], x[1])), TAPIR_SAMPLE("f(2) f(3,2)", kron(x[0], x[1])));
TAPIR_OP(vander, Composed, "Powers as columns.", TAPIR_SAMPLE("f(3)", vander(x[0])),
         TAPIR_SAMPLE_AS("f(3)", "vander(x[0], 4, True)", vander(x[0], 4, true)));

TAPIR_OP(diagflat, Composed, "A flattened tensor as a diagonal.", TAPIR_SAMPLE("f(2,2)", diagflat(x[0], 1)));
TAPIR_OP(block_diag, Composed, "Matrices along a diagonal.",
         TAPIR_SAMPLE_AS("f(2,3) f(2) f(1,1)", "block_diag(x[0], x[1], x[2])", block_diag({x[0], x[1], x[2]})));
TAPIR_OP(column_stack, Composed, "Side by side.",
         TAPIR_SAMPLE_AS("f(2,3) f(2) f(2,1)", "column_stack((x[0], x[1], x[2]))", column_stack({x[0], x[1], x[2]})));
TAPIR_OP(take_along_dim, Composed, "gather with broadcasting.", TAPIR_SAMPLE("f(3,4) i(3,2)<4", take_along_dim(x[0], x[1], 1)),
         TAPIR_SAMPLE("f(3,4) i(1,4)<3", take_along_dim(x[0], x[1], 0)), TAPIR_SAMPLE("f(3,4) i(5)<12", take_along_dim(x[0], x[1])));
TAPIR_OP(index_copy, Composed, "Slices put in places of a copy.",
         TAPIR_SAMPLE_AS("f(4,2) f(2,2)", "index_copy(x[0], 0, torch.tensor([3, 1]), x[1])",
                         index_copy(x[0], 0, tensor({3, 1}, {int64, x[0].device()}), x[1])));
TAPIR_OP(masked_scatter, Composed, "Elements put where a mask holds.",
         TAPIR_SAMPLE_AS("f(3,4) f(13)", "masked_scatter(x[0], x[0].detach() > 0, x[1])", masked_scatter(x[0], x[0].detach() > 0, x[1])));

using std::int64_t;

// --- Repeated and turned -----------------------------------------------------------------------------------------------------

Tensor tile(In x, const Shape& times) {
    detail::check_defined(x, "tile");
    Shape all = times;
    while (all.rank() < x.tensor.dim()) all.insert(0, 1);
    return detail::repeat_of("tile", x, all);
}

Tensor repeat_interleave(In x, int64_t repeats) {
    detail::check_defined(x, "repeat_interleave");
    const detail::RecordedParts parts(x.loc);
    return repeat_interleave(reshape(x, {-1}), repeats, 0);
}

Tensor repeat_interleave(In x, int64_t repeats, Dim dim) {
    detail::check_defined(x, "repeat_interleave");
    if (repeats < 0) fail<ValueError>(x.loc, "repeat_interleave: repeats must not be negative, got {}", repeats);
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "repeat_interleave", x.loc);
    const detail::RecordedParts parts(x.loc);
    if (x.tensor.dim() == 0) return repeat_interleave(reshape(x, {1}), repeats, 0);
    Shape shape = x.tensor.shape(), wide = shape;
    if (__builtin_mul_overflow(shape[d], repeats, &shape[d])) {
        fail<OutOfMemory>(x.loc, "repeat_interleave: {} copies of {} elements are larger than any memory", repeats, x->sizes[d]);
    }
    if (wide.rank() < kMaxRank) {
        wide.insert(d + 1, repeats);
        return reshape(expand(unsqueeze(x, d + 1), wide), shape).contiguous();
    }
    const TensorOptions options(int64, x->device);
    return index_select(x, d, reshape(expand(unsqueeze(arange(x->sizes[d], options), 1), {x->sizes[d], repeats}), {-1}));
}

namespace {

void check_repeats(const Tensor& repeats, const Loc& loc) {
    const DType dtype = repeats.dtype();
    if (dtype != int64 && dtype != int32) {
        fail<DTypeError>(loc, "repeat_interleave: repeats must be int64 or int32, not {}", name(dtype));
    }
}

// Returns each position of repeats (1-d) as often as the number there says.
Tensor repeated_indices(const Tensor& repeats, const Loc& loc) {
    check_repeats(repeats, loc);
    detail::begin_op("repeated_indices", repeats.impl(), loc);
    const CallerScope caller(loc);
    return unrecorded_op(repeated_indices_op, loc, {&repeats}, [&] {
        const int64_t n = repeats.numel();
        const Tensor times = repeats.to(int64);
        if (n > 0 && amin(times).item<int64_t>() < 0) {
            fail<ValueError>(loc, "repeat_interleave: repeats must not be negative, got {}", amin(times).item<int64_t>());
        }
        const Tensor here = times.to(cpu).contiguous();
        int64_t sum = 0;
        for (int64_t i = 0; i < n; ++i) {
            if (__builtin_add_overflow(sum, here.data<int64_t>()[i], &sum)) {
                fail<OutOfMemory>(loc, "repeat_interleave: the repeats add up to more than any memory holds");
            }
        }
        const Tensor ends = cumsum(times, 0);
        const int64_t total = n > 0 ? ends[-1].item<int64_t>() : 0;
        return searchsorted(ends, arange(total, {int64, repeats.device()}), /*right=*/true);
    });
}

}  // namespace

Tensor repeat_interleave(In x, In repeats) {
    detail::check_defined(x, "repeat_interleave");
    const detail::RecordedParts parts(x.loc);
    return repeat_interleave(reshape(x, {-1}), repeats, 0);
}

Tensor repeat_interleave(In x, In repeats, Dim dim) {
    detail::check_defined(x, "repeat_interleave");
    detail::check_defined(repeats, "repeat_interleave");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "repeat_interleave", x.loc);
    check_repeats(repeats.tensor, x.loc);
    detail::check_same_device("repeat_interleave", x.tensor, repeats.tensor, x.loc);
    const int64_t n = x.tensor.dim() == 0 ? 1 : x->sizes[d];
    if (repeats.tensor.dim() > 1 || (repeats->numel != n && repeats->numel != 1)) {
        fail<ShapeError>(x.loc, "repeat_interleave: repeats of shape {} for {} elements", repeats.tensor.shape(), n);
    }
    const detail::RecordedParts parts(x.loc);
    Tensor times = repeats.tensor.dim() == 1 ? repeats.tensor : reshape(repeats, {1});
    if (times.numel() != n) times = expand(times, {n});
    const Tensor index = repeated_indices(times, x.loc);
    return index_select(x.tensor.dim() == 0 ? reshape(x, {1}) : x.tensor, d, index);
}

Tensor rot90(In x, int k, const Dims& dims) {
    detail::check_defined(x, "rot90");
    const int rank = x.tensor.dim();
    if (dims.rank() != 2 || rank < 2) fail<ShapeError>(x.loc, "rot90: needs two dimensions, got {} of shape {}", dims, x.tensor.shape());
    const int a = detail::wrap_dim(dims[0], rank, "rot90", x.loc), b = detail::wrap_dim(dims[1], rank, "rot90", x.loc);
    if (a == b) fail<ShapeError>(x.loc, "rot90: needs two different dimensions, got {}", dims);
    const detail::RecordedParts parts(x.loc);
    switch ((k % 4 + 4) % 4) {
        case 1: return transpose(flip(x, {b}), a, b).contiguous();
        case 2: return flip(x, {a, b});
        case 3: return transpose(flip(x, {a}), a, b).contiguous();
        default: return clone(x);
    }
}

Tensor fliplr(In x) {
    detail::check_defined(x, "fliplr");
    if (x.tensor.dim() < 2) fail<ShapeError>(x.loc, "fliplr: needs at least two dimensions, got shape {}", x.tensor.shape());
    return flip(x, {1});
}
Tensor flipud(In x) {
    detail::check_defined(x, "flipud");
    if (x.tensor.dim() < 1) fail<ShapeError>(x.loc, "flipud: needs at least one dimension, got shape {}", x.tensor.shape());
    return flip(x, {0});
}

// --- Diagonals -------------------------------------------------------------------------------------------------------------

Tensor diag_embed(In x, int64_t offset) {
    detail::check_defined(x, "diag_embed");
    const int rank = x.tensor.dim();
    if (rank == 0) fail<ShapeError>(x.loc, "diag_embed: a 0-d tensor has no diagonal");
    const detail::RecordedParts parts(x.loc);
    const int64_t n = x->sizes[rank - 1];
    if (offset > INT64_MAX / 4 || offset < -INT64_MAX / 4) {
        fail<OutOfMemory>(x.loc, "diag_embed: a matrix with elements {} places off its diagonal is larger than any memory", offset);
    }
    const int64_t width = std::abs(offset), size = n + width;
    if (width > 1'000'000) {  // check this first: the parts below are smaller, and may fill all memory before the result asks for its own
        Shape shape = x.tensor.shape();
        shape[rank - 1] = size;
        shape.push_back(size);
        empty(shape, {x->dtype, x->device});
    }
    // Row i of the matrix has element i (or i - |offset|) of x in the column of the diagonal.
    const Tensor rows = pad(unsqueeze(x, -1), {0, 0, offset < 0 ? width : 0, offset < 0 ? 0 : width});
    const TensorOptions options(int64, x->device);
    const Tensor at = arange(size, options), is_on = eq(unsqueeze(at, 1) + offset, at);
    return where(is_on, rows, 0).to(x->dtype);
}

Tensor diag(In x, int64_t offset) {
    detail::check_defined(x, "diag");
    if (x.tensor.dim() != 1 && x.tensor.dim() != 2) {
        fail<ShapeError>(x.loc, "diag: needs one or two dimensions, got shape {}", x.tensor.shape());
    }
    const detail::RecordedParts parts(x.loc);
    return x.tensor.dim() == 1 ? diag_embed(x, offset) : clone(diagonal(x, offset));
}

Tensor trace(In x) {
    detail::check_defined(x, "trace");
    if (x.tensor.dim() != 2) fail<ShapeError>(x.loc, "trace: needs a matrix, got shape {}", x.tensor.shape());
    const detail::RecordedParts parts(x.loc);
    return sum(diagonal(x));
}

// --- Combined ----------------------------------------------------------------------------------------------------------------

std::vector<Tensor> meshgrid(TensorList tensors, const char* indexing) {
    const std::string word = detail::checked_word("meshgrid", indexing, tensors.loc);
    if (word != "ij" && word != "xy") fail<ValueError>(tensors.loc, "meshgrid: indexing is \"ij\" or \"xy\", not \"{}\"", word);
    if (tensors.size == 0) fail<ValueError>(tensors.loc, "meshgrid: needs at least one tensor");
    Shape shape;
    for (const Tensor& t : tensors) {
        detail::check_defined(In(t, tensors.loc), "meshgrid");
        if (t.dim() > 1) fail<ShapeError>(tensors.loc, "meshgrid: needs tensors of one dimension, got shape {}", t.shape());
        shape.push_back(t.numel(), tensors.loc);
    }
    const detail::RecordedParts parts(tensors.loc);
    std::vector<Tensor> grid;
    for (std::size_t i = 0; i < tensors.size; ++i) {
        Shape own = shape;
        for (int d = 0; d < shape.rank(); ++d) own[d] = d == static_cast<int>(i) ? shape[d] : 1;
        const Tensor all = expand(reshape(tensors[i], own), shape);
        grid.push_back(word == "xy" && tensors.size > 1 ? transpose(all, 0, 1) : all);
    }
    return grid;
}

Tensor cartesian_prod(TensorList tensors) {
    for (const Tensor& t : tensors) {
        detail::check_defined(In(t, tensors.loc), "cartesian_prod");
        if (t.dim() != 1) fail<ShapeError>(tensors.loc, "cartesian_prod: needs tensors of one dimension, got shape {}", t.shape());
    }
    if (tensors.size == 1) return tensors[0];
    const std::vector<Tensor> grid = meshgrid(tensors);
    const detail::RecordedParts parts(tensors.loc);
    std::vector<Tensor> columns;
    for (const Tensor& t : grid) columns.push_back(reshape(t, {-1}));
    return stack(columns, 1);
}

namespace {

// Checks the list in a loop of its own, before any part begins: so messages and the placement log name the op itself, and a list
// with an undefined tensor at its end records nothing.
void check_list(const char* op, const TensorList& tensors) {
    for (const Tensor& t : tensors) detail::check_defined(In(t, tensors.loc), op);
}

// Widens each by atleast_1d, 2d or 3d.
std::vector<Tensor> widened_by(Tensor (*widen)(In), const TensorList& tensors) {
    std::vector<Tensor> wide;
    for (const Tensor& t : tensors) wide.push_back(widen(In(t, tensors.loc)));
    return wide;
}

}  // namespace

Tensor vstack(TensorList tensors) {
    check_list("vstack", tensors);
    const detail::RecordedParts parts(tensors.loc);
    return detail::cat_of("vstack", TensorList(widened_by(atleast_2d, tensors), tensors.loc), 0);
}

Tensor hstack(TensorList tensors) {
    check_list("hstack", tensors);
    const detail::RecordedParts parts(tensors.loc);
    const std::vector<Tensor> wide = widened_by(atleast_1d, tensors);
    return detail::cat_of("hstack", TensorList(wide, tensors.loc), !wide.empty() && wide[0].dim() == 1 ? 0 : 1);
}

Tensor dstack(TensorList tensors) {
    check_list("dstack", tensors);
    const detail::RecordedParts parts(tensors.loc);
    return detail::cat_of("dstack", TensorList(widened_by(atleast_3d, tensors), tensors.loc), 2);
}

Tensor diff(In x, int n, Dim dim) {
    detail::check_defined(x, "diff");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "diff", x.loc);
    if (x.tensor.dim() == 0) fail<ShapeError>(x.loc, "diff: a 0-d tensor has no neighbours");
    if (n < 0) fail<ValueError>(x.loc, "diff: n must not be negative, got {}", n);
    const detail::RecordedParts parts(x.loc);
    Tensor y = x.tensor;
    for (int k = 0; k < n && y.size(d) > 0; ++k) {
        const int64_t left = y.size(d) - 1;
        const Tensor next = narrow(y, d, 1, left), here = narrow(y, d, 0, left);
        y = y.dtype() == bool_ ? ne(next, here) : next - here;
    }
    return y;
}

Tensor cross(In a, In b, Dim dim) {
    const detail::ComposedOp composed("cross");
    detail::check_defined(a, "cross");
    detail::check_defined(b, "cross");
    if (a.tensor.dim() != b.tensor.dim()) {
        fail<ShapeError>(a.loc, "cross: shapes {} and {} differ in their number of dimensions", a.tensor.shape(), b.tensor.shape());
    }
    const int d = detail::wrap_dim(dim, a.tensor.dim(), "cross", a.loc);
    if (a.tensor.dim() == 0 || a->sizes[d] != 3 || b->sizes[d] != 3) {
        fail<ShapeError>(a.loc, "cross: needs 3 elements along dimension {}, got shapes {} and {}", dim, a.tensor.shape(), b.tensor.shape());
    }
    const detail::RecordedParts parts(a.loc);
    if (const RoundedOnce once({&a.tensor, &b.tensor}); once.is_needed()) {
        const Tensor p = once.wide(a.tensor), q = once.wide(b.tensor);
        return once.result(cross(In(p, a.loc), In(q, a.loc), d));
    }
    const auto moved = [&](const In& t, int64_t by) { return roll(t, {by}, {d}); };
    return moved(a, -1) * moved(b, -2) - moved(a, -2) * moved(b, -1);
}

Tensor kron(In a, In b) {
    detail::check_defined(a, "kron");
    detail::check_defined(b, "kron");
    const int rank = std::max(a.tensor.dim(), b.tensor.dim());
    if (rank > kMaxRank / 2) fail<ShapeError>(a.loc, "kron: shapes {} and {} have more than 4 dimensions", a.tensor.shape(), b.tensor.shape());
    const detail::RecordedParts parts(a.loc);
    Shape of_a, of_b, shape;  // a's dimensions, each before b's
    for (int d = 0; d < rank; ++d) {
        const int at_a = d - (rank - a.tensor.dim()), at_b = d - (rank - b.tensor.dim());
        const int64_t m = at_a < 0 ? 1 : a->sizes[at_a], n = at_b < 0 ? 1 : b->sizes[at_b];
        of_a.push_back(m);
        of_a.push_back(1);
        of_b.push_back(1);
        of_b.push_back(n);
        int64_t size = 0;
        if (__builtin_mul_overflow(m, n, &size)) {
            fail<OutOfMemory>(a.loc, "kron: of shapes {} and {} it is larger than any memory", a.tensor.shape(), b.tensor.shape());
        }
        shape.push_back(size);
    }
    return reshape(reshape(a, of_a) * reshape(b, of_b), shape);
}

Tensor vander(In x, int64_t columns, bool increasing) {
    detail::check_defined(x, "vander");
    if (x.tensor.dim() != 1) fail<ShapeError>(x.loc, "vander: needs one dimension, got shape {}", x.tensor.shape());
    if (columns < -1) fail<ValueError>(x.loc, "vander: the number of columns must not be negative, got {}", columns);
    const detail::RecordedParts parts(x.loc);
    const int64_t n = columns == -1 ? x->numel : columns;
    const DType dtype = is_floating(x->dtype) ? x->dtype : int64;
    Tensor powers = arange(n, {dtype, x->device});
    if (!increasing) powers = static_cast<double>(n - 1) - powers;
    return pow(unsqueeze(x.tensor.to(dtype), 1), powers.to(dtype));
}

// --- In other places ---------------------------------------------------------------------------------------------------------

Tensor diagflat(In x, int64_t offset) {
    detail::check_defined(x, "diagflat");
    const detail::RecordedParts parts(x.loc);
    return diag(reshape(x, {-1}), offset);
}

Tensor block_diag(TensorList tensors) {
    check_list("block_diag", tensors);
    const detail::RecordedParts parts(tensors.loc);
    std::vector<Tensor> blocks;
    int64_t width = 0, begin = 0;
    for (const Tensor& t : tensors) {
        if (t.dim() > 2) fail<ShapeError>(tensors.loc, "block_diag: a tensor of shape {} is no matrix", t.shape());
        blocks.push_back(atleast_2d(t));
        width += blocks.back().size(1);
    }
    if (blocks.empty()) return zeros({1, 0});
    for (Tensor& block : blocks) {
        const int64_t own = block.size(1);
        block = pad(block, {begin, width - begin - own});
        begin += own;
    }
    return cat(blocks, 0);
}

Tensor column_stack(TensorList tensors) {
    check_list("column_stack", tensors);
    const detail::RecordedParts parts(tensors.loc);
    std::vector<Tensor> columns;
    for (const Tensor& t : tensors) {
        columns.push_back(t.dim() > 1 ? t : reshape(t, {t.numel(), 1}));
    }
    return detail::cat_of("column_stack", TensorList(columns, tensors.loc), 1);
}

Tensor take_along_dim(In x, In index, Dim dim) {
    const detail::ComposedOp composed("take_along_dim");
    detail::check_defined(x, "take_along_dim");
    detail::check_defined(index, "take_along_dim");
    const int rank = x.tensor.dim();
    if (rank != index.tensor.dim()) {
        fail<ShapeError>(x.loc, "take_along_dim: x {} and index {} need equally many dimensions", x.tensor.shape(), index.tensor.shape());
    }
    const int d = detail::wrap_dim(dim, rank, "take_along_dim", x.loc);
    const detail::RecordedParts parts(x.loc);
    if (rank == 0) return gather(x, 0, index);
    Shape of_x = x.tensor.shape(), of_index = index.tensor.shape();
    of_x[d] = of_index[d] = 1;
    Shape wide = broadcast_shapes(of_x, of_index, "take_along_dim", x.loc), wide_index = wide;
    wide[d] = x->sizes[d];
    wide_index[d] = index->sizes[d];
    return gather(expand(x, wide), d, expand(index, wide_index));
}

Tensor take_along_dim(In x, In index) {
    const detail::ComposedOp composed("take_along_dim");
    detail::check_defined(x, "take_along_dim");
    detail::check_defined(index, "take_along_dim");
    const detail::RecordedParts parts(x.loc);
    return gather(reshape(x, {-1}), 0, reshape(index, {-1}));
}

// Checks index_copy's operands, and returns for each slice of x the index of the slice of src that is put there.
static Tensor index_of_copied(const char* op, const In& x, int dim, const In& index, const In& src) {
    for (const In* t : {&x, &index, &src}) detail::check_defined(*t, op);
    const int rank = x.tensor.dim(), d = detail::wrap_dim(dim, rank, op, x.loc);
    Shape expected = x.tensor.shape();
    if (rank > 0) expected[d] = index->numel;
    const bool fits = src.tensor.shape() == expected || (rank == 0 && src.tensor.shape() == Shape(1));
    if (index.tensor.dim() > 1 || !fits || (rank == 0 && index->numel != 1)) {
        fail<ShapeError>(x.loc, "{}: x {} and index {} need a src of shape {}, got {}", op, x.tensor.shape(), index.tensor.shape(), expected,
                         src.tensor.shape());
    }
    Shape along;
    for (int k = 0; k < rank; ++k) along.push_back(k == d ? index->numel : 1);
    return expand(reshape(index, along), expected);
}

Tensor index_copy(In x, Dim dim, In index, In src) {
    const detail::ComposedOp composed("index_copy");
    const detail::RecordedParts parts(x.loc);
    const Tensor places = index_of_copied("index_copy", x, dim, index, src);
    return scatter(x, dim, places, reshape(src, places.shape()));
}

Tensor masked_scatter(In x, In mask, In src) {
    const char* const op = "masked_scatter";
    for (const In* t : {&x, &mask, &src}) detail::check_defined(*t, op);
    if (mask->dtype != bool_) fail<DTypeError>(x.loc, "{}: the mask must hold bools, not {}", op, name(mask->dtype));
    if (src->dtype != x->dtype) fail<DTypeError>(x.loc, "{}: x is {}, src is {}", op, name(x->dtype), name(src->dtype));
    const Shape shape = broadcast_shapes(x.tensor.shape(), mask.tensor.shape(), op, x.loc);
    const detail::RecordedParts parts(x.loc);
    const Tensor holds = expand(mask, shape);
    const Tensor place = clamp_min(cumsum(reshape(holds, {-1}), 0) - 1, 0);
    if (!detail::is_tracing()) {  // in a graph gather() checks this
        const detail::PauseRecording pause;
        const int64_t needed = sum(holds).item<int64_t>();
        if (needed > src->numel) fail<ShapeError>(x.loc, "{}: the mask holds {} times, src has {} elements", op, needed, src->numel);
    }
    Tensor values = reshape(src, {-1});
    if (src->numel == 0) values = cat({values, zeros({1}, {x->dtype, x->device})});  // gathered where the mask does not hold
    return where(holds, reshape(gather(values, 0, place), shape), x);
}

// --- Methods -----------------------------------------------------------------------------------------------------------

Tensor Tensor::tile(const Shape& times, Loc loc) const { return tapir::tile(In(*this, loc), times); }
Tensor Tensor::repeat_interleave(int64_t repeats, Loc loc) const { return tapir::repeat_interleave(In(*this, loc), repeats); }
Tensor Tensor::repeat_interleave(int64_t repeats, Dim dim, Loc loc) const { return tapir::repeat_interleave(In(*this, loc), repeats, dim); }
Tensor Tensor::repeat_interleave(const Tensor& repeats, Loc loc) const { return tapir::repeat_interleave(In(*this, loc), In(repeats, loc)); }
Tensor Tensor::repeat_interleave(const Tensor& repeats, Dim dim, Loc loc) const {
    return tapir::repeat_interleave(In(*this, loc), In(repeats, loc), dim);
}
Tensor Tensor::index_copy(Dim dim, const Tensor& index, const Tensor& src, Loc loc) const {
    return tapir::index_copy(In(*this, loc), dim, In(index, loc), In(src, loc));
}
Tensor& Tensor::index_copy_(Dim dim, const Tensor& index, const Tensor& src, Loc loc) {
    const detail::RecordedParts parts(loc);
    const Tensor places = index_of_copied("index_copy_", In(*this, loc), dim, In(index, loc), In(src, loc));
    return scatter_(dim, places, src, loc);
}
Tensor Tensor::diag(int64_t offset, Loc loc) const { return tapir::diag(In(*this, loc), offset); }
Tensor Tensor::diff(int n, Dim dim, Loc loc) const { return tapir::diff(In(*this, loc), n, dim); }
Tensor Tensor::trace(Loc loc) const { return tapir::trace(In(*this, loc)); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

TAPIR_DATA_SIZED_FORM(repeated_indices, 1, detail::NoAttrs, shaped(ranked(t[0], 1, 1), {unknown()}, DType::int64), 1,
                      repeated_indices(x[0], Loc::current()), static_cast<void>(f));

}  // namespace tapir
