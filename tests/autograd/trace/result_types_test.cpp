// The rule that an op states for the types of its results says what it gives: for every sample of every op and of its gradient, in several dtypes,
// for numbers and for named dimensions; and it refuses the operands that the op refuses for their shapes, and no others.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "../../fails.h"
#include "../../ops/samples.h"
#include "../../sanitizers.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"

using namespace tapir;

namespace {

using Program = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

ValueType type_of(const Graph::Value& value) { return {value.dtype, value.device, value.shape}; }

std::string shown(const std::vector<ValueType>& all) {
    std::string text;
    for (const ValueType& type : all) {
        text += std::string(text.empty() ? "" : ", ") + name(type.dtype) + " (";
        for (const SymInt& size : type.shape) text += size.str() + ",";
        text += ")";
    }
    return text;
}

struct Tally {
    std::set<std::string> stated, unstated, unknown;  // ops; the last: that leave a size open of which the trace has a formula
    int compared = 0, named = 0;
};

bool is_open(const SymInt& size) { return size == types::unknown(); }
// The trace has found no formula for it, or data decides on it: it has a name of its own, "unknown_0", "slice_1", which no input's dimension has.
bool is_without_formula(const SymInt& size) {
    const std::vector<std::string> dims = size.dims();
    return dims.size() == 1 && size == SymInt::dim(dims[0]) && dims[0].find('_') != std::string::npos;
}

// Formulas may be written in several ways.
bool are_equal(const SymInt& a, const SymInt& b) {
    if (a == b) return true;
    std::vector<std::string> dims = a.dims();
    const std::vector<std::string> more = b.dims();
    dims.insert(dims.end(), more.begin(), more.end());
    for (const std::int64_t step : {1, 2, 3, 5}) {
        DimSizes sizes;
        std::int64_t next = 40;
        for (const std::string& dim : dims) sizes[dim] = next += 12 * step + 1;
        if (a.value(sizes) != b.value(sizes)) return false;
    }
    return true;
}

void check_node(const Graph::Node& node, Tally& tally, bool is_named) {
    std::vector<ValueType> operands, results;
    for (const Graph::Value* input : node.inputs) operands.push_back(type_of(*input));
    for (const Graph::Value* result : node.results) results.push_back(type_of(*result));
    const std::string op(node.op());
    INFO(op << " of " << shown(operands) << "\n  gives  " << shown(results));
    const ResultTypes stated = detail::result_types(node.attributes(), operands, {});
    if (stated.empty() && !results.empty()) {
        tally.unstated.insert(op);
        return;
    }
    tally.stated.insert(op);
    (is_named ? tally.named : tally.compared)++;
    INFO("  stated " << shown(stated));
    if (stated.size() != results.size()) {
        FAIL_CHECK("another number of results");
        return;
    }
    const std::uint64_t data_sized = node.form().data_sized ? node.form().data_sized(node.attributes().data()) : 0;
    for (std::size_t k = 0; k < results.size(); ++k) {
        CHECK(stated[k].dtype == results[k].dtype);
        CHECK(stated[k].device == results[k].device);
        CHECK(stated[k].rank() == results[k].rank());
        for (std::size_t d = 0; d < std::min(stated[k].shape.size(), results[k].shape.size()); ++d) {
            const SymInt &said = stated[k].shape[d], &given = results[k].shape[d];
            if (d == 0 && k < 64 && data_sized >> k & 1) {
                CHECK(is_open(said));
            } else if (is_open(said)) {
                CHECK((is_named || is_without_formula(given)));
                if (!is_without_formula(given)) tally.unknown.insert(op);
            } else if (!is_without_formula(given)) {
                CHECK(are_equal(said, given));
            }
        }
    }
}

void check_nodes(const Graph& graph, Tally& tally, bool is_named) {
    for (const auto& node : graph.nodes()) check_node(*node, tally, is_named);
}

// Each size has a name of its own: "n4" for all that are 4. Of more than four dimensions the last keep their numbers: a trace tries larger sizes
// of what is named, and a volume of such sizes takes minutes.
Graph traced(const Program& fn, const std::vector<Tensor>& inputs, bool is_named) {
    std::vector<TraceInput> list;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        TraceInput input{"x" + std::to_string(i), inputs[i]};
        if (is_named) {
            for (int d = 0; d < std::min(inputs[i].dim(), 4); ++d) input.dims.push_back("n" + std::to_string(inputs[i].size(d)));
        }
        list.push_back(std::move(input));
    }
    return trace(fn, list);
}

// Nothing where it cannot be traced: it depends on values, or on these sizes, or takes no such dtypes.
std::optional<Graph> try_to_trace(const Program& fn, const std::vector<Tensor>& inputs, bool is_named) {
    try {
        return traced(fn, inputs, is_named);
    } catch (const Error&) {
        return std::nullopt;
    }
}

bool is_left_out(const test::Call& call, int number) { return call.extreme || (test::kSanitized && number % 16 != 0); }

std::string joined(const std::set<std::string>& ops) {
    std::string text;
    for (const std::string& op : ops) text += op + " ";
    return text;
}

}  // namespace

TEST_CASE("the types that ops state are what they give") {
    Tally tally;
    int number = 0;
    for (const test::Call& call : test::all_calls()) {
        if (is_left_out(call, number++)) continue;
        INFO(call.name << ": " << call.code);
        const Program gradients = [&](const std::vector<Tensor>& x) { return test::gradients(call, x); };
        const std::vector<Tensor> inputs = test::make_inputs(call);
        for (const bool is_named : {false, true}) {
            std::vector<test::Variant> variants = {{"float64", inputs}};
            if (!is_named) {
                for (test::Variant& variant : test::variants(call)) variants.push_back(std::move(variant));
            }
            for (const test::Variant& variant : variants) {
                INFO(variant.name << (is_named ? ", named" : ""));
                const auto graph = try_to_trace(call.run, variant.inputs, is_named);
                if (graph) check_nodes(*graph, tally, is_named);
            }
            auto graph = call.differentiable ? try_to_trace(gradients, inputs, is_named) : std::nullopt;
            if (!graph) continue;
            INFO("its gradient" << (is_named ? ", named" : ""));
            check_nodes(*graph, tally, is_named);
            if (fuse_elementwise(*graph) == 0) continue;
            INFO("fused");
            check_nodes(*graph, tally, is_named);
        }
    }
    if (test::kSanitized) return;  // of a few of the calls
    INFO(tally.stated.size() << " ops, " << tally.compared << " calls, and " << tally.named << " of named dimensions");
    CHECK(joined(tally.unstated) == "");
    // The smaller of two sizes, what may be cut off at an end, and a quotient by a name: the trace has a formula that holds nearby.
    CHECK(joined(tally.unknown) == "arange diagonal linalg_qr linalg_svdvals slice ");
    CHECK(tally.stated.size() >= 280);
    CHECK(tally.compared > 40000);
    CHECK(tally.named > 20000);
}

TEST_CASE("the types that branches, loops and packed weights state are what they give") {
    manual_seed(3);
    Tally tally;
    const Tensor w = (randn({4, 4}, float64) * 0.5).requires_grad_(), x = randn({3, 4}, float64);
    const auto step = [&](const Tensor& h, const Tensor& row) {
        const Tensor next = tanh(matmul(h, w) + row);
        return std::tuple{next, next * h, sum(next)};
    };
    const Program branch = [&](const std::vector<Tensor>& t) {
        const auto [a, b] =
            cond(sum(t[0]) > 0, [&] { return std::pair{matmul(t[0], w), sum(t[0], {0})}; }, [&] { return std::pair{t[0] * 2, t[0][0]}; });
        return std::vector{a * b};
    };
    const Program loop = [&](const std::vector<Tensor>& t) {
        const auto end = while_loop([](const Tensor& i, const Tensor&) { return i < 3; },
                                    [&](const Tensor& i, const Tensor& h) { return std::pair{i + 1, tanh(matmul(h, w))}; }, {zeros({}, int64), t[0]});
        return std::vector{end[1] * 2};
    };
    const Program steps = [&](const std::vector<Tensor>& t) {
        const ScanResult r = scan(step, {zeros({4}, float64)}, {t[0]}, {.reverse = true});
        return std::vector{r.outputs[0] * unsqueeze(r.outputs[1], 1) + r.carry[0]};
    };
    for (const Program& program : {branch, loop, steps}) {
        for (const bool is_named : {false, true}) {
            const std::vector<std::string> dims = is_named ? std::vector<std::string>{"n", ""} : std::vector<std::string>{};
            const Graph graph = trace(program, {{"x0", x, dims}}), gradient = grad(graph, {graph.outputs()[0].name}, {"x0"});
            for (const Graph* each : {&graph, &gradient}) {
                INFO(each->str());
                check_nodes(*each, tally, is_named);
            }
        }
    }
    const Tensor row = randn({1, 6}), weight = randn({5, 6}).requires_grad_();
    Graph graph = trace([&](const Tensor& t) { return linear(t, weight); }, {{"x", row}});
    freeze(graph);
    REQUIRE(pack_weights(graph) == 1);
    check_nodes(graph, tally, false);
    CHECK(joined(tally.unstated) == "");
    for (const char* op : {"cond", "while_loop", "scan", "packed_linear"}) CHECK(tally.stated.count(op) == 1);
}

// --- What is refused -------------------------------------------------------------------------------------------------------------------

namespace {

// With a dimension more or less, or another size.
std::vector<std::vector<SymInt>> others(const std::vector<SymInt>& shape) {
    std::vector<std::vector<SymInt>> all;
    const auto add = [&](const auto& change) { change(all.emplace_back(shape)); };
    add([](auto& s) { s.insert(s.begin(), 2); });
    add([](auto& s) { s.push_back(1); });
    if (shape.empty()) return all;
    add([](auto& s) { s.erase(s.begin()); });
    add([](auto& s) { s.pop_back(); });
    add([](auto& s) { s.clear(); });
    for (std::size_t d = 0; d < shape.size(); ++d) {
        add([d](auto& s) { s[d] = s[d] + SymInt(1); });
        add([d](auto& s) { s[d] = 1; });
        add([d](auto& s) { s[d] = 0; });
    }
    return all;
}

struct Refusals {
    std::map<std::string, std::string> too_many, too_few, wrong;  // of each op one
    int refused = 0, taken = 0;
};

// The op is called, on zeros or the like.
void check_refusals(const Graph::Node& node, Refusals& refusals) {
    const std::string op(node.op());
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        for (const std::vector<SymInt>& shape : others(node.inputs[i]->shape)) {
            std::vector<Graph::Value> values;
            std::vector<ValueType> operands;
            for (const Graph::Value* input : node.inputs) values.push_back(*input);
            values[i].shape = shape;
            values[i].kind = Graph::Kind::input;
            std::vector<Graph::Value*> places;
            for (Graph::Value& value : values) {
                places.push_back(&value);
                operands.push_back(type_of(value));
            }
            std::string why, op_why;
            bool is_shape_error = false;
            ResultTypes stated;
            std::vector<ValueType> given;
            try {
                stated = detail::result_types(node.attributes(), operands, {});
            } catch (const Error& error) {
                why = error.what();
            }
            try {
                given = detail::tried_results(node.attributes(), places, {});
            } catch (const OutOfMemory&) {
                continue;
            } catch (const ShapeError& error) {
                op_why = error.what();
                is_shape_error = true;
            } catch (const Error& error) {
                op_why = error.what();
            }
            const std::string text = shown(operands) + ": ";
            (why.empty() ? refusals.taken : refusals.refused)++;
            if (!why.empty() && op_why.empty()) refusals.too_many.try_emplace(op, text + why);
            if (why.empty() && is_shape_error && !stated.empty()) refusals.too_few.try_emplace(op, text + op_why);
            if (!why.empty() || !op_why.empty() || stated.empty()) continue;
            bool is_same = given.size() == stated.size();
            for (std::size_t k = 0; is_same && k < given.size(); ++k) {
                is_same = given[k].dtype == stated[k].dtype && given[k].shape.size() == stated[k].shape.size();
                for (std::size_t d = 0; is_same && d < given[k].shape.size(); ++d)
                    is_same = is_open(stated[k].shape[d]) || given[k].shape[d] == stated[k].shape[d];
            }
            if (!is_same) refusals.wrong.try_emplace(op, text + shown(stated) + ", and it gives " + shown(given));
        }
    }
}

std::string listed(const std::map<std::string, std::string>& all) {
    std::string text;
    for (const auto& [op, what] : all) text += op + ": " + what + "\n";
    return text;
}

}  // namespace

TEST_CASE("the types that ops state are refused where the op refuses shapes") {
    Refusals refusals;
    int number = 0;
    for (const test::Call& call : test::all_calls()) {
        if (is_left_out(call, number++)) continue;
        const std::vector<Tensor> inputs = test::make_inputs(call);
        for (const bool is_gradient : {false, true}) {
            if (is_gradient && !call.differentiable) continue;
            const Program gradients = [&](const std::vector<Tensor>& x) { return test::gradients(call, x); };
            const auto graph = try_to_trace(is_gradient ? gradients : call.run, inputs, false);
            if (!graph) continue;
            for (const auto& node : graph->nodes()) {
                const bool is_sized_by_data = std::any_of(node->inputs.begin(), node->inputs.end(), [](const Graph::Value* x) {
                    return std::any_of(x->shape.begin(), x->shape.end(), [](const SymInt& size) { return !size.is_number(); });
                });
                if (!is_sized_by_data) check_refusals(*node, refusals);
            }
        }
    }
    CHECK(listed(refusals.too_many) == "");
    CHECK(listed(refusals.too_few) == "");
    CHECK(listed(refusals.wrong) == "");
    if (!test::kSanitized) CHECK(std::min(refusals.refused, refusals.taken) > 5000);
}

TEST_CASE("a rule says what does not fit") {
    const auto of = [](const char* op, const std::vector<std::vector<SymInt>>& shapes,
                       const std::vector<std::pair<const char*, Attribute>>& given = {}, Loc loc = Loc::current()) {
        Attributes attributes(*find_form(op));
        for (const auto& [name, value] : given) attributes.set(name, value);
        std::vector<ValueType> operands;
        for (const auto& shape : shapes) operands.push_back({float32, cpu, shape});
        return shown(detail::result_types(attributes, operands, loc));
    };
    const SymInt n = SymInt::dim("n"), m = SymInt::dim("m");
    const auto sizes = [](std::vector<SymInt> list) { return Attribute(std::move(list)); };
    CHECK(of("matmul", {{7, n, 3}, {3, m}}) == "float32 (7,n,m,)");
    CHECK(of("matmul", {{n}, {m, 4}}) == "float32 (4,)");  // they may be equal
    CHECK(of("reshape", {{n, 4, m}}, {{"shape", sizes({n, -1})}}) == "float32 (n,4*m,)");
    CHECK(of("slice", {{n + m}}, {{"dim", SymInt(0)}, {"start", n}, {"end", n + m}, {"step", SymInt(2)}}) == "float32 ((m + 1)//2,)");
    CHECK(of("slice", {{n}}, {{"dim", SymInt(0)}, {"start", SymInt(1)}, {"end", n}, {"step", SymInt(1)}}) == "float32 (unknown,)");
    CHECK(of("convolution", {{n, 3, m, 9}, {4, 3, 3, 3}}, {{"stride", sizes({2})}, {"padding", sizes({1})}}) == "float32 (n,4,(m + 1)//2,5,)");
    CHECK(of("max_pool", {{1, 2, n}}, {{"kernel_size", sizes({3})}, {"stride", sizes({2})}}) ==
          "float32 (1,2,(n + 1)//2 - 1,), int32 (1,2,(n + 1)//2 - 1,)");
    CHECK(of("linalg_qr", {{n, n}}) == "float32 (n,n,), float32 (n,n,)");
    CHECK(of("linalg_qr", {{n, m}}) == "float32 (n,unknown,), float32 (unknown,m,)");
    FAILS(ShapeError, "matmul: inner dimensions differ: 3 and 4", of("matmul", {{n, 3}, {4, m}}));
    FAILS(ShapeError, "causal_softmax: needs 2 or more dimensions, got 1", of("causal_softmax", {{5}}));
    FAILS(ShapeError, "softmax_backward: sizes 4 and 3", of("softmax_backward", {{2, 3}, {2, 4}}));
    FAILS(IndexError, "softmax: dimension 2 is out of range", of("softmax", {{2, 3}}, {{"dim", SymInt(2)}}));
    FAILS(ValueError, "gather: needs more than 1 operands", of("gather", {{2, 3}}));
}
