// Data of a running program for gdb, and hooks that stop it at an op.
//
// The script (tapir_gdb.py, which the library carries with it) reads memory and calls nothing. It knows three symbols: the table of
// offsets (layout.cpp), the state below, and the two empty functions at which it sets breakpoints. So it works on programs that are
// optimised, on a library without debug information, and in core dumps.
//
// To stop at ops the script raises tapir_gdb_state.watching and detail::watching_ops, which sends ops through the paths that report
// what they do. All this costs nothing while it is 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tapir/core/error.h"
#include "tapir/core/gdb/layout_impl.h"

namespace tapir {

struct Log;
struct ModuleName;
struct TensorImpl;

/// A log that a thread has made. They are all listed, because some core dumps do not allow reading thread-local variables.
struct GdbLog {
    const Log* log = nullptr;
    GdbLog* next = nullptr;
    std::int32_t thread = 0;  // the system's number
    std::int32_t tapes = 0;
    std::size_t begin = 0;  // of the innermost tape
    Loc opened{};           // of the innermost tape
};

struct GdbState {
    // Set by the script.
    std::int32_t watching = 0;  // how many of its breakpoints stop at ops
    std::int32_t results = 0;   // how many of these look at results too
    std::int32_t checking = 0;  // above 0: ops are checked for nan and inf
    char wanted[500] = {};      // where to stop: names of ops and ":LINE"s, one a line; "": every op
    // Read by the script when a breakpoint is hit.
    enum Kind : std::int32_t { kForward, kBackward, kResult, kFunction };  // kFunction: the backward of a Function
    std::int32_t kind = kForward;
    std::uint32_t line = 0;
    const char* op = nullptr;
    const char* file = nullptr;
    const TensorImpl* tensor = nullptr;  // the first operand, or the result; null if there is none
    const ModuleName* module = nullptr;
    const char* message = nullptr;  // of tapir_gdb_nonfinite, and of a copy that failed
    // Found by the script.
    int* watching_ops = nullptr;
    GdbLog* logs = nullptr;
    const void* tables[2] = {};  // so that a static library gives them away, and the script with them
};

extern "C" {
extern const gdb::LayoutEntry tapir_gdb_layout[];     // layout.cpp
extern const gdb::LayoutEntry tapir_gdb_allocator[];  // of core/allocator.cpp
extern GdbState tapir_gdb_state;
void tapir_gdb_op();         // called when an op begins, or has a result
void tapir_gdb_nonfinite();  // called when an op has made nan or inf of finite numbers
const void* tapir_gdb_copy(const TensorImpl* impl);
}

namespace gdb {

inline bool is_watching() noexcept { return tapir_gdb_state.watching > 0 || tapir_gdb_state.checking > 0; }

/// An op begins. Called for each of its operands, of which the first counts; operand may be null.
void begin(const char* op, const TensorImpl* operand, const Loc& loc);
/// Reports that the current op has failed.
void forget() noexcept;
/// Reports a result of the current op.
void result(const TensorImpl* made);
/// The rule of a record begins, of a user's Function or of an op; ops that it calls are not reported. Returns true if gdb wants to check
/// its results.
bool begin_rule(const char* op, const TensorImpl* operand, const Loc& loc, bool is_function);
void end_rule() noexcept;
/// Reports the message of a NonFiniteError.
void nonfinite(const char* op, const char* message, const Loc& loc);

/// While it lives this thread is not in a rule, but in a user function that backward has called.
class OutsideRule {
 public:
    [[nodiscard]] OutsideRule() noexcept;
    ~OutsideRule();
    OutsideRule(const OutsideRule&) = delete;
    OutsideRule& operator=(const OutsideRule&) = delete;

 private:
    bool was_in_rule_;
};

void list(GdbLog& log) noexcept;
void unlist(GdbLog& log) noexcept;

}  // namespace gdb

namespace detail {
/// From here on this thread's ops are checked as in a CheckFiniteScope, and report what they find to gdb::nonfinite().
void check_finite_of_thread();
}  // namespace detail

}  // namespace tapir
