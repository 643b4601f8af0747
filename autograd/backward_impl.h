// Backward: a rule's view of its record, and the place for its gradients. Walk: one pass over the records.
//
//     void tanh_rule(Backward& b) { b.give(0, b.grad() * (1 - square(b.saved(0)))); }
//
// Rules are written with the public ops, so that they are recorded (and can be differentiated) when asked for.
#pragma once

#include <bitset>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/streams_impl.h"

namespace tapir {

class Tape;
struct BackwardOptions;

/// True if nobody else can see this tensor's elements, so that it may be written to.
inline bool only_owner(const Tensor& t) noexcept {
    const TensorImpl* impl = t.impl();
    return __atomic_load_n(&impl->refs, __ATOMIC_ACQUIRE) == 1 && __atomic_load_n(&impl->storage->refs, __ATOMIC_ACQUIRE) == 1 &&
        impl->is_contiguous();
}

/// The gradient of some rows of a value: g is contiguous, of the value's dtype and on its device.
struct PartOfRows {
    std::int64_t first;
    Tensor g;
};

/// The gradient of a tensor that was cut into pieces, made before the pieces' own: rules write these into it, and nothing is put together in
/// the end. See room_for_gradient() in ops/view/view.cpp.
struct RoomForPieces {
    const Record* pieces;
    Tensor whole;
    std::bitset<256> given;  // out to a rule, by output
    int output = 0;          // the last one given out
    std::int64_t start = 0;  // its first row
};

/// Pairs of which g^T x is to be summed, on the CPU, where the g lie behind each other in one tensor: only the x are copied.
struct RowsInPlace {
    Tensor g;  // of the first row
    Tensor x;  // a buffer
    std::int64_t rows = 0;
    std::int64_t first = 0;  // the first one's row in x
};

/// Contributions to one value's gradient that are collected to be computed together.
/// See Note [Collected gradients] in collected.cpp.
struct Pending {
    ProductRows products;
    std::vector<SparseRows> rows;
    RowsInPlace in_place;
    // On devices, kept for as long as the walk lasts: pairs of which g^T x is to be summed, and terms to be summed.
    std::vector<std::pair<Tensor, Tensor>> pairs;
    std::int64_t pair_rows = 0;
    std::vector<Tensor> terms;
    std::vector<PartOfRows> parts;
};

struct GradientSlot {
    Tensor grad;
    std::unique_ptr<Pending> pending;
    bool empty() const noexcept { return !grad.defined() && !pending; }
    Pending& collected() {
        if (!pending) pending = std::make_unique<Pending>();
        return *pending;
    }
};

/// Makes `grad` a tensor that may be written to: zeros if it is undefined, a copy if others see it.
void own_gradient(Tensor& grad, const Shape& shape, DType dtype, Device device);

/// The total number of rows of the parts.
std::int64_t row_count(const std::vector<SparseRows>& rows);

/// Told when nothing more comes to the gradient of a leaf: the walk has passed its first use.
struct LeafCalls {
    virtual void passed(std::uint32_t leaf_value) = 0;

 protected:
    ~LeafCalls() = default;
};

/// One backward pass over a range of a log.
struct Walk {
    Log& log;
    std::size_t begin;                    // records before it belong to an outer tape
    bool recording = false;               // the rules are recorded too
    bool only_traced = false;             // for a trace alone: nobody differentiates what they compute
    bool watched = false;                 // watchers are told of the rules and of the gradients that these give
    bool may_be_watched = false;          // also from some rule on, if gdb asks for it
    bool by_rows = false;                 // watched, and rules of groups in batch() are to give what tells rows apart
    bool releasing = false;               // saved tensors are dropped as they are used up
    std::size_t extent = 0;               // values below it have a place in the tables
    std::vector<GradientSlot> slots{};    // by value
    std::vector<std::uint8_t> wanted{};   // bitmap: the value leads to something whose gradient is asked for
    std::vector<std::uint8_t> reached{};  // bitmap: the result depends on the value
    std::vector<std::uint8_t> kept{};     // bitmap: gradients that the caller asked for
    std::vector<std::pair<std::uint32_t, Tensor>> kept_grads{};
    BackwardStreams* streams = nullptr;  // null: nothing to follow
    std::vector<RoomForPieces> rooms{};  // until the rule of the pieces' record takes them
    bool is_of_part = false;             // walks one of Log::parts, for another walk
    LeafCalls* leaf_calls = nullptr;     // null: nobody asks. Not called for leaves that were first used in Log::parts

    bool is_wanted(std::uint32_t value) const noexcept { return wanted[value >> 3] >> (value & 7) & 1; }
    /// True if nobody looks at the gradient of this value, so that it may go straight to what the value is a part of.
    bool is_unseen(std::uint32_t value) const noexcept {
        return !recording && !watched && !(kept[value >> 3] >> (value & 7) & 1) && !(log.records[value]->flags & Record::kHooked);
    }
    /// Adds g to a value's gradient, summed over broadcast dimensions and converted as needed.
    void add(std::uint32_t value, Tensor g);
    /// Adds g^T x: collects it, or computes it at once.
    void add_product(std::uint32_t value, const Tensor& g, const Tensor& x);
    void add_product_now(std::uint32_t value, const Tensor& g, const Tensor& x);
    void add_rows(std::uint32_t value, const Tensor& indices, const Tensor& g);
    /// Adds g to rows `first`, `first` + 1, ... of the gradient of a value on a device, when it is needed.
    void hold_part(std::uint32_t value, std::int64_t first, Tensor g) { slots[value].collected().parts.push_back({first, std::move(g)}); }
    /// True if hold_part() may be called: the value's record is among those of the walk, which uses one stream.
    bool may_hold_parts(std::uint32_t value) const noexcept {
        return !recording && !streams && value >= begin && !(log.records[value]->flags & Record::kLeaf);
    }
    /// Adds a pair of RowsInPlace. Returns false if g does not lie so.
    bool add_in_place(std::uint32_t value, const Tensor& g, const Tensor& x);
    /// Copies the rows of a pair into the buffers.
    void collect(std::uint32_t value, const Tensor& g, const Tensor& x);
    void complete_in_place(std::uint32_t value);
    /// Computes what is held for the value: on a device, and RowsInPlace.
    void sum_held(std::uint32_t value);
    /// Computes what was collected for the value, which completes its gradient.
    void flush(std::uint32_t value);
    /// Tells watchers that something was added to the value's gradient, or that a contribution had to be changed for it.
    void tell_summed(std::uint32_t value);
    /// Runs the rules of the records [from, to), from the last to the first; those of Log::parts on several threads.
    void run(std::size_t from, std::size_t to);
    void run_in_order(std::size_t from, std::size_t to);
    void run_parts(const Log::Parts& parts);
    /// Computes the product of the rows that were collected for the value.
    void complete_products(std::uint32_t value);
    /// Makes room for values up to `count`, all wanted (records appended during the walk).
    void extend(std::size_t count);
};

/// Returns the gradient that a leaf will have when `slot`, its part of a walk, is added: a new tensor if it is a sum, only the distinct rows
/// if it consists of rows. Changes nothing.
Tensor sum_of_gradients(const AutogradMeta& meta, const GradientSlot& slot, const Shape& shape);

/// Tape::gradient, under the name `what` in messages.
std::vector<Tensor> gradient_as(const char* what, Tape& tape, const Tensor& y, const std::vector<Tensor>& xs, const BackwardOptions& options,
                                const Loc& loc);

class Backward {
 public:
    Backward(Walk& walk, std::uint32_t index) noexcept : walk_(walk), record_(*walk.log.records[index]), index_(index) {}

    /// The gradient of output k. Undefined if nothing flowed into that output (only with several outputs).
    const Tensor& grad(int k = 0) const noexcept { return walk_.slots[value(k)].grad; }
    /// As grad(), with zeros in place of undefined.
    Tensor grad_or_zeros(int k) const;
    /// Takes the gradient out, so that the rule may write into it if it is its only owner.
    Tensor take_grad(int k = 0) noexcept { return std::move(walk_.slots[value(k)].grad); }
    int input_count() const noexcept { return record_.input_count; }
    int output_count() const noexcept { return record_.output_count; }

    /// True if input i's gradient is wanted.
    bool needs(int i) const noexcept {
        const std::uint32_t id = record_.inputs()[i];
        return id != kNoValue && walk_.is_wanted(id);
    }
    // Only for inputs that are needed: a constant has no record.
    Shape input_shape(int i) const noexcept { return walk_.log.records[record_.inputs()[i]]->shape(); }
    DType input_dtype(int i) const noexcept { return walk_.log.records[record_.inputs()[i]]->dtype; }
    Shape output_shape(int k = 0) const noexcept { return walk_.log.records[value(k)]->shape(); }
    DType output_dtype(int k = 0) const noexcept { return walk_.log.records[value(k)]->dtype; }

    Tensor saved(int i) const noexcept;
    template <class Attrs>
    const Attrs& attrs() const noexcept {
        return *static_cast<const Attrs*>(record_.attrs());
    }
    RecordObject* object() const noexcept { return *static_cast<RecordObject* const*>(record_.attrs()); }
    const Record& record() const noexcept { return record_; }
    Walk& walk() const noexcept { return walk_; }
    /// If the record is of a group in batch() and the walk tells rows apart, the number of rows; else 0. A contribution to a value that rows share
    /// is told apart if its first dimension is that of the rows, with or without others of theirs, and it is not summed over them.
    std::int64_t rows_to_tell_apart() const noexcept {
        if (!walk_.by_rows) return 0;
        const Log::ItemSpan* const span = walk_.log.span_of(index_);
        return span && span->count > 1 ? span->count : 0;
    }
    /// True if the rule itself is being recorded: it must not write in place then.
    bool recording() const noexcept { return walk_.recording; }

    /// Adds to input i's gradient: summed over broadcast dimensions, converted to the input's dtype. Does nothing
    /// if the gradient is not needed or g is undefined.
    void give(int i, Tensor g) {
        if (!needs(i) || !g.defined()) return;
        if (walk_.watched) [[unlikely]]
            tell(i, g, nullptr, nullptr);
        walk_.add(record_.inputs()[i], std::move(g));
    }
    /// Adds g^T x (g: (n, out), x: (n, in), result: (out, in)). Contributions to one value are collected.
    void give_product(int i, const Tensor& g, const Tensor& x) {
        if (!needs(i)) return;
        if (walk_.watched) [[unlikely]]
            tell(i, g, &x, nullptr);
        walk_.add_product(record_.inputs()[i], g, x);
    }
    /// Adds row g[r] to row indices[r]; stays row-sparse for a leaf that asks for it.
    void give_rows(int i, const Tensor& indices, const Tensor& g) {
        if (!needs(i)) return;
        if (walk_.watched) [[unlikely]]
            tell(i, g, nullptr, &indices);
        walk_.add_rows(record_.inputs()[i], indices, g);
    }
    /// The gradient of input i so far, zeros if none yet, for rules that add to a part of it in place.
    /// Undefined while recording or watched: use give() then.
    Tensor grad_to_write(int i);

 private:
    void tell(int i, const Tensor& g, const Tensor* product, const Tensor* rows);
    std::uint32_t value(int k) const noexcept { return index_ + static_cast<std::uint32_t>(k); }

    Walk& walk_;
    const Record& record_;
    std::uint32_t index_;
};

/// The ops that the walk needs; defined in ops/gradient_ops.cpp. All but the `_into`s are recorded while recording.
namespace gradient_ops {
Tensor add(const Tensor& a, const Tensor& b);
Tensor sum_to(const Tensor& g, const Shape& shape);  // sums over broadcast dimensions
Tensor cast(const Tensor& g, DType dtype);
Tensor zeros(const Shape& shape, DType dtype, Device device);
Tensor ones(const Shape& shape, DType dtype, Device device);
Tensor product(const Tensor& g, const Tensor& x);  // g^T x
Tensor rows_to_dense(const Tensor& indices, const Tensor& g, const Shape& shape);
Tensor concatenate(const std::vector<Tensor>& parts, int dim = 0);
Tensor sum_of(const std::vector<Tensor>& terms);                          // all of the same shape
Tensor stacked(const std::vector<Tensor>& parts);                         // along a new dimension 0
Tensor dense_copy(const Tensor& g);                                       // contiguous, owning its storage
void add_into(const Tensor& into, const Tensor& g);                       // same shape and dtype
void product_into(const Tensor& into, const Tensor& g, const Tensor& x);  // into += g^T x
void rows_into(const Tensor& into, const Tensor& indices, const Tensor& g);
void rows_into(const Tensor& into, const std::vector<SparseRows>& parts);
/// Returns the sum of grad, or zeros, and the parts: on a device. Each row's terms are added in their order.
Tensor sum_of_parts(const Tensor& grad, const std::vector<PartOfRows>& parts, const Shape& shape);
void copy_rows(const Tensor& into, std::int64_t row, const Tensor& rows);  // into[row : row + n] = rows, on the CPU
}  // namespace gradient_ops

}  // namespace tapir
