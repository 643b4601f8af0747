// Storage: the bytes that one or several tensors (views) use. Users meet it through Tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tapir/core/device.h"
#include "tapir/core/error.h"
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#endif

namespace tapir {
namespace detail {

// Reference counts. While the process has one thread they use no atomic instructions. The last owner never
// needs one, because no other thread can take a reference from it.
inline void add_ref(std::uint32_t& count) noexcept {
#if __has_include(<sys/single_threaded.h>)
    if (__libc_single_threaded) {
        __atomic_store_n(&count, __atomic_load_n(&count, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
        return;
    }
#endif
    __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
}

/// Returns true if this was the last reference.
inline bool drop_ref(std::uint32_t& count) noexcept {
    const std::uint32_t seen = __atomic_load_n(&count, __ATOMIC_ACQUIRE);
    if (seen == 1) return true;
#if __has_include(<sys/single_threaded.h>)
    if (__libc_single_threaded) {
        __atomic_store_n(&count, seen - 1, __ATOMIC_RELAXED);
        return false;
    }
#endif
    return __atomic_fetch_sub(&count, 1, __ATOMIC_ACQ_REL) == 1;
}

}  // namespace detail

/// Reference-counted bytes on a device.
struct Storage {
    std::uint32_t refs = 1;
    std::uint32_t version = 0;  ///< raised by every in-place write, through whichever view; see version_now()
    std::byte* data = nullptr;
    std::size_t nbytes = 0;
    void (*release)(Storage*) = nullptr;  ///< frees `data`; null: the bytes are part of the tensor's own block
    void* context = nullptr;              ///< passed to release
    void* stream = nullptr;               ///< the stream it was allocated on (devices with streams)
    Loc last_write{};                     ///< the user's line of the last in-place write
    Device device;
    std::uint16_t block = 0;    ///< internal: size of the block that holds tensor and storage, in units of 64 bytes; 0: they are a row of batch()
    bool is_exposed = false;    ///< data() or a capsule gave out the address: writes through it do not raise the version
    bool is_part = false;       ///< of the bytes of another storage: context points to a StorageWhole
    bool is_unchecked = false;  ///< other threads write to it at any time: a tape does not mind (parallel::UncheckedWrites)

    std::uint32_t version_now() const noexcept { return __atomic_load_n(&version, __ATOMIC_RELAXED); }
    void mark_written(Loc loc) noexcept {
        __atomic_store_n(&version, version_now() + 1, __ATOMIC_RELAXED);
        __atomic_store(&last_write, &loc, __ATOMIC_RELAXED);
    }
    void mark_exposed() noexcept { __atomic_store_n(&is_exposed, true, __ATOMIC_RELAXED); }
};
static_assert(sizeof(Storage) == 64);

/// Names the storage whose bytes another is a part of.
struct StorageWhole {
    Storage* whole;
};
/// The storage that was allocated: `storage`, or the one that it is a part of.
inline Storage& allocated(Storage& storage) noexcept { return storage.is_part ? *static_cast<StorageWhole*>(storage.context)->whole : storage; }
inline const Storage& allocated(const Storage& storage) noexcept {
    return storage.is_part ? *static_cast<const StorageWhole*>(storage.context)->whole : storage;
}

}  // namespace tapir
