#include "tapir/ops/composed_impl.h"

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/fail_impl.h"

namespace tapir {

// Not in registry.cpp: who links this does not link every op.
void Composed(Backward& b) { fail<TapeError>(b.record().loc, "{}: has no rule, since its parts are recorded", b.record().op->name); }

}  // namespace tapir
