// A user's function that backward calls: a hook, a custom function's backward, the second run of a checkpoint's function.
#pragma once

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/gdb/hooks_impl.h"

namespace tapir {

/// While it lives, the user's program runs: watchers and gdb are told of its ops, unlike those of a rule. A graph that is being
/// traced is told of both.
/// detail::OwnLines names its lines.
class UsersFunction {
 public:
    [[nodiscard]] explicit UsersFunction(const Walk& walk) noexcept : told_(!walk.watched && !detail::is_tracing()) {}

 private:
    detail::Muted told_;
    gdb::OutsideRule outside_;
};

/// The custom function whose forward this thread runs now, or null.
const char* function_in_forward() noexcept;

}  // namespace tapir
