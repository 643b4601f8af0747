// Tracing: runs of the function, and one graph of them.
#include "tapir/autograd/trace/trace.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "tapir/autograd/trace/fit_impl.h"
#include "tapir/autograd/trace/hint_impl.h"
#include "tapir/autograd/trace/infer_impl.h"
#include "tapir/autograd/trace/names_impl.h"
#include "tapir/autograd/trace/runner_impl.h"
#include "tapir/autograd/trace/tracer_impl.h"
#include "tapir/autograd/trace/turn_bound_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/make.h"
#include "tapir/ops/reduce.h"

namespace tapir::detail {
namespace {

// What the name of a dimension says, "batch" or "32*height", of an input that has this size there.
SymInt formula_of(const std::string& name, std::int64_t size, const TraceInput& input, DimSizes& sizes, const Loc& loc) {
    if (name.empty()) return size;
    const bool is_formula = name[0] >= '0' && name[0] <= '9';
    const SymInt formula = is_formula ? SymInt::parse(name, loc) : SymInt::dim(name);
    const std::optional<SymInt::OfOneDim> one = formula.of_one_dim();
    if (!one) fail<ValueError>(loc, "trace: the dimension {} of {}: not a name, or a number times a name, \"32*height\"", name, input.name);
    if (size == 0) {
        fail<ShapeError>(loc, "trace: {} of shape {}: its dimension {} has no elements; an example of at least one is needed", input.name,
                         input.tensor.shape(), name);
    }
    const std::optional<std::int64_t> own = one->size_for(size);
    if (!own) fail<ShapeError>(loc, "trace: {} of shape {}: the size {} is not {}", input.name, input.tensor.shape(), size, name);
    const auto [known, is_new] = sizes.emplace(one->dim, *own);
    if (!is_new && known->second != *own) {
        fail<ShapeError>(loc, "trace: the dimension {} has size {} and, in {}, {}", one->dim, known->second, input.name, *own);
    }
    return formula;
}

// How much larger the last sample is in the dimensions behind the first, where strides are.
DimSizes far_sizes(const std::vector<TraceInput>& inputs, const std::vector<std::vector<SymInt>>& dims) {
    constexpr std::int64_t elements = 67;
    DimSizes far, batches;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        for (std::size_t d = 0; d < dims[i].size(); ++d) {
            const std::optional<SymInt::OfOneDim> one = dims[i][d].of_one_dim();
            if (one) (d == 0 && inputs[i].tensor.dim() > 1 ? batches : far).emplace(one->dim, (elements + one->factor - 1) / one->factor);
        }
    }
    for (const auto& [name, size] : batches) far.erase(name);
    return far;
}

// x with other sizes: its elements along a dimension again from the first, as often as needed.
Tensor resized(const Tensor& x, const std::vector<SymInt>& dims, const DimSizes& sizes) {
    const PauseRecording pause;
    Tensor result = x;
    for (std::size_t d = 0; d < dims.size(); ++d) {
        const std::int64_t have = x.size(static_cast<int>(d)), want = dims[d].value(sizes);
        if (have == want) continue;
        const Tensor rows = make_empty({want}, int64, cpu, Loc{});
        for (std::int64_t i = 0; i < want; ++i) rows.data<std::int64_t>()[i] = i % std::max<std::int64_t>(have, 1);
        std::vector<Index> index(d, Slice());
        index.emplace_back(rows);
        result = result.index(index);
    }
    return result.is_same(x) ? x : result.requires_grad_(x.requires_grad());
}

Tensor copy_of(const Tensor& x) {
    const PauseRecording pause;
    return x.clone().requires_grad_(x.requires_grad());
}

using Backups = std::vector<std::pair<Tensor, Tensor>>;

// What a run wrote and drew is undone. Where it drew nothing, others may have: the generator is all threads'.
void put_back(const Backups& backups, const std::vector<KeptGradient>& gradients, const Generator::State* before) {
    if (before) default_generator().set_state(*before);
    const PauseRecording pause;
    for (const auto& [tensor, copy] : backups) Tensor(tensor).copy_(copy);
    for (const KeptGradient& kept : gradients) kept.put_back();
}

struct Run {
    Graph graph;
    Backups backups;
    std::vector<KeptGradient> gradients;
    Generator::State before;  // of the default generator
    bool drew;

    void undo() const { put_back(backups, gradients, drew ? &before : nullptr); }
};

Run run_once(const TracedFunction& fn, const std::vector<TraceInput>& inputs, const std::vector<Tensor>& tensors,
             const TraceOptions& options, std::uint16_t number, const Loc& loc) {
    Tracer tracer(options, loc);
    for (std::size_t i = 0; i < inputs.size(); ++i) tracer.add_input(inputs[i].name, tensors[i]);
    std::vector<Tensor> results;
    std::vector<std::string> names;
    std::vector<Graph::Value*> values;
    const Generator::State before = default_generator().state();
    Graph graph;
    bool drew = false;
    try {
        const TracerScope watching(tracer);
        const TracingScope tracing(number);
        results = fn(tensors, &names);
        for (const Tensor& result : results) {
            if (!result.defined()) fail<ValueError>(loc, "trace: the function gave an undefined tensor");
            values.push_back(tracer.value_of(result, loc));
        }
        drew = tracer.drew();
        graph = tracer.finish();
    } catch (...) {
        put_back(tracer.take_backups(), tracer.take_gradients(), tracer.drew() ? &before : nullptr);
        throw;
    }
    Run run{std::move(graph), tracer.take_backups(), tracer.take_gradients(), before, drew};
    if (!options.outputs.empty() && options.outputs.size() != values.size()) {
        fail<ValueError>(loc, "trace: {} names of outputs for {} outputs", options.outputs.size(), values.size());
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
        const bool is_number = names[i].empty() || (names[i][0] >= '0' && names[i][0] <= '9');
        if (is_number) names[i] = names[i].empty() ? "output" : "output_" + names[i];
        run.graph.add_output(options.outputs.empty() ? names[i] : options.outputs[i], values[i], loc);
    }
    remove_gradient_stops(run.graph, /*only_idle=*/true);
    return run;
}

}  // namespace

bool has_data_sizes(const Graph& graph) {
    return std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const auto& node) {
        const OpForm& form = node->attributes.form();
        return form.data_sized && form.data_sized(node->attributes.data()) != 0;
    });
}

namespace {

// The input with its smallest or its largest element in the place of the second half, so that what chooses elements chooses others. Where
// all are alike, as in the zeros that a model is tried with, with smaller or larger ones.
Tensor with_other_data(const Tensor& x, bool by_smallest) {
    const PauseRecording pause;
    Tensor other = x.detach().clone();
    const std::int64_t count = other.numel();
    if (count == 0) return other;
    Tensor flat = other.reshape({count});
    const Tensor values = flat.to(float64);
    const std::int64_t smallest = argmin(values).item<std::int64_t>(), largest = argmax(values).item<std::int64_t>();
    const std::int64_t changed = count - count / 2;
    Tensor chosen = flat[by_smallest ? smallest : largest].clone().expand({changed});
    if (flat[smallest].equal(flat[largest])) {
        const double sign = by_smallest ? -1 : 1;
        const Tensor away = is_floating(x.dtype()) ? exp2(remainder(arange(changed, float32), 8) * 2) : ones({changed});  // 1, 4, ... 16384
        chosen = x.dtype() == bool_ ? logical_not(chosen) : chosen + (away * sign).to(x.dtype());
    }
    flat.narrow(0, count / 2, changed).copy_(chosen);
    return other.requires_grad_(x.requires_grad());
}

// Whether the op finds these sizes of its result itself: one that is left, which is -1 for reshape, those of its operand for expand.
bool finds_sizes(const Graph::Node& node, const std::vector<std::size_t>& places) {
    if (node.op == "reshape") return places.size() <= 1;
    if (node.op != "expand") return false;
    const std::vector<SymInt> &from = node.inputs[0]->shape, &to = node.results[0]->shape;
    const std::size_t extra = to.size() - from.size();
    return std::all_of(places.begin(), places.end(), [&](std::size_t d) { return d >= extra && from[d - extra] == to[d]; });
}

// In all graphs the op is told all sizes but these.
void leave_to_op(std::vector<Graph>& graphs, std::size_t n, const std::vector<std::size_t>& places) {
    if (places.empty()) return;
    const Graph::Node& first = *graphs[0].nodes()[n];
    const std::string op = first.op;
    const std::size_t rank = first.results[0]->shape.size();
    for (Graph& graph : graphs) {
        if (n >= graph.nodes().size()) continue;  // what the program does depends on sizes: Union says so
        Graph::Node& node = *graph.nodes()[n];
        if (node.op != op || node.results[0]->shape.size() != rank) continue;
        std::vector<SymInt> shape = node.results[0]->shape;
        for (const std::size_t d : places) shape[d] = -1;
        node.attributes.set("shape", shape);
    }
}

// Whether what a node is told in another run, on inputs of the same sizes, differs in sizes only that the op finds itself. It does, then.
bool leave_differing_to_op(std::vector<Graph>& graphs, const Graph& other, std::size_t n) {
    const Graph::Node &x = *graphs[0].nodes()[n], &y = *other.nodes()[n];
    if (!finds_sizes(x, {})) return false;
    const std::vector<SymInt> &mine = x.results[0]->shape, &others = y.results[0]->shape;
    if (mine.size() != others.size()) return false;
    std::vector<std::size_t> differing;
    for (std::size_t d = 0; d < mine.size(); ++d) {
        if (mine[d] != others[d]) differing.push_back(d);
    }
    if (!finds_sizes(x, differing) || !finds_sizes(y, differing)) return false;
    leave_to_op(graphs, n, differing);
    return true;
}

// What is made of results whose sizes depend on data, and these.
std::set<const Graph::Value*> made_of_data_sized(const Graph& graph) {
    std::set<const Graph::Value*> values;
    for (const auto& node : graph.nodes()) {
        const OpForm& form = node->attributes.form();
        const bool is_sized = form.data_sized && form.data_sized(node->attributes.data()) != 0;
        const auto is_made = [&](const Graph::Value* value) { return values.count(value) > 0; };
        if (is_sized || std::any_of(node->inputs.begin(), node->inputs.end(), is_made)) values.insert(node->results.begin(), node->results.end());
    }
    return values;
}

// Where data chose nothing in any run, the 0 that an op is told of it is as many as data chooses.
void leave_none_to_ops(std::vector<Graph>& graphs) {
    const std::set<const Graph::Value*> made = made_of_data_sized(graphs[0]);
    for (std::size_t n = 0; n < graphs[0].nodes().size(); ++n) {
        const Graph::Node& node = *graphs[0].nodes()[n];
        if (node.results.empty() || !made.count(node.results[0])) continue;
        std::vector<std::size_t> empty;
        for (std::size_t d = 0; d < node.results[0]->shape.size(); ++d) {
            if (node.results[0]->shape[d] == SymInt(0)) empty.push_back(d);
        }
        if (finds_sizes(node, empty)) leave_to_op(graphs, n, empty);
    }
}

// What differs in the other run, on inputs of the same sizes, was taken from sizes that depend on data. Empty: nothing was, or what was is
// left to ops from now on.
std::string taken_from_data(std::vector<Graph>& graphs, const Graph& b) {
    const Graph& a = graphs[0];
    if (a.nodes().size() != b.nodes().size() || a.constants().size() != b.constants().size()) return {};
    const auto said = [&](const Graph::Node& node, const std::string& what, const std::string& one, const std::string& other) {
        return fmt::format("{}: {} is {}, and {} with other data", at_line(node), what, one, other);
    };
    for (std::size_t n = 0; n < a.nodes().size(); ++n) {
        const Graph::Node &x = *a.nodes()[n], &y = *b.nodes()[n];
        if (x.op != y.op) return {};
        const auto mine = x.attributes.all(), others = y.attributes.all();
        for (std::size_t i = 0; i < mine.size(); ++i) {
            const std::string one = to_string(mine[i].second), other = to_string(others[i].second);
            if (one != other && !leave_differing_to_op(graphs, b, n)) return said(x, mine[i].first, one, other);
        }
    }
    for (std::size_t c = 0; c < a.constants().size(); ++c) {
        const Graph::Value &x = *a.constants()[c], &y = *b.constants()[c];
        if (!x.shape.empty() || !y.shape.empty() || x.uses.empty() || same_elements(x.data, y.data)) continue;
        return said(*x.uses[0].node, "an operand", x.data.str(), y.data.str());
    }
    return {};
}

// nan is as it was, too.
bool same_attribute(const Attribute& a, const Attribute& b) {
    const auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
    return a == b || (x && y && std::isnan(*x) && std::isnan(*y));
}

// Whether this attribute may be a whole number in a real one's place, full({}, double(n)): the result's dtype is another attribute's matter.
bool keeps_whole_numbers(const Graph::Node& node, const std::string& name) {
    bool is_scalar = false, has_dtype = node.op == "fill";
    Attributes copy = node.attributes;
    copy.each([&](const Field& field) {
        is_scalar |= field.kind == Field::Kind::scalar && name == field.name;
        has_dtype |= field.kind == Field::Kind::dtype;
    });
    return is_scalar && has_dtype;
}

// Several graphs of one program, for several sizes of its dimensions, as one.
class Union {
 public:
    Union(std::vector<Graph> graphs, std::vector<DimSizes> samples, const Loc& loc)
        : graphs_(std::move(graphs)), samples_(std::move(samples)), loc_(loc) {}

    Graph make() {
        Graph& whole = graphs_[0];
        for (std::size_t g = 1; g < graphs_.size(); ++g) check_same(whole, graphs_[g], g);
        for (std::size_t n = 0; n < whole.nodes().size(); ++n) join_attributes(n);
        join_shapes();
        join_constants();
        follow_data_sizes();
        return std::move(whole);
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
                if (x.inputs[i]->number != y.inputs[i]->number) fail_differs(&x, &y, g);
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
        fail<TapeError>(loc_, "trace: what the program does depends on the sizes: with {} it ran {}, with {} {}: a graph holds the one "
                        "branch that an if on a size took, and each step of a loop over a dimension, so that it would be right for one "
                        "size only: leave this dimension without a name, or go along it with scan()",
                        sizes_text(0), x ? at_line(*x) : "nothing", sizes_text(g), y ? at_line(*y) : "nothing");
    }

    std::optional<SymInt> join(const std::vector<std::int64_t>& values) const {
        if (std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end()) return SymInt(values[0]);
        return fit(samples_, values);
    }

    void join_attributes(std::size_t n) {
        Graph::Node& node = *graphs_[0].nodes()[n];
        std::vector<std::vector<std::pair<std::string, Attribute>>> all;
        for (const Graph& graph : graphs_) all.push_back(graph.nodes()[n]->attributes.all());
        for (std::size_t i = 0; i < all[0].size(); ++i) {
            const auto& [name, value] = all[0][i];
            const auto is_as_first = [&](const auto& other) { return same_attribute(other[i].second, value); };
            if (std::all_of(all.begin(), all.end(), is_as_first)) continue;
            const auto refuse = [&] {
                std::string text;
                for (std::size_t g = 0; g < all.size(); ++g) {
                    text += fmt::format("{}{} with {}", g ? ", " : "", to_string(all[g][i].second), sizes_text(g));
                }
                const char* hint = name == "lr" ? ": the learning rate changed between runs; a graph has one lr for good" : "";
                fail<TapeError>(loc_, "trace: {}: no formula of the named dimensions gives its {}: {}{}", at_line(node), name, text, hint);
            };
            if (std::holds_alternative<std::shared_ptr<const Graph>>(value)) {
                std::vector<Graph> parts;
                for (const auto& other : all) parts.push_back(*std::get<std::shared_ptr<const Graph>>(other[i].second));
                node.attributes.set(name, std::make_shared<const Graph>(Union(std::move(parts), samples_, loc_).make()));
                continue;
            }
            if (std::holds_alternative<SymInt>(value)) {
                std::vector<std::int64_t> numbers;
                for (const auto& other : all) numbers.push_back(std::get<SymInt>(other[i].second).number());
                const std::optional<SymInt> joined = join(numbers);
                if (!joined) refuse();
                node.attributes.set(name, *joined);
                continue;
            }
            if (std::holds_alternative<double>(value) && keeps_whole_numbers(node, name)) {
                std::vector<std::int64_t> numbers;
                for (const auto& other : all) {
                    const auto* real = std::get_if<double>(&other[i].second);
                    if (real && std::abs(*real) < 0x1p53 && *real == std::trunc(*real)) numbers.push_back(static_cast<std::int64_t>(*real));
                }
                const std::optional<SymInt> joined = numbers.size() == all.size() ? join(numbers) : std::nullopt;
                if (!joined) refuse();
                node.attributes.set(name, *joined);
                continue;
            }
            const auto* list = std::get_if<std::vector<SymInt>>(&value);
            if (!list) refuse();
            std::vector<SymInt> sizes;
            for (std::size_t e = 0; e < list->size(); ++e) {
                std::vector<std::int64_t> numbers;
                for (const auto& other : all) {
                    const auto& others = std::get<std::vector<SymInt>>(other[i].second);
                    if (others.size() != list->size()) refuse();
                    numbers.push_back(others[e].number());
                }
                const std::optional<SymInt> joined = join(numbers);
                if (joined) {
                    sizes.push_back(*joined);
                } else if (node.op == "reshape" && std::find(sizes.begin(), sizes.end(), SymInt(-1)) == sizes.end() &&
                           std::find(list->begin(), list->end(), SymInt(-1)) == list->end()) {
                    sizes.push_back(-1);  // whatever is left
                } else {
                    refuse();
                }
            }
            node.attributes.set(name, sizes);
        }
    }

    struct Number {
        SymInt value;
        bool is_reciprocal;
    };
    // A number that depends on the sizes, x / x.size(0), is computed from them. Other constants are the same each time.
    void join_constants() {
        Graph& whole = graphs_[0];
        std::vector<std::pair<Graph::Value*, Number>> found;
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
            const std::optional<Number> number = value->shape.empty() ? join_numbers(c) : std::nullopt;
            if (!number) {
                fail<TapeError>(loc_, "trace: {} that no op made depends on the sizes, in a way that no formula of the named dimensions gives",
                                user ? fmt::format("{}: an operand of it", at_line(*user)) : "an output");
            }
            found.emplace_back(value, *number);
        }
        const OpForm& form = *find_form("number");
        for (const auto& [value, number] : found) {
            Attributes attributes(form);
            attributes.set("value", number.value);
            attributes.set("is_reciprocal", number.is_reciprocal);
            attributes.set("dtype", value->dtype);
            whole.prepend(form, std::move(attributes), value);
        }
    }

    std::optional<Number> join_numbers(std::size_t c) const {
        for (const bool is_reciprocal : {false, true}) {
            std::vector<std::int64_t> numbers;
            for (const Graph& graph : graphs_) {
                const Tensor& x = graph.constants()[c]->data;
                const double number = load_double(x.dtype(), x.raw_data()), whole = is_reciprocal ? std::round(1 / number) : number;
                const double back = is_reciprocal ? 1 / whole : whole;
                const bool fits = std::abs(whole) < 0x1p53 && whole == std::trunc(whole) &&
                                  (x.dtype() == float32 ? static_cast<float>(back) == static_cast<float>(number) : back == number);
                if (!fits) break;
                numbers.push_back(static_cast<std::int64_t>(whole));
            }
            if (numbers.size() < graphs_.size()) continue;
            if (const std::optional<SymInt> joined = join(numbers)) return Number{*joined, is_reciprocal};
        }
        return std::nullopt;
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
    // What is made of results whose sizes depend on data has sizes that no sample tells: these are found by calling the ops.
    void follow_data_sizes() {
        Graph& whole = graphs_[0];
        const std::set<const Graph::Value*> made = made_of_data_sized(whole);
        int unknown = 0;
        for (const auto& node : whole.nodes()) {
            const Attributes& attributes = node->attributes;
            if (node->results.empty() || !made.count(node->results[0])) continue;
            const std::uint64_t own = attributes.form().data_sized ? attributes.form().data_sized(attributes.data()) : 0;
            for (std::size_t k = 0; k < node->results.size() && k < 64; ++k) {
                if (own >> k & 1) node->results[k]->shape[0] = SymInt::dim(fmt::format("{}_{}", node->op, unknown++));
            }
            if (own == 0) infer_again(*node);
        }
    }
    void infer_again(Graph::Node& node) {
        std::set<std::string> names;
        for (const Graph::Value* input : node.inputs) {
            for (const SymInt& size : input->shape) {
                for (std::string& name : size.dims()) names.insert(std::move(name));
            }
        }
        if (names.size() > 6) return;
        try {
            const std::vector<Inferred> made = infer_results(node.attributes, node.inputs, loc_);
            for (std::size_t k = 0; k < std::min(made.size(), node.results.size()); ++k) node.results[k]->shape = made[k].shape;
        } catch (const OutOfMemory&) {
            throw;
        } catch (const Error&) {  // it does not take zeros, or no other sizes: it will say so when it runs
        }
    }
    [[noreturn]] void fail_rank(const Graph::Value& value) {
        fail<TapeError>(loc_, "trace: the number of dimensions of {} depends on the sizes", value.maker ? at_line(*value.maker) : value.name);
    }

    std::vector<Graph> graphs_;
    std::vector<DimSizes> samples_;
    const Loc& loc_;
};

// Whether two runs did the same, but for copies: x.contiguous() copies nothing where all but one of the sizes are 1.
bool same_but_copies(const Graph& a, const Graph& b) {
    const auto ops_of = [](const Graph& graph) {
        std::vector<const Graph::Node*> ops;
        for (const auto& node : graph.nodes()) {
            if (node->op != "clone") ops.push_back(node.get());
        }
        return ops;
    };
    const auto same_parts = [](const Graph::Node& x, const Graph::Node& y) {
        if (!x.attributes.has_graph()) return true;
        const auto mine = x.attributes.all(), others = y.attributes.all();
        return std::equal(mine.begin(), mine.end(), others.begin(), others.end(), [](const auto& one, const auto& other) {
            const auto* part = std::get_if<std::shared_ptr<const Graph>>(&one.second);
            return !part || same_but_copies(**part, *std::get<std::shared_ptr<const Graph>>(other.second));
        });
    };
    const std::vector<const Graph::Node*> mine = ops_of(a), others = ops_of(b);
    return std::equal(mine.begin(), mine.end(), others.begin(), others.end(),
                      [&](const Graph::Node* x, const Graph::Node* y) { return x->op == y->op && same_parts(*x, *y); });
}

// A function, its inputs, and its runs with several sizes of the named dimensions.
class Program {
 public:
    Program(const TracedFunction& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options, const Loc& loc)
        : fn_(fn), inputs_(inputs), options_(options), loc_(loc), dims_(inputs.size()) {
        std::set<std::string> names;
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            const TraceInput& input = inputs[i];
            if (!input.tensor.defined()) fail<ValueError>(loc, "trace: the input {} is undefined", input.name);
            if (input.name.empty() || !names.insert(input.name).second) {
                fail<ValueError>(loc, "trace: each input needs a name of its own, got \"{}\"", input.name);
            }
            if (static_cast<int>(input.dims.size()) > input.tensor.dim()) {
                fail<ValueError>(loc, "trace: {} names of dimensions for the input {} of shape {}", input.dims.size(), input.name, input.tensor.shape());
            }
            for (std::size_t d = 0; d < input.dims.size(); ++d) {
                dims_[i].push_back(formula_of(input.dims[d], input.tensor.size(static_cast<int>(d)), input, sizes_, loc));
            }
        }
        if (sizes_.size() > 4) fail<ValueError>(loc, "trace: at most 4 dimensions can have names, got {}", sizes_.size());
        far_ = far_sizes(inputs, dims_);
    }

    /// What the run with the given inputs writes stays, unless this throws.
    Graph trace() const {
        Samples samples = run_samples(sizes_, /*with_first=*/false);
        Run own = run(given());  // the last: what it writes stays
        try {
            samples.graphs[0] = std::move(own.graph);
            return join(samples);
        } catch (const TapeError&) {
            own.undo();
            std::optional<Graph> graph = trace_larger();
            if (!graph) throw;
            return std::move(*graph);
        } catch (...) {
            own.undo();
            throw;
        }
    }

 private:
    struct Samples {
        std::vector<DimSizes> sizes;
        std::vector<Graph> graphs;
    };

    std::vector<Tensor> given() const { return tensors_of([](std::size_t, const Tensor& x) { return x; }); }
    std::vector<Tensor> with_sizes(const DimSizes& sizes) const {
        return tensors_of([&](std::size_t i, const Tensor& x) { return resized(x, dims_[i], sizes); });
    }
    template <typename F>
    std::vector<Tensor> tensors_of(const F& tensor_of) const {
        std::vector<Tensor> tensors;
        for (std::size_t i = 0; i < inputs_.size(); ++i) {
            Tensor x = tensor_of(i, inputs_[i].tensor);
            const bool is_anothers = std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& other) { return other.is_same(x); });
            tensors.push_back(is_anothers ? copy_of(x) : std::move(x));
        }
        return tensors;
    }

    Run run(const std::vector<Tensor>& tensors) const { return run_once(fn_, inputs_, tensors, options_, number_, loc_); }

    // What these runs write is undone. Without the first its graph is left empty.
    Samples run_samples(const DimSizes& first, bool with_first) const {
        Samples samples{samples_of(first, far_), {}};
        samples.graphs.resize(samples.sizes.size());
        const std::size_t far_sample = far_.empty() ? 0 : samples.sizes.size() - 1;
        for (std::size_t g = samples.sizes.size(); g-- > (with_first ? 0 : 1);) {
            const std::vector<Tensor> tensors = with_sizes(samples.sizes[g]);
            try {
                Run one = run(tensors);
                one.undo();
                samples.graphs[g] = std::move(one.graph);
            } catch (const std::exception&) {
                if (g != far_sample || g == 0) {  // of sizes that the program's user has never seen
                    rethrow_with_hint<ShapeError, IndexError, ValueError>(
                        std::current_exception(), fmt::format("; trace ran this with {}, since these dimensions are named", shown_sizes(samples.sizes[g])));
                }
                samples.sizes.pop_back();  // the program does not take such sizes
                samples.graphs.pop_back();
            }
        }
        return samples;
    }

    // An example of size 1 is a special case of its program: a dimension of size 1 can lie anywhere in memory, so that what would copy
    // does not. Then the graph is of larger sizes, if the example did the same but for copies.
    std::optional<Graph> trace_larger() const {
        DimSizes larger = sizes_;
        for (auto& [name, size] : larger) size = size < 2 ? 3 : size;
        if (larger == sizes_) return std::nullopt;
        try {
            Samples samples = run_samples(larger, /*with_first=*/true);
            const Run own = run(given());
            try {
                if (same_but_copies(samples.graphs[0], own.graph)) return join(samples);
            } catch (...) {
                own.undo();
                throw;
            }
            own.undo();
        } catch (const OutOfMemory&) {
            throw;
        } catch (const Error&) {  // what the first try said is nearer to the example
        }
        return std::nullopt;
    }

    Graph join(Samples& samples) const {
        check_data_sizes(samples.graphs);
        leave_none_to_ops(samples.graphs);
        return Union(std::move(samples.graphs), samples.sizes, loc_).make();
    }

    // Is anything taken from sizes that depend on data?
    void check_data_sizes(std::vector<Graph>& graphs) const {
        if (!has_data_sizes(graphs[0])) return;
        for (const bool by_smallest : {true, false}) {
            std::string taken;
            try {
                const TurnBound turns(kMadeUpTurns);
                const Run other = run(tensors_of([&](std::size_t, const Tensor& x) { return with_other_data(x, by_smallest); }));
                other.undo();
                taken = taken_from_data(graphs, other.graph);
            } catch (const OutOfMemory&) {
                throw;
            } catch (const Error&) {  // the program does not take such data: then this is not known
            }
            if (taken.empty()) continue;
            fail<TapeError>(loc_, "trace: {}: a graph cannot hold what the program takes from a size that depends on data (of x[mask], nonzero, unique): "
                            "choose with where() and sums instead", taken);
        }
    }

    const TracedFunction& fn_;
    const std::vector<TraceInput>& inputs_;
    const TraceOptions& options_;
    const Loc& loc_;
    std::vector<std::vector<SymInt>> dims_;  // of each input
    DimSizes sizes_, far_;
    const std::uint16_t number_ = next_trace();
};

}  // namespace

Graph trace(const TracedFunction& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options, const Loc& loc) {
    if (is_tracing()) fail<TapeError>(loc, "trace: this thread traces already");
    check_arity("trace", fn, inputs.size(), loc);
    for (const auto& [name, tensor] : options.parameters) {
        if (!tensor.defined()) fail<ValueError>(loc, "trace: the parameter {} is undefined", name);
    }
    return Program(fn, inputs, options, loc).trace();
}

}  // namespace tapir::detail
