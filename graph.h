// Graphs: tracing a program, and editing, differentiating, running, saving and loading what was traced.
#pragma once

#include "tapir/autograd/trace/graphs.h"
