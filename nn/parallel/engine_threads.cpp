// Ranks that are threads of one process: what they exchange is read where it lies.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "tapir/nn/parallel/engine_impl.h"

namespace tapir::parallel {
namespace {

// What a rank's window shows to the others.
struct SharedNumbers {
    std::mutex mutex;
    std::vector<std::byte> bytes;
};

class ThreadWindow final : public Window {
 public:
    ThreadWindow(std::vector<std::shared_ptr<SharedNumbers>> of_ranks, DType dtype)
        : of_ranks_(std::move(of_ranks)), dtype_(dtype), item_(static_cast<std::int64_t>(itemsize(dtype))) {}
    void get(int rank, std::int64_t first, void* to, std::int64_t count) override {
        SharedNumbers& numbers = *of_ranks_[static_cast<std::size_t>(rank)];
        const std::lock_guard lock(numbers.mutex);
        if (count > 0) std::memcpy(to, numbers.bytes.data() + first * item_, static_cast<std::size_t>(count * item_));
    }
    void add(int rank, std::int64_t first, const void* more, std::int64_t count) override {
        SharedNumbers& numbers = *of_ranks_[static_cast<std::size_t>(rank)];
        const std::lock_guard lock(numbers.mutex);
        reduce_into(numbers.bytes.data() + first * item_, more, count, dtype_, Reduce::sum);
    }

 private:
    const std::vector<std::shared_ptr<SharedNumbers>> of_ranks_;
    const DType dtype_;
    const std::int64_t item_;
};

// Where the ranks of one engine meet.
struct Room {
    explicit Room(int ranks)
        : size(ranks), fingerprints(static_cast<std::size_t>(ranks)), texts(static_cast<std::size_t>(ranks)), failed(static_cast<std::size_t>(ranks)),
          in(static_cast<std::size_t>(ranks)), waits(static_cast<std::size_t>(ranks)), numbers(static_cast<std::size_t>(ranks)) {}

    const int size;
    std::mutex mutex;
    std::condition_variable changed;
    int arrived = 0;
    std::uint64_t meetings = 0;
    bool any_failed = false;
    // By rank, as it last came here.
    std::vector<std::uint64_t> fingerprints;
    std::vector<std::string> texts;
    std::vector<bool> failed;
    std::vector<const void*> in;
    std::vector<bool> waits;
    std::vector<std::shared_ptr<SharedNumbers>> numbers;
    Agreement found;                                                         // of the last agreement
    std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail;  // from, to
    std::map<std::pair<int, int>, std::shared_ptr<Room>> parts;              // of a split: its number and the color
    std::vector<std::pair<int, int>> colors;                                 // and keys, of the split that is going on

    Agreement compare() const {
        Agreement found_here;
        for (const std::uint64_t fingerprint : fingerprints) found_here.all_alike &= fingerprint == fingerprints[0];
        found_here.any_failed = any_failed;
        if (found_here.all_alike && !any_failed) return found_here;
        found_here.texts = texts;
        found_here.failed = failed;
        return found_here;
    }
    // Waits until all ranks are here. The last one to come calls last(). Returns false if a rank has failed.
    template <class Last>
    bool meet(std::unique_lock<std::mutex>& lock, int rank, const Last& last) {
        if (any_failed) return false;
        if (++arrived == size) {
            last();
            arrived = 0;
            ++meetings;
            changed.notify_all();
            return true;
        }
        waits[static_cast<std::size_t>(rank)] = true;
        const std::uint64_t mine = meetings;
        changed.wait(lock, [&] { return meetings != mine || any_failed; });
        waits[static_cast<std::size_t>(rank)] = false;
        return meetings != mine;
    }
    [[noreturn]] void fail_ended() const {
        for (std::size_t i = 0; i < failed.size(); ++i) {
            if (failed[i]) throw EngineError("rank " + std::to_string(i) + " failed: " + texts[i]);
        }
        throw EngineError("a rank failed");
    }
};

// Where a rank is: all rooms of its engines, as abort() needs them.
struct Place {
    std::weak_ptr<Room> room;
    int rank;
};
using Places = std::shared_ptr<std::vector<Place>>;

class ThreadEngine final : public Engine {
 public:
    ThreadEngine(std::shared_ptr<Room> room, int rank, Places places) : room_(std::move(room)), rank_(rank), places_(std::move(places)) {
        places_->push_back({room_, rank_});
    }

    int rank() const noexcept override { return rank_; }
    int size() const noexcept override { return room_->size; }
    const char* name() const noexcept override { return "threads"; }

    Agreement agree(std::uint64_t fingerprint, const std::string& text) override {
        std::unique_lock lock(room_->mutex);
        at(room_->fingerprints) = fingerprint;
        if (!at(room_->failed)) at(room_->texts) = text;
        const bool have_met = room_->meet(lock, rank_, [this] { room_->found = room_->compare(); });
        return have_met ? room_->found : room_->compare();
    }
    void all_reduce(void* data, std::int64_t count, DType dtype, Reduce reduce) override {
        show(data);
        // Each rank reduces a part in place, which nobody else reads meanwhile, and then gets the others' parts.
        const auto item = static_cast<std::int64_t>(itemsize(dtype));
        const auto first = [&](int rank) { return count * rank / size(); };
        auto* const mine = static_cast<std::byte*>(data);
        for (int i = 1; i < size(); ++i) {
            const auto* const other = static_cast<const std::byte*>(shown((rank_ + i) % size()));
            reduce_into(mine + first(rank_) * item, other + first(rank_) * item, first(rank_ + 1) - first(rank_), dtype, reduce);
        }
        meet();
        for (int i = 0; i < size(); ++i) {
            if (i != rank_) copy(mine + first(i) * item, static_cast<const std::byte*>(shown(i)) + first(i) * item, (first(i + 1) - first(i)) * item);
        }
        meet();
    }
    void broadcast(void* data, std::int64_t bytes, int root) override {
        show(data);
        if (rank_ != root) copy(data, shown(root), bytes);
        meet();
    }
    void all_gather(const void* in, void* out, const std::vector<std::int64_t>& bytes) override {
        show(in);
        auto* to = static_cast<std::byte*>(out);
        for (int i = 0; i < size(); ++i) {
            copy(to, shown(i), bytes[static_cast<std::size_t>(i)]);
            to += bytes[static_cast<std::size_t>(i)];
        }
        meet();
    }
    void reduce_scatter(void* in, void* out, std::int64_t count, DType dtype, Reduce reduce) override {
        show(in);
        const std::int64_t offset = rank_ * count * static_cast<std::int64_t>(itemsize(dtype));
        copy(out, static_cast<const std::byte*>(in) + offset, count * static_cast<std::int64_t>(itemsize(dtype)));
        for (int i = 1; i < size(); ++i) reduce_into(out, static_cast<const std::byte*>(shown((rank_ + i) % size())) + offset, count, dtype, reduce);
        meet();
    }
    void all_to_all(const void* in, void* out, std::int64_t bytes) override {
        show(in);
        for (int i = 0; i < size(); ++i)
            copy(static_cast<std::byte*>(out) + i * bytes, static_cast<const std::byte*>(shown(i)) + rank_ * bytes, bytes);
        meet();
    }
    void send(const std::vector<std::byte>& bytes, int to) override {
        const std::lock_guard lock(room_->mutex);
        room_->mail[{rank_, to}].push_back(bytes);
        room_->changed.notify_all();
    }
    std::vector<std::byte> receive(int from) override {
        const WaitsFor waits(*this, from);
        std::unique_lock lock(room_->mutex);
        auto& letters = room_->mail[{from, rank_}];
        room_->changed.wait(lock, [&] { return !letters.empty() || room_->any_failed; });
        if (letters.empty()) room_->fail_ended();
        std::vector<std::byte> first = std::move(letters.front());
        letters.pop_front();
        return first;
    }
    std::unique_ptr<Window> window(std::int64_t count, DType dtype) override {
        std::unique_lock lock(room_->mutex);
        at(room_->numbers) = std::make_shared<SharedNumbers>();
        at(room_->numbers)->bytes.resize(static_cast<std::size_t>(count) * itemsize(dtype));
        wait_for_all(lock);
        auto window = std::make_unique<ThreadWindow>(room_->numbers, dtype);
        wait_for_all(lock);  // nobody makes the next one meanwhile
        return window;
    }
    void check_nobody_failed() override {
        const std::lock_guard lock(room_->mutex);
        if (room_->any_failed) room_->fail_ended();
    }
    std::unique_ptr<Engine> split(int color, int key) override {
        std::unique_lock lock(room_->mutex);
        room_->colors.resize(static_cast<std::size_t>(size()));
        at(room_->colors) = {color, key};
        wait_for_all(lock);
        std::vector<std::pair<int, int>> members;  // key and rank
        for (int i = 0; i < size(); ++i) {
            const auto& [color_of, key_of] = room_->colors[static_cast<std::size_t>(i)];
            if (color_of == color) members.emplace_back(key_of, i);
        }
        std::sort(members.begin(), members.end());
        std::shared_ptr<Room>& part = room_->parts[{splits_++, color}];
        if (!part) part = std::make_shared<Room>(static_cast<int>(members.size()));
        const auto place = std::find(members.begin(), members.end(), std::pair(key, rank_)) - members.begin();
        auto engine = std::make_unique<ThreadEngine>(part, static_cast<int>(place), places_);
        wait_for_all(lock);  // nobody writes colors while another reads them
        return engine;
    }
    void abort(const std::string& reason, double) override {
        for (const auto& [weak, rank_there] : *places_) {
            const std::shared_ptr<Room> room = weak.lock();
            if (!room) continue;
            const std::lock_guard lock(room->mutex);
            room->any_failed = true;
            room->failed[static_cast<std::size_t>(rank_there)] = true;
            room->texts[static_cast<std::size_t>(rank_there)] = reason;
            room->changed.notify_all();
        }
    }
    std::optional<std::vector<int>> missing() override {
        const std::lock_guard lock(room_->mutex);
        std::vector<int> ranks;
        for (int i = 0; i < size(); ++i) {
            if (!room_->waits[static_cast<std::size_t>(i)]) ranks.push_back(i);
        }
        return ranks;
    }
    const char* why_no_survivors() const noexcept override {
        return "ranks that are threads end together: spawn() throws what the first of them threw";
    }
    std::string failure_of_others() override {
        const std::lock_guard lock(room_->mutex);
        for (int i = 0; i < size(); ++i) {
            const auto at_i = static_cast<std::size_t>(i);
            if (i != rank_ && room_->failed[at_i]) return "rank " + std::to_string(i) + " failed: " + room_->texts[at_i];
        }
        return {};
    }

 private:
    template <class T>
    typename std::vector<T>::reference at(std::vector<T>& of_ranks) {
        return of_ranks[static_cast<std::size_t>(rank_)];
    }
    static void copy(void* to, const void* from, std::int64_t bytes) {
        if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
    }
    void wait_for_all(std::unique_lock<std::mutex>& lock) {
        if (!room_->meet(lock, rank_, [] {})) room_->fail_ended();
    }
    void meet() {
        std::unique_lock lock(room_->mutex);
        wait_for_all(lock);
    }
    // Lets the others read what this rank has.
    void show(const void* data) {
        std::unique_lock lock(room_->mutex);
        at(room_->in) = data;
        wait_for_all(lock);
    }
    const void* shown(int rank) {
        const std::lock_guard lock(room_->mutex);
        return room_->in[static_cast<std::size_t>(rank)];
    }
    std::shared_ptr<Room> room_;
    int rank_, splits_ = 0;
    Places places_;
};

}  // namespace

std::vector<std::unique_ptr<Engine>> thread_engines(int ranks) {
    const auto room = std::make_shared<Room>(ranks);
    std::vector<std::unique_ptr<Engine>> engines;
    for (int i = 0; i < ranks; ++i) engines.push_back(std::make_unique<ThreadEngine>(room, i, std::make_shared<Places::element_type>()));
    return engines;
}

}  // namespace tapir::parallel
