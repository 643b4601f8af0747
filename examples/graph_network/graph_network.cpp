// Message passing on graphs (Gilmer et al. 2017, "Neural message passing for quantum chemistry"): in each round a node hears what its
// neighbours tell, and changes its state (a GRU). Each graph has a size and edges of its own, and the model is a loop over them: no
// adjacency matrix, no padding. batch() computes the graphs of a step together, and in each of them the nodes.
//
// Two nodes of each graph are its ends. The question is whether a path leads from one to the other.
#include <fmt/format.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <random>

#include "../common/show.h"

using namespace tapir;

namespace {

struct Options {
    int nodes = 12, steps = 500, batch = 32, test_graphs = 500;
    std::int64_t hidden = 96;
    double lr = 3e-3;
    bool together = true, report = false;
    std::uint64_t seed = 1;
    std::string chart = "graph_network.svg";
};

struct Graph {
    std::vector<std::vector<int>> neighbours;  // of each node
    bool has_path = false;                     // from node 0 to node 1, the ends
    int size() const { return static_cast<int>(neighbours.size()); }
};

bool leads(const Graph& graph, int from, int to) {
    std::vector<bool> seen(graph.neighbours.size());
    std::vector<int> open = {from};
    while (!open.empty()) {
        const int node = open.back();
        open.pop_back();
        if (node == to) return true;
        if (seen[static_cast<std::size_t>(node)]) continue;
        seen[static_cast<std::size_t>(node)] = true;
        for (const int next : graph.neighbours[static_cast<std::size_t>(node)]) open.push_back(next);
    }
    return false;
}

// A graph of `nodes` nodes, and one edge less.
Graph random_graph(int nodes, std::mt19937_64& random) {
    Graph graph;
    graph.neighbours.resize(static_cast<std::size_t>(nodes));
    for (int edges = 0; edges < nodes - 1;) {
        const auto a = static_cast<int>(random() % static_cast<unsigned>(nodes)), b = static_cast<int>(random() % static_cast<unsigned>(nodes));
        std::vector<int>& of_a = graph.neighbours[static_cast<std::size_t>(a)];
        if (a == b || std::find(of_a.begin(), of_a.end(), b) != of_a.end()) continue;
        of_a.push_back(b);
        graph.neighbours[static_cast<std::size_t>(b)].push_back(a);
        ++edges;
    }
    graph.has_path = leads(graph, 0, 1);
    return graph;
}

// Half of them with a path. No end is without an edge, and none is a neighbour of the other: both would be too easy.
std::vector<Graph> draw(int count, int least, int most, std::mt19937_64& random) {
    std::vector<Graph> graphs;
    while (static_cast<int>(graphs.size()) < count) {
        const bool has_path = graphs.size() % 2 == 0;
        Graph graph = random_graph(least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1)), random);
        const std::vector<int>& from = graph.neighbours[0];
        const std::vector<int>& to = graph.neighbours[1];
        if (graph.has_path != has_path || from.empty() || to.empty() || std::find(from.begin(), from.end(), 1) != from.end()) continue;
        graphs.push_back(std::move(graph));
    }
    return graphs;
}

struct Model : nn::Module {
    nn::Embedding kind;  // of a node: one end, the other, neither
    nn::Linear tell, classify;
    nn::GRUCell change;

    explicit Model(const Options& o) : kind(3, o.hidden), tell(o.hidden, o.hidden), classify(o.hidden, 2), change(o.hidden, o.hidden) {}
    void members(nn::Members& m) override { m("kind", kind)("tell", tell)("classify", classify)("change", change); }

    // A node's state, and what it tells its neighbours.
    struct Node {
        Tensor state, told;
    };
    Node node_of(const Tensor& state) const { return {state, relu(tell(state))}; }

    // Scores of no and yes.
    Tensor forward(const Graph& graph) const {
        std::vector<int> numbers(graph.neighbours.size());
        std::iota(numbers.begin(), numbers.end(), 0);
        std::vector<Node> nodes = batch(numbers, [&](int n) { return node_of(kind(tensor(std::min(n, 2)))); });
        const auto next = [&](int n) {
            Tensor heard = zeros_like(nodes[0].told);
            for (const int neighbour : graph.neighbours[static_cast<std::size_t>(n)]) heard = heard + nodes[static_cast<std::size_t>(neighbour)].told;
            return node_of(change(heard, nodes[static_cast<std::size_t>(n)].state));
        };
        // After so many rounds the news of both ends have met, if there is a path.
        for (int round = 0; round < (graph.size() + 1) / 2; ++round) nodes = batch(numbers, next);
        std::vector<Tensor> states;
        for (const Node& node : nodes) states.push_back(node.state);
        return classify(amax(stack(states), 0));
    }
};

Tensor labels_of(const std::vector<Graph>& graphs) {
    std::vector<std::int64_t> labels;
    for (const Graph& graph : graphs) labels.push_back(graph.has_path);
    return tensor(labels);
}

// Of a batch of scores.
double accuracy(const Tensor& scores, const Tensor& labels) {
    const NoGradScope pause;
    return mean((argmax(scores, 1) == labels).to(float32)).item();
}

void run(int argc, char** argv) {
    Options o;
    CLI::App app("Message passing on graphs of different sizes");
    app.add_option("--nodes", o.nodes, "of a graph at most; half of it at least")->check(CLI::Range(8, 100))->capture_default_str();
    app.add_option("--steps", o.steps, "each on new graphs")->capture_default_str();
    app.add_option("--batch", o.batch, "graphs a step")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--test-graphs", o.test_graphs)->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--hidden", o.hidden)->capture_default_str();
    app.add_option("--lr", o.lr, "Adam's; it falls to 0 over the run")->capture_default_str();
    app.add_flag("--together,!--no-batch", o.together, "compute all graphs of a step at the same time, or not [together]");
    app.add_flag("--report", o.report, "say what was computed together in training");
    app.add_option("--chart", o.chart, "where the picture goes; '' for none")->capture_default_str();
    app.add_option("--seed", o.seed)->capture_default_str();
    show::parse(app, argc, argv);
    manual_seed(o.seed);
    std::mt19937_64 random(o.seed);
    Model model(o);
    optim::Adam adam(model.parameters(), {.lr = o.lr});
    optim::CosineAnnealingLR schedule(adam, {.T_max = o.steps});
    BatchReport report;
    const BatchOptions options{.together = o.together, .report = o.report ? &report : nullptr};
    const auto forward = [&](const Graph& graph) { return model.forward(graph); };

    show::Progress progress(o.steps);
    show::Curve right{"right in training, a running mean", {}, {}};
    double loss_mean = 0.69, right_mean = 0.5;
    for (int step = 1; step <= o.steps; ++step) {
        const std::vector<Graph> graphs = draw(o.batch, o.nodes / 2, o.nodes, random);
        const Tensor labels = labels_of(graphs);
        Tape tape;
        const Tensor scores = stack(batch(graphs, forward, options));
        const Tensor loss = cross_entropy(scores, labels);
        tape.backward(loss);
        if (step == 1) progress.print(fmt::format("loss of the first step {:.6f}", loss.item()));
        optim::clip_grad_norm_(model.parameters(), 1);
        adam.step();
        adam.zero_grad();
        schedule.step();
        loss_mean += 0.02 * (loss.item() - loss_mean);
        right_mean += 0.02 * (accuracy(scores, labels) - right_mean);
        right.add(step, right_mean);
        progress.update(step, fmt::format("loss {:.3f}, {:.3f} right", loss_mean, right_mean));
    }
    const auto test = [&](int least, int most) {
        const std::vector<Graph> graphs = draw(o.test_graphs, least, most, random);
        return accuracy(stack(batch(graphs, forward, {.together = o.together})), labels_of(graphs));
    };
    if (o.report) fmt::print("{}", report.str());
    const double alike = test(o.nodes / 2, o.nodes), larger = test(o.nodes + 1, 2 * o.nodes);
    show::write_chart(o.chart, {right}, {.title = "Does a path lead from one end to the other?", .x_label = "step", .y_label = "right"});
    fmt::print("right for new graphs of {} to {} nodes: {:.3f}; of {} to {}: {:.3f}\n", o.nodes / 2, o.nodes, alike, o.nodes + 1, 2 * o.nodes,
               larger);
    fmt::print("result {:.4f}\n", alike);
}

}  // namespace

int main(int argc, char** argv) { return show::run("graph_network", argc, argv, run); }
