// The scheduler of batch(): which instance runs, which ops are computed together, and what happens when one throws.
//
// All instances of a thread's outermost batch() have one scheduler, with the loop on the thread's own stack. It resumes each instance until it
// waits: for peers of an op, or for a batch() of its own. When none can go on, it computes a group of waiting calls: see next_group().
// Instances go on in the order in which they began, so that a program does the same each time.
//
// Note [Without memory]: an instance that waits must go on in the end, as objects of the program lie on its stack. So queues and groups are lists
// whose links lie in what they hold. What else takes memory is done before an instance waits, or fails the whole batch().
//
// Note [Rows]: a group's operands are put together by stack(), its results taken apart by unbind(), each with its record, so that the gradient
// of a group needs no rule of its own. A result is a row of the group's block in memory, but a tensor with a storage of its own: the
// program may write to it. Where the rows of operands lie behind each other, as those of a block do, they are not copied.
//
// Note [At once]: to wait for peers takes about half a microsecond of the CPU, and most ops of one example take less. They gain all the same where a
// tape records them, and computes their gradients together, and on a device whose launches are dear. Elsewhere only those wait whose group
// reads a weight once for all its rows. (SST's trees, state size 64, no tape: 17,900 trees a second instead of 12,700; 16,300 one by one.)
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/thread_tapes_impl.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/deterministic.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/fiber_impl.h"
#include "tapir/core/gdb/layout_impl.h"
#include "tapir/core/generator.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/on_threads_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/thread_words_impl.h"
#include "tapir/ops/batch/batch.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/batch/rows_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

constexpr int kMostResults = 8;
constexpr std::size_t kMostTogether = 255;  // the tensors of one record

// What belongs to an instance beside its stack.
class OpState {
 public:
    // That of the thread as it is now.
    static OpState now() noexcept {
        OpState state;
        state.thread_ = thread;
        state.tapes_ = ThreadTapes::own();
        state.words_ = thread_words;
        state.call_line_ = call_line;
        return state;
    }
    // Gives the thread this state. Modules' calls and flops count on.
    void restore() const noexcept {
        const std::uint32_t module_calls = thread.module_calls;
        const double flops = thread.flops;
        thread = thread_;
        thread.module_calls = module_calls;
        thread.flops = flops;
        ThreadTapes::own() = tapes_;
        thread_words = words_;
        call_line = call_line_;
    }
    // The same, and keeps the thread's.
    void exchange() noexcept {
        const OpState before = now();
        restore();
        *this = before;
    }
    const ThreadState& thread_state() const noexcept { return thread_; }
    // The same for another thread, which records in this log; null: nowhere.
    OpState on_thread(Log* log) const noexcept {
        OpState state = *this;
        state.tapes_.state = nullptr;
        if (!log) return state;
        set_log(state.thread_, log);
        state.thread_.observed.is_apart = false;
        state.tapes_.innermost = nullptr;
        state.tapes_.joined = log;
        return state;
    }
    void set_generator(Generator* own) noexcept { words_.generator = own; }

 private:
    friend struct BatchLayout;
    ThreadState thread_;
    ThreadTapes tapes_;
    ThreadWords words_;
    Loc call_line_;  // out_of_memory_impl.h: the innermost CallLine's
};

class Exchanged {
 public:
    explicit Exchanged(OpState& state) noexcept : state_(state) { state_.exchange(); }
    ~Exchanged() { state_.exchange(); }
    Exchanged(const Exchanged&) = delete;
    Exchanged& operator=(const Exchanged&) = delete;

 private:
    OpState& state_;
};

class GeneratorScope {
 public:
    explicit GeneratorScope(Generator* own) noexcept : before_(exchange_generator(own)) {}
    ~GeneratorScope() { exchange_generator(before_); }
    GeneratorScope(const GeneratorScope&) = delete;
    GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
    Generator* before_;
};

// Ends an instance: thrown by ops in it after another instance has thrown.
struct Ended {};

class Scheduler;
constinit thread_local Scheduler* scheduler = nullptr;

// Stacks for the thread's next instances: to make one takes longer than most ops.
constexpr std::size_t kMostSpare = 2048;
thread_local std::vector<std::unique_ptr<FiberStack>> spare_stacks;

std::unique_ptr<FiberStack> stack_of(std::size_t bytes) {
    for (std::size_t i = spare_stacks.size(); i-- > 0;) {
        if (spare_stacks[i]->size() < bytes || spare_stacks[i]->size() > 4 * bytes) continue;
        std::swap(spare_stacks[i], spare_stacks.back());
        std::unique_ptr<FiberStack> stack = std::move(spare_stacks.back());
        spare_stacks.pop_back();
        return stack;
    }
    return std::make_unique<FiberStack>(bytes);
}

// One call of batch().
struct Frame {
    const std::function<void(std::int64_t)>& body;
    const BatchOptions& options;
    std::int64_t count;
    BatchInstance* parent;  // the instance that called it; null: the thread
    Frame* outer;           // the parent's
    Loc loc;
    OpState state;
    std::uint64_t seed;
    std::int64_t next = 0, running = 0;
    std::int64_t failed = -1;  // the lowest instance that has thrown
    std::exception_ptr error;

    void run(std::int64_t number) noexcept {
        try {
            body(number);
        } catch (const Ended&) {
        } catch (...) {
            fail(number, std::current_exception());
        }
    }
    void fail(std::int64_t number, std::exception_ptr thrown) noexcept {
        if (failed >= 0 && failed < number) return;
        failed = number;
        error = std::move(thrown);
    }
    bool is_ending() const noexcept {
        for (const Frame* frame = this; frame; frame = frame->outer) {
            if (frame->error) return true;
        }
        return false;
    }
    bool is_awaited = false;          // the parent waits for nothing else
    std::int64_t run_by_parent = -1;  // the instance that has no stack of its own
    bool is_done() const noexcept { return running == 0 && (next == count || is_ending()); }
};

// The call of an op that waits. It lies on its instance's stack.
struct Waiting {
    Waiting(BatchInstance& of, std::int64_t its_order, const BatchCall& its_call, const BatchRule& its_rule,
            std::initializer_list<Tensor*> made) noexcept
        : instance(&of), call(its_call), rule(its_rule), results(made.begin()), order(its_order), result_count(static_cast<int>(made.size())) {}

    BatchInstance* instance;
    const BatchCall& call;
    const BatchRule& rule;
    Tensor* const* results;
    Waiting* behind = nullptr;  // in its group
    const std::int64_t order;   // the instance's
    int result_count;
    int word_count = 0;
    std::uint64_t hash = 0;
    bool is_computed = false, is_ready = false;
    std::uint64_t words[96];  // behind what is always used: the stack of each instance takes the fewer lines of the cache

    bool add(std::uint64_t word) noexcept {
        if (word_count == static_cast<int>(std::size(words))) return false;
        words[word_count++] = word;
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
        return true;
    }
    template <class T>
    bool add_address(const T* address) noexcept {
        return add(reinterpret_cast<std::uintptr_t>(address));
    }
    bool is_like(const Waiting& other) const noexcept {
        return hash == other.hash && word_count == other.word_count &&
            std::memcmp(words, other.words, static_cast<std::size_t>(word_count) * sizeof(words[0])) == 0;
    }
};

std::uint64_t seed_for(std::uint64_t key, std::uint64_t number) noexcept {
    const Philox made = philox4x32(number, /*stream=*/1, key);
    return made.value[0] | std::uint64_t{made.value[1]} << 32;
}

}  // namespace

constinit thread_local BatchInstance* batch_instance = nullptr;

class BatchInstance {
 public:
    BatchInstance(Frame& of, std::int64_t its_number, std::int64_t its_order, std::unique_ptr<FiberStack> its_stack)
        : frame(&of), number(its_number), order(its_order), item(of.parent ? of.parent->item : its_number), stack(std::move(its_stack)),
          generator(seed_for(of.seed, static_cast<std::uint64_t>(its_number))), state(of.state), fiber(*stack, [this] { frame->run(number); }) {
        state.set_generator(&generator);
    }

    Frame* frame;                      // the innermost one that it has part in
    const std::int64_t number, order;  // in its frame; among all
    const std::int64_t item;           // the number of the item of the outermost batch() that it is a part of
    std::unique_ptr<FiberStack> stack;
    Generator generator;
    OpState state;
    Fiber fiber;
    const OpInfo* alone = nullptr;  // the op that found no peer, and runs now
    std::int64_t waits = 0;         // ops that it has waited with
    bool has_forked = false;        // it has called batch()
    // For gdb.
    const Waiting* waiting = nullptr;  // the call with which it has been suspended last
    const Frame* awaits = nullptr;     // the batch() of its own for which it is suspended
    BatchInstance *next = nullptr, *previous = nullptr;

    BatchInstance* behind = nullptr;  // in the queue that it is in
};

namespace {

// A list whose links lie in what it holds: each is in one at most.
template <class T, T* T::* link>
class Queue {
 public:
    void push(T& one) noexcept {
        one.*link = nullptr;
        (last_ ? last_->*link : first_) = &one;
        last_ = &one;
    }
    // Returns null if there is none.
    T* pop() noexcept {
        T* const one = first_;
        if (!one) return nullptr;
        first_ = one->*link;
        if (!first_) last_ = nullptr;
        return one;
    }
    T* first() const noexcept { return first_; }

 private:
    T *first_ = nullptr, *last_ = nullptr;
};
using Instances = Queue<BatchInstance, &BatchInstance::behind>;

// Calls that are alike. What is looked at often is kept here, so that no stack of an instance is read for it.
struct Group {
    Group(Waiting& call, std::int64_t round) noexcept : hash(call.hash), since(round), depth(call.instance->waits) { add(call); }
    bool takes(const Waiting& call) const noexcept { return hash == call.hash && calls.first()->is_like(call); }
    void add(Waiting& call) noexcept {
        calls.push(call);
        ++size;
    }

    Queue<Waiting, &Waiting::behind> calls;
    std::uint64_t hash;
    std::size_t size = 0;
    std::int64_t since;  // the round in which its first call came
    std::int64_t depth;  // the ops that the instance of that has waited with
};

}  // namespace

// What gdb reads of a thread's instances (`tapir fibers`). All are listed, as the logs are.
struct BatchShown {
    BatchShown* next = nullptr;
    std::int32_t thread = 0;  // the system's number
    const ThreadState* state = nullptr;
    BatchInstance* const* running = nullptr;
    BatchInstance* instances = nullptr;
    Frame* outermost = nullptr;
    const std::vector<Waiting*>* computed = nullptr;  // the calls that are computed now
};
extern "C" {
[[gnu::used, gnu::retain]] constinit BatchShown* tapir_gdb_batches = nullptr;
}

namespace {

constinit std::mutex listing;  // of tapir_gdb_batches

std::int32_t thread_number() noexcept {
#if defined(__linux__)
    return static_cast<std::int32_t>(::gettid());
#else
    return 0;
#endif
}

class Scheduler {
 public:
    explicit Scheduler(Frame& outermost) noexcept : report_(outermost.options.report), all_wait_(outermost.options.all_wait), log_(thread.log) {
        if (log_) call_ = log_->batches++;
        scheduler = this;
        watching_ops.add(kBatchRuns);
        shown_.thread = thread_number();
        shown_.state = &thread;
        shown_.running = &batch_instance;
        shown_.outermost = &outermost;
        const std::lock_guard lock(listing);
        shown_.next = std::exchange(tapir_gdb_batches, &shown_);
    }
    ~Scheduler() {
        {
            const std::lock_guard lock(listing);
            BatchShown** place = &tapir_gdb_batches;
            while (*place != &shown_) place = &(*place)->next;
            *place = shown_.next;
        }
        watching_ops.add(-kBatchRuns);
        scheduler = nullptr;
    }
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    bool has_errors = false;  // some instance has thrown

    // Runs all instances of a frame, from the thread's own stack.
    void run(Frame& frame) {
        while (!frame.is_done()) {
            start(frame);
            if (BatchInstance* const instance = ready_.pop()) {
                resume(*instance);
            } else if (!groups_.empty()) {
                compute_next();
            }
        }
    }

    // The same, from an instance: it runs the last one itself, and waits for the others.
    void run_in(BatchInstance& parent, Frame& frame) {
        if (!is_worth_forking()) {
            while (frame.next < frame.count && !frame.is_ending()) run_here(parent, frame, frame.next++);
            return;
        }
        const std::int64_t last = --frame.count;
        if (last > 0) hold_back(parent, frame);
        start(frame);
        if (last >= 0) run_here(parent, frame, last);
        frame.is_awaited = true;
        if (frame.is_done()) return;
        try {
            at_line(frame.loc, [&] { note_records(parent); });
        } catch (const OutOfMemory&) {  // the others, whose frame this is, must end first
            fail(frame, last);
        }
        parent.awaits = &frame;
        suspend(parent);
        parent.awaits = nullptr;
    }

    Tensor laid_for_groups(const Tensor& w, std::int64_t rows) {
        const TensorImpl* const x = w.impl();
        // A weight whose address was given out may change unnoticed.
        const bool is_plain = x->device == cpu && (x->dtype == float32 || x->dtype == float64) && x->is_contiguous() && !x->storage->is_exposed;
        // Fewer rows are computed as fast as it is, and many are worth packing the matrix anew.
        if (!is_plain || rows < 5 || rows > 128 || x->sizes[1] < 16) return w;
        auto known = std::find_if(laid_.begin(), laid_.end(), [&](const Laid& laid) { return laid.weight.is_same(w); });
        if (known == laid_.end()) {
            if (laid_.size() == kMostLaid) return w;
            laid_.push_back({w, {}, 0, 0});
            known = laid_.end() - 1;
        }
        Laid& laid = *known;
        const std::uint32_t version = x->storage->version_now();
        if (version != laid.version) laid = {w, {}, version, 0};
        laid.rows += rows;
        if (!laid.elements.defined()) {
            if (laid.rows < kLaidFrom) return w;
            const PauseRecording pause;
            const detail::UnrecordedParts parts;
            laid.elements = transpose(contiguous(transpose(w, 0, 1)), 0, 1);
        }
        return laid.elements;
    }

    // Returns true for a call that does not wait: see Note [At once].
    bool runs_at_once(const BatchCall& call) {
        if (thread.log || call.always_waits || all_wait_) return false;
        for (int k = 0; k < call.operand_count; ++k) {
            const TensorImpl* const x = call.operands[k]->impl();
            if (x && x->device != cpu) {
                uses_device_ = true;
                return false;
            }
        }
        if (report_) ++report_->ops[call.op.name].at_once;
        return true;
    }

    // Returns true if the call was computed.
    bool wait(Waiting& call) {
        at_line(call.call.loc, [&] { note_records(*call.instance); });
        put_in_group(call);
        call.instance->waiting = &call;
        suspend(*call.instance);
        return call.is_computed;
    }

 private:
    // A weight whose elements have been laid out for groups.
    struct Laid {
        Tensor weight, elements;
        std::uint32_t version;  // of the weight
        std::int64_t rows;      // that groups have had with it
    };
    static constexpr std::size_t kMostLaid = 16;
    static constexpr std::int64_t kLaidFrom = 160;  // measured: so many rows save the time that it takes

    // Where items fork, no more than so many at a time: others would push their stacks out of the second-level cache, which costs more than
    // larger groups gain. (SST's trees, 50 at a time, width 64: 9,000 trees a second instead of 7,100.)
    static constexpr int kMostForking = 16;

    // Where most ops run at once, many items are enough to make groups of what waits, and another instance costs more than most ops.
    bool is_worth_forking() const noexcept {
        return thread.log || all_wait_ || uses_device_ || thread.device != cpu || shown_.outermost->running < kMostForking;
    }

    void hold_back(BatchInstance& item, const Frame& frame) {
        if (item.has_forked || item.frame->parent || item.frame->options.most) return;
        if (forking_ >= kMostForking) {
            at_line(frame.loc, [&] { note_records(item); });
            held_.push(item);
            item.awaits = &frame;
            suspend(item);
            item.awaits = nullptr;
        }
        item.has_forked = true;
        ++forking_;
    }

    // Returns false if none is held.
    bool release_held() noexcept {
        BatchInstance* const item = held_.pop();
        if (item) ready_.push(*item);
        return item;
    }

    void start(Frame& frame) {
        const std::int64_t most = frame.parent ? frame.count : frame.options.most.value_or(log_ || thread.device != cpu ? 100 : 50);
        while (frame.next < frame.count && frame.running < most && !frame.is_ending()) {
            try {
                at_line(frame.loc, [&] {
                    if (calls_.capacity() == instances_) make_room(std::max<std::size_t>(16, 2 * instances_));
                    auto instance = std::make_unique<BatchInstance>(frame, frame.next, order_, stack_of(frame.options.stack));
                    ready_.push(*instance);
                    show(*instance.release());
                });
            } catch (const OutOfMemory&) {
                fail(frame, frame.next);
                return;
            }
            ++instances_;
            ++frame.next;
            ++frame.running;
            ++order_;
        }
    }

    // For that many instances, each of which waits with one call at most.
    void make_room(std::size_t instances) {
        groups_.reserve(instances);
        if (spare_stacks.capacity() < kMostSpare) spare_stacks.reserve(std::min(kMostSpare, spare_stacks.size() + instances));
        calls_.reserve(instances);
    }

    // Called by a handler: the frame ends with the error.
    void fail(Frame& frame, std::int64_t number) noexcept {
        frame.fail(number, std::current_exception());
        end_waiting();
    }

    // Runs an instance on its parent's stack.
    void run_here(BatchInstance& parent, Frame& frame, std::int64_t number) {
        Generator generator(seed_for(frame.seed, static_cast<std::uint64_t>(number)));
        const GeneratorScope drawing(&generator);
        Frame* const outer = std::exchange(parent.frame, &frame);
        frame.run_by_parent = number;
        ++frame.running;
        frame.run(number);
        --frame.running;
        parent.frame = outer;
        if (frame.error) end_waiting();
    }

    void enter(BatchInstance& instance) noexcept {
        records_ = log_ ? log_->records.size() : 0;
        instance.state.restore();
        batch_instance = &instance;
    }
    // Notes what an instance has recorded since it went on. It is called before others may record.
    void note_records(const BatchInstance& of) {
        if (!log_) return;
        log_->note_item(records_, call_, static_cast<std::uint32_t>(of.item));
        records_ = log_->records.size();
    }

    // Suspends the instance that runs. If another is ready that one goes on at once: by way of resume() it would be one more change of stacks.
    void suspend(BatchInstance& instance) noexcept {
        BatchInstance* const next = ready_.pop();
        if (!next) return instance.fiber.suspend();
        instance.state = OpState::now();
        enter(*next);
        instance.fiber.give_way(next->fiber);
    }

    void resume(BatchInstance& first) {
        const OpState own = OpState::now();
        enter(first);
        first.fiber.resume();
        BatchInstance& instance = *std::exchange(batch_instance, nullptr);
        instance.state = OpState::now();
        own.restore();
        if (!instance.fiber.has_ended()) return;
        Frame& frame = *instance.frame;
        try {
            at_line(frame.loc, [&] { note_records(instance); });
        } catch (const OutOfMemory&) {
            frame.fail(instance.number, std::current_exception());
        }
        if (instance.has_forked) {
            --forking_;
            release_held();
        }
        if (spare_stacks.size() < spare_stacks.capacity()) spare_stacks.push_back(std::move(instance.stack));
        hide(instance);
        delete &instance;
        --instances_;
        --frame.running;
        if (frame.error) end_waiting();
        if (frame.parent) {
            start(frame);
            if (frame.is_awaited && frame.is_done()) ready_.push(*frame.parent);
        }
    }

    void show(BatchInstance& instance) noexcept {
        instance.next = std::exchange(shown_.instances, &instance);
        if (instance.next) instance.next->previous = &instance;
    }
    void hide(const BatchInstance& instance) noexcept {
        (instance.previous ? instance.previous->next : shown_.instances) = instance.next;
        if (instance.next) instance.next->previous = instance.previous;
    }

    // Lets all calls go on whose instances have to end.
    void end_waiting() noexcept {
        has_errors = true;
        while (release_held()) {}
        std::erase_if(groups_, [&](Group& group) {
            auto calls = std::exchange(group.calls, {});
            group.size = 0;
            while (Waiting* const call = calls.pop()) {
                if (call->instance->frame->is_ending()) {
                    go_on(*call);
                } else {
                    group.add(*call);
                }
            }
            return group.size == 0;
        });
    }
    void go_on(Waiting& call) noexcept {
        call.is_ready = true;
        ready_.push(*call.instance);
    }

    void put_in_group(Waiting& call) noexcept {
        for (Group& group : groups_) {
            if (group.takes(call)) return group.add(call);
        }
        groups_.emplace_back(call, round_);  // there is room: see start()
    }

    // The largest group; of several the one whose instances have done least, since its results may bring others peers. But one that has waited
    // for kPatience others goes first: an op that finds no peers, as of a shape that no other instance has, would hold its instance back until
    // there is nobody left to go with. On the trees of SST, 50 at a time, patience makes the mean group 14 instead of 3.
    std::size_t next_group() noexcept {
        constexpr std::int64_t kPatience = 8;
        ++round_;
        std::size_t best = 0;
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            const Group &group = groups_[g], &most = groups_[best];
            if (round_ - group.since > kPatience) return g;
            if (group.size > most.size || (group.size == most.size && group.depth < most.depth)) best = g;
        }
        return best;
    }

    void compute_next() noexcept {
        const std::size_t best = next_group();
        calls_.clear();
        while (Waiting* const call = groups_[best].calls.pop()) calls_.push_back(call);
        groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(best));
        std::sort(calls_.begin(), calls_.end(), [](const Waiting* a, const Waiting* b) { return a->order < b->order; });
        shown_.computed = &calls_;
        const BatchCall& first = calls_[0]->call;
        const std::size_t most = first.is_one_block ? kMostTogether / static_cast<std::size_t>(first.operand_count) : kMostTogether;
        for (std::size_t i = 0; i < calls_.size(); i += most) compute(calls_.data() + i, std::min(most, calls_.size() - i));
        shown_.computed = nullptr;
        for (Waiting* call : calls_) go_on(*call);
    }

    void compute(Waiting* const* calls, std::size_t count) noexcept {
        const bool are_together = count > 1 && try_as_one(calls, count);
        if (!report_) return;
        Frame& outermost = *shown_.outermost;
        try {
            at_line(outermost.loc, [&] { add_to_report(calls, count, are_together); });
        } catch (const OutOfMemory&) {
            fail(outermost, calls[0]->instance->item);
        }
    }

    void add_to_report(Waiting* const* calls, std::size_t count, bool are_together) {
        BatchReport::Op& op = report_->ops[calls[0]->call.op.name];
        op.groups += are_together;
        (are_together ? op.together : op.alone) += static_cast<std::int64_t>(count);
        if (report_->keeps_schedule) add_steps(calls, count, are_together);
    }

    void add_steps(Waiting* const* calls, std::size_t count, bool are_together) {
        for (std::size_t i = 0; i < count; ++i) {
            if (i == 0 || !are_together) report_->schedule.push_back({calls[i]->call.op.name, {}});
            ++report_->schedule.back().calls[calls[i]->instance->item];
        }
    }

    // Returns false, without effect, if the rule has thrown: then each call finds out for itself.
    bool try_as_one(Waiting* const* calls, std::size_t count) {
        const Exchanged as(calls[0]->instance->state);
        Log* const log = thread.log;
        const std::size_t records = log ? log->records.size() : 0;
        try {
            compute_as_one(calls, count);
        } catch (...) {
            if (log) log->truncate(records);
            return false;
        }
        return true;
    }

    void compute_as_one(Waiting* const* calls, std::size_t count) {
        const Waiting& first = *calls[0];
        const auto m = static_cast<std::int64_t>(count);
        const CallerScope caller(first.call.loc);
        Tensor results[kMostResults];
        const auto records = [] { return thread.log ? static_cast<std::uint32_t>(thread.log->records.size()) : 0; };
        Log::ItemSpan span{records(), 0, 0, 0, call_, 0, static_cast<std::uint32_t>(count)};
        const std::uint64_t blocks = put_together(calls, count);
        span.rule = records();
        numbers_.clear();
        for (std::size_t i = 0; first.call.has_number && i < count; ++i) numbers_.push_back(calls[i]->call.number);
        first.rule(Batched(m, operands_.data(), blocks, numbers_.data()), results);
        operands_.clear();
        span.rows = records();
        for (int r = 0; r < first.result_count; ++r) {
            if (!results[r].defined()) continue;
            if (results[r].dim() == 0 || results[r].size(0) != m) throw std::logic_error("a rule of batch() gave something else than a block");
            rows_.resize(count);
            rows_of(results[r], rows_.data(), m);
            for (std::size_t i = 0; i < count; ++i) *calls[i]->results[r] = std::move(rows_[i]);
        }
        rows_.clear();
        span.end = records();
        if (span.end > span.first) note_group(calls, count, *thread.log, span);
        for (std::size_t i = 0; i < count; ++i) calls[i]->is_computed = true;
    }

    // Makes operands_. Returns which of them are blocks, a bit for each.
    std::uint64_t put_together(Waiting* const* calls, std::size_t count) {
        const BatchCall& call = calls[0]->call;
        operands_.clear();
        if (call.is_one_block) {
            rows_.resize(count * static_cast<std::size_t>(call.operand_count));
            for (std::size_t i = 0, row = 0; i < count; ++i) {
                for (int k = 0; k < call.operand_count; ++k) rows_[row++] = *calls[i]->call.operands[k];
            }
            operands_.push_back(stack(TensorList(rows_, call.loc), 0));  // a copy: it becomes the result
            rows_.clear();
            return 1;
        }
        std::uint64_t blocks = 0;
        bool has_block = false;
        int last_shared = -1;
        const auto block_of = [&](int k) {
            rows_.resize(count);
            for (std::size_t i = 0; i < count; ++i) rows_[i] = *calls[i]->call.operands[k];
            const Tensor block = stacked_rows(rows_.data(), static_cast<std::int64_t>(count), call.loc);
            rows_.clear();
            if (k < 64) blocks |= std::uint64_t{1} << k;
            has_block = true;
            return block;
        };
        for (int k = 0; k < call.operand_count; ++k) {
            const Tensor& operand = *call.operands[k];
            const auto is_it = [&](const Waiting* other) { return other->call.operands[k]->is_same(operand); };
            if (!operand.defined() || (call.may_share(k) && std::all_of(calls, calls + count, is_it))) {
                operands_.push_back(operand);
                if (operand.defined() && !call.must_share(k)) last_shared = k;
            } else {
                operands_.push_back(block_of(k));
            }
        }
        if (!has_block) {  // each instance has a result of its own all the same
            if (last_shared < 0) throw std::logic_error("a call in batch() has nothing of its own");
            operands_[static_cast<std::size_t>(last_shared)] = block_of(last_shared);
        }
        return blocks;
    }

    // Notes whose rows the records of a group have. The record of each row names its own instance's line.
    static void note_group(Waiting* const* calls, std::size_t count, Log& log, Log::ItemSpan& span) {
        span.items = static_cast<std::uint32_t>(log.span_items.size());
        for (std::size_t i = 0; i < count; ++i) log.span_items.push_back(static_cast<std::uint32_t>(calls[i]->instance->item));
        log.item_spans.push_back(span);
        for (std::size_t i = 0; i < count; ++i) {
            const ThreadState& state = calls[i]->instance->state.thread_state();
            for (int r = 0; r < calls[0]->result_count; ++r) {
                const Tensor& row = *calls[i]->results[r];
                if (!row.defined() || row.impl()->node.tape != log.id) continue;
                Record& record = *log.records[row.impl()->node.index];
                record.loc = state.caller.line() ? state.caller : calls[i]->call.loc;
                record.module = state.module;
                record.module_call = state.module_call;
            }
        }
    }

    BatchReport* report_;
    bool all_wait_;
    bool uses_device_ = false;  // an op has had an operand on another device than the CPU
    Log* log_;                  // null: nothing is recorded
    std::uint32_t call_ = 0;    // the number of this batch() in it
    std::size_t records_ = 0;   // that it had when the instance that runs went on
    BatchShown shown_;
    Instances ready_;
    std::vector<Group> groups_;
    std::vector<Waiting*> calls_;          // of the group that is computed, and afterwards of none
    std::size_t instances_ = 0;            // that have begun and not ended, for which there is room
    std::vector<Tensor> operands_, rows_;  // of the group that is computed
    std::vector<double> numbers_;
    std::vector<Laid> laid_;
    std::int64_t order_ = 0, round_ = 0;
    Instances held_;   // items that wait until they may fork
    int forking_ = 0;  // items that have forked
};

void check_going_on(const BatchInstance& instance) {
    if (scheduler->has_errors && instance.frame->is_ending() && std::uncaught_exceptions() == 0) throw Ended{};
}

std::uint64_t device_bits(Device device) noexcept { return static_cast<std::uint64_t>(device.type) << 16 | std::uint64_t{device.index} << 24; }

bool is_of_type(const TensorImpl* x, const TensorImpl* y) noexcept {
    if (!x || !y) return x == y;
    return x->dtype == y->dtype && x->device == y->device && x->rank == y->rank && std::equal(x->sizes, x->sizes + x->rank, y->sizes);
}

// Small sizes are packed into the word of the dtype, rank and device.
bool add_type(Waiting& waiting, const TensorImpl* x) noexcept {
    if (!x) return waiting.add(~std::uint64_t{0});
    constexpr std::uint64_t sizes_follow = 0x80;
    const std::uint64_t type = std::uint64_t{x->rank} | static_cast<std::uint64_t>(x->dtype) << 8 | device_bits(x->device);
    const auto size = [&](int d) { return d < x->rank ? static_cast<std::uint64_t>(x->sizes[d]) : 0; };
    bool fits = true;
    if (x->rank <= 2 && (size(0) | size(1)) < 0x8000) {
        fits = waiting.add(type | size(0) << 32 | size(1) << 48);
    } else {
        fits = waiting.add(type | sizes_follow);
        for (int d = 0; d < x->rank; ++d) fits &= waiting.add(size(d));
    }
    if (x->device.type != DeviceType::cpu) fits &= waiting.add_address(device_api::current_stream(x->device.index));
    return fits;
}

// Puts the numbers that make calls alike into `waiting`. Returns false for a call that runs alone.
bool describe(Waiting& waiting, const BatchCall& call) {
    const ThreadState& state = thread;
    bool fits = call.key.fits && call.operand_count <= BatchCall::kMostOperands;
    fits &= waiting.add_address(&call.op) && waiting.add_address(state.log) && waiting.add_address(state.autocast);
    for (int w = 0; w < call.key.count; ++w) fits &= waiting.add(call.key.words[w]);
    bool is_tracked = false;
    constexpr std::uint64_t several = std::uint64_t{1} << 63;  // no type has this bit
    std::uint64_t alike = 1;                                   // operands in a row of one type: a stack() has many
    for (int k = 0; k < call.operand_count && fits; ++k) {
        const TensorImpl* const x = call.operands[k]->impl();
        is_tracked |= x && state.log && ((x->flags & TensorImpl::kRequiresGrad) || state.log->knows(x));
        if (call.must_share(k)) {
            fits &= waiting.add_address(x);
            continue;
        }
        if (x && x->rank == kMaxRank) return false;
        if (k > 0 && !call.must_share(k - 1) && is_of_type(x, call.operands[k - 1]->impl())) {
            ++alike;
            continue;
        }
        if (alike > 1) fits &= waiting.add(several | std::exchange(alike, 1));
        fits &= add_type(waiting, x);
    }
    if (alike > 1) fits &= waiting.add(several | alike);
    return fits && waiting.add(is_tracked);
}

// Reports what runs in instances one by one: ops without a rule. Views compute nothing.
class Unbatched : public OpWatcher {
 public:
    explicit Unbatched(BatchReport& report) noexcept : OpWatcher(/*calls_ops=*/false), report_(report) {}
    void end(const RecordArgs& ran) override {
        if (!batch_instance || std::exchange(batch_instance->alone, nullptr) == &ran.op || ran.op.is_given_numbers()) return;
        const OpForm* const form = find_form(ran.op.name);
        if (!form || !form->is_view) ++report_.unbatched[fmt::format("{} {}", ran.op.name, file_and_line(caller(ran.loc)))];
    }

 private:
    BatchReport& report_;
};

// True while an outermost batch() runs one by one: those in it do, too. Never while instances run.
constinit thread_local bool is_one_by_one = false;

class OneByOneScope {
 public:
    OneByOneScope() noexcept : before_(std::exchange(is_one_by_one, is_one_by_one || !batch_instance)) {}
    ~OneByOneScope() { is_one_by_one = before_; }
    OneByOneScope(const OneByOneScope&) = delete;
    OneByOneScope& operator=(const OneByOneScope&) = delete;

 private:
    bool before_;
};

// True if TAPIR_BATCH=off is set.
bool is_switched_off() {
    static const bool is_off = [] {
        const char* const wish = std::getenv("TAPIR_BATCH");
        return wish && std::strcmp(wish, "off") == 0;
    }();
    return is_off;
}

}  // namespace

Tensor laid_for_groups(const Tensor& w, std::int64_t rows) { return scheduler->laid_for_groups(w, rows); }

void refuse_in_instance(const char* what, const Loc& loc) {
    if (!batch_instance) return;
    fail<TapeError>(loc,
                    "{}: not in an instance of batch(), with whose records those of others are mixed: call it around batch(), or give that "
                    "{{.together = false}}",
                    what);
}

bool batched(const BatchCall& call, BatchRule rule, std::initializer_list<Tensor*> results) {
    BatchInstance& instance = *batch_instance;
    check_going_on(instance);
    if (call.rounds_otherwise && is_deterministic()) return false;
    if (scheduler->runs_at_once(call)) {
        instance.alone = &call.op;
        return false;
    }
    Waiting waiting(instance, instance.order, call, rule, results);
    if (!describe(waiting, call)) return false;
    ++instance.waits;
    const bool is_computed = scheduler->wait(waiting);
    if (!is_computed) instance.alone = &call.op;
    check_going_on(instance);
    return is_computed;
}

namespace {

// As few items a thread are not worth it.
constexpr std::int64_t kLeastItems = 2;

int parts_of(std::int64_t count, const BatchOptions& options) {
    const bool is_shared_out = !options.report && !is_watched() && thread.device == cpu && !(thread.log && thread.log->parent);
    return is_shared_out ? static_cast<int>(std::min<std::int64_t>(options.threads, count / kLeastItems)) : 1;
}

// Runs a frame's items in parts, each on a thread of its own.
void run_in_parts(Frame& whole, int parts) {
    Log* const log = thread.log;
    const std::size_t records = log ? log->records.size() : 0;
    std::vector<Log*> logs;  // of the parts after the first
    std::vector<std::unique_ptr<Frame>> frames;
    const auto drop = [&] {
        for (Log* const part : logs) {
            if (part) close_log(part);
        }
    };
    const auto run = [&] {
        logs.resize(static_cast<std::size_t>(parts));
        for (int k = 0; k < parts; ++k) {
            if (log && k > 0) logs[static_cast<std::size_t>(k)] = open_part(*log, whole.loc);
            frames.push_back(std::make_unique<Frame>(Frame{.body = whole.body,
                                                           .options = whole.options,
                                                           .count = whole.count * (k + 1) / parts,
                                                           .parent = nullptr,
                                                           .outer = nullptr,
                                                           .loc = whole.loc,
                                                           .state = k == 0 ? whole.state : whole.state.on_thread(logs[static_cast<std::size_t>(k)]),
                                                           .seed = whole.seed,
                                                           .next = whole.count * k / parts,
                                                           .error = nullptr}));
        }
        const std::uint32_t call = log ? log->batches : 0;  // the number that the first part's scheduler takes
        on_threads(parts, [&](int k) {
            Frame& frame = *frames[static_cast<std::size_t>(k)];
            if (k == 0) {
                Scheduler(frame).run(frame);
                return;
            }
            OpState own = frame.state;
            const Exchanged as(own);
            Scheduler(frame).run(frame);
        });
        for (const auto& frame : frames) {
            if (!frame->error) continue;
            whole.error = frame->error;
            drop();
            return;
        }
        if (!log) return;
        std::vector<std::uint32_t> ends = {static_cast<std::uint32_t>(log->records.size())};
        for (int k = 1; k < parts; ++k) {
            take_in_part(*log, *logs[static_cast<std::size_t>(k)], call);
            logs[static_cast<std::size_t>(k)] = nullptr;
            ends.push_back(static_cast<std::uint32_t>(log->records.size()));
        }
        note_parts(*log, static_cast<std::uint32_t>(records), std::move(ends));
    };
    try {
        at_line(whole.loc, run);
    } catch (...) {
        drop();
        whole.error = std::current_exception();
    }
}

}  // namespace

void run_batch(std::int64_t count, const std::function<void(std::int64_t)>& body, const BatchOptions& options, const Loc& loc) {
    if (options.most && *options.most < 1) fail<ValueError>(loc, "batch: at least one instance must run at a time, not {}", *options.most);
    if (options.threads < 1) fail<ValueError>(loc, "batch: at least one thread must run, not {}", options.threads);
    if (options.stack < 16 * 1024) fail<ValueError>(loc, "batch: a stack of {} bytes is too small; 16 KiB are the least", options.stack);
    if (is_tracing()) fail<TapeError>(loc, "batch: a graph is traced; trace the function of one example, and give the graph a named dimension");
    if (options.report) options.report->instances += count;
    if (count == 0) return;
    Generator& generator = default_generator();
    const std::uint64_t seed = seed_for(generator.seed(), generator.take(1));
    Log* const log = thread.log;
    const std::size_t records = log ? log->records.size() : 0;
    if (!options.together || is_one_by_one || !has_fibers() || is_switched_off()) {
        const bool is_outermost = log && !batch_instance && !is_one_by_one;
        const OneByOneScope scope_of_all;
        try {
            const std::uint32_t call = is_outermost ? log->batches++ : 0;
            for (std::int64_t i = 0; i < count; ++i) {
                Generator own(seed_for(seed, static_cast<std::uint64_t>(i)));
                const GeneratorScope scope(&own);
                const std::size_t first = log ? log->records.size() : 0;
                body(i);
                if (is_outermost && log == thread.log) at_line(loc, [&] { log->note_item(first, call, static_cast<std::uint32_t>(i)); });
            }
        } catch (...) {
            if (log && log == thread.log && !batch_instance) log->truncate(records);  // in an instance, others have recorded since
            throw;
        }
        return;
    }
    BatchInstance* const parent = batch_instance;
    std::optional<Unbatched> watcher;
    std::optional<WatchScope> watching;
    if (options.report && !parent) at_line(loc, [&] { watching.emplace(watcher.emplace(*options.report)); });
    Frame frame{.body = body,
                .options = options,
                .count = count,
                .parent = parent,
                .outer = parent ? parent->frame : nullptr,
                .loc = loc,
                .state = OpState::now(),
                .seed = seed,
                .error = nullptr};
    if (parent) {
        check_going_on(*parent);
        scheduler->run_in(*parent, frame);
        if (!frame.error) check_going_on(*parent);
    } else if (const int parts = parts_of(count, options); parts > 1) {
        run_in_parts(frame, parts);
    } else {
        Scheduler(frame).run(frame);
    }
    if (!frame.error) return;
    if (log && !parent) log->truncate(records);
    std::rethrow_exception(frame.error);
}

// For gdb: the data of `tapir fibers`.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // no virtual bases here
namespace {
struct BatchLayout {
    static constexpr std::size_t state = offsetof(BatchInstance, state) + offsetof(OpState, thread_);
    // offsetof() does not take references. In memory they are pointers.
    static constexpr std::size_t call = offsetof(Waiting, instance) + sizeof(void*), op = 0, loc = sizeof(void*);
    static_assert(offsetof(Waiting, results) == 3 * sizeof(void*) && offsetof(BatchCall, few) == 2 * sizeof(void*));
};
}  // namespace
extern "C" {
extern const gdb::LayoutEntry tapir_gdb_batch[];
[[gnu::used, gnu::retain]] constexpr gdb::LayoutEntry tapir_gdb_batch[] = {
    TAPIR_GDB_OFFSET(BatchShown, next),
    TAPIR_GDB_OFFSET(BatchShown, thread),
    TAPIR_GDB_OFFSET(BatchShown, state),
    TAPIR_GDB_OFFSET(BatchShown, running),
    TAPIR_GDB_OFFSET(BatchShown, instances),
    TAPIR_GDB_OFFSET(BatchShown, outermost),
    TAPIR_GDB_OFFSET(BatchShown, computed),
    TAPIR_GDB_OFFSET(BatchInstance, next),
    TAPIR_GDB_OFFSET(BatchInstance, frame),
    TAPIR_GDB_OFFSET(BatchInstance, number),
    TAPIR_GDB_OFFSET(BatchInstance, fiber),
    TAPIR_GDB_OFFSET(BatchInstance, waiting),
    TAPIR_GDB_OFFSET(BatchInstance, awaits),
    {"BatchInstance.state", BatchLayout::state},
    TAPIR_GDB_OFFSET(ThreadState, caller),
    TAPIR_GDB_OFFSET(ThreadState, module),
    TAPIR_GDB_OFFSET(Waiting, is_ready),
    {"Waiting.call", BatchLayout::call},
    {"BatchCall.op", BatchLayout::op},
    {"BatchCall.loc", BatchLayout::loc},
    TAPIR_GDB_OFFSET(Frame, parent),
    TAPIR_GDB_OFFSET(Frame, outer),
    TAPIR_GDB_OFFSET(Frame, loc),
    TAPIR_GDB_OFFSET(Frame, count),
    TAPIR_GDB_OFFSET(Frame, next),
    TAPIR_GDB_OFFSET(Frame, running),
    TAPIR_GDB_OFFSET(Frame, run_by_parent),
    {},
};
}
#pragma GCC diagnostic pop

}  // namespace tapir::detail

namespace tapir {

std::string BatchReport::str() const {
    std::string text =
        fmt::format("{} instances\n{:24} {:>10} {:>8} {:>10} {:>8} {:>8}\n", instances, "op", "together", "groups", "mean group", "alone", "at once");
    for (const auto& [name, op] : ops) {
        const double mean = op.groups > 0 ? static_cast<double>(op.together) / static_cast<double>(op.groups) : 0;
        text += fmt::format("{:24} {:>10} {:>8} {:>10.1f} {:>8} {:>8}\n", name, op.together, op.groups, mean, op.alone, op.at_once);
    }
    if (!unbatched.empty()) text += "one by one:\n";
    for (const auto& [what, calls] : unbatched) text += fmt::format("    {:40} {:>10}\n", what, calls);
    return text;
}

std::string BatchReport::schedule_str() const {
    std::int64_t items = 0;
    std::size_t width = 4;
    for (const Step& step : schedule) {
        items = std::max(items, step.calls.empty() ? 0 : (step.calls.end() - 1)->first + 1);
        width = std::max(width, step.op.size());
    }
    std::string text = fmt::format("{:>4}  {:{}}  ", "step", "op", width);
    for (std::int64_t i = 0; i < items; ++i) text += static_cast<char>('0' + i % 10);
    text += '\n';
    for (std::size_t s = 0; s < schedule.size(); ++s) {
        std::string row(static_cast<std::size_t>(items), '.');
        for (const auto& [item, calls] : schedule[s].calls) {
            row[static_cast<std::size_t>(item)] = calls == 1 ? '#' : calls < 10 ? static_cast<char>('0' + calls) : '+';
        }
        text += fmt::format("{:>4}  {:{}}  {}\n", s, schedule[s].op, width, row);
    }
    return text;
}

}  // namespace tapir
