// Reading a state_dict() back by its names, inside the library: of optimizers, schedules, loaders and what else keeps one.
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
    /// Null, for finish() to tell of, where there is none of that name and shape.
    const Tensor* tensor(const std::string& name, const Shape& shape);
    /// The same, but nothing is wrong where there is none of that name.
    const Tensor* tensor_if_any(const std::string& name, const Shape& shape);
    /// Of any shape. Empty where there is none.
    std::vector<double> numbers(const std::string& name);
    /// 0 where there is none.
    double number(const std::string& name);
    /// All 64 bits of an int64; of a floating dtype too, but "out of range" for a fraction.
    std::int64_t integer(const std::string& name);
    /// An integer from 0 up; "out of range" else.
    std::int64_t count(const std::string& name);
    /// For a value that its owner cannot have.
    void is_out_of_range(const std::string& name);

    /// Throws ValueError that lists what was missing, of another shape or out of range, and the names that nobody asked for unless
    /// others may have more to keep.
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
