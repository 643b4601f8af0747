#include "tapir/core/io/kind_impl.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tapir::io {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kMostRead = 4096;

constexpr char kTorch[] =
    "a file of PyTorch's torch.save(): in Python, write its tensors with safetensors.torch.save_file(), and call "
    "load_safetensors() or nn::load()";

constexpr char kTorchScript[] =
    "a TorchScript archive of PyTorch's torch.jit.save(), which has a program in it: in Python, write the "
    "state_dict() of torch.jit.load(path) with safetensors.torch.save_file(), and call load_safetensors() or "
    "nn::load()";

// True if a zip archive has a member in a folder "code" below another. torch.jit.save() writes the program there, behind the tensors, so
// the beginning looks like torch.save(). Reads the archive's directory, which lies before its last 22 bytes.
bool has_code(const InputFile& file) {
    constexpr std::uint64_t kEndSize = 22, kMostDirectory = 16U << 20;
    if (file.size() < kEndSize) return false;
    char end[kEndSize];
    file.read(file.size() - kEndSize, end, kEndSize);
    if (std::string_view(end, 4) != "PK\5\6") return false;
    std::uint32_t bytes = 0, offset = 0;
    std::memcpy(&bytes, end + 12, sizeof bytes);
    std::memcpy(&offset, end + 16, sizeof offset);
    if (bytes > kMostDirectory || std::uint64_t{offset} + bytes > file.size()) return false;
    std::string directory(bytes, '\0');
    file.read(offset, directory.data(), directory.size());
    return directory.find("/code/") != directory.npos;
}

// The first member of a zip archive tells which program wrote it.
std::string archive(std::string_view start, const InputFile& file) {
    constexpr std::size_t kLocalSize = 30;
    if (start.size() < kLocalSize) return "a zip archive";
    std::uint16_t length = 0;
    std::memcpy(&length, start.data() + 26, sizeof length);
    const std::string_view name = start.substr(kLocalSize, length);
    if (name.ends_with(".npy")) return "an .npz archive: call load_npz()";
    if (name.ends_with("/data.pkl") || name.ends_with("/version") || name.find("/.format_version") != name.npos ||
        name.find("/.data/") != name.npos || name.find("/data/") != name.npos || name.find("/code/") != name.npos) {
        return has_code(file) ? kTorchScript : kTorch;
    }
    return "a zip archive";
}

// True for a pickle: protocol 2 to 5, then an opcode that can come first (a frame, a number, a string, a collection, or a name).
bool is_pickle(std::string_view start) {
    constexpr auto kFirst = "\x95\x8a}](cKMJG\x8cX)NC\x8f"sv;
    return start.size() > 2 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5 && kFirst.find(start[2]) != kFirst.npos;
}

bool is_safetensors(std::string_view start, std::uint64_t size) {
    std::uint64_t header = 0;
    if (start.size() < sizeof header + 2) return false;
    std::memcpy(&header, start.data(), sizeof header);
    return header <= size - sizeof header && start[sizeof header] == '{';
}

std::string name_of(std::string_view start, const InputFile& file) {
    if (start.starts_with("PK\3\4") || start.starts_with("PK\5\6")) return archive(start, file);
    if (start.starts_with("\x93NUMPY")) return "a NumPy array: call load_npy()";
    if (is_safetensors(start, file.size())) return "a safetensors file: call load_safetensors(), or nn::load() for a module";
    if (is_pickle(start)) {
        constexpr auto kTorchNumber = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv;  // the first bytes of torch.save() before 1.6
        if (start.substr(2).starts_with(kTorchNumber)) return kTorch;
        return "a Python pickle, or " + std::string(kTorch);
    }
    if (start.starts_with("\x89HDF\r\n")) return "an HDF5 file";
    if (start.starts_with("GGUF")) return "a GGUF file";
    if (start.starts_with("\x1f\x8b")) return "packed by gzip: unpack it first";
    if (start.starts_with("version https://git-lfs")) return "a pointer of Git LFS, not the file itself: run git lfs pull";
    if (start.starts_with("<!DOCTYPE") || start.starts_with("<!doctype") || start.starts_with("<html")) {
        return "a web page: the download was another";
    }
    return "";
}

}  // namespace

std::string kind_of(const InputFile& file) {
    if (file.size() == 0) return "; the file is empty";
    std::string start(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), kMostRead)), '\0');
    file.read(0, start.data(), start.size());
    const std::string name = name_of(start, file);
    return name.empty() ? "" : "; it looks like " + name;
}

}  // namespace tapir::io
