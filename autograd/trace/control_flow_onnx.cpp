// Writes cond, while_loop and scan as ONNX: If, Loop and Scan. Captures of a branch or body are operands of Tapir's node; in ONNX they are
// visible by name.
#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

using Graphs = std::shared_ptr<const Graph>;

// A number may be an operand of a graph.
OnnxValues lowered(const OnnxCall& x, int from, std::size_t count) {
    OnnxValues list;
    for (int i = from; i < from + static_cast<int>(count); ++i) {
        list.push_back(x[i].is_number() ? x.scalar(x[i].number(), x.dtype(i)) : x[i]);
    }
    return list;
}
// A condition of one element, as a scalar.
OnnxValue one_flag(const OnnxCall& x, const OnnxValue& value, std::size_t rank) {
    const OnnxValue flag = x.cast(value, bool_);
    return rank == 0 ? flag : x.reshape(flag, OnnxSizes{});
}

OnnxDTypes result_dtypes(const OnnxCall& x) {
    OnnxDTypes dtypes;
    for (int i = 0; i < x.result_count(); ++i) dtypes.push_back(x.result_dtype(i));
    return dtypes;
}

OnnxValues cond_of(const OnnxCall& x) {
    const Graphs parts[] = {x.graph("then_branch"), x.graph("else_branch")};
    OnnxAttributes attributes;
    int from = 1;
    for (int k = 0; k < 2; ++k) {
        const std::size_t uses = parts[k]->inputs().size();
        const OnnxValues given = lowered(x, from, uses);
        from += static_cast<int>(uses);
        x.builder().begin_graph();
        OnnxValues outputs = x.builder().write(*parts[k], given);
        if (std::ssize(outputs) < x.result_count()) x.refuse(fmt::format("a branch of it gives {} of {} results", outputs.size(), x.result_count()));
        for (int i = 0; i < x.result_count(); ++i) outputs[i] = x.cast(outputs[i], x.result_dtype(i));
        attributes.push_back(OnnxAttribute::graph(k == 0 ? "then_branch" : "else_branch", x.builder().end_graph(outputs)));
    }
    return x.nodes("If", result_dtypes(x), {one_flag(x, lowered(x, 0, 1)[0], x.shape(0).size())}, attributes);
}

OnnxValues while_of(const OnnxCall& x) {
    const Graphs condition = x.graph("condition"), body = x.graph("body");
    const bool keeps = x.flag("keep_steps");
    const std::size_t carries = body->outputs().size();
    if (carries == 0 || condition->outputs().empty() || condition->inputs().size() < carries || body->inputs().size() < carries) {
        x.refuse(fmt::format("{} carried, {} and {} inputs, {} outputs of its condition", carries, condition->inputs().size(), body->inputs().size(),
                             condition->outputs().size()));
    }
    const std::size_t test_uses = condition->inputs().size() - carries, body_uses = body->inputs().size() - carries;
    const OnnxValues begun = lowered(x, 0, carries), of_test = lowered(x, static_cast<int>(carries), test_uses),
                     of_body = lowered(x, static_cast<int>(carries + test_uses), body_uses);
    OnnxBuilder& builder = x.builder();
    const auto with = [](OnnxValues values, const OnnxValues& more) {
        values.append(more);
        return values;
    };
    const auto goes_on = [&](const OnnxValues& carried) {
        return one_flag(x, builder.write(*condition, with(carried, of_test))[0], condition->outputs()[0].value->shape.size());
    };
    const OnnxValue begins = goes_on(begun);
    const std::vector<SymInt> scalar;
    builder.begin_graph();
    builder.graph_input(int64, &scalar);
    builder.graph_input(bool_, &scalar);
    OnnxValues carried;
    for (int i = 0; i < begun.count(); ++i) {
        carried.push_back(builder.graph_input(x.dtype(i), &body->inputs()[static_cast<std::size_t>(i)]->shape, begun[i]));
    }
    OnnxValues next = builder.write(*body, with(carried, of_body));
    OnnxValues outputs = {goes_on(next)};
    outputs.append(next);
    if (keeps) outputs.append(carried);
    const int graph = builder.end_graph(outputs);
    if (keeps) builder.note_data_dependent();
    return x.nodes("Loop", result_dtypes(x), with({OnnxValue(), begins}, begun), {OnnxAttribute::graph("body", graph)});
}

OnnxValues scan_of(const OnnxCall& x) {
    const Graphs body = x.graph("body");
    const auto carries = static_cast<std::size_t>(x.integer("carries")), xs = static_cast<std::size_t>(x.integer("xs"));
    const bool reverse = x.flag("reverse"), keeps = x.flag("keep_steps");
    if (carries > body->outputs().size() || xs < 1 || xs > body->inputs().size() || carries + xs > body->inputs().size()) {
        x.refuse(fmt::format("{} carried along {} others, by a graph with {} inputs and {} outputs", x.integer("carries"), x.integer("xs"),
                             body->inputs().size(), body->outputs().size()));
    }
    const std::size_t outputs = body->outputs().size() - carries + (keeps ? carries : 0);
    const OnnxValues operands = lowered(x, 0, carries + xs);
    const OnnxValues uses = lowered(x, static_cast<int>(carries + xs), body->inputs().size() - carries - xs);
    OnnxBuilder& builder = x.builder();
    builder.begin_graph();
    OnnxValues given;
    for (int i = 0; i < operands.count(); ++i) {
        given.push_back(builder.graph_input(x.dtype(i), &body->inputs()[static_cast<std::size_t>(i)]->shape, operands[i]));
    }
    OnnxValues results = given;
    results.append(uses);
    results = builder.write(*body, results);
    if (keeps) results.append(given.first(static_cast<std::int64_t>(carries)));
    const int graph = builder.end_graph(results);
    OnnxAttributes attributes = {{"num_scan_inputs", static_cast<std::int64_t>(xs)}, OnnxAttribute::graph("body", graph)};
    if (reverse) {
        attributes.emplace_back("scan_input_directions", OnnxInts::of(static_cast<std::int64_t>(xs), 1));
        if (outputs > 0) attributes.emplace_back("scan_output_directions", OnnxInts::of(static_cast<std::int64_t>(outputs), 1));
    }
    return x.nodes("Scan", result_dtypes(x), operands, attributes);
}

}  // namespace

TAPIR_ONNX(cond, cond_of(x));
TAPIR_ONNX(while_loop, while_of(x));
TAPIR_ONNX(scan, scan_of(x));

}  // namespace tapir
