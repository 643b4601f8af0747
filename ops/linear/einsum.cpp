// einsum: resolves the equation into diagonals, sums, permutations and matrix products, and takes operands from left to
// right.
#include <algorithm>
#include <string>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linear/einsum.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {

TAPIR_OP(tensordot, Composed, "The product summed over several dimensions.", TAPIR_SAMPLE("f(2,3,4) f(3,4,2)", tensordot(x[0], x[1])),
         TAPIR_SAMPLE("f(2,3) f(3,2)", tensordot(x[0], x[1], 1)), TAPIR_SAMPLE("f(2) f(3)", tensordot(x[0], x[1], 0)),
         TAPIR_SAMPLE_AS("f(2,3,4) f(4,5,2)", "tensordot(x[0], x[1], ([0, 2], [2, 0]))", tensordot(x[0], x[1], {0, 2}, {2, 0})));

namespace {

using std::int64_t;

// A dimension's name: a letter, or kEllipsis + k for the k-th dimension from the right that "..." stands for.
using Label = int;
using Labels = std::vector<Label>;
constexpr Label kEllipsis = 256;

bool contains(const Labels& labels, Label label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); }

int place_of(const Labels& labels, Label label) { return static_cast<int>(std::find(labels.begin(), labels.end(), label) - labels.begin()); }

// A term as written: letters, and the position of "..." (-1: none).
struct Term {
    Labels letters;
    int ellipsis = -1;
    std::string text;

    Labels labels(int ellipsis_dims) const {
        Labels all = letters;
        for (int k = 0; ellipsis >= 0 && k < ellipsis_dims; ++k) all.insert(all.begin() + ellipsis, kEllipsis + k);
        return all;
    }
};

struct Equation {
    std::vector<Term> inputs;
    Term output;
    bool has_output = false;
};

Term parse_term(const std::string& text, const std::string& equation, const Loc& loc) {
    Term term;
    term.text = text;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
            term.letters.push_back(c);
        } else if (text.compare(i, 3, "...") == 0 && term.ellipsis < 0) {
            term.ellipsis = static_cast<int>(term.letters.size());
            i += 2;
        } else {
            fail<ValueError>(loc, "einsum: \"{}\" is not made of letters and one \"...\", in \"{}\"", text, equation);
        }
    }
    return term;
}

Equation parse(const char* text, std::size_t operands, const Loc& loc) {
    std::string equation = detail::checked_word("einsum", text, loc);
    equation.erase(std::remove(equation.begin(), equation.end(), ' '), equation.end());
    Equation result;
    const std::size_t arrow = equation.find("->");
    if (arrow != std::string::npos) {
        result.has_output = true;
        result.output = parse_term(equation.substr(arrow + 2), text, loc);
        equation.erase(arrow);
    }
    for (std::size_t start = 0; start <= equation.size();) {
        const std::size_t end = std::min(equation.find(',', start), equation.size());
        result.inputs.push_back(parse_term(equation.substr(start, end - start), text, loc));
        start = end + 1;
    }
    if (result.inputs.size() != operands) {
        fail<ValueError>(loc, "einsum: \"{}\" is for {} operands, got {}", text, result.inputs.size(), operands);
    }
    return result;
}

struct Operand {
    Tensor tensor;
    Labels labels;  // of its dimensions, each once
};

// Makes an operand; repeated letters take the diagonal.
Operand make_operand(const Tensor& x, const Term& term, const Loc& loc) {
    const int rank = x.dim(), letters = static_cast<int>(term.letters.size());
    if (term.ellipsis < 0 ? letters != rank : letters > rank) {
        fail<ShapeError>(loc, "einsum: \"{}\" does not fit the {} dimensions of shape {}", term.text, rank, x.shape());
    }
    Operand operand{x, term.labels(rank - letters)};
    for (int a = 0; a < operand.tensor.dim(); ++a) {
        const Label label = operand.labels[static_cast<std::size_t>(a)];
        for (int b = operand.tensor.dim(); --b > a;) {
            if (operand.labels[static_cast<std::size_t>(b)] != label) continue;
            if (operand.tensor.shape()[a] != operand.tensor.shape()[b]) {
                fail<ShapeError>(loc, "einsum: the sizes of '{}' differ: {} and {}", static_cast<char>(label), operand.tensor.shape()[a],
                                 operand.tensor.shape()[b]);
            }
            operand.tensor = diagonal(operand.tensor, 0, a, b);  // the diagonal comes last
            operand.labels.erase(operand.labels.begin() + b);
            operand.labels.erase(operand.labels.begin() + a);
            operand.labels.push_back(label);
            a = -1;  // start again: the dimensions have moved
            break;
        }
    }
    return operand;
}

// Dimensions of size 1 broadcast, those of letters as well as those of "...".
void check_sizes(std::vector<Operand>& operands, const Loc& loc) {
    for (Operand& x : operands) {
        Shape wish = x.tensor.shape();
        for (int d = 0; d < x.tensor.dim(); ++d) {
            const Label label = x.labels[static_cast<std::size_t>(d)];
            for (const Operand& y : operands) {
                if (!contains(y.labels, label)) continue;
                const int64_t size = y.tensor.shape()[place_of(y.labels, label)];
                if (size == wish[d]) continue;
                if (wish[d] != 1 && size != 1) {
                    if (label < kEllipsis) {
                        fail<ShapeError>(loc, "einsum: the sizes of '{}' differ: {} and {}", static_cast<char>(label), wish[d], size);
                    }
                    fail<ShapeError>(loc, "einsum: the dimensions of \"...\" do not broadcast: {} and {}", wish[d], size);
                }
                if (wish[d] == 1) wish[d] = size;
            }
        }
        if (!(wish == x.tensor.shape())) x.tensor = expand(x.tensor, wish);
    }
}

// Returns the labels as written, or else "..." and then every letter that occurs once, sorted.
Labels output_labels(const Equation& equation, const std::vector<Operand>& operands, int ellipsis_dims, const char* text, const Loc& loc) {
    if (!equation.has_output) {
        Labels seen, once;
        for (const Term& term : equation.inputs) seen.insert(seen.end(), term.letters.begin(), term.letters.end());
        for (const Label label : seen) {
            if (std::count(seen.begin(), seen.end(), label) == 1) once.push_back(label);
        }
        std::sort(once.begin(), once.end());
        return Term{once, 0, ""}.labels(ellipsis_dims);
    }
    const Labels labels = equation.output.labels(ellipsis_dims);
    for (const Label label : labels) {
        const bool is_known = std::any_of(operands.begin(), operands.end(), [&](const Operand& x) { return contains(x.labels, label); });
        if (!is_known) fail<ValueError>(loc, "einsum: '{}' of the result is in no operand: \"{}\"", static_cast<char>(label), text);
        if (std::count(labels.begin(), labels.end(), label) > 1) {
            fail<ValueError>(loc, "einsum: '{}' stands twice in the result: \"{}\"", static_cast<char>(label), text);
        }
    }
    return labels;
}

// Sums over the dimensions that are not needed any more.
void sum_out(Operand& x, const Labels& needed) {
    Dims dims;
    Labels left;
    for (int d = 0; d < x.tensor.dim(); ++d) {
        const Label label = x.labels[static_cast<std::size_t>(d)];
        if (contains(needed, label)) {
            left.push_back(label);
        } else {
            dims.push_back(d);
        }
    }
    if (dims.empty()) return;
    x.tensor = sum(x.tensor, dims);
    x.labels = left;
}

Tensor arranged(const Operand& x, const Labels& order) {
    Dims dims;
    bool same = true;
    for (const Label label : order) {
        same &= place_of(x.labels, label) == dims.rank();
        dims.push_back(place_of(x.labels, label));
    }
    return same ? x.tensor : permute(x.tensor, dims);
}

Labels joined(const Labels& a, const Labels& b) {
    Labels all = a;
    all.insert(all.end(), b.begin(), b.end());
    return all;
}

// Contracts by one matrix product: (shared, left, contracted) x (shared, contracted, right).
Operand contract(const Operand& a, const Operand& b, const Labels& needed) {
    Labels shared, left, right, contracted;
    Shape shape;
    for (const Label label : a.labels) {
        (!contains(b.labels, label) ? left : contains(needed, label) ? shared : contracted).push_back(label);
    }
    for (const Label label : b.labels) {
        if (!contains(a.labels, label)) right.push_back(label);
    }
    const auto sizes = [&shape](const Operand& x, const Labels& labels, bool keep) {
        int64_t numel = 1;
        for (const Label label : labels) {
            const int64_t size = x.tensor.shape()[place_of(x.labels, label)];
            if (keep) shape.push_back(size);
            numel *= size;
        }
        return numel;
    };
    const int64_t s = sizes(a, shared, true), l = sizes(a, left, true), c = sizes(a, contracted, false), r = sizes(b, right, true);
    Tensor x = arranged(a, joined(joined(shared, left), contracted));
    Tensor y = arranged(b, joined(joined(shared, contracted), right));
    Tensor product;
    if (contracted.empty()) {
        product = mul(reshape(x, {s, l, 1}), reshape(y, {s, 1, r}));
    } else if (shared.empty()) {
        product = matmul(reshape(x, {l, c}), reshape(y, {c, r}));
    } else {
        product = matmul(reshape(x, {s, l, c}), reshape(y, {s, c, r}));
    }
    return {reshape(product, shape), joined(joined(shared, left), right)};
}

}  // namespace

Tensor tensordot(In a, In b, const Dims& a_dims, const Dims& b_dims) {
    detail::check_defined(a, "tensordot");
    detail::check_defined(b, "tensordot");
    detail::check_same_device("tensordot", a.tensor, b.tensor, a.loc);
    if (a_dims.rank() != b_dims.rank()) {
        fail<ShapeError>(a.loc, "tensordot: dimensions {} of the first tensor, {} of the second", a_dims, b_dims);
    }
    Operand x{a.tensor, Labels(static_cast<std::size_t>(a.tensor.dim()), -1)};
    Operand y{b.tensor, Labels(static_cast<std::size_t>(b.tensor.dim()), -1)};
    Label next = 0;
    const auto pair = [&](Operand& operand, Dim dim, Label label) -> int64_t {
        if (operand.tensor.dim() == 0) fail<IndexError>(a.loc, "tensordot: a 0-d tensor has no dimension {}", dim);
        const int d = detail::wrap_dim(dim, operand.tensor.dim(), "tensordot", a.loc);
        Label& place = operand.labels.at(static_cast<std::size_t>(d));
        if (place >= 0) fail<IndexError>(a.loc, "tensordot: dimension {} is named twice", d);
        place = label;
        return operand.tensor.size(d);
    };
    for (int i = 0; i < a_dims.rank(); ++i, ++next) {
        const int64_t of_a = pair(x, a_dims[i], next), of_b = pair(y, b_dims[i], next);
        if (of_a != of_b && of_a != 1 && of_b != 1) {
            fail<ShapeError>(a.loc, "tensordot: dimension {} of shape {} and dimension {} of shape {} differ", a_dims[i], a.tensor.shape(), b_dims[i],
                             b.tensor.shape());
        }
    }
    Labels left;
    for (Operand* operand : {&x, &y}) {
        for (Label& label : operand->labels) {
            if (label < 0) left.push_back(label = next++);
        }
    }
    if (left.size() > kMaxRank) fail<ShapeError>(a.loc, "tensordot: the result would have {} dimensions", left.size());
    const detail::RecordedParts parts(a.loc);
    std::vector<Operand> both{x, y};
    check_sizes(both, a.loc);  // 1 beside another size is broadcast
    return contract(both[0], both[1], left).tensor;
}

Tensor tensordot(In a, In b, int dims) {
    detail::check_defined(a, "tensordot");
    detail::check_defined(b, "tensordot");
    if (dims < 0 || dims > a.tensor.dim() || dims > b.tensor.dim()) {
        fail<ShapeError>(a.loc, "tensordot: {} dimensions of shapes {} and {}", dims, a.tensor.shape(), b.tensor.shape());
    }
    Dims of_a, of_b;
    for (int d = 0; d < dims; ++d) {
        of_a.push_back(a.tensor.dim() - dims + d);
        of_b.push_back(d);
    }
    return tensordot(a, b, of_a, of_b);
}

Tensor einsum(const char* equation, TensorList list) {
    const Loc& loc = list.loc;
    if (list.size > 0) detail::check_defined(In(list[0], loc), "einsum");
    const detail::RecordedParts parts(loc);
    const Equation parsed = parse(equation, list.size, loc);
    std::vector<Operand> operands;
    int ellipsis_dims = 0;
    for (std::size_t i = 0; i < list.size; ++i) {
        detail::check_defined(In(list[i], loc), "einsum");
        operands.push_back(make_operand(list[i], parsed.inputs[i], loc));
        if (parsed.inputs[i].ellipsis >= 0) {
            ellipsis_dims = std::max(ellipsis_dims, list[i].dim() - static_cast<int>(parsed.inputs[i].letters.size()));
        }
    }
    check_sizes(operands, loc);
    const Labels output = output_labels(parsed, operands, ellipsis_dims, equation, loc);
    const auto needed_from = [&](std::size_t i) {  // by the result, and by operands i and later
        Labels needed = output;
        for (; i < operands.size(); ++i) needed = joined(needed, operands[i].labels);
        return needed;
    };
    Operand result = operands[0];
    sum_out(result, needed_from(1));
    for (std::size_t i = 1; i < operands.size(); ++i) {
        const Labels later = needed_from(i + 1);
        sum_out(operands[i], joined(later, result.labels));
        result = contract(result, operands[i], later);
    }
    return arranged(result, output);
}

}  // namespace tapir
