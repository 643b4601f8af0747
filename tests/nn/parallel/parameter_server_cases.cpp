// What ranks add to the parameter server is there, exactly, and nobody runs further ahead than was agreed.
#include <fmt/format.h>

#include <algorithm>

#include <tapir/tapir.h>

#include "cases.h"
#include "tapir/nn/parallel/parameter_server.h"

namespace cases {
namespace {

using parallel::ParameterServer;

bool has_server(const Group& world) { return world.engine() != std::string("Gloo"); }

// Whole numbers: sums are exact in any order.
void sums(const Group& world) {
    if (!has_server(world)) return;
    const Tensor a = full({3, 5}, world.rank() == 0 ? 7.0f : 99.0f).requires_grad_(), b = zeros({4}, float64), c = zeros({2, 2}, bfloat16),
                 d = zeros({0});
    {
        ParameterServer server({a, b, c, d}, world);
        require_equal(a.detach(), full({3, 5}, 7.0f));
        const NoGradScope pause;
        for (int step = 0; step < 100; ++step) {
            if (step % 3 == 0) server.pull();
            Tensor(a.detach()).add_(world.rank() + 1);
            Tensor(b).add_(2);
            if (step < 50) Tensor(c).add_(1);
            server.push();
            require(server.steps()[static_cast<std::size_t>(world.rank())] == step + 1, "its steps");
        }
        server.finish();
        for (const std::int64_t steps : server.steps()) require(steps == 100, fmt::format("{} steps", steps));
    }
    const int n = world.size();
    require_equal(a.detach(), full({3, 5}, 7.0f + 100.0f * static_cast<float>(n * (n + 1) / 2)));
    require_equal(b, full({4}, 200.0 * n, float64));
    require_equal(c, full({2, 2}, 50.0 * n, bfloat16));
}

void staleness(const Group& world) {
    if (!has_server(world)) return;
    for (const std::int64_t most : {0, 1, 3}) {
        const Tensor w = zeros({2});
        ParameterServer server({w}, world, {.staleness = most});
        const int steps = 20 + 10 * world.rank();  // those that end earlier hold up nobody
        for (int step = 0; step < steps; ++step) {
            server.pull();
            const std::vector<std::int64_t> all = server.steps();
            for (int other = 0; other < world.size(); ++other) {
                const std::int64_t theirs = all[static_cast<std::size_t>(other)];
                require(theirs >= std::min<std::int64_t>(step - most, 20 + 10 * other), fmt::format("step {}, rank {} at {}", step, other, theirs));
            }
            Tensor(w).add_(1);
            server.push();
        }
        server.finish();
        float total = 0;
        for (int rank = 0; rank < world.size(); ++rank) total += static_cast<float>(20 + 10 * rank);
        require_equal(w, full({2}, total));
    }
}

// Several ranks get as far as one does.
void training(const Group& world) {
    if (!has_server(world)) return;
    Generator data(5);
    const Tensor x = randn({512, 8}, data), y = sin(x.sum(1, true));
    const auto final_loss = [&](const Group& group) {
        manual_seed(1);
        nn::Linear first(8, 16), second(16, 1);
        std::vector<Tensor> parameters = first.parameters();
        for (const Tensor& p : second.parameters()) parameters.push_back(p);
        const auto loss = [&](const Tensor& of, const Tensor& target) { return mse_loss(second(tanh(first(of))), target); };
        ParameterServer server(parameters, group, {.staleness = 4});
        optim::SGD sgd(parameters, {.lr = 0.05});
        for (int step = group.rank(); step < 2000; step += group.size()) {
            server.pull();
            const std::int64_t at = step % 32 * 16;
            Tape tape;
            tape.backward(loss(x.narrow(0, at, 16), y.narrow(0, at, 16)));
            sgd.step();
            sgd.zero_grad();
            server.push();
        }
        server.finish();
        const NoGradScope pause;
        return loss(x, y).item<double>();
    };
    const double one = final_loss(Group()), all = final_loss(world);
    require(all < 1.05 * one + 0.01, fmt::format("a loss of {}, one rank has {}", all, one));
}

void refused(const Group& world) {
    const Tensor w = zeros({2});
    require_in("staleness must not be negative, got -1",
               message_of<ValueError>([&] { const ParameterServer server({w}, world, {.staleness = -1}); }));
    require_in("there are no parameters", message_of<ValueError>([&] { const ParameterServer server({}, world); }));
    require_in("takes floating tensors, got int64", message_of<DTypeError>([&] { const ParameterServer server({zeros({2}, int64)}, world); }));
    if (!has_server(world)) {
        require_in("Gloo cannot read and write the memory of other ranks", message_of<ValueError>([&] { const ParameterServer server({w}, world); }));
        return;
    }
    if (world.size() > 1) {
        require_in("the ranks call different things",
                   message_of<CommError>([&] { const ParameterServer server({world.rank() == 0 ? w : zeros({3})}, world); }));
    }
    ParameterServer server({w}, world);
    server.leave();
    require_in("this rank has left", message_of<ValueError>([&] { server.push(); }));
    server.finish();
}

}  // namespace

std::vector<Case> parameter_server_cases() {
    return {{"ParameterServer", 1, sums},
            {"staleness", 1, staleness},
            {"training with a server", 1, training},
            {"misuse of ParameterServer", 1, refused}};
}

}  // namespace cases
