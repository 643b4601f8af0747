// einsum against loops over every value of every letter, in double.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "../fails.h"
#include "tapir/autograd/gradcheck.h"
#include "tapir/tapir.h"

#define EINSUM_FAILS(E, text, ...) FAILS_IN(E, "einsum: ", text, __VA_ARGS__)

using namespace tapir;

namespace {

// Letters only; the result is written out.
Tensor naive(const std::string& equation, const std::vector<Tensor>& operands) {
    std::vector<std::string> terms{""};
    for (const char c : equation.substr(0, equation.find("->"))) {
        if (c == ',') {
            terms.emplace_back();
        } else {
            terms.back() += c;
        }
    }
    const std::string result = equation.substr(equation.find("->") + 2);
    std::map<char, std::int64_t> sizes, at;
    for (std::size_t k = 0; k < terms.size(); ++k) {
        for (std::size_t d = 0; d < terms[k].size(); ++d) sizes[terms[k][d]] = operands[k].size(static_cast<int>(d));
    }
    Shape shape;
    for (const char c : result) shape.push_back(sizes[c]);
    Tensor out = zeros(shape, float64);
    std::int64_t total = 1;
    for (const auto& [letter, size] : sizes) total *= size;
    for (std::int64_t i = 0; i < total; ++i) {
        std::int64_t rest = i;
        for (const auto& [letter, size] : sizes) {
            at[letter] = rest % size;
            rest /= size;
        }
        const auto element = [&](const std::string& term, const Tensor& t) {
            Shape position;
            for (const char c : term) position.push_back(at[c]);
            std::int64_t offset = 0;
            for (int d = 0; d < position.rank(); ++d) offset += position[d] * t.strides()[d];
            return t.data<double>() + offset;
        };
        double product = 1;
        for (std::size_t k = 0; k < terms.size(); ++k) product *= *element(terms[k], operands[k]);
        *element(result, out) += product;
    }
    return out;
}

bool close(const Tensor& a, const Tensor& b) { return a.shape() == b.shape() && (a.numel() == 0 || all(abs(a - b) < 1e-10).item<bool>()); }

void check(const std::string& equation, const std::vector<Tensor>& operands) {
    INFO(equation);
    CHECK(close(einsum(equation.c_str(), operands), naive(equation, operands)));
    const GradcheckResult result =
        gradcheck([&](const std::vector<Tensor>& x) { return einsum(equation.c_str(), x); }, operands, {.raise_exception = false});
    CHECK(result.message == "");
}

Tensor random(const Shape& shape) { return randn(shape, float64); }

}  // namespace

TEST_CASE("einsum agrees with loops", "[einsum]") {
    check("ij->ij", {random({2, 3})});
    check("ij->ji", {random({2, 3})});
    check("ij->", {random({2, 3})});
    check("ij->j", {random({2, 3})});
    check("ii->i", {random({3, 3})});
    check("ii->", {random({3, 3})});
    check("iij->j", {random({3, 3, 2})});
    check("ijii->ji", {random({3, 2, 3, 3})});
    check("ij,jk->ik", {random({2, 3}), random({3, 4})});
    check("ij,kj->ki", {random({2, 3}), random({4, 3})});
    check("bij,bjk->bik", {random({2, 3, 4}), random({2, 4, 2})});
    check("bij,bkj->ikb", {random({2, 3, 4}), random({2, 2, 4})});
    check("i,j->ij", {random({2}), random({3})});
    check("i,i->", {random({3}), random({3})});
    check("i,i->i", {random({3}), random({3})});
    check("ij,ij->i", {random({2, 3}), random({2, 3})});
    check("ij,k->j", {random({2, 3}), random({4})});
    check("ijk,jil->kl", {random({2, 3, 4}), random({3, 2, 2})});
    check("ik,jkl,il->ij", {random({2, 3}), random({2, 3, 4}), random({2, 4})});
    check("ab,bc,cd,da->", {random({2, 3}), random({3, 2}), random({2, 4}), random({4, 2})});
    check("ii,ij->j", {random({3, 3}), random({3, 2})});
    check(",ij->ji", {random({}), random({2, 3})});
    check("ij,jk->ik", {random({2, 0}), random({0, 4})});
    check("Aa,aB->BA", {random({2, 3}), random({3, 4})});
    check("ij,ij,ij->ij", {random({2, 3}), random({2, 3}), random({2, 3})});
}

TEST_CASE("einsum: implicit results, ellipses and spaces", "[einsum]") {
    const Tensor a = random({2, 3, 4}), b = random({2, 4, 5}), m = random({3, 4});
    CHECK(close(einsum("bij,bjk", {a, b}), naive("bij,bjk->ik", {a, b})));
    CHECK(close(einsum("ba", {m}), m.t()));
    CHECK(close(einsum("ii", {random({3, 3}) * 0 + 1}), tensor(3.0, float64)));
    CHECK(close(einsum(" b i j , b j k -> b i k ", {a, b}), matmul(a, b)));
    CHECK(close(einsum("...ij,...jk->...ik", {a, b}), matmul(a, b)));
    CHECK(close(einsum("...ij,jk", {a, random({4, 5}) * 0 + 1}), a.sum({-1}, true).expand({2, 3, 5})));
    CHECK(close(einsum("...,...", {random({3, 1}) * 0 + 2, m}), m * 2));
    CHECK(close(einsum("...i->i...", {a}), a.permute({2, 0, 1})));
    CHECK(close(einsum("i...->", {a}), a.sum()));
    CHECK(close(einsum("...ij,...j->...i", {a, random({4}) * 0 + 1}), a.sum({-1})));
    CHECK(close(einsum("...", {a}), a));
    const GradcheckResult result = gradgradcheck([](const std::vector<Tensor>& x) { return einsum("...ij,...jk->k...", x); },
                                                 {random({2, 1, 3, 2}), random({3, 2, 2})}, {.raise_exception = false});
    CHECK(result.message == "");
}

TEST_CASE("einsum: recorded on the caller's line, dtypes promote", "[einsum]") {
    CHECK(einsum("ij,j->i", {ones({2, 3}, float64), ones({3})}).dtype() == float64);
    CHECK(einsum("ij,j->i", {ones({2, 3}, int64), ones({3}, int64)}).dtype() == int64);
    Tensor w = ones({3, 2}).requires_grad_();
    Tape tape;
    einsum("ij,jk->ik", {ones({4, 3}), w}).sum().backward();
    CHECK(all(w.grad() == 4).item<bool>());
}

TEST_CASE("einsum: operands without braces", "[einsum]") {
    const Tensor a = rand({2, 3}, float64), b = rand({3, 4}, float64), c = rand({4}, float64);
    CHECK(einsum("ij,jk->ik", a, b).equal(einsum("ij,jk->ik", {a, b})));
    CHECK(einsum("ij,jk,k->i", a, b, c).equal(einsum("ij,jk,k->i", {a, b, c})));
    CHECK(einsum("ii", matmul(a.t(), a)).allclose(a.square().sum()));
    FAILS(ShapeError, "einsum: ", einsum("ij,jk->ik", a, a));
}

TEST_CASE("einsum's mistakes", "[einsum]") {
    const Tensor a = ones({2, 3}), b = ones({4, 5}), none;
    EINSUM_FAILS(ShapeError, "the sizes of 'j' differ: 3 and 4", einsum("ij,jk->ik", {a, b}));
    EINSUM_FAILS(ShapeError, "the sizes of 'i' differ: 2 and 3", einsum("ii->i", {a}));
    EINSUM_FAILS(ShapeError, "\"ijk\" does not fit the 2 dimensions of shape (2, 3)", einsum("ijk->i", {a}));
    EINSUM_FAILS(ShapeError, "does not fit", einsum("i", {a}));
    EINSUM_FAILS(ShapeError, "does not fit", einsum("...ijk", {a}));
    EINSUM_FAILS(ShapeError, "do not broadcast", einsum("...,...", {a, b}));
    EINSUM_FAILS(ValueError, "is for 2 operands, got 1", einsum("ij,jk->", {a}));
    EINSUM_FAILS(ValueError, "is for 1 operands, got 0", einsum("", std::vector<Tensor>{}));
    EINSUM_FAILS(ValueError, "letters", einsum("i1->i", {a}));
    EINSUM_FAILS(ValueError, "letters", einsum("i..j", {a}));
    EINSUM_FAILS(ValueError, "letters", einsum("......", {a}));
    EINSUM_FAILS(ValueError, "letters", einsum("ij-ji", {a}));
    EINSUM_FAILS(ValueError, "letters", einsum("ij->j->i", {a}));
    EINSUM_FAILS(ValueError, "'k' of the result is in no operand", einsum("ij->ijk", {a}));
    EINSUM_FAILS(ValueError, "'i' stands twice", einsum("ij->ii", {a}));
    EINSUM_FAILS(ValueError, "undefined", einsum("ij", {none}));
}
