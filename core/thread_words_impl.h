// The thread's state that core keeps beside ThreadState, of scopes that are alive. It belongs to what runs, not to the thread: batch() exchanges it
// when it goes on with another instance.
#pragma once

#include "tapir/core/error.h"

namespace tapir {
class Generator;
class Stream;

namespace detail {
class StandInLine;

struct ThreadWords {
    const StandInLine* stand_in = nullptr;  // error.cpp: the innermost StandInLine
    const char* composed = nullptr;         // error.cpp: the innermost ComposedOp
    const Stream* scoped_stream = nullptr;  // stream.cpp: the innermost StreamScope's
    Loc call_line{};                        // out_of_memory.cpp: the innermost CallLine's
    Generator* generator = nullptr;         // generator.cpp: the default generator of an instance of batch()
};
/// Gives the thread these, and keeps the thread's.
void exchange_words(ThreadWords& words) noexcept;
// Its parts.
void exchange_error_words(ThreadWords& words) noexcept;
void exchange_stream(ThreadWords& words) noexcept;
/// Returns the one before; null: the process's.
Generator* exchange_generator(Generator* own) noexcept;

}  // namespace detail
}  // namespace tapir
