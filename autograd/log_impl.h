// The internals of the tape: records in arenas, and how an op appends one.
//
// A thread has at most one Log. Its outermost Tape opens it, nested tapes are ranges of it: an inner tape's records
// are also the outer tape's, so that gradients of gradients need no further machinery.
// A record's index is its place in the order of execution; a value is named by the index of the record that made it
// (an op with several outputs occupies as many consecutive indices; the ones after the first only name its values).
#pragma once

#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/autograd/hook_impl.h"
#include "tapir/autograd/op.h"
#include "tapir/core/thread_impl.h"

namespace tapir {

inline constexpr std::uint32_t kNoValue = 0xffffffffu;

/// A tensor that a record keeps for its rule: a reference, and the version of the storage at that time.
struct SavedTensor {
    TensorImpl* impl;
    std::uint32_t version;
};

/// A user's object that lives as long as its record (custom functions, checkpoints).
struct RecordObject {
    virtual ~RecordObject() = default;
};

struct Record {
    enum Flag : std::uint8_t {
        kReleased = 1,  // backward has used up its saved tensors; saved() and attrs() point to nothing
        kHooked = 2,    // the value has hooks
        kExtra = 4,     // names a further output of the record before it
        kLeaf = 8,      // a leaf's first use; saved[0] is the leaf
        kObject = 16,   // attrs is a RecordObject*
        kOpaque = 32,   // leads to more than its inputs (a checkpoint, to what its function uses)
    };

    const OpInfo* op;
    Loc loc;
    const ModuleName* module;   // null: outside all
    std::uint32_t module_call;  // distinguishes the calls of a module
    std::uint8_t input_count;
    std::uint8_t output_count;
    std::uint8_t saved_count;
    std::uint8_t flags;
    DType dtype;  // of the value
    std::uint8_t rank;
    Device device;
    std::uint8_t output_index;  // its place among the outputs of its op
    // Followed, without gaps, by: int64_t sizes[rank], SavedTensor saved[saved_count], attributes, uint32_t inputs[input_count]

    std::int64_t* sizes() noexcept { return reinterpret_cast<std::int64_t*>(this + 1); }
    const std::int64_t* sizes() const noexcept { return reinterpret_cast<const std::int64_t*>(this + 1); }
    SavedTensor* saved() noexcept { return reinterpret_cast<SavedTensor*>(sizes() + rank); }
    const SavedTensor* saved() const noexcept { return reinterpret_cast<const SavedTensor*>(sizes() + rank); }
    void* attrs() noexcept { return saved() + saved_count; }
    const void* attrs() const noexcept { return saved() + saved_count; }
    std::uint32_t* inputs() noexcept { return inputs_; }
    const std::uint32_t* inputs() const noexcept { return inputs_; }
    Shape shape() const noexcept { return {sizes(), rank}; }

    std::uint32_t* inputs_;
};

/// Bump-allocated memory that is kept warm between steps.
class Arena {
 public:
    void* allocate(std::size_t bytes) {
        bytes = (bytes + 7) & ~std::size_t{7};
        if (static_cast<std::size_t>(end_ - next_) < bytes) [[unlikely]]
            grow(bytes);
        void* result = next_;
        next_ += bytes;
        return result;
    }
    void reset() noexcept;
    std::size_t bytes() const noexcept { return chunks_.size() * kChunk; }

    static constexpr std::size_t kChunk = 256 * 1024;

 private:
    void grow(std::size_t bytes);
    std::vector<std::unique_ptr<std::byte[]>> chunks_;
    std::vector<std::unique_ptr<std::byte[]>> oversized_;
    std::size_t used_ = 0;  // chunks in use
    std::byte* next_ = nullptr;
    std::byte* end_ = nullptr;
};

/// A tensor whose rows are tensors of their own: see ops/batch/rows.cpp. It counts its references.
class RowBlock {
 public:
    RowBlock() = default;
    RowBlock(const RowBlock&) = delete;
    RowBlock& operator=(const RowBlock&) = delete;
    /// Marks the block as written to if one of its rows was.
    virtual void learn() noexcept = 0;
    void share() noexcept { detail::add_ref(refs_); }
    void drop() noexcept {
        if (detail::drop_ref(refs_)) end();
    }

    class Reference {
     public:
        /// Takes the first reference over, that of the maker.
        explicit Reference(RowBlock* block) noexcept : block_(block) {}
        Reference(const Reference& other) noexcept : block_(other.block_) { block_->share(); }
        Reference(Reference&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
        Reference& operator=(Reference other) noexcept {
            std::swap(block_, other.block_);
            return *this;
        }
        ~Reference() {
            if (block_) block_->drop();
        }
        RowBlock* operator->() const noexcept { return block_; }

     private:
        RowBlock* block_;
    };

 protected:
    virtual ~RowBlock() = default;
    /// Destroys it, and frees its memory.
    virtual void end() noexcept = 0;

 private:
    std::uint32_t refs_ = 1;
};

struct Log {
    std::uint32_t id = 0;                // the outermost tape's number; 0 while the log is not in use
    int depth = 0;                       // the number of tapes that are open on it
    Loc opened{};                        // where the outermost tape was made
    Loc last_backward{};                 // the line of the backward that released records
    const char* last_walk = "backward";  // the name of that call
    Arena arena;
    std::vector<Record*> records;
    struct LeafSlot {
        std::uint32_t tape = 0, index = 0;
    };
    std::vector<LeafSlot> leaf_slots;                        // by the leaf's number
    std::multimap<std::uint32_t, GradientHook> hooks;        // by value; its nodes stay where they are
    std::vector<std::uint32_t> leaves;                       // the indices of leaf records
    std::vector<std::pair<std::uint32_t, Tensor>> retained;  // values whose gradients backward is to keep: see Tensor::retain_grad()
    int walks = 0;                                           // backward passes that run on it; it stays as it is until the last ends
    // The streams of the ops, on devices with streams: a run begins at a record and lasts until the next run.
    struct StreamRun {
        std::uint32_t first;
        void* stream;  // as in core/device_impl.h
    };
    std::vector<StreamRun> stream_runs;
    std::vector<RowBlock::Reference> row_blocks;  // of groups that batch() has computed

    /// Records of batch(): [first, end), of one item, or of a group of calls. Those of a group put rows together, [first, rule), compute
    /// with blocks, [rule, rows), and take them apart, [rows, end).
    struct ItemSpan {
        std::uint32_t first, rule, rows, end;
        std::uint32_t call;          // the number of the batch() that is in no other
        std::uint32_t items, count;  // in span_items
    };
    std::vector<ItemSpan> item_spans;       // in order
    std::vector<std::uint32_t> span_items;  // numbers of items, one for each call of a group
    std::uint32_t batches = 0;              // that have begun
    static constexpr std::uint32_t kNoItem = 0xffffffffu;

    // Joined threads: see Note [Joined threads] in joined.cpp.
    Log* parent = nullptr;        // of a thread that has joined a tape: that tape's log
    std::uint32_t parent_id = 0;  // its number
    struct Joined {
        std::uint32_t id, first, count;  // of a log whose records are [first, first + count) of this one
    };
    std::vector<Joined> joined;
    std::vector<Log*> children;                           // they own the memory of these records
    std::vector<NodeRef> outer;                           // values from outside that the records of a joined thread name
    static constexpr std::uint32_t kOuter = 0x80000000u;  // in a value's number: the rest of it is a place in `outer`

    /// Records [first, ends[0]), [ends[0], ends[1]), ... of several threads, none of which names a value of another part, other than leaves.
    struct Parts {
        std::uint32_t first;
        std::vector<std::uint32_t> ends;
    };
    std::vector<Parts> parts;  // in order

    /// True if the tensor is a value of this log.
    bool knows(const TensorImpl* t) const noexcept { return t->node.tape == id || (t->node.tape != 0 && has_joined(t->node.tape)); }
    /// True if the values of the log of this number are values of this one: those of its parent, and of threads that have joined it.
    bool has_joined(std::uint32_t tape) const noexcept;
    /// Drops what has been joined from record `count` on.
    void forget_joined(std::size_t count) noexcept;
    /// The value of a tensor of such a log; kNoValue for others. May append records.
    std::uint32_t joined_value_of(const TensorImpl* input, const Loc& loc);

    /// The span that a record belongs to, or null.
    const ItemSpan* span_of(std::uint32_t record) const noexcept;
    /// The item that a value is of: for a group's block kNoItem.
    std::uint32_t item_of(const ItemSpan& span, std::uint32_t value) const noexcept;
    /// Notes that the records from `first` on are those of an item.
    void note_item(std::size_t first, std::uint32_t call, std::uint32_t item);

    /// The record that made a value: for a further output, that of its op.
    std::uint32_t maker_of(std::uint32_t value) const noexcept { return value - records[value]->output_index; }
    /// The value an input names on this log, or kNoValue for a constant. Appends a leaf's record at its first use.
    std::uint32_t value_of(TensorImpl* input, const Loc& loc);
    void clear() noexcept;                      // releases every record and keeps the memory
    void truncate(std::size_t count) noexcept;  // drops the records from `count` on
};

/// To be called before a recorded op writes in place: reserves memory for its record, since it is appended after the elements have changed.
/// Throws OutOfMemory.
void take_room(Log& log, const Loc& loc);

/// The description of a record to be appended.
struct RecordArgs {
    const OpInfo& op;
    const Loc& loc;
    const Tensor* const* inputs;
    int input_count;
    TensorImpl* const* outputs;
    int output_count;
    const Tensor* const* saved;
    int saved_count;
    const void* attrs = nullptr;
    std::size_t attr_bytes = 0;
    bool is_object = false;
    // Number arguments of the op that are no operands, like the value of pad: for watchers.
    const double* numbers = nullptr;
    int number_count = 0;
    /// Told to watchers instead, where the record does not hold all arguments of the op.
    const RecordArgs* told = nullptr;
};
void append_record(Log& log, const RecordArgs& args);

/// For an op that ran on a thread without a tape while another thread's was alive: see autograd/elsewhere.cpp.
void note_elsewhere(const RecordArgs& ran) noexcept;

/// Throws TapeError: `what` needs y's gradient, and the thread has no tape.
[[noreturn]] void fail_without_tape(const char* what, const Tensor& y, const Loc& loc);

/// Throws TapeError if the elements of a recorded tensor have changed since.
void check_node(const TensorImpl* input, const Loc& loc);

/// For a tensor with the number of another log: true if a joined thread has recorded it. Throws TapeError if it was made on a tape that is alive
/// elsewhere, or without one where this tape should have recorded it.
bool tracked_elsewhere(const TensorImpl* input, const Log& log, const Loc& loc);

/// For batch() on several threads: a log for a part of its items, in which another thread records. take_in_part() appends its records
/// to the log, close_log() drops them. Records of its batch() get the number `call` there.
Log* open_part(Log& log, const Loc& loc);
void take_in_part(Log& log, Log& part, std::uint32_t call);
/// Notes that the records from `first` on are those of parts that end at `ends`, so that a backward pass may walk them at the same time.
void note_parts(Log& log, std::uint32_t first, std::vector<std::uint32_t> ends);

/// Takes in the records that joined threads have left for the log. Call it before what counts the log's records.
void take_in_joined(Log& log);

/// True if an ApartScope of this thread hides the tape of this number.
bool is_outside(std::uint32_t tape) noexcept;
/// Throws TapeError if a record has written to the elements of this view since it was made.
void check_unwritten(const TensorImpl* view, const Log& log, const Loc& loc);

/// True if the log must record what is made from this input. Throws TapeError for one that would be taken for a constant by mistake.
inline bool tracked(const TensorImpl* input, const Log& log, const Loc& loc) {
    if constexpr (detail::is_runtime) return false;
    const unsigned flags = input->flags;
    if (flags & (TensorImpl::kRequiresGrad | TensorImpl::kView)) {
        if ((flags & TensorImpl::kView) && detail::recorded_write(input->storage).tape != 0) [[unlikely]]
            check_unwritten(input, log, loc);
        if (flags & TensorImpl::kRequiresGrad) return true;
    }
    if (input->node.tape == log.id) return true;
    if (input->node.tape != 0) [[unlikely]]
        return tracked_elsewhere(input, log, loc);
    return false;
}

/// Returns the log to record on, or null if none of the inputs is tracked: for ops, before append_record.
inline Log* recording(const Loc& loc, std::initializer_list<const Tensor*> inputs) {
    Log* log = detail::thread.log;
    if (detail::is_runtime || !log) return nullptr;
    bool any = false;
    for (const Tensor* input : inputs) any |= input->defined() && tracked(input->impl(), *log, loc);
    return any ? log : nullptr;
}

inline Log* recording(const Loc& loc, const std::vector<Tensor>& inputs) {
    Log* log = detail::thread.log;
    if (detail::is_runtime || !log) return nullptr;
    bool any = false;
    for (const Tensor& input : inputs) any |= input.defined() && tracked(input.impl(), *log, loc);
    return any ? log : nullptr;
}

/// Tells the thread's watchers of an op that has run. They may throw.
void tell_watchers(const RecordArgs& ran);

/// The last step of an op that is observed (thread.observed).
inline void finish_op(const RecordArgs& ran, bool recorded) {
    if constexpr (detail::is_runtime) return;
    if (detail::is_watched()) [[unlikely]]
        tell_watchers(ran);
    if (recorded) return append_record(*detail::thread.log, ran);
    if (detail::thread.observed.elsewhere()) [[unlikely]]
        note_elsewhere(ran);
}

/// The last step of every op with one output: records it if an input is tracked and a gradient can flow, and tells watchers.
/// `attrs` must be trivially destructible. `numbers`: those that the user gave and that may be infinite or nan.
///     record(softmax_op, x.loc, {&x.tensor}, y, {&y}, Attrs{dim});
template <class Attrs = std::nullptr_t>
void record(const OpInfo& op, const Loc& loc, std::initializer_list<const Tensor*> inputs, const Tensor& output,
            std::initializer_list<const Tensor*> saved, const Attrs& attrs = {}, std::initializer_list<double> numbers = {}) {
    static_assert(std::is_trivially_destructible_v<Attrs> && alignof(Attrs) <= 8);
    if (detail::is_runtime || !detail::thread.observed) return;
    const bool recorded = is_floating(output.dtype()) && op.is_recorded() && recording(loc, inputs);
    TensorImpl* out = output.impl();
    finish_op({op, loc, inputs.begin(), static_cast<int>(inputs.size()), &out, 1, saved.begin(), static_cast<int>(saved.size()), &attrs,
               std::is_same_v<Attrs, std::nullptr_t> ? 0 : sizeof(Attrs), /*is_object=*/false, numbers.begin(), static_cast<int>(numbers.size())},
              recorded);
}

/// Overload for records that do not hold all arguments or results of the op. Watchers are told of `op` with these operands, results
/// (default: the output; tensors that the op makes and a rule reads must be among them) and `call`, the argument of its
/// TAPIR_FORM.
struct Told {
    const OpInfo& op;
    std::initializer_list<const Tensor*> operands;
    std::initializer_list<const Tensor*> results = {};
};
template <class Attrs, class Call = std::nullptr_t>
void record(const OpInfo& op, const Loc& loc, std::initializer_list<const Tensor*> inputs, const Tensor& output,
            std::initializer_list<const Tensor*> saved, const Attrs& attrs, const Told& told, const Call& call = {},
            std::initializer_list<double> numbers = {}) {
    static_assert(std::is_trivially_destructible_v<Attrs> && alignof(Attrs) <= 8);
    if (detail::is_runtime || !detail::thread.observed) return;
    const bool recorded = is_floating(output.dtype()) && op.is_recorded() && recording(loc, inputs);
    TensorImpl* out = output.impl();
    constexpr std::size_t most = 8;
    TensorImpl* results[most] = {out};
    int result_count = told.results.size() == 0 ? 1 : 0;
    for (const Tensor* result : told.results) results[result_count++] = result->impl();
    const RecordArgs as_told{told.op,
                             loc,
                             told.operands.begin(),
                             static_cast<int>(told.operands.size()),
                             results,
                             result_count,
                             nullptr,
                             0,
                             &call,
                             std::is_same_v<Call, std::nullptr_t> ? 0 : sizeof(Call),
                             false,
                             numbers.begin(),
                             static_cast<int>(numbers.size())};
    finish_op({op, loc, inputs.begin(), static_cast<int>(inputs.size()), &out, 1, saved.begin(), static_cast<int>(saved.size()), &attrs,
               std::is_same_v<Attrs, std::nullptr_t> ? 0 : sizeof(Attrs), false, nullptr, 0, &as_told},
              recorded);
}

/// Overload for any number of inputs and outputs.
template <class Attrs = std::nullptr_t, class Call = std::nullptr_t>
void record_many(const OpInfo& op, const Loc& loc, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                 const std::vector<Tensor>& saved, const Attrs& attrs = {}, const Call& call = {}) {
    static_assert(std::is_trivially_destructible_v<Attrs> && alignof(Attrs) <= 8);
    if (detail::is_runtime || !detail::thread.observed) return;
    const bool recorded = recording(loc, inputs);
    if (!recorded && !detail::is_watched() && !detail::thread.observed.elsewhere()) return;
    const auto addresses = [](const std::vector<Tensor>& tensors) {
        std::vector<const Tensor*> list;
        list.reserve(tensors.size());
        for (const Tensor& t : tensors) list.push_back(&t);
        return list;
    };
    std::vector<TensorImpl*> outs;
    outs.reserve(outputs.size());
    for (const Tensor& t : outputs) outs.push_back(t.impl());
    const auto ins = addresses(inputs);
    const auto keeps = addresses(saved);
    const RecordArgs told{op, loc,   ins.data(),  static_cast<int>(ins.size()), outs.data(), static_cast<int>(outs.size()), nullptr,
                          0,  &call, sizeof(Call)};
    finish_op({op, loc, ins.data(), static_cast<int>(ins.size()), outs.data(), static_cast<int>(outs.size()), keeps.data(),
               static_cast<int>(keeps.size()), &attrs, std::is_same_v<Attrs, std::nullptr_t> ? 0 : sizeof(Attrs), false, nullptr, 0,
               std::is_same_v<Call, std::nullptr_t> ? nullptr : &told},
              recorded);
}

/// Runs an op that no gradient flows through and that is made of others. Watchers are told of it, not of the others.
///     return unrecorded_op(isin_op, x.loc, {&x.tensor}, [&] { return ...; });
template <class Body, class Attrs = std::nullptr_t>
auto unrecorded_op(const OpInfo& op, const Loc& loc, std::initializer_list<const Tensor*> inputs, const Body& body, const Attrs& attrs = {}) {
    auto result = [&] {
        const detail::UnrecordedParts parts;
        return body();
    }();
    if (detail::thread.observed) record(op, loc, inputs, detail::outputs(result)[0], {}, attrs);
    return result;
}

}  // namespace tapir
