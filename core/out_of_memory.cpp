// See Note [The line of a call without memory].
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/own_lines_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {

constinit thread_local Loc detail::call_line;

namespace {

constexpr const char kMessage[] = "no memory for what the call keeps beside its tensors";

// OutOfMemory whose text needs no memory.
class BareOutOfMemory final : public OutOfMemory {
 public:
    explicit BareOutOfMemory(const Loc& loc) : OutOfMemory("", loc) {  // an empty message stays empty
        const char* slash = std::strrchr(where().file_name(), '/');
        if (where().line() == 0) {
            std::snprintf(text_, sizeof(text_), "%s", kMessage);
        } else {
            std::snprintf(text_, sizeof(text_), "%s:%u: %s", slash ? slash + 1 : where().file_name(), where().line(), kMessage);
        }
    }
    const char* what() const noexcept override { return text_; }

 private:
    char text_[256];
};

bool is_librarys(const Loc& line) noexcept {
    constexpr std::string_view here = __FILE__, name = "core/out_of_memory.cpp";
    std::string_view file = line.file_name();
    if (!here.ends_with(name) || !file.starts_with(here.substr(0, here.size() - name.size()))) return false;
    file.remove_prefix(here.size() - name.size());
    for (const char* folder : {"autograd/", "core/", "nn/", "ops/", "optim/"}) {
        if (file.starts_with(folder)) return true;
    }
    return false;
}

// True while the text of an error is made, for which there may be no memory either.
constinit thread_local bool is_failing = false;

void no_memory();

struct Handler {
    std::new_handler before = std::set_new_handler(no_memory);
    ~Handler() {  // runs when a shared library is closed
        if (std::get_new_handler() == no_memory) std::set_new_handler(before);
    }
};
[[gnu::init_priority(101)]] Handler handler;

void no_memory() {
    const Loc line = detail::memory_line({});
    const bool is_ours = line.line() != 0 && !is_failing;
    if (handler.before) {  // it may be able to free some
        try {
            return handler.before();
        } catch (const std::bad_alloc&) {
            if (!is_ours) throw;
        }
    }
    if (is_ours) detail::fail_no_memory(line);
    throw std::bad_alloc();
}

}  // namespace

Loc detail::memory_line(const Loc& own) noexcept {
    const Loc& said = caller(own);
    return call_line.line() != 0 && (said.line() == 0 || is_librarys(said)) ? call_line : said;
}

void detail::fail_no_memory(const Loc& given) {
    const Loc loc = memory_line(given);
    const OwnLines chosen;
    struct Failing {
        bool was = std::exchange(is_failing, true);
        ~Failing() { is_failing = was; }
    };
    try {
        const Failing failing;
        throw OutOfMemory(kMessage, loc);
    } catch (const std::bad_alloc&) {  // there is no memory for the text either
    }
    throw BareOutOfMemory(loc);
}

void detail::rethrow_at(const Loc& loc) {
    try {
        throw;
    } catch (const OutOfMemory& error) {
        if (error.where().line() != 0 || loc.line() == 0) throw;
    } catch (const std::bad_alloc&) {}
    fail_no_memory(loc);
}

}  // namespace tapir
