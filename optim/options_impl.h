// What the optimizers do with their options.
#pragma once

#include <initializer_list>
#include <utility>

#include "tapir/core/fail_impl.h"
#include "tapir/optim/optimizer.h"

namespace tapir::optim {

/// Throws ValueError for a number that is negative or nan.
inline void check_not_negative(const char* op, std::initializer_list<std::pair<const char*, double>> numbers, const Loc& loc) {
    for (const auto& [name, value] : numbers) {
        if (!(value >= 0)) fail<ValueError>(loc, "{}: {} must not be negative, got {}", op, name, value);
    }
}

/// Throws ValueError for a number outside [0, 1).
inline void check_fraction(const char* op, std::initializer_list<std::pair<const char*, double>> numbers, const Loc& loc) {
    for (const auto& [name, value] : numbers) {
        if (!(value >= 0 && value < 1)) fail<ValueError>(loc, "{}: {} must be in [0, 1), got {}", op, name, value);
    }
}

template <class Options>
GroupsOf<Options>::GroupsOf(const std::vector<Tensor>& parameters, const Options& options, const Loc& loc) {
    GroupsOf::add_param_group(parameters, options, loc);
}

template <class Options>
void GroupsOf<Options>::add_param_group(const std::vector<Tensor>& parameters, const Options& options, Loc loc) {
    check(options, loc);
    add_group(parameters, loc);
    options_.push_back(options);
}

template <class Options>
Options& GroupsOf<Options>::options(std::size_t group, Loc loc) {
    check_group(group, loc);
    return options_[group];
}

template <class Options>
std::vector<Optimizer::Option> GroupsOf<Options>::option_list(std::size_t group) {
    std::vector<Option> result;
    list(options_[group], [&](const char* name, auto& value) { result.push_back({name, &value}); });
    return result;
}

template <class Options>
void GroupsOf<Options>::check_options(std::size_t group, const Loc& loc) const {
    check(options_[group], loc);
}

}  // namespace tapir::optim
