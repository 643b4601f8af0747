#include "tapir/nn/data/csv.h"

#include "input.h"

using namespace tapir;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // The first byte chooses the options.
    if (size == 0) return 0;
    data::CsvOptions options{.separator = data[0] & 1 ? ',' : ';', .header = (data[0] & 2) != 0};
    if (data[0] & 4) options.missing = 0;
    const DType dtype = static_cast<DType>(data[0] >> 3 & 7);
    return fuzz::run([&] { data::read_csv(fuzz::file_of(data + 1, size - 1), options).numbers(dtype); });
}
