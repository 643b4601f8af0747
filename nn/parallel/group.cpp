#include "tapir/nn/parallel/group.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tapir/autograd/function.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/process_rank.h"
#include "tapir/core/thread_words_impl.h"
#include "tapir/nn/parallel/access_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/make/make.h"

namespace tapir::parallel {
namespace {

const char* name_of(Reduce reduce) {
    constexpr const char* names[] = {"sum", "mean", "product", "min", "max"};
    return names[static_cast<int>(reduce)];
}

std::string text_of(DType dtype, const Shape& shape, Device device) {
    return fmt::format("{} {}{}", name(dtype), shape, device == cpu ? "" : " on CUDA");
}
std::string text_of(const Tensor& x) { return text_of(x.dtype(), x.shape(), x.device()); }

// Of the channel's thread: a device's memory is kept until its stream, too, is through with it.
void* data_of(const Tensor& t) {
    if (t.device() != cpu && t.numel() > 0) device_api::used_here(*t.impl()->storage);
    return t.impl()->data;
}

void check_reduce(const char* op, const Tensor& x, Reduce reduce, const Loc& loc) {
    if (reduce == Reduce::mean && !is_floating(x.dtype()))
        fail<DTypeError>(loc, "{}: the mean of {} is not one; convert with x.to(float32), or take the sum", op, name(x.dtype()));
    if (x.dtype() == bool_ && (reduce == Reduce::sum || reduce == Reduce::product))
        fail<DTypeError>(loc, "{}: the {} of bools is not one; take max (any) or min (all), or convert with x.to(int64)", op, name_of(reduce));
}

// What ranks compute for it, before averaged().
Reduce summed(Reduce reduce) { return reduce == Reduce::mean ? Reduce::sum : reduce; }

// Of a sum over the ranks where it is to be their mean.
Tensor averaged(const Tensor& x, Reduce reduce, const Group& group) { return reduce == Reduce::mean ? x / group.size() : x; }

// Contiguous, on the same device; nobody else sees it.
Tensor own_copy(const Tensor& x) {
    const NoGradScope pause;
    return x.detach().clone().contiguous();
}

// --- Messages between two ranks ------------------------------------------------------------------------------------------

struct MessageHead {
    std::int64_t sizes[kMaxRank] = {};
    std::int32_t rank = 0;
    DType dtype = float32;
    bool needs_gradient = false;
};

std::vector<std::byte> message_of(const Tensor& x, bool needs_gradient) {
    const NoGradScope pause;
    const Tensor host = x.detach().to(cpu).contiguous();
    MessageHead head;
    head.rank = x.dim();
    std::copy_n(host.impl()->sizes, head.rank, head.sizes);
    head.dtype = x.dtype();
    head.needs_gradient = needs_gradient;
    std::vector<std::byte> bytes(sizeof(head) + static_cast<std::size_t>(bytes_of(host)));
    std::memcpy(bytes.data(), &head, sizeof(head));
    if (host.numel() > 0) std::memcpy(bytes.data() + sizeof(head), data_of(host), static_cast<std::size_t>(bytes_of(host)));
    return bytes;
}

constexpr std::int64_t kMostInMessage = std::int64_t{1} << 28;

}  // namespace

// --- What the other files of nn/parallel use ---------------------------------------------------------------------------------

void check_tensor(const char* op, const Tensor& x, const Loc& loc) {
    if (!x.defined()) detail::fail_undefined(op, loc);
    if (CustomFunction::is_traced()) fail<TapeError>(loc, "{}: a graph cannot hold what other ranks compute", op);
}

Tensor recorded(const OpInfo& op, const Tensor& x, Rule rule, const Loc& loc) {
    const auto forward = [](FunctionContext& context, const std::vector<Tensor>& in) {
        const auto& of = std::any_cast<const Rule&>(context.state);
        Tensor y = of.forward(in[0]);
        if (of.saves) context.save({in[0], y});
        return std::vector<Tensor>{y};
    };
    const auto backward = [](FunctionContext& context, const std::vector<Tensor>& g) {
        return std::vector<Tensor>{std::any_cast<const Rule&>(context.state).backward(g[0], context)};
    };
    return CustomFunction::apply(op, forward, backward, 1, {x}, loc, std::move(rule))[0];
}

Group Access::group(std::shared_ptr<Channel> channel, Engine& engine) {
    Group group;
    group.state_ = std::make_shared<Group::State>(Group::State{std::move(channel), &engine});
    return group;
}

Channel* Access::channel(const Group& group) noexcept { return group.state_ ? group.state_->channel.get() : nullptr; }
Engine* Access::engine(const Group& group) noexcept { return group.state_ ? group.state_->engine : nullptr; }

std::shared_ptr<Work> Access::begin_sum(const Group& group, const Tensor& x, Call call) {
    Engine* const engine = group.state_->engine;
    call.bytes = bytes_of(x);
    Channel* const channel = group.state_->channel.get();
    const auto run = [channel, engine, x] { channel->collectives(*engine, x.device()).all_reduce(data_of(x), x.numel(), x.dtype(), Reduce::sum); };
    return channel->post(*engine, std::move(call), run, true, x.device());
}

// --- Group ---------------------------------------------------------------------------------------------------------------

int Group::rank() const noexcept { return state_ ? state_->engine->rank() : 0; }
int Group::size() const noexcept { return state_ ? state_->engine->size() : 1; }
const char* Group::engine() const noexcept { return state_ ? state_->engine->name() : "none"; }

static void call_and_wait(const Group& group, Call call, std::function<void()> run, bool compares = true) {
    Access::channel(group)->post(*Access::engine(group), std::move(call), std::move(run), compares)->wait();
}

// For tensors on a device: run(collectives).
template <class Run>
static void call_on(Device device, const Group& group, Call call, const Run& run) {
    Channel* const channel = Access::channel(group);
    Engine* const engine = Access::engine(group);
    channel->post(*engine, std::move(call), [&] { run(channel->collectives(*engine, device)); }, true, device)->wait();
}

static void check_rank(const char* op, const Group& group, int rank, bool may_be_own, const Loc& loc) {
    if (rank < 0 || rank >= group.size()) fail<ValueError>(loc, "{}: there is no rank {} in a group of {}", op, rank, group.size());
    if (!may_be_own && rank == group.rank()) fail<ValueError>(loc, "{}: rank {} is this one", op, rank);
}

// x becomes the result; it is contiguous.
static void all_reduce_own(const Group& group, const Tensor& x, Reduce reduce, const Loc& loc) {
    call_on(x.device(), group, {"all_reduce", fmt::format("{}, {}", text_of(x), name_of(reduce)), loc, {}, bytes_of(x)},
            [&](Collectives& with) { with.all_reduce(data_of(x), x.numel(), x.dtype(), summed(reduce)); });
}

static Tensor all_reduced(const Group& group, const Tensor& x, Reduce reduce, const Loc& loc) {
    const Tensor own = own_copy(x);
    all_reduce_own(group, own, reduce, loc);
    const NoGradScope pause;
    return averaged(own, reduce, group);
}

Tensor Group::all_reduce(In x, Reduce reduce, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_tensor("all_reduce", x.tensor, line);
    check_reduce("all_reduce", x.tensor, reduce, line);
    if (!state_) return x.tensor.clone();
    static const OpInfo& op = CustomFunction::row_named("all_reduce");
    Rule rule;
    rule.forward = [group = *this, reduce, line](const Tensor& t) { return all_reduced(group, t, reduce, line); };
    if (reduce == Reduce::min || reduce == Reduce::max) {
        rule.saves = true;
        rule.backward = [group = *this, line](const Tensor& g, const FunctionContext& context) {
            const Tensor is_it = eq(context.saved(0), context.saved(1)).to(g.dtype());
            return group.all_reduce({g, line}, Reduce::sum, line) * is_it / group.all_reduce({is_it, line}, Reduce::sum, line);
        };
    } else if (reduce == Reduce::product) {
        rule.backward = [line](const Tensor&, const FunctionContext&) -> Tensor {
            fail<TapeError>(line, "all_reduce: a product over ranks has no gradient here; all_gather() the factors and take prod()");
        };
    } else {
        rule.backward = [group = *this, reduce, line](const Tensor& g, const FunctionContext&) { return group.all_reduce({g, line}, reduce, line); };
    }
    return recorded(op, x.tensor, std::move(rule), line);
}

static void check_in_place(const char* op, const Tensor& x, const Loc& loc) {
    check_tensor(op, x, loc);
    if (x.requires_grad() && !x.is_leaf()) fail<TapeError>(loc, "{}_: x is recorded; take x = group.{}(x), or x.detach()", op, op);
}

// Writes what it computes back to x, which keeps its strides.
template <class Run>
static void in_place(const Tensor& x, const Loc& loc, const Run& run) {
    const Tensor own = own_copy(x);
    run(own);
    const NoGradScope pause;
    const CallerScope caller(loc);
    Tensor(x).copy_(own);
}

void Group::all_reduce_(const Tensor& x, Reduce reduce, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_in_place("all_reduce", x, line);
    check_reduce("all_reduce", x, reduce, line);
    if (!state_) return;
    in_place(x, line, [&](const Tensor& own) {
        all_reduce_own(*this, own, reduce, line);
        if (reduce == Reduce::mean) Tensor(own).div_(size());
    });
}

static void broadcast_own(const Group& group, const Tensor& x, int root, const Loc& loc) {
    call_on(x.device(), group, {"broadcast", fmt::format("{}, from {}", text_of(x), root), loc, {}, bytes_of(x)},
            [&](Collectives& with) { with.broadcast(data_of(x), bytes_of(x), root); });
}

Tensor Group::broadcast(In x, int root, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_tensor("broadcast", x.tensor, line);
    check_rank("broadcast", *this, root, true, line);
    if (!state_) return x.tensor.clone();
    static const OpInfo& op = CustomFunction::row_named("broadcast");
    Rule rule;
    rule.forward = [group = *this, root, line](const Tensor& t) {
        const Tensor own = own_copy(t);
        broadcast_own(group, own, root, line);
        return own;
    };
    rule.backward = [group = *this, root, line](const Tensor& g, const FunctionContext&) { return group.reduce({g, line}, root, Reduce::sum, line); };
    return recorded(op, x.tensor, std::move(rule), line);
}

Tensor Group::reduce(In x, int root, Reduce reduce, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_tensor("reduce", x.tensor, line);
    check_reduce("reduce", x.tensor, reduce, line);
    check_rank("reduce", *this, root, true, line);
    if (!state_) return x.tensor.clone();
    static const OpInfo& op = CustomFunction::row_named("reduce");
    Rule rule;
    rule.forward = [group = *this, root, reduce, line](const Tensor& t) {
        const Tensor y = all_reduced(group, t, reduce, line);
        return group.rank() == root ? y : zeros_like(y);
    };
    rule.backward = [group = *this, root, reduce, line](const Tensor& g, const FunctionContext&) -> Tensor {
        if (reduce != Reduce::sum && reduce != Reduce::mean)
            fail<TapeError>(line, "reduce: {} has no gradient here; take all_reduce()", name_of(reduce));
        const Tensor all = group.broadcast({g, line}, root, line);
        return averaged(all, reduce, group);
    };
    return recorded(op, x.tensor, std::move(rule), line);
}

void Group::broadcast_(const Tensor& x, int root, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_in_place("broadcast", x, line);
    check_rank("broadcast", *this, root, true, line);
    if (!state_) return;
    in_place(x, line, [&](const Tensor& own) { broadcast_own(*this, own, root, line); });
}

// Of dimension 0. sizes: the ranks' sizes there.
static Tensor gathered(const Group& group, const Tensor& x, std::vector<std::int64_t>& sizes, const Loc& loc) {
    const Tensor own = own_copy(x);
    Engine* const engine = Access::engine(group);
    const auto ranks = static_cast<std::size_t>(group.size());
    std::int64_t own_size = own.size(0);
    Shape rest = own.shape();
    rest.raw(0) = 1;
    const std::int64_t row = rest.numel() * static_cast<std::int64_t>(itemsize(x.dtype()));
    rest.raw(0) = 0;
    Tensor all;
    sizes.assign(ranks, 0);
    call_on(x.device(), group, {"all_gather", text_of(x.dtype(), rest, x.device()) + " (but for 0)", loc, {}, bytes_of(x)}, [&](Collectives& with) {
        engine->all_gather(&own_size, sizes.data(), std::vector<std::int64_t>(ranks, sizeof(own_size)));
        std::vector<std::int64_t> bytes;
        Shape shape = rest;
        for (const std::int64_t size : sizes) {
            bytes.push_back(size * row);
            shape.raw(0) += size;
        }
        all = detail::make_empty(shape, x.dtype(), x.device(), loc);
        with.all_gather(data_of(own), data_of(all), bytes);
    });
    return all;
}

// Of a dimension that is cut among the ranks: calls of(x with it in front), and moves it back.
template <class Of>
static Tensor with_front(const Tensor& x, int dim, const Of& of) {
    const NoGradScope pause;
    if (dim == 0) return of(x);
    return of(x.movedim(dim, 0)).movedim(0, dim).contiguous();
}

static int checked_dim(const char* op, const Tensor& x, int dim, const Loc& loc) {
    if (x.dim() == 0) fail<ShapeError>(loc, "{}: needs at least 1 dim, got a scalar; x.unsqueeze(0) has one", op);
    return detail::wrap_dim(dim, x.dim(), op, loc);
}

static void check_parts(const char* op, const Group& group, const Tensor& x, int dim, const Loc& loc) {
    if (x.size(dim) % group.size() != 0)
        fail<ShapeError>(loc, "{}: dim {} has size {}, which {} ranks cannot share evenly", op, dim, x.size(dim), group.size());
}

Tensor Group::all_gather(In x, int dim, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_tensor("all_gather", x.tensor, line);
    dim = checked_dim("all_gather", x.tensor, dim, line);
    if (!state_) return x.tensor.clone();
    static const OpInfo& op = CustomFunction::row_named("all_gather");
    const auto sizes = std::make_shared<std::vector<std::int64_t>>();
    Rule rule;
    rule.forward = [group = *this, dim, line, sizes](const Tensor& t) {
        return with_front(t, dim, [&](const Tensor& front) { return gathered(group, front, *sizes, line); });
    };
    rule.backward = [group = *this, dim, line, sizes](const Tensor& g, const FunctionContext&) {
        const auto own = static_cast<std::size_t>(group.rank());
        if (std::all_of(sizes->begin(), sizes->end(), [&](std::int64_t size) { return size == sizes->front(); }))
            return group.reduce_scatter({g, line}, Reduce::sum, dim, line);
        std::int64_t first = 0;
        for (std::size_t i = 0; i < own; ++i) first += (*sizes)[i];
        return group.all_reduce({g, line}, Reduce::sum, line).narrow(dim, first, (*sizes)[own]);
    };
    return recorded(op, x.tensor, std::move(rule), line);
}

Tensor Group::reduce_scatter(In x, Reduce reduce, int dim, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_tensor("reduce_scatter", x.tensor, line);
    check_reduce("reduce_scatter", x.tensor, reduce, line);
    dim = checked_dim("reduce_scatter", x.tensor, dim, line);
    check_parts("reduce_scatter", *this, x.tensor, dim, line);
    if (!state_) return x.tensor.clone();
    static const OpInfo& op = CustomFunction::row_named("reduce_scatter");
    Rule rule;
    rule.forward = [group = *this, reduce, dim, line](const Tensor& t) {
        const Tensor y = with_front(t, dim, [&](const Tensor& front) {
            const Tensor own = own_copy(front);
            Shape shape = own.shape();
            shape.raw(0) /= group.size();
            const Tensor part = detail::make_empty(shape, t.dtype(), t.device(), line);
            call_on(t.device(), group, {"reduce_scatter", fmt::format("{}, {}", text_of(own), name_of(reduce)), line, {}, bytes_of(own)},
                    [&](Collectives& with) { with.reduce_scatter(data_of(own), data_of(part), part.numel(), t.dtype(), summed(reduce)); });
            return part;
        });
        const NoGradScope pause;
        return averaged(y, reduce, group);
    };
    rule.backward = [group = *this, reduce, dim, line](const Tensor& g, const FunctionContext&) -> Tensor {
        if (reduce != Reduce::sum && reduce != Reduce::mean)
            fail<TapeError>(line, "reduce_scatter: {} has no gradient here; take all_reduce() and a part of it", name_of(reduce));
        const Tensor all = group.all_gather({g, line}, dim, line);
        return averaged(all, reduce, group);
    };
    return recorded(op, x.tensor, std::move(rule), line);
}

Tensor Group::all_to_all(In x, int dim, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_tensor("all_to_all", x.tensor, line);
    dim = checked_dim("all_to_all", x.tensor, dim, line);
    check_parts("all_to_all", *this, x.tensor, dim, line);
    if (!state_) return x.tensor.clone();
    static const OpInfo& op = CustomFunction::row_named("all_to_all");
    Rule rule;
    rule.forward = [group = *this, dim, line](const Tensor& t) {
        return with_front(t, dim, [&](const Tensor& front) {
            const Tensor own = own_copy(front);
            const Tensor out = detail::make_empty(own.shape(), t.dtype(), t.device(), line);
            call_on(t.device(), group, {"all_to_all", text_of(own), line, {}, bytes_of(own)},
                    [&](Collectives& with) { with.all_to_all(data_of(own), data_of(out), bytes_of(own) / group.size()); });
            return out;
        });
    };
    rule.backward = [group = *this, dim, line](const Tensor& g, const FunctionContext&) { return group.all_to_all({g, line}, dim, line); };
    return recorded(op, x.tensor, std::move(rule), line);
}

static void send_message(const Group& group, const Tensor& x, int to, bool needs_gradient, const Loc& loc) {
    Engine* const engine = Access::engine(group);
    const std::vector<std::byte> bytes = message_of(x, needs_gradient);
    call_and_wait(group, {"send", fmt::format("{} to rank {}", text_of(x), to), loc, {}, bytes_of(x)}, [&] { engine->send(bytes, to); }, false);
}

static Tensor received(const Group& group, int from, Device device, bool* needs_gradient, const Loc& loc) {
    Engine* const engine = Access::engine(group);
    Channel* const channel = Access::channel(group);
    std::vector<std::byte> bytes;
    call_and_wait(
        group, {"recv", fmt::format("a tensor from rank {}", from), loc},
        [&] {
            bytes = engine->receive(from);
            channel->came(static_cast<std::int64_t>(bytes.size() - sizeof(MessageHead)));
        },
        false);
    MessageHead head;
    std::memcpy(&head, bytes.data(), sizeof(head));
    *needs_gradient = head.needs_gradient;
    Shape shape;
    for (int d = 0; d < head.rank; ++d) shape.push_back(head.sizes[d]);
    const Tensor host = detail::make_empty(shape, head.dtype, cpu, loc);
    if (host.numel() > 0) std::memcpy(data_of(host), bytes.data() + sizeof(head), static_cast<std::size_t>(bytes_of(host)));
    const NoGradScope pause;
    return host.to(device);
}

Tensor Group::send(In x, int to, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_tensor("send", x.tensor, line);
    check_rank("send", *this, to, false, line);
    if (bytes_of(x.tensor) > kMostInMessage)
        fail<ValueError>(line, "send: {} has more than {} MB, the most of a message; send it in parts", x.tensor.shape(), kMostInMessage >> 20);
    static const OpInfo& op = CustomFunction::row_named("send");
    const bool needs_gradient = x.tensor.requires_grad();
    Rule rule;
    rule.forward = [group = *this, to, needs_gradient, line](const Tensor& t) {
        send_message(group, t, to, needs_gradient, line);
        return zeros(Shape(), {is_floating(t.dtype()) ? t.dtype() : float32, t.device()});
    };
    rule.backward = [group = *this, to, device = x.tensor.device(), line](const Tensor&, const FunctionContext&) {
        bool unused = false;
        return received(group, to, device, &unused, line);
    };
    return recorded(op, x.tensor, std::move(rule), line);
}

Tensor Group::recv(int from, Device device, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_rank("recv", *this, from, false, line);
    bool needs_gradient = false;
    const Tensor there = received(*this, from, device, &needs_gradient, line);
    if (!needs_gradient) return there;
    static const OpInfo& op = CustomFunction::row_named("recv");
    Rule rule;
    rule.forward = [there](const Tensor&) { return there; };
    rule.backward = [group = *this, from, line](const Tensor& g, const FunctionContext&) {
        send_message(group, g, from, false, line);
        return Tensor();
    };
    return recorded(op, zeros(Shape(), {there.dtype(), device, true}), std::move(rule), line);
}

Tensor Group::recv(int from, Loc loc) const { return recv(from, default_device(), loc); }

void Group::barrier(Loc loc) const {
    if (state_) call_and_wait(*this, {"barrier", "", detail::caller(loc)}, [] {});
}

void Group::on_rank(int rank, const std::function<void()>& run, Loc loc) const {
    const Loc line = detail::caller(loc);
    check_rank("on_rank", *this, rank, true, line);
    if (!state_) return run();
    std::exception_ptr error;
    std::string text;
    if (this->rank() == rank) {
        try {
            run();
        } catch (const std::exception& e) {
            error = std::current_exception();
            text = e.what();
        } catch (...) {
            error = std::current_exception();
            text = "an exception";
        }
    }
    char told[512] = {};  // whether it failed, and why
    told[0] = error ? 1 : 0;
    std::memcpy(told + 1, text.data(), std::min(text.size(), sizeof(told) - 2));
    Engine* const engine = state_->engine;
    try {
        call_and_wait(*this, {"on_rank", fmt::format("rank {}", rank), line}, [&] { engine->broadcast(told, sizeof(told), rank); });
    } catch (...) {
        if (!error) throw;
    }
    if (error) std::rethrow_exception(error);
    if (told[0] != 0) fail<CommError>(line, "on_rank: rank {} ({}) failed: {}", rank, engine->hosts[static_cast<std::size_t>(rank)], told + 1);
}

Group Group::split(int color, int key, Loc loc) const {
    if (!state_) return *this;
    Engine* made = nullptr;
    const State& state = *state_;
    call_and_wait(*this, {"split", "", detail::caller(loc)}, [&] { made = &state.channel->add(state.engine->split(color, key)); });
    return Access::group(state.channel, *made);
}

Group Group::survivors(const SurvivorsOptions& options, Loc loc) const {
    const Loc line = detail::caller(loc);
    if (!(options.wait >= 0)) fail<ValueError>(line, "survivors: wait must not be negative, got {}", options.wait);
    if (options.least < 0) fail<ValueError>(line, "survivors: least must not be negative, got {}", options.least);
    if (!state_) return *this;
    Engine* const engine = state_->engine;
    if (engine != &state_->channel->world())
        fail<ValueError>(line, "survivors: this group is a part that split() has made; call it of the group of all, and split that again");
    if (engine->size() == 1) return *this;
    if (const char* const why = engine->why_no_survivors()) fail<CommError>(line, "survivors: {}", why);
    state_->channel->abort("it calls survivors()");  // where it has not ended yet
    const auto make = [&] { return engine->survivors(options); };
    const std::shared_ptr<Channel> channel = Channel::open("survivors", make, state_->channel->options(), line);
    return Access::group(channel, channel->world());
}

void Group::abort(const std::string& reason) const {
    if (state_) state_->channel->abort(reason);
}

// --- Starting ------------------------------------------------------------------------------------------------------------

Launcher launcher() {
    for (const char* const variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"}) {
        if (std::getenv(variable)) return Launcher::mpi;
    }
    return std::getenv("RANK") && std::getenv("WORLD_SIZE") ? Launcher::variables : Launcher::none;
}

static Group init_with(int* argc, char*** argv, const InitOptions& options, const Loc& loc) {
    static bool was_called = false;
    if (was_called) fail<ValueError>(loc, "parallel::init: was called before; a program joins the others once");
    if (!(options.timeout > 0)) fail<ValueError>(loc, "parallel::init: timeout must be positive, got {}", options.timeout);
    was_called = true;
    if (launcher() == Launcher::none) return {};
    const auto make = [&] { return launcher() == Launcher::mpi ? mpi_engine(argc, argv) : gloo_engine(options.timeout); };
    const std::shared_ptr<Channel> channel = Channel::open("parallel::init", make, options, loc);
    detail::set_process_rank(channel->world().rank());
    return Access::group(channel, channel->world());
}

Group init(int& argc, char**& argv, const InitOptions& options, Loc loc) { return init_with(&argc, &argv, options, detail::caller(loc)); }
Group init(const InitOptions& options, Loc loc) { return init_with(nullptr, nullptr, options, detail::caller(loc)); }

void spawn(int ranks, const std::function<void(Group)>& rank_main, const InitOptions& options, Loc loc) {
    const Loc line = detail::caller(loc);
    if (ranks < 1) fail<ValueError>(line, "parallel::spawn: at least one rank must run, not {}", ranks);
    std::vector<std::unique_ptr<Engine>> engines = thread_engines(ranks);
    std::mutex mutex;
    std::exception_ptr first, first_of_all;  // that is no CommError, which may follow from another's; any
    const auto note = [&](bool is_cause) {
        const std::lock_guard lock(mutex);
        if (!first_of_all) first_of_all = std::current_exception();
        if (is_cause && !first) first = std::current_exception();
    };
    const Generator::State seed = default_generator().state();
    const auto run = [&](int rank) {
        Generator own;  // as a process of its own has
        own.set_state(seed);
        Generator* const before = detail::exchange_generator(&own);
        detail::set_thread_rank(rank);
        Group group;
        try {
            const auto make = [&] { return std::move(engines[static_cast<std::size_t>(rank)]); };
            const std::shared_ptr<Channel> channel = Channel::open("parallel::spawn", make, options, line);
            group = Access::group(channel, channel->world());
            rank_main(group);
        } catch (const CommError& e) {
            note(false);
            group.abort(e.what());  // where the ranks' calls differ, the group would go on
        } catch (const std::exception& e) {
            note(true);
            group.abort(e.what());
        } catch (...) {
            note(true);
            group.abort("an exception");
        }
        detail::exchange_generator(before);
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
    for (std::thread& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
    if (first_of_all) std::rethrow_exception(first_of_all);
}

}  // namespace tapir::parallel
