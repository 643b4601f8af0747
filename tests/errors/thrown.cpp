// Writes down every tapir::Error that is thrown, wherever it is caught: its type, its text, and which code threw it, as a line
// each of JSON, to the file that TAPIR_TEST_ERRORS names. catalogue.py reads them.
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
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

[[gnu::noinline]] void write_down(void* thrown, std::type_info* type) {
    if (!typeid(tapir::Error).__do_catch(type, &thrown, 1)) return;
    int status = 0;
    char* name = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
    nlohmann::json line = {{"type", status == 0 ? name : type->name()}, {"text", static_cast<tapir::Error*>(thrown)->what()}};
    std::free(name);
    void* frames[6];  // this function, __cxa_throw, fail<>, and then who called that
    const int count = backtrace(frames, 6);
    for (int i = 3; i < count; ++i) {
        Dl_info module;
        if (dladdr(frames[i], &module) == 0) break;
        line["module"] = module.dli_fname;
        line["calls"].push_back(static_cast<char*>(frames[i]) - static_cast<char*>(module.dli_fbase) - 1);  // in the call, not behind it
    }
    const std::string bytes = '\n' + line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    // One write() each: threads and forked processes may throw at the same time. Some of a line may be lost, in a test that lets
    // files be small only.
    [[maybe_unused]] const ssize_t n = write(file, bytes.data(), bytes.size());
}

}  // namespace

// In place of the runtime's, which it calls.
extern "C" [[noreturn]] __attribute__((visibility("default"))) void __cxa_throw(void* thrown, void* type, void (*destroy)(void*)) {
    using Throw = void (*)(void*, void*, void (*)(void*));
    static const auto next = reinterpret_cast<Throw>(dlsym(RTLD_NEXT, "__cxa_throw"));
    try {
        if (file >= 0) write_down(thrown, static_cast<std::type_info*>(type));
    } catch (...) {  // a test has no memory: then nobody knows of this error
    }
    next(thrown, type, destroy);
    __builtin_unreachable();
}
