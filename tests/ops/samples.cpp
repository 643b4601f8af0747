#include "samples.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "tapir/ops/elementwise/elementwise_impl.h"

namespace tapir::test {
namespace {

// A small generator of its own: the golden numbers must not change with the library's.
class Numbers {
 public:
    explicit Numbers(const std::string& seed) {
        for (const char c : seed) state_ = state_ * 31 + static_cast<unsigned char>(c);
    }
    double uniform() {  // in [0, 1)
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<double>(state_ >> 40) / static_cast<double>(1 << 24);
    }
    double normal() {
        double sum = -6;
        for (int i = 0; i < 12; ++i) sum += uniform();
        return sum;
    }

 private:
    std::uint64_t state_ = 12345;
};

// "f(3,4)", "i(5)<4", "r(6)[-1,2]"
struct Spec {
    char kind = 'f';
    Shape shape;
    double low = 0, high = 1;
};

std::vector<Spec> parse(const std::string& text) {
    std::vector<Spec> specs;
    for (std::size_t i = 0; i < text.size();) {
        if (text[i] == ' ') {
            ++i;
            continue;
        }
        Spec spec;
        spec.kind = text[i];
        if (text[++i] != '(') throw std::invalid_argument("sample inputs: " + text);
        for (++i; text[i] != ')';) {
            std::size_t used = 0;
            spec.shape.push_back(std::stoll(text.substr(i), &used));
            i += used;
            if (text[i] == ',') ++i;
        }
        ++i;
        if (i < text.size() && text[i] == '<') {
            std::size_t used = 0;
            spec.high = std::stod(text.substr(i + 1), &used);
            i += used + 1;
        } else if (i < text.size() && text[i] == '[') {
            std::size_t used = 0;
            spec.low = std::stod(text.substr(i + 1), &used);
            i += used + 2;
            spec.high = std::stod(text.substr(i), &used);
            i += used + 1;
        }
        specs.push_back(spec);
    }
    return specs;
}

// Whether there is something that has a gradient.
bool has_floats(const std::string& inputs) {
    const std::vector<Spec> specs = parse(inputs);
    return std::any_of(specs.begin(), specs.end(), [](const Spec& spec) { return spec.kind != 'i' && spec.kind != 'b'; });
}

// What functions trip over. All pairs of them come from 'x' and 'X'.
constexpr double kExtremes[16] = {0.0,
                                  -0.0,
                                  1.0,
                                  -1.0,
                                  0.5,
                                  -0.5,
                                  HUGE_VAL,
                                  -HUGE_VAL,
                                  NAN,
                                  3.4028234663852886e38,
                                  -3.4028234663852886e38,
                                  1.1754943508222875e-38,
                                  1.401298464324817e-45,
                                  88.8,
                                  -104.0,
                                  1e-8};

Tensor make(const Spec& spec, Numbers& numbers) {
    if (spec.kind == 'x' || spec.kind == 'X' || spec.kind == 'y' || spec.kind == 'Y') {
        Tensor x = empty(spec.shape, float64);
        const bool outer = spec.kind == 'X' || spec.kind == 'Y';
        for (std::int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] = kExtremes[outer ? i / 16 : i % 16];
        return spec.kind == 'y' || spec.kind == 'Y' ? x.to(float32) : x;
    }
    Tensor x = empty(spec.shape, spec.kind == 'i' ? int64 : spec.kind == 'b' ? bool_ : float64);
    const auto n = static_cast<std::size_t>(x.numel());
    std::vector<std::size_t> order(n);
    for (std::size_t i = 0; i < n; ++i) order[i] = i;
    for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[static_cast<std::size_t>(numbers.uniform() * static_cast<double>(i))]);
    for (std::size_t i = 0; i < n; ++i) {
        switch (spec.kind) {
            case 'f': x.data<double>()[i] = numbers.normal(); break;
            case 'p': x.data<double>()[i] = 0.1 + 0.8 * numbers.uniform(); break;
            case 'u': x.data<double>()[i] = 0.3 + 1.7 * numbers.uniform(); break;
            case 'r': x.data<double>()[i] = spec.low + (spec.high - spec.low) * numbers.uniform(); break;
            case 'd': x.data<double>()[i] = 0.1 * static_cast<double>(order[i]) - 0.05 * static_cast<double>(n) + 0.02 * numbers.uniform(); break;
            case 'i': x.data<std::int64_t>()[i] = static_cast<std::int64_t>(spec.high * numbers.uniform()); break;
            case 'b': x.data<bool>()[i] = numbers.uniform() < 0.5; break;
            default: throw std::invalid_argument(std::string("sample inputs: unknown kind ") + spec.kind);
        }
    }
    return x;
}

using CallFn = Tensor (*)(const std::vector<Tensor>&);

// The rows' public functions, with default parameters.
const CallFn elementwise_calls[] = {
#define TAPIR_UNARY0(name, ...) [](const std::vector<Tensor>& x) { return tapir::name(x[0]); },
#define TAPIR_UNARY1(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_UNARY2(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_PREDICATE(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_BINARY(name, ...) [](const std::vector<Tensor>& x) { return tapir::name(x[0], x[1]); },
#define TAPIR_COMPARE(name, ...) TAPIR_BINARY(name, )
#define TAPIR_TERNARY(name, ...) [](const std::vector<Tensor>& x) { return tapir::name(x[0], x[1], x[2]); },
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
};

// PyTorch's spelling where it is not the row's name.
std::string torch_name(const std::string& name, const std::string& arguments) {
    if (name == "gated_mul" || name == "gated_div" || name == "absorbing_mul") return "";  // of rules alone
    if (name == "gelu_tanh") return "gelu(" + arguments + ", approximate='tanh')";
    if (name == "parametric_relu") return "(lambda a, b: where(a > 0, a, a * b))(" + arguments + ")";
    if (name == "lerp") return "lerp(x[0].broadcast_to((2,4,3)) if x[0].dim() == 3 else x[0], x[1], x[2])";
    if (name == "polygamma") return "torch.polygamma(1, " + arguments + ")";
    if (name == "clamp") return "x[0].clone()";  // without bounds PyTorch refuses
    return name + "(" + arguments + ")";
}

// In float32 the reference is PyTorch's float64 rounded: its float32 kernels overflow early (sinh, cosh, log1p) or lose
// large quotients (fmod). hardswish(-inf) is 0 here, the limit, and nan there; softshrink(nan) is nan, and was 0 before PyTorch 2.
// pi x is beyond float32 in sinc, there too.
std::string extreme_code(const ElementwiseOp& op, bool wide) {
    const std::string dtype = wide ? "" : ".double()";
    std::string code = torch_name(op.info.name, "x[0]" + dtype + (op.operands == 1 ? "" : ", x[1]" + dtype));
    if (code.empty()) return code;
    if (std::string(op.info.name) == "hardswish") code = "where(x[0] == -inf, 0 * ones(16).double(), " + code + ".double())";
    if (std::string(op.info.name) == "softshrink") code = "where(x[0] == x[0], " + code + ", nan)";
    // At -1 and all larger floating numbers, which are integers, and at -inf, PyTorch's sine of pi x is not 0.
    if (std::string(op.info.name) == "polygamma") code = "where((x[0] < 0) & (x[0] == x[0].floor()), inf, " + code + ")";
    if (std::string(op.info.name) == "sinc" && !wide) code = "where(x[0].abs() < 1e38, " + code + ", nan)";
    return code + (wide ? "" : ".float()");
}

// The calls that a row of elementwise.def stands for: one shape, 0-d, and broadcasting for several operands.
void add_elementwise(std::vector<Call>& calls, const ElementwiseOp& op) {
    const std::vector<std::vector<const char*>> shapes = {{"3,5", "3,5", "3,5"}, {"", "", ""}, {"2,1,3", "4,1", "3"}};
    for (std::size_t s = 0; s < shapes.size(); ++s) {
        if (s == 2 && op.operands == 1) continue;
        std::string inputs, arguments;
        for (std::size_t k = 0; k < op.operands; ++k) {
            const std::string shape = "(" + std::string(shapes[s][k]) + ")", high = std::to_string(op.high);
            const bool is_integral = op.types == ElementTypes::Integral;
            inputs += is_integral ? "i" + shape + "<" + high + " " : "r" + shape + "[" + std::to_string(op.low) + "," + high + "] ";
            arguments += (k ? ", x[" : "x[") + std::to_string(k) + "]";
        }
        const CallFn call = elementwise_calls[static_cast<int>(op.index)];
        calls.push_back({&op.info, std::string(op.info.name) + " " + std::to_string(s), inputs, "", torch_name(op.info.name, arguments),
                         [call](const std::vector<Tensor>& x) { return std::vector<Tensor>{call(x)}; },
                         op.info.is_recorded() && op.types != ElementTypes::Integral});
    }
    if (op.operands > 2 || op.types == ElementTypes::Integral) return;
    for (const char* dtype : {"64", "32"}) {
        const bool wide = dtype[0] == '6';
        const CallFn call = elementwise_calls[static_cast<int>(op.index)];
        calls.push_back({&op.info, std::string(op.info.name) + " extreme" + dtype,
                         op.operands == 1 ? (wide ? "x(16)" : "y(16)") : (wide ? "x(256) X(256)" : "y(256) Y(256)"), "", extreme_code(op, wide),
                         [call](const std::vector<Tensor>& x) { return std::vector<Tensor>{call(x)}; }, false, false, true});
    }
}

}  // namespace

std::vector<Call> all_calls() {
    std::vector<Call> calls;
    for (const OpInfo* op : all_ops()) {
        const bool is_linalg = std::string(op->name).rfind("linalg_", 0) == 0;
        if (is_linalg && !linalg::is_available()) continue;
        for (int i = 0; i < op->sample_count; ++i) {
            const Sample& sample = op->samples[i];
            calls.push_back({op, std::string(op->name) + " " + std::to_string(i), sample.inputs, sample.code,
                             sample.torch ? sample.torch : sample.code, sample.call, op->is_recorded() && has_floats(sample.inputs),
                             is_linalg || op->name == std::string("quantile")});
        }
    }
    for (const ElementwiseOp& op : elementwise_ops) add_elementwise(calls, op);
    return calls;
}

std::vector<Tensor> make_inputs(const Call& call) {
    Numbers numbers(call.name);
    std::vector<Tensor> inputs;
    for (const Spec& spec : parse(call.inputs)) inputs.push_back(make(spec, numbers));
    return inputs;
}

std::vector<Variant> variants(const Call& call) {
    std::vector<Variant> result;
    const std::vector<Tensor> inputs = make_inputs(call);
    for (const DType dtype : {int32, int64, uint8, bool_}) {
        Variant variant{name(dtype), {}};
        for (const Tensor& x : inputs) {
            const Tensor whole = is_floating(x.dtype()) ? (x * 3).round() : x;
            variant.inputs.push_back(is_floating(x.dtype()) ? (dtype == uint8 ? whole.abs() : whole).to(dtype) : whole);
        }
        result.push_back(variant);
    }
    std::set<std::int64_t> sizes;
    for (const Tensor& x : inputs) {
        for (const std::int64_t size : x.shape()) sizes.insert(size);
    }
    for (const std::int64_t size : sizes) {
        Variant variant{std::to_string(size) + " -> 0", {}};
        for (const Tensor& x : inputs) {
            Tensor y = x;
            for (int d = 0; d < x.dim(); ++d) {
                if (x.size(d) == size) y = y.narrow(d, 0, 0);
            }
            variant.inputs.push_back(y.clone());
        }
        result.push_back(variant);
    }
    return result;
}

std::vector<Tensor> gradients(const Call& call, const std::vector<Tensor>& inputs) {
    Tape tape;
    std::vector<Tensor> leaves, sources;
    for (const Tensor& x : inputs) {
        leaves.push_back(is_floating(x.dtype()) ? x.clone().requires_grad_() : x);
        if (is_floating(x.dtype())) sources.push_back(leaves.back());
    }
    Tensor total;
    for (const Tensor& y : call.run(leaves)) {
        if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
        const Tensor part = sum(y * cos(y.detach()));
        total = total.defined() ? total + part : part;
    }
    if (!total.defined()) return {};
    return tape.gradient(total, sources);
}

bool is_gradient_sized_by_data(const Call& call, const Error& error) {
    const std::string_view name = call.op->name;
    return (name == "index" || name == "repeat_interleave") &&
        std::string_view(error.what()).find("a size that depends on data") != std::string_view::npos;
}

}  // namespace tapir::test
