// Whole parts of a program on several threads, as against loops: see parallel_for() for these.
#pragma once

#include <exception>
#include <vector>
#ifndef _OPENMP
#include <thread>
#endif

namespace tapir::detail {

/// Calls work(0) ... work(parts - 1), each on a thread of its own if there are as many: work(0) on this one. Ops in them share nothing out to
/// further threads. Rethrows the exception of the first part that has one, when all have ended.
template <class Work>
void on_threads(int parts, const Work& work) {
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(parts));
    const auto run = [&](int part) {
        try {
            work(part);
        } catch (...) {
            errors[static_cast<std::size_t>(part)] = std::current_exception();
        }
    };
#ifdef _OPENMP
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int part = 0; part < parts; ++part) run(part);
#else  // builds for the thread sanitizer
    std::vector<std::thread> threads;
    for (int part = 1; part < parts; ++part) threads.emplace_back(run, part);
    run(0);
    for (std::thread& other : threads) other.join();
#endif
    for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

}  // namespace tapir::detail
