// The thread of a process that talks to other ranks. Calls of all groups wait in one line, in the order in which the program makes them: so ranks whose
// programs are alike never wait for each other in a circle. While it waits, the program computes on, as backward() does while gradients travel.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tapir/nn/parallel/engine_impl.h"

namespace tapir::parallel {

/// What a rank calls, as messages tell it.
struct Call {
    const char* op;
    std::string of;  // what ranks compare beside the op: "float32 (3, 4), sum"
    Loc loc;
    std::string note{};      // for messages only: "bucket 3 of 5, step 118"
    std::int64_t bytes = 0;  // that this rank gives, for profiles
    bool yields = false;     // see Note [Calls that yield]

    std::string text() const;  // "all_reduce of float32 (3, 4), sum"
};

/// A call that waits in line, runs, or is done.
class Work {
 public:
    /// Throws CommError if it failed.
    void wait();

 private:
    friend class Channel;
    void finish();
    const Channel* channel_ = nullptr;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_done_ = false;
    std::exception_ptr error_;
};

class Channel {
 public:
    using Make = std::function<std::unique_ptr<Engine>()>;
    /// Makes the first engine on the thread. Throws what that throws; CommError, which begins with op, for an EngineError.
    static std::shared_ptr<Channel> open(const char* op, const Make& make, double timeout, const Loc& loc);
    ~Channel();
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    Engine& world() noexcept { return *engines_.front(); }
    double timeout() const noexcept { return timeout_; }
    /// Compares the call with those of the other ranks (not so messages between two ranks), and calls run() if they are alike.
    std::shared_ptr<Work> post(Engine& engine, Call call, std::function<void()> run, bool compares = true);
    /// Of the thread: makes an engine that lives as long as this.
    Engine& add(std::unique_ptr<Engine> engine);
    /// Of the thread, in a call that is not compared: what it waited for has come, so many bytes.
    void came(std::int64_t bytes);
    /// All calls from here on throw CommError, on all ranks.
    void abort(const std::string& reason);

 private:
    using Clock = std::chrono::steady_clock;
    struct Job {
        Engine* engine;
        Call call;
        std::function<void()> run;
        std::shared_ptr<Work> work;
        bool compares;
        bool has_overtaken = false;  // calls that yield
    };

    explicit Channel(double timeout) : timeout_(timeout) {}
    void serve();
    void watch();
    void wait_for_next(std::unique_lock<std::mutex>& lock);
    bool has_next() const;
    Job take_next();
    void fail_overtaken(const Job& job);
    bool do_job(Job& job);
    bool compare(const Job& job);
    void report(const Job& job, std::uint64_t profile, std::int64_t begin) noexcept;
    void end(const std::string& reason);
    static void introduce(Engine& engine);

    const double timeout_;
    std::vector<std::unique_ptr<Engine>> engines_;  // of the thread
    Engine* first_ = nullptr;                       // of them; for the watchdog
    std::string ended_;                             // of the thread: why there are no more calls
    std::int64_t came_at_ = 0, came_bytes_ = 0;     // of the thread, for profiles: what its call has waited for
    const int unwinding_ = std::uncaught_exceptions();

    std::mutex mutex_;  // of what follows
    std::condition_variable changed_;
    std::deque<Job> line_;
    bool has_yielded_ = false;              // the first call in line, to one that does not yield
    bool closes_ = false, watched_ = true;  // the watchdog ends before the thread
    const Job* current_ = nullptr;          // for the watchdog
    Clock::time_point began_;

    std::thread thread_, watchdog_;
};

}  // namespace tapir::parallel
