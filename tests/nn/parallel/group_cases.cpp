#include <fmt/format.h>

#include <cmath>

#include "cases.h"

namespace cases {
namespace {

const DType kDTypes[] = {uint8, int32, int64, float16, bfloat16, float32, float64};

// Small whole numbers, which every dtype holds and adds exactly.
Tensor of_rank(int rank, const Shape& shape, DType dtype) { return ((arange(shape.numel()).reshape(shape) + rank) % 4).to(dtype); }

void reduces(const Group& world) {
    for (const DType dtype : kDTypes) {
        for (const Shape& shape : {Shape(), Shape{1}, Shape{7}, Shape{3, 5}, Shape{0, 2}, Shape{4096}}) {
            Tensor sum = zeros(shape, dtype), product = ones(shape, dtype), least = full(shape, 9, dtype), most = zeros(shape, dtype);
            for (int r = 0; r < world.size(); ++r) {
                const Tensor x = of_rank(r, shape, dtype);
                sum = sum + x;
                product = product * x;
                least = minimum(least, x);
                most = maximum(most, x);
            }
            const Tensor x = of_rank(world.rank(), shape, dtype), before = x.clone();
            require_equal(world.all_reduce(x), sum);
            require_equal(world.all_reduce(x, Reduce::product), product);
            require_equal(world.all_reduce(x, Reduce::min), least);
            require_equal(world.all_reduce(x, Reduce::max), most);
            if (is_floating(dtype)) require_close(world.all_reduce(x, Reduce::mean), sum / world.size(), 1e-2);
            require_equal(x, before);
            world.all_reduce_(x);
            require_equal(x, sum);
        }
    }
    const Tensor is_first = tensor({world.rank() == 0, true, false});
    require_equal(world.all_reduce(is_first, Reduce::max), tensor({true, true, false}));
    require_equal(world.all_reduce(is_first, Reduce::min), tensor({world.size() == 1, true, false}));
    const double nan = std::nan("");
    const Tensor y = tensor({world.rank() == world.size() - 1 ? nan : 1.0, 2.0});
    require(std::isnan(world.all_reduce(y, Reduce::max)[0].item()) && std::isnan(world.all_reduce(y, Reduce::min)[0].item()), "a nan wins");
}

void layouts(const Group& world) {
    const Tensor whole = arange(24, float64).reshape({4, 6}) * (world.rank() + 1);
    const double factor = world.size() * (world.size() + 1) / 2.0;
    for (const Tensor& x : {whole.t(), whole[Slice(1, 3)], whole.narrow(1, 2, 3), whole.narrow(0, 0, 1).expand({3, 6})}) {
        const Tensor want = x / (world.rank() + 1.0) * factor;
        require_equal(world.all_reduce(x), want);
        const Tensor written = whole.clone().t();
        world.all_reduce_(written.narrow(0, 1, 2));
        require_equal(written.narrow(0, 1, 2), whole.t().narrow(0, 1, 2) / (world.rank() + 1.0) * factor);
        require_equal(written.narrow(0, 0, 1), whole.t().narrow(0, 0, 1));
    }
}

void moves(const Group& world) {
    const int n = world.size(), r = world.rank();
    for (const DType dtype : kDTypes) {
        for (int root = 0; root < n; ++root) {
            const Tensor x = of_rank(r, {3, 2}, dtype);
            require_equal(world.broadcast(x, root), of_rank(root, {3, 2}, dtype));
            world.broadcast_(x, root);
            require_equal(x, of_rank(root, {3, 2}, dtype));
        }
        const Tensor sum_here = world.reduce(of_rank(r, {2}, dtype), n / 2);
        require_equal(sum_here, r == n / 2 ? world.all_reduce(of_rank(r, {2}, dtype)) : world.all_reduce(of_rank(r, {2}, dtype)) * 0);
        for (const int dim : {0, 1, -1}) {
            std::vector<Tensor> parts, uneven;
            for (int i = 0; i < n; ++i) {
                parts.push_back(of_rank(i, {2, 3}, dtype));
                uneven.push_back(dim == 0 ? of_rank(i, {i, 3}, dtype) : of_rank(i, {2, i}, dtype));
            }
            const auto own = static_cast<std::size_t>(r);
            require_equal(world.all_gather(parts[own], dim), cat(parts, dim));
            require_equal(world.all_gather(uneven[own], dim), cat(uneven, dim));
            const Shape wide = dim == 0 ? Shape{2 * n, 3} : Shape{3, 2 * n};
            Tensor sum = zeros(wide, dtype);
            std::vector<Tensor> from_all;
            for (int i = 0; i < n; ++i) {
                sum = sum + of_rank(i, wide, dtype);
                from_all.push_back(of_rank(i, wide, dtype).narrow(dim, 2 * r, 2));
            }
            const Tensor x = of_rank(r, wide, dtype);
            require_equal(world.reduce_scatter(x, Reduce::sum, dim), sum.narrow(dim, 2 * r, 2));
            require_equal(world.all_to_all(x, dim), cat(from_all, dim));
        }
    }
    require(world.all_gather(ones({0, 3}), 0).shape() == Shape{0, 3}, "nothing joins to nothing");
    world.barrier();
}

void messages(const Group& world) {
    const int n = world.size(), r = world.rank(), next = (r + 1) % n, before = (r + n - 1) % n;
    for (const DType dtype : kDTypes) {
        for (const Shape& shape : {Shape(), Shape{0, 4}, Shape{3, 5}, Shape{100000}}) {  // all send before any receives
            world.send(of_rank(r, shape, dtype), next);
            world.send(of_rank(r + 1, shape, dtype), next);
            require_equal(world.recv(before), of_rank(before, shape, dtype));
            require_equal(world.recv(before), of_rank(before + 1, shape, dtype));
        }
    }
    require_in("there is no rank " + std::to_string(n), message_of<ValueError>([&] { world.send(ones({2}), n); }));
    require_in("is this one", message_of<ValueError>([&] { world.recv(r); }));
}

// Finite differences of the sum of all ranks' losses, by the numbers of every rank.
void gradients(const Group& world) {
    const int n = world.size(), r = world.rank();
    using Function = std::function<Tensor(const Tensor&)>;
    const auto check = [&](const Function& f, const Shape& shape, Loc line = Loc::current()) {
        const auto loss_of = [&](const Tensor& x) { return sum(sin(f(x) * 1.3) * (r + 1)); };  // each rank's loss is another
        manual_seed(5);
        std::vector<Tensor> xs;
        for (int i = 0; i < n; ++i) xs.push_back(randn(shape, float64));
        Tensor x = xs[static_cast<std::size_t>(r)].clone().requires_grad_();
        Tensor have, second;
        {
            Tape tape;
            have = tape.gradient(loss_of(x), x, {.create_graph = true});
            second = tape.gradient(sum(have * have), x);
        }
        constexpr double h = 1e-5;
        const auto difference = [&](const Function& of, const Tensor& gradient) {
            const Tensor zero = zeros(shape, float64);
            for (int i = 0; i < n; ++i) {
                for (std::int64_t k = 0; k < zero.numel(); ++k) {
                    Tensor step = zero.clone();
                    if (i == r) step.view({-1})[k] = h;
                    const Tensor at = x.detach();
                    const double change =
                        world.all_reduce(of(at + step).detach()).item<double>() - world.all_reduce(of(at - step).detach()).item<double>();
                    const double want = change / (2 * h), here = gradient.view({-1})[k].item<double>();
                    if (i == r)
                        require(std::abs(want - here) < 1e-6 * (1 + std::abs(want)), fmt::format("a gradient: {}, want {}", here, want), line);
                }
            }
        };
        difference(loss_of, have.detach());
        const auto squares = [&](const Tensor& at) {
            Tape tape;
            const Tensor y = at.detach().requires_grad_();
            const Tensor g = tape.gradient(loss_of(y), y);
            return sum(g * g);
        };
        difference(squares, second);
    };
    check([&](const Tensor& x) { return world.all_reduce(x * x); }, {3});
    check([&](const Tensor& x) { return world.all_reduce(x, Reduce::mean) * x; }, {2, 2});
    check([&](const Tensor& x) { return world.all_reduce(x, Reduce::max); }, {3});
    check([&](const Tensor& x) { return world.broadcast(x, n - 1) * x; }, {3});
    check([&](const Tensor& x) { return world.reduce(x * x, n - 1); }, {3});
    check([&](const Tensor& x) { return world.reduce(x, 0, Reduce::mean) * x; }, {3});
    check([&](const Tensor& x) { return world.all_gather(x, 1) * 2; }, {2, 2});
    check([&](const Tensor& x) { return world.all_gather(x.narrow(0, 0, 1 + (r == 0))); }, {2});
    check([&](const Tensor& x) { return world.reduce_scatter(x * x, Reduce::sum, 0); }, {2 * n});
    check([&](const Tensor& x) { return world.reduce_scatter(x, Reduce::mean, 0); }, {n, 2});
    check([&](const Tensor& x) { return world.all_to_all(x * x, 0); }, {2 * n});
}

// A chain of ranks, each with a layer of its own, as one process computes it.
void pipeline(const Group& world) {
    const int n = world.size(), r = world.rank();
    std::vector<Tensor> weights;
    manual_seed(3);
    for (int i = 0; i < n; ++i) weights.push_back((randn({4, 4}, float64) * 0.5).requires_grad_());
    const Tensor x = randn({2, 4}, float64);
    std::vector<Tensor> want;
    double want_loss = 0;
    {
        Tape tape;
        Tensor h = x;
        for (const Tensor& w : weights) h = tanh(matmul(h, w));
        const Tensor loss = sum(h * h);
        want_loss = loss.item<double>();
        want = tape.gradient(loss, weights);
    }
    const auto own = static_cast<std::size_t>(r);
    Tape tape;
    const Tensor in = r == 0 ? x : world.recv(r - 1);
    const Tensor h = tanh(matmul(in, weights[own]));
    Tensor loss = r == n - 1 ? sum(h * h) : world.send(h, r + 1);
    tape.backward(loss);
    require_close(weights[own].grad(), want[own], 1e-12);
    if (r == n - 1) require(std::abs(loss.item<double>() - want_loss) < 1e-12, "the loss");
}

void parts(const Group& world) {
    const int n = world.size(), r = world.rank();
    const Group half = world.split(r % 2, -r);  // in the opposite order
    require(half.size() == (n + 1 - r % 2) / 2, "as many as have its color");
    require(half.rank() == half.size() - 1 - r / 2, "ordered by key");
    int sum_of_ranks = 0;
    for (int i = r % 2; i < n; i += 2) sum_of_ranks += i;
    for (int i = 0; i < 3; ++i) {
        require(half.all_reduce(tensor(r)).item<int>() == sum_of_ranks, "sums of a part");
        require(world.all_reduce(tensor(1)).item<int>() == n, "sums of all");
    }
    const Group alone = half.split(half.rank());
    require(alone.size() == 1 && alone.all_reduce(tensor(r)).item<int>() == r, "a group of one");
    const Group copy = half;
    require(copy.all_gather(tensor({r})).numel() == half.size(), "a copy is the same group");
}

void on_one_rank(const Group& world) {
    const int n = world.size(), r = world.rank(), one = n - 1;
    int calls = 0;
    world.on_rank(one, [&] { ++calls; });
    require(calls == (r == one ? 1 : 0), "it runs on that rank alone");
    const auto fails = [&] { world.on_rank(one, [] { throw std::runtime_error("no space is left"); }); };
    if (r == one) {
        const std::string text = message_of<std::runtime_error>(fails);
        require(text.find("on_rank") == std::string::npos, "its own exception");
    } else {
        const std::string text = message_of<CommError>(fails);
        require_in(": on_rank: rank " + std::to_string(one) + " (", text);
        require_in(") failed: no space is left", text);
    }
    try {
        world.on_rank(0, [] { throw 1; });
        require(false, "nothing was thrown");
    } catch (int) {
        require(r == 0, "its own exception");
    } catch (const CommError& e) {
        require_in("failed: an exception", e.what());
    }
    require_in("on_rank: there is no rank " + std::to_string(n), message_of<ValueError>([&] { world.on_rank(n, [] {}); }));
    require(world.all_reduce(tensor(1)).item<int>() == n, "the group goes on");
}

void misuse(const Group& world) {
    const Tensor x = ones({3});
    require_in("all_reduce: the mean of int64", message_of<DTypeError>([&] { world.all_reduce(tensor({1, 2}), Reduce::mean); }));
    require_in("all_reduce: the sum of bool", message_of<DTypeError>([&] { world.all_reduce(tensor({true})); }));
    require_in("group_cases.cpp:", message_of<ValueError>([&] { world.all_reduce(Tensor()); }));
    require_in("broadcast: there is no rank -1", message_of<ValueError>([&] { world.broadcast(x, -1); }));
    require_in("all_gather: needs at least 1 dim", message_of<ShapeError>([&] { world.all_gather(tensor(1.0)); }));
    message_of<IndexError>([&] { world.all_gather(x, 1); });
    if (world.size() == 2) require_in("reduce_scatter: dim 0 has size 3", message_of<ShapeError>([&] { world.reduce_scatter(x); }));
    const Tensor w = ones({3}).requires_grad_();
    Tape tape;
    const Tensor y = w * 2;
    require_in("all_reduce_: x is recorded", message_of<TapeError>([&] { world.all_reduce_(y); }));
    if (world.size() > 1) {
        const Tensor least = sum(world.reduce(y, 0, Reduce::min));
        require_in("reduce: min has no gradient here", message_of<TapeError>([&] { tape.backward(least); }));
        const Tensor part = sum(world.reduce_scatter(cat(std::vector<Tensor>(static_cast<std::size_t>(world.size()), y)), Reduce::max));
        require_in("reduce_scatter: max has no gradient here", message_of<TapeError>([&] { tape.backward(part); }));
        require_in("more than 256 MB",
                   message_of<ValueError>([&] { world.send(ones({1}).expand({70, 1000, 1000}), (world.rank() + 1) % world.size()); }));
        const Tensor product = sum(world.all_reduce(y, Reduce::product));
        require_in("has no gradient", message_of<TapeError>([&] { tape.backward(product); }));
    }
    require_in("wait must not be negative, got -1", message_of<ValueError>([&] { world.survivors({.wait = -1}); }));
    require_in("least must not be negative, got -1", message_of<ValueError>([&] { world.survivors({.least = -1}); }));
    if (world.engine() != std::string("Gloo") && world.size() > 1) {
        const std::string text = message_of<CommError>([&] { world.survivors(); });
        require_in("group_cases.cpp:", text);
        require_in(world.engine() == std::string("MPI") ? "survivors: MPI ends all ranks" : "survivors: ranks that are threads end together", text);
    }
    if (world.size() > 1) {
        const Group part = world.split(0);
        require_in("survivors: this group is a part that split() has made", message_of<ValueError>([&] { part.survivors(); }));
    } else {
        require(world.survivors().size() == 1, "nobody else can fail");
    }
    require_equal(world.all_reduce(x), full({3}, 1.0 * world.size()));  // nothing of it has ended the group
}

void mismatches(const Group& world) {
    const int r = world.rank();
    for (int i = 0; i < 3; ++i) {
        const std::string shapes = message_of<CommError>([&] { world.all_reduce(ones({r == 0 ? 3 : 4})); });
        require_in("all_reduce: the ranks call different things: rank ", shapes);
        const std::string place = default_device() == cpu ? "" : " on CUDA";
        require_in("all_reduce of float32 (3,)" + place + ", sum at group_cases.cpp:", shapes);
        require_in("all_reduce of float32 (4,)" + place + ", sum at group_cases.cpp:", shapes);
        const std::string ops = message_of<CommError>([&] { r == 0 ? world.barrier() : world.broadcast_(ones({2})); });
        require_in("barrier at group_cases.cpp:", ops);
        require_in("broadcast of float32 (2,)" + place + ", from 0 at group_cases.cpp:", ops);
        require_in("int64", message_of<CommError>([&] { world.all_reduce(r == 0 ? tensor({1.0f}) : tensor({1})); }));
        require(world.all_reduce(tensor(1)).item<int>() == world.size(), "the group goes on");
    }
}

void many_calls(const Group& world) {
    for (int i = 0; i < 300; ++i)
        require(world.all_reduce(tensor(i + world.rank())).item<int>() == i * world.size() + world.size() * (world.size() - 1) / 2, "a sum");
    const Tensor large = (arange(5'000'001, int64) % 1000).to(float32);  // 20 MB: in several pieces
    require_equal(world.all_reduce(large * (world.rank() + 1)), large * (world.size() * (world.size() + 1) / 2.0));
}

}  // namespace

std::vector<Case> group_cases() {
    return {{"reduces", 1, reduces},     {"layouts", 1, layouts},       {"moves", 1, moves},          {"messages", 2, messages},
            {"gradients", 1, gradients}, {"pipeline", 2, pipeline},     {"parts", 2, parts},          {"one rank", 1, on_one_rank},
            {"misuse", 1, misuse},       {"mismatches", 2, mismatches}, {"many calls", 1, many_calls}};
}

}  // namespace cases
