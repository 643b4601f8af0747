// The text of an error, and CallerScope.
#include "tapir/core/error.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "tapir/core/fail_impl.h"
#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/own_lines_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {

constinit thread_local detail::ThreadState detail::thread;

std::string detail::file_and_line(const Loc& loc) {
    const char* slash = std::strrchr(loc.file_name(), '/');
    return fmt::format("{}:{}", slash ? slash + 1 : loc.file_name(), loc.line());
}

// where() has the whole path.
static std::string beginning(const Loc& loc) { return loc.line() == 0 ? "" : detail::file_and_line(loc) + ": "; }

static constinit thread_local const detail::StandInLine* stand_in = nullptr;

detail::StandInLine::StandInLine(const char* header, const Loc& loc) noexcept : header_(header), loc_(loc), outer_(stand_in) {
    stand_in = this;
}

detail::StandInLine::~StandInLine() { stand_in = outer_; }

const Loc& detail::users_line(const Loc& loc) noexcept {
    const bool is_there = stand_in && std::string_view(loc.file_name()).ends_with(stand_in->header_);
    return is_there ? stand_in->loc_ : loc;
}

Error::Error(const std::string& message, const Loc& loc)
    : message_(beginning(detail::users_line(detail::caller(loc))) + message), loc_(detail::users_line(detail::caller(loc))) {
    if (gdb::is_watching()) gdb::forget();
    if (detail::thread.watchers) detail::tell_failure();
    if (!detail::thread.module) return;
    const std::size_t first_line = std::min(message_.find('\n'), message_.size());
    const std::string in_module = fmt::format(" (in {}", detail::thread.module->shown());
    // The text of an error that is thrown anew may name it, or a module inside it, which says more.
    for (std::size_t at = message_.find(in_module); at < first_line; at = message_.find(in_module, at + 1)) {
        const char next = message_[at + in_module.size()];
        if (next == ')' || next == '.') return;
    }
    message_.insert(first_line, in_module + ")");
}

CallerScope::CallerScope(const Loc& loc) noexcept : previous_(detail::thread.caller) {
    if (previous_.line() == 0) detail::thread.caller = loc;  // the outermost scope is nearest to the user
}

CallerScope::~CallerScope() { detail::thread.caller = previous_; }

}  // namespace tapir
