// Small ONNX models, made in tests.
#pragma once

#include <string>
#include <vector>

#include "tapir/autograd/trace/onnx/proto_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"

namespace models {

using tapir::Tensor;

inline void set_tensor(onnx::TensorProto* proto, const Tensor& x) {
    proto->set_data_type(tapir::detail::onnx_type(x.dtype()));
    for (const std::int64_t size : x.shape()) proto->add_dims(size);
    const Tensor plain = x.contiguous();
    proto->set_raw_data(plain.raw_data(), plain.nbytes());
}

/// A dimension is a number, or a name: "3", "batch"; "": not told.
inline void set_type(onnx::ValueInfoProto* info, const std::string& name, int type, const std::vector<std::string>& dims) {
    info->set_name(name);
    auto* tensor = info->mutable_type()->mutable_tensor_type();
    tensor->set_elem_type(type);
    tensor->mutable_shape();
    for (const std::string& dim : dims) {
        auto* to = tensor->mutable_shape()->add_dim();
        if (dim.empty()) continue;
        if (dim.find_first_not_of("0123456789") == std::string::npos) {
            to->set_dim_value(std::stoll(dim));
        } else {
            to->set_dim_param(dim);
        }
    }
}

class Node {
 public:
    explicit Node(onnx::NodeProto* node) : node_(node) {}
    Node& set(const std::string& name, std::int64_t value) {
        add(name, onnx::AttributeProto::INT)->set_i(value);
        return *this;
    }
    Node& set(const std::string& name, int value) { return set(name, std::int64_t{value}); }
    Node& set(const std::string& name, double value) {
        add(name, onnx::AttributeProto::FLOAT)->set_f(static_cast<float>(value));
        return *this;
    }
    Node& set(const std::string& name, const std::string& value) {
        add(name, onnx::AttributeProto::STRING)->set_s(value);
        return *this;
    }
    Node& set(const std::string& name, const std::vector<std::int64_t>& values) {
        auto* attribute = add(name, onnx::AttributeProto::INTS);
        for (const std::int64_t value : values) attribute->add_ints(value);
        return *this;
    }
    Node& set(const std::string& name, const std::vector<std::string>& values) {
        auto* attribute = add(name, onnx::AttributeProto::STRINGS);
        for (const std::string& value : values) attribute->add_strings(value);
        return *this;
    }
    Node& set(const std::string& name, const Tensor& value) {
        set_tensor(add(name, onnx::AttributeProto::TENSOR)->mutable_t(), value);
        return *this;
    }
    Node& refer(const std::string& name, const std::string& to, onnx::AttributeProto::AttributeType type) {
        add(name, type)->set_ref_attr_name(to);
        return *this;
    }
    onnx::GraphProto* graph(const std::string& name) { return add(name, onnx::AttributeProto::GRAPH)->mutable_g(); }
    Node& domain(const std::string& name) {
        node_->set_domain(name);
        return *this;
    }
    Node& name(const std::string& name) {
        node_->set_name(name);
        return *this;
    }

 private:
    onnx::AttributeProto* add(const std::string& name, onnx::AttributeProto::AttributeType type) {
        onnx::AttributeProto* attribute = node_->add_attribute();
        attribute->set_name(name);
        attribute->set_type(type);
        return attribute;
    }
    onnx::NodeProto* node_;
};

template <class To>
Node add_node(To* to, const std::string& op, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
    onnx::NodeProto* node = to->add_node();
    node->set_op_type(op);
    for (const std::string& input : inputs) node->add_input(input);
    for (const std::string& output : outputs) node->add_output(output);
    return Node(node);
}

class Model {
 public:
    explicit Model(int opset = 17) {
        proto.set_ir_version(8);
        auto* import = proto.add_opset_import();
        import->set_version(opset);
        proto.mutable_graph()->set_name("test");
    }
    Model& input(const std::string& name, const std::vector<std::string>& dims, int type = onnx::TensorProto::FLOAT) {
        set_type(proto.mutable_graph()->add_input(), name, type, dims);
        return *this;
    }
    Model& output(const std::string& name, const std::vector<std::string>& dims = {}, int type = onnx::TensorProto::FLOAT) {
        set_type(proto.mutable_graph()->add_output(), name, type, dims);
        return *this;
    }
    Model& weight(const std::string& name, const Tensor& x) {
        auto* to = proto.mutable_graph()->add_initializer();
        set_tensor(to, x);
        to->set_name(name);
        return *this;
    }
    Node node(const std::string& op, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
        return add_node(proto.mutable_graph(), op, inputs, outputs);
    }
    std::string bytes() const { return proto.SerializeAsString(); }

    onnx::ModelProto proto;
};

}  // namespace models
