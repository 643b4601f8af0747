// A training run is saved and goes on to the bit; a process that is killed leaves the last good state; what does not fit changes
// nothing.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <stdexcept>

#include "../fails.h"
#include "check.h"
#include "data/files.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/nn/data/data.h"

using namespace tapir;
using namespace files;

namespace {

struct Net : nn::Module {
    nn::Linear a{4, 16}, b{16, 3};
    nn::Dropout dropout{0.4};
    nn::BatchNorm1d norm{16};
    void members(nn::Members& m) override { m("a", a)("b", b)("dropout", dropout)("norm", norm); }
    Tensor forward(const Tensor& x) const { return b(dropout(norm(relu(a(x))))); }
};

// A run of a few steps with everything that has a state. `weights` are made anew each time, from the default generator.
struct Run {
    Tensor images = check::values({50, 4}, 1, float32), labels = arange(50).remainder(3).to(int64);
    Net net;
    optim::Adam adam{net.parameters(), {.lr = 0.05, .amsgrad = true}};
    optim::StepLR schedule{adam, {.step_size = 2, .gamma = 0.7}};
    optim::ReduceLROnPlateau plateau{adam, {.patience = 1}};
    Generator noise{5};
    data::DataLoader<data::TensorDataset<Tensor, Tensor>> loader;
    std::int64_t step = 0;
    double best = 1e9;
    float last = 0;
    bool is_warm = false;
    std::string note;
    Tensor history;

    explicit Run(int workers) : loader(data::TensorDataset(images, labels), {.batch_size = 12, .shuffle = true, .num_workers = workers, .seed = 3}) {}

    void name_parts(nn::TrainingState& state) {
        state("net", net)("adam", adam)("schedule", schedule)("plateau", plateau)("loader", loader)("noise", noise);
        state("random", default_generator())("step", step)("best", best)("last", last)("warm", is_warm)("note", note);
        state("history", history);
    }

    void train(int until) {
        while (step < until) {
            for (auto& [x, y] : loader) {
                Tape tape;
                const Tensor loss = cross_entropy(net.forward(x + 0.1 * randn(x.shape(), noise)), y);
                tape.backward(loss);
                adam.step();
                adam.zero_grad();
                schedule.step();
                last = loss.item<float>();
                best = std::min<double>(best, last);
                is_warm = ++step > 3;
                note = "after step " + std::to_string(step);
                history = history.defined() ? cat({history, loss.detach().reshape({1})}) : loss.detach().reshape({1});
                if (step == until) break;
            }
        }
    }
};

// All bits of a run.
std::vector<std::pair<std::string, std::vector<double>>> bits(Run& run) {
    const TemporaryFolder folder;
    nn::TrainingState state((folder.path() / "bits").string());
    run.name_parts(state);
    state.save();
    std::vector<std::pair<std::string, std::vector<double>>> result;
    for (const NamedTensor& t : load_safetensors(state.path())) result.emplace_back(t.name, t.tensor.to_vector<double>());
    return result;
}

std::set<std::string> names_in(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
    return names;
}

}  // namespace

TEST_CASE("a run that was saved goes on to the bit") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "run.safetensors").string();
    manual_seed(11);
    Run straight(2);
    straight.train(10);
    const auto expected = bits(straight);
    CHECK(expected.size() > 30);

    for (const int stop : {1, 5, 8}) {
        manual_seed(11);
        {
            Run first(0);
            nn::TrainingState state(path);
            first.name_parts(state);
            first.train(stop);
            state.save();
            first.train(stop + 1);  // what comes after the save is lost
        }
        manual_seed(999);  // other weights, other draws
        Run second(3);
        nn::TrainingState state(path);
        second.name_parts(state);
        CHECK(state.load());
        CHECK(second.step == stop);
        CHECK(second.note == "after step " + std::to_string(stop));
        CHECK(second.is_warm == (stop > 3));
        // The loop was left at a batch; resuming begins in the middle of the epoch, as the straight run goes on.
        second.train(10);
        const auto resumed = bits(second);
        REQUIRE(resumed.size() == expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            INFO(expected[i].first);
            CHECK(resumed[i] == expected[i]);
        }
    }
}

namespace {

// A program as the header shows it. It is killed at a moment: none, after some steps, or after the save at the end of an epoch.
struct Program {
    std::string path;
    int save_every;  // steps; 0: at the end of epochs only
    std::vector<std::pair<std::string, std::vector<double>>> result;
    std::vector<std::int64_t> epochs;

    // Returns false when it was "killed".
    bool run(int kill_at_step, std::int64_t kill_after_epoch) {
        Run r(1);
        std::int64_t ended = 0;
        r.history = zeros({1});
        nn::TrainingState state(path);
        r.name_parts(state);
        state("ended", ended);
        state.load();
        for (const std::int64_t epoch : r.loader.epochs(4)) {
            for (auto& [x, y] : r.loader) {
                Tape tape;
                tape.backward(cross_entropy(r.net.forward(x + 0.1 * randn(x.shape(), r.noise)), y));
                r.adam.step();
                r.adam.zero_grad();
                ++r.step;
                if (save_every > 0 && r.step % save_every == 0) state.save();
                if (r.step == kill_at_step) return false;
            }
            ++ended;
            r.plateau.step(1.0 / static_cast<double>(ended % 2 + 1));
            r.schedule.step();
            epochs.push_back(epoch);
            if (save_every == 0 || epoch % 2 == 0) state.save();
            if (epoch == kill_after_epoch) return false;
        }
        CHECK(ended == 4);
        CHECK(r.step == 20);
        result = bits(r);
        return true;
    }
};

}  // namespace

TEST_CASE("the header's loop goes on to the bit, saved within an epoch and at its end") {
    for (const int save_every : {0, 1, 3, 5}) {  // 5: at the last batch of each epoch
        const TemporaryFolder folder;
        manual_seed(3);
        Program straight{(folder.path() / "straight").string(), save_every, {}, {}};
        REQUIRE(straight.run(-1, -1));
        CHECK(straight.epochs == std::vector<std::int64_t>{0, 1, 2, 3});
        for (int moment = 0; moment < 24; ++moment) {
            INFO("a save every " << save_every << " steps, moment " << moment);
            const std::string path = (folder.path() / std::to_string(moment)).string();
            manual_seed(3);
            Program killed{path, save_every, {}, {}};
            // Moments 0 to 19 are in a step, the others at the end of an epoch.
            CHECK(!killed.run(moment < 20 ? moment + 1 : -1, moment - 20));
            if (!fs::exists(path)) continue;  // it had not come to its first save
            manual_seed(99);
            Program resumed{path, save_every, {}, {}};
            REQUIRE(resumed.run(-1, -1));
            REQUIRE(resumed.result.size() == straight.result.size());
            for (std::size_t i = 0; i < straight.result.size(); ++i) {
                INFO(straight.result[i].first);
                CHECK(resumed.result[i] == straight.result[i]);
            }
        }
    }
}

TEST_CASE("parts that a file lacks may stay as they are") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "run").string();
    nn::Linear a(2, 3), b(2, 3), c(2, 2);
    nn::TrainingState saved(path);
    saved("a", a);
    saved.save();
    nn::TrainingState more(path), others(path);
    const std::vector<float> before = c.weight.to_vector<float>();
    double best = 5;
    more("a", b)("c", c)("best", best);
    FAILS(FileError, "missing: c, best (load({.allow_missing = true})", more.load());
    CHECK(b.weight.to_vector<float>() != a.weight.to_vector<float>());
    CHECK(more.load({.allow_missing = true}));
    CHECK(b.weight.to_vector<float>() == a.weight.to_vector<float>());
    CHECK(c.weight.to_vector<float>() == before);
    CHECK(best == 5);
    others("c", c);
    FAILS(FileError, "unexpected: a", others.load({.allow_missing = true}));
    // A part that is there, but not whole.
    save_safetensors(path, {{"a.weight", a.weight.detach()}}, {{"format", "tapir training state 1"}});
    FAILS(FileError, "a: load_state_dict: the state does not fit", more.load({.allow_missing = true}));
}

TEST_CASE("without a file there is nothing to load") {
    const TemporaryFolder folder;
    nn::TrainingState state((folder.path() / "none").string());
    int epoch = 3;
    state("epoch", epoch);
    CHECK(!state.load());
    CHECK(epoch == 3);
    state.save();
    epoch = 7;
    CHECK(state.load());
    CHECK(epoch == 3);
}

TEST_CASE("the last states are kept") {
    const TemporaryFolder folder;
    nn::TrainingState state((folder.path() / "run").string(), {.keep = 3});
    int epoch = 0;
    state("epoch", epoch);
    for (epoch = 1; epoch <= 5; ++epoch) {
        state.save();
        CHECK(names_in(folder.path()).size() == static_cast<std::size_t>(std::min(epoch, 3)));
    }
    for (const auto& [name, expected] : {std::pair("run", 5), {"run.1", 4}, {"run.2", 3}}) {
        state.load_from((folder.path() / name).string());
        CHECK(epoch == expected);
    }
    fs::remove(folder.path() / "run");
    CHECK(state.load());
    CHECK(epoch == 4);
}

TEST_CASE("a state that does not fit changes nothing") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "run").string();
    nn::Linear a(2, 3), b(3, 2), c(2, 3), d(2, 2);
    std::int64_t epoch = 4;
    nn::TrainingState saved(path);
    saved("a", a)("b", b)("epoch", epoch);
    saved.save();

    const std::vector<float> before = c.weight.to_vector<float>();
    epoch = 9;
    nn::TrainingState others(path);
    others("a", c)("b", d)("epoch", epoch);
    FAILS_IN(FileError, "TrainingState: " + path + ": b: load_state_dict: the state does not fit this Linear:", "weight is (2, 2), not (2, 3)",
             others.load());
    CHECK(c.weight.to_vector<float>() == before);  // it had been taken back already
    CHECK(epoch == 9);

    nn::TrainingState more(path);
    more("a", c)("c", d)("epoch", epoch);
    FAILS_IN(FileError, "TrainingState: " + path + ": the file has other parts than this state", "\n  missing: c\n  unexpected: b", more.load());
    nn::TrainingState kinds(path);
    double number = 0;
    kinds("a", c)("b", b)("epoch", number);
    FAILS_IN(FileError, "TrainingState: " + path + ": epoch: ", "the file has another kind of value there", kinds.load());
    CHECK(c.weight.to_vector<float>() == before);
    save_safetensors(path, {{"epoch", tensor(4)}});
    nn::TrainingState foreign(path);
    foreign("epoch", epoch);
    FAILS(FileError, "not a file that TrainingState has saved", foreign.load());
    folder.write("run", "damaged");
    FAILS_IN(FileError, "TrainingState: " + path + ": ", "", foreign.load());
    FAILS(ValueError, "\"a\" already", more("a", a));
    FAILS(ValueError, "no dots", more("a.b", a));
    FAILS(ValueError, "no dots", more("", a));
    FAILS(ValueError, "path is empty", nn::TrainingState(""));
    FAILS(ValueError, "keep must be at least 1", nn::TrainingState("x", {.keep = 0}));
    epoch = 5'000'000'000;
    nn::TrainingState wide((folder.path() / "wide").string()), narrow((folder.path() / "wide").string());
    wide("epoch", epoch);
    wide.save();
    int small = 3;
    narrow("epoch", small);
    FAILS(FileError, "epoch: 5000000000 does not fit", narrow.load());
    CHECK(small == 3);
    nn::TrainingState nowhere((folder.path() / "no" / "run").string());
    FAILS(FileError, "No such file", nowhere.save());
}

TEST_CASE("whatever a part of the user's throws, all parts are as they were") {
    struct Picky {
        bool refuses = false;
        int value = 1;
        NamedTensors state_dict() const { return {{"value", tensor(value)}}; }
        void load_state_dict(const NamedTensors& state) {
            value = state[0].tensor.item<int>();
            if (value != 1 && refuses) throw std::runtime_error("not mine");
        }
    };
    const TemporaryFolder folder;
    nn::TrainingState run((folder.path() / "run").string());
    double best = 1;
    Picky picky;
    run("best", best)("picky", picky);
    picky.value = 2;
    run.save();
    best = 5;
    picky = {.refuses = true, .value = 1};
    CHECK_THROWS_AS(run.load(), std::runtime_error);
    CHECK(best == 5);
    CHECK(picky.value == 1);
}

namespace {

int countdown = 0;  // of calls that change the disk, until the process is killed

}  // namespace

TEST_CASE("a process that is killed at any moment leaves a whole state: the last, or the one before it") {
    for (const int keep : {1, 2, 3}) {
        const TemporaryFolder folder;
        const std::string path = (folder.path() / "run").string();
        // Shared with the child: how many saves are done.
        auto* done = static_cast<int*>(::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        REQUIRE(done != MAP_FAILED);
        int epoch = 0;
        Tensor weights = zeros({1000});
        nn::TrainingState state(path, {.keep = keep});
        state("epoch", epoch)("weights", weights);
        int kills = 0;
        bool was_killed = true;
        for (int moment = 1; was_killed; ++moment) {
            epoch = 0;
            weights = zeros({1000});
            state.save();
            *done = 0;
            const pid_t child = ::fork();
            if (child == 0) {
                countdown = moment;
                io::step_hook = [] {
                    if (--countdown == 0) ::raise(SIGKILL);
                };
                for (epoch = 1; epoch <= 3; ++epoch) {
                    weights.fill_(epoch);
                    state.save();
                    *done = epoch;
                }
                ::_exit(0);
            }
            int status = 0;
            REQUIRE(::waitpid(child, &status, 0) == child);
            was_killed = WIFSIGNALED(status);
            kills += was_killed ? 1 : 0;
            CHECK((was_killed ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0));

            const int last = *done;
            epoch = -1;
            weights = Tensor();
            REQUIRE(state.load());
            CHECK((epoch == last || epoch == last + 1));
            CHECK(weights.numel() == 1000);
            CHECK(weights.eq(epoch).all().item<bool>());
            for (int age = 1; age < keep; ++age) {  // the older ones are whole, too
                const std::string older = path + "." + std::to_string(age);
                if (!fs::exists(older)) continue;
                state.load_from(older);
                CHECK(weights.eq(epoch).all().item<bool>());
            }
        }
        CHECK(kills >= 3 * 6);
        state.save();
        for (const std::string& name : names_in(folder.path())) CHECK(name.find(".tmp") == std::string::npos);
        ::munmap(done, sizeof(int));
    }
}
