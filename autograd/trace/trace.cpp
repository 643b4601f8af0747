// Tracing: runs the function, and joins the runs into one graph.
#include "tapir/autograd/trace/trace.h"

#include <algorithm>
#include <optional>
#include <set>

#include "tapir/autograd/thread_tapes_impl.h"
#include "tapir/autograd/trace/check_trace_impl.h"
#include "tapir/autograd/trace/data_sizes_impl.h"
#include "tapir/autograd/trace/fit_impl.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/autograd/trace/hint_impl.h"
#include "tapir/autograd/trace/join_graphs_impl.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/autograd/trace/sequence_loops_impl.h"
#include "tapir/autograd/trace/tracer_impl.h"
#include "tapir/autograd/trace/turn_bound_impl.h"
#include "tapir/core/allocator.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/shapes_only_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/arrange/combine.h"

namespace tapir::detail {
namespace {

// The formula of a dimension's name, "batch" or "32*height", for an input that has this size there.
SymInt formula_of(const std::string& name, std::int64_t size, const TraceInput& input, DimSizes& sizes, const Loc& loc) {
    if (name.empty()) return size;
    const bool is_formula = name[0] >= '0' && name[0] <= '9';
    if (!is_formula && name.find_first_of("*/+- ()?") != std::string::npos) {
        fail<ValueError>(loc, "trace: the dimension {} of {}: a name has no {}; a number comes first, \"32*height\"", name, input.name,
                         "* / + - ( ) ?");
    }
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

// The increase of the last sample in the dimensions after the first, along which strides may run.
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

// x with other sizes: its elements along a dimension repeat from the first on, as often as needed.
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
    return x.clone(Loc{}).requires_grad_(x.requires_grad());  // errors of memory name the line of trace()
}

using Backups = std::vector<std::pair<Tensor, Tensor>>;

// Undoes what a run wrote and drew. If it drew nothing, the generator stays: other threads share it and may have drawn.
void put_back(const Backups& backups, const std::vector<KeptGradient>& gradients, const Generator::State* before) {
    if (before) default_generator().set_state(*before);
    const PauseRecording pause;
    const ShapesOnly computes(false);
    for (const auto& [tensor, copy] : backups) Tensor(tensor).copy_(copy, Loc{});
    for (const KeptGradient& kept : gradients) kept.put_back();
}

// Copies the graph's constants, so that they keep their values, whatever the program does with its tensors later.
void own_constants(Graph& graph) {
    const PauseRecording pause;
    for (Graph::Value* constant : graph.constants()) constant->data = constant->data.clone(Loc{});
    rewrite::in_nested(graph, [](Graph& nested) {
        own_constants(nested);
        return 1;
    });
}

struct Run {
    Graph graph;
    Backups backups;
    std::vector<KeptGradient> gradients;
    Generator::State before;  // of the default generator
    bool drew;

    void undo() const { put_back(backups, gradients, drew ? &before : nullptr); }
};

Run run_once(const TracedFunction& fn, const std::vector<TraceInput>& inputs, const std::vector<Tensor>& tensors, const TraceOptions& options,
             std::uint16_t number, const Loc& loc) {
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
        if (drew && default_generator().seed() != before.seed) {  // its position may be changed by other threads
            fail<TapeError>(
                loc,
                "trace: the function seeds the random generator: each run of a graph draws on from where the generator is: seed it before the run");
        }
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

// A function, its inputs, and its runs with several sizes of the named dimensions.
class Program {
 public:
    Program(const TracedFunction& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options, bool is_model, const Loc& loc)
        : fn_(fn), inputs_(inputs), options_(options), loc_(loc), dims_(inputs.size()), is_model_(is_model) {
        std::set<std::string> names;
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            const TraceInput& input = inputs[i];
            if (!input.tensor.defined()) fail<ValueError>(loc, "trace: the input {} is undefined", input.name);
            if (input.name.empty() || !names.insert(input.name).second) {
                fail<ValueError>(loc, "trace: each input needs a name of its own, got \"{}\"", input.name);
            }
            if (static_cast<int>(input.dims.size()) > input.tensor.dim()) {
                fail<ValueError>(loc, "trace: {} names of dimensions for the input {} of shape {}", input.dims.size(), input.name,
                                 input.tensor.shape());
            }
            for (std::size_t d = 0; d < input.dims.size(); ++d) {
                dims_[i].push_back(formula_of(input.dims[d], input.tensor.size(static_cast<int>(d)), input, sizes_, loc));
            }
        }
        if (sizes_.size() > 4) fail<ValueError>(loc, "trace: at most 4 dimensions can have names, got {}", sizes_.size());
        far_ = far_sizes(inputs, dims_);
    }

    /// Writes of the run with the given inputs stay, unless this throws.
    Graph trace() const {
        Samples samples = run_samples(sizes_, /*with_first=*/false);
        const std::vector<Tensor> tensors = given();
        Run own = run(tensors);  // the last run: its writes stay
        try {
            samples.graphs[0] = std::move(own.graph);
            Graph graph = join(samples);
            finish(graph, tensors);
            return graph;
        } catch (const TapeError&) {
            own.undo();
            std::optional<Graph> graph = trace_larger();
            if (!graph && is_model_) graph = trace_many_sizes();
            if (!graph) throw;
            const std::vector<Tensor> again = given();
            run(again);
            finish(*graph, again);
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

    // Copies, so that an example which the function also sees by itself is no input there; except leaves, which may get gradients.
    std::vector<Tensor> given() const {
        return tensors_of([](std::size_t, const Tensor& x) { return x.requires_grad() ? x : copy_of(x); });
    }
    // Called after the run of given(): its writes to these stay, and the graph's constants become its own, as a model's are.
    void finish(Graph& graph, const std::vector<Tensor>& tensors) const {
        const PauseRecording pause;
        if (!is_model_) own_constants(graph);
        for (const Graph::Update& update : graph.updates()) {
            const auto input =
                static_cast<std::size_t>(std::find(graph.inputs().begin(), graph.inputs().end(), update.target) - graph.inputs().begin());
            if (input == tensors.size() || inputs_[input].tensor.is_same(tensors[input])) continue;
            Tensor(inputs_[input].tensor).copy_(tensors[input]);
        }
    }
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

    // Undoes the writes of these runs. Without the first run its graph stays empty.
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
                if (g != far_sample || g == 0) {  // the program's user has not seen these sizes
                    rethrow_with_hint<ShapeError, IndexError, ValueError>(
                        std::current_exception(),
                        fmt::format("; trace ran this with {}, since these dimensions are named", shown_sizes(samples.sizes[g])));
                }
                samples.sizes.pop_back();  // the program refuses such sizes
                samples.graphs.pop_back();
            }
        }
        return samples;
    }

    // An example of size 1 is a special case of its program: such a dimension can have any stride, so that contiguous() copies
    // nothing. Then the graph is traced with larger sizes.
    std::optional<Graph> trace_larger() const {
        DimSizes larger = sizes_;
        for (auto& [name, size] : larger) size = size < 2 ? 3 : size;
        if (larger == sizes_) return std::nullopt;
        try {
            Samples samples = run_samples(larger, /*with_first=*/true);
            Graph graph = join(samples);
            if (!graph.guards().empty()) return std::nullopt;  // they expect values for other inputs than the example
            check_with(graph, sizes_);
            return graph;
        } catch (const OutOfMemory&) {
            throw;
        } catch (const Error&) {  // the error of the first try is closer to the example
            return std::nullopt;
        }
    }

    // Formulas that divide sizes, as strides do, need many sizes, with all remainders. Models have such formulas; user programs with them are
    // refused, as before.
    std::optional<Graph> trace_many_sizes() const {
        const auto is_multiple = [](const SymInt& dim) {
            const auto one = dim.of_one_dim();
            return one && one->factor > 1;
        };
        const auto has_multiple = [&](const std::vector<SymInt>& dims) { return std::any_of(dims.begin(), dims.end(), is_multiple); };
        if (sizes_.empty() || std::any_of(dims_.begin(), dims_.end(), has_multiple)) return std::nullopt;
        DimSizes first = sizes_;
        for (auto& [name, size] : first) size = std::max<std::int64_t>(size, 3);
        try {
            Samples samples = run_samples(first, /*with_first=*/true);
            for (std::int64_t i = 2; i < kManySizes; ++i) add_sample(samples, sized_apart(first, i, 1));
            for (const std::int64_t i : {3, 5, 8}) add_sample(samples, sized_apart(first, i, 9));
            Graph graph = join(samples, /*many_samples=*/true);
            return graph.guards().empty() ? std::optional(std::move(graph)) : std::nullopt;
        } catch (const OutOfMemory&) {
            return std::nullopt;
        } catch (const Error&) {  // the error of the first try is closer to the example
            return std::nullopt;
        }
    }

    static constexpr std::int64_t kManySizes = 17;

    // Sizes that differ by the index of the dimension, so that dependences on one and on another can be told apart. Batches stay small.
    DimSizes sized_apart(DimSizes sizes, std::int64_t i, std::int64_t step) const {
        std::int64_t number = 0;
        for (auto& [name, size] : sizes) {
            const bool is_batch = far_.count(name) == 0;
            size += is_batch ? (i + number) % 3 : step * ((2 * number + 1) * i % kManySizes);
            ++number;
        }
        return sizes;
    }

    // Leaves out sizes that the program refuses.
    void add_sample(Samples& samples, const DimSizes& sizes) const {
        try {
            Run one = run(with_sizes(sizes));
            one.undo();
            samples.sizes.push_back(sizes);
            samples.graphs.push_back(std::move(one.graph));
        } catch (const ShapeError&) {
        } catch (const ValueError&) {
        } catch (const IndexError&) {
        } catch (const OutOfMemory&) {}
    }

    Graph join(Samples& samples, bool many_samples = false) const {
        check_data_sizes(samples.graphs);
        leave_none_to_ops(samples.graphs);
        JoinedGraph joined = join_graphs(std::move(samples.graphs), samples.sizes, loc_, many_samples);
        if (many_samples) {
            for (const std::int64_t i : {2, 7}) check_with(joined.graph, sized_apart(samples.sizes[0], i, 5));
        }
        for (const DimSizes& sizes : sizes_to_check(samples.sizes[0], joined)) check_with(joined.graph, sizes);
        if (const std::optional<DimSizes> turned = in_other_order(samples.sizes[0])) {
            check_with(joined.graph, *turned);
        }
        return std::move(joined.graph);
    }

    // The smallest sizes, for which programs do other things; a larger one, also of batches; one beyond the bounds of slices; and, if a
    // formula is a guess, more beyond the given sizes.
    std::vector<DimSizes> sizes_to_check(const DimSizes& first, const JoinedGraph& joined) const {
        std::vector<DimSizes> all;
        if (sizes_.empty() && !is_model_) all.push_back(first);  // to see if it does the same again
        if (!sizes_.empty()) {
            for (const std::int64_t size : {1, 2}) {
                all.push_back(first);
                for (auto& [name, own] : all.back()) own = size;
            }
            all.push_back(first);
            for (auto& [name, own] : all.back()) own += is_model_ ? 1 : far_.count(name) ? 0 : 19;
            if (all.back() == first) all.pop_back();
        }
        constexpr std::int64_t most = 1 << 14;
        if (const std::int64_t bound = largest_bound(joined.graph); bound > 0 && bound <= most) {
            all.push_back(first);
            for (auto& [name, own] : all.back()) own = std::max(own, 2 * bound + 3);
        }
        const std::set<std::string>& guessed = joined.guessed;
        if (!guessed.empty()) {
            for (const std::int64_t more : {2, 3, 4, 6, 7, 8, 10}) {
                all.push_back(first);
                for (const std::string& name : guessed) all.back().at(name) += more;
            }
        }
        return all;
    }

    // Reverses the order of the dimensions' sizes: programs take the minimum of two, or branch on which is larger.
    std::optional<DimSizes> in_other_order(const DimSizes& first) const {
        if (first.size() < 2) return std::nullopt;
        DimSizes factors;  // 8 of "8*height"
        for (const std::vector<SymInt>& dims : dims_) {
            for (const SymInt& dim : dims) {
                if (const auto one = dim.of_one_dim()) factors[one->dim] = std::max(factors[one->dim], one->factor);
            }
        }
        std::vector<std::pair<std::int64_t, std::string>> sizes;
        for (const auto& [name, size] : first) sizes.emplace_back(size * factors[name], name);
        std::stable_sort(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
        std::int64_t next = std::max<std::int64_t>(sizes.front().first, 2);
        DimSizes turned;
        for (; !sizes.empty(); sizes.pop_back()) {
            const std::string& name = sizes.back().second;
            turned[name] = (next + factors[name] - 1) / factors[name];
            next = turned[name] * factors[name] + 3;
        }
        return turned;
    }

    void check_with(const Graph& graph, const DimSizes& sizes) const {
        const std::string how = difference_from_program(graph, fn_, with_sizes(sizes), is_model_, loc_);
        if (how.empty()) return;
        if (sizes.empty()) {
            fail<TapeError>(
                loc_,
                "trace: called once more, the program does not do what it did: {}: a graph does always the same; what the program keeps from "
                "call to call is to be a tensor that it writes to in place, and its numbers those of Tapir's generator",
                how);
        }
        fail<TapeError>(loc_, "trace: with {} the graph does not do what the program does: {}: leave a dimension that decides on it without a name",
                        shown_sizes(sizes), how);
    }

    // See Note [Taken from data sizes].
    void check_data_sizes(std::vector<Graph>& graphs) const {
        if (!has_data_sizes(graphs[0])) return;
        for (const OtherData how : kOtherData) {
            std::string taken;
            try {
                const TurnBound turns(kMadeUpTurns);
                const Run other = run(tensors_of([&](std::size_t, const Tensor& x) { return with_other_data(x, how); }));
                other.undo();
                taken = taken_from_data(graphs, other.graph);
            } catch (const OutOfMemory&) {
                throw;
            } catch (const Error&) {  // the program refuses such data, so this stays unknown
            }
            if (taken.empty()) continue;
            fail<TapeError>(loc_,
                            "trace: {}: a graph cannot hold what the program takes from a size that depends on data (of x[mask], nonzero, unique): "
                            "choose with where() and sums instead",
                            taken);
        }
    }

    const TracedFunction& fn_;
    const std::vector<TraceInput>& inputs_;
    const TraceOptions& options_;
    const Loc& loc_;
    std::vector<std::vector<SymInt>> dims_;  // for each input
    DimSizes sizes_, far_;
    bool is_model_;
    const std::uint16_t number_ = next_trace();
};

}  // namespace

Graph trace(const TracedFunction& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options, const Loc& loc, bool is_model) {
    const CallLine call(loc);
    if (is_tracing()) fail<TapeError>(loc, "trace: this thread traces already");
    refuse_in_instance("trace", loc);
    check_arity("trace", fn, inputs.size(), loc);
    for (const auto& [name, tensor] : options.parameters) {
        if (!tensor.defined()) fail<ValueError>(loc, "trace: the parameter {} is undefined", name);
    }
    // Runs of the program and of the graph need memory that neither the program nor the compiled graph has a use for.
    const struct Emptied {
        ~Emptied() { empty_cache(); }
    } emptied;
    const Program program(fn, inputs, options, is_model, loc);
    {
        const SequenceLoopsScope step_by_step(/*are_scans=*/false);
        try {
            return program.trace();
        } catch (const OutOfMemory&) {
            throw;
        } catch (const Error&) {
            if (!sequence_loops.were_met) throw;
        }
    }
    const SequenceLoopsScope as_scans(/*are_scans=*/true);
    return program.trace();
}

}  // namespace tapir::detail
