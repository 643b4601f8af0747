// Scalar functions by the names in elementwise.def's rows, for float, double and integers.
#pragma once

#include <cmath>

#include "tapir/cuda/device.cuh"
#include "tapir/cuda/scalar.cuh"
