// Watchers of ops: what the tools that look at a running program (CheckFiniteScope, Profiler) are told.
//
// They cost nothing while there are none: an op that is not recorded looks at thread.observed instead of thread.log, and the ways
// that skip all that (the fast paths of element-wise ops) look at detail::watching_ops, which WatchScope raises.
#pragma once

#include <optional>
#include <string>

#include "tapir/autograd/log_impl.h"

namespace tapir {

struct Walk;

/// Told of this thread's ops. What it calls itself is neither recorded nor told; what it throws reaches the op's caller.
class OpWatcher {
 public:
    virtual ~OpWatcher() = default;

    /// An op begins; said for each of its operands. Parts that are recorded in an op's place count as ops.
    virtual void begin(const char* /*op*/, Device /*operand*/, const Loc& /*caller*/) {}
    /// It will write into this tensor; said for each.
    virtual void before_write(const Tensor& /*self*/) {}
    /// An Error was made: the op that has begun, if any, has probably failed.
    virtual void failed() noexcept {}
    /// The program is about to read its elements with what(). Told while a graph is traced only.
    virtual void read(const char* /*what*/, const Tensor& /*x*/, const Loc& /*caller*/) {}
    /// Something wrote into a tensor, be it an op, told of or not, or the library itself. Told while a graph is traced only.
    virtual void written(const Tensor& /*self*/, const Loc& /*caller*/) {}
    /// A graph that is called calls its parameter so. Told while a graph is traced only.
    virtual void named(const Tensor& /*parameter*/, const std::string& /*name*/) {}
    /// It has run. ran.saved is not to be looked at: it is complete only where the op is recorded.
    virtual void end(const RecordArgs& /*ran*/) {}

    /// A walk begins.
    virtual void begin_walk(Walk& /*walk*/) {}
    /// The rule of a record is about to run: the gradients of its outputs are in walk.slots.
    virtual void begin_rule(Walk& /*walk*/, std::uint32_t /*record*/) {}
    /// It gives g to input i. `product`: g^T x is given instead; `rows`: row g[r] is added to row rows[r].
    virtual void give(Walk& /*walk*/, std::uint32_t /*record*/, int /*i*/, const Tensor& /*g*/, const Tensor* /*product*/, const Tensor* /*rows*/) {}
    virtual void end_rule(Walk& /*walk*/, std::uint32_t /*record*/) {}
    /// What a value was given was added up, also over broadcast dimensions, or converted: walk.slots has the sum so far.
    virtual void summed(Walk& /*walk*/, std::uint32_t /*value*/) {}
    /// What walk.slots has of a leaf is about to be added to its gradient. gradient_mutex() is held.
    virtual void accumulate(Walk& /*walk*/, std::uint32_t /*leaf*/) {}

    /// A copy between devices, or from and to the host, is about to be put on the device's current stream, has been, and is left (by
    /// then the host has waited, if it has to). Said also of what ops do inside.
    virtual void begin_copy(Device /*to*/, Device /*from*/, std::size_t /*bytes*/) {}
    virtual void copy_is_queued() {}
    virtual void end_copy() {}

 protected:
    OpWatcher() = default;
    /// false: it calls no ops, so that there is nothing to be paused for it.
    explicit OpWatcher(bool calls_ops) noexcept : calls_ops_(calls_ops) {}

 private:
    friend class WatchScope;
    friend struct WatcherList;
    OpWatcher* next_ = nullptr;
    bool calls_ops_ = true;
};

/// What messages call the operands of an op that says more of them than "input 1", as an optimizer's update, while watchers are
/// told that it has run.
class OperandNames {
 public:
    OperandNames(const char* const* inputs, const char* const* outputs) noexcept : inputs_(inputs), outputs_(outputs), outer_(current) {
        current = this;
    }
    ~OperandNames() { current = outer_; }
    OperandNames(const OperandNames&) = delete;
    OperandNames& operator=(const OperandNames&) = delete;
    /// Null: none are given.
    static const char* of_input(int i) noexcept { return current ? current->inputs_[i] : nullptr; }
    static const char* of_output(int k) noexcept { return current ? current->outputs_[k] : nullptr; }

 private:
    static constinit thread_local const OperandNames* current;
    const char* const* inputs_;
    const char* const* outputs_;
    const OperandNames* outer_;
};

/// Tells the thread's watchers, also where these are told of nothing else, that self was written to: for mark_written().
void tell_written(const Tensor& self, const Loc& loc);
void tell_name(const Tensor& parameter, const std::string& name);

/// The watcher is told of what this thread does while this lives.
class WatchScope {
 public:
    explicit WatchScope(OpWatcher& watcher) noexcept;
    ~WatchScope();
    WatchScope(const WatchScope&) = delete;
    WatchScope& operator=(const WatchScope&) = delete;

 private:
    OpWatcher& watcher_;
};

/// For what calls the watchers: each of them, with what it calls neither recorded nor told.
struct WatcherList {
    /// The thread's watcher, where it is the only one and calls no ops: it needs no pauses. Else null.
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
            next = watcher->next_;  // it may be its last call
            call(*watcher);
        }
    }
};

}  // namespace tapir
