// Tape: while one is alive on this thread, ops with a tracked input are recorded, and backward can walk the records.
//
//     Tensor w = randn({3, 2}).requires_grad_();
//     {
//         Tape tape;
//         Tensor loss = sum(tanh(matmul(x, w)));
//         tape.backward(loss);            // adds to w.grad()
//     }                                   // the records are gone; values stay
//
// Tapes nest: an inner tape's gradients are recorded by the outer one and can be differentiated again. Each thread has
// its own; a tensor recorded on another thread's live tape is refused with a TapeError, one whose tape has ended is a
// constant. What another thread computes without a tape of its own, of tensors that require a gradient, is refused by the tapes that
// were alive meanwhile: to have it as a constant, detach() it, or compute it under a NoGradScope.
//
// A view that was made before a recorded op wrote to its elements does not know of that: it is refused with a TapeError wherever it
// would be taken for a constant. Take the view again.
#pragma once

#include <concepts>
#include <functional>
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
    Tensor gradient{};          ///< of what follows y, of y's shape, converted to its dtype; ones for a scalar y
    bool create_graph = false;  ///< record the backward rules too, for higher-order gradients
    bool retain_graph = false;  ///< keep saved tensors, as a persistent tape does
};

/// It records what its own thread computes, that which makes it. It may end in any order, in a hook that backward calls (which goes on
/// to its end), and on another thread, if its own thread runs no ops and makes no tapes meanwhile.
class Tape {
 public:
    explicit Tape(TapeOptions options = {}, Loc loc = Loc::current());
    ~Tape();
    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;

    /// Adds the gradients of `loss` to the grad() of every leaf it depends on, as of this tape's records.
    /// Throws TapeError: loss not recorded here, not a scalar and no gradient given, records already used up by an earlier
    /// backward, a saved tensor modified in place since. No gradient has changed then.
    void backward(const Tensor& loss, const BackwardOptions& options = {}, Loc loc = Loc::current());

    /// d y / d x for each x; grad() is left alone. An x that y does not depend on gives zeros, and so does the gradient of a gradient
    /// that does not depend on x.
    std::vector<Tensor> gradient(const Tensor& y, const std::vector<Tensor>& xs, const BackwardOptions& options = {}, Loc loc = Loc::current());
    /// The same for one x: tape.gradient(y, x) is d y / d x.
    template <std::derived_from<Tensor> T>
    Tensor gradient(const Tensor& y, const T& x, const BackwardOptions& options = {}, Loc loc = Loc::current()) {
        return gradient(y, std::vector<Tensor>{x}, options, loc)[0];
    }

    /// gradient(y, {x}) taken apart: what each op that used x (each time step, each node of a tree) adds to it, in the order of the
    /// forward pass; found in one backward pass. An op uses x when x itself is its operand, not a view or a copy of it: under an
    /// AutocastScope that is the conversion to 16 bits, once for all. Hooks on x are not in it.
    /// See gradient_report() in autograd/gradient_by_use.h. Throws as gradient(), and ValueError with create_graph.
    std::vector<GradientUse> gradient_by_use(const Tensor& y, const Tensor& x, const BackwardOptions& options = {}, Loc loc = Loc::current());

    /// The number of records since this tape began.
    std::size_t size() const noexcept;

    /// The records as a table: number, op, output, bytes, inputs (numbers of records; "-": a constant), the user's line, and the module
    /// (see nn::ModuleScope) or a parameter's name. "pieces #1": a second output. With a pattern only lines with it in a column.
    std::string str(TextViewArg pattern = {}) const;
    /// The same to stdout.
    void print(TextViewArg pattern = {}) const;
    /// A drawing for Graphviz, and one for a browser: a box for each run of a module's ops, and one for each op outside of modules; shapes
    /// at the edges, the user's line where the mouse rests. Without parameters and leaves of many uses; 10,000 boxes at most.
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
    ThreadTapes* home_;  // those of the thread that it records; null when that thread has ended
    Log* log_;
    Log* paused_;  // what was current before: another log, or null
    Tape* outer_;
    std::size_t begin_;
    TapeOptions options_;
    Loc loc_;
};

/// d y / d x on the thread's current tape: gradient(loss, {w, b}), and gradient(loss, w) of one.
std::vector<Tensor> gradient(const Tensor& y, const std::vector<Tensor>& xs, const BackwardOptions& options = {}, Loc loc = Loc::current());
template <std::derived_from<Tensor> T>
Tensor gradient(const Tensor& y, const T& x, const BackwardOptions& options = {}, Loc loc = Loc::current()) {
    return gradient(y, std::vector<Tensor>{x}, options, loc)[0];
}

/// Nothing is recorded while it lives. Only needed inside a tape; a tape that begins inside of it records.
class NoGradScope {
 public:
    [[nodiscard]] NoGradScope() noexcept;
    ~NoGradScope();
    NoGradScope(const NoGradScope&) = delete;
    NoGradScope& operator=(const NoGradScope&) = delete;

 private:
    Log* paused_;
};

/// True when ops with tracked inputs are being recorded on this thread.
bool is_recording() noexcept;

/// The same values as constants: nothing flows back through them.
Tensor stop_gradient(In x);

}  // namespace tapir
