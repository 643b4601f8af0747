// What programs that write for people need: times, text for XML.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace show {

/// Seconds as people write them: "7 s", "3:05", "2:10:00".
std::string duration(double seconds);

/// Text for XML: the five special characters as entities; what XML cannot hold (control characters, invalid UTF-8) as
/// U+FFFD.
std::string xml_escaped(std::string_view text);

/// Decodes one code point of UTF-8 and moves `at` behind it; U+FFFD, one byte on, where it is not valid.
char32_t next_code_point(std::string_view text, std::size_t& at);

}  // namespace show
