// Looking at a running program: where its time and memory go, where the first nan comes from, and whether gradients are right.
#pragma once

#include "tapir/autograd/gradcheck.h"
#include "tapir/autograd/watch/check_finite.h"
#include "tapir/autograd/watch/gradient_by_use.h"
#include "tapir/autograd/watch/log_ops.h"
#include "tapir/autograd/watch/profiler.h"
#include "tapir/core/memory_profiler.h"
