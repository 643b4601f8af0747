// The rule that an op states for the types of its results says what it gives: for every sample of every op, in several dtypes, for numbers and for
// named dimensions.
#include <catch2/catch.hpp>
#include <set>

#include "../../ops/samples.h"
#include "../../sanitizers.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/trace.h"

using namespace tapir;

namespace {

ValueType type_of(const Graph::Value& value) { return {value.dtype, value.device, value.shape}; }

std::string shown(const std::vector<ValueType>& all) {
    std::string text;
    for (const ValueType& type : all) {
        text += std::string(text.empty() ? "" : ", ") + name(type.dtype) + " (";
        for (const SymInt& size : type.shape) text += size.str() + ",";
        text += ")";
    }
    return text;
}

struct Tally {
    std::set<std::string> stated, unstated;
    int compared = 0, named = 0;
};

void check_nodes(const Graph& graph, Tally& tally, bool is_named) {
    for (const auto& node : graph.nodes()) {
        std::vector<ValueType> operands, results;
        for (const Graph::Value* input : node->inputs) operands.push_back(type_of(*input));
        for (const Graph::Value* result : node->results) results.push_back(type_of(*result));
        const ResultTypes stated = detail::result_types(node->attributes(), operands, {});
        if (stated.empty()) {
            tally.unstated.emplace(node->op());
            continue;
        }
        tally.stated.emplace(node->op());
        (is_named ? tally.named : tally.compared)++;
        INFO(node->op() << " of " << shown(operands) << "\n  gives  " << shown(results) << "\n  stated " << shown(stated));
        if (shown(results).find("unknown") != std::string::npos) continue;  // data decides on it
        CHECK(shown(stated) == shown(results));
    }
}

// Each size has a name of its own: "n4" for all that are 4.
Graph traced(const test::Call& call, const std::vector<Tensor>& inputs, bool is_named) {
    std::vector<TraceInput> list;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        TraceInput input{"x" + std::to_string(i), inputs[i]};
        if (is_named) {
            for (int d = 0; d < inputs[i].dim(); ++d) input.dims.push_back("n" + std::to_string(inputs[i].size(d)));
        }
        list.push_back(std::move(input));
    }
    return trace(call.run, list);
}

}  // namespace

TEST_CASE("the types that ops state are what they give") {
    Tally tally;
    int number = 0;
    for (const test::Call& call : test::all_calls()) {
        if (call.extreme || (test::kSanitized && number++ % 16 != 0)) continue;
        INFO(call.name << ": " << call.code);
        for (const bool is_named : {false, true}) {
            std::vector<test::Variant> variants = {{"float64", test::make_inputs(call)}};
            if (!is_named) {
                for (test::Variant& variant : test::variants(call)) variants.push_back(std::move(variant));
            }
            for (const test::Variant& variant : variants) {
                INFO(variant.name << (is_named ? ", named" : ""));
                Graph graph;
                try {
                    graph = traced(call, variant.inputs, is_named);
                } catch (const Error&) {  // it depends on values, or on these sizes, or takes no such dtypes
                    continue;
                }
                check_nodes(graph, tally, is_named);
            }
        }
    }
    if (test::kSanitized) return;  // of a few of the calls
    std::string missing;
    for (const std::string& op : tally.unstated) {
        if (!tally.stated.count(op)) missing += op + " ";
    }
    INFO(tally.stated.size() << " ops, " << tally.compared << " calls, and " << tally.named << " of named dimensions; without a rule: " << missing);
    CHECK(tally.stated.size() > 190);
    CHECK(tally.unstated.size() < 90);
    CHECK(tally.named > 100);
}
