// What a job does when something in it fails. watchdog.sh and partition.sh run it, and read what each rank says:
//
//     failures sum|message|gradients stopped|busy   rank 1 does not come to a call of the others
//     failures split FOLDER                         rank 1 is killed while the ranks connect; FOLDER: the rendezvous
//     failures train FILE                           trains without an end; rank 0 makes the file when that is under way
//     failures go_on FILE                           the same; but then those who are left train five steps more
//     failures checkpoint FILE WIDTH STEPS HOW      trains with checkpoints in the file. HOW: "well"; rank 0 gets no more space on the disk in
//                                                   step 35 ("full"), or throws ("throws"), or throws at the end ("ends"). Ends well in any
//                                                   case, when it has told what it got
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <thread>

#include "training.h"

namespace {

using namespace tapir;
using parallel::Group;

// Trains. All ranks call stop(step) in each step, on the way to the loss.
template <class Stop>
void train(const Group& world, int steps, const Stop& stop) {
    nn::Sequential model(nn::Linear(6, 50), nn::Tanh(), nn::Linear(50, 2));
    const parallel::Replicas replicas(model, world, {.bucket = 400});  // each parameter has a bucket of its own
    optim::Adam adam(model.parameters());
    for (int step = 0; step < steps; ++step) {
        Generator data(static_cast<std::uint64_t>(1000 * step + world.rank()));
        Tape tape;
        const Tensor y = model(randn({4, 6}, data));
        stop(step);
        tape.backward(square(y - 1).mean());
        adam.step();
        adam.zero_grad();
    }
}

void train_on(const Group& world, const std::string& file) {
    train(world, std::numeric_limits<int>::max(), [&](int step) {
        if (step == 20 && world.rank() == 0) std::ofstream(file) << step;
    });
}

void go_on(const Group& world, const std::string& file) {
    try {
        train_on(world, file);
    } catch (const parallel::CommError& e) {
        std::fprintf(stderr, "rank %d: %s\n", world.rank(), e.what());
        const Group left = world.survivors({.wait = 3});
        train(left, 5, [](int) {});
        std::fprintf(stderr, "rank %d has gone on as rank %d of %d\n", world.rank(), left.rank(), left.size());
    }
}

void split(const Group& world, const std::string& folder) {
    world.barrier();
    std::thread killer;
    if (world.rank() == 1) {
        killer = std::thread([&] {  // when the others can read where to connect
            while (!std::filesystem::exists(folder + "/world_1.0_1")) std::this_thread::yield();
            std::raise(SIGKILL);
        });
    }
    world.split(0).barrier();
    world.rank() == 1 ? killer.join() : world.barrier();
}

void checkpoint(const Group& world, char** argv) {
    const std::string how = argv[5];
    const auto in_step = [&](std::int64_t step) {
        if (step != 35 || world.rank() != 0) return;
        if (how == "throws") throw std::runtime_error("no more data");
        if (how != "full") return;
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit few{1000, 1000};
        setrlimit(RLIMIT_FSIZE, &few);
    };
    training::run(world, argv[2], std::atoi(argv[4]), in_step, std::atoi(argv[3]));
    if (how == "ends" && world.rank() == 0) throw std::runtime_error("something else");
    world.barrier();
}

void run(const Group& world, const std::string& what, bool is_busy) {
    const auto never_come = [&] {
        if (world.rank() != 1) return;
        if (!is_busy) std::raise(SIGSTOP);
        while (is_busy) pause();
    };
    world.barrier();
    if (what == "sum") {
        never_come();
        world.all_reduce(ones({3}));
    } else if (what == "message") {
        never_come();
        world.rank() == 1 ? world.barrier() : void(world.recv(1));
    } else if (what == "gradients") {
        train(world, 6, [&](int step) {
            if (step == 4) never_come();
        });
    }
}

}  // namespace

int main(int argc, char** argv) {
    int rank = 0;
    const std::string what = argv[1];
    try {
        const double timeout = what == "split" || what == "checkpoint" ? 60 : 5;
        const Group world = parallel::init(argc, argv, {.timeout = timeout, .exit_on_timeout = what != "go_on"});
        rank = world.rank();
        if (what == "split") {
            split(world, argv[2]);
        } else if (what == "checkpoint") {
            checkpoint(world, argv);
        } else if (what == "train") {
            train_on(world, argv[2]);
        } else if (what == "go_on") {
            go_on(world, argv[2]);
        } else {
            run(world, what, std::strcmp(argv[2], "busy") == 0);
        }
        return 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
        return what == "checkpoint" ? 0 : 1;
    }
}
