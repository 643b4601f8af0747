// Operands of several dtypes. For each op with several of them and each pair of dtypes: the call gives what it gives
// for operands converted to the dtype that they promote to, which table_test compares with PyTorch, or it is refused.
// Ops that write into their first operand, or compute in its dtype, are listed with that reason.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string_view>
#include <vector>

#include "../fails.h"
#include "samples.h"

using namespace tapir;
using tapir::test::Call;

namespace {

constexpr DType kAll[] = {bool_, uint8, int32, int64, float16, bfloat16, float32, float64};

// Why the result of an op, or of a call, has not the dtype that its operands promote to; null for those that have it.
const char* reason(const Call& call) {
    constexpr std::pair<std::string_view, const char*> kReasons[] = {
        {"copy", "writes into its first operand"},
        {"index_put", "writes into its first operand"},
        {"index_put_add", "writes into its first operand"},
        {"index_fill", "writes into its first operand"},
        {"masked_fill", "writes into its first operand"},
        {"diagonal_scatter", "writes into its first operand"},
        {"select_scatter", "writes into its first operand"},
        {"slice_scatter", "writes into its first operand"},
        {"broadcast_tensors", "gives them all back"},
        {"meshgrid", "gives them all back"},
        {"hstack", "0-d tensors count as rows of one"},
        {"batch_norm", "16-bit inputs may have float32 parameters"},
        {"group_norm", "16-bit inputs may have float32 parameters"},
        {"layer_norm", "16-bit inputs may have float32 parameters"},
        {"batch_norm_backward", "16-bit inputs may have float32 parameters"},
        {"group_norm_backward", "16-bit inputs may have float32 parameters"},
        {"rms_norm", "rounded to the input's dtype before the weight counts, as PyTorch does"},
        {"huber_loss", "of the input's dtype, as PyTorch's"},
        {"mse_loss 7", "huber_loss"},
        {"mse_loss 8", "huber_loss"},
        {"mse_loss 13", "soft_margin_loss, of the input's dtype, as PyTorch's"},
        {"mse_loss 29", "the distance is the caller's function of the tensors as they are"},
        {"binary_cross_entropy", "of the input's dtype"},
        {"scaled_dot_product_attention", "the mask has a dtype of its own: bool says what is looked at"},
        {"cross_entropy_backward", "of rules alone"},
        {"weighted_exps", "of rules alone"},
        {"conv_weight", "of rules alone"},
        {"trapezoid", "places that fall in uint8 wrap around"},
    };
    for (const auto& [name, why] : kReasons) {
        if (name == call.op->name || name == call.name) return why;
    }
    return nullptr;
}

// Small whole numbers, which all dtypes hold: 0 and 1 beside bool, none below 0 beside uint8.
Tensor plain_numbers(const Tensor& x, DType s, DType t) {
    const Tensor whole = (x * 3).round();
    if (s == bool_ || t == bool_) return to(whole != 0, float64);
    return s == uint8 || t == uint8 ? abs(whole) : whole;
}

// The inputs with dtype t at place k and s at the other floating places.
std::vector<Tensor> converted(const std::vector<Tensor>& inputs, std::size_t k, DType s, DType t) {
    std::vector<Tensor> result = inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (is_floating(inputs[i].dtype())) result[i] = plain_numbers(inputs[i], s, t).to(i == k ? t : s);
    }
    return result;
}

// What operands of dtypes s and t promote to: 0-d ones by their category only.
DType common_dtype(const std::vector<Tensor>& operands) {
    const auto category = [](DType d) { return is_floating(d) ? 2 : d == bool_ ? 0 : 1; };
    DType dims = bool_, zero = bool_;
    bool has_dims = false;
    for (const Tensor& x : operands) {
        DType& dtype = x.dim() > 0 ? dims : zero;
        dtype = promote(dtype, x.dtype());
        has_dims |= x.dim() > 0;
    }
    return !has_dims || category(zero) > category(dims) ? zero : dims;
}

double tolerance(DType dtype) { return dtype == float16 ? 4e-3 : dtype == bfloat16 ? 3e-2 : dtype == float32 ? 1e-5 : 1e-12; }

// To the digits that the narrowest operand has: where one is rounded on the way is the op's business.
void check_same(const Tensor& have, const Tensor& want, double close) {
    REQUIRE(have.shape() == want.shape());
    CHECK(name(have.dtype()) == std::string(name(want.dtype())));
    const std::vector<double> a = have.to(float64).to_vector<double>(), b = want.to(float64).to_vector<double>();
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
        INFO("element " << i << ": " << a[i] << ", of one dtype " << b[i]);
        if (!(std::abs(a[i] - b[i]) <= close * (1 + std::abs(b[i])))) CHECK(false);
    }
}

// One call with t at place k, s elsewhere.
void check_pair(const Call& call, const std::vector<Tensor>& inputs, std::size_t k, DType s, DType t) {
    INFO(call.name << " of " << call.inputs << ": " << name(t) << " at place " << k << ", " << name(s) << " elsewhere");
    const std::vector<Tensor> mixed = converted(inputs, k, s, t);
    std::vector<Tensor> operands, alike = mixed;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (is_floating(inputs[i].dtype())) operands.push_back(mixed[i]);
    }
    const DType common = common_dtype(operands);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (is_floating(inputs[i].dtype())) alike[i] = mixed[i].to(common);
    }
    std::vector<Tensor> have;
    try {
        have = call.run(mixed);
    } catch (const Error&) {  // of the dtypes, or of the numbers: a probability of 3, integers that are classes
        return;
    }
    const std::vector<Tensor> want = call.run(alike);
    REQUIRE(have.size() == want.size());
    for (std::size_t i = 0; i < have.size(); ++i) {
        check_same(have[i], want[i], std::max({tolerance(have[i].dtype()), tolerance(s), tolerance(t)}));
    }
}

}  // namespace

TEST_CASE("operands of two dtypes give what those of their promoted dtype give, or are refused", "[ops]") {
    for (const Call& call : test::all_calls()) {
        const std::vector<Tensor> inputs = test::make_inputs(call);
        const auto floats = std::count_if(inputs.begin(), inputs.end(), [](const Tensor& x) { return is_floating(x.dtype()); });
        if (call.extreme || call.torch == "random" || floats < 2 || reason(call)) continue;
        for (std::size_t k = 0; k < inputs.size(); ++k) {
            if (!is_floating(inputs[k].dtype())) continue;
            for (const DType s : kAll) {
                for (const DType t : kAll) {
                    const bool may_wrap = floats > 2 && (s == bool_ || s == uint8 || t == bool_ || t == uint8);
                    if (s != t && !may_wrap) check_pair(call, inputs, k, s, t);
                }
            }
        }
    }
}

TEST_CASE("losses of integers and of 16-bit floats stay in 16 bits") {
    const Tensor half = tensor({0.5, 1.0}, float16), whole = tensor({1, 0}), brain = tensor({0.5, 1.0}, bfloat16);
    for (const auto& loss : {kl_div(half, whole), kl_div(whole, half), binary_cross_entropy_with_logits(whole, half), poisson_nll_loss(half, whole),
                             margin_ranking_loss(half, whole, whole), soft_margin_loss(half, whole)}) {
        CHECK(loss.dtype() == float16);
    }
    CHECK(huber_loss(half, brain).dtype() == float16);  // the input's, as PyTorch's
    CHECK(huber_loss(brain, half).dtype() == bfloat16);
    CHECK(soft_margin_loss(half, brain).dtype() == float16);
    CHECK(mse_loss(half, brain).dtype() == float32);
    const Tensor scores = ones({1, 2}, float16), shares = full({1, 2}, 0.5, bfloat16);
    CHECK(cross_entropy(scores, shares).dtype() == float32);
    CHECK(cross_entropy(scores, shares.to(float64)).dtype() == float64);
    CHECK(cross_entropy(scores, shares.to(float64)).item() == Approx(std::log(2.0)));
}

TEST_CASE("targets of uint8 do not wrap around in losses") {
    const Tensor x = tensor({0.5, -0.25}), t = tensor({2, 3}, uint8);
    // (1 - t) x - log(sigmoid(x))
    const double first = -0.5 + std::log1p(std::exp(-0.5)), second = 0.5 + std::log1p(std::exp(0.25));
    CHECK(binary_cross_entropy_with_logits(x, t).item() == Approx((first + second) / 2));
    CHECK(multilabel_soft_margin_loss(x, t).item() == Approx((first + second) / 2));
    CHECK(margin_ranking_loss(tensor({1}, uint8), tensor({3}, uint8), tensor({1}, uint8)).item() == Approx(2));
}
