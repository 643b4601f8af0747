#include "tapir/nn/parallel/channel_impl.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tapir/autograd/watch/communication_impl.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"

namespace tapir::parallel {
namespace {

constexpr int kExitCode = 75;  // EX_TEMPFAIL: start again from the last checkpoint
constexpr double kAbortSeconds = 5, kDeviceSeconds = 2;
constexpr std::chrono::seconds kLinger{2};  // other ranks' watchdogs speak within it: mpirun ends all when the first has gone
constexpr std::size_t kHostBytes = 64;
constexpr std::chrono::microseconds kServes{100};  // between looks at windows

// Names the thread for profiles, gdb and top.
void name_thread([[maybe_unused]] int rank) noexcept {
#if defined(__linux__)
    char name[16];
    std::snprintf(name, sizeof(name), "comm. rank %u", static_cast<unsigned>(rank) % 10000);
    pthread_setname_np(pthread_self(), name);
#endif
}

constexpr char kYields = '~', kStays = ' ';  // the first of what an engine compares

std::string note_of(const Call& call) { return call.note.empty() ? "" : " (" + call.note + ")"; }
std::string with_line(const Call& call) { return call.text() + " at " + detail::file_and_line(call.loc) + note_of(call); }

}  // namespace

std::uint64_t fingerprint_of(const std::string& text) {  // FNV-1a
    std::uint64_t hash = 14695981039346656037u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return hash >> 1;  // never all ones: its complement is compared, too
}

std::vector<int> missing_of(const std::vector<Found>& by_rank) {
    const auto all_that = [&](auto is_meant) {
        std::vector<int> ranks;
        for (std::size_t i = 0; i < by_rank.size(); ++i) {
            if (is_meant(by_rank[i])) ranks.push_back(static_cast<int>(i));
        }
        return ranks;
    };
    std::vector<int> ranks = all_that([](Found found) { return found < Found::in_other_call; });
    return ranks.empty() ? all_that([](Found found) { return found == Found::in_other_call; }) : ranks;
}

std::string Call::text() const { return of.empty() ? op : std::string(op) + " of " + of; }

void Work::wait() {
    const std::uint64_t profile = detail::profile_run();
    const std::int64_t begin = profile != 0 ? detail::profile_ticks() : 0;
    {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_done_; });
    }
    if (profile != 0) detail::note_communication_wait(profile, channel_, begin, detail::profile_ticks());
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));  // the channel's thread, which may be the last to hold this, lets go of none
    if (device_ != cpu) Stream::current(device_).wait_event(ended_);
}

void Work::finish() {
    const std::lock_guard lock(mutex_);
    is_done_ = true;
    changed_.notify_all();
}

std::shared_ptr<Channel> Channel::open(const char* op, const Make& make, const InitOptions& options, const Loc& loc) {
    std::shared_ptr<Channel> channel(new Channel(options));
    Work made;
    std::exception_ptr error;
    channel->thread_ = std::thread([&, self = channel.get()] {
        try {
            self->add(make());
        } catch (const EngineError& e) {
            error = std::make_exception_ptr(CommError(fmt::format("{}: {}", op, e.what()), loc));
        } catch (...) {
            error = std::current_exception();
        }
        const bool serves = !error;
        if (serves) name_thread(self->world().rank());
        made.finish();
        if (serves) self->serve();
    });
    made.wait();
    if (error) {
        channel->thread_.join();
        std::rethrow_exception(error);
    }
    channel->first_ = channel->engines_.front().get();
    channel->watchdog_ = std::thread([self = channel.get()] { self->watch(); });
    return channel;
}

Channel::~Channel() {
    if (!watchdog_.joinable()) return;  // it was never open
    if (std::uncaught_exceptions() > unwinding_) abort("an exception ended its program's use of the group");
    {
        const std::lock_guard lock(mutex_);
        closes_ = true;
        changed_.notify_all();
    }
    watchdog_.join();  // first: it asks the engines
    {
        const std::lock_guard lock(mutex_);
        watched_ = false;
        changed_.notify_all();
    }
    thread_.join();
}

std::shared_ptr<Work> Channel::post(Engine& engine, Call call, std::function<void()> run, bool compares, Device device) {
    auto work = std::make_shared<Work>();
    work->channel_ = this;
    work->device_ = device;
    Event may_begin;
    if (device != cpu) may_begin = Stream::current(device).record_event();
    const std::lock_guard lock(mutex_);
    line_.push_back({&engine, std::move(call), std::move(run), work, compares, false, std::move(may_begin)});
    changed_.notify_all();
    return work;
}

Engine& Channel::add(std::unique_ptr<Engine> engine) {
    introduce(*engine);
    engines_.push_back(std::move(engine));
    return *engines_.back();
}

// Lets every rank know the others' hosts, for messages.
void Channel::introduce(Engine& engine) {
    char mine[kHostBytes] = {};
    gethostname(mine, kHostBytes - 1);
    const auto ranks = static_cast<std::size_t>(engine.size());
    std::vector<char> all(kHostBytes * ranks);
    engine.all_gather(mine, all.data(), std::vector<std::int64_t>(ranks, kHostBytes));
    for (std::size_t i = 0; i < ranks; ++i) engine.hosts.emplace_back(all.data() + i * kHostBytes);
}

void Channel::abort(const std::string& reason) {
    post(*engines_.front(), {"abort", "", Loc{}}, [this, reason] { end(reason); }, false)->wait();
}

void Channel::end(const std::string& reason) {
    if (!ended_.empty()) return;
    ended_ = reason;
    engines_.front()->abort(reason, kAbortSeconds);
    end_on_devices();
}

// All ranks have agreed on what is on devices: it ends by itself, unless one of them did not come to put it there.
void Channel::end_on_devices() {
    if (made_.empty()) return;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(kDeviceSeconds), [this] { return on_devices_.empty(); });
    lock.unlock();
    for (const Made& made : made_) made.collectives->abort();
}

// This and the next: under the lock.
bool Channel::has_next() const {
    return closes_ || !has_yielded_ ? !line_.empty() : std::any_of(line_.begin(), line_.end(), [](const Job& job) { return !job.call.yields; });
}

Channel::Job Channel::take_next() {
    auto next = line_.begin();
    if (std::exchange(has_yielded_, false)) {
        next = std::find_if(next, line_.end(), [](const Job& job) { return !job.call.yields; });
        if (next == line_.end()) next = line_.begin();
    }
    Job job = std::move(*next);
    job.has_overtaken = next != line_.begin();
    line_.erase(next);
    return job;
}

// Where a call failed to which others had yielded, so have they: the ranks do not call alike.
void Channel::fail_overtaken(const Job& job) {
    std::vector<std::shared_ptr<Work>> failed;
    {
        const std::lock_guard lock(mutex_);
        for (const Job& other : line_) {
            if (other.call.yields) failed.push_back(other.work);
        }
        std::erase_if(line_, [](const Job& other) { return other.call.yields; });
    }
    for (const std::shared_ptr<Work>& work : failed) {
        work->error_ = job.work->error_;
        work->finish();
    }
}

void Channel::wait_for_next(std::unique_lock<std::mutex>& lock) {
    const auto has_come = [this] { return !watched_ || has_next(); };
    for (bool serves = true; serves && !has_come();) {
        lock.unlock();
        serves = engines_.front()->serve_windows();
        lock.lock();
        if (serves) changed_.wait_for(lock, kServes, has_come);
    }
    changed_.wait(lock, has_come);
}

void Channel::serve() {
    for (;;) {
        Job job;
        {
            std::unique_lock lock(mutex_);
            wait_for_next(lock);
            if (line_.empty()) break;
            job = take_next();
            current_ = &job;
            began_ = Clock::now();
        }
        engines_.front()->is_called = true;
        const bool is_done = do_job(job);
        engines_.front()->is_called = false;
        {
            const std::lock_guard lock(mutex_);
            current_ = nullptr;
            if (!is_done) {
                line_.push_front(std::move(job));
                has_yielded_ = true;
                continue;
            }
        }
        if (job.has_overtaken && job.work->error_) fail_overtaken(job);
        job.work->finish();
    }
    while (!made_.empty()) made_.pop_back();  // the last one first, on all ranks: they wait for each other in it
    while (engines_.size() > 1) engines_.pop_back();
    engines_.front()->finish();
    engines_.clear();
}

// Note [Calls that yield]
// When Replicas sends a bucket depends on which parameters a rank has used. Between them may come calls of the model itself, as SyncBatchNorm makes them
// in backward: before a bucket on one rank, behind it on another. So where the ranks' calls differ, those that yield go back into the line, until the
// program has made the call that the others wait in, and has returned from it.

// Returns false if the call goes back into the line.
bool Channel::do_job(Job& job) {
    const std::uint64_t profile = detail::profile_run();
    const std::int64_t begin = profile != 0 ? detail::profile_ticks() : 0;
    came_at_ = job.compares ? 0 : begin;
    came_bytes_ = job.call.bytes;
    std::exception_ptr& error = job.work->error_;
    bool is_agreed = false;
    try {
        if (!ended_.empty()) {
            if (job.call.loc.line() != 0) fail<CommError>(job.call.loc, "{}: no more calls are possible, as {}", job.call.op, ended_);
            return true;
        }
        if (job.compares) {
            if (!compare(job)) return false;
            came(job.call.bytes);
        }
        is_agreed = job.compares;
        job.work->device_ == cpu ? job.run() : run_on_device(job);
    } catch (const EngineError& e) {
        error = std::make_exception_ptr(CommError(fmt::format("{}: {}", job.call.op, e.what()), job.call.loc));
        end(e.what());
    } catch (const std::exception& e) {
        error = std::current_exception();
        if (is_agreed) end(e.what());  // the other ranks are in the call, which this one has left
    } catch (...) {
        error = std::current_exception();
        if (is_agreed) end("an exception");
    }
    job.run = nullptr;  // what it holds is let go before the caller goes on
    if (profile != 0 && job.call.loc.line() != 0) report(job, profile, begin);
    return true;
}

// See Note [Collectives on devices].
void Channel::run_on_device(Job& job) {
    const Device device = job.work->device_;
    auto at = streams_.find(device.index);
    if (at == streams_.end()) at = streams_.emplace(device.index, Stream(device)).first;
    const Stream& stream = at->second;
    device_api::select(device);
    const StreamScope scope(stream);
    stream.wait_event(job.may_begin);
    used_ = nullptr;
    job.run();
    job.work->ended_ = stream.record_event();
    const std::lock_guard lock(mutex_);
    on_devices_.push_back({job.engine, used_, job.call, job.work, Clock::now()});
    changed_.notify_all();
}

Collectives& Channel::collectives(Engine& engine, Device device) {
    if (device == cpu) return engine;
    const int own = device.index;
    std::vector<int> devices(static_cast<std::size_t>(engine.size()));
    engine.all_gather(&own, devices.data(), std::vector<std::int64_t>(devices.size(), sizeof(own)));
    for (const Made& made : made_) {
        if (made.engine == &engine && made.devices == devices) return *(used_ = made.collectives.get());
    }
    made_.push_back({&engine, devices, device_collectives(engine, device)});
    return *(used_ = made_.back().collectives.get());
}

void Channel::came(std::int64_t bytes) {
    came_at_ = detail::profile_ticks();
    came_bytes_ = bytes;
}

void Channel::report(const Job& job, std::uint64_t profile, std::int64_t begin) noexcept {
    const std::int64_t end = detail::profile_ticks();
    const Call& call = job.call;
    try {
        detail::note_communication(profile, {this, call.op, call.of, call.note, call.loc, came_bytes_, begin, came_at_ != 0 ? came_at_ : end, end});
    } catch (const std::bad_alloc&) {  // the profile lacks a call
    }
}

// Returns false if it yields to the others' call.
bool Channel::compare(const Job& job) {
    const std::string text = job.call.text();
    for (;;) {
        const Agreement found = job.engine->agree(fingerprint_of(text), (job.call.yields ? kYields : kStays) + with_line(job.call));
        if (found.any_failed) {
            std::string reason = "a rank failed";
            for (std::size_t i = found.failed.size(); i-- > 0;) {
                if (found.failed[i]) reason = fmt::format("rank {} ({}) failed: {}", i, job.engine->hosts[i], found.texts[i]);
            }
            throw EngineError(reason);
        }
        if (found.all_alike) return true;
        const auto yielding = std::count_if(found.texts.begin(), found.texts.end(), [](const std::string& other) { return other[0] == kYields; });
        if (yielding > 0 && yielding < std::ssize(found.texts)) {
            if (job.call.yields) return false;
            continue;
        }
        const auto is_same = [&](const std::string& other) { return other.compare(1, text.size() + 4, text + " at ") == 0; };
        std::size_t other = 0;
        while (other + 1 < found.texts.size() && is_same(found.texts[other])) ++other;
        fail<CommError>(job.call.loc, "{}: the ranks call different things: rank {} {}, rank {} {}", job.call.op, job.engine->rank(),
                        with_line(job.call), other, found.texts[other].substr(1));
    }
}

void Channel::watch() {
    using namespace std::chrono_literals;
    std::unique_lock lock(mutex_);
    while (!(closes_ && line_.empty() && !current_ && on_devices_.empty())) {
        changed_.wait_for(lock, on_devices_.empty() ? 100ms : 10ms);
        lock.unlock();
        first_->answer();
        lock.lock();
        look_at_devices(lock);
        if (is_late()) look_at_current(lock);
    }
}

// Ends the program, or the call, unless that goes on meanwhile.
void Channel::look_at_current(std::unique_lock<std::mutex>& lock) {
    Engine& engine = *current_->engine;
    const Call call = current_->call;
    lock.unlock();
    const int one = engine.waits_for;
    const std::optional<std::vector<int>> missing = one >= 0 ? std::vector<int>{one} : engine.missing();
    std::string ranks;
    for (const int rank : missing.value_or(std::vector<int>()))
        ranks += fmt::format("{}rank {} ({})", ranks.empty() ? "" : ", ", rank, engine.hosts[static_cast<std::size_t>(rank)]);
    if (ranks.empty()) ranks = missing ? "other ranks, which have all come to it" : "other ranks";
    lock.lock();
    if (!is_late()) return;
    if (!options_.exit_on_timeout && engine.give_up(fmt::format("waited {} s for {}{}", options_.timeout, ranks, note_of(call)))) return;
    give_up(engine, call, ranks);
}

// Lets go of the calls that devices have done, and ends all where a device, or another rank, will not go on.
void Channel::look_at_devices(std::unique_lock<std::mutex>& lock) {
    while (!on_devices_.empty()) {
        const OnDevice first = on_devices_.front();  // only this thread takes one out
        lock.unlock();
        bool is_done = true, is_stuck = false;
        std::string problem;
        try {
            is_done = first.work->ended_.query();
            if (!is_done && first.collectives) first.collectives->check();
            if (!is_done) problem = first.engine->failure_of_others();
        } catch (const std::exception& e) {
            problem = e.what();
            is_stuck = true;
        }
        lock.lock();
        is_stuck_ |= is_stuck;
        if (!problem.empty() && !std::exchange(ends_, true)) {
            Job job{first.engine, {"abort", "", Loc{}}, [this, problem] { end(problem); }, std::make_shared<Work>(), false};
            line_.push_front(std::move(job));
            changed_.notify_all();
        }
        if (is_done || is_stuck_) {
            on_devices_.pop_front();
            changed_.notify_all();
        } else if (Clock::now() - first.began < std::chrono::duration<double>(options_.timeout)) {
            return;
        } else {
            give_up(*first.engine, first.call, name(first.work->device_) + ", where what comes before it, here or on another rank, is not done");
        }
    }
}

// The lock is held: no call returns meanwhile, and the program cannot end in another way.
void Channel::give_up(const Engine& engine, const Call& call, const std::string& awaited) const {
    const std::string text = fmt::format("{}: {}{} waits {} s for {}: rank {} ends the program\n", detail::file_and_line(call.loc), call.text(),
                                         note_of(call), options_.timeout, awaited, engine.rank());
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
    for (const auto end = Clock::now() + kLinger; Clock::now() < end; std::this_thread::sleep_for(std::chrono::milliseconds(10))) first_->answer();
    ::_exit(kExitCode);
}

}  // namespace tapir::parallel
