// What Tapir::runtime, the library for deployment, offers: graphs are loaded and run.
//
//     const Graph graph = load_graph("model.graph");
//     Tensor y = graph.run({{"x", tensor({{1.0f, 2.0f}})}}, {"logits"})[0];
//
// Tensors can be made, looked at and printed; their methods that compute, and gradients, are Tapir::tapir's.
#pragma once

#include "tapir/autograd/trace/graph_file.h"
#include "tapir/core/io/safetensors.h"
#include "tapir/ops/make.h"
