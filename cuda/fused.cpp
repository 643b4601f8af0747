// Several element-wise ops as one kernel (fused.cuh). The ops are written as CUDA C++ and compiled by NVRTC, once for a source and an
// architecture. A build without NVRTC has no fused kernels, and the ops run one by one.
#include "tapir/ops/elementwise/fused_kernels.h"

#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

#include "tapir/core/fail_impl.h"
#include "tapir/cuda/compile.h"
#include "tapir/cuda/context.h"
#include "tapir/cuda/fused.cuh"
#ifdef TAPIR_HAVE_NVRTC
#include <nvrtc.h>
#endif

namespace tapir::gpu {

// --- The headers, as the library carries them ------------------------------------------------------------------------------

#ifdef TAPIR_HAVE_NVRTC
#define TAPIR_HEADER(name, file)                                                                                                                     \
    asm(".pushsection .rodata\n.hidden " #name "\n.globl " #name "\n" #name ":\n.incbin \"" TAPIR_SOURCE_DIR "/" file "\"\n.byte 0\n.popsection\n"); \
    extern "C" [[gnu::visibility("hidden")]] const char name[];
TAPIR_HEADER(tapir_header_fused, "cuda/fused.cuh")
TAPIR_HEADER(tapir_header_positions, "cuda/positions.cuh")
TAPIR_HEADER(tapir_header_unroll, "cuda/unroll.cuh")
TAPIR_HEADER(tapir_header_scalar, "cuda/scalar.cuh")
TAPIR_HEADER(tapir_header_functions, "cuda/elementwise_functions.cuh")
TAPIR_HEADER(tapir_header_scalar_functions, "ops/kernels/scalar_functions.h")
TAPIR_HEADER(tapir_header_rows, "ops/elementwise/elementwise.def")
#undef TAPIR_HEADER

const std::vector<std::pair<const char*, const char*>>& kernel_headers() {
    static const auto& headers = *new std::vector<std::pair<const char*, const char*>>{
        {"tapir/cuda/fused.cuh", tapir_header_fused},
        {"tapir/cuda/positions.cuh", tapir_header_positions},
        {"tapir/cuda/unroll.cuh", tapir_header_unroll},
        {"tapir/cuda/scalar.cuh", tapir_header_scalar},
        {"tapir/cuda/elementwise_functions.cuh", tapir_header_functions},
        {"tapir/ops/kernels/scalar_functions.h", tapir_header_scalar_functions},
        {"tapir/ops/elementwise/elementwise.def", tapir_header_rows},
    };
    return headers;
}

std::string compile_kernel(const std::string& source, const std::string& architecture, std::string& log) {
    std::vector<const char*> names, texts;
    for (const auto& [name, text] : kernel_headers()) {
        names.push_back(name);
        texts.push_back(text);
    }
    nvrtcProgram program = nullptr;
    if (nvrtcCreateProgram(&program, source.c_str(), "tapir_fused.cu", static_cast<int>(names.size()), texts.data(), names.data()) != NVRTC_SUCCESS) {
        log = "nvrtcCreateProgram failed";
        return "";
    }
    const std::string target = "--gpu-architecture=" + architecture;
    std::vector<const char*> options(std::begin(kKernelOptions), std::end(kKernelOptions));
    options.push_back(target.c_str());
    std::string code;
    if (nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data()) == NVRTC_SUCCESS) {
        std::size_t bytes = 0;
        if (nvrtcGetCUBINSize(program, &bytes) == NVRTC_SUCCESS) {
            code.resize(bytes);
            if (nvrtcGetCUBIN(program, code.data()) != NVRTC_SUCCESS) code.clear();
        }
    } else if (std::size_t bytes = 0; nvrtcGetProgramLogSize(program, &bytes) == NVRTC_SUCCESS) {
        log.resize(bytes);
        nvrtcGetProgramLog(program, log.data());
    }
    nvrtcDestroyProgram(&program);
    return code;
}
#endif

// --- The source ----------------------------------------------------------------------------------------------------------

namespace {

using kernels::Compute;
using kernels::FusedArgs;
using Way = FusedArgs::Way;

struct Row {
    const char* name;
    int params;
};
constexpr Row rows[] = {
#define TAPIR_UNARY0(name, ...) {#name, 0},
#define TAPIR_UNARY1(name, ...) {#name, 1},
#define TAPIR_UNARY2(name, ...) {#name, 2},
#define TAPIR_PREDICATE(name, ...) {#name, 0},
#define TAPIR_BINARY(name, ...) {#name, 0},
#define TAPIR_COMPARE(name, ...) {#name, 0},
#define TAPIR_TERNARY(name, ...) {#name, 0},
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
};

const char* type_of(Compute compute) {
    constexpr const char* names[] = {"tapir::gpu::i32", "tapir::gpu::i64", "float", "double"};
    return names[static_cast<int>(compute)];
}

// Finds the numbers that come with the launch: the constants among the operands, then the parameters of the ops in their order.
int arrays_of(const FusedArgs& args) {
    int arrays = 0;
    while (arrays < args.inputs && args.way[arrays] != Way::filled) ++arrays;
    return arrays;
}

template <class C>
std::uint64_t bits_of(C value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(C));
    return bits;
}
// Converts a parameter as loops do: integers saturate.
std::uint64_t parameter_bits(Compute compute, double value) {
    switch (compute) {
        case Compute::i32: return bits_of(value >= 0x1p31 ? INT32_MAX : value <= -0x1p31 ? INT32_MIN : static_cast<std::int32_t>(value));
        case Compute::i64: return bits_of(value >= 0x1p63 ? INT64_MAX : value <= -0x1p63 ? INT64_MIN : static_cast<std::int64_t>(value));
        case Compute::f32: return bits_of(static_cast<float>(value));
        default: return bits_of(value);
    }
}

bool fits_a_launch(const FusedArgs& args) {
    int numbers = args.inputs - arrays_of(args);
    for (int s = 0; s < args.step_count; ++s) numbers += rows[static_cast<int>(args.steps[s].op)].params;
    return arrays_of(args) > 0 && arrays_of(args) <= FusedLaunch::kMostInputs && args.outputs <= FusedLaunch::kMostOutputs &&
        numbers <= FusedLaunch::kMostNumbers;
}

}  // namespace

std::string fused_source(const FusedArgs& args) {
    const int arrays = arrays_of(args);
    int numbers = args.inputs - arrays;
    std::string text = "#include \"tapir/cuda/fused.cuh\"\nnamespace tapir::gpu {\nstruct Body {\n";
    const auto add = [&](const char* form, const auto&... values) { fmt::format_to(std::back_inserter(text), fmt::runtime(form), values...); };
    add("    static constexpr int inputs = {}, outputs = {};\n    template <class K>\n", arrays, args.outputs);
    text +=
        "    __device__ __forceinline__ static void apply(const K (&in)[inputs], [[maybe_unused]] const FusedLaunch& args, K (&out)[outputs]) {\n";
    for (int k = 0; k < args.inputs; ++k) {
        k < arrays ? add("        [[maybe_unused]] const K v{} = in[{}];\n", k, k)
                   : add("        [[maybe_unused]] const K v{} = number<K>(args, {});\n", k, k - arrays);
    }
    std::vector<int> value(static_cast<std::size_t>(args.registers));  // the value that a register holds now
    for (int k = 0; k < args.inputs; ++k) value[static_cast<std::size_t>(k)] = k;
    int next = args.inputs;
    for (int s = 0; s < args.step_count; ++s) {
        const kernels::FusedStep& step = args.steps[s];
        const Row& row = rows[static_cast<int>(step.op)];
        add("        const K v{} = rounded({}_forward::apply<K>({{", next, row.name);
        for (int i = 0; i < step.count; ++i) add("{}v{}", i > 0 ? ", " : "", value[step.in[i]]);
        text += "}";
        for (int p = 0; p < 2; ++p) p < row.params ? add(", number<K>(args, {})", numbers++) : add(", K(0)");
        text += "));\n";
        value[step.out] = next++;
    }
    for (int i = 0; i < args.outputs; ++i) add("        out[{}] = v{};\n", i, value[args.out_register[i]]);
    add("    }}\n}};\n}}  // namespace tapir::gpu\nTAPIR_FUSED_KERNEL({})\n", type_of(args.compute));
    return text;
}

// --- Compiling and launching ---------------------------------------------------------------------------------------------

struct FusedKernel {
#ifdef TAPIR_HAVE_NVRTC
    cudaKernel_t kernel = nullptr;
#endif
};

bool can_compile() {
#ifdef TAPIR_HAVE_NVRTC
    return true;
#else
    return false;
#endif
}

FusedKernel* fused_kernel(const FusedArgs& args) {
#ifdef TAPIR_HAVE_NVRTC
    if (!fits_a_launch(args)) return nullptr;
    static std::mutex& mutex = *new std::mutex;
    static auto& made = *new std::map<std::pair<std::string, std::string>, std::unique_ptr<FusedKernel>>;  // by architecture and source
    static std::string architectures[kMaxDevices];
    std::string source = fused_source(args);
    const std::lock_guard lock(mutex);
    std::string& architecture = architectures[selected_device()];
    if (architecture.empty()) {
        cudaDeviceProp properties;
        if (cudaGetDeviceProperties(&properties, selected_device()) != cudaSuccess) return nullptr;
        architecture = fmt::format("sm_{}{}", properties.major, properties.minor);
    }
    const auto [found, is_new] = made.try_emplace({architecture, std::move(source)});
    if (!is_new) return found->second.get();
    std::string log;
    const std::string code = compile_kernel(found->first.second, architecture, log);
    if (code.empty()) return nullptr;  // the architecture is newer than NVRTC
    auto kernel = std::make_unique<FusedKernel>();
    cudaLibrary_t library;
    if (cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0) != cudaSuccess ||
        cudaLibraryGetKernel(&kernel->kernel, library, "tapir_fused") != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return nullptr;
    }
    return (found->second = std::move(kernel)).get();
#else
    static_cast<void>(args);
    return nullptr;
#endif
}

#ifdef TAPIR_HAVE_NVRTC
namespace {

bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

// Decides how the kernel walks through the operands. Returns false if some are too far apart.
bool set_layout(const FusedArgs& args, int arrays, FusedLaunch& launch) {
    const auto V = static_cast<std::int64_t>(16 / itemsize(kernels::stored_as(args.compute)));
    const int inner = args.rank - 1;
    bool is_flat = true;
    launch.in_packs = true;
    for (int i = 0; i < args.outputs; ++i) launch.in_packs = launch.in_packs && is_aligned(args.out[i]);
    for (int k = 0; k < arrays; ++k) {
        const kernels::FusedOperand& operand = args.in[k];
        const bool is_strided = args.way[k] == Way::strided;
        is_flat = is_flat && !is_strided;
        launch.way[k] = args.way[k] == Way::repeated    ? FusedLaunch::Way::one
            : is_strided && operand.strides[inner] == 0 ? FusedLaunch::Way::repeated
                                                        : FusedLaunch::Way::array;
        if (launch.way[k] != FusedLaunch::Way::array) continue;
        launch.in_packs = launch.in_packs && is_aligned(operand.data);
        if (!is_strided) continue;
        launch.in_packs = launch.in_packs && operand.strides[inner] == 1;
        for (int d = 0; d < inner; ++d) launch.in_packs = launch.in_packs && operand.strides[d] % V == 0;
    }
    if (is_flat) return true;
    launch.in_packs = launch.in_packs && args.sizes[inner] % V == 0;
    launch.offsets.rank = args.rank;
    for (int d = 0; d < args.rank; ++d) {
        const std::int64_t step = d == inner && launch.in_packs ? V : 1;
        launch.offsets.sizes[d] = Divider(args.sizes[d] / step);
    }
    for (int k = 0; k < arrays; ++k) {
        std::int64_t farthest = 0;
        for (int d = 0; d < args.rank; ++d) {
            const std::int64_t stride = args.in[k].strides[d], step = d == inner && launch.in_packs ? V : 1;
            farthest += (args.sizes[d] - 1) * (stride < 0 ? -stride : stride);
            if (farthest > INT32_MAX) return false;
            launch.offsets.strides[d][k] = static_cast<i32>(stride * step);
        }
    }
    return true;
}

}  // namespace
#endif

bool run_fused_kernel(FusedKernel& kernel, const FusedArgs& args) {
#ifdef TAPIR_HAVE_NVRTC
    if (args.numel == 0) return true;
    if (args.numel > INT32_MAX - 4096) return false;
    const int arrays = arrays_of(args);
    FusedLaunch launch{};
    launch.n = static_cast<u32>(args.numel);
    if (!set_layout(args, arrays, launch)) return false;
    for (int k = 0; k < arrays; ++k) launch.in[k] = args.in[k].data;
    for (int i = 0; i < args.outputs; ++i) launch.out[i] = args.out[i];
    const std::size_t size = itemsize(kernels::stored_as(args.compute));
    int numbers = 0;
    for (int k = arrays; k < args.inputs; ++k) std::memcpy(&launch.number[numbers++], args.in[k].data, size);
    for (int s = 0; s < args.step_count; ++s) {
        const kernels::FusedStep& step = args.steps[s];
        for (int p = 0; p < rows[static_cast<int>(step.op)].params; ++p) launch.number[numbers++] = parameter_bits(args.compute, step.params[p]);
    }
    Stream& stream = current();
    cudaLaunchConfig_t config{};
    const std::int64_t per_block = kFusedThreads * static_cast<std::int64_t>(16 / size);
    config.gridDim = dim3(static_cast<unsigned>((args.numel + per_block - 1) / per_block));
    config.blockDim = dim3(kFusedThreads);
    config.stream = stream.handle;
    void* parameters[] = {&launch};
    launched(stream, cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel.kernel), parameters));
    return true;
#else
    static_cast<void>(kernel), static_cast<void>(args);
    return false;
#endif
}

}  // namespace tapir::gpu
