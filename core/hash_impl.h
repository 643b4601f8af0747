// Hashes and compares keys of caches as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace tapir::detail {

/// Hash for a key without gaps between its members: std::unordered_map<Key, Value, HashOfBytes<Key>, EqualBytes<Key>>.
template <class Key>
struct HashOfBytes {
    static_assert(std::has_unique_object_representations_v<Key> && sizeof(Key) % 8 == 0);
    std::size_t operator()(const Key& key) const noexcept {
        std::uint64_t words[sizeof(Key) / 8], hash = 0;
        std::memcpy(words, &key, sizeof(Key));
        for (const std::uint64_t word : words) hash = (hash ^ word) * 0x9e3779b97f4a7c15u ^ hash >> 29;
        return hash;
    }
};
template <class Key>
struct EqualBytes {
    bool operator()(const Key& a, const Key& b) const noexcept { return std::memcmp(&a, &b, sizeof(Key)) == 0; }
};

}  // namespace tapir::detail
