// Typed errors. Every mistake of the caller throws one of these and changes nothing. what() begins with the
// caller's file and line:  tree.cpp:42: matmul: inner dimensions differ: (2, 3) x (4, 5)
#pragma once

#include "tapir/core/compiler.h"  // first: it ends the compilation where the others would not compile

#include <exception>
#include <source_location>
#include <string>

namespace tapir {

/// A line of the user's program. Functions take it as a defaulted last argument.
using Loc = std::source_location;

class Error : public std::exception {
 public:
    Error(const std::string& message, const Loc& loc);
    const char* what() const noexcept override { return message_.c_str(); }
    /// Returns the line that made the mistake.
    const Loc& where() const noexcept { return loc_; }

 private:
    std::string message_;
    Loc loc_;
};

/// Shapes that do not fit together.
class ShapeError : public Error {
    using Error::Error;
};
/// An element type that the op does not accept.
class DTypeError : public Error {
    using Error::Error;
};
/// A device that does not exist, or operands on different devices.
class DeviceError : public Error {
    using Error::Error;
};
/// An index or a dimension number out of range.
class IndexError : public Error {
    using Error::Error;
};
/// A value that is not allowed: a negative size, a probability above 1, an undefined tensor.
class ValueError : public Error {
    using Error::Error;
};
/// A mistake in recording or in backward.
class TapeError : public Error {
    using Error::Error;
};
/// Memory could not be allocated.
class OutOfMemory : public Error {
    using Error::Error;
};
/// A file that cannot be read or written, or has invalid contents.
class FileError : public Error {
    using Error::Error;
};

/// While it lives, ops name `loc` in errors and records instead of the line that calls them. For functions that are
/// made of several ops and should name THEIR caller.
class CallerScope {
 public:
    [[nodiscard]] explicit CallerScope(const Loc& loc) noexcept;
    ~CallerScope();
    CallerScope(const CallerScope&) = delete;
    CallerScope& operator=(const CallerScope&) = delete;

 private:
    Loc previous_;
};

}  // namespace tapir
