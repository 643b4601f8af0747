// Whether the kernels are there, without a GPU: a gap in the build shows on any machine.
//
// Element-wise kernels are found through tables, by op and dtype; a place that a table leaves empty is found here. All other
// kernels are functions that the ops call: each that is declared has its address taken here, so a missing one does not link. What
// such a function does by dtype it does through with_dtype, with_floating and with_size of cuda/device.cuh, which
// instantiate every case, so a kernel that does not compile for one does not build.
#include "check.h"
#include "tapir/ops/kernels/gpu.h"

namespace {

struct Kernel {
    const char* name;
    void (*address)();
    Kernel* next;
};
Kernel* kernels_declared = nullptr;
struct Register : Kernel {
    Register(const char* kernel, void (*function)()) : Kernel{kernel, function, kernels_declared} { kernels_declared = this; }
};

}  // namespace

#undef TAPIR_GPU_KERNEL
#define TAPIR_GPU_KERNEL(name, ...)        \
    namespace tapir::gpu {                 \
    tapir::gpu::Declare<__VA_ARGS__> name; \
    }                                      \
    static Register registered_##name(#name, reinterpret_cast<void (*)()>(&tapir::gpu::name));
#include "tests/all_kernels.h"  // made by the build: the headers that declare any

#include "tapir/ops/elementwise/elementwise_impl.h"

using namespace tapir;

namespace {

/// Whether the row computes tensors of the dtype in that dtype, or as the type that stands for it.
bool takes(const ElementwiseOp& op, DType dtype) {
    switch (op.types) {
        case ElementTypes::Float: return is_floating(dtype);
        case ElementTypes::Integral: return !is_floating(dtype);
        default: return true;
    }
}

}  // namespace

TEST_CASE("every element-wise op has a CUDA kernel for each dtype that it takes", "[cuda]") {
    int forward = 0, backward = 0;
    for (const ElementwiseOp& op : elementwise_ops) {
        for (int d = 0; d < kDTypes; ++d) {
            const auto dtype = static_cast<DType>(d);
            if (!takes(op, dtype)) continue;
            INFO(op.info.name << " of " << name(dtype));
            kernels::ElementwiseKernel kernel{op.index, -1, kernels::compute_of(dtype), op.to_bool, nullptr};
            CHECK(gpu::has_elementwise(kernel));
            ++forward;
            if (!is_floating(dtype)) continue;
            for (int operand = 0; operand < op.operands; ++operand) {
                if (!op.rule[operand]) continue;
                INFO("the gradient of operand " << operand);
                kernel.gradient_of = static_cast<std::int8_t>(operand);
                CHECK(gpu::has_elementwise(kernel));
                ++backward;
            }
        }
    }
    CHECK(forward > 4 * kElementwiseOps);
    CHECK(backward > 2 * kElementwiseOps);
}

TEST_CASE("the CUDA device has the element-wise kernels that the CPU has", "[cuda]") {
    const auto& values = *kernels::elementwise_forward();
    const auto& gradients = *kernels::elementwise_backward();
    for (int op = 0; op < kElementwiseOps; ++op) {
        INFO(elementwise_ops[op].info.name);
        for (int type = 0; type < 4; ++type) {
            const auto compute = static_cast<kernels::Compute>(type);
            INFO("computed in " << name(kernels::stored_as(compute)));
            kernels::ElementwiseKernel kernel{static_cast<Elementwise>(op), -1, compute, false, nullptr};
            CHECK(gpu::has_elementwise(kernel) == (values.loop[op][type] != nullptr));
            if (compute != kernels::Compute::f32 && compute != kernels::Compute::f64) continue;
            for (int operand = 0; operand < 3; ++operand) {
                INFO("the gradient of operand " << operand);
                kernel.gradient_of = static_cast<std::int8_t>(operand);
                const bool on_cpu = gradients.loop[op][operand][compute == kernels::Compute::f64] != nullptr;
                CHECK(gpu::has_elementwise(kernel) == on_cpu);
            }
        }
    }
}

TEST_CASE("every CUDA kernel that is declared is there", "[cuda]") {
    int count = 0;
    for (const Kernel* kernel = kernels_declared; kernel; kernel = kernel->next) {
        INFO(kernel->name);
        CHECK(kernel->address != nullptr);
        ++count;
    }
    CHECK(count > 50);
}
