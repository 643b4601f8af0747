// Fibers: functions with stacks of their own, which one thread suspends and resumes. batch() runs each instance on one.
//
// Boost.Context changes the stack. What else belongs to a fiber is exchanged here: the exceptions that are being handled (the words of
// __cxa_get_globals()), and what sanitizers know of the stack. The state of ops is exchanged by the caller (ops/batch).
#pragma once

#include <cstddef>
#include <functional>

namespace tapir::detail {

/// True if this build has Boost.Context.
bool has_fibers() noexcept;

/// Memory for a stack, with a page in front of it that nobody may touch: too deep a recursion ends the process, as on a thread's stack.
/// Pages take memory when they are first used.
class FiberStack {
 public:
    /// Throws std::bad_alloc.
    explicit FiberStack(std::size_t bytes);
    ~FiberStack();
    FiberStack(const FiberStack&) = delete;
    FiberStack& operator=(const FiberStack&) = delete;

    void* low() const noexcept { return low_; }
    void* high() const noexcept { return static_cast<std::byte*>(low_) + size_; }
    std::size_t size() const noexcept { return size_; }

 private:
    void* low_;              // the first byte that may be used
    std::size_t size_;       // from there on
    unsigned valgrind_ = 0;  // its number of this stack, if it is running
};

class Fiber {
 public:
    /// The function must not throw. It begins at the first resume(). The stack must outlive the fiber.
    Fiber(FiberStack& stack, std::function<void()> run);
    /// The function must have ended, or not begun.
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    /// Runs the function until it, or that of the fiber that goes on in its place, suspends or ends. Call it on the thread's own stack.
    void resume();
    /// Returns to the caller of resume(). Call it on the fiber.
    void suspend();
    /// Lets another fiber, which does not run, go on in its place. Call it on the fiber.
    void give_way(Fiber& next);
    bool has_ended() const noexcept { return has_ended_; }

 private:
    struct Handled {  // what __cxa_get_globals() points to
        void* caught = nullptr;
        unsigned int uncaught = 0;
    };
    struct Jump {                              // tells the side that goes on who has gone
        Fiber *from = nullptr, *to = nullptr;  // null: the thread
    };
    static void begin(Fiber& fiber);
    void exchange_exceptions() noexcept;
    void arrive(void* context, Fiber* before) noexcept;

    FiberStack& stack_;
    std::function<void()> run_;
    void* context_ = nullptr;  // where it goes on
    void* caller_ = nullptr;   // where the caller of resume() goes on
    Jump jump_;                // the last one that it has part in; not on a stack: see TAPIR_LEAVES_STACK
    Handled handled_;          // its own; while it runs, those of the caller of resume()
    bool has_ended_ = false;
    // Of the sanitizers.
    void* fake_stack_ = nullptr;
    void* caller_fake_stack_ = nullptr;
    const void* caller_low_ = nullptr;
    std::size_t caller_size_ = 0;
    void* tsan_ = nullptr;
    void* caller_tsan_ = nullptr;
    friend struct FiberEntry;
    friend struct FiberLayout;
};

}  // namespace tapir::detail
