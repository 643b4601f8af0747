// Caches device memory in the order of streams.
#pragma once

#include "tapir/core/storage.h"
#include "tapir/cuda/context.h"

namespace tapir::gpu {

/// Temporary memory of a kernel, on the current stream; given back in stream order.
class Scratch {
 public:
    explicit Scratch(std::size_t bytes);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    template <class T = std::byte>
    T* as() const noexcept {
        return reinterpret_cast<T*>(storage_.data);
    }

 private:
    Storage storage_;
};

}  // namespace tapir::gpu
