// Appending records, and releasing them.
//
// Note [Views of what is written]
// A record's output is a value of the tape. A view shares the elements, but knows only the value that it was made of. So when a record
// writes in place, every view that was made before is out of date. A view of a recorded tensor is found by its node_version (value_of()).
// A view of a constant has no value: it would stay a constant, and the gradient that flows through it would be lost. So such a write
// stores its tape and the storage's version with the storage (recorded_write()), each view stores the version at which it was made
// (make_view()), and tracked() compares them. In-place ops write through a tensor that is not a view, or whose storage nobody else sees
// (check_in_place()), so only views can be out of date.
//
// A view that is made after the write and has no record was requested as a constant: by detach(), or under a NoGradScope.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/thread_tapes_impl.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"

namespace tapir {

void NonDiff(Backward&) {}
void Composed(Backward&) {}
void Given(Backward&) {}
void Overwritten(Backward&) {}

// The op of records that stand for leaves and for the further outputs of an op.
constexpr OpInfo leaf_op{"leaf", NonDiff, "A leaf's first use on a tape."};

void Arena::reset() noexcept {
    oversized_.clear();
    used_ = 0;
    next_ = end_ = nullptr;
}

namespace {
thread_local std::unique_ptr<std::byte[]> spare_chunk;  // see take_room()
}

void Arena::grow(std::size_t bytes) {
    if (bytes > kChunk) {
        oversized_.push_back(std::make_unique<std::byte[]>(bytes));
        next_ = end_ = oversized_.back().get();  // the next allocation takes a chunk again
        end_ += bytes;
        return;
    }
    if (used_ == chunks_.size()) {
        chunks_.push_back(spare_chunk ? std::move(spare_chunk) : std::unique_ptr<std::byte[]>(new std::byte[kChunk]));
        chunks_.reserve(2 * chunks_.size());  // so that the spare one fits in without an allocation
    }
    next_ = chunks_[used_++].get();
    end_ = next_ + kChunk;
}

void take_room(Log& log, const Loc& loc) {
    detail::at_line(loc, [&] {
        constexpr std::size_t most = 16;  // records of one op in place, with those of leaves at their first use
        if (!spare_chunk) spare_chunk.reset(new std::byte[Arena::kChunk]);
        if (log.records.capacity() < log.records.size() + most) log.records.reserve(2 * (log.records.size() + most));
        if (log.leaves.capacity() < log.leaves.size() + most) log.leaves.reserve(2 * (log.leaves.size() + most));
    });
}

namespace {

struct RecordSize {
    std::size_t input_offset, total;
};

RecordSize size_of(int rank, int saved, int inputs, std::size_t attr_bytes) noexcept {
    RecordSize size{};
    size.input_offset = sizeof(Record) + static_cast<std::size_t>(rank) * sizeof(std::int64_t) +
        static_cast<std::size_t>(saved) * sizeof(SavedTensor) + ((attr_bytes + 7) & ~std::size_t{7});
    size.total = size.input_offset + static_cast<std::size_t>(inputs) * sizeof(std::uint32_t);
    return size;
}

Record* new_record(Log& log, const OpInfo& op, const Loc& loc, const TensorImpl* value, int inputs, int saved, std::size_t attr_bytes) {
    const RecordSize size = size_of(value->rank, saved, inputs, attr_bytes);
    auto* memory = static_cast<std::byte*>(log.arena.allocate(size.total));
    auto* record = new (memory) Record;
    record->op = &op;
    record->loc = loc;
    record->module = detail::thread.module;
    record->module_call = detail::thread.module_call;
    record->input_count = static_cast<std::uint8_t>(inputs);
    record->output_count = 1;
    record->saved_count = static_cast<std::uint8_t>(saved);
    record->flags = 0;
    record->dtype = value->dtype;
    record->rank = value->rank;
    record->device = value->device;
    record->output_index = 0;
    record->inputs_ = reinterpret_cast<std::uint32_t*>(memory + size.input_offset);
    for (int d = 0; d < value->rank; ++d) record->sizes()[d] = value->sizes[d];
    return record;
}

void save(SavedTensor& slot, TensorImpl* impl) noexcept {
    detail::add_ref(impl->refs);
    slot = {impl, impl->storage->version_now()};
}

void note_stream(Log& log, std::uint32_t index, Device device) {
    void* stream = device_api::current_stream(device.index);
    if (log.stream_runs.empty() || log.stream_runs.back().stream != stream) log.stream_runs.push_back({index, stream});
}

}  // namespace

void check_unwritten(const TensorImpl* view, const Log& log, const Loc& loc) {
    if (log.knows(view)) return;  // value_of() checks it
    const RecordedWrite write = detail::recorded_write(view->storage);
    if (static_cast<std::int32_t>(view->node_version - write.version) >= 0) return;
    const bool is_elsewhere = write.tape & NodeRef::kElsewhere;
    if (is_elsewhere ? !was_missed(write.tape, log) : write.tape != log.id && (is_outside(write.tape) || !is_live(write.tape))) return;
    fail<TapeError>(loc,
                    "a view of shape {} was made before its elements were written to at {} by an op that a gradient flows through, "
                    "and does not know of it: take the view again after that, or detach() it to have a constant",
                    Shape(view->sizes, view->rank), detail::file_and_line(view->storage->last_write));
}

void check_node(const TensorImpl* input, const Loc& loc) {
    if (input->node_version == input->storage->version_now() || input->storage->is_unchecked) return;
    fail<TapeError>(loc,
                    "a recorded tensor of shape {} was modified in place at {} through another view of its "
                    "storage; use the modified tensor itself, or clone() before modifying",
                    Shape(input->sizes, input->rank), detail::file_and_line(input->storage->last_write));
}

std::uint32_t Log::value_of(TensorImpl* input, const Loc& loc) {
    if (input->node.tape == id) {
        if (input->node_version != input->storage->version_now()) [[unlikely]]
            check_node(input, loc);
        return input->node.index;
    }
    if (!(input->flags & TensorImpl::kRequiresGrad)) return input->node.tape != 0 ? joined_value_of(input, loc) : kNoValue;
    const std::uint32_t number = input->meta->leaf_number;
    if (number >= leaf_slots.size()) leaf_slots.resize(number + 1);
    LeafSlot& slot = leaf_slots[number];
    if (slot.tape == id) return slot.index;
    Record* record = new_record(*this, leaf_op, loc, input, 0, 1, 0);
    record->flags = Record::kLeaf;
    const auto index = static_cast<std::uint32_t>(records.size());
    leaves.push_back(index);
    try {
        records.push_back(record);
    } catch (...) {
        leaves.pop_back();
        throw;
    }
    save(record->saved()[0], input);
    slot = {id, index};
    return index;
}

// Appends records for the outputs after the first. The first one's record exists, but holds nothing yet.
static void append_extras(Log& log, const RecordArgs& args, std::uint32_t index, const Loc& loc) {
    try {
        for (int k = 1; k < args.output_count; ++k) {
            Record* extra = new_record(log, leaf_op, loc, args.outputs[k], 0, 0, 0);
            extra->flags = Record::kExtra;
            extra->output_index = static_cast<std::uint8_t>(k);
            log.records.push_back(extra);
        }
    } catch (const std::exception&) {
        log.records[index]->flags = Record::kReleased;
        log.truncate(index);
        detail::rethrow_at(loc);
    }
}

void append_record(Log& log, const RecordArgs& args) {
    if (args.input_count > 255 || args.output_count > 255 || args.saved_count > 255) {
        fail<TapeError>(args.loc, "{}: at most 255 tensors can be recorded in one op, got {}", args.op.name,
                        std::max({args.input_count, args.output_count, args.saved_count}));
    }
    std::uint32_t ids[255];
    const Loc& loc = detail::caller(args.loc);
    std::uint32_t index = 0;
    Record* record = nullptr;
    try {  // all that allocates
        for (int i = 0; i < args.input_count; ++i) {
            ids[i] = args.inputs[i]->defined() ? log.value_of(args.inputs[i]->impl(), loc) : kNoValue;
        }
        index = static_cast<std::uint32_t>(log.records.size());
        record = new_record(log, args.op, loc, args.outputs[0], args.input_count, args.saved_count, args.attr_bytes);
        if (record->device.type != DeviceType::cpu) [[unlikely]]
            note_stream(log, index, record->device);
        log.records.push_back(record);
    } catch (const std::exception&) {
        detail::rethrow_at(loc);
    }
    if (args.output_count > 1) append_extras(log, args, index, loc);
    for (int i = 0; i < args.input_count; ++i) record->inputs()[i] = ids[i];
    for (int i = 0; i < args.saved_count; ++i) save(record->saved()[i], args.saved[i]->impl());
    if (args.attr_bytes) std::memcpy(record->attrs(), args.attrs, args.attr_bytes);
    if (args.is_object) record->flags = Record::kObject;
    record->output_count = static_cast<std::uint8_t>(args.output_count);
    for (int k = 0; k < args.output_count; ++k) {
        TensorImpl* out = args.outputs[k];
        out->node = {log.id, index + static_cast<std::uint32_t>(k)};
        out->node_version = out->storage->version_now();
        if (out->node_version != 0 && !(out->flags & TensorImpl::kView)) {  // it may be a write in place
            detail::recorded_write(out->storage) = {log.id, out->node_version};
        }
    }
}

void release_saved(Record& record) noexcept {
    if (record.flags & Record::kReleased) return;
    for (int i = 0; i < record.saved_count; ++i) Tensor::adopt(record.saved()[i].impl);  // destroys the handle
    if (record.flags & Record::kObject) delete *static_cast<RecordObject**>(record.attrs());
    record.flags |= Record::kReleased;
}

const Log::ItemSpan* Log::span_of(std::uint32_t record) const noexcept {
    auto span = std::upper_bound(item_spans.begin(), item_spans.end(), record, [](std::uint32_t r, const ItemSpan& s) { return r < s.first; });
    if (span == item_spans.begin()) return nullptr;
    --span;
    return record < span->end ? &*span : nullptr;
}

std::uint32_t Log::item_of(const ItemSpan& span, std::uint32_t value) const noexcept {
    if (span.count == 1) return span_items[span.items];
    return value < span.rows ? kNoItem : span_items[span.items + records[value]->output_index];
}

void Log::note_item(std::size_t first, std::uint32_t call, std::uint32_t item) {
    const auto from = static_cast<std::uint32_t>(first), end = static_cast<std::uint32_t>(records.size());
    if (from >= end) return;
    if (!item_spans.empty()) {
        ItemSpan& last = item_spans.back();
        if (last.end == from && last.call == call && last.count == 1 && span_items.back() == item) {
            last.end = end;
            return;
        }
    }
    item_spans.push_back({from, from, end, end, call, static_cast<std::uint32_t>(span_items.size()), 1});
    span_items.push_back(item);
}

void Log::truncate(std::size_t count) noexcept {
    while (records.size() > count) {
        release_saved(*records.back());
        records.pop_back();
    }
    while (!leaves.empty() && leaves.back() >= count) leaves.pop_back();
    hooks.erase(hooks.lower_bound(static_cast<std::uint32_t>(count)), hooks.end());
    std::erase_if(retained, [&](const auto& value) { return value.first >= count; });
    while (!stream_runs.empty() && stream_runs.back().first >= count) stream_runs.pop_back();
    if (!joined.empty()) forget_joined(count);
    std::erase_if(parts, [&](const Parts& of) { return of.ends.back() > count; });
    while (!item_spans.empty() && item_spans.back().first >= count) {
        span_items.resize(item_spans.back().items);
        item_spans.pop_back();
    }
    if (!item_spans.empty()) item_spans.back().end = std::min(item_spans.back().end, static_cast<std::uint32_t>(count));
    for (LeafSlot& slot : leaf_slots) {
        if (slot.index >= count) slot.tape = 0;
    }
}

void Log::clear() noexcept {
    for (Record* record : records) release_saved(*record);
    records.clear();
    leaves.clear();
    hooks.clear();
    retained.clear();
    stream_runs.clear();
    row_blocks.clear();
    item_spans.clear();
    span_items.clear();
    batches = 0;
    if (!joined.empty()) forget_joined(0);
    parts.clear();
    outer.clear();
    parent = nullptr;
    parent_id = 0;
    arena.reset();
}

}  // namespace tapir
