// The pool. Each work that is shared out is a job in one of a few places that never go away. A thread joins by taking one of the job's
// open seats; the caller takes the seats back that are left, and then knows for how many threads it has to wait.
//
// Where a core is busy with something else, two things count. A caller must not wait for a thread that has not come: it does all parts
// itself then. And who waits must sleep soon: only where a core is idle does the system move a thread there that was interrupted in its
// part. OpenMP's threads meet at barriers, and spin for milliseconds at each.
#include "tapir/core/pool_impl.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <csignal>
#include <exception>
#include <mutex>

#include "tapir/core/parallel.h"

namespace tapir::detail {
namespace {

constexpr int kMostThreads = 256;  // of one job
constexpr int kMostJobs = 16;      // at a time, of threads of the program; further ones are not shared out

// The exception of the first part that has one.
class Failure {
 public:
    void note(std::int64_t part) noexcept {
        const std::lock_guard lock(mutex_);
        if (error_ && part_ < part) return;
        part_ = part;
        error_ = std::current_exception();
    }
    void rethrow() const {
        if (error_) std::rethrow_exception(error_);
    }

 private:
    std::mutex mutex_;
    std::int64_t part_ = 0;
    std::exception_ptr error_;
};

// Parts first ... end - 1, in one word: end is the upper half.
struct alignas(64) Range {
    std::atomic<std::uint64_t> word{0};

    void set(std::int64_t first, std::int64_t end) noexcept {
        word.store(static_cast<std::uint64_t>(first) | static_cast<std::uint64_t>(end) << 32, std::memory_order_relaxed);
    }
    static std::int64_t first_of(std::uint64_t word) noexcept { return static_cast<std::int64_t>(word & 0xFFFFFFFF); }
    static std::int64_t end_of(std::uint64_t word) noexcept { return static_cast<std::int64_t>(word >> 32); }

    // Both return -1 if there is none.
    std::int64_t take_first() noexcept {
        return take(1, [](std::uint64_t before) { return first_of(before); });
    }
    std::int64_t take_last() noexcept {
        return take(~((std::uint64_t{1} << 32) - 1), [](std::uint64_t before) { return end_of(before) - 1; });
    }

 private:
    // Adds `change` to the word where parts are left.
    template <class PartOf>
    std::int64_t take(std::uint64_t change, const PartOf& part_of) noexcept {
        std::uint64_t now = word.load(std::memory_order_relaxed);
        while (first_of(now) < end_of(now)) {
            if (word.compare_exchange_weak(now, now + change, std::memory_order_relaxed)) return part_of(now);
        }
        return -1;
    }
};

struct Job {
    alignas(64) std::atomic<bool> is_taken{false};
    RunPart call = nullptr;
    const void* of = nullptr;
    Failure* failure = nullptr;
    int threads = 0;
    alignas(64) std::atomic<int> open{0};  // seats: how many more threads may join
    alignas(64) std::atomic<int> left{0};  // threads that have joined and are done
    Range ranges[kMostThreads];

    void run(std::int64_t part) noexcept {
        try {
            call(of, part);
        } catch (...) {
            failure->note(part);
        }
    }
    // Runs parts until none is left.
    void work(int me) noexcept {
        for (std::int64_t part; (part = ranges[me].take_first()) >= 0;) run(part);
        for (int k = 1; k < threads; ++k) {
            Range& other = ranges[(me + k) % threads];
            for (std::int64_t part; (part = other.take_last()) >= 0;) run(part);
        }
    }
};

struct Pool {
    Job jobs[kMostJobs];
    alignas(64) std::atomic<std::uint32_t> open_jobs{0};  // a bit for each that may have open seats
    alignas(64) std::atomic<std::uint32_t> news{0};       // counts the jobs
    alignas(64) std::atomic<int> sleepers{0};
    std::atomic<int> workers{0};
    std::atomic<bool> is_starting{false};
};
constinit Pool pool;

constinit thread_local bool is_in_part = false;

void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

// Waking a thread that sleeps takes up to 50 us, and between two ops of a training step 1 to 30 pass. Measured on steps with two threads: 50 us
// are 5% slower, 400 are no faster, and beside a busy core all of these are alike.
constexpr std::chrono::microseconds kSpin{200};

// Waits for a short while. Returns false if it has not come.
template <class HasCome>
bool spin(const HasCome& has_come) noexcept {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (has_come()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < until);
    return false;
}

bool join_some(int id) noexcept {
    for (std::uint32_t bits = pool.open_jobs.load(std::memory_order_acquire); bits != 0; bits &= bits - 1) {
        Job& job = pool.jobs[std::countr_zero(bits)];
        int open = job.open.load(std::memory_order_relaxed);
        while (open > 0 && !job.open.compare_exchange_weak(open, open - 1, std::memory_order_acquire, std::memory_order_relaxed)) {}
        if (open <= 0) continue;
        // With seats for all, each thread has its own. (Two with one range share it.)
        const int seat = id < job.threads && pool.workers.load(std::memory_order_relaxed) < job.threads ? id : job.threads - open;
        job.work(seat);
        job.left.fetch_add(1, std::memory_order_release);
        job.left.notify_one();
        return true;
    }
    return false;
}

// A thread of the pool. It never ends.
void* work_for_ever(void* place) noexcept {
    const auto id = static_cast<int>(reinterpret_cast<std::intptr_t>(place));
    is_in_part = true;
    pthread_setname_np(pthread_self(), "tapir pool");
    for (;;) {
        const std::uint32_t seen = pool.news.load(std::memory_order_acquire);
        if (join_some(id)) continue;
        if (spin([&] { return pool.news.load(std::memory_order_relaxed) != seen; })) continue;
        pool.sleepers.fetch_add(1);
        pool.news.wait(seen);
        pool.sleepers.fetch_sub(1);
    }
}

// Starts threads until there are `count`, or as many as the system gives. They handle no signals.
void start_workers(int count) noexcept {
    if (pool.workers.load(std::memory_order_relaxed) >= count || pool.is_starting.exchange(true, std::memory_order_acquire)) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int id = pool.workers.load(std::memory_order_relaxed) + 1; id <= count; ++id) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, work_for_ever, reinterpret_cast<void*>(std::intptr_t{id})) != 0) break;
        pthread_detach(thread);
        pool.workers.store(id, std::memory_order_relaxed);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pool.is_starting.store(false, std::memory_order_release);
}

int take_job() noexcept {
    for (int k = 0; k < kMostJobs; ++k) {
        if (!pool.jobs[k].is_taken.load(std::memory_order_relaxed) && !pool.jobs[k].is_taken.exchange(true, std::memory_order_acquire)) return k;
    }
    return -1;
}

void publish(int number, int seats) noexcept {
    pool.jobs[number].open.store(seats, std::memory_order_release);
    pool.open_jobs.fetch_or(std::uint32_t{1} << number, std::memory_order_release);
    pool.news.fetch_add(1);
    for (int asleep = std::min(pool.sleepers.load(), seats); asleep > 0; --asleep) pool.news.notify_one();
}

// Returns when the threads that have joined are done.
void close(int number, int seats) noexcept {
    Job& job = pool.jobs[number];
    pool.open_jobs.fetch_and(~(std::uint32_t{1} << number), std::memory_order_relaxed);
    const int joined = seats - job.open.exchange(0, std::memory_order_acq_rel);
    const auto are_done = [&] { return job.left.load(std::memory_order_acquire) == joined; };
    if (!are_done() && !spin(are_done)) {
        for (int now; (now = job.left.load(std::memory_order_acquire)) != joined;) job.left.wait(now);
    }
    job.is_taken.store(false, std::memory_order_release);
}

class InPart {
 public:
    InPart() noexcept : before_(is_in_part) { is_in_part = true; }
    ~InPart() { is_in_part = before_; }
    InPart(const InPart&) = delete;
    InPart& operator=(const InPart&) = delete;

 private:
    bool before_;
};

}  // namespace

bool in_part() noexcept { return is_in_part; }

void run_parts(std::int64_t parts, int threads, RunPart call, const void* of) {
    threads = static_cast<int>(std::min<std::int64_t>({threads, parts, kMostThreads}));
    const int number = threads > 1 && parts <= INT32_MAX && !is_in_part ? take_job() : -1;
    if (number < 0) {
        for (std::int64_t part = 0; part < parts; ++part) call(of, part);
        return;
    }
    start_workers(threads - 1);
    Failure failure;
    Job& job = pool.jobs[number];
    job.call = call;
    job.of = of;
    job.failure = &failure;
    job.threads = threads;
    job.left.store(0, std::memory_order_relaxed);
    for (int k = 0; k < threads; ++k) job.ranges[k].set(k == 0 ? 1 : parts * k / threads, parts * (k + 1) / threads);
    publish(number, threads - 1);
    {
        const InPart working;
        job.run(0);
        job.work(0);
    }
    close(number, threads - 1);
    failure.rethrow();
}

void run_ranges(std::int64_t n, std::int64_t grain, std::int64_t multiple, RunRange call, const void* of) {
    const std::int64_t useful = grain > 0 ? n / grain : n;
    const std::int64_t threads = is_in_part ? 1 : std::min<std::int64_t>(useful, num_threads());
    if (threads <= 1) return call(of, 0, n);
    constexpr std::int64_t most_of_thread = 4;  // where one thread is slower, others take over its last ones
    const std::int64_t parts = threads * std::min(useful / threads, most_of_thread);
    // n * part / parts, which might overflow.
    const auto begin_of = [&](std::int64_t part) { return part == parts ? n : (n / parts * part + n % parts * part / parts) / multiple * multiple; };
    share_parts(parts, static_cast<int>(threads), [&](std::int64_t part) {
        const std::int64_t begin = begin_of(part), end = begin_of(part + 1);
        if (begin < end) call(of, begin, end);
    });
}

}  // namespace tapir::detail
