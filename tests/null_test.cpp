// Functions and texts that are null: each is a ValueError of the line that gave it, and nothing has changed.
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fails.h"
#include "tapir/autograd/checkpoint.h"
#include "tapir/autograd/gradcheck.h"
#include "tapir/autograd/trace/check_trace.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/graph_file.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/autograd/watch/profiler.h"
#include "tapir/core/io/file.h"
#include "tapir/core/io/npy.h"
#include "tapir/core/io/safetensors.h"
#include "tapir/core/memory_profiler.h"
#include "tapir/nn/data/data.h"
#include "tapir/nn/data/ptb.h"
#include "tapir/nn/data/text.h"
#include "tapir/nn/summary/summary_writer.h"
#include "tapir/nn/training_state.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

#define REFUSED(text, ...) FAILS(ValueError, text, static_cast<void>(__VA_ARGS__))
#define NULL_TEXT(...) REFUSED("a text that is given here is a null pointer", __VA_ARGS__)

using OfList = std::function<Tensor(const std::vector<Tensor>&)>;
using OfOne = std::function<Tensor(const Tensor&)>;

struct Members : nn::Module {
    Tensor weight = ones({2}).requires_grad_();
    const char* name = nullptr;
    void members(nn::Members& m) override { m(name, weight); }
};
struct Keys : nn::Module {
    std::map<std::string, nn::Linear> layers;
    Keys() { layers.emplace("a", nn::Linear(1, 1)); }
    void members(nn::Members& m) override { m(static_cast<const char*>(nullptr), layers); }
};
struct Buffers : nn::Module {
    Tensor mean = ones({2});
    void members(nn::Members& m) override { m.buffer(nullptr, mean); }
};

}  // namespace

TEST_CASE("functions of tensors that are null") {
    const Tensor x = ones({3}, float64), leaf = ones({3}).requires_grad_();
    const OfList list;
    const OfOne one;
    Tensor (*const pointer)(const Tensor&) = nullptr;
    Tensor (*const list_pointer)(const std::vector<Tensor>&) = nullptr;
    Tensor (*const of_in)(In) = nullptr;

    REFUSED("checkpoint: the function is null", checkpoint(list, {x}));
    REFUSED("checkpoint: the function is null", checkpoint(one, {x}));
    REFUSED("checkpoint: the function is null", checkpoint(pointer, {x}));
    REFUSED("checkpoint: the function is null", checkpoint(list_pointer, {x}));
    REFUSED("checkpoint: the function is null", checkpoint(nullptr, {x}));
    REFUSED("gradcheck: the function is null", gradcheck(list, {x}));
    REFUSED("gradcheck: the function is null", gradcheck(one, {x}));
    REFUSED("gradcheck: the function is null", gradcheck(pointer, {x}));
    REFUSED("gradgradcheck: the function is null", gradgradcheck(list, {x}));
    REFUSED("gradgradcheck: the function is null", gradgradcheck(one, {x}));
    REFUSED("gradgradcheck: the function is null", gradgradcheck(of_in, {x}));

    REFUSED("trace: the function is null", trace(list, {{"x", x}}));
    REFUSED("trace: the function is null", trace(one, {{"x", x}}));
    REFUSED("trace: the function is null", trace(pointer, {{"x", x}}));
    REFUSED("trace: the function is null", trace(of_in, {{"x", x}}));
    REFUSED("trace: the function is null", trace(std::ref(one), {{"x", x}}));
    const Graph graph = trace([](const Tensor& t) { return t * 2; }, {{"x", x}});
    REFUSED("check_trace: the function is null", check_trace(graph, one, {x}));
    const Tensor truth = tensor(true);
    const auto plus = [](const Tensor& t) { return t + 1; };
    REFUSED("cond: the function is null", cond(truth, OfOne(plus), one, {x}));
    REFUSED("cond: the function is null", cond(truth, one, OfOne(plus), {x}));
    REFUSED("while_loop: the function is null", while_loop(one, plus, {x}));
    REFUSED("while_loop: the function is null", while_loop([](const Tensor& t) { return t.sum() < 9; }, one, {x}));
    const std::function<std::vector<Tensor>(const Tensor&, const Tensor&)> step;
    REFUSED("scan: the function is null", scan(step, {x}, {x}));

    REFUSED("register_hook: the function is empty", leaf.register_hook(one));
    Tape tape;
    const Tensor y = leaf * 2;
    REFUSED("register_hook: the function is empty", y.register_hook(one));
    REFUSED("register_hook: the function is empty", y.register_hook(pointer));
    REFUSED("register_hook: the function is empty", y.register_hook(std::function<void(const Tensor&)>()));
    REFUSED("register_hook: the function is empty", y.register_hook(static_cast<void (*)(const Tensor&)>(nullptr)));
    REFUSED("a text that is given here is a null pointer", tape.str(static_cast<const char*>(nullptr)));
    tape.backward(sum(y));
    CHECK(leaf.grad().sum().item() == 6);
}

TEST_CASE("functions of modules, data and training that are null") {
    nn::Linear layer(2, 2);
    REFUSED("apply: the function is null", layer.apply(nullptr));
    REFUSED("apply: the function is null", layer.apply(std::function<void(nn::Module&)>()));
    const Tensor x = ones({1, 2});
    Tensor (*const of_in)(In) = nullptr;
    const OfOne one;
    REFUSED("AnyModule: the function is null", nn::AnyModule(of_in));
    REFUSED("AnyModule: the function is null", nn::AnyModule(one));
    nn::Sequential net(nn::Linear(2, 2));
    REFUSED("AnyModule: the function is null", net.push_back(of_in));
    REFUSED("AnyModule: the function is null", net.push_back(one));
    CHECK(net.size() == 1);
    const nn::Sequential with_none(nn::Linear(2, 2), one);
    REFUSED("AnyModule: it holds nothing", with_none(x));
    nn::ModuleList modules;
    REFUSED("AnyModule: the function is null", modules.push_back(of_in));
    REFUSED("AnyModule: the function is null", nn::ModuleList{of_in});
    CHECK(modules.size() == 0);
    nn::ModuleDict dict;
    REFUSED("AnyModule: the function is null", dict.insert("a", one));
    CHECK(dict.size() == 0);

    const data::TensorDataset rows{ones({4, 2})};
    const std::function<Tensor(std::vector<Tensor>)> collate;
    REFUSED("DataLoader: the function is null", data::DataLoader(rows, {.batch_size = 2}, collate));
    REFUSED("DataLoader: the function is null", data::DataLoader(rows, data::SequentialSampler(4), {}, collate));
    REFUSED("DataLoader: the function is null", data::DataLoader<data::TensorDataset<Tensor>, decltype(collate)>(rows));
    REFUSED("map: the function is null", data::map(rows, one));
    REFUSED("map: the function is null", data::MapDataset<data::TensorDataset<Tensor>, OfOne>(rows, one));

    REFUSED("rename: the function is empty", rename(layer.state_dict(), Rename()));
    optim::SGD sgd(layer.parameters(), {.lr = 0.1});
    REFUSED("LambdaLR: the function is empty", optim::LambdaLR(sgd, nullptr));
    REFUSED("MultiplicativeLR: the function is empty", optim::MultiplicativeLR(sgd, nullptr));
    REFUSED("ChainedLR: a schedule is null", optim::ChainedLR(sgd, {nullptr}));
    CHECK(sgd.lr() == 0.1);
    optim::LBFGS lbfgs(layer.parameters());
    const Tensor weight = layer.weight.detach().clone();
    REFUSED("LBFGS.step: the function is null", lbfgs.step(nullptr));
    CHECK(equal(layer.weight, weight));
}

TEST_CASE("paths that are null") {
    const char* const none = nullptr;
    const Tensor x = ones({2});
    nn::Linear layer(2, 2);
    NULL_TEXT(save_npy(none, x));
    NULL_TEXT(save_npy(nullptr, x));
    NULL_TEXT(load_npy(none));
    NULL_TEXT(save_npz(none, {{"x", x}}));
    NULL_TEXT(load_npz(none));
    NULL_TEXT(save_safetensors(none, {{"x", x}}));
    NULL_TEXT(load_safetensors(none));
    NULL_TEXT(write_file(none, "text"));
    NULL_TEXT(write_file("null_test.txt", none));
    CHECK(!std::filesystem::exists("null_test.txt"));
    NULL_TEXT(nn::save(layer, none));
    NULL_TEXT(nn::load(layer, none));
    NULL_TEXT(nn::load(layer, none, nn::LoadOptions{}));
    NULL_TEXT(nn::TrainingState(none));
    NULL_TEXT(data::read_csv(none));
    NULL_TEXT(data::read_idx(none));
    NULL_TEXT(data::mnist(none));
    NULL_TEXT(data::cifar10(none));
    NULL_TEXT(data::read_cifar10(none));
    NULL_TEXT(data::read_ptb(none));
    NULL_TEXT(data::parse_ptb(none));
    NULL_TEXT(data::read_lines(none));
    NULL_TEXT(data::LineReader(none));
    const Graph graph = trace([](const Tensor& t) { return t * 2; }, {{"x", x}});
    NULL_TEXT(save_graph(none, graph));
    NULL_TEXT(load_graph(none));
    NULL_TEXT(nn::SummaryWriter(none));
    {
        const MemoryProfiler profiler;
        NULL_TEXT(profiler.export_timeline(none));
    }
    Profiler profiler;
    NULL_TEXT(ProfileScope(none));
    profiler.stop();
    NULL_TEXT(profiler.export_chrome_trace(none));
}

TEST_CASE("names and words that are null") {
    const char* const none = nullptr;
    const Tensor x = ones({2}), m = ones({2, 2});
    NamedTensors state = {{"x", x}};
    NULL_TEXT(state[none]);
    NULL_TEXT(state.at(none));
    NULL_TEXT(state.contains(none));
    NULL_TEXT(state.find(none));
    NULL_TEXT(strip_prefix(none));
    NULL_TEXT(only_prefix(none));
    NULL_TEXT(replace_prefix(none, "a"));
    NULL_TEXT(replace_prefix("a", none));
    nn::ModuleDict dict;
    NULL_TEXT(dict.insert(none, nn::Linear(1, 1)));
    NULL_TEXT(dict.contains(none));
    NULL_TEXT(dict.at(none));
    NULL_TEXT(dict[none]);
    nn::TrainingState run("null_test.safetensors");
    std::int64_t steps = 0;
    std::string text;
    Tensor t = x;
    Generator random(1);
    nn::Linear layer(2, 2);
    NULL_TEXT(run(none, layer));
    NULL_TEXT(run(none, steps));
    NULL_TEXT(run(none, text));
    NULL_TEXT(run(none, t));
    NULL_TEXT(run(none, random));
    NULL_TEXT(run.load_from(none));
    NULL_TEXT(nn::pad_sequence({x, x}, false, 0, none));
    NULL_TEXT(pad(m, {1, 1}, PadMode(none)));
    NULL_TEXT(nn::HParam(none));
    NULL_TEXT(linalg::norm(m, none));

    // The line is that in members().
    const auto refused_in_members = [](nn::Module& module) {
        try {
            module.parameters();
            module.buffers();
            CHECK(std::string("an error") == "nothing thrown");
        } catch (const ValueError& error) {
            const std::string what = error.what();
            INFO(what);
            CHECK(what.find("null_test.cpp:") == 0);
            CHECK(what.find(": a text that is given here is a null pointer") != std::string::npos);
        }
    };
    Members members;
    Keys keys;
    Buffers buffers;
    refused_in_members(members);
    refused_in_members(keys);
    refused_in_members(buffers);

    REFUSED("a null pointer", einsum(none, {x, x}));
    REFUSED("a null pointer", gelu(x, none));
    REFUSED("a null pointer", div(x, x, none));
    REFUSED("a null pointer", x.div(2, none));
    REFUSED("a null pointer", meshgrid({x, x}, none));
    REFUSED("a null pointer", linalg::qr(m, none));
    REFUSED("a null pointer", linalg::eigh(m, none));
    REFUSED("a null pointer", linalg::eigvalsh(m, none));
    REFUSED("a null pointer", quantile(x, 0.5, none));
    REFUSED("a null pointer", x.scatter_reduce(0, tensor({0, 1}), x, none));
    REFUSED("a null pointer", t.scatter_reduce_(0, tensor({0, 1}), x, none));
    REFUSED("a null pointer", conv1d(ones({1, 1, 3}), ones({1, 1, 1}), {}, {.padding = none}));
    REFUSED("a null pointer", interpolate(ones({1, 1, 2}), {.size = 4, .mode = none}));
    REFUSED("a null pointer", broadcast_shapes({2}, {3}, none));

    const std::string folder = "null_test_csv";
    std::filesystem::create_directory(folder);
    write_file(folder + "/a.csv", "a,b\n1,2\n");
    const data::Csv csv = data::read_csv(folder + "/a.csv");
    NULL_TEXT(csv.column(none));
    NULL_TEXT(csv.text(none));
    NULL_TEXT(csv.numbers(none));
    NULL_TEXT(csv.numbers({"a", none}));
    NULL_TEXT(data::LineReader(folder + "/a.csv", none));

    nn::SummaryWriter writer(folder);
    NULL_TEXT(writer.add_scalar(none, 1));
    NULL_TEXT(writer.add_scalar(none, ones({})));
    NULL_TEXT(writer.add_scalars(none, {{"a", 1}}));
    NULL_TEXT(writer.add_histogram(none, x));
    NULL_TEXT(writer.add_image(none, ones({1, 2, 2})));
    NULL_TEXT(writer.add_image("a", ones({1, 2, 2}), 0, nn::SummaryWriter::kNow, none));
    NULL_TEXT(writer.add_images(none, ones({1, 1, 2, 2})));
    NULL_TEXT(writer.add_text(none, "a"));
    NULL_TEXT(writer.add_text("a", none));
    NULL_TEXT(writer.add_hparams({{"a", 1}}, {{"b", 1}}, {}, none));
    NULL_TEXT(writer.add_embedding(m, {}, {}, 0, none));
    writer.close();
    std::filesystem::remove_all(folder);
}

TEST_CASE("names in graphs that are null") {
    const char* const none = nullptr;
    Graph graph = trace([](const Tensor& t) { return sum(t, 0); }, {{"x", ones({2})}});
    const std::string before = graph.str();
    NULL_TEXT(graph.value(none));
    NULL_TEXT(Graph::parse(none));
    NULL_TEXT(graph.add_input(none, float32, {2}));
    NULL_TEXT(graph.add_parameter(none, ones({2})));
    NULL_TEXT(graph.add_constant(ones({2}), none));
    NULL_TEXT(graph.add_output(none, graph.value("x")));
    NULL_TEXT(graph.remove_output(none));
    NULL_TEXT(graph.insert(nullptr, none, {graph.value("x")}));
    NULL_TEXT(graph.set_attribute(graph.nodes().front().get(), none, 1.0));
    NULL_TEXT(graph.nodes().front()->attributes().get(none));
    NULL_TEXT(SymInt::dim(none));
    NULL_TEXT(SymInt::parse(none));
    CHECK(graph.str() == before);
}
