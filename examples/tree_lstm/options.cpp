#include "options.h"

#include <CLI/CLI.hpp>

namespace tree_lstm {
namespace {

// "cpu", "cuda", "cuda:1"; or why it is none of these. Whether the device is there is for the library to say.
std::string read_device(const std::string& text, tapir::Device& device) {
    if (text == "cpu" || text == "cuda") {
        device = text == "cpu" ? tapir::cpu : tapir::cuda;
        return {};
    }
    const bool is_numbered =
        text.starts_with("cuda:") && text.size() > 5 && text.size() <= 7 && text.find_first_not_of("0123456789", 5) == std::string::npos;
    if (!is_numbered) return "'" + text + "' is not a device: cpu, cuda or cuda:N";
    device = tapir::cuda(std::stoi(text.substr(5)));
    return {};
}

}  // namespace

Options parse_options(int argc, char** argv) {
    Options o;
    CLI::App app{"Trains a Tree-LSTM (Tai et al. 2015) on ListOps, made from a seed, or on a treebank of sentences."};
    app.get_formatter()->column_width(34);
    const auto above_zero = CLI::PositiveNumber;
    app.add_option("--data", o.data, "folder with train.txt, dev.txt, test.txt as of the Stanford Sentiment Treebank");
    app.add_option("--trees", o.trees, "ListOps trees to train on")->check(above_zero)->capture_default_str();
    app.add_option("--test-trees", o.test_trees, "ListOps trees held out for testing, and as many to choose the epoch")
        ->check(above_zero)
        ->capture_default_str();
    app.add_option("--max-depth", o.max_depth, "of ListOps expressions")->check(above_zero)->capture_default_str();
    app.add_option("--max-length", o.max_length, "of ListOps expressions, in words")->check(above_zero)->capture_default_str();
    app.add_option("--epochs", o.epochs, "passes over the training trees")->check(above_zero);
    app.add_option("--hidden", o.hidden, "width of the states")->check(above_zero);
    app.add_option("--embedding", o.embedding, "width of the word vectors [as hidden]")->check(above_zero);
    app.add_option("--batch", o.batch, "trees a step")->check(above_zero)->capture_default_str();
    app.add_flag("--together,!--no-batch", o.together, "compute all trees of a step at the same time, or not [from hidden 64 on]");
    app.add_flag("--report", o.report, "say what was computed together in training");
    app.add_option("--optimizer", o.optimizer, "sgd, adagrad, adam or adamw")->check(CLI::IsMember({"sgd", "adagrad", "adam", "adamw"}));
    app.add_option("--lr", o.lr, "learning rate")->check(above_zero);
    app.add_option("--lr-decay", o.lr_decay, "linear (to 0 over all epochs) or none")->check(CLI::IsMember({"linear", "none"}));
    app.add_option("--embedding-lr", o.embedding_lr, "learning rate of the word vectors [as lr]")->check(CLI::NonNegativeNumber);
    app.add_option("--dropout", o.dropout, "of word vectors and of the states that are classified")->check(CLI::Range(0.0, 0.99));
    app.add_option("--weight-decay", o.weight_decay, "of all but the word vectors")->check(CLI::NonNegativeNumber);
    app.add_option("--seed", o.seed, "of data, initial weights, order and dropout")->capture_default_str();
    app.add_option("--threads", o.threads, "for large ops")->check(above_zero)->capture_default_str();
    std::string device = "cpu";
    app.add_option("--device", device, "cpu, cuda or cuda:N (GPU number N)")
        ->check([&o](const std::string& text) { return read_device(text, o.device); })
        ->capture_default_str();
    app.add_option("--glove", o.glove, "text file of word vectors to start from")->check(CLI::ExistingFile);
    app.add_option("--save", o.save, "file for the state after each epoch (safetensors)");
    app.add_option("--resume", o.resume, "go on from a saved state")->check(CLI::ExistingFile);
    app.add_option("--log-dir", o.log_dir, "folder for TensorBoard: loss, accuracy, rates, weights, gradients, the graph, states");
    app.add_option("--drawing", o.drawing, "picture of test trees to write (\"\": none)")->capture_default_str();
    app.add_option("--drawn", o.drawn, "trees on the picture")->check(CLI::NonNegativeNumber)->capture_default_str();
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        std::exit(app.exit(error));
    }
    const bool sst = !o.data.empty();
    if (o.epochs == 0) o.epochs = sst ? 10 : 12;
    if (o.hidden == 0) o.hidden = sst ? 150 : 64;
    if (o.embedding == 0) o.embedding = o.hidden;
    if (!o.together) o.together = o.hidden >= 64;  // smaller products gain less than it costs
    if (o.optimizer.empty()) o.optimizer = sst ? "adagrad" : "adam";
    if (o.lr == 0) o.lr = sst ? 0.05 : 0.003;
    if (o.lr_decay.empty()) o.lr_decay = sst ? "none" : "linear";
    if (o.embedding_lr < 0) o.embedding_lr = o.lr;
    if (o.dropout < 0) o.dropout = sst ? 0.5 : 0;
    if (o.weight_decay < 0) o.weight_decay = sst ? 1e-4 : 0;
    return o;
}

}  // namespace tree_lstm
