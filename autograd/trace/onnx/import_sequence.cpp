// ONNX's sequences and optionals. Their lengths are known while a model is read: the graph only has their tensors.
#include <algorithm>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_composed.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;
using Kind = OnnxValue::Kind;

OnnxValuePtr sequence_of(std::vector<OnnxValuePtr> elements) {
    auto value = std::make_shared<OnnxValue>();
    value->kind = Kind::sequence;
    value->elements = std::move(elements);
    return value;
}

const std::vector<OnnxValuePtr>& elements(Call& c, int i) {
    if (c.value(i)->kind != Kind::sequence) c.reject("its operand {} is no sequence", i);
    if (c.value(i)->stacked.defined()) c.reject("its operand {} is a sequence that a loop of many turns made, which can be joined or picked from", i);
    return c.value(i)->elements;
}

std::size_t place(Call& c, int operand, std::size_t size, bool is_end_allowed) {
    int64_t at = c.integer(operand, "position");
    if (at < 0) at += static_cast<int64_t>(size);
    if (at < 0 || at >= static_cast<int64_t>(size) + (is_end_allowed ? 1 : 0)) c.reject("the position {} in a sequence of {}", at, size);
    return static_cast<std::size_t>(at);
}

void construct(Call& c) {
    std::vector<OnnxValuePtr> all;
    for (int i = 0; i < c.count(); ++i) all.push_back(c.value(i));
    c.give(sequence_of(std::move(all)));
}
void empty_sequence(Call& c) { c.give(sequence_of({})); }
void insert(Call& c) {
    std::vector<OnnxValuePtr> all = elements(c, 0);
    const std::size_t at = c.has(2) ? place(c, 2, all.size(), true) : all.size();
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(at), c.value(1));
    c.give(sequence_of(std::move(all)));
}
void erase(Call& c) {
    std::vector<OnnxValuePtr> all = elements(c, 0);
    if (all.empty()) c.reject("its sequence is empty");
    const std::size_t at = c.has(1) ? place(c, 1, all.size(), false) : all.size() - 1;
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(at));
    c.give(sequence_of(std::move(all)));
}
void at_position(Call& c) {
    if (const Tensor& stacked = c.value(0)->stacked; stacked.defined()) {
        const std::size_t at = place(c, 1, static_cast<std::size_t>(stacked.size(0)), false);
        return c.give(select(stacked, 0, static_cast<int64_t>(at)), c.type(0));
    }
    const std::vector<OnnxValuePtr>& all = elements(c, 0);
    c.give(all[place(c, 1, all.size(), false)]);
}
OnnxValuePtr known_number(int64_t value, DType dtype) {
    const OutsideTrace outside;
    return onnx_constant(full({}, value, dtype));
}
void length(Call& c) {
    if (const Tensor& stacked = c.value(0)->stacked; stacked.defined()) {
        const OutsideTrace outside;
        return c.give_known(full({}, stacked.size(0), int64), c.interpreter().has_named_dims());
    }
    c.give(known_number(static_cast<int64_t>(elements(c, 0).size()), int64));
}

void concatenate(Call& c) {
    if (const Tensor& stacked = c.value(0)->stacked; stacked.defined()) {
        const bool is_new = c.flag("new_axis", false);
        const int axis = c.axis("axis", 0, stacked.dim() - (is_new ? 0 : 1));
        const Tensor moved = movedim(stacked, 0, axis);
        return c.give(is_new ? moved : flatten(moved, axis, axis + 1), c.type(0));
    }
    std::vector<Tensor> parts;
    for (const OnnxValuePtr& part : elements(c, 0)) parts.push_back(c.tensor(part));
    if (parts.empty()) c.reject("its sequence is empty");
    const bool is_new = c.flag("new_axis", false);
    const int axis = c.axis("axis", 0, parts[0].dim() + (is_new ? 1 : 0));
    c.give(is_new ? stack(parts, axis) : cat(parts, axis), elements(c, 0)[0]->type);
}

void split_to_sequence(Call& c) {
    const Tensor x = c.x(0);
    const int axis = c.axis("axis", 0, x.dim());
    std::vector<Tensor> parts;
    const bool keep = c.has(1) || c.flag("keepdims", true);
    if (!c.has(1)) {
        parts = split(x, 1, axis);
    } else if (c.rank(1) == 0) {
        const int64_t size = c.integer(1, "split");
        if (size < 1) c.reject("pieces of {}", size);
        parts = split(x, size, axis);
    } else {
        parts = split(x, c.integers(1, "split"), axis);
    }
    std::vector<OnnxValuePtr> all;
    for (const Tensor& part : parts) {
        all.push_back(onnx_value(keep ? part : select(part, axis, 0), c.type(0)));
        all.back()->inputs = c.value(0)->inputs;
    }
    c.give(sequence_of(std::move(all)));
}

void map(Call& c) {
    const onnx::GraphProto& body = c.graph("body");
    const std::size_t count = elements(c, 0).size();
    std::vector<std::vector<OnnxValuePtr>> results(static_cast<std::size_t>(body.output_size()));
    if (body.input_size() != c.count()) c.reject("its body has {} inputs", body.input_size());
    for (std::size_t i = 0; i < count; ++i) {
        OnnxInterpreter::Scope inner;
        inner.outer = &c.scope();
        inner.function = c.scope().function;
        inner.attributes = c.scope().attributes;
        for (int k = 0; k < c.count(); ++k) {
            const OnnxValuePtr& operand = c.value(k);
            if (operand->kind == Kind::sequence && operand->elements.size() != count)
                c.reject("sequences of {} and {}", count, operand->elements.size());
            inner.values[body.input(k).name()] = operand->kind == Kind::sequence ? elements(c, k)[i] : operand;
        }
        std::vector<OnnxValuePtr> outputs = c.interpreter().run(body, inner);
        for (std::size_t k = 0; k < results.size(); ++k) results[k].push_back(std::move(outputs[k]));
    }
    for (std::vector<OnnxValuePtr>& result : results) c.give(sequence_of(std::move(result)));
}

void optional(Call& c) {
    if (c.has(0)) return c.give(c.value(0));
    auto value = std::make_shared<OnnxValue>();
    value->kind = Kind::none;
    c.give(std::move(value));
}
void has_element(Call& c) {
    const OutsideTrace outside;
    c.give(onnx_constant(full({}, c.has(0) && c.value(0)->kind != Kind::none, bool_)));
}
void get_element(Call& c) {
    if (c.value(0)->kind == Kind::none) c.reject("its optional is empty");
    c.give(c.value(0));
}

constexpr OnnxOp kSequenceOps[] = {
    {"SequenceConstruct", 11, construct, OnnxOp::kOwn},
    {"SequenceEmpty", 11, empty_sequence, OnnxOp::kOwn},
    {"SequenceInsert", 11, insert, OnnxOp::kOwn},
    {"SequenceErase", 11, erase, OnnxOp::kOwn},
    {"SequenceAt", 11, at_position, OnnxOp::kOwn},
    {"SequenceLength", 11, length, OnnxOp::kOwn},
    {"SequenceMap", 17, map, OnnxOp::kOwn},
    {"ConcatFromSequence", 11, concatenate, OnnxOp::kOwn},
    {"SplitToSequence", 11, split_to_sequence, OnnxOp::kOwn},
    {"Optional", 15, optional, OnnxOp::kOwn},
    {"OptionalHasElement", 15, has_element, OnnxOp::kOwn},
    {"OptionalGetElement", 15, get_element, OnnxOp::kOwn},
};

}  // namespace

std::span<const OnnxOp> onnx_sequence_ops() { return kSequenceOps; }

}  // namespace tapir::detail
