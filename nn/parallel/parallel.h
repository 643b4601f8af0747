// Several processes, or threads, that train one model. Link Tapir::parallel.
#pragma once

#include "tapir/nn/parallel/group.h"
#include "tapir/nn/parallel/parameter_server.h"
#include "tapir/nn/parallel/pipeline.h"
#include "tapir/nn/parallel/replicas.h"
#include "tapir/nn/parallel/sharded.h"
#include "tapir/nn/parallel/sync_batch_norm.h"
#include "tapir/nn/parallel/tensor_parallel.h"
#include "tapir/nn/parallel/unchecked_writes.h"
