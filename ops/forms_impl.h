// The forms that graphs and their passes name, to compare a node's op with them or to make a node: transpose_form, mul_form.
#pragma once

#include "tapir/autograd/op_form.h"
#include "tapir/ops/elementwise/elementwise_impl.h"

namespace tapir {

// Of TAPIR_FORM and its like.
extern const OpForm clone_form, copy_form, empty_form, empty_like_form, fill_form, full_form, full_like_form, number_form, ones_form, zeros_form,
    zeros_like_form, to_device_form, to_dtype_form;
extern const OpForm cat_form, expand_form, permute_form, pieces_form, reshape_form, select_form, select_scatter_form, slice_form, slice_scatter_form,
    stack_form, transpose_form, windows_form;
extern const OpForm all_form, amax_form, amin_form, any_form, logsumexp_form, mean_form, prod_form, sum_form;
extern const OpForm batch_norm_form, conv_transpose_form, convolution_form, linear_form, matmul_form, max_pool_form, max_pool_values_form,
    packed_linear_form;
extern const OpForm avg_pool_form, cumsum_form, embedding_form, flip_form, group_norm_form, interpolate_form, layer_norm_form, log_softmax_form,
    pad_form, pixel_shuffle_form, pixel_unshuffle_form, rms_norm_form, softmax_form;
extern const OpForm masked_fill_form, where_form, cond_form, scan_form, while_loop_form, fused_form, fused_reduce_form, in_slices_form;

// Of the rows of elementwise.def.
#define TAPIR_UNARY0(name, ...) inline constexpr const OpForm& name##_form = elementwise_forms[static_cast<int>(Elementwise::name)];
#define TAPIR_UNARY1(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_UNARY2(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_PREDICATE(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_BINARY(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_COMPARE(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_TERNARY(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_RULE_ROWS
#include "tapir/core/elementwise_rows.inc"

}  // namespace tapir
