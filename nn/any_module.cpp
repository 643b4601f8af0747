// AnyModule.
#include "tapir/nn/any_module.h"

#include "tapir/core/fail_impl.h"

namespace tapir::nn {

void AnyModule::fail_type(const Loc& loc) { fail<ValueError>(loc, "AnyModule: it holds a module of another type"); }
void AnyModule::fail_call(const Loc& loc) {
    fail<ValueError>(loc, "AnyModule: it holds a module whose forward() does not take one tensor");
}
void AnyModule::fail_function(const Loc& loc) { fail<ValueError>(loc, "AnyModule: it holds a function, not a module"); }
void AnyModule::fail_empty(const Loc& loc) { fail<ValueError>(loc, "AnyModule: it holds nothing"); }

AnyModule clone(const AnyModule& module, Loc loc) {
    AnyModule copy = module;
    if (copy.get()) own_tensors(module.module(), copy.module(), loc);
    return copy;
}

}  // namespace tapir::nn
