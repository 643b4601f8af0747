// What passes and exporters count on in a node: a text may say anything.
#include "tapir/autograd/trace/graph/check_node_impl.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "tapir/autograd/operand_counts_impl.h"
#include "tapir/autograd/trace/data_sizes_impl.h"
#include "tapir/autograd/trace/run/fused_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/forms_impl.h"

namespace tapir::detail {
namespace {

using Sizes = std::vector<SymInt>;

template <class List>
bool is_in(std::string_view op, const List& list) {
    return std::find(std::begin(list), std::end(list), op) != std::end(list);
}

// Where both are numbers: formulas may be equal for the sizes of a run.
bool differ(const SymInt& a, const SymInt& b) { return a.is_number() && b.is_number() && a.number() != b.number(); }

constexpr std::string_view kReductions[] = {"sum", "mean", "amax", "amin", "prod", "all", "any", "logsumexp", "norm", "var", "std"};
// As the first operand.
constexpr std::string_view kSameShape[] = {"flip", "clone", "to_dtype", "to_device", "copy", "fill", "softmax", "log_softmax", "cumsum"};

bool broadcasts(const Graph::Node& node) {
    return elementwise_index(node.attributes().form()) >= 0 || node.is(where_form) || node.is(masked_fill_form);
}

bool keeps_dims(const std::vector<std::pair<std::string, Attribute>>& attributes) {
    return std::any_of(attributes.begin(), attributes.end(), [](const auto& each) { return each.first == "keepdim" && std::get<bool>(each.second); });
}

// As far as its sizes are numbers, from a dimension on.
bool fits(const Sizes& shape, const Tensor& y, int from = 0) {
    if (std::ssize(shape) != y.dim()) return false;
    for (int d = from; d < y.dim(); ++d) {
        const SymInt& size = shape[static_cast<std::size_t>(d)];
        if (size.is_number() && size.number() != y.size(d)) return false;
    }
    return true;
}

// Of an attribute that is a list; null: there is none of this name.
const Sizes* list_in(const std::vector<std::pair<std::string, Attribute>>& all, std::string_view name) {
    for (const auto& [own, value] : all) {
        if (own == name) return std::get_if<Sizes>(&value);
    }
    return nullptr;
}

}  // namespace

bool may_be_alike(const std::vector<SymInt>& a, const std::vector<SymInt>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const SymInt& x, const SymInt& y) { return !differ(x, y); });
}

std::string what_is_wrong_with(const Graph::Node& node) {
    const OperandCounts counts = operand_counts(node.attributes().form());
    const int least = counts.least;
    if (std::ssize(node.inputs) < least) return fmt::format("{} has {} operands, and needs {}", node.op(), node.inputs.size(), least);
    if (counts.most >= 0 && std::ssize(node.inputs) > counts.most) {
        return fmt::format("{} has {} operands, and takes {}", node.op(), node.inputs.size(), counts.most);
    }
    if (node.inputs.empty() || node.results.empty()) return {};
    const auto rank = std::ssize(node.inputs[0]->shape), result_rank = std::ssize(node.results[0]->shape);
    constexpr std::string_view kSameRank[] = {"transpose", "permute", "slice"};
    const std::vector<std::pair<std::string, Attribute>> attributes = node.attributes().all();
    std::set<std::int64_t> named;
    if (const Sizes* dims = list_in(attributes, "dims")) {
        const std::int64_t most = std::max<std::int64_t>(rank, 1);
        for (const SymInt& dim : *dims) {
            if (!dim.is_number()) return fmt::format("a dimension of {} is no number: {}", node.op(), dim.str());
            const std::int64_t number = dim.number();
            if (number < -most || number >= most) return fmt::format("{} has the dimension {}, of {}", node.op(), number, rank);
            named.insert(number < 0 ? number + most : number);
        }
        if (node.is(transpose_form) && dims->size() != 2) return fmt::format("transpose has {} dimensions", dims->size());
        if (node.is(permute_form) && (std::ssize(*dims) != rank || std::ssize(named) != rank)) return "permute names not each dimension once";
    }
    if ((is_in(node.op(), kSameRank) || is_in(node.op(), kSameShape)) && result_rank != rank) {
        return fmt::format("{} makes {} dimensions of {}", node.op(), result_rank, rank);
    }
    if (broadcasts(node)) {
        std::ptrdiff_t most = 0;
        for (const Graph::Value* input : node.inputs) most = std::max(most, std::ssize(input->shape));
        if (result_rank != most) return fmt::format("{} makes {} dimensions of {}", node.op(), result_rank, most);
    }
    if (least == 2 && (node.is(copy_form) || node.is(fill_form)) && std::ssize(node.inputs[1]->shape) > rank) {
        return fmt::format("{} puts {} dimensions into {}", node.op(), node.inputs[1]->shape.size(), rank);
    }
    if (node.is(expand_form) && result_rank < rank) return fmt::format("expand makes {} dimensions of {}", result_rank, rank);
    if (is_in(node.op(), kReductions)) {
        const std::int64_t left = keeps_dims(attributes) ? rank : named.empty() ? 0 : std::max<std::int64_t>(rank - std::ssize(named), 0);
        if (result_rank != left) return fmt::format("{} leaves {} dimensions of {}, not {}", node.op(), left, rank, result_rank);
    }
    return {};
}

#ifdef TAPIR_RUNTIME
std::string what_is_missized(const Graph::Node&) { return {}; }  // it has no rules: what is missized is found when it is run
#else
std::string what_is_missized(const Graph::Node& node) {
    std::vector<ValueType> operands;
    for (const Graph::Value* input : node.inputs) operands.push_back({input->dtype, input->device, input->shape});
    ResultTypes given;
    try {
        given = result_types(node.attributes(), operands, Loc{});
    } catch (const OutOfMemory&) {
        throw;
    } catch (const Error& error) {
        return error.what();
    }
    if (given.empty()) return {};
    if (given.size() != node.results.size()) return fmt::format("{} has {} results, not {}", node.op(), given.size(), node.results.size());
    for (std::size_t k = 0; k < given.size(); ++k) {
        const Sizes &shape = given[k].shape, &stated = node.results[k]->shape;
        if (!may_be_alike(shape, stated))
            return fmt::format("{} gives {}, not {}", node.op(), to_string(Attribute(shape)), to_string(Attribute(stated)));
    }
    return {};
}
#endif

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
