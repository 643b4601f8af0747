// ONNX: graphs (trace.h) to and from the format that other runtimes read. Link Tapir::onnx.
//
//     save_onnx("model.onnx", trace(model, {{"x", x, {"batch"}}}));
//     Graph graph = load_onnx("model.onnx");
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tapir/autograd/trace/graph.h"

namespace tapir {

// --- Reading ------------------------------------------------------------------------------------------------------------------------

struct LoadOnnxOptions {
    /// Inputs that the graph shall not have: they are these values from now on. An input that decides on shapes, or on the way that
    /// the model goes (what Reshape is told, the times of a Loop), has to be among them.
    Graph::Inputs known = {};
    /// Sizes of named dimensions, which have no others then.
    DimSizes sizes = {};
    /// What the model is tried with, where the zeros of small sizes that it is tried with otherwise do not fit. An input that is a
    /// sequence is as long as there are examples of it: x_0, x_1, ...
    Graph::Inputs examples = {};
    /// Floating weights that stay constants, beside the running means and variances of batch normalisations, which are parameters
    /// without gradients. All others are parameters that require gradients.
    std::vector<std::string> constants = {};
};

/// The graph of an ONNX model (IR 3 to 10; opsets 7 to 20 or so, by what each op means in which): its inputs, outputs and weights have
/// the model's names; dimensions that the model names, or gives no sizes, may differ from run to run. Weights are parameters: give their
/// `data` to an optimizer, and call the graph under a Tape, to train them on.
/// Integers of types that Tapir has not are of the next wider one (int8, int16, uint16: int32; uint32, uint64: int64).
/// Weights may lie in other files in the model's folder, not outside of it.
/// Throws FileError for what is no model, ValueError with all ops that it has and Tapir has not, or where the value of an input is
/// needed, TapeError where the model does something else for each size, and what ops throw, with the node's name.
Graph load_onnx(const std::string& path, const LoadOnnxOptions& options = {}, Loc loc = Loc::current());
/// The same from memory. folder: where files of weights are; empty: there are none.
Graph load_onnx_from_memory(std::string_view bytes, const LoadOnnxOptions& options = {}, const std::string& folder = {},
                            Loc loc = Loc::current());

}  // namespace tapir
