// Tables of numbers that the gdb script reads by a symbol's address. They contain no pointers, so nothing needs relocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tapir::gdb {

/// A table ends with an entry without a name.
struct LayoutEntry {
    char name[40] = {};
    std::int64_t value = 0;
    constexpr LayoutEntry() = default;
    template <class Number>
    constexpr LayoutEntry(std::string_view text, Number number) : value(static_cast<std::int64_t>(number)) {
        for (std::size_t i = 0; i < text.size(); ++i) name[i] = text[i];  // not a constant expression if it is too long
    }
};

}  // namespace tapir::gdb

/// "Record.loc" and its offset.
#define TAPIR_GDB_OFFSET(Type, member) {#Type "." #member, offsetof(Type, member)}
#define TAPIR_GDB_SIZE(Type) {"sizeof." #Type, sizeof(Type)}
#define TAPIR_GDB_FLAG(Type, flag) {#Type "." #flag, Type::flag}
