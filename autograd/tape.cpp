// Opening and closing tapes, and what a tensor knows of them.
#include "tapir/autograd/tape.h"

#include <atomic>
#include <mutex>

#include "tapir/autograd/apart_impl.h"
#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/core/make_impl.h"

namespace tapir {
namespace {

thread_local Tape* current_tape = nullptr;
thread_local const ApartScope* apart = nullptr;  // the innermost one

// The numbers of the tapes that are alive in the process, so that a tensor of another thread's tape is noticed.
// A tape beyond the table's size is simply not listed: its tensors count as constants elsewhere.
constexpr int kLiveSlots = 256;
std::atomic<std::uint32_t> live_tapes[kLiveSlots];
std::atomic<int> live_high{0};  // slots in use are below this
std::atomic<std::uint32_t> next_number{1};

std::uint32_t open_number() {
    std::uint32_t number = next_number.fetch_add(1, std::memory_order_relaxed);
    if (number == 0) number = next_number.fetch_add(1, std::memory_order_relaxed);
    for (int i = 0; i < kLiveSlots; ++i) {
        std::uint32_t expected = 0;
        if (live_tapes[i].load(std::memory_order_relaxed) == 0 && live_tapes[i].compare_exchange_strong(expected, number)) {
            int high = live_high.load(std::memory_order_relaxed);
            while (high <= i && !live_high.compare_exchange_weak(high, i + 1)) {
            }
            break;
        }
    }
    return number;
}

bool is_live(std::uint32_t number) {
    const int high = live_high.load(std::memory_order_acquire);
    for (int i = 0; i < high; ++i) {
        if (live_tapes[i].load(std::memory_order_relaxed) == number) return true;
    }
    return false;
}

void close_number(std::uint32_t number) {
    for (auto& slot : live_tapes) {
        std::uint32_t expected = number;
        if (slot.load(std::memory_order_relaxed) == number && slot.compare_exchange_strong(expected, 0)) return;
    }
}

// All logs are made here. They stand in gdb's list.
struct ListedLog : Log {
    ListedLog() {
        gdb.log = this;
        gdb::list(gdb);
    }
    ~ListedLog() { gdb::unlist(gdb); }
    ListedLog(const ListedLog&) = delete;
    ListedLog& operator=(const ListedLog&) = delete;
    GdbLog gdb;
};

// Logs that are not in use, kept with their memory: the next tape on this thread appends without a malloc.
std::vector<std::unique_ptr<ListedLog>>& spare_logs() {
    thread_local std::vector<std::unique_ptr<ListedLog>> logs;
    return logs;
}

ListedLog* acquire_log() {
    auto& spare = spare_logs();
    if (spare.empty()) return new ListedLog;
    ListedLog* log = spare.back().release();
    spare.pop_back();
    return log;
}

// Leaves are numbered so that a tape finds a leaf's record by an index, not by a hash.
struct LeafNumbers {
    std::mutex mutex;
    std::vector<std::uint32_t> free;
    std::uint32_t next = 0;
};

LeafNumbers& leaf_numbers() {
    static auto* numbers = new LeafNumbers;  // never destroyed: static tensors may outlive it
    return *numbers;
}

}  // namespace

// Whether an ApartScope hides the tape of this number.
bool is_outside(std::uint32_t tape) noexcept {
    for (const ApartScope* scope = apart; scope; scope = scope->outer_) {
        if (scope->hidden_ && scope->hidden_->log().id == tape) return true;
    }
    return false;
}

ApartScope::ApartScope() noexcept : hidden_(current_tape), outer_(apart) {
    current_tape = nullptr;
    apart = this;
}

ApartScope::~ApartScope() {
    current_tape = hidden_;
    apart = outer_;
}

void check_foreign(const TensorImpl* input, const Log& log, const Loc& loc) {
    if (is_outside(input->node.tape) || !is_live(input->node.tape)) return;
    fail<TapeError>(loc,
                    "a tensor of shape {} was recorded on a tape of another thread; a tape takes only its own tensors "
                    "and constants (this tape began on line {}): detach() it first",
                    Shape(input->sizes, input->rank), log.opened.line());
}

// Of a walk from y while this thread has no tape.
[[noreturn]] void fail_without_tape(const char* what, const Tensor& y, const Loc& loc) {
    const std::uint32_t tape = y.defined() ? y.impl()->node.tape : 0;
    if (tape == 0) fail<TapeError>(loc, "{}: no tape is active; make one before computing the loss: Tape tape;", what);
    if (is_live(tape)) {
        fail<TapeError>(loc, "{}: no tape is active on this thread: this tensor was recorded on a tape of another one; "
                        "call {} there", what, what);
    }
    fail<TapeError>(loc, "{}: no tape is active: the tape that this tensor was recorded on has ended; call {} in that tape's scope",
                    what, what);
}

Tape::Tape(TapeOptions options, Loc loc)
    : log_(current_tape ? current_tape->log_ : acquire_log()),
      paused_(detail::thread.log),
      outer_(current_tape),
      begin_(log_->records.size()),
      options_(options),
      loc_(detail::caller(loc)) {
    if (log_->depth++ == 0) {
        log_->id = open_number();
        log_->opened = loc_;
        log_->last_backward = Loc{};
    }
    current_tape = this;
    GdbLog& seen = static_cast<ListedLog*>(log_)->gdb;
    seen.tapes = log_->depth;
    seen.begin = begin_;
    seen.opened = loc_;
    detail::set_log(log_);
}

Tape::~Tape() {
    if (current_tape == this) {
        current_tape = outer_;
        detail::set_log(paused_);
    } else {  // not the innermost: take it out of the chain
        for (Tape* inner = current_tape; inner; inner = inner->outer_) {
            if (inner->outer_ != this) continue;
            inner->outer_ = outer_;
            inner->paused_ = paused_;
            break;
        }
    }
    GdbLog& seen = static_cast<ListedLog*>(log_)->gdb;
    seen.tapes = log_->depth - 1;
    if (current_tape) {
        seen.begin = current_tape->begin_;
        seen.opened = current_tape->loc_;
    }
    if (--log_->depth > 0) return;
    close_number(log_->id);
    log_->clear();
    log_->id = 0;
    spare_logs().emplace_back(static_cast<ListedLog*>(log_));
}

std::size_t Tape::size() const noexcept { return log_->records.size() - begin_; }

Tape* Tape::current() noexcept { return current_tape; }

static constinit thread_local int no_grad_scopes = 0;
namespace detail {
int no_grad_depth() noexcept;  // for autograd/trace/tracer.cpp
int no_grad_depth() noexcept { return no_grad_scopes; }
}  // namespace detail

NoGradScope::NoGradScope() noexcept : paused_(detail::thread.log) {
    detail::set_log(nullptr);
    ++no_grad_scopes;
}
NoGradScope::~NoGradScope() {
    detail::set_log(paused_);
    --no_grad_scopes;
}

bool is_recording() noexcept { return detail::thread.log != nullptr; }

Tensor stop_gradient(In x) {
    detail::check_defined(x, "stop_gradient");
    return x.tensor.detach();
}

// --- A tensor's part ---------------------------------------------------------------------------------------------------

AutogradMeta& detail::meta_of(const Tensor& tensor) {
    TensorImpl* impl = tensor.impl();
    if (!impl->meta) {
        auto meta = std::make_unique<AutogradMeta>();
        LeafNumbers& numbers = leaf_numbers();
        const std::lock_guard lock(numbers.mutex);
        if (numbers.free.empty()) {
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
        fail<DTypeError>(loc, "requires_grad_: only floating tensors have gradients, this one holds {}; convert it with to(float32)",
                         name(dtype()));
    }
    const Log* log = detail::thread.log;
    if (log && impl_->node.tape == log->id) {
        fail<TapeError>(loc, "requires_grad_: the result of a recorded op is tracked already; detach() it to make a leaf");
    }
    impl_->flags &= static_cast<std::uint8_t>(~TensorImpl::kConverted);
    if (on) {
        detail::meta_of(*this);
        impl_->flags |= TensorImpl::kRequiresGrad;
    } else {
        impl_->flags &= static_cast<std::uint8_t>(~TensorImpl::kRequiresGrad);
    }
    return *this;
}

bool Tensor::requires_grad() const noexcept {
    if (!impl_) return false;
    if (impl_->flags & TensorImpl::kRequiresGrad) return true;
    const Log* log = current_tape ? &current_tape->log() : nullptr;
    return log && impl_->node.tape == log->id;
}

bool Tensor::is_leaf() const noexcept {
    return impl_ && ((impl_->flags & TensorImpl::kRequiresGrad) || !requires_grad());
}

namespace detail {
void trace_detached(const Tensor& from, const Tensor& to);  // autograd/trace/tracer.cpp
}

Tensor Tensor::detach() const {
    if (!impl_) return {};
    Tensor y = detail::alias(impl_);
    if (detail::thread.trace != 0) [[unlikely]] detail::trace_detached(*this, y);
    return y;
}

}  // namespace tapir
