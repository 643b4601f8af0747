// Reading the text of a graph.
#include <charconv>
#include <cstdlib>
#include <map>
#include <set>

#include "tapir/autograd/trace/graph.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/made_loc_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/module_name.h"

namespace tapir {
namespace {

constexpr DType kDTypeList[] = {bool_, uint8, int32, int64, float16, bfloat16, float32, float64};

// One line, from left to right.
class Line {
 public:
    Line(std::string_view text, int number, const Loc& loc) : text_(text), number_(number), loc_(loc) {}

    [[noreturn]] void refuse(std::string_view why) const {
        fail<ValueError>(loc_, "Graph::parse: line {}: {}: {}", number_, why, text_);
    }
    void skip() {
        while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    }
    bool at_end() {
        skip();
        return at_ == text_.size();
    }
    bool take(std::string_view what) {
        skip();
        if (text_.substr(at_, what.size()) != what) return false;
        at_ += what.size();
        return true;
    }
    void expect(std::string_view what) {
        if (!take(what)) refuse(fmt::format("{} is missing", what));
    }
    // Up to one of these characters, outside of parentheses, brackets and quotes.
    std::string_view until(std::string_view ends) {
        skip();
        const std::size_t begin = at_;
        int depth = 0;
        bool is_quoted = false;
        for (; at_ < text_.size(); ++at_) {
            const char c = text_[at_];
            if (c == '"') is_quoted = !is_quoted;
            if (is_quoted) continue;
            if (depth == 0 && ends.find(c) != std::string_view::npos) break;
            if (c == '(' || c == '[' || c == '{') ++depth;
            if (c == ')' || c == ']' || c == '}') --depth;
        }
        std::string_view part = text_.substr(begin, at_ - begin);
        while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
        return part;
    }
    std::string_view rest() {
        skip();
        return text_.substr(std::exchange(at_, text_.size()));
    }
    const Loc& loc() const { return loc_; }

 private:
    std::string_view text_;
    int number_;
    const Loc& loc_;
    std::size_t at_ = 0;
};

// The parts of "(a, b)" or "[a, b]".
std::vector<std::string_view> parts_of(std::string_view list, Line& line) {
    if (list.size() < 2) line.refuse("a list is missing");
    Line inside(list.substr(1, list.size() - 2), 0, line.loc());
    std::vector<std::string_view> parts;
    while (!inside.at_end()) {
        parts.push_back(inside.until(","));
        inside.take(",");
    }
    return parts;
}

DType dtype_of_name(std::string_view text, const Line& line) {
    for (const DType dtype : kDTypeList) {
        if (text == name(dtype)) return dtype;
    }
    line.refuse(fmt::format("{} is no dtype", text));
}

Device device_of_name(std::string_view text, const Line& line) {
    if (text == "cpu") return cpu;
    int index = 0;
    if (text.substr(0, 5) == "cuda:" && std::from_chars(text.data() + 5, text.data() + text.size(), index).ec == std::errc()) return cuda(index);
    line.refuse(fmt::format("{} is no device", text));
}

std::vector<SymInt> sizes_of(std::string_view list, Line& line) {
    std::vector<SymInt> sizes;
    for (const std::string_view part : parts_of(list, line)) sizes.push_back(SymInt::parse(part, line.loc()));
    return sizes;
}

bool is_real(std::string_view text, double& value) {
    const std::string copy(text);
    char* end = nullptr;
    value = std::strtod(copy.c_str(), &end);
    return !copy.empty() && *end == '\0' && copy.find_first_of("xXpP") == std::string::npos;
}

struct Type {
    DType dtype;
    std::vector<SymInt> shape;
    Device device;
};

// "float32 (batch, 3) cuda:0", up to one of `ends`.
Type type_of(Line& line, std::string_view ends) {
    const std::string_view dtype = line.until(" ");
    line.skip();
    const std::string_view shape = line.until(std::string(" ") + std::string(ends));
    Type type{dtype_of_name(dtype, line), sizes_of(shape, line), cpu};
    const std::string_view device = line.until(ends);
    if (!device.empty()) type.device = device_of_name(device, line);
    return type;
}

// reals: the dtype of numbers that are not whole and name none.
Tensor number_of(std::string_view text, Line& line, DType reals = float32) {
    const std::size_t colon = text.find(':');
    const std::string_view digits = text.substr(0, colon);
    double real = 0;
    std::int64_t whole = 0;
    const bool is_bool = digits == "true" || digits == "false";
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
    const bool is_whole = parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size();
    if (!is_bool && !is_whole && !is_real(digits, real)) return {};
    const DType dtype = colon != std::string_view::npos ? dtype_of_name(text.substr(colon + 1), line)
                                                        : is_bool ? bool_ : is_whole ? int64 : reals;
    Tensor number = detail::make_empty({}, dtype, cpu, Loc{});
    detail::store(dtype, number.raw_data(), is_bool ? Scalar(digits == "true") : is_whole ? Scalar(whole) : Scalar(real));
    return number;
}

bool is_scalar(const Attributes& attributes, std::string_view name) {
    Attributes copy = attributes;
    bool is_it = false;
    copy.each([&](const Field& field) { is_it |= name == field.name && field.kind == Field::Kind::scalar; });
    return is_it;
}

// The lines of a text, one by one. A graph within a line, "{", its own lines, "}", becomes "{0}", its number among `parts`.
class Lines {
 public:
    Lines(std::string_view text, const Loc& loc) : text_(text), loc_(loc) {}

    std::vector<std::string> parts;

    /// false: there are no more.
    bool next(std::string& line) {
        if (at_ >= text_.size()) return false;
        line.clear();
        parts.clear();
        std::string_view now = physical();
        while (opens(now)) {
            line.append(now).append(fmt::format("{}", parts.size()));
            std::string part;
            for (int depth = 1;;) {
                if (at_ >= text_.size()) fail<ValueError>(loc_, "Graph::parse: line {}: a }} is missing", number);
                now = physical();
                const std::size_t begin = now.find_first_not_of(' ');
                if (begin != std::string_view::npos && now[begin] == '}' && --depth == 0) {
                    now.remove_prefix(begin);
                    break;
                }
                if (opens(now) && ++depth > 100) fail<ValueError>(loc_, "Graph::parse: line {}: graphs in graphs, 100 deep", number);
                part.append(now).append("\n");
            }
            parts.push_back(std::move(part));
        }
        line.append(now);
        return true;
    }
    int number = 0;  // of the last one

 private:
    static bool opens(std::string_view line) {
        const std::size_t begin = line.find_first_not_of(' ');
        return !line.empty() && line.back() == '{' && line[begin] != '#';
    }
    std::string_view physical() {
        const std::size_t end = std::min(text_.find('\n', at_), text_.size());
        const std::string_view line = text_.substr(at_, end - at_);
        at_ = end + 1;
        ++number;
        return line;
    }

    std::string_view text_;
    const Loc& loc_;
    std::size_t at_ = 0;
};

std::vector<SymInt> sizes_of_tensor(const Tensor& x) {
    const Shape shape = x.shape();
    return {shape.begin(), shape.end()};
}

// "model.cpp:12"
Loc loc_of(std::string_view place) {
    const std::size_t colon = place.rfind(':');
    if (colon == std::string_view::npos) return Loc{};
    unsigned line = 0;
    std::from_chars(place.data() + colon + 1, place.data() + place.size(), line);
    return detail::made_loc(place.substr(0, colon), "", line);
}

Tensor elements_of(std::string_view list, const Type& type, Line& line) {
    Shape shape;
    for (const SymInt& size : type.shape) shape.push_back(size.number(line.loc()), line.loc());
    Tensor x = detail::make_empty(shape, type.dtype, cpu, line.loc());
    if (list.empty()) return x.fill_(0);
    const std::vector<std::string_view> parts = parts_of(list, line);
    if (static_cast<std::int64_t>(parts.size()) != x.numel()) line.refuse("another number of elements");
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const Tensor number = number_of(parts[i], line, float64);
        if (!number.defined()) line.refuse(fmt::format("{} is no number", parts[i]));
        detail::store(type.dtype, x.impl()->data + i * itemsize(type.dtype),
                      is_floating(number.dtype()) ? Scalar(number.item<double>()) : Scalar(number.item<std::int64_t>()));
    }
    return x;
}

}  // namespace

Graph Graph::parse(std::string_view text, const Inputs& data, Loc loc) {
    Graph graph;
    std::map<std::string, Value*, std::less<>> values;
    std::set<const Value*> numbered;
    const auto given = [&](std::string_view name) {
        for (const auto& [own, tensor] : data) {
            if (own == name) return tensor;
        }
        return Tensor();
    };
    Lines lines(text, loc);
    for (std::string logical; lines.next(logical);) {
        Line line(logical, lines.number, loc);
        if (line.at_end() || line.take("#")) continue;
        const auto value_of = [&](std::string_view name) -> Value* {
            const auto known = values.find(name);
            if (known != values.end()) return known->second;
            const Tensor constant = number_of(name, line);
            if (!constant.defined()) line.refuse(fmt::format("there is no value {}", name));
            return graph.add_constant(constant, {}, loc);
        };
        const auto part_of = [&](std::string_view name) -> std::shared_ptr<const Graph> {
            if (name == "{}") return nullptr;
            std::size_t part = 0;
            const bool is_part = name.size() > 2 && name[0] == '{' && std::from_chars(name.data() + 1, name.data() + name.size(), part).ec == std::errc();
            if (!is_part || part >= lines.parts.size()) line.refuse(fmt::format("{} is no graph", name));
            return std::make_shared<const Graph>(parse(lines.parts[part], {}, loc));
        };
        const auto define = [&](std::string_view name, Value* value) {
            if (name.substr(0, 1) == "%") {
                int own = 0;
                const auto parsed = std::from_chars(name.data() + 1, name.data() + name.size(), own);
                if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || own < 0) line.refuse("no name of a value");
                value->number = own;
                numbered.insert(value);
            }
            if (!values.emplace(std::string(name), value).second) line.refuse(fmt::format("{} is made twice", name));
        };
        const bool is_input = line.take("input "), is_parameter = !is_input && line.take("parameter ");
        if (is_input || is_parameter || line.take("constant ")) {
            const std::string_view name = line.until(":");
            line.expect(":");
            const Type type = type_of(line, "=#");
            const std::string_view list = line.take("=") ? line.until("#") : std::string_view();
            if (is_input) {
                define(name, graph.add_input(std::string(name), type.dtype, type.shape, type.device, loc));
                continue;
            }
            Tensor tensor = given(name);
            if (tensor.defined()) {
                if (tensor.dtype() != type.dtype || to_string(Attribute(sizes_of_tensor(tensor))) != to_string(Attribute(type.shape))) {
                    line.refuse(fmt::format("{} is given as {} {}", name, tensor.dtype(), tensor.shape()));
                }
                tensor = tensor.to(type.device);
            } else {
                if (!data.empty() && list.empty()) line.refuse(fmt::format("the elements of {} are missing", name));
                tensor = elements_of(list, type, line).to(type.device);
            }
            const bool is_unnamed = name.substr(0, 1) == "%";
            define(name, is_parameter ? graph.add_parameter(std::string(name), tensor, loc)
                                      : graph.add_constant(tensor, is_unnamed ? std::string() : std::string(name), loc));
            continue;
        }
        const bool is_update = line.take("update ");
        if (is_update || line.take("output ")) {
            const std::string_view name = line.until("=");
            line.expect("=");
            Value* value = value_of(line.until("#"));
            if (is_update) {
                graph.add_update(value_of(name), value, loc);
            } else {
                graph.add_output(std::string(name), value, loc);
            }
            continue;
        }
        if (line.take("guard ")) {
            Value* value = value_of(line.until("="));
            const Tensor expected = given(fmt::format("guard {}", graph.guards().size()));
            if (!expected.defined()) line.refuse("what a guard expects is missing");
            line.until("#");
            line.expect("#");
            const std::string what(line.until("("));
            line.expect("() at ");
            graph.add_guard({value, expected, what, loc_of(line.rest())});
            continue;
        }
        std::vector<std::pair<std::string, Type>> results;
        do {
            const std::string_view name = line.until(":");
            line.expect(":");
            results.emplace_back(std::string(name), type_of(line, ",="));
        } while (line.take(","));
        line.expect("=");
        const std::string op(line.until("("));
        const OpForm* form = find_form(op.c_str());
        if (!form) line.refuse(fmt::format("there is no op {}", op));
        Attributes attributes(*form);
        std::vector<Value*> inputs;
        const std::string_view call = line.until("#");
        for (const std::string_view part : parts_of(call, line)) {
            const std::size_t equals = part.find('=');
            if (equals == std::string_view::npos) {
                inputs.push_back(value_of(part));
                continue;
            }
            const std::string_view name = part.substr(0, equals), value = part.substr(equals + 1);
            const Attribute now = attributes.get(name, loc);
            double real = 0;
            const auto parsed = [&]() -> Attribute {
                if (is_scalar(attributes, name)) {  // of any kind
                    if (value == "true" || value == "false") return value == "true";
                    if (value.find_first_of(".enfa") != std::string_view::npos && is_real(value, real)) return real;
                    return SymInt::parse(value, loc);
                }
                if (std::holds_alternative<SymInt>(now)) return SymInt::parse(value, loc);
                if (std::holds_alternative<double>(now) && is_real(value, real)) return real;
                if (std::holds_alternative<bool>(now)) return value == "true";
                if (std::holds_alternative<DType>(now)) return dtype_of_name(value, line);
                if (std::holds_alternative<Device>(now)) return device_of_name(value, line);
                if (std::holds_alternative<std::vector<SymInt>>(now)) return sizes_of(value, line);
                if (std::holds_alternative<std::shared_ptr<const Graph>>(now)) return part_of(value);
                if (std::holds_alternative<std::string>(now) && value.size() >= 2) return std::string(value.substr(1, value.size() - 2));
                line.refuse(fmt::format("{} is no value of {}", value, name));
            };
            attributes.set(name, parsed(), loc);
        }
        Node* node = graph.append(*form, std::move(attributes), inputs);
        if (line.take("#")) {
            node->loc = loc_of(line.until(" "));
            const std::string_view module = line.rest();
            if (!module.empty()) node->module = detail::module_name(module, "");
        }
        for (const auto& [name, type] : results) define(name, graph.add_result(node, type.dtype, type.device, type.shape));
    }
    // Values without a number in the text get the ones that are left.
    int next = 0;
    for (const Value* value : numbered) next = std::max(next, value->number + 1);
    for (const auto& value : graph.values_) {
        if (!numbered.count(value.get())) value->number = next++;
    }
    graph.next_ = next;
    graph.check(loc);
    return graph;
}

}  // namespace tapir
