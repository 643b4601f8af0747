// A second file with the umbrella header: the two must link together.
#include <tapir/tapir.h>

tapir::Tensor twice(const tapir::Tensor& x) { return x + x; }
