// All of nn/data.
#pragma once

#include "tapir/nn/data/collate.h"
#include "tapir/nn/data/dataset.h"
#include "tapir/nn/data/loader.h"
#include "tapir/nn/data/sampler.h"
