// The traces of profiles: how slices nest, arrows from ops to their rules, modules, other threads, memory.
#include <algorithm>
#include <map>
#include <string>
#include <thread>

#include "../fails.h"
#include "../nn/data/files.h"
#include "tapir/nn/data/data.h"
#include "tapir/tapir.h"
#include "trace_check.h"

using namespace tapir;

namespace {

trace::Trace trace_of(const Profiler& profiler) {
    const files::TemporaryFolder folder;
    const std::string path = (folder.path() / "trace.json").string();
    profiler.export_chrome_trace(path);
    return trace::read(path);
}

ProfileRow row_of(const Profiler& profiler, const std::string& name, ProfileTable::By by = ProfileTable::By::op) {
    for (const ProfileRow& row : profiler.rows(by)) {
        if (row.name == name) return row;
    }
    FAIL("no row " << name);
    return {};
}

std::string here(int line) { return "profile_trace_test.cpp:" + std::to_string(line); }

struct Cell : nn::Module {
    nn::Linear inner{3, 3};
    Tensor forward(const Tensor& x) const {
        const nn::ModuleScope scope(*this);
        return tanh(inner(x)) * 2;
    }
    void members(nn::Members& m) override { m("inner", inner); }
};

struct Net : nn::Module {
    Cell cell;
    nn::Linear last{3, 1};
    Tensor forward(const Tensor& x) const {
        const nn::ModuleScope scope(*this);
        return last(cell.forward(cell.forward(x)) + x);
    }
    void members(nn::Members& m) override { m("cell", cell)("last", last); }
};

}  // namespace

TEST_CASE("each rule has an arrow from its op, also behind ops that are not recorded and records that are gone") {
    const Tensor w = ones({2}).requires_grad_(), x = ones({2});
    Profiler profiler;
    int mul_line = 0, second_line = 0;
    {
        Tape tape;
        static_cast<void>(exp(x));  // of constants
        mul_line = __LINE__ + 1;
        const Tensor y = w * x;
        static_cast<void>(w.detach() * x);
        {
            Tape inner;  // its records are taken off again
            inner.backward(sum(exp(y)));
        }
        second_line = __LINE__ + 1;
        const Tensor z = y * w;
        tape.backward(sum(z));
    }
    {
        Tape tape;
        tape.backward(sum(w * x));
    }
    profiler.stop();
    const trace::Trace trace = trace_of(profiler);
    std::map<std::string, int> by_line;
    for (const trace::Arrow& arrow : trace.arrows) {
        CHECK(arrow.name == "forward to backward");
        CHECK(arrow.from->category == "forward");
        CHECK(arrow.to->category == "backward");
        CHECK(arrow.to->name == arrow.from->name + " backward");
        CHECK(arrow.from->args["line"] == arrow.to->args["line"]);
        CHECK(arrow.from->end <= arrow.to->begin);
        ++by_line[arrow.from->args["line"].get<std::string>() + " " + arrow.from->name];
    }
    CHECK(trace.arrows.size() == trace.named("mul backward").size() + trace.named("sum backward").size() + trace.named("exp backward").size());
    CHECK(by_line[here(mul_line) + " mul"] == 1);
    CHECK(by_line[here(second_line) + " mul"] == 1);
    CHECK(trace.named("mul backward").size() == 3);
}

TEST_CASE("the ops of a profile that begins within a tape have arrows, the earlier ones none") {
    const Tensor w = ones({2}).requires_grad_();
    Tape tape;
    const Tensor y = w * 3;
    Profiler profiler;
    tape.backward(sum(y));
    profiler.stop();
    const trace::Trace trace = trace_of(profiler);
    CHECK(trace.named("mul backward").size() == 1);
    REQUIRE(trace.arrows.size() == 1);
    CHECK(trace.arrows[0].to->name == "sum backward");
}

TEST_CASE("modules are slices around the ops of their calls") {
    Net net;
    CHECK(net.parameters().size() == 4);
    Profiler profiler;
    {
        const ProfileScope scope("step");
        Tape tape;
        tape.backward(sum(net.forward(ones({2, 3}))));
    }
    profiler.stop();
    const trace::Trace trace = trace_of(profiler);
    const auto around = [](const trace::Slice* slice) { return slice->holder ? slice->holder->name : "nothing"; };
    // The sum is the whole model's own op, behind those of the cells: these are in it too, forward and backward.
    REQUIRE(trace.named("Net", "module").size() == 2);
    CHECK(around(trace.named("Net", "module")[0]) == "step");
    CHECK(around(trace.named("Net", "module")[1]) == "backward");
    CHECK(around(trace.named("add").at(0)) == "Net");
    CHECK(trace.named("cell", "module").size() == 4);  // two calls
    for (const trace::Slice* cell : trace.named("cell", "module")) CHECK(around(cell) == "Net");
    CHECK(trace.named("cell.inner", "module").size() == 4);
    for (const trace::Slice* inner : trace.named("cell.inner", "module")) CHECK(around(inner) == "cell");
    CHECK(around(trace.named("tanh").at(0)) == "cell");
    CHECK(around(trace.named("sum").at(0)) == "step");
    int linears = 0;
    for (const trace::Slice* linear : trace.named("linear", "forward")) {
        CHECK(around(linear) == linear->args["module"].get<std::string>());
        linears += linear->args["module"] == "cell.inner";
    }
    CHECK(linears == 2);
    CHECK(trace.named("tanh backward").size() == 2);
    for (const trace::Slice* rule : trace.named("tanh backward")) CHECK(around(rule) == "cell");
    CHECK(around(trace.named("sum backward").at(0)) == "backward");
    CHECK(around(trace.named("backward").at(0)) == "step");
}

TEST_CASE("a training loop with loader threads: who made what, what the loop waited for, whose time is whose") {
    const Tensor x = randn({12, 3});
    data::DataLoader loader(data::TensorDataset{x}, {.batch_size = 4, .num_workers = 2});
    Net net;
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    MemoryProfiler memory;
    Profiler profiler;
    int step_line = 0, clip_line = 0, backward_line = 0;
    const int loop_line = __LINE__ + 1;
    for (auto& batch : loader) {
        Tape tape;
        backward_line = __LINE__ + 1;
        tape.backward(sum(net.forward(batch)));
        clip_line = __LINE__ + 1;
        optim::clip_grad_norm_(net.parameters(), 1);
        step_line = __LINE__ + 1;
        sgd.step();
        sgd.zero_grad();
    }
    profiler.stop();
    CHECK(row_of(profiler, "DataLoader: sample").calls == 12);
    CHECK(row_of(profiler, "DataLoader: collate").calls == 3);
    CHECK(row_of(profiler, "DataLoader: wait").calls == 3);
    const ProfileRow making = row_of(profiler, "DataLoader: batch"), backward = row_of(profiler, "backward");
    CHECK(making.calls == 3);
    CHECK(making.self_seconds <=
          making.total_seconds - row_of(profiler, "DataLoader: sample").total_seconds - row_of(profiler, "DataLoader: collate").total_seconds + 1e-9);
    CHECK(backward.calls == 3);
    CHECK(backward.self_seconds < backward.total_seconds);
    const auto line = ProfileTable::By::line;
    CHECK(row_of(profiler, here(backward_line) + " backward", line).calls == 3);
    CHECK(row_of(profiler, here(clip_line) + " clip_grad_norm_", line).calls == 3);
    CHECK(row_of(profiler, here(step_line) + " SGD.step", line).calls == 3);
    CHECK(row_of(profiler, here(loop_line) + " DataLoader: wait", line).calls == 3);
    CHECK(row_of(profiler, here(loop_line) + " DataLoader: sample", line).calls == 12);
    CHECK(profiler.table().find(" on other threads") != std::string::npos);

    const trace::Trace trace = trace_of(profiler);
    CHECK(trace.processes.at(0) == "Tapir");
    std::map<std::string, int> samples;
    for (const trace::Slice* sample : trace.named("DataLoader: sample")) {
        CHECK(sample->holder->name == "DataLoader: batch");
        ++samples[trace.threads.at(sample->row)];
    }
    int from_workers = 0;
    for (const auto& [thread, count] : samples) {
        CHECK((thread == "DataLoader 0" || thread == "DataLoader 1"));
        from_workers += count;
    }
    CHECK(from_workers == 12);
    for (const trace::Slice* wait : trace.named("DataLoader: wait")) CHECK(wait->row.second == 0);
    CHECK(trace.named("SGD.step").size() == 3);
    CHECK(!trace.memory.empty());
    CHECK(*std::max_element(trace.memory.begin(), trace.memory.end()) <= memory.peak_bytes());
}

TEST_CASE("without workers batches are made on the loop's thread; LBFGS and gradient have scopes; memory is there only when asked for") {
    data::DataLoader loader(data::TensorDataset{randn({4, 3})}, {.batch_size = 2});
    Tensor w = ones({2}).requires_grad_();
    optim::LBFGS lbfgs({w});
    Profiler profiler;
    int batches = 0;
    for (auto& batch : loader) batches += batch.shape()[0] == 2;
    lbfgs.step([&] {
        Tape tape;
        const Tensor loss = sum(w * w);
        lbfgs.zero_grad();
        tape.backward(loss);
        return loss;
    });
    {
        Tape tape;
        static_cast<void>(tape.gradient(sum(w * w), {w}));
    }
    profiler.stop();
    CHECK(batches == 2);
    CHECK(row_of(profiler, "DataLoader: batch").calls == 2);
    CHECK(row_of(profiler, "gradient").calls == 1);
    CHECK(row_of(profiler, "LBFGS.step").calls == 1);
    const trace::Trace trace = trace_of(profiler);
    for (const trace::Slice* batch : trace.named("DataLoader: batch")) CHECK(batch->row == std::pair(0, 0));
    CHECK(trace.named("backward").at(0)->holder->name == "LBFGS.step");
    CHECK(trace.memory.empty());
}

TEST_CASE("scopes that are open when the profiler stops are there, and nested ones of other threads lie in each other") {
    Profiler profiler;
    const ProfileScope outer("outer");
    const ProfileScope inner("inner");
    static_cast<void>(ones({2}) + 1);
    std::thread other([] {
        const ProfileScope around("around");
        const ProfileScope within("within");
    });
    other.join();
    profiler.stop();
    const trace::Trace trace = trace_of(profiler);
    CHECK(trace.named("add").at(0)->holder->name == "inner");
    CHECK(trace.named("inner").at(0)->holder->name == "outer");
    CHECK(trace.named("within").at(0)->holder->name == "around");
    CHECK(trace.threads.at(trace.named("around")[0]->row).starts_with("thread "));
    const ProfileRow around = row_of(profiler, "around");
    CHECK(around.self_seconds <= around.total_seconds - row_of(profiler, "within").total_seconds + 1e-9);
}
