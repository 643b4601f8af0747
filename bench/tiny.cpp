// Rows of tiny ops: what an op costs beside its arithmetic.
#include "rows.h"

namespace bench {
namespace {

void add_arithmetic() {
    add_tiny("add", [] { return [a = uniform({4}, 1), b = uniform({4}, 2)] { return a + b; }; });
    add_recorded("add", [] { return [a = uniform({4}, 1), b = leaf(uniform({4}, 2))] { return a + b; }; });
    add_tiny("mul", [] { return [a = uniform({4}, 1), b = uniform({4}, 2)] { return a * b; }; });
    add_tiny("mul_by_number", [] { return [a = uniform({4})] { return a * 2.5; }; });
    add_tiny("div", [] { return [a = uniform({4}, 1), b = uniform({4}, 2, 1, 2)] { return a / b; }; });
    add_tiny("tanh", [] { return [a = uniform({4})] { return lib::tanh(a); }; });
    add_recorded("tanh", [] { return [a = leaf(uniform({4}))] { return lib::tanh(a); }; });
    add_tiny("sigmoid", [] { return [a = uniform({4})] { return lib::sigmoid(a); }; });
    add_tiny("cube", [] { return [a = uniform({4})] { return lib::pow(a, 3); }; });
    add_tiny("where", [] {
        const Tensor a = uniform({4}, 1), b = uniform({4}, 2);
        return [a, b, condition = a > b] { return lib::where(condition, a, b); };
    });
    add_tiny("greater", [] { return [a = uniform({4}, 1), b = uniform({4}, 2)] { return a > b; }; });
    add_tiny("add_broadcast", [] { return [a = uniform({4, 1}, 1), b = uniform({1, 4}, 2)] { return a + b; }; });
    add_tiny("add_transposed_8x8", [] { return [a = uniform({8, 8}, 1), b = uniform({8, 8}, 2).transpose(0, 1)] { return a + b; }; });
    add_tiny("add_in_place", [] {
        return [a = uniform({4}, 1), b = uniform({4}, 2, 0, 1e-9f)] {
            Tensor c = a;
            c.add_(b);
            return c;
        };
    });
}

void add_products() {
    add_tiny("linear_1x64",
             [] { return [x = uniform({1, 64}, 1), w = uniform({64, 64}, 2), b = uniform({64}, 3)] { return lib::linear(x, w, b); }; });
    add_recorded("linear_1x64", [] {
        return [x = uniform({1, 64}, 1), w = leaf(uniform({64, 64}, 2)), b = leaf(uniform({64}, 3))] { return lib::linear(x, w, b); };
    });
    add_tiny("matmul_1x64", [] { return [x = uniform({1, 64}, 1), w = uniform({64, 64}, 2)] { return lib::matmul(x, w); }; });
    add_tiny("matmul_4x4", [] { return [x = uniform({4, 4}, 1), w = uniform({4, 4}, 2)] { return lib::matmul(x, w); }; });
    add_tiny("dot_64", [] { return [x = uniform({64}, 1), w = uniform({64}, 2)] { return lib::dot(x, w); }; });
    add_tiny("bmm_8x4x4", [] { return [x = uniform({8, 4, 4}, 1), w = uniform({8, 4, 4}, 2)] { return lib::bmm(x, w); }; });
    add_tiny("conv2d_8x8_by_3x3", [] {
        return [x = uniform({1, 1, 8, 8}, 1), w = uniform({1, 1, 3, 3}, 2), b = uniform({1}, 3)] { return conv2d(x, w, b, {.padding = 1}); };
    });
    add_tiny("max_pool2d_8x8", [] { return [x = uniform({1, 1, 8, 8})] { return max_pool2d(x, 2, {.stride = 2}); }; });
}

void add_views_and_copies() {
    add_tiny("view", [] { return [x = uniform({4, 4})] { return x.view({2, 8}); }; });
    add_tiny("reshape", [] { return [x = uniform({4, 4})] { return x.reshape({2, 8}); }; });
    add_tiny("narrow", [] { return [x = uniform({4, 4})] { return x.narrow(0, 1, 2); }; });
    add_recorded("narrow", [] { return [x = leaf(uniform({4, 4}))] { return x.narrow(0, 1, 2); }; });
    add_tiny("select", [] { return [x = uniform({4, 4})] { return x[1]; }; });
    add_tiny("transpose", [] { return [x = uniform({4, 4})] { return x.transpose(0, 1); }; });
    add_tiny("chunk_4", [] { return [x = uniform({1, 64})] { return x.chunk(4, 1)[0]; }; });
    add_tiny("cat_2", [] { return [a = uniform({4}, 1), b = uniform({4}, 2)] { return lib::cat({a, b}, 0); }; });
    add_tiny("stack_10", [] { return [list = Tensors(10, uniform({4}))] { return lib::stack(list, 0); }; });
    add_tiny("clone", [] { return [x = uniform({4})] { return x.clone(); }; });
    add_tiny("to_float64", [] { return [x = uniform({4})] { return x.to(kFloat64); }; });
    add_tiny("empty", [] { return [] { return lib::empty({4}); }; }, /*is_random=*/true);
    add_tiny("zeros", [] { return [] { return lib::zeros({4}); }; });
    add_tiny("arange_10", [] { return [] { return lib::arange(10); }; });
    add_tiny("randn", [] { return [] { return lib::randn({4}); }; }, /*is_random=*/true);
    add_tiny("item_and_full", [] { return [x = uniform({1})] { return lib::full({1}, x.item<float>()); }; });
}

void add_reductions_and_layers() {
    add_tiny("sum", [] { return [a = uniform({4})] { return a.sum(); }; });
    add_tiny("sum_of_rows", [] { return [a = uniform({4, 4})] { return a.sum(1); }; });
    add_tiny("max_64", [] { return [a = uniform({64})] { return a.max(); }; });
    add_tiny("argmax_64", [] { return [a = uniform({64})] { return a.argmax(); }; });
    add_tiny("softmax_1x10", [] { return [a = uniform({1, 10})] { return lib::softmax(a, 1); }; });
    add_tiny("layer_norm_1x64", [] { return [a = uniform({1, 64}, 1), w = uniform({64}, 2), b = uniform({64}, 3)] { return layer_norm(a, w, b); }; });
    add_tiny("cross_entropy_1x10", [] { return [a = uniform({1, 10}), y = integers({1}, 2, 10)] { return cross_entropy(a, y); }; });
    add_tiny("index_select_1", [] { return [w = uniform({1000, 64}), i = integers({1}, 2, 1000)] { return lib::index_select(w, 0, i); }; });
    add_tiny("index_1", [] { return [w = uniform({1000, 64}), i = integers({1}, 2, 1000)] { return w.index({i}); }; });
}

void add_chains() {
    const auto add = [b = uniform({4}, 5)](const Tensor& x) { return x + b; };
    const auto tanh = [](const Tensor& x) { return lib::tanh(x); };
    add_chain("add", Part::kForward, add);
    add_chain("add", Part::kBackward, add);
    add_chain("tanh", Part::kForward, tanh);
    add_chain("tanh", Part::kBackward, tanh);
    add_chain("mul", Part::kBackward, [b = uniform({4}, 5, 0.999f, 1.001f)](const Tensor& x) { return x * b; });
    add_chain("mul_by_number", Part::kBackward, [](const Tensor& x) { return x * 1.0001; });
    add_chain("narrow_and_cat", Part::kBackward, [](const Tensor& x) { return lib::cat({x.narrow(0, 2, 2), x.narrow(0, 0, 2)}, 0); });
    add_chain("linear_4", Part::kBackward, [w = leaf(uniform({4, 4}, 7, -0.3f, 0.3f))](const Tensor& x) { return lib::linear(x, w); });
}

}  // namespace

void add_tiny_rows() {
    add_arithmetic();
    add_products();
    add_views_and_copies();
    add_reductions_and_layers();
    add_chains();
}

}  // namespace bench
