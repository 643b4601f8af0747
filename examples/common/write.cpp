#include "write.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>

namespace show {
namespace {

bool is_xml_character(char32_t code) {
    if (code < 0x20) return code == '\t' || code == '\n' || code == '\r';
    return code != 0xFFFE && code != 0xFFFF;
}

}  // namespace

std::string duration(double seconds) {
    if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
    const auto whole = static_cast<std::int64_t>(std::llround(seconds));
    if (whole < 60) return fmt::format("{} s", whole);
    if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

char32_t next_code_point(std::string_view text, std::size_t& at) {
    constexpr char32_t kReplacement = 0xFFFD;
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(at++);
    if (first < 0x80) return first;
    const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    if (first < 0xC2 || first > 0xF4 || at + static_cast<std::size_t>(more) > text.size()) return kReplacement;
    char32_t code = first & (0x3FU >> more);
    for (int i = 0; i < more; ++i) {
        const unsigned char next = byte(at + static_cast<std::size_t>(i));
        if ((next & 0xC0U) != 0x80) return kReplacement;
        code = (code << 6U) | (next & 0x3FU);
    }
    constexpr std::array<char32_t, 4> kSmallest = {0, 0x80, 0x800, 0x10000};
    const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
    if (code < kSmallest[static_cast<std::size_t>(more)] || is_surrogate || code > 0x10FFFF) return kReplacement;
    at += static_cast<std::size_t>(more);
    return code;
}

std::string xml_escaped(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t from = at;
        const char32_t code = next_code_point(text, at);
        switch (code) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '"': out += "&quot;"; break;
            case '\'': out += "&apos;"; break;
            case 0xFFFD: out += "\xEF\xBF\xBD"; break;
            default: out += is_xml_character(code) ? std::string(text.substr(from, at - from)) : "\xEF\xBF\xBD";
        }
    }
    return out;
}

}  // namespace show
