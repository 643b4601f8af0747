// The table of all ops: the rows of elementwise.def, and what TAPIR_OP declares in the other files (op_list.inc is made
// from those lines by the build).
#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/elementwise_impl.h"

namespace tapir {

#define TAPIR_OP_NAME(name) extern const OpInfo name##_op;
#include "tapir/ops/op_list.inc"
#undef TAPIR_OP_NAME

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

#define TAPIR_FORM_NAME(name) extern const OpForm name##_form;
#include "tapir/ops/op_list.inc"
#undef TAPIR_FORM_NAME

void FormCall::fail_input(int i) const { fail<ValueError>(Loc{}, "graph: an op has {} inputs, and needs number {}", count, i); }

void detail::fail_results(std::size_t count) {
    fail<ValueError>(Loc{}, "graph: an op gives {} results, at most {} are possible", count, kMostResults);
}

const OpForm* find_form(const char* op) {
    static const auto* forms = [] {
        auto* all = new std::unordered_map<std::string_view, const OpForm*>{  // never freed: used until the program ends
#define TAPIR_FORM_NAME(name) {#name, &name##_form},
#include "tapir/ops/op_list.inc"
#undef TAPIR_FORM_NAME
        };
        for (const OpForm& form : elementwise_forms) all->emplace(form.op, &form);
        return all;
    }();
    const auto found = forms->find(op);
    return found == forms->end() ? nullptr : found->second;
}

const OpInfo* find_op(const char* name) {
    for (const OpInfo* op : all_ops()) {
        if (std::strcmp(op->name, name) == 0) return op;
    }
    return nullptr;
}

}  // namespace tapir
