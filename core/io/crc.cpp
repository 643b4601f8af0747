// Checksums.
#include "tapir/core/io/crc_impl.h"

#include <array>
#include <cstring>
#ifdef TAPIR_HAVE_ZLIB
#include <zlib.h>
#endif

namespace tapir::io {
namespace {

// Table for a CRC byte by byte with this polynomial, whose lowest power is in the highest bit.
constexpr std::array<std::uint32_t, 256> table_of(std::uint32_t polynomial) {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit) c = c & 1 ? polynomial ^ (c >> 1) : c >> 1;
        table[i] = c;
    }
    return table;
}

std::uint32_t by_table(const std::array<std::uint32_t, 256>& table, std::uint32_t c, const unsigned char* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) c = table[(c ^ bytes[i]) & 0xFF] ^ (c >> 8);
    return c;
}

constexpr auto kCastagnoli = table_of(0x82F63B78U);

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::uint32_t before, const unsigned char* bytes, std::size_t count) {
    std::uint64_t c = before;
    for (; count >= 8; count -= 8, bytes += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes, sizeof word);
        c = __builtin_ia32_crc32di(c, word);
    }
    auto rest = static_cast<std::uint32_t>(c);
    for (; count > 0; --count, ++bytes) rest = __builtin_ia32_crc32qi(rest, *bytes);
    return rest;
}
#endif

}  // namespace

#ifdef TAPIR_HAVE_ZLIB
std::uint32_t crc32(std::uint32_t before, const void* from, std::size_t count) noexcept {
    return static_cast<std::uint32_t>(::crc32_z(before, static_cast<const Bytef*>(from), count));
}
#else
static constexpr auto kOfGzip = table_of(0xEDB88320U);
std::uint32_t crc32(std::uint32_t before, const void* from, std::size_t count) noexcept {
    return ~by_table(kOfGzip, ~before, static_cast<const unsigned char*>(from), count);
}
#endif

std::uint32_t crc32c(std::uint32_t before, const void* from, std::size_t count) noexcept {
    const auto* bytes = static_cast<const unsigned char*>(from);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return ~by_instruction(~before, bytes, count);
#endif
    return ~by_table(kCastagnoli, ~before, bytes, count);
}

}  // namespace tapir::io
