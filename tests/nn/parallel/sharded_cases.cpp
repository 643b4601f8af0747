// Sharded optimizers against the same ones, whole on each rank.
#include <fmt/format.h>

#include <tapir/graph.h>
#include <tapir/optim/optim.h>

#include "cases.h"
#include "tapir/nn/parallel/replicas.h"
#include "tapir/nn/parallel/sharded.h"

namespace cases {
namespace {

using parallel::Replicas;
using parallel::Sharded;

struct Model : nn::Module {
    nn::Embedding table{20, 6};
    nn::Linear first{6, 16}, second{16, 3}, unused{2, 2};
    void members(nn::Members& m) override { m("table", table)("first", first)("second", second)("unused", unused); }
    Tensor loss(int rank, int step) const {
        const Tensor words = tensor({(3 * rank + step) % 20, (step * step) % 20, (3 * rank + step) % 20});
        return square(second(tanh(first(table(words)))) - 1).mean();
    }
};

Model made() {
    manual_seed(3);
    return Model();
}

// One step with the gradients of all ranks.
void backward(const Model& model, const Group& world, int step) {
    Tape tape;
    tape.backward(model.loss(world.rank(), step));
}

void require_same(Model& have, Model& want, Loc loc = Loc::current()) {
    const NamedTensors a = have.state_dict(), b = want.state_dict();
    for (std::size_t i = 0; i < a.size(); ++i) require_equal(a[i].tensor.detach(), b[i].tensor.detach(), loc);
}
void require_same(const NamedTensors& have, const NamedTensors& want, Loc loc = Loc::current()) {
    require(have.size() == want.size(), fmt::format("{} entries, not {}", have.size(), want.size()), loc);
    for (std::size_t i = 0; i < have.size(); ++i) {
        require(have[i].name == want[i].name, have[i].name, loc);
        require_equal(have[i].tensor, want[i].tensor, loc);
    }
}

template <class Optimizer>
void compare(const Group& world, const typename Optimizer::Options& options, bool to_last = false) {
    Model have = made(), want = made();
    const Replicas of_have(have, world), of_want(want, world);
    const auto parts = [](Model& model) {
        std::vector<Tensor> embedding = model.table.parameters(), rest = model.first.parameters();
        for (const Tensor& p : model.second.parameters()) rest.push_back(p);
        for (const Tensor& p : model.unused.parameters()) rest.push_back(p);
        return std::pair{embedding, rest};
    };
    Sharded<Optimizer> sharded(parts(have).first, world, options);
    sharded.add_param_group(parts(have).second, options);
    Optimizer whole(parts(want).first, options);
    whole.add_param_group(parts(want).second, options);
    sharded.options(1).lr *= 0.5;
    whole.set_lr(whole.lr(1) * 0.5, 1);
    const int to = to_last ? world.size() - 1 : 0;
    for (int step = 0; step < 6; ++step) {
        for (const auto& [model, optimizer] : {std::pair<Model*, optim::Optimizer*>{&have, &sharded}, {&want, &whole}}) {
            backward(*model, world, step);
            optim::clip_grad_norm_(model->parameters(), 0.7);
            optimizer->step();
            optimizer->zero_grad();
        }
        require_same(have, want);
        if (step != 3) continue;
        sharded.consolidate_state_dict(to);
        if (world.rank() == to) {
            require_same(sharded.state_dict(), whole.state_dict());
        } else {
            require_in("call consolidate_state_dict() on all ranks", message_of<ValueError>([&] { (void)sharded.state_dict(); }));
        }
    }
}

void steps(const Group& world) {
    compare<optim::Adam>(world, {.lr = 0.05});
    compare<optim::AdamW>(world, {.lr = 0.05, .amsgrad = true}, true);
    compare<optim::SGD>(world, {.lr = 0.05, .momentum = 0.9});
    compare<optim::NAdam>(world, {.lr = 0.05});
    compare<optim::Adagrad>(world, {.lr = 0.05});
}

// A state that was saved by all ranks goes on in one process, in half of the ranks, and in all.
void other_ranks(const Group& world) {
    Model model = made();
    NamedTensors weights, state;
    {
        const Replicas replicas(model, world);
        Sharded<optim::Adam> adam(model.parameters(), world, {.lr = 0.05});
        for (int step = 0; step < 3; ++step) {
            backward(model, world, step);
            adam.step();
            adam.zero_grad();
        }
        for (int root = 0; root < world.size(); ++root) {  // as each rank would read a file
            adam.consolidate_state_dict(root);
            if (world.rank() == root) state = adam.state_dict();
        }
    }
    weights = nn::clone(model).state_dict();
    Model alone = made();
    alone.load_state_dict(weights);
    optim::Adam whole(alone.parameters());
    whole.load_state_dict(state);
    const auto go_on = [&](const Model& of, optim::Optimizer& optimizer) {
        for (int step = 3; step < 6; ++step) {
            Tape tape;
            tape.backward(of.loss(5, step));  // the same on all ranks
            optimizer.step();
            optimizer.zero_grad();
        }
    };
    go_on(alone, whole);
    const Group half = world.split(world.rank() % 2);
    for (const Group& group : {world, half, Group()}) {
        Model again = made();
        again.load_state_dict(weights);
        Sharded<optim::Adam> adam(again.parameters(), group);
        adam.load_state_dict(state);
        go_on(again, adam);
        require_same(again, alone);
        if (group.size() == 1) require_same(adam.state_dict(), whole.state_dict());
    }
}

// Parameters and moments of other dtypes, and a scaler.
void low_precision(const Group& world) {
    manual_seed(4);
    const std::vector<Tensor> have = {randn({3, 40}, bfloat16).requires_grad_(), randn({7}, float64).requires_grad_()};
    std::vector<Tensor> want;
    for (const Tensor& p : have) want.push_back(p.detach().clone().requires_grad_());
    Sharded<optim::Adam> sharded(have, world, {.lr = 0.05});
    optim::Adam whole(want, {.lr = 0.05});
    for (int step = 0; step < 3; ++step) {
        for (const auto& p : {have, want}) {
            Tape tape;
            tape.backward(sum(square(p[0].to(float32) - step)) + sum(square(p[1])).to(float32));
        }
        sharded.step();
        whole.step();
        sharded.zero_grad();
        whole.zero_grad();
        for (std::size_t i = 0; i < have.size(); ++i) require_equal(have[i].detach(), want[i].detach());
    }
    sharded.consolidate_state_dict();
    if (world.rank() == 0) require_same(sharded.state_dict(), whole.state_dict());
}

void refused(const Group& world) {
    Tensor w = ones({3}).requires_grad_(), v = ones({2}).requires_grad_();
    require_in("LBFGS: its step needs all parameters at once", message_of<ValueError>([&] { const Sharded<optim::LBFGS> lbfgs({w}, world); }));
    Sharded<optim::SGD> sgd({w, v}, world, {.lr = 0.5});
    require_in("there is no rank 9", message_of<ValueError>([&] { sgd.consolidate_state_dict(9); }));
    if (world.size() == 1) return;
    w.set_grad(ones({3}));
    if (world.rank() == 0) v.set_grad(ones({2}));
    const std::string differ = message_of<CommError>([&] { sgd.step(); });
    require_in("sharded_cases.cpp:", differ);
    require_in("1 parameters with gradients", differ);
    require_in("2 parameters with gradients", differ);
    require_equal(w.detach(), ones({3}));
    v.set_grad(ones({2}));
    sgd.step();
    require_equal(w.detach(), full({3}, 0.5f));
    require_equal(v.detach(), full({2}, 0.5f));
    require_in("a graph cannot hold a step that other ranks share", message_of<TapeError>([&] {
                   trace(
                       [&](const Tensor& x) {
                           sgd.step();
                           return x;
                       },
                       {{"x", ones({2})}});
               }));
}

}  // namespace

std::vector<Case> sharded_cases() {
    return {{"Sharded", 1, steps},
            {"a state of other ranks", 1, other_ranks},
            {"Sharded of several dtypes", 1, low_precision},
            {"misuse of Sharded", 1, refused}};
}

}  // namespace cases
