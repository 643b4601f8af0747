// CUDA objects that belong to one thread; when it ends, another thread gets them.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace tapir::gpu {

/// Returns the calling thread's own T. It is never destroyed, since CUDA may be gone when a thread ends: the next thread that asks
/// gets it unchanged.
template <class T>
T& thread_own() {
    struct Spare {
        std::mutex mutex;
        std::vector<T*> objects;
        std::size_t made = 0;
    };
    static Spare& spare = *new Spare;
    struct Lent {
        T* object = nullptr;
        Lent() {
            const std::lock_guard lock(spare.mutex);
            if (spare.objects.empty()) {
                spare.objects.reserve(spare.made + 1);
                object = new T();
                ++spare.made;
            } else {
                object = spare.objects.back();
                spare.objects.pop_back();
            }
        }
        ~Lent() {
            const std::lock_guard lock(spare.mutex);
            spare.objects.push_back(object);  // there is room for all that were made
        }
    };
    thread_local Lent lent;
    return *lent.object;
}

}  // namespace tapir::gpu
