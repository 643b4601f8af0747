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
    /// Inputs that become constants with these values. An input that decides on shapes, or on control flow
    /// (Reshape's shape, the trip count of a Loop), has to be among them.
    Graph::Inputs known = {};
    /// Sizes that fix named dimensions.
    DimSizes sizes = {};
    /// Groups of named dimensions of equal length, {{"s63", "s10"}}: some exporters give the same length two names. If the model does not run
    /// with two lengths, and its examples have one, they are taken for one automatically.
    std::vector<std::vector<std::string>> same = {};
    /// Divisors of the sizes of named dimensions, {{"height", 32}}: the graph takes no other sizes of them.
    DimSizes multiples = {};
    /// Inputs to try the model with, if small sizes, the default, do not fit, or if data decides on shapes. An input that is a
    /// sequence is as long as there are examples of it, x_0, x_1, ...; it is empty if x is an undefined Tensor.
    Graph::Inputs examples = {};
    /// Floating weights that stay constants. Running means and variances of batch normalisations are always parameters without
    /// gradients, and weights of one element constants. All others are parameters that require gradients. In models that save_onnx() wrote,
    /// parameters require them if they did before, and the program's constants are constants again.
    /// A weight of one element is usually a number of the program (the square root of 2 of a gelu, an attention's scale). It is a
    /// parameter if its place says so: as the weight, scale or bias of Conv, ConvTranspose, Gemm, MatMul, PRelu, a normalisation or a recurrent
    /// layer, or added to the result of a MatMul, as a bias; or if `parameters` names it.
    std::vector<std::string> constants = {};
    std::vector<std::string> parameters = {};
};

/// Reads the graph of an ONNX model (IR version 3 or later; each op as in the model's opset). Its inputs, outputs and weights have
/// the model's names; dimensions that the model names, or gives no sizes, may differ from run to run. An image network that halves
/// and doubles its images, and itself refuses other sizes, has multiples of 8, 32 or 64 ("32*height", see TraceInput). If the model takes
/// others, but no single graph fits them all, this is an error that names LoadOnnxOptions::multiples. Weights are parameters: to train them,
/// give their `data` to an optimizer, and call the graph under a Tape.
/// Loading computes shapes, not elements; with examples it computes where shapes do not do.
/// Integers of types that Tapir does not have become the next wider one (int8, int16, uint16: int32; uint32, uint64: int64).
/// The name of a node in the model serves as its module ("/layer1/conv/Conv") in listings, drawings and errors; nodes of save_onnx()
/// have the lines and modules of the program. Weights may lie in other files in the model's folder, not outside of it.
/// Throws FileError if the file is no model; ValueError for options with names that the model does not have, for ops that Tapir does not
/// have (it lists all), for an attribute that its operator does not have in the model's opset, or of another type, if the value of an input is
/// needed; TapeError if the model does something else for each size; OutOfMemory; and what ops throw, with the node's name.
Graph load_onnx(const TextArg& path, const LoadOnnxOptions& options = {}, Loc loc = Loc::current());
/// Reads a model from memory. folder: contains files of weights; empty: there are none.
Graph load_onnx_from_memory(TextViewArg bytes, const LoadOnnxOptions& options = {}, const TextArg& folder = {}, Loc loc = Loc::current());

// --- Writing ------------------------------------------------------------------------------------------------------------------------

struct OnnxOptions {
    /// The version of ONNX's operators: 17 to 28.
    int opset = 17;
    /// Puts weights of 1 KiB or more into a file beside the model, PATH.data. Models above 2 GiB need it.
    bool external_data = false;
    /// Key-value pairs of the model. Keys must be unique.
    std::vector<std::pair<std::string, std::string>> metadata = {};
    std::string graph_name = "graph";
    std::string doc = {};
};

/// Writes the graph as an ONNX model: inputs, outputs, parameters and named dimensions keep their names; each node states in its
/// doc_string the line of the program that it comes from, and its module. Tensors that the program writes to ("updates", like running
/// means) become further outputs, "NAME.updated". An op is one operator or a few (autograd/onnx_form.h). Stopped gradients (detach(),
/// NoGradScope) become an Identity of that name, by which load_onnx() recognises them.
/// Other runtimes refuse the parts of ONNX that they lack: onnxruntime has, for float64, no Erf (gelu, erf), Asin, Acos, Atan (atan2), Det,
/// Conv, AveragePool, Resize and GridSample, and no Scan of no steps, like the gradient of a while_loop that takes none.
/// Files are written beside and renamed. Throws ValueError that lists all ops that cannot be written, each with its line, or for two inputs,
/// parameters, outputs or metadata of one name, and FileError.
void save_onnx(const TextArg& path, const Graph& graph, const OnnxOptions& options = {}, Loc loc = Loc::current());

}  // namespace tapir
