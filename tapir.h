// All of Tapir: #include <tapir/tapir.h>
#pragma once

#include "tapir/autograd/checkpoint.h"
#include "tapir/autograd/function.h"
#include "tapir/autograd/gradcheck.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/allocator.h"
#include "tapir/core/parallel.h"
#include "tapir/core/tensor.h"
#include "tapir/ops/copy.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/indexing.h"
#include "tapir/ops/loss.h"
#include "tapir/ops/make.h"
#include "tapir/ops/matmul.h"
#include "tapir/ops/reduce.h"
#include "tapir/ops/view.h"
