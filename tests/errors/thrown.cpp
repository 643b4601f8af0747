// Writes down every tapir::Error that is thrown, wherever it is caught: its type and its text, as a line each of JSON, to the
// file that TAPIR_TEST_ERRORS names. catalogue.py reads them.
#include <cxxabi.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <typeinfo>

#include "tapir/core/error.h"

namespace {

// Opened before the first test, so that a run without errors leaves no old ones. Ours until the process ends.
const int file = [] {
    const char* path = std::getenv("TAPIR_TEST_ERRORS");
    return path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666) : -1;
}();

void write_down(void* thrown, std::type_info* type) {
    if (!typeid(tapir::Error).__do_catch(type, &thrown, 1)) return;
    int status = 0;
    char* name = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
    const nlohmann::json line = {{"type", status == 0 ? name : type->name()}, {"text", static_cast<tapir::Error*>(thrown)->what()}};
    std::free(name);
    const std::string bytes = line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + '\n';
    // One write() each: threads and forked processes may throw at the same time. Nothing to do about a full disk here.
    [[maybe_unused]] const ssize_t n = write(file, bytes.data(), bytes.size());
}

}  // namespace

// In place of the runtime's, which it calls.
extern "C" [[noreturn]] __attribute__((visibility("default"))) void __cxa_throw(void* thrown, void* type, void (*destroy)(void*)) {
    using Throw = void (*)(void*, void*, void (*)(void*));
    static const auto next = reinterpret_cast<Throw>(dlsym(RTLD_NEXT, "__cxa_throw"));
    if (file >= 0) write_down(thrown, static_cast<std::type_info*>(type));
    next(thrown, type, destroy);
    __builtin_unreachable();
}
