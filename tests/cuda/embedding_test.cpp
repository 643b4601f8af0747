// embedding and one_hot on a CUDA device, and what becomes of a table's gradient: rows that are collected, summed, made
// dense.
#include <catch2/catch.hpp>

#include "check.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

void check_same(const Tensor& have, const Tensor& want, double limit = 0) {
    REQUIRE(have.shape() == want.shape());
    REQUIRE(have.dtype() == want.dtype());
    const std::vector<double> a = have.to_vector<double>(), b = want.to_vector<double>();
    std::size_t differ = 0;
    for (std::size_t i = 0; i < a.size(); ++i) differ += std::abs(a[i] - b[i]) <= limit * (1 + std::abs(b[i])) ? 0 : 1;
    CHECK(differ == 0);
}

// The gradient of a table after `uses` lookups of these indices.
Tensor table_gradient(const Tensor& table, const Tensor& indices, int uses, std::int64_t padding, bool sparse) {
    Tensor leaf = table.detach().requires_grad_();
    detail::meta_of(leaf).sparse = sparse;
    Tape tape;
    Tensor total;
    for (int i = 0; i < uses; ++i) {
        const Tensor rows = embedding(indices, leaf, padding) * (i % 3 + 1);
        total = total.defined() ? total + rows : rows;
    }
    const Tensor g = total.detach() * 0 + 1;
    tape.backward(total, {.gradient = g});
    return leaf.grad();
}

}  // namespace

TEST_CASE("a table's gradient is the sum of its rows'", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    for (const DType dtype : {float16, bfloat16, float32, float64}) {
        for (const int width : {1, 8, 100, 2000}) {
            if (width > 8 && dtype != float32 && dtype != float16) continue;
            const Tensor table = randint(-3, 4, {12, width}).to(dtype), there = table.to(cuda);
            // One row; a few, some of them equal; more parts than go into a launch; more rows than the table has.
            const std::vector<std::pair<Tensor, int>> cases{
                {tensor({5}), 1}, {tensor({5}), 34}, {tensor({3, 3, 0, 11}), 2}, {randint(0, 12, {90}), 3}};
            for (const auto& [indices, uses] : cases) {
                for (const std::int64_t padding : {-1, 3}) {
                    for (const bool sparse : {true, false}) {
                        if (sparse && width != 8) continue;
                        INFO(name(dtype) << ", width " << width << ", " << indices.numel() << " indices, padding " << padding);
                        const Tensor want = table_gradient(table, indices, uses, padding, sparse);
                        check_same(table_gradient(there, indices.to(cuda), uses, padding, sparse), want);
                        const DeterministicScope deterministic;
                        check_same(table_gradient(there, indices.to(cuda), uses, padding, sparse), want);
                    }
                }
            }
        }
    }
}

TEST_CASE("embedding reads any table", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    const Tensor table = randn({300, 48}), indices = randint(0, 40, {20, 30});
    check_same(embedding(indices.to(cuda), table.to(cuda)), embedding(indices, table));
    check_same(embedding(indices.to(int32).to(cuda), table.to(cuda)), embedding(indices, table));
    check_same(embedding(indices.to(cuda), table.to(cuda).transpose(0, 1)), embedding(indices, table.transpose(0, 1)));
    check_same(embedding(indices.transpose(0, 1).to(cuda), table.to(cuda)), embedding(indices.transpose(0, 1), table));
    check_same(embedding(tensor(7).to(cuda), table.to(cuda)), table[7]);
    CHECK_THROWS_AS(embedding(tensor({7}), table.to(cuda)), DeviceError);
    CHECK_THROWS_AS(embedding(tensor(7).to(cuda), table), DeviceError);
}

TEST_CASE("one_hot on a device", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    for (const int classes : {1, 2, 37, 500}) {
        const Tensor index = randint(0, classes, {31, 7});
        check_same(one_hot(index.to(cuda), classes), one_hot(index, classes));
        check_same(one_hot(index.to(int32).to(cuda)), one_hot(index));
    }
    CHECK_THROWS_AS(one_hot(tensor({1, -1}).to(cuda)), ValueError);
    CHECK(one_hot(zeros({0}, {int64, cuda}), 3).shape() == Shape{0, 3});
}

TEST_CASE("collected rows stay on their device", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    AutogradMeta meta;
    meta.sparse = true;
    const Tensor indices = tensor({4, 0, 4, 4, 1, 0, 4}), values = randint(0, 9, {7, 6}).to(float32);
    meta.rows = {{indices.to(cuda), values.to(cuda)}};
    detail::bound_rows(meta, {3, 6});  // more than twice as many as the leaf has
    REQUIRE(meta.rows.size() == 1);
    CHECK(meta.rows[0].indices.to_vector<int>() == std::vector<int>{0, 1, 4});
    CHECK(meta.rows[0].values.device() == cuda);
    check_same(meta.rows[0].values, index_add(zeros({5, 6}), 0, indices, values)[tensor({0, 1, 4})]);
}

TEST_CASE("a table whose gradient is read on a device makes the same lazy steps", "[cuda]") {
    NEEDS_CUDA;
    const auto trained = [](Device device, const auto& read) {
        manual_seed(3);
        nn::Embedding table(9, 4);
        table.to(device);
        optim::AdamW adam(table.parameters(), {.lr = 0.1, .weight_decay = 0.5});
        for (int step = 0; step < 3; ++step) {
            for (const int more : {0, 1}) {
                Tape tape;
                tape.backward(sum(table(tensor({step, 8, more, step}).to(device)) * 2));
                read(table.weight);
            }
            adam.step();
            adam.zero_grad();
        }
        return table.weight.detach().to(cpu);
    };
    const auto nothing = [](const Tensor&) {};
    const auto reads = [](const Tensor& w) { CHECK(w.grad().device() == w.device()); };
    const Tensor want = trained(cpu, nothing);
    check_same(trained(cuda, nothing), want, 1e-6);
    check_same(trained(cuda, reads), want, 1e-6);
    // Rows 3 to 7 are used by nobody: no weight decay reaches them.
    manual_seed(3);
    const nn::Embedding fresh(9, 4);
    check_same(trained(cuda, reads).narrow(0, 3, 5), fresh.weight.detach().narrow(0, 3, 5));
}
