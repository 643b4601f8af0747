// fused: element-wise ops of one shape and dtype, and of truth values beside it, as one pass; passes/pass_fuse.cpp joins
// them. fused_reduce: the same followed by a sum or a mean; the unreduced tensor never lies in memory. The computation is a graph, its
// attribute. If a tape records, or a kernel cannot do it, the ops of that graph are called.
#include "tapir/autograd/trace/run/fused_impl.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/autograd/trace/graph/node_scope_impl.h"
#include "tapir/core/broadcast_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/fused_kernels.h"
#include "tapir/ops/forms_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/linear/gemm_cpu.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/reduce_impl.h"

namespace tapir {

std::optional<FusedOp> fused_op(const OpForm& form) noexcept {
    if (const int op = elementwise_index(form); op >= 0) return FusedOp{op, -1};
    if (&form == &where_form) return FusedOp{-1, 0};
    if (&form == &masked_fill_form) return FusedOp{-1, 1};
    if (&form == &to_dtype_form) return FusedOp{-1, -1};
    return std::nullopt;
}

namespace {

using kernels::Compute;
using kernels::FusedArgs;
using kernels::FusedStep;

// A graph's ops as steps over registers.
struct Program {
    const Graph* of;
    std::unique_ptr<const Program> before;  // for the graph that was the attribute before; another thread may be running it
    bool is_good = false;
    DType dtype = bool_;  // of all values but truth values
    Compute compute = Compute::i32;
    std::vector<FusedStep> steps;
    std::vector<Tensor> constants;  // inputs after the graph's own: tiles of one number each
    std::vector<DType> inputs, output_dtypes;
    std::vector<std::uint8_t> outputs;
    int register_count = 0;
    bool is_held_as_stored = false;  // inputs and outputs have the same format in memory and in registers
    bool writes_at_last = false;     // the only output, after all is read
    bool runs_on_devices = true;     // numbers of one dtype only
#ifdef TAPIR_WITH_CUDA
    struct Compiled {
        std::atomic<gpu::FusedKernel*> kernel{nullptr};
        std::atomic<bool> is_tried{false};
    };
    static constexpr int kMostDevices = 16;
    mutable Compiled compiled[kMostDevices];  // by the device's index

    // For the selected device; null if there is none.
    gpu::FusedKernel* kernel(const FusedArgs& args, Device device) const {
        if (device.index >= kMostDevices) return nullptr;
        Compiled& here = compiled[device.index];
        if (!here.is_tried.load(std::memory_order_acquire)) {
            here.kernel.store(gpu::fused_kernel(args), std::memory_order_relaxed);
            here.is_tried.store(true, std::memory_order_release);
        }
        return here.kernel.load(std::memory_order_relaxed);
    }
#endif

    explicit Program(const Graph& body) : of(&body) {
        const auto& nodes = body.nodes();
        if (nodes.empty() || body.outputs().empty() || body.outputs().size() > FusedArgs::kMostOutputs) return;
        for (const Graph::Value* input : body.inputs()) {
            inputs.push_back(input->dtype);
            if (!takes(input->dtype)) return;
        }
        for (const auto& node : nodes) {
            if (node->results.size() != 1 || !takes(node->results[0]->dtype)) return;
        }
        if (dtype == uint8) return;
        compute = kernels::compute_of(dtype);
        std::unordered_map<const Graph::Value*, int> registers;
        for (const Graph::Value* input : body.inputs()) registers[input] = next++;
        for (const Graph::Value* constant : body.constants()) {
            if (constant->data.numel() != 1 || constant->device != cpu) return;
            const DType number = kernels::stored_as(compute);
            const std::int64_t tile = FusedArgs::kTileBytes / static_cast<std::int64_t>(itemsize(number));
            constants.push_back(detail::make_empty(Shape(tile), number, Device(), Loc{}));
            copy_elements(constants.back(), constant->data.reshape({1}));
            registers[constant] = next++;
        }
        if (next > FusedArgs::kMostInputs || !body.parameters().empty()) return;
        std::unordered_map<const Graph::Value*, std::size_t> last;
        for (std::size_t n = 0; n < nodes.size(); ++n) {
            for (const Graph::Value* input : nodes[n]->inputs) last[input] = n;
        }
        for (std::size_t n = 0; n < nodes.size(); ++n) {
            const Graph::Node& node = *nodes[n];
            const Graph::Value* result = node.results[0];
            std::vector<int> converted;
            // The register of an operand, as a number or as a truth value; -1: it cannot be one.
            const auto place_of = [&](const Graph::Value* value, bool as_truth) {
                const int place = registers.at(value);
                const bool is_truth = value->dtype == bool_ && value->kind != Graph::Kind::constant;  // constants have tiles of numbers
                if (is_truth == as_truth) return place;
                if (as_truth) return -1;
                runs_on_devices = false;
                converted.push_back(take_register(false));
                steps.push_back(
                    {kernels::number_loop(compute), nullptr, 1, {static_cast<std::uint8_t>(place)}, static_cast<std::uint8_t>(converted.back())});
                return converted.back();
            };
            const std::optional<FusedOp> op = fused_op(node.form());
            if (!op) return;
            FusedStep step{nullptr, nullptr, static_cast<std::uint8_t>(node.inputs.size()), {}, 0};
            int places[3] = {-1, -1, -1};
            if (op->elementwise >= 0) {
                const ElementwiseOp& row = elementwise_ops[op->elementwise];
                if (node.inputs.size() != row.operands || row.to_bool != (result->dtype == bool_)) return;
                step.op = row.index;
                step.loop = elementwise::loop_without_checks(row.index, compute);
                step.params = static_cast<const double*>(node.attributes().data());
                for (std::size_t i = 0; i < node.inputs.size(); ++i) places[i] = place_of(node.inputs[i], false);
            } else if (op->condition >= 0) {
                runs_on_devices = false;
                if (node.inputs.size() != 3 || result->dtype == bool_) return;
                const Graph::Value* const masked[] = {node.inputs[1], node.inputs[2], node.inputs[0]};
                step.loop = kernels::where_loop(compute);
                for (int i = 0; i < 3; ++i) {
                    const Graph::Value* operand = op->condition == 0 ? node.inputs[static_cast<std::size_t>(i)] : masked[i];
                    places[i] = place_of(operand, i == 0);
                }
            } else {  // converts truth values to numbers
                runs_on_devices = false;
                if (node.inputs.size() != 1 || result->dtype == bool_) return;
                step.loop = kernels::number_loop(compute);
                places[0] = place_of(node.inputs[0], true);
            }
            if (!step.loop) return;
            for (int i = 0; i < step.count; ++i) {
                if (places[i] < 0) return;
                step.in[i] = static_cast<std::uint8_t>(places[i]);
            }
            // A register that is read for the last time is written in place, if it holds the same kind; outputs keep theirs.
            const auto is_output = [&](const Graph::Value* value) {
                return std::any_of(body.outputs().begin(), body.outputs().end(), [&](const Graph::Output& output) { return output.value == value; });
            };
            std::vector<const Graph::Value*> gone;
            for (const Graph::Value* input : node.inputs) {
                const bool is_last = input->maker && last.at(input) == n && !is_output(input);
                if (is_last && std::find(gone.begin(), gone.end(), input) == gone.end()) gone.push_back(input);
            }
            for (const Graph::Value* value : gone) free[value->dtype == bool_].push_back(registers.at(value));
            free[false].insert(free[false].end(), converted.begin(), converted.end());
            registers[result] = is_output(result) ? next++ : take_register(result->dtype == bool_);
            if (next > FusedArgs::kMostRegisters) return;
            step.out = static_cast<std::uint8_t>(registers.at(result));
            steps.push_back(step);
            // Outputs are rounded when they are written.
            if ((result->dtype == float16 || result->dtype == bfloat16) && last.count(result)) {
                steps.push_back({kernels::rounding_loop(result->dtype), nullptr, 1, {step.out}, step.out});
            }
        }
        for (const Graph::Output& output : body.outputs()) {
            if (!output.value->maker) return;
            outputs.push_back(static_cast<std::uint8_t>(registers.at(output.value)));
            output_dtypes.push_back(output.value->dtype);
        }
        register_count = next;
        const auto is_other = [&](DType one) { return one != dtype; };
        const bool has_others =
            std::any_of(inputs.begin(), inputs.end(), is_other) || std::any_of(output_dtypes.begin(), output_dtypes.end(), is_other);
        runs_on_devices = runs_on_devices && !has_others && kernels::stored_as(compute) == dtype;
        const DType number = kernels::stored_as(compute);
        const auto is_as_stored = [&](DType one) { return one == number || one == bool_; };
        is_held_as_stored =
            std::all_of(inputs.begin(), inputs.end(), is_as_stored) && std::all_of(output_dtypes.begin(), output_dtypes.end(), is_as_stored);
        writes_at_last = outputs.size() == 1 && steps.back().out == outputs[0];
        std::vector<std::uint8_t> sorted = outputs;
        std::sort(sorted.begin(), sorted.end());
        is_good = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
    }

 private:
    int next = 0;              // register
    std::vector<int> free[2];  // registers for numbers, and for truth values

    bool takes(DType value) {
        if (value == bool_) return true;
        if (dtype == bool_) dtype = value;
        return dtype == value;
    }
    int take_register(bool is_truth) {
        if (free[is_truth].empty()) return next++;
        const int taken = free[is_truth].back();
        free[is_truth].pop_back();
        return taken;
    }
};

struct FusedAttrs {
    std::shared_ptr<const Graph> body;
    mutable std::atomic<const Program*> program{nullptr};  // made at the first use

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

struct Sizes {
    const std::int64_t* sizes;
    int rank;
    std::int64_t numel;
    const TensorImpl* permuted = nullptr;  // one of the outputs, if they have no gaps, but strides other than row-major ones
};

// Sets the outputs' dimensions in the order of their memory, merged if they are adjacent in every operand.
void set_geometry(FusedArgs& args, const Sizes& y, const TensorImpl* const* in, int inputs) {
    int order[kMaxRank], dims = 0;
    if (y.permuted) {
        dims = in_order_of_memory(y.permuted, order);
    } else {
        for (int d = 0; d < y.rank; ++d) {
            if (y.sizes[d] != 1) order[dims++] = d;
        }
    }
    args.rank = 0;
    for (int i = 0; i < dims; ++i) {
        const int d = order[i];
        std::int64_t strides[FusedArgs::kMostInputs];
        bool merge = args.rank > 0;
        for (int k = 0; k < inputs; ++k) {
            const int own = d - (y.rank - in[k]->rank);
            strides[k] = own < 0 || in[k]->sizes[own] == 1 ? 0 : in[k]->strides[own];
            merge = merge && args.in[k].strides[args.rank - 1] == strides[k] * y.sizes[d];
        }
        if (!merge) args.sizes[args.rank++] = 1;
        args.sizes[args.rank - 1] *= y.sizes[d];
        for (int k = 0; k < inputs; ++k) args.in[k].strides[args.rank - 1] = strides[k];
    }
}

// True if it is laid out as y, given y's sizes.
bool lies_as(const TensorImpl* x, const Sizes& y) noexcept {
    if (!y.permuted) return x->is_contiguous();
    for (int d = 0; d < y.rank; ++d) {
        if (y.sizes[d] != 1 && x->strides[d] != y.permuted->strides[d]) return false;
    }
    return true;
}

// Sets how to read an operand: as many elements as y in the same order; one; or repeated ones. Returns false if it does not fit.
bool set_way(const TensorImpl* x, const Sizes& y, bool is_held, FusedArgs::Way& way) noexcept {
    const int before = y.rank - x->rank;
    if (before < 0) return false;
    for (int d = 0; d < x->rank; ++d) {
        const std::int64_t size = x->sizes[d];
        if (size != y.sizes[before + d] && size != 1) return false;
    }
    way = x->numel == 1                                                                         ? FusedArgs::Way::repeated
        : is_held && x->numel == y.numel && (!y.permuted || x->rank == y.rank) && lies_as(x, y) ? FusedArgs::Way::linear
                                                                                                : FusedArgs::Way::strided;
    return true;
}

// Sets all but the outputs' addresses. Returns false if a kernel cannot do it.
bool set_inputs(FusedArgs& args, const Program& program, const FormCall& x, const Sizes& y, Device device) {
    if (device != cpu && !program.runs_on_devices) return false;
    args.compute = program.compute;
    args.steps = program.steps.data();
    args.step_count = static_cast<int>(program.steps.size());
    args.inputs = x.count + static_cast<int>(program.constants.size());
    args.outputs = static_cast<int>(program.outputs.size());
    args.registers = program.register_count;
    args.overlaps = false;
    args.numel = y.numel;
    for (int i = 0; i < args.outputs; ++i) {
        args.out_register[i] = program.outputs[static_cast<std::size_t>(i)];
        args.out_dtype[i] = program.output_dtypes[static_cast<std::size_t>(i)];
    }
    const DType number = kernels::stored_as(program.compute);
    const TensorImpl* in[FusedArgs::kMostInputs];
    bool is_linear = true;
    const DType* dtypes = program.inputs.data();
    for (int k = 0; k < x.count; ++k) {
        const TensorImpl* operand = in[k] = x.inputs[k]->impl();
        const DType dtype = dtypes[k];
        if (operand->dtype != dtype || operand->device != device) return false;
        if (!set_way(operand, y, dtype == number || dtype == bool_, args.way[k])) return false;
        args.in[k].data = kernel_data(operand);
        args.in[k].dtype = dtype;
        is_linear = is_linear && args.way[k] != FusedArgs::Way::strided;
    }
    const Tensor* constant = program.constants.data();
    for (int k = x.count; k < args.inputs; ++k, ++constant) {
        args.in[k].data = constant->raw_data();
        args.in[k].dtype = number;
        args.way[k] = FusedArgs::Way::filled;
    }
    if (!is_linear) set_geometry(args, y, in, x.count);
    return true;
}

// Runs a few whole vectors of contiguous operands that all have y's shape: most of the work in tiny graphs. Reads and writes in place.
// Returns false if nothing was done.
bool run_tile(const Program& program, const FormCall& x, const Sizes& y, void* const* out) {
    const auto most = FusedArgs::kTileBytes / static_cast<std::int64_t>(itemsize(kernels::stored_as(program.compute)));
    if (y.numel > most || y.numel % kernels::kLanes != 0 || !program.is_held_as_stored) return false;
    const void* place[FusedArgs::kMostRegisters];
    int next = 0;
    for (; next < x.count; ++next) {
        const TensorImpl* operand = x.inputs[next]->impl();
        if (operand->dtype != program.inputs[static_cast<std::size_t>(next)] || operand->rank != y.rank || operand->device.type != DeviceType::cpu)
            return false;
        for (int d = 0; d < y.rank; ++d) {
            if (operand->sizes[d] != y.sizes[d]) return false;
        }
        if (!lies_as(operand, y)) return false;
        place[next] = operand->data;
    }
    const std::size_t outputs = program.outputs.size();
    for (std::size_t i = 0; i < outputs && !program.writes_at_last; ++i) {
        if (std::find(place, place + next, out[i]) != place + next) return false;
    }
    for (const Tensor& constant : program.constants) place[next++] = constant.raw_data();
    alignas(64) std::byte buffers[FusedArgs::kMostRegisters][FusedArgs::kTileBytes];
    for (; next < program.register_count; ++next) place[next] = buffers[next];
    for (std::size_t i = 0; i < outputs; ++i) place[program.outputs[i]] = out[i];
    for (const FusedStep& step : program.steps) {
        const void* const in[3] = {place[step.in[0]], place[step.in[1]], place[step.in[2]]};
        step.loop(y.numel, const_cast<void*>(place[step.out]), in, step.params);
    }
    return true;
}

// Returns false if nothing was done.
bool run_on_device([[maybe_unused]] const Program& program, [[maybe_unused]] const FusedArgs& args, [[maybe_unused]] Device device) {
#ifdef TAPIR_WITH_CUDA
    gpu::FusedKernel* kernel = program.kernel(args, device);
    return kernel && gpu::run_fused_kernel(*kernel, args);
#else
    return false;
#endif
}

void run_all(const FusedArgs& args) {
    const std::int64_t grain = kParallelSteps / args.step_count + 1;
    if (args.numel < 2 * grain || num_threads() == 1) return kernels::run_fused(args, 0, args.numel);
    parallel_for(args.numel, grain, [&](std::int64_t begin, std::int64_t end) { kernels::run_fused(args, begin, end); });
}

// Null if there is none for these operands.
const Program* program_of(const FusedAttrs& attrs, const FormCall& x) {
    if (!attrs.body) return nullptr;
    const Program& program = attrs.ready();
    return program.is_good && static_cast<std::size_t>(x.count) == program.inputs.size() ? &program : nullptr;
}

bool fused_into(const FormCall& x, const Tensor& out) {
    const Program* program = program_of(*static_cast<const FusedAttrs*>(x.attrs), x);
    if (!program) return false;
    const TensorImpl* y = out.impl();
    const Sizes sizes{y->sizes, y->rank, y->numel, y->is_contiguous() ? nullptr : y};
    if (sizes.permuted && (on_gpu(y) || !detail::is_channels_last(y))) return false;
    const int outputs = static_cast<int>(program->outputs.size());
    void* places[FusedArgs::kMostOutputs];
    for (int i = 0; i < outputs; ++i) {
        const TensorImpl* result = (&out)[i].impl();
        if (result->rank != y->rank || !lies_as(result, sizes) || result->device != y->device || result->numel != y->numel) return false;
        if (result->dtype != program->output_dtypes[static_cast<std::size_t>(i)]) return false;
        places[i] = kernel_data(result);
    }
    if (!on_gpu(y) && run_tile(*program, x, sizes, places)) return true;
    FusedArgs args;
    if (!set_inputs(args, *program, x, sizes, y->device)) return false;
    for (int i = 0; i < outputs; ++i) {
        args.out[i] = places[i];
        for (int k = 0; k < x.count; ++k) args.overlaps = args.overlaps || places[i] == args.in[k].data;
    }
    if (program->writes_at_last) args.overlaps = false;
    if (on_gpu(y)) return run_on_device(*program, args, y->device);
    if (y->numel > 0) run_all(args);
    return true;
}

// --- Followed by a sum or a mean -----------------------------------------------------------------------------------------------

enum class FusedReduction : std::uint8_t { sum, mean };

struct FusedReduceAttrs {
    FusedAttrs body;
    FusedReduction reduction = FusedReduction::sum;
    reduction::Over over{};
};

// Contiguous elements (rows, columns), as reductions expect them.
TensorImpl matrix(void* elements, DType dtype, std::int64_t rows, std::int64_t columns) noexcept {
    TensorImpl x;
    x.dtype = dtype;
    x.rank = 2;
    x.flags = TensorImpl::kContiguous;
    x.data = static_cast<std::byte*>(elements);
    x.numel = rows * columns;
    x.sizes[0] = rows;
    x.sizes[1] = x.strides[0] = columns;
    x.strides[1] = 1;
    return x;
}

// The shape to which the operands broadcast; returns false if they do not.
bool broadcast_all(const FormCall& x, std::int64_t (&sizes)[kMaxRank], int& rank) noexcept {
    rank = 0;
    for (int k = 0; k < x.count; ++k) {
        if (!x.inputs[k]->defined()) return false;
        if (const int own = x.inputs[k]->impl()->rank; own > rank) rank = own;
    }
    for (int d = 0; d < rank; ++d) sizes[d] = 1;
    for (int k = 0; k < x.count; ++k) {
        const TensorImpl* t = x.inputs[k]->impl();
        for (int d = 0; d < t->rank; ++d) {
            std::int64_t& size = sizes[rank - t->rank + d];
            if (t->sizes[d] == 1 || t->sizes[d] == size) continue;
            if (size != 1) return false;
            size = t->sizes[d];
        }
    }
    return true;
}

// Computes the elements in parts, into memory that stays in the cache, and reduces them there, in the order in which the
// reduction of the whole tensor would add them.
bool fused_reduce_into(const FormCall& x, const Tensor& out) {
    constexpr std::int64_t chunk = 16 * 1024, part = 64 * 1024;  // elements; reductions cut at multiples of the latter
    const FusedReduceAttrs& attrs = *static_cast<const FusedReduceAttrs*>(x.attrs);
    const Program* program = program_of(attrs.body, x);
    if (!program || program->outputs.size() != 1 || (program->dtype != float32 && program->dtype != float64)) return false;
    if (program->output_dtypes[0] != program->dtype || !detail::is_plain(out.impl(), program->dtype)) return false;
    std::int64_t all_sizes[kMaxRank];
    Sizes sizes{all_sizes, 0, 1};
    if (!broadcast_all(x, all_sizes, sizes.rank)) return false;
    for (int d = 0; d < sizes.rank; ++d) sizes.numel *= all_sizes[d];
    if (sizes.numel == 0) return false;
    const std::uint32_t all = (1u << sizes.rank) - 1;
    const std::uint32_t dims = attrs.over.dims ? attrs.over.dims : all;
    if (dims & ~all) return false;
    std::int64_t count = 1;
    bool is_last = true;  // the reduced dimensions are the last ones
    for (int d = 0; d < sizes.rank; ++d) {
        if (dims >> d & 1) count *= sizes.sizes[d];
        is_last = is_last && !((dims >> d & 1) && d + 1 < sizes.rank && !(dims >> (d + 1) & 1));
    }
    const std::int64_t rows = sizes.numel / count;
    if (out.impl()->numel != rows) return false;
    const DType dtype = program->dtype;
    const reduction::Plan plan{kernels::Reduction::sum, reduction::compute_type(dtype)};
    reduction::Plan last = plan;
    if (attrs.reduction == FusedReduction::mean) last.finish = kernels::Finish::divide;
    last.divisor = static_cast<double>(count);
    const auto item = static_cast<std::int64_t>(itemsize(dtype));
    const auto room = [&](std::int64_t elements) { return kernels::gemm_workspace(static_cast<std::size_t>(elements * item)); };  // of the thread
    const auto reduce = [&](void* from, DType from_dtype, std::int64_t lines, std::int64_t columns, const reduction::Plan& how, void* to,
                            DType to_dtype) {
        const TensorImpl in = matrix(from, from_dtype, lines, columns), result = matrix(to, to_dtype, lines, 1);
        reduction::run(&in, {2, false}, how, &result);
    };
    const auto reduce_small = [&](void* from) {
        if (last.finish == kernels::Finish::none && dtype == float32 && sizes.numel < kParallelWork) {
            *static_cast<float*>(out.raw_data()) = static_cast<float>(kernels::sum_floats(static_cast<const float*>(from), sizes.numel));
        } else {
            reduce(from, dtype, 1, sizes.numel, last, out.raw_data(), dtype);
        }
        return true;
    };
    const bool is_small = rows == 1 && sizes.numel < 2 * part;
    void* const small = is_small ? room(sizes.numel) : nullptr;
    if (is_small && run_tile(*program, x, sizes, &small)) return reduce_small(small);
    FusedArgs args;
    if (!set_inputs(args, *program, x, sizes, Device())) return false;
    if (is_small) {
        args.out[0] = small;
        run_all(args);
        return reduce_small(small);
    }
    const auto compute = [&](void* scratch, std::int64_t begin, std::int64_t end) {
        FusedArgs own = args;
        own.out[0] = static_cast<std::byte*>(scratch) - begin * item;
        kernels::run_fused(own, begin, end);
    };
    if (rows == 1) {
        const std::int64_t parts = (sizes.numel + part - 1) / part;
        const Tensor partial = detail::make_empty(Shape(parts), plan.compute, Device(), Loc{});
        const auto size = static_cast<std::int64_t>(itemsize(plan.compute));
        share_out(parts, part, [&](std::int64_t from, std::int64_t to) {
            void* scratch = room(part);
            for (std::int64_t i = from; i < to; ++i) {
                const std::int64_t begin = i * part, end = std::min(begin + part, sizes.numel);
                compute(scratch, begin, end);
                reduce(scratch, dtype, 1, end - begin, plan, static_cast<std::byte*>(partial.raw_data()) + i * size, plan.compute);
            }
        });
        reduce(partial.raw_data(), plan.compute, 1, parts, last, out.raw_data(), dtype);
        return true;
    }
    if (is_last && count > 1 && count <= part && (rows > 64 || sizes.numel < 2 * part)) {
        const std::int64_t together = std::max<std::int64_t>(1, chunk / count);
        share_out(rows, count * args.step_count, [&](std::int64_t from, std::int64_t to) {
            void* scratch = room(std::min(together, to - from) * count);
            for (std::int64_t row = from; row < to; row += together) {
                const std::int64_t now = std::min(together, to - row);
                compute(scratch, row * count, (row + now) * count);
                reduce(scratch, dtype, now, count, last, static_cast<std::byte*>(out.raw_data()) + row * item, dtype);
            }
        });
        return true;
    }
    const Tensor whole = detail::make_empty(all_sizes, sizes.rank, sizes.numel, dtype, Device(), Loc{});
    args.out[0] = whole.raw_data();
    run_all(args);
    reduction::run(whole.impl(), {dims, false}, last, out.impl());
    return true;
}

// Runs the kernel, as later runs do. Returns false if it cannot, or if the operands differ in shape, as sizes that depend on data may.
bool run_fused_ops(const FormCall& x, const FusedAttrs& a, const Loc& loc, std::vector<Tensor>& results) {
    const Program* program = program_of(a, x);
    if (!program) return false;
    const Device device = x.count > 0 && x[0].defined() ? x[0].device() : Device();
    if (device != cpu && (!program->runs_on_devices || detail::watching_ops > 0)) return false;
    std::int64_t all_sizes[kMaxRank];
    int rank = 0;
    if (!broadcast_all(x, all_sizes, rank)) return false;
    const Shape shape(all_sizes, rank);
    std::unordered_map<const Graph::Value*, Shape> shapes;
    for (int i = 0; i < x.count; ++i) shapes[a.body->inputs()[static_cast<std::size_t>(i)]] = x[i].shape();
    for (const Graph::Value* constant : a.body->constants()) shapes[constant] = constant->data.shape();
    for (const auto& node : a.body->nodes()) {
        Shape own;
        for (const Graph::Value* input : node->inputs) own = broadcast_shapes(own, shapes[input]);
        if (own != shape) return false;
        shapes[node->results[0]] = own;
    }
    if (device != cpu) detail::begin_op("fused", x[0].impl(), loc);
    const bool is_channels_last = device == cpu && lies_channels_last(shape, x.inputs, x.count);
    for (const DType dtype : program->output_dtypes) results.push_back(make_in_layout(shape, dtype, device, is_channels_last, loc));
    if (fused_into(x, results[0])) return true;
    results.clear();
    return false;
}

// Runs op by op, for operands of any shape.
std::vector<Tensor> fused_of(const FormCall& x, const FusedAttrs& a) {
    const Loc loc = Loc::current();
    if (!a.body || a.body->inputs().size() != static_cast<std::size_t>(x.count)) {
        fail<ValueError>(loc, "fused: {} operands do not fit {}", x.count, a.body ? "the body" : "a body that is not there");
    }
    std::vector<Tensor> results;
    if (!detail::thread.observed.here && run_fused_ops(x, a, loc, results)) return results;
    std::unordered_map<const Graph::Value*, Tensor> values;
    for (int i = 0; i < x.count; ++i) values[a.body->inputs()[static_cast<std::size_t>(i)]] = x[i];
    for (const auto* list : {&a.body->constants(), &a.body->parameters()}) {
        for (const Graph::Value* value : *list) values[value] = value->data;
    }
    for (const auto& node : a.body->nodes()) {
        if (node->results.size() != 1 || !fused_op(node->form())) fail<ValueError>(loc, "fused: {} is no element-wise op", node->op());
        const detail::NodeScope scope(*node, loc);
        std::vector<const Tensor*> arguments;
        for (const Graph::Value* input : node->inputs) arguments.push_back(&values.at(input));
        Tensor y[2];
        node->form().run({arguments.data(), static_cast<int>(arguments.size()), node->attributes().data()}, y);
        const DType dtype = node->results[0]->dtype;
        values[node->results[0]] = y[0].dtype() == dtype ? y[0] : y[0].to(dtype);
    }
    for (const Graph::Output& output : a.body->outputs()) results.push_back(values.at(output.value));
    return results;
}

}  // namespace

namespace {

Tensor fused_reduce_of(const FormCall& x, const FusedReduceAttrs& a) {
    const std::vector<Tensor> all = fused_of(x, a.body);
    if (all.size() != 1) fail<ValueError>(Loc::current(), "fused_reduce: its body has {} outputs, and it reduces one", all.size());
    const Tensor& y = all[0];
    const Dims dims = reduction::dims_of(a.over);
    return a.reduction == FusedReduction::sum ? sum(y, dims, a.over.keepdim) : mean(y, dims, a.over.keepdim);
}

ResultTypes types_of(const TypeCall& t, const FusedAttrs& a) {
    types::need<ValueError>(a.body && a.body->inputs().size() == static_cast<std::size_t>(t.count), "the operands do not fit the body");
    ResultTypes results;
    if (auto given = detail::stated_results(*a.body, {t.operands, t.operands + t.count}, t.loc, /*keeps_dtypes=*/true)) {
        for (ValueType& type : *given) results.push_back(std::move(type));
    }
    return results;
}

ResultTypes types_of(const TypeCall& t, const FusedReduceAttrs& a) {
    const ResultTypes all = types_of(t, a.body);
    if (all.size() != 1) return {};
    const DType dtype = a.reduction == FusedReduction::sum ? types::summed(all[0].dtype) : types::floating(all[0].dtype);
    return types::reduced(all[0], reduction::dims_of(a.over), a.over.keepdim, dtype);
}

}  // namespace

TAPIR_IN_PLACE_FORM(fused, Operands::from(0), FusedAttrs, types_of(t, a), fused_of(x, a), fused_into, f("body", a.body));
TAPIR_INTO_FORM(fused_reduce, Operands::from(0), FusedReduceAttrs, types_of(t, a), fused_reduce_of(x, a), fused_reduce_into,
                f("reduction", a.reduction, {"sum", "mean"});
                reduction::over_fields(f, a.over); f("body", a.body.body));

bool is_fused_form(const OpForm& form) noexcept { return &form == &fused_form; }

}  // namespace tapir
