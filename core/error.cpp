// The text of an error, and CallerScope.
#include "tapir/core/error.h"

#include <cstring>

#include "tapir/core/thread_impl.h"

namespace tapir {

constinit thread_local detail::ThreadState detail::thread;

namespace {

// The file's name without its folders, as a person would say it; where() has the whole path.
std::string place(const Loc& loc) {
    if (loc.line() == 0) return "";
    const char* slash = std::strrchr(loc.file_name(), '/');
    return std::string(slash ? slash + 1 : loc.file_name()) + ":" + std::to_string(loc.line()) + ": ";
}

}  // namespace

Error::Error(const std::string& message, const Loc& loc)
    : message_(place(detail::caller(loc)) + message), loc_(detail::caller(loc)) {}

CallerScope::CallerScope(const Loc& loc) noexcept : previous_(detail::thread.caller) {
    if (previous_.line() == 0) detail::thread.caller = loc;  // the outermost scope is nearest to the user
}

CallerScope::~CallerScope() { detail::thread.caller = previous_; }

}  // namespace tapir
