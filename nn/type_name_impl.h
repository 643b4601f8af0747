// Names of modules' classes, for messages.
#pragma once

#include <string>
#include <typeinfo>

namespace tapir::nn {

/// Returns the name without namespaces and template arguments.
std::string type_name(const std::type_info& type);

}  // namespace tapir::nn
