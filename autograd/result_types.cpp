// The rules for result types.
#include "tapir/autograd/result_types.h"

#include <algorithm>

#include "tapir/autograd/attributes.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/size_math_impl.h"

namespace tapir {

using std::int64_t;

namespace {
thread_local const TypeCall* asked = nullptr;  // the call that is being typed

template <class E, class... T>
[[noreturn]] void refuse(fmt::format_string<T...> message, T&&... values) {
    fail<E>(asked->loc, "{}: {}", asked->attributes.form().op, fmt::format(message, std::forward<T>(values)...));
}

// True if it contains an unknown size.
bool is_unknown(const SymInt& size) {
    const std::vector<std::string> dims = size.dims();
    return std::find(dims.begin(), dims.end(), "unknown") != dims.end();
}

int wrapped(const ValueType& x, int64_t dim) { return detail::wrap_dim(dim, x.rank(), asked->attributes.form().op, asked->loc); }
}  // namespace

const ValueType& TypeCall::operator[](int i) const {
    if (i >= count) refuse<ValueError>("needs more than {} operands", count);
    return operands[i];
}

SymInt TypeCall::size(const char* attribute) const { return std::get<SymInt>(attributes.get(attribute, loc)); }
std::vector<SymInt> TypeCall::sizes(const char* attribute) const { return std::get<std::vector<SymInt>>(attributes.get(attribute, loc)); }

namespace types {

ValueType same(const ValueType& x, DType dtype) { return {dtype, x.device, x.shape}; }
ValueType shaped(const ValueType& x, std::vector<SymInt> shape) { return shaped(x, std::move(shape), x.dtype); }
ValueType shaped(const ValueType& x, std::vector<SymInt> shape, DType dtype) { return {dtype, x.device, std::move(shape)}; }

ValueType reshaped(const ValueType& x, std::vector<SymInt> shape) {
    const auto open = std::find(shape.begin(), shape.end(), SymInt(-1));
    const bool is_open = open != shape.end();
    if (is_open) *open = 1;
    std::vector<SymInt> others = shape, rest = x.shape;  // without the sizes that both shapes share
    for (auto size = others.begin(); size != others.end();) {
        const auto same = *size == SymInt(0) ? rest.end() : std::find(rest.begin(), rest.end(), *size);
        if (same == rest.end()) {
            ++size;
            continue;
        }
        rest.erase(same);
        size = others.erase(size);
    }
    const SymInt have = product(rest), wanted = product(others);
    if (!is_open) {
        if (!may_equal(have, wanted)) refuse<ShapeError>("{} elements do not fit into {}", have.str(), wanted.str());
    } else {
        *open = quotient(have, wanted);
    }
    const auto may_be_size = [](const SymInt& size) { return !size.is_number() || size.number() >= 0; };
    need(std::all_of(shape.begin(), shape.end(), may_be_size), "a size is negative");
    return shaped(x, std::move(shape));
}

ValueType expanded(const ValueType& x, std::vector<SymInt> shape) {
    const std::size_t rank = x.shape.size();
    if (shape.size() < rank) refuse<ShapeError>("{} dimensions are too few for {}", shape.size(), rank);
    for (std::size_t d = 0; d < rank; ++d) {
        SymInt& size = shape[shape.size() - rank + d];
        if (size == SymInt(-1)) size = x.shape[d];
    }
    ValueType result = shaped(x, std::move(shape));
    static_cast<void>(holding(result, x));
    return result;
}

DType summed(DType dtype) noexcept { return is_floating(dtype) ? dtype : DType::int64; }
DType floating(DType dtype) noexcept { return is_floating(dtype) ? dtype : default_dtype(); }

template <class E>
void need(bool holds, const char* what) {
    if (!holds) refuse<E>("{}", what);
}
template void need<ShapeError>(bool, const char*);
template void need<IndexError>(bool, const char*);
template void need<ValueError>(bool, const char*);

const ValueType& ranked(const ValueType& x, int least, int most) {
    if (x.rank() < least || x.rank() > most) {
        refuse<ShapeError>("needs {}{} dimensions, got {}", least,
                           most == least          ? ""
                               : most == kMaxRank ? " or more"
                                                  : fmt::format(" to {}", most),
                           x.rank());
    }
    return x;
}

const ValueType& along(const ValueType& x, int64_t dim) {
    static_cast<void>(wrapped(x, dim));
    return x;
}

const ValueType& along(const ValueType& x, const Dims& dims) {
    std::uint32_t seen = 0;
    for (const int64_t dim : dims) {
        const std::uint32_t bit = 1U << wrapped(x, dim);
        if (seen & bit) refuse<IndexError>("dimension {} is named twice", dim);
        seen |= bit;
    }
    return x;
}

const ValueType& square(const ValueType& x) {
    if (!may_equal(size_of(ranked(x, 2), -1), size_of(x, -2))) refuse<ShapeError>("needs square matrices");
    return x;
}

const ValueType& chosen(const ValueType& x, const Dims& dims) {
    bool is_empty = false;
    for (const int64_t dim : dims) is_empty |= x.rank() > 0 && size_of(x, dim) == SymInt(0);
    if (dims.empty()) is_empty = product(x.shape) == SymInt(0);
    if (is_empty) refuse<ShapeError>("there are no elements to choose from");
    return x;
}

static int end_of(const TypeCall& t, int from, int count) { return count < 0 ? t.count : std::min(t.count, from + count); }

// As elementwise::result_type: operands without dimensions count only if of a higher kind (bool, integer, floating) than all with dimensions.
DType promoted(const TypeCall& t, int from, int count) {
    const auto kind = [](DType dtype) { return dtype == DType::boolean ? 0 : is_floating(dtype) ? 2 : 1; };
    const auto join = [&](bool with_dims, DType& result) {
        bool is_there = false;
        for (int i = from; i < end_of(t, from, count); ++i) {
            if ((t[i].rank() > 0) != with_dims) continue;
            result = is_there ? promote(result, t[i].dtype) : t[i].dtype;
            is_there = true;
        }
        return is_there;
    };
    DType wide = DType::boolean, numbers = DType::boolean;
    const bool has_wide = join(true, wide), has_numbers = join(false, numbers);
    if (!has_wide) return numbers;
    return has_numbers && kind(numbers) > kind(wide) ? promote(wide, numbers) : wide;
}

SymInt agreed(const SymInt& a, const SymInt& b) {
    if (a == b) return a;
    if (a.is_number() && b.is_number()) refuse<ShapeError>("sizes {} and {}", a.str(), b.str());
    return a.is_number() ? a : b.is_number() ? b : unknown();
}

// Merges the sizes of another operand into x's, which must agree, except along one dimension; -1: no exception.
static void agree(ValueType& x, const ValueType& other, int but_for) {
    if (other.rank() != x.rank()) refuse<ShapeError>("{} and {} dimensions", x.rank(), other.rank());
    for (int d = 0; d < x.rank(); ++d) {
        const auto at = static_cast<std::size_t>(d);
        if (d != but_for) x.shape[at] = agreed(x.shape[at], other.shape[at]);
    }
}

ValueType alike(const ValueType& x, const ValueType& other) {
    ValueType result = x;
    agree(result, other, -1);
    return result;
}

const ValueType& holding(const ValueType& x, const ValueType& other) {
    if (other.rank() > x.rank()) refuse<ShapeError>("{} dimensions do not broadcast to {}", other.rank(), x.rank());
    const auto more = static_cast<std::size_t>(x.rank() - other.rank());
    for (std::size_t d = 0; d < other.shape.size(); ++d) {
        const SymInt &from = other.shape[d], &to = x.shape[more + d];
        if (!(from == SymInt(1)) && !may_equal(from, to)) refuse<ShapeError>("a size of {} does not broadcast to {}", from.str(), to.str());
    }
    return x;
}

static SymInt common(const SymInt& a, const SymInt& b) {
    if (b == SymInt(1)) return a;
    if (a == SymInt(1)) return b;
    if (a.is_number() && b.is_number() && !(a == b)) refuse<ShapeError>("sizes {} and {} do not broadcast", a.str(), b.str());
    return agreed(a, b);
}

std::vector<SymInt> broadcast(const std::vector<SymInt>& a, const std::vector<SymInt>& b) {
    std::vector<SymInt> result = a.size() >= b.size() ? a : b;
    const std::vector<SymInt>& other = a.size() >= b.size() ? b : a;
    const std::size_t more = result.size() - other.size();
    for (std::size_t d = 0; d < other.size(); ++d) result[more + d] = common(result[more + d], other[d]);
    return result;
}

std::vector<SymInt> broadcast(const TypeCall& t, int from, int count) {
    std::vector<SymInt> result;
    for (int i = from; i < end_of(t, from, count); ++i) result = broadcast(result, t[i].shape);
    return result;
}

ValueType pointwise(const TypeCall& t) { return pointwise(t, promoted(t)); }
ValueType pointwise(const TypeCall& t, DType dtype) {
    Device device = t[0].device;
    for (int i = 1; i < t.count; ++i) {
        if (!(t[i].device == cpu)) device = t[i].device;
    }
    return {dtype, device, broadcast(t)};
}

ValueType reduced(const ValueType& x, const Dims& dims, bool keepdim, DType dtype) {
    std::uint32_t over = dims.empty() ? ~0U : 0U;
    static_cast<void>(along(x, dims));
    for (const int64_t dim : dims) over |= 1U << wrapped(x, dim);
    std::vector<SymInt> shape;
    for (int d = 0; d < x.rank(); ++d) {
        const bool is_over = over >> d & 1;
        if (!is_over || keepdim) shape.push_back(is_over ? SymInt(1) : x.shape[static_cast<std::size_t>(d)]);
    }
    return {dtype, x.device, std::move(shape)};
}

ValueType reduced_along(const ValueType& x, int64_t dim, bool keepdim, DType dtype) { return reduced(x, Dims{wrapped(x, dim)}, keepdim, dtype); }

ResultTypes picked(const ValueType& x, int64_t dim, bool keepdim) {
    return {reduced_along(x, dim, keepdim, x.dtype), reduced_along(x, dim, keepdim, DType::int64)};
}

ValueType resized(const ValueType& x, int64_t dim, SymInt size) {
    ValueType result = x;
    const int at = wrapped(x, dim);
    if (x.rank() > 0) result.shape[static_cast<std::size_t>(at)] = std::move(size);
    return result;
}

ValueType dropped(const ValueType& x, int64_t dim) {
    ValueType result = x;
    const int at = wrapped(x, dim);
    if (x.rank() > 0) result.shape.erase(result.shape.begin() + at);
    return result;
}

ValueType selected(const ValueType& x, int64_t dim, const SymInt& index) {
    need<IndexError>(x.rank() > 0, "a 0-d tensor cannot be indexed");
    const SymInt& size = size_of(x, dim);
    if (index.is_number() && size.is_number() && (index.number() < -size.number() || index.number() >= size.number())) {
        refuse<IndexError>("index {} of {} elements", index.number(), size.number());
    }
    return dropped(x, dim);
}

ValueType inserted(const ValueType& x, int64_t dim, SymInt size) {
    ValueType result = x;
    const int64_t most = x.rank() + 1;
    if (dim < -most || dim >= most) refuse<IndexError>("dimension {} of {}", dim, most);
    result.shape.insert(result.shape.begin() + (dim < 0 ? dim + most : dim), std::move(size));
    return result;
}

SymInt product(const std::vector<SymInt>& shape, std::size_t from, std::size_t to) {
    SymInt result = 1;
    for (std::size_t d = from; d < to; ++d) result = result * shape[d];
    return result;
}

ValueType permuted(const ValueType& x, const std::vector<SymInt>& dims) {
    ValueType result = x;
    if (std::ssize(dims) != x.rank()) refuse<ShapeError>("{} dimensions are named of {}", dims.size(), x.rank());
    std::uint32_t seen = 0;
    for (std::size_t d = 0; d < dims.size(); ++d) {
        const int from = wrapped(x, dims[d].number());
        if (seen >> from & 1) refuse<ShapeError>("dimension {} is named twice", from);
        seen |= 1U << from;
        result.shape[d] = x.shape[static_cast<std::size_t>(from)];
    }
    return result;
}

const SymInt& size_of(const ValueType& x, int64_t dim) {
    static_cast<void>(ranked(x, 1));
    return x.shape[static_cast<std::size_t>(wrapped(x, dim))];
}

SymInt product(const std::vector<SymInt>& shape) { return product(shape, 0, shape.size()); }

SymInt quotient(const SymInt& size, const SymInt& by) {
    if (by == SymInt(1)) return size;
    if (size == by) return 1;
    if (!by.is_number()) return unknown();
    if (by.number() <= 0) refuse<ShapeError>("{} is not divided by {}", size.str(), by.number());
    if (size.is_number() && size.number() % by.number() != 0) refuse<ShapeError>("{} is no multiple of {}", size.number(), by.number());
    return size.floor_div(by.number());
}

SymInt smaller(const SymInt& a, const SymInt& b) {
    const SymInt more = a - b;
    return more.is_number() ? more.number() < 0 ? a : b : unknown();
}

SymInt spatial(const std::vector<SymInt>& given, int d, int dims) {
    if (given.size() == 1) return given[0];
    if (std::ssize(given) != dims) refuse<ValueError>("{} numbers for {} dimensions", given.size(), dims);
    return given[static_cast<std::size_t>(d)];
}

SymInt windows(const SymInt& size, const SymInt& kernel, const SymInt& stride, const SymInt& dilation) {
    const SymInt reach = detail::window_reach(kernel, dilation), rest = size - reach;
    if (kernel == SymInt(0) || (rest.is_number() && rest.number() < 0)) {
        refuse<ShapeError>("a window of {} elements does not fit into {}", kernel.str(), size.str());
    }
    if (!stride.is_number()) return unknown();
    if (stride.number() < 1) refuse<ValueError>("a stride of {}", stride.number());
    return detail::window_count(size, reach, stride.number());
}

ValueType joined(const TypeCall& t, int64_t dim) {
    // 1-d tensors without elements fit all others, as in PyTorch.
    const auto is_left_out = [](const ValueType& x) { return x.rank() == 1 && x.shape[0] == SymInt(0); };
    int first = 0;
    while (first + 1 < t.count && is_left_out(t[first])) ++first;
    ValueType result = ranked(t[first], 1);
    const int at = wrapped(result, dim);
    for (int i = 0; i < t.count; ++i) {
        result.dtype = promote(result.dtype, t[i].dtype);
        if (i == first || is_left_out(t[i])) continue;
        agree(result, t[i], at);
        SymInt& size = result.shape[static_cast<std::size_t>(at)];
        size = size + t[i].shape[static_cast<std::size_t>(at)];
    }
    return result;
}

ValueType stacked(const TypeCall& t, int64_t dim) {
    ValueType result = t[0];
    for (int i = 1; i < t.count; ++i) {
        result.dtype = promote(result.dtype, t[i].dtype);
        agree(result, t[i], -1);
    }
    return inserted(result, dim, t.count);
}

ValueType swapped(const ValueType& x, int64_t a, int64_t b) {
    ValueType result = x;
    const int first = wrapped(x, a), second = wrapped(x, b);
    if (x.rank() > 0) std::swap(result.shape[static_cast<std::size_t>(first)], result.shape[static_cast<std::size_t>(second)]);
    return result;
}

// True if it holds for all sizes of its dimensions.
static bool is_not_negative(const SymInt& size) {
    const SymInt::Parts parts = size.parts();
    return parts.constant >= 0 && parts.after >= 0 && std::all_of(parts.terms.begin(), parts.terms.end(), [](const auto& term) {
               return term.second > 0 &&
                   std::none_of(term.first.begin(), term.first.end(), [](const std::string& factor) { return factor[0] == '('; });
           });
}

ValueType sliced(const ValueType& x, int64_t dim, const SymInt& start, const SymInt& end, int64_t step) {
    need<IndexError>(x.rank() > 0, "a 0-d tensor cannot be sliced");
    need<ValueError>(step > 0, "the step must be positive");
    const SymInt& size = size_of(x, dim);
    if (size.is_number() && start.is_number() && end.is_number()) {
        return resized(x, dim, taken_by({start.number(), end.number(), step}, size.number()).length);
    }
    // 0 <= from <= to <= size, or a bound may be clipped.
    const auto bound = [&size](const SymInt& at) { return at.is_number() && at.number() < 0 ? size + at : at; };
    const SymInt from = bound(start), to = bound(end), length = to - from;
    const bool is_inside = is_not_negative(from) && is_not_negative(length) && is_not_negative(size - to);
    return resized(x, dim, is_inside ? (length + SymInt(step - 1)).floor_div(step) : unknown());
}

ResultTypes cut(const ValueType& x, int64_t dim, bool drop, const std::vector<SymInt>& sizes) {
    ResultTypes results;
    const SymInt& count = size_of(x, dim);
    if (!drop) {
        SymInt sum;
        for (const SymInt& size : sizes) {
            results.push_back(resized(x, dim, size));
            sum = sum + size;
        }
        static_cast<void>(agreed(sum, count));
        return results;
    }
    if (count.is_number()) results.assign(static_cast<std::size_t>(count.number()), dropped(x, dim));
    return results;
}

std::vector<SymInt> appended(std::vector<SymInt> shape, const std::vector<SymInt>& more) {
    shape.insert(shape.end(), more.begin(), more.end());
    return shape;
}
std::vector<SymInt> appended(std::vector<SymInt> shape, const ValueType& x, int from, int to) {
    if (from > x.rank() || to > x.rank()) refuse<ShapeError>("{} dimensions are too few", x.rank());
    shape.insert(shape.end(), x.shape.begin() + from, to < 0 ? x.shape.end() : x.shape.begin() + to);
    return shape;
}
std::vector<SymInt> leading(const ValueType& x, int without, const std::vector<SymInt>& then) {
    static_cast<void>(ranked(x, without));
    return appended({x.shape.begin(), x.shape.end() - without}, then);
}

ValueType multiplied(const ValueType& a, const ValueType& b) {
    static_cast<void>(ranked(a, 1)), static_cast<void>(ranked(b, 1));
    const SymInt &inner = size_of(a, -1), &other = size_of(b, b.rank() == 1 ? -1 : -2);
    if (!may_equal(inner, other)) refuse<ShapeError>("inner dimensions differ: {} and {}", inner.str(), other.str());
    std::vector<SymInt> shape = broadcast(leading(a, std::min(a.rank(), 2)), leading(b, std::min(b.rank(), 2)));
    if (a.rank() > 1) shape.push_back(size_of(a, -2));
    if (b.rank() > 1) shape.push_back(size_of(b, -1));
    return shaped(a, std::move(shape), promote(a.dtype, b.dtype));
}

ValueType diagonal(const ValueType& x, const SymInt& offset, int64_t dim1, int64_t dim2) {
    const int a = wrapped(ranked(x, 2), dim1), b = wrapped(x, dim2);
    need(a != b, "needs two different dimensions");
    SymInt length = unknown();
    if (offset.is_number()) {
        const int64_t by = offset.number();
        length = smaller(size_of(x, a) + SymInt(std::min<int64_t>(by, 0)), size_of(x, b) + SymInt(-std::max<int64_t>(by, 0)));
        if (length.is_number()) {
            length = std::max<int64_t>(length.number(), 0);
        } else if (by != 0) {
            length = unknown();  // the matrix may have no such diagonal
        }
    }
    const ValueType rest = dropped(dropped(x, std::max(a, b)), std::min(a, b));
    return shaped(x, appended(rest.shape, {length}));
}

ResultTypes updated(const TypeCall& t) {
    ResultTypes results{same(alike(t[0], t[1]), t[0].dtype)};
    for (int i = 2; i + 1 < t.count; ++i) results.push_back(same(alike(t[0], t[i]), computed_in(t[0].dtype)));
    results.push_back(alike(t[t.count - 1], made({2}, DType::float64, cpu)));  // the progress
    return results;
}

}  // namespace types

ResultTypes detail::result_types(const Attributes& attributes, const std::vector<ValueType>& operands, const Loc& loc) {
    const TypeCall call{operands.data(), static_cast<int>(operands.size()), attributes, loc};
    const struct Asking {  // a rule may ask for others: those of a branch or a loop
        explicit Asking(const TypeCall& now) { asked = &now; }
        ~Asking() { asked = before; }
        const TypeCall* before = asked;
    } asking(call);
    ResultTypes results = attributes.form().types(call, attributes.data());
    for (ValueType& result : results) {
        for (SymInt& size : result.shape) {
            if (!size.is_number() && is_unknown(size)) size = types::unknown();  // there is no formula: each has a size of its own
        }
    }
    return results;
}

}  // namespace tapir
