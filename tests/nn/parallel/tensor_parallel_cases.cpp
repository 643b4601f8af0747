// Parts of layers on several ranks against the whole layers in one process.
#include <tapir/tapir.h>

#include "cases.h"
#include "tapir/nn/parallel/replicas.h"
#include "tapir/nn/parallel/tensor_parallel.h"

namespace cases {
namespace {

using parallel::ColumnParallelLinear;
using parallel::RowParallelLinear;
using parallel::VocabParallelEmbedding;

// Sizes that 1 to 4 ranks share evenly.
struct Parts : nn::Module {
    explicit Parts(const Group& group)
        : table(24, 5, group), up(5, 12, group), down(12, 5, group), out(5, 24, group, {.bias = false, .gather_output = true}) {}
    VocabParallelEmbedding table;
    nn::LayerNorm norm{5};
    ColumnParallelLinear up;
    RowParallelLinear down;
    ColumnParallelLinear out;
    void members(nn::Members& m) override { m("table", table)("norm", norm)("up", up)("down", down)("out", out); }
    Tensor loss(const Tensor& words, const Tensor& next) const {
        const Tensor h = table(words);
        return cross_entropy(out(h + down(tanh(up(norm(h))))), next);
    }
};

struct Whole : nn::Module {
    nn::Embedding table{24, 5};
    nn::Linear up{5, 12}, down{12, 5}, out{5, 24, false};
    nn::LayerNorm norm{5};
    void members(nn::Members& m) override { m("table", table)("norm", norm)("up", up)("down", down)("out", out); }
    Tensor loss(const Tensor& words, const Tensor& next) const {
        const Tensor h = table(words);
        return cross_entropy(out(h + down(tanh(up(norm(h))))), next);
    }
};

Tensor words_of(int step) { return tensor({step % 24, (5 * step) % 24, 23, step % 24, 2}); }

void compare(const Parts& have, const Whole& want) {
    require_close(have.table.gather().weight.detach(), want.table.weight.detach(), 1e-4);
    require_close(have.norm.weight.detach(), want.norm.weight.detach(), 1e-4);
    const nn::Linear up = have.up.gather(), down = have.down.gather();
    require_close(up.weight.detach(), want.up.weight.detach(), 1e-4);
    require_close(up.bias.detach(), want.up.bias.detach(), 1e-4);
    require_close(down.weight.detach(), want.down.weight.detach(), 1e-4);
    require_close(down.bias.detach(), want.down.bias.detach(), 1e-4);
    require_close(have.out.gather().weight.detach(), want.out.weight.detach(), 1e-4);
}

// The whole layers have the weights that the parts begin with.
void copy_weights(const Parts& from, Whole& to) {
    const NoGradScope pause;
    to.table.weight.copy_(from.table.gather().weight);
    for (const auto& [part, whole] : {std::pair{from.up.gather(), &to.up}, {from.down.gather(), &to.down}, {from.out.gather(), &to.out}}) {
        whole->weight.copy_(part.weight);
        if (part.bias.defined()) whole->bias.copy_(part.bias);
    }
}

void train(const Group& tensor_group, const Group& data_group) {
    manual_seed(static_cast<std::uint64_t>(tensor_group.rank()));  // rank 0's weights count
    Parts have(tensor_group);
    parallel::Replicas replicas(have, data_group);
    Whole want;
    copy_weights(have, want);
    optim::Adam step_have(have.parameters(), {.lr = 0.02}), step_want(want.parameters(), {.lr = 0.02});
    for (int step = 0; step < 15; ++step) {
        const auto loss_of = [&](const auto& model, int part) { return model.loss(words_of(3 * step + part), words_of(step + 7 * part)); };
        {
            Tape tape;
            tape.backward(loss_of(have, data_group.rank()));
        }
        {
            Tape tape;
            Tensor total = loss_of(want, 0);
            for (int part = 1; part < data_group.size(); ++part) total = total + loss_of(want, part);
            tape.backward(total / data_group.size());
        }
        require_close(have.norm.bias.grad(), want.norm.bias.grad(), 1e-5);
        step_have.step();
        step_want.step();
        step_have.zero_grad();
        step_want.zero_grad();
    }
    compare(have, want);
}

void training(const Group& world) {
    train(world, Group());
    if (world.size() != 4) return;
    train(world.split(world.rank() / 2), world.split(world.rank() % 2));
}

// Inputs that are not in parts, and gradients to second order.
void pieces(const Group& world) {
    manual_seed(1);
    const RowParallelLinear row(12, 3, world, {.bias = false, .input_is_parallel = false});
    const nn::Linear whole = row.gather();
    const Tensor x = randn({2, 12}).requires_grad_();
    const auto second = [&](const auto& layer) {
        Tape tape;
        const Tensor first = tape.gradient(sum(tanh(layer(x))), x, {.create_graph = true});
        return std::pair{first.detach(), tape.gradient(sum(square(first)), x)};
    };
    const auto have = second(row), want = second(whole);
    require_close(have.first, want.first, 1e-5);
    require_close(have.second, want.second, 1e-5);
    require_close(gather_from_group(scatter_to_group(x, world, 1), world, 1).detach(), x.detach(), 0);
}

void refused(const Group& world) {
    const VocabParallelEmbedding table(24, 2, world);
    require_in("24", message_of<IndexError>([&] { sum(table(tensor({3, 24}))).item(); }));
    if (world.size() == 1) return;
    require_in("indices are from -1 to 3", message_of<IndexError>([&] { table(tensor({3, -1})); }));
    require_in("indices must be integers", message_of<DTypeError>([&] { table(ones({2})); }));
    require_in("ranks cannot share 25 outputs evenly", message_of<ValueError>([&] { const ColumnParallelLinear none(3, 25, world); }));
    require_in("ranks cannot share 25 inputs evenly", message_of<ValueError>([&] { const RowParallelLinear none(25, 3, world); }));
    require_in("ranks cannot share 25 rows evenly", message_of<ValueError>([&] { const VocabParallelEmbedding none(25, 3, world); }));
    require_in("which", message_of<ShapeError>([&] { scatter_to_group(ones({25}), world); }));
}

}  // namespace

std::vector<Case> tensor_parallel_cases() {
    return {{"tensor parallel", 1, training}, {"pieces of tensor parallel", 1, pieces}, {"misuse of tensor parallel", 1, refused}};
}

}  // namespace cases
