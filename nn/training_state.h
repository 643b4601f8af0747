// TrainingState: all of a training run in one file. A stopped run continues as if it had not been stopped, to the bit, given as many
// threads (core/parallel.h) as before.
//
//     std::int64_t steps = 0;
//     double best = 0;
//     nn::TrainingState run("run.safetensors");
//     run("model", model)("adam", adam)("schedule", schedule)("loader", loader);
//     run("random", default_generator())("steps", steps)("best", best);
//     run.load();                                        // returns false if there is no file yet
//     for (std::int64_t epoch : loader.epochs(10)) {     // continues in the epoch that was saved, or after it if it was over
//         for (auto& [x, y] : loader) {                  // continues with the batch after the one that was saved
//             ...
//             if (++steps % 1000 == 0) run.save();       // within an epoch,
//         }
//         best = std::max(best, accuracy(model));
//         schedule.step();
//         run.save();                                    // and at its end, behind all that belongs to it
//     }
//
// The loader counts the epochs. A number of your own that counts them (`for (; epoch < 10; ++epoch)`) cannot tell if a save
// was made within an epoch or at its end, before the ++: in the latter case it would count that epoch twice. Without a loader, save
// behind the ++: `while (epoch < 10) { ...; ++epoch; run.save(); }`.
//
// After a save within an epoch the first loop over the loader has the rest of that epoch: no batch, if the save was at its last
// batch. The code behind the loop then runs as in any epoch. A loop that was left by break, and then saved, continues
// behind the batch where it was left.
//
// It is named a state, not a checkpoint, because checkpoint() (autograd/checkpoint.h) is something else. The file is a safetensors
// file whose names begin with those of the parts: "model.encoder.weight".
#pragma once

#include <concepts>
#include <string>
#include <type_traits>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/generator.h"
#include "tapir/core/named_tensor.h"
#include "tapir/core/std_function.h"
#include "tapir/ops/make/make.h"

namespace tapir::nn {

struct TrainingStateOptions {
    int keep = 1;  ///< keeps this many last states: "run.safetensors", the one before it "run.safetensors.1", ...
};

struct TrainingStateLoadOptions {
    /// True: parts that the file lacks, because they were added to the program later, are left unchanged.
    bool allow_missing = false;
};

class TrainingState {
 public:
    /// Throws ValueError for an empty path and for keep below 1.
    explicit TrainingState(TextArg path, const TrainingStateOptions& options = {}, Loc loc = Loc::current());

    /// Names a part: anything with state_dict() and load_state_dict(), as modules, optimizers, schedules, loaders and gradient scalers
    /// have; a generator; a number, bool, string or tensor. It must live as long as this does. Throws ValueError for a name that is
    /// empty, used already, or has a dot in it.
    template <class T>
        requires requires(T& part, const NamedTensors& state) {
            { part.state_dict() } -> std::convertible_to<NamedTensors>;
            part.load_state_dict(state);
        }
    TrainingState& operator()(const TextArg& name, T& part, Loc loc = Loc::current()) {
        return add(name, [&part] { return part.state_dict(); }, [&part](const NamedTensors& state) { part.load_state_dict(state); }, loc);
    }
    template <class T>
        requires std::is_arithmetic_v<T>
    TrainingState& operator()(const TextArg& name, T& value, Loc loc = Loc::current()) {
        constexpr DType dtype = std::is_floating_point_v<T> ? float64 : int64;
        return add_value(
            name, [&value] { return full({}, value, {dtype, cpu}); }, [&value](const Tensor& t) { value = taken<T>(t); }, dtype, /*dim=*/0, loc);
    }
    TrainingState& operator()(const TextArg& name, Generator& generator, Loc loc = Loc::current());
    TrainingState& operator()(const TextArg& name, std::string& text, Loc loc = Loc::current());
    /// Loading replaces the handle's tensor; if it was defined, the new one is on its device.
    TrainingState& operator()(const TextArg& name, Tensor& tensor, Loc loc = Loc::current());

    /// Writes a new file, flushes it to the disk and replaces the old one. Whenever the process or the machine stops, the last
    /// state that was saved, or the one before it, is complete on the disk. Leftovers of killed processes are removed.
    /// Throws FileError; then the old file is unchanged.
    void save(Loc loc = Loc::current()) const;
    /// Loads the last state that was saved into all parts; returns false if there is none. Throws FileError for a file that cannot be
    /// read, or whose parts are not the ones that were named, or do not fit; then no part changes.
    bool load(const TrainingStateLoadOptions& options = {}, Loc loc = Loc::current());
    /// Like load(), from another file: load_from("run.safetensors.1").
    void load_from(const TextArg& path, const TrainingStateLoadOptions& options = {}, Loc loc = Loc::current());

    const std::string& path() const noexcept { return path_; }

 private:
    using Save = std::function<NamedTensors()>;
    using Load = std::function<void(const NamedTensors&)>;
    struct Part {
        std::string name;
        Save save;
        Load load;
    };

    template <class T>
    static T taken(const Tensor& t) {
        if constexpr (std::is_integral_v<T>) {
            const auto number = t.item<std::int64_t>();
            if (static_cast<std::int64_t>(static_cast<T>(number)) != number) fail_range(number);
            return static_cast<T>(number);
        } else {
            return t.item<T>();
        }
    }
    [[noreturn]] static void fail_range(std::int64_t number);
    TrainingState& add(const std::string& name, Save save, Load load, const Loc& loc);
    TrainingState& add_value(const std::string& name, std::function<Tensor()> save, std::function<void(const Tensor&)> load, DType dtype, int dim,
                             const Loc& loc);
    std::string older(int age) const;
    void rotate(const Loc& loc) const;

    std::string path_;
    TrainingStateOptions options_;
    std::vector<Part> parts_;
};

}  // namespace tapir::nn
