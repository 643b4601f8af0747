// Names in the text of a graph.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "tapir/autograd/op_names_impl.h"
#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/core/out_of_memory_impl.h"

namespace tapir::detail {

/// "relu at net.cpp:12".
std::string at_line(const Graph::Node& node);

/// "float32 [2, 3]", with the device if that is another than the CPU.
std::string type_text(const Graph::Value& value);

/// The text for a value: its name, unless a value before it has the same, else its number, "%7".
class ValueNames {
 public:
    explicit ValueNames(const Graph& graph);
    std::string operator()(const Graph::Value& value) const;
    bool is_named(const Graph::Value& value) const;

 private:
    std::vector<const Graph::Value*> unnamed_;  // sorted; other values have their names, too
};

}  // namespace tapir::detail
