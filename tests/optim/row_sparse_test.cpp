// Steps with gradients of which only some rows are there: against PyTorch's, the dense gradient's, and before and after it is read.
#include <cmath>
#include <memory>
#include <typeinfo>

#include "goldens.h"
#include "steps.h"
#include "tapir/autograd/meta_impl.h"

using namespace tapir;
using namespace tapir::test;

namespace {

const std::vector<std::vector<std::int64_t>> kRows = {{0, 4, 4, 2}, {2, 2, 5}, {1, 4}, {5, 0, 0, 0, 1}};

// The same gradients through an embedding, as rows or as a whole table.
template <class Opt, class Options>
Tensor train_table(const Options& options, bool sparse, DType dtype = float32, std::int64_t rows = 6) {
    nn::Embedding table(rows, 3, {.sparse = sparse});
    table.to(dtype);
    check::fill(table.weight.detach().narrow(0, 0, 6), 1);
    Opt opt(table.parameters(), options);
    for (int t = 0; t < kSteps; ++t) {
        const auto& used = kRows[static_cast<std::size_t>(t) % kRows.size()];
        const Tensor g = values({static_cast<std::int64_t>(used.size()), 3}, 3 + 0.9 * t, dtype);
        {
            Tape tape;
            tape.backward(sum(table(tensor(used)) * g));
        }
        opt.step();
        opt.zero_grad();
    }
    return table.weight.detach();
}

// A table all of whose rows are used in each step, some repeatedly.
template <class Opt, class Options>
Tensor train_all_rows(const Options& options, bool sparse) {
    nn::Embedding table(4, 3, {.sparse = sparse});
    table.to(float64);
    check::fill(table.weight.detach(), 1);
    Opt opt(table.parameters(), options);
    for (int t = 0; t < 8; ++t) {
        Tape tape;
        tape.backward(sum(table(tensor({2, 0, 3, 2, 1})) * values({5, 3}, t, float64)));
        opt.step();
        opt.zero_grad();
    }
    return table.weight.detach();
}

}  // namespace

TEST_CASE("row-sparse gradients make PyTorch's steps") {
    using namespace optim;
    check::same("sparse_sgd", train_table<SGD>(SGDOptions{.lr = 0.1}, true), goldens::sparse_sgd, 1e-5);
    check::same("sparse_adagrad", train_table<Adagrad>(AdagradOptions{.lr = 0.1}, true), goldens::sparse_adagrad, 1e-5);
    check::same("sparse_adam", train_table<Adam>(AdamOptions{.lr = 0.01}, true), goldens::sparse_adam, 1e-5);
}

TEST_CASE("SGD and Adagrad make the same step from rows as from the whole table") {
    using namespace optim;
    const auto dense_sgd = train_table<SGD>(SGDOptions{.lr = 0.1}, false, float64).to_vector<double>();
    check::same("sgd", train_table<SGD>(SGDOptions{.lr = 0.1}, true, float64), dense_sgd, 1e-14);
    const auto dense_adagrad = train_table<Adagrad>(AdagradOptions{.lr = 0.1}, false, float64).to_vector<double>();
    check::same("adagrad", train_table<Adagrad>(AdagradOptions{.lr = 0.1}, true, float64), dense_adagrad, 1e-14);
}

TEST_CASE("every optimizer makes the dense step from rows where all are used") {
    for_all([]<class Opt>(const auto& options) {
        const auto dense = train_all_rows<Opt>(options, false).template to_vector<double>();
        check::same(typeid(Opt).name(), train_all_rows<Opt>(options, true), dense, 1e-13);
    });
}

TEST_CASE("a sparse step leaves unused rows alone, whatever the options") {
    using namespace optim;
    const Tensor start = values({6, 3}, 1, float32);
    const auto row3 = start[3].to_vector<float>();
    CHECK(train_table<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}, true)[3].to_vector<float>() == row3);
    CHECK(train_table<AdamW>(AdamWOptions{.lr = 0.1}, true)[3].to_vector<float>() == row3);
    CHECK(train_table<Adagrad>(AdagradOptions{.weight_decay = 0.1}, true, float32, 100)[3].to_vector<float>() == row3);
    // The gradient stays sparse until somebody reads it.
    nn::Embedding table(1000000, 4);
    Tape tape;
    tape.backward(sum(table(tensor({5, 7, 5}))));
    SGD opt(table.parameters(), {.lr = 1});
    const float before = table.weight.at<float>({5, 0});
    opt.step();
    CHECK(table.weight.at<float>({5, 0}) == Approx(before - 2));
    CHECK(table.weight.grad()[5].to_vector<float>() == std::vector<float>{2, 2, 2, 2});
}

TEST_CASE("many repeated rows are summed up as their definition says, the same on any number of threads") {
    const int before = num_threads();
    for (const std::int64_t row_count : {1, 2, 40, 3000, 70'000}) {
        INFO(row_count << " rows");
        const std::int64_t count = 5000, width = 7;
        Generator random(3);
        const Tensor index = randint(0, row_count, {count}, random);
        const Tensor weights = check::values({count, width}, 4, float32);
        std::vector<std::vector<float>> results;
        for (const int threads : {1, 2, 3}) {
            set_num_threads(threads);
            nn::Embedding table(row_count, width);
            table.weight.copy_(zeros({row_count, width}));
            optim::SGD sgd(table.parameters(), {.lr = 1});
            Tape tape;
            tape.backward(sum(table(index) * weights));
            sgd.step();
            results.push_back(table.weight.to_vector<float>());
        }
        CHECK(results[1] == results[0]);
        CHECK(results[2] == results[0]);
        std::vector<float> expected(static_cast<std::size_t>(row_count * width));
        const auto rows = index.to_vector<std::int64_t>();
        const auto values = weights.to_vector<float>();
        for (std::size_t i = 0; i < rows.size(); ++i) {  // in the order of the positions
            const auto row = static_cast<std::size_t>(rows[i]);
            for (std::size_t j = 0; j < width; ++j) expected[row * width + j] += values[i * width + j];
        }
        for (float& x : expected) x = -x;
        CHECK(results[0] == expected);
    }
    set_num_threads(before);
}

TEST_CASE("reading a row-sparse gradient does not change what a step does") {
    // The rows that each of several passes uses, with repeats; what the reader does between backward and step.
    const auto trained = [](const auto& make, DType dtype, double scale, auto read) {
        nn::Embedding table(6, 3);
        check::fill(table.weight.detach(), 1);
        table.to(dtype);
        const auto optimizer = make(table.parameters());
        const std::vector<std::vector<std::int64_t>> used = {{1, 3, 1}, {0, 3}, {5, 5, 2, 0}, {4}};
        for (std::size_t step = 0; step < used.size(); ++step) {
            for (const std::int64_t more : {0, 1}) {  // two passes a step: a gradient that is read is added to
                Tape tape;
                const Tensor rows = table(tensor(used[(step + static_cast<std::size_t>(more)) % used.size()]));
                tape.backward(sum(rows * rows * scale));
                if (more == 0) read(table.weight, /*last=*/false);
            }
            read(table.weight, /*last=*/true);
            optimizer->step();
            optimizer->zero_grad();
        }
        return table.weight.template to_vector<double>();
    };
    const auto nothing = [](const Tensor&, bool) {};
    const auto looks = [hooked = Tensor()](const Tensor& w, bool) mutable {  // by a hook, from the second backward on
        if (hooked.is_same(w)) return;
        hooked = w;
        w.register_hook([](const Tensor& g) {
            CHECK(g.dim() == 2);
            return Tensor();
        });
    };
    const auto prints = [](const Tensor& w, bool) { CHECK(w.grad().norm().item() > 0); };
    const auto check_all = [&](const auto& make) {
        for (const DType dtype : {float32, float64}) {
            CHECK(trained(make, dtype, 1, prints) == trained(make, dtype, 1, nothing));
            CHECK(trained(make, dtype, 1, looks) == trained(make, dtype, 1, nothing));
            // At the end only, and half of it: the same as of half the loss.
            const auto halves = [](const Tensor& w, bool last) {
                if (last) w.grad().mul_(0.5);
            };
            CHECK(trained(make, dtype, 1, halves) == trained(make, dtype, 0.5, nothing));
            const auto clips = [](const Tensor& w, bool last) {
                if (last) optim::clip_grad_value_({w}, 0.25);
            };
            const auto reads_and_clips = [&](const Tensor& w, bool last) {
                prints(w, last);
                clips(w, last);
            };
            CHECK(trained(make, dtype, 1, reads_and_clips) == trained(make, dtype, 1, clips));
            const auto converts = [&](const Tensor& w, bool last) {
                prints(w, last);
                struct One : nn::Module {
                    Tensor w;
                    void members(nn::Members& m) override { m("w", w); }
                } one;
                one.w = w;
                one.to(float64);
            };
            if (dtype == float64) CHECK(trained(make, dtype, 1, converts) == trained(make, dtype, 1, nothing));
        }
    };
    check_all([](const auto& p) { return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{.lr = 0.1, .weight_decay = 0.5}); });
    check_all([](const auto& p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.5}); });
}

TEST_CASE("a row-sparse gradient that was read and changed is stepped with as it is then") {
    const auto stepped = [](const auto& change) {
        nn::Embedding table(4, 1);
        table.weight.detach().fill_(1);
        optim::SGD sgd(table.parameters(), {.lr = 1, .weight_decay = 1});
        Tape tape;
        tape.backward(sum(table(tensor({1, 3, 1}))));
        change(table.weight);
        sgd.step();
        return table.weight.to_vector<double>();
    };
    using V = std::vector<double>;
    CHECK(stepped([](const Tensor&) {}) == V{1, -2, 1, -1});
    CHECK(stepped([](const Tensor& w) { w.grad(); }) == V{1, -2, 1, -1});
    CHECK(stepped([](const Tensor& w) { w.grad().neg_(); }) == V{1, 2, 1, 1});               // the other rows are -0 then
    CHECK(stepped([](const Tensor& w) { w.grad().index_put_({1}, 0); }) == V{1, 0, 1, -1});  // used, although it is 0 now
    CHECK(stepped([](const Tensor& w) { w.grad().data<float>()[1] = 5; }) == V{1, -5, 1, -1});
    CHECK(stepped([](const Tensor& w) { w.grad().data<float>()[0] = 5; }) == V{-5, -2, 0, -1});                        // dense
    CHECK(stepped([](const Tensor& w) { w.grad().add_(tensor({{1.0}, {0.0}, {0.0}, {0.0}})); }) == V{-1, -2, 0, -1});  // dense
    CHECK(stepped([](Tensor w) { w.set_grad(w.grad() * 2); }) == V{0, -4, 0, -2});                                     // dense
    CHECK(stepped([](Tensor w) {
              w.grad();
              w.zero_grad();
              w.set_grad(ones({4, 1}));
          }) == V{-1, -1, -1, -1});
}

TEST_CASE("a read gradient is known to have no more rows until somebody may have written to it") {
    nn::Embedding table(4, 1, {.sparse = true});
    const AutogradMeta& meta = *table.weight.impl()->meta;
    const auto pass = [&] {
        Tape tape;
        tape.backward(sum(table(tensor({1, 3, 1}))));
    };
    const auto read = [&] {
        table.zero_grad();
        pass();
        return table.weight.grad();
    };
    CHECK(!meta.is_sure_of_rows());
    Tensor g = read();
    CHECK(meta.is_sure_of_rows());
    pass();
    g = table.weight.grad();  // one was added to the other
    CHECK(meta.is_sure_of_rows());
    table.to(float64);
    CHECK(meta.is_sure_of_rows());
    table.to(float32);
    optim::SGD sgd(table.parameters(), {.lr = 0.1});
    optim::GradScaler scaler;
    scaler.unscale_(sgd);
    CHECK(meta.is_sure_of_rows());
    g = table.weight.grad();
    g.mul_(2);
    CHECK(!meta.is_sure_of_rows());
    pass();
    g = table.weight.grad();  // not even then
    CHECK(meta.used_rows.defined());
    CHECK(!meta.is_sure_of_rows());
    g = read();
    g[0].fill_(1);
    CHECK(!meta.is_sure_of_rows());
    table.to(float64);  // its storage is another one, with a version of its own
    CHECK(!meta.is_sure_of_rows());
    table.to(float32);
    g = read();
    g.data<float>();
    CHECK(!meta.is_sure_of_rows());
    read();
    CHECK(meta.is_sure_of_rows());
    table.weight.set_grad(ones({4, 1}));
    CHECK(!meta.is_sure_of_rows());
    // What was written to another row is not forgotten when more rows come.
    read()[2].fill_(1);
    pass();
    const double before = table.weight.at<float>({2, 0});
    sgd.step();
    CHECK(std::abs(before - table.weight.at<float>({2, 0}) - 0.1) < 1e-6);
    table.weight.register_hook([](const Tensor&) { return Tensor(); });
    read();
    CHECK(meta.used_rows.defined());
    CHECK(!meta.is_sure_of_rows());
}

TEST_CASE("a dense gradient is dense after it was read, whatever rows come to it") {
    // The table is the output layer's weight, too: its gradient has all rows.
    const auto trained = [](int reads) {
        nn::Embedding table(4, 2);
        check::fill(table.weight.detach(), 1);
        optim::SGD sgd(table.parameters(), {.lr = 1, .momentum = 0.5, .weight_decay = 1});
        for (int pass = 0; pass < 3; ++pass) {
            Tape tape;
            const Tensor h = table(tensor({1}));
            tape.backward(pass == 1 ? sum(matmul(h, table.weight.t())) : sum(h));
            if (reads & (1 << pass)) table.weight.grad();
        }
        sgd.step();
        return table.weight.to_vector<double>();
    };
    for (int reads = 1; reads < 8; ++reads) {
        const std::vector<double> have = trained(reads), want = trained(0);
        for (std::size_t i = 0; i < want.size(); ++i) CHECK(have[i] == Approx(want[i]).epsilon(1e-6));
    }
}
