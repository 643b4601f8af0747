// The two checksums of files, inside the library: CRC-32 of gzip, zip and PNG, and CRC-32C of safetensors files and TensorBoard's events.
// Both are 0 for no bytes. crc(crc(0, a), b) is the checksum of a followed by b.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tapir::io {

std::uint32_t crc32(std::uint32_t before, const void* from, std::size_t count) noexcept;
/// Castagnoli's polynomial, RFC 3720. x86-64 has an instruction for it, which is about as fast as memory.
std::uint32_t crc32c(std::uint32_t before, const void* from, std::size_t count) noexcept;

}  // namespace tapir::io
