// Graphs in files: the listing and the tensors in one safetensors file, which other programs can look at too.
#pragma once

#include <string>

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/core/arguments.h"

namespace tapir {

/// Writes a new file beside `path` and renames it: at any moment `path` is the old file or the whole new one. Throws FileError.
void save_graph(const TextArg& path, const Graph& graph, Loc loc = Loc::current());

/// Reads the output of save_graph(). Parameters require gradients if the saved ones did (in older files, which do not say so: if they
/// are floating), so that training can continue. Throws FileError
/// for a file that cannot be read, holds no graph, or is of a later version, with the reason.
Graph load_graph(const TextArg& path, Loc loc = Loc::current());

}  // namespace tapir
