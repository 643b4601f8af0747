// models FOLDER: writes the models of the examples, layers, control flow and a step of training as ONNX models, with inputs of the sizes
// that they were traced with, and of others, for check.py.
#include <cmath>

#include "tapir/autograd/trace/control_flow.h"
#include "write.h"

using namespace tapir;
using namespace onnx_test;

namespace {

std::ofstream table;
fs::path root;

// inputs: what is traced; others: inputs of other sizes.
void write_model(const std::string& name, const Program& fn, const std::vector<TraceInput>& inputs,
                 const std::vector<std::vector<Tensor>>& others = {}, const OnnxOptions& options = {}, const TraceOptions& trace_options = {}) {
    const fs::path folder = root / name;
    std::string state = "ok", result = "ok";
    try {
        fs::create_directories(folder);
        const NoGradScope off;
        std::vector<std::vector<Tensor>> sets = {{}};
        for (const TraceInput& input : inputs) sets[0].push_back(input.tensor);
        sets.insert(sets.end(), others.begin(), others.end());
        const Graph graph = trace(fn, inputs, trace_options);
        std::ofstream(folder / "graph.txt") << graph.str();
        save_onnx((folder / "model.onnx").string(), graph, options);
        for (std::size_t i = 0; i < sets.size(); ++i) write_data(folder / ("test_data_set_" + std::to_string(i)), fn, sets[i], false);
    } catch (const Error& error) {
        state = "refused";
        result = error.what();
    }
    note(table, folder, name, "model", state, name, result);
}

template <class Model>
Program of(const Model& model) {
    return [&model](const std::vector<Tensor>& x) -> std::vector<Tensor> { return {model(x[0])}; };
}

// examples/cifar
struct CifarNet : nn::Module {
    nn::Conv2d conv1{3, 64, 5, {.padding = 2}}, conv2{64, 64, 5, {.padding = 2}};
    nn::Linear local3{64 * 6 * 6, 384}, local4{384, 192}, softmax_linear{192, 10};
    nn::MaxPool2d pool{3, {.stride = 2, .padding = 1}};
    nn::LocalResponseNorm norm{9, 0.001, 0.75, 1};
    void members(nn::Members& m) override { m("conv1", conv1)("conv2", conv2)("local3", local3)("local4", local4)("softmax_linear", softmax_linear); }
    Tensor forward(const Tensor& x) const {
        const Tensor first = norm(pool(relu(conv1(x)))), second = pool(norm(relu(conv2(first))));
        return softmax_linear(relu(local4(relu(local3(second.flatten(1))))));
    }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

// examples/char_rnn
struct CharRnn : nn::Module {
    nn::Embedding embedding{30, 16};
    nn::LSTM lstm{16, 24, {.num_layers = 2}};
    nn::Linear out{24, 30};
    void members(nn::Members& m) override { m("embedding", embedding)("lstm", lstm)("out", out); }
    std::vector<Tensor> run(const std::vector<Tensor>& x) const {
        auto [output, last] = lstm(embedding(x[0]), LSTMState{x[1], x[2]});
        return {out(output), last.h, last.c};
    }
};

// examples/transformer
struct Transformer : nn::Module {
    nn::Embedding embedding{30, 16, {.sparse = false}};
    Tensor positions = (0.02 * randn({20, 16})).detach().requires_grad_();
    nn::TransformerEncoder layers{
        16,
        4,
        2,
        {.dim_feedforward = 64, .dropout = 0.1, .activation = nn::TransformerActivation::gelu, .batch_first = true, .norm_first = true},
        /*final_norm=*/true};
    nn::Linear out{16, 30};
    void members(nn::Members& m) override { m("embedding", embedding)("positions", positions)("layers", layers)("out", out); }
    Tensor operator()(const Tensor& codes) const {
        return out(layers(embedding(codes) + positions.narrow(0, 0, codes.shape()[1]), {.is_causal = true}));
    }
};

void images() {
    nn::Sequential softmax(nn::Flatten(), nn::Linear(784, 10));
    nn::Sequential mlp(nn::Flatten(), nn::Linear(784, 256), relu, nn::Dropout(0.2), nn::Linear(256, 128), relu, nn::Linear(128, 10));
    nn::Sequential lenet(nn::Conv2d(1, 32, 5, {.padding = 2}), relu, nn::MaxPool2d(2), nn::Conv2d(32, 64, 5, {.padding = 2}), relu, nn::MaxPool2d(2),
                         nn::Flatten(), nn::Dropout(0.3), nn::Linear(64 * 7 * 7, 128), relu, nn::Linear(128, 10));
    for (nn::Sequential* model : {&softmax, &mlp, &lenet}) model->eval();
    const TraceInput input{"image", randn({2, 1, 28, 28}), {"batch"}};
    const std::vector<std::vector<Tensor>> others = {{randn({5, 1, 28, 28})}, {randn({1, 1, 28, 28})}};
    write_model("softmax", of(softmax), {input}, others);
    write_model("mlp", of(mlp), {input}, others, {.external_data = true});
    write_model("lenet", of(lenet), {input}, others, {.opset = 18});
    CifarNet cifar;
    write_model("cifar", of(cifar), {{"image", randn({2, 3, 24, 24}), {"batch"}}}, {{randn({3, 3, 24, 24})}});

    nn::Sequential norms(nn::Conv2d(3, 8, 3), nn::BatchNorm2d(8), relu, nn::GroupNorm(2, 8), nn::AvgPool2d(2), nn::AdaptiveAvgPool2d(1),
                         nn::Flatten());
    norms.eval();
    write_model("norms", of(norms), {{"image", randn({2, 3, 12, 12}), {"batch"}}}, {{randn({4, 3, 12, 12})}}, {.opset = 21});
    nn::Sequential any_size(nn::Conv2d(3, 4, 3, {.stride = 2, .padding = 1}), relu, nn::MaxPool2d(2), nn::Conv2d(4, 2, 1));
    write_model("any_size", of(any_size), {{"image", randn({2, 3, 16, 16}), {"batch", "", "height", ""}}}, {{randn({1, 3, 32, 16})}});
}

void sequences() {
    CharRnn char_rnn;
    const auto states = [](std::int64_t batch) { return randn({2, batch, 24}); };
    write_model("char_rnn", [&](const std::vector<Tensor>& x) { return char_rnn.run(x); },
                {{"codes", randint(0, 30, {4, 2}), {"", "batch"}}, {"h", states(2), {"", "batch"}}, {"c", states(2), {"", "batch"}}},
                {{randint(0, 30, {4, 5}), states(5), states(5)}});
    nn::GRU gru(6, 8, {.batch_first = true, .bidirectional = true});
    write_model("gru", [&](const std::vector<Tensor>& x) -> std::vector<Tensor> { return {gru(x[0]).output}; }, {{"x", randn({2, 3, 6}), {"batch"}}},
                {{randn({4, 3, 6})}});
    const TraceInput codes{"codes", randint(0, 30, {4, 2}), {"time", "batch"}};
    write_model("char_rnn_any_time", [&](const std::vector<Tensor>& x) { return char_rnn.run(x); },
                {codes, {"h", states(2), {"", "batch"}}, {"c", states(2), {"", "batch"}}},
                {{randint(0, 30, {9, 5}), states(5), states(5)}, {randint(0, 30, {1, 1}), states(1), states(1)}});
    nn::LSTM lstm(6, 8, {.batch_first = true, .bidirectional = true});
    write_model("lstm_lengths",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    const auto [output, last] = lstm(x[0], {}, x[1]);
                    return {output, last.h, last.c};
                },
                {{"x", randn({2, 4, 6}), {"batch", "time"}}, {"lengths", tensor<std::int64_t>({4, 2}), {"batch"}}},
                {{randn({3, 7, 6}), tensor<std::int64_t>({0, 7, 3})}});
    nn::RNNCell cell(2, 8);
    nn::Linear out(8, 1);
    write_model("sequence_rnn",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    Tensor h = zeros({x[0].size(1), 8});
                    for (const Tensor& step : x[0].unbind(0)) h = cell(step, h);
                    return {out(h)};
                },
                {{"x", randn({5, 3, 2}), {"", "batch"}}}, {{randn({5, 2, 2})}});
    Transformer transformer;
    transformer.eval();
    write_model("transformer", of(transformer), {{"codes", randint(0, 30, {2, 7}), {"batch", "time"}}},
                {{randint(0, 30, {3, 11})}, {randint(0, 30, {1, 4})}});
}

void trees() {
    nn::NaryTreeLSTMCell binary(4, 6);
    nn::ChildSumTreeLSTMCell child_sum(4, 6);
    const auto state = [](std::int64_t n) { return randn({n, 6}); };
    write_model("tree_leaf",
                [&](const std::vector<Tensor>& x) {
                    const LSTMState s = binary(x[0]);
                    return std::vector<Tensor>{s.h, s.c};
                },
                {{"x", randn({3, 4}), {"nodes"}}}, {{randn({5, 4})}});
    const auto names = [&](std::int64_t n) {
        return std::vector<TraceInput>{
            {"left_h", state(n), {"nodes"}}, {"left_c", state(n), {"nodes"}}, {"right_h", state(n), {"nodes"}}, {"right_c", state(n), {"nodes"}}};
    };
    write_model("tree_node",
                [&](const std::vector<Tensor>& x) {
                    const LSTMState s = binary({x[0], x[1]}, {x[2], x[3]});
                    return std::vector<Tensor>{s.h, s.c};
                },
                names(3), {{state(1), state(1), state(1), state(1)}});
    write_model("child_sum_node",
                [&](const std::vector<Tensor>& x) {
                    const LSTMState s = child_sum(x[4], {{x[0], x[1]}, {x[2], x[3]}});
                    return std::vector<Tensor>{s.h, s.c};
                },
                {{"left_h", state(3)}, {"left_c", state(3)}, {"right_h", state(3)}, {"right_c", state(3)}, {"x", randn({3, 4})}});
    // ((0 1) (2 (3 4))): a tree of a given shape
    nn::Embedding embedding(20, 4);
    nn::Linear classify(6, 5);
    write_model("tree",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    std::vector<LSTMState> words;
                    for (int i = 0; i < 5; ++i) words.push_back(binary(embedding(x[0][i])));
                    return {log_softmax(classify(binary(binary(words[0], words[1]), binary(words[2], binary(words[3], words[4]))).h), -1)};
                },
                {{"words", tensor({3, 7, 1, 0, 19})}}, {{tensor({1, 1, 2, 3, 5})}});
    // Any binary tree in postfix order: node k is a word, or made of the nodes left[k] and right[k], by while_loop.
    write_model("any_tree",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    const Tensor words = x[0], left = x[1], right = x[2], is_leaf = x[3];
                    const Tensor count = tensor(words.size(0));
                    const std::vector<Tensor> end = while_loop(
                        [&](const std::vector<Tensor>& s) { return s[0] < count; },
                        [&](const std::vector<Tensor>& s) -> std::vector<Tensor> {
                            const Tensor k = reshape(s[0], {1}), l = index_select(left, 0, k), r = index_select(right, 0, k);
                            const LSTMState leaf = binary(embedding(index_select(words, 0, k)));
                            const LSTMState node =
                                binary({index_select(s[1], 0, l), index_select(s[2], 0, l)}, {index_select(s[1], 0, r), index_select(s[2], 0, r)});
                            const Tensor is = reshape(index_select(is_leaf, 0, k), {1, 1});
                            return {s[0] + 1, index_add(s[1], 0, k, where(is, leaf.h, node.h)), index_add(s[2], 0, k, where(is, leaf.c, node.c))};
                        },
                        {tensor(0), zeros({words.size(0), 6}), zeros({words.size(0), 6})});
                    return {classify(end[1][-1])};
                },
                {{"words", tensor({3, 7, 0, 1, 0})},
                 {"left", tensor({0, 0, 0, 0, 2})},
                 {"right", tensor({0, 0, 1, 0, 3})},
                 {"is_leaf", tensor({true, true, false, true, false})}},
                {{tensor({4, 2, 9, 0, 0}), tensor({0, 0, 0, 1, 0}), tensor({0, 0, 0, 2, 3}), tensor({true, true, true, false, false})}});
}

void others() {
    nn::Sequential field(nn::Linear(2, 64), nn::Tanh(), nn::Linear(64, 2));
    write_model("neural_ode",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    Tensor y = x[0];
                    const double h = 0.1;
                    for (int i = 0; i < 3; ++i) {
                        const Tensor a = field(y), b = field(y + a * (h / 2)), c = field(y + b * (h / 2)), d = field(y + c * h);
                        y = y + (a + 2 * b + 2 * c + d) * (h / 6);
                    }
                    return {y};
                },
                {{"x", randn({3, 2}), {"batch"}}}, {{randn({7, 2})}});
    nn::Sequential policy(nn::Linear(4, 64), nn::Tanh(), nn::Linear(64, 2));
    write_model("cartpole",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> { return {softmax(policy(x[0]), -1), argmax(policy(x[0]), -1)}; },
                {{"state", randn({1, 4}), {"batch"}}}, {{randn({6, 4})}});
}

void control_flow() {
    const Tensor w = randn({3, 3});
    write_model("cond",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    return {cond(x[0].sum() > 0, [&] { return matmul(x[0], w); }, [&] { return -x[0] * 2; })};
                },
                {{"x", ones({2, 3}), {"batch"}}}, {{-ones({4, 3})}});
    write_model("while_loop",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    return while_loop([](const Tensor& i, const Tensor& h) { return (i < 10) & (h.abs().sum() > 0.5); },
                                      [&](const Tensor& i, const Tensor& h) { return std::pair{i + 1, tanh(matmul(h, w)) * 0.9}; },
                                      {tensor(0), x[0]});
                },
                {{"x", randn({2, 3}), {"batch"}}}, {{randn({1, 3})}, {zeros({2, 3})}});
    for (const bool reverse : {false, true}) {
        write_model(reverse ? "scan_reverse" : "scan",
                    [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                        const ScanResult r = scan(
                            [&](const Tensor& h, const Tensor& step) {
                                const Tensor next = tanh(matmul(h, w) + step);
                                return std::pair{next, next * 2};
                            },
                            {x[0]}, {x[1]}, {.dim = 1, .reverse = reverse});
                        return {r.carry[0], r.outputs[0]};
                    },
                    {{"h", randn({2, 3}), {"batch"}}, {"x", randn({2, 5, 3}), {"batch", "time"}}}, {{randn({3, 3}), randn({3, 2, 3})}});
    }
    const auto until = [](const Tensor& h, const Tensor& step) {
        return while_loop([](const Tensor& i, const Tensor& now) { return (i < 5) & (now.abs().sum() > 0.1); },
                          [&](const Tensor& i, const Tensor& now) { return std::pair{i + 1, tanh(now + step) * 0.5}; }, {tensor(0), h})[1];
    };
    const auto nested = [&](const Tensor& h, const Tensor& steps) {
        const auto body = [&](const Tensor& now, const Tensor& step) {
            const Tensor next = cond(step.sum() > 0, [&] { return until(now, step); }, [&] { return now - step; });
            return std::pair{
                next, scan([](const Tensor& sum, const Tensor& row) { return std::pair{sum + row, sum * row}; }, {step[0]}, {next}).outputs[0]};
        };
        const ScanResult r = scan(body, {h}, {steps});
        return std::vector<Tensor>{r.carry[0], r.outputs[0]};
    };
    write_model("while_in_scan",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    const ScanResult r = scan(
                        [&](const Tensor& h, const Tensor& step) {
                            const Tensor next = until(h, step);
                            return std::pair{next, next * 2};
                        },
                        {x[0]}, {x[1]});
                    return {r.carry[0], r.outputs[0]};
                },
                {{"h", randn({2, 3}), {"batch"}}, {"x", randn({5, 2, 3}), {"time", "batch"}}}, {{randn({3, 3}), randn({4, 3, 3})}});
    write_model("while_in_scan_alone",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    const auto body = [](const Tensor& h, const Tensor& step) {
                        const Tensor next = while_loop([](const Tensor& now) { return now.norm() > 1.0; },
                                                       [](const Tensor& now) { return now * 0.7; }, {h + step})[0];
                        return std::pair{next, next};
                    };
                    const ScanResult r = scan(body, {zeros({3})}, {x[0]});
                    return {r.carry[0], r.outputs[0]};
                },
                {{"x", randn({5, 3}) * 2, {"time"}}}, {{randn({9, 3}) * 3}});
    write_model("nested_control_flow", [&](const std::vector<Tensor>& x) { return nested(x[0], x[1]); },
                {{"h", randn({2, 3}), {"batch"}}, {"x", randn({5, 2, 3}), {"time", "batch"}}}, {{randn({3, 3}), randn({4, 3, 3})}});
    write_model("while_in_scan_of_chosen", [&](const std::vector<Tensor>& x) { return nested(x[0], x[1][x[1].sum({1, 2}) > 0]); },
                {{"h", randn({2, 3}), {"batch"}}, {"x", cat({ones({1, 2, 3}), randn({5, 2, 3})}), {"time", "batch"}}},
                {{randn({3, 3}), cat({ones({1, 3, 3}), randn({6, 3, 3})})}});
    write_model("scan_in_while_of_chosen",
                [](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    const Tensor kept = x[0][x[0] > 0];
                    const auto body = [&](const Tensor& i, const Tensor& now) {
                        const ScanResult r = scan([](const Tensor& sum, const Tensor& v) { return std::pair{sum + v, sum * v}; }, {zeros({})}, {now});
                        return std::pair{i + 1, tanh(r.outputs[0]) + kept * x[0][x[0] > 0.1].sum()};
                    };
                    return {while_loop([](const Tensor& i, const Tensor&) { return i < 3; }, body, {tensor(0), kept})[1]};
                },
                {{"x", tensor({0.5f, -1.0f, 0.25f, 0.05f}), {"n"}}}, {{tensor({1.0f, 0.5f})}});
    write_model("scan_gradient",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    Tape tape;
                    const Tensor h = x[0].detach().clone().requires_grad_();
                    const ScanResult r = scan(
                        [&](const Tensor& now, const Tensor& step) {
                            const Tensor next = tanh(matmul(now, w) + step);
                            return std::pair{next, next * 2};
                        },
                        {h}, {x[1]});
                    return tape.gradient(r.outputs[0].square().sum(), std::vector<Tensor>{h});
                },
                {{"h", randn({2, 3})}, {"x", randn({4, 2, 3})}});
}

void training() {
    nn::Sequential net(nn::Linear(4, 8), nn::BatchNorm1d(8), relu, nn::Linear(8, 3));
    const auto parameters = net.parameters();
    write_model("training_step",
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    Tape tape;
                    const Tensor loss = cross_entropy(net(x[0]), x[1]);
                    std::vector<Tensor> results = {loss};
                    const std::vector<Tensor> grads = tape.gradient(loss, parameters);
                    for (std::size_t i = 0; i < grads.size(); ++i) results.push_back(parameters[i].detach() - 0.1 * grads[i]);
                    return results;
                },
                {{"x", randn({6, 4}), {"batch"}}, {"target", randint(0, 3, {6}), {"batch"}}}, {{randn({9, 4}), randint(0, 3, {9})}});
}

// What onnxruntime has of float32 alone is written in what it has of float64.
void doubles(int opset) {
    nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 3));
    net.to(float64);
    const auto parameters = net.parameters();
    write_model("float64_clipped_step_" + std::to_string(opset),
                [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    Tape tape;
                    const Tensor loss = cross_entropy(net(x[0]), x[1]);
                    std::vector<Tensor> grads = tape.gradient(loss, parameters);
                    std::vector<Tensor> norms;
                    for (const Tensor& grad : grads) norms.push_back(grad.norm());
                    const Tensor total = stack(norms).norm();
                    std::vector<Tensor> results = {loss, total};
                    for (const Tensor& grad : grads) results.push_back(grad * clamp(0.1 / (total + 1e-6), 0.0, 1.0));
                    return results;
                },
                {{"x", randn({6, 4}, float64), {"batch"}}, {"target", randint(0, 3, {6}), {"batch"}}}, {{randn({9, 4}, float64), randint(0, 3, {9})}},
                {.opset = opset});
    write_model("float64_numbers_" + std::to_string(opset),
                [](const std::vector<Tensor>& v) -> std::vector<Tensor> {
                    const Tensor &x = v[0], moderate = clamp(x, -1e100, 1e100);  // ONNX's norms square what they are given
                    return {cos(x),       tan(x),        sinh(x),        cosh(x),     asinh(x),      acosh(x),     atanh(x),
                            digamma(x),   elu(x),        selu(x),        softplus(x), logsigmoid(x), softsign(x),  hardsigmoid(x),
                            hardswish(x), leaky_relu(x), norm(moderate), norm(x, 1),  norm(x[2]),    norm(x[2], 1)};
                },
                {{"x", tensor({0.5, 1e-9, -0.75, -2.3, 3.0, 1.0, -1.0, 1.0000001, 700.0, -700.0, 1e5, -1e5, 1e200, -1e200, 0.0}, float64)}},
                {{tensor({0.1, 0.2, -3.5, 5.25, 22.0, -22.0, 19.0, 1e8, -1e8, -0.999999, 0.999999, 1e-300, 2.0, 1.5, -40.0}, float64)}},
                {.opset = opset});
    write_model("norms_of_numbers_" + std::to_string(opset),
                [](const std::vector<Tensor>& v) -> std::vector<Tensor> {
                    return {norm(v[0]), norm(v[0], 1), norm(v[0], 3), norm(v[0], 0), norm(v[0], INFINITY)};
                },
                {{"x", full({}, -3.0)}}, {{full({}, 2.0)}}, {.opset = opset});
}

// Negative bits, the ends of integers, infinities and nan.
void ends(int opset) {
    const auto write = [&](const std::string& name, const Program& fn, const std::vector<TraceInput>& inputs,
                           const std::vector<std::vector<Tensor>>& others = {}) {
        write_model("ends_" + name + "_" + std::to_string(opset), fn, inputs, others, {.opset = opset});
    };
    for (const DType dtype : {DType::int32, int64}) {
        const std::string kind = dtype == int64 ? "int64" : "int32";
        const std::int64_t high = dtype == int64 ? INT64_MAX : INT32_MAX, large = dtype == int64 ? (std::int64_t{1} << 60) + 5 : (1 << 28) + 5;
        const Tensor x = tensor({high, -high, large, -large, std::int64_t{-7}, std::int64_t{7}, -high - 1}).to(dtype);
        const Tensor y = tensor({std::int64_t{-2}, std::int64_t{3}, large, high, std::int64_t{2}, std::int64_t{-7}, std::int64_t{5}}).to(dtype);
        write("divide_" + kind,
              [](const std::vector<Tensor>& v) -> std::vector<Tensor> { return {floor_divide(v[0], v[1]), remainder(v[0], v[1]), fmod(v[0], v[1])}; },
              {{"x", x}, {"y", y}});
        write("bits_" + kind,
              [](const std::vector<Tensor>& v) -> std::vector<Tensor> {
                  return {bitwise_and(v[0], v[1]), bitwise_or(v[0], v[1]), bitwise_xor(v[0], v[1]), bitwise_and(v[0], 3), bitwise_or(v[0], -8)};
              },
              {{"x", x}, {"y", y}});
        write("extremes_" + kind,
              [](const std::vector<Tensor>& v) -> std::vector<Tensor> {
                  const ValuesIndices up = cummax(v[0], 0), down = cummin(v[0], 0), most = max(v[0], 0), least = min(v[0], 0);
                  return {up.values,
                          up.indices,
                          down.values,
                          down.indices,
                          most.values,
                          most.indices,
                          least.values,
                          least.indices,
                          argmax(v[0]),
                          argmin(v[0]),
                          scatter_reduce(v[0] * 0, 0, v[1], v[0], "amin", false),
                          scatter_reduce(v[0] * 0, 0, v[1], v[0], "amax", false)};
              },
              {{"x", x}, {"index", tensor({0, 1, 2, 2, 3, 3, 1})}},
              {{(tensor({1, 3, 5, 5, 2, 5, 0}) + (high - 5)).to(dtype), tensor({0, 1, 2, 2, 3, 3, 1})}});
    }
    write("bits_bool",
          [](const std::vector<Tensor>& v) -> std::vector<Tensor> {
              return {bitwise_and(v[0], v[1]), bitwise_or(v[0], v[1]), bitwise_xor(v[0], v[1])};
          },
          {{"x", tensor({false, false, true, true})}, {"y", tensor({false, true, false, true})}});
    for (const DType dtype : {float32, float64}) {
        const float nan = NAN, inf = INFINITY;
        const Tensor x = tensor({-1.0f, nan, 0.0f, nan, 2.0f, inf, inf, -inf, -inf}).reshape({3, 3}).to(dtype);
        write(dtype == float64 ? "nan_float64" : "nan",
              [](const std::vector<Tensor>& v) -> std::vector<Tensor> {
                  const Tensor& t = v[0];
                  const ValuesIndices most = max(t, 1), least = min(t, 1, true), high = cummax(t, 1), low = cummin(t, 1);
                  return {amax(t),
                          amin(t, {1}),
                          most.values,
                          most.indices,
                          least.values,
                          least.indices,
                          argmax(t, 1),
                          argmin(t),
                          norm(t, INFINITY, {1}),
                          high.values,
                          high.indices,
                          low.values,
                          low.indices,
                          clamp(t, -1.0),
                          clamp(t, -INFINITY, 1.0),
                          clamp(t, -1.0, 1.0)};
              },
              {{"x", x}}, {{-x}, {x.flip({1})}});
    }
    write("mean_of_nothing", [](const std::vector<Tensor>& v) -> std::vector<Tensor> { return {mean(v[0], {0}), v[0].mean()}; },
          {{"x", ones({2, 3}), {"batch"}}}, {{zeros({0, 3})}});
}

// Of sizes that are named dimensions.
void sizes() {
    const auto image = [](std::int64_t height, std::int64_t width) { return randn({2, 3, height, width}); };
    const auto write = [&](const std::string& name, const Program& fn) {
        write_model("size_" + name, fn, {{"image", image(10, 9), {"batch", "", "height", "width"}}}, {{image(7, 12)}, {image(8, 8)}});
    };
    write("adaptive_max_pool",
          [](const std::vector<Tensor>& x) -> std::vector<Tensor> { return {adaptive_max_pool2d(x[0], 1), adaptive_avg_pool2d(x[0], 1)}; });
    write("ceil_mode", [](const std::vector<Tensor>& x) -> std::vector<Tensor> {
        return {max_pool2d(x[0], 3, {.stride = 2, .ceil_mode = true}), max_pool2d(x[0], 3, {.stride = 2, .padding = 1, .ceil_mode = true}),
                avg_pool2d(x[0], 3, {.stride = 2, .ceil_mode = true}),
                avg_pool2d(x[0], 3, {.stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false})};
    });
    write("full", [](const std::vector<Tensor>& x) -> std::vector<Tensor> {
        return {full({2}, static_cast<double>(x[0].size(2))), full_like(x[0], x[0].size(3))};
    });
    write("roll", [](const std::vector<Tensor>& x) -> std::vector<Tensor> {
        return {roll(x[0], {x[0].size(2) / 2, 1}, {2, 3}), roll(x[0], {-x[0].size(3)}, {2})};
    });
    write_model("size_diagonal",
                [](const std::vector<Tensor>& x) -> std::vector<Tensor> { return {diagonal(x[0]), diagonal(x[0], 1), diagonal(x[0], -2)}; },
                {{"x", randn({4, 4}), {"n", "n"}}}, {{randn({6, 6})}});
    write_model("size_selected", [](const std::vector<Tensor>& x) -> std::vector<Tensor> { return {masked_select(x[0], x[0] > 0).mean()}; },
                {{"x", tensor({1.0f, -2.0f, 3.0f}), {"n"}}}, {{tensor({1.0f, 2.0f})}, {tensor({-1.0f})}});
}

}  // namespace

int main(int argc, char** argv) {
    root = argc > 1 ? argv[1] : "onnx_models";
    fs::create_directories(root);
    table.open(root / "table.tsv");
    manual_seed(3);
    images();
    sequences();
    trees();
    others();
    control_flow();
    training();
    for (const int opset : {17, 20}) {
        doubles(opset);
        ends(opset);
    }
    sizes();
}
