// A stand-in for NVTX: what was pushed, and how many ranges of this thread are open.
#pragma once

#include <atomic>

namespace emulated_nvtx {
inline std::atomic<int> pushed{0}, popped{0};
inline constinit thread_local int depth = 0;
inline thread_local char last[64] = {};  // the name of the innermost range that was begun
}  // namespace emulated_nvtx

inline int nvtxRangePushA(const char* message) {
    ++emulated_nvtx::pushed;
    int i = 0;
    for (; message[i] && i < 63; ++i) emulated_nvtx::last[i] = message[i];
    emulated_nvtx::last[i] = 0;
    return emulated_nvtx::depth++;
}
inline int nvtxRangePop() {
    ++emulated_nvtx::popped;
    return --emulated_nvtx::depth;
}
