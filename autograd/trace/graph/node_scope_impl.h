// NodeScope: lets a node run as if the traced program called its op.
#pragma once

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir::detail {

/// While it lives, errors and records of this thread refer to the traced program: its line, its module, the op that it called.
class [[nodiscard]] NodeScope {
 public:
    /// `loc` is used for a node whose line is not known.
    NodeScope(const Graph::Origin& origin, const Loc& loc) noexcept : caller_(origin.loc.line() ? origin.loc : loc), called_(origin.called) {
        thread.module = origin.module;
        thread.module_call = origin.module_call;
    }

 private:
    CallerScope caller_;
    ModuleRestore restore_;
    CalledOp called_;
};

}  // namespace tapir::detail
