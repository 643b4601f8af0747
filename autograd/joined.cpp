// Records of several threads on one tape.
//
// Note [Joined threads]
// A TapeScope gives its thread a log of its own, the child of the tape's log. Nothing is locked while it records. A value from
// outside stands in Log::outer; such a place, with the bit kOuter, is its number there. When the scope ends, the child's log is left
// for the tape's thread, which takes it in as soon as it meets one of the child's tensors, or begins a backward pass: the child's
// records follow the parent's own, and the numbers of their values are changed to those they have there. The tensors keep the child's
// number. Log::joined says where its values are now. The child's log owns the memory of its records until the tape ends.
//
// So nothing else knows of threads: a backward pass walks one log, and hooks, higher derivatives and reports work as ever.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/thread_tapes_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/out_of_memory_impl.h"

namespace tapir {
namespace {

// The logs that ended scopes have left, of all tapes, in the order of their ends.
struct Left {
    std::mutex mutex;  // also guards Log::joined against the threads that have joined the log
    std::vector<Log*> logs;
    int open = 0;               // scopes: `logs` has room for as many more
    std::atomic<int> count{0};  // of logs
};
Left& left() {
    static auto* all = new Left;  // never destroyed: threads may outlive it
    return *all;
}

const Log::Joined* find(const std::vector<Log::Joined>& joined, std::uint32_t tape) noexcept {
    const auto found = std::find_if(joined.begin(), joined.end(), [&](const Log::Joined& part) { return part.id == tape; });
    return found == joined.end() ? nullptr : &*found;
}

// True if a thread has left records for the log, under this number, whether or not the log has taken them in.
bool is_joined(const Log& log, std::uint32_t log_id, std::uint32_t tape) noexcept {
    Left& all = left();
    const std::lock_guard lock(all.mutex);
    return is_live(log_id) && (find(log.joined, tape) || std::any_of(all.logs.begin(), all.logs.end(), [&](const Log* child) {
                                   return child->id == tape && child->parent_id == log_id;
                               }));
}

}  // namespace

// Appends the child's records; the calls of batch() among them get numbers from `call` on. All that allocates comes first.
void take_in_part(Log& log, Log& child, std::uint32_t call) {
    const auto first = static_cast<std::uint32_t>(log.records.size()), count = static_cast<std::uint32_t>(child.records.size());
    std::vector<std::uint32_t> leaves(child.leaves.size());  // the values of the child's leaves in the log
    log.children.reserve(log.children.size() + 1);
    {
        const std::lock_guard lock(left().mutex);
        log.joined.reserve(log.joined.size() + 1);
    }
    log.records.reserve(log.records.size() + count);
    log.leaves.reserve(log.leaves.size() + child.leaves.size());
    log.leaf_slots.resize(std::max(log.leaf_slots.size(), child.leaf_slots.size()));
    log.retained.reserve(log.retained.size() + child.retained.size());
    log.stream_runs.reserve(log.stream_runs.size() + child.stream_runs.size());
    log.row_blocks.reserve(log.row_blocks.size() + child.row_blocks.size());
    log.item_spans.reserve(log.item_spans.size() + child.item_spans.size());
    log.span_items.reserve(log.span_items.size() + child.span_items.size());

    for (std::size_t k = 0; k < child.leaves.size(); ++k) {
        const std::uint32_t own = child.leaves[k];
        Log::LeafSlot& slot = log.leaf_slots[child.records[own]->saved()[0].impl->meta->leaf_number];
        if (slot.tape != log.id) {
            slot = {log.id, first + own};
            log.leaves.push_back(first + own);
        }
        leaves[k] = slot.index;
    }
    const auto value_in_log = [&](std::uint32_t value) {
        if (value == kNoValue) return value;
        if (value & Log::kOuter) {
            const NodeRef node = child.outer[value & ~Log::kOuter];
            return node.tape == log.id ? node.index : find(log.joined, node.tape)->first + node.index;
        }
        const auto leaf = std::lower_bound(child.leaves.begin(), child.leaves.end(), value);
        return leaf != child.leaves.end() && *leaf == value ? leaves[static_cast<std::size_t>(leaf - child.leaves.begin())] : first + value;
    };
    for (Record* record : child.records) {
        for (int i = 0; i < record->input_count; ++i) record->inputs()[i] = value_in_log(record->inputs()[i]);
        log.records.push_back(record);
    }
    while (!child.hooks.empty()) {
        auto hook = child.hooks.extract(child.hooks.begin());
        hook.key() += first;
        log.hooks.insert(std::move(hook));
    }
    for (auto& [value, tensor] : child.retained) log.retained.emplace_back(first + value, std::move(tensor));
    for (const Log::StreamRun& run : child.stream_runs) log.stream_runs.push_back({first + run.first, run.stream});
    for (RowBlock::Reference& block : child.row_blocks) log.row_blocks.push_back(std::move(block));
    const auto items = static_cast<std::uint32_t>(log.span_items.size());
    for (Log::ItemSpan span : child.item_spans) {
        for (std::uint32_t* place : {&span.first, &span.rule, &span.rows, &span.end}) *place += first;
        span.call += call;
        span.items += items;
        log.item_spans.push_back(span);
    }
    log.span_items.insert(log.span_items.end(), child.span_items.begin(), child.span_items.end());
    log.batches = std::max(log.batches, call + child.batches);

    child.records.clear();
    child.leaves.clear();
    child.retained.clear();
    child.row_blocks.clear();
    child.outer.clear();
    log.children.push_back(&child);
    const std::lock_guard lock(left().mutex);
    log.joined.push_back({child.id, first, count});
}

bool Log::has_joined(std::uint32_t tape) const noexcept {
    if (tape & NodeRef::kElsewhere) return false;
    if (parent) return tape == parent_id || is_joined(*parent, parent_id, tape);
    return find(joined, tape) || is_joined(*this, id, tape);
}

std::uint32_t Log::joined_value_of(const TensorImpl* input, const Loc& loc) {
    const std::uint32_t tape = input->node.tape;
    if (!has_joined(tape)) return kNoValue;
    check_node(input, loc);
    if (parent) {
        outer.push_back(input->node);
        return kOuter | static_cast<std::uint32_t>(outer.size() - 1);
    }
    if (!find(joined, tape)) take_in_joined(*this);
    return find(joined, tape)->first + input->node.index;
}

void Log::forget_joined(std::size_t count) noexcept {
    const std::lock_guard lock(left().mutex);
    std::erase_if(joined, [&](const Joined& part) { return part.first >= count; });
}

void take_in_joined(Log& log) {
    Left& all = left();
    if (all.count.load(std::memory_order_acquire) == 0 || log.parent) return;
    for (;;) {
        Log* child = nullptr;
        {
            const std::lock_guard lock(all.mutex);
            const auto found = std::find_if(all.logs.begin(), all.logs.end(), [&](const Log* of) { return of->parent_id == log.id; });
            if (found == all.logs.end()) return;
            child = *found;
        }
        take_in_part(log, *child, log.batches);
        const std::lock_guard lock(all.mutex);
        all.logs.erase(std::find(all.logs.begin(), all.logs.end(), child));
        --all.count;
    }
}

Log* open_part(Log& log, const Loc& loc) {
    Log* const part = open_joined_log(loc);
    part->parent = &log;
    part->parent_id = log.id;
    return part;
}

void note_parts(Log& log, std::uint32_t first, std::vector<std::uint32_t> ends) {
    constexpr std::uint8_t users = Record::kObject | Record::kOpaque | Record::kHooked;  // code of the user runs in their backward
    for (std::uint32_t i = first; i < ends.back(); ++i) {
        if (log.records[i]->flags & users) return;
    }
    log.parts.push_back({first, std::move(ends)});
}

void drop_joined(Log& log) noexcept {
    Left& all = left();
    std::vector<Log*> closing = std::exchange(log.children, {});
    for (Log* child : closing) close_log(child);
    if (log.parent || all.count.load(std::memory_order_acquire) == 0) return;
    for (;;) {  // those that it has not taken in
        Log* child = nullptr;
        {
            const std::lock_guard lock(all.mutex);
            const auto found = std::find_if(all.logs.begin(), all.logs.end(), [&](const Log* of) { return of->parent == &log; });
            if (found == all.logs.end()) return;
            child = *found;
            all.logs.erase(found);
            --all.count;
        }
        close_log(child);
    }
}

TapeScope::TapeScope(Tape& tape, Loc loc) {
    const Loc line = detail::caller(loc);
    ThreadTapes& own = ThreadTapes::own();
    if (own.innermost && &own.innermost->log() == &tape.log()) return;
    detail::refuse_in_instance("TapeScope", line);
    if (own.innermost || own.joined) {
        const Log& there = own.innermost ? own.innermost->log() : *own.joined;
        fail<TapeError>(line, "TapeScope: this thread records for another tape since {}; end that first", detail::file_and_line(there.opened));
    }
    if (detail::is_tracing()) fail<TapeError>(line, "TapeScope: not while a graph is traced");
    Left& all = left();
    detail::at_line(line, [&] {
        const std::lock_guard lock(all.mutex);
        all.logs.reserve(all.logs.size() + static_cast<std::size_t>(all.open) + 1);
        ++all.open;
    });
    try {
        log_ = open_part(tape.log(), line);
    } catch (...) {
        const std::lock_guard lock(all.mutex);
        --all.open;
        throw;
    }
    own.state = &detail::thread;
    own.joined = log_;
    own.note_apart();
    detail::set_log(own.no_grad_scopes == 0 ? log_ : nullptr);
}

TapeScope::~TapeScope() {
    if (!log_) return;
    ThreadTapes& own = ThreadTapes::own();
    own.joined = nullptr;
    own.note_apart();
    if (detail::thread.log == log_) detail::set_log(nullptr);
    Left& all = left();
    {
        const std::lock_guard lock(all.mutex);
        --all.open;
        if (is_live(log_->parent_id) && !log_->records.empty()) {
            all.logs.push_back(log_);
            ++all.count;
            return;
        }
    }
    close_log(log_);
}

}  // namespace tapir
