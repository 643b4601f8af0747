#include "tapir/nn/parallel/parameter_server.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <thread>

#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/nn/parallel/access_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/make/make.h"

namespace tapir::parallel {
namespace {

constexpr std::int64_t kLeft = std::int64_t{1} << 40;  // added to the steps of a rank that has left

// The parameters of one dtype, behind each other.
struct Flat {
    DType dtype;  // of the sums
    std::vector<std::size_t> places;
    std::vector<std::int64_t> offsets{0};
    std::unique_ptr<Window> window{};
    std::vector<Tensor> known{};  // what this rank's were after the last pull() or push()

    std::int64_t numel() const { return offsets.back(); }
};

// Part of `ranks` equal ones that begins at rank i's.
std::int64_t begin_of(std::int64_t numel, int rank, int ranks) { return numel * rank / ranks; }

}  // namespace

struct ParameterServer::State {
    const Group group;
    const ParameterServerOptions options;
    const std::vector<Tensor> parameters;
    std::vector<Flat> flats{};
    std::unique_ptr<Window> counts{};  // the steps of all ranks, at rank 0
    std::int64_t own_steps = 0;
    bool has_left = false;
    const int unwinding = std::uncaught_exceptions();

    bool is_alone() const { return group.size() == 1; }
    Engine& engine() const { return *Access::engine(group); }
    /// Runs on the channel's thread and waits for it.
    void run(const char* what, const std::string& of, bool compares, const Loc& loc, const std::function<void()>& fn) const {
        Access::channel(group)->post(engine(), {what, of, loc}, fn, compares)->wait();
    }

    void arrange();
    void open(const Loc& loc);
    // Of a flat, calls fn(rank, begin, end) for the part at each rank, the own one first: ranks do not all ask the same one.
    template <class Call>
    void for_parts(const Flat& flat, const Call& call) const {
        const int ranks = group.size();
        for (int i = 0; i < ranks; ++i) {
            const int rank = (group.rank() + i) % ranks;
            call(rank, begin_of(flat.numel(), rank, ranks), begin_of(flat.numel(), rank + 1, ranks));
        }
    }
    void add(const Flat& flat, const Tensor& numbers) const {
        for_parts(flat, [&](int rank, std::int64_t begin, std::int64_t end) {
            flat.window->add(rank, 0, numbers.impl()->data + begin * static_cast<std::int64_t>(itemsize(flat.dtype)), end - begin);
        });
    }
    Tensor flat_of(const Flat& flat, bool are_changes, const Loc& loc) const;
    void take(Flat& flat, const Tensor& numbers, const Loc& loc);
    std::vector<std::int64_t> read_steps() const {
        std::vector<std::int64_t> steps(static_cast<std::size_t>(group.size()));
        counts->get(0, 0, steps.data(), group.size());
        return steps;
    }
    void wait_for_slow() const;
    void count(std::int64_t steps) { counts->add(0, group.rank(), &steps, 1); }
};

void ParameterServer::State::arrange() {
    for (const DType dtype : {float32, float64}) {
        Flat flat{dtype, {}};
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            if ((parameters[i].dtype() == float64) != (dtype == float64)) continue;
            flat.places.push_back(i);
            flat.offsets.push_back(flat.numel() + parameters[i].numel());
        }
        if (!flat.places.empty()) flats.push_back(std::move(flat));
    }
}

void ParameterServer::State::open(const Loc& loc) {
    std::int64_t numel = 0;
    for (const Flat& flat : flats) numel += flat.numel();
    bool has_windows = true;
    run("ParameterServer", fmt::format("{} tensors, {} numbers", parameters.size(), numel), true, loc, [&] {
        counts = engine().window(group.rank() == 0 ? group.size() : 0, int64);
        has_windows = counts != nullptr;
        for (Flat& flat : flats) {
            const int rank = group.rank(), ranks = group.size();
            if (has_windows) flat.window = engine().window(begin_of(flat.numel(), rank + 1, ranks) - begin_of(flat.numel(), rank, ranks), flat.dtype);
        }
    });
    if (!has_windows)
        fail<ValueError>(loc, "ParameterServer: {} cannot read and write the memory of other ranks; start the program with mpirun", group.engine());
    if (group.rank() == 0) {
        for (const Flat& flat : flats) {
            const Tensor all = flat_of(flat, false, loc);
            run("ParameterServer", "", false, loc, [&] { add(flat, all); });
        }
    }
    group.barrier(loc);
}

// The parameters behind each other, or what they have changed by; the latter are known from here on.
Tensor ParameterServer::State::flat_of(const Flat& flat, bool are_changes, const Loc& loc) const {
    const Tensor all = tapir::detail::make_empty(Shape{flat.numel()}, flat.dtype, cpu, loc);
    for (std::size_t i = 0; i < flat.places.size(); ++i) {
        const Tensor now = parameters[flat.places[i]].detach().to(cpu).to(flat.dtype).flatten();
        Tensor part = all.narrow(0, flat.offsets[i], now.numel());
        part.copy_(are_changes ? now - flat.known[i] : now, loc);
    }
    return all;
}

void ParameterServer::State::take(Flat& flat, const Tensor& numbers, const Loc& loc) {
    flat.known.clear();
    for (std::size_t i = 0; i < flat.places.size(); ++i) {
        Tensor parameter = parameters[flat.places[i]].detach();
        parameter.copy_(numbers.narrow(0, flat.offsets[i], parameter.numel()).reshape(parameter.shape()), loc);
        flat.known.push_back(parameter.to(cpu).to(flat.dtype).flatten().clone());  // with the rounding of 16 bits
    }
}

// On the channel's thread, so that the watchdog sees it.
void ParameterServer::State::wait_for_slow() const {
    for (;;) {
        const std::vector<std::int64_t> steps = read_steps();
        const auto slowest = std::min_element(steps.begin(), steps.end());
        if (own_steps - *slowest <= *options.staleness) return;
        const WaitsFor waits(engine(), static_cast<int>(slowest - steps.begin()));
        engine().check_nobody_failed();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

ParameterServer::ParameterServer(const std::vector<Tensor>& parameters, const Group& group, const ParameterServerOptions& options, Loc loc) {
    const Loc line = tapir::detail::caller(loc);
    if (options.staleness && *options.staleness < 0)
        fail<ValueError>(line, "ParameterServer: staleness must not be negative, got {}", *options.staleness);
    if (parameters.empty()) fail<ValueError>(line, "ParameterServer: there are no parameters");
    for (const Tensor& parameter : parameters) {
        if (!parameter.defined()) tapir::detail::fail_undefined("ParameterServer", line);
        if (!is_floating(parameter.dtype())) fail<DTypeError>(line, "ParameterServer: takes floating tensors, got {}", name(parameter.dtype()));
    }
    const NoGradScope pause;
    state_.reset(new State{group, options, parameters});
    state_->arrange();
    if (!state_->is_alone()) state_->open(line);
    pull(line);
    group.barrier(line);  // nobody adds before all have begun alike
}

ParameterServer::~ParameterServer() {
    if (!state_ || state_->is_alone() || std::uncaught_exceptions() > state_->unwinding) return;
    try {
        leave();
        state_->run("~ParameterServer", "", true, Loc::current(), [&] {
            for (Flat& flat : state_->flats) flat.window->close();
            state_->counts->close();
        });
    } catch (const Error&) {  // a rank has failed: what it leaves ends with the process
    }
}

void ParameterServer::pull(Loc loc) {
    const Loc line = tapir::detail::caller(loc);
    const NoGradScope pause;
    if (!state_->is_alone() && state_->options.staleness && !state_->has_left) state_->run("pull", "", false, line, [&] { state_->wait_for_slow(); });
    for (Flat& flat : state_->flats) {
        if (state_->is_alone()) {
            state_->take(flat, state_->flat_of(flat, false, line), line);
            continue;
        }
        const Tensor all = tapir::detail::make_empty(Shape{flat.numel()}, flat.dtype, cpu, line);
        state_->run("pull", "", false, line, [&] {
            state_->engine().check_nobody_failed();
            state_->for_parts(flat, [&](int rank, std::int64_t begin, std::int64_t end) {
                flat.window->get(rank, 0, all.impl()->data + begin * static_cast<std::int64_t>(itemsize(flat.dtype)), end - begin);
            });
        });
        state_->take(flat, all, line);
    }
}

void ParameterServer::push(Loc loc) {
    const Loc line = tapir::detail::caller(loc);
    if (state_->has_left) fail<ValueError>(line, "ParameterServer::push: this rank has left");
    const NoGradScope pause;
    for (Flat& flat : state_->flats) {
        const Tensor changes = state_->flat_of(flat, true, line);
        if (!state_->is_alone()) state_->run("push", "", false, line, [&] { state_->add(flat, changes); });
        for (std::size_t i = 0; i < flat.known.size(); ++i) flat.known[i].add_(changes.narrow(0, flat.offsets[i], flat.known[i].numel()), line);
    }
    ++state_->own_steps;
    if (!state_->is_alone()) state_->run("push", "", false, line, [&] { state_->count(1); });
}

void ParameterServer::leave(Loc loc) {
    if (std::exchange(state_->has_left, true) || state_->is_alone()) return;
    state_->run("leave", "", false, tapir::detail::caller(loc), [&] { state_->count(kLeft); });
}

void ParameterServer::finish(Loc loc) {
    const Loc line = tapir::detail::caller(loc);
    leave(line);
    state_->group.barrier(line);
    pull(line);
}

std::vector<std::int64_t> ParameterServer::steps(Loc loc) const {
    if (state_->is_alone()) return {state_->own_steps};
    std::vector<std::int64_t> steps;
    state_->run("steps", "", false, tapir::detail::caller(loc), [&] { steps = state_->read_steps(); });
    for (std::int64_t& count : steps) count %= kLeft;
    return steps;
}

}  // namespace tapir::parallel
