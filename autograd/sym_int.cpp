// Sizes made of named dimensions.
#include "tapir/autograd/sym_int.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>
#include <utility>

#include "tapir/autograd/op_names_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/size_math_impl.h"

namespace tapir {
namespace {

std::int64_t sum_of(std::int64_t a, std::int64_t b) {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) fail<ValueError>(Loc{}, "{} + {} does not fit into 64 bits", a, b);
    return sum;
}
std::int64_t product_of(std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) fail<ValueError>(Loc{}, "{} * {} does not fit into 64 bits", a, b);
    return product;
}

// A quotient in a product is given by its text, "(time - 3)//2", in the place of a dimension's name.
bool is_quotient(const std::string& factor) noexcept { return !factor.empty() && factor[0] == '('; }

bool is_name_part(char c) noexcept { return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

SymInt::SymInt(std::int64_t number) : constant_(number) {}

SymInt SymInt::dim(TextArg name) {
    SymInt result;
    result.terms_[{std::move(name)}] = 1;
    return result;
}

std::int64_t SymInt::number(Loc loc) const {
    if (!is_number()) fail<ValueError>(loc, "SymInt::number: {} depends on named dimensions", str());
    return constant_;
}

std::int64_t SymInt::value(const DimSizes& sizes, Loc loc) const {
    std::int64_t sum = constant_;
    bool overflow = false;
    for (const auto& [product, coefficient] : terms_) {
        std::int64_t term = coefficient;
        for (const std::string& name : product) {
            if (is_quotient(name)) {
                overflow |= __builtin_mul_overflow(term, parse(name, loc).value(sizes, loc), &term);
                continue;
            }
            const auto size = sizes.find(name);
            if (size == sizes.end()) fail<ValueError>(loc, "the size of dimension {} is not known", name);
            overflow |= __builtin_mul_overflow(term, size->second, &term);
        }
        overflow |= __builtin_add_overflow(sum, term, &sum);
    }
    if (divisor_ != 1) sum = detail::floor_div(sum, divisor_);
    overflow |= __builtin_add_overflow(sum, after_, &sum);
    if (overflow) fail<ValueError>(loc, "{} does not fit into 64 bits", str());
    return sum;
}

SymInt SymInt::with(const DimSizes& sizes, Loc loc) const {
    const std::vector<std::string> names = dims();
    const bool is_known = std::all_of(names.begin(), names.end(), [&](const std::string& name) { return sizes.count(name) > 0; });
    return is_known ? SymInt(value(sizes, loc)) : *this;
}

std::optional<SymInt::OfOneDim> SymInt::of_one_dim() const {
    if (terms_.size() != 1 || divisor_ != 1) return std::nullopt;
    const auto& [product, factor] = *terms_.begin();
    if (product.size() != 1 || is_quotient(product[0]) || factor <= 0) return std::nullopt;
    return OfOneDim{product[0], factor, constant_ + after_};
}

std::optional<std::int64_t> SymInt::OfOneDim::size_for(std::int64_t value) const noexcept {
    std::int64_t rest = 0;
    if (__builtin_sub_overflow(value, offset, &rest) || rest < 0 || rest % factor != 0) return std::nullopt;
    return rest / factor;
}

std::vector<std::string> SymInt::dims() const {
    std::set<std::string> names;
    for (const auto& [product, coefficient] : terms_) {
        for (const std::string& factor : product) {
            if (!is_quotient(factor)) {
                names.insert(factor);
                continue;
            }
            for (std::string& name : parse(factor).dims()) names.insert(std::move(name));
        }
    }
    return {names.begin(), names.end()};
}

namespace {

// The quotient as a sum of products with one factor, the quotient.
SymInt as_sum(const SymInt& size) {
    const SymInt::Parts parts = size.parts();
    if (parts.divisor == 1) return size;
    const SymInt after = parts.after;
    return SymInt::dim((size - after).str()) + after;
}

// Returns the quotient itself if the sum consists of one quotient, and perhaps a number.
SymInt simplest(SymInt sum) {
    const SymInt::Parts parts = sum.parts();
    if (parts.divisor != 1 || parts.terms.size() != 1) return sum;
    const auto& [product, coefficient] = *parts.terms.begin();
    if (coefficient != 1 || product.size() != 1 || !is_quotient(product[0])) return sum;
    return SymInt::parse(product[0]) + SymInt(parts.constant);
}

}  // namespace

SymInt operator+(const SymInt& a, const SymInt& b) {
    if (b.divisor_ != 1 && a.is_number()) return b + a;
    SymInt sum = a;
    if (a.divisor_ != 1 && b.is_number()) {
        sum.after_ = sum_of(sum.after_, b.constant_);
        return sum;
    }
    if (a.divisor_ != 1 || b.divisor_ != 1) return as_sum(a) + as_sum(b);
    for (const auto& [product, coefficient] : b.terms_) {
        std::int64_t& mine = sum.terms_[product];
        mine = sum_of(mine, coefficient);
        if (mine == 0) sum.terms_.erase(product);
    }
    sum.constant_ = sum_of(sum.constant_, b.constant_);
    return b.is_number() ? sum : simplest(std::move(sum));
}

SymInt operator-(const SymInt& a, const SymInt& b) { return a + SymInt(-1) * b; }

SymInt operator*(const SymInt& a, const SymInt& b) {
    if (a == SymInt(1)) return b;
    if (b == SymInt(1)) return a;
    if (a == SymInt(0) || b == SymInt(0)) return 0;
    if (a.divisor_ != 1 || b.divisor_ != 1) return as_sum(a) * as_sum(b);
    SymInt result(product_of(a.constant_, b.constant_));
    const auto add = [&](SymInt::Product product, std::int64_t coefficient) {
        std::sort(product.begin(), product.end());
        std::int64_t& mine = result.terms_[product];
        mine = sum_of(mine, coefficient);
        if (mine == 0) result.terms_.erase(product);
    };
    for (const auto& [product, coefficient] : a.terms_) {
        if (b.constant_ != 0) add(product, product_of(coefficient, b.constant_));
        for (const auto& [other, factor] : b.terms_) {
            SymInt::Product both = product;
            both.insert(both.end(), other.begin(), other.end());
            add(both, product_of(coefficient, factor));
        }
    }
    for (const auto& [product, coefficient] : b.terms_) {
        if (a.constant_ != 0) add(product, product_of(coefficient, a.constant_));
    }
    return result;
}

SymInt SymInt::floor_div(std::int64_t by, Loc loc) const {
    if (by <= 0) fail<ValueError>(loc, "SymInt::floor_div: the divisor must be positive, got {}", by);
    SymInt result = *this;
    if (divisor_ != 1) {  // (a // b + c) // d = (a + b*c) // (b*d)
        result.constant_ = sum_of(constant_, product_of(after_, divisor_));
        result.divisor_ = 1;
        result.after_ = 0;
        return result.floor_div(product_of(divisor_, by), loc);
    }
    std::int64_t common = by;
    for (const auto& [product, coefficient] : terms_) common = std::gcd(common, coefficient);
    for (auto& [product, coefficient] : result.terms_) coefficient /= common;
    result.constant_ = detail::floor_div(constant_, common);
    by /= common;
    if (by == 1) return simplest(std::move(result));
    result.divisor_ = by;
    result.after_ = detail::floor_div(result.constant_, by);
    result.constant_ -= result.after_ * by;
    return result;
}

std::string SymInt::str() const {
    std::string text;
    const auto add = [&text](std::int64_t coefficient, const std::string& what) {
        const bool is_first = text.empty();
        if (!is_first) text += coefficient < 0 ? " - " : " + ";
        if (is_first && coefficient < 0) text += "-";
        const std::uint64_t size = coefficient < 0 ? 0 - static_cast<std::uint64_t>(coefficient) : static_cast<std::uint64_t>(coefficient);
        if (what.empty()) {
            text += fmt::format("{}", size);
        } else {
            text += size == 1 ? what : fmt::format("{}*{}", size, what);
        }
    };
    for (const auto& [product, coefficient] : terms_) {
        std::string names;
        for (const std::string& name : product) {
            if (is_quotient(name)) {
                const bool is_alone = product.size() == 1 && coefficient == 1;
                names += (names.empty() ? "" : "*") + (is_alone ? name : "(" + name + ")");
                continue;
            }
            const bool is_plain = !name.empty() && !(name[0] >= '0' && name[0] <= '9') && std::all_of(name.begin(), name.end(), is_name_part);
            const std::string quoted = is_plain ? std::string() : detail::quoted_name(name);
            names += (names.empty() ? "" : "*") + (is_plain ? name : quoted[0] == '"' ? quoted : "\"" + quoted + "\"");
        }
        add(coefficient, names);
    }
    if (terms_.empty() || constant_ != 0) add(constant_, "");
    if (divisor_ == 1) return text;
    text = fmt::format("({})//{}", text, divisor_);
    if (after_ != 0) add(after_, "");
    return text;
}

namespace {

// term ("+" | "-") term ..., where a term is a quotient, "(" sum ")" "//" number, or a product of numbers, names and quotients in parentheses.
class Parser {
 public:
    Parser(std::string_view text, const Loc& loc) : text_(text), loc_(loc) {}

    SymInt all() {
        const SymInt result = sum();
        if (at_ != text_.size()) refuse();
        return result;
    }

 private:
    [[noreturn]] void refuse() const { fail<ValueError>(loc_, "SymInt::parse: \"{}\" is no size", detail::quoted_part(text_)); }
    void skip() {
        while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    }
    bool take(std::string_view what) {
        skip();
        if (text_.substr(at_, what.size()) != what) return false;
        at_ += what.size();
        skip();
        return true;
    }
    std::int64_t number() {
        std::int64_t value = 0;
        const auto result = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
        if (result.ec != std::errc()) refuse();
        at_ = static_cast<std::size_t>(result.ptr - text_.data());
        return value;
    }
    bool is_digit() const { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; }
    SymInt factor() {
        skip();
        if (++factors_ > 1000) refuse();  // sums and products are copied for each factor
        if (take("(")) return quotient_in(in_parentheses());
        if (is_digit()) return number();
        if (at_ < text_.size() && text_[at_] == '"') {
            const std::size_t end = text_.find('"', at_ + 1);
            std::string name;
            if (end == std::string_view::npos || !detail::unquote_name(text_.substr(at_, end + 1 - at_), name) || is_quotient(name)) refuse();
            at_ = end + 1;
            return SymInt::dim(std::move(name));
        }
        const std::size_t begin = at_;
        while (at_ < text_.size() && is_name_part(text_[at_])) ++at_;
        if (begin == at_) refuse();
        return SymInt::dim(std::string(text_.substr(begin, at_ - begin)));
    }
    // After the opening parenthesis.
    SymInt in_parentheses() {
        if (++depth_ > kDeepest) refuse();
        SymInt inner = sum();
        if (!take(")")) refuse();
        --depth_;
        return inner;
    }
    // Only quotients: other sums in parentheses would be multiplied out, into any number of terms.
    SymInt quotient_in(SymInt inner) const {
        const SymInt::Parts parts = inner.parts();
        if (parts.divisor == 1 || parts.after != 0) refuse();
        return inner;
    }
    SymInt term() {
        SymInt product;
        if (take("(")) {
            if (++factors_ > 1000) refuse();
            const SymInt inner = in_parentheses();
            if (take("//")) {
                if (!is_digit()) refuse();
                const std::int64_t by = number();
                if (by <= 0) refuse();
                return inner.floor_div(by, loc_);
            }
            product = quotient_in(inner);
        } else {
            product = factor();
        }
        while (take("*")) product = product * factor();
        return product;
    }
    SymInt sum() {
        SymInt result = take("-") ? SymInt(-1) * term() : term();
        for (;;) {
            if (take("+")) {
                result = result + term();
            } else if (take("-")) {
                result = result - term();
            } else {
                return result;
            }
        }
    }

    static constexpr int kDeepest = 16;
    std::string_view text_;
    const Loc& loc_;
    std::size_t at_ = 0;
    int depth_ = 0, factors_ = 0;
};

}  // namespace

SymInt SymInt::parse(TextViewArg text, Loc loc) {
    const CallerScope caller(loc);
    std::int64_t number = 0;  // the smallest number is not the negation of another
    const auto whole = std::from_chars(text.data(), text.data() + text.size(), number);
    if (whole.ec == std::errc() && whole.ptr == text.data() + text.size()) return number;
    return Parser(text, loc).all();
}

}  // namespace tapir
