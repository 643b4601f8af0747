// One graph of several runs.
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

// nan is as it was, too.
bool same_attribute(const Attribute& a, const Attribute& b) {
    const auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
    return a == b || (x && y && std::isnan(*x) && std::isnan(*y));
}

// Whether this attribute may be a whole number in a real one's place, full({}, double(n)): the result's dtype is another attribute's matter.
bool keeps_whole_numbers(const Graph::Node& node, const std::string& name) {
    bool is_scalar = false, has_dtype = node.is(fill_form);
    Attributes copy = node.attributes();
    copy.each([&](const Field& field) {
        is_scalar |= field.kind == Field::Kind::scalar && name == field.name;
        has_dtype |= field.kind == Field::Kind::dtype;
    });
    return is_scalar && has_dtype;
}

// Several graphs of one program, for several sizes of its dimensions, as one.
class Union {
 public:
    // known: null where only polynomials and the simplest quotients are looked for; else the sizes of the graph around this one.
    Union(std::vector<Graph> graphs, const std::vector<DimSizes>& samples, const Loc& loc, const std::vector<KnownSize>* known)
        : graphs_(std::move(graphs)), samples_(samples), loc_(loc), divides_(known != nullptr) {
        if (known) known_ = *known;
    }

    JoinedGraph make() {
        Graph& whole = graphs_[0];
        for (std::size_t g = 1; g < graphs_.size(); ++g) check_same(whole, graphs_[g], g);
        if (divides_) know_shapes();
        for (std::size_t n = 0; n < whole.nodes().size(); ++n) join_attributes(n);
        join_shapes();
        join_constants();
        return {std::move(whole), std::move(guessed_)};
    }

 private:
    std::string sizes_text(std::size_t g) const { return shown_sizes(samples_[g]); }

    // The same ops on the same values: what the program does must not depend on sizes.
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

    // --- Sizes of the graph, of which others are made -----------------------------------------------------------------------------

    void know_shapes() {
        std::vector<const std::vector<Graph::Value*>*> inputs;
        for (const Graph& graph : graphs_) inputs.push_back(&graph.inputs());
        near_ = known_;
        for (std::size_t i = 0; i < inputs[0]->size(); ++i) know_shape(inputs, i, nullptr);
        for (std::size_t n = 0; n < graphs_[0].nodes().size(); ++n) {
            const Graph::Node& node = *graphs_[0].nodes()[n];
            std::vector<const std::vector<Graph::Value*>*> results;
            for (const Graph& graph : graphs_) results.push_back(&graph.nodes()[n]->results);
            look_near(node);
            for (std::size_t k = 0; k < node.results.size(); ++k) know_shape(results, k, &node);
        }
    }

    // lists: of each run, in which the value has this place.
    void know_shape(const std::vector<const std::vector<Graph::Value*>*>& lists, std::size_t place, const Graph::Node* node) {
        const Graph::Value* value = (*lists[0])[place];
        std::vector<KnownSize>& sizes = sizes_[value];
        for (std::size_t d = 0; d < value->shape.size(); ++d) {
            std::vector<std::int64_t> numbers;
            for (const auto* list : lists) {
                const std::vector<SymInt>& shape = (*list)[place]->shape;
                if (shape.size() != value->shape.size()) return;  // join_shapes() says so
                numbers.push_back(shape[d].number());
            }
            std::optional<SymInt> formula = node ? windows_along(*node, d, numbers) : std::nullopt;
            if (!formula) formula = join(numbers);
            sizes.push_back({formula.value_or(SymInt(-1)), std::move(numbers)});
            if (!formula || formula->is_number()) continue;
            const auto is_it = [&](const KnownSize& known) { return known.values == sizes.back().values; };
            if (std::none_of(known_.begin(), known_.end(), is_it)) known_.push_back(sizes.back());
        }
    }

    // The node's own sizes, then those of the graph, the last one first.
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
        for (const Graph::Value* result : node.results) add(result);
        near_.insert(near_.end(), known_.rbegin(), known_.rend());
    }

    // How many windows there are, by their definition: few samples tell little of a size that many strides have made small.
    std::optional<SymInt> windows_along(const Graph::Node& node, std::size_t d, const std::vector<std::int64_t>& numbers) const {
        const bool is_convolution = node.is(convolution_form);
        const auto of_input = sizes_.find(node.inputs.empty() ? nullptr : node.inputs[0]);
        if ((!is_convolution && !node.is(max_pool_form) && !node.is(avg_pool_form)) || d < 2) return std::nullopt;
        if (of_input == sizes_.end() || of_input->second.size() <= d || of_input->second[d].formula.is_number()) return std::nullopt;
        const std::size_t dims = node.inputs[0]->shape.size() - 2;
        const auto number_of = [&](std::string_view wanted, std::int64_t otherwise) {
            std::int64_t sum = 0;
            std::size_t count = 0;
            for (const auto& [name, attribute] : node.attributes().all()) {
                const auto* list = std::get_if<std::vector<SymInt>>(&attribute);
                if (name != wanted || !list) continue;
                for (std::size_t i = d - 2; i < list->size(); i += dims, ++count) sum += (*list)[i].number();  // on both sides
            }
            return count == 0 ? otherwise : wanted == "padding" && count == 1 ? 2 * sum : sum;
        };
        const std::int64_t kernel = is_convolution ? node.inputs[1]->shape[d].number() : number_of("kernel_size", 1);
        const std::int64_t stride = number_of("stride", is_convolution ? 1 : kernel);
        const std::int64_t reach = number_of("dilation", 1) * (kernel - 1) + 1;
        const SymInt room = of_input->second[d].formula + SymInt(number_of("padding", 0) - reach);
        for (const std::int64_t more : {std::int64_t{0}, stride - 1}) {  // the latter with ceil_mode
            const SymInt formula = (room + SymInt(more)).floor_div(stride) + SymInt(1);
            bool is_right = true;
            for (std::size_t g = 0; g < numbers.size() && is_right; ++g) is_right = formula.value(samples_[g]) == numbers[g];
            if (is_right && is_guess(formula)) return formula;
        }
        return std::nullopt;
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
            if (divides_) look_near(node);
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

    // What they are for all sizes, or nothing.
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

    // one_is_left: -1 stands for what is left.
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

    // A number that depends on the sizes, x / x.size(0), is computed from them. Other constants are the same each time.
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

    void join_shapes() {
        near_ = known_;
        std::vector<std::vector<Graph::Value*>> all;
        for (const Graph& graph : graphs_) all.push_back(graph.values());
        int unknown = 0;
        for (std::size_t v = 0; v < all[0].size(); ++v) {
            for (std::size_t d = 0; d < all[0][v]->shape.size(); ++d) {
                std::vector<std::int64_t> numbers;
                for (const auto& values : all) {
                    const std::vector<SymInt>& shape = values[v]->shape;
                    if (shape.size() != all[0][v]->shape.size()) fail_rank(*all[0][v]);
                    numbers.push_back(shape[d].number());
                }
                const auto known = sizes_.find(all[0][v]);
                const bool is_known = known != sizes_.end() && d < known->second.size() && known->second[d].formula != SymInt(-1);
                const std::optional<SymInt> joined = is_known ? known->second[d].formula : join(numbers);
                all[0][v]->shape[d] = joined ? *joined : SymInt::dim(fmt::format("unknown_{}", unknown++));
            }
        }
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
};

}  // namespace

JoinedGraph join_graphs(std::vector<Graph> graphs, const std::vector<DimSizes>& samples, const Loc& loc, bool many_samples) {
    const std::vector<KnownSize> none;
    JoinedGraph joined = Union(std::move(graphs), samples, loc, many_samples ? &none : nullptr).make();
    follow_data_sizes(joined.graph, loc);
    return joined;
}

}  // namespace tapir::detail
