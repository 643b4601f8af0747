// Three classifiers of Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): softmax regression, a perceptron of two hidden layers, and a
// convolutional network after LeNet-5 (LeCun et al. 1998). The data are Debian's package dataset-fashion-mnist. Under mpirun each process
// takes its part of every batch.
#include <fmt/format.h>
#include <tapir/graph.h>
#include <tapir/nn/data/data.h>
#include <tapir/nn/parallel/parallel.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#ifdef TAPIR_WITH_ONNX  // where libonnx-dev was there
#include <tapir/onnx.h>
#include <stdexcept>
#endif

#include "../common/log.h"
#include "../common/show.h"

using namespace tapir;

namespace {

struct Options {
    std::string data = "/usr/share/datasets/fashion-mnist", model = "lenet", chart = "fashion.svg", pictures = "fashion_test.svg", log_dir, save;
    int epochs = 10, threads = 1;
    std::int64_t examples = 60000, batch = 64;
    double lr = 1e-3;
    std::uint64_t seed = 1;
};

const char* const kClasses[] = {"T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"};

nn::Sequential make_model(const std::string& name) {
    if (name == "softmax") return nn::Sequential(nn::Flatten(), nn::Linear(784, 10));
    if (name == "mlp") {
        return nn::Sequential(nn::Flatten(), nn::Linear(784, 256), relu, nn::Dropout(0.2), nn::Linear(256, 128), relu, nn::Linear(128, 10));
    }
    if (name == "lenet") {
        return nn::Sequential(nn::Conv2d(1, 32, 5, {.padding = 2}), relu, nn::MaxPool2d(2), nn::Conv2d(32, 64, 5, {.padding = 2}), relu,
                              nn::MaxPool2d(2), nn::Flatten(), nn::Dropout(0.3), nn::Linear(64 * 7 * 7, 128), relu, nn::Linear(128, 10));
    }
    throw std::runtime_error(fmt::format("'{}' is not a model: softmax, mlp or lenet", name));
}

Tensor pixels(const Tensor& images) { return images.to(float32) / 255; }

double accuracy(nn::Sequential& model, const data::TensorDataset<Tensor, Tensor>& test) {
    model.eval();
    std::int64_t right = 0;
    data::DataLoader loader(test, {.batch_size = 500});
    for (auto& [images, labels] : loader) right += (argmax(model(pixels(images)), 1) == labels).sum().item<std::int64_t>();
    model.train();
    return static_cast<double>(right) / static_cast<double>(test.size());
}

// Some test images, and a table of what the model says of them.
void log_pictures(nn::SummaryWriter& writer, nn::Sequential& model, const data::TensorDataset<Tensor, Tensor>& test, std::int64_t step) {
    const Tensor images = test.tensor(0).narrow(0, 0, 16);
    writer.add_images("test images", images, step);
    model.eval();
    std::string table = "| image | the model says | it is |\n|---|---|---|\n";
    const std::vector<int> said = argmax(model(pixels(images)), 1).to_vector<int>(), labels = test.tensor(1).narrow(0, 0, 16).to_vector<int>();
    for (std::size_t i = 0; i < said.size(); ++i) table += fmt::format("| {} | {} | {} |\n", i + 1, kClasses[said[i]], kClasses[labels[i]]);
    writer.add_text("test images", table, step);
    model.train();
}

void draw(nn::Sequential& model, const data::TensorDataset<Tensor, Tensor>& test, const std::string& path) {
    std::vector<show::Picture> pictures;
    const Tensor images = pixels(test.tensor(0).narrow(0, 0, 40));
    model.eval();
    const std::vector<int> said = argmax(model(images), 1).to_vector<int>(), labels = test.tensor(1).narrow(0, 0, 40).to_vector<int>();
    for (std::size_t i = 0; i < said.size(); ++i) {
        const bool is_right = said[i] == labels[i];
        const std::string caption = is_right ? kClasses[said[i]] : fmt::format("{} ({})", kClasses[said[i]], kClasses[labels[i]]);
        pictures.push_back({28, 28, images[static_cast<std::int64_t>(i)].to_vector<float>(), caption, is_right});
    }
    show::write_pictures(path, pictures, "Test images and what the model said; where it is wrong, in brackets what they are");
}

// The trained model as a graph, for programs that do not know the model: PATH.graph for
// load_graph(), also of Tapir::runtime, and PATH.onnx for others. Both take bytes, any number of images at once.
void export_model(nn::Sequential& model, const data::TensorDataset<Tensor, Tensor>& test, const std::string& path) {
    model.eval();  // no dropout from now on
    const auto program = [&](const Tensor& images) { return model(pixels(images)); };
    Graph graph = trace(program, {{"images", test.tensor(0).narrow(0, 0, 2), {"batch"}}}, {.outputs = {"logits"}});
    optimize(graph);
    const auto check = [&](const std::string& file, const Graph& loaded) {
        const CompiledGraph run = loaded.compile();
        std::int64_t same = 0;
        data::DataLoader loader(test, {.batch_size = 500});
        for (auto& [images, labels] : loader) {
            const Tensor expected = program(images), logits = run(images);
            if (!allclose(logits, expected, 1e-3, 1e-3)) throw std::runtime_error(fmt::format("{} does not compute what the program does", file));
            same += (argmax(logits, 1) == argmax(expected, 1)).sum().item<std::int64_t>();
        }
        fmt::print("wrote {}, which says of {} of {} test images what the program says\n", file, same, test.size());
    };
    save_graph(path + ".graph", graph);
    check(path + ".graph", load_graph(path + ".graph"));
#ifdef TAPIR_WITH_ONNX
    save_onnx(path + ".onnx", graph, {.graph_name = "fashion"});
    check(path + ".onnx", load_onnx(path + ".onnx"));
#else
    fmt::print("no {}.onnx: libonnx-dev was missing when this was built\n", path);
#endif
}

void run(int argc, char** argv) {
    const parallel::Group world = parallel::init(argc, argv);  // of one process, unless mpirun or the like has started it
    const bool tells = world.rank() == 0;                      // how it goes
    Options o;
    CLI::App app("Classifiers of Fashion-MNIST");
    app.add_option("--data", o.data, "the folder with the IDX files")->capture_default_str();
    app.add_option("--model", o.model, "softmax, mlp or lenet")->capture_default_str();
    app.add_option("--epochs", o.epochs)->capture_default_str();
    app.add_option("--examples", o.examples, "of the 60,000 for training")->capture_default_str();
    app.add_option("--batch", o.batch)->capture_default_str();
    app.add_option("--lr", o.lr, "Adam's; it falls to 0 over the run")->capture_default_str();
    app.add_option("--threads", o.threads)->capture_default_str();
    app.add_option("--seed", o.seed)->capture_default_str();
    app.add_option("--chart", o.chart, "where the curves go; '' for none")->capture_default_str();
    app.add_option("--pictures", o.pictures, "where test images go; '' for none")->capture_default_str();
    app.add_option("--log-dir", o.log_dir, "folder for TensorBoard");
    app.add_option("--export", o.save, "writes the trained model to PATH.graph and PATH.onnx");
    show::parse(app, argc, argv);
    manual_seed(o.seed);
    set_num_threads(o.threads);
    const auto all = data::mnist(o.data), test = data::mnist(o.data, /*train=*/false);
    const std::int64_t count = std::min(o.examples, all.size());
    const data::TensorDataset train(all.tensor(0).narrow(0, 0, count), all.tensor(1).narrow(0, 0, count));
    nn::Sequential model = make_model(o.model);
    parallel::Replicas replicas(model, world);
    optim::Adam adam(model.parameters(), {.lr = o.lr});
    const data::DistributedBatchSampler sampler(data::RandomSampler(count), o.batch, world.rank(), world.size());
    data::DataLoader loader(train, sampler, {.seed = o.seed});
    const std::int64_t batches = sampler.size(), steps = o.epochs * batches;
    optim::CosineAnnealingLR schedule(adam, {.T_max = steps});
    if (tells) fmt::print("{}: {} parameters, {} images, {} epochs\n", o.model, model.parameter_count(), count, o.epochs);

    show::TrainingLog log(tells ? o.log_dir : "");
    if (log) log->add_graph(model, pixels(test.tensor(0).narrow(0, 0, 4)));
    show::Progress progress(steps);
    show::Curve losses{"training loss", {}, {}}, accuracies{"test accuracy", {}, {}};
    std::int64_t step = 0;
    double tested = 0;
    for (int epoch = 1; epoch <= o.epochs; ++epoch) {
        double sum = 0;
        for (auto& [images, labels] : loader) {
            Tape tape;
            const Tensor loss = cross_entropy(model(pixels(images)), labels);
            replicas.backward(loss, images.size(0));
            log.step(model, adam, loss.item(), step);
            adam.step();
            adam.zero_grad();
            schedule.step();
            sum += loss.item();
            progress.update(++step, fmt::format("epoch {}  loss {:.4f}", epoch, loss.item()));
        }
        tested = accuracy(model, test);
        if (log) log->add_scalar("accuracy/test", tested, step);
        if (log) log_pictures(*log, model, test, step);
        losses.add(epoch, sum / static_cast<double>(batches));
        accuracies.add(epoch, tested);
        progress.print(fmt::format("epoch {}  loss {:.4f}  test accuracy {:.4f}", epoch, losses.y.back(), tested));
    }
    if (!tells) return;
    show::write_chart(o.chart, {losses, accuracies}, {.title = "Fashion-MNIST, " + o.model, .x_label = "epoch", .y_label = "loss, accuracy"});
    draw(model, test, o.pictures);
    if (!o.save.empty()) export_model(model, test, o.save);
    fmt::print("result {:.4f}\n", tested);
}

}  // namespace

int main(int argc, char** argv) { return show::run("fashion", argc, argv, run); }
