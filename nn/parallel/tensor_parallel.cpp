#include "tapir/nn/parallel/tensor_parallel.h"

#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_words_impl.h"
#include "tapir/nn/parallel/access_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/embedding.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/statistics.h"

namespace tapir::parallel {

using tapir::detail::caller;

namespace {

std::int64_t share_of(const char* layer, const char* what, std::int64_t count, const Group& group, const Loc& loc) {
    if (count % group.size() != 0) fail<ValueError>(loc, "{}: {} ranks cannot share {} {} evenly", layer, group.size(), count, what);
    return count / group.size();
}

Tensor own_part(const Tensor& all, int dim, const Group& group) {
    const std::int64_t share = all.size(dim) / group.size();
    return all.narrow(dim, group.rank() * share, share).clone();
}

// Rank 0's, whole or this rank's part of a dimension.
Tensor taken(const Tensor& whole, const Group& group, const Loc& loc) {
    const NoGradScope pause;
    group.broadcast_(whole.detach(), 0, loc);
    return whole.detach();
}
Tensor part_of(const Tensor& whole, int dim, const Group& group, const Loc& loc) {
    const Tensor all = taken(whole, group, loc);
    const NoGradScope pause;
    return own_part(all, dim, group);
}

Tensor joined(const Tensor& part, int dim, const Group& group, const Loc& loc) {
    const NoGradScope pause;
    return group.all_gather({part.detach(), loc}, dim, loc);
}

}  // namespace

// Each is the other's gradient.
Tensor copy_to_group(In x, const Group& group) {
    const Loc line = caller(x.loc);
    check_tensor("copy_to_group", x.tensor, line);
    if (group.size() == 1) return x.tensor;
    static const OpInfo& op = CustomFunction::row_named("copy_to_group");
    Rule rule;
    rule.forward = [](const Tensor& t) { return t.clone(); };
    rule.backward = [group, line](const Tensor& g, const FunctionContext&) { return reduce_from_group({g, line}, group); };
    return recorded(op, x.tensor, std::move(rule), line);
}

Tensor reduce_from_group(In x, const Group& group) {
    const Loc line = caller(x.loc);
    check_tensor("reduce_from_group", x.tensor, line);
    if (group.size() == 1) return x.tensor;
    static const OpInfo& op = CustomFunction::row_named("reduce_from_group");
    Rule rule;
    rule.forward = [group, line](const Tensor& t) { return group.all_reduce({t, line}, Reduce::sum, line); };
    rule.backward = [group, line](const Tensor& g, const FunctionContext&) { return copy_to_group({g, line}, group); };
    return recorded(op, x.tensor, std::move(rule), line);
}

Tensor scatter_to_group(In x, const Group& group, int dim) {
    const Loc line = caller(x.loc);
    check_tensor("scatter_to_group", x.tensor, line);
    dim = tapir::detail::wrap_dim(dim, x.tensor.dim(), "scatter_to_group", line);
    if (x.tensor.size(dim) % group.size() != 0)
        fail<ShapeError>(line, "scatter_to_group: dim {} has size {}, which {} ranks cannot share evenly", dim, x.tensor.size(dim), group.size());
    if (group.size() == 1) return x.tensor;
    static const OpInfo& op = CustomFunction::row_named("scatter_to_group");
    Rule rule;
    rule.forward = [group, dim](const Tensor& t) { return own_part(t, dim, group); };
    rule.backward = [group, dim, line](const Tensor& g, const FunctionContext&) { return gather_from_group({g, line}, group, dim); };
    return recorded(op, x.tensor, std::move(rule), line);
}

Tensor gather_from_group(In x, const Group& group, int dim) {
    const Loc line = caller(x.loc);
    check_tensor("gather_from_group", x.tensor, line);
    dim = tapir::detail::wrap_dim(dim, x.tensor.dim(), "gather_from_group", line);
    if (group.size() == 1) return x.tensor;
    static const OpInfo& op = CustomFunction::row_named("gather_from_group");
    Rule rule;
    rule.forward = [group, dim, line](const Tensor& t) { return group.all_gather({t, line}, dim, line); };
    rule.backward = [group, dim, line](const Tensor& g, const FunctionContext&) { return scatter_to_group({g, line}, group, dim); };
    return recorded(op, x.tensor, std::move(rule), line);
}

// --- Layers --------------------------------------------------------------------------------------------------------------

ColumnParallelLinear::ColumnParallelLinear(std::int64_t in_features, std::int64_t out_features, const Group& group,
                                           const ColumnParallelOptions& options, Loc loc)
    : group_(group), gathers_(options.gather_output) {
    const Loc line = caller(loc);
    share_of("ColumnParallelLinear", "outputs", out_features, group, line);
    const nn::Linear whole(in_features, out_features, {.bias = options.bias}, line);
    weight = nn::Parameter(part_of(whole.weight, 0, group, line));
    if (options.bias) bias = nn::Parameter(part_of(whole.bias, 0, group, line));
}

Tensor ColumnParallelLinear::forward(In x) const {
    const nn::ModuleScope scope(*this);
    const Tensor y = linear({copy_to_group(x, group_), x.loc}, weight, bias);
    return gathers_ ? gather_from_group({y, x.loc}, group_) : y;
}

// A Linear with these tensors.
static nn::Linear linear_of(const Tensor& weight, const Tensor& bias, const Loc& loc) {
    nn::Linear whole(weight.size(1), weight.size(0), {.bias = bias.defined()}, loc);
    whole.weight = nn::Parameter(weight);
    if (bias.defined()) whole.bias = nn::Parameter(bias);
    return whole;
}

nn::Linear ColumnParallelLinear::gather(Loc loc) const {
    const Loc line = caller(loc);
    const Tensor all = joined(weight, 0, group_, line);
    return linear_of(all, bias.defined() ? joined(bias, 0, group_, line) : Tensor(), line);
}

std::string ColumnParallelLinear::describe() const {
    return fmt::format("{}, {} of {}", weight.size(1), weight.size(0), weight.size(0) * group_.size());
}

RowParallelLinear::RowParallelLinear(std::int64_t in_features, std::int64_t out_features, const Group& group, const RowParallelOptions& options,
                                     Loc loc)
    : group_(group), is_parallel_(options.input_is_parallel) {
    const Loc line = caller(loc);
    share_of("RowParallelLinear", "inputs", in_features, group, line);
    const nn::Linear whole(in_features, out_features, {.bias = options.bias}, line);
    weight = nn::Parameter(part_of(whole.weight, 1, group, line));
    if (options.bias) bias = nn::Parameter(taken(whole.bias, group, line));
}

Tensor RowParallelLinear::forward(In x) const {
    const nn::ModuleScope scope(*this);
    const Tensor part = is_parallel_ ? x.tensor : scatter_to_group(x, group_);
    const Tensor y = reduce_from_group({linear({part, x.loc}, weight), x.loc}, group_);
    return bias.defined() ? y + bias : y;
}

nn::Linear RowParallelLinear::gather(Loc loc) const {
    const Loc line = caller(loc);
    return linear_of(joined(weight, 1, group_, line), bias.defined() ? bias.detach().clone() : Tensor(), line);
}

std::string RowParallelLinear::describe() const {
    return fmt::format("{} of {}, {}", weight.size(1), weight.size(1) * group_.size(), weight.size(0));
}

VocabParallelEmbedding::VocabParallelEmbedding(std::int64_t count, std::int64_t width, const Group& group, bool sparse, Loc loc)
    : group_(group), sparse_(sparse) {
    const Loc line = caller(loc);
    share_of("VocabParallelEmbedding", "rows", count, group, line);
    const nn::Embedding whole(count, width, {.sparse = sparse}, line);
    weight = nn::Parameter(part_of(whole.weight, 0, group, line));
    tapir::detail::meta_of(weight).sparse = sparse;
}

// Each rank looks up the words that it has; the sum over the ranks has all. So rows that are not used get no gradient, as in one process.
Tensor VocabParallelEmbedding::forward(In indices) const {
    const nn::ModuleScope scope(*this);
    if (group_.size() == 1) return embedding(indices, {weight, indices.loc});
    const Loc loc = indices.loc;
    const CallerScope caller(loc);
    const std::int64_t own = weight.size(0), count = own * group_.size();
    check_tensor("VocabParallelEmbedding", indices.tensor, loc);
    if (is_floating(indices.tensor.dtype()) || indices.tensor.dtype() == bool_)
        fail<DTypeError>(loc, "VocabParallelEmbedding: indices must be integers, got {}", name(indices.tensor.dtype()));
    const Tensor flat = indices.tensor.flatten();
    if (flat.numel() > 0) {
        const auto [least, most] = aminmax(flat);
        if (least.item<std::int64_t>() < 0 || most.item<std::int64_t>() >= count)
            fail<IndexError>(loc, "VocabParallelEmbedding: indices are from {} to {}, but must be in [0, {})", least.item<std::int64_t>(),
                             most.item<std::int64_t>(), count);
    }
    const Tensor here = flat - group_.rank() * own, places = nonzero((here >= 0) & (here < own)).flatten();
    const Tensor rows = embedding(here.index_select(0, places), weight);
    const Tensor part = index_add(zeros({flat.numel(), weight.size(1)}, {weight.dtype(), weight.device()}), 0, places, rows);
    Shape shape = indices.tensor.shape();
    shape.push_back(weight.size(1));
    return reduce_from_group({part, loc}, group_).reshape(shape);
}

nn::Embedding VocabParallelEmbedding::gather(Loc loc) const {
    const Loc line = caller(loc);
    return nn::Embedding::from_pretrained(joined(weight, 0, group_, line), /*freeze=*/false, {.sparse = sparse_}, line);
}

std::string VocabParallelEmbedding::describe() const {
    return fmt::format("{} of {}, {}", weight.size(0), weight.size(0) * group_.size(), weight.size(1));
}

}  // namespace tapir::parallel
