// FlatMap is a std::map to its users.
#include "tapir/core/flat_map.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "../fails.h"

using namespace tapir;

TEST_CASE("a flat map counts as a std::map does") {
    std::mt19937 random(1);
    FlatMap<std::int64_t, int> flat;
    std::map<std::int64_t, int> map;
    CHECK(flat.empty());
    for (int i = 0; i < 1000; ++i) {
        const std::int64_t key = static_cast<std::int64_t>(random() % 200) - 100;
        ++flat[key];
        ++map[key];
        REQUIRE(flat.size() == map.size());
    }
    CHECK(std::equal(flat.begin(), flat.end(), map.begin(), map.end(),
                     [](const auto& a, const auto& b) { return a.first == b.first && a.second == b.second; }));
    for (std::int64_t key = -102; key <= 102; ++key) {
        CHECK(flat.contains(key) == map.contains(key));
        if (map.contains(key)) CHECK(flat.at(key) == map.at(key));
    }
    flat.clear();
    CHECK((flat.empty() && flat.size() == 0 && !flat.contains(0)));
}

TEST_CASE("a flat map has its keys in order, and says where a missing one was asked for") {
    FlatMap<std::string, int> flat;
    flat["tanh"] = 3;
    flat["add"] = 1;
    flat["matmul"] = 2;
    std::vector<std::string> keys;
    for (const auto& [key, value] : flat) keys.push_back(key);
    CHECK(keys == std::vector<std::string>{"add", "matmul", "tanh"});
    CHECK(flat.at("matmul") == 2);
    FAILS(IndexError, "FlatMap::at: there is no such key", flat.at("linear"));
}
