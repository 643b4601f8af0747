// Profiler and MemoryProfiler: what they count, by op, line, module and thread. (How long things take is not looked at.)
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "../fails.h"
#include "../nn/data/files.h"
#include "tapir/core/memory_timeline_impl.h"
#include "tapir/core/text_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

ProfileRow row_of(const std::vector<ProfileRow>& rows, const std::string& name) {
    for (const ProfileRow& row : rows) {
        if (row.name == name) return row;
    }
    FAIL("no row " << name);
    return {};
}

MemorySite site_of(const std::vector<MemorySite>& sites, int line) {
    for (const MemorySite& site : sites) {
        if (site.place == "profiler_test.cpp:" + std::to_string(line)) return site;
    }
    return {};
}

nlohmann::json read_json(const std::string& path) {
    std::ifstream file(path);
    return nlohmann::json::parse(file);
}

}  // namespace

TEST_CASE("a profile counts calls, operations and bytes of ops and rules") {
    const Tensor w = ones({5, 3}).requires_grad_(), x = ones({4, 3});
    Profiler profiler;
    FAILS(ValueError, "Profiler::rows: it is still running", profiler.rows());
    FAILS(ValueError, "Profiler::table: it is still running", static_cast<void>(profiler.table()));
    FAILS(ValueError, "Profiler::print: it is still running", profiler.print());
    FAILS(ValueError, "another one is running", const Profiler second);
    const int line = __LINE__ + 3;
    for (int i = 0; i < 3; ++i) {
        Tape tape;
        tape.backward(sum(linear(x, w) * 2));
    }
    static_cast<void>(x.t() + 0);  // a view costs nothing
    profiler.stop();
    static_cast<void>(x + x);
    const auto rows = profiler.rows();
    const ProfileRow product = row_of(rows, "linear");
    CHECK(product.calls == 3);
    CHECK(product.flops == 3 * 2 * 4 * 3 * 5);
    CHECK(product.bytes == 3 * 4 * (4 * 3 + 5 * 3 + 4 * 5));
    CHECK(product.self_seconds > 0);
    CHECK(product.total_seconds >= product.self_seconds);
    CHECK(row_of(rows, "linear backward").calls == 3);
    CHECK(row_of(rows, "linear backward").flops == 3 * 2 * 4 * 3 * 5);
    CHECK(row_of(rows, "mul").calls == 3);
    CHECK(row_of(rows, "mul").flops == 3 * 4 * 5);
    CHECK(row_of(rows, "sum backward").calls == 3);
    CHECK(row_of(rows, "add").calls == 1);
    CHECK(row_of(rows, "transpose").bytes == 0);
    const auto lines = profiler.rows(ProfileTable::By::line, ProfileTable::Sort::calls);
    CHECK(row_of(lines, "profiler_test.cpp:" + std::to_string(line) + " linear").calls == 3);
    CHECK(lines.front().calls == 3);
    double self = 0;
    for (const ProfileRow& row : rows) self += row.self_seconds;
    CHECK(self <= profiler.seconds());
}

TEST_CASE("scopes hold the time of what runs inside, modules are groups, the table and the trace show them") {
    struct Block : nn::Module {
        nn::Linear linear{3, 3};
        Tensor forward(const Tensor& x) {
            const nn::ModuleScope scope(*this);
            return tanh(linear(x));
        }
        void members(nn::Members& m) override { m("linear", linear); }
    };
    Block block;
    CHECK(block.parameters().size() == 2);
    Profiler profiler;
    {
        const ProfileScope scope("step");
        const ProfileScope inner("forward pass");
        static_cast<void>(block.forward(ones({2, 3})));
    }
    std::thread other([] { const ProfileScope scope("elsewhere"); });
    other.join();
    profiler.stop();
    const auto rows = profiler.rows();
    const ProfileRow step = row_of(rows, "step"), inner = row_of(rows, "forward pass");
    CHECK(step.calls == 1);
    CHECK(step.total_seconds >= inner.total_seconds);
    CHECK(step.self_seconds <= step.total_seconds - inner.total_seconds + 1e-9);
    CHECK(inner.total_seconds >= inner.self_seconds + row_of(rows, "linear").total_seconds + row_of(rows, "tanh").total_seconds - 1e-9);
    const auto modules = profiler.rows(ProfileTable::By::module);
    CHECK(row_of(modules, "linear").calls == 1);
    CHECK(row_of(modules, "Block").calls == 1);  // the whole model's own op, tanh
    CHECK(row_of(rows, "elsewhere").calls == 1);

    const MemoryProfiler memory;
    const std::string table = profiler.table({.rows = 2});  // measures the machine
    CHECK(memory.now() == 0);
    INFO(table);
    CHECK(table.find("of peak") != std::string::npos);
    CHECK(table.find(" more)") != std::string::npos);
    CHECK(table.find("GFLOP/s, ") != std::string::npos);

    const files::TemporaryFolder folder;
    profiler.export_chrome_trace((folder.path() / "trace.json").string());
    const nlohmann::json trace = read_json((folder.path() / "trace.json").string());
    int linears = 0, others = 0;
    for (const auto& event : trace["traceEvents"]) {
        if (event["ph"] != "X" || event["cat"] == "module") continue;
        if (event["name"] == "linear") {
            ++linears;
            CHECK(event["args"]["module"] == "linear");
            CHECK(event["args"]["output"] == "float32 (2, 3)");
            CHECK(event["cat"] == "forward");
        }
        others += event["tid"] != 0;
        CHECK(event["dur"].get<double>() >= 0);
    }
    CHECK(linears == 1);
    CHECK(others == 1);
    FAILS(FileError, "Profiler::export_chrome_trace: ", profiler.export_chrome_trace((folder.path() / "nowhere/trace.json").string()));
}

TEST_CASE("a profiler survives errors inside of scopes and rules") {
    const Tensor w = ones({2}).requires_grad_();
    Profiler profiler;
    {
        const ProfileScope scope("failing");
        Tape tape;
        const Tensor y = w * 2;
        y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("hook"); });
        CHECK_THROWS_AS(tape.backward(sum(y)), std::runtime_error);
        FAILS(ShapeError, "", w + ones({3}));
    }
    static_cast<void>(w + w);
    profiler.stop();
    CHECK(row_of(profiler.rows(), "failing").calls == 1);
    CHECK(row_of(profiler.rows(), "add").calls == 1);
}

TEST_CASE("memory is known by the lines that made it, now, at the peak and since a point") {
    MemoryProfiler memory;
    FAILS(ValueError, "another one is alive", const MemoryProfiler second);
    const int kept_line = __LINE__ + 1;
    const Tensor kept = zeros({1000});
    const int large_line = __LINE__ + 2;
    {
        const Tensor large = exp(ones({100, 1000}));
        const Tensor view = large.t();
        CHECK(memory.live_bytes() == 4 * (1000 + 100 * 1000));
    }
    CHECK(memory.live_bytes() == 4000);
    CHECK(memory.peak_bytes() == 4 * (1000 + 2 * 100 * 1000));
    CHECK(site_of(memory.live(), kept_line).bytes == 4000);
    CHECK(site_of(memory.live(), large_line).tensors == 0);
    std::int64_t at_peak = 0;
    for (const MemorySite& site : memory.at_peak()) at_peak += site.bytes;
    CHECK(at_peak == memory.peak_bytes());
    const auto before = memory.now();
    CHECK(memory.leaks(before) == "nothing made since then is left\n");
    std::vector<Tensor> leak;
    int leak_line = 0;
    for (int i = 0; i < 3; ++i) {
        leak_line = __LINE__ + 1;
        leak.push_back(kept + 1);
    }
    REQUIRE(memory.since(before).size() == 1);
    CHECK(site_of(memory.since(before), leak_line).tensors == 3);
    CHECK(memory.since(before)[0].op == "add");
    CHECK(memory.leaks(before).find("profiler_test.cpp:" + std::to_string(leak_line) + " add") != std::string::npos);
    CHECK(memory.table().find("at the peak: ") != std::string::npos);

    // The drawing: round ticks of one unit, the line, the peak, and what it was made of.
    const std::string svg = memory.to_svg(1);
    CHECK(svg.find("peak: 785.2 KiB after") != std::string::npos);
    for (const char* tick : {">0 KiB<", ">200 KiB<", ">400 KiB<", ">600 KiB<"}) CHECK(svg.find(tick) != std::string::npos);
    CHECK(svg.find(">800 KiB<") == std::string::npos);
    const std::string place = "profiler_test.cpp:" + std::to_string(large_line);  // two of one size: one of them is the row
    CHECK((svg.find(place + " exp, 1 tensor<") == std::string::npos) != (svg.find(place + " ones, 1 tensor<") == std::string::npos));
    CHECK(svg.find("(2 more)") != std::string::npos);
    static_cast<void>(ones({3}));
    const files::TemporaryFolder folder;
    memory.export_timeline((folder.path() / "memory.json").string());
    FAILS(FileError, "MemoryProfiler::export_timeline: ", memory.export_timeline((folder.path() / "nowhere/memory.json").string()));
    std::vector<std::int64_t> line;
    const nlohmann::json timeline = read_json((folder.path() / "memory.json").string());
    for (const auto& event : timeline["traceEvents"]) {
        if (event["ph"] == "C") line.push_back(event["args"]["bytes"]);
    }
    REQUIRE(!line.empty());
    CHECK(line.back() == memory.live_bytes());  // also where it fell right after it rose
    CHECK(*std::max_element(line.begin(), line.end()) == memory.peak_bytes());
}

TEST_CASE("what is made by no op on an op's line is not taken for that op's") {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "x.npy").string();
    save_npy(path, ones({100}));
    const Tensor x = ones({10});
    const MemoryProfiler memory;
    const int line = __LINE__ + 1;
    const Tensor y = exp(x), read = load_npy(path);
    std::vector<std::pair<std::string, std::int64_t>> made;
    for (const MemorySite& site : memory.live()) {
        if (site.place == "profiler_test.cpp:" + std::to_string(line)) made.emplace_back(site.op, site.bytes);
    }
    std::sort(made.begin(), made.end());
    CHECK(made == std::vector<std::pair<std::string, std::int64_t>>{{"exp", 40}, {"load_npy", 400}});
}

TEST_CASE("an op that fails and is tried again is charged for its last try only") {
    const Tensor x = ones({4, 3}), good = ones({3, 5}), bad = ones({4, 5});
    Profiler profiler;
    Tensor y;
    for (int i = 0; i < 3; ++i) {
        try {
            y = matmul(x, i < 2 ? bad : good);
        } catch (const ShapeError&) {
            detail::thread.flops += 1e9;  // what is done between the tries, which takes time as it takes operations
        }
    }
    profiler.stop();
    const ProfileRow row = row_of(profiler.rows(), "matmul");
    CHECK(row.calls == 1);
    CHECK(row.flops == 2 * 4 * 3 * 5);
}

TEST_CASE("weight gradients that are computed late are of the call that computes them, in memory and time") {
    const MemoryProfiler memory;
    const Tensor w = ones({100, 100}).requires_grad_(), x = ones({1, 100});
    optim::SGD sgd({w}, {.lr = 0.1, .momentum = 0.9});
    Profiler profiler;
    const auto backward = [&] {
        Tape tape;
        tape.backward(sum(linear(x, w)));
    };
    backward();
    const int step_line = __LINE__ + 1;
    sgd.step();
    sgd.zero_grad();
    backward();
    const int clip_line = __LINE__ + 1;
    optim::clip_grad_norm_({w}, 1);
    profiler.stop();
    CHECK(site_of(memory.live(), step_line).op == "sgd");
    CHECK(site_of(memory.live(), step_line).bytes == 40000);  // the momentum
    CHECK(site_of(memory.live(), clip_line).op == "clip_grad_norm_");
    CHECK(site_of(memory.live(), clip_line).bytes == 40000);  // the gradient
    const std::vector<ProfileRow> ops = profiler.rows(), lines = profiler.rows(ProfileTable::By::line);
    CHECK(row_of(ops, "weight gradients").flops == 2 * 2 * 100 * 100);
    CHECK(row_of(ops, "SGD.step").flops == 2 * 100 * 100);
    CHECK(row_of(ops, "linear backward").flops < 2 * 100 * 100);
    for (const int line : {step_line, clip_line}) {
        CHECK(row_of(lines, "profiler_test.cpp:" + std::to_string(line) + " weight gradients").calls == 1);
    }
}

TEST_CASE("tensors outlive the memory profiler that knew of them") {
    Tensor inside, small;
    {
        const MemoryProfiler memory;
        inside = ones({100000}) + 1;
        small = ones({3});
    }
    CHECK(inside[5].item<float>() == 2);
    inside = Tensor();
    const MemoryProfiler another;
    small = Tensor();
    CHECK(another.live_bytes() == 0);
}

TEST_CASE("no op is above the peak of the arithmetic") {
    struct Swift : Function<Swift> {  // says that it does more than any machine can
        static Tensor forward(FunctionContext&, const std::vector<Tensor>& x) { return x[0] * 1; }
        static Tensor backward(FunctionContext&, const std::vector<Tensor>& g) {
            const detail::FlopsOf claimed(1e20);
            return g[0];
        }
    };
    const Tensor x = ones({3}).requires_grad_();
    Profiler profiler;
    {
        Tape tape;
        tape.backward(sum(Swift::apply({x})));
    }
    profiler.stop();
    std::istringstream lines(profiler.table());
    int found = 0;
    for (std::string line; std::getline(lines, line);) {
        if (line.find("backward") == std::string::npos || line.find("sum") != std::string::npos || line.find("backward") == 0) continue;
        INFO(line);
        CHECK(line.find(" 100.0%") != std::string::npos);
        ++found;
    }
    CHECK(found == 1);
}

TEST_CASE("a memory profiler leaves storages as they are") {  // their release says what kind of memory it is: page-locked or not
    const Tensor before = ones({100000});
    Tensor x;
    bool is_released = false;
    float blob[3] = {1, 2, 3};
    {
        const MemoryProfiler memory;
        x = ones({100000});
        CHECK(x.impl()->storage->release == before.impl()->storage->release);
        CHECK(x.impl()->storage->context == before.impl()->storage->context);
        const auto found = from_blob(blob, {3}, [&](void*) { is_released = true; });
        CHECK(memory.live_bytes() == 400000);
        std::thread([&] { x = Tensor(); }).join();  // it may go on any thread
        CHECK(memory.live_bytes() == 0);
        x = ones({3});
    }
    CHECK(is_released);
    const MemoryProfiler another;
    const auto start = another.now();
    std::vector<Tensor> made;  // at the addresses of others, which it has not seen
    x = Tensor();
    for (int i = 0; i < 10; ++i) made.push_back(ones({3}));
    CHECK(another.live_bytes() == 10 * 12);
    made.resize(4);
    CHECK(another.live_bytes() == 4 * 12);
    CHECK(another.since(start).at(0).tensors == 4);
}

TEST_CASE("a profiler is stopped by its thread, and may go on any") {
    const Tensor x = ones({3});
    std::optional<Profiler> profiler(std::in_place);
    std::string message;
    std::thread([&] {
        try {
            profiler->stop();
        } catch (const ValueError& error) {
            message = error.what();
        }
    }).join();
    CHECK(message.find("profiler_test.cpp:" + std::to_string(__LINE__ - 5) + ": Profiler::stop: it was made on another thread") == 0);
    static_cast<void>(x + x);
    profiler->stop();
    CHECK(row_of(profiler->rows(), "add").calls == 1);
    for (const bool is_watched : {false, true}) {  // by another watcher, too
        std::optional<CheckFiniteScope> check;
        if (is_watched) check.emplace();
        profiler.reset();
        profiler.emplace();
        {
            const ProfileScope scope("interrupted");
            static_cast<void>(x + x);
            std::thread([&] {
                profiler.reset();
                const Profiler of_other;
            }).join();
        }
        static_cast<void>(x + x);
        if (is_watched) FAILS(Error, "", log(x - 2));  // the other one is still there
        profiler.emplace();
        static_cast<void>(x + x);
        profiler->stop();
        CHECK(row_of(profiler->rows(), "add").calls == 1);
    }
    profiler.reset();
    std::thread([&] {
        profiler.emplace();
        static_cast<void>(x * x);
    }).join();
    static_cast<void>(x + x);  // not on its thread
    profiler->stop();
    REQUIRE(profiler->rows().size() == 1);
    CHECK(row_of(profiler->rows(), "mul").calls == 1);
    std::thread([&] { profiler.emplace(); }).join();
    profiler.reset();
    std::thread([&] {
        profiler.emplace();
        std::thread([&] { profiler.reset(); }).join();  // left to a thread that does nothing more
    }).join();
    const Profiler last;
}

TEST_CASE("scopes that end in another order have rows, and those around them keep theirs") {
    Profiler profiler;
    {
        const ProfileScope around("around");
        std::optional<ProfileScope> outer(std::in_place, "outer"), inner(std::in_place, "inner");
        outer.reset();
        const ProfileScope after("after");
        inner.reset();
        static_cast<void>(ones({3}) + 1);
    }
    profiler.stop();
    const auto rows = profiler.rows();
    for (const char* name : {"around", "outer", "inner", "after"}) CHECK(row_of(rows, name).calls == 1);
    CHECK(row_of(rows, "inner").total_seconds <= row_of(rows, "outer").total_seconds);
    CHECK(row_of(rows, "after").total_seconds >= row_of(rows, "add").total_seconds);
    CHECK(row_of(rows, "after").total_seconds <= row_of(rows, "around").total_seconds);
}

TEST_CASE("memory made after an op has ended is not that op's") {
    const MemoryProfiler memory;
    const int line = __LINE__ + 1;
    const Tensor large = empty({1000000});
    nn::Linear linear(300, 300);
    CHECK(site_of(memory.live(), line).bytes == 4000000);
    CHECK(site_of(memory.live(), line).tensors == 1);
    std::int64_t of_module = 0;  // the weight, and the bias that may be named after what filled in the weight
    for (const MemorySite& site : memory.live()) {
        if (site.place == "profiler_test.cpp:" + std::to_string(line + 1)) of_module += site.bytes;
        CHECK((site.op != "empty" || site.bytes == 4000000));
    }
    CHECK(of_module == 4 * (300 * 300 + 300));
}

TEST_CASE("a memory profiler that lives long keeps the peak and no more than so many moments") {
    const MemoryProfiler memory;
    { const Tensor peak = empty({1000}), other = empty({7}); }
    for (int i = 0; i < 1'000'000; ++i) static_cast<void>(empty({1}));
    const Tensor kept = empty({5});
    const auto line = detail::memory_timeline(0, std::numeric_limits<std::int64_t>::max());
    CHECK(line.size() <= 200'000);  // two of each moment: the most, and what then was
    CHECK(line.size() > 10'000);
    CHECK(line.back().second == 20);
    std::int64_t most = 0;
    bool is_ordered = true;
    for (std::size_t i = 0; i < line.size(); ++i) {
        most = std::max(most, line[i].second);
        is_ordered &= i == 0 || line[i].first >= line[i - 1].first;
    }
    CHECK(is_ordered);
    CHECK(most == 4028);
}

TEST_CASE("texts are of one kind, and files hold UTF-8 whatever names are") {
    CHECK(detail::size_text(0) == "0 B");
    CHECK(detail::size_text(1023) == "1023 B");
    CHECK(detail::size_text(10 << 20) == "10.0 MiB");
    CHECK(detail::size_text(10'000'000) == "9.5 MiB");
    for (const char* good : {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"}) {
        CHECK(detail::json_text(good) == good);
        CHECK(detail::xml_text(good) == good);
    }
    const std::string bad = "\xef\xbf\xbd";
    CHECK(detail::json_text("\xff") == bad);
    CHECK(detail::json_text("caf\xe9 au") == "caf" + bad + " au");
    CHECK(detail::json_text("\xe2\x82") == bad + bad);             // cut off
    CHECK(detail::json_text("\xc0\xaf") == bad + bad);             // longer than need be
    CHECK(detail::json_text("\xed\xa0\x80") == bad + bad + bad);   // half of a pair
    CHECK(detail::json_text("\xf4\x90\x80\x80").size() == 4 * 3);  // beyond the last
    CHECK(detail::json_text("a\"b\\\n") == "a\\\"b\\\\\\u000a");
    CHECK(detail::xml_text("<a & \"b\">\x01") == "&lt;a &amp; &quot;b&quot;&gt;" + bad);

    MemoryProfiler memory;
    Profiler profiler;
    {
        const ProfileScope scope("caf\xe9 \"1\"");
        static_cast<void>(ones({3}) + 1);
    }
    profiler.stop();
#line 1 "odd \"name\"\\\xe9.cpp"
    const Tensor odd = ones({30});
    const files::TemporaryFolder folder;
    profiler.export_chrome_trace((folder.path() / "trace.json").string());
    bool is_found = false;
    const nlohmann::json trace = read_json((folder.path() / "trace.json").string());
    for (const auto& event : trace["traceEvents"]) {
        is_found |= event["name"] == "caf" + bad + " \"1\"";
    }
    CHECK(is_found);
    is_found = false;
    memory.export_timeline((folder.path() / "memory.json").string());
    const nlohmann::json timeline = read_json((folder.path() / "memory.json").string());
    for (const auto& event : timeline["traceEvents"]) {
        is_found |= event["name"] == "at the peak: odd \"name\"\\" + bad + ".cpp:1 ones";
    }
    CHECK(is_found);
}
