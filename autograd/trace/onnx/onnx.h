// ONNX: graphs (trace.h) to and from the format that other runtimes read. Link Tapir::onnx.
//
//     save_onnx("model.onnx", trace(model, {{"x", x, {"batch"}}}));
//     Graph graph = load_onnx("model.onnx");
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/core/arguments.h"

namespace tapir {

// --- Reading ------------------------------------------------------------------------------------------------------------------------

struct LoadOnnxOptions {
    /// Inputs that the graph shall not have: they are these values from now on. An input that decides on shapes, or on the way that
    /// the model goes (what Reshape is told, the times of a Loop), has to be among them.
    Graph::Inputs known = {};
    /// Sizes of named dimensions, which have no others then.
    DimSizes sizes = {};
    /// Named dimensions that are one length, {{"s63", "s10"}}: some exporters give the same length two names. Where the model does not run with
    /// two lengths, and its examples have one, they are taken for one without being told.
    std::vector<std::vector<std::string>> same = {};
    /// Numbers that the sizes of named dimensions can be divided by, {{"height", 32}}: the graph takes no other sizes of them.
    DimSizes multiples = {};
    /// What the model is tried with, where the zeros of small sizes that it is tried with otherwise do not fit, or hide what it does. An input that is a
    /// sequence is as long as there are examples of it, x_0, x_1, ...; it is empty where x is an undefined Tensor.
    Graph::Inputs examples = {};
    /// Floating weights that stay constants, beside the running means and variances of batch normalisations, which are parameters
    /// without gradients, and beside weights of one element. All others are parameters that require gradients; in models that save_onnx() wrote,
    /// those that did before, and what was a constant of the program is one again.
    /// A weight of one element is most often a number of the program (the square root of 2 of a gelu, an attention's scale). It is a
    /// parameter where its place says so: as the weight, scale or bias of Conv, ConvTranspose, Gemm, MatMul, PRelu, a normalisation or a recurrent
    /// layer, or added to what a MatMul gives, which is a bias; or where `parameters` names it.
    std::vector<std::string> constants = {};
    std::vector<std::string> parameters = {};
    /// How many bytes the tensors of a run may take while the model is tried, with sizes that nobody has given and with those of examples: what
    /// needs more does not fit.
    std::int64_t trial_memory = std::int64_t{4} << 30;
    /// How many turns the loops of the model may take, all together, each time that it is tried with inputs that are made up: on these
    /// they may have no end.
    std::int64_t trial_turns = 10'000;
};

/// The graph of an ONNX model (from IR version 3 on; each op as its meaning is in the model's opset): its inputs, outputs and weights have
/// the model's names; dimensions that the model names, or gives no sizes, may differ from run to run. A network of images that halves
/// and doubles them, and itself refuses other sizes, has multiples of 8, 32 or 64 ("32*height", see TraceInput); where the model would take
/// others, but no graph of all of them can be made, this is an error that names LoadOnnxOptions::multiples. Weights are parameters: give
/// their `data` to an optimizer, and call the graph under a Tape, to train them on.
/// Integers of types that Tapir has not are of the next wider one (int8, int16, uint16: int32; uint32, uint64: int64).
/// A node has the name of its node in the model for a module ("/layer1/conv/Conv"): in listings, drawings and errors; those of save_onnx()
/// have the lines and modules of the program.
/// Weights may lie in other files in the model's folder, not outside of it.
/// Throws FileError for what is no model, ValueError for options that name what the model has not, with all ops that it has and Tapir has
/// not, for a node with an attribute that its operator has not in the model's opset, or of another type, or where the value of an input is needed, or loops do not end within trial_turns, TapeError where the model does something else
/// for each size, OutOfMemory where no sizes that fit do with trial_memory, and what ops throw, with the node's name.
Graph load_onnx(const TextArg& path, const LoadOnnxOptions& options = {}, Loc loc = Loc::current());
/// The same from memory. folder: where files of weights are; empty: there are none.
Graph load_onnx_from_memory(TextViewArg bytes, const LoadOnnxOptions& options = {}, const TextArg& folder = {}, Loc loc = Loc::current());

// --- Writing ------------------------------------------------------------------------------------------------------------------------

struct OnnxOptions {
    /// The version of ONNX's operators: 17 to 28.
    int opset = 17;
    /// The weights go into a file beside the model, PATH.data, but for those of less than 1 KiB. Models above 2 GiB need it.
    bool external_data = false;
    /// Of the model, as keys, each there once, and values.
    std::vector<std::pair<std::string, std::string>> metadata = {};
    std::string graph_name = "graph";
    std::string doc = {};
};

/// Writes the graph as an ONNX model: inputs, outputs, parameters and named dimensions keep their names; each node says in its
/// doc_string which line of the program it comes from, and for which module. What the program wrote to ("updates", as of running
/// means) becomes further outputs, "NAME.updated". An op is one operator or a few (autograd/onnx_form.h). Where gradients stop (detach(),
/// NoGradScope) there is an Identity of that name, by which load_onnx() knows it.
/// What other runtimes leave out of ONNX they refuse: onnxruntime has, of float64, no Erf (gelu, erf), no Asin, Acos, Atan (atan2) and Det,
/// and none of Conv, AveragePool, Resize and GridSample, and it has no Scan of no steps, as the gradient of a while_loop is that makes none.
/// Files are written beside and renamed. Throws ValueError that names all ops that cannot be written, each with its line, or for two inputs,
/// parameters, outputs or metadata of one name, and FileError.
void save_onnx(const TextArg& path, const Graph& graph, const OnnxOptions& options = {}, Loc loc = Loc::current());

}  // namespace tapir
