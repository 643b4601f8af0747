#include "tapir/core/gdb/hooks_impl.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"

#if defined(__linux__)
#include <sys/syscall.h>
#endif

namespace tapir {

extern "C" {
// Kept by the attributes, because only a debugger uses them.
[[gnu::used, gnu::retain]] constinit GdbState tapir_gdb_state{.watching_ops = &detail::watching_ops.value,
                                                              .tables = {tapir_gdb_layout, tapir_gdb_allocator}};
// Their code differs, so that neither the compiler nor the linker merges them.
[[gnu::used, gnu::retain, gnu::noinline]] void tapir_gdb_op() { asm volatile("nop" ::: "memory"); }
[[gnu::used, gnu::retain, gnu::noinline]] void tapir_gdb_nonfinite() { asm volatile("nop\n\tnop" ::: "memory"); }
}

namespace gdb {
namespace {

// Held while a thread reports, so that the state does not change while gdb reads it. Recursive, because gdb may call functions there.
std::recursive_mutex& telling() {
    static auto* mutex = new std::recursive_mutex;  // threads may outlive main()
    return *mutex;
}

// The op that this thread reported last.
struct Told {
    const char* op = "";
    Loc loc;
    bool has_result = true;
    bool in_rule = false;
};
constinit thread_local Told told;

bool is_wanted(const char* op, std::uint32_t line) noexcept {
    if (!*tapir_gdb_state.wanted) return true;
    std::string_view list(tapir_gdb_state.wanted, strnlen(tapir_gdb_state.wanted, sizeof(tapir_gdb_state.wanted)));
    char text[16] = ":";
    const std::string_view place(text, static_cast<std::size_t>(std::to_chars(text + 1, text + sizeof(text), line).ptr - text));
    while (!list.empty()) {
        const std::string_view entry = list.substr(0, list.find('\n'));
        if (entry == op || entry == place) return true;
        list.remove_prefix(std::min(list.size(), entry.size() + 1));
    }
    return false;
}

void tell(GdbState::Kind kind, const char* op, const TensorImpl* tensor, const Loc& loc) {
    if (!is_wanted(op, loc.line())) return;
    const std::lock_guard lock(telling());
    GdbState& state = tapir_gdb_state;
    state.kind = kind;
    state.op = op;
    state.file = loc.file_name();
    state.line = loc.line();
    state.tensor = tensor;
    state.module = detail::thread.module;
    tapir_gdb_op();
    state.tensor = nullptr;
}

// Called after a stop, at which the user may have asked for checks. Then this op is checked too. Returns true if so.
bool check_if_asked() {
    if (tapir_gdb_state.checking == 0) return false;
    detail::check_finite_of_thread();
    return true;
}

}  // namespace

void begin(const char* op, const TensorImpl* operand, const Loc& own) {
    if (detail::thread.parts > 0 || told.in_rule) return;
    const Loc& loc = detail::caller(own);
    if (!told.has_result && std::strcmp(told.op, op) == 0) return;  // another operand, whose line may be in the library
    told.op = op;
    told.loc = loc;
    told.has_result = false;
    if (tapir_gdb_state.watching > 0) tell(GdbState::kForward, op, operand, loc);
    check_if_asked();
}

void forget() noexcept { told.has_result = true; }

void result(const TensorImpl* made) {
    if (detail::thread.parts > 0 || told.in_rule || !*told.op) return;
    told.has_result = true;
    if (tapir_gdb_state.results > 0) tell(GdbState::kResult, told.op, made, told.loc);
    check_if_asked();
}

bool begin_rule(const char* op, const TensorImpl* operand, const Loc& loc, bool is_function) {
    told.in_rule = true;
    told.has_result = true;
    if (tapir_gdb_state.watching > 0) tell(is_function ? GdbState::kFunction : GdbState::kBackward, op, operand, loc);
    return check_if_asked();
}

void end_rule() noexcept { told.in_rule = false; }

void nonfinite(const char* op, const char* message, const Loc& loc) {
    const std::lock_guard lock(telling());
    GdbState& state = tapir_gdb_state;
    state.kind = told.in_rule ? GdbState::kBackward : GdbState::kForward;
    state.op = op;
    state.file = loc.file_name();
    state.line = loc.line();
    state.module = detail::thread.module;
    state.message = message;
    tapir_gdb_nonfinite();
    state.message = nullptr;
}

OutsideRule::OutsideRule() noexcept : was_in_rule_(std::exchange(told.in_rule, false)) {}
OutsideRule::~OutsideRule() { told.in_rule = was_in_rule_; }

void list(GdbLog& log) noexcept {
    const std::lock_guard lock(telling());
#if defined(__linux__)
    log.thread = static_cast<std::int32_t>(syscall(SYS_gettid));
#endif
    log.next = tapir_gdb_state.logs;
    tapir_gdb_state.logs = &log;
}

void unlist(GdbLog& log) noexcept {
    const std::lock_guard lock(telling());
    for (GdbLog** place = &tapir_gdb_state.logs; *place; place = &(*place)->next) {
        if (*place != &log) continue;
        *place = log.next;
        return;
    }
}

}  // namespace gdb

// `tapir tensor EXPR --copy` calls it. Returns the elements on the CPU and without gaps, which live until the next call. If null,
// tapir_gdb_state.message gives the reason.
extern "C" [[gnu::used, gnu::retain]] const void* tapir_gdb_copy(const TensorImpl* impl) {
    static auto& copy = *new Tensor;
    static auto& message = *new std::string;
    try {
        const detail::PauseRecording pause;
        const detail::PauseAutocast plain;
        copy = detail::handle_of(const_cast<TensorImpl*>(impl)).to(cpu).contiguous();
        return copy.impl();
    } catch (const std::exception& error) {
        message = error.what();
        tapir_gdb_state.message = message.c_str();
        return nullptr;
    }
}

}  // namespace tapir
