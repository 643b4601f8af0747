// Patterns: parsing, matching, and writing.
#include "tapir/autograd/trace/passes/pattern_impl.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <string_view>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/core/fail_impl.h"

namespace tapir::rewrite {
namespace {

struct Term {
    char letter = 0;  // for a term that stands for any value
    double number = 0;
    std::string op;  // "": a letter or a number
    std::vector<Term> operands;
};

Term term_of(std::string_view& text) {
    const std::size_t end = std::min(text.find_first_of("(),"), text.size());
    const std::string name(text.substr(0, end));
    text.remove_prefix(end);
    Term term;
    if (text.starts_with('(')) {
        term.op = name;
        do {
            text.remove_prefix(text.starts_with(", ") ? 2 : 1);
            term.operands.push_back(term_of(text));
        } while (text.starts_with(','));
        text.remove_prefix(1);
    } else if (name.size() == 1 && name[0] >= 'a') {
        term.letter = name[0];
    } else {
        term.number = std::strtod(name.c_str(), nullptr);
    }
    return term;
}

struct Rewriting {
    Term from, to;
    unsigned where;
};

// The match of a pattern.
struct Found {
    std::array<Value*, 26> letters{};
    const Node* with_attributes = nullptr;
    bool has_wide_numbers = false;  // tensors full of one number, which may have dimensions that nothing else has
    Value*& of(char letter) { return letters[static_cast<std::size_t>(letter - 'a')]; }
};

bool is_mask(char letter) { return letter == 'm' || letter == 'n'; }

class Search {
 public:
    Search(const Graph& graph, const Node& root, unsigned where) : graph_(graph), root_(root), type_(*root.results[0]), where_(where) {}

    bool finds(const Term& term, Value* value, Found& found) const { return finds_all({{&term, value}}, found); }

 private:
    static bool is_same_number(const Value* a, const Value* b) {
        if (!same_type(a, b)) return false;
        const std::optional<double> number = number_of(a), other = number_of(b);
        return number && other && *number == *other;
    }

    bool is_letter_or_number(const Term& term, Value* value, Found& found) const {
        if (term.letter == 0) {
            const std::optional<double> number = number_of(value);
            found.has_wide_numbers |= !value->shape.empty();
            return number && *number == term.number;
        }
        Value*& known = found.of(term.letter);
        if (known) return known == value || is_same_number(known, value);
        // Numbers do not take part in promotion.
        const bool is_number = value->kind == Graph::Kind::constant && value->shape.empty();
        if (!is_mask(term.letter) && value->dtype != type_.dtype && !is_number) return false;
        known = value;
        return true;
    }

    bool is_call(const Term& term, const Value* value) const {
        const Node* node = value->maker;
        if (!node || node->op() != term.op || node->results.size() != 1 || node->inputs.size() != term.operands.size()) return false;
        if (node == &root_) return true;
        const bool is_mask_op = value->dtype == bool_ && term.op.starts_with("logical_");
        return (value->dtype == type_.dtype || is_mask_op) && value->device == type_.device &&
            !(where_ & Pattern::once && !has_one_use(graph_, value));
    }

    // Matches terms from the last on, with the operands in either order.
    bool finds_all(std::vector<std::pair<const Term*, Value*>> wanted, Found& found) const {
        while (!wanted.empty()) {
            const auto [term, value] = wanted.back();
            wanted.pop_back();
            if (term->op.empty()) {
                if (!is_letter_or_number(*term, value, found)) return false;
                continue;
            }
            if (!is_call(*term, value)) return false;
            const Node& node = *value->maker;
            if (node.form().attr_bytes > 0) found.with_attributes = &node;
            for (const bool turned : {false, true}) {
                if (turned && !node.form().is_commutative) break;
                auto with_operands = wanted;
                for (std::size_t i = 0; i < term->operands.size(); ++i) {
                    with_operands.emplace_back(&term->operands[i], node.inputs[turned ? term->operands.size() - 1 - i : i]);
                }
                Found with = found;
                if (!finds_all(std::move(with_operands), with)) continue;
                found = with;
                return true;
            }
            return false;
        }
        return true;
    }

    const Graph& graph_;
    const Node& root_;
    const Value& type_;
    unsigned where_;
};

// The shape of a term's result for operands that broadcast; nullopt if it is not known.
std::optional<Sizes> shape_of(const Term& term, Found& found) {
    if (term.op.empty()) return found.of(term.letter)->shape;
    std::optional<Sizes> shape = Sizes();
    for (const Term& operand : term.operands) {
        const std::optional<Sizes> own = shape_of(operand, found);
        shape = own ? broadcast(*shape, *own) : std::nullopt;
        if (!shape) return std::nullopt;
    }
    return shape;
}

Value* write(Graph& graph, Node& root, const Term& term, Found& found, const Sizes* shape) {
    if (term.op.empty()) return found.of(term.letter);
    std::vector<Value*> inputs;
    for (const Term& operand : term.operands) inputs.push_back(write(graph, root, operand, found, nullptr));
    const OpForm& form = *find_form(term.op.c_str());
    const bool has_attributes = form.attr_bytes > 0;
    return put(graph, root, form, inputs, has_attributes ? found.with_attributes->attributes().all() : AttributeList(), root.results[0]->dtype,
               root.results[0]->device, shape ? *shape : *shape_of(term, found));
}

Value* rewritten(Graph& graph, Node& root, const Rewriting& rewriting, bool allow_nonfinite) {
    Value* result = root.results[0];
    const DType dtype = result->dtype;
    if (rewriting.where & Pattern::reals && !is_floating(dtype)) return nullptr;
    if (rewriting.where & Pattern::no_halves && dtype == float16) return nullptr;
    if (rewriting.where & Pattern::no_doubles && dtype == float64) return nullptr;
    if (rewriting.where & Pattern::no_bools && dtype == bool_) return nullptr;
    if (rewriting.where & Pattern::loosely && !allow_nonfinite) return nullptr;
    Found found;
    if (!Search(graph, root, rewriting.where).finds(rewriting.from, result, found)) return nullptr;
    if (rewriting.where & Pattern::finite_c && !allow_nonfinite && is_floating(dtype) && !is_finite_constant(found.of('c'))) return nullptr;
    if (rewriting.to.op.empty()) {
        Value* other = found.of(rewriting.to.letter);
        return same_type(other, result) ? other : nullptr;
    }
    // An op within the result needs a shape of its own; and at least one operand must determine dtype and device.
    bool is_told = false;
    for (char letter = 'a'; letter <= 'z'; ++letter) {
        const Value* value = found.of(letter);
        is_told |= value && !is_mask(letter) && value->dtype == dtype && value->device == result->device;
    }
    if (!is_told) return nullptr;
    for (const Term& operand : rewriting.to.operands) {
        if (!operand.op.empty() && !shape_of(operand, found)) return nullptr;
    }
    if (found.has_wide_numbers && shape_of(rewriting.to, found) != result->shape) return nullptr;
    return write(graph, root, rewriting.to, found, &result->shape);
}

}  // namespace

int apply_patterns(Graph& graph, std::span<const Pattern> patterns, bool allow_nonfinite) {
    std::map<std::string, std::vector<Rewriting>, std::less<>> by_op;
    for (const Pattern& pattern : patterns) {
        std::string_view from = pattern.from, to = pattern.to;
        Rewriting rewriting{term_of(from), term_of(to), pattern.where};
        by_op[rewriting.from.op].push_back(std::move(rewriting));
    }
    std::vector<Node*> nodes;
    for (const auto& node : graph.nodes()) nodes.push_back(node.get());
    int changes = 0;
    for (Node* node : nodes) {
        const auto known = by_op.find(node->op());
        if (known == by_op.end() || node->results.size() != 1) continue;
        for (const Rewriting& rewriting : known->second) {
            Value* other = rewritten(graph, *node, rewriting, allow_nonfinite);
            if (!other || !take_place(graph, *node, node->results[0], other)) continue;
            ++changes;
            break;
        }
    }
    if (changes > 0) eliminate_dead_code(graph);
    return changes;
}

}  // namespace tapir::rewrite
