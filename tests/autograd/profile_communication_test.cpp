// Calls to other ranks in profiles, of a program that only says that it made them. (tests/nn/parallel/profile_cases.cpp makes some.)
#include <string>
#include <thread>

#include "../fails.h"
#include "../nn/data/files.h"
#include "tapir/autograd/watch/communication_impl.h"
#include "tapir/tapir.h"
#include "trace_check.h"

using namespace tapir;

namespace {

constexpr std::int64_t kTicks = 1 << 20;

// Says that a thread called op in so many ticks of some, counted from the first.
struct Caller {
    std::int64_t first = detail::profile_ticks();
    std::uint64_t run = detail::profile_run();
    int channel = 0;  // its address counts

    void call(const char* op, int begin, int agreed, int end, std::int64_t bytes = 0, Loc loc = Loc::current()) const {
        detail::note_communication(run,
                                   {&channel, op, "float32 (3), \"sum\"", op == std::string("barrier") ? "" : "step 7", loc, bytes,
                                    first + begin * kTicks, first + agreed * kTicks, first + end * kTicks});
    }
    void wait(int begin, int end) const { detail::note_communication_wait(run, &channel, first + begin * kTicks, first + end * kTicks); }
};

}  // namespace

TEST_CASE("what was hidden of calls to other ranks is the time in which the program did not wait") {
    Profiler profiler;
    FAILS(ValueError, "Profiler::communication: it is still running", static_cast<void>(profiler.communication()));
    const Caller one, other;
    std::thread([&] {
        one.call("all_reduce", 0, 4, 10, 100);    // waited for from 6 to 10: 6 of 10 are hidden
        one.call("all_reduce", 10, 10, 20, 200);  // all of it is waited for
        one.call("all_reduce", 40, 41, 50, 400);  // nobody waits
        one.call("barrier", 60, 70, 70);          // from 62 to 64 and from 66 to the end: 4 of 10
        other.call("all_reduce", 0, 0, 10, 800);  // the other channel's waits do not count
    }).join();
    one.wait(15, 25);  // two threads wait at the same time
    one.wait(6, 18);
    one.wait(66, 90);
    one.wait(62, 64);
    one.wait(63, 64);
    other.wait(30, 40);
    detail::note_communication(one.run + 1, {&one.channel, "split", "", "", Loc::current(), 0, 0, 0, 0});  // of another profiler
    profiler.stop();
    one.call("all_reduce", 90, 91, 92);  // too late
    const std::vector<CommunicationRow> rows = profiler.communication();
    REQUIRE(rows.size() == 2);
    const CommunicationRow &sums = rows[0], &barrier = rows[1];
    CHECK(sums.name == "all_reduce");
    CHECK(sums.calls == 4);
    CHECK(sums.bytes == 1500);
    const double tick = barrier.waiting_seconds / 10;
    CHECK(sums.waiting_seconds == Approx(5 * tick));
    CHECK(sums.sending_seconds == Approx(35 * tick));
    CHECK(sums.hidden_seconds == Approx((6 + 10 + 10) * tick));
    CHECK(barrier.name == "barrier");
    CHECK(barrier.calls == 1);
    CHECK(barrier.sending_seconds == 0);
    CHECK(barrier.hidden_seconds == Approx(4 * tick));

    const std::string table = profiler.table({.by = ProfileTable::By::op});
    INFO(table);
    CHECK(table.find("calls to other ranks     calls          MB  waiting ms  sending ms  hidden   us a call\n") != std::string::npos);
    CHECK(table.find("  65.0%  ") != std::string::npos);
    CHECK(table.find("  40.0%  ") != std::string::npos);
    CHECK(profiler.communication(ProfileTable::By::line).size() == 5);
    CHECK(profiler.communication(ProfileTable::By::line)[0].name.find("profile_communication_test.cpp:") == 0);
    CHECK(profiler.communication(ProfileTable::By::module).size() == 2);
}

TEST_CASE("calls to other ranks have a row of the trace, with their parts") {
    const files::TemporaryFolder folder;
    Profiler profiler;
    const Caller caller;
    const int line = __LINE__ + 2;
    std::thread([&] {
        caller.call("all_reduce", 0, 4, 10, 12);
        caller.call("barrier", 20, 30, 30);
        caller.call("send", 30, 30, 40);
    }).join();
    caller.wait(5, 10);
    profiler.stop();
    const std::string path = (folder.path() / "trace.json").string();
    profiler.export_chrome_trace(path);
    const trace::Trace trace = trace::read(path);
    REQUIRE(trace.named("all_reduce", "communication").size() == 1);
    const trace::Slice& sum = *trace.named("all_reduce")[0];
    CHECK(sum.row != std::pair(0, 0));
    CHECK(sum.args["line"] == "profile_communication_test.cpp:" + std::to_string(line));
    CHECK(sum.args["of"] == "float32 (3), \"sum\"");
    CHECK(sum.args["note"] == "step 7");
    CHECK(sum.args["bytes"] == 12);
    CHECK(sum.args["hidden ms"].get<double>() * 2e6 == Approx(static_cast<double>(sum.end - sum.begin)).margin(200));
    REQUIRE(trace.named("waiting").size() == 2);
    CHECK(trace.named("waiting")[0]->holder->name == "all_reduce");
    CHECK(trace.named("waiting")[0]->end == trace.named("sending").at(0)->begin);
    CHECK(trace.named("waiting")[1]->holder->name == "barrier");
    CHECK(trace.named("sending").size() == 2);
    CHECK_FALSE(trace.named("barrier")[0]->args.contains("note"));
}

TEST_CASE("a profile without calls to other ranks does not speak of them") {
    Profiler profiler;
    static_cast<void>(ones({2}) + 1);
    profiler.stop();
    CHECK(profiler.communication().empty());
    CHECK(profiler.table().find("other ranks") == std::string::npos);
}
