// What Tapir::runtime, the library for deployment, offers: graphs are loaded and run.
//
//     const Graph graph = load_graph("model.graph");
//     Tensor y = graph.run({{"x", tensor({{1.0f, 2.0f}})}}, {"logits"})[0];
//     const CompiledGraph run = graph.compile({"logits"});        // without names, run after run
//
// Of Graph it has load_graph, parse, str, print, value, dims, run, operator() and compile. Tensors can be made (all of ops/make.h), looked at
// (item, at, data, to_vector, loops over dimension 0), compared (equal, allclose), indexed, written to by index and printed, and there is
// what is done to results: reshape, transpose, permute, squeeze, softmax, argmax, argsort, topk. What edits, draws and saves graphs, other
// methods that compute, gradients, linalg and the steps of optimizers are Tapir::tapir's: a call of such a function is refused by the
// linker, a graph with such an op by load_graph, which names it.
#pragma once

#include "tapir/autograd/trace/compiled_graph.h"
#include "tapir/autograd/trace/graph_file.h"
#include "tapir/core/io/safetensors.h"
#include "tapir/ops/make.h"
#include "tapir/ops/reduce.h"
