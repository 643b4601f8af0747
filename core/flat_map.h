// A small map in a vector, in the order of its keys, for reports that users read. It is used as a std::map, whose header would cost every file
// that includes Tapir compile time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "tapir/core/error.h"

namespace tapir {

namespace detail {
[[noreturn]] void fail_no_entry(const Loc& loc);
}

/// A sequence of pairs {key, value}, with ascending keys. Finding one takes steps in proportion to the logarithm of their number, adding one in
/// proportion to it.
template <class Key, class Value>
class FlatMap {
 public:
    using Entry = std::pair<Key, Value>;

    /// Returns the value of the key, which is added with Value() if it is not there. That moves the values behind it.
    Value& operator[](const Key& key) {
        const std::size_t at = place_of(key);
        if (!is_at(at, key)) entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(at), Entry(key, Value()));
        return entries_[at].second;
    }
    /// Throws IndexError if the key is not there.
    const Value& at(const Key& key, Loc loc = Loc::current()) const {
        const std::size_t at = place_of(key);
        if (!is_at(at, key)) detail::fail_no_entry(loc);
        return entries_[at].second;
    }
    bool contains(const Key& key) const { return is_at(place_of(key), key); }
    bool empty() const noexcept { return entries_.empty(); }
    std::size_t size() const noexcept { return entries_.size(); }
    void clear() noexcept { entries_.clear(); }
    auto begin() const noexcept { return entries_.begin(); }
    auto end() const noexcept { return entries_.end(); }

 private:
    // Returns the place of the first key that is not below this one.
    std::size_t place_of(const Key& key) const {
        std::size_t first = 0, count = entries_.size();
        while (count > 0) {
            const std::size_t half = count / 2;
            const bool is_below = entries_[first + half].first < key;
            first += is_below ? half + 1 : 0;
            count = is_below ? count - half - 1 : half;
        }
        return first;
    }
    bool is_at(std::size_t at, const Key& key) const { return at < entries_.size() && entries_[at].first == key; }

    std::vector<Entry> entries_;
};

}  // namespace tapir
