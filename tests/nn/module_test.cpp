// Modules: names, sharing, copies, state.
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "../fails.h"
#include "check.h"
#include "tapir/optim/optim.h"

using namespace tapir;

namespace {

struct Block : nn::Module {
    nn::Linear first, second;
    explicit Block(std::int64_t n = 4) : first(n, n), second(n, n, false) {}
    void members(nn::Members& m) override { m("first", first)("second", second); }
    Tensor forward(In x) const { return second(relu(first(x))); }
};

struct Model : nn::Module {
    nn::Linear input{3, 4};
    std::vector<Block> blocks{Block(), Block()};
    nn::Dropout drop{0.5};
    Tensor scale = ones({4}).requires_grad_(), count = zeros({1});
    void members(nn::Members& m) override { m("input", input)("blocks", blocks)("drop", drop)("scale", scale).buffer("count", count); }
    Tensor forward(In x) const {
        const CallerScope caller(x.loc);
        Tensor y = input(x);
        for (const Block& block : blocks) y = y + block.forward(y);
        return drop(y) * scale;
    }
};

std::vector<std::string> names(const NamedTensors& tensors) {
    std::vector<std::string> list;
    for (const NamedTensor& t : tensors) list.push_back(t.name);
    return list;
}

struct File {
    std::string path = (std::filesystem::temp_directory_path() / "tapir_module_test.safetensors").string();
    ~File() { std::remove(path.c_str()); }
};

}  // namespace

TEST_CASE("parameters have the members' names, in their order") {
    const Model model;
    CHECK(names(model.named_parameters()) ==
          std::vector<std::string>{"input.weight", "input.bias", "blocks.0.first.weight", "blocks.0.first.bias", "blocks.0.second.weight",
                                   "blocks.1.first.weight", "blocks.1.first.bias", "blocks.1.second.weight", "scale"});
    CHECK(names(model.named_buffers()) == std::vector<std::string>{"count"});
    CHECK(model.parameter_count() == 16 + 2 * 36 + 4);
    CHECK(model.parameters().size() == 9);
    CHECK(model.buffers().size() == 1);
    Model changed;
    std::vector<std::string> modules;
    for (const nn::NamedModule& m : changed.named_modules()) modules.push_back(m.name);
    CHECK(modules ==
          std::vector<std::string>{"", "input", "blocks.0", "blocks.0.first", "blocks.0.second", "blocks.1", "blocks.1.first", "blocks.1.second",
                                   "drop"});
    CHECK(changed.modules().front() == &changed);
}

TEST_CASE("a copy shares tensors and nothing else") {
    Model a;
    Model b = a;
    CHECK(b.input.weight.is_same(a.input.weight));
    b.eval();
    CHECK(a.drop.is_training());
    CHECK(!b.drop.is_training());
    b.input = nn::Linear(3, 4);
    CHECK(!b.input.weight.is_same(a.input.weight));
    CHECK(b.named_parameters()[0].tensor.is_same(b.input.weight));
    b.blocks.emplace_back();
    CHECK(a.parameters().size() == 9);
    CHECK(b.parameters().size() == 12);
    std::vector<Tensor> before = a.parameters();
    const Model moved = std::move(a);
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(moved.parameters()[i].is_same(before[i]));
}

TEST_CASE("one layer in two places counts once and is trained as one") {
    struct Tied : nn::Module {
        nn::Linear encode{3, 3, false}, decode{3, 3, false}, again;
        Tied() : again(encode) { decode.weight = encode.weight; }
        void members(nn::Members& m) override { m("encode", encode)("decode", decode)("again", again); }
    };
    Tied model;
    CHECK(names(model.named_parameters()) == std::vector<std::string>{"encode.weight"});
    CHECK(model.parameter_count() == 9);
    CHECK(names(model.state_dict()) == std::vector<std::string>{"encode.weight", "decode.weight", "again.weight"});
    model.to(float64);
    CHECK(model.decode.weight.is_same(model.encode.weight));
    CHECK(model.again.weight.dtype() == float64);
    // A file that holds the shared tensor once is enough.
    model.load_state_dict({{"encode.weight", ones({3, 3})}});
    CHECK(model.decode.weight.detach().sum().item() == 9);
    Tape tape;
    tape.backward(sum(model.decode(model.encode(ones({3}, float64)))));
    optim::SGD(model.parameters(), {.lr = 1}).step();
    CHECK(model.again.weight.detach().sum().item() == Approx(9 - 54));
}

TEST_CASE("training mode, freezing, gradients, apply") {
    Model model;
    model.eval();
    for (const nn::Module* m : model.modules()) CHECK(!m->is_training());
    model.train();
    CHECK(model.blocks[1].second.is_training());
    model.input.requires_grad_(false);
    {
        Tape tape;
        tape.backward(sum(model.forward(randn({2, 3}))));
    }
    CHECK(!model.input.weight.grad().defined());
    CHECK(model.scale.grad().defined());
    model.zero_grad();
    for (const Tensor& p : model.parameters()) CHECK(!p.grad().defined());
    std::vector<nn::Module*> order;
    model.apply([&](nn::Module& m) { order.push_back(&m); });
    CHECK(order.size() == model.modules().size());
    CHECK(order.back() == &model);  // children first
}

TEST_CASE("conversion keeps the tensors and what they are") {
    Model model;
    model.input.requires_grad_(false);
    const Model copy = model;
    const Tensor kept = model.scale;
    const std::vector<float> before = model.input.weight.to_vector<float>();
    const NamedTensors state = model.state_dict();
    model.to(float64);
    CHECK(model.scale.is_same(kept));
    CHECK(kept.dtype() == float64);
    CHECK(kept.requires_grad());
    CHECK(!model.input.weight.requires_grad());
    CHECK(model.count.dtype() == float64);
    CHECK(copy.input.weight.dtype() == float64);
    CHECK(model.input.weight.to_vector<float>() == before);
    CHECK(state[0].tensor.dtype() == float32);  // a view of what was
    CHECK(state[0].tensor.to_vector<float>() == before);
    const Tensor values = model.input.weight.detach();
    model.to(float64);
    CHECK(values.shares_storage(model.input.weight));  // nothing to do
    model.to(cpu);
    CHECK(values.shares_storage(model.input.weight));
    CHECK(check::contains(check::message<DTypeError>([&] { model.to(int64); }), "module_test.cpp"));
    model.to(float32);
    CHECK(model.input.weight.to_vector<float>() == before);
    CHECK(model.forward(randn({2, 3})).dtype() == float32);
}

TEST_CASE("optimizers and gradients follow a conversion") {
    struct Words : nn::Module {
        nn::Embedding table{5, 2};
        nn::Linear out{2, 1};
        void members(nn::Members& m) override { m("table", table)("out", out); }
        void backward() const {
            Tape tape;
            tape.backward(sum(out(table(tensor({1, 3})))));
        }
    };
    const auto train = [](bool converts) {
        manual_seed(5);
        Words words;
        optim::Adam adam(words.parameters(), {.lr = 0.1});
        for (int step = 0; step < 4; ++step) {
            words.backward();
            if (converts && step > 0) {  // with a gradient, and from the second on with moments
                const std::vector<float> sparse = words.table.weight.grad().to_vector<float>();
                words.zero_grad();
                words.backward();
                words.to(step % 2 == 1 ? float64 : float32);
                CHECK(words.table.weight.grad().dtype() == words.out.weight.dtype());
                CHECK(words.table.weight.grad().to_vector<float>() == sparse);
                words.zero_grad();
                words.backward();
            }
            adam.step();
            adam.zero_grad();
        }
        std::vector<float> all = words.table.weight.to_vector<float>();
        for (const float x : words.out.weight.to_vector<float>()) all.push_back(x);
        return all;
    };
    const std::vector<float> want = train(false), have = train(true);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(have[i] == Approx(want[i]).epsilon(1e-5));
    // Row-sparse as before: the step leaves the other rows alone.
    Words words;
    optim::SGD sgd(words.parameters(), {.lr = 1, .momentum = 0.9, .weight_decay = 0.5});
    words.backward();
    words.to(float64);
    const std::vector<double> before = words.table.weight.to_vector<double>();
    sgd.step();
    const std::vector<double> after = words.table.weight.to_vector<double>();
    for (const std::size_t i : {0u, 1u, 4u, 5u, 8u, 9u}) CHECK(after[i] == before[i]);
    CHECK(after[2] != before[2]);
}

TEST_CASE("what a tape has recorded is not converted") {
    Model model;
    model.eval();
    nn::Linear other(2, 2);
    Tape tape;
    const Tensor y = sum(model.forward(ones({3})));
    const int line = __LINE__ + 1;
    const std::string text = check::message<TapeError>([&] { model.to(float64); });
    CHECK(check::begins(
        text, "module_test.cpp:" + std::to_string(line) + ": to: input.weight is recorded on the tape of line " + std::to_string(line - 3)));
    CHECK(model.scale.dtype() == float32);
    other.to(float64);  // the tape has not met it
    tape.backward(y);
    CHECK(model.scale.grad().defined());
}

TEST_CASE("a conversion that fails halfway changes nothing") {
    Model model;
    const Tensor weight = model.input.weight.detach();
    {
        Tape tape;
        tape.backward(sum(model.scale * 2));  // the last parameter; those before it would do
        CHECK_THROWS_AS(model.to(float64), TapeError);
        for (const Tensor& p : model.parameters()) CHECK(p.dtype() == float32);
        CHECK(weight.shares_storage(model.input.weight));
        CHECK(model.scale.grad().dtype() == float32);
    }
    model.to(float64);
    CHECK(model.scale.grad().dtype() == float64);
    CHECK(model.scale.grad().sum().item() == 8);
}

TEST_CASE("a buffer that a tape has saved counts as modified when it is converted") {
    Model model;
    model.eval();
    Tensor x = ones({1}).requires_grad_();
    Tape tape;
    const Tensor y = x * model.count;
    const int line = __LINE__ + 1;
    model.to(float64);
    const std::string text = check::message<TapeError>([&] { tape.backward(y); });
    CHECK(check::contains(text, "modified in place at module_test.cpp:" + std::to_string(line)));
    CHECK(!x.grad().defined());
}

TEST_CASE("tensors of any kind are converted") {
    struct Odd : nn::Module {
        Tensor none, empty = zeros({0, 3}).requires_grad_(), scalar = full({}, 3, float32).requires_grad_();
        Tensor whole = arange(6, float32).view({2, 3}), row = whole[1], turned = whole.t(), given, ids = arange(3);
        void members(nn::Members& m) override {
            m("none", none)("empty", empty)("scalar", scalar);
            m.buffer("whole", whole).buffer("row", row).buffer("turned", turned).buffer("given", given).buffer("ids", ids);
        }
    };
    const std::int64_t before = memory_stats().live_bytes;
    float memory[2] = {4, 5};
    int given_back = 0;
    {
        Odd odd;
        odd.given = from_blob(memory, {2}, [&](void*) { ++given_back; });
        int calls = 0;
        odd.scalar.register_hook([&](const Tensor& g) { return ++calls, g * 2; });
        for (const DType dtype : {float64, bfloat16, float32, float64}) {  // more than once
            odd.to(dtype);
            CHECK(given_back == 1);
            for (const Tensor& t : {odd.empty, odd.scalar, odd.whole, odd.row, odd.turned, odd.given}) CHECK(t.dtype() == dtype);
            CHECK(odd.ids.dtype() == int64);
            CHECK(!odd.none.defined());
            CHECK(odd.empty.shape() == Shape(0, 3));
            CHECK(odd.scalar.item() == 3);
            CHECK(odd.row.to_vector<int>() == std::vector<int>{3, 4, 5});
            CHECK(odd.turned.to_vector<int>() == std::vector<int>{0, 3, 1, 4, 2, 5});
            CHECK(odd.turned.contiguous().to_vector<int>() == odd.turned.to_vector<int>());
            CHECK(odd.given.to_vector<int>() == std::vector<int>{4, 5});
            odd.row.fill_(7);  // each has elements of its own from here on
            CHECK(odd.whole.sum().item() == 15);
            odd.row.copy_(odd.whole[1]);
            odd.zero_grad();
            Tape tape;
            tape.backward(odd.scalar * odd.scalar);
            CHECK(odd.scalar.grad().item() == 12);
            CHECK(odd.scalar.grad().dtype() == dtype);
        }
        CHECK(calls == 4);
    }
    CHECK(memory_stats().live_bytes == before);
}

TEST_CASE("a converted tensor gives all its memory back") {
    const auto live = [] { return memory_stats().live_bytes; };
    const std::int64_t before = live();
    {
        nn::Linear small(3, 3), large(100, 100);
        const std::int64_t at_first = live();
        large.to(float64);
        CHECK(live() < at_first + 100 * 100 * 8);  // the old elements are gone
        small.to(float64);
        Tensor last;
        {
            nn::Linear gone(2, 200);
            const Tensor view = gone.weight.detach();
            gone.to(float64);
            last = view[1];
        }
        CHECK(last.dtype() == float32);
        CHECK(std::isfinite(last.sum().item()));
        small.to(float32);
        large.to(float32);
    }
    CHECK(live() == before);
}

TEST_CASE("a state is loaded by name, or not at all") {
    Model a, b;
    b.load_state_dict(a.state_dict());
    for (std::size_t i = 0; i < a.parameters().size(); ++i) {
        CHECK(a.parameters()[i].to_vector<float>() == b.parameters()[i].to_vector<float>());
        CHECK(!a.parameters()[i].shares_storage(b.parameters()[i]));
    }
    NamedTensors state = a.state_dict();
    state[0].tensor = ones({4, 4});
    state[1].name = "input.offset";
    const std::vector<float> before = b.scale.to_vector<float>();
    state[8].tensor = zeros({4});
    const int line = __LINE__ + 1;
    const std::string text = check::message<ValueError>([&] { b.load_state_dict(state); });
    CHECK(check::begins(text, "module_test.cpp:" + std::to_string(line) + ": load_state_dict: "));
    CHECK(check::contains(text, "missing: input.bias"));
    CHECK(check::contains(text, "unexpected: input.offset"));
    CHECK(check::contains(text, "input.weight is (4, 3), not (4, 4)"));
    CHECK(b.scale.to_vector<float>() == before);
    state.erase(state.begin());
    b.load_state_dict(state, /*strict=*/false);
    CHECK(b.scale.to_vector<float>() == std::vector<float>(4, 0.0f));
}

TEST_CASE("a model is saved and loaded") {
    const File file;
    Model a, b;
    nn::save(a, file.path);
    const Tensor kept = b.scale;
    nn::load(b, file.path);
    CHECK(b.scale.is_same(kept));  // in place: optimizers keep their parameters
    CHECK(a.input.weight.to_vector<float>() == b.input.weight.to_vector<float>());
    Block other;
    const int line = __LINE__ + 1;
    const std::string text = check::message<FileError>([&] { nn::load(other, file.path); });
    CHECK(check::begins(text, "module_test.cpp:" + std::to_string(line) + ": load: " + file.path));
    CHECK(check::contains(text, "missing: first.weight"));
    CHECK(check::contains(check::message<FileError>([&] { nn::load(other, file.path + ".none"); }), "No such file"));
}

TEST_CASE("a state with other names is loaded by new ones, and a misfit says which were meant") {
    const File file;
    Model a, b;
    nn::save(a, file.path);
    const NamedTensors plain = load_safetensors(file.path);
    const auto saved_as = [&](const Rename& to) { save_safetensors(file.path, rename(plain, to)); };
    const auto is_loaded = [&] { return a.input.weight.to_vector<float>() == b.input.weight.to_vector<float>(); };

    saved_as([](const std::string& name) { return "_orig_mod.module." + name; });
    const std::string wrapped = check::message<FileError>([&] { nn::load(b, file.path); });
    CHECK(check::contains(wrapped, "\n  missing: input.weight (4, 3)\n"));
    CHECK(check::contains(wrapped, "\n  unexpected: _orig_mod.module.input.weight (4, 3)\n"));
    CHECK(check::contains(wrapped, "all unexpected names would fit with strip_prefix(\"_orig_mod.module.\")"));
    nn::load(b, file.path, {.rename = strip_wrappers()});
    CHECK(is_loaded());
    b = Model();
    nn::load(b, file.path, {.rename = strip_prefix("_orig_mod.module.")});
    CHECK(is_loaded());

    saved_as(replace_prefix("input.", "inputs."));
    const std::string near = check::message<FileError>([&] { nn::load(b, file.path); });
    CHECK(check::contains(near, "\n  missing: input.weight (4, 3); is it inputs.weight (4, 3)?\n"));
    CHECK(check::contains(near, "\n  missing: input.bias (4,); is it inputs.bias (4,)?\n"));
    b = Model();
    nn::load(b, file.path, {.rename = replace_prefix("inputs.", "input.")});
    CHECK(is_loaded());
    b = Model();
    b.load_state_dict(rename(load_safetensors(file.path), {{"inputs.weight", "input.weight"}, {"inputs.bias", "input.bias"}}));
    CHECK(is_loaded());
    CHECK(rename(plain, [](const std::string& name) { return name == "input.weight" ? name : ""; }).size() == 1);
    CHECK(strip_wrappers()("module.submodule.weight") == "submodule.weight");
    CHECK(strip_wrappers()("mod") == "mod");

    const auto same_name = [](const std::string&) { return "x"; };
    CHECK(check::contains(check::message<ValueError>([&] { rename(plain, same_name); }), "would both be \"x\""));
    CHECK(check::contains(check::message<ValueError>([&] { rename(plain, {{"none", "x"}}); }), "there is no tensor \"none\""));

    NamedTensors many = plain;
    for (int i = 0; i < 50; ++i) many.push_back({"layer" + std::to_string(i), ones({1})});
    const std::string long_list = check::message<ValueError>([&] { b.load_state_dict(many); });
    CHECK(check::contains(long_list, "... and 30 more unexpected"));
    CHECK(!check::contains(long_list, "layer20"));
}

TEST_CASE("a load that is not strict returns the names that were not shared") {
    const File file;
    Model a, b;
    NamedTensors state = a.state_dict();
    const std::string first = state[0].name;
    state[0].name = "old.weight";
    state.push_back({"older.weight", ones({2})});
    save_safetensors(file.path, state);
    using Names = std::vector<std::string>;
    const nn::IncompatibleKeys loaded = nn::load(b, file.path, /*strict=*/false), given = b.load_state_dict(state, /*strict=*/false);
    for (const nn::IncompatibleKeys& keys : {loaded, given}) {
        CHECK(keys.missing_keys == Names{first});
        CHECK(keys.unexpected_keys == Names{"old.weight", "older.weight"});
    }
    const nn::IncompatibleKeys none = b.load_state_dict(a.state_dict());
    CHECK(none.missing_keys.empty());
    CHECK(none.unexpected_keys.empty());
}

TEST_CASE("a prefix is taken for one only where the shapes fit") {
    nn::Linear small(2, 3);
    const NamedTensors fits = {{"head.weight", zeros({3, 2})}, {"head.bias", zeros({3})}};
    CHECK(check::contains(check::message<ValueError>([&] { small.load_state_dict(fits); }), "strip_prefix(\"head.\")"));
    const NamedTensors other = {{"head.weight", zeros({3, 9})}, {"head.bias", zeros({3})}};
    const std::string text = check::message<ValueError>([&] { small.load_state_dict(other); });
    CHECK(!check::contains(text, "strip_prefix"));
    CHECK(check::contains(text, "missing: weight (3, 2)"));
}

TEST_CASE("a model is not loaded from a whole run's file, but from its part") {
    const File file;
    nn::Linear a(2, 3), b(2, 3), other(5, 5);
    optim::Adam adam(a.parameters());
    nn::TrainingState run(file.path);
    run("net", a)("adam", adam);
    run.save();
    for (const bool strict : {true, false}) {
        const std::string text = check::message<FileError>([&] { nn::load(b, file.path, strict); });
        CHECK(check::contains(text, "is the state of a whole run, which TrainingState saved and loads"));
        CHECK(check::contains(text, "for this Linear alone: nn::load(model, path, {.rename = only_prefix(\"net.\")})"));
        CHECK(check::contains(check::message<FileError>([&] { nn::load(other, file.path, strict); }), "no part of it fits this Linear"));
    }
    CHECK(b.weight.to_vector<float>() != a.weight.to_vector<float>());
    nn::load(b, file.path, {.rename = only_prefix("net.")});
    CHECK(b.weight.to_vector<float>() == a.weight.to_vector<float>());
}

TEST_CASE("Sequential takes modules and functions") {
    nn::Sequential net(nn::Linear(3, 4), relu, nn::Dropout(0.5), [](const Tensor& x) { return x * 2; }, nn::Linear(4, 2));
    CHECK(names(net.named_parameters()) == std::vector<std::string>{"0.weight", "0.bias", "4.weight", "4.bias"});
    CHECK(net(randn({5, 3})).shape() == Shape(5, 2));
    nn::Sequential copy = net;
    CHECK(copy.parameters()[0].is_same(net.parameters()[0]));
    copy.eval();
    CHECK(net.at(2).is_training());
    CHECK(!copy.at(2).is_training());
    net = nn::Sequential(copy, Block(2));  // nests
    CHECK(net.size() == 2);
    CHECK(names(net.named_parameters())[0] == "0.0.weight");
    CHECK(net(randn({3})).shape() == Shape(2));
    const auto line = [](int n) { return "module_test.cpp:" + std::to_string(n) + ": "; };
    CHECK(check::begins(check::message<IndexError>([&] { net.at(2); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { copy.at(1); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { net(randn({7})); }), line(__LINE__)));
}

TEST_CASE("Sequential takes functions whose names <cmath> has too") {
    const Tensor x = tensor({{0.5, 1.5}, {0.25, 2.0}});
    nn::Sequential net(nn::Linear(2, 3), tanh, nn::Linear(3, 1));
    const auto* first = dynamic_cast<nn::Linear*>(&net.at(0));
    const auto* last = dynamic_cast<nn::Linear*>(&net.at(2));
    CHECK(allclose(net(x), (*last)(tanh((*first)(x))), 0, 0));
    CHECK(names(net.named_parameters()) == std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"});
    CHECK(allclose(nn::Sequential(exp)(x), exp(x), 0, 0));
    CHECK(allclose(nn::Sequential(sqrt, sin, abs, cos, log1p, gelu)(x), gelu(log1p(cos(abs(sin(sqrt(x)))))), 0, 0));
    nn::Sequential pushed;
    pushed.push_back(exp).push_back(relu).push_back([](const Tensor& t) { return t - 1; });
    CHECK(pushed.size() == 3);
    CHECK(allclose(pushed(x), exp(x) - 1, 0, 0));
    const nn::Sequential twenty(abs, abs, abs, abs, abs, abs, abs, abs, abs, abs, abs, abs, abs, abs, abs, abs, abs, abs, abs, exp);
    CHECK(twenty.size() == 20);
    CHECK(allclose(twenty(x), exp(x), 0, 0));
    nn::Sequential inner = net, outer(inner, tanh);  // a module among them
    CHECK(outer.parameters()[0].is_same(net.parameters()[0]));
    Tensor s = x.std();  // std(x) would name the namespace
    CHECK(s.item() == tapir::std(x).item());
}

TEST_CASE("a module prints as a tree") {
    Model model;
    model.blocks.pop_back();
    model.blocks[0].second.weight = model.blocks[0].first.weight;
    model.input.requires_grad_(false);
    std::ostringstream out;
    out << model;
    CHECK(out.str() ==
          "Model, 40 parameters\n"
          "  input: Linear(3, 4)\n"
          "    weight (4, 3), frozen\n"
          "    bias (4,), frozen\n"
          "  blocks.0: Block\n"
          "    first: Linear(4, 4)\n"
          "      weight (4, 4)\n"
          "      bias (4,)\n"
          "    second: Linear(4, 4, no bias)\n"
          "      weight (4, 4), shared with blocks.0.first.weight\n"
          "  drop: Dropout(0.5)\n"
          "  scale (4,)\n"
          "  count (1,), buffer\n");
    CHECK(model.str() + "\n" == out.str());
}

TEST_CASE("a module that names no tensors is neither saved nor loaded") {
    const File file;
    struct Forgetful : nn::Module {
        nn::Linear layer{2, 3};
    } forgetful;
    FAILS_IN(ValueError, "save: this Forgetful has no tensors", "members(nn::Members& m)", nn::save(forgetful, file.path));
    CHECK(!std::filesystem::exists(file.path));
    nn::save(forgetful.layer, file.path);
    FAILS_IN(FileError, "save: nowhere/weights: ", "No such file", nn::save(forgetful.layer, "nowhere/weights"));
    FAILS_IN(ValueError, "load: this Forgetful has no tensors", "members(nn::Members& m)", nn::load(forgetful, file.path));
    FAILS_IN(ValueError, "load: this Forgetful has no tensors", "", nn::load(forgetful, file.path, {.strict = false}));
    FAILS(ValueError, "a group without parameters (a module has those that its members() names)", optim::SGD(forgetful.parameters()));
    struct Counter : nn::Module {  // a buffer is enough
        Tensor seen = ones({2});
        void members(nn::Members& m) override { m.buffer("seen", seen); }
    } a, b;
    b.seen.zero_();
    nn::save(a, file.path);
    nn::load(b, file.path);
    CHECK(b.seen.to_vector<int>() == std::vector<int>{1, 1});
}

TEST_CASE("a name that a module gives twice throws at once, with the line in members()") {
    struct Twice : nn::Module {
        nn::Linear a{2, 3}, b{3, 2};
        int line = 0;
        void members(nn::Members& m) override {
            line = __LINE__ + 1;
            m("layer", a)("layer", b);
        }
    } twice;
    const auto fails_there = [&](const auto& call) {
        const std::string text = check::message<ValueError>(call);
        CHECK(check::begins(text, "module_test.cpp:" + std::to_string(twice.line) + ": members: there is a member \"layer\" already"));
    };
    fails_there([&] { twice.parameters(); });
    fails_there([&] { twice.eval(); });
    CHECK(twice.is_training());
    fails_there([&] { twice.str(); });
    nn::ModuleList outer{nn::Linear(1, 2), twice};
    CHECK(check::contains(check::message<ValueError>([&] { outer.parameters(); }), "members: there is a member \"1.layer\" already"));
    struct Mixed : nn::Module {  // a list, a buffer and a parameter
        std::vector<nn::Dropout> list{nn::Dropout(), nn::Dropout()};
        Tensor x = ones({1}), none;
        bool wrong = false;
        void members(nn::Members& m) override {
            m("", list)("x", x)("none", none);
            if (wrong) m.buffer("none", none);
        }
    } mixed;
    CHECK(mixed.modules().size() == 3);
    mixed.wrong = true;
    CHECK(check::contains(check::message<ValueError>([&] { mixed.modules(); }), "there is a member \"none\" already"));
}

TEST_CASE("nn::Parameter is a leaf that shares its elements") {
    struct Scale : nn::Module {
        nn::Parameter scale{ones({3})}, still{ones({1}), /*requires_grad=*/false}, none;
        std::vector<nn::Parameter> list{nn::Parameter(zeros({2}))};
        std::map<std::string, nn::Parameter> by_key{{"a", nn::Parameter(zeros({1}))}};
        Tensor plain = nn::Parameter(full({2}, 0.5));
        void members(nn::Members& m) override { m("scale", scale)("still", still)("none", none)("list", list)("by_key", by_key)("plain", plain); }
        Tensor forward(In x) const { return x.tensor * scale; }
    } model;
    CHECK(names(model.named_parameters()) == std::vector<std::string>{"scale", "still", "list.0", "by_key.a", "plain"});
    CHECK(model.scale.requires_grad());
    CHECK(model.plain.requires_grad());
    CHECK(!model.still.requires_grad());
    {
        Tape tape;
        tape.backward(sum(model.forward(full({2, 3}, 2))));
    }
    optim::SGD(model.parameters(), {.lr = 1}).step();
    CHECK(model.scale.to_vector<int>() == std::vector<int>{-3, -3, -3});
    const Tensor data = zeros({2}), product = [&] {
        Tape tape;
        Tensor leaf = ones({2}).requires_grad_();
        return nn::Parameter(leaf * 2 + data);  // of a recorded value: a leaf of its own
    }();
    CHECK(product.is_leaf());
    nn::Parameter shared(data);
    CHECK(!data.requires_grad());
    shared.detach().fill_(7);
    CHECK(data.to_vector<int>() == std::vector<int>{7, 7});
    model.to(float64);
    CHECK(model.scale.dtype() == float64);
    FAILS(DTypeError, "only floating tensors have gradients", nn::Parameter(zeros({2}, int64)));
    FAILS(ValueError, "Parameter: the tensor is undefined", nn::Parameter{Tensor{}});
}

TEST_CASE("a clone has tensors of its own, tied as the original's are") {
    struct Words : nn::Module {
        nn::Embedding table{5, 3};
        nn::Linear hidden{3, 3}, out{3, 5, false}, again;
        nn::Sequential net{nn::Linear(3, 3), relu, nn::Dropout(0.5)};
        nn::ModuleList list{nn::Linear(3, 3)};
        nn::BatchNorm1d norm{3};
        nn::Parameter scale{ones({3})};
        Tensor constant = ones({2});
        Words() : again(hidden) { out.weight = table.weight; }
        void members(nn::Members& m) override {
            m("table", table)("hidden", hidden)("out", out)("again", again)("net", net)("list", list)("norm", norm)("scale", scale);
        }
        Tensor forward(In x) const {
            const CallerScope caller(x.loc);
            return out(norm(list[0](net(hidden(table(x))))) * scale);
        }
    } model;
    model.eval();
    model.net.train();
    model.hidden.requires_grad_(false);
    {
        Tape tape;
        tape.backward(sum(model.scale * 2));
    }
    Words copy = nn::clone(model);
    const NamedTensors theirs = model.state_dict(), own = copy.state_dict();
    REQUIRE(names(own) == names(theirs));
    for (std::size_t i = 0; i < own.size(); ++i) {
        CHECK(own[i].tensor.to_vector<double>() == theirs[i].tensor.to_vector<double>());
        CHECK(own[i].tensor.dtype() == theirs[i].tensor.dtype());
        CHECK(!own[i].tensor.shares_storage(theirs[i].tensor));
    }
    CHECK(copy.out.weight.is_same(copy.table.weight));
    CHECK(copy.again.weight.is_same(copy.hidden.weight));
    CHECK(copy.parameters().size() == model.parameters().size());
    CHECK(copy.constant.is_same(model.constant));  // members() does not name it
    const auto mine = model.named_modules(), modules = copy.named_modules();
    for (std::size_t i = 0; i < modules.size(); ++i) CHECK(modules[i].module->is_training() == mine[i].module->is_training());
    CHECK(!copy.is_training());
    CHECK(copy.net.at(2).is_training());
    for (std::size_t i = 0; i < copy.parameters().size(); ++i) {
        CHECK(copy.parameters()[i].requires_grad() == model.parameters()[i].requires_grad());
        CHECK(copy.parameters()[i].is_leaf());
        CHECK(!copy.parameters()[i].grad().defined());
    }
    // It is trained alone; its table's gradient is row-sparse as the original's.
    const std::vector<float> before = model.table.weight.to_vector<float>(), at_first = copy.table.weight.to_vector<float>();
    optim::Adam adam(copy.table.parameters(), {.weight_decay = 1});
    {
        Tape tape;
        tape.backward(sum(copy.table(tensor({1}))));
    }
    adam.step();
    CHECK(model.table.weight.to_vector<float>() == before);
    const std::vector<float> after = copy.table.weight.to_vector<float>();
    for (std::size_t i = 0; i < after.size(); ++i) CHECK((after[i] != at_first[i]) == (i >= 3 && i < 6));
}

TEST_CASE("clones of single layers, containers and what a tape has recorded") {
    const nn::Linear layer(2, 3);
    std::vector<nn::Linear> three;
    for (int i = 0; i < 3; ++i) three.push_back(nn::clone(layer));
    three[0].weight.detach().fill_(0);
    CHECK(layer.weight.detach().abs().sum().item() > 0);
    CHECK(three[1].weight.to_vector<float>() == layer.weight.to_vector<float>());
    const nn::Sequential net = nn::clone(nn::Sequential(layer, tanh, three[0]));
    CHECK(!net[0].as<nn::Linear>().weight.shares_storage(layer.weight));
    CHECK(net[2].as<nn::Linear>().weight.to_vector<int>() == std::vector<int>(6, 0));
    const nn::AnyModule any = layer, other = nn::clone(any), function = nn::clone(nn::AnyModule(relu));
    CHECK(any.as<nn::Linear>().weight.is_same(layer.weight));
    CHECK(!other.as<nn::Linear>().weight.shares_storage(layer.weight));
    CHECK(function(tensor({-1.0, 2.0})).to_vector<int>() == std::vector<int>{0, 2});
    Tape tape;
    const Tensor y = sum(layer(ones({2})));
    const nn::Linear within = nn::clone(layer);
    CHECK(within.weight.is_leaf());
    tape.backward(y + sum(within(ones({2}))));
    CHECK(layer.weight.grad().to_vector<int>() == std::vector<int>(6, 1));
    CHECK(within.weight.grad().to_vector<int>() == std::vector<int>(6, 1));
}

TEST_CASE("a clone of what copies would share, or cut, is refused") {
    struct Held : nn::Module {
        nn::Linear own{2, 2};
        std::shared_ptr<nn::Dropout> drop = std::make_shared<nn::Dropout>();
        void members(nn::Members& m) override { m("own", own)("drop", drop); }
    } held;
    const std::vector<float> before = held.own.weight.to_vector<float>();
    FAILS_IN(ValueError, "clone: drop is held by a pointer", "copies of this Held share", nn::clone(held));
    CHECK(held.own.weight.to_vector<float>() == before);
    held.drop = nullptr;
    CHECK(!nn::clone(held).own.weight.is_same(held.own.weight));
    struct Deep : Block {};
    const Deep deep;
    const Block& base = deep;
    FAILS_IN(ValueError, "clone: the module is a Deep, of which this would copy the part that is a Block", "", nn::clone(base));
}

template <class Container, class I>
constexpr bool kTakesIndex = requires(Container& container, I i) {
    container[i];
    container.at(i);
};

TEST_CASE("the layers of a Sequential are counted, indexed and walked through") {
    nn::Sequential net(nn::Linear(3, 4), relu, nn::Dropout(0.5), nn::Linear(4, 2));
    net.eval();
    CHECK(net.size() == 4);
    const Tensor x = randn({5, 3});
    Tensor y = x;
    for (const nn::AnyModule& layer : net) y = layer(y);
    CHECK(allclose(y, net(x), 0, 0));
    CHECK(net[0].as<nn::Linear>().weight.shape() == Shape(4, 3));
    net[3].as<nn::Linear>().weight.detach().fill_(0);
    CHECK(allclose(net(x)[0], net.parameters()[3], 0, 0));
    CHECK(net[1](tensor({-1.0})).item() == 0);
    CHECK(net[1].get() == nullptr);
    CHECK(!net[2].module().is_training());
    FAILS_IN(IndexError, "Sequential: there is no layer 4 of 4", "", net[4]);
    CHECK(net[-1].get() == net[3].get());
    CHECK(&net.at(-2) == net[2].get());
    FAILS_IN(IndexError, "Sequential: there is no layer -5 of 4", "", net[-5]);
    FAILS_IN(IndexError, "Sequential: there is no layer 9 of 4", "", net.at(9U));
    FAILS_IN(ValueError, "Sequential: layer -3 is a function, not a module", "", net.at(-3));
    static_assert(!kTakesIndex<nn::Sequential, bool> && kTakesIndex<nn::Sequential, short>);
    static_assert(!kTakesIndex<nn::ModuleList, bool> && kTakesIndex<nn::ModuleList, unsigned>);
    FAILS_IN(ValueError, "AnyModule: it holds a function, not a module", "", net[1].module());
    FAILS_IN(ValueError, "AnyModule: it holds a Dropout, and was asked for a Linear", "", net[2].as<nn::Linear>());
    FAILS_IN(ValueError, "AnyModule: it holds a function, and was asked for a Linear", "", net[1].as<nn::Linear>());
    CHECK(net[2].as<nn::DropoutLayer>().describe() == "0.5");
    static_assert(!std::is_convertible_v<nn::AnyModule, nn::Module&>);  // which could not say where it failed
    CHECK(check::contains((std::ostringstream() << net[2].module()).str(), "Dropout(0.5)"));
    FAILS_IN(ValueError, "AnyModule: it holds nothing", "", nn::AnyModule()(x));
    FAILS_IN(ValueError, "AnyModule: it holds nothing", "", nn::AnyModule().module());
    FAILS_IN(ValueError, "AnyModule: it holds nothing", "", nn::AnyModule().as<nn::Dropout>());
}

TEST_CASE("several threads walk and run one module") {  // for ThreadSanitizer: they name its parts at the same time
    struct Net : nn::Module {
        nn::Linear first{3, 4}, second{4, 2};
        void members(nn::Members& m) override { m("first", first)("second", second); }
        Tensor forward(const Tensor& x) {
            const nn::ModuleScope scope(*this);
            return second(first(x));
        }
    };
    for (int round = 0; round < 3; ++round) {
        Net net;
        std::vector<std::size_t> counts(4);
        std::vector<std::thread> threads;
        for (std::size_t& count : counts) {
            threads.emplace_back([&net, &count] {
                const std::vector<Tensor> parameters = net.parameters();
                const Tape tape;
                count = parameters.size() + static_cast<std::size_t>(net.forward(ones({5, 3})).size(1));
            });
        }
        for (std::thread& thread : threads) thread.join();
        CHECK(counts == std::vector<std::size_t>(4, 6));
    }
}
