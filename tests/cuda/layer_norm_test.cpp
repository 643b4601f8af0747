// Layer normalisation on a CUDA device: every way that rows may be worked on, and the sums over rows.
#include "compare.h"

using namespace tapir;
using namespace tapir::test;

namespace {

const OpCall with_both = [](const auto& x) { return layer_norm(x[0], {x[0].size(-1)}, x[1], x[2]); };
const OpCall with_weight = [](const auto& x) { return layer_norm(x[0], {x[0].size(-1)}, x[1]); };
const OpCall alone = [](const auto& x) { return layer_norm(x[0], {x[0].size(-1)}); };

std::vector<Tensor> inputs_of(std::int64_t rows, std::int64_t width, DType dtype) {
    return {(randn({rows, width}) * 2 + 3).to(dtype), (rand({width}) + 0.5).to(dtype), randn({width}).to(dtype)};
}

double limit_for(DType dtype) { return dtype == bfloat16 ? 6e-2 : dtype == float16 ? 1e-2 : 2 * limit_of(dtype); }

}  // namespace

TEST_CASE("layer_norm of rows of any width", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(1);
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const std::int64_t width : {1, 3, 8, 33, 64, 100, 256, 500, 770, 1024, 1500, 4096}) {
            INFO(name(dtype) << ", width " << width);
            const std::vector<Tensor> inputs = inputs_of(5, width, dtype);
            compare(inputs, limit_for(dtype), with_both);
            compare({inputs[0], inputs[1]}, limit_for(dtype), with_weight);
            compare({inputs[0]}, limit_for(dtype), alone);
        }
    }
}

TEST_CASE("layer_norm of wide and of many rows", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(2);
    for (const std::int64_t width : {8192, 12001, 17004}) {
        INFO("width " << width);
        compare(inputs_of(2, width, float32), 2e-5, with_both);
    }
    compare(inputs_of(1, 36000, float32), 2e-5, with_both);  // in parts
    compare(inputs_of(8, 16400, float16), 1e-2, alone);      // a block a row
    for (const std::int64_t width : {5, 68, 101}) {
        INFO("width " << width);
        compare(inputs_of(401, width, float32), 1e-4, with_both);
        compare(inputs_of(401, width, float64), 1e-11, with_both);
    }
}

TEST_CASE("layer_norm where not all gradients are wanted, and rows are not aligned", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    for (const std::int64_t width : {20, 96, 2000}) {
        INFO("width " << width);
        const std::vector<Tensor> inputs = inputs_of(7, width, float32);
        for (int k = 0; k < 3; ++k) {
            compare({inputs[k]}, 2e-5, [&](const auto& in) {
                std::vector<Tensor> all;
                for (const Tensor& t : inputs) all.push_back(t.to(in[0].device()));
                all[static_cast<std::size_t>(k)] = in[0];
                return with_both(all);
            });
        }
        compare_on(inputs, {shifted(inputs[0]), inputs[1].to(cuda), inputs[2].to(cuda)}, 2e-5, with_both);
        compare_on(inputs, {inputs[0].to(cuda), inputs[1].to(cuda), shifted(inputs[2])}, 2e-5, with_both);
        compare({inputs[0].t().contiguous(), inputs[1]}, 2e-5, [](const auto& x) { return layer_norm(x[0].t(), {x[1].size(0)}, x[1]); });
    }
    compare({randn({0, 5}), rand({5}), rand({5})}, 0, with_both);
    compare({randn({2, 3, 4, 5}), rand({4, 5})}, 1e-5, [](const auto& x) { return layer_norm(x[0], {4, 5}, x[1], {}, 1e-3); });
}

TEST_CASE("layer_norm keeps its digits where the mean is large, and is differentiated twice", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(4);
    for (const std::int64_t width : {48, 3000, 17000}) {
        const Tensor x = (randn({2, width}, float64) + 1e4).to(float32);
        check_close(layer_norm(x.to(cuda), {width}), layer_norm(x.to(float64), {width}).to(float32), 1e-3);
    }
    for (const DType dtype : {float32, float64}) {
        const std::vector<Tensor> inputs{randn({4, 6}, dtype), rand({6}, dtype), rand({6}, dtype)};
        compare_twice(inputs, limit_for(dtype), with_both);
    }
}
