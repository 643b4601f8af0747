// Converts tensors to pictures.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tapir/core/tensor.h"

namespace tapir::summary {

struct Pixels {
    std::int64_t height = 0, width = 0;
    int channels = 1;   // 1: grey, 3: RGB, 4: RGBA
    std::string bytes;  // rows from the top, pixels from the left, channels
};

/// x is uint8 (used unchanged), bool, or floating from 0 to 1. `dataformats` names its dimensions: "CHW", "HWC", "HW"; with N, several images
/// side by side, `columns` in a row. Throws ValueError, ShapeError, DTypeError.
Pixels pixels_of(const char* op, const Tensor& x, std::string_view dataformats, std::int64_t columns, const Loc& loc);

/// Returns a PNG file. Throws FileError in a build without zlib.
std::string png(const char* op, const Pixels& pixels, const Loc& loc);

}  // namespace tapir::summary
