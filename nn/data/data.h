// Includes all of nn/data.
#pragma once

#include "tapir/nn/data/collate.h"
#include "tapir/nn/data/csv.h"
#include "tapir/nn/data/dataset.h"
#include "tapir/nn/data/distributed_sampler.h"
#include "tapir/nn/data/images.h"
#include "tapir/nn/data/loader.h"
#include "tapir/nn/data/ptb.h"
#include "tapir/nn/data/sampler.h"
#include "tapir/nn/data/text.h"
#include "tapir/nn/data/tree.h"
