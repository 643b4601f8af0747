// Every op of the table, by its example calls: against PyTorch's numbers, against finite differences (first and second
// derivatives), in every floating dtype, on non-contiguous inputs, recorded and not, and on integer and empty inputs.
//
// What this does not cover: dtype promotion between different tensors, and errors; these have tests of their own.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>

#include "samples.h"
#include "tapir/autograd/gradcheck.h"

using namespace tapir;
using tapir::test::Call;

namespace {

std::string golden_path(const std::string& file) { return TAPIR_GOLDENS "/" + file; }

struct Golden {
    Shape shape;
    std::vector<double> values;
};

// "3,4 | 0.1 0.2 ..."
Golden read_golden(const std::string& text) {
    const std::size_t bar = text.find("| ");
    Golden golden;
    std::istringstream sizes(text.substr(0, bar)), values(text.substr(bar + 2));
    for (std::string size; std::getline(sizes, size, ',');) {
        if (size.find_first_not_of(' ') != std::string::npos) golden.shape.push_back(std::stoll(size));
    }
    for (std::string value; values >> value;) golden.values.push_back(std::strtod(value.c_str(), nullptr));
    return golden;
}

// "softmax 0 | 3,4 | 0.1 0.2 ...": a line an output.
std::map<std::string, std::vector<Golden>> read_goldens() {
    std::map<std::string, std::vector<Golden>> goldens;
    std::ifstream file(golden_path("ops.txt"));
    for (std::string line; std::getline(file, line);) {
        const std::size_t first = line.find(" | ");
        goldens[line.substr(0, first)].push_back(read_golden(line.substr(first + 3)));
    }
    return goldens;
}

bool close(double have, double want, double atol, double rtol) {
    if (std::isnan(want)) return std::isnan(have);
    if (std::isinf(want) || std::isinf(have)) return have == want;
    return std::abs(have - want) <= atol + rtol * std::abs(want);
}

void check_close(const Tensor& have, const Golden& want, double atol, double rtol) {
    REQUIRE(have.shape() == want.shape);
    const std::vector<double> values = have.to_vector<double>();
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!close(values[i], want.values[i], atol, rtol)) {
            INFO("element " << i << ": " << std::setprecision(12) << values[i] << ", PyTorch has " << want.values[i]);
            CHECK(false);
            return;
        }
    }
}

std::vector<Tensor> cast(const std::vector<Tensor>& inputs, DType dtype) {
    std::vector<Tensor> result;
    for (const Tensor& x : inputs) result.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
    return result;
}

// The same values with every second element of a larger buffer, dimensions stored in reverse order.
Tensor scattered(const Tensor& x) {
    Shape reversed, order;
    for (int d = x.dim(); d-- > 0;) {
        reversed.push_back(x.shape()[d]);
        order.push_back(d);
    }
    reversed.push_back(2);
    Tensor buffer = zeros(reversed, x.dtype());
    Tensor view = buffer.select(-1, 1).permute(order);
    view.copy_(x);
    return view;
}

bool is_random(const Call& call) { return call.torch == "random"; }

}  // namespace

TEST_CASE("every op has example calls", "[ops]") {
    for (const OpInfo* op : all_ops()) {
        INFO(op->name);
        CHECK(op->complete());
    }
    std::map<std::string, int> count;
    for (const Call& call : test::all_calls()) ++count[call.op->name];
    for (const OpInfo* op : all_ops()) {
        INFO(op->name);
        if (!linalg::is_available() && std::string(op->name).rfind("linalg_", 0) == 0) continue;
        CHECK(count[op->name] > 0);
    }
}

TEST_CASE("ops give PyTorch's numbers", "[ops]") {
    const auto goldens = read_goldens();
    REQUIRE(!goldens.empty());
    for (const Call& call : test::all_calls()) {
        if (call.torch.empty()) continue;
        INFO(call.name << ": " << call.torch << " of " << call.inputs);
        const auto found = goldens.find(call.name);
        if (found == goldens.end()) {
            CHECK(found != goldens.end());  // run tests/goldens/ops.py
            continue;
        }
        const std::vector<Tensor> inputs = test::make_inputs(call);
        for (const auto& [dtype, tolerance] : {std::pair(float64, 1e-8), std::pair(float32, 2e-5)}) {
            INFO(name(dtype));
            if (call.extreme && inputs[0].dtype() != dtype) continue;
            const std::vector<Tensor> outputs = call.run(cast(inputs, dtype));
            REQUIRE(outputs.size() == found->second.size());
            for (std::size_t k = 0; k < outputs.size(); ++k) {
                check_close(outputs[k], found->second[k], tolerance, tolerance);
            }
        }
    }
}

TEST_CASE("16-bit floats give float64's numbers of the same inputs", "[ops]") {
    for (const Call& call : test::all_calls()) {
        if (is_random(call) || call.extreme || call.wide_only) continue;
        INFO(call.name << ": " << call.torch << " of " << call.inputs);
        for (const auto& [dtype, tolerance] : {std::pair(float16, 4e-3), std::pair(bfloat16, 3e-2)}) {
            INFO(name(dtype));
            const std::vector<Tensor> rounded = cast(test::make_inputs(call), dtype);
            const std::vector<Tensor> want = call.run(cast(rounded, float64)), have = call.run(rounded);
            REQUIRE(have.size() == want.size());
            for (std::size_t k = 0; k < want.size(); ++k) {
                check_close(have[k], {want[k].shape(), want[k].to_vector<double>()}, tolerance, tolerance);
            }
        }
    }
}

TEST_CASE("gradients agree with finite differences", "[ops]") {
    for (const Call& call : test::all_calls()) {
        if (!call.differentiable) continue;
        INFO(call.name << ": " << call.torch << " of " << call.inputs);
        const std::vector<Tensor> inputs = test::make_inputs(call);
        const auto outputs = static_cast<std::size_t>(call.run(inputs).size());
        for (std::size_t k = 0; k < outputs; ++k) {
            if (!is_floating(call.run(inputs)[k].dtype())) continue;
            INFO("output " << k);
            const auto fn = [&](const std::vector<Tensor>& x) { return call.run(x)[k]; };
            const GradcheckResult first = gradcheck(fn, inputs, {.raise_exception = false});
            CHECK(first.message == "");
            const GradcheckResult second = gradgradcheck(fn, inputs, {.raise_exception = false});
            CHECK(second.message == "");
        }
    }
}

TEST_CASE("float32 gradients agree with float64", "[ops]") {
    for (const Call& call : test::all_calls()) {
        if (!call.differentiable) continue;
        INFO(call.name << ": " << call.torch << " of " << call.inputs);
        const auto gradients = [&](DType dtype) {
            std::vector<Tensor> leaves;
            for (const Tensor& x : cast(test::make_inputs(call), dtype)) {
                leaves.push_back(x.clone());
                if (is_floating(x.dtype())) leaves.back().requires_grad_();
            }
            Tape tape;
            for (const Tensor& y : call.run(leaves)) {
                if (is_floating(y.dtype()) && y.requires_grad()) {
                    tape.backward(y, {.gradient = ones_like(y), .retain_graph = true});
                }
            }
            std::vector<Tensor> result;
            for (const Tensor& leaf : leaves) {
                if (leaf.grad().defined()) result.push_back(leaf.grad());
            }
            return result;
        };
        const std::vector<Tensor> wide = gradients(float64), narrow = gradients(float32);
        REQUIRE(wide.size() == narrow.size());
        for (std::size_t i = 0; i < wide.size(); ++i) {
            CHECK(narrow[i].dtype() == float32);
            const std::vector<double> want = wide[i].to_vector<double>(), have = narrow[i].to_vector<double>();
            for (std::size_t j = 0; j < want.size(); ++j) {
                if (!close(have[j], want[j], 1e-4, 1e-4)) {
                    INFO("gradient " << i << ", element " << j << ": " << have[j] << " in float32, " << want[j]);
                    CHECK(false);
                    break;
                }
            }
        }
    }
}

namespace {

// The same with the channels (dimension 1) last in memory, as convolutions leave it.
Tensor channels_last(const Tensor& x) {
    if (x.dim() < 3) return x.clone();
    Dims order(0), back(0);
    for (int d = 2; d < x.dim(); ++d) order.push_back(d);
    order.push_back(1);
    back.push_back(x.dim() - 1);
    for (int d = 1; d + 1 < x.dim(); ++d) back.push_back(d);
    return x.permute(order).contiguous().permute(back);
}

// The gradients of the call's outputs, weighted.
std::vector<Tensor> gradients_of(const Call& call, std::vector<Tensor> inputs) {
    std::vector<Tensor> leaves;
    for (Tensor& x : inputs) {
        if (is_floating(x.dtype())) leaves.push_back(x.requires_grad_());
    }
    manual_seed(3);
    Tape tape;
    Tensor total;
    for (const Tensor& y : call.run(inputs)) {
        if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
        const Tensor part = sum(y * rand(y.shape(), y.dtype()));
        total = total.defined() ? total + part : part;
    }
    return total.defined() ? tape.gradient(total, leaves) : std::vector<Tensor>();
}

}  // namespace

TEST_CASE("channels that are last in memory make no difference", "[ops]") {
    for (const Call& call : test::all_calls()) {
        if (is_random(call) || call.extreme) continue;
        INFO(call.name << ": " << call.torch << " of " << call.inputs);
        const std::vector<Tensor> inputs = cast(test::make_inputs(call), float64);
        std::vector<Tensor> turned;
        for (const Tensor& x : inputs) turned.push_back(channels_last(x));
        const auto check = [](const std::vector<Tensor>& want, const std::vector<Tensor>& have) {
            REQUIRE(want.size() == have.size());
            for (std::size_t k = 0; k < want.size(); ++k) {
                REQUIRE(have[k].defined() == want[k].defined());
                if (!want[k].defined()) continue;
                REQUIRE(have[k].shape() == want[k].shape());
                const auto a = want[k].to_vector<double>(), b = have[k].to_vector<double>();
                for (std::size_t i = 0; i < a.size(); ++i) {
                    if (close(b[i], a[i], 1e-12, 1e-12)) continue;
                    INFO("output " << k << ", element " << i << ": " << a[i] << ", channels last " << b[i]);
                    CHECK(false);
                    break;
                }
            }
        };
        check(call.run(inputs), call.run(turned));
        check(gradients_of(call, inputs), gradients_of(call, turned));
    }
}

TEST_CASE("layout and recording make no difference", "[ops]") {
    for (const Call& call : test::all_calls()) {
        if (is_random(call) || call.extreme) continue;
        INFO(call.name << ": " << call.torch << " of " << call.inputs);
        for (const DType dtype : {float64, float32}) {
            const std::vector<Tensor> inputs = cast(test::make_inputs(call), dtype);
            std::vector<Tensor> strided, leaves;
            for (const Tensor& x : inputs) {
                strided.push_back(scattered(x));
                leaves.push_back(x.clone());
                if (is_floating(x.dtype())) leaves.back().requires_grad_();
            }
            const std::vector<Tensor> want = call.run(inputs), have = call.run(strided);
            Tape tape;
            const std::vector<Tensor> recorded = call.run(leaves);
            for (std::size_t k = 0; k < want.size(); ++k) {
                INFO("output " << k << " in " << name(dtype));
                REQUIRE(have[k].shape() == want[k].shape());
                const double tolerance = dtype == float64 ? 1e-12 : 1e-5;
                const auto a = want[k].to_vector<double>(), b = have[k].to_vector<double>(), c = recorded[k].to_vector<double>();
                for (std::size_t i = 0; i < a.size(); ++i) {
                    if (!close(b[i], a[i], tolerance, tolerance) || !close(c[i], a[i], 0, 0)) {
                        INFO("element " << i << ": " << a[i] << ", strided " << b[i] << ", recorded " << c[i]);
                        CHECK(false);
                        break;
                    }
                }
            }
        }
    }
}

// What PyTorch gives for a call on other inputs than it was written for; no outputs where it refuses.
struct VariantGolden {
    std::vector<std::string> dtypes;
    std::vector<Golden> outputs;
};

// "softmax 0 int32 | refused" or "sum 0 int32 | int64 | | 12": a line an output.
std::map<std::string, VariantGolden> read_variants() {
    std::map<std::string, VariantGolden> goldens;
    std::ifstream file(golden_path("variants.txt"));
    for (std::string line; std::getline(file, line);) {
        const std::size_t first = line.find(" | ");
        VariantGolden& golden = goldens[line.substr(0, first)];
        const std::string rest = line.substr(first + 3);
        if (rest == "refused") continue;
        const std::size_t second = rest.find(" | ");
        golden.dtypes.push_back(rest.substr(0, second));
        golden.outputs.push_back(read_golden(rest.substr(second + 3)));
    }
    return goldens;
}

// What Tapir refuses or answers otherwise than PyTorch 1.13, and why.
bool differs_on_purpose(const std::string& key) {
    const std::pair<const char*, const char*> all[] = {
        {"dropout", "of integers: 1/(1-p) would be cut off"},
        {"masked_fill 0", "2.5 into integers: the fraction would be cut off"},
        {"pad 1", "0.5 into integers"},
        {"scatter 3", "2.5 into integers"},
        {"lstm_gates", "of integers"},
        {"tree_lstm_gates", "of integers"},
        {"gru_gates", "of integers"},
        {"topk 4 uint8", "the order of equal elements is not specified"},
        {"kthvalue 0 int", "the order of equal elements is not specified"},
        {"kthvalue 0 uint8", "the same"},
        {"norm 7", "a negative norm of nothing"},
        {"norm 9", "the largest of no elements"},
        {"norm 10", "the smallest of no elements"},
        {"index 14", "an index beyond an empty dimension, even beside a mask that selects nothing"},
        {"median 0", "the middle of no elements"},
        {"interpolate 0 uint8", "of integers"},
        {"interpolate 1 uint8", "of integers"},
        {"pixel_unshuffle", "PyTorch 1.13 gives back nothing as it is"},
        {"bincount 2 7 -> 0", "PyTorch's weights of nothing have no dtype"},
        {"convolution 0 3 -> 0", "a kernel of no elements"},
        {"convolution 2 3 -> 0", "a kernel of no elements"},
        {"convolution 5 3 -> 0", "a kernel of no elements"},
        {"convolution 6 2 -> 0", "a kernel of no elements"},
        {"mse_loss 14 uint8", "differences below 0 wrap around there"},
        {"mse_loss 15 uint8", "the same"},
        {"mse_loss 27 uint8", "the same"},
        {"mse_loss 28 uint8", "the same"},
        {"mse_loss 36 uint8", "the same"},
        {"mse_loss 37 uint8", "the same"},
        {"mse_loss 17 int", "of integers: a margin may be a fraction"},
        {"mse_loss 17 uint8", "the same"},
        {"mse_loss 20 3 -> 0", "the mean of no losses: nan, as for the other losses"},
        {"mse_loss 23 3 -> 0", "the same"},
        {"batch_norm 4 int64", "of integers"},
        {"batch_norm 5 int64", "of integers"},
        {"group_norm_backward 0 3 -> 0", "gradients of parameters of nothing: 0, nan there"},
        {"rms_norm", "the samples' PyTorch form has no fixed sizes"},
        {"conv_weight", "the sample's PyTorch form has a fixed size"},
        {"index_put", "the sample's PyTorch form does not index"},
    };
    if ((key.rfind("conv", 0) == 0 || key.rfind("avg_pool", 0) == 0) && key.find("int") != std::string::npos) return true;  // of integers
    return std::any_of(std::begin(all), std::end(all), [&](const auto& one) { return key.rfind(one.first, 0) == 0; });
}

TEST_CASE("integer inputs and empty ones give PyTorch's numbers and dtypes", "[ops]") {
    const auto goldens = read_variants();
    REQUIRE(!goldens.empty());
    for (const Call& call : test::all_calls()) {
        if (is_random(call) || call.extreme || call.torch.empty()) continue;
        for (const test::Variant& variant : test::variants(call)) {
            const std::string key = call.name + " " + variant.name;
            INFO(key << ": " << call.torch << " of " << call.inputs);
            if (call.name == "pieces 2" && variant.name == "3 -> 0") {  // unbind: no outputs, no golden
                CHECK(call.run(variant.inputs).empty());
                continue;
            }
            const auto found = goldens.find(key);
            if (found == goldens.end()) {
                CHECK(found != goldens.end());  // run tests/goldens/ops.py
                continue;
            }
            const VariantGolden& want = found->second;
            std::vector<Tensor> have;
            try {
                have = call.run(variant.inputs);
            } catch (const Error& error) {
                INFO(error.what());
                CHECK((want.outputs.empty() || differs_on_purpose(key)));
                continue;
            }
            if (want.outputs.empty() || differs_on_purpose(key)) continue;  // refused there
            REQUIRE(have.size() == want.outputs.size());
            for (std::size_t k = 0; k < have.size(); ++k) {
                CHECK(name(have[k].dtype()) == want.dtypes[k]);
                check_close(have[k], want.outputs[k], 2e-5, 2e-5);
            }
        }
    }
}

// Writes the example calls for tests/goldens/ops.py; hidden, run by that script.
TEST_CASE("dump the example calls", "[.dump]") {
    const char* path = std::getenv("TAPIR_DUMP");
    if (!path) return;
    std::ofstream out(path);
    out << std::setprecision(17);
    const auto dump = [&](const std::string& file, const std::string& name_of_call, const Call& call, const std::vector<Tensor>& inputs) {
        out << file << "\n" << name_of_call << "\n" << call.torch << "\n" << inputs.size() << "\n";
        for (const Tensor& x : inputs) {
            out << name(x.dtype());
            for (const std::int64_t size : x.shape()) out << " " << size;
            out << "\n";
            for (const double v : x.to_vector<double>()) out << v << " ";
            out << "\n";
        }
    };
    for (const Call& call : test::all_calls()) {
        if (call.torch.empty()) continue;
        dump("ops.txt", call.name, call, test::make_inputs(call));
        if (is_random(call) || call.extreme) continue;
        for (const test::Variant& v : test::variants(call)) dump("variants.txt", call.name + " " + v.name, call, v.inputs);
    }
}
