// The gates of recurrent cells on a CUDA device: few and many columns and children, and gates in any layout.
#include "compare.h"
#include "tapir/ops/recurrent/recurrent_impl.h"

using namespace tapir;
using namespace tapir::test;

namespace {

double limit_for(DType dtype) { return dtype == float32 ? 2e-5 : 2 * limit_of(dtype); }

Tensor together(const LSTMState& state) { return state.h * 0.5 + state.c; }

}  // namespace

TEST_CASE("lstm_gates of small and large states", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(1);
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const auto& [rows, width] : {std::pair<int, int>{1, 1}, {3, 5}, {7, 32}, {200, 100}, {130, 131}}) {
            INFO(name(dtype) << ", " << rows << " rows of " << width);
            const Tensor gates = randn({rows, 4 * width}).to(dtype), c = randn({rows, width}).to(dtype);
            const Tensor more = randn({rows, 4 * width}).to(dtype);
            compare({gates, c}, limit_for(dtype), [](const auto& x) { return together(lstm_gates(x[0], x[1])); });
            compare({gates, c, more}, limit_for(dtype), [](const auto& x) { return lstm_gates(x[0], x[1], x[2]).h; });
            compare({gates, c, more}, limit_for(dtype), [](const auto& x) { return lstm_gates(x[0], x[1], x[2]).c; });
        }
    }
    const Tensor gates = randn({80, 30}), c = randn({20, 30});
    compare({gates, c}, 2e-5, [](const auto& x) { return together(lstm_gates(x[0].t(), x[1].t())); });
    compare({zeros({0, 8}), zeros({0, 2})}, 0, [](const auto& x) { return together(lstm_gates(x[0], x[1])); });
    const Tensor few = randn({2, 8}), state = randn({2, 2});  // nothing is recorded
    check_close(lstm_gates(few.to(cuda), state.to(cuda)).h, lstm_gates(few, state).h, 2e-5);
}

TEST_CASE("tree_lstm_gates of few and many children", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(2);
    for (const DType dtype : {float32, float64, float16}) {
        for (const int children : {0, 1, 2, 4, 5, 100}) {
            const std::int64_t rows = children == 2 ? 180 : 3, width = children == 2 ? 96 : 6;
            INFO(name(dtype) << ", " << children << " children");
            std::vector<Tensor> inputs{randn({rows, (3 + children) * width}).to(dtype)};
            for (int k = 0; k < children; ++k) inputs.push_back(randn({rows, width}).to(dtype));
            compare(inputs, 3 * limit_for(dtype),
                    [](const auto& x) { return together(tree_lstm_gates(x[0], std::vector<Tensor>(x.begin() + 1, x.end()))); });
        }
    }
}

// A Tree-LSTM node as nn makes it: one forget pre-activation that all children share, and one for each child.
TEST_CASE("gates from several sources, with a forget gate that children share", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    for (const DType dtype : {float32, float16}) {
        for (const int children : {0, 1, 3}) {
            for (const std::int64_t width : {5, 64}) {
                const std::int64_t rows = width == 64 ? 260 : 4;
                INFO(name(dtype) << ", " << children << " children, width " << width);
                std::vector<Tensor> inputs{randn({rows, 4 * width}).to(dtype), randn({rows, 3 * width}).to(dtype)};
                if (children > 0) inputs.push_back(randn({rows, children, width}).to(dtype));
                const int first_child = static_cast<int>(inputs.size());
                for (int k = 0; k < children; ++k) inputs.push_back(randn({rows, width}).to(dtype));
                compare(inputs, 3 * limit_for(dtype), [=](const auto& x) {
                    GateLayout forget = kOnlyForgetLayout;
                    forget.blocks = children;
                    std::vector<GateSource> sources{{&x[0], kSharedForgetLayout}, {&x[1], kNoForgetLayout}};
                    if (children > 0) sources.push_back({&x[2], forget});
                    std::vector<const Tensor*> c;
                    for (int k = 0; k < children; ++k) c.push_back(&x[static_cast<std::size_t>(first_child + k)]);
                    return together(lstm_step("test", sources.data(), static_cast<int>(sources.size()), c.data(), children, Loc::current()));
                });
            }
        }
    }
}

TEST_CASE("gru_gates of small and large states", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(4);
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const auto& [rows, width] : {std::pair<int, int>{1, 1}, {3, 5}, {7, 32}, {200, 100}, {130, 131}}) {
            INFO(name(dtype) << ", " << rows << " rows of " << width);
            const Tensor x = randn({rows, 3 * width}).to(dtype), y = randn({rows, 3 * width}).to(dtype);
            compare({x, y, randn({rows, width}).to(dtype)}, limit_for(dtype), [](const auto& in) { return gru_gates(in[0], in[1], in[2]); });
        }
    }
    compare({zeros({0, 6}), zeros({0, 6}), zeros({0, 2})}, 0, [](const auto& in) { return gru_gates(in[0], in[1], in[2]); });
}
