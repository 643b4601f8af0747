// Writes ops into a graph.
#include "tapir/autograd/trace/tracer_impl.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/autograd/users_function_impl.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/shapes_only_impl.h"
#include "tapir/core/trace_mark_impl.h"
#include "tapir/ops/forms_impl.h"

namespace tapir {
extern const OpInfo tensor_op;
}

namespace tapir::detail {
namespace {

std::uint32_t version_of(const Tensor& x) noexcept { return x.impl()->storage->version_now(); }

std::vector<SymInt> sizes_of(const TensorImpl* x) { return {x->sizes, x->sizes + x->rank}; }

// Parameters of two models may have the same name, or that of an input: the later one becomes "weight_2".
std::string free_name(const Graph& graph, const std::string& name) {
    std::string own = name;
    const auto is_it = [&own](const Graph::Value* value) { return value->name == own; };
    for (int number = 2;; ++number) {
        const auto &inputs = graph.inputs(), &parameters = graph.parameters();
        if (std::none_of(inputs.begin(), inputs.end(), is_it) && std::none_of(parameters.begin(), parameters.end(), is_it)) return own;
        own = fmt::format("{}_{}", name, number);
    }
}

// The hint for reads of elements in a custom function's forward.
std::string hint_for_functions() {
    const char* function = function_in_forward();
    if (!function) return {};
    return fmt::format(
        "; or give {} a `static Tensor symbolic(const std::vector<Tensor>& x)`, the same by ops, which graphs take in place "
        "of its forward",
        function);
}

}  // namespace

static constinit thread_local Tracer* current_tracer = nullptr;

TracerScope::TracerScope(Tracer& tracer) noexcept : watching_(tracer), outer_(current_tracer) {
    current_tracer = &tracer;
    tracer.no_grad_ = no_grad_depth();
}
TracerScope::~TracerScope() { current_tracer = outer_; }

Tracer* Tracer::current() noexcept { return current_tracer; }

std::uint16_t next_trace() noexcept {
    std::uint16_t last = __atomic_load_n(&last_trace, __ATOMIC_RELAXED), next;
    do {
        next = last == 0x7fff ? std::uint16_t{1} : static_cast<std::uint16_t>(last + 1);
    } while (!__atomic_compare_exchange_n(&last_trace, &last, next, /*weak=*/true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return next;
}

Tracer::Tracer(const TraceOptions& options, const Loc& loc)
    : OpWatcher(/*calls_ops=*/false), named_(options.parameters), reads_(options.reads), last_line_(loc) {}

Tracer::Tracer(Tracer& outer, const char* what) : OpWatcher(/*calls_ops=*/false), reads_(TraceOptions::Reads::refuse), outer_(&outer), what_(what) {}

void Tracer::add_input(const std::string& name, const Tensor& x) {
    Graph::Value* value = graph_.add_input(name, x.dtype(), sizes_of(x.impl()), x.device());
    seen_[x.impl()] = {x, value, version_of(x), nullptr, nullptr, value};
    if (x.impl()->meta) {
        const std::lock_guard lock(gradient_mutex());
        note_leaf(x);
    }
}

KeptGradient::KeptGradient(const Tensor& leaf) : leaf_(leaf) {
    const AutogradMeta& meta = *leaf.impl()->meta;
    grad_ = meta.grad;
    used_rows_ = meta.used_rows;
    rows_ = meta.rows;
    products_ = meta.products;
    rows_version_ = meta.rows_version;
}

void KeptGradient::put_back() const {
    const std::lock_guard lock(gradient_mutex());
    AutogradMeta& meta = *leaf_.impl()->meta;
    meta.grad = grad_;
    meta.used_rows = used_rows_;
    meta.rows = rows_;
    meta.products = products_;
    meta.rows_version = rows_version_;
}

// --- Gradients -------------------------------------------------------------------------------------------------------------------
//
// The state that backward() adds to is made by no op: the program's next run adds to what this one leaves, or to what was there
// before, and a graph begins each run without it. The two agree if the program clears the gradients first, or at the end.

// gradient_mutex() must be held.
Tracer::Leaf& Tracer::note_leaf(const Tensor& x) { return leaves_.try_emplace(x.impl(), Leaf{KeptGradient(x), false, false, Loc{}}).first->second; }

std::vector<KeptGradient> Tracer::take_gradients() {
    std::vector<KeptGradient> result;
    for (auto& [impl, leaf] : std::exchange(leaves_, {})) {
        if (leaf.is_changed) result.push_back(std::move(leaf.kept));
    }
    return result;
}

static std::string shown_name(const Tensor& leaf) {
    const char* name = leaf.impl()->meta->name_now();
    return name ? name : fmt::format("a tensor of shape {}", leaf.shape());
}

void Tracer::fail_old_gradient(const Tensor& leaf, const Loc& loc) const {
    fail<TapeError>(loc,
                    "{}: the gradient of {} was there before the trace, and a graph would add to it, or use it, as it is now "
                    "in each run: zero_grad() first",
                    what_, shown_name(leaf));
}

// Throws if the program uses a gradient from before the trace.
void Tracer::check_constant(const Tensor& x, const Loc& loc) const {
    for (const auto& [impl, leaf] : leaves_) {
        if (leaf.kept.gradient().defined() && leaf.kept.gradient().is_same(x)) fail_old_gradient(leaf.kept.leaf(), loc);
    }
}

void Tracer::note_reset(const Tensor& leaf) {
    if (inner_) return inner_->note_reset(leaf);
    if (leaf.impl()->trace == detail::thread.trace) return;
    const std::lock_guard lock(gradient_mutex());
    Leaf& noted = note_leaf(leaf);
    noted.is_reset = noted.is_changed = true;
}

void trace_reset(const Tensor& leaf) {
    if (Tracer* tracer = Tracer::current()) tracer->note_reset(leaf);
}
void trace_grad(const Tensor& leaf) {
    if (Tracer* tracer = Tracer::current()) tracer->note_grad(leaf);
}
void trace_addition(const Tensor& leaf) {
    if (Tracer* tracer = Tracer::current()) tracer->note_addition(leaf);
}

void Tracer::note_grad(const Tensor& leaf) {
    if (inner_) return inner_->note_grad(leaf);
    if (leaf.impl()->trace == detail::thread.trace) return;
    const std::lock_guard lock(gradient_mutex());
    Leaf& noted = note_leaf(leaf);
    AutogradMeta& meta = *leaf.impl()->meta;
    if (noted.is_reset || noted.added_at.line() || meta.grad.defined() || !meta.has_gradient()) return;
    // Gradients that were collected before the trace and not computed yet are not part of the program either.
    const OutsideTrace outside;
    settle_gradient(meta, leaf.shape());
    noted.kept = KeptGradient(leaf);
}

void Tracer::note_addition(const Tensor& leaf) {
    if (inner_) return inner_->note_addition(leaf);
    if (leaf.impl()->trace == detail::thread.trace) return;
    const Loc loc = detail::caller(last_line_);
    if (outer_) {
        fail<TapeError>(loc,
                        "{}: a function that is traced adds to the gradient of {}, which it did not make; a graph cannot hold that: "
                        "give the gradient back instead, as Tape::gradient() does",
                        what_, shown_name(leaf));
    }
    Leaf& noted = note_leaf(leaf);
    if (noted.is_reset || noted.added_at.line()) return;
    if (leaf.impl()->meta->has_gradient()) fail_old_gradient(leaf, loc);
    noted.is_changed = true;
    noted.added_at = loc;
}

void Tracer::check_left_gradients() const {
    const std::lock_guard lock(gradient_mutex());
    const Leaf* first = nullptr;  // in the order of the parameters, which is equal in each run
    const Graph::Value* value = nullptr;
    for (const auto& [impl, leaf] : leaves_) {
        const auto found = seen_.find(impl);
        if (!leaf.added_at.line() || found == seen_.end() || !impl->meta->has_gradient()) continue;
        const Graph::Value* own = found->second.outer;
        if (!own || own->kind == Graph::Kind::input || (value && value->number < own->number)) continue;
        first = &leaf;
        value = own;
    }
    if (!first) return;
    fail<TapeError>(first->added_at,
                    "{}: this backward leaves the gradient of {} for the program's next run to add to, but each run of "
                    "a graph would begin without: let the program call zero_grad() first, or take gradients that are kept nowhere, by "
                    "Tape::gradient()",
                    what_, shown_name(first->kept.leaf()));
}

// A known tensor with the same elements, as detach() returns.
Tracer::Seen* Tracer::alias_of(const Tensor& x) {
    // Known tensors hold their storages. Most new tensors are numbers, which nobody shares: the search is skipped for these.
    if (__atomic_load_n(&x.impl()->storage->refs, __ATOMIC_ACQUIRE) == 1) return nullptr;
    const auto is_it = [&x](const Tensor& other) {
        return other.shares_storage(x) && !other.is_same(x) && other.impl()->data == x.impl()->data && other.dtype() == x.dtype() &&
            other.shape() == x.shape() && other.strides() == x.strides();
    };
    Seen* first = nullptr;  // there may be several: takes the same one in each run of the program
    for (auto& [impl, s] : seen_) {
        if (is_it(s.tensor) && (!first || s.value->number < first->value->number)) first = &s;
    }
    if (first) return first;
    for (const auto& [name, tensor] : named_) {
        if (tensor.is_same(x)) break;  // those after it are aliases of it
        if (is_it(tensor)) return &seen(tensor, Loc{});
    }
    for (const Tensor& source : sources_) {
        if (is_it(source)) return &seen(source, Loc{});
    }
    return nullptr;
}

void Tracer::note_source(const Tensor& x) {
    if (inner_) return inner_->note_source(x);
    if ((outer_ || x.impl()->trace != detail::thread.trace) && !seen_.count(x.impl())) sources_.push_back(x);
}

void Tracer::note_stop(const Tensor& x, GradientStop stop) {
    if (inner_) return inner_->note_stop(x, stop);
    if (!is_floating(x.dtype())) return;
    if (const auto known = seen_.find(x.impl()); known != seen_.end()) {
        const bool is_detached =
            known->second.stop == GradientStop::detached && no_grad_depth() > no_grad_;  // the function is called within a NoGradScope
        if (!is_detached) known->second.stop = stop;
        known->second.is_of_forward = function_in_forward() != nullptr;
    } else {
        stops_.insert_or_assign(x.impl(), Stop{x, stop, function_in_forward() != nullptr});
    }
}

void trace_detached(const Tensor& from, const Tensor& to) {
    Tracer* tracer = Tracer::current();
    if (!tracer) return;
    tracer->note_source(from);
    tracer->note_stop(to, GradientStop::detached);
}

void trace_custom_function(const Tensor& result) {
    if (Tracer* tracer = Tracer::current()) tracer->note_stop(result, GradientStop::custom_function);
}

Tensor traced_leaf(const Tensor& x, const Loc& loc) {
    if (Tracer* tracer = Tracer::current()) tracer->note_source(x);
    return alias(x.impl()).requires_grad_(true, loc);
}

// True if it was made of inputs and parameters in a way that gradients may follow.
bool Tracer::has_gradient(const Graph::Value* value) {
    std::vector<const Graph::Value*> open = {value};
    std::unordered_set<const Graph::Value*> known;
    while (!open.empty()) {
        const Graph::Value* next = open.back();
        open.pop_back();
        if (!known.insert(next).second || !is_floating(next->dtype)) continue;
        if (!next->maker && (next->kind == Graph::Kind::input || next->kind == Graph::Kind::parameter)) return true;
        if (next->maker && &next->maker->form() != &form_of(GradientStop::detached)) {
            open.insert(open.end(), next->maker->inputs.begin(), next->maker->inputs.end());
        }
    }
    return false;
}

// Called after the program has written to it: within a NoGradScope the old value's gradient flows on as if nothing had happened.
void Tracer::note_stop_of_write(Seen& s, Graph::Value* before) const {
    if (no_grad_depth() <= no_grad_) {
        s.stop = GradientStop::none;  // the operands determine it
    } else if (s.stop == GradientStop::none && is_floating(s.tensor.dtype())) {
        s.stop = GradientStop::written;
        s.before = before;
    }
}

// The value that an op gets for the tensor: `value`, or the node that stops its gradient.
Graph::Value* Tracer::used(Seen& s, Graph::Value* value, const Loc& loc) {
    if (s.stop == GradientStop::none) return value;
    const bool is_in_forward = function_in_forward() != nullptr;
    if (s.stop != GradientStop::custom_function && no_grad_depth() > no_grad_ && (!is_in_forward || s.is_of_forward)) return value;
    if (s.stop == GradientStop::written && !has_gradient(s.before)) s.stop = GradientStop::detached;
    if (s.stopped_of != value) {
        Graph::Node* node = append(Attributes(form_of(s.stop)), {value}, loc);
        s.stopped = graph_.add_result(node, value->dtype, value->device, value->shape);
        s.stopped_of = value;
    }
    return s.stopped;
}

bool draws(const Graph& graph) {
    return std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const auto& node) { return node->attributes().is_random(); });
}

bool Tracer::drew() const { return draws(graph_); }

Tracer::Seen& Tracer::seen(const Tensor& x, const Loc& loc) {
    const auto found = seen_.find(x.impl());
    if (found != seen_.end()) return found->second;
    // A tensor known outside of a part may be another one's elements without a gradient.
    if (Seen* same = outer_ && outer_->knows(x) ? nullptr : alias_of(x)) {
        const TensorImpl* base = same->tensor.impl();
        Graph::Value* value = current(*same, loc);
        Seen& alias = seen_[x.impl()] = {x, value, version_of(x), base};
        made_.push_back(x.impl());
        ++views_[base];
        if (const auto noted = stops_.extract(x.impl())) {
            alias.stop = noted.mapped().stop;
            alias.is_of_forward = noted.mapped().is_of_forward;
        }
        return alias;
    }
    if (outer_) {
        const bool is_number = x.dim() == 0 && x.device() == cpu && x.impl()->trace == 0 && !x.requires_grad() && !outer_->knows(x) && !is_named(x);
        Graph::Value* value = is_number ? graph_.add_constant(x, {}, loc) : capture(x, loc);
        if (is_number) root().numbers_.push_back(x);
        return seen_[x.impl()] = {x, value, version_of(x), nullptr, nullptr, value};
    }
    if (x.impl()->trace == detail::thread.trace) {
        if (x.impl()->flags & TensorImpl::kRequiresGrad) {
            fail<TapeError>(loc,
                            "trace: a parameter of shape {} is made in the function that is traced: each run of the graph would begin with "
                            "another one; make it, or its module, before the trace",
                            x.shape());
        }
        fail<TapeError>(loc,
                        "trace: a tensor of shape {} was made in the trace in a way that a graph cannot hold, or in an earlier call of the function "
                        "(trace calls it "
                        "several times) and kept: make it anew in each call, or before the trace",
                        x.shape());
    }
    if (is_of_other_thread(x.impl()->trace)) {
        fail<TapeError>(loc,
                        "trace: a tensor of shape {} was made by another thread since the trace began; a graph would hold it as a "
                        "constant. Compute in this thread, or make it an input",
                        x.shape());
    }
    const auto given = std::find_if(named_.begin(), named_.end(), [&](const auto& named) { return named.second.is_same(x); });
    const AutogradMeta* meta = x.impl()->meta;
    Graph::Value* value;
    if (given != named_.end()) {
        value = graph_.add_parameter(free_name(graph_, given->first), x, loc);
    } else if (meta && meta->name && *meta->name) {
        value = graph_.add_parameter(free_name(graph_, meta->name), x, loc);
    } else if (x.impl()->flags & TensorImpl::kRequiresGrad) {
        value = graph_.add_parameter(free_name(graph_, fmt::format("parameter_{}", unnamed_++)), x, loc);
    } else {
        check_constant(x, loc);
        value = graph_.add_constant(x, {}, loc);
    }
    if (meta) {
        const std::lock_guard lock(gradient_mutex());
        note_leaf(x);
    }
    return seen_[x.impl()] = {x, value, version_of(x), nullptr, nullptr, value};
}

void Tracer::describe(Graph::Node* node, const Loc& loc) {
    node->set_origin({detail::caller(loc), detail::thread.module, detail::thread.module_call, ComposedOp::current()});
}

void Tracer::set_module(std::size_t from, const ModuleName* module, const Loc& line) {
    for (std::size_t i = from; i < graph_.nodes().size(); ++i) {
        Graph::Node& node = *graph_.nodes()[i];
        if (node.module) continue;
        node.module = module;
        if (module && *module->type) node.called = module->type;
        if (line.line()) node.loc = line;
    }
}

Graph::Node* Tracer::append(Attributes attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc) {
    Graph::Node* node = graph_.append(std::move(attributes), inputs);
    describe(node, loc);
    return node;
}

// If a tensor's storage was written to through another tensor, it is a view of that, or the base of views, which was noted then.
Graph::Value* Tracer::current(Seen& s, const Loc& loc) {
    const std::uint32_t version = version_of(s.tensor);
    if (s.version == version) return s.value;
    if (!s.base) fail_unseen_write(s.tensor);
    Graph::Value* whole = current(seen_.at(s.base), loc);
    if (!s.view) {
        s.value = whole;
        s.version = version;
        return whole;
    }
    Graph::Node* view = append(s.view->attributes(), {whole}, loc);
    for (const Graph::Value* result : s.view->results) graph_.add_result(view, result->dtype, result->device, result->shape);
    s.value = view->results[static_cast<std::size_t>(s.piece)];
    s.version = version;
    return s.value;
}

// Checks that elements which no op has written are as they were when the program got the address.
void Tracer::check_exposed(const Tensor& x) const {
    for (const Exposed& e : exposed_) {
        if (!e.tensor.shares_storage(x) || e.version != version_of(e.tensor) || same_elements(e.tensor, e.copy)) continue;
        fail<TapeError>(e.loc,
                        "trace: the program wrote through the address that data() gave it; a graph cannot hold that: write by ops, "
                        "or before the trace{}",
                        hint_for_functions());
    }
}

// Called after an op has written to some of them.
void Tracer::copy_exposed() {
    const PauseRecording pause;
    for (Exposed& e : exposed_) {
        const std::uint32_t version = version_of(e.tensor);
        if (std::exchange(e.version, version) != version) e.copy = e.tensor.clone();
    }
}

static std::int64_t bytes_of(const TensorImpl* made) noexcept { return made->numel * static_cast<std::int64_t>(itemsize(made->dtype)); }

void Tracer::forget_unused() {
    std::unordered_map<const Storage*, std::uint32_t> known;  // the number of tensors with this storage
    for (const TensorImpl* made : made_) {
        if (seen_.count(made)) ++known[made->storage];
    }
    std::vector<const TensorImpl*> left;
    held_bytes_ = 0;
    for (std::size_t i = made_.size(); i-- > 0;) {  // views come after their bases
        const auto found = seen_.find(made_[i]);
        if (found == seen_.end()) continue;
        const Storage* storage = made_[i]->storage;  // a tensor that was not used yet may have it: a detached one
        const bool is_shared = __atomic_load_n(&storage->refs, __ATOMIC_ACQUIRE) > known[storage];
        if (__atomic_load_n(&made_[i]->refs, __ATOMIC_ACQUIRE) > 1 || is_shared || views_.count(made_[i]) > 0) {
            left.push_back(made_[i]);
            if (!found->second.base) held_bytes_ += bytes_of(made_[i]);
            continue;
        }
        if (const auto base = views_.find(found->second.base); base != views_.end() && --base->second == 0) views_.erase(base);
        --known[storage];
        seen_.erase(found);
    }
    made_.assign(left.rbegin(), left.rend());
    forget_from_ = held_bytes_ + std::max(kForgetFrom, held_bytes_ / 4);
}

Graph::Value* Tracer::value_of(const Tensor& x, const Loc& loc) {
    if (!exposed_.empty()) check_exposed(x);
    Seen& s = seen(x, loc);
    return used(s, current(s, loc), loc);
}

void Tracer::before_write(const Tensor& self) {
    if (inner_) return;
    if (!exposed_.empty()) check_exposed(self);
    auto found = seen_.find(self.impl());
    if (found == seen_.end() && alias_of(self)) {  // detach() made it, and this is its first use
        seen(self, last_line_);
        found = seen_.find(self.impl());
    }
    if (outer_) {
        if (found == seen_.end() || is_outer(found->second)) {
            fail<TapeError>(last_line_,
                            "{}: a function that is traced writes to a tensor of shape {} that it did not make; a graph cannot "
                            "hold that: give the new value back instead",
                            what_, self.shape());
        }
        current(found->second, last_line_);
        return;
    }
    const auto is_same = [&self](const Tensor& number) { return number.shares_storage(self); };
    if (std::any_of(numbers_.begin(), numbers_.end(), is_same)) {
        const Loc& line = detail::thread.op_loc;
        fail<TapeError>(line.line() ? line : last_line_,
                        "trace: the program writes to a number of shape {} after a branch or loop used it, in which it is a "
                        "constant: give it to cond(), while_loop() or scan() as an operand",
                        self.shape());
    }
    const Tensor* whole = &self;
    if (found != seen_.end()) {
        current(found->second, last_line_);  // a view is made again before it becomes another value
        const Seen* root = &found->second;
        while (root->base) root = &seen_.at(root->base);
        if (!root->outer) return;
        whole = &root->tensor;
    }
    for (const auto& [tensor, copy] : backups_) {
        if (tensor.is_same(*whole)) return;
    }
    const PauseRecording pause;
    const ShapesOnly computes(false);
    backups_.emplace_back(*whole, whole->clone());
}

void Tracer::written(const Tensor& self, const Loc& caller) {
    if (inner_) return;
    // The tensor that the storage was made with is in front of it, see core/tensor.cpp.
    const std::uint16_t made_in = (reinterpret_cast<const TensorImpl*>(self.impl()->storage) - 1)->trace;
    if (made_in == detail::thread.trace) return;  // made by the library, or found by value_of()
    const char* op = detail::thread.op ? detail::thread.op : "the program";
    writes_.push_back({self, op, caller.line() ? caller : last_line_});
}

void Tracer::fail_unseen_write(const Tensor& x) const {
    std::string op = "the program";
    Loc loc = x.impl()->storage->last_write;
    for (const Write& write : writes_) {
        if (!write.tensor.shares_storage(x)) continue;
        op = write.op;
        loc = write.loc;
    }
    fail<TapeError>(loc, "trace: {} writes to a tensor of shape {} in a way that a graph cannot hold", op, x.shape());
}

// Updates a view's base after the view has become another value.
void Tracer::put_back(Seen& whole, const Seen& part, const Loc& loc) {
    if (!part.view) {
        whole.value = part.value;
        return;
    }
    const Graph::Node& view = *part.view;
    const Attributes& how = view.attributes();
    Graph::Node* node = nullptr;
    if (view.is(transpose_form)) {
        node = append(how, {part.value}, loc);
    } else if (view.is(reshape_form)) {
        Attributes back(how.form());
        back.set("shape", whole.value->shape, loc);
        node = append(std::move(back), {part.value}, loc);
    } else if (view.is(permute_form)) {
        const auto dims = std::get<std::vector<SymInt>>(how.get("dims", loc));
        std::vector<SymInt> back(dims.size());
        for (std::size_t d = 0; d < dims.size(); ++d) {
            back[static_cast<std::size_t>(dims[d].number())] = static_cast<std::int64_t>(d);
        }
        Attributes attributes(how.form());
        attributes.set("dims", back, loc);
        node = append(std::move(attributes), {part.value}, loc);
    } else if (view.is(pieces_form)) {
        const bool drops = std::get<bool>(how.get("drop", loc));
        Attributes attributes(drops ? select_scatter_form : slice_scatter_form);
        attributes.set("dim", how.get("dim", loc));
        if (drops) {
            attributes.set("index", SymInt(part.piece));
        } else {
            const auto sizes = std::get<std::vector<SymInt>>(how.get("sizes", loc));
            SymInt start;
            for (int k = 0; k < part.piece; ++k) start = start + sizes[static_cast<std::size_t>(k)];
            attributes.set("start", start);
            attributes.set("end", start + sizes[static_cast<std::size_t>(part.piece)]);
            attributes.set("step", SymInt(1));
        }
        node = append(std::move(attributes), {whole.value, part.value}, loc);
    } else if (const OpForm* scatter = find_form(fmt::format("{}_scatter", view.op()).c_str())) {
        Attributes attributes(*scatter);
        for (const auto& [name, attribute] : how.all()) attributes.set(name, attribute, loc);
        node = append(std::move(attributes), {whole.value, part.value}, loc);
    } else {
        fail<TapeError>(loc, "trace: writing into a view that {} made is nothing that a graph can hold", view.op());
    }
    whole.value = graph_.add_result(node, whole.value->dtype, whole.value->device, whole.value->shape);
}

void Tracer::note_write(Seen& s, Graph::Value* value, const Loc& loc) {
    const std::uint32_t version = version_of(s.tensor);
    note_stop_of_write(s, s.value);
    s.value = value;
    s.version = version;
    for (Seen* part = &s; part->base;) {
        Seen& whole = seen_.at(part->base);
        note_stop_of_write(whole, whole.value);
        put_back(whole, *part, loc);
        whole.version = version;
        part = &whole;
    }
}

// A tensor that the program makes of its own data: numbers in braces, or memory.
void Tracer::note_constant(TensorImpl* made) {
    const PauseRecording pause;
    if (outer_ && made->rank > 0) {
        outer_->note_constant(made);
        static_cast<void>(seen(handle_of(made), last_line_));
        return;
    }
    Seen constant{handle_of(made), nullptr, 0};
    constant.value = graph_.add_constant(constant.tensor.clone());  // it may be written to
    constant.version = version_of(constant.tensor);
    seen_[made] = std::move(constant);
    made_.push_back(made);
}

void Tracer::end(const RecordArgs& ran) {
    if (inner_) return;
    if (&ran.op == &tensor_op) return note_constant(ran.outputs[0]);
    const OpForm*& form = forms_[&ran.op];
    if (!form) form = find_form(ran.op.name);
    if (!form) fail<TapeError>(ran.loc, "trace: {} is no op that a graph can hold", ran.op.name);
    std::vector<Graph::Value*> inputs;
    for (int i = 0; i < ran.input_count; ++i) {
        const Tensor& x = *ran.inputs[i];
        if (!exposed_.empty()) check_exposed(x);
        Seen& s = seen(x, ran.loc);
        // A tensor that the op has written to is looked up as it was before.
        bool is_written = false;
        for (int k = 0; k < ran.output_count; ++k) is_written |= ran.outputs[k] == x.impl();
        inputs.push_back(used(s, is_written ? s.value : current(s, ran.loc), ran.loc));
    }
    Graph::Node* node = append(Attributes(*form, ran.attrs), inputs, ran.loc);
    last_line_ = detail::caller(ran.loc);
    for (int k = 0; k < ran.output_count; ++k) {
        TensorImpl* out = ran.outputs[k];
        if (!writes_.empty()) {
            std::erase_if(writes_, [&](const Write& write) { return write.tensor.impl()->storage == out->storage; });
        }
        Graph::Value* value = graph_.add_result(node, out->dtype, out->device, sizes_of(out));
        const auto known = seen_.find(out);
        if (known != seen_.end()) {
            note_write(known->second, value, ran.loc);
            continue;
        }
        Seen fresh{handle_of(out), value, 0};
        fresh.version = version_of(fresh.tensor);
        if (is_floating(out->dtype) && no_grad_depth() > no_grad_) {
            fresh.stop = GradientStop::detached;
            fresh.is_of_forward = function_in_forward() != nullptr;
        }
        for (int i = 0; i < ran.input_count && !fresh.base; ++i) {
            if (ran.inputs[i]->impl()->storage != out->storage) continue;
            fresh.base = ran.inputs[i]->impl();
            fresh.view = node;
            fresh.piece = k;
        }
        if (fresh.base) {
            ++views_[fresh.base];
        } else {
            held_bytes_ += bytes_of(out);
        }
        seen_[out] = std::move(fresh);
        made_.push_back(out);
    }
    if (held_bytes_ > forget_from_) forget_unused();
    if (!exposed_.empty()) copy_exposed();
}

namespace {

// True if it is the same in each run: made of constants alone.
bool is_fixed(const Graph::Value* value) {
    std::vector<const Graph::Value*> open{value};
    std::unordered_set<const Graph::Node*> seen;
    while (!open.empty()) {
        const Graph::Value* next = open.back();
        open.pop_back();
        if (next->kind == Graph::Kind::constant) continue;
        const Graph::Node* maker = next->maker;
        if (!maker || maker->attributes().is_random()) return false;
        if (seen.insert(maker).second) open.insert(open.end(), maker->inputs.begin(), maker->inputs.end());
    }
    return true;
}

}  // namespace

void Tracer::read(const char* what, const Tensor& x, const Loc& caller) {
    if (inner_) return;
    const Loc& loc = caller.line() ? caller : last_line_;  // printing does not know its own line
    Graph::Value* value = value_of(x, loc);
    const auto copy = [&x] {
        const PauseRecording pause;
        return x.clone();
    };
    const bool is_address = std::strcmp(what, "data") == 0 || std::strcmp(what, "to_dlpack") == 0;
    if (value->kind == Graph::Kind::constant) {
        if (is_address) exposed_.push_back({x, copy(), version_of(x), loc});
        return;
    }
    if (!is_address && is_fixed(value)) return;
    if (reads_ == TraceOptions::Reads::refuse) {
        const Graph::Node* maker = value->maker;
        const std::string made =
            maker ? fmt::format("that {} made at {}", maker->op(), file_and_line(maker->loc)) : fmt::format("of {}", value->name);
        fail<TapeError>(
            loc,
            "trace: {}(){} reads a value {}: what the program does next may depend on it, but a graph does always the "
            "same. Compute with the tensor (where(), cond(), while_loop()){}{}",
            what, caller.line() ? "" : ", on this line or after it,", made,
            outer_ ? "; branches and bodies have no guards" : ", or trace with TraceOptions::Reads::guard for a graph that holds for this value only",
            hint_for_functions());
    }
    const Tensor now = copy();
    graph_.add_guard({value, now, what, loc});
    if (is_address) exposed_.push_back({x, now, version_of(x), loc});
}

void Tracer::named(const Tensor& parameter, const std::string& name) {
    if (inner_) return inner_->named(parameter, name);
    const AutogradMeta* meta = parameter.impl()->meta;
    if ((meta && meta->name) || knows(parameter) || is_named(parameter)) return;
    root().named_.emplace_back(name, parameter);
}

// --- Parts -----------------------------------------------------------------------------------------------------------------------

// True if it has been given as a parameter.
bool Tracer::is_named(const Tensor& x) const {
    const auto is_it = [&](const auto& named) { return named.second.is_same(x); };
    return std::any_of(named_.begin(), named_.end(), is_it) || (outer_ && outer_->is_named(x));
}

bool Tracer::knows(const Tensor& x) const { return seen_.count(x.impl()) > 0 || stops_.count(x.impl()) > 0 || (outer_ && outer_->knows(x)); }

Graph::Value* Tracer::capture(const Tensor& x, const Loc& loc) {
    const Graph::Value* outside = outer_->value_of(x, loc);
    std::string name = outside->name.empty() ? fmt::format("outer_{}", outside->number) : outside->name;
    const auto is_taken = [&](const Graph::Value* input) { return input->name == name; };
    while (std::any_of(graph_.inputs().begin(), graph_.inputs().end(), is_taken)) name += "_";
    captures_.push_back(x);
    return graph_.add_input(std::move(name), x.dtype(), sizes_of(x.impl()), x.device(), loc);
}

bool Tracer::is_outer(const Seen& s) const {
    const Seen* whole = &s;
    while (whole->base) whole = &seen_.at(whole->base);
    return whole->outer != nullptr;
}

Tracer::Part Tracer::trace_part(const char* what, const TracedFunction& fn, const std::vector<Tensor>& operands, const Loc& loc) {
    Tracer inner(*this, what);
    inner.last_line_ = detail::caller(loc);
    for (std::size_t i = 0; i < operands.size(); ++i) inner.add_input(fmt::format("operand_{}", i), operands[i]);
    Part part;
    std::vector<Graph::Value*> values;
    {
        struct Nested {
            Tracer*& place;
            ~Nested() { place = nullptr; }
        } nested{inner_};
        inner_ = &inner;
        const NoGradScope plain;
        const TracerScope active(inner);
        part.results = fn(operands);
        for (const Tensor& result : part.results) {
            if (!result.defined()) fail<ValueError>(loc, "{}: the function gave an undefined tensor", what);
            values.push_back(inner.value_of(result, loc));
        }
    }
    Graph graph = inner.finish();
    for (std::size_t i = 0; i < values.size(); ++i) graph.add_output(fmt::format("output_{}", i), values[i], loc);
    part.graph = std::make_shared<const Graph>(std::move(graph));
    part.captures = std::move(inner.captures_);
    return part;
}

Graph Tracer::finish() {
    check_left_gradients();
    if (!writes_.empty()) fail_unseen_write(writes_[0].tensor);
    for (const Exposed& e : exposed_) {
        if (is_outer(seen_.at(e.tensor.impl()))) check_exposed(e.tensor);
    }
    for (const auto& [impl, s] : seen_) {
        if (s.outer && !s.base && s.version != version_of(s.tensor)) fail_unseen_write(s.tensor);
    }
    std::vector<const Seen*> written;
    for (const auto& [impl, s] : seen_) {
        if (s.outer && s.value != s.outer) written.push_back(&s);
    }
    const auto made = [](const Seen* s) { return s->outer->number; };
    std::sort(written.begin(), written.end(), [&](const Seen* a, const Seen* b) { return made(a) < made(b); });
    for (const Seen* s : written) {
        if (s->outer->kind == Graph::Kind::constant) graph_.make_parameter(s->outer, free_name(graph_, fmt::format("buffer_{}", unnamed_++)));
        graph_.add_update(s->outer, s->value);
    }
    return std::move(graph_);
}

}  // namespace tapir::detail
