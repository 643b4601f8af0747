#include "tapir/nn/parallel/pipeline.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_words_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/make.h"

namespace tapir::parallel {
namespace {

Tensor part_of(const Tensor& batch, int i, int parts) {
    const std::int64_t n = batch.size(0), begin = n * i / parts;
    return batch.narrow(0, begin, n * (i + 1) / parts - begin);
}

void check_batch(const char* what, const Tensor& batch, int parts, const Loc& loc) {
    if (!batch.defined()) tapir::detail::fail_undefined("Pipeline", loc);
    if (batch.dim() == 0 || batch.size(0) < parts)
        fail<ShapeError>(loc, "Pipeline: {} of shape {} has fewer samples than the {} micro-batches", what, batch.shape(), parts);
}

}  // namespace

// One forward_backward(). Records of all micro-batches are on one tape; backward() uses up those of one.
struct Pipeline::Run {
    struct Activation {
        Tensor x, y;  // y: the loss, on the last rank
    };

    const Pipeline& pipeline;
    const Tensor &x, &target;
    const Loc loc;
    Tape tape{{}, loc};
    std::deque<Activation> waiting{};  // for their gradients, the oldest first
    Tensor total{};                    // of the losses
    int begun = 0;

    const Group& group() const { return pipeline.group_; }
    int rank() const { return group().rank(); }
    int micro_batches() const { return pipeline.options_.micro_batches; }
    bool is_first() const { return rank() == 0; }
    bool is_last() const { return rank() + 1 == group().size(); }

    void forward() {
        Activation one;
        const int i = begun++;
        if (is_first()) {
            one.x = part_of(x, i, micro_batches());
        } else {
            one.x = group().recv(rank() - 1, loc);
            if (is_floating(one.x.dtype())) one.x.requires_grad_();
        }
        one.y = pipeline.stage_(one.x);
        if (!one.y.defined()) fail<ValueError>(loc, "Pipeline: the stage of rank {} returns an undefined tensor", rank());
        if (is_last()) {
            const Tensor part = part_of(target, i, micro_batches());
            one.y = pipeline.loss_(one.y, part) * (static_cast<double>(part.size(0)) / static_cast<double>(target.size(0)));
            total = total.defined() ? total + one.y.detach() : one.y.detach();
        } else {
            group().send(one.y.detach(), rank() + 1, loc);
        }
        waiting.push_back(std::move(one));
    }

    void backward(bool is_the_last) {
        const Activation one = std::move(waiting.front());
        waiting.pop_front();
        BackwardOptions options;
        const bool has_gradient = is_floating(one.y.dtype());
        if (!is_last() && has_gradient) options.gradient = group().recv(rank() + 1, loc);
        if (has_gradient && one.y.requires_grad()) {
            if (pipeline.options_.replicas && !is_the_last) {
                const auto alone = pipeline.options_.replicas->no_sync();
                tape.backward(one.y, options, loc);
            } else {
                tape.backward(one.y, options, loc);
            }
        }
        if (!is_first() && is_floating(one.x.dtype())) group().send(one.x.grad().defined() ? one.x.grad() : zeros_like(one.x), rank() - 1, loc);
    }

    // One forward, one backward: as many forwards as later stages need to get busy, then in turn, then the backwards that are left.
    void all() {
        const int ahead = std::min(group().size() - 1 - rank(), micro_batches());
        for (int i = 0; i < ahead; ++i) forward();
        for (int i = 0; i < micro_batches(); ++i) {
            if (begun < micro_batches()) forward();
            backward(i + 1 == micro_batches());
        }
    }
};

Pipeline::Pipeline(Stage stage, Loss loss, const Group& group, const PipelineOptions& options, Loc loc)
    : stage_(std::move(stage)), loss_(std::move(loss)), group_(group), options_(options) {
    if (!stage_ || !loss_) fail<ValueError>(loc, "Pipeline: needs a stage and a loss");
    if (options.micro_batches < 1) fail<ValueError>(loc, "Pipeline: at least 1 micro-batch, got {}", options.micro_batches);
}

Tensor Pipeline::forward_backward(const Tensor& x, const Tensor& target, Loc loc) {
    const Loc line = tapir::detail::caller(loc);
    if (Tape::current()) fail<TapeError>(line, "Pipeline: has a tape of its own; call it outside of any other");
    if (group_.rank() == 0) check_batch("a batch", x, options_.micro_batches, line);
    if (group_.rank() + 1 == group_.size()) check_batch("a target", target, options_.micro_batches, line);
    Tensor total;
    {
        Run run{*this, x, target, line};
        run.all();
        total = run.total;
    }
    const int last = group_.size() - 1;
    if (group_.rank() == last) {
        for (int to = 0; to < last; ++to) group_.send(total, to, line);
        return total;
    }
    return group_.recv(last, line);
}

Tensor Pipeline::forward(const Tensor& x, Loc loc) const {
    const Loc line = tapir::detail::caller(loc);
    const NoGradScope pause;
    const int rank = group_.rank();
    if (rank == 0) check_batch("a batch", x, options_.micro_batches, line);
    std::vector<Tensor> results;
    for (int i = 0; i < options_.micro_batches; ++i) {
        const Tensor y = stage_(rank == 0 ? part_of(x, i, options_.micro_batches) : group_.recv(rank - 1, line));
        if (rank + 1 < group_.size()) {
            group_.send(y, rank + 1, line);
        } else {
            results.push_back(y);
        }
    }
    return results.empty() ? Tensor() : cat(results);
}

}  // namespace tapir::parallel
