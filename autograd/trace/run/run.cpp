// Runs a graph op by op, as the program did.
#include <algorithm>
#include <cstring>
#include <functional>

#include "tapir/autograd/tape.h"
#include "tapir/autograd/trace/graph/check_node_impl.h"
#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/autograd/trace/graph/node_scope_impl.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/view/view_impl.h"

namespace tapir {
namespace {

constexpr std::int64_t kMostShown = 8;  // elements

// "1.", "float32 (3,): 1., 2., 3."; for many elements only some, beginning with this one.
std::string shown(const Tensor& x, std::int64_t from) {
    const Tensor flat = x.reshape({x.numel()});
    const auto element = [&](std::int64_t i) { return to_string(flat[i], {.precision = 17}); };  // with all digits
    if (x.numel() == 1) return element(0);
    if (x.numel() <= kMostShown) from = 0;
    std::string text = fmt::format("{} {}", x.dtype(), x.shape());
    if (from > 0) text += fmt::format(", from element {} on", from);
    const std::int64_t end = std::min(x.numel(), from + kMostShown);
    for (std::int64_t i = from; i < end; ++i) text += (i == from ? ": " : ", ") + element(i);
    return end < x.numel() ? text + ", ..." : text;
}

// In row-major order; for contiguous tensors of one shape.
std::int64_t first_difference(const Tensor& a, const Tensor& b) {
    const auto bytes = [](const Tensor& x) { return static_cast<const std::byte*>(x.raw_data()); };
    const auto [first, other] = std::mismatch(bytes(a), bytes(a) + a.nbytes(), bytes(b));
    return (first - bytes(a)) / static_cast<std::ptrdiff_t>(itemsize(a.dtype()));
}

}  // namespace

void detail::run_form(const OpForm& form, const FormCall& call, Tensor* results) {
    try {
        form.run(call, results);
    } catch (const TooFewInputs& error) {
        fail<ValueError>(Loc{}, "graph: {} is given {} input{}, and needs at least {}", form.op, call.count, call.count == 1 ? "" : "s",
                         error.needed());
    }
}

bool detail::same_elements(const Tensor& a, const Tensor& b) {
    if (a.is_same(b)) return true;
    if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
    const PauseRecording pause;
    const Tensor x = a.to(cpu).contiguous(), y = b.to(cpu).contiguous();
    return x.numel() == 0 || std::memcmp(x.raw_data(), y.raw_data(), x.nbytes()) == 0;
}

DimSizes detail::sizes_of_inputs(const Graph& graph, const Tensor* given, const Loc& loc) {
    DimSizes sizes;
    const auto each = [&](const auto& call) {
        for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
            if (given[i].defined()) call(*graph.inputs()[i], given[i]);
        }
    };
    const auto fail_shape = [&](const Graph::Value& wanted, const Tensor& x) {
        fail<ShapeError>(loc, "graph: the input {} has shape {}, the graph was made for {}", wanted.name, x.shape(),
                         to_string(Attribute(wanted.shape)));
    };
    each([&](const Graph::Value& wanted, const Tensor& x) {
        if (x.dtype() != wanted.dtype)
            fail<DTypeError>(loc, "graph: the input {} is {}, the graph was made for {}", wanted.name, x.dtype(), wanted.dtype);
        if (static_cast<std::size_t>(x.dim()) != wanted.shape.size()) fail_shape(wanted, x);
        for (std::size_t d = 0; d < wanted.shape.size(); ++d) {
            const std::optional<SymInt::OfOneDim> one = wanted.shape[d].of_one_dim();
            if (!one) continue;
            const std::optional<std::int64_t> have = one->size_for(x.size(static_cast<int>(d)));
            if (!have) fail_shape(wanted, x);
            const auto [known, is_new] = sizes.emplace(one->dim, *have);
            if (!is_new && known->second != *have) {
                fail<ShapeError>(loc, "graph: the dimension {} has size {}, but {} in the input {} of shape {}", one->dim, known->second, *have,
                                 wanted.name, x.shape());
            }
        }
    });
    each([&](const Graph::Value& wanted, const Tensor& x) {  // checks formulas of these
        for (std::size_t d = 0; d < wanted.shape.size(); ++d) {
            const SymInt size = wanted.shape[d].with(sizes, loc);
            if (size.is_number() && size.number() != x.size(static_cast<int>(d))) fail_shape(wanted, x);
        }
    });
    return sizes;
}

void detail::check_held(const Graph::Value& value, const Loc& loc) {
    const Tensor& x = value.data;
    const auto name = [&] { return value.kind == Graph::Kind::parameter ? "parameter " + value.name : "constant %" + std::to_string(value.number); };
    if (!x.defined()) fail<ValueError>(loc, "graph: the {} is undefined", name());
    if (x.dtype() != value.dtype) fail<DTypeError>(loc, "graph: the {} is {}, the graph was made for {}", name(), x.dtype(), value.dtype);
    bool fits = static_cast<std::size_t>(x.dim()) == value.shape.size();
    for (std::size_t d = 0; fits && d < value.shape.size(); ++d) {
        fits = !value.shape[d].is_number() || value.shape[d].number() == x.size(static_cast<int>(d));
    }
    if (fits) return;
    fail<ShapeError>(loc, "graph: the {} has shape {}, the graph was made for {}", name(), x.shape(), to_string(Attribute(value.shape)));
}

void detail::check_held(const Graph& graph, const Loc& loc) {
    for (const auto* list : {&graph.parameters(), &graph.constants()}) {
        for (const Graph::Value* value : *list) check_held(*value, loc);
    }
}

bool detail::writes_inputs(const Graph& graph) noexcept {
    const auto is_input = [](const Graph::Update& update) { return update.target->kind == Graph::Kind::input; };
    return std::any_of(graph.updates().begin(), graph.updates().end(), is_input);
}

void detail::check_written_inputs(const Graph& graph, const Tensor* const* given, const Loc& loc) {
    const std::vector<Graph::Value*>& inputs = graph.inputs();
    for (const Graph::Update& update : graph.updates()) {
        const auto written = std::find(inputs.begin(), inputs.end(), update.target) - inputs.begin();
        if (written == std::ssize(inputs) || !given[written]) continue;
        for (std::ptrdiff_t i = 0; i < std::ssize(inputs); ++i) {
            if (i == written || !given[i] || !may_overlap(*given[written], *given[i])) continue;
            fail<ValueError>(loc,
                             "graph: the input {}, which it writes to, and the input {} lie in the same memory: to the graph they are two; "
                             "give it a clone()",
                             inputs[static_cast<std::size_t>(written)]->name, inputs[static_cast<std::size_t>(i)]->name);
        }
    }
}

void detail::write_at_once(std::vector<std::pair<Tensor, Tensor>> updates, const Loc& loc) {
    if (updates.size() > 1) {
        std::vector<const void*> written;
        for (const auto& [target, value] : updates) written.push_back(target.impl()->storage);
        std::sort(written.begin(), written.end(), std::less<>());
        for (auto& [target, value] : updates) {
            const void* own = value.impl()->storage;
            if (own && !value.is_same(target) && std::binary_search(written.begin(), written.end(), own, std::less<>())) value = value.clone();
        }
    }
    for (auto& [target, value] : updates) target.copy_(value, loc);
}

void detail::check_guard(const Graph::Guard& guard, const Tensor& now, const Loc& loc) {
    if (same_elements(now, guard.expected)) return;
    const Tensor expected = guard.expected.to(cpu).contiguous(), found = now.to(cpu).contiguous();
    const bool is_alike = found.shape() == expected.shape() && found.dtype() == expected.dtype();
    const std::int64_t from = is_alike ? first_difference(expected, found) : 0;
    if (guard.loc.line() == 0) {
        fail<ValueError>(loc, "graph: the guard {} expects {}; it is {}", guard.what, shown(expected, from), shown(found, from));
    }
    fail<ValueError>(loc,
                     "graph: the program read a value with {}() at {} when it was traced: {}; it is {} now, and the program might go "
                     "another way",
                     guard.what, file_and_line(guard.loc), shown(expected, from), shown(found, from));
}

OnlyOutput Graph::only_output(const std::vector<Tensor>& inputs, const Loc& loc) const {
    const detail::CallLine call(loc);
    if (outputs_.size() != 1) fail<ValueError>(loc, "graph: its only output is asked for, and it has {}: write graph({{x}})", outputs_.size());
    return OnlyOutput((*this)(inputs, loc)[0]);
}

std::vector<Tensor> Graph::operator()(const std::vector<Tensor>& given, Loc loc) const {
    const detail::CallLine call(loc);
    if (given.size() != inputs_.size()) fail<ValueError>(loc, "graph: {} inputs given, it has {}", given.size(), inputs_.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
        if (!given[i].defined()) fail<ValueError>(loc, "graph: the input {} is undefined", inputs_[i]->name);
    }
    const DimSizes sizes = detail::sizes_of_inputs(*this, given.data(), loc);
    detail::check_held(*this, loc);
    if (detail::writes_inputs(*this)) {
        std::vector<const Tensor*> places;
        for (const Tensor& x : given) places.push_back(&x);
        detail::check_written_inputs(*this, places.data(), loc);
    }
    const bool is_traced = detail::is_tracing() && detail::is_watched();
    if (is_traced) {
        for (const Value* parameter : parameters_) tell_name(parameter->data, parameter->name);
    }
    const detail::PauseAutocast plain;  // the graph has the conversions of the program's autocast as ops
    std::vector<Tensor> values(static_cast<std::size_t>(next_));
    std::vector<int> uses(static_cast<std::size_t>(next_), 0);
    const auto at = [](const Value* value) { return static_cast<std::size_t>(value->number); };
    for (const auto& value : values_) {
        uses[at(value.get())] = static_cast<int>(value->uses.size());
        if (value->data.defined()) values[at(value.get())] = value->data;
    }
    for (const Output& output : outputs_) ++uses[at(output.value)];
    for (const Update& update : updates_) ++uses[at(update.value)];
    for (const Guard& guard : guards_) ++uses[at(guard.value)];
    for (std::size_t i = 0; i < given.size(); ++i) values[at(inputs_[i])] = given[i];
    std::vector<Tensor> arguments;
    std::vector<const Tensor*> addresses;
    for (const auto& node : nodes_) {
        const detail::NodeScope scope(*node, loc);
        arguments.clear();
        for (const Value* input : node->inputs) {
            Tensor& x = values[at(input)];
            if (--uses[at(input)] == 0 && input->kind == Kind::result) {
                arguments.push_back(std::move(x));
            } else {
                arguments.push_back(x);
            }
        }
        addresses.clear();
        for (const Tensor& argument : arguments) addresses.push_back(&argument);
        Tensor results[detail::kMostResults];
        const auto run = [&](const Attributes& attributes) {
            detail::run_form(attributes.form(), {addresses.data(), static_cast<int>(addresses.size()), attributes.data()}, results);
        };
        node->attributes().is_symbolic() ? run(node->attributes().with(sizes, loc)) : run(node->attributes());
        for (std::size_t k = 0; k < node->results.size(); ++k) {
            const Value* result = node->results[k];
            if (uses[at(result)] == 0) continue;
            Tensor& y = results[k];
            if (!y.defined()) fail<ValueError>(loc, "graph: {} gives no result {}", node->op(), k);
            detail::check_result(*node, k, y, addresses.data(), loc);
            // Numbers among the operands are tensors here, and may weigh more in a promotion.
            values[at(result)] = y.dtype() == result->dtype ? std::move(y) : y.to(result->dtype);
        }
    }
    std::vector<Tensor> outputs;
    for (const Output& output : outputs_) outputs.push_back(values[at(output.value)]);
    std::vector<std::pair<Tensor, Tensor>> writes;
    for (const Update& update : updates_) {
        writes.emplace_back(update.target->kind == Kind::input ? values[at(update.target)] : update.target->data, values[at(update.value)]);
    }
    if (is_traced) {  // all of this belongs to the outer graph, too
        for (const Guard& guard : guards_) {
            detail::note_read("guard", values[at(guard.value)], guard.loc.line() ? guard.loc : loc);
            detail::check_guard(guard, values[at(guard.value)], loc);
        }
        const NoGradScope no_grad;
        detail::write_at_once(std::move(writes), loc);
        return outputs;
    }
    const detail::PauseRecording pause;
    for (std::size_t i = 0; i < outputs.size(); ++i) {  // constants of the graph are returned as copies
        if (rewrite::is_of_constant(outputs_[i].value)) outputs[i] = outputs[i].clone();
    }
    for (const Guard& guard : guards_) detail::check_guard(guard, values[at(guard.value)], loc);
    detail::write_at_once(std::move(writes), loc);
    return outputs;
}

}  // namespace tapir
