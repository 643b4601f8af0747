#include "tapir/ops/linalg/openblas_impl.h"

#include <dirent.h>
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

// The number of this process's threads; 0 if the system does not say.
int threads_now() {
    DIR* const tasks = ::opendir("/proc/self/task");
    if (!tasks) return 0;
    int count = 0;
    while (const dirent* task = ::readdir(tasks)) count += task->d_name[0] != '.';
    ::closedir(tasks);
    return count;
}

// On an x86-64 processor that is newer than itself, OpenBLAS falls back to kernels of 2004, with vectors of 4 floats. With those for AVX2, solve() of a
// 256 x 256 matrix takes half the time (bench/README.md); those for AVX-512 are slower than both where they solve triangular systems.
// It chooses when it is loaded. To choose again forgets the choice for a moment.
void choose_again() {
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

// The threads that OpenBLAS starts when it is loaded wait for work in a loop, each for 130 ms of processor time. Without them it
// starts its threads when it first has work for several.
void end_threads() {
    if (const auto end = find<int()>("blas_thread_shutdown_")) end();
}

// Nobody may be computing meanwhile: so this runs before main(), and only if there are no threads but OpenBLAS's.
struct BeforeMain {
    BeforeMain() {
        const auto threads = find<int()>("openblas_get_num_threads");
        if (!threads || threads_now() > threads()) return;
        choose_again();
        end_threads();
    }
} const before_main;

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
