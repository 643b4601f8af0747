// Optimizers' updates in graphs: compute the next parameter and state from a parameter, its gradient and its state.
#include <cstring>

#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/optim/rule_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {

void update_fields(Fields& f, const OptimizerRule& rule, void* options) {
    for (std::size_t i = 0; i < rule.option_count; ++i) {
        const OptimizerOption& option = rule.options[i];
        double value = option.get(options);
        if (option.is_flag) {
            bool flag = value != 0;
            f(option.name, flag);
            value = flag ? 1 : 0;
        } else {
            f(option.name, value);
        }
        option.set(options, value);
    }
}

namespace {

bool is_progress(const Tensor& t) { return t.shape() == Shape{2} && t.dtype() == float64 && t.device() == cpu; }
bool can_count(double steps) { return steps >= 0 && steps < 0x1p53; }

// progress is: steps, and Slot::number.
void step(const OptimizerRule& rule, const void* options, Slot& slot, Update& work, const double* progress) {
    slot.steps = static_cast<std::int64_t>(progress[0]);
    slot.number = progress[1];
    work.first = slot.steps == 0;
    ++slot.steps;
    rule.update(options, slot, work);
}

}  // namespace

bool update_into(const OptimizerRule& rule, const void* options, const FormCall& x, const Tensor* out) {
    if (detail::is_watched()) return false;
    const BufferNames names = rule.buffers(options);
    int count = 1;  // of the parameter and the buffers; the progress follows them
    for (const char* name : names.of) count += name != nullptr;
    const Tensor& parameter = x[0];
    const DType dtype = parameter.dtype();
    if (x.count < count + 2 || dtype != computed_in(dtype)) return false;
    const auto operand_of = [&](int result) -> const Tensor& { return x[result == 0 ? 0 : result + 1]; };
    const auto is_alike = [&](const Tensor& t) {
        return t.dtype() == dtype && t.device() == cpu && t.is_contiguous() && t.shape() == parameter.shape();
    };
    if (!is_alike(x[1]) || !is_progress(operand_of(count)) || !operand_of(count).is_contiguous()) return false;
    for (int k = 0; k < count; ++k) {
        if (!is_alike(operand_of(k)) || !is_alike(out[k])) return false;
        for (int i = 0; i < x.count; ++i) {  // it must not write to another operand
            if (&x[i] != &operand_of(k) && parameter.numel() > 0 && x[i].raw_data() == out[k].raw_data()) return false;
        }
    }
    const double* progress = static_cast<const double*>(operand_of(count).raw_data());
    if (!can_count(progress[0])) return false;
    const detail::PauseRecording pause;
    rule.check(options, Loc{});
    for (int k = 0; k < count; ++k) {
        if (out[k].raw_data() != operand_of(k).raw_data()) std::memcpy(out[k].raw_data(), operand_of(k).raw_data(), out[k].nbytes());
    }
    Slot slot{out[0], {}, 0, 1, {}, false};
    Update work;
    work.parameter = out[0];
    work.gradient = x[1];
    for (int i = 0, k = 1; i < kMaxBuffers; ++i) {
        if (names.of[i]) work.buffers[i] = out[k++];
    }
    step(rule, options, slot, work, progress);
    auto* now = static_cast<double*>(out[count].raw_data());
    now[0] = static_cast<double>(slot.steps);
    now[1] = slot.number;
    return true;
}

std::vector<Tensor> run_update(const OptimizerRule& rule, const void* options, const FormCall& x) {
    const Loc loc{};
    const BufferNames names = rule.buffers(options);
    const Tensor &parameter = x[0], &gradient = x[1];
    const DType compute = computed_in(parameter.dtype());
    const auto check_alike = [&](const char* what, const Tensor& t) {
        if (t.shape() != parameter.shape())
            fail<ShapeError>(loc, "{}: the {} has shape {}, the parameter {}", rule.name, what, t.shape(), parameter.shape());
        if (!is_floating(t.dtype())) fail<DTypeError>(loc, "{}: the {} is {}", rule.name, what, t.dtype());
    };
    check_alike("parameter", parameter);
    check_alike("gradient", gradient);
    Slot slot{parameter, {}, 0, 1, {}, false};
    std::vector<Tensor> results;
    {
        const detail::PauseRecording pause;
        rule.check(options, loc);
        StepQueue queue;
        Update work;
        work.queue = &queue;
        const auto own = [&](const Tensor& t) {
            const Tensor copy = ready(t, compute);
            return copy.shares_storage(t) ? copy.clone() : copy;
        };
        work.parameter = own(parameter);
        work.gradient = ready(gradient, compute);
        int next = 2;
        for (int i = 0; i < kMaxBuffers; ++i) {
            if (!names.of[i]) continue;
            check_alike(names.of[i], x[next]);
            work.buffers[i] = own(x[next++]);
        }
        const Tensor& progress = x[next];
        if (!is_progress(progress)) {
            fail<ShapeError>(loc, "{}: the progress is {} {}, and needs to be float64 (2,) on the CPU", rule.name, progress.dtype(),
                             progress.shape());
        }
        const std::vector<double> counted = progress.to_vector<double>();
        if (!can_count(counted[0])) fail<ValueError>(loc, "{}: {} steps", rule.name, counted[0]);
        step(rule, options, slot, work, counted.data());
        queue.flush();
        results.push_back(work.parameter.to(parameter.dtype()));
        for (int i = 0; i < kMaxBuffers; ++i) {
            if (names.of[i]) results.push_back(work.buffers[i]);
        }
        slot.progress = detail::make_empty({2}, float64, cpu, loc);
        auto* now = static_cast<double*>(slot.progress.raw_data());
        now[0] = static_cast<double>(slot.steps);
        now[1] = slot.number;
        results.push_back(slot.progress);
    }
    if (detail::is_watched()) {
        std::vector<TensorImpl*> outputs;
        for (const Tensor& t : results) outputs.push_back(t.impl());
        rule.tell(options, {slot.steps, slot.number, slot.steps == 1, false},
                  {*rule.op, loc, x.inputs, x.count, outputs.data(), static_cast<int>(outputs.size()), nullptr, 0});
    }
    return results;
}

}  // namespace tapir::optim
