// CUDA objects that belong to one thread; when it ends, another thread gets them.
#pragma once

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
    };
    static Spare& spare = *new Spare;
    struct Lent {
        T* object = nullptr;
        Lent() {
            const std::lock_guard lock(spare.mutex);
            if (spare.objects.empty()) {
                object = new T();
            } else {
                object = spare.objects.back();
                spare.objects.pop_back();
            }
        }
        ~Lent() {
            const std::lock_guard lock(spare.mutex);
            spare.objects.push_back(object);
        }
    };
    thread_local Lent lent;
    return *lent.object;
}

}  // namespace tapir::gpu
