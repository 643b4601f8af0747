// Recompute-checkpointing.
//
// The checkpoint's record has the inputs as its inputs and keeps fn. Its rule runs fn again with the log switched on:
// it appends the new records after all others, and the walk goes through them with the same table of gradients (so that
// leaves and outer values get theirs). Then the new records are removed.
#include "tapir/autograd/checkpoint.h"

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/users_function_impl.h"
#include "tapir/core/autocast_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/own_lines_impl.h"

namespace tapir {
namespace {

struct CheckpointRecord : RecordObject {
    std::function<Tensor(const std::vector<Tensor>&)> fn;
    Generator::State state;
    std::optional<DType> autocast;  // the setting in the forward pass
};

void checkpoint_rule(Backward& b);
constexpr OpInfo checkpoint_op{"checkpoint", checkpoint_rule, "A function run again in backward."};
constexpr OpInfo anchor_op{"checkpoint_input", NonDiff, "A checkpoint's input in the second run."};

void checkpoint_rule(Backward& b) {
    Walk& walk = b.walk();
    Log& log = walk.log;
    const Tensor g = b.grad();
    auto& object = *static_cast<CheckpointRecord*>(b.object());
    std::vector<Tensor> inputs;
    for (int i = 0; i < b.input_count(); ++i) inputs.push_back(b.saved(i));
    const std::size_t begin = log.records.size();
    Log* const paused = detail::thread.log;
    struct Restore {
        Log* log;
        ~Restore() { detail::set_log(log); }
    } restore{paused};
    detail::set_log(&log);
    // Removes the second run's records, also when it fails.
    struct Records {
        Log& log;
        std::size_t begin;
        bool stay = false;
        ~Records() {
            if (stay) return;
            // Leaves that were met for the first time keep their records, and all records before them; they are few.
            for (const std::uint32_t leaf : log.leaves) begin = std::max<std::size_t>(begin, leaf + std::size_t{1});
            log.truncate(begin);
        }
    } records{log, begin, walk.recording};
    Tensor y;
    {
        const detail::KeptGenerator random(object.state);
        const AutocastScope autocast(object.autocast.value_or(bfloat16), object.autocast.has_value());
        const detail::OwnLines own;
        const UsersFunction told(walk);
        y = object.fn(inputs);
    }
    if (y.shape() != b.output_shape() || y.dtype() != g.dtype()) {
        fail<TapeError>(b.record().loc,
                        "checkpoint: the second run of the function gave shape {} and {}, the first run {} and {}; it must "
                        "depend on its inputs only",
                        y.shape(), name(y.dtype()), b.output_shape(), name(g.dtype()));
    }
    const std::size_t end = log.records.size();
    detail::set_log(paused);
    const std::uint32_t value = log.knows(y.impl()) ? log.value_of(y.impl(), b.record().loc) : kNoValue;
    if (value == kNoValue) return;
    if (value >= begin) {
        walk.extend(end);
        walk.add(value, g);
        walk.run(begin, end);
    } else {  // fn returned one of its inputs
        walk.add(value, g);
    }
}

}  // namespace

Tensor checkpoint(std::function<Tensor(const std::vector<Tensor>&)> fn, const std::vector<Tensor>& inputs, Loc loc) {
    if (!fn) fail<ValueError>(loc, "checkpoint: the function is null");
    if (detail::is_tracing() || !detail::thread.log) {  // a graph computes what it needs, when it needs it
        Tensor y = fn(inputs);
        if (!y.defined()) fail<ValueError>(loc, "checkpoint: the function returned an undefined tensor");
        return y;
    }
    auto object = detail::at_line(loc, [] { return std::make_unique<CheckpointRecord>(); });
    object->state = default_generator().state();
    object->autocast = detail::autocast_dtype();
    Tensor y;
    {
        const NoGradScope pause;
        y = fn(inputs);
    }
    if (!y.defined()) fail<ValueError>(loc, "checkpoint: the function returned an undefined tensor");
    Log* log = detail::thread.log;
    if (!log) return y;  // fn has ended the tape
    for (const Tensor& x : inputs) {
        if (y.is_same(x)) y = y.detach();
    }
    const CallerScope caller(loc);
    object->fn = std::move(fn);
    std::vector<const Tensor*> ins;
    for (const Tensor& x : inputs) ins.push_back(&x);
    TensorImpl* out = y.impl();
    RecordObject* raw = object.get();
    append_record(*log,
                  {checkpoint_op, loc, ins.data(), static_cast<int>(ins.size()), &out, 1, ins.data(), static_cast<int>(ins.size()), &raw, sizeof(raw),
                   /*is_object=*/true});
    log->records[out->node.index]->flags |= Record::kOpaque;
    static_cast<void>(object.release());
    return y;
}

}  // namespace tapir
