// What the tests of readers share: folders of files, and what is said of them.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tapir/core/error.h"
#include "tapir/core/io/npy.h"
#include "tapir/ops/make/make.h"

namespace files {

namespace fs = std::filesystem;

// A folder of its own for a test, removed at its end.
class TemporaryFolder {
 public:
    TemporaryFolder() : path_(make_name()) { fs::create_directories(path_); }
    ~TemporaryFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    fs::path write(const std::string& name, const std::string& contents) const {
        fs::remove(path_ / name);  // a new file: some file systems flush one that is written over
        std::ofstream(path_ / name, std::ios::binary) << contents;
        return path_ / name;
    }
    const fs::path& path() const { return path_; }

 private:
    static fs::path make_name() {
        static int count = 0;
        return fs::temp_directory_path() / ("tapir_data_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    }
    fs::path path_;
};

inline std::string read_all(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// What a FileError says from the path on: without the line of the call and the function's name.
template <class F>
std::string data_error(F&& f) {
    try {
        f();
    } catch (const tapir::FileError& error) {
        std::string text = error.what();
        for (int i = 0; i < 2 && error.where().line() != 0; ++i) text.erase(0, text.find(": ") + 2);
        return text;
    }
    return "no FileError";
}

inline std::string repeat(const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
}

/// Whether the library was built with zlib.
inline bool have_zlib() {
    const TemporaryFolder folder;
    try {
        tapir::save_npz((folder.path() / "a.npz").string(), {{"a", tapir::ones({1})}}, /*compressed=*/true);
        return true;
    } catch (const tapir::FileError&) {
        return false;
    }
}

}  // namespace files
