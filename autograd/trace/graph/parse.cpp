// Parses the text of a graph.
//
// The text may come from anywhere: the result is a consistent graph, or an error. Work and memory grow with the length of the
// text; sizes in the text alone allocate nothing (except the data that parse() is not given).
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "tapir/autograd/trace/graph/check_node_impl.h"
#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/autograd/trace/graph/parse_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/io/shown_impl.h"
#include "tapir/core/made_loc_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/out_of_memory_impl.h"

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
    // Text up to one of these characters, outside of parentheses, brackets and quotes.
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

// No tensor is larger; passes multiply and add sizes.
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

// One element, "1.5", "true" or "7:uint8"; `dtype` if it states none.
void put_number(std::string_view text, DType dtype, void* to, const Line& line) {
    double real = 0;
    std::int64_t whole = 0;
    const bool is_bool = text == "true" || text == "false";
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), whole);
    const bool is_whole = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
    const bool fits = is_floating(dtype) ? is_whole || is_real(text, real)
        : dtype == bool_
        ? is_bool
        : is_whole && (dtype != uint8 || (whole >= 0 && whole <= 255)) && (dtype != int32 || static_cast<std::int32_t>(whole) == whole);
    if (!fits) line.refuse(fmt::format("{} is no element of dtype {}", text, dtype));
    detail::store(dtype, to, is_bool ? Scalar(text == "true") : is_whole ? Scalar(whole) : Scalar(real));
}

// A constant that is written where it is used; undefined if the text is none.
Tensor number_of(std::string_view text, const Line& line) {
    const std::size_t colon = text.find(':');
    const std::string_view digits = text.substr(0, colon);
    if (!detail::looks_like_number(digits)) return {};
    const bool is_whole = digits.find_first_not_of("-0123456789") == std::string_view::npos;
    const DType dtype = colon != std::string_view::npos ? dtype_of_name(text.substr(colon + 1), line)
        : digits == "true" || digits == "false"         ? bool_
        : is_whole                                      ? int64
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

// Reads a text line by line. A graph within a line, "{", its own lines, "}", becomes "{0}", its index in `parts`.
class Lines {
 public:
    Lines(std::string_view text, const Loc& loc) : text_(text), loc_(loc) {}

    std::vector<std::string> parts;

    /// Returns false at the end.
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
    int number = 0;  // of the last line

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
    const std::vector<std::string_view> parts =
        shape.rank() == 0 && list[0] != '[' ? std::vector{list.substr(0, list.find(':'))} : parts_of(list, line);
    if (detail::checked_numel(shape, type.dtype, line.loc()) != static_cast<std::int64_t>(parts.size())) line.refuse("another number of elements");
    Tensor x = detail::make_empty(shape, type.dtype, cpu, line.loc());
    for (std::size_t i = 0; i < parts.size(); ++i) put_number(parts[i], type.dtype, x.impl()->data + i * itemsize(type.dtype), line);
    return x;
}

constexpr int kMostValues = 1 << 22;  // a graph has fewer, and numbers of them are no larger

}  // namespace

class detail::GraphReader {
 public:
    GraphReader(std::string_view text, const Graph::Inputs& data, const ReadOptions& options, const Loc& loc)
        : lines_(text, loc), options_(options), loc_(loc) {
        for (const auto& [name, tensor] : data) tensors_.emplace(name, tensor);
        std::copy_if(data.begin(), data.end(), std::back_inserter(nested_data_),
                     [](const auto& one) { return !one.first.empty() && one.first[0] == '{'; });
    }

    Graph read() {
        for (std::string logical; lines_.next(logical);) {
            Line line(logical, lines_.number, loc_);
            try {
                read_line(line);
            } catch (const OutOfMemory&) {
                throw;
            } catch (const DeviceError&) {
                throw;
            } catch (const Error& error) {  // from a formula, or an attribute, which do not know the line
                if (std::string_view(error.what()).find("Graph::parse: line ") != std::string_view::npos) throw;
                line.refuse(io::text_of(error));
            }
        }
        // Values without a number in the text get unused ones.
        int next = 0;
        for (const Value* value : numbered_) next = std::max(next, value->number + 1);
        for (const auto& value : graph_.values_) {
            if (!numbered_.count(value.get())) value->number = next++;
        }
        graph_.next_ = next;
        if (options_.checks != ReadOptions::Checks::none) graph_.check_links(loc_);
        return std::move(graph_);
    }

 private:
    using Value = Graph::Value;
    using Kind = Graph::Kind;

    void read_line(Line& line) {
        if (line.at_end() || line.take("#")) return;
        if (line.take("input ")) return read_input(line);
        if (line.take("parameter ")) return read_held(line, Kind::parameter);
        if (line.take("constant ")) return read_held(line, Kind::constant);
        if (line.take("output ")) return read_output(line);
        if (line.take("update ")) return read_update(line);
        if (line.take("guard ")) return read_guard(line);
        read_node(line);
    }

    // --- Names ---

    static std::string plain(std::string_view written, const Line& line) {
        std::string name;
        if (!unquote_name(written, name)) line.refuse(fmt::format("{} is no name", written));
        return name;
    }
    Tensor given(std::string_view name) const {
        const auto found = tensors_.find(name);
        return found == tensors_.end() ? Tensor() : found->second;
    }
    Value* value_of(std::string_view name, Line& line) {
        const auto known = values_.find(name);
        if (known != values_.end()) return known->second;
        const Tensor constant = number_of(name, line);
        if (!constant.defined()) line.refuse(fmt::format("there is no value {}", name));
        return graph_.add_constant(constant, {}, loc_);
    }
    void define(std::string_view name, Value* value, const Line& line) {
        if (name.substr(0, 1) == "%") {
            int own = 0;
            const auto parsed = std::from_chars(name.data() + 1, name.data() + name.size(), own);
            if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || own < 0 || own >= kMostValues) {
                line.refuse(fmt::format("{} is no name of a value", name));
            }
            value->number = own;
            numbered_.insert(value);
        }
        if (!values_.emplace(std::string(name), value).second) line.refuse(fmt::format("{} is made twice", name));
    }

    // --- Inputs, parameters, constants ---

    // "x: float32 (batch, 3)"
    void read_input(Line& line) {
        const std::string_view name = line.until(":");
        const std::string own = plain(name, line);
        if (name.empty() || name[0] == '%') line.refuse("a name is missing");
        line.expect(":");
        const Type type = type_of(line, "=#");
        if (!input_names_.insert(own).second) line.refuse(fmt::format("there is an input {} already", name));
        define(name, graph_.inputs_.emplace_back(graph_.add_value(Kind::input, own, type.dtype, type.device, type.shape)), line);
    }

    // "w: float32 (2,) = [1.0, 2.0]"
    void read_held(Line& line, Kind kind) {
        const std::string_view name = line.until(":");
        const std::string own = plain(name, line);
        if (name.empty()) line.refuse("a name is missing");
        line.expect(":");
        const Type type = type_of(line, "=#");
        const Tensor tensor = held(name, own, type, line.take("=") ? line.until("#") : std::string_view(), line);
        const bool is_parameter = kind == Kind::parameter;
        if (is_parameter && !parameter_names_.insert(own).second) line.refuse(fmt::format("there is a parameter {} already", name));
        Value* value = graph_.add_value(kind, name[0] == '%' && !is_parameter ? std::string() : own, type.dtype, type.device, type.shape);
        value->data = tensor;
        (is_parameter ? graph_.parameters_ : graph_.constants_).push_back(value);
        define(name, value, line);
    }
    Tensor held(std::string_view name, const std::string& own, const Type& type, std::string_view list, Line& line) const {
        Tensor tensor = given(name);
        if (!tensor.defined() && name[0] != '%') tensor = given(own);
        if (!tensor.defined()) {
            if (list.empty() && !options_.makes_zeros) line.refuse(fmt::format("the elements of {} are missing", name));
            tensor = elements_of(list, type, line);
        } else if (tensor.dtype() != type.dtype || sizes_of_tensor(tensor) != type.shape) {
            line.refuse(fmt::format("{} is given as {} {}", name, tensor.dtype(), tensor.shape()));
        }
        return tensor.to(type.device);
    }

    // --- Outputs, updates, guards ---

    // "logits = %7"
    void read_output(Line& line) {
        const std::string_view written = line.until("=");
        line.expect("=");
        Value* value = value_of(line.until("#"), line);
        std::string name = plain(written, line);
        if (!output_names_.insert(name).second) line.refuse(fmt::format("there is an output {} already", written));
        graph_.outputs_.push_back({std::move(name), value});
    }

    void read_update(Line& line) {
        const std::string_view name = line.until("=");
        line.expect("=");
        Value *value = value_of(line.until("#"), line), *target = value_of(name, line);
        if (target->kind != Kind::input && target->kind != Kind::parameter) line.refuse("only parameters and inputs are written to");
        if (target->dtype != value->dtype || !may_equal(target->shape, value->shape)) {
            line.refuse(fmt::format("{} {} cannot be written to {}, which is {} {}", value->dtype, to_string(Attribute(value->shape)), name,
                                    target->dtype, to_string(Attribute(target->shape))));
        }
        if (!updated_.insert(target).second) line.refuse(fmt::format("{} is written to already", name));
        graph_.updates_.push_back({target, value});
    }

    // A guard's one element; larger guards are in the data.
    static Tensor element_of(std::string_view text, const Value& like, const Line& line) {
        const bool is_one = std::all_of(like.shape.begin(), like.shape.end(), [](const SymInt& size) { return size == SymInt(1); });
        const std::string_view digits = text.substr(0, text.find(':'));
        if (!is_one || !detail::looks_like_number(digits)) line.refuse("what a guard expects is missing");
        const detail::PauseRecording pause;
        const Tensor expected = detail::make_empty({}, like.dtype, cpu, Loc{});
        put_number(digits, like.dtype, expected.raw_data(), line);
        return expected.reshape(std::vector<std::int64_t>(like.shape.size(), 1));
    }

    // "%3 = 1.5  # item() at model.cpp:12"
    void read_guard(Line& line) {
        Value* value = value_of(line.until("="), line);
        Tensor expected = given(fmt::format("guard {}", graph_.guards().size()));
        line.expect("=");
        const std::string_view written = line.until("#");
        if (!expected.defined()) expected = element_of(written, *value, line);
        line.expect("#");
        const std::string what(line.until("("));
        line.expect("() at ");
        graph_.add_guard({value, expected, what, loc_of(line.rest(), line)});
    }

    // --- Nodes ---

    // "%3: float32 (2,), %4: int64 (2,) = max(x, dim=0)  # model.cpp:12 encoder.0"
    void read_node(Line& line) {
        std::vector<std::pair<std::string, Type>> results;
        do {
            if (results.size() == kMostResults) line.refuse(fmt::format("an op has at most {} results", kMostResults));
            const std::string_view name = line.until(":");
            line.expect(":");
            results.emplace_back(std::string(name), type_of(line, ",="));
        } while (line.take(","));
        line.expect("=");
        const std::string op(line.until("("));
        const OpForm* form = find_form(op.c_str());
        if (!form) line.refuse(no_op(op));
        Attributes attributes(*form);
        const std::vector<Value*> inputs = read_call(attributes, line);
        Graph::Node* node = graph_.append(std::move(attributes), inputs);
        if (line.take("#")) {
            node->loc = loc_of(line.until(" "), line);
            const std::string module = plain(line.rest(), line);
            if (!module.empty()) node->module = module_name(module, "");
        }
        for (const auto& [name, type] : results) define(name, graph_.add_result(node, type.dtype, type.device, type.shape), line);
        const std::string wrong = options_.checks == ReadOptions::Checks::rules ? what_is_wrong_with(*node, loc_)
            : options_.checks == ReadOptions::Checks::calls                     ? what_is_wrong_with_call(*node)
                                                                                : std::string();
        if (!wrong.empty()) line.refuse(wrong);
    }

    // Reads operands and attributes, "(x, %2, dim=0)". Returns the operands.
    std::vector<Value*> read_call(Attributes& attributes, Line& line) {
        std::vector<Value*> inputs;
        std::set<std::string_view> set;
        for (const std::string_view part : parts_of(line.until("#"), line)) {
            const std::size_t equals = part.substr(0, 1) == "\"" ? std::string_view::npos : part.find('=');
            if (equals == std::string_view::npos) {
                inputs.push_back(value_of(part, line));
                continue;
            }
            const std::string_view name = part.substr(0, equals);
            if (!set.insert(name).second) line.refuse(fmt::format("{} is given twice", name));
            attributes.set(name, attribute_of(attributes, name, part.substr(equals + 1), line), loc_);
        }
        return inputs;
    }

    Attribute attribute_of(const Attributes& attributes, std::string_view name, std::string_view value, Line& line) {
        const Attribute now = attributes.get(name, loc_);
        double real = 0;
        if (is_scalar(attributes, name)) {  // of any kind of number
            if (value == "true" || value == "false") return value == "true";
            if (value.find_first_of(".enfa") != std::string_view::npos && is_real(value, real)) return real;
            return SymInt::parse(value, loc_);
        }
        if (std::holds_alternative<SymInt>(now)) return SymInt::parse(value, loc_);
        if (std::holds_alternative<double>(now) && is_real(value, real)) return real;
        if (std::holds_alternative<bool>(now) && (value == "true" || value == "false")) return value == "true";
        if (std::holds_alternative<DType>(now)) return dtype_of_name(value, line);
        if (std::holds_alternative<Device>(now)) return device_of_name(value, line);
        if (std::holds_alternative<std::vector<SymInt>>(now)) return sizes_of(value, line);
        if (std::holds_alternative<std::shared_ptr<const Graph>>(now)) return part_of(value, line);
        if (std::holds_alternative<std::string>(now) && value.size() >= 2) return std::string(value.substr(1, value.size() - 2));
        line.refuse(fmt::format("{} is no value of {}", value, name));
    }

    // A branch or a body, "{0}", whose text was put aside.
    std::shared_ptr<const Graph> part_of(std::string_view name, const Line& line) {
        if (name == "{}") return nullptr;
        std::size_t part = 0;
        const bool is_part = name.size() > 2 && name[0] == '{' && std::from_chars(name.data() + 1, name.data() + name.size(), part).ec == std::errc();
        if (!is_part || part >= lines_.parts.size()) line.refuse(fmt::format("{} is no graph", name));
        Graph::Inputs own;
        const std::string prefix = fmt::format("{{{}}} ", part_count_++);
        for (const auto& [key, tensor] : nested_data_) {
            if (key.compare(0, prefix.size(), prefix) == 0) own.emplace_back(key.substr(prefix.size()), tensor);
        }
        return std::make_shared<const Graph>(GraphReader(lines_.parts[part], own, options_, loc_).read());
    }

    Graph graph_;
    Lines lines_;
    const ReadOptions options_;
    const Loc& loc_;
    std::unordered_map<std::string_view, Tensor> tensors_;
    Graph::Inputs nested_data_;  // of branches and bodies, "{0} %3"
    int part_count_ = 0;
    std::map<std::string, Value*, std::less<>> values_;
    std::set<const Value*> numbered_, updated_;
    std::set<std::string> input_names_, parameter_names_, output_names_;
};

Graph detail::read_graph(std::string_view text, const Graph::Inputs& data, const ReadOptions& options, const Loc& loc) {
    const detail::CallLine call(loc);
    return GraphReader(text, data, options, loc).read();
}

Graph Graph::parse(TextViewArg text, const Inputs& data, Loc loc) { return detail::read_graph(text, data, {.makes_zeros = data.empty()}, loc); }

}  // namespace tapir
