// Names in the text of a graph.
#include "tapir/autograd/trace/graph/names_impl.h"

#include <algorithm>
#include <unordered_set>

#include "tapir/core/fail_impl.h"
#include "tapir/core/format.h"
#include "tapir/core/module_name.h"
#include "tapir/core/out_of_memory_impl.h"

namespace tapir::detail {
namespace {

bool is_letter(char c) noexcept { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

int hex_digit(char c) noexcept { return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

}  // namespace

std::string at_line(const Graph::Node& node) {
    const std::string line = node.loc.line() == 0 ? std::string(node.op()) : fmt::format("{} at {}", node.op(), file_and_line(node.loc));
    return node.module ? fmt::format("{} (in {})", line, node.module->shown()) : line;
}

std::string type_text(const Graph::Value& value) {
    return fmt::format("{} {}{}", value.dtype, to_string(Attribute(value.shape)), value.device == cpu ? "" : fmt::format(" {}", value.device));
}

bool looks_like_number(std::string_view name) noexcept {
    if (name.empty()) return false;
    if (is_digit(name[0]) || name[0] == '-' || name[0] == '+' || name[0] == '.') return true;
    for (const std::string_view word : {"true", "false", "inf", "infinity", "nan"}) {
        const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 'a' - 'A') : a) == b; };
        if (name.size() == word.size() && std::equal(name.begin(), name.end(), word.begin(), same)) return true;
    }
    return false;
}

std::string quoted_name(std::string_view name) {
    const auto is_plain = [](char c) { return is_letter(c) || is_digit(c) || c == '.' || c == '/' || c == '-'; };
    if (!name.empty() && !looks_like_number(name) && name[0] != '/' && std::all_of(name.begin(), name.end(), is_plain)) {
        return std::string(name);
    }
    std::string text = "\"";
    for (const char c : name) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\' || byte < 0x20 || byte == 0x7f) {
            text += fmt::format("\\x{:02x}", byte);
        } else {
            text += c;
        }
    }
    return text + "\"";
}

bool unquote_name(std::string_view text, std::string& name) {
    name.clear();
    if (text.empty() || text[0] != '"') {
        name = text;
        return true;
    }
    if (text.size() < 2 || text.back() != '"') return false;
    text = text.substr(1, text.size() - 2);
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '"') return false;
        if (text[i] != '\\') {
            name += text[i];
            continue;
        }
        if (i + 3 >= text.size() || text[i + 1] != 'x') return false;
        const int high = hex_digit(text[i + 2]), low = hex_digit(text[i + 3]);
        if (high < 0 || low < 0) return false;
        name += static_cast<char>(high * 16 + low);
        i += 3;
    }
    return true;
}

ValueNames::ValueNames(const Graph& graph) {
    std::unordered_set<std::string_view> taken;
    for (const auto* list : {&graph.inputs(), &graph.parameters(), &graph.constants()}) {
        for (const Graph::Value* value : *list) {
            if (!value->name.empty() && !taken.insert(value->name).second) unnamed_.push_back(value);
        }
    }
    std::sort(unnamed_.begin(), unnamed_.end());
}

bool ValueNames::is_named(const Graph::Value& value) const {
    return !value.name.empty() && !std::binary_search(unnamed_.begin(), unnamed_.end(), &value);
}

std::string ValueNames::operator()(const Graph::Value& value) const {
    return is_named(value) ? quoted_name(value.name) : fmt::format("%{}", value.number);
}

}  // namespace tapir::detail
