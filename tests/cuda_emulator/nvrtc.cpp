// Kernels that are compiled while the program runs, by the C++ compiler. See nvrtc.h.
#include "nvrtc.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

namespace fs = std::filesystem;

struct EmulatedProgram {
    std::string source, code, log;
    std::vector<std::pair<std::string, std::string>> headers;
};

namespace {

std::atomic<int> compiled{0};
std::atomic<bool> compiling_fails{false};
std::mutex last_mutex;
std::string last;

// Where the shared objects lie; gone when the process ends.
const fs::path& folder() {
    struct Folder {
        fs::path path;
        Folder() {
            std::string name = (fs::temp_directory_path() / "tapir_emulator_XXXXXX").string();
            path = mkdtemp(name.data());
        }
        ~Folder() {
            std::error_code ignored;
            fs::remove_all(path, ignored);
        }
    };
    static const Folder made;
    return made.path;
}

// The kernel's parameter is one struct; it runs with the thread's place in the grid, which the shared object has variables of its own for.
constexpr const char* kBefore = "#include <cuda_runtime.h>\n#line 1 \"tapir_fused.cu\"\n";
constexpr const char* kAfter = R"(
namespace {
template <class T>
T parameter_of(void (*)(T));
using Parameter = decltype(parameter_of(&tapir_fused));
}
extern "C" const std::size_t emulated_bytes = sizeof(Parameter);
extern "C" void emulated_call(const void* parameter, uint3 thread, uint3 block, dim3 threads, dim3 blocks) {
    threadIdx = thread;
    blockIdx = block;
    blockDim = threads;
    gridDim = blocks;
    tapir_fused(*static_cast<const Parameter*>(parameter));
}
)";

}  // namespace

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int headers, const char* const* texts,
                               const char* const* names) {
    *program = new EmulatedProgram{source, "", "", {}};
    for (int i = 0; i < headers; ++i) (*program)->headers.emplace_back(names[i], texts[i]);
    const std::lock_guard lock(last_mutex);
    last = source;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
    if (compiling_fails) {
        program->log = "compiling was made to fail";
        return NVRTC_ERROR_COMPILATION;
    }
    const fs::path own = folder() / std::to_string(compiled++);
    for (const auto& [name, text] : program->headers) {
        fs::create_directories((own / name).parent_path());
        std::ofstream(own / name) << text;
    }
    std::ofstream(own / "kernel.cpp") << kBefore << program->source << kAfter;
    const std::string result = (own / "kernel.so").string(), log = (own / "log").string();
    std::string command = std::string(TAPIR_EMULATOR_COMPILER " -shared -fPIC -O1 -w -x c++ -I" TAPIR_EMULATOR_DIR " -I") + own.string();
    for (int i = 0; i < count; ++i) {
        if (std::strncmp(options[i], "--gpu", 5) != 0) command += std::string(" ") + options[i];
    }
    command += " " + (own / "kernel.cpp").string() + " -o " + result + " 2> " + log;
    if (std::system(command.c_str()) != 0) {
        std::ifstream in(log);
        program->log.assign(std::istreambuf_iterator<char>(in), {});
        return NVRTC_ERROR_COMPILATION;
    }
    program->code = result;
    program->code += '\0';
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* bytes) {
    *bytes = program->code.size();
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* code) {
    std::memcpy(code, program->code.data(), program->code.size());
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* bytes) {
    *bytes = program->log.size() + 1;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
    std::memcpy(log, program->log.c_str(), program->log.size() + 1);
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
    delete *program;
    *program = nullptr;
    return NVRTC_SUCCESS;
}

namespace emulator {

int programs_compiled() { return compiled; }
const char* last_source() {
    const std::lock_guard lock(last_mutex);
    static thread_local std::string copy;
    copy = last;
    return copy.c_str();
}
void fail_compiling(bool fails) { compiling_fails = fails; }

}  // namespace emulator

// --- Loading -------------------------------------------------------------------------------------------------------------

struct EmulatedKernel {
    std::size_t bytes;
    void (*call)(const void* parameter, uint3 thread, uint3 block, dim3 threads, dim3 blocks);
};

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
    *library = dlopen(static_cast<const char*>(code), RTLD_NOW | RTLD_LOCAL);
    return *library ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char*) {
    const void* bytes = dlsym(library, "emulated_bytes");
    void* call = dlsym(library, "emulated_call");
    if (!bytes || !call) return cudaErrorInvalidValue;
    auto* made = new EmulatedKernel{*static_cast<const std::size_t*>(bytes), nullptr};
    std::memcpy(&made->call, &call, sizeof(call));
    *kernel = made;
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** parameters) {
    const auto& k = *static_cast<const EmulatedKernel*>(kernel);
    const auto* first = static_cast<const std::uint64_t*>(parameters[0]);
    return emulator::launch(*config, [call = k.call, parameter = std::vector<std::uint64_t>(first, first + (k.bytes + 7) / 8)] {
        call(parameter.data(), threadIdx, blockIdx, blockDim, gridDim);
    });
}
