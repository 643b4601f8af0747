// ONNX ops on truth values, and ops that return them.
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;

template <Tensor (*Fn)(In, In)>
void compare(Call& c) {
    const Tensor a = c.x(0);
    Tensor b = c.x(1);
    if (c.opset() < 7 && c.flag("broadcast", false) && c.given("axis")) {
        Shape shape = b.shape();
        while (c.axis("axis", 0, a.dim()) + shape.rank() < a.dim()) shape.push_back(1);
        b = reshape(b, shape);
    }
    const Tensor result = Fn(a, b);
    c.give(result);
}
void not_op(Call& c) { c.give(logical_not(c.x(0))); }
void where_op(Call& c) { c.give(where(c.x(0), c.x(1), c.x(2)), c.type(1)); }

constexpr OnnxOp kLogicOps[] = {
    {"And", 1, compare<logical_and>},    {"Or", 1, compare<logical_or>}, {"Xor", 1, compare<logical_xor>}, {"Not", 1, not_op},
    {"Equal", 1, compare<eq>},           {"Less", 1, compare<lt>},       {"LessOrEqual", 12, compare<le>}, {"Greater", 1, compare<gt>},
    {"GreaterOrEqual", 12, compare<ge>}, {"Where", 9, where_op},
};

}  // namespace

std::span<const OnnxOp> onnx_logic_ops() { return kLogicOps; }

}  // namespace tapir::detail
