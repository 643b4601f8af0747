// Watchers of ops: the interface of tools that observe a running program (CheckFiniteScope, Profiler).
//
// They cost nothing while there are none: an op that is not recorded reads thread.observed instead of thread.log. Paths
// that skip all that (the fast paths of element-wise ops) read detail::watching_ops, which WatchScope raises.
#pragma once

#include <optional>
#include <string>

#include "tapir/autograd/log_impl.h"
#include "tapir/core/thread_words_impl.h"

namespace tapir {

struct Walk;

/// Observes this thread's ops. Ops that it calls are neither recorded nor reported; its exceptions reach the op's caller.
class OpWatcher {
 public:
    virtual ~OpWatcher() = default;

    /// An op begins; called once for each operand. Parts that are recorded in an op's place count as ops.
    virtual void begin(const char* /*op*/, Device /*operand*/, const Loc& /*caller*/) {}
    /// The op will write into this tensor; called for each.
    virtual void before_write(const Tensor& /*self*/) {}
    /// An Error was made: the op that has begun, if any, has probably failed.
    virtual void failed() noexcept {}
    /// The program is about to read its elements with what(). Called only while a graph is traced.
    virtual void read(const char* /*what*/, const Tensor& /*x*/, const Loc& /*caller*/) {}
    /// Something wrote into a tensor: an op, reported or not, or the library itself. Called only while a graph is traced.
    virtual void written(const Tensor& /*self*/, const Loc& /*caller*/) {}
    /// A graph that is called has this name for its parameter. Called only while a graph is traced.
    virtual void named(const Tensor& /*parameter*/, const std::string& /*name*/) {}
    /// The op has run. Do not read ran.saved: it is complete only if the op is recorded.
    virtual void end(const RecordArgs& /*ran*/) {}

    /// A walk begins.
    virtual void begin_walk(Walk& /*walk*/) {}
    /// The rule of a record is about to run: the gradients of its outputs are in walk.slots.
    virtual void begin_rule(Walk& /*walk*/, std::uint32_t /*record*/) {}
    /// The rule gives g to input i. `product`: g^T x is given instead; `rows`: row g[r] is added to row rows[r].
    virtual void give(Walk& /*walk*/, std::uint32_t /*record*/, int /*i*/, const Tensor& /*g*/, const Tensor* /*product*/, const Tensor* /*rows*/) {}
    /// True if give() is to get what contributions_of_rows() tells apart.
    virtual bool wants_rows() const noexcept { return false; }
    virtual void end_rule(Walk& /*walk*/, std::uint32_t /*record*/) {}
    /// Contributions to a value were added up, also over broadcast dimensions, or converted: walk.slots has the sum so far.
    virtual void summed(Walk& /*walk*/, std::uint32_t /*value*/) {}
    /// The leaf's part in walk.slots is about to be added to its gradient. gradient_mutex() is held.
    virtual void accumulate(Walk& /*walk*/, std::uint32_t /*leaf*/) {}

    /// A copy between devices, or from and to the host: before it is put on the device's current stream, after that, and when it is left (by
    /// then the host has waited, if it has to). Also called for copies inside of ops.
    virtual void begin_copy(Device /*to*/, Device /*from*/, std::size_t /*bytes*/) {}
    virtual void copy_is_queued() {}
    virtual void end_copy() {}

 protected:
    OpWatcher() = default;
    /// calls_ops == false: it calls no ops, so that nothing needs to be paused for it.
    explicit OpWatcher(bool calls_ops) noexcept : calls_ops_(calls_ops) {}

 private:
    friend class WatchScope;
    friend struct WatcherList;
    OpWatcher* next_ = nullptr;
    bool calls_ops_ = true;
};

/// A contribution, as OpWatcher::give() gets it; those that are not given are undefined.
struct Contribution {
    Tensor g, product, rows;
    /// Returns it as a tensor of this shape and dtype.
    Tensor summed(const Shape& shape, DType dtype) const;
    /// Adds it to a tensor.
    void add_to(const Tensor& sum) const;
};
/// A view of `count` rows of t.
Tensor rows_from(const Tensor& t, std::int64_t first, std::int64_t count);
/// The contribution of each row of a group in batch() to a value that they share. Empty if they cannot be told apart.
std::vector<Contribution> contributions_of_rows(const Log& log, const Log::ItemSpan& group, std::uint32_t value, const Contribution& all);
/// True if the value is one that the rows of a group share: not made in the group.
inline bool is_shared_by(const Log& log, const Log::ItemSpan& group, std::uint32_t value) noexcept {
    return value < group.first || (log.records[value]->flags & Record::kLeaf);
}

/// Names for the operands of an op in messages, better than "input 1", as for an optimizer's update, while watchers are
/// told that it has run.
class OperandNames {
 public:
    OperandNames(const char* const* inputs, const char* const* outputs) noexcept : inputs_(inputs), outputs_(outputs), outer_(current()) {
        current() = this;
    }
    ~OperandNames() { current() = outer_; }
    OperandNames(const OperandNames&) = delete;
    OperandNames& operator=(const OperandNames&) = delete;
    /// Null if no names are given.
    static const char* of_input(int i) noexcept { return current() ? current()->inputs_[i] : nullptr; }
    static const char* of_output(int k) noexcept { return current() ? current()->outputs_[k] : nullptr; }

 private:
    static const OperandNames*& current() noexcept { return detail::thread_words.operand_names; }
    const char* const* inputs_;
    const char* const* outputs_;
    const OperandNames* outer_;
};

/// Tells the thread's watchers that self was written to, even if they are told of nothing else: for mark_written().
void tell_written(const Tensor& self, const Loc& loc);
void tell_name(const Tensor& parameter, const std::string& name);

/// Reports this thread's ops to the watcher while it lives.
class WatchScope {
 public:
    explicit WatchScope(OpWatcher& watcher) noexcept;
    ~WatchScope();
    WatchScope(const WatchScope&) = delete;
    WatchScope& operator=(const WatchScope&) = delete;

 private:
    OpWatcher& watcher_;
};

/// Calls each of the thread's watchers. Ops that a watcher calls are neither recorded nor reported.
struct WatcherList {
    /// The thread's watcher, if it is the only one and calls no ops, so that it needs no pauses. Else null.
    static OpWatcher* quiet() noexcept {
        OpWatcher* first = detail::thread.watchers;
        return first && !first->next_ && !first->calls_ops_ ? first : nullptr;
    }
    template <class Call>
    static void each(const Call& call) {
        struct Pauses {
            detail::PauseRecording recording;
            detail::PauseAutocast autocast;
            detail::PartsOfOp parts;
        };
        std::optional<Pauses> pauses;
        if (!quiet()) pauses.emplace();
        for (OpWatcher *watcher = detail::thread.watchers, *next; watcher; watcher = next) {
            next = watcher->next_;  // the call may be its last
            call(*watcher);
        }
    }
};

}  // namespace tapir
