// Chooses the instruction set of the CPU kernels once, before any global object of a program is made.
#include "tapir/ops/cpu/isa.h"

#include <cstdlib>
#include <cstring>

namespace tapir::kernels {
namespace {

Isa detect() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl");
    Isa best = avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::baseline;
    if (const char* wish = std::getenv("TAPIR_ISA")) {
        if (std::strcmp(wish, "baseline") == 0) best = Isa::baseline;
        if (std::strcmp(wish, "avx2") == 0 && best == Isa::avx512) best = Isa::avx2;
    }
    return best;
#else
    return Isa::baseline;
#endif
}

}  // namespace

Isa chosen_isa = Isa::baseline;

namespace {

// Runs before the constructors of global objects, which may compute with tensors: other kernels would give them other
// digits. 101 is the first priority that is not the compiler's own.
[[gnu::constructor(101)]] void choose() { chosen_isa = detect(); }

}  // namespace

}  // namespace tapir::kernels
