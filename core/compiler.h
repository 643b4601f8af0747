// Rejects unsupported compilers with one clear error, in place of a page of errors.
#pragma once

#if __cplusplus < 202002L || (defined(__clang__) && __clang_major__ < 16) || (!defined(__clang__) && defined(__GNUC__) && __GNUC__ < 11)
#error "Tapir needs C++20 by g++ 11 or later, or clang 16 or later: -std=c++20"
#include "the compiler is too old, or -std=c++20 is missing: see the line above"  // a file that is not there ends the compilation
#endif
