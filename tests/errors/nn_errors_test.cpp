// Messages of modules, data and training that no other test asks for; and that those of a module name it, those of a loader's
// thread the dataset's line.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "../fails.h"
#include "tapir/nn/data/data.h"
#include "tapir/nn/data/ptb.h"
#include "tapir/nn/data/text.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

using std::int64_t;

// Says more indices than it gives.
struct Boaster : data::Sampler {
    int64_t size() const override { return 8; }
    std::vector<int64_t> indices(Generator&) const override { return {0, 1}; }
};

struct Negative {
    int64_t size() const { return -2; }
    Tensor get(int64_t) const { return ones({1}); }
};

constexpr int kDatasetLine = __LINE__ + 6;
struct Broken {
    int64_t size() const { return 4; }
    Tensor get(int64_t index) const {
        const Tensor image = ones({2, 3});
        if (index < 2) return image;
        return image + ones({4});
    }
};

constexpr int kNetLine = __LINE__ + 5;
struct Net : nn::Module {
    nn::Linear inner{3, 4};
    Tensor forward(const Tensor& x) {
        const nn::ModuleScope scope(*this);
        return inner(x);
    }
    void members(nn::Members& m) override { m("inner", inner); }
};
struct Outer : nn::Module {
    Net encoder;
    Tensor forward(const Tensor& x) { return encoder.forward(x); }
    void members(nn::Members& m) override { m("encoder", encoder); }
};

// Says where it was when a layer failed. (Errors are made and not thrown here: those that are must be the library's.)
struct Told : nn::Module {
    nn::Linear inner{3, 4};
    std::string text;
    Tensor forward(const Tensor& x) {
        const nn::ModuleScope scope(*this);
        try {
            return inner(x);
        } catch (const ShapeError& error) {
            text = ShapeError(std::string("step 7: ") + error.what(), error.where()).what();
            return x;
        }
    }
    void members(nn::Members& m) override { m("inner", inner); }
};
struct Teller : nn::Module {
    Told encoder;
    Tensor forward(const Tensor& x) {
        const nn::ModuleScope scope(*this);
        return encoder.forward(x);
    }
    void members(nn::Members& m) override { m("encoder", encoder); }
};

}  // namespace

TEST_CASE("errors of layers") {
    FAILS(ValueError, "MultiheadAttention: dropout must be in [0, 1], got 2", nn::MultiheadAttention(4, 2, {.dropout = 2}));
    FAILS(ValueError, "TransformerEncoder: num_layers must be at least 1, got 0", nn::TransformerEncoder(4, 2, 0));
    FAILS(ShapeError, "LayerNorm: needs at least one dimension to normalise over", nn::LayerNorm(Shape{}));
    FAILS(ShapeError, "RMSNorm: needs at least one dimension to normalise over", nn::RMSNorm(Shape{}));
    nn::GRUCell cell(3, 4);
    FAILS(ShapeError, "GRUCell: the input must have shape (batch, 3) or (3,), got ()", cell(tensor(1.0)));
}

TEST_CASE("errors of data") {
    FAILS(ValueError, "parse_ptb: the number of classes must be at least 1, got 0", data::parse_ptb("(0 a)", {}, 0));
    FAILS(FileError, "parse_ptb: tree:0:1: no tree in this line", data::parse_ptb(" "));
    FAILS(ValueError, "RandomSampler: the size is negative: -1", data::RandomSampler(-1));
    FAILS(ValueError, "WeightedRandomSampler: the number of samples is negative: -1", data::WeightedRandomSampler({1}, -1));
    FAILS(ValueError, "WeightedRandomSampler: the sum of the weights is infinite", data::WeightedRandomSampler({1e308, 1e308}, 1));
    FAILS(ValueError, "BatchSampler: the sampler is null", data::BatchSampler(nullptr, 1));
    const data::TensorDataset numbers(ones({4}));
    FAILS(ValueError, "SequentialSampler: the size is negative: -1", data::SequentialSampler(-1));
    FAILS(ValueError, "BatchSampler: the batch size must be at least 1, got 0", data::BatchSampler(data::SequentialSampler(2), 0));
    FAILS(ValueError, "DataLoader: batch_size must be at least 1, got 0", data::DataLoader(numbers, {.batch_size = 0}));
    FAILS(ValueError, "DataLoader: batch_size must be at least 1, got -3", data::DataLoader(numbers, {.batch_size = -3, .shuffle = true}));
    FAILS(ValueError, "DataLoader: batch_size must be at least 1, got 0", data::DataLoader(numbers, data::SequentialSampler(2), {.batch_size = 0}));
    FAILS(ValueError, "DataLoader: the dataset's size is negative: -2", data::DataLoader(Negative{}, {.batch_size = 1}));
    const std::vector<int64_t> huge{INT64_MAX, INT64_MAX};
    FAILS(ValueError, "random_split: the sizes add up to more than 9223372036854775807", data::random_split(numbers, huge));
    FAILS(ValueError, "random_split: the fraction 2 is not in [0, 1]", data::random_split(numbers, {2.0}));
    data::Tree::Builder builder;
    FAILS(ValueError, "Tree::Builder::set_label: there is no node 0 of 0", builder.set_label(0, 1));
    data::LineReader unreadable("/proc/self/mem", "read", Loc::current());
    const int line = __LINE__ - 1;
    fails<FileError>(__FILE__, line, "read: /proc/self/mem:1:1: cannot read on", "", [&] { unreadable.next(); });
    data::DataLoader loader(numbers, Boaster{}, {.batch_size = 1});
    loader.set_state({.epoch = 0, .batch = 8});
    FAILS(ValueError, "DataLoader: cannot go on from batch 8 of epoch 0: it has 2 batches", static_cast<void>(loader.begin()));
}

TEST_CASE("errors of a training's state") {
    const std::filesystem::path folder = std::filesystem::temp_directory_path() / "tapir_state_errors";
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    const std::string path = folder / "state";
    Tensor three = tensor({1, 2, 3});
    nn::TrainingState state(path, {.keep = 3});
    state("random", three);
    state.save();
    Generator random(1);
    nn::TrainingState other(path);
    other("random", random);
    FAILS(FileError, "random: a generator's state is two numbers, not 3", other.load());
    state.save();
    std::filesystem::create_directories(folder / "state.2" / "in_the_way");
    FAILS(FileError, "state.1: renaming: ", state.save());
    CHECK(three.to_vector<int64_t>() == std::vector<int64_t>{1, 2, 3});
    std::filesystem::remove_all(folder);
}

TEST_CASE("an error in a module names the modules that it is in") {
    Outer model;
    model.eval();  // whatever goes through the modules learns their names
    const Tensor x = ones({2, 5});
    fails<ShapeError>(__FILE__, kNetLine, "linear: ", "(in encoder.inner)", [&] { model.forward(x); });
    try {
        model.forward(x);
    } catch (const ShapeError& error) {
        const std::string text = error.what();
        CHECK(text.substr(0, text.find('\n')).ends_with(" (in encoder.inner)"));
    }
    FAILS(ShapeError, "do not broadcast", x + ones({4}));  // out of the modules again
    CHECK_THROWS_WITH(x + ones({4}), !Catch::Contains("(in "));
}

TEST_CASE("an error that is thrown anew names its module once") {
    const auto in_modules = [](const std::string& text) {
        std::vector<std::string> found;
        for (std::size_t at = text.find(" (in "); at != text.npos; at = text.find(" (in ", at + 1))
            found.push_back(text.substr(at, text.find(')', at) - at + 1));
        return found;
    };
    using Names = std::vector<std::string>;
    Teller model;
    model.eval();
    model.forward(ones({2, 5}));
    CHECK(in_modules(model.encoder.text) == Names{" (in encoder.inner)"});
    const auto anew = [](const std::string& text) { return std::string(ValueError(text, Loc::current()).what()); };
    const nn::ModuleScope scope(model.encoder);
    CHECK(in_modules(anew("it failed")) == Names{" (in encoder)"});
    CHECK(in_modules(anew("it failed (in encoder), for the second time\n  since (in a line below)")).size() == 2);
    CHECK(in_modules(anew("it failed (in encoders)")) == Names{" (in encoders)", " (in encoder)"});
    CHECK(in_modules(anew("it failed\nas said (in encoder)")) == Names{" (in encoder)", " (in encoder)"});
    // The model itself has no path; what it holds is inside it.
    const nn::ModuleScope whole(model);
    const std::string of_model = in_modules(anew("it failed"))[0];
    CHECK(in_modules(anew("it failed (in encoder)")) == Names{" (in encoder)"});
    CHECK(in_modules(anew("it failed (in encoder)\n  since (in a line below)")) == Names{" (in encoder)", " (in a line below)"});
    CHECK(in_modules(anew("it failed" + of_model)) == Names{of_model});
    CHECK(in_modules(anew("it failed (in all), twice")) == Names{" (in all)", of_model});
    CHECK(in_modules(anew("it failed\nas said (in encoder)")) == Names{of_model, " (in encoder)"});
}

TEST_CASE("an error in a loader's thread names the dataset's line and reaches the loop") {
    for (const int workers : {0, 2}) {
        INFO(workers << " workers");
        data::DataLoader loader(Broken{}, {.batch_size = 2, .num_workers = workers});
        int batches = 0;
        fails<ShapeError>(__FILE__, kDatasetLine, "add: ", "shapes (2, 3) and (4,) do not broadcast", [&] {
            for (const auto& batch : loader) {
                CHECK(batch.size(0) == 2);
                ++batches;
            }
        });
        CHECK(batches == 1);
    }
}
