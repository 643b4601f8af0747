#include "tapir/nn/convolution.h"

#include <cmath>

#include "tapir/core/fail_impl.h"
#include "tapir/nn/input_impl.h"
#include "tapir/nn/parameter_impl.h"
#include "tapir/ops/arrange/arrange.h"

namespace tapir::nn {

ConvLayer::ConvLayer(const char* name, int dims, bool is_transposed, std::int64_t in, std::int64_t out, const Shape& kernel_size,
                     const ConvLayerOptions& options, const Loc& loc)
    : options_{ByName(), options.stride, options.padding, options.dilation, options.groups},
      unpadded_{ByName(), options.stride, 0, options.dilation, options.groups}, padding_mode_(options.padding_mode), name_(name) {
    if (in < 1 || out < 1) fail<ValueError>(loc, "{}: channels must be at least 1, got {} and {}", name, in, out);
    if (options.groups < 1 || in % options.groups != 0 || out % options.groups != 0) {
        fail<ValueError>(loc, "{}: {} groups do not divide {} and {} channels", name, options.groups, in, out);
    }
    if (kernel_size.rank() != 1 && kernel_size.rank() != dims) {
        fail<ValueError>(loc, "{}: kernel_size needs {}, got {}", name, dims == 1 ? "1 number" : fmt::format("1 number or {}", dims), kernel_size);
    }
    const auto check_numbers = [&](const char* what, const Shape& numbers, std::int64_t least) {
        if (numbers.rank() != 1 && numbers.rank() != dims) {
            fail<ValueError>(loc, "{}: {} needs {}, got {}", name, what, dims == 1 ? "1 number" : fmt::format("1 number or {}", dims), numbers);
        }
        for (const std::int64_t number : numbers) {
            if (number < least) fail<ValueError>(loc, "{}: {} must be at least {}, got {}", name, what, least, numbers);
        }
    };
    check_numbers("stride", options.stride, 1);
    check_numbers("dilation", options.dilation, 1);
    if (!options.padding.is_same()) check_numbers("padding", options.padding.sizes(), 0);
    if (options.padding.is_same()) {
        for (const std::int64_t step : options.stride) {
            if (step != 1) fail<ValueError>(loc, "{}: padding 'same' needs stride 1, got {}", name, options.stride);
        }
    }
    Shape shape{is_transposed ? in : out, (is_transposed ? out : in) / options.groups};
    auto fan = static_cast<double>(shape[1]);
    for (int d = 0; d < dims; ++d) {
        const std::int64_t size = kernel_size[kernel_size.rank() == 1 ? 0 : d];
        if (size < 1) fail<ValueError>(loc, "{}: kernel_size must be at least 1, got {}", name, kernel_size);
        shape.push_back(size);
        fan *= static_cast<double>(size);
    }
    const double bound = 1 / std::sqrt(fan);
    weight = uniform_parameter(shape, bound, loc);
    if (options.bias) bias = uniform_parameter({out}, bound, loc);
}

void ConvLayer::members(Members& m) { m("weight", weight)("bias", bias); }

const In& ConvLayer::checked(const In& x) const {
    check_floating(name_, x);
    return x;
}

Tensor ConvLayer::padded(In x) const {
    check_floating(name_, x);
    if (padding_mode_.kind() == PadMode::Kind::constant || !x.tensor.defined()) return x.tensor;
    const int dims = weight.dim() - 2;
    const auto number = [&](const Shape& numbers, int d) { return numbers[numbers.rank() == 1 ? 0 : d]; };
    std::vector<std::int64_t> widths;
    for (int d = dims; d-- > 0;) {  // "same": an odd element goes at the end, as with zeros
        const std::int64_t both = number(options_.dilation, d) * (weight.size(d + 2) - 1);
        const bool is_same = options_.padding.is_same();
        widths.push_back(is_same ? both / 2 : number(options_.padding.sizes(), d));
        widths.push_back(is_same ? both - both / 2 : widths.back());
    }
    return pad(x, widths, padding_mode_);
}

std::string ConvLayer::describe() const {
    std::string text = fmt::format("weight {}", weight.shape());
    const auto add = [&](const char* what, const std::string& value, bool is_default) {
        if (!is_default) text += fmt::format(", {} {}", what, value);
    };
    add("stride", options_.stride.str(), options_.stride == Shape(1));
    add("padding", options_.padding.str(), !options_.padding.is_same() && options_.padding.sizes() == Shape(0));
    add("dilation", options_.dilation.str(), options_.dilation == Shape(1));
    add("padding_mode", padding_mode_.str(), padding_mode_.kind() == PadMode::Kind::constant);
    add("groups", fmt::format("{}", options_.groups), options_.groups == 1);
    if (!bias.defined()) text += ", no bias";
    return text;
}

}  // namespace tapir::nn
