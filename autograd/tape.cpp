// Opening and closing tapes, and the tapes' part in tensors.
#include "tapir/autograd/tape.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "tapir/autograd/apart_impl.h"
#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/thread_tapes_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"

namespace tapir {

constinit detail::SharedCount detail::live_tapes;

namespace {

constinit thread_local ThreadTapes tapes;

// The numbers of the tapes that are alive in the process, so that tensors of another thread's tape are noticed.
// Tapes beyond the table's size are not listed: their tensors count as constants elsewhere.
constexpr int kLiveSlots = 256;
std::atomic<std::uint32_t> live_numbers[kLiveSlots];
std::atomic<int> live_high{0};  // slots in use are below this
std::atomic<std::uint32_t> next_number{1};

std::uint32_t open_number() {
    std::uint32_t number = 0;
    while (number == 0) number = next_number.fetch_add(1, std::memory_order_relaxed) & ~NodeRef::kElsewhere;
    detail::live_tapes.add(1);
    for (int i = 0; i < kLiveSlots; ++i) {
        std::uint32_t expected = 0;
        if (live_numbers[i].load(std::memory_order_relaxed) == 0 && live_numbers[i].compare_exchange_strong(expected, number)) {
            int high = live_high.load(std::memory_order_relaxed);
            while (high <= i && !live_high.compare_exchange_weak(high, i + 1)) {}
            break;
        }
    }
    return number;
}

void close_number(std::uint32_t number) {
    detail::live_tapes.add(-1);
    for (auto& slot : live_numbers) {
        std::uint32_t expected = number;
        if (slot.load(std::memory_order_relaxed) == number && slot.compare_exchange_strong(expected, 0)) return;
    }
}

// The only class of logs: it enters them in gdb's list.
struct ListedLog : Log {
    ListedLog() {
        gdb.log = this;
        gdb::list(gdb);
    }
    ~ListedLog() { gdb::unlist(gdb); }
    ListedLog(const ListedLog&) = delete;
    ListedLog& operator=(const ListedLog&) = delete;
    GdbLog gdb;
    const ThreadTapes* home = &tapes;
    ListedLog* next_spare = nullptr;
    bool is_of_scope = false;  // a TapeScope's
};

// Unused logs of TapeScopes, kept with their memory: threads that join a tape are often new ones.
struct SpareJoined {
    std::mutex mutex;
    ListedLog* first = nullptr;
};
SpareJoined& spare_joined() {
    static auto* logs = new SpareJoined;  // never destroyed: threads may outlive it
    return *logs;
}

// Unused logs, kept with their memory: the next tape on this thread appends without a malloc.
struct SpareLogs {
    ListedLog* first = nullptr;
    bool is_over = false;  // the thread is ending: logs closed from here on are not kept
    SpareLogs() = default;
    SpareLogs(const SpareLogs&) = delete;
    SpareLogs& operator=(const SpareLogs&) = delete;
    ~SpareLogs() {
        is_over = true;
        tapes.forget_tapes();
        while (ListedLog* log = std::exchange(first, first ? first->next_spare : nullptr)) delete log;
    }
};

SpareLogs& spare_logs() {
    thread_local SpareLogs logs;
    return logs;
}

ListedLog* acquire_log(const Loc& loc) {
    SpareLogs& spare = spare_logs();
    if (!spare.first) return detail::at_line(loc, [] { return new ListedLog; });
    return std::exchange(spare.first, spare.first->next_spare);
}

// Leaves are numbered so that a tape finds a leaf's record by an index, not by a hash.
struct LeafNumbers {
    std::mutex mutex;
    std::vector<std::uint32_t> free;  // has capacity for all numbers given out
    std::uint32_t next = 0;
};

LeafNumbers& leaf_numbers() {
    static auto* numbers = new LeafNumbers;  // never destroyed: static tensors may outlive it
    return *numbers;
}

}  // namespace

bool is_live(std::uint32_t number) noexcept {
    const int high = live_high.load(std::memory_order_acquire);
    for (int i = 0; i < high; ++i) {
        if (live_numbers[i].load(std::memory_order_relaxed) == number) return true;
    }
    return false;
}

std::uint32_t last_tape() noexcept { return (next_number.load(std::memory_order_relaxed) - 1) & ~NodeRef::kElsewhere; }

Log* open_joined_log(const Loc& loc) {
    ListedLog* log = nullptr;
    {
        SpareJoined& spare = spare_joined();
        const std::lock_guard lock(spare.mutex);
        if ((log = spare.first)) spare.first = log->next_spare;
    }
    if (!log) log = detail::at_line(loc, [] { return new ListedLog; });
    log->is_of_scope = true;
    log->opened = loc;
    log->last_backward = Loc{};
    log->id = open_number();
    return log;
}

void close_log(Log* log) noexcept {
    auto* listed = static_cast<ListedLog*>(log);
    close_number(log->id);
    log->clear();  // first: records of joined threads lie in the memory of these logs, which other threads may use as soon as they are dropped
    drop_joined(*log);
    log->id = 0;
    if (listed->is_of_scope) {
        SpareJoined& spare = spare_joined();
        const std::lock_guard lock(spare.mutex);
        listed->next_spare = std::exchange(spare.first, listed);
        return;
    }
    if (listed->home != &tapes || spare_logs().is_over) {
        delete listed;
        return;
    }
    listed->next_spare = std::exchange(spare_logs().first, listed);
}

// --- The tapes of a thread -------------------------------------------------------------------------------------------------------

ThreadTapes& ThreadTapes::own() noexcept { return tapes; }

void ThreadTapes::resume(Log* paused) noexcept {
    const bool is_there = paused && ((innermost && &innermost->log() == paused) || walking == paused || joined == paused);
    detail::set_log(is_there ? paused : nullptr);
}

void ThreadTapes::note_apart() noexcept { (state ? *state : detail::thread).observed.is_apart = !innermost && !joined && no_grad_scopes == 0; }

bool ThreadTapes::take_out_of(Tape*& innermost_of_chain, Tape& tape) noexcept {
    for (Tape **place = &innermost_of_chain, *inner = nullptr; *place; inner = *place, place = &(*place)->outer_) {
        if (*place != &tape) continue;
        *place = tape.outer_;
        if (inner) inner->paused_ = tape.paused_;
        return true;
    }
    return false;
}

void ThreadTapes::take_out(Tape& tape) noexcept {
    const bool is_innermost = innermost == &tape;
    bool found = take_out_of(innermost, tape);
    for (ApartScope* scope = apart; scope && !found; scope = scope->outer_) found = take_out_of(scope->hidden_, tape);
    // If a hook ends the tape that backward walks, the walk goes on as before.
    const bool is_walked_to_the_end = tape.log_->depth == 1 && walking == tape.log_;
    if (is_innermost && state->log == tape.log_ && !is_walked_to_the_end) detail::set_log(*state, tape.paused_);
    note_apart();
}

void ThreadTapes::forget(Tape* innermost_of_chain) noexcept {
    for (Tape* tape = innermost_of_chain; tape; tape = tape->outer_) tape->home_ = nullptr;
}

void ThreadTapes::forget_tapes() noexcept {
    forget(std::exchange(innermost, nullptr));
    for (ApartScope* scope = apart; scope; scope = scope->outer_) forget(std::exchange(scope->hidden_, nullptr));
}

// True if an ApartScope hides the tape of this number.
bool is_outside(std::uint32_t tape) noexcept {
    for (const ApartScope* scope = tapes.apart; scope; scope = scope->outer_) {
        if (scope->hidden_ && scope->hidden_->log().id == tape) return true;
    }
    return false;
}

ApartScope::ApartScope() noexcept : hidden_(tapes.innermost), outer_(tapes.apart) {
    tapes.innermost = nullptr;
    tapes.apart = this;
}

ApartScope::~ApartScope() {
    tapes.innermost = hidden_;
    tapes.apart = outer_;
}

bool tracked_elsewhere(const TensorImpl* input, const Log& log, const Loc& loc) {
    const std::uint32_t tape = input->node.tape;
    if (tape & NodeRef::kElsewhere) {
        if (!was_missed(tape, log)) return false;
        fail<TapeError>(loc,
                        "a tensor of shape {} was computed{} on a thread without a tape, of tensors that require a gradient: "
                        "the tape of line {} did not record that; open a TapeScope on that thread, or detach() it to have a constant",
                        Shape(input->sizes, input->rank), computed_at(input), log.opened.line());
    }
    if (log.has_joined(tape)) return true;
    if (is_outside(tape) || !is_live(tape)) return false;
    fail<TapeError>(loc,
                    "a tensor of shape {} was recorded on a tape of another thread, or in a TapeScope that has not ended; a tape takes only its "
                    "own tensors and constants (this tape began on line {}): detach() it first",
                    Shape(input->sizes, input->rank), log.opened.line());
}

// For a walk from y while this thread has no tape.
[[noreturn]] void fail_without_tape(const char* what, const Tensor& y, const Loc& loc) {
    const std::uint32_t tape = y.defined() ? y.impl()->node.tape : 0;
    if (tape == 0 || (tape & NodeRef::kElsewhere))
        fail<TapeError>(loc, "{}: no tape is active; make one before computing the loss: Tape tape;", what);
    if (is_live(tape)) {
        fail<TapeError>(loc,
                        "{}: no tape is active on this thread: this tensor was recorded on a tape of another one; "
                        "call {} there",
                        what, what);
    }
    fail<TapeError>(loc, "{}: no tape is active: the tape that this tensor was recorded on has ended; call {} in that tape's scope", what, what);
}

// A tape of a thread that has joined another would not know where its records belong.
static ThreadTapes* home_for_tape(const Loc& loc) {
    detail::refuse_in_instance("Tape", loc);
    if (tapes.joined)
        fail<TapeError>(loc, "Tape: this thread records for the tape of another one since {}; end that TapeScope first",
                        detail::file_and_line(tapes.joined->opened));
    return &tapes;
}

Tape::Tape(TapeOptions options, Loc loc)
    : home_(home_for_tape(detail::caller(loc))), log_(tapes.innermost ? tapes.innermost->log_ : acquire_log(detail::caller(loc))),
      paused_(detail::thread.log), outer_(tapes.innermost), begin_(log_->records.size()), options_(options), loc_(detail::caller(loc)) {
    if (log_->depth++ == 0) {
        log_->id = open_number();
        log_->opened = loc_;
        log_->last_backward = Loc{};
    }
    tapes.state = &detail::thread;
    tapes.innermost = this;
    tapes.note_apart();
    GdbLog& seen = static_cast<ListedLog*>(log_)->gdb;
    seen.tapes = log_->depth;
    seen.begin = begin_;
    seen.opened = loc_;
    detail::set_log(log_);
}

Tape::~Tape() {
    if (home_) home_->take_out(*this);
    GdbLog& seen = static_cast<ListedLog*>(log_)->gdb;
    seen.tapes = log_->depth - 1;
    if (home_ && home_->innermost) {
        seen.begin = home_->innermost->begin_;
        seen.opened = home_->innermost->loc_;
    }
    if (--log_->depth == 0 && log_->walks == 0) close_log(log_);
}

std::size_t Tape::size() const noexcept { return log_->records.size() - begin_; }

Tape* Tape::current() noexcept { return tapes.innermost; }

namespace detail {
int no_grad_depth() noexcept;  // for autograd/trace/tracer.cpp
int no_grad_depth() noexcept { return tapes.no_grad_scopes; }
}  // namespace detail

NoGradScope::NoGradScope() noexcept : paused_(detail::thread.log) {
    detail::set_log(nullptr);
    ++tapes.no_grad_scopes;
    tapes.note_apart();
}
NoGradScope::~NoGradScope() {
    --tapes.no_grad_scopes;
    tapes.resume(paused_);
    tapes.note_apart();
}

bool is_recording() noexcept { return detail::thread.log != nullptr; }

Tensor stop_gradient(In x) {
    detail::check_defined(x, "stop_gradient");
    return x.tensor.detach();
}

// --- Tensors -----------------------------------------------------------------------------------------------------------

AutogradMeta& detail::meta_of(const Tensor& tensor) {
    TensorImpl* impl = tensor.impl();
    if (!impl->meta) {
        auto meta = std::make_unique<AutogradMeta>();
        LeafNumbers& numbers = leaf_numbers();
        const std::lock_guard lock(numbers.mutex);
        if (numbers.free.empty()) {
            const std::size_t given = std::size_t{numbers.next} + 1;  // so that giving one back cannot fail
            if (numbers.free.capacity() < given) numbers.free.reserve(std::max<std::size_t>(2 * given, 64));
            meta->leaf_number = numbers.next++;
        } else {
            meta->leaf_number = numbers.free.back();
            numbers.free.pop_back();
        }
        impl->meta = meta.release();
    }
    return *impl->meta;
}

void detail::destroy_meta(AutogradMeta* meta) noexcept {
    LeafNumbers& numbers = leaf_numbers();
    {
        const std::lock_guard lock(numbers.mutex);
        numbers.free.push_back(meta->leaf_number);
    }
    delete meta;
}

Tensor& Tensor::requires_grad_(bool on, Loc loc) {
    if (!impl_) detail::fail_undefined("requires_grad_", loc);
    if (on && !is_floating(dtype())) {
        fail<DTypeError>(loc, "requires_grad_: only floating tensors have gradients, this one holds {}; convert it with to(float32)", name(dtype()));
    }
    const Log* log = detail::thread.log;
    if (log && log->knows(impl_)) {
        fail<TapeError>(loc, "requires_grad_: the result of a recorded op is tracked already; detach() it to make a leaf");
    }
    impl_->flags &= static_cast<std::uint8_t>(~TensorImpl::kConverted);
    if (on) {
        detail::at_line(loc, [&] { detail::meta_of(*this); });
        impl_->flags |= TensorImpl::kRequiresGrad;
    } else {
        impl_->flags &= static_cast<std::uint8_t>(~TensorImpl::kRequiresGrad);
    }
    return *this;
}

bool Tensor::requires_grad() const noexcept {
    if (!impl_) return false;
    if (impl_->flags & TensorImpl::kRequiresGrad) return true;
    const Log* log = tapes.innermost ? &tapes.innermost->log() : tapes.joined;
    return log && log->knows(impl_);
}

bool Tensor::is_leaf() const noexcept { return impl_ && ((impl_->flags & TensorImpl::kRequiresGrad) || !requires_grad()); }

namespace detail {
void trace_detached(const Tensor& from, const Tensor& to);  // autograd/trace/tracer.cpp
}

Tensor Tensor::detach(Loc loc) const {
    if (!impl_) return {};
    return detail::at_line(loc, [&] {
        Tensor y = detail::alias(impl_);
        if (detail::thread.trace != 0) [[unlikely]]
            detail::trace_detached(*this, y);
        return y;
    });
}

}  // namespace tapir
