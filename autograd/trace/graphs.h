// All of graphs: tracing, running, passes, gradients, control flow, files. (ONNX has a library of its own: autograd/trace/onnx/onnx.h.)
#pragma once

#include "tapir/autograd/trace/check_trace.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/autograd/trace/graph/graph_file.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/run/compiled_graph.h"
#include "tapir/autograd/trace/trace.h"
