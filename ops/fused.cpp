// fused: element-wise ops of one shape and dtype as one pass (autograd/trace/pass_fuse.cpp puts them together). What it does is a graph,
// its attribute; where a tape records, or a kernel cannot do it, the ops of that graph are called.
#include "tapir/ops/fused_impl.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/graph.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/elementwise_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/kernels/fused.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {

int elementwise_index(const OpForm& form) noexcept {
    for (int k = 0; k < kElementwiseOps; ++k) {
        if (&elementwise_forms[k] == &form) return k;
    }
    return -1;
}

namespace {

using kernels::Compute;
using kernels::FusedArgs;
using kernels::FusedStep;

// A graph's ops as steps over registers.
struct Program {
    const Graph* of;
    std::unique_ptr<const Program> before;  // of a graph that was the attribute before; another thread may be running it
    bool is_good = false;
    DType dtype = float32;
    std::vector<FusedStep> steps;
    std::vector<Tensor> constants;  // inputs after the graph's own: tiles of a number each
    std::size_t inputs = 0;
    std::vector<std::uint8_t> outputs;

    explicit Program(const Graph& body) : of(&body) {
        const auto& nodes = body.nodes();
        if (nodes.empty() || body.outputs().empty() || body.outputs().size() > FusedArgs::kMostOutputs) return;
        dtype = nodes[0]->results[0]->dtype;
        if (dtype != float32 && dtype != float64 && dtype != int32 && dtype != int64) return;
        const Compute compute = kernels::compute_of(dtype);
        inputs = body.inputs().size();
        std::unordered_map<const Graph::Value*, int> registers;
        int next = 0;
        for (const Graph::Value* input : body.inputs()) {
            if (input->dtype != dtype) return;
            registers[input] = next++;
        }
        for (const Graph::Value* constant : body.constants()) {
            if (constant->dtype != dtype || constant->data.numel() != 1 || constant->device != cpu) return;
            const std::int64_t tile = FusedArgs::kTileBytes / static_cast<std::int64_t>(itemsize(dtype));
            constants.push_back(detail::make_empty(Shape(tile), dtype, Device(), Loc{}));
            copy_elements(constants.back(), constant->data.reshape({1}));
            registers[constant] = next++;
        }
        if (next > FusedArgs::kMostInputs || !body.parameters().empty()) return;
        std::unordered_map<const Graph::Value*, std::size_t> last;
        for (std::size_t n = 0; n < nodes.size(); ++n) {
            for (const Graph::Value* input : nodes[n]->inputs) last[input] = n;
        }
        std::vector<int> free;
        for (std::size_t n = 0; n < nodes.size(); ++n) {
            const Graph::Node& node = *nodes[n];
            const int op = elementwise_index(node.attributes.form());
            if (op < 0 || node.results[0]->dtype != dtype || node.inputs.size() != elementwise_ops[op].operands) return;
            FusedStep step{elementwise::loop_without_checks(static_cast<Elementwise>(op), compute),
                           static_cast<const double*>(node.attributes.data()), static_cast<std::uint8_t>(node.inputs.size()), {}, 0};
            if (!step.loop) return;
            for (std::size_t i = 0; i < node.inputs.size(); ++i) step.in[i] = static_cast<std::uint8_t>(registers.at(node.inputs[i]));
            // A register that is read for the last time is written to, as in place; outputs keep theirs.
            const auto is_output = [&](const Graph::Value* value) {
                return std::any_of(body.outputs().begin(), body.outputs().end(), [&](const Graph::Output& output) { return output.value == value; });
            };
            const Graph::Value* result = node.results[0];
            std::vector<const Graph::Value*> gone;
            for (const Graph::Value* input : node.inputs) {
                const bool is_last = input->maker && last.at(input) == n && !is_output(input);
                if (is_last && std::find(gone.begin(), gone.end(), input) == gone.end()) gone.push_back(input);
            }
            for (const Graph::Value* value : gone) free.push_back(registers.at(value));
            if (free.empty() || is_output(result)) {
                registers[result] = next++;
            } else {
                registers[result] = free.back();
                free.pop_back();
            }
            if (next > FusedArgs::kMostRegisters) return;
            step.out = static_cast<std::uint8_t>(registers.at(result));
            steps.push_back(step);
        }
        for (const Graph::Output& output : body.outputs()) {
            if (!output.value->maker) return;
            outputs.push_back(static_cast<std::uint8_t>(registers.at(output.value)));
        }
        std::vector<std::uint8_t> sorted = outputs;
        std::sort(sorted.begin(), sorted.end());
        is_good = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
    }
};

struct FusedAttrs {
    std::shared_ptr<const Graph> body;
    mutable std::atomic<const Program*> program{nullptr};  // made when it is needed first

    FusedAttrs() = default;
    FusedAttrs(const FusedAttrs& other) : body(other.body) {}
    FusedAttrs& operator=(const FusedAttrs&) = delete;
    ~FusedAttrs() { delete program.load(); }

    const Program& ready() const {
        const Program* known = program.load(std::memory_order_acquire);
        if (known && known->of == body.get()) [[likely]]
            return *known;
        auto made = std::make_unique<Program>(*body);
        if (!program.compare_exchange_strong(known, made.get())) return *known;
        made->before.reset(known);
        return *made.release();
    }
};

constexpr std::int64_t kParallelSteps = 64 * 1024;  // elements times ops: below, waking threads costs more than it gains

// The outputs' dimensions, merged where they lie behind each other in every operand.
void set_geometry(FusedArgs& args, const TensorImpl* y, const TensorImpl* const* in, int inputs) {
    args.rank = 0;
    for (int d = 0; d < y->rank; ++d) {
        if (y->sizes[d] == 1) continue;
        std::int64_t strides[FusedArgs::kMostInputs];
        bool merge = args.rank > 0;
        for (int k = 0; k < inputs; ++k) {
            const int own = d - (y->rank - in[k]->rank);
            strides[k] = own < 0 || in[k]->sizes[own] == 1 ? 0 : in[k]->strides[own];
            merge = merge && args.in[k].strides[args.rank - 1] == strides[k] * y->sizes[d];
        }
        if (!merge) args.sizes[args.rank++] = 1;
        args.sizes[args.rank - 1] *= y->sizes[d];
        for (int k = 0; k < inputs; ++k) args.in[k].strides[args.rank - 1] = strides[k];
    }
}

bool broadcasts_to(const TensorImpl* x, const TensorImpl* y) noexcept {
    if (x->rank > y->rank) return false;
    for (int d = 0; d < x->rank; ++d) {
        const std::int64_t size = x->sizes[d];
        if (size != 1 && size != y->sizes[y->rank - x->rank + d]) return false;
    }
    return true;
}

bool fused_into(const FormCall& x, const Tensor& out) {
    const FusedAttrs& attrs = *static_cast<const FusedAttrs*>(x.attrs);
    if (!attrs.body) return false;
    const Program& program = attrs.ready();
    if (!program.is_good || static_cast<std::size_t>(x.count) != program.inputs) return false;
    const TensorImpl* y = out.impl();
    FusedArgs args;
    args.compute = kernels::compute_of(program.dtype);
    args.steps = program.steps.data();
    args.step_count = static_cast<int>(program.steps.size());
    args.inputs = x.count + static_cast<int>(program.constants.size());
    args.outputs = static_cast<int>(program.outputs.size());
    args.overlaps = false;
    args.numel = y->numel;
    for (int i = 0; i < args.outputs; ++i) {
        const TensorImpl* result = (&out)[i].impl();
        if (!detail::is_plain(result, program.dtype) || result->numel != y->numel) return false;
        args.out[i] = result->data;
        args.out_register[i] = program.outputs[static_cast<std::size_t>(i)];
    }
    const TensorImpl* in[FusedArgs::kMostInputs];
    bool is_linear = true;
    for (int k = 0; k < args.inputs; ++k) {
        if (k >= x.count) {
            in[k] = nullptr;
            args.in[k].data = program.constants[static_cast<std::size_t>(k - x.count)].raw_data();
            args.way[k] = FusedArgs::Way::filled;
            continue;
        }
        const TensorImpl* operand = in[k] = x.inputs[k]->impl();
        if (operand->dtype != program.dtype || operand->device.type != DeviceType::cpu || !broadcasts_to(operand, y)) return false;
        args.in[k].data = operand->data;
        args.in[k].dtype = program.dtype;
        args.way[k] = operand->numel == 1 ? FusedArgs::Way::repeated
                      : operand->is_contiguous() && operand->numel == y->numel ? FusedArgs::Way::linear : FusedArgs::Way::strided;
        is_linear = is_linear && args.way[k] != FusedArgs::Way::strided;
        for (int i = 0; i < args.outputs; ++i) args.overlaps = args.overlaps || args.out[i] == operand->data;
    }
    if (y->numel == 0) return true;
    // What the last step writes nobody reads after.
    if (args.outputs == 1 && program.steps.back().out == program.outputs[0]) args.overlaps = false;
    if (!is_linear) set_geometry(args, y, in, x.count);
    const std::int64_t grain = kParallelSteps / args.step_count + 1;
    if (y->numel < 2 * grain || num_threads() == 1) {
        kernels::run_fused(args, 0, y->numel);
    } else {
        parallel_for(y->numel, grain, [&](std::int64_t begin, std::int64_t end) { kernels::run_fused(args, begin, end); });
    }
    return true;
}

// Op by op, in whatever shape the operands have: sizes that depend on data are not those of the trace.
std::vector<Tensor> fused_of(const FormCall& x, const FusedAttrs& a) {
    const Loc loc = Loc::current();
    if (!a.body || a.body->inputs().size() != static_cast<std::size_t>(x.count)) {
        fail<ValueError>(loc, "fused: {} operands do not fit {}", x.count, a.body ? "the body" : "a body that is not there");
    }
    std::unordered_map<const Graph::Value*, Tensor> values;
    for (int i = 0; i < x.count; ++i) values[a.body->inputs()[static_cast<std::size_t>(i)]] = x[i];
    for (const auto* list : {&a.body->constants(), &a.body->parameters()}) {
        for (const Graph::Value* value : *list) values[value] = value->data;
    }
    const detail::ModuleRestore restore;
    for (const auto& node : a.body->nodes()) {
        if (node->results.size() != 1 || elementwise_index(node->attributes.form()) < 0) fail<ValueError>(loc, "fused: {} is no element-wise op", node->op);
        const CallerScope caller(node->loc.line() ? node->loc : loc);
        detail::thread.module = node->module;
        detail::thread.module_call = node->module_call;
        std::vector<const Tensor*> arguments;
        for (const Graph::Value* input : node->inputs) arguments.push_back(&values.at(input));
        Tensor y[2];
        node->attributes.form().run({arguments.data(), static_cast<int>(arguments.size()), node->attributes.data()}, y);
        const DType dtype = node->results[0]->dtype;
        values[node->results[0]] = y[0].dtype() == dtype ? y[0] : y[0].to(dtype);
    }
    std::vector<Tensor> results;
    for (const Graph::Output& output : a.body->outputs()) results.push_back(values.at(output.value));
    return results;
}

}  // namespace

TAPIR_INTO_FORM(fused, FusedAttrs, fused_of(x, a), fused_into, f("body", a.body));

bool is_fused_form(const OpForm& form) noexcept { return &form == &fused_form; }

}  // namespace tapir
