// list_ops: prints the row of every op as JSON, for the reference that `make docs` builds (site.py). Those of elementwise.def with
// the text of their formulas.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tapir/autograd/op.h"

namespace {

struct Formula {
    const char* types;
    std::vector<std::string> params;
    const char* forward;
    std::vector<std::string> backward;
};

// The rows that are public functions; what rules alone call is not among them.
const std::map<std::string, Formula> formulas = {
#define TAPIR_UNARY0(name, types, saves, onnx, low, high, doc, forward, backward) {#name, {#types, {}, #forward, {#backward}}},
#define TAPIR_UNARY1(name, p0, d0, types, saves, onnx, low, high, doc, forward, backward) {#name, {#types, {#p0}, #forward, {#backward}}},
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, saves, onnx, low, high, doc, forward, backward) \
    {#name, {#types, {#p0, #p1}, #forward, {#backward}}},
#define TAPIR_PREDICATE(name, onnx, doc, forward) {#name, {"Predicate", {}, #forward, {}}},
#define TAPIR_BINARY(name, types, saves, onnx, low, high, doc, forward, of_a, of_b) {#name, {#types, {}, #forward, {#of_a, #of_b}}},
#define TAPIR_COMPARE(name, onnx, doc, forward) {#name, {"Predicate", {}, #forward, {}}},
#define TAPIR_TERNARY(name, types, saves, onnx, low, high, doc, forward, of_a, of_b, of_c) {#name, {#types, {}, #forward, {#of_a, #of_b, #of_c}}},
#include "tapir/ops/elementwise/elementwise.def"
};

const char* rule_of(const tapir::OpInfo& op) {
    if (op.backward == tapir::NonDiff) return "NonDiff";
    if (op.backward == tapir::Composed) return "Composed";
    if (op.backward == tapir::Given) return "Given";
    if (op.backward == tapir::Overwritten) return "Overwritten";
    return "rule";
}

}  // namespace

int main() {
    nlohmann::json rows = nlohmann::json::array();
    for (const tapir::OpInfo* op : tapir::all_ops()) {
        nlohmann::json row = {{"name", op->name}, {"doc", op->doc}, {"rule", rule_of(*op)}, {"samples", nlohmann::json::array()}};
        if (op->onnx.name) row["onnx"] = op->onnx.name;
        if (op->onnx.composition) row["onnx_parts"] = op->onnx.composition;
        for (int i = 0; i < op->sample_count; ++i) row["samples"].push_back({{"inputs", op->samples[i].inputs}, {"code", op->samples[i].code}});
        if (const auto found = formulas.find(op->name); found != formulas.end()) {
            const Formula& formula = found->second;
            row["formula"] = {{"types", formula.types}, {"params", formula.params}, {"forward", formula.forward}, {"backward", formula.backward}};
        }
        rows.push_back(row);
    }
    std::puts(rows.dump(1).c_str());
}
