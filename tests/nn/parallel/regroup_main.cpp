// regroup FILE STEPS LEAST [RANK HOW STEP]...: trains so many steps. In the middle of a step a rank fails: it is killed, or stopped and killed (late). Or it
// is killed while the others meet (meeting), or in the first step after it. Those who are left go on from the last state.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "training.h"

namespace {

using namespace tapir;

struct Failure {
    int rank;
    std::string how;
    std::int64_t step;
};

// Kills the process when the others have found that it has come, which the folder of the rendezvous tells.
void die_in_meeting() {
    std::thread([] {
        const std::filesystem::path decision = std::filesystem::path(std::getenv("TAPIR_RENDEZVOUS")) / "meeting1_decision";
        while (!std::filesystem::exists(decision)) std::this_thread::yield();
        std::raise(SIGKILL);
    }).detach();
}

int run(int argc, char** argv) {
    parallel::Group world = parallel::init(argc, argv, {.timeout = 20});
    const int rank = world.rank();
    const std::string path = argv[1];
    const parallel::SurvivorsOptions options{.wait = 3, .least = std::atoi(argv[3])};
    std::vector<Failure> failures;
    for (int i = 4; i + 2 < argc; i += 3) failures.push_back({std::atoi(argv[i]), argv[i + 1], std::atoi(argv[i + 2])});
    for (bool has_met = false;;) {
        try {
            training::run(world, path, std::atoi(argv[2]), [&](std::int64_t step) {
                for (const Failure& failure : failures) {
                    const bool is_now = failure.how == "killed" ? failure.step == step : failure.how == "meeting" && has_met;
                    if (failure.rank == rank && is_now) std::raise(SIGKILL);
                }
            });
            return 0;
        } catch (const parallel::CommError& e) {
            std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
            for (const Failure& failure : failures) {
                if (failure.rank == rank && failure.how == "meeting") die_in_meeting();
                if (failure.rank == rank && failure.how == "late") std::raise(SIGSTOP);
            }
            world = world.survivors(options);
            has_met = true;
            std::fprintf(stderr, "rank %d goes on as rank %d of %d\n", rank, world.rank(), world.size());
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
