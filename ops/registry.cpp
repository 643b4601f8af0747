// The tables of all ops: the rows of elementwise.def, and what TAPIR_OP, TAPIR_FORM and TAPIR_ONNX define in the other files. The build makes
// op_list.inc of the objects that these are compiled to.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "tapir/autograd/op_form.h"
#include "tapir/autograd/op_names_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/forms_impl.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {

#define TAPIR_OP_NAME(name) extern const OpInfo name##_op;
#define TAPIR_FORM_NAME(name) extern const OpForm name##_form;
#define TAPIR_ONNX_NAME(name) extern const OnnxForm name##_onnx;
#include "tapir/ops/op_list.inc"
#undef TAPIR_OP_NAME
#undef TAPIR_FORM_NAME
#undef TAPIR_ONNX_NAME
const OnnxForm* elementwise_onnx(std::string_view op);  // elementwise/elementwise_onnx.cpp

std::vector<const OpInfo*> all_ops() {
    std::vector<const OpInfo*> ops = {
#define TAPIR_OP_NAME(name) &name##_op,
#include "tapir/ops/op_list.inc"
#undef TAPIR_OP_NAME
    };
    for (const ElementwiseOp& op : elementwise_ops) ops.push_back(&op.info);
    std::sort(ops.begin(), ops.end(), [](const OpInfo* a, const OpInfo* b) { return std::strcmp(a->name, b->name) < 0; });
    return ops;
}

void FormCall::fail_input(int i) const {
    throw detail::TooFewInputs(fmt::format("graph: an op is given {} input{}, and needs at least {}", count, count == 1 ? "" : "s", i + 1), i + 1);
}

void detail::fail_results(std::size_t count) {
    fail<ValueError>(Loc{}, "graph: an op gives {} results, at most {} are possible", count, kMostResults);
}

namespace {

using Forms = std::unordered_map<std::string_view, const OpForm*>;
const Forms& all_forms() {
    static const Forms* forms = [] {  // never freed: used until the program ends
        auto* all = new Forms{
#define TAPIR_FORM_NAME(name) {#name, &name##_form},
#include "tapir/ops/op_list.inc"
#undef TAPIR_FORM_NAME
        };
        for (const OpForm& form : elementwise_forms) all->emplace(form.op, &form);
        return all;
    }();
    return *forms;
}

// Counts the letters to insert, remove, change, or swap with their neighbours.
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
        }
        std::swap(before, last);
        std::swap(last, row);
    }
    return last[b.size()];
}

}  // namespace

const OpForm* find_form(const char* op) {
    const auto found = all_forms().find(op);
    return found == all_forms().end() ? nullptr : found->second;
}

#ifndef TAPIR_RUNTIME
const OnnxForm* find_onnx(const char* op) {
    static const auto* forms = [] {  // never freed: used until the program ends
        return new std::unordered_map<std::string_view, const OnnxForm*>{
#define TAPIR_ONNX_NAME(name) {#name, &name##_onnx},
#include "tapir/ops/op_list.inc"
#undef TAPIR_ONNX_NAME
        };
    }();
    const auto found = forms->find(op);
    return found == forms->end() ? elementwise_onnx(op) : found->second;
}
#endif

std::string detail::no_op(std::string_view op) {
    if (is_runtime)
        return fmt::format(
            "there is no op {} in Tapir::runtime, which has no gradients, linalg, optimizers, nor the losses CTC, Huber, smooth L1, BCE with logits "
            "and those of margins",
            op);
    std::string_view nearest;
    std::size_t least = std::min<std::size_t>(op.size() / 3, 3) + 1;  // names that differ more are alike by chance
    for (const auto& [name, form] : all_forms()) {
        if (op.size() > 64) break;
        const std::size_t differs = distance(op, name);
        if (differs > least || (differs == least && (nearest.empty() || nearest < name))) continue;
        least = differs;
        nearest = name;
    }
    return nearest.empty() ? fmt::format("there is no op {}", op) : fmt::format("there is no op {}, is it {}?", op, nearest);
}

const OpInfo* find_op(const char* name) {
    for (const OpInfo* op : all_ops()) {
        if (std::strcmp(op->name, name) == 0) return op;
    }
    return nullptr;
}

}  // namespace tapir
