// All of nn but its data (nn/data/data.h).
#pragma once

#include "tapir/nn/activation.h"
#include "tapir/nn/attention.h"
#include "tapir/nn/containers.h"
#include "tapir/nn/convolution.h"
#include "tapir/nn/image.h"
#include "tapir/nn/init.h"
#include "tapir/nn/layers.h"
#include "tapir/nn/loss.h"
#include "tapir/nn/module.h"
#include "tapir/nn/normalization.h"
#include "tapir/nn/padding.h"
#include "tapir/nn/pooling.h"
#include "tapir/nn/recurrent.h"
#include "tapir/nn/sequential.h"
#include "tapir/nn/training_state.h"
#include "tapir/nn/tree_lstm.h"
