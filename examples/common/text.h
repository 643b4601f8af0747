// A text file as numbers.
#pragma once

#include <tapir/core/tensor.h>

#include <string>

namespace show {

/// A text and the characters that it is made of. Throws std::runtime_error for a file that is empty or cannot be read.
struct Text {
    std::string alphabet;  // sorted
    tapir::Tensor codes;   // int64 (characters of the text,): positions in the alphabet

    explicit Text(const std::string& path);
    std::int64_t size() const { return codes.numel(); }
    std::int64_t characters() const { return static_cast<std::int64_t>(alphabet.size()); }
};

}  // namespace show
