// Layers too large for one rank: each rank of a group has a part of the weights, and computes a part of the result. Shoeybi et al. 2019, "Megatron-LM:
// training multi-billion parameter language models using model parallelism".
//
//     parallel::ColumnParallelLinear up(1024, 4096, group);        // each rank has some of the 4096 outputs
//     parallel::RowParallelLinear down(4096, 1024, group);         // and takes them as its inputs: one sum over the ranks
//     Tensor y = down(gelu(up(x)));                                // the same on all ranks
//
// All ranks of the group have the same x and compute the same loss: it counts once, not once for each rank, as it does in Group's functions. Gradients
// of parts are those of these parts in one process; other parameters of the model, such as a LayerNorm's, get the same gradient on all ranks.
#pragma once

#include "tapir/nn/layers.h"
#include "tapir/nn/module.h"
#include "tapir/nn/parallel/group.h"

namespace tapir::parallel {

/// Return x; its gradient is the sum over the ranks. Before a part of a layer: what all have, each uses in its own way.
Tensor copy_to_group(In x, const Group& group);
/// Returns the sum over the ranks; the gradient is the one of it, as it is. Behind a part of a layer.
Tensor reduce_from_group(In x, const Group& group);
/// Returns this rank's part of a dimension, whose size the ranks share evenly; the gradients of the parts are joined.
Tensor scatter_to_group(In x, const Group& group, int dim = -1);
/// Joins the ranks' parts; the gradient is this rank's part.
Tensor gather_from_group(In x, const Group& group, int dim = -1);

struct ColumnParallelOptions {
    bool bias = true;
    bool gather_output = false;  ///< return (..., out) on all ranks, in place of each rank's part
};

/// A Linear of whose outputs each rank computes a part: (..., in) -> (..., out / ranks). weight (out / ranks, in), bias (out / ranks,).
class ColumnParallelLinear : public nn::Module {
 public:
    nn::Parameter weight, bias;

    /// Starts with the weights of rank 0's nn::Linear(in, out). Collective. Throws ValueError unless the ranks share the outputs evenly.
    ColumnParallelLinear(std::int64_t in_features, std::int64_t out_features, const Group& group, const ColumnParallelOptions& options = {},
                         Loc loc = Loc::current());
    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
    /// Collects the parts: the layer that one process would have, on all ranks. Collective.
    nn::Linear gather(Loc loc = Loc::current()) const;
    void members(nn::Members& m) override { m("weight", weight)("bias", bias); }
    std::string describe() const override;

 private:
    Group group_;
    bool gathers_;
};

struct RowParallelOptions {
    bool bias = true;
    bool input_is_parallel = true;  ///< x is this rank's part of the inputs, as ColumnParallelLinear gives it; else all of them
};

/// A Linear of whose inputs each rank takes a part: (..., in / ranks) -> (..., out), the same on all ranks. weight (out, in / ranks), bias (out,).
class RowParallelLinear : public nn::Module {
 public:
    nn::Parameter weight, bias;

    /// Starts with the weights of rank 0's nn::Linear(in, out). Collective. Throws ValueError unless the ranks share the inputs evenly.
    RowParallelLinear(std::int64_t in_features, std::int64_t out_features, const Group& group, const RowParallelOptions& options = {},
                      Loc loc = Loc::current());
    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
    nn::Linear gather(Loc loc = Loc::current()) const;
    void members(nn::Members& m) override { m("weight", weight)("bias", bias); }
    std::string describe() const override;

 private:
    Group group_;
    bool is_parallel_;
};

/// An Embedding of whose table each rank has some rows: (...) -> (..., width), the same on all ranks. weight (count / ranks, width).
class VocabParallelEmbedding : public nn::Module {
 public:
    nn::Parameter weight;

    /// Starts with the table of rank 0's nn::Embedding(count, width). Collective. sparse: as of nn::EmbeddingOptions. Throws ValueError unless the ranks
    /// share the rows evenly.
    VocabParallelEmbedding(std::int64_t count, std::int64_t width, const Group& group, bool sparse = true, Loc loc = Loc::current());
    /// Throws IndexError unless all indices are in [0, count), DTypeError unless they are integers.
    Tensor forward(In indices) const;
    Tensor operator()(In indices) const { return forward(indices); }
    nn::Embedding gather(Loc loc = Loc::current()) const;
    void members(nn::Members& m) override { m("weight", weight); }
    std::string describe() const override;

 private:
    Group group_;
    bool sparse_;
};

}  // namespace tapir::parallel
