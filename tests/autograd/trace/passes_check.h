// What tests of passes share: listings to compare, and runs of a graph before and after.
#pragma once

#include <map>
#include <string>

#include <catch2/catch.hpp>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

namespace passes_check {

using namespace tapir;

/// "mul tanh add": the ops of a graph in their order.
inline std::string ops_of(const Graph& graph) {
    std::string ops;
    for (const auto& node : graph.nodes()) ops += (ops.empty() ? "" : " ") + std::string(node->op());
    return ops;
}

/// The listing without lines of the program, and with values numbered in the order in which they come.
inline std::string listing(const Graph& graph) {
    std::string text, line;
    std::map<std::string, std::string> numbers;
    for (const char c : graph.str() + "\n") {
        if (c != '\n') {
            line += c;
            continue;
        }
        line = line.substr(0, line.find("  # "));
        while (!line.empty() && line.back() == ' ') line.pop_back();
        for (std::size_t i = 0; i < line.size(); ++i) {
            if (line[i] != '%') {
                text += line[i];
                continue;
            }
            std::string number;
            while (i + 1 < line.size() && line[i + 1] >= '0' && line[i + 1] <= '9') number += line[++i];
            text += '%' + numbers.try_emplace(number, std::to_string(numbers.size() + 1)).first->second;
        }
        if (!line.empty()) text += '\n';
        line.clear();
    }
    return text;
}

inline void check_same(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted, double rtol = 1e-9, double atol = 1e-12) {
    REQUIRE(got.size() == wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        INFO("output " << i << "\n" << got[i].str() << "\n" << wanted[i].str());
        REQUIRE(got[i].dtype() == wanted[i].dtype());
        REQUIRE(got[i].shape() == wanted[i].shape());
        CHECK(allclose(got[i], wanted[i], rtol, atol, /*equal_nan=*/true));
    }
}

/// Both give the same, recorded and not, twice. Updates are to give the same each time.
inline void check_same_graphs(const Graph& after, const Graph& before, const std::vector<Tensor>& inputs, double rtol = 1e-9, double atol = 1e-12) {
    INFO("before:\n" << before.str() << "after:\n" << after.str());
    after.check();
    Graph::Inputs named;
    for (std::size_t i = 0; i < inputs.size(); ++i) named.emplace_back(before.inputs()[i]->name, inputs[i]);
    manual_seed(5);
    const std::vector<Tensor> wanted = before(inputs);
    manual_seed(5);
    check_same(after(inputs), wanted, rtol, atol);
    manual_seed(5);
    const std::vector<Tensor> wanted_of_run = before.run(named);
    for (int i = 0; i < 2; ++i) {
        manual_seed(5);
        check_same(after.run(named), wanted_of_run, rtol, atol);
    }
}

}  // namespace passes_check
