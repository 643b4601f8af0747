// Texts for people and for files that other programs read, inside the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tapir::detail {

/// The unit that a person would use for this many bytes.
struct SizeUnit {
    const char* name;  // "MiB"
    double bytes;
};
SizeUnit size_unit(double bytes) noexcept;
/// "12 B", "3.1 MiB"
std::string size_text(std::int64_t bytes);
/// Replaces each byte that is not part of a UTF-8 character by U+FFFD.
std::string utf8_text(std::string_view text);
/// Returns what stands between the quotes of a JSON string. Each byte that is not part of a UTF-8 character becomes U+FFFD.
std::string json_text(std::string_view text);
/// Escapes a text for XML, also for attributes. Control characters, which XML does not have, become U+FFFD.
std::string xml_text(std::string_view text);

}  // namespace tapir::detail
