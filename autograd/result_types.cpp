// The rules that the types of results are made of.
#include "tapir/autograd/result_types.h"

#include <algorithm>

#include "tapir/autograd/attributes.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"

namespace tapir {

using std::int64_t;

namespace {
thread_local const TypeCall* asked = nullptr;  // the call whose results are asked for

template <class E, class... T>
[[noreturn]] void refuse(fmt::format_string<T...> message, T&&... values) {
    fail<E>(asked->loc, "{}: {}", asked->attributes.form().op, fmt::format(message, std::forward<T>(values)...));
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
// A size of -1 is what the other sizes leave of the elements.
ValueType shaped(const ValueType& x, std::vector<SymInt> shape, DType dtype) {
    const auto open = std::find(shape.begin(), shape.end(), SymInt(-1));
    if (open != shape.end()) {
        *open = 1;
        const SymInt others = product(shape, 0, shape.size());
        *open = others.is_number() && others.number() > 0 ? product(x.shape, 0, x.shape.size()).floor_div(others.number()) : unknown();
    }
    return {dtype, x.device, std::move(shape)};
}

DType floating(DType dtype) noexcept { return is_floating(dtype) ? dtype : default_dtype(); }

static int end_of(const TypeCall& t, int from, int count) { return count < 0 ? t.count : std::min(t.count, from + count); }

// As elementwise::result_type: an operand without dimensions counts where it is of a higher kind (bool, integer, floating) than all with dimensions.
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

// Of two sizes that have to be equal: a number says more than a name.
static SymInt agreed(const SymInt& a, const SymInt& b) {
    if (a == b) return a;
    if (a.is_number() && b.is_number()) refuse<ShapeError>("sizes {} and {}", a.str(), b.str());
    return a.is_number() ? a : b.is_number() ? b : unknown();
}

// With all sizes of another operand, but for those of one dimension; -1: of none.
static void agree(ValueType& x, const ValueType& other, int but_for) {
    if (other.rank() != x.rank()) refuse<ShapeError>("{} and {} dimensions", x.rank(), other.rank());
    for (int d = 0; d < x.rank(); ++d) {
        const auto at = static_cast<std::size_t>(d);
        if (d != but_for) x.shape[at] = agreed(x.shape[at], other.shape[at]);
    }
}

static SymInt common(const SymInt& a, const SymInt& b) {
    if (b == SymInt(1)) return a;
    if (a == SymInt(1)) return b;
    if (a.is_number() && b.is_number() && !(a == b)) refuse<ShapeError>("sizes {} and {} do not broadcast", a.str(), b.str());
    return agreed(a, b);
}

static std::vector<SymInt> broadcast(const std::vector<SymInt>& a, const std::vector<SymInt>& b) {
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

ValueType joined(const TypeCall& t, int64_t dim) {
    // Tensors of one dimension without elements fit to all, as in PyTorch.
    const auto is_left_out = [](const ValueType& x) { return x.rank() == 1 && x.shape[0] == SymInt(0); };
    int first = 0;
    while (first + 1 < t.count && is_left_out(t[first])) ++first;
    ValueType result = t[first];
    const int at = wrapped(result, dim);
    for (int i = 0; i < t.count; ++i) {
        result.dtype = promote(result.dtype, t[i].dtype);
        if (i == first || is_left_out(t[i])) continue;
        agree(result, t[i], at);
        if (result.rank() == 0) continue;
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

ResultTypes sliced(const ValueType& x, int64_t dim, const SymInt& start, const SymInt& end, int64_t step) {
    const SymInt size = x.shape.at(static_cast<std::size_t>(wrapped(x, dim)));
    if (size.is_number() && start.is_number() && end.is_number()) {
        const int64_t n = size.number();
        const auto bound = [n](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + n : at, 0, n); };
        const int64_t from = bound(start.number()), to = bound(end.number());
        return resized(x, dim, to > from ? (to - from - 1) / step + 1 : 0);
    }
    if (!(start == SymInt(0)) || !(end == size)) return {};
    return resized(x, dim, (size + SymInt(step - 1)).floor_div(step));
}

ResultTypes cut(const ValueType& x, int64_t dim, bool drop, const std::vector<SymInt>& sizes) {
    ResultTypes results;
    if (!drop) {
        for (const SymInt& size : sizes) results.push_back(resized(x, dim, size));
        return results;
    }
    const SymInt count = x.shape.at(static_cast<std::size_t>(wrapped(x, dim)));
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
std::vector<SymInt> without_last(std::vector<SymInt> shape) {
    if (shape.empty()) refuse<ShapeError>("there is no dimension");
    shape.pop_back();
    return shape;
}

}  // namespace types

ResultTypes detail::result_types(const Attributes& attributes, const std::vector<ValueType>& operands, const Loc& loc) {
    const OpForm& form = attributes.form();
    const TypeCall call{operands.data(), static_cast<int>(operands.size()), attributes, loc};
    asked = &call;
    return form.types(call, attributes.data());
}

}  // namespace tapir
