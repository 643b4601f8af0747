// Sets the number of threads for large ops while it lives.
#pragma once

#include "tapir/core/parallel.h"

namespace tapir::test {

class ThreadsScope {
 public:
    explicit ThreadsScope(int count) : before_(num_threads()) { set_num_threads(count); }
    ~ThreadsScope() { set_num_threads(before_); }
    ThreadsScope(const ThreadsScope&) = delete;
    ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
    int before_;
};

}  // namespace tapir::test
