// The tracer: a watcher of ops that writes them into a graph.
//
// A graph's values are never overwritten. Where the program writes in place, the tensor stands for a new value from then on; where
// what it writes to is a view, the tensor that it is a view of does too (an op of the kind of slice_scatter), and other views of
// that are made anew when they are used next.
#pragma once

#include <unordered_map>

#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/trace/graph/detach_impl.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/autograd/watch/watch_impl.h"

namespace tapir::detail {

/// The number of a new trace, for its TracingScope.
std::uint16_t next_trace() noexcept;

/// Whether its ops draw random numbers.
bool draws(const Graph& graph);

/// A leaf's gradient, to be put back.
class KeptGradient {
 public:
    explicit KeptGradient(const Tensor& leaf);  // with gradient_mutex() held
    void put_back() const;
    const Tensor& leaf() const noexcept { return leaf_; }
    /// Undefined: it has none, or none that is computed.
    const Tensor& gradient() const noexcept { return grad_; }

 private:
    Tensor leaf_, grad_, used_rows_;
    std::vector<SparseRows> rows_;
    ProductRows products_;
    std::int64_t rows_version_;
};

class Tracer : public OpWatcher {
 public:
    /// loc: of the call.
    Tracer(const TraceOptions& options, const Loc& loc);
    /// The tracer that this thread's ops are told to, or null.
    static Tracer* current() noexcept;

    void add_input(const std::string& name, const Tensor& x);
    /// The value that a tensor stands for now; one that was not seen yet becomes a parameter or a constant.
    Graph::Value* value_of(const Tensor& x, const Loc& loc);
    std::size_t node_count() const noexcept { return graph_.nodes().size(); }
    /// Nodes from that one on are of this module, and this line, where there is one; but for those that have a module already. Its type, where it has
    /// one, is what the program called: a node of an ONNX model.
    void set_module(std::size_t from, const ModuleName* module, const Loc& line);
    /// Tensors that the trace made and that nobody else holds any more, nor views of them: the program cannot use them again. Their memory is free then.
    void forget_unused();
    /// Notes what was written to parameters and inputs; nothing is told to the tracer after it.
    Graph finish();
    /// The program makes another tensor of its elements, which may be used before this is.
    void note_source(const Tensor& x);
    /// No gradient goes on from this tensor.
    void note_stop(const Tensor& x, GradientStop stop);
    /// Whether random numbers were drawn.
    bool drew() const;
    /// What the tensors that the program wrote to held before.
    std::vector<std::pair<Tensor, Tensor>> take_backups() { return std::move(backups_); }
    /// The program is about to forget its gradient, or to set another one; to ask for it; to add to it, with gradient_mutex() held.
    void note_reset(const Tensor& leaf);
    void note_grad(const Tensor& leaf);
    void note_addition(const Tensor& leaf);
    /// The leaves whose gradients the program has changed, with those that they had. Those of others may be other threads' by now.
    std::vector<KeptGradient> take_gradients();

    /// A function that the program calls, as a graph: a branch, the body of a loop. It has an input for each operand, and then one
    /// for each tensor that the function uses beside these (captures); numbers are constants of its own. Throws TapeError where the
    /// function writes to what it did not make.
    struct Part {
        std::shared_ptr<const Graph> graph;
        std::vector<Tensor> captures;
        std::vector<Tensor> results;  // of this call
    };
    Part trace_part(const char* what, const TracedFunction& fn, const std::vector<Tensor>& operands, const Loc& loc);

    void before_write(const Tensor& self) override;
    void read(const char* what, const Tensor& x, const Loc& caller) override;
    void named(const Tensor& parameter, const std::string& name) override;
    void written(const Tensor& self, const Loc& caller) override;
    void end(const RecordArgs& ran) override;

 protected:
    const Graph& graph() const noexcept { return graph_; }
    const Loc& last_line() const noexcept { return last_line_; }
    bool is_tracing_part() const noexcept { return inner_ != nullptr; }

 private:
    struct Seen {
        Tensor tensor;  // held, so that its address stays its own
        Graph::Value* value;
        std::uint32_t version;             // of the storage, for which `value` holds
        const TensorImpl* base = nullptr;  // that it is a view of
        Graph::Node* view = nullptr;       // how; null: it is the same elements in the same shape (detach())
        Graph::Value* outer = nullptr;     // what it was before the trace; null: the trace made it
        int piece = 0;                     // which result of `view`
        GradientStop stop = GradientStop::none;
        bool is_of_forward = false;  // a custom function's forward has made it, whose results say that their gradient is the program's
        // The value of the node that says so, made at the first use by what may have a gradient, and of what it is.
        Graph::Value *stopped = nullptr, *stopped_of = nullptr;
        Graph::Value* before = nullptr;  // it was written to, where that is why it stops
    };
    explicit Tracer(Tracer& outer, const char* what);  // of a part
    Graph::Value* capture(const Tensor& x, const Loc& loc);
    bool is_outer(const Seen& s) const;
    bool knows(const Tensor& x) const;
    bool is_named(const Tensor& x) const;
    Seen& seen(const Tensor& x, const Loc& loc);
    Seen* alias_of(const Tensor& x);
    void put_back(Seen& whole, const Seen& part, const Loc& loc);
    Graph::Value* current(Seen& s, const Loc& loc);
    Graph::Value* used(Seen& s, Graph::Value* value, const Loc& loc);
    static bool has_gradient(const Graph::Value* value);
    void note_stop_of_write(Seen& s, Graph::Value* before) const;
    void note_write(Seen& s, Graph::Value* value, const Loc& loc);
    Graph::Node* append(Attributes attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc);
    void note_constant(TensorImpl* made);
    struct Leaf {
        KeptGradient kept;
        bool is_reset = false;  // the program has forgotten the gradient that was there
        bool is_changed = false;
        Loc added_at;  // where one was added to none, though the program had not made sure that there is none
    };
    Leaf& note_leaf(const Tensor& x);
    [[noreturn]] void fail_old_gradient(const Tensor& leaf, const Loc& loc) const;
    void check_left_gradients() const;
    void check_constant(const Tensor& x, const Loc& loc) const;
    void check_exposed(const Tensor& x) const;
    void copy_exposed();
    [[noreturn]] void fail_unseen_write(const Tensor& x) const;
    void describe(Graph::Node* node, const Loc& loc);

    Graph graph_;
    std::unordered_map<const TensorImpl*, Seen> seen_;
    std::vector<const TensorImpl*> made_;               // by the trace, in order, of those in seen_
    std::unordered_map<const TensorImpl*, int> views_;  // how many of seen_ are views of it
    std::unordered_map<const OpInfo*, const OpForm*> forms_;
    std::vector<std::pair<std::string, Tensor>> named_;  // parameters, by the names that they shall have
    std::vector<std::pair<Tensor, Tensor>> backups_;
    std::vector<Tensor> sources_;  // of detached tensors
    struct Stop {
        Tensor tensor;
        GradientStop stop;
        bool is_of_forward;
    };
    std::unordered_map<const TensorImpl*, Stop> stops_;  // that were not used yet
    int no_grad_ = 0;                                    // how many NoGradScopes there were when it began
    friend class TracerScope;
    std::unordered_map<const TensorImpl*, Leaf> leaves_;
    TraceOptions::Reads reads_;
    // What was written to that was there before the trace, until the op that did it is told of.
    struct Write {
        Tensor tensor;
        std::string op;
        Loc loc;
    };
    std::vector<Write> writes_;
    // Whose address the program has, so that it may write there without being seen.
    struct Exposed {
        Tensor tensor, copy;  // as it is now
        std::uint32_t version;
        Loc loc;
    };
    std::vector<Exposed> exposed_;
    std::vector<Tensor> numbers_;  // that are constants of parts, and not known outside of these
    int unnamed_ = 0;
    Tracer& root() noexcept { return outer_ ? outer_->root() : *this; }
    Tracer* outer_ = nullptr;  // whose part this is
    Tracer* inner_ = nullptr;  // which traces a part now: what is told is its
    const char* what_ = "trace";
    std::vector<Tensor> captures_;
    Loc last_line_;  // of the last op; of the call before the first one
};

/// What ops are told to while it lives.
class TracerScope {
 public:
    explicit TracerScope(Tracer& tracer) noexcept;
    ~TracerScope();
    TracerScope(const TracerScope&) = delete;
    TracerScope& operator=(const TracerScope&) = delete;

 private:
    WatchScope watching_;
    Tracer* outer_;
};

}  // namespace tapir::detail
