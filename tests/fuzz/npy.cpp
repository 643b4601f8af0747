#include "tapir/core/io/npy.h"

#include "input.h"

using namespace tapir;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::run([&] { load_npy(fuzz::file_of(data, size)); });
}
