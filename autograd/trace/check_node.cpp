// What passes and exporters count on in a node: a text may say anything.
#include "tapir/autograd/trace/check_node_impl.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "tapir/autograd/least_operands_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/fused_impl.h"

namespace tapir::detail {
namespace {

using Sizes = std::vector<SymInt>;

template <class List>
bool is_in(std::string_view op, const List& list) {
    return std::find(std::begin(list), std::end(list), op) != std::end(list);
}

// Of an attribute that is a list; null: there is none of this name.
const Sizes* list_in(const std::vector<std::pair<std::string, Attribute>>& all, std::string_view name) {
    for (const auto& [own, value] : all) {
        if (own == name) return std::get_if<Sizes>(&value);
    }
    return nullptr;
}

}  // namespace

std::string what_is_wrong_with(const Graph::Node& node) {
    const int least = least_operands(node.attributes.form());
    if (std::ssize(node.inputs) < least) return fmt::format("{} has {} operands, and needs {}", node.op, node.inputs.size(), least);
    if (node.inputs.empty() || node.results.empty()) return {};
    const auto rank = std::ssize(node.inputs[0]->shape), result_rank = std::ssize(node.results[0]->shape);
    constexpr std::string_view kReductions[] = {"sum", "mean", "amax", "amin", "prod", "all", "any", "logsumexp", "norm", "var", "std"};
    constexpr std::string_view kSameRank[] = {"transpose", "permute", "slice", "flip", "clone", "to_dtype", "to_device", "copy", "fill"};
    const bool reduces = is_in(node.op, kReductions);
    const std::vector<std::pair<std::string, Attribute>> attributes = node.attributes.all();
    std::set<std::int64_t> named;
    if (const Sizes* dims = list_in(attributes, "dims")) {
        const std::int64_t most = std::max<std::int64_t>(rank, 1);
        for (const SymInt& dim : *dims) {
            if (!dim.is_number()) return fmt::format("a dimension of {} is no number: {}", node.op, dim.str());
            const std::int64_t number = dim.number();
            if (number < -most || number >= most) return fmt::format("{} has the dimension {}, of {}", node.op, number, rank);
            named.insert(number < 0 ? number + most : number);
        }
        if (node.op == "transpose" && dims->size() != 2) return fmt::format("transpose has {} dimensions", dims->size());
        if (node.op == "permute" && (std::ssize(*dims) != rank || std::ssize(named) != rank)) return "permute names not each dimension once";
    }
    if (is_in(node.op, kSameRank) && result_rank != rank) return fmt::format("{} makes {} dimensions of {}", node.op, result_rank, rank);
    if (elementwise_index(node.attributes.form()) >= 0 || node.op == "where" || node.op == "masked_fill") {
        std::ptrdiff_t most = 0;
        for (const Graph::Value* input : node.inputs) most = std::max(most, std::ssize(input->shape));
        if (result_rank != most) return fmt::format("{} makes {} dimensions of {}", node.op, result_rank, most);
    }
    if (least == 2 && (node.op == "copy" || node.op == "fill") && std::ssize(node.inputs[1]->shape) > rank) {
        return fmt::format("{} puts {} dimensions into {}", node.op, node.inputs[1]->shape.size(), rank);
    }
    if (node.op == "expand" && result_rank < rank) return fmt::format("expand makes {} dimensions of {}", result_rank, rank);
    if (reduces) {
        bool keeps = false;
        for (const auto& [name, value] : attributes) {
            if (name == "keepdim") keeps = std::get<bool>(value);
        }
        const std::int64_t left = keeps ? rank : named.empty() ? 0 : std::max<std::int64_t>(rank - std::ssize(named), 0);
        if (result_rank != left) return fmt::format("{} leaves {} dimensions of {}, not {}", node.op, left, rank, result_rank);
    }
    return {};
}

}  // namespace tapir::detail
