// The thread's state that is kept beside ThreadState, of scopes that are alive. It belongs to what runs, not to the thread: batch() exchanges it
// when it goes on with another instance.
#pragma once

#include <utility>

namespace tapir {
class Generator;
class OperandNames;
class Stream;

namespace detail {
class StandInLine;

struct ThreadWords {
    const StandInLine* stand_in = nullptr;        // error.cpp: the innermost StandInLine
    const char* composed = nullptr;               // error.cpp: the innermost ComposedOp
    const Stream* scoped_stream = nullptr;        // stream.cpp: the innermost StreamScope's
    Generator* generator = nullptr;               // generator.cpp: the default generator of an instance of batch(); null: the process's
    const char* in_forward = nullptr;             // autograd/function.cpp: the custom function whose forward runs
    const OperandNames* operand_names = nullptr;  // autograd/watch/watch_impl.h
};
extern constinit thread_local ThreadWords thread_words __attribute__((tls_model("initial-exec")));

/// Returns the one before; null: the process's.
inline Generator* exchange_generator(Generator* own) noexcept { return std::exchange(thread_words.generator, own); }

}  // namespace detail
}  // namespace tapir
