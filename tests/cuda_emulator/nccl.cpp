// The emulator's collectives. See nccl.h.
#include "nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tapir/core/dtype.h"

namespace {

enum class Kind { all_reduce, broadcast, all_gather, reduce_scatter, send, receive };

struct Collective {
    Kind kind;
    const void* in;
    void* out;
    std::size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;  // or the other rank of a message

    bool is_message() const { return kind == Kind::send || kind == Kind::receive; }
    bool is_like(const Collective& other) const {
        return kind == other.kind && count == other.count && type == other.type && op == other.op && root == other.root;
    }
};

std::size_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclUint8: return 1;
        case ncclFloat16:
        case ncclBfloat16: return 2;
        case ncclInt32:
        case ncclFloat32: return 4;
        default: return 8;
    }
}

struct Message {
    const void* data;
    std::size_t bytes;
    bool is_taken = false;
};

// Where the ranks come together for one collective.
struct Meeting {
    std::map<int, Collective> of_ranks;
    bool is_done = false;
    int left = 0;
};

struct Room {
    explicit Room(int all) : ranks(all) {}
    const int ranks;
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<int> devices;  // of those that have joined
    bool is_refused = false;
    std::map<std::uint64_t, Meeting> meetings;
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;  // from, to
};

struct Member {
    std::shared_ptr<Room> room;
    int rank, device;
    std::uint64_t next = 0;  // meeting
    // Of the room's mutex:
    bool is_aborted = false, is_lost = false;
    ncclResult_t error = ncclSuccess;
};

struct All {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<Room>> rooms;
    std::vector<std::weak_ptr<Member>> members;
    int ids = 0;
    std::map<int, ncclResult_t> next_error;  // by device
    bool is_hidden = false;
};
All& all() {
    static All& made = *new All;  // streams outlive static objects
    return made;
}
std::atomic<int> run{0};

thread_local std::string last_problem;
ncclResult_t refused(ncclResult_t result, const std::string& problem) {
    last_problem = problem;
    return result;
}

ncclResult_t wanted_error(int device) {
    const std::lock_guard lock(all().mutex);
    const auto next = all().next_error.find(device);
    if (next == all().next_error.end()) return ncclSuccess;
    const ncclResult_t error = next->second;
    all().next_error.erase(next);
    return refused(error, "as a test wants it");
}

// --- What is computed ----------------------------------------------------------------------------------------------------

template <class T, class Compute>
void reduce(ncclRedOp_t op, void* into, const void* from, std::size_t count) {
    T* const to = static_cast<T*>(into);
    const T* const x = static_cast<const T*>(from);
    for (std::size_t i = 0; i < count; ++i) {
        const auto a = static_cast<Compute>(to[i]), b = static_cast<Compute>(x[i]);
        to[i] = static_cast<T>(op == ncclSum ? a + b : op == ncclProd ? a * b : op == ncclMax ? std::max(a, b) : std::min(a, b));
    }
}

void reduce(ncclDataType_t type, ncclRedOp_t op, void* into, const void* from, std::size_t count) {
    switch (type) {
        case ncclUint8: return reduce<std::uint8_t, int>(op, into, from, count);
        case ncclInt32: return reduce<std::int32_t, std::int64_t>(op, into, from, count);
        case ncclInt64: return reduce<std::int64_t, std::int64_t>(op, into, from, count);
        case ncclFloat16: return reduce<tapir::Half, float>(op, into, from, count);
        case ncclBfloat16: return reduce<tapir::BFloat16, float>(op, into, from, count);
        case ncclFloat32: return reduce<float, float>(op, into, from, count);
        case ncclFloat64: return reduce<double, double>(op, into, from, count);
    }
}

// Of all ranks, whose memory this thread may touch.
void compute(const std::map<int, Collective>& ranks) {
    const Collective& like = ranks.begin()->second;
    const std::size_t bytes = like.count * size_of(like.type), numbers = like.kind == Kind::reduce_scatter ? like.count * ranks.size() : like.count;
    const auto bytes_of = [&](const void* data, std::size_t n) {
        return std::vector(static_cast<const char*>(data), static_cast<const char*>(data) + n);
    };
    std::vector<char> result;
    if (like.kind == Kind::broadcast) {
        result = bytes_of(ranks.at(like.root).in, bytes);
    } else if (like.kind == Kind::all_gather) {
        for (const auto& [_, of_rank] : ranks) {
            const std::vector<char> part = bytes_of(of_rank.in, bytes);
            result.insert(result.end(), part.begin(), part.end());
        }
    } else {
        for (const auto& [_, of_rank] : ranks) {
            if (result.empty()) {
                result = bytes_of(of_rank.in, numbers * size_of(like.type));
            } else {
                reduce(like.type, like.op, result.data(), of_rank.in, numbers);
            }
        }
    }
    for (const auto& [rank, of_rank] : ranks) {
        const bool is_part = like.kind == Kind::reduce_scatter;
        std::memcpy(of_rank.out, result.data() + (is_part ? static_cast<std::size_t>(rank) * bytes : 0), is_part ? bytes : result.size());
    }
}

// --- On the streams ------------------------------------------------------------------------------------------------------

void meet(Member& own, std::uint64_t number, const Collective& call) {
    Room& room = *own.room;
    std::unique_lock lock(room.mutex);
    Meeting& meeting = room.meetings[number];
    const auto waits = [&] { room.changed.wait(lock, [&] { return meeting.is_done || own.is_aborted; }); };
    if (own.is_lost || own.is_aborted) return waits();
    meeting.of_ranks.emplace(own.rank, call);
    if (static_cast<int>(meeting.of_ranks.size()) < room.ranks) {
        waits();
    } else if (std::all_of(meeting.of_ranks.begin(), meeting.of_ranks.end(), [&](const auto& other) { return other.second.is_like(call); })) {
        emulator::with_all_memory([&] { compute(meeting.of_ranks); });
        ++run;
        meeting.is_done = true;
        room.changed.notify_all();
    } else {
        std::fprintf(stderr, "emulator: the ranks of a communicator call different things\n");
        std::abort();
    }
    if (!meeting.is_done) {
        meeting.of_ranks.erase(own.rank);  // nobody may use its memory any more
    } else if (++meeting.left == room.ranks) {
        room.meetings.erase(number);
    }
}

// All messages of a group.
void exchange(Member& own, const std::vector<Collective>& calls) {
    Room& room = *own.room;
    std::vector<std::shared_ptr<Message>> sent;
    std::unique_lock lock(room.mutex);
    for (const Collective& call : calls) {
        if (call.kind != Kind::send) continue;
        sent.push_back(std::make_shared<Message>(Message{call.in, call.count * size_of(call.type)}));
        room.messages[{own.rank, call.root}].push_back(sent.back());
    }
    room.changed.notify_all();
    for (const Collective& call : calls) {
        if (call.kind != Kind::receive) continue;
        auto& letters = room.messages[{call.root, own.rank}];
        room.changed.wait(lock, [&] { return !letters.empty() || own.is_aborted; });
        if (own.is_aborted) return;
        const std::shared_ptr<Message> first = letters.front();
        letters.pop_front();
        if (first->bytes != call.count * size_of(call.type)) {
            std::fprintf(stderr, "emulator: a rank waits for %zu bytes, and gets %zu\n", call.count * size_of(call.type), first->bytes);
            std::abort();
        }
        emulator::with_all_memory([&] { std::memcpy(call.out, first->data, first->bytes); });
        first->is_taken = true;
        room.changed.notify_all();
    }
    room.changed.wait(lock,
                      [&] { return own.is_aborted || std::all_of(sent.begin(), sent.end(), [](const auto& message) { return message->is_taken; }); });
    ++run;
}

// --- Calls ---------------------------------------------------------------------------------------------------------------

struct Pending {
    std::shared_ptr<Member> member;
    Collective call;
    cudaStream_t stream;
};
thread_local int group_depth = 0;
thread_local std::vector<Pending> group;

ncclResult_t begin(const std::vector<Pending>& calls) {
    std::vector<Collective> messages;
    for (const Pending& pending : calls) {
        if (pending.call.is_message()) {
            messages.push_back(pending.call);
        } else {
            emulator::enqueue_apart(pending.stream,
                                    [member = pending.member, number = pending.member->next++, call = pending.call] { meet(*member, number, call); });
        }
    }
    if (!messages.empty()) {
        emulator::enqueue_apart(calls[0].stream, [member = calls[0].member, messages] { exchange(*member, messages); });
    }
    return ncclSuccess;
}

ncclResult_t problem_of(const Member& member, const Collective& call, cudaStream_t stream) {
    if (const ncclResult_t error = wanted_error(member.device); error != ncclSuccess) return error;
    const auto ranks = static_cast<std::size_t>(member.room->ranks);
    const std::size_t bytes = call.count * size_of(call.type);
    const std::size_t in = call.kind == Kind::reduce_scatter ? bytes * ranks : bytes, out = call.kind == Kind::all_gather ? bytes * ranks : bytes;
    if (call.count == 0) return refused(ncclInvalidArgument, "count is 0");  // which some versions take otherwise than others
    if (emulator::device_of(stream) != member.device) return refused(ncclInvalidArgument, "the stream is another device's");
    if (call.root < 0 || call.root >= member.room->ranks) return refused(ncclInvalidArgument, "there is no such rank");
    if (call.kind != Kind::receive && !emulator::is_memory_of(member.device, call.in, in))
        return refused(ncclInvalidArgument, "sendbuff is not the device's memory");
    if (call.kind != Kind::send && !emulator::is_memory_of(member.device, call.out, out))
        return refused(ncclInvalidArgument, "recvbuff is not the device's memory");
    return ncclSuccess;
}

}  // namespace

struct EmulatedComm {
    std::shared_ptr<Member> member;
};

static ncclResult_t call(ncclComm_t comm, const Collective& collective, cudaStream_t stream) {
    if (const ncclResult_t problem = problem_of(*comm->member, collective, stream); problem != ncclSuccess) return problem;
    if (group_depth == 0) return begin({{comm->member, collective, stream}});
    group.push_back({comm->member, collective, stream});
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return call(comm, {Kind::all_reduce, in, out, count, type, op, 0}, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    return call(comm, {Kind::broadcast, in, out, count, type, ncclSum, root}, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    return call(comm, {Kind::all_gather, in, out, count, type, ncclSum, 0}, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
    return call(comm, {Kind::reduce_scatter, in, out, count, type, op, 0}, stream);
}
ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return call(comm, {Kind::send, in, nullptr, count, type, ncclSum, peer}, stream);
}
ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return call(comm, {Kind::receive, nullptr, out, count, type, ncclSum, peer}, stream);
}
ncclResult_t ncclGroupStart() {
    ++group_depth;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (--group_depth > 0) return ncclSuccess;
    const std::vector<Pending> calls = std::exchange(group, {});
    return begin(calls);
}

// --- Communicators -------------------------------------------------------------------------------------------------------

ncclResult_t ncclGetVersion(int* version) {
    const std::lock_guard lock(all().mutex);
    *version = all().is_hidden ? 0 : 22800;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    if (const ncclResult_t error = wanted_error(-1); error != ncclSuccess) return error;
    const std::lock_guard lock(all().mutex);
    *id = {};
    std::snprintf(id->internal, sizeof(id->internal), "communicator %d", all().ids++);
    all().rooms[id->internal] = nullptr;
    return ncclSuccess;
}

// Comes back when all ranks have joined.
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
    int device = 0;
    cudaGetDevice(&device);
    std::shared_ptr<Room> room;
    {
        const std::lock_guard lock(all().mutex);
        const auto found = all().rooms.find(id.internal);
        if (found == all().rooms.end()) return refused(ncclInvalidArgument, "no process here has made this id");
        if (!found->second) found->second = std::make_shared<Room>(ranks);
        room = found->second;
    }
    std::unique_lock lock(room->mutex);
    room->is_refused |= std::count(room->devices.begin(), room->devices.end(), device) > 0 || ranks != room->ranks;
    room->devices.push_back(device);
    room->changed.notify_all();
    room->changed.wait(lock, [&] { return room->is_refused || static_cast<int>(room->devices.size()) == room->ranks; });
    if (room->is_refused) return refused(ncclInvalidUsage, "duplicate GPU detected, or another number of ranks");
    lock.unlock();
    *comm = new EmulatedComm{std::make_shared<Member>(Member{room, rank, device})};
    const std::lock_guard lock_all(all().mutex);
    all().members.push_back((*comm)->member);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    {
        const std::lock_guard lock(comm->member->room->mutex);
        comm->member->is_aborted = true;
        comm->member->room->changed.notify_all();
    }
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    const std::lock_guard lock(comm->member->room->mutex);
    *error = comm->member->error;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        default: return "an error";
    }
}
const char* ncclGetLastError(ncclComm_t) { return last_problem.c_str(); }

namespace emulator {

int collectives_run() { return run; }
void hide_nccl(bool is_hidden) {
    const std::lock_guard lock(all().mutex);
    all().is_hidden = is_hidden;
}
void fail_next_collective(int device, ncclResult_t error) {
    const std::lock_guard lock(all().mutex);
    all().next_error[device] = error;
}
void lose_peers(int device) {
    const std::lock_guard lock(all().mutex);
    for (const std::weak_ptr<Member>& weak : all().members) {
        const std::shared_ptr<Member> member = weak.lock();
        if (!member || member->device != device) continue;
        const std::lock_guard lock_room(member->room->mutex);
        member->is_lost = true;
        member->error = ncclRemoteError;
    }
}

}  // namespace emulator
