// Graph: a program that was traced (trace.h), as ops and the values that go between them. It can be looked at, run, differentiated,
// edited, simplified, drawn, saved and exported.
//
//     Graph graph = trace(model, {{"x", x, {"batch"}}});
//     graph.print();
//     Tensor y = graph.run({{"x", x}}, {"y"})[0];
//
// A value is made once (static single assignment): an op that writes in place makes a new value. A graph owns its nodes and values;
// pointers to them hold until they are removed, and while the graph lives (it can be moved; a copy has its own).
#pragma once

#include <atomic>
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
}  // namespace detail

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
        std::string name;  // of inputs and parameters, and of constants that have one
        Kind kind;
        DType dtype;
        Device device;
        std::vector<SymInt> shape;
        Tensor data;            // of constants and of parameters, whose is the program's own
        Node* maker = nullptr;  // of results
        int place = 0;          // among the maker's results
        std::vector<Use> uses;  // in no order; that it is an output of the graph is none
    };

    /// What of the program a node comes from. A node that takes the place of another has the same.
    struct Origin {
        Loc loc;                             // where the program called the op; line() == 0: not known
        const ModuleName* module = nullptr;  // for which module, and which of its calls
        std::uint32_t module_call = 0;
        const char* called = nullptr;  // the op that the program called, where this is one that it is made of; lives as long as the program
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
        std::uint64_t order;  // larger than that of each node before it; for Graph

     private:
        friend class Graph;
        friend struct gdb::GraphLayout;
        Attributes attributes_;
    };

    struct Output {
        std::string name;
        Value* value;
    };
    /// The value of a parameter, or of an input, that the program overwrote.
    struct Update {
        Value* target;
        Value* value;
    };

    /// The program looked at a value, and may have gone another way had it been another one.
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

    // Names: inputs have names of their own, so have parameters, so have outputs. One may be that of another kind, as of a state that goes in
    // and comes out: value() finds the output first, then the input; run() takes inputs by theirs and gives outputs by theirs. ONNX
    // knows one name for one value: save_onnx() refuses such a graph.

    // --- Looking ----------------------------------------------------------------------------------------------------------------

    const std::vector<Value*>& inputs() const noexcept { return inputs_; }
    const std::vector<Value*>& parameters() const noexcept { return parameters_; }
    const std::vector<Value*>& constants() const noexcept { return constants_; }
    const std::vector<Output>& outputs() const noexcept { return outputs_; }
    const std::vector<Update>& updates() const noexcept { return updates_; }
    /// What TraceOptions::Reads::guard has let pass: checked at each run.
    const std::vector<Guard>& guards() const noexcept { return guards_; }
    /// In an order in which they can run.
    const std::vector<std::unique_ptr<Node>>& nodes() const noexcept { return nodes_; }
    /// Those of inputs, parameters, constants and nodes, in this order.
    std::vector<Value*> values() const;
    /// The named dimensions, sorted.
    std::vector<std::string> dims() const;
    /// Whether shapes or attributes depend on named dimensions.
    bool is_symbolic() const;
    /// The graph for these sizes of named dimensions; what depends on others stays. Throws ValueError for a name that it does not have, and for
    /// a size below 0.
    Graph with(const DimSizes& sizes, Loc loc = Loc::current()) const;
    /// The same of the sizes of a graph around it: those of dimensions that this one does not have are nothing to it.
    Graph with_outer(const DimSizes& sizes, const Loc& loc) const;
    /// The input, parameter or output of this name. Throws ValueError, with the names that there are.
    Value* value(TextViewArg name, Loc loc = Loc::current()) const;
    /// A listing: a line for each value, with the lines of the program.
    std::string str() const;
    void print() const;
    /// What str() gave, with these parameters and constants (those by number, "%7"); numbers and small constants are in the text itself, others that are
    /// not given are zeros. Throws ValueError with the line that is no listing of a graph.
    static Graph parse(TextViewArg text, const Inputs& data = {}, Loc loc = Loc::current());
    /// A drawing for a browser, for Graphviz: a box for each run of a module's nodes, inputs, parameters and constants apart, shapes at the
    /// edges; what the pointer rests on tells more: lines, attributes, dtypes. Branches and bodies of loops are frames of their own.
    ///     std::ofstream("graph.svg") << graph.to_svg();
    std::string to_dot() const;
    std::string to_svg() const;

    // --- Running ----------------------------------------------------------------------------------------------------------------

    /// Calls the ops one by one, as the program did: they are recorded where a tape is alive, and traced where a graph is made of a function
    /// that calls this; an AutocastScope counts for nothing. Inputs in order; gives all outputs, in order. Updates are written. Throws ShapeError and
    /// DTypeError for what the graph was not traced for, ValueError for another number of inputs, undefined ones, one that is written to and lies in
    /// the memory of another one, and where a guard finds another value than the program saw; nothing is written then.
    std::vector<Tensor> operator()(const std::vector<Tensor>& inputs, Loc loc = Loc::current()) const;

    /// Computes these outputs (or parameters, or inputs), and gives them in this order. With names only what they and guards need is
    /// computed: inputs that they do not need may be left out, nothing is written to parameters and inputs, and random ops that they do not
    /// need draw nothing, so that for one seed the others draw other numbers than in a run of all. Without names: all outputs, and updates
    /// are written. Nothing is recorded. Memory is used again from run to run; several threads may run a graph at once, but not while
    /// another one edits it. Throws ValueError for unknown names and missing inputs, TapeError in a function that is traced, and as above.
    std::vector<Tensor> run(const Inputs& inputs, const std::vector<std::string>& outputs = {}, Loc loc = Loc::current()) const;
    /// The same made ready, to be called with tensors in order (compiled_graph.h). Throws ValueError for unknown names.
    CompiledGraph compile(const std::vector<std::string>& outputs = {}, Loc loc = Loc::current()) const;

    // --- Editing ----------------------------------------------------------------------------------------------------------------

    /// Sizes are numbers or formulas: {SymInt::dim("batch"), 4}. This and those below throw ValueError for a name that another one of the
    /// kind has, and for undefined tensors.
    Value* add_input(TextArg name, DType dtype, std::vector<SymInt> shape, Device device = {}, Loc loc = Loc::current());
    /// The graph holds the tensor itself, no copy; add_constant() too, whose elements are to stay as they are: plans and passes keep what they
    /// have made of them. (Constants of a trace are copies.)
    Value* add_parameter(TextArg name, const Tensor& data, Loc loc = Loc::current());
    Value* add_constant(const Tensor& data, TextArg name = {}, Loc loc = Loc::current());
    /// A constant becomes a parameter: one that can be written to.
    void make_parameter(Value* constant, TextArg name, Loc loc = Loc::current());
    /// A parameter becomes a constant: what is computed from it can be computed once. Throws ValueError where it is written to.
    void make_constant(Value* parameter, Loc loc = Loc::current());
    void add_output(TextArg name, Value* value, Loc loc = Loc::current());
    /// Each run checks that the value is `expected`: ValueError.
    void add_guard(Guard guard, Loc loc = Loc::current());
    /// Each run of all outputs writes the value to the target, a parameter or an input (ValueError), after all ops; in the place of the
    /// update that the target had.
    void add_update(Value* target, Value* value, Loc loc = Loc::current());
    // Each leaves the graph as it was where it throws. Values of other graphs are refused (ValueError).
    //
    //     Graph::Node* relu = graph.nodes()[1].get();
    //     Graph::Node* gelu = graph.insert(relu, "gelu", {relu->inputs[0]});
    //     graph.replace(relu->results[0], gelu->results[0]);
    //     graph.remove(relu);

    /// A call of an op before another node; null: after all. The results' shapes and dtypes are worked out by a call. It gets the line
    /// and the module of the other node, or this line. Throws ValueError for an unknown op, for too few inputs, and for those that are made
    /// later; else what the op throws.
    Node* insert(Node* before, TextViewArg op, const std::vector<Value*>& inputs,
                 const std::vector<std::pair<std::string, Attribute>>& attributes = {}, Loc loc = Loc::current());
    /// Every use of `old` becomes one of `other`, outputs, updates and guards too; only the node that makes `other` keeps its own, so that
    /// a function of a value can take its place. Throws ValueError where a user comes before `other`, DTypeError, DeviceError and ShapeError
    /// where they are not alike.
    void replace(Value* old, Value* other, Loc loc = Loc::current());
    /// One use: the node takes this value instead. Throws ValueError where the value is made later, IndexError where there is no such
    /// input, ShapeError and DTypeError where the node's results would be others; else what the op throws.
    void set_input(Node* node, int input, Value* value, Loc loc = Loc::current());
    /// Throws ValueError where there is no such attribute and where it cannot be that, ShapeError and DTypeError where the node's results would
    /// be others; else what the op throws.
    void set_attribute(Node* node, TextViewArg name, const Attribute& value, Loc loc = Loc::current());
    /// Throws ValueError where a result is still used.
    void remove(Node* node, Loc loc = Loc::current());
    /// The graph between any values: `from` become its inputs, `to` its outputs, what else is needed stays as it is. Values without a name
    /// are called "value_7". Throws ValueError where that leads to an input of this graph that is not among `from`.
    Graph extract(const std::vector<Value*>& from, const std::vector<Value*>& to, Loc loc = Loc::current()) const;

    // --- For what makes graphs --------------------------------------------------------------------------------------------------

    /// A node after all others, whose results are known already: add_result() is to follow.
    Node* append(Attributes attributes, const std::vector<Value*>& inputs);
    /// The same before another one, with its line and module.
    Node* append_before(Node* other, Attributes attributes, const std::vector<Value*>& inputs);
    /// An op without inputs, before all others, takes the place of a constant.
    void prepend(Attributes attributes, Value* constant);
    Value* add_result(Node* node, DType dtype, Device device, std::vector<SymInt> shape);
    /// To be changed; what is known of the node's results stays.
    Attributes& edit_attributes(Node* node) noexcept;
    /// The value stays. Throws ValueError where there is no such output.
    void remove_output(TextViewArg name, Loc loc = Loc::current());
    /// They are the graph's no more.
    std::vector<Guard> take_guards();
    /// Nothing is written to afterwards.
    void remove_updates();
    /// One node in the place of several: these results of theirs become its own, in this order, and the others are gone.
    struct Joined {
        std::vector<Node*> nodes;  // in order
        Attributes attributes;
        std::vector<Value*> inputs, results;
    };
    /// Nodes move where they must, so that each comes after what it needs; the caller knows that there is such an order.
    void join(std::vector<Joined> parts);
    /// Takes away what leads to none of these, constants too, and gives how many nodes that were.
    int sweep(const std::vector<const Value*>& kept);
    /// Throws ValueError, with what is wrong, where the graph is not whole: for tests of passes.
    void check(Loc loc = Loc::current()) const;

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

    // How it is run, made at the first run.
    struct Plans;
    detail::Plan& plan(const std::vector<std::string>& outputs, const Loc& loc) const;
    friend void detail::run_in_order(const Graph& graph, const Tensor* const* given, Tensor* results, const Loc& loc);
    void changed() noexcept;
    mutable std::atomic<Plans*> plans_{nullptr};
};

}  // namespace tapir
