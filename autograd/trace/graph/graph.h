// Graph: a traced program (trace.h), as ops and the values that flow between them. It can be inspected, run, differentiated,
// edited, simplified, drawn, saved and exported.
//
//     Graph graph = trace(model, {{"x", x, {"batch"}}});
//     graph.print();
//     Tensor y = graph.run({{"x", x}}, {"y"})[0];
//
// A value is made once (static single assignment): an op that writes in place makes a new value. A graph owns its nodes and values.
// Pointers to them stay valid until they are removed, as long as the graph lives (also when it is moved; a copy has its own).
#pragma once

#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tapir/autograd/attributes.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/sym_int.h"
#include "tapir/core/arguments.h"

namespace tapir {

struct ModuleName;

class CompiledGraph;
class Graph;
namespace detail {
class GraphReader;
class Plan;
void run_in_order(const Graph& graph, const Tensor* const* given, Tensor* results, const Loc& loc);
std::size_t planned_bytes(const Graph& graph);
}  // namespace detail

/// The only output of a graph: a Tensor. graph(x)[0] does not compile: for graph({x}), a list, [0] is the first output, but for a
/// Tensor it is the first row. Write graph({x})[0] or `Tensor y = graph(x); y[0]`.
class OnlyOutput : public Tensor {
 public:
    explicit OnlyOutput(Tensor output) noexcept : Tensor(static_cast<Tensor&&>(output)) {}
    Tensor operator[](const Index& index) const& { return Tensor::operator[](index); }
    Tensor operator[](const Index& index) const&& = delete;
};

class Graph {
 public:
    struct Node;
    enum class Kind : std::uint8_t { input, parameter, constant, result };
    struct Use {
        Node* node;
        int input;
    };

    struct Value {
        int number;        // %7 in listings
        std::string name;  // for inputs and parameters, and for constants that have one
        Kind kind;
        DType dtype;
        Device device;
        std::vector<SymInt> shape;
        Tensor data;            // for constants, and for parameters, which share the program's tensor
        Node* maker = nullptr;  // for results
        int place = 0;          // index in the maker's results
        std::vector<Use> uses;  // unordered; graph outputs do not count as uses
    };

    /// The place in the program that a node comes from. A node that replaces another inherits it.
    struct Origin {
        Loc loc;                             // the program's call of the op; line() == 0: not known
        const ModuleName* module = nullptr;  // the module that it ran for, and which of its calls
        std::uint32_t module_call = 0;
        const char* called = nullptr;  // the op that the program called, if this op is a part of it; lives as long as the program
    };

    struct Node : Origin {
        Node(Attributes attributes, std::vector<Value*> of, std::uint64_t place);
        const Attributes& attributes() const noexcept { return attributes_; }
        const OpForm& form() const noexcept { return attributes_.form(); }
        std::string_view op() const noexcept;
        bool is(const OpForm& op) const noexcept { return &attributes_.form() == &op; }
        void set_origin(const Origin& origin) noexcept { static_cast<Origin&>(*this) = origin; }

        std::vector<Value*> inputs;
        std::vector<Value*> results;
        std::uint64_t order;  // larger than that of each node before it; maintained by Graph

     private:
        friend class Graph;
        friend struct gdb::GraphLayout;
        Attributes attributes_;
    };

    struct Output {
        std::string name;
        Value* value;
    };
    /// A parameter, or an input, that the program overwrote, and its new value.
    struct Update {
        Value* target;
        Value* value;
    };

    /// The program read a value, and might have taken another branch for another value.
    struct Guard {
        Value* value;
        Tensor expected;
        std::string what;  // item, at, ...
        Loc loc;
    };

    using Inputs = std::vector<std::pair<std::string, Tensor>>;

    Graph();
    Graph(const Graph& other);
    Graph(Graph&& other) noexcept;
    Graph& operator=(Graph other) noexcept;
    ~Graph();

    // Names are unique among inputs, among parameters, and among outputs. One name may occur in two kinds, as for a state that goes in and
    // comes out: value() finds the output first, then the input; run() takes inputs by their names and returns outputs by theirs. ONNX
    // has one name for one value: save_onnx() refuses such a graph.

    // --- Looking ----------------------------------------------------------------------------------------------------------------

    const std::vector<Value*>& inputs() const noexcept { return inputs_; }
    const std::vector<Value*>& parameters() const noexcept { return parameters_; }
    const std::vector<Value*>& constants() const noexcept { return constants_; }
    const std::vector<Output>& outputs() const noexcept { return outputs_; }
    const std::vector<Update>& updates() const noexcept { return updates_; }
    /// The reads that TraceOptions::Reads::guard allowed: checked at each run.
    const std::vector<Guard>& guards() const noexcept { return guards_; }
    /// In an order in which they can run.
    const std::vector<std::unique_ptr<Node>>& nodes() const noexcept { return nodes_; }
    /// The values of inputs, parameters, constants and nodes, in this order.
    std::vector<Value*> values() const;
    /// The named dimensions, sorted.
    std::vector<std::string> dims() const;
    /// True if shapes or attributes depend on named dimensions.
    bool is_symbolic() const;
    /// Returns the graph for these sizes of named dimensions; others stay symbolic. Throws ValueError for a name that the graph does not have,
    /// and for a size below 0.
    Graph with(const DimSizes& sizes, Loc loc = Loc::current()) const;
    /// As with(), for the sizes of a graph around it: ignores dimensions that this graph does not have.
    Graph with_outer(const DimSizes& sizes, const Loc& loc) const;
    /// The input, parameter or output of this name. Throws ValueError that lists the names if there is none.
    Value* value(TextViewArg name, Loc loc = Loc::current()) const;
    /// A listing: a line for each value, with the lines of the program.
    std::string str() const;
    void print() const;
    /// Parses the output of str(), with these parameters and constants (the latter by number, "%7"). Numbers and small constants are in the text;
    /// others that are not given are zeros. Throws ValueError with the line that is not part of a listing.
    static Graph parse(TextViewArg text, const Inputs& data = {}, Loc loc = Loc::current());
    /// A drawing for Graphviz, or for a browser: a box for each run of a module's nodes; inputs, parameters and constants apart; shapes at the
    /// edges; the pointer shows lines, attributes and dtypes. Branches and bodies of loops have frames of their own.
    ///     std::ofstream("graph.svg") << graph.to_svg();
    std::string to_dot() const;
    std::string to_svg() const;

    // --- Running ----------------------------------------------------------------------------------------------------------------

    /// Calls the ops one by one, as the program did: a live tape records them, and a trace of a function that calls this traces them. An
    /// AutocastScope has no effect. Takes inputs in order; returns all outputs, in order, and writes updates. Throws ShapeError and
    /// DTypeError for inputs that the graph was not traced for; ValueError for another number of inputs, undefined ones, one that is written to and
    /// overlaps another, and if a guard finds another value than the program saw; nothing is written then.
    std::vector<Tensor> operator()(const std::vector<Tensor>& inputs, Loc loc = Loc::current()) const;
    std::vector<Tensor> operator()(std::initializer_list<Tensor> inputs, Loc loc = Loc::current()) const {
        return (*this)(std::vector<Tensor>(inputs), loc);
    }
    /// graph(x), graph(x, h0): returns the only output itself. Throws as above, and ValueError if there are several outputs.
    template <class... More>
    OnlyOutput operator()(In x, const More&... more) const {
        return only_output({x.tensor, more...}, x.loc);
    }

    /// Computes these outputs (or parameters, or inputs), and returns them in this order. With names, computes only what they and the guards
    /// need: other inputs may be left out, nothing is written to parameters and inputs, and random ops that are not needed draw nothing, so
    /// that for one seed the others draw other numbers than in a run of all. Without names: computes all outputs, and writes the updates.
    /// Nothing is recorded. Memory is reused from run to run. Several threads may run a graph at once, but not while
    /// another one edits it. Throws ValueError for unknown names and missing inputs, TapeError in a function that is traced, and as above.
    std::vector<Tensor> run(const Inputs& inputs, const std::vector<std::string>& outputs = {}, Loc loc = Loc::current()) const;
    /// Prepares run() for calls with tensors in order (compiled_graph.h). Throws ValueError for unknown names.
    CompiledGraph compile(const std::vector<std::string>& outputs = {}, Loc loc = Loc::current()) const;

    // --- Editing ----------------------------------------------------------------------------------------------------------------

    /// Sizes are numbers or formulas: {SymInt::dim("batch"), 4}. This and those below throw ValueError for a name that another value of the
    /// same kind has, and for undefined tensors.
    Value* add_input(TextArg name, DType dtype, std::vector<SymInt> shape, Device device = {}, Loc loc = Loc::current());
    /// The graph holds the tensor itself, no copy. So does add_constant(): its elements must not change, since plans and passes keep what
    /// they computed from them. (Constants of a trace are copies.)
    Value* add_parameter(TextArg name, const Tensor& data, Loc loc = Loc::current());
    Value* add_constant(const Tensor& data, TextArg name = {}, Loc loc = Loc::current());
    /// Turns a constant into a parameter, which can be written to.
    void make_parameter(Value* constant, TextArg name, Loc loc = Loc::current());
    /// Turns a parameter into a constant, so that results computed from it alone can be computed once. Throws ValueError if it is written to.
    void make_constant(Value* parameter, Loc loc = Loc::current());
    void add_output(TextArg name, Value* value, Loc loc = Loc::current());
    /// Makes each run check that the value is `expected`: ValueError.
    void add_guard(Guard guard, Loc loc = Loc::current());
    /// Makes each run of all outputs write the value to the target, a parameter or an input (ValueError), after all ops. Replaces an
    /// earlier update of the target.
    void add_update(Value* target, Value* value, Loc loc = Loc::current());
    // If one of these throws, the graph stays as it was. Values of other graphs are refused (ValueError).
    //
    //     Graph::Node* relu = graph.nodes()[1].get();
    //     Graph::Node* gelu = graph.insert(relu, "gelu", {relu->inputs[0]});
    //     graph.replace(relu->results[0], gelu->results[0]);
    //     graph.remove(relu);

    /// Inserts a call of an op before another node; null: after all. A call determines the results' shapes and dtypes. The node gets the line
    /// and the module of the other node, or this line. Throws ValueError for an unknown op, for too few inputs, and for inputs that are made
    /// later; else what the op throws.
    Node* insert(Node* before, TextViewArg op, const std::vector<Value*>& inputs,
                 const std::vector<std::pair<std::string, Attribute>>& attributes = {}, Loc loc = Loc::current());
    /// Replaces every use of `old` by `other`, also in outputs, updates and guards. Only the node that makes `other` keeps its use, so that
    /// a function of a value can replace the value. Throws ValueError if a user comes before `other`; DTypeError, DeviceError and ShapeError
    /// if the two are not alike.
    void replace(Value* old, Value* other, Loc loc = Loc::current());
    /// Changes one input of a node. Throws ValueError if the value is made later, IndexError if there is no such input,
    /// ShapeError and DTypeError if the node's results would change type; else what the op throws.
    void set_input(Node* node, int input, Value* value, Loc loc = Loc::current());
    /// Throws ValueError if there is no such attribute or it cannot have this value, ShapeError and DTypeError if the node's results would
    /// change type; else what the op throws.
    void set_attribute(Node* node, TextViewArg name, const Attribute& value, Loc loc = Loc::current());
    /// Throws ValueError if a result is still used.
    void remove(Node* node, Loc loc = Loc::current());
    /// Returns the graph between any values: `from` become its inputs, `to` its outputs, and what else they need is copied. Values without
    /// a name are called "value_7". Throws ValueError if that needs an input of this graph that is not among `from`.
    Graph extract(const std::vector<Value*>& from, const std::vector<Value*>& to, Loc loc = Loc::current()) const;

    // --- For what makes graphs --------------------------------------------------------------------------------------------------

    /// Appends a node after all others; add_result() must follow, since the results are known already.
    Node* append(Attributes attributes, const std::vector<Value*>& inputs);
    /// Inserts the node before another one, with its line and module.
    Node* append_before(Node* other, Attributes attributes, const std::vector<Value*>& inputs);
    /// Replaces a constant by an op without inputs, before all others.
    void prepend(Attributes attributes, Value* constant);
    Value* add_result(Node* node, DType dtype, Device device, std::vector<SymInt> shape);
    /// Returns the attributes for changes; the results' types stay.
    Attributes& edit_attributes(Node* node) noexcept;
    /// Removes the output; its value stays. Throws ValueError if there is no such output.
    void remove_output(TextViewArg name, Loc loc = Loc::current());
    /// Moves the guards out of the graph.
    std::vector<Guard> take_guards();
    /// Removes all updates, so that nothing is written.
    void remove_updates();
    /// Replaces several nodes by one: `results` of theirs become its own, in this order, and the nodes are removed.
    struct Joined {
        std::vector<Node*> nodes;  // in order
        Attributes attributes;
        std::vector<Value*> inputs, results;
    };
    /// Moves nodes where needed, so that each comes after what it needs; the caller knows that such an order exists.
    void join(std::vector<Joined> parts);
    /// Removes all that leads to none of these, constants too, and returns the number of nodes removed.
    int sweep(const std::vector<const Value*>& kept);
    /// Throws ValueError, with the reason, if the graph is inconsistent: for tests of passes.
    void check(Loc loc = Loc::current()) const;
    /// Checks its links alone: order, makers and uses. The shapes that texts state may contradict each other where names hid it.
    void check_links(Loc loc = Loc::current()) const;

 private:
    Value* add_value(Kind kind, std::string name, DType dtype, Device device, std::vector<SymInt> shape);
    friend struct gdb::GraphLayout;
    friend class detail::GraphReader;
    std::size_t position(const Node* node, const char* what, const Loc& loc) const;
    void check_is_here(const Value* value, const char* what, const Loc& loc) const;
    void sort_nodes();
    static void check_keeps_results(const Node* node, const Attributes& attributes, const std::vector<Value*>& inputs, const char* what,
                                    const Loc& loc);
    void check_comes_before(const Value* value, const Node* node, const char* what, const Loc& loc) const;
    static void drop_use(Value* value, const Node* node, int input);
    void move_last_to(std::size_t at);

    std::vector<std::unique_ptr<Value>> values_;
    std::vector<std::unique_ptr<Node>> nodes_;
    std::vector<Value*> inputs_, parameters_, constants_;
    std::vector<Output> outputs_;
    std::vector<Update> updates_;
    std::vector<Guard> guards_;
    int next_ = 0;

    OnlyOutput only_output(const std::vector<Tensor>& inputs, const Loc& loc) const;
    // Plans for running it, made at the first run.
    struct Plans;
    detail::Plan& plan(const std::vector<std::string>& outputs, const Loc& loc) const;
    friend void detail::run_in_order(const Graph& graph, const Tensor* const* given, Tensor* results, const Loc& loc);
    friend std::size_t detail::planned_bytes(const Graph& graph);
    void changed() noexcept;
    mutable std::atomic<Plans*> plans_{nullptr};
};

}  // namespace tapir
