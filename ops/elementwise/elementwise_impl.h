// The rows of elementwise.def as the library sees them, and functions that other ops call.
#pragma once

#include "tapir/autograd/backward_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"

namespace tapir {

struct OpForm;
struct FormCall;

struct ElementwiseOp {
    OpInfo info;  // first: a record's op is the address of this
    Elementwise index;
    std::uint8_t saves;
    std::uint8_t operands;
    ElementTypes types;
    bool to_bool;
    bool passes[3];  // the gradient of that operand is g itself
    double low, high;
    // The backward expressions on tensors, recorded for higher order. [g, a, b, c, y]
    Tensor (*rule[3])(const Tensor* const* operands, const double* params);
};
extern const ElementwiseOp elementwise_ops[kElementwiseOps];

extern const OpForm elementwise_forms[kElementwiseOps];  // elementwise_forms.cpp
/// Returns the op of this form, -1 if it is not an element-wise one.
int elementwise_index(const OpForm& form) noexcept;

inline const ElementwiseOp& row_of(Elementwise op) { return elementwise_ops[static_cast<int>(op)]; }

namespace elementwise {

/// Returns the dtype that operands are computed in: PyTorch's result_type.
DType result_type(const Tensor* const* operands, int count);

Tensor unary(const ElementwiseOp& op, const Tensor& x, const double* params, const Loc& loc);
Tensor binary(const ElementwiseOp& op, const Tensor& a, const Tensor& b, const Loc& loc);
Tensor binary(const ElementwiseOp& op, const Tensor& a, Scalar b, const Loc& loc);
Tensor binary(const ElementwiseOp& op, Scalar a, const Tensor& b, const Loc& loc);
Tensor ternary(const ElementwiseOp& op, const Tensor& a, const Tensor& b, const Tensor& c, const Loc& loc);
void unary_(const ElementwiseOp& op, Tensor& x, const double* params, const Loc& loc);
void binary_(const ElementwiseOp& op, Tensor& a, const Tensor& b, const Loc& loc);
void binary_(const ElementwiseOp& op, Tensor& a, Scalar b, const Loc& loc);
void ternary_(const ElementwiseOp& op, Tensor& a, const Tensor& b, const Tensor& c, const Loc& loc);

/// Returns the loop of an op that looks only at its numbers; null if the op looks at more, or does not have the type.
kernels::Loop loop_without_checks(Elementwise op, kernels::Compute compute);

/// Runs a kernel over any operands into `out` (sizes known to be right): no checks, no record.
void run(const kernels::ElementwiseKernel& kernel, const Tensor& out, const Tensor* const* in, int count);
/// See OpForm::into.
bool into(const ElementwiseOp& op, const FormCall& x, const Tensor& out);
/// to[...] = from[...] on one CUDA device.
void copy_on_gpu(const Tensor& to, const Tensor& from);

}  // namespace elementwise

/// The products and quotients of rules (the last rows of elementwise.def): a * b and a / b, 0 where a is 0; a * b, 0 where one is.
Tensor gated_mul(In a, In b);
Tensor gated_mul(Scalar a, In b);
Tensor gated_div(In a, In b);
Tensor absorbing_mul(In a, In b);

/// Every in-place op calls this before it writes to `self`; `sources` are the op's other operands. Throws ValueError when
/// `self` is expanded, so that elements share memory; and while a tape records TapeError for a leaf that requires a
/// gradient, for views of tensors that others hold, where the tape would lose the write, and for tensors and sources that
/// were overwritten since they were recorded.
void check_in_place(const char* op, const Tensor& self, std::initializer_list<const Tensor*> sources, const Loc& loc);
/// Copies an operand that the write is about to change. On the tape the copy stands for the operand.
Tensor copy_before_write(const Tensor& operand, const Loc& loc);
/// Raises the version; call it after the write.
void mark_written(const Tensor& self, const Loc& loc);

/// Sorts the dimensions of more than one element by their strides, the largest first: a loop over them goes through
/// memory in order. Returns their number.
int in_order_of_memory(const TensorImpl* y, int (&order)[kMaxRank]) noexcept;
/// Sets every element to one, given as an element of the tensor's dtype in CPU memory; not recorded.
void fill_elements(const Tensor& to, const void* element);
/// Sets the bytes of a contiguous tensor to 0.
void zero_elements(const Tensor& to);
/// to[...] = from[...], broadcast and converted, on any devices; not recorded.
void copy_elements(const Tensor& to, const Tensor& from);
/// Returns x, or a copy with its channels last in memory (see detail::is_channels_last). Not recorded.
Tensor channels_last(const Tensor& x, const Loc& loc);

}  // namespace tapir
