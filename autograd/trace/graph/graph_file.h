// Graphs in files: the listing and the tensors in one safetensors file, which other programs can look at too.
#pragma once

#include <string>

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/core/arguments.h"

namespace tapir {

/// Writes a new file beside `path` and renames it: at any moment `path` is the old file or the whole new one. Throws FileError.
void save_graph(const TextArg& path, const Graph& graph, Loc loc = Loc::current());

/// What save_graph() has written. Parameters require gradients where those that were saved did (in files of Tapir before this was
/// written there, where they are floating), so that they can be trained on. Throws FileError
/// for a file that cannot be read, is none of a graph, or is of a later version, with what is wrong with it.
Graph load_graph(const TextArg& path, Loc loc = Loc::current());

}  // namespace tapir
