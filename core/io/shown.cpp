#include "tapir/core/io/shown_impl.h"

namespace tapir::io {

std::string shown(std::string_view name) {
    std::string text(name.size() > 80 ? std::string(name.substr(0, 77)) + "..." : std::string(name));
    for (char& c : text) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return "\"" + text + "\"";
}

std::string text_of(const Error& error) {
    const std::string text = error.what();
    const std::size_t colon = error.where().line() == 0 ? std::string::npos : text.find(": ");
    return colon == std::string::npos ? text : text.substr(colon + 2);
}

}  // namespace tapir::io
