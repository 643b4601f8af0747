// Checks that a run of a program, for some sizes of its dimensions, matches the program's graph.
//
// Comparing computed values tells little: an example of zeros, equal rows or a weight that is still 0 hide wrong indices. So each op is
// compared with its call in the run: its arguments, and the numbers, constants and parameters among its operands.
#include "tapir/autograd/trace/compare_run_impl.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "tapir/autograd/trace/fit_impl.h"
#include "tapir/autograd/trace/graph/detach_impl.h"
#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/forms_impl.h"

namespace tapir::detail {
namespace {

// The tolerance for a number that was rounded once or twice.
double tolerance_of(DType dtype) { return dtype == float64 ? 1e-13 : dtype == float32 ? 1e-6 : 0.02; }

class RunComparison {
 public:
    RunComparison(const Graph& graph, const Graph& run, const DimSizes& sizes, const Loc& loc) : graph_(graph), run_(run), sizes_(sizes), loc_(loc) {
        has_ones_ = std::any_of(sizes.begin(), sizes.end(), [](const auto& size) { return size.second <= 1; });
    }

    std::string difference() {
        const std::vector<const Graph::Node*> mine = calls_of(graph_), its = calls_of(run_);
        for (std::size_t n = 0; n < std::min(mine.size(), its.size()); ++n) {
            const Graph::Node &x = *mine[n], &y = *its[n];
            if (gives_nothing(x) && gives_nothing(y)) continue;
            if (x.op() != y.op() || x.inputs.size() != y.inputs.size() || x.results.size() != y.results.size()) {
                return has_ones_ ? std::string() : fmt::format("the graph goes on with {}, the program with {}", at_line(x), at_line(y));
            }
            std::string how = difference_of_operands(x, y);
            if (how.empty()) how = difference_of_attributes(x, y);
            if (!how.empty()) return fmt::format("{}: {}", at_line(y), how);
            for (std::size_t k = 0; k < x.results.size(); ++k) theirs_[x.results[k]] = y.results[k];
        }
        if (mine.size() == its.size() || has_ones_) return {};
        return mine.size() > its.size() ? fmt::format("the graph goes on with {}, where the program ends", at_line(*mine[its.size()]))
                                        : fmt::format("the program goes on with {}, where the graph ends", at_line(*its[mine.size()]));
    }

 private:
    // Leaves out copies, which the program makes or not, depending on sizes, numbers that the graph computes from sizes, and nodes that only
    // gradients need.
    static std::vector<const Graph::Node*> calls_of(const Graph& graph) {
        std::vector<const Graph::Node*> calls;
        for (const auto& node : graph.nodes()) {
            if (!node->is(number_form) && !gives_operand(*node)) calls.push_back(node.get());
        }
        return calls;
    }
    static bool gives_operand(const Graph::Node& node) { return node.is(clone_form) || is_gradient_stop(node.form()); }
    static const Graph::Value& source_of(const Graph::Value* value) {
        while (value->maker && gives_operand(*value->maker)) value = value->maker->inputs[0];
        return *value;
    }

    // True for a result without elements: it does not matter how it is made.
    bool gives_nothing(const Graph::Node& node) const {
        const auto is_zero = [this](const SymInt& size) { return size.with(sizes_, loc_) == SymInt(0); };
        return node.results.size() == 1 && std::any_of(node.results[0]->shape.begin(), node.results[0]->shape.end(), is_zero);
    }

    std::string difference_of_operands(const Graph::Node& x, const Graph::Node& y) const {
        for (std::size_t i = 0; i < x.inputs.size(); ++i) {
            const Graph::Value &mine = source_of(x.inputs[i]), &its = source_of(y.inputs[i]);
            const auto known = theirs_.find(&mine);
            if (!has_ones_ && known != theirs_.end() && known->second != &its) {
                return fmt::format("operand {} is a result of {} in the graph, {} in the program", i, at_line(*mine.maker),
                                   its.maker ? "of " + at_line(*its.maker) : "none");
            }
            if (mine.kind == Graph::Kind::parameter && its.kind == Graph::Kind::parameter) {
                if (mine.data.is_same(its.data)) continue;
                return fmt::format("operand {} is the parameter {} in the graph, {} in the program", i, mine.name, its.name);
            }
            if (its.kind != Graph::Kind::constant) continue;
            const bool is_number = mine.maker && mine.maker->is(number_form);
            if (is_number ? !is_same_number(*mine.maker, its.data) : mine.kind == Graph::Kind::constant && !same_elements(mine.data, its.data)) {
                return fmt::format("operand {}, which no op made, is {} in the graph, {} in the program", i,
                                   is_number ? fmt::format("{}", value_of(*mine.maker).value_or(NAN)) : shown(mine.data), shown(its.data));
            }
        }
        return {};
    }

    static std::string shown(const Tensor& x) { return x.numel() == 1 ? x.reshape({}).str() : "a tensor of shape " + x.shape().str(); }

    // The value of a node `number`; nullopt if its sizes depend on data.
    std::optional<double> value_of(const Graph::Node& number) const {
        const Attributes attributes = number.attributes().with(sizes_, loc_, /*partly=*/true);
        const auto size = std::get<SymInt>(attributes.get("value"));
        if (!size.is_number()) return std::nullopt;
        const auto factor = std::get<double>(attributes.get("factor"));
        return number_for(factor, static_cast<double>(size.number()), std::get<bool>(attributes.get("is_reciprocal")));
    }
    bool is_same_number(const Graph::Node& number, const Tensor& its) const {
        if (its.numel() != 1) return false;
        const std::optional<double> mine = value_of(number);
        const double theirs = load_double(its.dtype(), its.raw_data());
        return !mine || *mine == theirs || (std::isnan(*mine) && std::isnan(theirs)) ||
            std::abs(*mine - theirs) <= tolerance_of(its.dtype()) * std::abs(theirs);
    }

    std::string difference_of_attributes(const Graph::Node& x, const Graph::Node& y) const {
        const auto mine = x.attributes().with(sizes_, loc_, /*partly=*/true).all(), its = y.attributes().all();
        for (std::size_t a = 0; a < std::min(mine.size(), its.size()); ++a) {
            if (const auto* part = std::get_if<std::shared_ptr<const Graph>>(&mine[a].second)) {
                const auto* other = std::get_if<std::shared_ptr<const Graph>>(&its[a].second);
                if (!*part || !other || !*other) continue;
                std::string how = RunComparison(**part, **other, sizes_, loc_).difference();
                if (!how.empty()) return how;
            } else if (!has_ones_ && !is_same(mine[a].second, its[a].second, x.form().is_view)) {
                return fmt::format("its {} is {} in the graph, {} in the program", mine[a].first, to_string(mine[a].second),
                                   to_string(its[a].second));
            }
        }
        return {};
    }
    // is_view: -1 may stand for the remaining size.
    static bool is_same(const Attribute& mine, const Attribute& its, bool is_view) {
        const auto is_same_size = [](const SymInt& one, const SymInt& other) { return !one.is_number() || !other.is_number() || one == other; };
        const auto *size = std::get_if<SymInt>(&mine), *its_size = std::get_if<SymInt>(&its);
        if (size && its_size) return is_same_size(*size, *its_size);
        const auto *sizes = std::get_if<std::vector<SymInt>>(&mine), *its_sizes = std::get_if<std::vector<SymInt>>(&its);
        if (sizes && its_sizes) {
            return std::equal(sizes->begin(), sizes->end(), its_sizes->begin(), its_sizes->end(), [&](const SymInt& one, const SymInt& other) {
                return is_same_size(one, other) || (is_view && (one == SymInt(-1) || other == SymInt(-1)));
            });
        }
        const auto number_in = [](const Attribute& attribute) -> std::optional<double> {
            if (const auto* whole = std::get_if<SymInt>(&attribute))
                return whole->is_number() ? std::optional(static_cast<double>(whole->number())) : std::nullopt;
            const auto* real = std::get_if<double>(&attribute);
            return real ? std::optional(*real) : std::nullopt;
        };
        if (std::holds_alternative<double>(mine) || std::holds_alternative<double>(its)) {
            const std::optional<double> one = number_in(mine), other = number_in(its);
            return !one || !other || *one == *other || (std::isnan(*one) && std::isnan(*other));
        }
        return mine == its;
    }

    const Graph& graph_;
    const Graph& run_;
    const DimSizes& sizes_;
    const Loc& loc_;
    std::unordered_map<const Graph::Value*, const Graph::Value*> theirs_;  // the run's value for each value of the graph
    bool has_ones_;                                                        // then ops may skip work that they do for other sizes
};

}  // namespace

std::string difference_from_run(const Graph& graph, const Graph& run, const DimSizes& sizes, const Loc& loc) {
    return RunComparison(graph, run, sizes, loc).difference();
}

}  // namespace tapir::detail
