// The tracer: a watcher of ops that writes them into a graph.
//
// A graph's values are never overwritten. After the program writes in place, the tensor stands for a new value. If it wrote to a
// view, the base tensor also stands for a new value (by an op such as slice_scatter), and other views of the base
// are made again at their next use.
#pragma once

#include <unordered_map>

#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/trace/graph/detach_impl.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/autograd/watch/watch_impl.h"

namespace tapir::detail {

/// A number for a new trace, for its TracingScope.
std::uint16_t next_trace() noexcept;

/// True if its ops draw random numbers.
bool draws(const Graph& graph);

/// A leaf's gradient, saved so that it can be put back.
class KeptGradient {
 public:
    explicit KeptGradient(const Tensor& leaf);  // with gradient_mutex() held
    void put_back() const;
    const Tensor& leaf() const noexcept { return leaf_; }
    /// Undefined: the leaf has none, or none that is computed yet.
    const Tensor& gradient() const noexcept { return grad_; }

 private:
    Tensor leaf_, grad_, used_rows_;
    std::vector<SparseRows> rows_;
    ProductRows products_;
    std::int64_t rows_version_;
};

class Tracer : public OpWatcher {
 public:
    /// loc: the line of the call.
    Tracer(const TraceOptions& options, const Loc& loc);
    /// The tracer that this thread's ops report to, or null.
    static Tracer* current() noexcept;

    void add_input(const std::string& name, const Tensor& x);
    /// The value that a tensor stands for now. A tensor that was not seen yet becomes a parameter or a constant.
    Graph::Value* value_of(const Tensor& x, const Loc& loc);
    std::size_t node_count() const noexcept { return graph_.nodes().size(); }
    /// Assigns nodes from that one on to this module, and to this line if it has one, except nodes that have a module already. If the module has a
    /// type, it is what the program called: a node of an ONNX model.
    void set_module(std::size_t from, const ModuleName* module, const Loc& line);
    /// Forgets tensors that the trace made and that nobody else holds any more, nor views of them: the program cannot use them. Frees their memory.
    void forget_unused();
    /// Notes what was written to parameters and inputs. The tracer must be told nothing after it.
    Graph finish();
    /// Called when the program makes another tensor of x's elements, which may be used before x is.
    void note_source(const Tensor& x);
    /// No gradient flows on from this tensor.
    void note_stop(const Tensor& x, GradientStop stop);
    /// True if random numbers were drawn.
    bool drew() const;
    /// The tensors that the program wrote to, with their contents before.
    std::vector<std::pair<Tensor, Tensor>> take_backups() { return std::move(backups_); }
    /// Called before the program clears or replaces its gradient; reads it; adds to it, with gradient_mutex() held.
    void note_reset(const Tensor& leaf);
    void note_grad(const Tensor& leaf);
    void note_addition(const Tensor& leaf);
    /// The leaves whose gradients the program has changed, with their earlier gradients. Other leaves may belong to other threads by now.
    std::vector<KeptGradient> take_gradients();

    /// A function that the program calls, as a graph: a branch, the body of a loop. It has an input for each operand, and then one
    /// for each other tensor that the function uses (captures); numbers become its own constants. Throws TapeError if the
    /// function writes to a tensor that it did not make.
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
        Tensor tensor;  // held, so that no other tensor gets its address
        Graph::Value* value;
        std::uint32_t version;             // of the storage, for which `value` is right
        const TensorImpl* base = nullptr;  // the tensor that it is a view of
        Graph::Node* view = nullptr;       // the node that makes the view; null: same elements in the same shape (detach())
        Graph::Value* outer = nullptr;     // its value before the trace; null: the trace made it
        int piece = 0;                     // index of the result of `view`
        GradientStop stop = GradientStop::none;
        bool is_of_forward = false;  // made by a custom function's forward; its results state that their gradient is the program's
        // The value of the node that states the stop, made at the first use by an op that may have a gradient, and the value it was made of.
        Graph::Value *stopped = nullptr, *stopped_of = nullptr;
        Graph::Value* before = nullptr;  // its value before the write that stops its gradient
    };
    explicit Tracer(Tracer& outer, const char* what);  // for a part
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
        bool is_reset = false;  // the program has cleared the gradient that was there
        bool is_changed = false;
        Loc added_at;  // set where a gradient was added to none, although the program had not made sure that there was none
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
    std::vector<const TensorImpl*> made_;  // the tensors in seen_ that the trace made, in order
    // Their bytes, and at how many forget_unused() is called again: so a trace takes little more memory than what it traces.
    static constexpr std::int64_t kForgetFrom = 2 << 20;
    std::int64_t held_bytes_ = 0, forget_from_ = kForgetFrom;
    std::unordered_map<const TensorImpl*, int> views_;  // the number of views of each base in seen_
    std::unordered_map<const OpInfo*, const OpForm*> forms_;
    std::vector<std::pair<std::string, Tensor>> named_;  // parameters, with the names that they shall have
    std::vector<std::pair<Tensor, Tensor>> backups_;
    std::vector<Tensor> sources_;  // of detached tensors
    struct Stop {
        Tensor tensor;
        GradientStop stop;
        bool is_of_forward;
    };
    std::unordered_map<const TensorImpl*, Stop> stops_;  // not used yet
    int no_grad_ = 0;                                    // the number of NoGradScopes when it began
    friend class TracerScope;
    std::unordered_map<const TensorImpl*, Leaf> leaves_;
    TraceOptions::Reads reads_;
    // A write to a tensor from before the trace, until the op that wrote reports.
    struct Write {
        Tensor tensor;
        std::string op;
        Loc loc;
    };
    std::vector<Write> writes_;
    // A tensor whose address the program has, so that it may write there unseen.
    struct Exposed {
        Tensor tensor, copy;  // as it is now
        std::uint32_t version;
        Loc loc;
    };
    std::vector<Exposed> exposed_;
    std::vector<Tensor> numbers_;  // constants of parts, unknown outside of these
    int unnamed_ = 0;
    Tracer& root() noexcept { return outer_ ? outer_->root() : *this; }
    Tracer* outer_ = nullptr;  // the tracer whose part this is
    Tracer* inner_ = nullptr;  // the tracer of the part that is being traced now; it gets all reports
    const char* what_ = "trace";
    std::vector<Tensor> captures_;
    Loc last_line_;  // of the last op; of the call before the first one
};

/// Directs the thread's ops to a tracer while it lives.
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
