// Every op of the table on a CUDA device, against the CPU: values, dtypes, gradients, for all dtypes and layouts that the CPU's
// table test has.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "../ops/samples.h"
#include "compare.h"

using namespace tapir;
using tapir::test::Call;

namespace {

std::vector<Tensor> on(Device device, const std::vector<Tensor>& tensors) {
    std::vector<Tensor> result;
    for (const Tensor& t : tensors) result.push_back(t.to(device));
    return result;
}

std::vector<Tensor> cast(const std::vector<Tensor>& inputs, DType dtype) {
    std::vector<Tensor> result;
    for (const Tensor& x : inputs) result.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
    return result;
}

double tolerance(DType dtype) {
    switch (dtype) {
        case DType::float64: return 1e-12;
        case DType::float32: return 1e-5;
        case DType::float16: return 4e-3;
        case DType::bfloat16: return 3e-2;
        default: return 0;
    }
}

double limit_of(const Tensor& result, DType computed) { return result.defined() ? std::max(tolerance(result.dtype()), tolerance(computed)) : 0; }

struct Outcome {
    std::vector<Tensor> outputs, gradients;
};

// The call's outputs and, for floating ones, the gradients for some gradient of each output.
Outcome run(const Call& call, const std::vector<Tensor>& inputs) {
    Outcome outcome;
    std::vector<Tensor> leaves;
    for (const Tensor& x : inputs) {
        leaves.push_back(x.detach());
        if (call.differentiable && is_floating(x.dtype())) leaves.back().requires_grad_();
    }
    manual_seed(7);
    Tape tape({.persistent = true});
    outcome.outputs = call.run(leaves);
    if (!call.differentiable) return outcome;
    for (const Tensor& y : outcome.outputs) {
        if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
        Tensor weights;
        {
            const NoGradScope pause;
            weights = (arange(y.numel(), float64) % 16 * 0.25 + 1).to(y.dtype()).view(y.shape()).to(y.device());
        }
        tape.backward(y, {.gradient = weights});
    }
    for (const Tensor& leaf : leaves) outcome.gradients.push_back(leaf.requires_grad() ? leaf.grad() : Tensor());
    return outcome;
}

void compare(const Call& call, const std::vector<Tensor>& inputs, DType computed, Device device) {
    const Outcome want = run(call, inputs), have = run(call, on(device, inputs));
    REQUIRE(have.outputs.size() == want.outputs.size());
    for (std::size_t k = 0; k < want.outputs.size(); ++k) {
        INFO("output " << k);
        test::check_close(have.outputs[k], want.outputs[k], limit_of(want.outputs[k], computed));
    }
    REQUIRE(have.gradients.size() == want.gradients.size());
    for (std::size_t k = 0; k < want.gradients.size(); ++k) {
        INFO("gradient " << k);
        test::check_close(have.gradients[k], want.gradients[k], limit_of(want.gradients[k], computed));
    }
}

}  // namespace

TEST_CASE("every op gives the CPU's numbers on a CUDA device", "[cuda]") {
    NEEDS_CUDA;
    const char* only = std::getenv("TAPIR_TEST_OP");
    for (const Call& call : test::all_calls()) {
        if (only && only != std::string(call.op->name)) continue;
        INFO(call.name << " of " << call.inputs);
        for (const DType dtype : {float64, float32, float16, bfloat16}) {
            INFO(name(dtype));
            if (call.wide_only && dtype != float32 && dtype != float64) continue;
            const std::vector<Tensor> inputs = test::make_inputs(call);
            if (call.extreme && inputs[0].dtype() != dtype) continue;
            compare(call, cast(inputs, dtype), dtype, cuda);
            if (dtype == float32 && cuda_device_count() > 1) compare(call, cast(inputs, dtype), dtype, cuda(1));
        }
    }
}
