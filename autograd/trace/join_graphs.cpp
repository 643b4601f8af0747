// One graph of several runs.
#include "tapir/autograd/trace/join_graphs_impl.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "tapir/autograd/trace/data_sizes_impl.h"
#include "tapir/autograd/trace/fit_impl.h"
#include "tapir/autograd/trace/infer_impl.h"
#include "tapir/autograd/trace/names_impl.h"
#include "tapir/autograd/trace/runner_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"

namespace tapir::detail {
namespace {

// nan is as it was, too.
bool same_attribute(const Attribute& a, const Attribute& b) {
    const auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
    return a == b || (x && y && std::isnan(*x) && std::isnan(*y));
}

// Whether this attribute may be a whole number in a real one's place, full({}, double(n)): the result's dtype is another attribute's matter.
bool keeps_whole_numbers(const Graph::Node& node, const std::string& name) {
    bool is_scalar = false, has_dtype = node.op == "fill";
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
    Union(std::vector<Graph> graphs, const std::vector<DimSizes>& samples, const Loc& loc)
        : graphs_(std::move(graphs)), samples_(samples), loc_(loc) {}

    JoinedGraph make() {
        Graph& whole = graphs_[0];
        for (std::size_t g = 1; g < graphs_.size(); ++g) check_same(whole, graphs_[g], g);
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
            if (x.op != y.op || x.inputs.size() != y.inputs.size() || x.results.size() != y.results.size()) fail_differs(&x, &y, g);
            for (std::size_t i = 0; i < x.inputs.size(); ++i) {
                if (!is_same_in_runs(*x.inputs[i], *y.inputs[i])) fail_differs(&x, &y, g);
            }
        }
        if (a.nodes().size() > count) fail_differs(a.nodes()[count].get(), nullptr, g);
        if (b.nodes().size() > count) fail_differs(nullptr, b.nodes()[count].get(), g);
        const auto same = [&](const char* what, const auto& mine, const auto& others, const auto& number_of) {
            const auto is_same = [&](const auto& x, const auto& y) { return number_of(x) == number_of(y); };
            if (std::equal(mine.begin(), mine.end(), others.begin(), others.end(), is_same)) return;
            fail<TapeError>(loc_, "trace: {} depends on the sizes: it is not the same with {} and with {}: leave a dimension that decides on it "
                            "without a name", what, sizes_text(0), sizes_text(g));
        };
        same("what is returned", a.outputs(), b.outputs(), [](const Graph::Output& x) { return std::pair(x.name, x.value->number); });
        same("what is written to", a.updates(), b.updates(), [](const Graph::Update& x) { return std::pair(x.target->number, x.value->number); });
        same("what is read", a.guards(), b.guards(), [](const Graph::Guard& x) { return x.value->number; });
    }
    [[noreturn]] void fail_differs(const Graph::Node* x, const Graph::Node* y, std::size_t g) {
        if (x && y && x->op == y->op && x->results.size() != y->results.size()) {
            fail<TapeError>(loc_, "trace: {} gives {} tensors with {}, {} with {}: the program goes step by step along a dimension with a name: leave it without "
                            "a name, or go along it with scan()",
                            at_line(*x), x->results.size(), sizes_text(0), y->results.size(), sizes_text(g));
        }
        fail<TapeError>(loc_, "trace: what the program does depends on the sizes: with {} it ran {}, with {} {}: a graph holds the one "
                        "branch that an if on a size took, and each step of a loop over a dimension, so that it would be right for one "
                        "size only: leave this dimension without a name, or go along it with scan()",
                        sizes_text(0), x ? at_line(*x) : "nothing", sizes_text(g), y ? at_line(*y) : "nothing");
    }

    std::optional<SymInt> join(const std::vector<std::int64_t>& values) {
        if (std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end()) return SymInt(values[0]);
        std::optional<SymInt> formula = fit(samples_, values);
        if (formula && is_guess(*formula)) {
            for (std::string& name : formula->dims()) guessed_.insert(std::move(name));
        }
        return formula;
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

    // What they are for all sizes, or nothing.
    std::optional<Attribute> join(const Graph::Node& node, const std::string& name, const std::vector<Attribute>& values) {
        if (std::holds_alternative<std::shared_ptr<const Graph>>(values[0])) {
            std::vector<Graph> parts;
            for (const Attribute& value : values) parts.push_back(*std::get<std::shared_ptr<const Graph>>(value));
            return join_parts(std::move(parts));
        }
        if (std::holds_alternative<std::vector<SymInt>>(values[0])) return join_sizes(node.op == "reshape", values);
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
        JoinedGraph joined = Union(std::move(parts), samples_, loc_).make();
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
                fail<TapeError>(loc_, "trace: {} that no op made depends on the sizes, in a way that no formula of the named dimensions gives: make it by "
                                "ops, which follow them, as sqrt(full({{}}, x.size(0))) in the place of std::sqrt(x.size(0))",
                                user ? fmt::format("{}: an operand of it", at_line(*user)) : "an output");
            }
            found.emplace_back(value, *number);
        }
        const OpForm& form = *find_form("number");
        for (const auto& [value, number] : found) {
            Attributes attributes(form);
            attributes.set("value", number.size);
            attributes.set("factor", number.factor);
            attributes.set("is_reciprocal", number.is_reciprocal);
            attributes.set("dtype", value->dtype);
            whole.prepend(form, std::move(attributes), value);
        }
    }

    std::optional<SizedNumber> join_numbers(std::size_t c) {
        std::vector<double> numbers;
        const DType dtype = graphs_[0].constants()[c]->dtype;
        for (const Graph& graph : graphs_) numbers.push_back(load_double(dtype, graph.constants()[c]->data.raw_data()));
        std::optional<SizedNumber> number = fit_numbers(samples_, numbers, dtype);
        if (number && (number->factor != 1 || is_guess(number->size))) {
            for (std::string& name : number->size.dims()) guessed_.insert(std::move(name));
        }
        return number;
    }

    void join_shapes() {
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
                const std::optional<SymInt> joined = join(numbers);
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
};

}  // namespace

JoinedGraph join_graphs(std::vector<Graph> graphs, const std::vector<DimSizes>& samples, const Loc& loc) {
    JoinedGraph joined = Union(std::move(graphs), samples, loc).make();
    follow_data_sizes(joined.graph, loc);
    return joined;
}

}  // namespace tapir::detail
