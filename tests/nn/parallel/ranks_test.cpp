// Groups of threads: the same cases as groups of processes (ranks_main.cpp), and what threads alone can show.
#include <catch2/catch.hpp>

#include <tapir/graph.h>

#include "../../fails.h"
#include "cases.h"
#include "tapir/nn/parallel/replicas.h"

namespace {

using namespace cases;

TEST_CASE("ranks that are threads compute together") {
    for (const Case& one : all_cases()) {
        for (int ranks = one.least_ranks; ranks <= 4; ++ranks) {
            INFO(one.name << ", " << ranks << " ranks");
            CHECK_NOTHROW(parallel::spawn(ranks, one.run));
        }
    }
}

TEST_CASE("a process alone is a group of one") {
    const Group alone;
    CHECK(alone.size() == 1);
    CHECK(alone.rank() == 0);
    CHECK(alone.engine() == std::string("none"));
    for (const Case& one : all_cases()) {
        if (one.least_ranks > 1) continue;
        INFO(one.name);
        CHECK_NOTHROW(one.run(alone));
    }
    CHECK(parallel::Group(alone.split(3)).size() == 1);
    FAILS(ValueError, "send: there is no rank 1 in a group of 1", alone.send(ones({2}), 1));
}

TEST_CASE("an exception of one rank ends the calls of the others") {
    std::string others[3];
    const auto run = [&](int failing, const auto& call) {
        for (std::string& text : others) text.clear();
        try {
            parallel::spawn(3, [&](const Group& world) {
                const Group part = world.split(world.rank() / 2);
                world.barrier();
                if (world.rank() == failing) throw std::runtime_error("the data are gone");
                try {
                    for (;;) call(world, part);
                } catch (const CommError& e) {
                    others[world.rank()] = e.what();
                    try {
                        world.barrier();  // it has ended
                    } catch (const CommError& again) {
                        others[world.rank()] += again.what();
                    }
                    throw;
                }
            });
        } catch (const std::runtime_error& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    const auto in_sums = [](const Group& world, const Group&) { world.all_reduce(ones({3})); };
    const auto in_parts = [](const Group& world, const Group& part) { world.rank() < 2 ? part.barrier() : world.barrier(); };
    const auto in_messages = [](const Group& world, const Group&) { world.recv((world.rank() + 1) % 3); };
    for (const int failing : {0, 1, 2}) {
        CHECK(run(failing, in_sums) == "the data are gone");
        if (failing < 2) CHECK(run(failing, in_parts) == "the data are gone");  // rank 2 is alone in its part
        CHECK(run(failing, in_messages) == "the data are gone");
        for (int i = 0; i < 3; ++i) {
            if (i == failing) continue;
            CHECK(others[i].find("recv: rank ") != std::string::npos);
            CHECK(others[i].find("the data are gone") != std::string::npos);
            CHECK(others[i].find("barrier: no more calls are possible") != std::string::npos);
        }
    }
}

TEST_CASE("Replicas whose ranks do not do alike end on all ranks") {
    std::string texts[2];
    const auto run = [&](const auto& step) {
        CHECK_THROWS(parallel::spawn(2, [&](const Group& world) {
            const Tensor w = ones({3}).requires_grad_();
            parallel::Replicas replicas({w}, world);
            try {
                step(world.rank(), w, replicas);
            } catch (const std::exception& e) {
                texts[world.rank()] = e.what();
                CHECK_FALSE(w.grad().defined());
                throw;
            }
        }));
    };
    const auto both_have = [&](const std::string& text) {
        for (const std::string& have : texts) {
            INFO(have);
            CHECK(have.find(text) != std::string::npos);
        }
    };
    run([](int rank, const Tensor& w, parallel::Replicas& replicas) {
        Tape tape;
        rank == 0 ? replicas.backward(sum(w), 3) : tape.backward(sum(w));
    });
    both_have("1 of 2 ranks call Replicas::backward() with a number of samples, the others without");
    run([](int rank, const Tensor& w, parallel::Replicas&) {
        w.register_hook([rank](const Tensor& g) -> Tensor {
            if (rank == 1) throw std::runtime_error("no gradient today");
            return g;
        });
        Tape tape;
        tape.backward(sum(w));
    });
    both_have("no gradient today");
    run([](int, const Tensor& w, parallel::Replicas& replicas) {
        w.register_hook([&replicas](const Tensor& g) {
            replicas.backward(Tensor(), 0);
            return g;
        });
        Tape tape;
        tape.backward(sum(w));
    });
    both_have("another backward() of the same Replicas is under way");
    run([](int rank, const Tensor& w, parallel::Replicas&) {
        Tape tape;
        if (rank == 1) throw std::runtime_error("no loss today");
        tape.backward(sum(w));
    });
    INFO(texts[0]);
    CHECK(texts[0].find("all_reduce: rank 1") != std::string::npos);
    CHECK(texts[0].find("no loss today") != std::string::npos);
}

TEST_CASE("ranks that are threads know which they are") {
    CHECK(process_rank() == 0);
    int ranks[3] = {-1, -1, -1};
    parallel::spawn(3, [&](const Group& world) { ranks[world.rank()] = process_rank(); });
    for (int i = 0; i < 3; ++i) CHECK(ranks[i] == i);
    CHECK(process_rank() == 0);
}

TEST_CASE("Replicas tell the step in which the ranks differ") {
    std::string texts[2];
    const auto run = [&](const Group& world) {
        const Tensor w = ones({3}).requires_grad_(), v = ones({2}).requires_grad_();
        const parallel::Replicas replicas({w, v}, world, {.bucket = 8});
        for (int step = 0;; ++step) {
            Tape tape;
            if (step == 2 && world.rank() == 1) world.barrier();
            tape.backward(sum(w) + sum(v));
        }
    };
    CHECK_THROWS_AS(parallel::spawn(2,
                                    [&](const Group& world) {
                                        try {
                                            run(world);
                                        } catch (const CommError& e) {
                                            texts[world.rank()] = e.what();
                                            throw;
                                        }
                                    }),
                    CommError);
    for (const std::string& text : texts) {
        INFO(text);
        CHECK(text.find("all_reduce of gradients, who has which, float64 (6,) at ranks_test.cpp:") != std::string::npos);
        CHECK(text.find(" (step 2)") != std::string::npos);
        CHECK(text.find("barrier at ranks_test.cpp:") != std::string::npos);
    }
}

TEST_CASE("spawn refuses what it cannot run") {
    FAILS(ValueError, "parallel::init: timeout must be positive, got 0", parallel::init({.timeout = 0}));
    CHECK(parallel::init().size() == 1);  // no launcher has started the tests
    FAILS(ValueError, "parallel::init: was called before", parallel::init());
    FAILS(ValueError, "parallel::spawn: at least one rank must run, not 0", parallel::spawn(0, [](Group) {}));
}

TEST_CASE("a graph cannot hold a collective") {
    FAILS(TapeError, "all_reduce: a graph cannot hold what other ranks compute",
          trace([](const Tensor& x) { return Group().all_reduce(x); }, {{"x", ones({2})}}));
}

}  // namespace
