// ComposedOp: errors of an op that is made of others name the op that was called.
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

 private:
    const char* outer_;
};

}  // namespace tapir::detail
