// ONNX: graphs (trace.h) to and from the format that other runtimes read. Link Tapir::onnx.
//
//     save_onnx("model.onnx", trace(model, {{"x", x, {"batch"}}}));
//     Graph graph = load_onnx("model.onnx");
#pragma once

#include <string>

#include "tapir/autograd/trace/graph.h"
