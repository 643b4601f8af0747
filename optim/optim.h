// Includes all of optim.
#pragma once

#include "tapir/optim/adagrad.h"
#include "tapir/optim/adam.h"
#include "tapir/optim/asgd.h"
#include "tapir/optim/average.h"
#include "tapir/optim/clip.h"
#include "tapir/optim/grad_scaler.h"
#include "tapir/optim/lbfgs.h"
#include "tapir/optim/lion.h"
#include "tapir/optim/rmsprop.h"
#include "tapir/optim/rprop.h"
#include "tapir/optim/schedule.h"
#include "tapir/optim/sgd.h"
