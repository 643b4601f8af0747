// SymInt: a size in a graph: a number, or a formula of the dimensions that were named when the graph was traced: "batch",
// "2*time + 1", "batch*time", "(time - 3)//2 + 1".
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/error.h"

namespace tapir {

namespace gdb {
struct GraphLayout;
}

/// The sizes that named dimensions have in one run.
using DimSizes = std::map<std::string, std::int64_t, std::less<>>;

/// A polynomial with whole coefficients of named dimensions and of quotients by numbers, rounded down: "2*((time + 1)//2)*batch - time".
class SymInt {
 public:
    SymInt(std::int64_t number = 0);  // NOLINT: implicit by design
    /// The size of this dimension.
    static SymInt dim(TextArg name);

    bool is_number() const noexcept { return terms_.empty(); }
    /// The number. Throws ValueError if it is a formula.
    std::int64_t number(Loc loc = Loc::current()) const;
    /// The value for these sizes of its dimensions. Throws ValueError if one is missing, or if the result is too large.
    std::int64_t value(const DimSizes& sizes, Loc loc = Loc::current()) const;
    /// The number for these sizes, if it depends on no others; else *this.
    SymInt with(const DimSizes& sizes, Loc loc = Loc::current()) const;
    /// factor * dim + offset, factor > 0; of_one_dim() returns nullopt for other formulas.
    struct OfOneDim {
        std::string dim;
        std::int64_t factor, offset;
        /// The size of the dimension for which the formula has this value; nullopt if there is none.
        std::optional<std::int64_t> size_for(std::int64_t value) const noexcept;
    };
    std::optional<OfOneDim> of_one_dim() const;
    /// The dimensions that it depends on, sorted.
    std::vector<std::string> dims() const;
    std::string str() const;
    /// Parses the output of str(). Throws ValueError.
    static SymInt parse(TextViewArg text, Loc loc = Loc::current());

    /// They throw ValueError if a number of the result does not fit into 64 bits.
    friend SymInt operator+(const SymInt& a, const SymInt& b);
    friend SymInt operator-(const SymInt& a, const SymInt& b);
    friend SymInt operator*(const SymInt& a, const SymInt& b);
    friend bool operator==(const SymInt&, const SymInt&) = default;
    /// Rounds down; throws ValueError for by <= 0. A quotient of a quotient is one: (a // 2 + 1) // 3 = (a + 2) // 6.
    SymInt floor_div(std::int64_t by, Loc loc = Loc::current()) const;

    using Product = std::vector<std::string>;  // dimensions and texts of quotients, sorted; one may occur more than once
    /// (coefficient * product + ... + constant) // divisor + after
    struct Parts {
        const std::map<Product, std::int64_t>& terms;
        std::int64_t constant, divisor, after;
    };
    Parts parts() const noexcept { return {terms_, constant_, divisor_, after_}; }

 private:
    friend struct gdb::GraphLayout;
    std::map<Product, std::int64_t> terms_;  // without zeros
    std::int64_t constant_ = 0;
    std::int64_t divisor_ = 1;  // (terms + constant) // divisor + after
    std::int64_t after_ = 0;
};

inline SymInt floor_div(const SymInt& a, std::int64_t by) { return a.floor_div(by); }

/// True if two sizes, or two shapes, may be equal in some run: different numbers never are, different formulas may be.
inline bool may_equal(const SymInt& a, const SymInt& b) { return !a.is_number() || !b.is_number() || a == b; }
inline bool may_equal(const std::vector<SymInt>& a, const std::vector<SymInt>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const SymInt& x, const SymInt& y) { return may_equal(x, y); });
}

}  // namespace tapir
