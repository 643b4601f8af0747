// What the fuzzers share: a file in memory with the bytes of one run, and what a reader may throw.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tapir/core/error.h"

namespace fuzz {

/// A regular file without a place in a folder.
inline const std::string& file_of(const std::uint8_t* data, std::size_t size) {
    static const int descriptor = ::memfd_create("input", MFD_CLOEXEC);
    static const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
    if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
    return path;
}

/// Runs a reader. Anything but a result or a FileError, which begins with the caller's line, is a finding.
template <class Read>
int run(const Read& read) {
    try {
        read();
    } catch (const tapir::FileError& error) {
        if (error.where().line() == 0) std::abort();
    } catch (const tapir::Error& error) {
        std::fprintf(stderr, "not a FileError: %s\n", error.what());
        std::abort();
    }
    return 0;
}

}  // namespace fuzz
