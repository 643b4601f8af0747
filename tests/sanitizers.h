// share(n): how many of n random programs, files or mutations a test runs. All of them; under a sanitizer, which takes ten times as long, the
// first eighth, or another part. kThreadSanitizer: for tests of races that are meant.
#pragma once

namespace tapir::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

template <class Int>
constexpr Int share(Int n, Int part = 8) {
    return kSanitized ? (n + part - 1) / part : n;
}

}  // namespace tapir::test
