// Indexing as ops that a graph holds. A graph cannot know positions in memory, which index.cpp keeps: here each index
// is an op of its own. Integers, slices, None and 0-d tensors come first and leave a view, or slices of one, and the number of the
// dimension that each other tensor indexes; a mask makes one dimension of those that it covers, and indexes its positions in
// it.
#include <vector>

#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/index/index_traced_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_scatter.h"

namespace tapir {
namespace {

using std::int64_t;

Tensor in_one_dim(const Tensor& t) { return t.dim() == 1 ? t : reshape(t, {-1}); }

class Picker {
 public:
    Picker(const Tensor& x, const Index* indices, std::size_t count) : x_(x), view_(x) {
        int whole = x.dim();
        for (std::size_t i = 0; i < count; ++i) whole -= dims_taken(indices[i]);
        bool expanded = false;
        for (std::size_t i = 0; i < count; ++i) {
            if (indices[i].kind == Index::Kind::ellipsis) {
                keep(whole);
                expanded = true;
            } else {
                add(indices[i]);
            }
        }
        if (!expanded) keep(whole);
        for (int d = 0; d < view_.dim(); ++d) {
            if (at_[static_cast<std::size_t>(d)].defined()) indexed_.push_back(d);
        }
        for (int d = 0; d < view_.dim(); ++d) {
            if (!at_[static_cast<std::size_t>(d)].defined()) others_.push_back(d);
        }
    }

    Tensor read() const {
        if (indexed_.empty()) return view_.is_same(x_) ? reshape(x_, x_.shape()) : view_;
        const Tensor positions = this->positions();
        const Tensor picked = index_select(lines(), line_dim(), in_one_dim(positions));
        if (indexed_.rank() == 1) return positions.dim() == 1 ? picked : reshape(picked, region_shape(positions));
        return placed(positions.dim() == 1 ? picked : reshape(picked, front_shape(positions)), positions.dim());
    }

    Tensor with(const Tensor& value, bool accumulate) const {
        Tensor now = indexed_.empty() ? overwritten(value, accumulate) : written(value, accumulate);
        for (std::size_t i = steps_.size(); i-- > 0;) now = put_back(steps_[i], now);
        return now;
    }

 private:
    enum class Way { select, slice, reshape, pick };
    struct Step {
        Way way;
        Tensor before;  // the tensor that it was taken from
        int dim = 0;
        int64_t index = 0;
        Slice range = {};
        Tensor place = {};  // of pick: (1,)
    };

    static int dims_taken(const Index& index) {
        switch (index.kind) {
            case Index::Kind::none:
            case Index::Kind::ellipsis: return 0;
            case Index::Kind::tensor: return index.tensor.dtype() == bool_ ? index.tensor.dim() : 1;
            default: return 1;
        }
    }

    void keep(int dims) { at_.resize(at_.size() + static_cast<std::size_t>(dims)); }
    int dim() const { return static_cast<int>(at_.size()); }

    void take(Step step, Tensor view) {
        steps_.push_back(std::move(step));
        view_ = std::move(view);
    }

    void add(const Index& index) {
        const int d = dim();
        switch (index.kind) {
            case Index::Kind::integer: return take({Way::select, view_, d, index.slice.start}, select(view_, d, index.slice.start));
            case Index::Kind::slice: {
                const Slice& range = index.slice;
                keep(1);
                const bool is_whole = range.start == Slice::kOpen && range.stop == Slice::kOpen && range.step == 1;
                if (!is_whole) take({Way::slice, view_, d, 0, range}, slice(view_, d, range));
                return;
            }
            case Index::Kind::none: keep(1); return take({Way::reshape, view_}, unsqueeze(view_, d));
            default: {
                const Tensor there = index.tensor.to(view_.device());
                return there.dtype() == bool_ ? add_mask(there) : add_integers(there);
            }
        }
    }

    void add_integers(const Tensor& t) {
        const int d = dim();
        if (t.dim() > 0) return at_.push_back(t);
        const Tensor place = reshape(t, {1});
        Tensor picked = select(index_select(view_, d, place), d, 0);
        take({Way::pick, view_, d, 0, {}, place}, std::move(picked));
    }

    void add_mask(const Tensor& mask) {
        const int d = dim();
        if (mask.dim() != 1) {
            Shape merged = view_.shape();
            for (int k = 0; k < mask.dim(); ++k) merged.erase(d);
            merged.insert(d, mask.numel());
            take({Way::reshape, view_}, reshape(view_, merged));
        }
        mask_ = in_one_dim(mask);
        at_.push_back(mask_);
    }

    int64_t size(int d) const { return view_.size(d); }
    Tensor index_of(int d) const {
        const Tensor& t = at_[static_cast<std::size_t>(d)];
        return t.dtype() == bool_ ? select(nonzero(t), 1, 0) : t;
    }
    // One index tensor indexes its own dimension; several index the first of `lines`, which is made of theirs.
    int line_dim() const { return indexed_.rank() == 1 ? static_cast<int>(indexed_.raw(0)) : 0; }

    // Returns the positions along line_dim().
    Tensor positions() const {
        if (indexed_.rank() == 1) return index_of(static_cast<int>(indexed_.raw(0)));
        Tensor sum;
        int64_t stride = 1;
        for (int i = indexed_.rank(); i-- > 0;) {
            const int d = static_cast<int>(indexed_.raw(i));
            const Tensor index = index_of(d);
            // index * stride; picking from a table checks the index, too, and lets negative ones count from the end.
            const Tensor table = arange(0, size(d) * stride, stride, {int64, view_.device()});
            Tensor steps = index_select(table, 0, in_one_dim(index));
            if (index.dim() != 1) steps = reshape(steps, index.shape());
            sum = sum.defined() ? sum + steps : steps;
            stride *= std::max<int64_t>(size(d), 1);
        }
        return sum;
    }

    // Returns the view with the dimensions that several tensors index as the first.
    Tensor lines() const {
        if (indexed_.rank() == 1) return view_;
        Shape shape(1);
        for (const int64_t d : indexed_) shape.raw(0) *= size(static_cast<int>(d));
        for (const int64_t d : others_) shape.push_back(size(static_cast<int>(d)));
        return reshape(permute(view_, front_order()), shape);
    }
    Dims front_order() const {
        Dims order = indexed_;
        for (const int64_t d : others_) order.push_back(d);
        return order;
    }
    Tensor of_lines(const Tensor& lines) const {
        if (indexed_.rank() == 1) return lines;
        const Dims order = front_order();
        Shape shape;
        Dims back = order;
        for (int i = 0; i < order.rank(); ++i) {
            shape.push_back(size(static_cast<int>(order.raw(i))));
            back.raw(static_cast<int>(order.raw(i))) = i;
        }
        return permute(reshape(lines, shape), back);
    }

    // Returns the place of the positions' dimensions in the result.
    int place() const {
        const int first = static_cast<int>(indexed_.raw(0)), last = static_cast<int>(indexed_.raw(indexed_.rank() - 1));
        return last - first + 1 == indexed_.rank() ? first : 0;
    }
    Shape region_shape(const Tensor& positions) const {
        Shape shape;
        for (const int64_t d : others_) shape.push_back(size(static_cast<int>(d)));
        for (int d = 0; d < positions.dim(); ++d) shape.insert(place() + d, positions.size(d));
        return shape;
    }
    Shape front_shape(const Tensor& positions) const {
        Shape shape = positions.shape();
        for (const int64_t d : others_) shape.push_back(size(static_cast<int>(d)));
        return shape;
    }
    // Moves the positions' dimensions from the front to their place.
    Tensor placed(const Tensor& t, int dims) const {
        if (place() == 0) return t;
        Dims order;
        for (int d = dims; d < t.dim(); ++d) order.push_back(d);
        for (int d = 0; d < dims; ++d) order.insert(place() + d, d);
        return permute(t, order);
    }
    Tensor in_front(const Tensor& t, int dims) const {
        if (place() == 0) return t;
        Dims order;
        for (int d = 0; d < dims; ++d) order.push_back(place() + d);
        for (int d = 0; d < t.dim(); ++d) {
            if (d < place() || d >= place() + dims) order.push_back(d);
        }
        return permute(t, order);
    }

    Tensor overwritten(const Tensor& value, bool accumulate) const {
        if (accumulate) return view_ + value;
        return value.shape() == view_.shape() ? value : expand(value, view_.shape());
    }

    // Returns the mask, beside the dimensions that come after the one that it indexes.
    Tensor mask_of_lines() const {
        Shape shape(size(line_dim()));
        for (int d = line_dim() + 1; d < view_.dim(); ++d) shape.push_back(1);
        return shape.rank() == 1 ? mask_ : reshape(mask_, shape);
    }

    Tensor written(const Tensor& value, bool accumulate) const {
        const bool is_masked = mask_.defined() && indexed_.rank() == 1;  // the number of positions differs from run to run
        const int after = view_.dim() - 1 - line_dim();
        if (is_masked && (value.dim() <= after || value.size(value.dim() - 1 - after) == 1)) {
            return where(mask_of_lines(), accumulate ? view_ + value : value, view_);
        }
        const Tensor positions = this->positions();
        const Shape region = region_shape(positions);
        Tensor values = value.shape() == region ? value : expand(value, region);
        if (indexed_.rank() > 1) values = in_front(values, positions.dim());
        if (positions.dim() != 1) {
            Shape flat;
            for (int d = 0; d < line_dim(); ++d) flat.push_back(values.size(d));
            flat.push_back(positions.numel());
            for (int d = line_dim() + positions.dim(); d < values.dim(); ++d) flat.push_back(values.size(d));
            values = reshape(values, flat);
        }
        const Tensor place = in_one_dim(positions);
        if (is_masked && !accumulate) {  // all positions differ
            return index_add(where(mask_of_lines(), 0, view_), line_dim(), place, values);
        }
        const Tensor lines = this->lines();
        return of_lines(accumulate ? index_add(lines, line_dim(), place, values) : index_copy(lines, line_dim(), place, values));
    }

    static Tensor put_back(const Step& step, const Tensor& part) {
        switch (step.way) {
            case Way::select: return select_scatter(step.before, part, step.dim, step.index);
            case Way::slice: return slice_scatter(step.before, part, step.dim, step.range);
            case Way::reshape: return reshape(part, step.before.shape());
            default: return index_copy(step.before, step.dim, step.place, unsqueeze(part, step.dim));
        }
    }

    Tensor x_, view_;
    std::vector<Step> steps_;
    std::vector<Tensor> at_;  // for each dimension of the view, the tensor that indexes it
    Dims indexed_, others_;
    Tensor mask_;  // as one dimension; the last of several
};

}  // namespace

Tensor traced_index(const Tensor& x, const Index* indices, std::size_t count, const Loc& loc) {
    const detail::ComposedOp composed("index");
    const detail::RecordedParts parts(loc);
    return Picker(x, indices, count).read();
}

Tensor traced_index_put(const Tensor& x, const Index* indices, std::size_t count, const Tensor& value, bool accumulate, const Loc& loc) {
    const detail::ComposedOp composed("index_put");
    const detail::RecordedParts parts(loc);
    return Picker(x, indices, count).with(value.to(x.device(), x.dtype()), accumulate);
}

}  // namespace tapir
