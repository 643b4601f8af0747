// Tensor, Shape, DType and Device for fmt:
//
//     fmt::print("{} {:.3} {:.2e}\n", x.shape(), x, x);     // .3: digits after the point;  e: scientific notation
//
// Not part of tapir.h: compiling fmt takes longer than all of Tapir's headers.
#pragma once

#include <fmt/format.h>

#include <string>

#include "tapir/core/stream.h"
#include "tapir/core/tensor.h"

namespace tapir::detail {

// Base for types that are printed in one way only. (Inheriting fmt's padding specifications makes gcc 12 warn inside fmt.)
struct PlainFormatter {
    constexpr auto parse(fmt::format_parse_context& context) -> fmt::format_parse_context::iterator {
        return context.begin();  // fmt throws when this is not the closing brace
    }
    template <class Context>
    static auto write(fmt::string_view text, Context& context) {
        auto out = context.out();
        for (const char c : text) *out++ = c;
        return out;
    }
};

}  // namespace tapir::detail

template <>
struct fmt::formatter<tapir::Shape> : tapir::detail::PlainFormatter {
    template <class Context>
    auto format(const tapir::Shape& shape, Context& context) const {
        return write(shape.str(), context);
    }
};

template <>
struct fmt::formatter<tapir::DType> : tapir::detail::PlainFormatter {
    template <class Context>
    auto format(tapir::DType dtype, Context& context) const {
        return write(tapir::name(dtype), context);
    }
};

template <>
struct fmt::formatter<tapir::Device> : tapir::detail::PlainFormatter {
    template <class Context>
    auto format(tapir::Device device, Context& context) const {
        return write(tapir::name(device), context);
    }
};

/// "{}" prints as print_options() says; "{:.N}" with N digits after the point; "{:e}" and "{:.Ne}" in scientific notation.
template <>
struct fmt::formatter<tapir::Tensor> : tapir::detail::PlainFormatter {
    int precision = -1;
    bool sci_mode = false;

    constexpr auto parse(fmt::format_parse_context& context) -> fmt::format_parse_context::iterator {
        auto c = context.begin();
        if (c != context.end() && *c == '.') {
            precision = 0;
            const auto first = ++c;
            for (; c != context.end() && *c >= '0' && *c <= '9' && precision < 100; ++c) precision = precision * 10 + (*c - '0');
            if (c == first) throw fmt::format_error("digits are due after the point");
        }
        if (c != context.end() && *c == 'e') {
            sci_mode = true;
            ++c;
        }
        return c;
    }
    template <class Context>
    auto format(const tapir::Tensor& tensor, Context& context) const {
        tapir::PrintOptions options = tapir::print_options();
        if (precision >= 0) options.precision = precision;
        options.sci_mode |= sci_mode;
        return write(tapir::to_string(tensor, options), context);
    }
};
