// Encodes messages as Protocol Buffers (protobuf.dev/programming-guides/encoding): fields, each with its number. TensorBoard's
// messages are few and only written, so this replaces the protobuf package: 15,000 generated lines and a library
// of 0.8 MB, which a build might lack.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapir::summary {

/// A message that grows field by field. Fields appear in the order of the calls; a repeated field is added once for each value.
///     Message event;
///     event.real(1, walltime).number(2, step).message(5, summary);
class Message {
 public:
    /// Adds an int32, int64, bool or enum.
    Message& number(int field, std::int64_t value) {
        key(field, kVarint);
        varint(static_cast<std::uint64_t>(value));
        return *this;
    }
    Message& real(int field, double value) {
        key(field, kFixed64);
        fixed(std::bit_cast<std::uint64_t>(value), sizeof value);
        return *this;
    }
    /// Adds a float.
    Message& real32(int field, float value) {
        key(field, kFixed32);
        fixed(std::bit_cast<std::uint32_t>(value), sizeof value);
        return *this;
    }
    /// Adds repeated doubles, packed.
    Message& reals(int field, const std::vector<double>& values) {
        key(field, kBytes);
        varint(values.size() * sizeof(double));
        for (const double value : values) fixed(std::bit_cast<std::uint64_t>(value), sizeof value);
        return *this;
    }
    /// Adds a string or bytes.
    Message& text(int field, std::string_view value) {
        key(field, kBytes);
        varint(value.size());
        bytes_ += value;
        return *this;
    }
    Message& message(int field, const Message& value) { return text(field, value.bytes_); }

    const std::string& bytes() const noexcept { return bytes_; }

 private:
    enum Type : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

    void key(int field, Type type) { varint(static_cast<std::uint64_t>(field) << 3 | type); }
    void varint(std::uint64_t value) {  // seven bits a byte, the lowest first
        for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
        bytes_ += static_cast<char>(value);
    }
    void fixed(std::uint64_t value, std::size_t count) {  // little-endian
        char little[8];
        for (std::size_t i = 0; i < count; ++i) little[i] = static_cast<char>(value >> 8 * i);
        bytes_.append(little, count);
    }

    std::string bytes_;
};

}  // namespace tapir::summary
