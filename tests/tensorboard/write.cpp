// write FOLDER: one of every kind that SummaryWriter writes, for check.py and browser.py; and what they were made of, as .npy.
#include <tapir/autograd/trace/trace.h>
#include <tapir/nn/summary/summary_writer.h>
#include <tapir/tapir.h>

#include <cmath>
#include <cstdio>
#include <string>

using namespace tapir;

namespace {

struct Tree : nn::Module {
    nn::Embedding embedding{10, 8};
    nn::NaryTreeLSTMCell cell{8, 8};
    nn::Linear classifier{8, 5};
    void members(nn::Members& m) override { m("embedding", embedding)("cell", cell)("classifier", classifier); }
    LSTMState encode(int leaves) const {
        if (leaves == 1) return cell(embedding(tensor(leaves)));
        return cell(encode(leaves / 2), encode(leaves - leaves / 2));
    }
};

void write(const std::string& folder) {
    manual_seed(1);
    nn::SummaryWriter writer(folder + "/run");
    for (std::int64_t step = 0; step < 50; ++step) {
        writer.add_scalar("loss/train", std::exp(-0.1 * static_cast<double>(step)), step);
        writer.add_scalar("accuracy", 1 - std::exp(-0.1 * static_cast<double>(step)), step);
    }
    writer.add_scalar("loss/nan", std::nan(""), 3);
    writer.add_scalars("both", {{"train", 1}, {"test", 2}}, 1);

    const Tensor weights = randn({2000});
    save_npy(folder + "/weights.npy", weights);
    for (std::int64_t step = 0; step < 5; ++step) writer.add_histogram("weights", weights * (1 + 0.2 * static_cast<double>(step)), step);
    writer.add_histogram("no values", zeros({0}));

    const Tensor image = rand({3, 32, 48}), digits = (arange(12 * 14 * 14).reshape(12, 1, 14, 14) % 256).to(uint8);
    save_npy(folder + "/image.npy", image);
    save_npy(folder + "/digits.npy", digits);
    writer.add_image("image", image, 2);
    writer.add_images("digits", digits);
    writer.add_text("notes", "# A title\n\nand **bold** text, gr\xC3\xBC\xC3\x9F", 4);
    for (int i = 0; i < 3; ++i) {
        writer.add_hparams({{"lr", 0.1 * (i + 1)}, {"optimizer", i == 0 ? "sgd" : "adam"}, {"nesterov", i == 1}},
                           {{"hparam/accuracy", 0.5 + 0.1 * i}}, {{"optimizer", {"sgd", "adam"}}}, "trial" + std::to_string(i));
    }
    const Tensor points = randn({30, 4});
    save_npy(folder + "/points.npy", points);
    std::vector<std::string> labels;
    for (int i = 0; i < 30; ++i) labels.push_back("point " + std::to_string(i));
    writer.add_embedding(points, labels, rand({30, 3, 8, 8}), 1, "points");

    nn::Sequential lenet(nn::Conv2d(1, 32, 5, {.padding = 2}), relu, nn::MaxPool2d(2), nn::Conv2d(32, 64, 5, {.padding = 2}), relu, nn::MaxPool2d(2),
                         nn::Flatten(), nn::Dropout(0.3), nn::Linear(64 * 7 * 7, 128), relu, nn::Linear(128, 10));
    writer.add_graph(lenet, zeros({4, 1, 28, 28}));
    writer.close();

    lenet.eval();
    nn::SummaryWriter(folder + "/traced")
        .add_graph(trace([&](const Tensor& x) { return log_softmax(lenet(x), 1); }, {{"images", zeros({4, 1, 28, 28}), {"batch"}}}));

    nn::SummaryWriter tree(folder + "/tree");
    Tree model;
    (void)model.parameters();
    const Tape tape;
    const Tensor loss = cross_entropy(model.classifier(model.encode(100).h.unsqueeze(0)), tensor({3}));  // 199 nodes
    tree.add_graph(tape);
    tree.add_scalar("loss/train", loss, 1);

    nn::SummaryWriter(folder + "/crashed").add_scalar("loss", 1, 100);
    nn::SummaryWriter(folder + "/crashed", {.purge_step = 50}).add_scalar("loss", 2, 50);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    try {
        write(argv[1]);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "write: %s\n", error.what());
        return 1;
    }
}
