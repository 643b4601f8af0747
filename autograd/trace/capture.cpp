// Runs graphs on a CUDA device as CUDA Graphs.
//
// From the second run with the same sizes on, steps that CUDA can capture are not run one by one: stretches of them are captured
// once, and each stretch is launched as one. Their results lie in a pool that belongs to the frame, laid out as during the
// capture. Each run copies the inputs into places there, since captured work reads the same addresses each time; parameters are
// read in place. Results are returned as copies.
//
// Steps that cannot be captured run between the stretches as usual: those that draw random numbers, read values, have sizes that depend on
// data or graphs inside, run on other devices, or turn out not to be capturable when tried (CannotCapture). Updates are written after all.
#include "tapir/autograd/trace/run/frame_impl.h"

#ifdef TAPIR_WITH_CUDA
#include <algorithm>

#include "tapir/autograd/trace/run/fused_impl.h"
#include "tapir/core/capture_impl.h"
#include "tapir/core/deterministic.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/linear/matmul.h"

namespace tapir::detail {

struct Plan::Captured {
    struct Stretch {
        std::size_t begin, end;  // in the frame's order
        std::shared_ptr<device_api::CapturedWork> work;
    };
    Device device;
    std::vector<bool> can;  // by step: nothing is known that prevents a capture
    std::shared_ptr<device_api::CapturePool> pool;
    // Memory for results written between stretches. Nothing else ever lies there, since they may be written long before they are read.
    std::shared_ptr<device_api::CapturePool> place_pool;
    std::vector<Stretch> stretches;
    std::vector<Tensor> places;                             // for slots that are made elsewhere and read by captured steps
    std::vector<std::pair<int, int>> inputs;                // the graph's inputs that are copied there: index, and the slot
    std::vector<std::pair<int, Tensor>> kept;               // captured results that others read
    std::vector<std::pair<Tensor, const std::byte*>> held;  // parameters and constants, with their addresses
    void* stream = nullptr;                                 // of the last run
    MatmulPrecision precision{};                            // the program's setting during the capture
    bool is_deterministic = false;
    bool is_ready = false, is_off = false;
    int failures = 0;

    void clear() {
        is_ready = false;
        stretches.clear();
        kept.clear();
        inputs.clear();
        places.clear();
        held.clear();
        pool.reset();
        place_pool.reset();
    }
};

bool is_captured(const Tensor& x) noexcept { return device_api::is_of_capture_pool(*x.impl()->storage); }
std::size_t bytes_of(const Plan::Captured& captured) noexcept {
    return captured.pool ? device_api::bytes_of(*captured.pool) + device_api::bytes_of(*captured.place_pool) : 0;
}

namespace {

constexpr int kMostFailures = 2;

}  // namespace

// True if all tensors of the step are on the device, and it does the same each time.
bool Plan::can_capture(const Frame& frame, std::size_t step, Device device) const {
    const Graph::Node& node = *steps_[step].node;
    const OpForm& form = node.form();
    const bool is_fused = is_fused_form(form);
    if (form.is_random || node.attributes().is_random() || (!is_fused && node.attributes().has_graph())) return false;
    if (form.data_sized && form.data_sized(frame.calls[step].call.attrs) != 0) return false;
    for (std::size_t k = 0; k < node.results.size(); ++k) {
        const Geometry& y = frame.seen[at(steps_[step].first_result + static_cast<int>(k))];
        if (y.is_defined && y.device != device) return false;
    }
    for (const int slot : steps_[step].inputs) {
        if (const Geometry& x = frame.seen[at(slot)]; x.is_defined) {
            if (x.device != device) return false;
            continue;
        }
        const auto held = std::find_if(held_.begin(), held_.end(), [&](const auto& one) { return one.first == slot; });
        if (held != held_.end()) {
            // The CPU's constants cannot change; its parameters may be written to.
            const Tensor& x = held->second->data;
            if (!x.defined() || (x.device() != device && held->second->kind != Graph::Kind::constant)) return false;
            continue;
        }
        const auto input = std::find(input_slots_.begin(), input_slots_.end(), slot);
        if (input == input_slots_.end()) continue;  // a result that is not made
        if (frame.given[static_cast<std::size_t>(input - input_slots_.begin())].device != device) return false;
    }
    return true;
}

void Plan::plan_capture(Frame& frame) const {
    Device device;
    for (const Geometry& seen : frame.seen) {
        if (!seen.is_defined || seen.device.type != DeviceType::cuda) continue;
        if (device != cpu && device != seen.device) return;  // more than one device
        device = seen.device;
    }
    if (device == cpu) return;
    auto captured = std::make_shared<Captured>();
    captured->device = device;
    for (std::size_t s = 0; s < tail_; ++s) captured->can.push_back(can_capture(frame, s, device));
    if (std::find(captured->can.begin(), captured->can.end(), true) != captured->can.end()) frame.captured = std::move(captured);
}

// Captures one stretch. Returns false if that fails; `reached` is the step that cannot be captured, or the end.
bool Plan::capture_steps(Frame& frame, std::size_t begin, std::size_t end, std::size_t& reached, const Loc& loc) const {
    Captured& captured = *frame.captured;
    std::vector<bool> is_own(at(slot_count_), false);
    const auto each_result = [&](std::size_t i, const auto& f) {
        const Step& step = steps_[at(frame.order[i])];
        for (std::size_t k = 0; k < step.node->results.size(); ++k) f(step.first_result + static_cast<int>(k));
    };
    // Tensors from outside get places of their own.
    for (std::size_t i = begin; i < end; ++i) each_result(i, [&](int slot) { is_own[at(slot)] = true; });
    for (std::size_t i = begin; i < end; ++i) {
        for (const int slot : steps_[at(frame.order[i])].inputs) {
            const Geometry& x = frame.seen[at(slot)];
            if (is_own[at(slot)] || !x.is_defined || frame.slots[at(slot)].defined()) continue;
            const device_api::CapturePoolScope from_pool(*captured.place_pool);
            frame.slots[at(slot)] = captured.places[at(slot)] = make_empty(x.shape, x.dtype, x.device, loc);
        }
    }
    std::shared_ptr<device_api::CapturedWork> work;
    reached = begin;
    try {
        device_api::CaptureScope scope(captured.pool);
        for (; reached < end; ++reached) {
            Call& call = frame.calls[at(frame.order[reached])];
            run_op(call, frame, loc);
            each_result(reached, [&](int slot) {
                const Tensor& y = frame.slots[at(slot)];
                const Geometry& as = frame.seen[at(slot)];
                if (y.defined() != as.is_defined || (y.defined() && !as.has_shape_of(y.impl()))) throw device_api::CannotCapture{};
            });
            for (const int dead : call.dead) {
                if (is_own[at(dead)]) frame.slots[at(dead)] = Tensor();
            }
        }
        work = scope.end();
    } catch (const device_api::CannotCapture&) {}
    if (work) {
        captured.stretches.push_back({begin, end, std::move(work)});
        return true;
    }
    for (std::size_t i = begin; i < end; ++i) each_result(i, [&](int slot) { frame.slots[at(slot)] = Tensor(); });
    for (Tensor& made : frame.made) made = Tensor();
    return false;
}

// Returns false if nothing can be captured; the frame is as before then.
bool Plan::capture(Frame& frame, const Tensor* const* given, const Loc& loc) const {
    Captured& captured = *frame.captured;
    captured.clear();
    captured.pool = device_api::make_capture_pool(captured.device);
    captured.place_pool = device_api::make_capture_pool(captured.device);
    captured.places.resize(at(slot_count_));
    captured.precision = float32_matmul_precision();
    captured.is_deterministic = is_deterministic();
    for (const auto& [slot, value] : held_) captured.held.emplace_back(value->data, value->data.defined() ? value->data.impl()->data : nullptr);
    std::vector<bool> is_read(at(slot_count_), false);
    const auto forget = [&](bool is_error) {
        for (const auto& [place, input] : frame.input_arguments) *place = given[input];
        for (std::size_t slot = 0; slot < frame.slots.size(); ++slot) {
            if (frame.seen[slot].is_defined && frame.seen[slot].device == captured.device) frame.slots[slot] = Tensor();
        }
        if (is_error) captured.clear();
    };
    try {
        for (std::size_t i = 0; i < input_slots_.size(); ++i) {
            const Geometry& x = frame.given[i];
            if (input_slots_[i] < 0 || x.device != captured.device) continue;
            const device_api::CapturePoolScope from_pool(*captured.place_pool);
            captured.places[at(input_slots_[i])] = make_empty(x.shape, x.dtype, x.device, loc);
        }
        for (const auto& [place, input] : frame.input_arguments) {
            const bool is_argument = place >= frame.arguments.data() && place < frame.arguments.data() + frame.arguments.size();
            if (const Tensor& x = captured.places[at(input_slots_[at(input)])]; x.defined() && is_argument) *place = &x;
        }
        for (std::size_t begin = 0; begin < tail_;) {
            const auto can = [&](std::size_t i) { return captured.can[at(frame.order[i])]; };
            std::size_t end = begin;
            while (end < tail_ && can(end)) ++end;
            if (end == begin) {
                ++begin;
                continue;
            }
            std::size_t reached;
            if (!capture_steps(frame, begin, end, reached, loc)) {
                if (reached < end) {
                    captured.can[at(frame.order[reached])] = false;
                } else {
                    for (std::size_t i = begin; i < end; ++i) captured.can[at(frame.order[i])] = false;
                }
                continue;
            }
            for (std::size_t i = begin; i < end; ++i) {
                const Step& step = steps_[at(frame.order[i])];
                for (const int slot : step.inputs) is_read[at(slot)] = true;
                for (std::size_t k = 0; k < step.node->results.size(); ++k) {
                    const int slot = step.first_result + static_cast<int>(k);
                    if (frame.slots[at(slot)].defined()) captured.kept.emplace_back(slot, frame.slots[at(slot)]);
                }
            }
            begin = end;
        }
    } catch (...) {
        forget(true);
        throw;
    }
    // A result that shares an input's memory must share that of the input given now.
    bool is_good = !captured.stretches.empty();
    for (const int slot : result_slots_) {
        const Tensor& y = frame.slots[at(slot)];
        for (const int input : input_slots_) {
            if (input >= 0 && y.defined() && captured.places[at(input)].defined()) is_good = is_good && !y.shares_storage(captured.places[at(input)]);
        }
    }
    forget(!is_good);
    if (!is_good) return false;
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        if (input_slots_[i] < 0 || !captured.places[at(input_slots_[i])].defined()) continue;
        if (is_read[at(input_slots_[i])]) {
            captured.inputs.emplace_back(static_cast<int>(i), input_slots_[i]);
        } else {
            captured.places[at(input_slots_[i])] = Tensor();
        }
    }
    return captured.is_ready = true;
}

// Runs a step that is not captured. Returns false if a result has another shape than in the first run.
bool Plan::run_between(Frame& frame, std::size_t i, const Loc& loc) const {
    Captured& captured = *frame.captured;
    Call& call = frame.calls[at(frame.order[i])];
    if (call.is_made) return true;
    if (call.into && call.into(call.call, call.results[0])) {
        for (const int dead : call.dead) frame.slots[at(dead)] = Tensor();
        return true;
    }
    if (call.into) make_loose(call, frame);
    const std::vector<int> dead = std::exchange(call.dead, {});
    const bool is_as_seen = make_results(call, frame, loc);
    for (std::size_t k = 0; k < call.step->node->results.size(); ++k) {
        Tensor& y = call.results[k];
        if (!y.defined()) continue;
        if (is_captured(y)) y = y.clone();  // a view of memory that may be overwritten
        Tensor& place = captured.places[at(call.step->first_result + static_cast<int>(k))];
        if (is_as_seen && place.defined()) place.copy_(y, loc);
    }
    call.dead = dead;
    for (const int slot : dead) frame.slots[at(slot)] = Tensor();
    return is_as_seen;
}

// Returns false if nothing was done; the steps must be run one by one then.
bool Plan::run_captured(Frame& frame, const Tensor* const* given, const Loc& loc) const {
    Captured& captured = *frame.captured;
    if (captured.is_off || thread.observed.here || watching_ops > 0 || watching_memory > 0) return false;
    if (captured.precision != float32_matmul_precision() || captured.is_deterministic != is_deterministic()) captured.clear();
    for (std::size_t i = 0; captured.is_ready && i < held_.size(); ++i) {
        const Tensor& now = held_[i].second->data;
        const auto& [then, place] = captured.held[i];
        if (now.impl() != then.impl() || (now.defined() && now.impl()->data != place)) captured.clear();  // their tensors were replaced
    }
    device_api::select(captured.device);
    if (!captured.is_ready) {
        if (frame.ran_on != &thread) return false;  // libraries allocate for a new thread, which a capture does not allow
        try {
            if (!capture(frame, given, loc)) {
                captured.is_off = true;
                return false;
            }
        } catch (const Error&) {  // out of memory, or an error of CUDA: it may work without a capture
            captured.is_off = ++captured.failures >= kMostFailures;
            return false;
        }
    }
    void* stream = device_api::current_stream(captured.device.index);
    if (captured.stream && captured.stream != stream) device_api::order_after(stream, captured.stream);
    captured.stream = stream;
    device_api::use_here(*captured.place_pool);
    for (const auto& [slot, value] : held_) {
        if (value->data.defined() && value->data.device() == captured.device) device_api::used_here(*value->data.impl()->storage);
    }
    for (const auto& [input, slot] : captured.inputs) captured.places[at(slot)].copy_(*given[input], loc);
    if (!frame.outgoing.empty()) start_outgoing(frame, loc);
    for (const auto& [slot, tensor] : captured.kept) frame.slots[at(slot)] = is_captured(tensor) ? tensor : alias(tensor.impl());
    bool is_as_seen = true;
    auto stretch = captured.stretches.begin();
    for (std::size_t i = 0; i < tail_;) {
        if (is_as_seen && stretch != captured.stretches.end() && stretch->begin == i) {
            const CallerScope caller(loc);
            name_op("graph", loc);
            device_api::run_again(*stretch->work);
            i = stretch->end;
            ++stretch;
            continue;
        }
        // If the sizes differ, the captured work does not apply.
        is_as_seen = run_between(frame, i, loc) && is_as_seen;
        captured.is_off = !is_as_seen;
        ++i;
    }
    if (captured.is_off) captured.clear();
    return true;
}

}  // namespace tapir::detail
#endif
