// ComposedOp, CalledOp: errors of a composite op name the op that was called.
#pragma once

namespace tapir::detail {

/// While it lives, errors of this thread name this op instead of the op that throws. The outermost of several scopes counts. Do not put it around
/// calls of a user's function.
class [[nodiscard]] ComposedOp {
 public:
    explicit ComposedOp(const char* op) noexcept;
    ~ComposedOp();
    ComposedOp(const ComposedOp&) = delete;
    ComposedOp& operator=(const ComposedOp&) = delete;
    /// Returns the name that counts now; null if there is none.
    static const char* current() noexcept;

 private:
    const char* outer_;
};

/// While it lives, errors of this thread name this op or, if null, the op that throws, regardless of scopes around it. Used because a node of a
/// graph belongs to the op that the traced program called.
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
