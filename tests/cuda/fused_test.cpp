// Element-wise ops as one kernel that is compiled while the program runs: the source for every op in NVRTC, and what the kernels compute. (On
// the emulator the C++ compiler stands for NVRTC.)
#include <dlfcn.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <string>

#include "compare.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/run/fused_impl.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/core/device_impl.h"
#include "tapir/cuda/compile.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/fused_kernels.h"
#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>
#include <nvrtc.h>
#endif

using namespace tapir;
using kernels::FusedArgs;

namespace {

// So many ops of the table, each of the same three operands, from `first` on; those that cannot be fused are left out.
struct SomeOps {
    static constexpr int kMost = FusedArgs::kMostOutputs;
    std::vector<int> ops;
    std::vector<std::vector<double>> params;
    std::vector<kernels::FusedStep> steps;
    FusedArgs args{};

    SomeOps(int& first, kernels::Compute compute) {
        for (; first < kElementwiseOps && ops.size() < kMost; ++first) {
            const auto op = static_cast<Elementwise>(first);
            if (elementwise_ops[first].to_bool || !elementwise::loop_without_checks(op, compute)) continue;
            ops.push_back(first);
            params.emplace_back(4, 0.0);
            if (const OpForm& form = elementwise_forms[first]; form.attr_bytes > 0) {
                REQUIRE(form.attr_bytes <= sizeof(double) * 4);
                form.copy(params.back().data(), nullptr);
            }
        }
        for (std::size_t i = 0; i < ops.size(); ++i) {
            const int op = ops[i];
            args.out_register[i] = static_cast<std::uint8_t>(3 + i);
            steps.push_back({elementwise::loop_without_checks(static_cast<Elementwise>(op), compute),
                             params[i].data(),
                             elementwise_ops[op].operands,
                             {0, 1, 2},
                             args.out_register[i],
                             static_cast<Elementwise>(op)});
        }
        args.compute = compute;
        args.steps = steps.data();
        args.step_count = args.outputs = static_cast<int>(steps.size());
        args.inputs = 3;
        args.registers = 3 + args.outputs;
        for (int k = 0; k < 3; ++k) args.way[k] = FusedArgs::Way::linear;
    }
};

// NVRTC as it is on this machine, whatever the build links.
struct Nvrtc {
    int (*create)(void**, const char*, const char*, int, const char* const*, const char* const*);
    int (*compile)(void*, int, const char* const*);
    int (*log_size)(void*, std::size_t*);
    int (*log)(void*, char*);
    int (*ptx_size)(void*, std::size_t*);
    int (*ptx)(void*, char*);
    int (*destroy)(void**);

    explicit Nvrtc(void* library) {
        const auto find = [&](auto& function, const char* name) {
            void* address = dlsym(library, name);
            REQUIRE(address);
            std::memcpy(&function, &address, sizeof(address));
        };
        find(create, "nvrtcCreateProgram");
        find(compile, "nvrtcCompileProgram");
        find(log_size, "nvrtcGetProgramLogSize");
        find(log, "nvrtcGetProgramLog");
        find(ptx_size, "nvrtcGetPTXSize");
        find(ptx, "nvrtcGetPTX");
        find(destroy, "nvrtcDestroyProgram");
    }

    // Empty: it does not compile.
    std::string ptx_of(const std::string& source, std::string& what) const {
        std::vector<const char*> names, texts;
        for (const auto& [name, text] : gpu::kernel_headers()) {
            names.push_back(name);
            texts.push_back(text);
        }
        void* program = nullptr;
        REQUIRE(create(&program, source.c_str(), "fused.cu", static_cast<int>(names.size()), texts.data(), names.data()) == 0);
        std::vector<const char*> options(std::begin(gpu::kKernelOptions), std::end(gpu::kKernelOptions));
        options.push_back("--gpu-architecture=compute_90");
        std::string text;
        std::size_t bytes = 0;
        if (compile(program, static_cast<int>(options.size()), options.data()) == 0) {
            REQUIRE(ptx_size(program, &bytes) == 0);
            text.resize(bytes);
            REQUIRE(ptx(program, text.data()) == 0);
        }
        REQUIRE(log_size(program, &bytes) == 0);
        what.resize(bytes);
        REQUIRE(log(program, what.data()) == 0);
        destroy(&program);
        return text;
    }
};

}  // namespace

TEST_CASE("NVRTC compiles the kernels of all element-wise ops", "[cuda]") {
    if (!gpu::can_compile()) {
        WARN("a build without NVRTC: not tested");
        return;
    }
    void* library = dlopen(TAPIR_NVRTC_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        WARN("no libnvrtc: not tested");
        return;
    }
    const Nvrtc nvrtc(library);
    int seen = 0;
    for (const kernels::Compute compute : {kernels::Compute::f32, kernels::Compute::f64, kernels::Compute::i32, kernels::Compute::i64}) {
        for (int first = 0; first < kElementwiseOps;) {
            const SomeOps some(first, compute);
            if (some.ops.empty()) continue;
            const std::string source = gpu::fused_source(some.args);
            std::string log;
            const std::string ptx = nvrtc.ptx_of(source, log);
            INFO(source << "\n" << log);
            CHECK(ptx.find(".entry tapir_fused") != std::string::npos);
            for (const int op : some.ops) CHECK(source.find(std::string(elementwise_ops[op].info.name) + "_forward::apply") != std::string::npos);
            seen += static_cast<int>(some.ops.size());
        }
    }
    CHECK(seen > 200);
    int first = 0;
    std::string source = gpu::fused_source(SomeOps(first, kernels::Compute::f32).args), log;
    source.replace(source.find("_forward"), 8, "_backwards");
    CHECK(nvrtc.ptx_of(source, log).empty());
    CHECK(log.find("_backwards") != std::string::npos);
}

TEST_CASE("a fused kernel computes what the ops do, one by one", "[cuda]") {
    NEEDS_CUDA;
    if (!gpu::can_compile()) return;
    constexpr std::int64_t n = 1031;
    const auto dtype = GENERATE(float32, float64, int32);
    const kernels::Compute compute = kernels::compute_of(dtype);
    const Tensor a = (is_floating(dtype) ? linspace(-3.6, 3.6, n, dtype) : (arange(n, dtype) - 500)).to(cuda);
    const std::array<Tensor, 3> x{a, roll(a, 311, 0), flip(roll(a, 77, 0), {0})};
    for (int first = 0; first < kElementwiseOps;) {
        SomeOps some(first, compute);
        if (some.ops.empty()) continue;
        std::vector<Tensor> have;
        for (std::size_t k = 0; k < 3; ++k) some.args.in[k].data = x[k].raw_data();
        for (std::size_t i = 0; i < some.ops.size(); ++i) {
            have.push_back(zeros({n}, {dtype, cuda}));
            some.args.out[i] = have.back().raw_data();
        }
        some.args.numel = n;
        device_api::select(cuda);
        gpu::FusedKernel* kernel = gpu::fused_kernel(some.args);
        INFO(gpu::fused_source(some.args));
        REQUIRE(kernel);
        REQUIRE(gpu::run_fused_kernel(*kernel, some.args));
        for (std::size_t i = 0; i < some.ops.size(); ++i) {
            const OpForm& form = elementwise_forms[some.ops[i]];
            INFO(form.op);
            const Tensor* operands[] = {&x[0], &x[1], &x[2]};
            Tensor want;
            form.run({operands, elementwise_ops[some.ops[i]].operands, form.attr_bytes > 0 ? some.params[i].data() : nullptr}, &want);
            test::check_close(have[i], want, test::limit_of(dtype));
        }
    }
}

namespace {

const auto chain = [](const Tensor& x, const Tensor& row, const Tensor& column) {
    return clamp(tanh(x * row + column) * 0.5 + sigmoid(x - 1), -0.25, 0.75);
};

}  // namespace

TEST_CASE("graphs on the device run element-wise ops as one kernel", "[cuda]") {
    NEEDS_CUDA;
    if (!gpu::can_compile()) return;
    manual_seed(3);
    const auto dtype = GENERATE(float32, float64);
    const std::int64_t columns = GENERATE(1, 8, 13);
    const Tensor x = randn({5, columns}, dtype).to(cuda), row = randn({columns}, dtype).to(cuda), column = randn({5, 1}, dtype).to(cuda);
    const CompiledGraph run = trace(chain, {{"x", x}, {"row", row}, {"column", column}}).compile();
    const Tensor want = chain(x, row, column);
    for (int i = 0; i < 3; ++i) test::check_close(run.call<1>(x, row, column)[0], want, 1e-6);
    // Other places: one element off, turned, a part of more.
    const Tensor turned = x.transpose(0, 1).contiguous().transpose(0, 1), wide = cat({x, x}, 1);
    test::check_close(run.call<1>(test::shifted(x), test::shifted(row), column)[0], want, 1e-6);
    test::check_close(run.call<1>(turned, row, column)[0], want, 1e-6);
    test::check_close(run.call<1>(narrow(wide, 1, columns, columns), row, column)[0], want, 1e-6);
#ifdef TAPIR_CUDA_EMULATED
    const int before = emulator::kernels_launched();
    static_cast<void>(chain(x, row, column));
    const int one_by_one = emulator::kernels_launched() - before;
    const CompiledGraph other = trace(chain, {{"x", x}, {"row", row}, {"column", column}}).compile();
    const int programs = emulator::programs_compiled(), start = emulator::kernels_launched();
    static_cast<void>(other.call<1>(x, row, column));
    CHECK(emulator::kernels_launched() - start == 1);
    CHECK(one_by_one >= 6);
    CHECK(emulator::programs_compiled() == programs);  // it is there already
#endif
}

TEST_CASE("other numbers need no other kernel", "[cuda]") {
    NEEDS_CUDA;
    if (!gpu::can_compile()) return;
    const Tensor x = linspace(-2, 2, 100, float32).to(cuda);
    const auto compiled = [&](double a, double b) {
        return trace([=](const Tensor& t) { return clamp(t * a + b, a - 2, b); }, {{"t", x}}).compile();
    };
    const CompiledGraph one = compiled(0.5, 0.25);
    test::check_close(one(x), clamp(x * 0.5 + 0.25, -1.5, 0.25), 1e-6);
#ifdef TAPIR_CUDA_EMULATED
    const int programs = emulator::programs_compiled();
#endif
    const CompiledGraph two = compiled(1.5, 0.75);
    test::check_close(two(x), clamp(x * 1.5 + 0.75, -0.5, 0.75), 1e-6);
#ifdef TAPIR_CUDA_EMULATED
    CHECK(emulator::programs_compiled() == programs);
#endif
}

TEST_CASE("a fused kernel has several results, of whole numbers too, and of no elements", "[cuda]") {
    NEEDS_CUDA;
    if (!gpu::can_compile()) return;
    const auto program = [](const Tensor& x, const Tensor& y) {
        const Tensor sum = x + y, product = sum * x;
        return std::vector<Tensor>{sum, product, product - y};
    };
    const auto dtype = GENERATE(float64, int64);
    const std::int64_t rows = GENERATE(0, 3);
    const Tensor x = (arange(rows * 4, float64) - 3).to(dtype).reshape({rows, 4}).to(cuda), y = arange(4, dtype).to(cuda);
    const CompiledGraph run = trace(program, {{"x", x}, {"y", y}}).compile();
    const std::vector<Tensor> want = program(x, y);
    for (int i = 0; i < 2; ++i) {
        const std::vector<Tensor> have = run(std::vector<Tensor>{x, y});
        for (std::size_t k = 0; k < 3; ++k) test::check_close(have[k], want[k], 0);
    }
}

TEST_CASE("where a kernel cannot be compiled the ops run one by one", "[cuda]") {
    NEEDS_CUDA;
#ifdef TAPIR_CUDA_EMULATED
    const auto program = [](const Tensor& x) { return log1p(exp(x) * x) - sqrt(x) * expm1(x); };
    const Tensor x = linspace(0.5, 2, 50, float32).to(cuda), want = program(x);
    emulator::fail_compiling(true);
    const CompiledGraph run = trace(program, {{"x", x}}).compile();
    for (int i = 0; i < 3; ++i) test::check_close(run(x), want, 0);
    emulator::fail_compiling(false);
    for (int i = 0; i < 3; ++i) test::check_close(run(x), want, 0);
#endif
}

TEST_CASE("a fused op is recorded op by op where a tape is", "[cuda]") {
    NEEDS_CUDA;
    if (!gpu::can_compile()) return;
    const Tensor x = linspace(0.5, 2, 50, float64).to(cuda);
    Graph graph = trace([](const Tensor& t) { return tanh(t * t + 1); }, {{"t", x}});
    fuse_elementwise(graph);
    REQUIRE(graph.nodes().size() == 1);
    const Tensor leaf = x.detach().requires_grad_(), same = x.detach().requires_grad_();
    {
        Tape tape;
        tape.backward(sum(graph({leaf})[0]));
    }
    Tape tape;
    tape.backward(sum(tanh(same * same + 1)));
    test::check_close(leaf.grad(), same.grad(), 1e-12);
}
