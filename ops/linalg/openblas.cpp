#include "tapir/ops/linalg/openblas_impl.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

namespace tapir::openblas {

namespace {

template <class F>
F* find(const char* name) {
    return reinterpret_cast<F*>(::dlsym(RTLD_DEFAULT, name));
}

// On an x86-64 processor that is newer than itself, OpenBLAS falls back to kernels of 2004, with vectors of 4 floats. With those for AVX2, solve() of a
// 256 x 256 matrix takes half the time (bench/README.md); those for AVX-512 are slower than both where they solve triangular systems.
// It chooses when it is loaded. To choose again forgets the choice for a moment, in which nobody may be computing: so this runs before main().
struct ChooseAgain {
    ChooseAgain() {
#ifdef __x86_64__
        constexpr const char* variable = "OPENBLAS_CORETYPE";
        const char* const now = kernels();
        if (!now || now != std::string_view("Prescott") || std::getenv(variable)) return;
        const auto choose = find<void()>("gotoblas_dynamic_init"), forget = find<void()>("gotoblas_dynamic_quit");
        if (!choose || !forget) return;
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
        ::setenv(variable, "Haswell", 1);
        forget();
        choose();
        ::unsetenv(variable);
#endif
    }
} const choose_again;

}  // namespace

void set_threads(int count) {
    static const auto get = find<int()>("openblas_get_num_threads");
    static const auto set = find<void(int)>("openblas_set_num_threads");
    if (!get || !set) return;
    static const int most = get();  // as the user's environment says
    static std::atomic<int> now{most};
    count = std::min(count, most);
    if (now.exchange(count) != count) set(count);
}

const char* kernels() {
    static const auto name = find<const char*()>("openblas_get_corename");
    return name ? name() : nullptr;
}

}  // namespace tapir::openblas
