// ONNX models: graphs are written as such, and read. Of Tapir::onnx, a library beside Tapir::tapir.
#pragma once

#include "tapir/autograd/trace/onnx/onnx.h"
