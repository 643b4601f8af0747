// Tape: while one is alive on this thread, ops with a tracked input are recorded, and backward can walk the records.
//
//     Tensor w = randn({3, 2}).requires_grad_();
//     {
//         Tape tape;
//         Tensor loss = sum(tanh(matmul(x, w)));
//         tape.backward(loss);            // adds to w.grad()
//     }                                   // the records are gone; values stay
//
// Tapes nest: the outer tape records an inner tape's gradients, which can be differentiated again. Each thread has its own
// tapes. A tensor that is recorded on another thread's live tape is refused with a TapeError; one whose tape has ended is a
// constant. A thread without a tape may compute with tensors that require a gradient: the tapes that were alive meanwhile refuse
// its results. To record them, open a TapeScope there. To use one as a constant, detach() it, or compute it under a NoGradScope.
//
// A view does not know of a recorded op that writes to its elements later. Such a view is refused with a TapeError wherever it
// would count as a constant. Take the view again.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

struct Log;
struct ThreadTapes;
struct GradientUse;

struct TapeOptions {
    bool persistent = false;  ///< keep saved tensors after backward, so that it can run again
};

struct BackwardOptions {
    Tensor gradient{};          ///< gradient of the final result with respect to y: y's shape, converted to y's dtype; ones for a scalar y
    bool create_graph = false;  ///< record the backward rules too, for higher-order gradients
    bool retain_graph = false;  ///< keep saved tensors, as a persistent tape does
};

/// A tape records what the thread that made it computes. Tapes may end in any order, also in a hook that backward calls (backward still
/// runs to its end), and on another thread, if the tape's own thread runs no ops and makes no tapes meanwhile.
class Tape {
 public:
    explicit Tape(TapeOptions options = {}, Loc loc = Loc::current());
    ~Tape();
    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;

    /// Adds the gradients of `loss` to the grad() of every leaf it depends on, along this tape's records.
    /// Throws TapeError: loss not recorded here, not a scalar and no gradient given, records already used up by an earlier
    /// backward, a saved tensor modified in place since. No gradient has changed then.
    void backward(const Tensor& loss, const BackwardOptions& options = {}, Loc loc = Loc::current());

    /// Returns d y / d x for each x; grad() is left alone. The gradient is zeros for an x that y does not depend on, also where
    /// y is itself a gradient that does not depend on x.
    std::vector<Tensor> gradient(const Tensor& y, const std::vector<Tensor>& xs, const BackwardOptions& options = {}, Loc loc = Loc::current());
    /// Overload for one x: tape.gradient(y, x) is d y / d x.
    template <std::derived_from<Tensor> T>
    Tensor gradient(const Tensor& y, const T& x, const BackwardOptions& options = {}, Loc loc = Loc::current()) {
        return gradient(y, std::vector<Tensor>{x}, options, loc)[0];
    }

    /// gradient(y, {x}) split by use: what each op that used x (each time step, each node of a tree) adds to it, in the order of the
    /// forward pass, from one backward pass. An op uses x if x itself is its operand, not a view or a copy of it: under an
    /// AutocastScope the only use is the conversion to 16 bits. Hooks on x are not applied.
    /// See gradient_report() in autograd/gradient_by_use.h. Throws like gradient(), and ValueError with create_graph.
    std::vector<GradientUse> gradient_by_use(const Tensor& y, const Tensor& x, const BackwardOptions& options = {}, Loc loc = Loc::current());

    /// The gradients of each loss by itself: for each parameter, (losses, *parameter). The losses have one element each. If they are results of one
    /// batch(), each of another item, one backward pass computes all; else each takes one. Hooks on parameters are not applied. The records stay
    /// as with retain_graph, so that backward() may follow. Throws like gradient(), ValueError without losses, ShapeError.
    ///     const std::vector<Tensor> losses = batch(examples, loss_of);
    ///     const std::vector<Tensor> each = tape.per_example_gradients(losses, model.parameters());
    std::vector<Tensor> per_example_gradients(const std::vector<Tensor>& losses, const std::vector<Tensor>& parameters, Loc loc = Loc::current());

    /// The number of records since this tape began.
    std::size_t size() const noexcept;

    /// The records as a table: number, op, output, bytes, inputs (numbers of records; "-" is a constant), the user's line, and the module
    /// (see nn::ModuleScope) or a parameter's name. "pieces #1" is a second output. With a pattern: only the lines that contain it in a column.
    std::string str(TextViewArg pattern = {}) const;
    /// Prints str(pattern) to stdout.
    void print(TextViewArg pattern = {}) const;
    /// A drawing for Graphviz, and one for a browser: one box for each run of a module's ops, and one for each op outside of modules. Edges
    /// show shapes, the mouse shows the user's line. Parameters and leaves of many uses are left out; 10,000 boxes at most.
    ///     std::ofstream("tape.svg") << tape.to_svg();
    std::string to_dot() const;
    std::string to_svg() const;
    bool persistent() const noexcept { return options_.persistent; }
    /// Internal: the records.
    Log& log() const noexcept { return *log_; }
    /// The tape that records on this thread, or null.
    static Tape* current() noexcept;

 private:
    friend class BackwardRun;
    friend struct ThreadTapes;
    ThreadTapes* home_;  // the tapes of the thread that it records; null when that thread has ended
    Log* log_;
    Log* paused_;  // the log that was current before, or null
    Tape* outer_;
    std::size_t begin_;
    TapeOptions options_;
    Loc loc_;
};

/// Returns d y / d x on the thread's current tape: gradient(loss, {w, b}), or gradient(loss, w) for one x.
std::vector<Tensor> gradient(const Tensor& y, const std::vector<Tensor>& xs, const BackwardOptions& options = {}, Loc loc = Loc::current());
template <std::derived_from<Tensor> T>
Tensor gradient(const Tensor& y, const T& x, const BackwardOptions& options = {}, Loc loc = Loc::current()) {
    return gradient(y, std::vector<Tensor>{x}, options, loc)[0];
}

/// Tape::per_example_gradients() of the thread's current tape.
std::vector<Tensor> per_example_gradients(const std::vector<Tensor>& losses, const std::vector<Tensor>& parameters, Loc loc = Loc::current());

/// Pauses recording while it lives. Only needed inside a tape; a tape that begins inside of it records.
class NoGradScope {
 public:
    [[nodiscard]] NoGradScope() noexcept;
    ~NoGradScope();
    NoGradScope(const NoGradScope&) = delete;
    NoGradScope& operator=(const NoGradScope&) = delete;

 private:
    Log* paused_;
};

/// While it lives, the ops of this thread are recorded for another thread's tape:
///     auto later = std::async(std::launch::async, [&] {
///         TapeScope join(tape);
///         return model.encode(left);
///     });
///     Tensor h = combine(later.get(), model.encode(right));
/// When the scope has ended, the tape's thread may use the results like its own. The order of the gradients' sums follows the order in which
/// scopes end. On the tape's own thread it does nothing. Throws TapeError on a thread with another tape, and while tracing. Inside of it,
/// Tape, and hooks on values from outside, are refused.
class TapeScope {
 public:
    [[nodiscard]] explicit TapeScope(Tape& tape, Loc loc = Loc::current());
    ~TapeScope();
    TapeScope(const TapeScope&) = delete;
    TapeScope& operator=(const TapeScope&) = delete;

 private:
    Log* log_ = nullptr;  // null: on the tape's own thread
};

/// True if ops with tracked inputs are being recorded on this thread.
bool is_recording() noexcept;

/// Returns x as a constant: same values, no gradient flows back.
Tensor stop_gradient(In x);

}  // namespace tapir
