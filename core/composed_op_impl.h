// ComposedOp, CalledOp: errors of an op that is made of others name the op that was called.
#pragma once

namespace tapir::detail {

/// While it lives, errors of this thread begin with this op in place of the one that throws: of several scopes the outermost one's. Not around
/// calls of a user's function.
class [[nodiscard]] ComposedOp {
 public:
    explicit ComposedOp(const char* op) noexcept;
    ~ComposedOp();
    ComposedOp(const ComposedOp&) = delete;
    ComposedOp& operator=(const ComposedOp&) = delete;
    /// The one whose name counts now; null: none.
    static const char* current() noexcept;

 private:
    const char* outer_;
};

/// While it lives, errors of this thread begin with this op, or, null, with the one that throws, whatever scopes there are around it: a node of a graph
/// is of the op that the traced program called.
class [[nodiscard]] CalledOp {
 public:
    explicit CalledOp(const char* op) noexcept;
    ~CalledOp();
    CalledOp(const CalledOp&) = delete;
    CalledOp& operator=(const CalledOp&) = delete;

 private:
    const char* outer_;
};

}  // namespace tapir::detail
