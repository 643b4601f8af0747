// Losses as modules, for names in a printed model and weights that move with it. Code that calls them itself can use the functions of
// ops/loss.h, where each is documented. Options are PyTorch's; weights are buffers.
//
//     nn::CrossEntropyLoss loss({.label_smoothing = 0.1});
//     tape.backward(loss(model(x), classes));
#pragma once

#include "tapir/nn/module.h"
#include "tapir/ops/loss/cross_entropy.h"
#include "tapir/ops/loss/ctc_loss.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/loss/margin_loss.h"

namespace tapir::nn {

#define TAPIR_LOSS(Name, function)                                                      \
    class Name : public Module {                                                        \
     public:                                                                            \
        explicit Name(Reduction reduction = Reduction::mean) : reduction_(reduction) {} \
        Tensor forward(In input, In target) const {                                     \
            const ModuleScope scope(*this);                                             \
            return function(input, target, reduction_);                                 \
        }                                                                               \
        Tensor operator()(In input, In target) const { return forward(input, target); } \
                                                                                        \
     private:                                                                           \
        Reduction reduction_;                                                           \
    };
TAPIR_LOSS(L1Loss, l1_loss)
TAPIR_LOSS(MSELoss, mse_loss)
TAPIR_LOSS(SoftMarginLoss, soft_margin_loss)
TAPIR_LOSS(MultiLabelMarginLoss, multilabel_margin_loss)
#undef TAPIR_LOSS

// Losses with options, which `o` holds in the call.
#define TAPIR_LOSS(Name, call)                                                          \
    class Name : public Module {                                                        \
     public:                                                                            \
        explicit Name(const Name##Options& options = {}) : o(options) {}                \
        Tensor forward(In input, In target) const {                                     \
            const ModuleScope scope(*this);                                             \
            return call;                                                                \
        }                                                                               \
        Tensor operator()(In input, In target) const { return forward(input, target); } \
                                                                                        \
     private:                                                                           \
        Name##Options o;                                                                \
    };
struct HuberLossOptions {
    Reduction reduction = Reduction::mean;
    double delta = 1;
};
TAPIR_LOSS(HuberLoss, huber_loss(input, target, o.reduction, o.delta))
struct SmoothL1LossOptions {
    Reduction reduction = Reduction::mean;
    double beta = 1;
};
TAPIR_LOSS(SmoothL1Loss, smooth_l1_loss(input, target, o.reduction, o.beta))
struct KLDivLossOptions {
    Reduction reduction = Reduction::mean;
    bool log_target = false;
};
TAPIR_LOSS(KLDivLoss, kl_div(input, target, o.reduction, o.log_target))
struct HingeEmbeddingLossOptions {
    double margin = 1;
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(HingeEmbeddingLoss, hinge_embedding_loss(input, target, o.margin, o.reduction))
struct PoissonNLLLossOptions {
    bool log_input = true;
    bool full = false;
    double eps = 1e-8;
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(PoissonNLLLoss, poisson_nll_loss(input, target, o.log_input, o.full, o.eps, o.reduction))
#undef TAPIR_LOSS

// Losses with weights, which are buffers.
#define TAPIR_LOSS(Name, call, ...)                                                     \
    class Name : public Module {                                                        \
     public:                                                                            \
        explicit Name(const Name##Options& options = {}) : o(options) {}                \
        Tensor forward(In input, In target) const {                                     \
            const ModuleScope scope(*this);                                             \
            return call;                                                                \
        }                                                                               \
        Tensor operator()(In input, In target) const { return forward(input, target); } \
        void members(Members& m) override { m __VA_ARGS__; }                            \
                                                                                        \
     private:                                                                           \
        Name##Options o;                                                                \
    };
using CrossEntropyLossOptions = CrossEntropyOptions;
TAPIR_LOSS(CrossEntropyLoss, cross_entropy(input, target, o), .buffer("weight", o.weight))
struct NLLLossOptions {
    Tensor weight{};  ///< (classes,) or undefined
    std::int64_t ignore_index = -100;
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(NLLLoss, (nll_loss(input, target, {o.weight, o.ignore_index, o.reduction, 0})), .buffer("weight", o.weight))
struct BCELossOptions {
    Tensor weight{};
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(BCELoss, binary_cross_entropy(input, target, o.weight, o.reduction), .buffer("weight", o.weight))
struct BCEWithLogitsLossOptions {
    Tensor weight{};
    Reduction reduction = Reduction::mean;
    Tensor pos_weight{};
};
TAPIR_LOSS(BCEWithLogitsLoss, binary_cross_entropy_with_logits(input, target, o.weight, o.pos_weight, o.reduction),
           .buffer("weight", o.weight).buffer("pos_weight", o.pos_weight))
struct MultiMarginLossOptions {
    int p = 1;
    double margin = 1;
    Tensor weight{};
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(MultiMarginLoss, multi_margin_loss(input, target, o.p, o.margin, o.weight, o.reduction), .buffer("weight", o.weight))
struct MultiLabelSoftMarginLossOptions {
    Tensor weight{};
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(MultiLabelSoftMarginLoss, multilabel_soft_margin_loss(input, target, o.weight, o.reduction), .buffer("weight", o.weight))
#undef TAPIR_LOSS

// Losses of three tensors.
#define TAPIR_LOSS(Name, a, b, c, call)                                        \
    class Name : public Module {                                               \
     public:                                                                   \
        explicit Name(const Name##Options& options = {}) : o(options) {}       \
        Tensor forward(In a, In b, In c) const {                               \
            const ModuleScope scope(*this);                                    \
            return call;                                                       \
        }                                                                      \
        Tensor operator()(In a, In b, In c) const { return forward(a, b, c); } \
                                                                               \
     private:                                                                  \
        Name##Options o;                                                       \
    };
struct GaussianNLLLossOptions {
    bool full = false;
    double eps = 1e-6;
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(GaussianNLLLoss, input, target, var, gaussian_nll_loss(input, target, var, o.full, o.eps, o.reduction))
struct MarginRankingLossOptions {
    double margin = 0;
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(MarginRankingLoss, input1, input2, target, margin_ranking_loss(input1, input2, target, o.margin, o.reduction))
struct CosineEmbeddingLossOptions {
    double margin = 0;
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(CosineEmbeddingLoss, input1, input2, target, cosine_embedding_loss(input1, input2, target, o.margin, o.reduction))
struct TripletMarginLossOptions {
    double margin = 1;
    double p = 2;
    double eps = 1e-6;
    bool swap = false;
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(TripletMarginLoss, anchor, positive, negative, triplet_margin_loss(anchor, positive, negative, o.margin, o.p, o.eps, o.swap, o.reduction))
struct TripletMarginWithDistanceLossOptions {
    std::function<Tensor(const Tensor&, const Tensor&)> distance_function{};
    double margin = 1;
    bool swap = false;
    Reduction reduction = Reduction::mean;
};
TAPIR_LOSS(TripletMarginWithDistanceLoss, anchor, positive, negative,
           triplet_margin_with_distance_loss(anchor, positive, negative, o.distance_function, o.margin, o.swap, o.reduction))
#undef TAPIR_LOSS

class CTCLoss : public Module {
 public:
    explicit CTCLoss(const CTCLossOptions& options = {}) : options_(options) {}
    Tensor forward(In log_probs, In targets, In input_lengths, In target_lengths) const {
        const ModuleScope scope(*this);
        return ctc_loss(log_probs, targets, input_lengths, target_lengths, options_);
    }
    Tensor operator()(In log_probs, In targets, In input_lengths, In target_lengths) const {
        return forward(log_probs, targets, input_lengths, target_lengths);
    }

 private:
    CTCLossOptions options_;
};

class CosineSimilarity : public Module {
 public:
    explicit CosineSimilarity(int dim = 1, double eps = 1e-8) : dim_(dim), eps_(eps) {}
    Tensor forward(In x1, In x2) const {
        const ModuleScope scope(*this);
        return cosine_similarity(x1, x2, dim_, eps_);
    }
    Tensor operator()(In x1, In x2) const { return forward(x1, x2); }

 private:
    int dim_;
    double eps_;
};

class PairwiseDistance : public Module {
 public:
    explicit PairwiseDistance(double p = 2, double eps = 1e-6, bool keepdim = false) : p_(p), eps_(eps), keepdim_(keepdim) {}
    Tensor forward(In x1, In x2) const {
        const ModuleScope scope(*this);
        return pairwise_distance(x1, x2, p_, eps_, keepdim_);
    }
    Tensor operator()(In x1, In x2) const { return forward(x1, x2); }

 private:
    double p_, eps_;
    bool keepdim_;
};

}  // namespace tapir::nn
