// Saves and restores a training run.
#include "tapir/nn/training_state.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/core/io/safetensors_impl.h"
#include "tapir/core/io/shown_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/nn/state_diff_impl.h"
#include "tapir/ops/make/make.h"

namespace tapir::nn {
namespace {

bool exists(const std::string& path) {
    struct stat status{};
    return ::stat(path.c_str(), &status) == 0;
}

std::string_view part_of(std::string_view name) { return name.substr(0, name.find('.')); }

void append(std::string& list, std::string_view what) { (list += list.empty() ? "" : ", ") += what; }

}  // namespace

TrainingState::TrainingState(TextArg path, const TrainingStateOptions& options, Loc loc) : path_(std::move(path)), options_(options) {
    const CallerScope caller(loc);
    if (path_.empty()) fail<ValueError>(loc, "TrainingState: the path is empty");
    if (options.keep < 1) fail<ValueError>(loc, "TrainingState: keep must be at least 1, got {}", options.keep);
}

void TrainingState::fail_range(std::int64_t number) { fail<ValueError>(Loc{}, "{} does not fit into the variable", number); }

TrainingState& TrainingState::add(const std::string& name, Save save, Load load, const Loc& loc) {
    if (name.empty() || name.find('.') != std::string::npos || name == "__metadata__") {
        fail<ValueError>(loc, "TrainingState: \"{}\" cannot name a part: a name has no dots", name);
    }
    for (const Part& part : parts_) {
        if (part.name == name) fail<ValueError>(loc, "TrainingState: there is a part \"{}\" already", name);
    }
    parts_.push_back({name, std::move(save), std::move(load)});
    return *this;
}

TrainingState& TrainingState::add_value(const std::string& name, std::function<Tensor()> save, std::function<void(const Tensor&)> load, DType dtype,
                                        int dim, const Loc& loc) {
    return add(
        name, [save = std::move(save)] { return NamedTensors{{"", save()}}; },
        [load = std::move(load), dtype, dim](const NamedTensors& state) {
            const bool fits = state.size() == 1 && state[0].name.empty() && (dim < 0 || state[0].tensor.dim() == dim) &&
                (dim < 0 || state[0].tensor.dtype() == dtype);
            if (!fits) fail<ValueError>(Loc{}, "the file has another kind of value there");
            load(state[0].tensor);
        },
        loc);
}

TrainingState& TrainingState::operator()(const TextArg& name, Generator& generator, Loc loc) {
    const CallerScope caller(loc);
    const auto save = [&generator] {
        const Generator::State state = generator.state();
        return tensor(std::vector<std::int64_t>{std::bit_cast<std::int64_t>(state.seed), std::bit_cast<std::int64_t>(state.offset)}, cpu);
    };
    const auto load = [&generator](const Tensor& t) {
        if (t.numel() != 2) fail<ValueError>(Loc{}, "a generator's state is two numbers, not {}", t.numel());
        const std::vector<std::int64_t> numbers = t.to_vector<std::int64_t>();
        generator.set_state({std::bit_cast<std::uint64_t>(numbers[0]), std::bit_cast<std::uint64_t>(numbers[1])});
    };
    return add_value(name, save, load, int64, /*dim=*/1, loc);
}

TrainingState& TrainingState::operator()(const TextArg& name, std::string& text, Loc loc) {
    const CallerScope caller(loc);
    const auto save = [&text] { return tensor(std::vector<unsigned char>(text.begin(), text.end()), cpu); };
    const auto load = [&text](const Tensor& t) {
        const std::vector<unsigned char> bytes = t.to_vector<unsigned char>();
        text.assign(bytes.begin(), bytes.end());
    };
    return add_value(name, save, load, uint8, /*dim=*/1, loc);
}

TrainingState& TrainingState::operator()(const TextArg& name, Tensor& t, Loc loc) {
    const CallerScope caller(loc);
    const auto load = [&t](const Tensor& loaded) { t = t.defined() ? loaded.to(t.device()) : loaded; };
    return add_value(name, [&t] { return t.detach(); }, load, uint8, /*dim=*/-1, loc);
}

std::string TrainingState::older(int age) const { return age == 0 ? path_ : path_ + "." + std::to_string(age); }

// Moves the states one place back. The last one stays in its own place too, until the new one is renamed onto it.
void TrainingState::rotate(const Loc& loc) const {
    if (options_.keep == 1 || !exists(path_)) return;
    const auto check = [&](int result, const std::string& name) {
        if (result != 0) fail<FileError>(loc, "TrainingState: {}: renaming: {}", name, std::strerror(errno));
    };
    for (int age = options_.keep - 1; age > 1; --age) {
        if (!exists(older(age - 1))) continue;
        io::step();
        check(::rename(older(age - 1).c_str(), older(age).c_str()), older(age - 1));
    }
    io::step();
    if (::unlink(older(1).c_str()) != 0 && errno != ENOENT) check(-1, older(1));  // exists if keep is 2
    io::step();
    if (::link(path_.c_str(), older(1).c_str()) == 0) return;
    check(::rename(path_.c_str(), older(1).c_str()), path_);  // the file system has no links; load() looks there
}

void TrainingState::save(Loc loc) const {
    const CallerScope caller(loc);
    const tapir::detail::PauseRecording pause;
    NamedTensors all;
    for (const Part& part : parts_) {
        for (NamedTensor& t : part.save()) {
            all.push_back({t.name.empty() ? part.name : part.name + "." + t.name, std::move(t.tensor)});
        }
    }
    io::save_safetensors("TrainingState", path_, all, {{"format", kTrainingStateFormat}}, [&] { rotate(loc); }, loc);
}

bool TrainingState::load(const TrainingStateLoadOptions& options, Loc loc) {
    const CallerScope caller(loc);
    for (int age = 0; age < options_.keep; ++age) {
        if (!exists(older(age))) continue;
        load_from(older(age), options, loc);
        return true;
    }
    return false;
}

void TrainingState::load_from(const TextArg& path, const TrainingStateLoadOptions& options, Loc loc) {
    const CallerScope caller(loc);
    const tapir::detail::PauseRecording pause;
    FileMetadata metadata;
    NamedTensors all = io::load_safetensors("TrainingState", path, &metadata, loc);
    if (std::find(metadata.begin(), metadata.end(), std::pair<std::string, std::string>("format", kTrainingStateFormat)) == metadata.end()) {
        fail<FileError>(loc, "TrainingState: {}: not a file that TrainingState has saved, but other tensors: nn::load() takes a module's", path);
    }
    std::vector<NamedTensors> states(parts_.size());
    std::string unexpected, missing;
    for (NamedTensor& t : all) {
        const std::string_view name = part_of(t.name);
        const auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.name == name; });
        if (part == parts_.end()) {
            if (unexpected.empty() || !std::string_view(unexpected).ends_with(name)) append(unexpected, name);
            continue;
        }
        const std::string rest = name.size() < t.name.size() ? t.name.substr(name.size() + 1) : "";
        states[static_cast<std::size_t>(part - parts_.begin())].push_back({rest, std::move(t.tensor)});
    }
    std::vector<bool> is_missing(parts_.size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {  // a part without tensors may have none in the file
        is_missing[i] = states[i].empty() && !parts_[i].save().empty();
        if (is_missing[i] && !options.allow_missing) append(missing, parts_[i].name);
    }
    if (!unexpected.empty() || !missing.empty()) {
        const char* hint = unexpected.empty() ? " (load({.allow_missing = true}) leaves them as they are)" : "";
        fail<FileError>(loc, "TrainingState: {}: the file has other parts than this state{}{}", path,
                        missing.empty() ? "" : "\n  missing: " + missing + hint, unexpected.empty() ? "" : "\n  unexpected: " + unexpected);
    }

    std::vector<NamedTensors> before;  // for restoring
    for (const Part& part : parts_) {
        NamedTensors state = part.save();
        for (NamedTensor& t : state) t.tensor = t.tensor.defined() ? t.tensor.clone() : t.tensor;
        before.push_back(std::move(state));
    }
    std::size_t at = 0;
    const auto go_back = [&] {  // includes the part that failed, which may be a user's
        for (std::size_t i = 0; i <= at; ++i) {
            try {
                parts_[i].load(before[i]);
            } catch (...) {  // restore the others all the same
            }
        }
    };
    try {
        for (; at < parts_.size(); ++at) {
            if (!is_missing[at]) parts_[at].load(states[at]);
        }
    } catch (const OutOfMemory&) {
        go_back();
        throw;
    } catch (const Error& error) {
        go_back();
        fail<FileError>(loc, "TrainingState: {}: {}: {}", path, parts_[at].name, io::text_of(error));
    } catch (...) {
        go_back();
        throw;
    }
}

}  // namespace tapir::nn
