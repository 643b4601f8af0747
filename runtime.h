// What Tapir::runtime, the library for deployment, offers: graphs are loaded and run.
//
//     const Graph graph = load_graph("model.graph");
//     Tensor y = graph.run({{"x", tensor({{1.0f, 2.0f}})}}, {"logits"})[0];
//     const CompiledGraph run = graph.compile({"logits"});        // without names, run after run
//
// Of Graph it has load_graph, parse, str, print, value, dims, run, operator() and compile. Tensors can be made (all of ops/make.h), read and written
// as safetensors files, and have operators (x * 2 + y, x > 0) and these methods: shape, size, stride, dtype and their like, item, at, data, to_vector
// and loops over dimension 0, x[...] and index, x[...] = y, index_put_, copy_, clone, contiguous, to, str; and, for results, reshape, transpose, t,
// permute, squeeze, unsqueeze, narrow, select. Methods, and functions too, are equal, allclose, softmax, argmax, argmin, argsort, topk. Other ops,
// gradients, linalg and optimizers are Tapir::tapir's. Programs that link Tapir::runtime are compiled with TAPIR_RUNTIME_ONLY, which the CMake
// target and pkg-config define: x.sum() does not compile there. What edits, draws and saves graphs is refused by the linker, a graph with an op
// that the runtime does not have by load_graph, which names it.
#pragma once

#include "tapir/autograd/trace/graph/graph_file.h"
#include "tapir/autograd/trace/run/compiled_graph.h"
#include "tapir/core/io/safetensors.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/arrange/unique.h"
#include "tapir/ops/elementwise/compare.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/random/random.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/scan/scan.h"
