#include "tapir/nn/data/ptb.h"

#include "input.h"

using namespace tapir;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::run([&] { data::read_ptb(fuzz::file_of(data, size)); });
}
