// Joins several runs into one graph.
#include "tapir/autograd/trace/join_graphs_impl.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "tapir/autograd/trace/data_sizes_impl.h"
#include "tapir/autograd/trace/fit_impl.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/forms_impl.h"

namespace tapir::detail {
namespace {

// A nan equals itself here.
bool same_attribute(const Attribute& a, const Attribute& b) {
    const auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
    return a == b || (x && y && std::isnan(*x) && std::isnan(*y));
}

// True if this attribute may hold a whole number instead of a real one, full({}, double(n)): another attribute states the result's dtype.
bool keeps_whole_numbers(const Graph::Node& node, const std::string& name) {
    bool is_scalar = false, has_dtype = node.is(fill_form);
    Attributes copy = node.attributes();
    copy.each([&](const Field& field) {
        is_scalar |= field.kind == Field::Kind::scalar && name == field.name;
        has_dtype |= field.kind == Field::Kind::dtype;
    });
    return is_scalar && has_dtype;
}

// Joins several graphs of one program, for several sizes of its dimensions.
class Union {
 public:
    // known: null to look for polynomials and the simplest quotients only; else the sizes of the graph around this one.
    Union(std::vector<Graph> graphs, const std::vector<DimSizes>& samples, const Loc& loc, const std::vector<KnownSize>* known)
        : graphs_(std::move(graphs)), samples_(samples), loc_(loc), divides_(known != nullptr) {
        if (known) known_ = *known;
    }

    JoinedGraph make() {
        Graph& whole = graphs_[0];
        for (std::size_t g = 1; g < graphs_.size(); ++g) check_same(whole, graphs_[g], g);
        join_given_shapes();
        for (std::size_t n = 0; n < whole.nodes().size(); ++n) {
            if (divides_) look_near(*whole.nodes()[n]);
            join_attributes(n);
            join_result_shapes(n);
        }
        join_constants();
        return {std::move(whole), std::move(guessed_)};
    }

 private:
    std::string sizes_text(std::size_t g) const { return shown_sizes(samples_[g]); }

    // Checks that both have the same ops on the same values: the program must not branch on sizes.
    void check_same(const Graph& a, const Graph& b, std::size_t g) {
        const std::size_t count = std::min(a.nodes().size(), b.nodes().size());
        for (std::size_t n = 0; n < count; ++n) {
            const Graph::Node &x = *a.nodes()[n], &y = *b.nodes()[n];
            if (x.op() != y.op() || x.inputs.size() != y.inputs.size() || x.results.size() != y.results.size()) fail_differs(&x, &y, g);
            for (std::size_t i = 0; i < x.inputs.size(); ++i) {
                if (!is_same_in_runs(*x.inputs[i], *y.inputs[i])) fail_differs(&x, &y, g);
            }
        }
        if (a.nodes().size() > count) fail_differs(a.nodes()[count].get(), nullptr, g);
        if (b.nodes().size() > count) fail_differs(nullptr, b.nodes()[count].get(), g);
        const auto same = [&](const char* what, const auto& mine, const auto& others, const auto& number_of) {
            const auto is_same = [&](const auto& x, const auto& y) { return number_of(x) == number_of(y); };
            if (std::equal(mine.begin(), mine.end(), others.begin(), others.end(), is_same)) return;
            fail<TapeError>(loc_,
                            "trace: {} depends on the sizes: it is not the same with {} and with {}: leave a dimension that decides on it "
                            "without a name",
                            what, sizes_text(0), sizes_text(g));
        };
        same("what is returned", a.outputs(), b.outputs(), [](const Graph::Output& x) { return std::pair(x.name, x.value->number); });
        same("what is written to", a.updates(), b.updates(), [](const Graph::Update& x) { return std::pair(x.target->number, x.value->number); });
        same("what is read", a.guards(), b.guards(), [](const Graph::Guard& x) { return x.value->number; });
    }
    [[noreturn]] void fail_differs(const Graph::Node* x, const Graph::Node* y, std::size_t g) {
        if (x && y && x->op() == y->op() && x->results.size() != y->results.size()) {
            fail<TapeError>(
                loc_,
                "trace: {} gives {} tensors with {}, {} with {}: the program goes step by step along a dimension with a name: leave it without "
                "a name, or go along it with scan()",
                at_line(*x), x->results.size(), sizes_text(0), y->results.size(), sizes_text(g));
        }
        fail<TapeError>(loc_,
                        "trace: what the program does depends on the sizes: with {} it ran {}, with {} {}: a graph holds the one "
                        "branch that an if on a size took, and each step of a loop over a dimension, so that it would be right for one "
                        "size only: leave this dimension without a name, or go along it with scan()",
                        sizes_text(0), x ? at_line(*x) : "nothing", sizes_text(g), y ? at_line(*y) : "nothing");
    }

    std::optional<SymInt> join(const std::vector<std::int64_t>& values) {
        if (std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end()) return SymInt(values[0]);
        std::optional<SymInt> formula = divides_ ? fit_sizes(samples_, values, near_) : fit(samples_, values);
        if (formula && is_guess(*formula)) {
            for (std::string& name : formula->dims()) guessed_.insert(std::move(name));
        }
        return formula;
    }

    // --- Shapes -------------------------------------------------------------------------------------------------------------------

    using Lists = std::vector<const std::vector<Graph::Value*>*>;  // of each run

    Lists lists(const std::vector<Graph::Value*>& (Graph::*of)() const) const {
        Lists all;
        for (const Graph& graph : graphs_) all.push_back(&(graph.*of)());
        return all;
    }

    // Inputs, parameters and constants have the sizes that they were seen with.
    void join_given_shapes() {
        near_ = known_;
        for (const auto of : {&Graph::inputs, &Graph::parameters, &Graph::constants}) {
            const Lists all = lists(of);
            for (std::size_t i = 0; i < all[0]->size(); ++i) join_shape(all, i, nullptr);
        }
    }

    // Results have the sizes that their op's rule states; what it leaves open is taken from what was seen.
    void join_result_shapes(std::size_t n) {
        const Graph::Node& node = *graphs_[0].nodes()[n];
        ResultTypes stated;
        try {
            stated = result_types_of(node.attributes(), node.inputs, loc_);
        } catch (const OutOfMemory&) {
            throw;
        } catch (const Error&) {  // a formula of an operand or attribute is a wrong guess, which check_with() is going to find
        }
        Lists all;
        for (const Graph& graph : graphs_) all.push_back(&graph.nodes()[n]->results);
        for (std::size_t k = 0; k < node.results.size(); ++k) join_shape(all, k, k < stated.size() ? &stated[k] : nullptr);
    }

    // The value has this place in each list.
    void join_shape(const Lists& lists, std::size_t place, const ValueType* stated) {
        Graph::Value* value = (*lists[0])[place];
        std::vector<KnownSize>& sizes = sizes_[value];
        std::vector<SymInt> shape;
        for (std::size_t d = 0; d < value->shape.size(); ++d) {
            std::vector<std::int64_t> numbers;
            for (const auto* list : lists) {
                const std::vector<SymInt>& own = (place < list->size() ? (*list)[place] : value)->shape;  // join_constants() counts them
                if (own.size() != value->shape.size()) fail_rank(*value);
                numbers.push_back(own[d].number());
            }
            std::optional<SymInt> formula = stated && d < stated->shape.size() ? seen_so(stated->shape[d], numbers) : std::nullopt;
            if (!formula) formula = join(numbers);
            shape.push_back(formula ? *formula : SymInt::dim(fmt::format("unknown_{}", unknown_++)));
            sizes.push_back({formula.value_or(SymInt(-1)), numbers});
            if (!divides_ || !formula || formula->is_number()) continue;
            const auto is_it = [&](const KnownSize& known) { return known.values == numbers; };
            if (std::none_of(known_.begin(), known_.end(), is_it)) known_.push_back(sizes.back());
        }
        value->shape = std::move(shape);
    }

    // A rule's size, if the runs had it: also one that an operand has without a formula.
    std::optional<SymInt> seen_so(const SymInt& size, const std::vector<std::int64_t>& numbers) const {
        const std::vector<std::string> dims = size.dims();
        if (std::find(dims.begin(), dims.end(), "unknown") != dims.end()) return std::nullopt;
        const bool is_told = std::all_of(dims.begin(), dims.end(), [&](const std::string& dim) { return samples_[0].count(dim) > 0; });
        for (std::size_t g = 0; g < numbers.size() && is_told; ++g) {
            if (size.value(samples_[g], loc_) != numbers[g]) return std::nullopt;
        }
        return size;
    }

    // Collects the sizes of the node's operands, then those of the graph, the last one first.
    void look_near(const Graph::Node& node) {
        near_.clear();
        const auto add = [&](const Graph::Value* value) {
            const auto found = sizes_.find(value);
            if (found == sizes_.end()) return;
            for (const KnownSize& size : found->second) {
                const auto is_it = [&](const KnownSize& known) { return known.values == size.values; };
                if (!size.formula.is_number() && std::none_of(near_.begin(), near_.end(), is_it)) near_.push_back(size);
            }
        };
        for (const Graph::Value* input : node.inputs) add(input);
        near_.insert(near_.end(), known_.rbegin(), known_.rend());
    }

    void join_attributes(std::size_t n) {
        Graph::Node& node = *graphs_[0].nodes()[n];
        std::vector<std::vector<std::pair<std::string, Attribute>>> all;
        for (const Graph& graph : graphs_) all.push_back(graph.nodes()[n]->attributes().all());
        for (std::size_t i = 0; i < all[0].size(); ++i) {
            const std::string& name = all[0][i].first;
            std::vector<Attribute> values;
            for (auto& attributes : all) values.push_back(std::move(attributes[i].second));
            if (std::all_of(values.begin(), values.end(), [&](const Attribute& value) { return same_attribute(value, values[0]); })) continue;
            const std::optional<Attribute> joined = join(node, name, values);
            if (!joined) fail_no_formula(node, name, values);
            graphs_[0].edit_attributes(&node).set(name, *joined);
        }
    }
    [[noreturn]] void fail_no_formula(const Graph::Node& node, const std::string& name, const std::vector<Attribute>& values) const {
        std::string text;
        for (std::size_t g = 0; g < values.size(); ++g) text += fmt::format("{}{} with {}", g ? ", " : "", to_string(values[g]), sizes_text(g));
        const char* hint = name == "lr" ? ": the learning rate changed between runs; a graph has one lr for good" : "";
        fail<TapeError>(loc_, "trace: {}: no formula of the named dimensions gives its {}: {}{}", at_line(node), name, text, hint);
    }

    // The attribute for all sizes, or nullopt.
    std::optional<Attribute> join(const Graph::Node& node, const std::string& name, const std::vector<Attribute>& values) {
        if (std::holds_alternative<std::shared_ptr<const Graph>>(values[0])) {
            std::vector<Graph> parts;
            for (const Attribute& value : values) parts.push_back(*std::get<std::shared_ptr<const Graph>>(value));
            return join_parts(std::move(parts));
        }
        if (std::holds_alternative<std::vector<SymInt>>(values[0])) return join_sizes(node.is(reshape_form), values);
        std::vector<std::int64_t> numbers;
        for (const Attribute& value : values) {
            if (const auto* size = std::get_if<SymInt>(&value)) {
                numbers.push_back(size->number());
            } else if (const auto* real = std::get_if<double>(&value); real && keeps_whole_numbers(node, name)) {
                if (!(std::abs(*real) < 0x1p53) || *real != std::trunc(*real)) return std::nullopt;
                numbers.push_back(static_cast<std::int64_t>(*real));
            } else {
                return std::nullopt;
            }
        }
        return join(numbers);
    }

    // one_is_left: -1 stands for the remaining size.
    std::optional<Attribute> join_sizes(bool one_is_left, const std::vector<Attribute>& values) {
        std::vector<std::vector<SymInt>> lists;
        for (const Attribute& value : values) lists.push_back(std::get<std::vector<SymInt>>(value));
        if (std::any_of(lists.begin(), lists.end(), [&](const auto& list) { return list.size() != lists[0].size(); })) return std::nullopt;
        one_is_left &= std::count(lists[0].begin(), lists[0].end(), SymInt(-1)) == 0;
        std::vector<SymInt> sizes;
        for (std::size_t d = 0; d < lists[0].size(); ++d) {
            std::vector<std::int64_t> numbers;
            for (const auto& list : lists) numbers.push_back(list[d].number());
            const std::optional<SymInt> joined = join(numbers);
            if (!joined && !std::exchange(one_is_left, false)) return std::nullopt;
            sizes.push_back(joined.value_or(-1));
        }
        return sizes;
    }

    std::shared_ptr<const Graph> join_parts(std::vector<Graph> parts) {
        JoinedGraph joined = Union(std::move(parts), samples_, loc_, divides_ ? &known_ : nullptr).make();
        guessed_.merge(joined.guessed);
        return std::make_shared<const Graph>(std::move(joined.graph));
    }

    // Computes constants that depend on sizes, like x / x.size(0), from these. Other constants are the same each time.
    void join_constants() {
        Graph& whole = graphs_[0];
        std::vector<std::pair<Graph::Value*, SizedNumber>> found;
        const std::size_t count = whole.constants().size();
        for (std::size_t c = 0; c < count; ++c) {
            Graph::Value* value = whole.constants()[c];
            bool is_same = true;
            for (const Graph& graph : graphs_) is_same &= c < graph.constants().size() && same_elements(graph.constants()[c]->data, value->data);
            if (is_same) continue;
            const Graph::Node* user = value->uses.empty() ? nullptr : value->uses[0].node;
            const auto& outputs = whole.outputs();
            const bool is_output = std::any_of(outputs.begin(), outputs.end(), [&](const Graph::Output& output) { return output.value == value; });
            if (!user && !is_output) continue;
            const std::optional<SizedNumber> number = value->shape.empty() ? join_numbers(c) : std::nullopt;
            if (!number) {
                fail<TapeError>(loc_,
                                "trace: {} that no op made depends on the sizes, in a way that no formula of the named dimensions gives: make it by "
                                "ops, which follow them, as sqrt(full({{}}, x.size(0))) in the place of std::sqrt(x.size(0))",
                                user ? fmt::format("{}: an operand of it", at_line(*user)) : "an output");
            }
            found.emplace_back(value, *number);
        }
        for (const auto& [value, number] : found) {
            Attributes attributes(number_form);
            attributes.set("value", number.size);
            attributes.set("factor", number.factor);
            attributes.set("is_reciprocal", number.is_reciprocal);
            attributes.set("dtype", value->dtype);
            whole.prepend(std::move(attributes), value);
        }
    }

    std::optional<SizedNumber> join_numbers(std::size_t c) {
        std::vector<double> numbers;
        const DType dtype = graphs_[0].constants()[c]->dtype;
        for (const Graph& graph : graphs_) numbers.push_back(load_double(dtype, graph.constants()[c]->data.raw_data()));
        std::optional<SizedNumber> number = fit_numbers(samples_, numbers, dtype, divides_ ? known_ : std::vector<KnownSize>());
        if (number && (number->factor != 1 || is_guess(number->size))) {
            for (std::string& name : number->size.dims()) guessed_.insert(std::move(name));
        }
        return number;
    }

    [[noreturn]] void fail_rank(const Graph::Value& value) {
        fail<TapeError>(loc_, "trace: the number of dimensions of {} depends on the sizes", value.maker ? at_line(*value.maker) : value.name);
    }

    std::vector<Graph> graphs_;
    const std::vector<DimSizes>& samples_;
    std::set<std::string> guessed_;
    const Loc& loc_;
    bool divides_;  // looks for formulas of other sizes
    std::vector<KnownSize> known_, near_;
    std::unordered_map<const Graph::Value*, std::vector<KnownSize>> sizes_;  // of each dimension; -1: no formula gives it
    int unknown_ = 0;
};

}  // namespace

JoinedGraph join_graphs(std::vector<Graph> graphs, const std::vector<DimSizes>& samples, const Loc& loc, bool many_samples) {
    const std::vector<KnownSize> none;
    JoinedGraph joined = Union(std::move(graphs), samples, loc, many_samples ? &none : nullptr).make();
    follow_data_sizes(joined.graph, loc);
    return joined;
}

}  // namespace tapir::detail
