// Ranks that mpirun or srun has started, by MPI. The only file that includes its header.
#include "tapir/nn/parallel/engine_impl.h"

#ifdef TAPIR_HAVE_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <thread>

namespace tapir::parallel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMostAtOnce = 1 << 28;  // numbers of one MPI call, whose count is an int
constexpr std::int64_t kPieceBytes = 8 << 20;  // of an all_reduce: MPI's copy of more than 32 MB would be new pages each time
constexpr std::size_t kTextBytes = 512;
constexpr int kTensorTag = 1, kFailedTag = 2;
constexpr int kQuestionTag = 1, kAnswerTag = 2;  // on the watchdogs' communicator

void check(int code, const char* what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw EngineError(std::string(what) + ": " + std::string(text, static_cast<std::size_t>(length)));
}

MPI_Datatype type_of(DType dtype) {
    switch (dtype) {
        case DType::boolean:
        case DType::uint8: return MPI_UINT8_T;
        case DType::int32: return MPI_INT32_T;
        case DType::int64: return MPI_INT64_T;
        case DType::float16:
        case DType::bfloat16: return MPI_UINT16_T;  // with operations of our own
        case DType::float32: return MPI_FLOAT;
        case DType::float64: return MPI_DOUBLE;
    }
    return MPI_BYTE;
}

template <DType dtype, Reduce reduce>
void own_reduce(void* in, void* inout, int* length, MPI_Datatype*) {
    reduce_into(inout, in, *length, dtype, reduce);
}

// MPI's operations, and our own where it has none: for 16-bit floats, and for the least and greatest of floats, of which it leaves open what a nan is.
class Operations {
 public:
    Operations() {
        make<DType::float16, Reduce::sum, Reduce::product, Reduce::min, Reduce::max>();
        make<DType::bfloat16, Reduce::sum, Reduce::product, Reduce::min, Reduce::max>();
        make<DType::float32, Reduce::min, Reduce::max>();
        make<DType::float64, Reduce::min, Reduce::max>();
    }
    MPI_Op operator()(DType dtype, Reduce reduce) const {
        const auto own = own_.find({dtype, reduce});
        if (own != own_.end()) return own->second;
        switch (reduce) {
            case Reduce::sum:
            case Reduce::mean: return MPI_SUM;
            case Reduce::product: return MPI_PROD;
            case Reduce::min: return MPI_MIN;
            case Reduce::max: return MPI_MAX;
        }
        return MPI_OP_NULL;
    }

 private:
    template <DType dtype, Reduce... reduce>
    void make() {
        (check(MPI_Op_create(own_reduce<dtype, reduce>, 1, &own_[{dtype, reduce}]), "MPI_Op_create"), ...);
    }
    std::map<std::pair<DType, Reduce>, MPI_Op> own_;
};

class MpiEngine;

struct Sent {
    std::vector<std::byte> bytes;
    MPI_Request request;
};

// What the engines of a process share.
struct Mpi {
    Operations operations;
    std::list<MpiEngine*> engines;  // of the channel's thread
    std::list<Sent> sent;           // what MPI still reads
    int windows = 0;                // that are open
    MPI_Comm watchdogs = MPI_COMM_NULL;
    std::atomic<bool> broken{false};  // there are calls that will not end

    // How many calls of each engine have begun, by its number. Watchdogs read it.
    void set_position(std::uint64_t number, std::int64_t position) {
        const std::lock_guard lock(mutex_);
        positions_[number] = position;
    }
    std::int64_t position(std::uint64_t number) const {
        const std::lock_guard lock(mutex_);
        const auto at = positions_.find(number);
        return at == positions_.end() ? 0 : at->second;
    }

 private:
    mutable std::mutex mutex_;
    std::map<std::uint64_t, std::int64_t> positions_;
};

// Spins for a moment, then gives the core to others.
class Patience {
 public:
    void wait() {
        if (++turns_ < 2000) return;
        std::this_thread::yield();
    }

 private:
    int turns_ = 0;
};

class MpiWindow final : public Window {
 public:
    MpiWindow(std::shared_ptr<Mpi> mpi, MPI_Comm comm, std::int64_t count, DType dtype)
        : mpi_(std::move(mpi)), dtype_(dtype), item_(static_cast<std::int64_t>(itemsize(dtype))) {
        void* memory = nullptr;
        check(MPI_Win_allocate(count * item_, static_cast<int>(item_), MPI_INFO_NULL, comm, &memory, &window_), "MPI_Win_allocate");
        MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
        if (count > 0) std::memset(memory, 0, static_cast<std::size_t>(count * item_));
        check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
        check(MPI_Barrier(comm), "MPI_Barrier");  // nobody adds before all are zero
        ++mpi_->windows;
    }
    void get(int rank, std::int64_t first, void* to, std::int64_t count) override {
        auto* const bytes = static_cast<std::byte*>(to);
        in_pieces(count, [&](std::int64_t done, int n) {
            check(MPI_Get(bytes + done * item_, n, type_of(dtype_), rank, first + done, n, type_of(dtype_), window_), "MPI_Get");
        });
        check(MPI_Win_flush(rank, window_), "MPI_Win_flush");
    }
    void add(int rank, std::int64_t first, const void* numbers, std::int64_t count) override {
        const auto* const bytes = static_cast<const std::byte*>(numbers);
        in_pieces(count, [&](std::int64_t done, int n) {
            check(MPI_Accumulate(bytes + done * item_, n, type_of(dtype_), rank, first + done, n, type_of(dtype_), MPI_SUM, window_),
                  "MPI_Accumulate");
        });
        check(MPI_Win_flush(rank, window_), "MPI_Win_flush");
    }
    void close() override {
        check(MPI_Win_unlock_all(window_), "MPI_Win_unlock_all");
        check(MPI_Win_free(&window_), "MPI_Win_free");
        --mpi_->windows;
    }

 private:
    template <class Call>
    static void in_pieces(std::int64_t count, const Call& call) {
        for (std::int64_t done = 0; done < count; done += kMostAtOnce) call(done, static_cast<int>(std::min(count - done, kMostAtOnce)));
    }
    const std::shared_ptr<Mpi> mpi_;
    const DType dtype_;
    const std::int64_t item_;
    MPI_Win window_ = MPI_WIN_NULL;
};

class MpiEngine final : public Engine {
 public:
    MpiEngine(std::shared_ptr<Mpi> mpi, MPI_Comm comm, std::uint64_t number) : mpi_(std::move(mpi)), comm_(comm), number_(number) {
        MPI_Comm_rank(comm_, &rank_);
        MPI_Comm_size(comm_, &size_);
        MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
        MPI_Group mine, world;
        MPI_Comm_group(comm_, &mine);
        MPI_Comm_group(MPI_COMM_WORLD, &world);
        std::vector<int> ranks(static_cast<std::size_t>(size_));
        for (int i = 0; i < size_; ++i) ranks[static_cast<std::size_t>(i)] = i;
        world_ranks_.resize(ranks.size());
        MPI_Group_translate_ranks(mine, size_, ranks.data(), world, world_ranks_.data());
        MPI_Group_free(&mine);
        MPI_Group_free(&world);
        mpi_->engines.push_back(this);
    }
    ~MpiEngine() override {
        mpi_->engines.remove(this);
        if (!finished_ && !mpi_->broken) MPI_Comm_free(&comm_);
    }
    MpiEngine(const MpiEngine&) = delete;
    MpiEngine& operator=(const MpiEngine&) = delete;

    int rank() const noexcept override { return rank_; }
    int size() const noexcept override { return size_; }
    const char* name() const noexcept override { return "MPI"; }

    Agreement agree(std::uint64_t fingerprint, const std::string& text) override {
        mpi_->set_position(number_, ++position_);
        begin_agreement(fingerprint, false, text);
        for (Patience patience;; patience.wait()) {
            if (poll()) break;
            free_sent();
        }
        return std::move(agreement_);
    }

    void all_reduce(void* data, std::int64_t count, DType dtype, Reduce reduce) override {
        auto* at = static_cast<std::byte*>(data);
        const std::int64_t most = kPieceBytes / item(dtype);
        for (std::int64_t done = 0; done < count; done += most) {
            const auto n = static_cast<int>(std::min(count - done, most));
            check(MPI_Allreduce(MPI_IN_PLACE, at + done * item(dtype), n, type_of(dtype), mpi_->operations(dtype, reduce), comm_), "MPI_Allreduce");
        }
    }
    void broadcast(void* data, std::int64_t bytes, int root) override {
        auto* at = static_cast<std::byte*>(data);
        for (std::int64_t done = 0; done < bytes; done += kMostAtOnce)
            check(MPI_Bcast(at + done, static_cast<int>(std::min(bytes - done, kMostAtOnce)), MPI_BYTE, root, comm_), "MPI_Bcast");
    }
    void all_gather(const void* in, void* out, const std::vector<std::int64_t>& bytes) override {
        const std::int64_t most = *std::max_element(bytes.begin(), bytes.end());
        std::vector<std::int64_t> begins(bytes.size());
        for (std::size_t i = 1; i < bytes.size(); ++i) begins[i] = begins[i - 1] + bytes[i - 1];
        const std::int64_t total = begins.back() + bytes.back();
        if (total > kMostAtOnce) {  // in turn, as offsets are ints
            for (int i = 0; i < size_; ++i) {
                auto* const part = static_cast<std::byte*>(out) + begins[static_cast<std::size_t>(i)];
                if (i == rank_) std::memcpy(part, in, static_cast<std::size_t>(bytes[static_cast<std::size_t>(i)]));
                broadcast(part, bytes[static_cast<std::size_t>(i)], i);
            }
            return;
        }
        if (most == *std::min_element(bytes.begin(), bytes.end())) {
            check(MPI_Allgather(in, static_cast<int>(most), MPI_BYTE, out, static_cast<int>(most), MPI_BYTE, comm_), "MPI_Allgather");
            return;
        }
        const std::vector<int> counts(bytes.begin(), bytes.end()), offsets(begins.begin(), begins.end());
        check(MPI_Allgatherv(in, counts[static_cast<std::size_t>(rank_)], MPI_BYTE, out, counts.data(), offsets.data(), MPI_BYTE, comm_),
              "MPI_Allgatherv");
    }
    void reduce_scatter(void* in, void* out, std::int64_t count, DType dtype, Reduce reduce) override {
        if (count * size_ <= kMostAtOnce) {
            check(MPI_Reduce_scatter_block(in, out, static_cast<int>(count), type_of(dtype), mpi_->operations(dtype, reduce), comm_),
                  "MPI_Reduce_scatter_block");
            return;
        }
        all_reduce(in, count * size_, dtype, reduce);
        std::memcpy(out, static_cast<std::byte*>(in) + rank_ * count * item(dtype), static_cast<std::size_t>(count * item(dtype)));
    }
    void all_to_all(const void* in, void* out, std::int64_t bytes) override {
        for (std::int64_t done = 0; done < bytes; done += kMostAtOnce) {  // nearly always once: the same piece of each rank's part
            const auto n = static_cast<int>(std::min(bytes - done, kMostAtOnce));
            MPI_Datatype piece, stepped;
            check(MPI_Type_contiguous(n, MPI_BYTE, &piece), "MPI_Type_contiguous");
            check(MPI_Type_create_resized(piece, 0, bytes, &stepped), "MPI_Type_create_resized");
            check(MPI_Type_commit(&stepped), "MPI_Type_commit");
            const int code =
                MPI_Alltoall(static_cast<const std::byte*>(in) + done, 1, stepped, static_cast<std::byte*>(out) + done, 1, stepped, comm_);
            MPI_Type_free(&stepped);
            MPI_Type_free(&piece);
            check(code, "MPI_Alltoall");
        }
    }
    void send(const std::vector<std::byte>& bytes, int to) override {
        free_sent();
        if (static_cast<std::int64_t>(bytes.size()) > kMostAtOnce) throw EngineError("send: more than 256 MB in one message");
        send_bytes(bytes.data(), bytes.size(), to, kTensorTag);
    }
    std::vector<std::byte> receive(int from) override {
        const WaitsFor waits(*this, from);
        int there = 0;
        MPI_Status status;
        for (Patience patience; !there; patience.wait()) {
            check(MPI_Iprobe(from, kTensorTag, comm_, &there, &status), "MPI_Iprobe");
            if (!there) check_nobody_failed();
        }
        int count = 0;
        MPI_Get_count(&status, MPI_BYTE, &count);
        std::vector<std::byte> bytes(static_cast<std::size_t>(count));
        check(MPI_Recv(bytes.data(), count, MPI_BYTE, from, kTensorTag, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
        return bytes;
    }
    std::unique_ptr<Window> window(std::int64_t count, DType dtype) override { return std::make_unique<MpiWindow>(mpi_, comm_, count, dtype); }
    // Where memory is not shared, MPI answers the others only inside of calls.
    bool serve_windows() override {
        int there = 0;
        return mpi_->windows > 0 && MPI_Iprobe(MPI_ANY_SOURCE, kFailedTag, comm_, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS;
    }
    std::unique_ptr<Engine> split(int color, int key) override {
        MPI_Comm part;
        check(MPI_Comm_split(comm_, color, key, &part), "MPI_Comm_split");
        const std::uint64_t number = (number_ * 1000003 + ++splits_) * 1000003 + static_cast<std::uint64_t>(color) + 1;  // alike in all its ranks
        return std::make_unique<MpiEngine>(mpi_, part, number);
    }
    void abort(const std::string& reason, double seconds) override;
    void finish() override;
    void answer() override;
    std::optional<std::vector<int>> missing() override;
    const char* why_no_survivors() const noexcept override {
        return "MPI ends all ranks when one has gone: start the program again from its last checkpoint, or start it with Gloo";
    }

 private:
    static std::int64_t item(DType dtype) { return static_cast<std::int64_t>(itemsize(dtype)); }

    // An agreement: the least of (fingerprint, ~fingerprint, 1 if all is well) over the ranks; then, unless all is well, their texts. poll() is called
    // until it is true, for several engines in turn where a process fails.
    void begin_agreement(std::uint64_t fingerprint, bool failed, const std::string& text) {
        least_[0] = fingerprint;
        least_[1] = ~fingerprint;
        least_[2] = failed ? 0 : 1;
        text_.assign(kTextBytes, '\0');
        text_[0] = failed ? '!' : '.';
        std::memcpy(text_.data() + 1, text.data(), std::min(text.size(), kTextBytes - 2));
        gathers_ = false;
        check(MPI_Iallreduce(MPI_IN_PLACE, least_, 3, MPI_UINT64_T, MPI_MIN, comm_, &request_), "MPI_Iallreduce");
    }
    bool poll() {
        int done = 0;
        check(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (!done) return false;
        if (!gathers_) {
            agreement_ = Agreement();
            agreement_.all_alike = least_[0] == ~least_[1];
            agreement_.any_failed = least_[2] == 0;
            if (agreement_.all_alike && !agreement_.any_failed) return true;
            gathers_ = true;
            all_texts_.assign(kTextBytes * static_cast<std::size_t>(size_), '\0');
            check(MPI_Iallgather(text_.data(), static_cast<int>(kTextBytes), MPI_CHAR, all_texts_.data(), static_cast<int>(kTextBytes), MPI_CHAR,
                                 comm_, &request_),
                  "MPI_Iallgather");
            return false;
        }
        for (std::size_t i = 0; i < static_cast<std::size_t>(size_); ++i) {
            const char* const text = all_texts_.data() + i * kTextBytes;
            agreement_.failed.push_back(text[0] == '!');
            agreement_.texts.emplace_back(text + 1);
        }
        if (agreement_.any_failed) ended_ = true;
        return true;
    }
    void check_nobody_failed() override {
        int there = 0;
        MPI_Status status;
        check(MPI_Iprobe(MPI_ANY_SOURCE, kFailedTag, comm_, &there, &status), "MPI_Iprobe");
        if (!there) return;
        char text[kTextBytes] = {};
        check(MPI_Recv(text, static_cast<int>(kTextBytes), MPI_CHAR, status.MPI_SOURCE, kFailedTag, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
        throw EngineError("rank " + std::to_string(status.MPI_SOURCE) + " failed: " + text);
    }
    void send_bytes(const void* data, std::size_t count, int to, int tag) {
        const auto* const first = static_cast<const std::byte*>(data);
        mpi_->sent.push_back({std::vector<std::byte>(first, first + count), MPI_REQUEST_NULL});
        Sent& sent = mpi_->sent.back();
        check(MPI_Isend(sent.bytes.data(), static_cast<int>(count), MPI_BYTE, to, tag, comm_, &sent.request), "MPI_Isend");
    }
    void free_sent() {
        mpi_->sent.remove_if([](Sent& sent) {
            int done = 0;
            return MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
        });
    }

    std::shared_ptr<Mpi> mpi_;
    MPI_Comm comm_;
    std::uint64_t number_, splits_ = 0;
    int rank_ = 0, size_ = 1;
    std::vector<int> world_ranks_;
    std::int64_t position_ = 0;
    bool ended_ = false, finished_ = false;

    std::uint64_t least_[3] = {};
    std::vector<char> text_, all_texts_;
    bool gathers_ = false;
    MPI_Request request_ = MPI_REQUEST_NULL;
    Agreement agreement_;
};

void MpiEngine::abort(const std::string& reason, double seconds) {
    std::vector<MpiEngine*> open;
    for (MpiEngine* engine : mpi_->engines) {
        if (engine->ended_) continue;
        engine->begin_agreement(0, true, reason);
        const std::string text = reason.substr(0, kTextBytes - 1);
        for (int to = 0; to < engine->size_; ++to) {
            if (to != engine->rank_) engine->send_bytes(text.data(), text.size(), to, kFailedTag);
        }
        open.push_back(engine);
    }
    const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
    for (Patience patience; !open.empty(); patience.wait()) {
        std::erase_if(open, [](MpiEngine* engine) { return engine->poll(); });
        if (Clock::now() > deadline) {
            mpi_->broken = true;
            return;
        }
    }
}

void MpiEngine::finish() {
    if (mpi_->broken) return;  // MPI_Finalize would wait for what does not end. mpirun ends the job when this process has gone without it
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    while (!mpi_->sent.empty() && Clock::now() < deadline) {
        free_sent();
        std::this_thread::yield();
    }
    finished_ = true;
    if (mpi_->watchdogs != MPI_COMM_NULL) MPI_Comm_free(&mpi_->watchdogs);
    MPI_Finalize();
}

// Watchdogs ask each other: how many calls of this engine have you begun, and are you in one? A rank whose process or link has gone does not answer.
void MpiEngine::answer() {
    if (mpi_->watchdogs == MPI_COMM_NULL) return;
    for (int there = 1; there;) {
        MPI_Status status;
        if (MPI_Iprobe(MPI_ANY_SOURCE, kQuestionTag, mpi_->watchdogs, &there, &status) != MPI_SUCCESS || !there) return;
        std::int64_t words[3] = {};
        MPI_Recv(words, 1, MPI_INT64_T, status.MPI_SOURCE, kQuestionTag, mpi_->watchdogs, MPI_STATUS_IGNORE);
        words[1] = mpi_->position(static_cast<std::uint64_t>(words[0]));
        words[2] = is_called;
        MPI_Send(words, 3, MPI_INT64_T, status.MPI_SOURCE, kAnswerTag, mpi_->watchdogs);
    }
}

std::optional<std::vector<int>> MpiEngine::missing() {
    if (mpi_->watchdogs == MPI_COMM_NULL) return {};
    const std::int64_t mine = mpi_->position(number_);
    const std::int64_t question = static_cast<std::int64_t>(number_);
    std::vector<Found> found(static_cast<std::size_t>(size_), Found::nowhere);
    found[static_cast<std::size_t>(rank_)] = Found::in_this_call;
    for (int i = 0; i < size_; ++i) {
        MPI_Request request;
        if (i != rank_) MPI_Isend(&question, 1, MPI_INT64_T, world_ranks_[static_cast<std::size_t>(i)], kQuestionTag, mpi_->watchdogs, &request);
    }
    const auto deadline = Clock::now() + std::chrono::seconds(2);
    for (int left = size_ - 1; left > 0 && Clock::now() < deadline; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
        answer();
        int there = 0;
        MPI_Status status;
        if (MPI_Iprobe(MPI_ANY_SOURCE, kAnswerTag, mpi_->watchdogs, &there, &status) != MPI_SUCCESS || !there) continue;
        std::int64_t words[3] = {};
        MPI_Recv(words, 3, MPI_INT64_T, status.MPI_SOURCE, kAnswerTag, mpi_->watchdogs, MPI_STATUS_IGNORE);
        const auto at = std::find(world_ranks_.begin(), world_ranks_.end(), status.MPI_SOURCE) - world_ranks_.begin();
        if (words[0] == question)
            found[static_cast<std::size_t>(at)] = words[1] >= mine ? Found::in_this_call : words[2] != 0 ? Found::in_other_call : Found::outside;
        --left;
    }
    for (const auto deadline_of_others = Clock::now() + std::chrono::milliseconds(300); Clock::now() < deadline_of_others;) {
        answer();  // those that ask at the same time
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return missing_of(found);
}

}  // namespace

std::unique_ptr<Engine> mpi_engine(int* argc, char*** argv) {
    int provided = MPI_THREAD_SINGLE;
    int there = 0;
    MPI_Initialized(&there);
    if (there) throw EngineError("MPI was initialized before: parallel::init() must do it, on a thread of its own");
    if (MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) throw EngineError("MPI_Init_thread failed");
    auto mpi = std::make_shared<Mpi>();
    if (provided == MPI_THREAD_MULTIPLE) MPI_Comm_dup(MPI_COMM_WORLD, &mpi->watchdogs);
    MPI_Comm own;
    MPI_Comm_dup(MPI_COMM_WORLD, &own);
    return std::make_unique<MpiEngine>(std::move(mpi), own, 1);
}

}  // namespace tapir::parallel

#else
namespace tapir::parallel {
std::unique_ptr<Engine> mpi_engine(int*, char***) {
    throw EngineError("mpirun or srun has started this program, but Tapir was built without MPI (TAPIR_MPI, libopenmpi-dev)");
}
}  // namespace tapir::parallel
#endif
