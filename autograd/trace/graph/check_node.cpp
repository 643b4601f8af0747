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

// "add gives (4,), not (2, 3)", where a size that is given is another than the one that is stated; sizes at the same places.
std::string compared(std::string_view op, const Sizes& given, const Sizes& stated) {
    for (std::size_t d = 0; d < stated.size(); ++d) {
        if (differ(given[d], stated[d])) return fmt::format("{} gives {}, not {}", op, to_string(Attribute(given)), to_string(Attribute(stated)));
    }
    return {};
}

// The common shape, of as many dimensions; "?" where it depends on what a named dimension is. False: there is none.
bool broadcast(const std::vector<Graph::Value*>& inputs, Sizes& common) {
    for (std::size_t d = 0; d < common.size(); ++d) {  // from the last dimension on
        SymInt& size = common[common.size() - 1 - d];
        size = 1;
        bool is_known = true;
        for (const Graph::Value* input : inputs) {
            if (d >= input->shape.size()) continue;
            const SymInt& own = input->shape[input->shape.size() - 1 - d];
            if (own == SymInt(1)) continue;
            if (!own.is_number()) {
                is_known = false;
                continue;
            }
            if (!(size == SymInt(1)) && differ(size, own)) return false;
            size = own;
        }
        if (!is_known && size == SymInt(1)) size = SymInt::dim("?");  // one that names may stand for 1 where there is a number
    }
    return true;
}

std::int64_t known_numel(const Sizes& shape) {  // -1: it is not known
    std::int64_t count = 1;
    for (const SymInt& size : shape) {
        if (!size.is_number() || __builtin_mul_overflow(count, size.number(), &count)) return -1;
    }
    return count;
}

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

std::string what_is_missized(const Graph::Node& node) {
    if (node.inputs.empty() || node.results.empty()) return {};
    const Sizes &shape = node.inputs[0]->shape, &result = node.results[0]->shape;
    if (broadcasts(node)) {
        Sizes common(result.size());
        if (!broadcast(node.inputs, common)) return fmt::format("the shapes of what {} takes do not broadcast", node.op());
        return compared(node.op(), common, result);
    }
    if (is_in(node.op(), kSameShape)) return compared(node.op(), shape, result);
    if (node.is(expand_form)) {
        for (std::size_t d = 0; d < shape.size(); ++d) {
            const SymInt &own = shape[d], &wide = result[result.size() - shape.size() + d];
            if (!(own == SymInt(1)) && differ(own, wide)) return fmt::format("expand makes {} of {}", wide.str(), own.str());
        }
    }
    if (node.is(reshape_form)) {
        const std::int64_t before = known_numel(shape), after = known_numel(result);
        if (before >= 0 && after >= 0 && before != after) return fmt::format("reshape makes {} elements of {}", after, before);
    }
    const std::vector<std::pair<std::string, Attribute>> attributes = node.attributes().all();
    const Sizes* list = list_in(attributes, "dims");
    if (!list) return {};
    std::vector<std::size_t> dims;
    for (const SymInt& dim : *list) dims.push_back(static_cast<std::size_t>(dim.number() < 0 ? dim.number() + std::ssize(shape) : dim.number()));
    Sizes given;
    if (node.is(transpose_form) && !shape.empty()) {
        given = shape;
        std::swap(given[dims[0]], given[dims[1]]);
        return compared(node.op(), given, result);
    }
    if (node.is(permute_form)) {
        for (const std::size_t dim : dims) given.push_back(shape[dim]);
        return compared(node.op(), given, result);
    }
    if (is_in(node.op(), kReductions)) {
        const bool keeps = keeps_dims(attributes);
        for (std::size_t d = 0; d < shape.size(); ++d) {
            const bool is_reduced = dims.empty() || std::find(dims.begin(), dims.end(), d) != dims.end();
            if (!is_reduced || keeps) given.push_back(is_reduced ? SymInt(1) : shape[d]);
        }
        return compared(node.op(), given, result);
    }
    return {};
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
