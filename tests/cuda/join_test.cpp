// cat and stack on a CUDA device against the CPU: one launch for many inputs, several for more, every unit of copying.
#include <catch2/catch.hpp>

#include "check.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

std::vector<Tensor> on_cuda(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> there;
    for (const Tensor& t : tensors) there.push_back(t.to(cuda));
    return there;
}

void check_same(const Tensor& have, const Tensor& want) {
    REQUIRE(have.device() == cuda);
    REQUIRE(have.shape() == want.shape());
    REQUIRE(have.dtype() == want.dtype());
    CHECK(have.to_vector<double>() == want.to_vector<double>());
}

Tensor counted(const Shape& shape, DType dtype, int from) { return (arange(shape.numel()) % 100 + from).to(dtype).reshape(shape); }

}  // namespace

TEST_CASE("cat joins along every dimension", "[cuda]") {
    NEEDS_CUDA;
    for (const DType dtype : {uint8, int32, float16, float64}) {
        INFO(name(dtype));
        for (int dim = 0; dim < 3; ++dim) {
            for (const int width : {1, 3, 16, 64}) {
                std::vector<Tensor> parts;
                for (int i = 0; i < 5; ++i) {
                    Shape shape{6, 5, width};
                    shape[dim] = i == 2 ? 0 : shape[dim] + i;
                    parts.push_back(counted(shape, dtype, i));
                }
                INFO("dimension " << dim << ", width " << width);
                check_same(cat(on_cuda(parts), dim), cat(parts, dim));
            }
        }
    }
    const std::vector<Tensor> long_ones{counted({70000}, float32, 1), counted({3}, float32, 2), counted({9001}, float32, 3)};
    check_same(cat(on_cuda(long_ones)), cat(long_ones));
    const std::vector<Tensor> wide{counted({3, 30000}, float32, 1), counted({3, 5}, float32, 2), counted({3, 20000}, float32, 3)};
    check_same(cat(on_cuda(wide), 1), cat(wide, 1));
    // Of several dtypes, not contiguous, not aligned.
    const std::vector<Tensor> mixed{counted({3, 7}, float32, 1), counted({3, 4}, int32, 2), counted({9, 3}, float32, 3).transpose(0, 1)};
    check_same(cat(on_cuda(mixed), 1), cat(mixed, 1));
    const Tensor x = counted({70}, float32, 0), there = x.to(cuda);
    check_same(cat({there.slice(0, Slice(1)), there.slice(0, Slice(2)), there}), cat({x.slice(0, Slice(1)), x.slice(0, Slice(2)), x}));
    CHECK_THROWS_AS(cat({there, x}), DeviceError);
}

TEST_CASE("many small tensors are stacked, and the gradient comes apart again", "[cuda]") {
    NEEDS_CUDA;
    for (const int count : {1, 2, 63, 64, 65, 200}) {
        for (int dim = 0; dim < 3; ++dim) {
            INFO(count << " along " << dim);
            std::vector<Tensor> parts, leaves;
            for (int i = 0; i < count; ++i) parts.push_back(counted({2, 12}, float32, i));
            leaves = on_cuda(parts);
            for (Tensor& leaf : leaves) leaf.requires_grad_();
            Tape tape;
            const Tensor joined = stack(leaves, dim), g = joined.detach() * 2;
            check_same(joined, stack(parts, dim));
            tape.backward(joined, {.gradient = g});
            for (int i = 0; i < count; i += 31) {
                const auto k = static_cast<std::size_t>(i);
                check_same(leaves[k].grad(), parts[k] * 2);
            }
        }
    }
    // Pieces are put together by cat.
    const Tensor x = counted({7, 9}, float32, 0).to(cuda);
    Tensor leaf = clone(x).requires_grad_();
    Tape tape;
    const std::vector<Tensor> pieces = split(leaf, 4, 1), rows = unbind(leaf, 0);
    tape.backward(sum(pieces[0]) * 2 + sum(pieces[2]) * 3 + sum(rows[1]));
    Tensor want = zeros({7, 9});
    want.index_put_({Slice(), Slice(0, 4)}, 2);
    want.index_put_({Slice(), Slice(8)}, 3);
    want.index_put_({1}, want[1] + 1);
    check_same(leaf.grad(), want);
}

TEST_CASE("rows of a tensor that are stacked give their gradients to it together", "[cuda]") {
    NEEDS_CUDA;
    struct Use {
        std::vector<int> rows;
        double factor;
    };
    const std::vector<std::vector<Use>> cases = {
        {{{0, 1, 2, 3, 4}, 1}},                                     // all
        {{{0, 1}, 1}, {{2, 3, 4}, 2}},                              // all, in runs
        {{{1, 2, 3}, 1}},                                           // some
        {{{4, 0, 2}, 1}, {{0, 1, 2}, 2}, {{2}, 3}},                 // some several times, in another order
        {{{0}, 1}, {{0, 1, 2, 3, 4}, 2}},                           // all, after one
        {{{0, 1, 2, 3, 4}, 2}, {{1, 1, 3}, 1}, {{0, 1, 2, 3}, 4}},  // one row twice in a stack
    };
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const Shape& row : {Shape{}, Shape{3}, Shape{2, 150}}) {
            Shape shape = row;
            shape.insert(0, 5);
            for (const auto& uses : cases) {
                INFO(dtype << ' ' << shape << ", case " << &uses - cases.data());
                const auto gradient = [&](Device device) {
                    Tensor leaf = counted(shape, dtype, 1).to(device).requires_grad_();
                    Tape tape;
                    const std::vector<Tensor> rows = unbind(leaf * 1, 0);
                    Tensor loss = zeros({}, {dtype, device});
                    for (const Use& use : uses) {
                        std::vector<Tensor> used;
                        for (const int k : use.rows) used.push_back(rows[static_cast<std::size_t>(k)]);
                        const Tensor joined = stack(used, 0);
                        loss = loss + sum(joined * (arange(joined.numel(), {float32, device}) % 4 + use.factor).to(dtype).reshape(joined.shape()));
                    }
                    return tape.gradient(loss, {leaf})[0];
                };
                check_same(gradient(cuda), gradient(cpu));
            }
        }
    }
}
