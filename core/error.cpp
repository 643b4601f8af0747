// Makes the text of an error; CallerScope.
#include "tapir/core/error.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/own_lines_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/core/thread_words_impl.h"

namespace tapir {

constinit thread_local detail::ThreadState detail::thread;
constinit thread_local detail::ThreadWords detail::thread_words;

std::string detail::file_and_line(const Loc& loc) {
    const char* slash = std::strrchr(loc.file_name(), '/');
    return fmt::format("{}:{}", slash ? slash + 1 : loc.file_name(), loc.line());
}

// Shortens the path; where() has the whole.
static std::string beginning(const Loc& loc) { return loc.line() == 0 ? "" : detail::file_and_line(loc) + ": "; }

detail::StandInLine::StandInLine(const char* header, const Loc& loc) noexcept : header_(header), loc_(loc), outer_(detail::thread_words.stand_in) {
    detail::thread_words.stand_in = this;
}

detail::StandInLine::~StandInLine() { detail::thread_words.stand_in = outer_; }

const Loc& detail::users_line(const Loc& loc) noexcept {
    const bool is_there = detail::thread_words.stand_in && std::string_view(loc.file_name()).ends_with(detail::thread_words.stand_in->header_);
    return is_there ? detail::thread_words.stand_in->loc_ : loc;
}

const Loc& detail::error_place(const Loc& loc) noexcept { return users_line(caller(loc)); }

// True if the first line, perhaps of an error that is rethrown, names this module already, or one inside it, which says more.
static bool has_module(std::string_view first_line, const ModuleName& module) {
    if (!*module.path) {  // the model itself is shown by its type, and those inside it by paths that do not begin with that
        const std::size_t last = first_line.rfind(" (in ");
        return last != first_line.npos && first_line.find(')', last) == first_line.size() - 1;
    }
    const std::string in_module = fmt::format(" (in {}", module.path);
    for (std::size_t at = first_line.find(in_module); at != first_line.npos; at = first_line.find(in_module, at + 1)) {
        const std::string_view behind = first_line.substr(at + in_module.size());
        if (behind.starts_with(')') || behind.starts_with('.')) return true;
    }
    return false;
}

detail::ComposedOp::ComposedOp(const char* op) noexcept : outer_(detail::thread_words.composed) {
    if (!outer_) detail::thread_words.composed = op;
}

detail::ComposedOp::~ComposedOp() { detail::thread_words.composed = outer_; }

const char* detail::ComposedOp::current() noexcept { return detail::thread_words.composed; }

detail::CalledOp::CalledOp(const char* op) noexcept : outer_(detail::thread_words.composed) { detail::thread_words.composed = op; }

detail::CalledOp::~CalledOp() { detail::thread_words.composed = outer_; }

// Names the composite op in "mul: shapes differ" of an op that it calls. Messages of a trace or a graph are kept.
static std::string named(const std::string& message) {
    const std::size_t end = detail::thread_words.composed ? message.find(": ") : message.npos;
    if (end == message.npos || message.find(' ') < end || message.starts_with("trace: ") || message.starts_with("graph: ")) return message;
    return detail::thread_words.composed + message.substr(end);
}

std::string detail::error_text(const std::string& message, const Loc& loc) {
    if (message.empty()) return {};  // for an error that makes its own text: see out_of_memory.cpp
    std::string text = beginning(error_place(loc)) + named(message);
    if (!thread.module) return text;
    const std::size_t first_line = std::min(text.find('\n'), text.size());
    if (has_module(std::string_view(text).substr(0, first_line), *thread.module)) return text;
    return text.insert(first_line, fmt::format(" (in {})", thread.module->shown()));
}

Error::Error(const std::string& message, const Loc& loc) : message_(detail::error_text(message, loc)), loc_(detail::error_place(loc)) {
    if (gdb::is_watching()) gdb::forget();
    if (detail::thread.watchers) detail::tell_failure();
}

CallerScope::CallerScope(const Loc& loc) noexcept : previous_(detail::thread.caller) {
    if (previous_.line() == 0) detail::thread.caller = loc;  // the outermost scope is the nearest to the user
}

CallerScope::~CallerScope() { detail::thread.caller = previous_; }

}  // namespace tapir
