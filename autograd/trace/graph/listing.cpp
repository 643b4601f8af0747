// A graph as text.
#include <algorithm>
#include <cstdio>

#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/module_name.h"

namespace tapir {
namespace {

// The elements of a small constant, "[1.0, 2.0]", or of a number, "1.0", with their dtype if the text does not tell it.
std::string elements(const Tensor& data) {
    const Tensor x = data.to(cpu).contiguous();
    const auto element = [&](std::int64_t i) {
        const std::byte* at = x.impl()->data + static_cast<std::size_t>(i) * itemsize(x.dtype());
        if (x.dtype() == bool_) return to_string(Attribute(detail::load_int(x.dtype(), at) != 0));
        return to_string(is_floating(x.dtype()) ? Attribute(detail::load_double(x.dtype(), at)) : Attribute(SymInt(detail::load_int(x.dtype(), at))));
    };
    if (x.dim() == 0) {
        const bool is_told = x.dtype() == float32 || x.dtype() == int64 || x.dtype() == bool_;
        return element(0) + (is_told ? "" : fmt::format(":{}", x.dtype()));
    }
    std::string text = "[";
    for (std::int64_t i = 0; i < x.numel(); ++i) text += (i ? ", " : "") + element(i);
    return text + "]";
}

bool is_number(const Graph::Value& value) {
    return value.kind == Graph::Kind::constant && value.name.empty() && value.shape.empty() && value.device == cpu;
}

// "model.cpp:12", with quotes around a file name that needs them.
std::string place(const Loc& loc) {
    const std::string text = detail::file_and_line(loc);
    const std::size_t colon = text.rfind(':');
    return detail::quoted_name(std::string_view(text).substr(0, colon)) + text.substr(colon);
}

}  // namespace

std::string Graph::str() const {
    std::string text;
    const detail::ValueNames names(*this);
    const auto reference = [&](const Value& value) { return is_number(value) ? elements(value.data) : names(value); };
    const auto listed = [&](const char* what, const std::vector<Value*>& values) {
        for (const Value* value : values) {
            if (is_number(*value)) continue;  // is written where it is used
            text += fmt::format("{} {}: {}", what, reference(*value), detail::type_text(*value));
            if (value->kind == Kind::constant && value->data.numel() <= 16) text += " = " + elements(value->data);
            text += "\n";
        }
    };
    listed("input", inputs_);
    listed("parameter", parameters_);
    listed("constant", constants_);
    for (const auto& node : nodes_) {
        std::string line;
        for (const Value* result : node->results)
            line += fmt::format("{}%{}: {}", line.empty() ? "" : ", ", result->number, detail::type_text(*result));
        line += fmt::format(" = {}(", node->op());
        bool is_first = true;
        const auto add = [&](const std::string& what) {
            line += (is_first ? "" : ", ") + what;
            is_first = false;
        };
        for (const Value* input : node->inputs) add(reference(*input));
        for (const auto& [name, attribute] : node->attributes().all()) add(fmt::format("{}={}", name, to_string(attribute)));
        line += ")";
        if (node->loc.line() > 0) {
            line += fmt::format("{}  # {}", std::string(line.size() < 80 ? 80 - line.size() : 0, ' '), place(node->loc));
            if (node->module) line += " " + detail::quoted_name(node->module->shown());
        }
        text += line + "\n";
    }
    for (const Guard& guard : guards_) {
        text += fmt::format("guard {} = {}  # {}() at {}\n", reference(*guard.value),
                            guard.expected.numel() == 1 ? elements(guard.expected.reshape({})) : "as traced", guard.what, place(guard.loc));
    }
    for (const Update& update : updates_) text += fmt::format("update {} = {}\n", reference(*update.target), reference(*update.value));
    for (const Output& output : outputs_) text += fmt::format("output {} = {}\n", detail::quoted_name(output.name), reference(*output.value));
    return text;
}

void Graph::print() const { std::fputs(str().c_str(), stdout); }

}  // namespace tapir
