// AnyModule.
#include "tapir/nn/any_module.h"

#include "tapir/core/fail_impl.h"
#include "tapir/nn/type_name_impl.h"

namespace tapir::nn {

void AnyModule::fail_module(const Loc& loc) const {
    if (!has_value()) fail_empty(loc);
    fail<ValueError>(loc, "AnyModule: it holds a function, not a module");
}
void AnyModule::fail_type(const std::type_info& wanted, const Loc& loc) const {
    if (!has_value()) fail_empty(loc);
    const Module* held = get();
    fail<ValueError>(loc, "AnyModule: it holds a {}, and was asked for a {}", held ? type_name(typeid(*held)) : "function", type_name(wanted));
}
void AnyModule::fail_call(const Loc& loc) {
    fail<ValueError>(loc, "AnyModule: it holds a module whose forward() takes anything but one tensor; call it as(...).forward(...)");
}
void AnyModule::fail_empty(const Loc& loc) { fail<ValueError>(loc, "AnyModule: it holds nothing"); }

void Members::one_of(const char* name, std::int64_t index, AnyModule& module, const Loc& loc) {
    if (Module* held = module.get()) on_module(name, index, *held, loc);
}

std::size_t detail::place(const IndexArg& i, std::size_t size, const char* container, const char* what) {
    const auto count = static_cast<std::int64_t>(size), at = i.value < 0 ? i.value + count : i.value;
    if (at < 0 || at >= count) fail<IndexError>(i.loc, "{}: there is no {} {} of {}", container, what, i.value, size);
    return static_cast<std::size_t>(at);
}

static AnyModule copied(const char* name, const AnyModule& module, bool shares_elements, const Loc& loc) {
    const CallerScope caller(loc);
    AnyModule copy = module;
    if (copy.get()) detail::own_tensors(name, *module.get(), *copy.get(), shares_elements, loc);
    return copy;
}
AnyModule clone(const AnyModule& module, Loc loc) { return copied("clone", module, false, loc); }
AnyModule alias(const AnyModule& module, Loc loc) { return copied("alias", module, true, loc); }

}  // namespace tapir::nn
