// list_ops: prints the row of every op as JSON, for the reference that `make docs` builds (site.py). Those of elementwise.def with
// the text of their formulas. `list_ops FILE` also says what save_onnx() writes of an op's first sample as a model, in FILE.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../../tests/ops/samples.h"
#include "tapir/autograd/op.h"
#ifdef TAPIR_WITH_ONNX
#include "tapir/autograd/trace/onnx/proto_impl.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/onnx.h"
#endif

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

#ifdef TAPIR_WITH_ONNX
// Its operators, each once and in the order of the model, without those that only hand values on. None where it cannot be written.
std::vector<std::string> onnx_of(const tapir::test::Call& call, const std::string& file) {
    std::vector<tapir::TraceInput> inputs;
    for (const tapir::Tensor& x : tapir::test::make_inputs(call)) {
        inputs.push_back({"x" + std::to_string(inputs.size()), tapir::is_floating(x.dtype()) ? x.to(tapir::float32) : x});
    }
    std::vector<std::string> operators;
    try {
        tapir::save_onnx(file, tapir::trace(call.run, inputs), {.opset = 20});
    } catch (const tapir::Error&) {  // of what data decides on, say
        return operators;
    }
    onnx::ModelProto model;
    std::ifstream in(file, std::ios::binary);
    if (!model.ParseFromIstream(&in)) return operators;
    for (const onnx::NodeProto& node : model.graph().node()) {
        const std::string& type = node.op_type();
        const bool is_plain = type == "Identity" || type == "Constant" || type == "Cast";
        if (!is_plain && std::find(operators.begin(), operators.end(), type) == operators.end()) operators.push_back(type);
    }
    return operators;
}
#endif

std::map<std::string, std::vector<std::string>> written_as([[maybe_unused]] const char* file) {
    std::map<std::string, std::vector<std::string>> all;
#ifdef TAPIR_WITH_ONNX
    for (const tapir::test::Call& call : tapir::test::all_calls()) {
        if (!call.extreme && !all.count(call.op->name)) all[call.op->name] = onnx_of(call, file);
    }
#endif
    return all;
}

}  // namespace

int main(int argc, char** argv) {
    nlohmann::json rows = nlohmann::json::array();
    const auto operators = argc > 1 ? written_as(argv[1]) : std::map<std::string, std::vector<std::string>>();
    for (const tapir::OpInfo* op : tapir::all_ops()) {
        nlohmann::json row = {{"name", op->name}, {"doc", op->doc}, {"rule", rule_of(*op)}, {"samples", nlohmann::json::array()}};
        if (const auto found = operators.find(op->name); found != operators.end() && !found->second.empty()) row["onnx"] = found->second;
        for (int i = 0; i < op->sample_count; ++i) row["samples"].push_back({{"inputs", op->samples[i].inputs}, {"code", op->samples[i].code}});
        if (const auto found = formulas.find(op->name); found != formulas.end()) {
            const Formula& formula = found->second;
            row["formula"] = {{"types", formula.types}, {"params", formula.params}, {"forward", formula.forward}, {"backward", formula.backward}};
        }
        rows.push_back(row);
    }
    std::puts(rows.dump(1).c_str());
}
