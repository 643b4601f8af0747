// What ranks do in tests: run by threads of one process (ranks_test.cpp), and by processes (ranks_main.cpp).
#pragma once

#include <tapir/tapir.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tapir/nn/parallel/group.h"

namespace cases {

using namespace tapir;
using parallel::CommError;
using parallel::Group;
using parallel::Reduce;

struct Case {
    const char* name;
    int least_ranks;
    void (*run)(const Group& world);
};

std::vector<Case> group_cases();
std::vector<Case> parameter_server_cases();
std::vector<Case> pipeline_cases();
std::vector<Case> profile_cases();
std::vector<Case> replicas_cases();
std::vector<Case> sharded_cases();
std::vector<Case> sync_batch_norm_cases();
std::vector<Case> tensor_parallel_cases();
inline std::vector<Case> all_cases() {
    std::vector<Case> all;
    for (const auto& cases : {group_cases, parameter_server_cases, pipeline_cases, profile_cases, replicas_cases, sharded_cases,
                              sync_batch_norm_cases, tensor_parallel_cases}) {
        for (const Case& one : cases()) all.push_back(one);
    }
    return all;
}

// Catch2 is for one thread.
inline void require(bool holds, const std::string& what, Loc loc = Loc::current()) {
    if (!holds) throw std::logic_error(std::string(loc.file_name()) + ":" + std::to_string(loc.line()) + ": does not hold: " + what);
}
inline void require_equal(const Tensor& have, const Tensor& want, Loc loc = Loc::current()) {
    require(have.dtype() == want.dtype() && equal(have, want), "have " + have.str() + ", want " + want.str(), loc);
}
inline void require_close(const Tensor& have, const Tensor& want, double tolerance, Loc loc = Loc::current()) {
    require(have.shape() == want.shape() && allclose(have, want, tolerance, tolerance), "have " + have.str() + ", want " + want.str(), loc);
}
template <class E, class Call>
std::string message_of(const Call& call, Loc loc = Loc::current()) {
    try {
        call();
    } catch (const E& e) {
        return e.what();
    }
    require(false, "nothing was thrown", loc);
    return {};
}
inline void require_in(const std::string& part, const std::string& text, Loc loc = Loc::current()) {
    require(text.find(part) != std::string::npos, "\"" + part + "\" in \"" + text + "\"", loc);
}

}  // namespace cases
