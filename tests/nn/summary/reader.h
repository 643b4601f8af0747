// A reader of event files that shares nothing with their writer: TFRecord framing with checksums bit by bit, messages as trees of
// fields.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "../data/files.h"

namespace events {

namespace fs = std::filesystem;

struct Field {
    int number = 0, type = 0;
    std::uint64_t value = 0;  // of types 0, 1 and 5
    std::string bytes;        // of type 2
};

struct Fields {
    std::vector<Field> list;

    explicit Fields(const std::string& bytes) {
        std::size_t at = 0;
        const auto little = [&](std::size_t count) {
            REQUIRE(at + count <= bytes.size());
            std::uint64_t value = 0;
            for (std::size_t i = 0; i < count; ++i) value |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << 8 * i;
            at += count;
            return value;
        };
        const auto varint = [&] {
            std::uint64_t value = 0;
            for (int shift = 0;; shift += 7) {
                const std::uint64_t byte = little(1);
                value |= (byte & 0x7F) << shift;
                if (byte < 0x80) return value;
            }
        };
        while (at < bytes.size()) {
            Field field;
            const std::uint64_t key = varint();
            field.number = static_cast<int>(key >> 3);
            field.type = static_cast<int>(key & 7);
            switch (field.type) {
                case 0: field.value = varint(); break;
                case 1: field.value = little(8); break;
                case 5: field.value = little(4); break;
                case 2: {
                    const std::uint64_t size = varint();
                    REQUIRE(size <= bytes.size() - at);
                    field.bytes = bytes.substr(at, size);
                    at += size;
                    break;
                }
                default: FAIL("wire type " << field.type);
            }
            list.push_back(field);
        }
    }

    std::vector<Field> all(int number) const {
        std::vector<Field> found;
        std::copy_if(list.begin(), list.end(), std::back_inserter(found), [&](const Field& f) { return f.number == number; });
        return found;
    }
    bool has(int number) const { return !all(number).empty(); }
    Field one(int number) const {
        const std::vector<Field> found = all(number);
        REQUIRE(found.size() == 1);
        return found[0];
    }
    Fields message(int number) const { return Fields(one(number).bytes); }
    std::string text(int number) const { return one(number).bytes; }
    std::int64_t integer(int number) const { return static_cast<std::int64_t>(one(number).value); }
    double real(int number) const { return of<double>(one(number).value); }
    float real32(int number) const { return of<float>(static_cast<std::uint32_t>(one(number).value)); }
    std::vector<double> reals(int number) const {
        const std::string packed = has(number) ? text(number) : "";
        std::vector<double> values(packed.size() / 8);
        std::memcpy(values.data(), packed.data(), packed.size());
        return values;
    }

 private:
    template <class T, class Bits>
    static T of(Bits bits) {
        T value;
        static_assert(sizeof value == sizeof bits);
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
};

// Bit by bit: polynomial division with the reflected polynomial.
inline std::uint32_t crc(const std::string& bytes, std::uint32_t polynomial) {
    std::uint32_t c = 0xFFFFFFFF;
    for (const char byte : bytes) {
        c ^= static_cast<unsigned char>(byte);
        for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ (c % 2 ? polynomial : 0);
    }
    return ~c;
}

struct Contents {
    std::vector<std::string> events;
    std::size_t left = 0;  // bytes behind the last whole event
};

// Stops at an incomplete record, as a reader that follows a file does.
inline Contents records(const std::string& file) {
    Contents contents;
    std::size_t at = 0;
    const auto little = [&](std::size_t from, int count) {
        std::uint64_t value = 0;
        for (int i = count - 1; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(file[from + static_cast<std::size_t>(i)]);
        return value;
    };
    const auto check = [&](std::size_t from, std::size_t count) {
        const std::uint32_t sum = crc(file.substr(from, count), 0x82F63B78);
        CHECK(little(from + count, 4) == ((sum >> 15 | sum << 17) + 0xA282EAD8u));
    };
    while (file.size() - at >= 12) {
        check(at, 8);
        const std::uint64_t size = little(at, 8);
        if (size > file.size() || file.size() - at < 16 + size) break;
        check(at + 12, size);
        contents.events.push_back(file.substr(at + 12, size));
        at += 16 + size;
    }
    contents.left = file.size() - at;
    return contents;
}

inline std::vector<fs::path> files_in(const fs::path& folder) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().filename().string().find("events.out.tfevents.") == 0) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
}

// The events of a folder's one file but the first, which has the version.
inline std::vector<Fields> events_in(const fs::path& folder) {
    const std::vector<fs::path> found = files_in(folder);
    REQUIRE(found.size() == 1);
    const Contents contents = records(files::read_all(found[0]));
    CHECK(contents.left == 0);
    REQUIRE(!contents.events.empty());
    CHECK(Fields(contents.events[0]).text(3) == "brain.Event:2");
    std::vector<Fields> events;
    for (std::size_t i = 1; i < contents.events.size(); ++i) events.emplace_back(contents.events[i]);
    return events;
}

// The one value of an event's summary.
inline Fields value_of(const Fields& event) { return event.message(5).message(1); }

}  // namespace events
