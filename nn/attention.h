// Attention and transformer layers (Vaswani et al. 2017, "Attention is all you need"). Names, initialisation and defaults are
// PyTorch's, so its weights load as they are. Sequences are (time, batch, features), (batch, time, features) with batch_first,
// or one sequence (time, features).
//
// Masks are those of PyTorch's modules: in a mask of bools TRUE MEANS LEFT OUT, the opposite of
// scaled_dot_product_attention's. A mask of floats is added to the scores.
#pragma once

#include "tapir/nn/layers.h"

namespace tapir::nn {

struct MultiheadAttentionOptions {
    double dropout = 0;  ///< of the attention weights, while training
    bool bias = true;
    std::int64_t kdim = 0;  ///< features of the keys; 0: embed_dim
    std::int64_t vdim = 0;  ///< features of the values; 0: embed_dim
    bool batch_first = false;
};

struct AttentionMasks {
    Tensor key_padding_mask{};         ///< (batch, S), or (S,): keys that no query attends to
    Tensor attn_mask{};                ///< (L, S) or (batch * heads, L, S): keys that a query does not attend to
    bool is_causal = false;            ///< query i attends to keys 0 to i only
    bool need_weights = false;         ///< returns the weights as well, which takes their memory (PyTorch's default is true)
    bool average_attn_weights = true;  ///< over the heads; false needs need_weights (ValueError)
};

struct AttentionResult {
    Tensor output;   // like the query
    Tensor weights;  // (batch, L, S), or (batch, heads, L, S); UNDEFINED unless AttentionMasks::need_weights asks for it:
                     // the error that reading it throws says so
};

/// Attention in several subspaces: each head uses its part of embed_dim.
class MultiheadAttention : public Module {
 public:
    Parameter in_proj_weight;                               ///< (3 embed_dim, embed_dim); undefined if kdim or vdim differ:
    Parameter q_proj_weight, k_proj_weight, v_proj_weight;  ///< then these are (embed_dim, embed_dim, kdim and vdim)
    Parameter in_proj_bias;                                 ///< (3 embed_dim,)
    Linear out_proj;

    MultiheadAttention(std::int64_t embed_dim, std::int64_t num_heads, const MultiheadAttentionOptions& options = {}, Loc loc = Loc::current());
    AttentionResult forward(In query, const Tensor& key, const Tensor& value, const AttentionMasks& masks = {}) const;
    AttentionResult operator()(In query, const Tensor& key, const Tensor& value, const AttentionMasks& masks = {}) const {
        return forward(query, key, value, masks);
    }
    void members(Members& m) override;
    std::string describe() const override;

 private:
    std::int64_t heads_;
    MultiheadAttentionOptions options_;
};

enum class TransformerActivation : std::uint8_t { relu, gelu };

struct TransformerOptions {
    std::int64_t dim_feedforward = 2048;
    double dropout = 0.1;
    TransformerActivation activation = TransformerActivation::relu;
    double layer_norm_eps = 1e-5;
    bool batch_first = false;
    bool norm_first = false;  ///< normalise the input of each part, not its output
    bool bias = true;
};

/// What a transformer's layers attend to. Masks as in AttentionMasks; memory_* are masks over the encoder's result.
struct TransformerMasks {
    Tensor mask{}, key_padding_mask{};
    bool is_causal = false;
    Tensor memory_mask{}, memory_key_padding_mask{};
};

/// Common base of encoder and decoder layers: self-attention and two linear layers, each added to its input.
class TransformerLayer : public Module {
 public:
    MultiheadAttention self_attn;
    Linear linear1, linear2;
    LayerNorm norm1, norm2;

 protected:
    TransformerLayer(std::int64_t d_model, std::int64_t nhead, const TransformerOptions& options, const Loc& loc);
    Tensor drop(const Tensor& x) const;
    /// Return what is added: attention to x itself, and the linear layers.
    Tensor attend(const Tensor& x, const TransformerMasks& masks) const;
    Tensor feed(const Tensor& x) const;

    TransformerOptions options_;
};

class TransformerEncoderLayer : public TransformerLayer {
 public:
    TransformerEncoderLayer(std::int64_t d_model, std::int64_t nhead, const TransformerOptions& options = {}, Loc loc = Loc::current());
    Tensor forward(In x, const TransformerMasks& masks = {}) const;
    Tensor operator()(In x, const TransformerMasks& masks = {}) const { return forward(x, masks); }
    void members(Members& m) override;
};

/// Adds attention to the encoder's result `memory` between the two.
class TransformerDecoderLayer : public TransformerLayer {
 public:
    MultiheadAttention multihead_attn;
    LayerNorm norm3;

    TransformerDecoderLayer(std::int64_t d_model, std::int64_t nhead, const TransformerOptions& options = {}, Loc loc = Loc::current());
    Tensor forward(In x, const Tensor& memory, const TransformerMasks& masks = {}) const;
    Tensor operator()(In x, const Tensor& memory, const TransformerMasks& masks = {}) const { return forward(x, memory, masks); }
    void members(Members& m) override;

 private:
    Tensor look(const Tensor& x, const Tensor& memory, const TransformerMasks& masks) const;
};

/// num_layers encoder layers; with final_norm a LayerNorm, `norm`, after them.
class TransformerEncoder : public Module {
 public:
    std::vector<TransformerEncoderLayer> layers;
    std::vector<LayerNorm> norm;  // one or none

    TransformerEncoder(std::int64_t d_model, std::int64_t nhead, std::int64_t num_layers, const TransformerOptions& options = {},
                       bool final_norm = false, Loc loc = Loc::current());
    Tensor forward(In x, const TransformerMasks& masks = {}) const;
    Tensor operator()(In x, const TransformerMasks& masks = {}) const { return forward(x, masks); }
    void members(Members& m) override;
};

/// num_layers decoder layers; with final_norm a LayerNorm, `norm`, after them.
class TransformerDecoder : public Module {
 public:
    std::vector<TransformerDecoderLayer> layers;
    std::vector<LayerNorm> norm;  // one or none

    TransformerDecoder(std::int64_t d_model, std::int64_t nhead, std::int64_t num_layers, const TransformerOptions& options = {},
                       bool final_norm = false, Loc loc = Loc::current());
    Tensor forward(In x, const Tensor& memory, const TransformerMasks& masks = {}) const;
    Tensor operator()(In x, const Tensor& memory, const TransformerMasks& masks = {}) const { return forward(x, memory, masks); }
    void members(Members& m) override;
};

struct TransformerModelOptions {
    std::int64_t d_model = 512, nhead = 8, num_encoder_layers = 6, num_decoder_layers = 6;
    TransformerOptions layer = {};  ///< of all layers
};

/// Masks of both sides, as in AttentionMasks; memory_* mask what the decoder may attend to in the encoder's result.
struct TransformerModelMasks {
    Tensor src_mask{}, tgt_mask{}, memory_mask{};
    Tensor src_key_padding_mask{}, tgt_key_padding_mask{}, memory_key_padding_mask{};
    bool src_is_causal = false, tgt_is_causal = false;
};

/// An encoder and a decoder, each with a final LayerNorm (Vaswani et al. 2017). Matrices are xavier-uniform.
///     nn::Transformer model({.d_model = 64, .nhead = 4, .layer = {.dim_feedforward = 256, .batch_first = true}});
///     Tensor y = model(src, tgt, {.tgt_is_causal = true});       // (batch, S, 64), (batch, T, 64) -> (batch, T, 64)
class Transformer : public Module {
 public:
    TransformerEncoder encoder;
    TransformerDecoder decoder;

    explicit Transformer(const TransformerModelOptions& options = {}, Loc loc = Loc::current());
    Tensor forward(In src, const Tensor& tgt, const TransformerModelMasks& masks = {}) const;
    Tensor operator()(In src, const Tensor& tgt, const TransformerModelMasks& masks = {}) const { return forward(src, tgt, masks); }
    void members(Members& m) override;

    /// Returns (size, size): -infinity above the diagonal, 0 elsewhere.
    static Tensor generate_square_subsequent_mask(std::int64_t size, Loc loc = Loc::current());
};

}  // namespace tapir::nn
