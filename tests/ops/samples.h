// The example calls of the op table, with inputs made from their descriptions (see Sample in autograd/op.h).
#pragma once

#include <string>
#include <vector>

#include "tapir/autograd/op.h"
#include "tapir/tapir.h"

namespace tapir::test {

/// One example call: an op's own, or made from a row of elementwise.def.
struct Call {
    const OpInfo* op;
    std::string name;    // "softmax 0"
    std::string inputs;  // "f(3,4) i(5)<4"
    std::string code;    // of the call; empty for a row of elementwise.def
    std::string torch;   // PyTorch code; empty where PyTorch has no such op
    std::function<std::vector<Tensor>(const std::vector<Tensor>&)> run;
    bool differentiable;
    bool wide_only = false;  // of float32 and float64, not of 16-bit floats
    bool extreme = false;    // zeros, infinities, nan, the largest and smallest numbers, in the dtype of the inputs
};

std::vector<Call> all_calls();

/// The inputs as float64, int64 and bool tensors; the same numbers every time.
std::vector<Tensor> make_inputs(const Call& call);

/// The gradients of a sum of all results, each element with another weight; empty where no result has one.
std::vector<Tensor> gradients(const Call& call, const std::vector<Tensor>& inputs);
/// Whether this error says that the call's gradient cannot be traced, since it has as many elements as data says.
bool is_gradient_sized_by_data(const Call& call, const Error& error);

/// A call on other inputs than it was written for: "int32" is small whole numbers in place of the floating inputs, "3 -> 0"
/// has no elements in every dimension of size 3.
struct Variant {
    std::string name;
    std::vector<Tensor> inputs;
};
std::vector<Variant> variants(const Call& call);

}  // namespace tapir::test
