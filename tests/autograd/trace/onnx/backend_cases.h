// The cases of ONNX's backend tests (Debian's libonnx-testdata): models with inputs and the outputs that they are to give.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/tapir.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wpedantic"
#include <onnx/onnx-data_pb.h>
#pragma GCC diagnostic pop

namespace backend {

namespace fs = std::filesystem;
using namespace tapir;  // of tests only

inline const char* environment(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value ? value : otherwise;
}

inline fs::path data_folder() { return environment("TAPIR_ONNX_TESTDATA", "/usr/lib/python3/dist-packages/onnx/backend/test/data"); }

inline std::string read_bytes(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream bytes;
    bytes << in.rdbuf();
    return bytes.str();
}

template <class Proto>
Proto read_proto(const fs::path& path) {
    Proto proto;
    if (!proto.ParseFromString(read_bytes(path))) throw std::runtime_error("cannot read " + path.string());
    return proto;
}

struct Data {
    std::string name;
    Tensor tensor;  // undefined: an optional that is empty
};

// What a file of an input or an output holds; of a sequence several: NAME_0, NAME_1, ...
inline std::vector<Data> read_data(const fs::path& path, const std::string& called, const onnx::TypeProto& type) {
    const auto tensor_of = [&](const onnx::TensorProto& proto) { return detail::tensor_of_onnx(proto, "", path.string(), Loc::current()); };
    const auto elements = [&](const onnx::SequenceProto& proto) {
        std::vector<Data> data;
        for (const onnx::TensorProto& element : proto.tensor_values())
            data.push_back({called + "_" + std::to_string(data.size()), tensor_of(element)});
        return data;
    };
    if (type.has_sequence_type()) return elements(read_proto<onnx::SequenceProto>(path));
    if (type.has_optional_type()) {
        const auto proto = read_proto<onnx::OptionalProto>(path);
        if (proto.has_sequence_value()) return elements(proto.sequence_value());
        if (proto.has_tensor_value()) return {Data{called, tensor_of(proto.tensor_value())}};
        return {};
    }
    auto proto = read_proto<onnx::TensorProto>(path);
    const bool is_bits = type.tensor_type().elem_type() == onnx::TensorProto::BFLOAT16 && proto.data_type() == onnx::TensorProto::UINT16;
    if (is_bits) proto.set_data_type(onnx::TensorProto::BFLOAT16);  // numpy has no bfloat16
    return {Data{called, tensor_of(proto)}};
}

inline void compare(const Data& got, const Data& want) {
    if (got.tensor.dtype() != want.tensor.dtype()) {
        throw std::runtime_error(want.name + " has dtype " + tapir::name(got.tensor.dtype()) + ", not " + tapir::name(want.tensor.dtype()));
    }
    if (got.tensor.shape() != want.tensor.shape()) {
        throw std::runtime_error(want.name + " has shape " + got.tensor.shape().str() + ", not " + want.tensor.shape().str());
    }
    const auto a = got.tensor.to_vector<double>(), b = want.tensor.to_vector<double>();
    for (std::size_t i = 0; i < a.size(); ++i) {
        const bool is_same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])) ||
            (is_floating(want.tensor.dtype()) && std::isfinite(b[i]) && std::abs(a[i] - b[i]) <= 1e-7 + 1e-3 * std::abs(b[i]));
        if (!is_same)
            throw std::runtime_error(want.name + " is " + std::to_string(a[i]) + " at " + std::to_string(i) + ", not " + std::to_string(b[i]));
    }
}

// What ran, for each data set of a case.
struct Run {
    Graph graph;
    std::vector<Tensor> inputs, outputs;
};

struct Outcome {
    bool passes = false;
    std::string problem;
    std::vector<std::string> known;  // inputs whose values the graph had to be given
    std::vector<Run> runs;
};

inline Outcome run_case(const fs::path& folder) {
    Outcome outcome;
    try {
        const auto model = read_proto<onnx::ModelProto>(folder / "model.onnx");
        std::map<std::string, bool> is_weight;
        for (const auto& initializer : model.graph().initializer()) is_weight[initializer.name()] = true;
        for (int set = 0; fs::exists(folder / ("test_data_set_" + std::to_string(set))); ++set) {
            const fs::path data = folder / ("test_data_set_" + std::to_string(set));
            LoadOnnxOptions options;
            std::vector<Data> inputs;
            int file = 0;
            for (const auto& info : model.graph().input()) {
                const fs::path path = data / ("input_" + std::to_string(file++) + ".pb");
                if (is_weight.count(info.name()) && !fs::exists(path)) continue;
                const std::vector<Data> given = read_data(path, info.name(), info.type());
                bool is_plain = info.type().has_tensor_type() && info.type().tensor_type().has_shape();
                for (int d = 0; d < info.type().tensor_type().shape().dim_size(); ++d) {
                    const auto& dim = info.type().tensor_type().shape().dim(d);
                    is_plain &= dim.has_dim_value();
                    if (dim.has_dim_param()) options.sizes[dim.dim_param()] = given[0].tensor.size(d);
                }
                if (!is_plain) {
                    if (given.empty() && info.type().has_sequence_type()) options.examples.emplace_back(info.name(), Tensor());
                    for (const Data& part : given) options.examples.emplace_back(part.name, part.tensor);
                }
                inputs.insert(inputs.end(), given.begin(), given.end());
            }
            Graph graph;
            for (;;) {
                try {
                    graph = load_onnx((folder / "model.onnx").string(), options);
                    break;
                } catch (const detail::OnnxNeedsValue& error) {
                    bool is_new = false;
                    for (const Data& input : inputs) {
                        const bool is_known =
                            std::any_of(options.known.begin(), options.known.end(), [&](const auto& known) { return known.first == input.name; });
                        if (is_known || !error.inputs.count(input.name)) continue;
                        options.known.emplace_back(input.name, input.tensor);
                        if (set == 0) outcome.known.push_back(input.name);
                        is_new = true;
                    }
                    if (!is_new) throw;
                }
            }
            std::vector<Tensor> given;
            Graph::Inputs named;
            for (const Graph::Value* value : graph.inputs()) {
                for (const Data& input : inputs) {
                    if (input.name != value->name) continue;
                    given.push_back(input.tensor);
                    named.emplace_back(input.name, input.tensor);
                }
            }
            const std::vector<Tensor> outputs = graph(given), again = graph.run(named);
            std::size_t next = 0;
            for (int k = 0; k < model.graph().output_size(); ++k) {
                const auto& info = model.graph().output(k);
                for (const Data& want : read_data(data / ("output_" + std::to_string(k) + ".pb"), info.name(), info.type())) {
                    if (next == outputs.size()) throw std::runtime_error("there is no output " + want.name);
                    if (graph.outputs()[next].name != want.name)
                        throw std::runtime_error("the output " + want.name + " is called " + graph.outputs()[next].name);
                    compare({want.name, outputs[next]}, want);
                    compare({want.name, again[next]}, want);
                    ++next;
                }
            }
            if (next != outputs.size()) throw std::runtime_error("there are more outputs than expected");
            outcome.runs.push_back({std::move(graph), std::move(given), outputs});
        }
        outcome.passes = true;
    } catch (const std::exception& error) {
        outcome.problem = error.what();
    }
    return outcome;
}

// The cases of a part: node, simple, pytorch-operator or pytorch-converted; sorted.
inline std::vector<fs::path> cases_of(const std::string& part) {
    std::vector<fs::path> cases;
    for (const auto& entry : fs::directory_iterator(data_folder() / part)) cases.push_back(entry.path());
    std::sort(cases.begin(), cases.end());
    return cases;
}

}  // namespace backend
