// Fibers on Boost.Context's assembly for changing stacks.
#include "tapir/core/fiber_impl.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "tapir/core/gdb/layout_impl.h"

#ifdef TAPIR_HAVE_BOOST_CONTEXT
#include <cxxabi.h>
#include <boost/context/detail/fcontext.hpp>
#endif
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace tapir::detail {
namespace {

std::size_t page_size() noexcept {
    static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

}  // namespace

FiberStack::FiberStack(std::size_t bytes) : size_((bytes + page_size() - 1) / page_size() * page_size()) {
    const std::size_t whole = size_ + page_size();
    void* const memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    if (::mprotect(memory, page_size(), PROT_NONE) != 0) {
        ::munmap(memory, whole);
        throw std::bad_alloc();
    }
    low_ = static_cast<std::byte*>(memory) + page_size();
#ifdef VALGRIND_STACK_REGISTER
    valgrind_ = VALGRIND_STACK_REGISTER(low_, high());  // a few instructions that do nothing outside of valgrind
#endif
}

FiberStack::~FiberStack() {
#ifdef VALGRIND_STACK_REGISTER
    VALGRIND_STACK_DEREGISTER(valgrind_);
#endif
    ::munmap(static_cast<std::byte*>(low_) - page_size(), size_ + page_size());
}

#ifdef TAPIR_HAVE_BOOST_CONTEXT
namespace context = boost::context::detail;

bool has_fibers() noexcept { return true; }

// For what runs between a note to address-sanitizer and the jump: it may have taken away the memory for the variables of checked functions.
#define TAPIR_LEAVES_STACK __attribute__((no_sanitize("address")))

struct FiberEntry {
    // The first function on a fiber's stack. It never returns.
    TAPIR_LEAVES_STACK static void run(context::transfer_t from) {
        Fiber& fiber = *jump_of(from).to;
        fiber.arrive(from.fctx, jump_of(from).from);
        Fiber::begin(fiber);
    }
    TAPIR_LEAVES_STACK static Fiber::Jump& jump_of(context::transfer_t from) noexcept { return *static_cast<Fiber::Jump*>(from.data); }
};

void Fiber::begin(Fiber& fiber) {
#if defined(__x86_64__)
    asm volatile(".cfi_undefined rip");  // backtraces end here: on this stack it has no caller
#endif
    fiber.run_();
    fiber.has_ended_ = true;
    fiber.suspend();
}

Fiber::Fiber(FiberStack& stack, std::function<void()> run) : stack_(stack), run_(std::move(run)) {
    context_ = context::make_fcontext(stack.high(), stack.size(), FiberEntry::run);
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack.low(), stack.size());  // the last frame of a fiber that had it before never returned
#endif
#if defined(__SANITIZE_THREAD__)
    tsan_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(tsan_);
#endif
}

void Fiber::exchange_exceptions() noexcept {
    auto* const now = reinterpret_cast<Handled*>(abi::__cxa_get_globals());
    std::swap(now->caught, handled_.caught);
    std::swap(now->uncaught, handled_.uncaught);
}

TAPIR_LEAVES_STACK void Fiber::resume() {
    exchange_exceptions();
#if defined(__SANITIZE_THREAD__)
    caller_tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&caller_fake_stack_, stack_.low(), stack_.size());
#endif
    jump_ = {nullptr, this};
    const context::transfer_t back = context::jump_fcontext(context_, &jump_);
    Fiber& last = *FiberEntry::jump_of(back).from;
    last.context_ = back.fctx;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(last.caller_fake_stack_, nullptr, nullptr);
#endif
    last.exchange_exceptions();
}

// Called where a fiber goes on, before anything else.
TAPIR_LEAVES_STACK void Fiber::arrive(void* context, Fiber* before) noexcept {
    if (before) {
        before->context_ = context;
        caller_ = before->caller_;
    } else {
        caller_ = context;
    }
#if defined(__SANITIZE_ADDRESS__)
    if (before) {
        __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
        caller_fake_stack_ = before->caller_fake_stack_;
        caller_low_ = before->caller_low_;
        caller_size_ = before->caller_size_;
    } else {
        __sanitizer_finish_switch_fiber(fake_stack_, &caller_low_, &caller_size_);
    }
#endif
}

TAPIR_LEAVES_STACK void Fiber::suspend() {
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(caller_tsan_, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(has_ended_ ? nullptr : &fake_stack_, caller_low_, caller_size_);
#endif
    jump_ = {this, nullptr};
    const context::transfer_t back = context::jump_fcontext(caller_, &jump_);
    arrive(back.fctx, FiberEntry::jump_of(back).from);
}

TAPIR_LEAVES_STACK void Fiber::give_way(Fiber& next) {
    exchange_exceptions();  // to those of the caller of resume()
    next.exchange_exceptions();
#if defined(__SANITIZE_THREAD__)
    next.caller_tsan_ = caller_tsan_;
    __tsan_switch_to_fiber(next.tsan_, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_, next.stack_.low(), next.stack_.size());
#endif
    jump_ = {this, &next};
    const context::transfer_t back = context::jump_fcontext(next.context_, &jump_);
    arrive(back.fctx, FiberEntry::jump_of(back).from);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // no virtual bases here
struct FiberLayout {
    static constexpr std::size_t context = offsetof(Fiber, context_), caller = offsetof(Fiber, caller_);
};

// For gdb: where a fiber that is suspended goes on. Registers are those that jump_fcontext() has saved, at these distances from the context.
extern "C" {
extern const gdb::LayoutEntry tapir_gdb_fiber[];
[[gnu::used, gnu::retain]] constexpr gdb::LayoutEntry tapir_gdb_fiber[] = {
    {"Fiber.context_", FiberLayout::context},
    {"Fiber.caller_", FiberLayout::caller},
#if defined(__x86_64__)
    {"saved.r12", 0x08},
    {"saved.r13", 0x10},
    {"saved.r14", 0x18},
    {"saved.r15", 0x20},
    {"saved.rbx", 0x28},
    {"saved.rbp", 0x30},
    {"saved.rip", 0x38},
    {"rsp", 0x40},  // the stack's end after the jump
#endif
    {},
};
}
#pragma GCC diagnostic pop
#else
bool has_fibers() noexcept { return false; }
Fiber::Fiber(FiberStack& stack, std::function<void()> run) : stack_(stack), run_(std::move(run)) {}
Fiber::~Fiber() = default;
void Fiber::exchange_exceptions() noexcept {}
void Fiber::begin(Fiber&) {}
void Fiber::resume() {}
void Fiber::suspend() {}
void Fiber::give_way(Fiber&) {}
#endif

}  // namespace tapir::detail
