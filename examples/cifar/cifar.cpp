// The network of the 2015 CIFAR-10 tutorial of TensorFlow (after Krizhevsky's cuda-convnet): two convolutions with pooling and local
// response normalisation, two linear layers with weight decay, a softmax. With --pretrained it begins with the weights of an
// earlier run, all but the last layer, and goes on slowly with them: fine-tuning.
//
// Debian has no CIFAR-10: --data names the folder with its binary files. Without it Fashion-MNIST stands in, its grey as three
// colours and its size as CIFAR's; --classes 0-4 and 5-9 then make two tasks of it, one to train on and one to fine-tune for.
#include <fmt/format.h>
#include <tapir/nn/data/data.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "../common/log.h"
#include "../common/show.h"

using namespace tapir;

namespace {

struct Options {
    std::string data, fashion = "/usr/share/datasets/fashion-mnist", save, pretrained, classes = "0-9", chart = "cifar.svg", log_dir;
    int epochs = 5, threads = 1;
    std::int64_t examples = 1 << 30, batch = 128;
    double lr = 0.05, weight_decay = 0.004;
    std::uint64_t seed = 1;
};

struct Net : nn::Module {
    nn::Conv2d conv1{3, 64, 5, {.padding = 2}}, conv2{64, 64, 5, {.padding = 2}};
    nn::Linear local3{64 * 6 * 6, 384}, local4{384, 192}, softmax_linear{192, 10};
    nn::MaxPool2d pool{3, {.stride = 2, .padding = 1}};
    nn::LocalResponseNorm norm{9, 0.001, 0.75, 1};
    void members(nn::Members& m) override { m("conv1", conv1)("conv2", conv2)("local3", local3)("local4", local4)("softmax_linear", softmax_linear); }
    Tensor forward(const Tensor& x) const {  // (batch, 3, 24, 24)
        const Tensor h = norm(pool(relu(conv1(x)))), g = pool(norm(relu(conv2(h))));
        return softmax_linear(relu(local4(relu(local3(g.flatten(1))))));
    }
};

using Images = data::TensorDataset<Tensor, Tensor>;

// The images of some classes, at most `count`.
Images chosen(const Images& all, const std::string& classes, std::int64_t count) {
    int first = 0, last = 0;
    if (std::sscanf(classes.c_str(), "%d-%d", &first, &last) != 2 || first > last) throw std::runtime_error(classes + ": not classes, as in 0-4");
    const Tensor labels = all.tensor(1), places = nonzero(logical_and(labels >= first, labels <= last)).squeeze(1);
    const Tensor some = places.narrow(0, 0, std::min(count, places.numel()));
    return Images(all.tensor(0).index({some}), labels.index({some}));
}

Images load(const Options& o, bool train) {
    if (!o.data.empty()) return chosen(data::cifar10(o.data, train), o.classes, o.examples);
    const Images grey = chosen(data::mnist(o.fashion, train), o.classes, o.examples);
    return Images(pad(grey.tensor(0), {2, 2, 2, 2}).expand({grey.size(), 3, 32, 32}), grey.tensor(1));
}

// A square of 24 pixels somewhere (in the middle for a test), mirrored by chance, each image to mean 0 and variance 1.
Tensor cut(const Tensor& image, std::int64_t top, std::int64_t left, bool mirrored) {
    const Tensor part = image.narrow(1, top, 24).narrow(2, left, 24).to(float32), turned = mirrored ? flip(part, {2}) : part;
    return (turned - turned.mean()) / clamp(tapir::std(turned), 1.0 / 41);
}

double accuracy(const Net& net, const Images& test) {
    const auto middle = data::map(test, [](std::tuple<Tensor, Tensor> item) {
        std::get<0>(item) = cut(std::get<0>(item), 4, 4, false);
        return item;
    });
    std::int64_t right = 0;
    data::DataLoader loader(middle, {.batch_size = 250});
    for (auto& [images, labels] : loader) right += (argmax(net.forward(images), 1) == labels).sum().item<std::int64_t>();
    return static_cast<double>(right) / static_cast<double>(test.size());
}

void run(int argc, char** argv) {
    Options o;
    CLI::App app("The 2015 CIFAR-10 tutorial's network");
    app.add_option("--data", o.data, "the folder with data_batch_1.bin and so on; without it Fashion-MNIST is taken");
    app.add_option("--fashion", o.fashion, "the folder of Fashion-MNIST")->capture_default_str();
    app.add_option("--classes", o.classes, "that are learned")->capture_default_str();
    app.add_option("--examples", o.examples, "at most");
    app.add_option("--epochs", o.epochs)->capture_default_str();
    app.add_option("--batch", o.batch)->capture_default_str();
    app.add_option("--lr", o.lr, "of gradient descent; it falls to 0 over the run")->capture_default_str();
    app.add_option("--threads", o.threads)->capture_default_str();
    app.add_option("--save", o.save, "where the weights go");
    app.add_option("--pretrained", o.pretrained, "weights of an earlier run to begin with");
    app.add_option("--chart", o.chart, "where the picture goes; '' for none")->capture_default_str();
    app.add_option("--seed", o.seed)->capture_default_str();
    app.add_option("--log-dir", o.log_dir, "folder for TensorBoard");
    show::parse(app, argc, argv);
    manual_seed(o.seed);
    set_num_threads(o.threads);
    const Images train = load(o, true), test = load(o, false);
    Net net;
    const double slow = o.pretrained.empty() ? 1 : 0.1;  // for layers that know something already
    if (!o.pretrained.empty()) {
        NamedTensors state = load_safetensors(o.pretrained);
        std::erase_if(state, [](const NamedTensor& t) { return t.name.starts_with("softmax_linear."); });
        net.load_state_dict(state, /*strict=*/false);
    }
    // Weight decay on the weights of the two linear layers only; the last layer is new and learns fast.
    const std::vector<Tensor> decayed = {net.local3.weight, net.local4.weight};
    const std::vector<Tensor> plain = {net.conv1.weight, net.conv1.bias, net.conv2.weight, net.conv2.bias, net.local3.bias, net.local4.bias};
    optim::SGD sgd(plain, {.lr = slow * o.lr});
    sgd.add_param_group(decayed, {.lr = slow * o.lr, .weight_decay = o.weight_decay});
    sgd.add_param_group(net.softmax_linear.parameters(), {.lr = o.lr});

    const auto noisy = data::map(train, [](std::tuple<Tensor, Tensor> item, Generator& random) {
        const std::vector<double> draw = (rand({3}, random) * 9).floor().to_vector<double>();
        std::get<0>(item) = cut(std::get<0>(item), static_cast<std::int64_t>(draw[0]), static_cast<std::int64_t>(draw[1]), draw[2] < 4.5);
        return item;
    });
    data::DataLoader loader(noisy, {.batch_size = o.batch, .shuffle = true, .num_workers = 1, .seed = o.seed});
    const std::int64_t steps = o.epochs * loader.size();
    optim::CosineAnnealingLR schedule(sgd, {.T_max = steps});
    fmt::print("{} images of classes {}, {} parameters{}\n", train.size(), o.classes, net.parameter_count(),
               o.pretrained.empty() ? "" : ", pretrained");

    show::TrainingLog log(o.log_dir);
    show::Progress progress(steps);
    show::Curve losses{"training loss", {}, {}}, accuracies{"test accuracy", {}, {}};
    std::int64_t step = 0;
    double tested = 0;
    for (int epoch = 1; epoch <= o.epochs; ++epoch) {
        double sum = 0;
        for (auto& [images, labels] : loader) {
            Tape tape;
            const Tensor loss = cross_entropy(net.forward(images), labels);
            tape.backward(loss);
            if (log && step == 0) log->add_graph(tape);
            if (log && step == 0) log->add_images("training images", images / 4 + 0.5);  // of mean 0 and variance 1
            log.step(net, sgd, loss.item(), step);
            sgd.step();
            sgd.zero_grad();
            schedule.step();
            sum += loss.item();
            progress.update(++step, fmt::format("epoch {}  loss {:.4f}", epoch, loss.item()));
        }
        tested = accuracy(net, test);
        if (log) log->add_scalar("accuracy/test", tested, step);
        losses.add(epoch, sum / static_cast<double>(loader.size()));
        accuracies.add(epoch, tested);
        progress.print(fmt::format("epoch {}  loss {:.4f}  test accuracy {:.4f}", epoch, losses.y.back(), tested));
    }
    if (!o.save.empty()) nn::save(net, o.save);
    show::write_chart(o.chart, {losses, accuracies},
                      {.title = "The network of the CIFAR-10 tutorial", .x_label = "epoch", .y_label = "loss, accuracy"});
    fmt::print("result {:.4f}\n", tested);
}

}  // namespace

int main(int argc, char** argv) { return show::run("cifar", argc, argv, run); }
