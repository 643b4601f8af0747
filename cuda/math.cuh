// Scalar functions as the rows of elementwise.def name them, for float, double and integers.
#pragma once

#include <cmath>

#include "tapir/cuda/device.cuh"
#include "tapir/cuda/scalar.cuh"
