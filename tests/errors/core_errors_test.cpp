// Messages of tensors, files and other basics that no other test asks for.
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>

#include "../fails.h"
#include "tapir/core/io/file.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/core/parallel.h"
#include "tapir/core/rename.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("errors of basics") {
    FAILS(DTypeError, "set_default_dtype: must be float32 or float64, got int32", set_default_dtype(int32));
    FAILS(ValueError, "set_num_threads: at least 1 is needed, not 0", set_num_threads(0));
    FAILS(IndexError, "size: a 0-d tensor has no dimension 0", tensor(1.0).size(0));
    FAILS(DeviceError, "set_memory_limit: CPU memory has no limit of its own", set_memory_limit(1000, cpu));
    FAILS(ValueError, "rename: the function is empty", rename(NamedTensors{}, Rename()));
}

TEST_CASE("errors of files") {
    const std::filesystem::path folder = std::filesystem::temp_directory_path() / "tapir_errors";
    std::filesystem::create_directories(folder);
    const std::string path = folder / "file", long_name(70000, 'n');
    FAILS(ValueError, "is too long", save_npz(path, {{long_name, tensor(1.0)}}));
    const std::string longer_name(100'000'000, 'n');
    FAILS(ValueError, "bytes is too long for the format", save_safetensors(path, {{longer_name, tensor(1.0)}}));
    CHECK_FALSE(std::filesystem::exists(path));

    write_file(path, "12345678");
    const io::InputFile file("load", path, Loc::current());
    const int line = __LINE__ - 1;
    std::filesystem::resize_file(path, 3);  // by another program
    std::byte bytes[8];
    fails<FileError>(__FILE__, line, "load: ", "the file ends at byte 3, too early", [&] { file.read(0, bytes, sizeof bytes); });
    std::filesystem::remove_all(folder);
}
