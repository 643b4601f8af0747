// The attributes of a node: the op's own struct, and the parts of it that depend on named dimensions.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {
namespace {

using std::int64_t;

template <class Visit>
class Visitor : public Fields {
 public:
    explicit Visitor(const Visit& call) : call_(call) {}

 private:
    void visit(const Field& field) override { call_(field); }
    const Visit& call_;
};

// A form may compute a field from its data, and write the data anew from the field, as reductions do with their dimensions. Reading uses a
// copy: other threads may read these attributes, or run the op.
template <class Visit>
void each_field(const OpForm& form, void* attrs, const Visit& visit) {
    if (form.attr_bytes == 0) return;
    Visitor<Visit> visitor(visit);
    form.fields(visitor, attrs);
}

template <class T>
T& in(const Field& field) {
    return *static_cast<T*>(field.place);
}

Attribute read(const Field& field) {
    const auto list = [](const auto& numbers) { return std::vector<SymInt>(numbers.begin(), numbers.end()); };
    switch (field.kind) {
        case Field::Kind::integer: return SymInt(in<int64_t>(field));
        case Field::Kind::integer32: return SymInt(in<int>(field));
        case Field::Kind::real: return in<double>(field);
        case Field::Kind::scalar: {
            const Scalar number = in<Scalar>(field);
            if (number.kind() == Scalar::Kind::floating) return number.as_double();
            if (number.kind() == Scalar::Kind::boolean) return number.as_int64() != 0;
            return SymInt(number.as_int64());
        }
        case Field::Kind::flag: return in<bool>(field);
        case Field::Kind::dtype: return in<DType>(field);
        case Field::Kind::device: return in<Device>(field);
        case Field::Kind::sizes: return list(in<Shape>(field));
        case Field::Kind::integers: return list(in<std::vector<int64_t>>(field));
        case Field::Kind::choice: return std::string(field.names[in<int64_t>(field)]);
        case Field::Kind::graph: return in<std::shared_ptr<const Graph>>(field);
    }
    return false;
}

constexpr int kInGraph = -2;  // Symbolic::element

int64_t number_or_0(const SymInt& size) { return size.is_number() ? size.number() : 0; }

// Returns false if it has another type. Numbers that depend on dimensions leave 0.
bool write(const Field& field, const Attribute& value, const Loc& loc) {
    const auto numbers = [&](std::vector<int64_t>& to) {
        const auto* list = std::get_if<std::vector<SymInt>>(&value);
        if (list) std::transform(list->begin(), list->end(), std::back_inserter(to), number_or_0);
        return list != nullptr;
    };
    const auto put = [&]<class T>(T& to) {
        const T* given = std::get_if<T>(&value);
        if (given) to = *given;
        return given != nullptr;
    };
    switch (field.kind) {
        case Field::Kind::integer:
        case Field::Kind::integer32: {
            const auto* size = std::get_if<SymInt>(&value);
            if (!size) return false;
            if (field.kind == Field::Kind::integer) {
                in<int64_t>(field) = number_or_0(*size);
            } else {
                in<int>(field) = static_cast<int>(number_or_0(*size));
                return in<int>(field) == number_or_0(*size);
            }
            return true;
        }
        case Field::Kind::real:
            if (const auto* size = std::get_if<SymInt>(&value); size && size->is_number()) {
                in<double>(field) = static_cast<double>(size->number());
                return true;
            }
            return put(in<double>(field));
        case Field::Kind::scalar:
            if (const auto* size = std::get_if<SymInt>(&value)) {
                in<Scalar>(field) = number_or_0(*size);
            } else if (const auto* real = std::get_if<double>(&value)) {
                in<Scalar>(field) = *real;
            } else if (const auto* flag = std::get_if<bool>(&value)) {
                in<Scalar>(field) = *flag;
            } else {
                return false;
            }
            return true;
        case Field::Kind::flag: return put(in<bool>(field));
        case Field::Kind::dtype: return put(in<DType>(field));
        case Field::Kind::device: return put(in<Device>(field));
        case Field::Kind::sizes: {
            std::vector<int64_t> list;
            if (!numbers(list)) return false;
            in<Shape>(field) = Shape(list, loc);
            return true;
        }
        case Field::Kind::integers: {
            std::vector<int64_t> list;
            if (!numbers(list)) return false;
            in<std::vector<int64_t>>(field) = std::move(list);
            return true;
        }
        case Field::Kind::choice: {
            const auto* given = std::get_if<std::string>(&value);
            for (int i = 0; given && i < field.name_count; ++i) {
                if (*given != field.names[i]) continue;
                in<int64_t>(field) = i;
                return true;
            }
            return false;
        }
        case Field::Kind::graph: return put(in<std::shared_ptr<const Graph>>(field));
    }
    return false;
}

void* copied(const OpForm& form, const void* from) {
    if (form.attr_bytes == 0) return nullptr;
    void* place = ::operator new(form.attr_bytes);
    try {
        form.copy(place, from);
    } catch (...) {
        ::operator delete(place);
        throw;
    }
    return place;
}

}  // namespace

Attributes::Attributes(const OpForm& form) : Attributes(form, nullptr) {}
Attributes::Attributes(const OpForm& form, const void* from) : form_(&form), data_(copied(form, from)) {}
Attributes::Attributes(const Attributes& other) : form_(other.form_), data_(copied(*other.form_, other.data_)), symbolic_(other.symbolic_) {}
Attributes::Attributes(Attributes&& other) noexcept
    : form_(other.form_), data_(std::exchange(other.data_, nullptr)), symbolic_(std::move(other.symbolic_)) {}
Attributes& Attributes::operator=(Attributes other) noexcept {
    std::swap(form_, other.form_);
    std::swap(data_, other.data_);
    symbolic_.swap(other.symbolic_);
    return *this;
}
Attributes::~Attributes() {
    if (!data_) return;
    form_->destroy(data_);
    ::operator delete(data_);
}

std::vector<std::pair<std::string, Attribute>> Attributes::all() const {
    std::vector<std::pair<std::string, Attribute>> list;
    const Attributes copy(*form_, data_);
    each_field(*form_, copy.data_, [&](const Field& field) {
        Attribute value = read(field);
        for (const Symbolic& s : symbolic_) {
            if (s.name != field.name || s.element == kInGraph) continue;
            if (s.element < 0) {
                value = s.value;
            } else if (auto& elements = std::get<std::vector<SymInt>>(value); static_cast<std::size_t>(s.element) < elements.size()) {
                elements[static_cast<std::size_t>(s.element)] = s.value;
            }
        }
        list.emplace_back(field.name, std::move(value));
    });
    return list;
}

bool Attributes::is_random() const {
    bool draws = form_->is_random;
    if (draws || form_->attr_bytes == 0) return draws;
    const Attributes copy(*form_, data_);
    each_field(*form_, copy.data_, [&](const Field& field) {
        if (field.kind != Field::Kind::graph) return;
        const auto& graph = in<std::shared_ptr<const Graph>>(field);
        if (!graph) return;
        for (const auto& node : graph->nodes()) draws |= node->attributes().is_random();
    });
    return draws;
}

bool Attributes::has_graph() const {
    bool has = false;
    const Attributes copy(*form_, data_);
    each_field(*form_, copy.data_,
               [&](const Field& field) { has |= field.kind == Field::Kind::graph && in<std::shared_ptr<const Graph>>(field) != nullptr; });
    return has;
}

void Attributes::each(const std::function<void(const Field&)>& visit) { each_field(*form_, data_, visit); }

Attribute Attributes::get(TextViewArg name, Loc loc) const {
    std::string names;
    for (auto& [own, value] : all()) {
        if (own == name) return std::move(value);
        names += (names.empty() ? "" : ", ") + own;
    }
    fail<ValueError>(loc, "{} has no attribute {}; it has {}", form_->op, name, names.empty() ? "none" : names);
}

void Attributes::set(TextViewArg name, const Attribute& value, Loc loc) {
    const CallerScope caller(loc);  // for errors of the op itself
    bool is_known = false, fits = false;
    each_field(*form_, data_, [&](const Field& field) {
        if (name != field.name) return;
        is_known = true;
        fits = write(field, value, loc);
    });
    if (!is_known) get(name, loc);  // throws
    if (!fits) fail<ValueError>(loc, "{}: the attribute {} cannot be {}", form_->op, name, to_string(value));
    std::erase_if(symbolic_, [&](const Symbolic& s) { return s.name == name; });
    const auto note = [&](const SymInt& size, int element) {
        if (!size.is_number()) symbolic_.push_back({std::string(name), element, size});
    };
    if (const auto* part = std::get_if<std::shared_ptr<const Graph>>(&value); part && *part && (*part)->is_symbolic()) {
        symbolic_.push_back({std::string(name), kInGraph, 0});
    }
    if (const auto* size = std::get_if<SymInt>(&value)) note(*size, -1);
    if (const auto* sizes = std::get_if<std::vector<SymInt>>(&value)) {
        for (std::size_t i = 0; i < sizes->size(); ++i) note((*sizes)[i], static_cast<int>(i));
        // Data that is not kept as a list, like the dimensions of a reduction, cannot wait for its numbers.
        const bool is_symbolic = std::any_of(symbolic_.begin(), symbolic_.end(), [&](const Symbolic& s) { return s.name == name; });
        if (!is_symbolic) return;
        std::size_t kept = 0;
        each_field(*form_, data_, [&](const Field& field) {
            if (name != field.name) return;
            if (field.kind == Field::Kind::sizes) kept = static_cast<std::size_t>(in<Shape>(field).rank());
            if (field.kind == Field::Kind::integers) kept = in<std::vector<int64_t>>(field).size();
        });
        if (kept == sizes->size()) return;
        std::erase_if(symbolic_, [&](const Symbolic& s) { return s.name == name; });
        fail<ValueError>(loc, "{}: the attribute {} cannot depend on named dimensions: {}", form_->op, name, to_string(value));
    }
}

Attributes Attributes::with(const DimSizes& sizes, const Loc& loc, bool partly) const {
    Attributes result = *this;
    result.symbolic_.clear();
    each_field(*form_, result.data_, [&](const Field& field) {
        for (const Symbolic& s : symbolic_) {
            if (s.name != field.name) continue;
            if (s.element == kInGraph) {
                auto& part = in<std::shared_ptr<const Graph>>(field);
                const std::vector<std::string> dims = part->dims();
                const bool has_one = std::any_of(dims.begin(), dims.end(), [&](const std::string& dim) { return sizes.contains(dim); });
                if (has_one) part = std::make_shared<const Graph>(part->with_outer(sizes, loc));  // else its plans serve all sizes
                if (part->is_symbolic()) result.symbolic_.push_back(s);                           // more dimensions may be known when it runs
                continue;
            }
            if (partly && !s.value.with(sizes, loc).is_number()) {
                result.symbolic_.push_back(s);
                continue;
            }
            const int64_t number = s.value.value(sizes, loc);
            switch (field.kind) {
                case Field::Kind::integer: in<int64_t>(field) = number; break;
                case Field::Kind::integer32:
                    in<int>(field) = static_cast<int>(number);
                    if (in<int>(field) != number) fail<ValueError>(loc, "{}: its {} cannot be {}", form_->op, s.name, number);
                    break;
                case Field::Kind::scalar: in<Scalar>(field) = number; break;
                case Field::Kind::sizes:
                    if (s.element < in<Shape>(field).rank()) in<Shape>(field).raw(s.element) = number;
                    break;
                default:
                    if (static_cast<std::size_t>(s.element) < in<std::vector<int64_t>>(field).size()) {
                        in<std::vector<int64_t>>(field)[static_cast<std::size_t>(s.element)] = number;
                    }
            }
        }
    });
    return result;
}

std::string to_string(const Attribute& attribute) {
    struct Text {
        mutable std::string lines;
        std::string operator()(const SymInt& size) const { return size.str(); }
        std::string operator()(double value) const {
            std::string text = fmt::format("{}", value);
            return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;  // distinguishes it from whole numbers; inf, nan
        }
        std::string operator()(bool flag) const { return flag ? "true" : "false"; }
        std::string operator()(DType dtype) const { return name(dtype); }
        std::string operator()(Device device) const { return fmt::format("{}", device); }
        std::string operator()(const std::vector<SymInt>& sizes) const {
            std::string text = "(";
            for (const SymInt& size : sizes) text += (text.size() > 1 ? ", " : "") + size.str();
            return text + (sizes.size() == 1 ? ",)" : ")");
        }
        std::string operator()(const std::shared_ptr<const Graph>& graph) const {
            std::string text = "{\n";
            for (std::string_view rest = graph ? std::string_view(lines = graph->str()) : std::string_view(); !rest.empty();) {
                const std::size_t end = rest.find('\n') + 1;
                text.append("    ").append(rest.substr(0, end));
                rest.remove_prefix(end);
            }
            return text + "}";
        }
        std::string operator()(const std::string& choice) const { return "\"" + choice + "\""; }
    };
    return std::visit(Text{}, attribute);
}

}  // namespace tapir
