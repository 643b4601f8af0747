// x[...], x.index({...}) and x.index_put_({...}, value).
//
// An index is resolved to a Region: sizes, strides and an offset, as for a view, and, if tensors are among the
// indices, one table of positions made of all of them. NumPy and PyTorch sometimes put the dimensions of index tensors in
// different places (integers between index tensors): this follows PyTorch, where integers select first.
#include <algorithm>

#include "tapir/autograd/op_form.h"
#include "tapir/core/broadcast_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/batch/rows_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/index/index_traced_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_impl.h"

namespace tapir {
namespace {

using std::int64_t;

void index_rule(Backward& b);
void index_place_rule(Backward& b);
void index_put_rule(Backward& b);
void index_put_add_rule(Backward& b);

Tensor index_place(const Tensor& g, const Shape& whole, const Region& region, const Tensor& positions, const Loc& loc);

}  // namespace

TAPIR_OP(index, index_rule, "Elements picked by index tensors and masks.", TAPIR_SAMPLE("f(5,3) i(4)<5", x[0][x[1]]),
         TAPIR_SAMPLE("f(5,3) i(2,2)<5", x[0][x[1]]), TAPIR_SAMPLE("f(4,3) b(4)", x[0][x[1]]), TAPIR_SAMPLE("f(4,3) b(4,3)", x[0][x[1]]),
         TAPIR_SAMPLE("f(4,3) b(4,3)", masked_select(x[0], x[1])), TAPIR_SAMPLE("f(4,3) b(3)", masked_select(x[0], x[1])),
         TAPIR_SAMPLE("f(3) b(4,1)", masked_select(x[0], x[1])), TAPIR_SAMPLE_AS("f(4,5) i(3)<5", "x[0][:, x[1]]", x[0].index({Slice(), x[1]})),
         TAPIR_SAMPLE_AS("f(4,5) i(3)<4 i(3)<5", "x[0][x[1], x[2]]", x[0].index({x[1], x[2]})),
         TAPIR_SAMPLE_AS("f(2,4,5) i(3,1)<4 i(2)<5", "x[0][:, x[1], x[2]]", x[0].index({Slice(), x[1], x[2]})),
         TAPIR_SAMPLE_AS("f(4,3,5) i(2)<4 i(2)<5", "x[0][x[1], :, x[2]]", x[0].index({x[1], Slice(), x[2]})),
         TAPIR_SAMPLE_AS("f(4,3,5) i(2)<5", "x[0][1, :, x[1]]", x[0].index({1, Slice(), x[1]})),
         TAPIR_SAMPLE_AS("f(4,3,5) i(2)<3", "x[0][..., x[1], None, 1:4:2]", x[0].index({Ellipsis, x[1], None, Slice(1, 4, 2)})),
         TAPIR_SAMPLE_AS("f(4,3,5) b(3,5)", "x[0][:, x[1]]", x[0].index({Slice(), x[1]})),
         TAPIR_SAMPLE_AS("f(3,3,2) b(3) i(1)<3", "x[0][x[2], x[1]]", x[0].index({x[2], x[1]})),
         TAPIR_SAMPLE_AS("f(4,3) i()<4", "x[0][x[1]]", x[0].index({x[1]})));
TAPIR_OP(index_place, index_place_rule, "Zeros with values added where index would read: its gradient.",
         TAPIR_SAMPLE_AS("f(3,2) i(3)<4", "", index_place(x[0], {4, 2}, Region{Shape(2), Shape(1), 0, 0}, x[1] * 2, Loc::current())));
TAPIR_OP(index_put, index_put_rule, "Overwrites what an index picks.",
         TAPIR_SAMPLE_AS("f(4,3) f(3)", "x[0].clone().index_put_((torch.tensor(1),), x[1])", x[0].clone().index_put_({1}, x[1])),
         TAPIR_SAMPLE_AS("f(4,3) f(2,1)", "torch.cat((x[0][:1], x[1].expand(2, 3), x[0][3:]))", x[0].clone().index_put_({Slice(1, 3)}, x[1])),
         TAPIR_SAMPLE_AS("f(4,3) f()", "torch.cat((x[0][:, :2], x[1].expand(4, 1)), 1)", x[0].clone().index_put_({Ellipsis, -1}, x[1])),
         TAPIR_SAMPLE_AS("f(4,3) b(4)", "x[0].clone().index_put_((x[1],), torch.tensor(0.5, dtype=x[0].dtype))",
                         x[0].clone().index_put_({x[1]}, 0.5)),
         TAPIR_SAMPLE_AS("f(4,3) b(4,3) f()", "x[0].clone().index_put_((x[1],), x[2])", x[0].clone().index_put_({x[1]}, x[2])),
         TAPIR_SAMPLE_AS("f(4,3) i(6)<4 f(6,3)", "", x[0].clone().index_put_({x[1]}, x[2])),
         TAPIR_SAMPLE_AS("f(4,3) i(2)<3 f(2)", "", x[0].clone().index_put_({Slice(1, 4), x[1]}, x[2])));
TAPIR_OP(index_put_add, index_put_add_rule, "Adds to what an index picks.",
         TAPIR_SAMPLE_AS("f(4,3) i(6)<4 f(6,3)", "x[0].index_put((x[1],), x[2], accumulate=True)", x[0].index_put({x[1]}, x[2], true)),
         TAPIR_SAMPLE_AS("f(4,3) i(6)<4 i(6)<3 f(6)", "x[0].index_put((x[1], x[2]), x[3], accumulate=True)",
                         x[0].index_put({x[1], x[2]}, x[3], true)),
         TAPIR_SAMPLE_AS("f(4,3) i(6)<4 f(3)", "x[0].index_put((x[1],), x[2], accumulate=True)", x[0].index_put({x[1]}, x[2], true)),
         TAPIR_SAMPLE_AS("f(4,3) b(4) f()", "x[0].index_put((x[1],), x[2], accumulate=True)", x[0].index_put({x[1]}, x[2], true)),
         TAPIR_SAMPLE_AS("f(4,3) i(5)<3", "x[0].t().index_put((x[1],), torch.tensor(2.0, dtype=x[0].dtype), accumulate=True)",
                         x[0].t().index_put({x[1]}, 2, true)),
         TAPIR_SAMPLE_AS("f(4,3) f(2,1)", "torch.cat((x[0][:1], x[0][1:3] + x[1], x[0][3:]))", x[0].index_put({Slice(1, 3)}, x[1], true)),
         TAPIR_SAMPLE_AS("f(4,5) i(6)<5 f(3,6)",
                         "torch.cat((x[0][:1], x[0][1:].index_put((torch.arange(x[2].shape[0])[:, None], x[1]), x[2], "
                         "accumulate=True)))",
                         x[0].index_put({Slice(1, None), x[1]}, x[2], true)));

// --- From indices to a region ----------------------------------------------------------------------------------------

namespace {

// The arguments of index_place().
struct PlaceCall {
    Shape whole;
    Region region{};
};

struct Plan {
    Region region;
    Tensor positions;      // undefined: the region is a view
    PickedIndex picked{};  // used instead if the kernel that reads them first checks them; `positions` are then the checked ones
};

class Planner {
 public:
    // to_read: the region is read first.
    Planner(const TensorImpl* x, const Shape& strides, bool to_read, const Loc& loc) : x_(x), strides_(strides), to_read_(to_read), loc_(loc) {}

    Plan make(const Index* indices, std::size_t count) {
        const int whole = x_->rank - dims_taken(indices, count);
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
        if (!positions_.defined()) return {plan_.region, {}};
        plan_.region.at = is_split_ || at_ < 0 ? 0 : at_;
        plan_.region.shape(positions_.shape());  // throws if there are more than 8 dimensions
        plan_.positions = std::move(positions_);
        return std::move(plan_);
    }

 private:
    const char* op() const { return to_read_ ? "index" : "index_put_"; }

    // Returns how many of x's dimensions the indices cover.
    int dims_taken(const Index* indices, std::size_t count) {
        int taken = 0, ellipses = 0;
        for (std::size_t i = 0; i < count; ++i) {
            switch (indices[i].kind) {
                case Index::Kind::integer:
                case Index::Kind::slice: ++taken; break;
                case Index::Kind::none: break;
                case Index::Kind::ellipsis: ++ellipses; break;
                case Index::Kind::tensor: {
                    const Tensor& t = indices[i].tensor;
                    if (!t.defined()) detail::fail_undefined(op(), loc_);
                    taken += t.dtype() == bool_ ? t.dim() : 1;
                    ++tensors_;
                }
            }
        }
        if (ellipses > 1) fail<IndexError>(loc_, "{}: only one Ellipsis can be given, got {}", op(), ellipses);
        if (taken > x_->rank) {
            fail<IndexError>(loc_, "{}: {} indices are too many for shape {}", op(), taken, shape());
        }
        return taken;
    }

    void keep(int dims) {
        for (; dims > 0; --dims, ++dim_) append(x_->sizes[dim_], strides_.raw(dim_));
    }
    void append(int64_t size, int64_t stride) {
        plan_.region.sizes.push_back(size, loc_);
        plan_.region.strides.push_back(stride, loc_);
    }

    void add(const Index& index) {
        switch (index.kind) {
            case Index::Kind::integer: return add_integer(index.slice.start);
            case Index::Kind::slice: return add_slice(index.slice);
            case Index::Kind::none: return append(1, 1);
            default: return add_tensor(index.tensor);
        }
    }

    void add_integer(int64_t wish) {
        const int64_t size = x_->sizes[dim_], i = wish < 0 ? wish + size : wish;
        if (i < 0 || i >= size) {
            fail<IndexError>(loc_, "{}: index {} is out of range for dimension {} of shape {}", op(), wish, dim_, shape());
        }
        plan_.region.offset += i * strides_.raw(dim_++);
    }

    void add_slice(const Slice& range) {
        if (range.step <= 0) fail<ValueError>(loc_, "{}: the step of a slice must be positive, got {}", op(), range.step);
        const auto [start, length] = taken_by(range, x_->sizes[dim_]);
        if (length > 0) plan_.region.offset += start * strides_.raw(dim_);
        append(length, length > 1 ? strides_.raw(dim_) * range.step : strides_.raw(dim_));
        ++dim_;
    }

    void add_tensor(const Tensor& t) {
        const Tensor part = t.dtype() == bool_ ? add_mask(t) : add_integers(t);
        const int place = plan_.region.sizes.rank();
        if (t.dim() > 0 || t.dtype() == bool_) {  // a 0-d integer tensor takes no place, like an integer
            is_split_ |= at_ >= 0 && at_ != place;
            at_ = place;
        }
        if (positions_.defined()) {
            broadcast_shapes(positions_.shape(), part.shape(), op(), loc_);
            const detail::UnrecordedPartsOf parts(loc_);
            positions_ = positions_ + part;
        } else {
            positions_ = std::move(part);
        }
    }

    // Lets a CPU tensor be an index into tensors of any device.
    Tensor on_device_of_x(const Tensor& t) const {
        const detail::UnrecordedPartsOf parts(loc_);
        return t.device() == cpu ? t.to(x_->device, /*non_blocking=*/false, loc_) : t;
    }

    // Multiplies by the stride, or, if there are no others, makes the stride the region's scale.
    Tensor add_integers(const Tensor& t) {
        if (t.device() != cpu) detail::check_same_device(op(), t, detail::alias(x_), loc_);
        const int64_t stride = strides_.raw(dim_);
        const int dim = dim_++;
        if (tensors_ == 1) {
            plan_.region.scale = stride;
            if (to_read_ && t.device() == x_->device) {
                plan_.picked = picked_index(op(), t, shape(), dim, loc_);
                return plan_.picked.checked;
            }
        }
        const detail::UnrecordedPartsOf parts(loc_);
        const Tensor checked = on_device_of_x(checked_index(op(), t, shape(), dim, loc_));
        return tensors_ == 1 || stride == 1 ? checked : checked * stride;
    }

    Tensor add_mask(const Tensor& mask) {
        if (mask.device() != cpu) detail::check_same_device(op(), mask, detail::alias(x_), loc_);
        Shape strides = mask.shape();
        for (int d = 0; d < mask.dim(); ++d, ++dim_) {
            if (mask.shape().raw(d) != x_->sizes[dim_]) {
                fail<IndexError>(loc_, "{}: a mask of shape {} does not fit dimension {} of shape {}", op(), mask.shape(), dim_, shape());
            }
            strides.raw(d) = strides_.raw(dim_);
        }
        plan_.region.distinct = tensors_ == 1;
        return on_device_of_x(mask_positions(mask.impl(), strides, loc_));
    }

    Shape shape() const { return {x_->sizes, x_->rank}; }

    const TensorImpl* x_;
    const Shape& strides_;
    const bool to_read_;
    const Loc& loc_;
    Plan plan_;
    int tensors_ = 0;  // among the indices
    Tensor positions_;
    int dim_ = 0;            // the next dimension of x
    int at_ = -1;            // position of the index tensors among the other dimensions
    bool is_split_ = false;  // they stand in several places
};

// True if a graph is traced: see index_traced.cpp.
bool is_traced() noexcept { return detail::is_tracing() && detail::is_watched(); }

Plan make_plan(const Tensor& x, const Index* indices, std::size_t count, bool to_read, const Loc& loc) {
    const Shape strides = x.strides();
    return Planner(x.impl(), strides, to_read, loc).make(indices, count);
}

// Returns the plan for a contiguous tensor of x's shape, which a rule needs.
Plan contiguous_plan(const Plan& plan, const Tensor& x, const Index* indices, std::size_t count, const Loc& loc) {
    if (x.is_contiguous()) return plan;
    const Shape strides = contiguous_strides(x.impl());
    return Planner(x.impl(), strides, /*to_read=*/false, loc).make(indices, count);
}

Tensor view_of(const Tensor& x, const Region& region) { return detail::make_view(x.impl(), region.sizes, region.strides, region.offset); }
Part part_of(const Region& region) { return {region.sizes, region.strides, region.offset}; }

Tensor read(const Tensor& x, const Plan& plan, const Loc& loc) {
    Tensor out = detail::make_empty(plan.region.shape(plan.positions.shape()), x.dtype(), x.device(), loc);
    if (plan.picked.given.defined()) {
        read_region(out, x.impl(), plan.region, plan.picked);
    } else {
        read_region(out, x.impl(), plan.region, plan.positions);
    }
    return out;
}

Tensor index_with(const Tensor& x, const Index* indices, std::size_t count, const Loc& loc);

// Returns x[indices], computed together with peers in batch(), or undefined. plan: that of this call alone. A mask picks a number of elements that is
// another in each item.
Tensor index_in_group(const Tensor& x, const Index* indices, std::size_t count, const Plan& plan, const Loc& loc) {
    std::vector<const Tensor*> operands = {&x};
    detail::BatchKey key = detail::batch_key(plan.region.at);
    for (std::size_t i = 0; i < count; ++i) {
        const Index& index = indices[i];
        key.add(index.kind);
        for (const int64_t number : {index.slice.start, index.slice.stop, index.slice.step}) key.add(number);
        if (index.kind != Index::Kind::tensor) continue;
        if (index.tensor.dtype() == bool_) return {};
        operands.push_back(&index.tensor);
    }
    const int rank = plan.positions.dim(), at = plan.region.at;
    const auto of_group = [&](const detail::Batched& in) {
        std::vector<Index> of_block(indices, indices + count);
        int k = 1;
        for (Index& index : of_block) {
            if (index.kind != Index::Kind::tensor) continue;
            index.tensor = in.is_block(k) ? detail::with_rank(in[k], rank) : in[k];
            ++k;
        }
        if (in.is_block(0)) {  // item i reads from x[i]
            Shape shape = {in.count()};
            while (shape.rank() <= rank) shape.push_back(1);
            of_block.insert(of_block.begin(), Index(reshape(arange(in.count(), {int64, x.device()}), shape), loc));
        }
        const Tensor y = index_with(in[0], of_block.data(), of_block.size(), loc);
        // Its dimensions of the index tensors, (items, ...), lie together. The first becomes y's first, the others go to their place in one item.
        const int from = make_plan(in[0], of_block.data(), of_block.size(), /*to_read=*/false, loc).region.at;
        Dims order = {from};
        std::vector<int> others;
        for (int d = 0; d < y.dim(); ++d) {
            if (d < from || d > from + rank) others.push_back(d);
        }
        for (int d = 0; d < at; ++d) order.push_back(others[static_cast<std::size_t>(d)]);
        for (int d = 0; d < rank; ++d) order.push_back(from + 1 + d);
        for (std::size_t d = static_cast<std::size_t>(at); d < others.size(); ++d) order.push_back(others[d]);
        return permute(In(y, loc), order);
    };
    const auto every = ~std::uint64_t{0};
    const detail::BatchCall call(index_op, loc, operands.data(), static_cast<int>(operands.size()), key, {.shared = every});
    return detail::in_group(call, of_group);
}

Tensor index_with(const Tensor& x, const Index* indices, std::size_t count, const Loc& loc) {
    detail::check_defined(In(x, loc), "index");
    const Plan plan = make_plan(x, indices, count, /*to_read=*/true, loc);
    if (is_traced()) return traced_index(x, indices, count, loc);
    const bool is_view = !plan.positions.defined();
    if (!is_view && detail::in_batch()) [[unlikely]] {
        if (Tensor y = index_in_group(x, indices, count, plan, loc); y.defined()) return y;
    }
    Tensor out = is_view ? detail::at_line(loc, [&] { return view_of(x, plan.region); }) : read(x, plan, loc);
    if (!detail::thread.observed) return out;
    const Plan saved = contiguous_plan(plan, x, indices, count, loc);
    if (is_view) return record_part(In(x, loc), std::move(out), part_of(saved.region));
    record(index_op, loc, {&x}, out, {&saved.positions}, saved.region);
    return out;
}

// --- Rules -----------------------------------------------------------------------------------------------------------

// The gradient of index, a linear op; so its own gradient is index again.
Tensor index_place(const Tensor& g, const Shape& whole, const Region& region, const Tensor& positions, const Loc& loc) {
    const CallerScope caller(loc);
    detail::begin_op("index_place", g.impl(), loc);
    Tensor out = gradient_ops::zeros(whole, g.dtype(), g.device());
    add_region(out.impl(), region, positions, g);
    if (detail::thread.observed) {
        record(index_place_op, loc, {&g}, out, {&positions}, region, Told{index_place_op, {&g, &positions}}, PlaceCall{whole, region});
    }
    return out;
}

void index_rule(Backward& b) {
    const auto& region = b.attrs<Region>();
    if (const Tensor whole = b.grad_to_write(0); whole.defined()) {
        add_region(whole.impl(), region, b.saved(0), b.grad());
    } else if (b.needs(0)) {
        const Tensor &g = b.grad(), positions = b.saved(0);
        const auto placed = [&](const Tensor& of_g, const Tensor& at) { return index_place(of_g, b.input_shape(0), region, at, b.record().loc); };
        const std::int64_t rows = rows_that_share(b, 0);
        if (rows == 0 || positions.dim() == 0 || positions.size(0) != rows) return b.give(0, placed(g, positions));
        std::vector<Tensor> of_rows;  // the first dimension of the positions is that of the group
        for (std::int64_t r = 0; r < rows; ++r) of_rows.push_back(placed(select(g, region.at, r).contiguous(), positions[r].contiguous()));
        b.give(0, gradient_ops::stacked(of_rows));
    }
}

// Returns the region of a contiguous g, recorded.
Tensor taken(const Tensor& g, const Plan& plan, const Loc& loc) {
    if (!plan.positions.defined()) return record_part(In(g, loc), view_of(g, plan.region), part_of(plan.region));
    Tensor out = read(g, plan, loc);
    record(index_op, loc, {&g}, out, {&plan.positions}, plan.region, Told{index_op, {&g, &plan.positions}}, plan.region);
    return out;
}

void index_place_rule(Backward& b) { b.give(0, taken(contiguous(b.grad()), {b.attrs<Region>(), b.saved(0)}, b.record().loc)); }

// --- Writing ---------------------------------------------------------------------------------------------------------

// value: broadcasts to the region's shape; does not overlap self; may be a number on the CPU.
void write(const Tensor& self, const Plan& plan, const Tensor& value, const Loc& loc) {
    if (!plan.positions.defined()) {
        const detail::CallLine call(loc);
        const Tensor view = view_of(self, plan.region);
        if (!on_gpu(self) || on_gpu(value)) return copy_elements(view, value);
        const detail::UnrecordedPartsOf parts(loc);
        return fill_elements(view, value.to(self.dtype(), loc).raw_data());
    }
    const detail::UnrecordedPartsOf parts(loc);
    const Tensor values = value.numel() == 1 ? value : value.expand(plan.region.shape(plan.positions.shape()), loc);
    write_region(self.impl(), plan.region, plan.positions, values.to(self.dtype(), loc).contiguous(loc));
}

void record_put(const OpInfo& op, const Tensor& self, const Plan& plan, const Tensor& value, const Loc& loc) {
    if (plan.positions.defined()) {
        record(op, loc, {&self, &value}, self, {&plan.positions}, plan.region, Told{op, {&self, &value, &plan.positions}}, plan.region);
    } else {
        record(op, loc, {&self, &value}, self, {}, plan.region);
    }
}

// packed: the plan for a contiguous tensor of self's shape, which is added to if self is not contiguous.
void add_at(const Tensor& self, const Plan& plan, const Plan& packed, const Tensor& value, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    const Tensor there = value.to(self.device(), self.dtype(), false, loc);
    if (!plan.positions.defined()) {
        view_of(self, plan.region).add_(there, loc);
        return;
    }
    const Tensor values = there.numel() == 1 ? there : there.expand(plan.region.shape(plan.positions.shape()), loc);
    if (self.is_contiguous()) return add_region(self.impl(), plan.region, plan.positions, values);
    const Tensor whole = self.contiguous(loc);
    add_region(whole.impl(), packed.region, packed.positions, values);
    copy_elements(self, whole);
}

// The values get the gradient of the elements that they were added to.
void index_put_add_rule(Backward& b) {
    const Plan plan{b.attrs<Region>(), b.record().saved_count ? b.saved(0) : Tensor()};
    if (b.needs(1)) b.give(1, taken(contiguous(b.grad()), plan, b.record().loc));
    if (b.needs(0)) b.give(0, b.grad());
}

// Copies an index that shares memory with the tensor: it must not change while it is read.
void keep_positions(Plan& plan, const Tensor& self, const Loc& loc) {
    if (!plan.positions.defined() || !plan.positions.shares_storage(self)) return;
    const detail::UnrecordedPartsOf parts(loc);
    plan.positions = plan.positions.clone(loc);
}

Plan plan_put(const Tensor& self, const Index* indices, std::size_t count, const Tensor& value, const Loc& loc) {
    Plan plan = make_plan(self, indices, count, /*to_read=*/false, loc);
    const Shape shape = plan.positions.defined() ? plan.region.shape(plan.positions.shape()) : plan.region.sizes;
    if (!detail::broadcasts_to(value.shape(), shape)) {
        fail<ShapeError>(loc, "index_put_: a value of shape {} cannot be written into a region of shape {}", value.shape(), shape);
    }
    return plan;
}

void index_put(Tensor& self, const Index* indices, std::size_t count, const Tensor& given, bool accumulate, const Loc& loc) {
    const Tensor value = beside("index_put_", given, self, loc);
    Plan plan = plan_put(self, indices, count, value, loc);
    check_in_place("index_put", self, {&value}, loc);
    if (is_traced()) {
        self.copy_(traced_index_put(self, indices, count, value, accumulate, loc), loc);
        return;
    }
    Plan saved;
    if (detail::thread.observed || accumulate) saved = contiguous_plan(plan, self, indices, count, loc);
    keep_positions(plan, self, loc);
    keep_positions(saved, self, loc);
    Tensor copy;  // copy of a value that is overwritten with its own tensor; on the tape it stands for the value
    if (value.shares_storage(self)) copy = copy_before_write(value, loc);
    const Tensor& source = copy.defined() ? copy : value;
    TensorImpl* impl = self.impl();
    const bool is_current = impl->node_version == impl->storage->version_now();
    accumulate ? add_at(self, plan, saved, source, loc) : write(self, plan, source, loc);
    if (is_current) impl->node_version = impl->storage->version_now();  // a view may have written to a part of it
    mark_written(self, loc);
    if (detail::thread.observed) record_put(accumulate ? index_put_add_op : index_put_op, self, saved, source, loc);
}

// The first tensors may be indices and numbers of the CPU, so this tells the log on which device it works.
void begin_index_put(const Tensor& self, const Loc& loc) {
    detail::check_defined(In(self, loc), "index_put_");
    if (detail::watching_ops) [[unlikely]]
        detail::log_placement(self.impl());
}

// Returns 1 where a value was the last to be written to its position, else 0; undefined if all were.
Tensor last_writers(const Plan& plan, const Shape& whole, const Tensor& like) {
    if (!plan.positions.defined()) return {};
    const detail::UnrecordedParts parts;
    const Tensor ones = gradient_ops::ones(whole, uint8, like.device());
    Tensor kept = detail::make_empty(plan.region.shape(plan.positions.shape()), uint8, like.device(), Loc{});
    take_region(kept, ones.impl(), plan.region, plan.positions);
    if (!detail::is_readable(kept)) {
        kept = kept.to(like.dtype());
        kept.impl()->trace = 0;  // positions in a record are older than the trace
        return kept;
    }
    const auto* flags = static_cast<const std::uint8_t*>(kept.raw_data());
    return std::find(flags, flags + kept.numel(), 0) == flags + kept.numel() ? Tensor() : kept.to(like.dtype());
}

void recorded_index_put_rule(Backward& b, const Plan& plan) {
    const Loc& loc = b.record().loc;
    const Tensor g = contiguous(b.grad());
    if (b.needs(1)) {
        const Tensor kept = last_writers(plan, b.output_shape(), g);
        const Tensor values = taken(g, plan, loc);
        b.give(1, kept.defined() ? values * kept : values);
    }
    if (b.needs(0)) {
        const Tensor rest = clone(g), zero = gradient_ops::zeros({}, g.dtype(), cpu);
        write(rest, plan, zero, loc);
        mark_written(rest, loc);
        record_put(index_put_op, rest, plan, zero, loc);
        b.give(0, rest);
    }
}

// The values get the region's gradient, and overwritten elements get none. A tensor that is filled piece by piece has
// many such records, so the gradient is changed in place and passed on.
void index_put_rule(Backward& b) {
    const Plan plan{b.attrs<Region>(), b.record().saved_count ? b.saved(0) : Tensor()};
    if (b.recording()) return recorded_index_put_rule(b, plan);
    Tensor g = b.take_grad();
    const Loc& loc = b.record().loc;
    if (!b.needs(0) && !plan.positions.defined()) {
        const Tensor packed = contiguous(g);
        b.give(1, view_of(packed, plan.region));
        return;
    }
    if (!only_owner(g)) g = clone(g);
    const Tensor zero = gradient_ops::zeros({}, g.dtype(), cpu);
    if (!b.needs(1)) {
        write(g, plan, zero, loc);
    } else if (plan.positions.defined()) {
        const Tensor values = detail::make_empty(plan.region.shape(plan.positions.shape()), g.dtype(), g.device(), loc);
        take_region(values, g.impl(), plan.region, plan.positions);
        b.give(1, values);
    } else {
        b.give(1, clone(view_of(g, plan.region)));
        write(g, plan, zero, loc);
    }
    b.give(0, std::move(g));
}

void put_at(Tensor& self, const Index* indices, std::size_t count, const Tensor& value, bool accumulate, const Loc& loc) {
    detail::check_defined(In(value, loc), "index_put_");
    begin_index_put(self, loc);
    index_put(self, indices, count, value, accumulate, loc);
}

Tensor number_of(Scalar value, DType dtype, const Loc& loc) {
    detail::check_fits("index_put_", value, dtype, loc);
    Tensor number = detail::make_empty({}, dtype, tapir::cpu, loc);
    detail::store(dtype, number.raw_data(), value);
    number.impl()->trace = 0;  // the number belongs to the program, not to the trace
    return number;
}

void put_at(Tensor& self, const Index* indices, std::size_t count, Scalar value, bool accumulate, const Loc& loc) {
    begin_index_put(self, loc);
    index_put(self, indices, count, number_of(value, self.dtype(), loc), accumulate, loc);
}

Tensor as_value(const Tensor& value, DType /*dtype*/, const Loc& loc) {
    detail::check_defined(In(value, loc), "index_put_");
    return value;
}
Tensor as_value(Scalar value, DType dtype, const Loc& loc) { return number_of(value, dtype, loc); }

template <class Value>
Tensor put_in_copy(const Tensor& self, const Index* indices, std::size_t count, const Value& value, bool accumulate, const Loc& loc) {
    detail::check_defined(In(self, loc), "index_put");
    if (is_traced()) {
        const Tensor there = beside("index_put_", as_value(value, self.dtype(), loc), self, loc);
        static_cast<void>(plan_put(self, indices, count, there, loc));
        const Tensor out = traced_index_put(self, indices, count, there, accumulate, loc);
        return out.shares_storage(self) || out.shares_storage(there) ? out.clone(loc) : out;
    }
    Tensor out = self.clone(loc);
    put_at(out, indices, count, value, accumulate, loc);
    return out;
}

}  // namespace

// --- Methods ---------------------------------------------------------------------------------------------------------

Tensor Tensor::operator[](const Index& index) const {
    const In self(*this, index.loc);
    detail::check_defined(self, "index");
    switch (index.kind) {
        case Index::Kind::integer: return tapir::select(self, 0, index.slice.start);
        case Index::Kind::slice: return tapir::slice(self, 0, index.slice);
        case Index::Kind::none: return tapir::unsqueeze(self, 0);
        default: return index_with(*this, &index, 1, index.loc);
    }
}

Tensor Tensor::index(std::initializer_list<Index> indices, Loc loc) const { return index_with(*this, indices.begin(), indices.size(), loc); }

Tensor Tensor::index(const std::vector<Index>& indices, Loc loc) const { return index_with(*this, indices.data(), indices.size(), loc); }

Tensor& Tensor::index_put_(std::initializer_list<Index> indices, const Tensor& value, Flag accumulate, Loc loc) {
    put_at(*this, indices.begin(), indices.size(), value, accumulate, loc);
    return *this;
}
Tensor Tensor::index_put(std::initializer_list<Index> indices, const Tensor& value, Flag accumulate, Loc loc) const {
    return put_in_copy(*this, indices.begin(), indices.size(), value, accumulate, loc);
}
Tensor& Tensor::index_put_(std::initializer_list<Index> indices, Scalar value, Flag accumulate, Loc loc) {
    put_at(*this, indices.begin(), indices.size(), value, accumulate, loc);
    return *this;
}
Tensor Tensor::index_put(std::initializer_list<Index> indices, Scalar value, Flag accumulate, Loc loc) const {
    return put_in_copy(*this, indices.begin(), indices.size(), value, accumulate, loc);
}
Tensor& Tensor::index_put_(const std::vector<Index>& indices, const Tensor& value, Flag accumulate, Loc loc) {
    put_at(*this, indices.data(), indices.size(), value, accumulate, loc);
    return *this;
}
Tensor Tensor::index_put(const std::vector<Index>& indices, const Tensor& value, Flag accumulate, Loc loc) const {
    return put_in_copy(*this, indices.data(), indices.size(), value, accumulate, loc);
}
Tensor& Tensor::index_put_(const std::vector<Index>& indices, Scalar value, Flag accumulate, Loc loc) {
    put_at(*this, indices.data(), indices.size(), value, accumulate, loc);
    return *this;
}
Tensor Tensor::index_put(const std::vector<Index>& indices, Scalar value, Flag accumulate, Loc loc) const {
    return put_in_copy(*this, indices.data(), indices.size(), value, accumulate, loc);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// Describes a contiguous tensor of the input's shape, as rules know it. A graph has the program's indexing as the ops of
// index_traced.cpp.
void region_fields(Fields& f, Region& a) {
    f("sizes", a.sizes)("strides", a.strides)("offset", a.offset)("at", a.at)("scale", a.scale)("distinct", a.distinct);
}

Tensor index_again(const FormCall& x, const Region& region) {
    check_region("index", x[0].numel(), region, x[1]);
    return taken(contiguous(x[0]), {region, x[1]}, Loc::current());
}

Tensor place_again(const FormCall& x, const PlaceCall& call) {
    const Loc loc = Loc::current();
    check_region("index_place", detail::checked_numel(call.whole, x[0].dtype(), loc), call.region, x[1]);
    const Shape picked = call.region.shape(x[1].shape());
    if (x[0].shape() != picked) fail<ShapeError>(loc, "index_place: values of shape {} for a region of shape {}", x[0].shape(), picked);
    return index_place(contiguous(x[0]), call.whole, call.region, x[1], loc);
}

// Takes self and the value, and positions if there are any.
Tensor put_again(const OpInfo& op, const FormCall& x, const Region& region) {
    const Loc loc = Loc::current();
    check_region(op.name, x[0].numel(), region, x.count > 2 ? x[2] : Tensor());
    const Shape there = x.count > 2 ? region.shape(x[2].shape()) : region.sizes;
    const Tensor value = x[1].numel() == 1 ? x[1] : expand(x[1], there);
    const Plan plan{region, x.count > 2 ? x[2] : Tensor()};
    const Tensor out = clone(contiguous(x[0]));
    if (&op == &index_put_add_op) {
        add_at(out, plan, plan, value, loc);
    } else {
        write(out, plan, value, loc);
    }
    mark_written(out, loc);
    record_put(op, out, plan, value, loc);
    return out;
}

// Returns the region's shape, with the positions' in it if operand i holds them.
std::vector<SymInt> picked_by(const TypeCall& t, const Region& region, int i) {
    std::vector<SymInt> shape = t.sizes("sizes");
    if (i >= t.count) return shape;
    types::need<IndexError>(region.at >= 0 && region.at <= std::ssize(shape), "the positions have no place among the sizes");
    shape.insert(shape.begin() + region.at, t[i].shape.begin(), t[i].shape.end());
    return shape;
}

ValueType placed(const TypeCall& t, const PlaceCall& a) {
    types::need(may_equal(t[0].shape, picked_by(t, a.region, 1)), "the values have not the region's shape");
    return types::shaped(t[0], t.sizes("whole"));
}

ValueType put(const TypeCall& t, const Region& region) {
    if (!(types::product(t[1].shape) == SymInt(1))) types::holding(types::shaped(t[0], picked_by(t, region, 2)), t[1]);
    return t[0];
}

}  // namespace

TAPIR_FORM(index, Operands::from(1), Region, shaped(t[0], picked_by(t, a, 1)), index_again(x, a), region_fields(f, a));
TAPIR_FORM(index_place, Operands::from(1), PlaceCall, placed(t, a), place_again(x, a), f("whole", a.whole); region_fields(f, a.region));
TAPIR_FORM(index_put, Operands::from(2), Region, put(t, a), put_again(index_put_op, x, a), region_fields(f, a));
TAPIR_FORM(index_put_add, Operands::from(2), Region, put(t, a), put_again(index_put_add_op, x, a), region_fields(f, a));

}  // namespace tapir
