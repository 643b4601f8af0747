// Replicas against one process that computes all ranks' losses itself.
#include <fmt/format.h>

#include <tapir/optim/optim.h>

#include "cases.h"
#include "tapir/nn/parallel/replicas.h"

namespace cases {
namespace {

using parallel::Replicas;
using parallel::ReplicasOptions;
using Parameters = std::vector<Tensor>;

// The ranks' parameters and gradients are the same bits.
void require_alike(const Group& world, const Parameters& parameters) {
    const NoGradScope pause;
    for (const Tensor& p : parameters) require_equal(world.broadcast(p.detach(), 0), p.detach());
}

struct Work {
    std::function<Parameters(std::uint64_t seed)> make;
    std::function<Tensor(const Parameters&, int rank, int step)> loss;
    int steps = 10;
    double tolerance = 1e-10;
    std::function<void(const Parameters&)> between = [](const Parameters&) {};  // backward() and the step
};

template <class Optimizer = optim::Adam>
void compare(const Group& world, const Work& work, const ReplicasOptions& options = {}, Loc loc = Loc::current()) {
    const Parameters have = work.make(100 + static_cast<std::uint64_t>(world.rank())), want = work.make(100);
    const Replicas replicas(have, world, options);
    Optimizer step_have(have, {.lr = 0.05}), step_want(want, {.lr = 0.05});
    for (int step = 0; step < work.steps; ++step) {
        {
            Tape tape;
            tape.backward(work.loss(have, world.rank(), step));
        }
        {
            Tape tape;
            Tensor total = work.loss(want, 0, step);
            for (int r = 1; r < world.size(); ++r) total = total + work.loss(want, r, step);
            tape.backward(options.combine == Reduce::mean ? total / world.size() : total);
        }
        work.between(have);
        work.between(want);
        for (std::size_t i = 0; i < have.size(); ++i) {
            require(have[i].grad().defined() == want[i].grad().defined(), fmt::format("parameter {} has a gradient or has none", i), loc);
            if (have[i].grad().defined()) require_close(have[i].grad(), want[i].grad(), work.tolerance, loc);
        }
        step_have.step();
        step_want.step();
        step_have.zero_grad();
        step_want.zero_grad();
        for (std::size_t i = 0; i < have.size(); ++i) require_close(have[i].detach(), want[i].detach(), work.tolerance, loc);
        require_alike(world, have);
    }
}

Tensor batch_of(int rank, int step, const Shape& shape) {
    Generator generator(static_cast<std::uint64_t>(rank + 10 * step));
    return randn(shape, generator, float64);
}

Work mlp() {
    return {[](std::uint64_t seed) {
                manual_seed(seed);
                return Parameters{randn({5, 8}, float64).requires_grad_(), zeros({8}, float64).requires_grad_(),
                                  randn({8, 2}, float64).requires_grad_()};
            },
            [](const Parameters& p, int rank, int step) {
                const Tensor x = batch_of(rank, step, {6, 5});
                return square(matmul(tanh(matmul(x, p[0]) + p[1]), p[2]) - 1).mean();
            }};
}

void steps(const Group& world) {
    Work many = mlp();
    many.steps = 50;
    compare(world, many, {.bucket = 200});
    for (const std::int64_t bucket : {1, 1 << 20}) compare(world, mlp(), {.bucket = bucket});
    compare(world, mlp(), {.combine = Reduce::sum});
    Work single = mlp();
    single.make = [](std::uint64_t seed) {
        manual_seed(seed);
        return Parameters{randn({5, 8}).requires_grad_(), zeros({8}).requires_grad_(), randn({8, 2}).requires_grad_()};
    };
    single.loss = [](const Parameters& p, int rank, int step) {
        return square(matmul(tanh(matmul(batch_of(rank, step, {6, 5}).to(float32), p[0]) + p[1]), p[2]) - 1).mean();
    };
    single.tolerance = 1e-5;
    single.steps = 5;
    compare<optim::SGD>(world, single);
}

// Weights are used in 16 bits, and have gradients in 32.
void autocast(const Group& world) {
    Work work = mlp();
    work.make = [](std::uint64_t seed) {
        manual_seed(seed);
        return Parameters{randn({5, 8}).requires_grad_(), zeros({8}).requires_grad_(), randn({8, 2}).requires_grad_()};
    };
    work.loss = [](const Parameters& p, int rank, int step) {
        const AutocastScope low(bfloat16);
        return square(matmul(tanh(matmul(batch_of(rank, step, {6, 5}).to(float32), p[0]) + p[1]), p[2]).to(float32) - 1).mean();
    };
    work.tolerance = 0.05;  // bfloat16 has 8 bits
    compare<optim::SGD>(world, work);
}

// Which parameters a rank uses depends on its data; the last is never used.
void unused(const Group& world) {
    Work work;
    work.make = [](std::uint64_t seed) {
        manual_seed(seed);
        Parameters p;
        for (int i = 0; i < 5; ++i) p.push_back(randn({3, 3}, float64).requires_grad_());
        return p;
    };
    work.loss = [](const Parameters& p, int rank, int step) {
        Tensor h = batch_of(rank, step, {2, 3});
        for (int i = 0; i < 4; ++i) {
            if ((rank + step + i) % 3 == 0) h = tanh(matmul(h, p[static_cast<std::size_t>(i)]));
        }
        return matmul(h, p[static_cast<std::size_t>(step % 4)]).pow(2).sum();
    };
    for (const std::int64_t bucket : {1, 150, 1 << 20}) compare(world, work, {.bucket = bucket});
}

// A Tree-LSTM on random trees. Of some steps all trees are single words, which leave the weights of inner nodes alone.
Work trees() {
    Work work;
    work.make = [](std::uint64_t seed) {
        manual_seed(seed);
        nn::Embedding table(12, 3);
        nn::NaryTreeLSTMCell cell(3, 4);
        table.to(float64);
        cell.to(float64);
        return Parameters{table.weight, cell.weight_ih, cell.bias_ih, cell.weight_hh, cell.bias_hh};
    };
    work.loss = [](const Parameters& p, int rank, int step) {
        nn::NaryTreeLSTMCell cell(3, 4);
        cell.weight_ih = p[1];
        cell.bias_ih = p[2];
        cell.weight_hh = p[3];
        cell.bias_hh = p[4];
        Generator random(static_cast<std::uint64_t>(rank + 10 * step));
        const std::function<LSTMState(int)> encode = [&](int depth) {
            if (step % 7 == 3 || depth == 0 || rand({}, random).item<double>() < 0.3) return cell(embedding(randint(0, 12, {}, random), p[0]));
            const LSTMState left = encode(depth - 1);
            return cell(left, encode(depth - 1));
        };
        return square(encode(4).h - 0.5).sum();
    };
    return work;
}

void tree_lstm(const Group& world) {
    Work many = trees();
    many.steps = 50;
    compare(world, many, {.bucket = 200});
}

Work words(bool are_tied) {
    Work work;
    work.make = [](std::uint64_t seed) {
        manual_seed(seed);
        nn::Embedding table(12, 4);
        table.to(float64);
        return Parameters{table.weight, randn({4, 3}, float64).requires_grad_()};
    };
    work.loss = [are_tied](const Parameters& p, int rank, int step) {
        const Tensor index = tensor({(rank + step) % 12, (3 * rank + 1) % 12, (rank + step) % 12});
        const Tensor h = tanh(embedding(index, p[0]));
        Tensor loss = square(matmul(h, p[1])).sum();
        if (are_tied && (rank + step) % 2 == 0) loss = loss + matmul(h, p[0].t()).sum();
        return loss;
    };
    return work;
}

// Lazy Adam moves the rows that some rank has used, and no others.
void rows(const Group& world) {
    Work many = words(false);
    many.steps = 50;
    compare(world, many);
    compare<optim::SGD>(world, words(false));
    compare<optim::Adagrad>(world, words(false));
    Work clipped = words(false);
    clipped.between = [](const Parameters& p) { optim::clip_grad_norm_(p, 0.5); };
    compare<optim::SGD>(world, clipped);
}

void tied_rows(const Group& world) { compare<optim::SGD>(world, words(true)); }

// Several backward() calls for one step.
void accumulation(const Group& world) {
    for (const Work& work : {mlp(), words(false)}) {
        const Parameters have = work.make(100 + static_cast<std::uint64_t>(world.rank())), want = work.make(100);
        Replicas replicas(have, world);
        optim::Adam step_have(have, {.lr = 0.05}), step_want(want, {.lr = 0.05});
        for (int step = 0; step < 4; ++step) {
            for (int part = 0; part < 3; ++part) {
                const auto last = [&] {
                    Tape tape;
                    tape.backward(work.loss(have, world.rank(), 3 * step + part));
                };
                if (part < 2 && step % 2 == 0) {  // else every one is summed
                    const auto alone = replicas.no_sync();
                    last();
                } else {
                    last();
                }
                Tape tape;
                Tensor total = zeros({}, float64);
                for (int r = 0; r < world.size(); ++r) total = total + work.loss(want, r, 3 * step + part);
                tape.backward(total / world.size());
            }
            for (std::size_t i = 0; i < have.size(); ++i) require_close(have[i].grad(), want[i].grad(), 1e-10);
            step_have.step();
            step_want.step();
            step_have.zero_grad();
            step_want.zero_grad();
            for (std::size_t i = 0; i < have.size(); ++i) require_close(have[i].detach(), want[i].detach(), 1e-10);
            require_alike(world, have);
        }
    }
}

// Ranks with more samples than others, and without any.
void samples(const Group& world) {
    for (const Work& work : {mlp(), words(false)}) {
        const Parameters have = work.make(100 + static_cast<std::uint64_t>(world.rank())), want = work.make(100);
        Replicas replicas(have, world);
        optim::Adam step_have(have, {.lr = 0.05}), step_want(want, {.lr = 0.05});
        const auto count_of = [](int rank, int step) { return (rank + step) % 3; };
        for (int step = 0; step < 8; ++step) {
            const int parts = 1 + step % 2;
            double count = 0;
            for (int part = 0; part < parts; ++part) {
                const auto one = [&] {
                    Tape tape;
                    const int samples_here = count_of(world.rank(), step + part);
                    replicas.backward(samples_here > 0 ? work.loss(have, world.rank(), step + part) : Tensor(), samples_here);
                };
                if (part + 1 < parts) {
                    const auto alone = replicas.no_sync();
                    one();
                } else {
                    one();
                }
                for (int r = 0; r < world.size(); ++r) count += count_of(r, step + part);
            }
            if (count == 0) {
                for (const Tensor& p : have) require(!p.grad().defined(), "nobody has a sample");
                continue;
            }
            Tape tape;
            Tensor total = zeros({}, float64);
            for (int part = 0; part < parts; ++part) {
                for (int r = 0; r < world.size(); ++r) {
                    if (count_of(r, step + part) > 0) total = total + work.loss(want, r, step + part) * count_of(r, step + part);
                }
            }
            tape.backward(total / count);
            for (std::size_t i = 0; i < have.size(); ++i) require_close(have[i].grad(), want[i].grad(), 1e-10);
            step_have.step();
            step_want.step();
            step_have.zero_grad();
            step_want.zero_grad();
            require_alike(world, have);
        }
    }
}

// A process alone computes what a program without Replicas does, to the bit.
void alone(const Group& world) {
    if (world.size() > 1) return;
    const Work work = mlp();
    const Parameters have = work.make(100), want = work.make(100);
    Replicas replicas(have, world);
    for (int step = 0; step < 2; ++step) {  // the second one adds to the first
        {
            Tape tape;
            replicas.backward(work.loss(have, 0, step), 7);
        }
        {
            Tape tape;
            tape.backward(work.loss(want, 0, step));
        }
        for (std::size_t i = 0; i < have.size(); ++i) require_equal(have[i].grad(), want[i].grad());
    }
    const auto paused = replicas.no_sync();
    Tape tape;
    require_in("zero_grad() before a no_sync() scope", message_of<ValueError>([&] { replicas.backward(work.loss(have, 0, 2), 7); }));
}

// A scaler finds infinities of any rank on all.
void scaler(const Group& world) {
    const Tensor w = ones({4}).requires_grad_();
    const Replicas replicas({w}, world);
    optim::SGD sgd({w}, {.lr = 0.5});
    optim::GradScaler scale({.init_scale = 4});
    for (int step = 0; step < 3; ++step) {
        Tape tape;
        const Tensor factor = full({4}, step == 1 && world.rank() == world.size() - 1 ? INFINITY : 1.0f);
        tape.backward(scale.scale(sum(w * factor)));
        scale.step(sgd);
        scale.update();
        sgd.zero_grad();
    }
    require_equal(w.detach(), zeros({4}));  // two steps of three
    require(scale.get_scale() == 2, "halved once on all ranks");
}

// Items of batch() on two threads, in a model with hooks of its own.
void batches(const Group& world) {
    manual_seed(1);
    const Parameters have = {randn({3, 3}, float64).requires_grad_()}, want = {have[0].detach().clone().requires_grad_()};
    const Replicas replicas(have, world);
    have[0].register_hook([](const Tensor& g) { return g * 2; });
    want[0].register_hook([](const Tensor& g) { return g * 2; });
    const auto loss = [](const Tensor& w, int rank) {
        const std::vector<int> items = {1, 2, 3, 4, 5};
        return sum(stack(batch(items, [&](int n) { return sum(tanh(linear(full({3}, 0.1 * (n + rank), float64), w))); }, {.threads = 2})));
    };
    {
        Tape tape;
        tape.backward(loss(have[0], world.rank()));
    }
    Tape tape;
    Tensor total = zeros({}, float64);
    for (int r = 0; r < world.size(); ++r) total = total + loss(want[0], r);
    tape.backward(total / world.size());
    require_close(have[0].grad(), want[0].grad(), 1e-12);
}

struct Block : nn::Module {
    nn::Linear linear{4, 4};
    nn::BatchNorm1d norm{4};
    void members(nn::Members& m) override { m("linear", linear)("norm", norm); }
};

void modules(const Group& world) {
    manual_seed(static_cast<std::uint64_t>(world.rank()));
    Block block;
    block.linear.bias.requires_grad_(false);
    for (const Tensor& buffer : block.buffers()) {
        const NoGradScope pause;
        if (is_floating(buffer.dtype())) Tensor(buffer).fill_(world.rank());
    }
    Replicas replicas(block, world);
    require(replicas.group().size() == world.size(), "its group");
    require_alike(world, block.parameters());
    for (const Tensor& buffer : block.buffers()) {
        if (is_floating(buffer.dtype())) require_equal(buffer, zeros_like(buffer));
    }
}

void misuse(const Group& world) {
    Tensor w = ones({3}, float64).requires_grad_();
    {
        Replicas replicas({w}, world);
        require_in("belongs to another Replicas", message_of<ValueError>([&] { const Replicas again({w}, world); }));
        require_in("replicas_cases.cpp:", message_of<ValueError>([&] { const Replicas none(Parameters{}, world); }));
        require_in("is no leaf", message_of<ValueError>([&] { const Replicas constant({ones({2})}, world); }));
        require_in("combine by mean or sum",
                   message_of<ValueError>([&] { const Replicas most({ones({2}).requires_grad_()}, world, {.combine = Reduce::max}); }));
        require_in("at least a byte", message_of<ValueError>([&] { const Replicas none({ones({2}).requires_grad_()}, world, {.bucket = 0}); }));
        require_in("is negative", message_of<ValueError>([&] { replicas.backward(sum(w), -1); }));
        require_in("there is no tape", message_of<TapeError>([&] { replicas.backward(sum(w), 1); }));
        require_in("is undefined", message_of<ValueError>([&] { replicas.backward(Tensor(), 1); }));
        Tape tape({.persistent = true});
        if (world.size() > 1) {
            require_in("cannot be recorded", message_of<TapeError>([&] { tape.backward(sum(w * w), {.create_graph = true}); }));
            require_equal(tape.gradient(sum(w * w), w), full({3}, 2.0, float64));  // of this rank alone
            tape.backward(sum(w * (world.rank() + 1)));
            require_in("zero_grad() before a no_sync() scope", message_of<ValueError>([&] {
                           const auto alone = replicas.no_sync();
                           tape.backward(sum(w));
                       }));
            w.zero_grad();
            {
                const auto alone = replicas.no_sync();
                replicas.backward(sum(w), 2);
            }
            const char* const mixed = "some have a number of samples and others none";
            require_in(mixed, message_of<ValueError>([&] { tape.backward(sum(w)); }));
            w.zero_grad();
            {
                const auto alone = replicas.no_sync();
                tape.backward(sum(w));
                require_in(mixed, message_of<ValueError>([&] { replicas.backward(sum(w), 2); }));
            }
            w.zero_grad();
            replicas.backward(sum(w), 2);
            require_equal(w.grad(), ones({3}, float64));
        }
    }
    w.zero_grad();
    Tape tape;
    tape.backward(sum(w * (world.rank() + 1)));  // of a process alone again
    require_equal(w.grad(), full({3}, world.rank() + 1.0, float64));
}

}  // namespace

std::vector<Case> replicas_cases() {
    return {{"steps", 1, steps},
            {"autocast", 1, autocast},
            {"unused", 1, unused},
            {"rows", 1, rows},
            {"Tree-LSTM", 1, tree_lstm},
            {"tied rows", 1, tied_rows},
            {"accumulation", 1, accumulation},
            {"samples", 1, samples},
            {"alone", 1, alone},
            {"scaler", 1, scaler},
            {"batches", 1, batches},
            {"modules", 1, modules},
            {"misuse of replicas", 1, misuse}};
}

}  // namespace cases
