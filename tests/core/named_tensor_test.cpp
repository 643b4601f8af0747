// Lists of named tensors, asked by name.
#include <catch2/catch.hpp>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("tensors are found by their names") {
    nn::Sequential net(nn::Linear(2, 3), nn::Linear(3, 1));
    NamedTensors state = net.state_dict();
    CHECK(state["0.weight"].shares_storage(state[0].tensor));
    CHECK(state.at("1.bias").shape() == Shape{1});
    CHECK(state.contains("0.bias"));
    CHECK(!state.contains("0"));
    CHECK(state.find("0.bias") == state.begin() + 1);
    CHECK(state.find("none") == state.end());
    state["1.bias"] = ones({1});
    CHECK(state[3].tensor.item() == 1);
    FAILS(IndexError, "there is no tensor \"2.weight\" among 4: \"0.weight\", \"1.weight\"", state["2.weight"]);
    FAILS(IndexError, "there is no tensor \"scale\" among 4: \"0.weight\", \"0.bias\", \"1.weight\", \"1.bias\"", state.at("scale"));
    FAILS(IndexError, "there is no tensor \"a\": the list is empty", NamedTensors().at("a"));
}
