// Optimizers' updates in graphs: of a parameter, its gradient and what is kept for it, the next of these.
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

std::vector<Tensor> run_update(const OptimizerRule& rule, const void* options, const FormCall& x) {
    const Loc loc{};
    const BufferNames names = rule.buffers(options);
    const Tensor &parameter = x[0], &gradient = x[1];
    const DType compute = computed_in(parameter.dtype());
    const auto check_alike = [&](const char* what, const Tensor& t) {
        if (t.shape() != parameter.shape()) fail<ShapeError>(loc, "{}: the {} has shape {}, the parameter {}", rule.name, what, t.shape(), parameter.shape());
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
        if (progress.shape() != Shape{2} || progress.dtype() != float64 || progress.device() != cpu) {
            fail<ShapeError>(loc, "{}: the progress is {} {}, and needs to be float64 (2,) on the CPU", rule.name, progress.dtype(), progress.shape());
        }
        const std::vector<double> counted = progress.to_vector<double>();
        if (!(counted[0] >= 0 && counted[0] < 0x1p53)) fail<ValueError>(loc, "{}: {} steps", rule.name, counted[0]);
        slot.steps = static_cast<std::int64_t>(counted[0]);
        slot.number = counted[1];
        work.first = slot.steps == 0;
        ++slot.steps;
        rule.update(options, slot, work);
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
