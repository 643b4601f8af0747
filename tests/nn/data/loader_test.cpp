// Datasets, samplers, collation and the loader: what comes out, in which order, at any number of workers; what is thrown; what is
// taken up again.
#if defined(__GLIBC__)
#include <pthread.h>
#endif

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "../../fails.h"
#include "../check.h"
#include "tapir/nn/data/data.h"

using namespace tapir;

namespace {

using std::int64_t;
using Indices = std::vector<int64_t>;

// Item i is the number i.
struct Numbers {
    int64_t count;
    int64_t size() const { return count; }
    int64_t get(int64_t index) const { return index; }
};

template <class Loader>
std::vector<Indices> epoch_of(Loader& loader) {
    std::vector<Indices> batches;
    for (const Tensor& batch : loader) batches.push_back(batch.template to_vector<int64_t>());
    return batches;
}

Indices joined(const std::vector<Indices>& batches) {
    Indices all;
    for (const Indices& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
    return all;
}

Indices range(int64_t n) {
    Indices all(static_cast<std::size_t>(n));
    std::iota(all.begin(), all.end(), int64_t{0});
    return all;
}

struct Sample {
    Tensor image, label;
    auto fields() { return std::tie(image, label); }
};
struct Nested {
    Sample sample;
    Tensor weight;
    auto fields() { return std::tie(sample, weight); }
};

}  // namespace

TEST_CASE("items come in order, and the last batch may be smaller") {
    data::DataLoader loader(Numbers{7}, {.batch_size = 3});
    CHECK(loader.size() == 3);
    CHECK(epoch_of(loader) == std::vector<Indices>{{0, 1, 2}, {3, 4, 5}, {6}});
    data::DataLoader dropping(Numbers{7}, {.batch_size = 3, .drop_last = true});
    CHECK(dropping.size() == 2);
    CHECK(epoch_of(dropping) == std::vector<Indices>{{0, 1, 2}, {3, 4, 5}});
    data::DataLoader even(Numbers{6}, {.batch_size = 3, .num_workers = 5, .drop_last = true});
    CHECK(epoch_of(even) == std::vector<Indices>{{0, 1, 2}, {3, 4, 5}});
    data::DataLoader nothing(Numbers{0}, {.batch_size = 3, .shuffle = true, .num_workers = 2});
    CHECK(epoch_of(nothing).empty());
    CHECK(nothing.epoch() == 1);
}

TEST_CASE("batches of tensors, tuples, pairs, structs, numbers and lists") {
    const Tensor images = randn({5, 2, 3}), labels = arange(5);
    data::TensorDataset pairs(images, labels);
    int64_t row = 0;
    data::DataLoader loader(pairs, {.batch_size = 2, .num_workers = 1});
    for (auto& [x, y] : loader) {
        CHECK(x.to_vector<float>() == images.narrow(0, row, y.numel()).to_vector<float>());
        CHECK(y.to_vector<int64_t>() == labels.narrow(0, row, y.numel()).to_vector<int64_t>());
        row += y.numel();
    }
    CHECK(row == 5);
    // One tensor: no tuple around it.
    data::DataLoader rows(data::TensorDataset{images}, {.batch_size = 4});
    for (Tensor& x : rows) CHECK(x.dim() == 3);

    const auto structs = data::map(
        pairs, [](const std::tuple<Tensor, Tensor>& item) { return Nested{{std::get<0>(item), std::get<1>(item)}, std::get<1>(item) * 2}; });
    data::DataLoader of_structs(structs, {.batch_size = 5});
    for (Nested& batch : of_structs) {
        CHECK(batch.sample.image.to_vector<float>() == images.to_vector<float>());
        CHECK(batch.sample.label.to_vector<int>() == std::vector<int>{0, 1, 2, 3, 4});
        CHECK(batch.weight.to_vector<int>() == std::vector<int>{0, 2, 4, 6, 8});
    }

    using Mixed = std::tuple<std::pair<std::string, int>, bool, float, double, std::vector<int>>;
    const std::vector<Mixed> items = {{{"a", 1}, true, 0.5F, 0.25, {1}}, {{"bc", -2}, false, 1.5F, 1.25, {}}};
    data::DataLoader mixed(data::VectorDataset{items}, {.batch_size = 2});
    for (auto& [named, flag, single, wide, list] : mixed) {
        CHECK(named.first == std::vector<std::string>{"a", "bc"});
        CHECK(named.second.dtype() == int64);
        CHECK(named.second.to_vector<int>() == std::vector<int>{1, -2});
        CHECK(flag.dtype() == bool_);
        CHECK(flag.to_vector<bool>() == std::vector<bool>{true, false});
        CHECK(single.dtype() == float32);
        CHECK(wide.dtype() == float64);
        CHECK(wide.to_vector<double>() == std::vector<double>{0.25, 1.25});
        CHECK(list == std::vector<std::vector<int>>{{1}, {}});
    }

    const auto add = [](const Indices& batch) { return std::accumulate(batch.begin(), batch.end(), int64_t{0}); };
    data::DataLoader sums(Numbers{5}, {.batch_size = 2}, add);
    Indices found;
    for (int64_t sum : sums) found.push_back(sum);
    CHECK(found == Indices{1, 5, 4});
}

TEST_CASE("a shuffled epoch holds each item once, and depends on the seed and the epoch") {
    const auto orders = [](std::uint64_t seed, int epochs) {
        data::DataLoader loader(Numbers{100}, {.batch_size = 7, .shuffle = true, .seed = seed});
        std::vector<Indices> result;
        for (int i = 0; i < epochs; ++i) result.push_back(joined(epoch_of(loader)));
        return result;
    };
    const auto one = orders(1, 3), again = orders(1, 3), other = orders(2, 3);
    CHECK(one == again);
    std::set<Indices> distinct(one.begin(), one.end());
    distinct.insert(other.begin(), other.end());
    CHECK(distinct.size() == 6);
    for (Indices order : one) {
        CHECK(order != range(100));
        std::sort(order.begin(), order.end());
        CHECK(order == range(100));
    }
    // Unless given, the seed is manual_seed()'s.
    manual_seed(1);
    data::DataLoader by_default(Numbers{100}, {.batch_size = 7, .shuffle = true});
    CHECK(joined(epoch_of(by_default)) == one[0]);
}

TEST_CASE("each place of a shuffle is as likely for each item") {
    std::vector<int> first(6);
    data::DataLoader loader(Numbers{6}, {.batch_size = 6, .shuffle = true, .seed = 3});
    for (int i = 0; i < 6000; ++i) ++first[static_cast<std::size_t>(epoch_of(loader)[0][2])];
    for (const int count : first) CHECK(std::abs(count - 1000) < 150);  // five standard deviations
}

TEST_CASE("order and random transforms are the same at any number of workers") {
    const auto noisy = data::map(data::TensorDataset(zeros({40, 3})), [](const Tensor& x, Generator& random) {
        const Tensor noise = randn({3}, random);
        return std::pair(x + noise, noise[0].item() > 0 ? rand({1}, random) : zeros({1}));
    });
    const auto run = [&](int workers, int ahead) {
        data::DataLoader loader(noisy, {.batch_size = 6, .shuffle = true, .num_workers = workers, .prefetch_factor = ahead, .seed = 9});
        std::vector<double> values;
        for (int epoch = 0; epoch < 2; ++epoch) {
            for (auto& [a, b] : loader) {
                for (const double v : a.template to_vector<double>()) values.push_back(v);
                for (const double v : b.template to_vector<double>()) values.push_back(v);
            }
        }
        return values;
    };
    const std::vector<double> expected = run(0, 2);
    CHECK(std::set<double>(expected.begin(), expected.begin() + 100).size() > 60);         // items differ from each other
    CHECK(!std::equal(expected.begin(), expected.begin() + 160, expected.begin() + 160));  // and epochs
    for (const int workers : {1, 2, 3, 8}) {
        CHECK(run(workers, 2) == expected);
        CHECK(run(workers, 1) == expected);
        CHECK(run(workers, 50) == expected);
    }
    // An item's draws depend on its index, not on its place.
    const auto of_item_7 = [&](bool shuffle) {
        const auto drawn =
            data::map(Numbers{20}, [](int64_t i, Generator& random) { return i == 7 ? rand({}, random).template item<float>() : 0.0F; });
        data::DataLoader loader(drawn, {.batch_size = 20, .shuffle = shuffle, .seed = 9});
        float sum = 0;
        for (const Tensor& x : loader) sum += x.sum().item<float>();
        return sum;
    };
    CHECK(of_item_7(true) == of_item_7(false));
}

TEST_CASE("workers run beside the loop, and not ahead of what was asked for") {
    std::atomic<int> made{0};
    const std::thread::id here = std::this_thread::get_id();
    const auto watched = data::map(Numbers{20}, [&](int64_t i) {
        if (std::this_thread::get_id() == here) throw std::logic_error("in the loop's own thread");
        ++made;
        return i;
    });
    data::DataLoader loader(watched, {.num_workers = 2, .prefetch_factor = 3});
    int taken = 0;
    for (const Tensor& x : loader) {
        CHECK(x.item<int>() == taken++);
        CHECK(made <= taken + 6);
    }
    CHECK(made == 20);
}

TEST_CASE("what a worker throws arrives in the loop where it was due, as its type") {
    struct Odd : std::runtime_error {
        using std::runtime_error::runtime_error;
        int item = 0;
    };
    const auto failing = data::map(Numbers{30}, [](int64_t i) {
        if (i == 11) {
            Odd odd("item 11");
            odd.item = 11;
            throw odd;
        }
        return i;
    });
    for (const int workers : {0, 1, 3}) {
        data::DataLoader loader(failing, {.batch_size = 3, .num_workers = workers});
        for (int round = 0; round < 2; ++round) {
            int seen = 0, caught = 0;
            try {
                for (const Tensor& x : loader) seen += static_cast<int>(x.numel());
            } catch (const Odd& odd) {
                caught = odd.item;
            }
            CHECK(seen == 9);
            CHECK(caught == 11);
            CHECK(loader.state().batch == 3);
        }
        CHECK(loader.epoch() == 1);
    }
    // At the very first batch.
    data::DataLoader at_once(data::map(Numbers{3}, [](int64_t) -> int { throw 42; }), {.num_workers = 2});
    CHECK_THROWS_AS(epoch_of(at_once), int);
    // Shapes that do not go together name the line of the loop.
    const auto ragged = data::map(Numbers{4}, [](int64_t i) { return zeros({i}); });
    for (const int workers : {0, 2}) {
        data::DataLoader loader(ragged, {.batch_size = 2, .num_workers = workers});
        const std::string made = "give the loader of loader_test.cpp:" + std::to_string(__LINE__ - 1);
        FAILS_IN(ShapeError, "DataLoader: the items of a batch do not go together: stack: ", made, for (Tensor& x : loader) static_cast<void>(x););
        FAILS(ShapeError, "nn::pad_sequence()", for (Tensor& x : loader) static_cast<void>(x););
        data::DataLoader padded(ragged, {.batch_size = 2, .num_workers = workers},
                                [](const std::vector<Tensor>& items) { return nn::pad_sequence(items, /*batch_first=*/true); });
        std::vector<Shape> shapes;
        for (Tensor& x : padded) shapes.push_back(x.shape());
        CHECK(shapes == std::vector<Shape>{{2, 1}, {2, 3}});
    }
}

TEST_CASE("leaving the loop stops the workers") {
    const auto watched = data::map(Numbers{1000}, [](int64_t i) { return i; });
    for (int round = 0; round < 20; ++round) {
        data::DataLoader loader(watched, {.batch_size = 2, .shuffle = true, .num_workers = 4});
        int seen = 0;
        for (const Tensor& x : loader) {
            seen += static_cast<int>(x.numel());
            if (seen >= round) break;
        }
        CHECK(loader.epoch() == 0);
        for (const Tensor& x : loader) {  // the next epoch, from its beginning
            CHECK(loader.epoch() == 1);
            CHECK(loader.state().batch == 1);
            static_cast<void>(x);
            break;
        }
        CHECK_THROWS_AS(
            [&] {
                for (const Tensor& x : loader) throw x;
            }(),
            Tensor);
        CHECK(loader.epoch() == 2);
    }
}

TEST_CASE("a position is saved and gone on from") {
    const auto noisy = data::map(Numbers{23}, [](int64_t i, Generator& random) { return std::pair(i, rand({}, random).template item<float>()); });
    const data::LoaderOptions options{.batch_size = 4, .shuffle = true, .num_workers = 2, .seed = 5};
    using Seen = std::vector<std::vector<double>>;
    const auto take = [](auto& loader, Seen& seen, int most) {
        for (auto& [i, noise] : loader) {
            seen.push_back(i.template to_vector<double>());
            seen.push_back(noise.template to_vector<double>());
            if (--most == 0) break;
        }
    };
    Seen expected;
    data::DataLoader straight(noisy, options);
    for (int epoch = 0; epoch < 3; ++epoch) take(straight, expected, 1000);
    CHECK(straight.state() == data::LoaderState{5, 3, 0});

    for (const int stop : {1, 3, 6}) {  // 6: all of an epoch
        data::DataLoader before(noisy, options);
        Seen seen;
        take(before, seen, 1000);
        take(before, seen, stop);
        const NamedTensors state = before.state_dict();
        data::LoaderOptions others = options;
        others.num_workers = 0;
        others.seed = 77;  // the state has its own
        data::DataLoader after(noisy, others);
        after.load_state_dict(state);
        CHECK(after.state() == data::LoaderState{5, 1, stop});
        while (after.epoch() < 3) take(after, seen, 1000);
        CHECK(seen == expected);
    }
    data::DataLoader loader(noisy, options);
    const int64_t none = -1;
    FAILS(ValueError, "batch 7 of epoch 0", loader.set_state({5, 0, 7}));
    FAILS(ValueError, "epoch -1", loader.set_state({5, none, 0}));
    FAILS(ValueError, "load_state_dict: the state is not of this DataLoader:\n  missing: seed, epoch, batch", loader.load_state_dict({}));
    NamedTensors half = loader.state_dict();
    half[1].tensor = tensor(0.5, float64);
    FAILS(ValueError, "out of range: epoch", loader.load_state_dict(half));
    CHECK(loader.state() == data::LoaderState{5, 0, 0});
}

TEST_CASE("epochs are counted from the position") {
    using Epochs = std::vector<int64_t>;
    data::DataLoader loader(Numbers{10}, {.batch_size = 4});
    const auto run = [&](int64_t end, int most) {
        Epochs seen;
        for (const int64_t epoch : loader.epochs(end)) {
            seen.push_back(epoch);
            int left = most;
            for (Tensor& x : loader) {
                CHECK(loader.epoch() == epoch);
                if (x.numel() > 0 && --left == 0) break;
            }
        }
        return seen;
    };
    CHECK(run(3, 99) == Epochs{0, 1, 2});
    CHECK(run(3, 99).empty());
    CHECK(run(5, 1) == Epochs{3, 4});  // each left early: the next loop begins the next epoch
    CHECK(run(6, 99) == Epochs{5});
    loader.set_state({1, 2, 1});
    CHECK(run(4, 99) == Epochs{2, 3});
    loader.set_state({1, 2, 3});  // behind the last batch, in the loop
    CHECK(run(4, 99) == Epochs{2, 3});
}

TEST_CASE("items are made without a tape and on the CPU") {
    const Tensor w = ones({2}).requires_grad_();
    const auto product = data::map(Numbers{4}, [&](int64_t i) { return w * static_cast<double>(i); });
    for (const int workers : {0, 2}) {
        Tape tape;
        data::DataLoader loader(product, {.batch_size = 2, .num_workers = workers});
        for (const Tensor& x : loader) CHECK(!x.requires_grad());
        CHECK((w * 2).requires_grad());
    }
}

TEST_CASE("samplers") {
    Generator random(4);
    CHECK(data::SequentialSampler(4).indices(random) == range(4));
    const data::RandomSampler twice(5, {.num_samples = 12});
    const Indices order = twice.indices(random);
    REQUIRE(order.size() == 12);
    for (int round = 0; round < 2; ++round) {
        Indices part(order.begin() + 5 * round, order.begin() + 5 * round + 5);
        std::sort(part.begin(), part.end());
        CHECK(part == range(5));
    }
    const data::RandomSampler replacing(4, {.replacement = true, .num_samples = 4000});
    std::map<int64_t, int> counts;
    for (const int64_t i : replacing.indices(random)) ++counts[i];
    CHECK(counts.size() == 4);
    for (const auto& [i, count] : counts) CHECK(std::abs(count - 1000) < 140);

    const data::WeightedRandomSampler weighted({1, 0, 3, 0}, 4000);
    counts.clear();
    for (const int64_t i : weighted.indices(random)) ++counts[i];
    CHECK(counts.size() == 2);
    CHECK(std::abs(counts[0] - 1000) < 140);
    const data::WeightedRandomSampler distinct({1, 0, 3, 5}, 3, /*replacement=*/false);
    int five_first = 0;
    for (int round = 0; round < 900; ++round) {
        const Indices drawn = distinct.indices(random);
        CHECK(std::set<int64_t>(drawn.begin(), drawn.end()) == std::set<int64_t>{0, 2, 3});
        five_first += drawn[0] == 3;
    }
    CHECK(std::abs(five_first - 500) < 80);  // 5 of 9

    data::DataLoader loader(Numbers{4}, data::WeightedRandomSampler({0, 1, 0, 0}, 5), {.batch_size = 2});
    CHECK(epoch_of(loader) == std::vector<Indices>{{1, 1}, {1, 1}, {1}});
    CHECK(data::BatchSampler(data::SequentialSampler(5), 2).batches(random) == std::vector<Indices>{{0, 1}, {2, 3}, {4}});
    CHECK(data::BatchSampler(data::SequentialSampler(5), 2, true).size() == 2);

    struct Backwards : data::BatchSampler {
        int64_t size() const override { return 2; }
        std::vector<Indices> batches(Generator&) const override { return {{3, 2, 1}, {0}}; }
    };
    data::DataLoader backwards(Numbers{4}, Backwards(), {.num_workers = 1});
    CHECK(epoch_of(backwards) == std::vector<Indices>{{3, 2, 1}, {0}});
    data::DataLoader beyond(Numbers{3}, Backwards());
    FAILS(IndexError, "index 3 is not in a dataset of 3 items", for (Tensor& x : beyond) static_cast<void>(x););
    struct Empty : Backwards {
        std::vector<Indices> batches(Generator&) const override { return {{}}; }
    };
    data::DataLoader empty(Numbers{3}, Empty());
    FAILS(ValueError, "without items", for (Tensor& x : empty) static_cast<void>(x););
}

TEST_CASE("subsets and splits") {
    data::DataLoader part(data::Subset(Numbers{9}, {8, 0, 8}), {.batch_size = 3});
    CHECK(epoch_of(part) == std::vector<Indices>{{8, 0, 8}});
    Generator random(1), same(1);
    const auto halves = data::random_split(Numbers{10}, {7, 3}, random);
    REQUIRE(halves.size() == 2);
    CHECK(halves[0].size() == 7);
    Indices all = halves[0].indices();
    all.insert(all.end(), halves[1].indices().begin(), halves[1].indices().end());
    CHECK(all != range(10));
    std::sort(all.begin(), all.end());
    CHECK(all == range(10));
    CHECK(data::random_split(Numbers{10}, {7, 3}, same)[0].indices() == halves[0].indices());
    const auto thirds = data::random_split(Numbers{11}, {0.3, 0.3, 0.4});
    CHECK(thirds[0].size() == 4);
    CHECK(thirds[1].size() == 3);
    CHECK(thirds[2].size() == 4);
}

TEST_CASE("options and datasets that make no sense") {
    const Tensor a = zeros({3, 2}), b = zeros({4}), scalar = zeros({});
    FAILS(ShapeError, "tensor 1 has 4 rows, the first has 3", data::TensorDataset(a, b));
    FAILS(ShapeError, "no dimensions", data::TensorDataset(a, scalar));
    FAILS(ValueError, "undefined", data::TensorDataset(Tensor(), a));
    FAILS(IndexError, "index 9", data::Subset(Numbers{9}, {9}));
    FAILS(ValueError, "add up to 9", data::random_split(Numbers{10}, {7, 2}));
    FAILS(ValueError, "add up to 0.9", data::random_split(Numbers{10}, {0.7, 0.2}));
    FAILS(ValueError, "negative", data::random_split(Numbers{10}, {11, -1}));
    FAILS(ValueError, "DataLoader: batch_size", data::DataLoader(Numbers{3}, {.batch_size = 0}));
    FAILS(ValueError, "workers", data::DataLoader(Numbers{3}, {.num_workers = -1}));
    FAILS(ValueError, "prefetch", data::DataLoader(Numbers{3}, {.prefetch_factor = 0}));
    FAILS(ValueError, "shuffle", data::DataLoader(Numbers{3}, data::SequentialSampler(3), {.shuffle = true}));
    FAILS(ValueError, "negative", data::SequentialSampler(-1));
    FAILS(ValueError, "4 samples of 0", data::RandomSampler(0, {.num_samples = 4}));
    FAILS(ValueError, "weight 1 is -1", data::WeightedRandomSampler({1, -1}, 2));
    FAILS(ValueError, "all weights are 0", data::WeightedRandomSampler({0, 0}, 2));
    FAILS(ValueError, "3 samples without", data::WeightedRandomSampler({1, 2, 0}, 3, false));
}

#if defined(__GLIBC__)
TEST_CASE("a loader whose threads cannot be had makes its batches on the loop's own") {
    pthread_attr_t before, attributes;
    REQUIRE(pthread_getattr_default_np(&before) == 0);
    REQUIRE(pthread_attr_init(&attributes) == 0);
    const data::LoaderOptions alone{.batch_size = 3, .shuffle = true, .seed = 7}, wide{.batch_size = 3, .shuffle = true, .num_workers = 4, .seed = 7};
    data::DataLoader<Numbers> expected(Numbers{20}, alone), loader(Numbers{20}, wide);
    REQUIRE(pthread_attr_setstacksize(&attributes, std::size_t{1} << 60) == 0);  // no address space has room for such a stack
    REQUIRE(pthread_setattr_default_np(&attributes) == 0);
    const bool are_refused = [] {
        try {
            std::thread([] {}).join();
            return false;
        } catch (const std::system_error&) {
            return true;
        }
    }();
    const std::vector<Indices> batches = epoch_of(loader);
    CHECK(pthread_setattr_default_np(&before) == 0);
    CHECK(are_refused);
    CHECK(batches == epoch_of(expected));
    pthread_attr_destroy(&attributes);
    pthread_attr_destroy(&before);
}
#endif
