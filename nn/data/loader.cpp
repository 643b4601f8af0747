// The threads of a loader, and its position.
#include "tapir/nn/data/loader.h"

#if defined(__linux__)
#include <pthread.h>
#endif

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/shown_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/state_reader_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/make/make.h"

namespace tapir::data::detail {
namespace {

using std::int64_t;

// A loader draws from generators that differ in the purpose, the epoch and the item. Stream 0 is what a Generator of
// the same seed draws itself.
enum class Purpose : std::uint64_t { order = 1, item = 2 };

Generator generator_for(Purpose purpose, std::uint64_t seed, int64_t epoch, int64_t index) noexcept {
    const std::uint64_t stream = static_cast<std::uint64_t>(epoch) << 2 | static_cast<std::uint64_t>(purpose);
    const Philox p = philox4x32(static_cast<std::uint64_t>(index), stream, seed);
    return Generator(p.value[0] | std::uint64_t{p.value[1]} << 32);
}

// Gives every thread the same surroundings for making items: no tape, no autocast, the CPU as default device, no caller.
class ItemScope {
 public:
    ItemScope() : before_(tapir::detail::thread) { tapir::detail::thread = {}; }
    ~ItemScope() { tapir::detail::thread = before_; }
    ItemScope(const ItemScope&) = delete;
    ItemScope& operator=(const ItemScope&) = delete;

 private:
    tapir::detail::ThreadState before_;
};

// Names the thread for profiles, gdb and top.
void name_thread([[maybe_unused]] int worker) noexcept {
#if defined(__linux__)
    char name[16];
    std::snprintf(name, sizeof(name), "DataLoader %d", worker % 1000);
    pthread_setname_np(pthread_self(), name);
#endif
}

struct Result {
    std::shared_ptr<void> batch;
    std::exception_ptr error;
    bool is_there = false;
};

}  // namespace

Generator item_generator(const LoaderState& state, int64_t index) noexcept { return generator_for(Purpose::item, state.seed, state.epoch, index); }

// --- The position ----------------------------------------------------------------------------------------------------------

LoaderBase::LoaderBase(int64_t items, std::shared_ptr<const BatchSampler> batches, const LoaderOptions& options, const Loc& loc)
    : made_at_(loc), items_(items), batches_(std::move(batches)), options_(options) {
    if (options.num_workers < 0) fail<ValueError>(loc, "DataLoader: the number of workers is negative: {}", options.num_workers);
    if (options.prefetch_factor < 1) {
        fail<ValueError>(loc, "DataLoader: prefetch_factor must be at least 1, got {}", options.prefetch_factor);
    }
    state_.seed = options.seed.value_or(default_generator().seed());
}

namespace {

std::shared_ptr<const BatchSampler> in_batches(std::shared_ptr<const Sampler> sampler, const LoaderOptions& options, const Loc& loc) {
    if (options.batch_size < 1) fail<ValueError>(loc, "DataLoader: batch_size must be at least 1, got {}", options.batch_size);
    return std::make_shared<const BatchSampler>(std::move(sampler), options.batch_size, options.drop_last, loc);
}

}  // namespace

std::shared_ptr<const BatchSampler> LoaderBase::batches_of(int64_t items, const LoaderOptions& options, const Loc& loc) {
    std::shared_ptr<const Sampler> sampler;
    if (items < 0) fail<ValueError>(loc, "DataLoader: the dataset's size is negative: {}", items);
    if (options.shuffle) {
        sampler = std::make_shared<const RandomSampler>(items, RandomSamplerOptions{}, loc);
    } else {
        sampler = std::make_shared<const SequentialSampler>(items, loc);
    }
    return in_batches(std::move(sampler), options, loc);
}

std::shared_ptr<const BatchSampler> LoaderBase::batches_of(std::shared_ptr<const Sampler> sampler, const LoaderOptions& options, const Loc& loc) {
    if (options.shuffle) fail<ValueError>(loc, "DataLoader: a sampler decides the order; shuffle must be false beside one");
    return in_batches(std::move(sampler), options, loc);
}

LoaderBase::~LoaderBase() = default;

void LoaderBase::fail_collate(const ShapeError& error, const Loc& loc) const {
    std::string_view file = made_at_.file_name();
    file.remove_prefix(file.rfind('/') + 1);
    fail<ShapeError>(loc,
                     "DataLoader: the items of a batch do not go together: {}\n  give the loader of {}:{} a function that puts them "
                     "together: DataLoader(dataset, options, [](std::vector<Item> items) {{ ... }}); "
                     "nn::pad_sequence() makes one tensor of several of different lengths",
                     io::text_of(error), file, made_at_.line());
}

int64_t LoaderBase::size() const { return batches_->size(); }

void LoaderBase::set_state(const LoaderState& state, Loc loc) {
    const CallerScope caller(loc);
    if (state.epoch < 0 || state.batch < 0 || state.batch > size()) {
        fail<ValueError>(loc, "DataLoader: cannot go on from batch {} of epoch {}: an epoch has {} batches", state.batch, state.epoch, size());
    }
    state_ = state;
    is_under_way_ = false;
    ++passes_;  // a running loop no longer moves the position
}

NamedTensors LoaderBase::state_dict(Loc loc) const {
    const CallerScope caller(loc);
    const auto number = [](int64_t value) { return full({}, value, {int64, cpu}); };
    return {{"seed", number(std::bit_cast<int64_t>(state_.seed))}, {"epoch", number(state_.epoch)}, {"batch", number(state_.batch)}};
}

void LoaderBase::load_state_dict(const NamedTensors& state, Loc loc) {
    const CallerScope caller(loc);
    StateReader reader("DataLoader", state, loc);
    const LoaderState read{std::bit_cast<std::uint64_t>(reader.integer("seed")), reader.count("epoch"), reader.count("batch")};
    reader.finish();
    set_state(read, loc);
}

// --- Threads ---------------------------------------------------------------------------------------------------------------

// Workers take batches in order, and the loop gets them in order. `results` is a ring: batch i is in place i % size.
struct Pass::Work {
    LoaderBase& loader;
    const MakeBatch make;
    const Loc loc;
    const LoaderState first;  // of this epoch
    const std::uint64_t number;
    std::vector<std::vector<int64_t>> batches;
    int64_t next_out = 0;  // the batch that the loop needs next

    std::mutex mutex;
    std::condition_variable wanted, made;
    std::vector<Result> results;
    int64_t next_in = 0;  // the batch that a worker takes next
    bool is_stopped = false;
    std::vector<std::thread> threads;

    Work(LoaderBase& l, MakeBatch m, const Loc& line, const LoaderState& state, std::uint64_t n)
        : loader(l), make(std::move(m)), loc(line), first(state), number(n) {}
    ~Work() { stop(); }

    int64_t count() const { return static_cast<int64_t>(batches.size()); }

    Result make_one(int64_t i) const {
        Result result{nullptr, nullptr, true};
        const ProfileScope profiled("DataLoader: batch", loc);
        const ItemScope scope;
        try {
            result.batch = make(batches[static_cast<std::size_t>(i)], first, loc);
        } catch (...) {
            result.error = std::current_exception();
        }
        return result;
    }

    Result& place(int64_t i) { return results[static_cast<std::size_t>(i) % results.size()]; }

    void work(int worker) {
        name_thread(worker);
        std::unique_lock lock(mutex);
        while (true) {
            wanted.wait(lock, [&] { return is_stopped || next_in == count() || next_in < next_out + static_cast<int64_t>(results.size()); });
            if (is_stopped || next_in == count()) return;
            const int64_t i = next_in++;
            lock.unlock();
            Result result = make_one(i);
            lock.lock();
            place(i) = std::move(result);
            made.notify_one();
        }
    }

    void start(int workers, int64_t ahead) {
        results.resize(static_cast<std::size_t>(ahead));
        try {
            for (int i = 0; i < workers; ++i) threads.emplace_back([this, i] { work(i); });
        } catch (const std::system_error&) {  // the system has no more threads: use those that exist, or the loop's own
        } catch (...) {
            stop();
            throw;
        }
    }

    void stop() noexcept {
        {
            const std::lock_guard lock(mutex);
            is_stopped = true;
        }
        wanted.notify_all();
        for (std::thread& t : threads) t.join();
        threads.clear();
    }

    Result take() {
        if (threads.empty()) return make_one(next_out++);
        const ProfileScope profiled("DataLoader: wait", loc);
        std::unique_lock lock(mutex);
        made.wait(lock, [&] { return place(next_out).is_there; });
        Result result = std::exchange(place(next_out), {});
        ++next_out;
        wanted.notify_all();
        return result;
    }
};

Pass::Pass(LoaderBase& loader, MakeBatch make, const Loc& loc) {
    const tapir::detail::CallLine call(loc);
    LoaderState state = loader.state_;
    if (loader.is_under_way_) {  // the last loop was left early
        ++state.epoch;
        state.batch = 0;
    }
    work_ = std::make_unique<Work>(loader, std::move(make), loc, state, loader.passes_ + 1);
    Work& w = *work_;
    Generator random = generator_for(Purpose::order, state.seed, state.epoch, 0);
    {
        const ItemScope scope;  // the sampler may be the user's
        w.batches = loader.batches_->batches(random);
    }
    for (const std::vector<int64_t>& batch : w.batches) {
        if (batch.empty()) fail<ValueError>(loc, "DataLoader: the sampler gave a batch without items");
        check_indices(batch, loader.items_, "DataLoader: from the sampler", loc);
    }
    if (state.batch > w.count()) {
        fail<ValueError>(loc, "DataLoader: cannot go on from batch {} of epoch {}: it has {} batches", state.batch, state.epoch, w.count());
    }
    w.next_in = w.next_out = state.batch;
    const int workers = static_cast<int>(std::min<int64_t>(loader.options_.num_workers, w.count() - w.next_out));
    const int64_t ahead = std::min<int64_t>(int64_t{workers} * loader.options_.prefetch_factor, w.count() - w.next_out);
    if (workers > 0) w.start(workers, ahead);
    ++loader.passes_;  // from here on nothing fails
    loader.state_ = state;
    loader.is_under_way_ = true;
}

Pass::~Pass() = default;

std::shared_ptr<void> Pass::next() {
    Work& w = *work_;
    const tapir::detail::CallLine call(w.loc);
    const bool moves = w.number == w.loader.passes_;
    LoaderState& state = w.loader.state_;
    if (w.next_out == w.count()) {
        if (moves && w.loader.is_under_way_) {
            ++state.epoch;
            state.batch = 0;
            w.loader.is_under_way_ = false;
        }
        return nullptr;
    }
    Result result = w.take();
    if (result.error) std::rethrow_exception(std::move(result.error));
    if (moves) state.batch = w.next_out;
    return std::move(result.batch);
}

}  // namespace tapir::data::detail
