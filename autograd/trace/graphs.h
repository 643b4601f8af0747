// All of graphs: tracing, running, passes, gradients, control flow, files. (ONNX has a library of its own: autograd/trace/onnx/onnx.h.)
#pragma once

#include "tapir/autograd/trace/check_trace.h"
#include "tapir/autograd/trace/compiled_graph.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/grad.h"
#include "tapir/autograd/trace/graph.h"
#include "tapir/autograd/trace/graph_file.h"
#include "tapir/autograd/trace/passes.h"
#include "tapir/autograd/trace/trace.h"
