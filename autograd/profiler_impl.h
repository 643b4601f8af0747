// What a profile holds.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tapir/autograd/profiler.h"
#include "tapir/autograd/watch_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/stream.h"

namespace tapir {

struct ProfileEvent {
    enum class Kind : std::uint8_t { forward, backward, scope };
    std::int64_t begin, end;  // ticks
    std::int64_t inside;      // of these, spent in events inside of it
    const char* name;
    const ModuleName* module;
    Loc loc;
    double flops, bytes;
    std::int64_t sizes[4];  // of the first output, its last four dimensions
    std::int32_t thread;    // 0: the profiler's own
    std::int32_t mark;      // its device events, or -1
    Kind kind;
    DType dtype;
    std::uint8_t rank;
};

class Profiler::Data : public OpWatcher {
 public:
    explicit Data(const Loc& loc);

    void begin(const char* op, Device operand, const Loc& loc) override;
    void end(const RecordArgs& ran) override;
    void begin_rule(Walk& walk, std::uint32_t record) override;
    void give(Walk& walk, std::uint32_t record, int i, const Tensor& g, const Tensor* product, const Tensor* rows) override;
    void end_rule(Walk& walk, std::uint32_t record) override;

    void stop(const Loc& loc);
    void open_scope(std::int64_t now);
    void close_scope(const char* name, const Loc& loc, std::int64_t begin);
    void add_from_other_thread(const char* name, const Loc& loc, std::int64_t begin, std::int64_t now);

    template <class Visit>
    void each(const Visit& visit) const {
        for (const auto& chunk : chunks_) {
            const std::size_t count = &chunk == &chunks_.back() ? used_ : kChunk;
            for (std::size_t i = 0; i < count; ++i) visit((*chunk)[i]);
        }
        for (const ProfileEvent& event : others_) visit(event);
    }
    double seconds_of(std::int64_t ticks) const { return static_cast<double>(ticks) * tick_; }
    double device_seconds(const ProfileEvent& event) const {
        return event.mark < 0 ? 0 : device_seconds_[static_cast<std::size_t>(event.mark)];
    }

    bool stopped = false;
    std::int64_t first = 0, last = 0;  // ticks at the beginning and the end
    std::uint64_t run = 0;

 private:
    // What has begun and not ended: scopes and rules, the outermost first.
    struct Open {
        std::int64_t begin, inside;
        double flops;  // thread.flops then
        double bytes;
        std::int32_t mark;
    };
    ProfileEvent& append();
    std::int32_t begin_mark(Device device);
    void finish(ProfileEvent& event, const Open& open);

    static constexpr std::size_t kChunk = 4096;
    std::vector<std::unique_ptr<std::array<ProfileEvent, kChunk>>> chunks_;
    std::size_t used_ = kChunk;
    std::vector<Open> open_;
    Open op_{};  // the op that has begun and not ended; begin is 0 when there is none
    struct Marks {
        Event begin, end;
        Device device;
    };
    std::vector<Marks> marks_;
    std::vector<double> device_seconds_;
    std::mutex mutex_;  // of others_
    std::vector<ProfileEvent> others_;
    std::optional<WatchScope> watch_;
    double tick_ = 0;  // seconds
    std::int64_t wall_first_ = 0;
};

}  // namespace tapir
