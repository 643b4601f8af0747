// Kernels that are compiled while the program runs, by NVRTC.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tapir::gpu {

/// The headers that such a kernel can include, as text: their names and what they hold.
const std::vector<std::pair<const char*, const char*>>& kernel_headers();
/// The options that it is compiled with, but for the architecture.
inline constexpr const char* kKernelOptions[] = {"--std=c++20", "-DTAPIR_IN_FUSED_KERNEL=1"};

/// The device code of the source for an architecture ("sm_90"), or an empty string and what the compiler said.
std::string compile_kernel(const std::string& source, const std::string& architecture, std::string& log);

}  // namespace tapir::gpu
