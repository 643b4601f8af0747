// The same training on the CPU and on a CUDA device: losses and parameters stay together, step by step.
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>

#include "../fails.h"
#include "compare.h"
#include "tapir/nn/nn.h"
#include "tapir/optim/optim.h"

using namespace tapir;
using namespace tapir::test;

namespace {

// Numbers that are the same on every device and in every dtype.
Tensor values(const Shape& shape, int seed, DType dtype) {
    const NoGradScope pause;
    return (sin(arange(shape.numel(), {float64, cpu}) * 1.7 + seed) * 0.8).to(dtype).reshape(shape).to(default_device());
}

std::vector<std::int64_t> numbers(std::int64_t count, int seed, std::int64_t below) {
    std::vector<std::int64_t> list;
    for (std::int64_t i = 0; i < count; ++i) list.push_back((i * i * 7 + 3 * i + seed * 5) % below);
    return list;
}

struct Mlp : nn::Module {
    nn::Linear first{6, 16}, last{16, 4};
    nn::LayerNorm norm{{16}};
    nn::Dropout dropout{0.2};
    void members(nn::Members& m) override { m("first", first)("norm", norm)("dropout", dropout)("last", last); }
    Tensor loss(int step) const {
        const Tensor x = values({12, 6}, step, first.weight.dtype());
        return cross_entropy(last(dropout(norm(tanh(first(x))))), tensor(numbers(12, step, 4)));
    }
};

template <bool kSparse>
struct TreeLstm : nn::Module {
    nn::Embedding words{20, 6, {.sparse = kSparse}};
    nn::NaryTreeLSTMCell cell{6, 6};
    nn::Linear classifier{6, 3};
    void members(nn::Members& m) override { m("words", words)("cell", cell)("classifier", classifier); }
    LSTMState encode(const std::vector<std::int64_t>& sentence, std::size_t begin, std::size_t end) const {
        if (end - begin == 1) return cell(words(tensor(sentence[begin])));
        const std::size_t middle = begin + 1 + (end - begin) / 3;
        return cell(encode(sentence, begin, middle), encode(sentence, middle, end));
    }
    Tensor loss(int step) const {
        Tensor sum = zeros({}, classifier.weight.dtype());
        for (int k = 0; k < 3; ++k) {
            const std::vector<std::int64_t> sentence = numbers(4 + step % 3 + k, step + k, 20);
            const Tensor scores = classifier(encode(sentence, 0, sentence.size()).h);
            sum = sum + cross_entropy(scores.unsqueeze(0), tensor(numbers(1, step + k, 3)));
        }
        return sum / 3;
    }
};

struct LstmLoop : nn::Module {
    nn::LSTMCell cell{3, 8};
    nn::Linear out{8, 1};
    void members(nn::Members& m) override { m("cell", cell)("out", out); }
    Tensor loss(int step) const {
        const Tensor x = values({5 + step % 4, 2, 3}, step, out.weight.dtype());
        LSTMState state;
        for (const Tensor& now : x) {
            state = cell(now, state);
            if (state.h.sum().item() > 1e6) break;  // as C++ goes
        }
        return mse_loss(out(state.h), values({2, 1}, step + 1, out.weight.dtype()));
    }
};

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Tensor>&)>;

template <class O, class Options>
MakeOptimizer with(Options options) {
    return [options](const std::vector<Tensor>& parameters) { return std::make_unique<O>(parameters, options); };
}

struct Training {
    MakeOptimizer optimizer = with<optim::SGD>(optim::SGDOptions{.lr = 0.1});
    int steps = 6;
    DType dtype = float32;
    double max_norm = 0, max_value = 0;  // 0: not clipped
    bool autocast = false;
    DType low = bfloat16;
    optim::GradScaler* scaler = nullptr;
};

// What can be compared after each step.
struct Step {
    double loss = 0, norm = 0, scale = 1;
    bool stepped = true;
    std::vector<std::vector<double>> parameters;
};

template <class M>
Step step(M& model, optim::Optimizer& optimizer, const Training& training, int number) {
    Step done;
    {
        const auto autocast = training.autocast ? std::make_unique<AutocastScope>(training.low) : nullptr;
        Tape tape;
        const Tensor loss = model.loss(number);
        tape.backward(training.scaler ? training.scaler->scale(loss) : loss);
        done.loss = loss.item();
    }
    if (training.max_norm > 0) {
        if (training.scaler) training.scaler->unscale_(optimizer);
        done.norm = optim::clip_grad_norm_(model.parameters(), training.max_norm).item();
    }
    if (training.max_value > 0) optim::clip_grad_value_(model.parameters(), training.max_value);
    if (training.scaler) {
        done.stepped = training.scaler->step(optimizer);
        training.scaler->update();
        done.scale = training.scaler->get_scale();
    } else {
        optimizer.step();
    }
    optimizer.zero_grad();
    for (const Tensor& p : model.parameters()) {
        REQUIRE(p.device() == default_device());
        done.parameters.push_back(p.template to_vector<double>());
    }
    return done;
}

template <class M>
std::vector<Step> train(Device device, Training training) {
    manual_seed(7);
    M model;  // made on the CPU, so that both begin with the same bits
    model.to(training.dtype);
    model.to(device);
    const DeviceScope scope(device);
    const auto optimizer = training.optimizer(model.parameters());
    optim::GradScaler scaler({.init_scale = 65536.0 * 64, .growth_interval = 2});
    if (training.autocast && training.low == float16) training.scaler = &scaler;
    std::vector<Step> steps;
    for (int i = 0; i < training.steps; ++i) steps.push_back(step(model, *optimizer, training, i));
    return steps;
}

void check_steps(const std::vector<Step>& have, const std::vector<Step>& want, double limit) {
    REQUIRE(have.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
        INFO("step " << i << ": loss " << have[i].loss << ", the CPU has " << want[i].loss);
        CHECK(is_close(have[i].loss, want[i].loss, limit));
        CHECK(is_close(have[i].norm, want[i].norm, limit));
        CHECK(have[i].scale == want[i].scale);
        CHECK(have[i].stepped == want[i].stepped);
        double worst = 0;
        for (std::size_t p = 0; p < want[i].parameters.size(); ++p) {
            for (std::size_t k = 0; k < want[i].parameters[p].size(); ++k) {
                const double error = std::abs(have[i].parameters[p][k] - want[i].parameters[p][k]);
                worst = error <= worst ? worst : error;
            }
        }
        CHECK(worst <= limit);
    }
}

template <class M>
void compare_training(const Training& training, double limit) {
    const std::vector<Step> want = train<M>(cpu, training);
    check_steps(train<M>(cuda, training), want, limit);
    CHECK(want.front().parameters != want.back().parameters);
}

// In float64 what differs is a real difference; in float32 some steps divide by small moments.
template <class M>
void compare_both(Training training) {
    training.dtype = float64;
    compare_training<M>(training, 1e-9);
    training.dtype = float32;
    compare_training<M>(training, 5e-4);
}

struct File {
    std::string path;
    explicit File(const std::string& name) : path((std::filesystem::temp_directory_path() / name).string()) {}
    ~File() { std::remove(path.c_str()); }
};

}  // namespace

TEST_CASE("an MLP trains on CUDA as on the CPU", "[cuda]") {
    NEEDS_CUDA;
    SECTION("SGD") { compare_both<Mlp>({.optimizer = with<optim::SGD>(optim::SGDOptions{.lr = 0.1, .weight_decay = 0.01})}); }
    SECTION("SGD with momentum") {
        compare_both<Mlp>({.optimizer = with<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true})});
    }
    SECTION("Adagrad") { compare_both<Mlp>({.optimizer = with<optim::Adagrad>(optim::AdagradOptions{.lr = 0.05, .lr_decay = 0.1})}); }
    SECTION("Adam") { compare_both<Mlp>({.optimizer = with<optim::Adam>(optim::AdamOptions{.weight_decay = 0.01, .amsgrad = true})}); }
    SECTION("AdamW") { compare_both<Mlp>({.optimizer = with<optim::AdamW>(optim::AdamWOptions{.lr = 0.01})}); }
    SECTION("AdagradDA") { compare_both<Mlp>({.optimizer = with<optim::AdagradDA>(optim::AdagradDAOptions{.lr = 0.3, .l1 = 1e-3, .l2 = 0.01})}); }
    SECTION("RMSprop") { compare_both<Mlp>({.optimizer = with<optim::RMSprop>(optim::RMSpropOptions{.lr = 0.003, .eps = 1e-3})}); }
    SECTION("RMSprop with all") {
        compare_both<Mlp>({.optimizer = with<optim::RMSprop>(optim::RMSpropOptions{
                               .lr = 0.003, .alpha = 0.9, .eps = 1e-2, .weight_decay = 0.1, .momentum = 0.5, .centered = true})});
    }
    SECTION("Adadelta") { compare_both<Mlp>({.optimizer = with<optim::Adadelta>(optim::AdadeltaOptions{.eps = 1e-3})}); }
    SECTION("Adamax") { compare_both<Mlp>({.optimizer = with<optim::Adamax>(optim::AdamaxOptions{.eps = 1e-3})}); }
    SECTION("NAdam") { compare_both<Mlp>({.optimizer = with<optim::NAdam>(optim::NAdamOptions{.eps = 1e-3})}); }
    SECTION("RAdam") { compare_both<Mlp>({.optimizer = with<optim::RAdam>(optim::RAdamOptions{.eps = 1e-3})}); }
    SECTION("clipped") { compare_both<Mlp>({.max_norm = 0.3, .max_value = 0.05}); }
}

TEST_CASE("a Tree-LSTM trains on CUDA as on the CPU", "[cuda]") {
    NEEDS_CUDA;
    const auto both_tables = [](const Training& training) {
        compare_both<TreeLstm<true>>(training);
        compare_both<TreeLstm<false>>(training);
    };
    SECTION("SGD") { both_tables({.optimizer = with<optim::SGD>(optim::SGDOptions{.lr = 0.3})}); }
    SECTION("SGD with momentum") {
        both_tables({.optimizer = with<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01})});
    }
    SECTION("Adagrad") { both_tables({.optimizer = with<optim::Adagrad>(optim::AdagradOptions{.lr = 0.05})}); }
    SECTION("Adam") { both_tables({.optimizer = with<optim::Adam>(optim::AdamOptions{.lr = 0.003})}); }
    SECTION("AdamW") { both_tables({.optimizer = with<optim::AdamW>(optim::AdamWOptions{.lr = 0.003})}); }
    SECTION("clipped") { both_tables({.max_norm = 0.2, .max_value = 0.04}); }
}

TEST_CASE("an LSTM over a C++ loop trains on CUDA as on the CPU", "[cuda]") {
    NEEDS_CUDA;
    compare_both<LstmLoop>({.optimizer = with<optim::Adam>(optim::AdamOptions{.lr = 0.003}), .max_norm = 1});
}

TEST_CASE("mixed precision trains on CUDA as on the CPU", "[cuda]") {
    NEEDS_CUDA;
    // A product's last bit, 2^-8 or 2^-11 of it, can fall to the other side.
    SECTION("bfloat16") {
        compare_training<Mlp>({.autocast = true, .low = bfloat16}, 2e-2);
        compare_training<LstmLoop>({.autocast = true, .low = bfloat16}, 2e-2);
        compare_training<TreeLstm<true>>({.autocast = true, .low = bfloat16}, 2e-2);
    }
    SECTION("float16 with a GradScaler, whose first steps overflow") {
        const Training training{.steps = 10, .max_norm = 1, .autocast = true, .low = float16};
        compare_training<Mlp>(training, 4e-3);
        compare_training<TreeLstm<true>>(training, 4e-3);
        const std::vector<Step> steps = train<LstmLoop>(cuda, training);
        CHECK_FALSE(steps.front().stepped);
        CHECK(steps.back().stepped);
    }
}

TEST_CASE("the deterministic switch makes training repeat to the bit", "[cuda]") {
    NEEDS_CUDA;
    const DeterministicScope scope;
    const auto repeats = []<class M>(const M*, const Training& training) {
        const std::vector<Step> first = train<M>(cuda, training), second = train<M>(cuda, training);
        for (std::size_t i = 0; i < first.size(); ++i) {
            CHECK(first[i].loss == second[i].loss);
            CHECK(first[i].parameters == second[i].parameters);
        }
    };
    const Training training{.optimizer = with<optim::Adam>(optim::AdamOptions{}), .steps = 4, .max_norm = 1};
    repeats(static_cast<Mlp*>(nullptr), training);
    repeats(static_cast<TreeLstm<true>*>(nullptr), training);
    repeats(static_cast<TreeLstm<false>*>(nullptr), training);
    repeats(static_cast<LstmLoop*>(nullptr), training);
}

TEST_CASE("training is saved on one device and goes on on another", "[cuda]") {
    NEEDS_CUDA;
    const File weights("tapir_training_test_weights.safetensors"), state("tapir_training_test_state.safetensors");
    using M = TreeLstm<true>;
    Training training{.steps = 6};
    SECTION("SGD with momentum") { training.optimizer = with<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9}); }
    SECTION("Adagrad") { training.optimizer = with<optim::Adagrad>(optim::AdagradOptions{.lr = 0.05}); }
    SECTION("Adam") { training.optimizer = with<optim::Adam>(optim::AdamOptions{.lr = 0.003}); }
    const std::vector<Step> want = train<M>(cpu, training);
    for (const auto& [from, to] : {std::pair<Device, Device>(cpu, cuda), std::pair<Device, Device>(cuda, cpu)}) {
        INFO(name(from) << " to " << name(to));
        std::vector<Step> have;
        {
            const DeviceScope scope(from);
            manual_seed(7);
            M model;
            const auto optimizer = training.optimizer(model.parameters());
            for (int i = 0; i < 3; ++i) have.push_back(step(model, *optimizer, training, i));
            nn::save(model, weights.path);
            save_safetensors(state.path, optimizer->state_dict());
        }
        const DeviceScope scope(to);
        M model;
        const auto optimizer = training.optimizer(model.parameters());
        nn::load(model, weights.path);
        optimizer->load_state_dict(load_safetensors(state.path));
        for (int i = 3; i < 6; ++i) have.push_back(step(model, *optimizer, training, i));
        check_steps(have, want, 5e-4);
    }
}

TEST_CASE("a module that is moved in the middle of training goes on with its optimizer and gradients", "[cuda]") {
    NEEDS_CUDA;
    const Training training{.optimizer = with<optim::Adam>(optim::AdamOptions{.lr = 0.003}), .steps = 6};
    using M = TreeLstm<true>;
    const std::vector<Step> want = train<M>(cpu, training);
    manual_seed(7);
    M model;
    const M copy = model;
    const auto optimizer = training.optimizer(model.parameters());
    std::vector<Step> have;
    for (int i = 0; i < 6; ++i) {
        const Device device = i / 2 == 1 ? Device(cuda) : cpu;
        model.to(device);
        CHECK(copy.words.weight.device() == device);
        const DeviceScope scope(device);
        have.push_back(step(model, *optimizer, training, i));
    }
    check_steps(have, want, 5e-4);
    // Between backward and step.
    const auto gradients = [&] {
        Tape tape;
        tape.backward(model.loss(9));
    };
    gradients();
    const std::vector<float> dense = model.classifier.weight.grad().to_vector<float>();
    const std::vector<float> sparse = model.words.weight.grad().to_vector<float>();
    model.zero_grad();
    gradients();
    model.to(cuda);
    for (const auto& [parameter, gradient] : {std::pair(model.classifier.weight, dense), std::pair(model.words.weight, sparse)}) {
        CHECK(parameter.grad().device() == cuda);
        CHECK(allclose(parameter.grad(), tensor(gradient).reshape(parameter.shape()).to(cuda), 1e-5, 1e-7));
    }
    optimizer->step();
    CHECK(model.words.weight.device() == cuda);
}

TEST_CASE("gradients on several devices are clipped and unscaled as one", "[cuda]") {
    NEEDS_CUDA;
    for (const DType dtype : {float32, float16}) {
        Tensor a = ones({4}, {dtype, cpu, true}), b = ones({5}, {dtype, cuda, true});
        for (Tensor t : {a, b}) t.set_grad(full({t.numel()}, 2, {dtype, t.device()}));
        CHECK(optim::clip_grad_norm_({a, b}, 3).item() == Approx(6));
        CHECK(a.grad()[0].item() == Approx(1).epsilon(1e-3));
        CHECK(b.grad()[4].item() == Approx(1).epsilon(1e-3));
        CHECK(optim::clip_grad_norm_({a, b}, 100, std::numeric_limits<double>::infinity()).item() == Approx(1).epsilon(1e-3));
        optim::clip_grad_value_({a, b}, 0.5);
        CHECK(a.grad()[3].item() == 0.5);
        CHECK(b.grad()[0].item() == 0.5);
        optim::SGD sgd({a, b}, {.lr = 1});
        optim::GradScaler scaler({.init_scale = 0.5});
        CHECK(scaler.step(sgd));
        scaler.update();
        CHECK(a[0].item() == 0);
        CHECK(b[0].item() == 0);
        b.set_grad(full({5}, std::numeric_limits<double>::infinity(), {dtype, cuda}));
        CHECK_FALSE(scaler.step(sgd));
    }
    Tensor big = ones({300}, {float16, cuda, true});  // whose norm no float16 can hold
    big.set_grad(full({300}, 60000, {float16, cuda}));
    CHECK(optim::clip_grad_norm_({big}, 1).item() == Approx(60000 * std::sqrt(300.0)).epsilon(1e-3));
    CHECK(big.grad()[0].item() == Approx(1 / std::sqrt(300.0)).epsilon(1e-2));
}

TEST_CASE("modules are made, saved and loaded on CUDA", "[cuda]") {
    NEEDS_CUDA;
    struct Everything : nn::Module {
        nn::Linear linear{5, 4};
        nn::Embedding table{7, 4, {.padding_idx = 2}};
        nn::LayerNorm norm{{4}};
        nn::RNNCell rnn{4, 3};
        nn::GRUCell gru{4, 3};
        nn::LSTMCell lstm{4, 3};
        nn::NaryTreeLSTMCell tree{4, 3, 2, {.inner_input = true, .forget_bias = 1}};
        nn::ChildSumTreeLSTMCell sums{4, 3};
        nn::Linear tied{4, 7, false};
        Tensor count = zeros({2}, int64);
        Everything() { tied.weight = table.weight; }
        void members(nn::Members& m) override {
            m("linear", linear)("table", table)("norm", norm)("rnn", rnn)("gru", gru)("lstm", lstm)("tree", tree)("sums", sums);
            m("tied", tied).buffer("count", count);
        }
    };
    manual_seed(3);
    const Everything here;
    manual_seed(3);
    const DeviceScope scope(cuda);
    Everything there;
    const NamedTensors want = here.state_dict(), have = there.state_dict();
    for (std::size_t i = 0; i < want.size(); ++i) {
        INFO(want[i].name);
        CHECK(have[i].tensor.device() == cuda);
        check_close(have[i].tensor, want[i].tensor, 1e-5);
    }
    const File file("tapir_training_test_module.safetensors");
    nn::save(there, file.path);
    const Tensor kept = there.table.weight;
    nn::init::zeros_(there.table.weight);
    nn::load(there, file.path);
    CHECK(there.table.weight.is_same(kept));
    check_close(there.table.weight.detach(), here.table.weight.detach(), 1e-5);
    there.to(cpu);
    CHECK(there.tied.weight.is_same(there.table.weight));
    CHECK(there.table.weight.is_same(kept));
    CHECK(kept.device() == cpu);
    CHECK(there.count.device() == cpu);
    nn::load(there, file.path);
    FAILS(DeviceError, "to: cuda:77: there", there.to(cuda(77)));

    for (const auto& fill : {+[](const Tensor& t) { return nn::init::orthogonal_(t); }, +[](const Tensor& t) { return nn::init::kaiming_normal_(t); },
                             +[](const Tensor& t) { return nn::init::xavier_uniform_(t); }}) {
        const Tensor on_cpu = zeros({4, 3}, cpu), on_cuda = zeros({4, 3}, cuda);
        manual_seed(5);
        fill(on_cpu);
        manual_seed(5);
        fill(on_cuda);
        check_close(on_cuda, on_cpu, 1e-5);
    }
}
