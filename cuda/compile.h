// Compiles kernels while the program runs, by NVRTC.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tapir::gpu {

/// Returns the headers that such a kernel can include: their names and texts.
const std::vector<std::pair<const char*, const char*>>& kernel_headers();
/// The compiler options, without the architecture.
inline constexpr const char* kKernelOptions[] = {"--std=c++20", "-DTAPIR_IN_FUSED_KERNEL=1"};

/// Returns the device code of the source for an architecture ("sm_90"). If that fails, returns "" and the compiler's messages in `log`.
std::string compile_kernel(const std::string& source, const std::string& architecture, std::string& log);

}  // namespace tapir::gpu
