// The models of convnets.txt: reading them, and making them with the layers of a program's own.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

struct ConvNet {
    struct Layer {
        std::string kind;
        std::vector<std::int64_t> numbers;
    };
    std::string name;
    std::int64_t pixels = 0;
    std::vector<Layer> layers;
};

inline std::vector<ConvNet> read_convnets() {
    const std::string path = std::string(TAPIR_BENCH_SOURCE_DIR) + "/bench/convnets.txt";
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot read " + path);
    std::vector<ConvNet> nets;
    for (std::string line; std::getline(file, line);) {
        std::istringstream layers(line.substr(0, line.find('#')));
        for (std::string layer; std::getline(layers, layer, ',');) {
            std::istringstream words(layer);
            std::string kind;
            words >> kind;
            if (kind == "model") {
                ConvNet& net = nets.emplace_back();
                words >> net.name >> net.pixels;
            } else if (!kind.empty()) {
                std::vector<std::int64_t>& numbers = nets.back().layers.emplace_back(ConvNet::Layer{kind, {}}).numbers;
                for (std::int64_t n = 0; words >> n;) numbers.push_back(n);
            }
        }
    }
    return nets;
}

struct ConvNetSize {
    std::int64_t pixels;
    std::int64_t thinner = 1;  ///< layers have 1 / thinner of their channels
};

/// Makes a model of the layers of `kit`, which are functions from a tensor to a tensor and whose weights it makes when asked for a layer:
/// conv(in, out, size, stride, padding) with its relu, max_pool(size, stride, padding), average(size), linear(in, out), relu(); flatten()
/// keeps the images apart, and join(tensors) puts the channels of tensors behind each other.
template <class Tensor, class Kit>
class ConvNetMaker {
 public:
    using Function = std::function<Tensor(const Tensor&)>;

    ConvNetMaker(Kit& kit, ConvNetSize size) : kit_(kit), thinner_(size.thinner), side_(size.pixels) {}

    Function operator()(const ConvNet& net) {
        std::vector<Function> layers;
        for (const ConvNet::Layer& layer : net.layers) layers.push_back(layer_of(layer.kind, layer.numbers));
        return chain(layers);
    }

 private:
    static Function chain(const std::vector<Function>& functions) {
        return [functions](Tensor x) {
            for (const Function& f : functions) x = f(x);
            return x;
        };
    }

    Function layer_of(const std::string& kind, const std::vector<std::int64_t>& n) {
        if (kind == "conv") return conv(n.at(0) / thinner_, n.at(1), n.at(2), n.at(3));
        if (kind == "pool") return pool(n.at(0), n.at(1), n.at(2));
        if (kind == "inception") return inception(n);
        if (kind == "linear") return linear(n.at(0) / thinner_);
        if (kind == "relu") return kit_.relu();
        if (kind != "average") throw std::runtime_error("no layer '" + kind + "'");
        const Function average = kit_.average(side_);
        side_ = 1;
        return average;
    }

    void slide(std::int64_t size, std::int64_t stride, std::int64_t padding) { side_ = (side_ + 2 * padding - size) / stride + 1; }

    Function conv(std::int64_t out, std::int64_t size, std::int64_t stride, std::int64_t padding) {
        const Function made = kit_.conv(channels_, out, size, stride, padding);
        channels_ = out;
        slide(size, stride, padding);
        return made;
    }

    Function pool(std::int64_t size, std::int64_t stride, std::int64_t padding) {
        slide(size, stride, padding);
        return kit_.max_pool(size, stride, padding);
    }

    Function linear(std::int64_t out) {
        const Function made = kit_.linear(channels_ * side_ * side_, out);
        channels_ = out;
        side_ = 1;
        return chain({kit_.flatten(), made});
    }

    Function inception(const std::vector<std::int64_t>& n) {
        const std::int64_t in = channels_;
        std::int64_t all = 0;
        const auto branch = [&](std::int64_t inner, std::int64_t out, std::int64_t size) {
            channels_ = in;
            std::vector<Function> layers;
            if (inner > 0) layers.push_back(conv(inner / thinner_, 1, 1, 0));
            layers.push_back(conv(out / thinner_, size, 1, size / 2));
            all += channels_;
            return chain(layers);
        };
        const std::vector<Function> branches{branch(0, n.at(0), 1), branch(n.at(1), n.at(2), 3), branch(n.at(3), n.at(4), 5),
                                             chain({pool(3, 1, 1), branch(0, n.at(5), 1)})};
        channels_ = all;
        return [join = kit_.join(), branches](const Tensor& x) {
            std::vector<Tensor> parts;
            for (const Function& f : branches) parts.push_back(f(x));
            return join(parts);
        };
    }

    Kit& kit_;
    std::int64_t thinner_, side_, channels_ = 3;
};

}  // namespace bench
