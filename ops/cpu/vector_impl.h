// What kernels of an instruction set share about its vectors, in the namespace of the instruction set.
#pragma once

#include <cstdint>

#ifndef TAPIR_ISA
#error "for kernels that are compiled once per instruction set"
#endif

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

inline i64 smaller(i64 a, i64 b) { return a < b ? a : b; }

}  // namespace
}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
