// A stand-in for NVRTC: the source is compiled by the C++ compiler that built the tests, into a shared object whose name is what the "device
// code" holds. See cuda_runtime.h.
#pragma once

#include <cstddef>

struct EmulatedProgram;
using nvrtcProgram = EmulatedProgram*;
enum nvrtcResult { NVRTC_SUCCESS = 0, NVRTC_ERROR_COMPILATION = 6 };

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int headers, const char* const* texts,
                               const char* const* names);
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* bytes);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* code);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* bytes);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program);

namespace emulator {

// For tests.
/// How many programs were compiled, and what the last one was given.
int programs_compiled();
const char* last_source();
/// Compiling fails from now on, or not any more.
void fail_compiling(bool fails);

}  // namespace emulator
