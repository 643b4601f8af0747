// Ranks that RANK and WORLD_SIZE describe, on Gloo's connections. The only file that includes its headers.
//
// Gloo connects all ranks with each other, and moves bytes; what moves where is written here. Its own collectives do not end when a process has gone
// in the middle of a transfer: Gloo tells that to nobody who waits for these bytes. So all waiting is done in Shared::wait(), which looks after the
// connections meanwhile.
#include "tapir/nn/parallel/engine_impl.h"

#ifdef TAPIR_HAVE_GLOO
#include <gloo/rendezvous/context.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tapir/nn/parallel/meeting_impl.h"

namespace tapir::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using Buffer = gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;

constexpr std::size_t kTextBytes = 512;
constexpr std::int64_t kSmallBytes = 32 << 10;  // up to this, one exchange of more bytes is faster than two of fewer
constexpr std::int64_t kPieceBytes = 32 << 20;  // of an all_reduce, which needs as much memory again
constexpr milliseconds kVeryLong = std::chrono::hours(100);
constexpr double kSplitSeconds = 30;  // for a connection: all ranks have come to the split
constexpr double kAgainSeconds =
    5;  // the same where the ranks that are left meet: who does not connect by then has gone, or comes to the next meeting
constexpr std::uint64_t kEndFingerprint = 1, kBeginFingerprint = 2;

// Slots, by which Gloo matches a send with a receive: the first byte is none of gloo/types.h.
constexpr std::uint64_t kExchangeSlot = std::uint64_t{0x41} << 56, kMessageSlot = std::uint64_t{0x42} << 56;
constexpr std::uint64_t kTextSlot = std::uint64_t{0x43} << 56, kBreakSlot = std::uint64_t{0x44} << 56;
constexpr std::uint64_t kAnswerSlot = std::uint64_t{0x45} << 56;

// Gloo and httplib write to connections that may have been closed. Gloo's thread inherits this.
void block_sigpipe() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// "[/build/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.7]:41234" without the place in Gloo's source.
std::string short_text(std::string text) {
    const std::size_t end = text.find("] ");
    if (text.starts_with("[") && end != std::string::npos) text.erase(0, end + 2);
    if (const std::size_t line = text.find('\n'); line != std::string::npos) text.resize(line);
    if (text.size() > 200) text.resize(200);
    return text;
}

// A message that is on its way.
struct Sent {
    std::vector<std::byte> bytes;
    std::int64_t size = 0;
    std::unique_ptr<Buffer> head, body;
};

// What the engines of a process share.
class Shared {
 public:
    Shared(std::shared_ptr<Rendezvous> at, std::shared_ptr<gloo::transport::Device> connects, double seconds)
        : rendezvous(std::move(at)), device(std::move(connects)), timeout(seconds), ticker_([this] { tick(); }) {}
    ~Shared() {
        {
            const std::lock_guard lock(mutex_);
            ends_ = true;
            if (posted_) stop_posted();
            changed_.notify_all();
        }
        ticker_.join();
        if (postman_.joinable()) postman_.join();
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

    const std::shared_ptr<Rendezvous> rendezvous;
    std::shared_ptr<gloo::transport::Device> device;
    const double timeout;
    std::string thrown;   // the last text of a connection that broke
    bool is_open = true;  // until abort() or finish()

    // Waits for what the buffer sends or receives. Calls look(), which may throw, several times a second.
    template <class Look>
    void wait(Buffer& buffer, bool sends, const Look& look) {
        const auto deadline = Clock::now() + std::chrono::duration<double>(timeout + 60);  // the watchdog ends the program before
        for (;;) {
            set_waited(&buffer, sends);
            bool done = false;
            try {
                done = sends ? buffer.waitSend(kVeryLong) : buffer.waitRecv(kVeryLong);
            } catch (...) {
                set_waited(nullptr, sends);
                throw;
            }
            set_waited(nullptr, sends);
            if (done) return;
            if (const std::string text = given_up(); !text.empty()) throw EngineError(text);
            look();
            if (Clock::now() > deadline)
                throw EngineError("the other ranks have not come within " + std::to_string(static_cast<int>(timeout)) + " s");
        }
    }

    // Keeps a message until it is sent.
    void post(std::unique_ptr<Sent> sent) {
        const std::lock_guard lock(mutex_);
        if (!postman_.joinable()) postman_ = std::thread([this] { carry(); });
        mail_.push_back(std::move(sent));
        changed_.notify_all();
    }

    // Ends wait(), in the call that has begun last.
    void give_up(const std::string& text) {
        const std::lock_guard lock(mutex_);
        given_up_ = text;
    }
    void begin_call() {
        const std::lock_guard lock(mutex_);
        given_up_.clear();
    }

    // How many calls of each engine have begun, by its number. Other ranks' watchdogs ask for it.
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
    std::string given_up() const {
        const std::lock_guard lock(mutex_);
        return given_up_;
    }
    void set_waited(Buffer* buffer, bool sends) {
        const std::lock_guard lock(mutex_);
        waited_ = buffer;
        waited_sends_ = sends;
        is_new_ = true;
    }
    // Ends waits that last: a wait of Gloo with a timeout would break all connections when it is over.
    void tick() {
        std::unique_lock lock(mutex_);
        while (!ends_) {
            changed_.wait_for(lock, milliseconds(100));
            if (waited_ && !is_new_) waited_sends_ ? waited_->abortWaitSend() : waited_->abortWaitRecv();
            is_new_ = false;
        }
    }
    void stop_posted() {
        posted_->head->abortWaitSend();
        if (posted_->body) posted_->body->abortWaitSend();
    }
    void carry() {
        std::unique_lock lock(mutex_);
        while (!ends_) {
            if (mail_.empty()) {
                changed_.wait(lock);
                continue;
            }
            const std::unique_ptr<Sent> sent = std::move(mail_.front());
            mail_.pop_front();
            posted_ = sent.get();
            lock.unlock();
            try {
                if (sent->head->waitSend(kVeryLong) && sent->body) sent->body->waitSend(kVeryLong);
            } catch (const std::exception&) {  // whoever calls the receiver next finds that it has gone
            }
            lock.lock();
            posted_ = nullptr;
        }
        mail_.clear();
    }

    mutable std::mutex mutex_;  // of what follows
    std::condition_variable changed_;
    Buffer* waited_ = nullptr;
    bool waited_sends_ = false, is_new_ = true, ends_ = false;
    std::deque<std::unique_ptr<Sent>> mail_;
    Sent* posted_ = nullptr;
    std::map<std::uint64_t, std::int64_t> positions_;
    std::string given_up_;
    std::thread ticker_, postman_;
};

// Waits for a text. Calls look(), which may throw.
template <class Look>
std::string wait_for(Rendezvous& rendezvous, const std::string& name, double seconds, const std::string& waited_for, const Look& look) {
    const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
    for (int turn = 0;; ++turn) {
        if (std::optional<std::string> text = rendezvous.get(name)) return *std::move(text);
        if (Clock::now() > deadline) {
            std::ostringstream out;
            out << waited_for << " within " << seconds << " s, by " << rendezvous.place();
            throw EngineError(out.str());
        }
        if (turn % 8 == 7) look();
        std::this_thread::sleep_for(milliseconds(turn < 20 ? 5 : 50));
    }
}

// Does what Gloo's connectFullMesh() does. That waits for a rank that has gone as for one that is late; this can be given up.
class Mesh final : public gloo::rendezvous::Context {
 public:
    using gloo::rendezvous::Context::Context;

    // look(): throws when a rank has gone; empty: that is not known. Names of different meshes differ in their prefix.
    void connect(Rendezvous& rendezvous, const std::string& prefix, double seconds, const std::shared_ptr<gloo::transport::Device>& device,
                 const std::function<void()>& look) {
        transportContext_ = device->createContext(rank, size);
        transportContext_->setTimeout(getTimeout());
        device_ = device;
        std::string addresses;
        for (int i = 0; i < size; ++i) {
            if (i == rank) continue;
            const std::vector<char> bytes = transportContext_->createPair(i)->address().bytes();
            addresses.append(bytes.begin(), bytes.end());
        }
        rendezvous.set(prefix + std::to_string(rank), addresses);
        const Watcher watcher(*this, look);
        for (int i = 0; i < size; ++i) {
            if (i == rank) continue;
            const std::string text =
                wait_for(rendezvous, prefix + std::to_string(i), seconds, "a rank has not connected", [this] { connects_with(connects_); });
            std::vector<char> all(text.begin(), text.end());
            connects_with(i);
            transportContext_->getPair(i)->connect(extractAddress(all, i));
            connects_with(i);
        }
    }

 private:
    // Ends the waiting in connect() when look() throws.
    class Watcher {
     public:
        Watcher(Mesh& mesh, const std::function<void()>& look) {
            if (look) thread_ = std::thread([this, &mesh, &look] { run(mesh, look); });
        }
        ~Watcher() {
            stops_ = true;
            if (thread_.joinable()) thread_.join();
        }
        Watcher(const Watcher&) = delete;
        Watcher& operator=(const Watcher&) = delete;

     private:
        void run(Mesh& mesh, const std::function<void()>& look) {
            for (; !stops_; std::this_thread::sleep_for(milliseconds(20))) {
                try {
                    look();
                } catch (const EngineError&) {
                    mesh.give_up();
                    return;
                }
            }
        }
        std::atomic<bool> stops_{false};
        std::thread thread_;
    };

    void connects_with(int i) {
        const std::lock_guard lock(mutex_);
        if (is_given_up_) throw std::runtime_error("a rank has gone");
        connects_ = i;
    }
    void give_up() {
        const std::lock_guard lock(mutex_);
        is_given_up_ = true;
        if (connects_ >= 0) transportContext_->getPair(connects_)->close();
    }

    std::mutex mutex_;  // of what follows
    int connects_ = -1;
    bool is_given_up_ = false;
};

// The connections of an engine.
struct Link {
    std::shared_ptr<Mesh> context;
    // By rank. Gloo tells of a broken connection only those who wait for something of it: these receive for as long as there is the connection. The
    // texts come from ranks that fail.
    struct Peer {
        std::vector<char> text = std::vector<char>(kTextBytes);
        char unused = 0;
        std::unique_ptr<Buffer> receives_text, receives_nothing;
    };
    std::vector<Peer> peers;
    bool is_closed = false;

    // An empty link is that of a rank alone. look: as in Mesh.
    static std::shared_ptr<Link> make(Shared& shared, int rank, int size, const std::string& prefix, double seconds,
                                      const std::function<void()>& look) {
        auto link = std::make_shared<Link>();
        if (size == 1) return link;
        link->context = std::make_shared<Mesh>(rank, size);
        // Gloo waits five times as long for a connection.
        link->context->setTimeout(milliseconds(std::clamp<std::int64_t>(static_cast<std::int64_t>(seconds * 200), 1000, 3600'000)));
        try {
            link->context->connect(*shared.rendezvous, prefix, seconds, shared.device, look);
            link->peers.resize(static_cast<std::size_t>(size));
            for (int i = 0; i < size; ++i) {
                Peer& peer = link->peers[static_cast<std::size_t>(i)];
                if (i == rank) continue;
                peer.receives_text = link->context->createUnboundBuffer(peer.text.data(), kTextBytes);
                peer.receives_text->recv(i, kTextSlot);
                peer.receives_nothing = link->context->createUnboundBuffer(&peer.unused, 1);
                peer.receives_nothing->recv(i, kBreakSlot);
            }
        } catch (const EngineError&) {
            throw;
        } catch (const std::exception& e) {
            for (int turn = 0; look && turn < 20; ++turn) {  // the older connections may tell more, but a little later
                look();
                std::this_thread::sleep_for(milliseconds(5));
            }
            throw EngineError("the ranks cannot connect with each other: " + short_text(e.what()) +
                              " (TAPIR_GLOO_INTERFACE names the network interface to use, such as eth0)");
        }
        return link;
    }
    bool is_broken(int i) const {
        Buffer& buffer = *peers[static_cast<std::size_t>(i)].receives_nothing;
        try {
            buffer.abortWaitRecv();  // of the next line
            buffer.waitRecv(kVeryLong);
        } catch (const std::exception&) {
            return true;
        }
        return false;
    }
    // Why a rank has failed, if it has told. Its connection is broken.
    std::string text_of(int i) {
        Peer& peer = peers[static_cast<std::size_t>(i)];
        try {
            if (peer.receives_text->waitRecv(milliseconds(1))) return std::string(peer.text.data(), ::strnlen(peer.text.data(), kTextBytes));
        } catch (const std::exception&) {}
        return {};
    }
    // Ends the connections when all has been sent: Gloo's closeConnections() would drop what is on its way.
    void close() {
        if (!context || is_closed) return;
        is_closed = true;
        for (int i = 0; i < context->size; ++i) {
            if (i != context->rank) context->getPair(i).reset();
        }
    }
};

struct Piece {
    const void* data;
    std::int64_t bytes;
    int rank;
};

class GlooEngine;

// Watchdogs ask each other: how many calls of this engine have you begun, and are you in one? A rank whose process is stopped, or whose link is cut, does not answer.
class Answers {
 public:
    Answers(const Shared& shared, const std::atomic<bool>& is_called, std::shared_ptr<Link> world)
        : shared_(shared), is_called_(is_called), world_(std::move(world)) {
        if (!world_->context) return;
        for (int i = 0; i < world_->context->size; ++i) {
            if (i != world_->context->rank) others_.push_back(i);
        }
        thread_ = std::thread([this] { answer(); });
    }
    ~Answers() { stop(); }
    Answers(const Answers&) = delete;
    Answers& operator=(const Answers&) = delete;

    // Where the ranks are, seen from a call that is the so many'th of an engine.
    std::vector<Found> find(const std::vector<int>& ranks, std::uint64_t number, std::int64_t position, milliseconds patience) {
        std::unique_lock lock(mutex_);
        const Message question{++questions_, 0, number, 0, 0};
        answers_.clear();
        const int own = world_->context->rank;
        for (const int rank : ranks) {
            if (rank != own) send(question, rank);
        }
        changed_.wait_for(lock, patience, [&] { return answers_.size() == ranks.size() - 1; });
        std::vector<Found> found;
        for (const int rank : ranks) {
            const auto at = answers_.find(rank);
            if (rank == own || (at != answers_.end() && at->second.position >= position)) {
                found.push_back(Found::in_this_call);
            } else {
                found.push_back(at == answers_.end() ? Found::nowhere : at->second.is_called ? Found::in_other_call : Found::outside);
            }
        }
        return found;
    }
    // Before the connections end.
    void stop() {
        if (!thread_.joinable()) return;
        stops_ = true;
        {
            const std::lock_guard lock(mutex_);
            if (received_) received_->abortWaitRecv();
        }
        thread_.join();
    }

 private:
    struct Message {
        std::uint64_t question, is_answer, number;
        std::int64_t position, is_called;
    };
    void answer() {
        Message message{};
        try {
            for (;;) {
                std::unique_lock lock(mutex_);
                received_ = world_->context->createUnboundBuffer(&message, sizeof(message));
                received_->recv(others_, kAnswerSlot);
                lock.unlock();
                int from = 0;
                if (stops_ || !received_->waitRecv(&from, kVeryLong)) break;
                lock.lock();
                if (message.is_answer == 0) {
                    send({message.question, 1, message.number, shared_.position(message.number), is_called_}, from);
                } else if (message.question == questions_) {
                    answers_[from] = message;
                    changed_.notify_all();
                }
            }
        } catch (const std::exception&) {  // a connection broke; the channel's thread finds that, too
        }
        const std::lock_guard lock(mutex_);
        received_ = nullptr;
    }
    // Of a message that cannot be sent nobody is told: it is kept as long as this.
    void send(const Message& message, int to) {
        try {
            sent_.emplace_back(message, nullptr);
            sent_.back().second = world_->context->createUnboundBuffer(&sent_.back().first, sizeof(message));
            sent_.back().second->send(to, kAnswerSlot);
        } catch (const std::exception&) {}
    }

    const Shared& shared_;
    const std::atomic<bool>& is_called_;
    const std::shared_ptr<Link> world_;
    std::vector<int> others_;
    std::mutex mutex_;  // of what follows
    std::condition_variable changed_;
    std::unique_ptr<Buffer> received_;
    std::uint64_t questions_ = 0;
    std::map<int, Message> answers_;  // to the last question
    std::list<std::pair<Message, std::unique_ptr<Buffer>>> sent_;
    std::atomic<bool> stops_{false};
    std::thread thread_;
};

// What a process is in the group of all, or of those who are left.
struct Process {
    Process(std::shared_ptr<Rendezvous> at, std::shared_ptr<gloo::transport::Device> device, double timeout, std::vector<int> first)
        : shared(std::move(at), std::move(device), timeout), first_ranks(std::move(first)) {}
    ~Process() {
        if (answers) answers->stop();
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    void close() {
        shared.is_open = false;
        if (answers) answers->stop();
        for (const auto& link : links) link->close();
    }

    Shared shared;
    const std::vector<int> first_ranks;        // by rank: which it was when the program began
    int generation = 0;                        // how often the ranks that were left have met
    std::list<GlooEngine*> engines;            // of the channel's thread
    std::vector<std::shared_ptr<Link>> links;  // of engines that have gone, too: another rank may still be reading
    std::unique_ptr<Answers> answers;
};

class GlooEngine final : public Engine {
 public:
    GlooEngine(std::shared_ptr<Process> process, std::shared_ptr<Link> link, std::string prefix, int rank, std::vector<int> world_ranks)
        : process_(std::move(process)), shared_(process_->shared), link_(std::move(link)), prefix_(std::move(prefix)),
          number_(std::hash<std::string>()(prefix_)), rank_(rank), size_(static_cast<int>(world_ranks.size())), world_ranks_(std::move(world_ranks)),
          sent_(world_ranks_.size()), received_(world_ranks_.size()) {
        process_->engines.push_back(this);
        process_->links.push_back(link_);
        if (!process_->answers) process_->answers = std::make_unique<Answers>(shared_, is_called, link_);
    }
    ~GlooEngine() override { process_->engines.remove(this); }
    GlooEngine(const GlooEngine&) = delete;
    GlooEngine& operator=(const GlooEngine&) = delete;

    int rank() const noexcept override { return rank_; }
    int size() const noexcept override { return size_; }
    const char* name() const noexcept override { return "Gloo"; }

    Agreement agree(std::uint64_t fingerprint, const std::string& text) override {
        shared_.begin_call();
        shared_.set_position(number_, ++position_);
        // The least of both over all ranks: after each step, a rank knows it of twice as many before it.
        std::uint64_t least[2] = {fingerprint, ~fingerprint};
        for (int step = 1; step < size_; step *= 2) {
            std::uint64_t others[2] = {};
            exchange({{least, sizeof(least), (rank_ + step) % size_}}, {{others, sizeof(others), (rank_ - step + size_) % size_}});
            for (int i = 0; i < 2; ++i) least[i] = std::min(least[i], others[i]);
        }
        Agreement found;
        found.all_alike = least[0] == ~least[1];
        if (found.all_alike) return found;
        const auto ranks = static_cast<std::size_t>(size_);
        std::vector<char> mine(kTextBytes), all(kTextBytes * ranks);
        std::memcpy(mine.data(), text.data(), std::min(text.size(), kTextBytes - 1));
        all_gather(mine.data(), all.data(), std::vector<std::int64_t>(ranks, kTextBytes));
        for (std::size_t i = 0; i < ranks; ++i) found.texts.emplace_back(all.data() + i * kTextBytes);
        found.failed.assign(ranks, false);
        return found;
    }

    void all_reduce(void* data, std::int64_t count, DType dtype, Reduce reduce) override {
        if (size_ == 1 || count == 0) return;
        const std::int64_t item = static_cast<std::int64_t>(itemsize(dtype));
        if (count * item <= kSmallBytes) {
            // Every rank gets all, and reduces it in the same order.
            std::byte* const all = room(count * item * size_);
            all_gather(data, all, std::vector<std::int64_t>(static_cast<std::size_t>(size_), count * item));
            std::memcpy(data, all, static_cast<std::size_t>(count * item));
            for (int i = 1; i < size_; ++i) reduce_into(data, all + i * count * item, count, dtype, reduce);
            return;
        }
        // Every rank reduces a part, and sends it to the others.
        const std::int64_t most = kPieceBytes / item;
        for (std::int64_t done = 0; done < count; done += most) {
            const std::int64_t n = std::min(most, count - done);
            auto* const piece = static_cast<std::byte*>(data) + done * item;
            const auto first = [&](int rank) { return n * rank / size_; };
            const auto part = [&](int rank) { return Piece{piece + first(rank) * item, (first(rank + 1) - first(rank)) * item, rank}; };
            reduce_part(part, part(rank_).data, dtype, reduce);
            std::vector<Piece> sends, receives;
            for (int i = 1; i < size_; ++i) {
                sends.push_back({part(rank_).data, part(rank_).bytes, peer(i)});
                receives.push_back(part(peer(-i)));
            }
            exchange(sends, receives);
        }
    }
    void reduce_scatter(void* in, void* out, std::int64_t count, DType dtype, Reduce reduce) override {
        const std::int64_t item = static_cast<std::int64_t>(itemsize(dtype)), most = std::max<std::int64_t>(kPieceBytes / item / size_, 1);
        for (std::int64_t done = 0; done < count; done += most) {
            const std::int64_t bytes = std::min(most, count - done) * item;
            const auto part = [&](int rank) { return Piece{static_cast<std::byte*>(in) + (rank * count + done) * item, bytes, rank}; };
            std::byte* const to = static_cast<std::byte*>(out) + done * item;
            std::memcpy(to, part(rank_).data, static_cast<std::size_t>(bytes));
            reduce_part(part, to, dtype, reduce);
        }
    }
    void broadcast(void* data, std::int64_t bytes, int root) override {
        if (bytes == 0) return;
        auto* const at = static_cast<std::byte*>(data);
        std::vector<Piece> sends, receives;
        if (size_ == 2 || bytes <= kSmallBytes) {
            if (rank_ != root) receives.push_back({data, bytes, root});
            for (int i = 1; rank_ == root && i < size_; ++i) sends.push_back({data, bytes, peer(i)});
            return exchange(sends, receives);
        }
        // The root sends each rank a part, which that sends to the others.
        const auto part = [&](int rank) { return Piece{at + bytes * rank / size_, bytes * (rank + 1) / size_ - bytes * rank / size_, rank}; };
        if (rank_ != root) receives.push_back({part(rank_).data, part(rank_).bytes, root});
        for (int i = 1; rank_ == root && i < size_; ++i) sends.push_back(part(peer(i)));
        exchange(sends, receives);
        sends.clear();
        receives.clear();
        for (int i = 1; i < size_; ++i) {
            if (peer(i) != root) sends.push_back({part(rank_).data, part(rank_).bytes, peer(i)});
            if (rank_ != root) receives.push_back(part(peer(-i)));
        }
        exchange(sends, receives);
    }
    void all_gather(const void* in, void* out, const std::vector<std::int64_t>& bytes) override {
        std::vector<Piece> parts;
        auto* at = static_cast<std::byte*>(out);
        for (int i = 0; i < size_; ++i) {
            parts.push_back({at, bytes[static_cast<std::size_t>(i)], i});
            at += parts.back().bytes;
        }
        const Piece& own = parts[static_cast<std::size_t>(rank_)];
        if (own.bytes > 0) std::memcpy(const_cast<void*>(own.data), in, static_cast<std::size_t>(own.bytes));
        std::vector<Piece> sends, receives;
        for (int i = 1; i < size_; ++i) {
            sends.push_back({in, own.bytes, peer(i)});
            receives.push_back(parts[static_cast<std::size_t>(peer(-i))]);
        }
        exchange(sends, receives);
    }
    void all_to_all(const void* in, void* out, std::int64_t bytes) override {
        const auto part = [&](const void* data, int rank) { return Piece{static_cast<const std::byte*>(data) + rank * bytes, bytes, rank}; };
        if (bytes > 0) std::memcpy(static_cast<std::byte*>(out) + rank_ * bytes, part(in, rank_).data, static_cast<std::size_t>(bytes));
        std::vector<Piece> sends, receives;
        for (int i = 1; i < size_; ++i) {
            sends.push_back(part(in, peer(i)));
            receives.push_back(part(out, peer(-i)));
        }
        exchange(sends, receives);
    }

    void send(const std::vector<std::byte>& bytes, int to) override {
        auto sent = std::make_unique<Sent>();
        sent->bytes = bytes;
        sent->size = static_cast<std::int64_t>(bytes.size());
        const std::uint64_t slot = kMessageSlot + 2 * sent_[static_cast<std::size_t>(to)]++;
        explained([&] {
            sent->head = buffer_of(&sent->size, sizeof(sent->size));
            sent->head->send(to, slot);
            if (bytes.empty()) return;
            sent->body = buffer_of(sent->bytes.data(), sent->size);
            sent->body->send(to, slot + 1);
        });
        shared_.post(std::move(sent));
    }
    std::vector<std::byte> receive(int from) override {
        shared_.begin_call();
        const WaitsFor waits(*this, from);
        const std::uint64_t slot = kMessageSlot + 2 * received_[static_cast<std::size_t>(from)]++;
        std::int64_t size = 0;
        std::vector<std::byte> bytes;
        explained([&] {
            receive_bytes(&size, sizeof(size), from, slot);
            bytes.resize(static_cast<std::size_t>(size));
            if (size > 0) receive_bytes(bytes.data(), size, from, slot + 1);
        });
        return bytes;
    }

    std::unique_ptr<Engine> split(int color, int key) override {
        const int own[2] = {color, key};
        std::vector<int> all(static_cast<std::size_t>(size_) * 2);
        all_gather(own, all.data(), std::vector<std::int64_t>(static_cast<std::size_t>(size_), sizeof(own)));
        std::vector<std::pair<int, int>> members;  // key and rank
        for (int i = 0; i < size_; ++i) {
            if (all[static_cast<std::size_t>(i) * 2] == color) members.emplace_back(all[static_cast<std::size_t>(i) * 2 + 1], i);
        }
        std::sort(members.begin(), members.end());
        const auto place = static_cast<int>(std::find(members.begin(), members.end(), std::pair(key, rank_)) - members.begin());
        std::vector<int> world_ranks;
        for (const auto& [key_of, rank_of] : members) world_ranks.push_back(world_ranks_[static_cast<std::size_t>(rank_of)]);
        const std::string prefix = prefix_ + std::to_string(++splits_) + "." + std::to_string(color) + "/";
        const auto link =
            Link::make(shared_, place, static_cast<int>(members.size()), prefix, std::min(shared_.timeout, kSplitSeconds), [this] { look(); });
        return std::make_unique<GlooEngine>(process_, link, prefix, place, std::move(world_ranks));
    }

    void abort(const std::string& reason, double seconds) override;
    void finish() override;
    std::optional<std::vector<int>> missing() override;
    bool give_up(const std::string& text) override {
        shared_.give_up(text);
        return true;
    }
    const char* why_no_survivors() const noexcept override { return nullptr; }
    std::unique_ptr<Engine> survivors(const SurvivorsOptions& options) override;

 private:
    std::unique_ptr<Engine> engine_of(const std::vector<int>& ranks, int own, int generation);
    int peer(int i) const { return (rank_ + i + size_) % size_; }
    std::unique_ptr<Buffer> buffer_of(const void* data, std::int64_t bytes) const {
        return link_->context->createUnboundBuffer(const_cast<void*>(data), static_cast<std::size_t>(bytes));
    }
    std::string name_of(int i) const {  // in the whole program, as all its groups understand it
        return "rank " + std::to_string(world_ranks_[static_cast<std::size_t>(i)]);
    }

    // Sends and receives all pieces at the same time; received(i) is called when that has come, in order. The i-th exchanges of all ranks of an
    // engine belong together.
    template <class Received>
    void exchange(const std::vector<Piece>& sends, const std::vector<Piece>& receives, const Received& received) {
        const std::uint64_t slot = kExchangeSlot + exchanges_++;
        std::vector<std::unique_ptr<Buffer>> in, out;
        explained([&] {
            for (const Piece& piece : receives) {
                in.push_back(piece.bytes > 0 ? buffer_of(piece.data, piece.bytes) : nullptr);
                if (in.back()) in.back()->recv(piece.rank, slot);
            }
            for (const Piece& piece : sends) {
                out.push_back(piece.bytes > 0 ? buffer_of(piece.data, piece.bytes) : nullptr);
                if (out.back()) out.back()->send(piece.rank, slot);
            }
            for (std::size_t i = 0; i < in.size(); ++i) {
                if (in[i]) wait(*in[i], false);
                received(i);
            }
            for (const auto& buffer : out) {
                if (buffer) wait(*buffer, true);
            }
        });
    }
    void exchange(const std::vector<Piece>& sends, const std::vector<Piece>& receives) {
        exchange(sends, receives, [](std::size_t) {});
    }
    // Memory that is kept for the next call: new pages cost as much as it takes to fill them.
    std::byte* room(std::int64_t bytes) {
        if (static_cast<std::int64_t>(room_.size()) < bytes) room_ = std::vector<std::byte>(static_cast<std::size_t>(bytes));
        return room_.data();
    }
    // own: what this rank has of its part, and becomes the result.
    template <class Part>
    void reduce_part(const Part& part, const void* own, DType dtype, Reduce reduce) {
        std::vector<Piece> sends, receives;
        const std::int64_t bytes = part(rank_).bytes, count = bytes / static_cast<std::int64_t>(itemsize(dtype));
        std::byte* const others = room(bytes * (size_ - 1));
        for (int i = 1; i < size_; ++i) {
            sends.push_back(part(peer(i)));
            receives.push_back({others + (i - 1) * bytes, bytes, peer(-i)});
        }
        exchange(sends, receives, [&](std::size_t i) { reduce_into(const_cast<void*>(own), receives[i].data, count, dtype, reduce); });
    }
    void receive_bytes(void* data, std::int64_t bytes, int from, std::uint64_t slot) {
        const std::unique_ptr<Buffer> buffer = buffer_of(data, bytes);
        buffer->recv(from, slot);
        wait(*buffer, false);
    }
    void wait(Buffer& buffer, bool sends) {
        shared_.wait(buffer, sends, [this] { look(); });
    }

    // Throws EngineError if a rank has gone.
    void look() {
        std::vector<int> broken;
        for (int i = 0; i < size_; ++i) {
            if (i != rank_ && link_->is_broken(i)) broken.push_back(i);
        }
        for (const int i : broken) {
            if (const std::string text = link_->text_of(i); !text.empty()) throw_text(text);
        }
        if (broken.empty()) return;
        std::string names;
        for (const int i : broken) names += (names.empty() ? "" : ", ") + name_of(i);
        throw_text("the connection to " + names + " was lost: its process or host may have ended");
    }
    [[noreturn]] void throw_text(const std::string& text) {
        shared_.thrown = text;
        throw EngineError(text);
    }
    // Calls run(), and tells in our words what Gloo throws.
    template <class Run>
    void explained(const Run& run) {
        try {
            run();
        } catch (const EngineError&) {
            throw;
        } catch (const std::exception& e) {
            for (int turn = 0; turn < 20; ++turn) {  // Gloo may not have told all buffers yet
                look();
                std::this_thread::sleep_for(milliseconds(5));
            }
            throw_text("Gloo: " + short_text(e.what()));
        }
    }

    std::shared_ptr<Process> process_;
    Shared& shared_;
    std::shared_ptr<Link> link_;
    std::string prefix_;
    std::uint64_t number_, exchanges_ = 0, splits_ = 0;
    int rank_, size_;
    std::vector<int> world_ranks_;
    std::vector<std::uint64_t> sent_, received_;  // messages, by rank
    std::vector<std::byte> room_;
    std::atomic<std::int64_t> position_{0};
};

void GlooEngine::abort(const std::string& reason, double seconds) {
    if (!shared_.is_open) return;
    shared_.is_open = false;
    std::vector<std::unique_ptr<Buffer>> sending;
    std::list<std::vector<char>> texts;
    for (GlooEngine* engine : process_->engines) {
        std::string text = reason == shared_.thrown ? reason : engine->name_of(engine->rank_) + " failed: " + reason;
        text.resize(kTextBytes - 1);
        texts.emplace_back(text.c_str(), text.c_str() + kTextBytes);
        for (int i = 0; i < engine->size_; ++i) {
            if (i == engine->rank_ || engine->link_->is_broken(i)) continue;
            try {
                sending.push_back(engine->buffer_of(texts.back().data(), kTextBytes));
                sending.back()->send(i, kTextSlot);
            } catch (const std::exception&) {  // it has gone, too
            }
        }
    }
    const auto deadline = Clock::now() + std::chrono::duration<double>(std::min(seconds, 1.0));
    for (const auto& buffer : sending) {
        try {
            buffer->waitSend(std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(1)));
        } catch (const std::exception&) {}
    }
    // The others' threads of Gloo take the texts. If something of theirs was still unread when a connection ends, the system would drop the texts.
    if (!sending.empty()) std::this_thread::sleep_for(milliseconds(100));
    process_->close();
}

void GlooEngine::finish() {
    if (!shared_.is_open) return;
    // What others still call throws in them, with this text. When all have come here, nobody needs the connections any more.
    try {
        while (!agree(kEndFingerprint, "has come to its end").all_alike) {}
        // After a regroup the texts stay: a rank that comes late must find that the others have gone on.
        if (shared_.rendezvous && process_->generation == 0) shared_.rendezvous->finish();
    } catch (const EngineError&) {}
    process_->close();
}

std::optional<std::vector<int>> GlooEngine::missing() {
    block_sigpipe();
    return missing_of(process_->answers->find(world_ranks_, number_, position_, milliseconds(2000)));
}

// When the ranks have decided in a meeting who goes on, they connect. If one fails meanwhile, those who notice come to the next meeting, which is one of
// the group that was decided. Those who do not notice at once do so in their first call, and come to the same meeting by another survivors().
std::unique_ptr<Engine> GlooEngine::survivors(const SurvivorsOptions& options) {
    block_sigpipe();
    std::vector<int> ranks = process_->first_ranks;
    const int own = ranks[static_cast<std::size_t>(rank_)];
    const int meetings = size_;  // at most; more are not needed unless ranks cannot connect that have not failed
    SurvivorsOptions patience = options;
    for (int generation = process_->generation + 1;; ++generation) {
        try {
            ranks = Meeting(*shared_.rendezvous, generation, patience).decide(ranks, own);
        } catch (const EngineError&) {
            const bool needs_rank_0 = ranks.front() == 0 && !shared_.rendezvous->get("size");
            if (!needs_rank_0) throw;
            throw EngineError("rank 0, by which the ranks find each other, does not answer: " + shared_.rendezvous->place() +
                              "; with TAPIR_RENDEZVOUS, a folder, they can go on without it");
        }
        try {
            return engine_of(ranks, own, generation);
        } catch (const EngineError&) {
            if (generation - process_->generation == meetings) throw;
        }
        patience.wait = options.wait + 2 * kAgainSeconds;  // others may wait so long for an address and a connection
    }
}

// Connects with the ranks that are left.
std::unique_ptr<Engine> GlooEngine::engine_of(const std::vector<int>& ranks, int own, int generation) {
    const std::string prefix = "again" + std::to_string(generation) + "/";
    const auto rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), own) - ranks.begin());
    std::vector<int> world_ranks;
    for (int i = 0; i < static_cast<int>(ranks.size()); ++i) world_ranks.push_back(i);
    auto process = std::make_shared<Process>(shared_.rendezvous, shared_.device, shared_.timeout, ranks);
    process->generation = generation;
    const std::shared_ptr<Link> link = Link::make(process->shared, rank, static_cast<int>(ranks.size()), prefix, kAgainSeconds, {});
    auto engine = std::make_unique<GlooEngine>(process, link, prefix, rank, std::move(world_ranks));
    try {
        engine->agree(kBeginFingerprint, "has connected");  // so have all, or one's connections break
    } catch (...) {
        process->close();
        throw;
    }
    return engine;
}

int number_of(const char* name, int least, int most, const std::string& what) {
    const char* const text = std::getenv(name);
    char* end = nullptr;
    const long value = text ? std::strtol(text, &end, 10) : 0;
    if (!text || end == text || *end != '\0' || value < least || value > most)
        throw EngineError(std::string(name) + "=" + (text ? text : "") + ": set it to " + what);
    return static_cast<int>(value);
}

// The connections of this machine with the others.
std::shared_ptr<gloo::transport::Device> make_device() {
    gloo::transport::tcp::attr attr;
    const char* const interface = std::getenv("TAPIR_GLOO_INTERFACE");
    const char* const host = std::getenv("MASTER_ADDR");
    if (interface && *interface) {
        attr.iface = interface;
    } else if (host && !std::getenv("TAPIR_RENDEZVOUS") && (host == std::string("localhost") || host == std::string("127.0.0.1"))) {
        attr.hostname = "127.0.0.1";
    }
    try {
        return gloo::transport::tcp::CreateDevice(attr);  // with neither, the address of this machine's name
    } catch (const std::exception& e) {
        if (!attr.iface.empty())
            throw EngineError("TAPIR_GLOO_INTERFACE=" + attr.iface + ": cannot be used (" + short_text(e.what()) +
                              "); `ip address` lists those there are");
        throw EngineError("the address of this machine's name cannot be used (" + short_text(e.what()) +
                          "); set TAPIR_GLOO_INTERFACE to a network interface, such as eth0, or lo if all ranks are on this machine");
    }
}

}  // namespace

std::unique_ptr<Engine> gloo_engine(double timeout) {
    const int size = number_of("WORLD_SIZE", 1, 1 << 16, "the number of ranks, alike for all of them");
    const int rank =
        number_of("RANK", 0, size - 1, "a number from 0 to WORLD_SIZE - 1 = " + std::to_string(size - 1) + ", another one for each process");
    block_sigpipe();
    std::vector<int> world_ranks;
    for (int i = 0; i < size; ++i) world_ranks.push_back(i);
    if (size == 1) {
        auto process = std::make_shared<Process>(nullptr, nullptr, timeout, world_ranks);
        return std::make_unique<GlooEngine>(std::move(process), std::make_shared<Link>(), "world/", rank, std::move(world_ranks));
    }

    std::shared_ptr<gloo::transport::Device> device = make_device();
    std::unique_ptr<Rendezvous> rendezvous = make_rendezvous(rank);
    const std::string own = "joined/" + std::to_string(rank);
    const auto nothing = [] {};
    const auto join = [&] {
        if (!rendezvous->set_first(own, "yes"))
            throw EngineError("another process has RANK=" + std::to_string(rank) + ", or had it in an earlier run, by " + rendezvous->place() +
                              "; each needs a RANK of its own, and each run a new port or folder");
    };
    if (rank == 0) {
        join();
        rendezvous->set("size", std::to_string(size));
    } else {
        const std::string there = wait_for(*rendezvous, "size", timeout, "rank 0 has not come", nothing);
        join();
        if (there != std::to_string(size))
            throw EngineError("WORLD_SIZE=" + std::to_string(size) + ", but rank 0 has " + there + "; set the same number for all ranks");
    }
    for (int i = 0; i < size; ++i)
        wait_for(*rendezvous, "joined/" + std::to_string(i), timeout, "rank " + std::to_string(i) + " has not come", nothing);

    auto process = std::make_shared<Process>(std::move(rendezvous), std::move(device), timeout, world_ranks);
    const std::shared_ptr<Link> link = Link::make(process->shared, rank, size, "world/", timeout, {});
    return std::make_unique<GlooEngine>(std::move(process), link, "world/", rank, std::move(world_ranks));
}

}  // namespace tapir::parallel

#else
namespace tapir::parallel {
std::unique_ptr<Engine> gloo_engine(double) {
    throw EngineError("RANK and WORLD_SIZE are set, but Tapir was built without Gloo (TAPIR_GLOO, libgloo-dev)");
}
}  // namespace tapir::parallel
#endif
