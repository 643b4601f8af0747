// Marks results of other threads that a tape misses.
//
// Note [Computed elsewhere]
// A thread without a tape records nothing. If it computes with tensors that require a gradient while another thread's tape is
// alive, its results would be constants on that tape, and a part of the gradient would silently be missing. So they are marked:
// node.tape is NodeRef::kElsewhere and the number of the tape that had begun last when the first of the operands was used, and
// node.index is the line. A tape that had begun by then refuses them. To a later tape they are constants, like everything
// computed before it. Nothing is marked under a NoGradScope, and detach() gives a tensor without the mark.
//
// Threads without a tape only read one counter at each op, while no tape is alive anywhere.
#include <atomic>
#include <bit>
#include <cstring>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/thread_tapes_impl.h"
#include "tapir/core/fail_impl.h"

namespace tapir {
namespace {

// Lines of marked results, by their index in this table. Lines beyond its size are not named.
constexpr std::uint32_t kPlaces = 1024, kNoPlace = kPlaces;
std::atomic<const void*> places[kPlaces];
static_assert(sizeof(Loc) == sizeof(const void*));

std::uint32_t place_of(const Loc& loc) noexcept {
    const void* line;
    std::memcpy(&line, &loc, sizeof line);
    if (!line) return kNoPlace;
    const auto start = static_cast<std::uint32_t>((std::bit_cast<std::uintptr_t>(line) >> 3) * 0x9e3779b97f4a7c15u >> 54);
    for (std::uint32_t i = 0; i < 8; ++i) {
        std::atomic<const void*>& place = places[(start + i) % kPlaces];
        const void* there = place.load(std::memory_order_relaxed);
        if (!there) place.compare_exchange_strong(there, line);
        if (!there || there == line) return (start + i) % kPlaces;
    }
    return kNoPlace;
}

Loc line_at(std::uint32_t place) noexcept {
    Loc loc;
    const void* line = place < kPlaces ? places[place].load(std::memory_order_relaxed) : nullptr;
    std::memcpy(static_cast<void*>(&loc), &line, sizeof line);
    return line ? loc : Loc{};
}

// The mark for results computed from it now; 0: none.
std::uint32_t mark_of(const TensorImpl* operand) noexcept {
    const std::uint32_t now = NodeRef::kElsewhere | last_tape();
    if (operand->flags & TensorImpl::kRequiresGrad) return now;
    std::uint32_t tape = operand->node.tape;
    if (tape == 0 && (operand->flags & TensorImpl::kView)) tape = detail::recorded_write(operand->storage).tape;
    if (tape == 0 || (tape & NodeRef::kElsewhere)) return tape;
    return is_live(tape) ? now : 0;
}

bool is_later(std::uint32_t a, std::uint32_t b) noexcept { return ((a - b) & ~NodeRef::kElsewhere) < 0x40000000u; }

// Marks other tensors that see the elements of a result written in place.
void mark_storage(TensorImpl* out, NodeRef mark) noexcept {
    detail::recorded_write(out->storage) = {mark.tape, out->storage->version_now()};
    TensorImpl* owner = reinterpret_cast<TensorImpl*>(out->storage) - 1;
    if (owner->storage == out->storage && !(owner->flags & TensorImpl::kRequiresGrad)) owner->node = mark;
}

}  // namespace

void note_elsewhere(const RecordArgs& ran) noexcept {
    if (!ran.op.is_recorded()) return;
    NodeRef mark;
    for (int i = 0; i < ran.input_count; ++i) {
        if (!ran.inputs[i]->defined()) continue;
        const std::uint32_t tape = mark_of(ran.inputs[i]->impl());
        if (tape != 0 && (mark.tape == 0 || is_later(tape, mark.tape))) mark.tape = tape;
    }
    if (mark.tape == 0) return;
    mark.index = place_of(detail::caller(ran.loc));
    for (int k = 0; k < ran.output_count; ++k) {
        TensorImpl* out = ran.outputs[k];
        if (!out || !is_floating(out->dtype) || (out->flags & TensorImpl::kRequiresGrad)) continue;
        out->node = mark;
        out->node_version = out->storage->version_now();
        if (ran.input_count > 0 && ran.inputs[0]->impl() == out) mark_storage(out, mark);
    }
}

bool was_missed(std::uint32_t mark, const Log& log) noexcept { return (mark & NodeRef::kElsewhere) && is_later(mark, log.id); }

std::string computed_at(const TensorImpl* marked) {
    const Loc line = line_at(marked->node.index);
    return line.line() ? fmt::format(" at {}", detail::file_and_line(line)) : "";
}

}  // namespace tapir
