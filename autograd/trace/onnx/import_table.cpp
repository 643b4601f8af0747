// The table of all ops that can be read.
#include <algorithm>

#include "tapir/autograd/trace/onnx/import_impl.h"

namespace tapir::detail {
namespace {

using Table = std::map<std::pair<std::string, std::string>, std::vector<const OnnxOp*>>;

Table make_table() {
    Table table;
    for (const auto& ops : {onnx_math_ops(), onnx_logic_ops(), onnx_shape_ops(), onnx_index_ops(), onnx_reduce_ops(), onnx_nn_ops(), onnx_pool_ops(),
                            onnx_recurrent_ops(), onnx_loss_ops(), onnx_make_ops(), onnx_image_ops(), onnx_quantize_ops(), onnx_signal_ops(),
                            onnx_sequence_ops(), onnx_control_ops(), onnx_training_ops(), onnx_attention_ops(), onnx_region_ops()}) {
        for (const OnnxOp& op : ops) table[{op.domain, op.name}].push_back(&op);
    }
    return table;
}

}  // namespace

const OnnxOp* find_onnx_op(std::string_view domain, std::string_view name, std::int64_t opset) {
    static const Table table = make_table();
    const auto found = table.find({std::string(domain == "ai.onnx" ? "" : domain), std::string(name)});
    if (found == table.end()) return nullptr;
    const OnnxOp* best = nullptr;
    for (const OnnxOp* op : found->second) {
        if (op->since <= opset && (!best || op->since > best->since)) best = op;
    }
    return best;
}

}  // namespace tapir::detail
