#include "tapir/core/text_impl.h"

#include "tapir/core/format.h"

namespace tapir {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";  // U+FFFD

// Returns the size of the UTF-8 character that this text begins with; 0 if there is none (RFC 3629).
std::size_t character_size(std::string_view text) {
    const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const unsigned first = byte(0), second = byte(1);
    const std::size_t size = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    for (std::size_t i = 1; i < size; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
    }
    const bool is_too_long = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
    const bool is_no_number = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);  // surrogates, the end
    return is_too_long || is_no_number ? 0 : size;
}

// Replaces each one-byte character c by escape(c); an empty result keeps c.
template <class Escape>
std::string escaped(std::string_view text, const Escape& escape) {
    std::string out;
    while (!text.empty()) {
        const std::size_t size = character_size(text);
        const std::string instead = size == 1 ? escape(text[0]) : size == 0 ? kReplacement : "";
        out += instead.empty() ? text.substr(0, size) : std::string_view(instead);
        text.remove_prefix(size == 0 ? 1 : size);
    }
    return out;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }

}  // namespace

detail::SizeUnit detail::size_unit(double bytes) noexcept {
    constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    double size = 1;
    for (; bytes >= 1024 * size && unit < 4; ++unit) size *= 1024;
    return {units[unit], size};
}

std::string detail::size_text(std::int64_t bytes) {
    const SizeUnit unit = size_unit(static_cast<double>(bytes));
    return unit.bytes == 1 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", static_cast<double>(bytes) / unit.bytes, unit.name);
}

std::string detail::utf8_text(std::string_view text) {
    return escaped(text, [](char) { return std::string(); });
}

std::string detail::json_text(std::string_view text) {
    return escaped(text, [](char c) -> std::string {
        if (c == '"' || c == '\\') return {'\\', c};
        return is_control(c) ? fmt::format("\\u{:04x}", static_cast<unsigned>(c)) : "";
    });
}

std::string detail::xml_text(std::string_view text) {
    return escaped(text, [](char c) -> std::string {
        switch (c) {
            case '&': return "&amp;";
            case '<': return "&lt;";
            case '>': return "&gt;";
            case '"': return "&quot;";
            default: return is_control(c) && c != '\n' && c != '\t' && c != '\r' ? kReplacement : "";
        }
    });
}

}  // namespace tapir
