// Windows of convolutions and pools: ONNX's attributes, for one spatial dimension each.
#pragma once

#include <vector>

#include "tapir/autograd/trace/onnx/import_impl.h"

namespace tapir::detail {

struct OnnxWindow {
    int dims = 0;  // spatial dimensions
    std::vector<std::int64_t> kernel, stride, dilation, before, after;
    bool is_by_size = false;  // the pads depend on the size of a named dimension: the ops must be the same for all sizes

    bool is_symmetric() const { return before == after && !is_by_size; }
    Shape padding() const { return before; }
    /// For pad(), from the last dimension on.
    std::vector<std::int64_t> widths() const {
        std::vector<std::int64_t> widths;
        for (std::size_t d = before.size(); d-- > 0;) widths.insert(widths.end(), {before[d], after[d]});
        return widths;
    }
};

/// The attributes kernel_shape (or the kernel given), strides, dilations, pads and auto_pad. sizes: of the operand. Throws ValueError.
OnnxWindow onnx_window(OnnxCall& c, const Shape& sizes, std::vector<std::int64_t> kernel = {});

}  // namespace tapir::detail
