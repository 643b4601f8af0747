// The names of modules' classes, for messages.
#pragma once

#include <string>
#include <typeinfo>

namespace tapir::nn {

/// Without namespaces and template arguments.
std::string type_name(const std::type_info& type);

}  // namespace tapir::nn
