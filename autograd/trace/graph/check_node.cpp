// Checks the properties of nodes that passes and exporters rely on: a text may state anything.
#include "tapir/autograd/trace/graph/check_node_impl.h"

#include <algorithm>

#include "tapir/autograd/trace/data_sizes_impl.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/autograd/trace/run/fused_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/io/shown_impl.h"
#include "tapir/ops/forms_impl.h"

namespace tapir::detail {
namespace {

using Sizes = std::vector<SymInt>;

bool broadcasts(const Graph::Node& node) { return elementwise_index(node.form()) >= 0 || node.is(where_form) || node.is(masked_fill_form); }

// Compares the sizes that are numbers, from a dimension on.
bool fits(const Sizes& shape, const Tensor& y, int from = 0) {
    if (std::ssize(shape) != y.dim()) return false;
    for (int d = from; d < y.dim(); ++d) {
        const SymInt& size = shape[static_cast<std::size_t>(d)];
        if (size.is_number() && size.number() != y.size(d)) return false;
    }
    return true;
}

#ifdef TAPIR_RUNTIME
// The runtime has no rules. Other errors are found when the graph is run.
std::string what_rules_say(const Graph::Node&, const Loc&) { return {}; }
#else
std::string what_rules_say(const Graph::Node& node, const Loc& loc) {
    ResultTypes given;
    try {
        given = result_types_of(node.attributes(), node.inputs, loc);
    } catch (const OutOfMemory&) {
        throw;
    } catch (const Error& error) {
        return io::text_of(error);
    }
    if (given.empty()) return {};
    if (given.size() < node.results.size()) return fmt::format("{} gives {} results, not {}", node.op(), given.size(), node.results.size());
    for (std::size_t k = 0; k < node.results.size(); ++k) {
        const Sizes &shape = given[k].shape, &stated = node.results[k]->shape;
        if (!may_equal(shape, stated)) {
            return fmt::format("{} gives {}, not {}", node.op(), to_string(Attribute(shape)), to_string(Attribute(stated)));
        }
    }
    return {};
}
#endif

}  // namespace

std::string what_is_wrong_with_call(const Graph::Node& node) {
    const int least = node.form().operands.least, most = node.form().operands.most;
    if (std::ssize(node.inputs) < least) return fmt::format("{} has {} operands, and needs {}", node.op(), node.inputs.size(), least);
    if (most >= 0 && std::ssize(node.inputs) > most) {
        return fmt::format("{} has {} operands, and takes {}", node.op(), node.inputs.size(), most);
    }
    if (node.inputs.empty() || node.results.empty()) return {};
    for (const auto& [name, value] : node.attributes().all()) {
        if (name != "dims") continue;
        for (const SymInt& dim : std::get<Sizes>(value)) {
            if (!dim.is_number()) return fmt::format("a dimension of {} is no number: {}", node.op(), dim.str());
        }
    }
    const auto rank = std::ssize(node.inputs[0]->shape);
    if (broadcasts(node)) {
        std::ptrdiff_t widest = 0, made = std::ssize(node.results[0]->shape);
        for (const Graph::Value* input : node.inputs) widest = std::max(widest, std::ssize(input->shape));
        if (made != widest) return fmt::format("{} makes {} dimensions of {}", node.op(), made, widest);
    }
    if (least == 2 && (node.is(copy_form) || node.is(fill_form)) && std::ssize(node.inputs[1]->shape) > rank) {
        return fmt::format("{} puts {} dimensions into {}", node.op(), node.inputs[1]->shape.size(), rank);
    }
    return {};
}

std::string what_is_wrong_with(const Graph::Node& node, const Loc& loc) {
    std::string wrong = what_is_wrong_with_call(node);
    return wrong.empty() ? what_rules_say(node, loc) : wrong;
}

void check_result(const Graph::Node& node, std::size_t k, const Tensor& y, const Tensor* const* operands, const Loc& loc) {
    const Graph::Value& value = *node.results[k];
    if (node.attributes().is_symbolic()) return;
    const bool is_by_data = k < 64 && data_sized(node.attributes()) >> k & 1;
    if (fits(value.shape, y, is_by_data ? 1 : 0)) return;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const Sizes& shape = node.inputs[i]->shape;
        const bool is_exact = std::all_of(shape.begin(), shape.end(), [](const SymInt& size) { return size.is_number(); });
        if (!is_exact || !fits(shape, *operands[i])) return;
    }
    const Loc& own = node.loc.line() ? node.loc : loc;
    fail<ShapeError>(own, "graph: {} gives %{} of shape {}, the graph says {}", node.op(), value.number, y.shape(),
                     to_string(Attribute(value.shape)));
}

}  // namespace tapir::detail
