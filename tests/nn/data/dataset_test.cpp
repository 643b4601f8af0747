// ConcatDataset. The other datasets are tested with the loaders that read them.
#include <algorithm>

#include "../../fails.h"
#include "../../nn/check.h"
#include "tapir/nn/data/data.h"

using namespace tapir;

namespace {

template <class D>
std::vector<int> items(const D& dataset) {
    Generator random(1);
    std::vector<int> all;
    for (std::int64_t i = 0; i < dataset.size(); ++i) all.push_back(dataset.get(i, random).template item<int>());
    return all;
}

std::vector<int> numbers(const Tensor& t) { return t.to_vector<int>(); }

}  // namespace

TEST_CASE("datasets of several types stand behind each other") {
    const data::TensorDataset first{tensor({1, 2, 3})}, none{zeros({0}, int64)}, last{tensor({4, 5})};
    const auto tens = data::map(last, [](const Tensor& item) { return item * 10; });
    CHECK(items(data::ConcatDataset{first}) == std::vector<int>{1, 2, 3});
    CHECK(items(data::ConcatDataset{first, last}) == std::vector<int>{1, 2, 3, 4, 5});
    CHECK(items(data::ConcatDataset{none, tens, none, first, none}) == std::vector<int>{40, 50, 1, 2, 3});
    CHECK(items(data::ConcatDataset{data::ConcatDataset{last, first}, tens}) == std::vector<int>{4, 5, 1, 2, 3, 40, 50});
    CHECK(data::ConcatDataset{none}.size() == 0);
    data::DataLoader loader(data::ConcatDataset{first, tens}, {.batch_size = 2, .num_workers = 1});
    std::vector<std::vector<int>> batches;
    for (const Tensor& batch : loader) batches.push_back(numbers(batch));
    CHECK(batches == std::vector<std::vector<int>>{{1, 2}, {3, 40}, {50}});
}

TEST_CASE("a list of datasets is one") {
    const data::TensorDataset all{arange(10)};
    const std::vector<std::int64_t> a{3, 1}, none, b{9}, c{0, 2, 4};
    const std::vector parts{data::Subset{all, none}, data::Subset{all, a}, data::Subset{all, none},
                            data::Subset{all, b},    data::Subset{all, c}, data::Subset{all, none}};
    CHECK(items(data::ConcatDataset{parts}) == std::vector<int>{3, 1, 9, 0, 2, 4});
    Generator random(5);
    std::vector<int> back = items(data::ConcatDataset{data::random_split(all, {3, 3, 4}, random)});
    std::sort(back.begin(), back.end());
    CHECK(back == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("a part that draws at random gets the generator of its item") {
    const auto noisy = data::map(data::TensorDataset{zeros({2})}, [](const Tensor& item, Generator& random) { return item + randn({}, random); });
    Generator random(3), again(3);
    CHECK(data::ConcatDataset{noisy, noisy}.get(3, random).item() == randn({}, again).item());
    CHECK(data::ConcatDataset{std::vector{noisy, noisy}}.get(3, random).item() == randn({}, again).item());
}

TEST_CASE("joined datasets refuse what is not in them") {
    Generator random(1);
    const data::TensorDataset two{arange(2)};
    const data::ConcatDataset pair{two, two};
    const data::ConcatDataset list{std::vector{two, two}};
    FAILS_IN(IndexError, "ConcatDataset: index 4 is not in a dataset of 4 items", "", pair.get(4, random));
    FAILS_IN(IndexError, "select: index 4 is out of range", "", data::TensorDataset{arange(4)}.get(4));
    FAILS_IN(IndexError, "select: index 4 is out of range", "", (data::TensorDataset{arange(4), arange(4)}.get(4)));
    FAILS_IN(IndexError, "VectorDataset: index -1 is not in a dataset of 2 items", "", (data::VectorDataset{std::vector{1, 2}}.get(-1)));
    FAILS_IN(IndexError, "Subset: index 1 is not in a dataset of 1 items", "", data::Subset(data::TensorDataset{arange(4)}, {2}).get(1, random));
    FAILS_IN(IndexError, "ConcatDataset: index -1 is not in a dataset of 4 items", "", pair.get(-1, random));
    FAILS_IN(IndexError, "ConcatDataset: index 4 is not in a dataset of 4 items", "", list.get(4, random));
    FAILS_IN(IndexError, "ConcatDataset: index -1 is not in a dataset of 4 items", "", list.get(-1, random));
    const std::vector<data::TensorDataset<Tensor>> none;
    FAILS_IN(ValueError, "ConcatDataset: there are no datasets in the list", "", data::ConcatDataset{none});
}
