// Reads a state_dict() by its names, inside the library: for optimizers, schedules, loaders and others that keep one.
//
//     StateReader reader("GradScaler", state, loc);
//     const double scale = reader.number("scale");
//     reader.finish();                                   // throws for all that was wrong; nothing has changed yet
//     scale_ = scale;
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tapir/core/named_tensor.h"

namespace tapir {

class StateReader {
 public:
    /// `owner`, whose state it is, and `state` must outlive it.
    StateReader(const char* owner, const NamedTensors& state, const Loc& loc);

    bool has(const std::string& name) const { return given_.contains(name); }
    /// Returns the tensor of that name and shape. If there is none it returns null, and finish() reports it.
    const Tensor* tensor(const std::string& name, const Shape& shape);
    /// Like tensor(), but a missing name is no error.
    const Tensor* tensor_if_any(const std::string& name, const Shape& shape);
    /// Returns numbers of any shape; empty if there are none.
    std::vector<double> numbers(const std::string& name);
    /// Returns 0 if there is none.
    double number(const std::string& name);
    /// Returns all 64 bits of an int64. Takes floating dtypes too, but a fraction is "out of range".
    std::int64_t integer(const std::string& name);
    /// Returns an integer from 0 up; others are "out of range".
    std::int64_t count(const std::string& name);
    /// Reports a value that its owner cannot have.
    void is_out_of_range(const std::string& name);

    /// Throws ValueError that lists what was missing, of another shape or out of range, and the names that nobody asked for unless
    /// `allow_more`: others may read those.
    void finish(bool allow_more = false);

 private:
    const Tensor* take(const std::string& name);

    const char* owner_;
    Loc loc_;
    std::unordered_map<std::string, const Tensor*> given_;
    std::unordered_map<std::string, const Tensor*> left_;
    const NamedTensors& state_;
    std::string missing_, different_, out_of_range_;
};

}  // namespace tapir
