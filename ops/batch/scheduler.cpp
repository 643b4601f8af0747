// The scheduler of batch(): which instance runs, which ops are computed together, and what happens when one throws.
//
// All instances of a thread's outermost batch() have one scheduler, with the loop on the thread's own stack. It resumes each instance until it
// waits: for peers of an op, or for a batch() of its own. When none can go on, it computes a group of waiting calls: see next_group().
// Instances go on in the order in which they began, so that a program does the same each time.
//
// Note [Rows]: a group's operands are put together by stack(), its results taken apart by unbind(), each with its record, so that the gradient
// of a group needs no rule of its own. A result is a row of the group's block in memory, but a tensor with a storage of its own: the
// program may write to it. Where the rows of operands lie behind each other, as those of a block do, they are not copied.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/thread_tapes_impl.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/fiber_impl.h"
#include "tapir/core/generator.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_words_impl.h"
#include "tapir/ops/batch/batch.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/batch/rows_impl.h"
#include "tapir/ops/join/join.h"

namespace tapir::detail {
namespace {

constexpr int kMostResults = 8;
constexpr std::size_t kMostTogether = 255;  // the tensors of one record

// What belongs to an instance beside its stack.
class OpState {
 public:
    // That of the thread as it is now.
    static OpState now() noexcept {
        OpState state, kept;
        state.exchange();
        kept = state;
        state.exchange();
        return kept;
    }
    // Gives the thread this state, and keeps the thread's.
    void exchange() noexcept {
        std::swap(thread, thread_);
        thread.module_calls = thread_.module_calls;  // these count on
        thread.flops = thread_.flops;
        std::swap(ThreadTapes::own(), tapes_);
        exchange_words(words_);
        exchange_words(tape_words_);
    }
    const ThreadState& thread_state() const noexcept { return thread_; }
    void set_generator(Generator* own) noexcept { words_.generator = own; }

 private:
    ThreadState thread_;
    ThreadTapes tapes_;
    ThreadWords words_;
    TapeWords tape_words_;
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
    bool is_awaited = false;  // the parent waits for nothing else
    bool is_done() const noexcept { return running == 0 && (next == count || is_ending()); }
};

// The call of an op that waits. It lies on its instance's stack.
struct Waiting {
    Waiting(BatchInstance& of, const BatchCall& its_call, const BatchRule& its_rule, std::initializer_list<Tensor*> made) noexcept
        : instance(&of), call(its_call), rule(its_rule), results(made.begin()), result_count(static_cast<int>(made.size())) {}

    BatchInstance* instance;
    const BatchCall& call;
    const BatchRule& rule;
    Tensor* const* results;
    int result_count;
    std::uint64_t words[96];
    int word_count = 0;
    std::uint64_t hash = 0;
    bool is_computed = false;

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
        : frame(&of), number(its_number), order(its_order), stack(std::move(its_stack)),
          generator(seed_for(of.seed, static_cast<std::uint64_t>(its_number))), state(of.state), fiber(*stack, [this] { frame->run(number); }) {
        state.set_generator(&generator);
    }

    Frame* frame;                      // the innermost one that it has part in
    const std::int64_t number, order;  // in its frame; among all
    std::unique_ptr<FiberStack> stack;
    Generator generator;
    OpState state;
    Fiber fiber;
    const OpInfo* alone = nullptr;  // the op that found no peer, and runs now
    std::int64_t waits = 0;         // ops that it has waited with
};

namespace {

class Scheduler {
 public:
    explicit Scheduler(BatchReport* report) noexcept : report_(report) {
        scheduler = this;
        watching_ops.add(1);
    }
    ~Scheduler() {
        watching_ops.add(-1);
        scheduler = nullptr;
    }
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    bool has_errors = false;  // some instance has thrown

    // Runs all instances of a frame, from the thread's own stack.
    void run(Frame& frame) {
        while (!frame.is_done()) {
            start(frame);
            if (!ready_.empty()) {
                BatchInstance* const instance = ready_.front();
                ready_.pop_front();
                resume(*instance);
            } else if (!groups_.empty()) {
                compute_next();
            }
        }
    }

    // The same, from an instance: it runs the last one itself, and waits for the others.
    void run_in(BatchInstance& parent, Frame& frame) {
        const std::int64_t last = --frame.count;
        start(frame);
        if (last >= 0) run_last(parent, frame, last);
        frame.is_awaited = true;
        if (!frame.is_done()) parent.fiber.suspend();
    }

    // Returns true if the call was computed.
    bool wait(Waiting& call) {
        put_in_group(call);
        call.instance->fiber.suspend();
        return call.is_computed;
    }

 private:
    struct Group {
        std::vector<Waiting*> calls;
        std::int64_t since;  // the round in which its first call came
    };

    void start(Frame& frame) {
        const std::int64_t most = frame.parent ? frame.count : frame.options.most;
        while (frame.next < frame.count && frame.running < most && !frame.is_ending()) {
            try {
                auto instance = std::make_unique<BatchInstance>(frame, frame.next, order_, stack_of(frame.options.stack));
                ready_.push_back(instance.get());
                static_cast<void>(instance.release());
            } catch (const std::bad_alloc&) {
                frame.fail(frame.next, std::current_exception());
                end_waiting();
                return;
            }
            ++frame.next;
            ++frame.running;
            ++order_;
        }
    }

    void run_last(BatchInstance& parent, Frame& frame, std::int64_t number) {
        Generator generator(seed_for(frame.seed, static_cast<std::uint64_t>(number)));
        const GeneratorScope drawing(&generator);
        Frame* const outer = std::exchange(parent.frame, &frame);
        ++frame.running;
        frame.run(number);
        --frame.running;
        parent.frame = outer;
        if (frame.error) end_waiting();
    }

    void resume(BatchInstance& instance) {
        {
            const Exchanged as(instance.state);
            batch_instance = &instance;
            instance.fiber.resume();
            batch_instance = nullptr;
        }
        if (!instance.fiber.has_ended()) return;
        Frame& frame = *instance.frame;
        if (spare_stacks.size() < kMostSpare) spare_stacks.push_back(std::move(instance.stack));
        delete &instance;
        --frame.running;
        if (frame.error) end_waiting();
        if (frame.parent) {
            start(frame);
            if (frame.is_awaited && frame.is_done()) ready_.push_back(frame.parent);
        }
    }

    // Lets all calls go on whose instances have to end.
    void end_waiting() {
        has_errors = true;
        for (Group& group : groups_) {
            std::erase_if(group.calls, [&](Waiting* call) {
                if (!call->instance->frame->is_ending()) return false;
                ready_.push_back(call->instance);
                return true;
            });
        }
        std::erase_if(groups_, [](const Group& group) { return group.calls.empty(); });
    }

    void put_in_group(Waiting& call) {
        for (Group& group : groups_) {
            if (group.calls[0]->is_like(call)) return group.calls.push_back(&call);
        }
        groups_.push_back({{&call}, round_});
    }

    // The largest group; of several the one whose instances have done least, since its results may bring others peers. But one that has waited
    // for kPatience others goes first: an op that finds no peers, as of a shape that no other instance has, would hold its instance back until
    // there is nobody left to go with. On the trees of SST, 50 at a time, patience makes the mean group 14 instead of 3.
    std::size_t next_group() noexcept {
        constexpr std::int64_t kPatience = 8;
        ++round_;
        std::size_t best = 0;
        const auto depth = [&](std::size_t g) { return groups_[g].calls[0]->instance->waits; };
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            if (round_ - groups_[g].since > kPatience) return g;
            const std::size_t size = groups_[g].calls.size(), most = groups_[best].calls.size();
            if (size > most || (size == most && depth(g) < depth(best))) best = g;
        }
        return best;
    }

    void compute_next() {
        const std::size_t best = next_group();
        std::vector<Waiting*> calls = std::move(groups_[best].calls);
        groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(best));
        std::sort(calls.begin(), calls.end(), [](const Waiting* a, const Waiting* b) { return a->instance->order < b->instance->order; });
        for (std::size_t i = 0; i < calls.size(); i += kMostTogether) {
            compute(calls.data() + i, std::min(kMostTogether, calls.size() - i));
        }
        for (const Waiting* call : calls) ready_.push_back(call->instance);
    }

    void compute(Waiting* const* calls, std::size_t count) {
        const Waiting& first = *calls[0];
        if (BatchReport* report = report_) {
            BatchReport::Op& op = report->ops[first.call.op.name];
            op.groups += count > 1;
            (count > 1 ? op.together : op.alone) += static_cast<std::int64_t>(count);
        }
        if (count == 1) return;
        const Exchanged as(calls[0]->instance->state);
        Log* const log = thread.log;
        const std::size_t records = log ? log->records.size() : 0;
        try {
            compute_as_one(calls, count);
        } catch (...) {  // each call finds out for itself
            if (log) log->truncate(records);
        }
    }

    static void compute_as_one(Waiting* const* calls, std::size_t count) {
        const Waiting& first = *calls[0];
        const auto m = static_cast<std::int64_t>(count);
        const CallerScope caller(first.call.loc);
        Tensor operands[BatchCall::kMostOperands], results[kMostResults], rows[kMostTogether];
        std::uint64_t blocks = 0;
        for (int k = 0; k < first.call.operand_count; ++k) {
            const std::uint64_t bit = std::uint64_t{1} << k;
            const Tensor& operand = *first.call.operands[k];
            bool is_one = true;
            for (std::size_t i = 0; i < count; ++i) {
                rows[i] = *calls[i]->call.operands[k];
                is_one &= rows[i].is_same(operand);
            }
            if (!operand.defined() || (is_one && (first.call.shared & bit))) {
                operands[k] = operand;
            } else {
                operands[k] = stacked_rows(rows, m, first.call.loc);
                blocks |= bit;
            }
        }
        first.rule(Batched(m, operands, blocks), results);
        for (int r = 0; r < first.result_count; ++r) {
            if (!results[r].defined()) continue;
            if (results[r].dim() == 0 || results[r].size(0) != m) throw std::logic_error("a rule of batch() gave something else than a block");
            Tensor made[kMostTogether];
            rows_of(results[r], made, m);
            for (std::size_t i = 0; i < count; ++i) *calls[i]->results[r] = std::move(made[i]);
        }
        if (Log* const log = thread.log) {  // the record of each row names its own instance's line
            for (std::size_t i = 0; i < count; ++i) {
                for (int r = 0; r < first.result_count; ++r) {
                    const Tensor& row = *calls[i]->results[r];
                    if (!row.defined() || row.impl()->node.tape != log->id) continue;
                    Record& record = *log->records[row.impl()->node.index];
                    const ThreadState& state = calls[i]->instance->state.thread_state();
                    record.loc = state.caller.line() ? state.caller : calls[i]->call.loc;
                    record.module = state.module;
                    record.module_call = state.module_call;
                }
            }
        }
        for (std::size_t i = 0; i < count; ++i) calls[i]->is_computed = true;
    }

    BatchReport* report_;
    std::deque<BatchInstance*> ready_;
    std::vector<Group> groups_;
    std::int64_t order_ = 0, round_ = 0;
};

void check_going_on(const BatchInstance& instance) {
    if (scheduler->has_errors && instance.frame->is_ending() && std::uncaught_exceptions() == 0) throw Ended{};
}

// Puts the numbers that make calls alike into `waiting`. Returns false for a call that runs alone.
bool describe(Waiting& waiting, const BatchCall& call) {
    const ThreadState& state = thread;
    bool fits = call.key.fits && call.operand_count <= BatchCall::kMostOperands;
    fits &= waiting.add_address(&call.op) && waiting.add_address(state.log) && waiting.add_address(state.autocast);
    for (int w = 0; w < call.key.count; ++w) fits &= waiting.add(call.key.words[w]);
    bool is_tracked = false;
    for (int k = 0; k < call.operand_count && fits; ++k) {
        const TensorImpl* const x = call.operands[k]->impl();
        if (!x) {
            fits &= waiting.add(0);
            continue;
        }
        is_tracked |= state.log && ((x->flags & TensorImpl::kRequiresGrad) || x->node.tape == state.log->id);
        if (call.same >> k & 1) {
            fits &= waiting.add_address(x);
            continue;
        }
        // On a device a row would have to tell its block of the streams that use it.
        if (x->rank == kMaxRank || x->device.type != DeviceType::cpu) return false;
        fits &= waiting.add(std::uint64_t{x->rank} | static_cast<std::uint64_t>(x->dtype) << 8);
        for (int d = 0; d < x->rank; ++d) fits &= waiting.add(static_cast<std::uint64_t>(x->sizes[d]));
    }
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

// True if TAPIR_BATCH=off is set.
bool is_switched_off() {
    static const bool is_off = [] {
        const char* const wish = std::getenv("TAPIR_BATCH");
        return wish && std::strcmp(wish, "off") == 0;
    }();
    return is_off;
}

}  // namespace

bool batched(const BatchCall& call, BatchRule rule, std::initializer_list<Tensor*> results) {
    BatchInstance& instance = *batch_instance;
    check_going_on(instance);
    Waiting waiting(instance, call, rule, results);
    if (!describe(waiting, call)) return false;
    ++instance.waits;
    const bool is_computed = scheduler->wait(waiting);
    if (!is_computed) instance.alone = &call.op;
    check_going_on(instance);
    return is_computed;
}

void run_batch(std::int64_t count, const std::function<void(std::int64_t)>& body, const BatchOptions& options, const Loc& loc) {
    if (options.most < 1) fail<ValueError>(loc, "batch: at least one instance must run at a time, not {}", options.most);
    if (options.stack < 16 * 1024) fail<ValueError>(loc, "batch: a stack of {} bytes is too small; 16 KiB are the least", options.stack);
    if (is_tracing()) fail<TapeError>(loc, "batch: a graph is traced; trace the function of one example, and give the graph a named dimension");
    if (options.report) options.report->instances += count;
    if (count == 0) return;
    Generator& generator = default_generator();
    const std::uint64_t seed = seed_for(generator.seed(), generator.take(1));
    Log* const log = thread.log;
    const std::size_t records = log ? log->records.size() : 0;
    if (!options.together || !has_fibers() || is_switched_off()) {
        try {
            for (std::int64_t i = 0; i < count; ++i) {
                Generator own(seed_for(seed, static_cast<std::uint64_t>(i)));
                const GeneratorScope scope(&own);
                body(i);
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
    if (options.report && !parent) watching.emplace(watcher.emplace(*options.report));
    Frame frame{.body = body,
                .options = options,
                .count = count,
                .parent = parent,
                .outer = parent ? parent->frame : nullptr,
                .state = OpState::now(),
                .seed = seed,
                .error = nullptr};
    if (parent) {
        check_going_on(*parent);
        scheduler->run_in(*parent, frame);
        if (!frame.error) check_going_on(*parent);
    } else {
        Scheduler(options.report).run(frame);
    }
    if (!frame.error) return;
    if (log && !parent) log->truncate(records);
    std::rethrow_exception(frame.error);
}

}  // namespace tapir::detail

namespace tapir {

std::string BatchReport::str() const {
    std::string text = fmt::format("{} instances\n{:24} {:>10} {:>8} {:>10} {:>8}\n", instances, "op", "together", "groups", "mean group", "alone");
    for (const auto& [name, op] : ops) {
        const double mean = op.groups > 0 ? static_cast<double>(op.together) / static_cast<double>(op.groups) : 0;
        text += fmt::format("{:24} {:>10} {:>8} {:>10.1f} {:>8}\n", name, op.together, op.groups, mean, op.alone);
    }
    if (!unbatched.empty()) text += "one by one:\n";
    for (const auto& [what, calls] : unbatched) text += fmt::format("    {:40} {:>10}\n", what, calls);
    return text;
}

}  // namespace tapir
