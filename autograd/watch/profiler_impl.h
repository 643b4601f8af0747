// The data of a profile.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapir/autograd/watch/communication_impl.h"
#include "tapir/autograd/watch/profiler.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/stream.h"

namespace tapir {

struct ProfileEvent {
    enum class Kind : std::uint8_t { forward, backward, scope, copy };
    std::int64_t begin, end;  // ticks
    std::int64_t inside;      // the part of these spent in nested events
    const char* name;
    const ModuleName* module;
    Loc loc;
    double flops, bytes;
    std::int64_t sizes[4];      // the first output's last four dimensions
    std::uint32_t module_call;  // distinguishes the calls of a module
    std::uint32_t tape;         // 0: none
    std::uint32_t record;       // for a rule: its record's number; for an op: the number of records before it
    std::int32_t thread;        // 0: the profiler's own
    std::int32_t mark;          // its device events, or -1
    Kind kind;
    DType dtype;
    std::uint8_t rank;
};

// Events in the order in which they ended. Memory comes in pages of 2 MiB if the system has them, and is mapped before it is
// written to: new pages of 4 KiB would cost more than all the rest.
class ProfileEvents {
 public:
    ProfileEvents() = default;
    ~ProfileEvents();
    ProfileEvents(const ProfileEvents&) = delete;
    ProfileEvents& operator=(const ProfileEvents&) = delete;

    ProfileEvent& append() {
        if (used_ == kChunk) [[unlikely]]
            grow();
        return chunks_.back()[used_++];
    }
    template <class Visit>
    void each(const Visit& visit) const {
        for (const ProfileEvent* chunk : chunks_) {
            const std::size_t count = chunk == chunks_.back() ? used_ : kChunk;
            for (std::size_t i = 0; i < count; ++i) visit(chunk[i]);
        }
    }

 private:
    static constexpr std::size_t kBytes = std::size_t{2} << 20, kChunk = kBytes / sizeof(ProfileEvent);
    void grow();
    std::vector<ProfileEvent*> chunks_;
    std::size_t used_ = kChunk;
};

class Profiler::Data : public OpWatcher {
 public:
    explicit Data(const Loc& loc);
    ~Data() override;

    void begin(const char* op, Device operand, const Loc& loc) override;
    void failed() noexcept override;
    void end(const RecordArgs& ran) override;
    void begin_rule(Walk& walk, std::uint32_t record) override;
    void give(Walk& walk, std::uint32_t record, int i, const Tensor& g, const Tensor* product, const Tensor* rows) override;
    void end_rule(Walk& walk, std::uint32_t record) override;
    void begin_copy(Device to, Device from, std::size_t bytes) override;
    void copy_is_queued() override;
    void end_copy() override;

    void stop();
    /// Called when the profiled thread ends.
    void lose_thread();
    /// True if it is running on another thread than this one.
    bool is_of_other_thread() const;
    /// If so, leaves it to that thread, which frees it at its next op or at its end. Returns false if not.
    bool leave();
    std::atomic<bool> is_left = false;
    void open_scope(const char* name, const Loc& loc, std::int64_t now);
    void close_scope(std::int64_t begin, std::int64_t now);
    void add_from_other_thread(const char* name, const Loc& loc, std::int64_t begin, std::int64_t now, std::int64_t inside);
    void add_communication(detail::CommunicationCall call);
    void add_communication_wait(const void* channel, std::int64_t begin, std::int64_t end);

    /// Visits every event, those of other threads last.
    template <class Visit>
    void each(const Visit& visit) const {
        events_.each(visit);
        for (const ProfileEvent& event : others_) visit(event);
    }
    double seconds_of(std::int64_t ticks) const { return static_cast<double>(ticks) * tick_; }

    // The time of an event on a device.
    struct DeviceTime {
        double begin = 0, seconds = 0;  // relative to the profiler's beginning
        int stream = -1;                // index in streams; -1: its end was not reached
    };
    const DeviceTime* device_time(const ProfileEvent& event) const {
        if (event.mark < 0) return nullptr;
        const DeviceTime& time = device_times_[static_cast<std::size_t>(event.mark)];
        return time.stream < 0 ? nullptr : &time;
    }
    struct UsedStream {
        Device device;
        void* state;
        std::string name;  // "default stream", "stream 1"
    };

    bool stopped = false;
    std::int64_t first = 0, last = 0;  // ticks at the beginning and the end
    std::uint64_t run = 0;
    std::vector<std::pair<std::int32_t, std::string>> threads;  // other threads, with their names
    std::vector<UsedStream> streams;
    std::vector<std::pair<double, std::int64_t>> memory;  // bytes over seconds, from a MemoryProfiler
    struct Communication {
        detail::CommunicationCall call;
        std::int32_t thread;
        std::int64_t hidden = 0;  // ticks of the call in which the program did not wait for its channel
    };
    std::vector<Communication> communication;  // in the order in which they ended; under running_mutex until stop()

 private:
    // Scopes and rules that have begun and not ended, the outermost first.
    struct Open {
        std::int64_t begin, inside;
        double flops;  // thread.flops at that time
        double bytes;
        std::int32_t mark;
        const char* name;  // null: a rule
        Loc loc;
    };
    std::int32_t begin_mark(Device device);
    void end_mark(std::int32_t mark);
    void finish(ProfileEvent& event, const Open& open, std::int64_t end);
    void append_scope(const Open& open, std::int64_t end);
    void drop_op();
    int number_of(const Stream& stream);
    void name_this_thread();
    void find_hidden();

    ProfileEvents events_;
    std::vector<Open> open_;
    Open op_{};    // the op that has begun and not ended; begin is 0 if there is none
    Open copy_{};  // the same for a copy
    struct Marks {
        Event begin, end;
        Stream stream;
        int number;
    };
    std::vector<Marks> marks_;
    struct Zero {  // a time that the host and a device both know
        Device device;
        Event event;
        std::int64_t ticks;
    };
    std::vector<Zero> zeros_;
    std::vector<DeviceTime> device_times_;
    std::vector<ProfileEvent> others_;  // under running_mutex
    struct Wait {
        const void* channel;
        std::int64_t begin, end;
    };
    std::vector<Wait> waits_;  // under running_mutex
    std::optional<WatchScope> watch_;
    bool has_thread_ = true;  // the profiled thread lives; under running_mutex
    double tick_ = 0;         // seconds
    std::int64_t wall_first_ = 0;
};

/// Throws ValueError "Profiler::what: it is still running".
const Profiler::Data& stopped(const Profiler::Data* data, const char* what, const Loc& loc);
/// "matmul", "matmul backward"
std::string op_name(const ProfileEvent& event);

}  // namespace tapir
