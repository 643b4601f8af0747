// Compares a graph with its program, op by op.
//
// The program runs under a tracer of its own. This gives a second graph, equal to the first where the program took the same branches;
// the results of the program's ops are kept. Then the first graph runs, node by node.
#include "tapir/autograd/trace/check_trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>

#include "tapir/autograd/trace/check_trace_impl.h"
#include "tapir/autograd/trace/compare_run_impl.h"
#include "tapir/autograd/trace/control_flow_impl.h"
#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/autograd/trace/sequence_loops_impl.h"
#include "tapir/autograd/trace/tracer_impl.h"
#include "tapir/core/autocast_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator_impl.h"
#include "tapir/core/io/shown_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/shapes_only_impl.h"
#include "tapir/ops/elementwise/compare.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/forms_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir::detail {
namespace {

using ValueMap = std::unordered_map<const Graph::Value*, Tensor>;

// A run of the program on these inputs.
struct Ran {
    Graph graph;
    ValueMap values;  // the results of its ops, and the values that it began with
    std::vector<Tensor> outputs;
    struct Read {
        std::size_t node;  // the read happened before this node
        std::string what;
        Loc loc;
    };
    std::vector<Read> reads;
    bool keeps_values = true;  // else only the initial values, what was written to these, and the outputs
};

class CheckTracer : public Tracer {
 public:
    CheckTracer(const TraceOptions& options, Ran& ran, const Loc& loc) : Tracer(options, loc), ran_(ran) {}

    void end(const RecordArgs& op) override {
        Tracer::end(op);
        if (is_tracing_part() || !ran_.keeps_values) return;  // for an op in a branch or a loop: the branch or loop itself is reported, too
        const PauseRecording pause;
        for (int k = 0; k < op.output_count; ++k) {
            const Tensor y = handle_of(op.outputs[k]);
            ran_.values[value_of(y, op.loc)] = y.clone();  // it may be written to
        }
    }
    void read(const char* what, const Tensor& x, const Loc& caller) override {
        Tracer::read(what, x, caller);
        if (is_tracing_part()) return;
        ran_.reads.push_back({graph().nodes().size(), what, caller.line() ? caller : last_line()});
    }

 private:
    Ran& ran_;
};

// Undoes what a program has written and drawn.
class Undo {
 public:
    explicit Undo(Tracer& tracer) : tracer_(tracer) {}
    ~Undo() {
        const PauseRecording pause;
        take_backups();
        for (auto& [tensor, copy] : backups_) tensor.copy_(copy);
        for (const KeptGradient& kept : tracer_.take_gradients()) kept.put_back();
        if (drew_ || tracer_.drew()) default_generator().set_state(before_);  // otherwise others may have drawn: all threads share it
    }
    /// Call before the tracer gives its graph away: it tells whether the program drew.
    void note() { drew_ = tracer_.drew(); }
    /// True for a tensor that was written to, and not as a part of another.
    bool has_backup(const Tensor& written) { return backup_of(written) != backups_.end(); }
    /// Undoes what was written to a tensor, if it has a backup.
    void put_back(const Tensor& written) {
        const auto found = backup_of(written);
        if (found == backups_.end()) return;
        found->first.copy_(found->second);
        backups_.erase(found);
    }
    Undo(const Undo&) = delete;
    Undo& operator=(const Undo&) = delete;

 private:
    using Backups = std::vector<std::pair<Tensor, Tensor>>;

    void take_backups() {
        for (auto& backup : tracer_.take_backups()) backups_.push_back(std::move(backup));
    }
    Backups::iterator backup_of(const Tensor& written) {
        take_backups();
        return std::find_if(backups_.begin(), backups_.end(), [&](const auto& backup) { return backup.first.is_same(written); });
    }

    Tracer& tracer_;
    Backups backups_;
    const Generator::State before_ = default_generator().state();
    bool drew_ = false;
};

Ran run_program(const Graph& graph, const TracedFunction& fn, const std::vector<Tensor>& inputs, const Loc& loc, bool keeps_values = true) {
    TraceOptions options;
    options.reads = TraceOptions::Reads::guard;
    for (const Graph::Value* parameter : graph.parameters()) options.parameters.emplace_back(parameter->name, parameter->data);
    Ran ran;
    ran.keeps_values = keeps_values;
    CheckTracer tracer(options, ran, loc);
    Undo undo(tracer);
    for (std::size_t i = 0; i < inputs.size(); ++i) tracer.add_input(graph.inputs()[i]->name, inputs[i]);
    std::vector<Graph::Value*> values;
    {
        const TracerScope watching(tracer);
        const TracingScope tracing(next_trace());
        check_arity("check_trace", fn, inputs.size(), loc);
        ran.outputs = fn(inputs);
        for (Tensor& output : ran.outputs) {
            if (!output.defined()) fail<ValueError>(loc, "check_trace: the function gave an undefined tensor");
            values.push_back(tracer.value_of(output, loc));
            const PauseRecording pause;
            output = output.clone();
        }
    }
    undo.note();
    ran.graph = tracer.finish();
    // What was written to inputs and parameters. Where a tensor was written to as a whole, its backup goes when this copy is made.
    const auto written_to = [&](const Graph::Update& update) -> const Tensor& {
        const auto& all = ran.graph.inputs();
        const auto input = static_cast<std::size_t>(std::find(all.begin(), all.end(), update.target) - all.begin());
        return input < inputs.size() ? inputs[input] : update.target->data;
    };
    {
        const PauseRecording pause;
        for (const bool are_parts : {true, false}) {  // first: to undo what was written to the whole undoes these
            for (const Graph::Update& update : ran.graph.updates()) {
                const Tensor& target = written_to(update);
                if (ran.values.count(update.value) > 0 || (are_parts && undo.has_backup(target))) continue;
                ran.values[update.value] = target.clone();
                undo.put_back(target);
            }
        }
    }
    // The initial values. Writes to these are undone.
    for (std::size_t i = 0; i < inputs.size(); ++i) ran.values[ran.graph.inputs()[i]] = inputs[i];
    for (const auto* list : {&ran.graph.parameters(), &ran.graph.constants()}) {
        for (const Graph::Value* value : *list) ran.values[value] = value->data;
    }
    return ran;
}

std::string type_of(const Tensor& x) { return fmt::format("{} {}", x.dtype(), x.shape()); }

struct Tolerances : CheckTraceOptions {
    double of_largest = 0;  // relative to the largest element, beside rtol: gradients that are small beside the terms of their sums are inexact
};

// Calls f(a's elements, b's) for some elements of both at a time, so that what it computes takes little memory. Stops where it returns false.
template <class F>
bool for_pieces(const Tensor& a, const Tensor& b, const F& f) {
    constexpr std::int64_t piece = 1 << 15;
    const Tensor all_a = a.reshape({-1}), all_b = b.reshape({-1});
    for (std::int64_t i = 0; i < all_a.numel(); i += piece) {
        const std::int64_t count = std::min(piece, all_a.numel() - i);
        if (!f(all_a.narrow(0, i, count), all_b.narrow(0, i, count))) return false;
    }
    return true;
}

// The difference between the graph's tensor and the program's; empty if there is none.
std::string difference(const Tensor& graph, const Tensor& program, Tolerances options) {
    if (graph.dtype() != program.dtype() || graph.shape() != program.shape()) {
        return fmt::format("{} in the graph, {} in the program", type_of(graph), type_of(program));
    }
    if (graph.device() != program.device()) return fmt::format("on {} in the graph, on {} in the program", graph.device(), program.device());
    if (graph.numel() == 0 || shapes_only) return {};
    const Tensor a = graph.to(cpu).contiguous(), b = program.to(cpu).contiguous();
    if (options.of_largest > 0 && is_floating(b.dtype())) {
        if (itemsize(b.dtype()) < 4) options.of_largest = std::max(options.of_largest, 0.03);
        double largest = 0;
        for_pieces(a, b, [&](const Tensor&, const Tensor& x) {
            largest = std::max(largest, amax(where(isfinite(x), abs(x), 0)).to(float64).item());
            return true;
        });
        options.atol += options.of_largest * largest;
    }
    const auto are_close = [&](const Tensor& x, const Tensor& y) { return allclose(x, y, options.rtol, options.atol, /*equal_nan=*/true); };
    if (for_pieces(a, b, are_close)) return {};
    // The element that differs most.
    const auto element = [](const Tensor& x, std::int64_t i) {
        return load_double(x.dtype(), x.impl()->data + static_cast<std::size_t>(i) * itemsize(x.dtype()));
    };
    std::int64_t worst = 0, count = 0;
    double most = -1;
    for (std::int64_t i = 0; i < a.numel(); ++i) {
        const double x = element(a, i), y = element(b, i), off = std::abs(x - y);
        if (x == y || (std::isnan(x) && std::isnan(y)) || off <= options.atol + options.rtol * std::abs(y)) continue;
        ++count;
        const double size = std::isnan(off) ? HUGE_VAL : off;
        if (size <= most) continue;
        most = size;
        worst = i;
    }
    const std::string values = fmt::format("{:.9g} in the graph, {:.9g} in the program", element(a, worst), element(b, worst));
    if (a.numel() == 1) return values;
    Shape at = a.shape();
    std::int64_t rest = worst;
    for (int d = at.rank(); d-- > 0;) {
        at.raw(d) = rest % a.size(d);
        rest /= a.size(d);
    }
    return fmt::format("{} of {} elements differ, element {} most: {}", count, a.numel(), at, values);
}

class Comparison {
 public:
    /// Takes the program's values away, as far as they have been compared.
    Comparison(const Graph& graph, Ran& program, const std::vector<Tensor>& inputs, const Tolerances& options, const Loc& loc)
        : graph_(graph), program_(program), options_(options), loc_(loc), sizes_(sizes_of_inputs(graph, inputs.data(), loc)) {
        for (const auto* list : {&graph.parameters(), &graph.constants()}) {
            for (const Graph::Value* value : *list) values_[value] = value->data;
        }
        for (std::size_t i = 0; i < inputs.size(); ++i) values_[graph.inputs()[i]] = inputs[i];
    }

    CheckTraceResult run() {
        const PauseRecording pause;
        const PauseAutocast plain;
        std::optional<KeptGenerator> generator;
        if (draws(graph_)) generator.emplace();
        if (!options_.same_ops) {
            const bool ok = run_all() && compare_ends();
            if (!ok && program_.keeps_values) compare_by_line();
            return std::move(result_);
        }
        const LastUses mine_last = last_uses(graph_), its_last = last_uses(program_.graph);
        skip_numbers();
        for (; at_ < graph_.nodes().size(); ++at_, ++theirs_) {
            skip_copies();
            if (at_ == graph_.nodes().size()) break;
            const Graph::Node& mine = *graph_.nodes()[at_];
            if (theirs_ >= program_.graph.nodes().size()) {
                differs(mine.loc, fmt::format("the graph goes on with {}, where the program ends", at_line(mine)) + after_reading());
                return std::move(result_);
            }
            const Graph::Node& its = *program_.graph.nodes()[theirs_];
            if (!compare_calls(mine, its) || !compute(mine) || !compare_results(mine, its)) return std::move(result_);
            forget(mine, mine_last, values_);
            forget(its, its_last, program_.values);
        }
        skip_copies();
        if (theirs_ < program_.graph.nodes().size()) {
            const Graph::Node& its = *program_.graph.nodes()[theirs_];
            differs(its.loc, fmt::format("the program goes on with {}, where the graph ends", at_line(its)) + after_reading());
            return std::move(result_);
        }
        compare_ends();
        return std::move(result_);
    }

    /// True if this run has the values that the graph was traced for.
    bool guards_hold() const {
        return std::all_of(graph_.guards().begin(), graph_.guards().end(),
                           [&](const Graph::Guard& guard) { return same_elements(values_.at(guard.value), guard.expected); });
    }

 private:
    bool differs(const Loc& where, std::string message) {
        result_ = {false, std::move(message), where};
        return false;
    }

    // "; before, it read a value with item() at model.cpp:12"
    std::string after_reading() const {
        const Ran::Read* last = nullptr;
        for (const Ran::Read& read : program_.reads) {
            if (read.node <= theirs_) last = &read;
        }
        return last ? fmt::format("; before, the program read a value with {}() at {}", last->what, file_and_line(last->loc)) : "";
    }

    // Skips numbers that are computed from named dimensions: in the program they are plain operands.
    void skip_numbers() {
        for (; at_ < graph_.nodes().size() && graph_.nodes()[at_]->is(number_form); ++at_) compute(*graph_.nodes()[at_]);
    }

    // Skips copies that only one of the two makes: x.contiguous() copies or not, depending on sizes.
    void skip_copies() {
        const auto is_copy = [](const Graph& graph, std::size_t at) { return at < graph.nodes().size() && graph.nodes()[at]->is(clone_form); };
        while (is_copy(graph_, at_) != is_copy(program_.graph, theirs_)) {
            if (is_copy(graph_, at_)) {
                compute(*graph_.nodes()[at_++]);
            } else {
                ++theirs_;
            }
        }
    }

    static std::ptrdiff_t place(const Graph& graph, const Graph::Value* input) {
        return std::find(graph.inputs().begin(), graph.inputs().end(), input) - graph.inputs().begin();
    }

    // True if the program calls the same op next, with the same operands; results of ops were compared before.
    bool compare_calls(const Graph::Node& mine, const Graph::Node& its) {
        if (mine.op() != its.op() || mine.inputs.size() != its.inputs.size() || mine.results.size() != its.results.size()) {
            const bool same_op = mine.op() == its.op();
            if (same_op && parts_differ(mine, its)) return false;
            return differs(its.loc,
                           fmt::format("the graph goes on with {}, the program with {}{}: it went another way{}", at_line(mine), at_line(its),
                                       same_op ? ", of another number of operands" : "", after_reading()));
        }
        for (std::size_t i = 0; i < mine.inputs.size(); ++i) {
            const Graph::Value *graphs = mine.inputs[i], *programs = its.inputs[i];
            if (graphs->kind == Graph::Kind::input && programs->kind == Graph::Kind::input) {
                if (place(graph_, graphs) == place(program_.graph, programs)) continue;
                return differs(
                    its.loc,
                    fmt::format("{}: operand {} is the input {} in the graph, {} in the program", at_line(its), i, graphs->name, programs->name));
            }
            const auto known = program_.values.find(programs);
            if (known == program_.values.end() || programs->kind == Graph::Kind::result) continue;
            const std::string how = difference(values_.at(graphs), known->second, options_);
            if (how.empty()) continue;
            const std::string which = graphs->kind == Graph::Kind::constant ? "a constant of the graph"
                : graphs->kind == Graph::Kind::parameter                    ? "the parameter " + graphs->name
                : graphs->kind == Graph::Kind::input                        ? "the input " + graphs->name
                                                                            : "a result of an op in the graph";
            return differs(its.loc, fmt::format("{}: operand {}, {}, is another one now: {}", at_line(its), i, which, how));
        }
        return true;
    }

    bool compute(const Graph::Node& node) {
        std::vector<const Tensor*> arguments;
        for (const Graph::Value* input : node.inputs) arguments.push_back(&values_.at(input));
        std::vector<Tensor> results(detail::kMostResults);
        const CallerScope caller(node.loc.line() ? node.loc : loc_);
        const Attributes attributes = node.attributes().with(sizes_, loc_);
        attributes.form().run({arguments.data(), static_cast<int>(arguments.size()), attributes.data()}, results.data());
        for (std::size_t k = 0; k < node.results.size(); ++k) {
            const DType dtype = node.results[k]->dtype;
            if (!results[k].defined()) fail<ValueError>(loc_, "check_trace: {} gave no result {}", at_line(node), k);
            values_[node.results[k]] = results[k].dtype() == dtype ? results[k] : results[k].to(dtype);
        }
        return true;
    }

    std::string how_called(const Graph::Node& mine, const Graph::Node& its) const {
        const auto list = mine.attributes().with(sizes_, loc_).all(), theirs = its.attributes().all();
        for (std::size_t a = 0; a < list.size() && a < theirs.size(); ++a) {
            const std::string here = to_string(list[a].second), there = to_string(theirs[a].second);
            if (here != there && here.find("-1") == std::string::npos) {
                return fmt::format("its {} is {} in the graph, {} in the program: ", list[a].first, here, there);
            }
        }
        return {};
    }

    bool compare_results(const Graph::Node& mine, const Graph::Node& its) {
        for (std::size_t k = 0; k < mine.results.size(); ++k) {
            const auto known = program_.values.find(its.results[k]);
            if (known == program_.values.end()) continue;  // a view that was made again
            const bool is_unset = mine.is(empty_form) || mine.is(empty_like_form);
            const Tensor& graphs = values_.at(mine.results[k]);
            if (is_unset && type_of(graphs) == type_of(known->second)) {
                values_[mine.results[k]] = known->second;
                continue;
            }
            const std::string how = difference(graphs, known->second, options_);
            if (how.empty()) continue;
            if (parts_differ(mine, its)) return false;
            const std::string which = mine.results.size() > 1 ? fmt::format("result {}: ", k) : "";
            return differs(its.loc, fmt::format("{}: {}{}{}", at_line(its), how_called(mine, its), which, how));
        }
        return true;
    }

    // For branches and bodies: true if an op within them differs in their first run; reports that op.
    bool parts_differ(const Graph::Node& mine, const Graph::Node& its) {
        const auto calls = [](const Graph::Node& node, const Attributes& attributes, const ValueMap& values) {
            std::vector<const Tensor*> operands;
            for (const Graph::Value* input : node.inputs) {
                const auto known = values.find(input);
                if (known == values.end()) return std::vector<PartCall>();  // a view that was made again
                operands.push_back(&known->second);
            }
            return first_parts(attributes, operands);
        };
        const std::vector<PartCall> graphs = calls(mine, mine.attributes().with(sizes_, loc_), values_);
        const std::vector<PartCall> programs = calls(its, its.attributes(), program_.values);
        for (std::size_t i = 0; i < std::min(graphs.size(), programs.size()); ++i) {
            Ran program = run_part(programs[i]);
            const CheckTraceResult inner = Comparison(*graphs[i].graph, program, graphs[i].inputs, options_, loc_).run();
            if (inner.ok) continue;
            differs(inner.where, fmt::format("{}; in {}{}", inner.message, mine.is(cond_form) ? "" : "the first step of ", at_line(its)));
            return true;
        }
        return false;
    }

    Ran run_part(const PartCall& call) const {
        const KeptGenerator generator;  // so that the graph draws the same numbers
        Ran ran;
        ran.graph = *call.graph;
        Comparison all(ran.graph, ran, call.inputs, options_, loc_);
        all.run_all();
        ran.values = std::move(all.values_);
        for (const Graph::Output& output : ran.graph.outputs()) ran.outputs.push_back(ran.values.at(output.value));
        return ran;
    }

    bool run_all() {
        const LastUses last = program_.keeps_values ? LastUses() : last_uses(graph_, /*with_updates=*/true);
        // What is written is compared when it is computed, so that the graph's values need not all be kept.
        std::unordered_multimap<const Graph::Node*, const Graph::Update*> made_by;
        for (const Graph::Update& update : graph_.updates()) {
            if (last.count(update.value) > 0) made_by.emplace(update.value->maker, &update);
        }
        const Written written = written_by(program_.graph);
        for (const auto& node : graph_.nodes()) {
            compute(*node);
            const auto [begin, end] = made_by.equal_range(node.get());
            for (auto made = begin; made != end; ++made) {
                const auto its = written.find(made->second->target->name);
                if (its != written.end()) differences_[made->second] = difference_of(*made->second, its->second);
            }
            forget(*node, last, values_);
        }
        return true;
    }

    // What a graph writes, by the names of parameters and inputs.
    using Written = std::map<std::string, const Graph::Value*>;
    static Written written_by(const Graph& graph) {
        Written written;
        for (const Graph::Update& update : graph.updates()) written[update.target->name] = update.value;
        return written;
    }

    std::string difference_of(const Graph::Update& update, const Graph::Value* programs) const {
        const auto known = program_.values.find(programs);
        return known == program_.values.end() ? std::string() : difference(values_.at(update.value), known->second, options_);
    }

    // The last node that uses each result, or its maker, for results that only nodes use.
    using LastUses = std::unordered_map<const Graph::Value*, const Graph::Node*>;
    static LastUses last_uses(const Graph& graph, bool with_updates = false) {
        LastUses last;
        for (const auto& node : graph.nodes()) {
            for (const Graph::Value* value : node->results) last[value] = node.get();
            for (const Graph::Value* value : node->inputs) {
                if (const auto found = last.find(value); found != last.end()) found->second = node.get();
            }
        }
        for (const Graph::Output& output : graph.outputs()) last.erase(output.value);
        for (const Graph::Update& update : graph.updates()) {
            if (!with_updates) last.erase(update.value);
        }
        for (const Graph::Guard& guard : graph.guards()) last.erase(guard.value);
        return last;
    }

    static void forget(const Graph::Node& node, const LastUses& last, ValueMap& values) {
        for (const auto* used : {&node.inputs, &node.results}) {
            for (const Graph::Value* value : *used) {
                const auto found = last.find(value);
                if (found != last.end() && found->second == &node) values.erase(value);
            }
        }
    }

    bool compare_ends() {
        if (graph_.outputs().size() != program_.outputs.size()) {
            return differs({}, fmt::format("the graph has {} outputs, the program {}", graph_.outputs().size(), program_.outputs.size()));
        }
        for (std::size_t i = 0; i < program_.outputs.size(); ++i) {
            const Graph::Output& output = graph_.outputs()[i];
            const std::string how = difference(values_.at(output.value), program_.outputs[i], options_);
            if (!how.empty()) return differs({}, fmt::format("the output {}: {}", output.name, how));
        }
        Written written = written_by(program_.graph);
        for (const Graph::Update& update : graph_.updates()) {
            const auto its = written.find(update.target->name);
            if (its == written.end()) return differs({}, fmt::format("the graph writes to {}, the program does not", update.target->name));
            const auto compared = differences_.find(&update);
            const std::string how = compared != differences_.end() ? compared->second : difference_of(update, its->second);
            written.erase(its);
            if (!how.empty()) return differs({}, fmt::format("what is written to {}: {}", update.target->name, how));
        }
        for (const auto& [name, value] : written) return differs({}, fmt::format("the program writes to {}, the graph does not", name));
        return true;
    }

    // Finds the first op of both that differs. Ops are matched by name, line, and number among their likes on the line,
    // if both graphs have as many of these.
    void compare_by_line() {
        const std::string ends = result_.message;
        std::map<std::string, std::vector<const Graph::Node*>> places;
        for (const auto& node : program_.graph.nodes()) places[at_line(*node)].push_back(node.get());
        std::map<std::string, std::size_t> seen, counts;
        for (const auto& node : graph_.nodes()) ++counts[at_line(*node)];
        for (const auto& node : graph_.nodes()) {
            const std::string place = at_line(*node);
            const auto found = places.find(place);
            const std::size_t number = seen[place]++;
            if (found == places.end() || counts[place] != found->second.size()) continue;
            const Graph::Node& its = *found->second[number];
            if (node->results.size() != its.results.size() || compare_results(*node, its)) continue;
            result_.message = fmt::format("{}; first at {}", ends, result_.message);
            return;
        }
    }

    const Graph& graph_;
    Ran& program_;
    const Tolerances& options_;
    const Loc& loc_;
    DimSizes sizes_;
    ValueMap values_;
    std::unordered_map<const Graph::Update*, std::string> differences_;  // of updates that were compared when they were computed
    std::size_t at_ = 0, theirs_ = 0;                                    // the next nodes to compare
    CheckTraceResult result_;
};

}  // namespace

CheckTraceResult check_trace(const Graph& graph, const TracedFunction& fn, const std::vector<Tensor>& inputs, const CheckTraceOptions& options,
                             const Loc& loc) {
    if (is_tracing()) fail<TapeError>(loc, "check_trace: this thread is tracing");
    if (inputs.size() != graph.inputs().size()) {
        fail<ValueError>(loc, "check_trace: {} inputs given, the graph has {}", inputs.size(), graph.inputs().size());
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].defined()) fail<ValueError>(loc, "check_trace: the input {} is undefined", graph.inputs()[i]->name);
    }
    sizes_of_inputs(graph, inputs.data(), loc);  // throws the same errors as the graph
    const Tolerances tolerances{options};
    const auto compare = [&](bool scans) {
        const SequenceLoopsScope sequences(scans);
        Ran program = run_program(graph, fn, inputs, loc);
        return std::pair(Comparison(graph, program, inputs, tolerances, loc).run(), sequence_loops.were_met);
    };
    const bool has_scans = std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const auto& node) { return node->is(scan_form); });
    auto [result, has_sequences] = compare(has_scans);
    if (!result.ok && has_scans && has_sequences) {  // the scans may be the cause
        const CheckTraceResult step_by_step = compare(false).first;
        if (step_by_step.ok) result = step_by_step;
    }
    if (!result.ok && options.raise_exception) fail<TapeError>(loc, "check_trace: {}", result.message);
    return result;
}

std::string difference_from_program(const Graph& graph, const TracedFunction& fn, const std::vector<Tensor>& inputs, bool is_model, const Loc& loc) {
    const auto run = [&](bool keeps_values) -> std::optional<Ran> {
        try {
            return run_program(graph, fn, inputs, loc, keeps_values);
        } catch (const OutOfMemory&) {
            throw;
        } catch (const std::exception&) {
            return std::nullopt;
        }
    };
    std::optional<Ran> program = run(/*keeps_values=*/false);
    if (!program) return {};
    Tolerances options;
    options.same_ops = false;
    options.rtol = options.of_largest = 1e-3;
    options.atol = 1e-5;
    const std::string how = difference_from_run(graph, program->graph, sizes_of_inputs(graph, inputs.data(), loc), loc);
    if (!how.empty() && graph.guards().empty()) return how;
    try {
        Comparison comparison(graph, *program, inputs, options, loc);
        const CheckTraceResult result = comparison.run();
        if ((result.ok && how.empty()) || !comparison.guards_hold()) return {};  // inputs outside of the guards tell nothing
        if (result.ok) return how;
        if (is_model || !(program = run(/*keeps_values=*/true))) return result.message;
        const CheckTraceResult by_line = Comparison(graph, *program, inputs, options, loc).run();
        return by_line.ok ? result.message : by_line.message;
    } catch (const OutOfMemory&) {
        throw;
    } catch (const Error& error) {
        return is_model ? std::string() : io::text_of(error);
    }
}

}  // namespace tapir::detail
