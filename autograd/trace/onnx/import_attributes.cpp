// The attributes of operators: an unknown one must not be ignored as a misspelling, and one of another type must not become the default.
#include <algorithm>
#include <iterator>

#include "tapir/autograd/trace/onnx/import_impl.h"

namespace tapir::detail {
namespace {

using onnx::AttributeProto;

// The attributes from an opset on, by ONNX's schemas: "axis:i keepdims:i", each with the letter of its type.
struct Row {
    std::string_view op;
    int since;
    std::string_view attributes;
};
struct Type {
    char letter;
    AttributeProto::AttributeType type;
};
constexpr Type kTypes[] = {
    {'f', AttributeProto::FLOAT},         {'i', AttributeProto::INT},        {'s', AttributeProto::STRING}, {'t', AttributeProto::TENSOR},
    {'g', AttributeProto::GRAPH},         {'F', AttributeProto::FLOATS},     {'I', AttributeProto::INTS},   {'S', AttributeProto::STRINGS},
    {'p', AttributeProto::SPARSE_TENSOR}, {'y', AttributeProto::TYPE_PROTO},
};
// Sorted by op, then by opset.
constexpr Row kRows[] = {
    {"Abs", 1, "consumed_inputs:I"},
    {"Abs", 6, ""},
    {"Adagrad", 1, "decay_factor:f epsilon:f norm_coefficient:f"},
    {"Adam", 1, "alpha:f beta:f epsilon:f norm_coefficient:f norm_coefficient_post:f"},
    {"Add", 1, "axis:i broadcast:i consumed_inputs:I"},
    {"Add", 6, "axis:i broadcast:i"},
    {"Add", 7, ""},
    {"AffineGrid", 20, "align_corners:i"},
    {"And", 1, "axis:i broadcast:i"},
    {"And", 7, ""},
    {"ArgMax", 1, "axis:i keepdims:i"},
    {"ArgMax", 12, "axis:i keepdims:i select_last_index:i"},
    {"ArgMin", 1, "axis:i keepdims:i"},
    {"ArgMin", 12, "axis:i keepdims:i select_last_index:i"},
    {"Attention", 23, "is_causal:i kv_num_heads:i q_num_heads:i qk_matmul_output_mode:i scale:f softcap:f softmax_precision:i"},
    {"Attention", 25,
     "is_causal:i kv_num_heads:i left_window_size:i q_num_heads:i qk_matmul_output_mode:i right_window_size:i scale:f softcap:f softmax_precision:i"},
    {"AveragePool", 1, "auto_pad:s kernel_shape:I pads:I strides:I"},
    {"AveragePool", 7, "auto_pad:s count_include_pad:i kernel_shape:I pads:I strides:I"},
    {"AveragePool", 10, "auto_pad:s ceil_mode:i count_include_pad:i kernel_shape:I pads:I strides:I"},
    {"AveragePool", 19, "auto_pad:s ceil_mode:i count_include_pad:i dilations:I kernel_shape:I pads:I strides:I"},
    {"BatchNormalization", 1, "consumed_inputs:I epsilon:f is_test:i momentum:f spatial:i"},
    {"BatchNormalization", 6, "epsilon:f is_test:i momentum:f spatial:i"},
    {"BatchNormalization", 7, "epsilon:f momentum:f spatial:i"},
    {"BatchNormalization", 9, "epsilon:f momentum:f"},
    {"BatchNormalization", 14, "epsilon:f momentum:f training_mode:i"},
    {"Bernoulli", 15, "dtype:i seed:f"},
    {"BitCast", 26, "to:i"},
    {"BitShift", 11, "direction:s"},
    {"BlackmanWindow", 17, "output_datatype:i periodic:i"},
    {"Cast", 1, "to:s"},
    {"Cast", 6, "to:i"},
    {"Cast", 19, "saturate:i to:i"},
    {"Cast", 24, "round_mode:s saturate:i to:i"},
    {"CastLike", 19, "saturate:i"},
    {"CastLike", 24, "round_mode:s saturate:i"},
    {"CausalConvWithState", 27, "activation:s"},
    {"Ceil", 1, "consumed_inputs:I"},
    {"Ceil", 6, ""},
    {"Celu", 12, "alpha:f"},
    {"CenterCropPad", 18, "axes:I"},
    {"Clip", 1, "consumed_inputs:I max:f min:f"},
    {"Clip", 6, "max:f min:f"},
    {"Clip", 11, ""},
    {"Col2Im", 18, "dilations:I pads:I strides:I"},
    {"Compress", 9, "axis:i"},
    {"Concat", 1, "axis:i"},
    {"ConcatFromSequence", 11, "axis:i new_axis:i"},
    {"Constant", 1, "value:t"},
    {"Constant", 11, "sparse_value:p value:t"},
    {"Constant", 12, "sparse_value:p value:t value_float:f value_floats:F value_int:i value_ints:I value_string:s value_strings:S"},
    {"ConstantOfShape", 9, "value:t"},
    {"Conv", 1, "auto_pad:s dilations:I group:i kernel_shape:I pads:I strides:I"},
    {"ConvInteger", 10, "auto_pad:s dilations:I group:i kernel_shape:I pads:I strides:I"},
    {"ConvTranspose", 1, "auto_pad:s dilations:I group:i kernel_shape:I output_padding:I output_shape:I pads:I strides:I"},
    {"CumProd", 26, "exclusive:i reverse:i"},
    {"CumSum", 11, "exclusive:i reverse:i"},
    {"DFT", 17, "axis:i inverse:i onesided:i"},
    {"DFT", 20, "inverse:i onesided:i"},
    {"DeformConv", 19, "dilations:I group:i kernel_shape:I offset_group:i pads:I strides:I"},
    {"DepthToSpace", 1, "blocksize:i"},
    {"DepthToSpace", 11, "blocksize:i mode:s"},
    {"DequantizeLinear", 13, "axis:i"},
    {"DequantizeLinear", 21, "axis:i block_size:i"},
    {"DequantizeLinear", 23, "axis:i block_size:i output_dtype:i"},
    {"Div", 1, "axis:i broadcast:i consumed_inputs:I"},
    {"Div", 6, "axis:i broadcast:i"},
    {"Div", 7, ""},
    {"Dropout", 1, "consumed_inputs:I is_test:i ratio:f"},
    {"Dropout", 6, "is_test:i ratio:f"},
    {"Dropout", 7, "ratio:f"},
    {"Dropout", 12, "seed:i"},
    {"Einsum", 12, "equation:s"},
    {"Elu", 1, "alpha:f consumed_inputs:I"},
    {"Elu", 6, "alpha:f"},
    {"Equal", 1, "axis:i broadcast:i"},
    {"Equal", 7, ""},
    {"Exp", 1, "consumed_inputs:I"},
    {"Exp", 6, ""},
    {"EyeLike", 9, "dtype:i k:i"},
    {"Flatten", 1, "axis:i"},
    {"Floor", 1, "consumed_inputs:I"},
    {"Floor", 6, ""},
    {"GRU", 1, "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i output_sequence:i"},
    {"GRU", 3, "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i linear_before_reset:i output_sequence:i"},
    {"GRU", 7, "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i linear_before_reset:i"},
    {"GRU", 14, "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i layout:i linear_before_reset:i"},
    {"Gather", 1, "axis:i"},
    {"GatherElements", 11, "axis:i"},
    {"GatherND", 12, "batch_dims:i"},
    {"Gelu", 20, "approximate:s"},
    {"Gemm", 1, "alpha:f beta:f broadcast:i transA:i transB:i"},
    {"Gemm", 7, "alpha:f beta:f transA:i transB:i"},
    {"GlobalLpPool", 1, "p:f"},
    {"GlobalLpPool", 2, "p:i"},
    {"Greater", 1, "axis:i broadcast:i"},
    {"Greater", 7, ""},
    {"GridSample", 16, "align_corners:i mode:s padding_mode:s"},
    {"GroupNormalization", 18, "epsilon:f num_groups:i"},
    {"GroupNormalization", 21, "epsilon:f num_groups:i stash_type:i"},
    {"HammingWindow", 17, "output_datatype:i periodic:i"},
    {"HannWindow", 17, "output_datatype:i periodic:i"},
    {"HardSigmoid", 1, "alpha:f beta:f consumed_inputs:I"},
    {"HardSigmoid", 6, "alpha:f beta:f"},
    {"Hardmax", 1, "axis:i"},
    {"If", 1, "else_branch:g then_branch:g"},
    {"InstanceNormalization", 1, "consumed_inputs:I epsilon:f"},
    {"InstanceNormalization", 6, "epsilon:f"},
    {"IsInf", 10, "detect_negative:i detect_positive:i"},
    {"LRN", 1, "alpha:f beta:f bias:f size:i"},
    {"LSTM", 1, "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i input_forget:i output_sequence:i"},
    {"LSTM", 7, "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i input_forget:i"},
    {"LSTM", 14, "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i input_forget:i layout:i"},
    {"LayerNormalization", 17, "axis:i epsilon:f stash_type:i"},
    {"LeakyRelu", 1, "alpha:f consumed_inputs:I"},
    {"LeakyRelu", 6, "alpha:f"},
    {"Less", 1, "axis:i broadcast:i"},
    {"Less", 7, ""},
    {"LinearAttention", 27, "chunk_size:i kv_num_heads:i q_num_heads:i scale:f update_rule:s"},
    {"Log", 1, "consumed_inputs:I"},
    {"Log", 6, ""},
    {"LogSoftmax", 1, "axis:i"},
    {"Loop", 1, "body:g"},
    {"LpNormalization", 1, "axis:i p:i"},
    {"LpPool", 1, "auto_pad:s kernel_shape:I p:f pads:I strides:I"},
    {"LpPool", 2, "auto_pad:s kernel_shape:I p:i pads:I strides:I"},
    {"LpPool", 18, "auto_pad:s ceil_mode:i dilations:I kernel_shape:I p:i pads:I strides:I"},
    {"Max", 1, "consumed_inputs:I"},
    {"Max", 6, ""},
    {"MaxPool", 1, "auto_pad:s kernel_shape:I pads:I strides:I"},
    {"MaxPool", 8, "auto_pad:s kernel_shape:I pads:I storage_order:i strides:I"},
    {"MaxPool", 10, "auto_pad:s ceil_mode:i dilations:I kernel_shape:I pads:I storage_order:i strides:I"},
    {"MaxUnpool", 9, "kernel_shape:I pads:I strides:I"},
    {"Mean", 1, "consumed_inputs:I"},
    {"Mean", 6, ""},
    {"MeanVarianceNormalization", 9, "axes:I"},
    {"MelWeightMatrix", 17, "output_datatype:i"},
    {"Min", 1, "consumed_inputs:I"},
    {"Min", 6, ""},
    {"Mod", 10, "fmod:i"},
    {"Momentum", 1, "alpha:f beta:f mode:s norm_coefficient:f"},
    {"Mul", 1, "axis:i broadcast:i consumed_inputs:I"},
    {"Mul", 6, "axis:i broadcast:i"},
    {"Mul", 7, ""},
    {"Multinomial", 7, "dtype:i sample_size:i seed:f"},
    {"Neg", 1, "consumed_inputs:I"},
    {"Neg", 6, ""},
    {"NegativeLogLikelihoodLoss", 12, "ignore_index:i reduction:s"},
    {"NonMaxSuppression", 10, "center_point_box:i"},
    {"OneHot", 9, "axis:i"},
    {"Optional", 15, "type:y"},
    {"Or", 1, "axis:i broadcast:i"},
    {"Or", 7, ""},
    {"PRelu", 1, "consumed_inputs:I"},
    {"PRelu", 6, ""},
    {"Pad", 1, "mode:s paddings:I value:f"},
    {"Pad", 2, "mode:s pads:I value:f"},
    {"Pad", 11, "mode:s"},
    {"Pow", 1, "axis:i broadcast:i"},
    {"Pow", 7, ""},
    {"QLinearConv", 10, "auto_pad:s dilations:I group:i kernel_shape:I pads:I strides:I"},
    {"QuantizeLinear", 13, "axis:i"},
    {"QuantizeLinear", 19, "axis:i saturate:i"},
    {"QuantizeLinear", 21, "axis:i block_size:i output_dtype:i saturate:i"},
    {"QuantizeLinear", 23, "axis:i block_size:i output_dtype:i precision:i saturate:i"},
    {"RMSNormalization", 23, "axis:i epsilon:f stash_type:i"},
    {"RNN", 1, "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i output_sequence:i"},
    {"RNN", 7, "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i"},
    {"RNN", 14, "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i layout:i"},
    {"RandomNormal", 1, "dtype:i mean:f scale:f seed:f shape:I"},
    {"RandomNormalLike", 1, "dtype:i mean:f scale:f seed:f"},
    {"RandomUniform", 1, "dtype:i high:f low:f seed:f shape:I"},
    {"RandomUniformLike", 1, "dtype:i high:f low:f seed:f"},
    {"Range", 27, "stash_type:i"},
    {"Reciprocal", 1, "consumed_inputs:I"},
    {"Reciprocal", 6, ""},
    {"ReduceL1", 1, "axes:I keepdims:i"},
    {"ReduceL1", 18, "keepdims:i noop_with_empty_axes:i"},
    {"ReduceL2", 1, "axes:I keepdims:i"},
    {"ReduceL2", 18, "keepdims:i noop_with_empty_axes:i"},
    {"ReduceLogSum", 1, "axes:I keepdims:i"},
    {"ReduceLogSum", 18, "keepdims:i noop_with_empty_axes:i"},
    {"ReduceLogSumExp", 1, "axes:I keepdims:i"},
    {"ReduceLogSumExp", 18, "keepdims:i noop_with_empty_axes:i"},
    {"ReduceMax", 1, "axes:I keepdims:i"},
    {"ReduceMax", 18, "keepdims:i noop_with_empty_axes:i"},
    {"ReduceMean", 1, "axes:I keepdims:i"},
    {"ReduceMean", 18, "keepdims:i noop_with_empty_axes:i"},
    {"ReduceMin", 1, "axes:I keepdims:i"},
    {"ReduceMin", 18, "keepdims:i noop_with_empty_axes:i"},
    {"ReduceProd", 1, "axes:I keepdims:i"},
    {"ReduceProd", 18, "keepdims:i noop_with_empty_axes:i"},
    {"ReduceSum", 1, "axes:I keepdims:i"},
    {"ReduceSum", 13, "keepdims:i noop_with_empty_axes:i"},
    {"ReduceSumSquare", 1, "axes:I keepdims:i"},
    {"ReduceSumSquare", 18, "keepdims:i noop_with_empty_axes:i"},
    {"Relu", 1, "consumed_inputs:I"},
    {"Relu", 6, ""},
    {"Reshape", 1, "consumed_inputs:I shape:I"},
    {"Reshape", 5, ""},
    {"Reshape", 14, "allowzero:i"},
    {"Resize", 10, "mode:s"},
    {"Resize", 11, "coordinate_transformation_mode:s cubic_coeff_a:f exclude_outside:i extrapolation_value:f mode:s nearest_mode:s"},
    {"Resize", 18,
     "antialias:i axes:I coordinate_transformation_mode:s cubic_coeff_a:f exclude_outside:i extrapolation_value:f keep_aspect_ratio_policy:s mode:s "
     "nearest_mode:s"},
    {"ReverseSequence", 10, "batch_axis:i time_axis:i"},
    {"RoiAlign", 10, "mode:s output_height:i output_width:i sampling_ratio:i spatial_scale:f"},
    {"RoiAlign", 16, "coordinate_transformation_mode:s mode:s output_height:i output_width:i sampling_ratio:i spatial_scale:f"},
    {"RotaryEmbedding", 23, "interleaved:i num_heads:i rotary_embedding_dim:i"},
    {"STFT", 17, "onesided:i"},
    {"Scan", 8, "body:g directions:I num_scan_inputs:i"},
    {"Scan", 9, "body:g num_scan_inputs:i scan_input_axes:I scan_input_directions:I scan_output_axes:I scan_output_directions:I"},
    {"Scatter", 9, "axis:i"},
    {"ScatterElements", 11, "axis:i"},
    {"ScatterElements", 16, "axis:i reduction:s"},
    {"ScatterND", 16, "reduction:s"},
    {"Selu", 1, "alpha:f consumed_inputs:I gamma:f"},
    {"Selu", 6, "alpha:f gamma:f"},
    {"SequenceEmpty", 11, "dtype:i"},
    {"SequenceMap", 17, "body:g"},
    {"Shape", 15, "end:i start:i"},
    {"Shrink", 9, "bias:f lambd:f"},
    {"Sigmoid", 1, "consumed_inputs:I"},
    {"Sigmoid", 6, ""},
    {"Slice", 1, "axes:I ends:I starts:I"},
    {"Slice", 10, ""},
    {"Softmax", 1, "axis:i"},
    {"SoftmaxCrossEntropyLoss", 12, "ignore_index:i reduction:s"},
    {"SpaceToDepth", 1, "blocksize:i"},
    {"SpaceToDepth", 28, "blocksize:i mode:s"},
    {"Split", 1, "axis:i split:I"},
    {"Split", 13, "axis:i"},
    {"Split", 18, "axis:i num_outputs:i"},
    {"SplitToSequence", 11, "axis:i keepdims:i"},
    {"Sqrt", 1, "consumed_inputs:I"},
    {"Sqrt", 6, ""},
    {"Squeeze", 1, "axes:I"},
    {"Squeeze", 13, ""},
    {"Sub", 1, "axis:i broadcast:i consumed_inputs:I"},
    {"Sub", 6, "axis:i broadcast:i"},
    {"Sub", 7, ""},
    {"Sum", 1, "consumed_inputs:I"},
    {"Sum", 6, ""},
    {"SwiGLU", 28, "alpha:f"},
    {"Swish", 24, "alpha:f"},
    {"Tanh", 1, "consumed_inputs:I"},
    {"Tanh", 6, ""},
    {"TensorScatter", 24, "axis:i mode:s"},
    {"TfIdfVectorizer", 9,
     "max_gram_length:i max_skip_count:i min_gram_length:i mode:s ngram_counts:I ngram_indexes:I pool_int64s:I pool_strings:S weights:F"},
    {"ThresholdedRelu", 10, "alpha:f"},
    {"TopK", 1, "axis:i k:i"},
    {"TopK", 10, "axis:i"},
    {"TopK", 11, "axis:i largest:i sorted:i"},
    {"Transpose", 1, "perm:I"},
    {"Trilu", 14, "upper:i"},
    {"Unique", 11, "axis:i sorted:i"},
    {"Unsqueeze", 1, "axes:I"},
    {"Unsqueeze", 13, ""},
    {"Upsample", 1, "height_scale:f mode:s width_scale:f"},
    {"Upsample", 7, "mode:s scales:F"},
    {"Upsample", 9, "mode:s"},
    {"Xor", 1, "axis:i broadcast:i"},
    {"Xor", 7, ""},
};

// The row for this opset; the first if all came later. Null: the op is unknown, or never had attributes.
const Row* row_of(std::string_view op, std::int64_t opset) {
    const auto by_op = [](const Row& row, std::string_view name) { return row.op < name; };
    const Row* row = std::lower_bound(std::begin(kRows), std::end(kRows), op, by_op);
    if (row == std::end(kRows) || row->op != op) return nullptr;
    while (row + 1 != std::end(kRows) && row[1].op == op && row[1].since <= opset) ++row;
    return row;
}

// The type of an attribute in a row.
std::optional<AttributeProto::AttributeType> type_in(std::string_view attributes, std::string_view name) {
    for (std::size_t at = 0; at < attributes.size();) {
        const std::size_t colon = attributes.find(':', at);
        if (attributes.substr(at, colon - at) == name) {
            const auto is_it = [&](const Type& type) { return type.letter == attributes[colon + 1]; };
            return std::find_if(std::begin(kTypes), std::end(kTypes), is_it)->type;
        }
        at = colon + 3;
    }
    return std::nullopt;
}

std::string names_in(std::string_view attributes) {
    std::string names;
    for (std::size_t at = 0; at < attributes.size();) {
        const std::size_t colon = attributes.find(':', at);
        names += (at ? ", " : "") + std::string(attributes.substr(at, colon - at));
        at = colon + 3;
    }
    return names;
}

// The type of its contents, if that can be told.
AttributeProto::AttributeType held_type(const AttributeProto& attribute) {
    if (attribute.has_f()) return AttributeProto::FLOAT;
    if (attribute.has_i()) return AttributeProto::INT;
    if (attribute.has_s()) return AttributeProto::STRING;
    if (attribute.has_t()) return AttributeProto::TENSOR;
    if (attribute.has_g()) return AttributeProto::GRAPH;
    if (attribute.floats_size() > 0) return AttributeProto::FLOATS;
    if (attribute.ints_size() > 0) return AttributeProto::INTS;
    if (attribute.strings_size() > 0) return AttributeProto::STRINGS;
    return AttributeProto::UNDEFINED;
}

}  // namespace

void check_onnx_attributes(const onnx::NodeProto& node, std::int64_t opset, const Loc& loc) {
    const Row* row = row_of(node.op_type(), opset);
    std::set<std::string_view> names;
    for (const AttributeProto& attribute : node.attribute()) {
        const auto reject = [&](const std::string& what) { fail<ValueError>(loc, "load_onnx: {}: {}", name_of_node(node), what); };
        if (!names.insert(attribute.name()).second) reject(fmt::format("its attribute {} is there twice", attribute.name()));
        const auto type = type_in(row ? row->attributes : "", attribute.name());
        if (!type) {
            const std::string known = names_in(row ? row->attributes : "");
            reject(fmt::format("it has an attribute {}; {} has {} in opset {}", attribute.name(), node.op_type(),
                               known.empty()                       ? "none"
                                   : known.find(',') == known.npos ? "only " + known
                                                                   : "only these: " + known,
                               opset));
        }
        // Some models state no type; an attribute that refers to one of the function around it has no contents.
        for (const auto its : {attribute.type(), held_type(attribute)}) {
            if (its == AttributeProto::UNDEFINED || its == *type) continue;
            reject(fmt::format("its attribute {} is of type {}, not {}", attribute.name(), AttributeProto::AttributeType_Name(its),
                               AttributeProto::AttributeType_Name(*type)));
        }
    }
}

}  // namespace tapir::detail
