// Reading the text of a graph.
//
// It may come from anywhere: whatever it says, the result is a graph that is whole, or an error. Work and memory grow with the length of the
// text, and nothing is allocated for sizes that only stand there (but by parse() for data that it is not given).
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "tapir/autograd/trace/check_node_impl.h"
#include "tapir/autograd/trace/names_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/io/shown_impl.h"
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
        fail<ValueError>(loc_, "Graph::parse: line {}: {}: {}", number_, why, detail::quoted_part(text_));
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
    int number() const { return number_; }

 private:
    std::string_view text_;
    int number_;
    const Loc& loc_;
    std::size_t at_ = 0;
};

// The parts of "(a, b)" or "[a, b]".
std::vector<std::string_view> parts_of(std::string_view list, Line& line) {
    if (list.size() < 2 || (list[0] != '(' && list[0] != '[') || list.back() != (list[0] == '(' ? ')' : ']')) line.refuse("a list is missing");
    Line inside(list.substr(1, list.size() - 2), line.number(), line.loc());
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
    if (text.substr(0, 5) == "cuda:") {
        const auto parsed = std::from_chars(text.data() + 5, text.data() + text.size(), index);
        if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && index >= 0 && index < 128) return cuda(index);
    }
    line.refuse(fmt::format("{} is no device", text));
}

std::vector<SymInt> sizes_of(std::string_view list, Line& line) {
    std::vector<SymInt> sizes;
    for (const std::string_view part : parts_of(list, line)) sizes.push_back(SymInt::parse(part, line.loc()));
    return sizes;
}

bool is_real(std::string_view text, double& value) {
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);  // in any locale
    return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

struct Type {
    DType dtype;
    std::vector<SymInt> shape;
    Device device;
};

// No tensor has it; passes multiply and add up sizes.
void check_sizes(const Type& type, const Line& line) {
    constexpr std::int64_t kMostBytes = std::int64_t{1} << 56;
    if (type.shape.size() > kMaxRank) line.refuse(fmt::format("a tensor has at most {} dimensions, got {}", kMaxRank, type.shape.size()));
    std::int64_t bytes = static_cast<std::int64_t>(itemsize(type.dtype));
    for (const SymInt& size : type.shape) {
        if (!size.is_number() || size.number() == 0) continue;
        if (size.number() < 0) line.refuse(fmt::format("a size must not be negative: {}", size.number()));
        if (__builtin_mul_overflow(bytes, size.number(), &bytes) || bytes > kMostBytes) line.refuse("no memory has room for so many elements");
    }
}

// "float32 (batch, 3) cuda:0", up to one of `ends`.
Type type_of(Line& line, std::string_view ends) {
    const std::string_view dtype = line.until(" ");
    line.skip();
    const std::string_view shape = line.until(std::string(" ") + std::string(ends));
    Type type{dtype_of_name(dtype, line), sizes_of(shape, line), cpu};
    const std::string_view device = line.until(ends);
    if (!device.empty()) type.device = device_of_name(device, line);
    check_sizes(type, line);
    return type;
}

// One element, "1.5", "true" or "7:uint8", of this dtype where it says none.
void put_number(std::string_view text, DType dtype, void* to, const Line& line) {
    double real = 0;
    std::int64_t whole = 0;
    const bool is_bool = text == "true" || text == "false";
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), whole);
    const bool is_whole = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
    const bool fits = is_floating(dtype) ? is_whole || is_real(text, real)
                      : dtype == bool_   ? is_bool
                                         : is_whole && (dtype != uint8 || (whole >= 0 && whole <= 255)) &&
                                               (dtype != int32 || static_cast<std::int32_t>(whole) == whole);
    if (!fits) line.refuse(fmt::format("{} is no element of dtype {}", text, dtype));
    detail::store(dtype, to, is_bool ? Scalar(text == "true") : is_whole ? Scalar(whole) : Scalar(real));
}

// A constant that stands where it is used; undefined where it looks like none.
Tensor number_of(std::string_view text, const Line& line) {
    const std::size_t colon = text.find(':');
    const std::string_view digits = text.substr(0, colon);
    if (!detail::looks_like_number(digits)) return {};
    const bool is_whole = digits.find_first_not_of("-0123456789") == std::string_view::npos;
    const DType dtype = colon != std::string_view::npos                ? dtype_of_name(text.substr(colon + 1), line)
                        : digits == "true" || digits == "false"        ? bool_
                        : is_whole                                     ? int64
                                                                       : float32;
    Tensor number = detail::make_empty({}, dtype, cpu, Loc{});
    put_number(digits, dtype, number.raw_data(), line);
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
Loc loc_of(std::string_view place, const Line& at) {
    const std::size_t colon = place.rfind(':');
    unsigned line = 0;
    std::string file;
    const bool is_whole = colon != std::string_view::npos && detail::unquote_name(place.substr(0, colon), file) &&
                          std::from_chars(place.data() + colon + 1, place.data() + place.size(), line).ptr == place.data() + place.size();
    if (!is_whole) at.refuse(fmt::format("{} is no line of a program", place));
    return detail::made_loc(file, "", line);
}

Tensor elements_of(std::string_view list, const Type& type, Line& line) {
    Shape shape;
    for (const SymInt& size : type.shape) shape.push_back(size.number(line.loc()), line.loc());
    if (list.empty()) return detail::make_empty(shape, type.dtype, cpu, line.loc()).fill_(0);
    // "1.5" of no dimensions, else "[1.5, 2.5]"
    const std::vector<std::string_view> parts = shape.rank() == 0 && list[0] != '[' ? std::vector{list.substr(0, list.find(':'))} : parts_of(list, line);
    if (detail::checked_numel(shape, type.dtype, line.loc()) != static_cast<std::int64_t>(parts.size())) line.refuse("another number of elements");
    Tensor x = detail::make_empty(shape, type.dtype, cpu, line.loc());
    for (std::size_t i = 0; i < parts.size(); ++i) put_number(parts[i], type.dtype, x.impl()->data + i * itemsize(type.dtype), line);
    return x;
}

constexpr int kMostValues = 1 << 22;  // a graph has fewer, and numbers of them are no larger

}  // namespace

Graph Graph::parse(std::string_view text, const Inputs& data, Loc loc) { return read(text, data, /*makes_zeros=*/data.empty(), loc); }

Graph Graph::read(std::string_view text, const Inputs& data, bool makes_zeros, const Loc& loc) {
    Graph graph;
    std::map<std::string, Value*, std::less<>> values;
    std::set<const Value*> numbered;
    std::unordered_map<std::string_view, Tensor> tensors;
    for (const auto& [name, tensor] : data) tensors.emplace(name, tensor);
    Inputs nested_data;  // of branches and bodies, "{0} %3"
    std::copy_if(data.begin(), data.end(), std::back_inserter(nested_data), [](const auto& one) { return !one.first.empty() && one.first[0] == '{'; });
    int part_count = 0;
    const auto given = [&](std::string_view name) {
        const auto found = tensors.find(name);
        return found == tensors.end() ? Tensor() : found->second;
    };
    std::set<std::string> input_names, parameter_names, output_names;
    std::set<const Value*> updated;
    Lines lines(text, loc);
    const auto read_line = [&](Line& line) {
        if (line.at_end() || line.take("#")) return;
        const auto plain = [&](std::string_view written) {
            std::string name;
            if (!detail::unquote_name(written, name)) line.refuse(fmt::format("{} is no name", written));
            return name;
        };
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
            Inputs own;
            const std::string prefix = fmt::format("{{{}}} ", part_count++);
            for (const auto& [key, tensor] : nested_data) {
                if (key.compare(0, prefix.size(), prefix) == 0) own.emplace_back(key.substr(prefix.size()), tensor);
            }
            return std::make_shared<const Graph>(read(lines.parts[part], own, makes_zeros, loc));
        };
        const auto define = [&](std::string_view name, Value* value) {
            if (name.substr(0, 1) == "%") {
                int own = 0;
                const auto parsed = std::from_chars(name.data() + 1, name.data() + name.size(), own);
                if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || own < 0 || own >= kMostValues) {
                    line.refuse(fmt::format("{} is no name of a value", name));
                }
                value->number = own;
                numbered.insert(value);
            }
            if (!values.emplace(std::string(name), value).second) line.refuse(fmt::format("{} is made twice", name));
        };
        const bool is_input = line.take("input "), is_parameter = !is_input && line.take("parameter ");
        if (is_input || is_parameter || line.take("constant ")) {
            const std::string_view name = line.until(":");
            const std::string own = plain(name);
            const bool is_unnamed = name.substr(0, 1) == "%";
            if (name.empty() || (is_unnamed && is_input)) line.refuse("a name is missing");
            line.expect(":");
            const Type type = type_of(line, "=#");
            const std::string_view list = line.take("=") ? line.until("#") : std::string_view();
            if (is_input) {
                if (!input_names.insert(own).second) line.refuse(fmt::format("there is an input {} already", name));
                define(name, graph.inputs_.emplace_back(graph.add_value(Kind::input, own, type.dtype, type.device, type.shape)));
                return;
            }
            Tensor tensor = given(name);
            if (!tensor.defined() && !is_unnamed) tensor = given(own);
            if (tensor.defined()) {
                if (tensor.dtype() != type.dtype || sizes_of_tensor(tensor) != type.shape) {
                    line.refuse(fmt::format("{} is given as {} {}", name, tensor.dtype(), tensor.shape()));
                }
            } else {
                if (list.empty() && !makes_zeros) line.refuse(fmt::format("the elements of {} are missing", name));
                tensor = elements_of(list, type, line);
            }
            tensor = tensor.to(type.device);
            if (is_parameter && !parameter_names.insert(own).second) line.refuse(fmt::format("there is a parameter {} already", name));
            Value* value = graph.add_value(is_parameter ? Kind::parameter : Kind::constant, is_unnamed && !is_parameter ? std::string() : own, type.dtype,
                                           type.device, type.shape);
            value->data = tensor;
            (is_parameter ? graph.parameters_ : graph.constants_).push_back(value);
            define(name, value);
            return;
        }
        const bool is_update = line.take("update ");
        if (is_update || line.take("output ")) {
            const std::string_view name = line.until("=");
            line.expect("=");
            Value* value = value_of(line.until("#"));
            if (!is_update) {
                if (!output_names.insert(plain(name)).second) line.refuse(fmt::format("there is an output {} already", name));
                graph.outputs_.push_back({plain(name), value});
                return;
            }
            Value* target = value_of(name);
            if (target->kind != Kind::input && target->kind != Kind::parameter) line.refuse("only parameters and inputs are written to");
            if (!updated.insert(target).second) line.refuse(fmt::format("{} is written to already", name));
            graph.updates_.push_back({target, value});
            return;
        }
        if (line.take("guard ")) {
            Value* value = value_of(line.until("="));
            const Tensor expected = given(fmt::format("guard {}", graph.guards().size()));
            if (!expected.defined()) line.refuse("what a guard expects is missing");
            line.until("#");
            line.expect("#");
            const std::string what(line.until("("));
            line.expect("() at ");
            graph.add_guard({value, expected, what, loc_of(line.rest(), line)});
            return;
        }
        std::vector<std::pair<std::string, Type>> results;
        do {
            if (results.size() == detail::kMostResults) line.refuse(fmt::format("an op has at most {} results", detail::kMostResults));
            const std::string_view name = line.until(":");
            line.expect(":");
            results.emplace_back(std::string(name), type_of(line, ",="));
        } while (line.take(","));
        line.expect("=");
        const std::string op(line.until("("));
        const OpForm* form = find_form(op.c_str());
        if (!form) line.refuse(detail::no_op(op));
        Attributes attributes(*form);
        std::vector<Value*> inputs;
        std::set<std::string_view> set;
        const std::string_view call = line.until("#");
        for (const std::string_view part : parts_of(call, line)) {
            const std::size_t equals = part.substr(0, 1) == "\"" ? std::string_view::npos : part.find('=');
            if (equals == std::string_view::npos) {
                inputs.push_back(value_of(part));
                continue;
            }
            const std::string_view name = part.substr(0, equals), value = part.substr(equals + 1);
            if (!set.insert(name).second) line.refuse(fmt::format("{} is given twice", name));
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
                if (std::holds_alternative<bool>(now) && (value == "true" || value == "false")) return value == "true";
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
            node->loc = loc_of(line.until(" "), line);
            const std::string module = plain(line.rest());
            if (!module.empty()) node->module = detail::module_name(module, "");
        }
        for (const auto& [name, type] : results) define(name, graph.add_result(node, type.dtype, type.device, type.shape));
        std::string wrong = detail::what_is_wrong_with(*node);
        if (wrong.empty()) wrong = detail::what_is_missized(*node);
        if (!wrong.empty()) line.refuse(wrong);
    };
    for (std::string logical; lines.next(logical);) {
        Line line(logical, lines.number, loc);
        try {
            read_line(line);
        } catch (const OutOfMemory&) {
            throw;
        } catch (const DeviceError&) {
            throw;
        } catch (const Error& error) {  // of a formula, or of an attribute: they know no line
            const std::string_view what = error.what();
            if (what.find("Graph::parse: line ") != std::string_view::npos) throw;
            line.refuse(io::text_of(error));
        }
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
