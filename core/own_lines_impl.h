// For code that is not a part of the op that runs it.
#pragma once

#include <utility>

#include "tapir/core/thread_impl.h"

namespace tapir::detail {

/// While it lives, errors and records name the lines that they are given, not that of a CallerScope around it: the user's own
/// function that backward calls is where its mistakes are mended.
class OwnLines {
 public:
    [[nodiscard]] OwnLines() noexcept : caller_(std::exchange(thread.caller, Loc{})) {}
    ~OwnLines() { thread.caller = caller_; }
    OwnLines(const OwnLines&) = delete;
    OwnLines& operator=(const OwnLines&) = delete;

 private:
    Loc caller_;
};

}  // namespace tapir::detail
