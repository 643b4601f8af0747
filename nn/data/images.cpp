// Reads image files. Compares what a header says with the file's size before it allocates anything.
#include "tapir/nn/data/images.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/inflate_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/view/view.h"

namespace tapir::data {
namespace {

using std::int64_t;

struct IdxType {
    unsigned char code;
    std::size_t size;
    DType dtype;
};
constexpr IdxType kIdxTypes[] = {{0x08, 1, uint8}, {0x09, 1, int32}, {0x0B, 2, int32}, {0x0C, 4, int32}, {0x0D, 4, float32}, {0x0E, 8, float64}};

// Converts from big-endian, and widens to int32.
template <class Stored, class T>
void convert(const unsigned char* from, T* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i, from += sizeof(Stored)) {
        unsigned char bytes[sizeof(Stored)];
        std::reverse_copy(from, from + sizeof(Stored), bytes);
        Stored value;
        std::memcpy(&value, bytes, sizeof value);
        to[i] = static_cast<T>(value);
    }
}

Tensor read_idx_stream(io::InputStream& stream, const Loc& loc) {
    unsigned char magic[4];
    stream.read(magic, sizeof magic);
    const auto* type = std::find_if(std::begin(kIdxTypes), std::end(kIdxTypes), [&](const IdxType& t) { return t.code == magic[2]; });
    if (magic[0] != 0 || magic[1] != 0 || type == std::end(kIdxTypes)) {
        stream.fail_at(0, fmt::format("not an IDX file: it begins with {:02x} {:02x} {:02x} {:02x}", magic[0], magic[1], magic[2], magic[3]));
    }
    if (magic[3] > kMaxRank) stream.fail_at(3, fmt::format("{} dimensions, a tensor has at most {}", magic[3], kMaxRank));
    Shape shape;
    for (int d = 0; d < magic[3]; ++d) {
        unsigned char size[4];
        stream.read(size, sizeof size);
        std::int64_t number = 0;
        for (const unsigned char byte : size) number = number << 8 | byte;
        shape.push_back(number);
    }
    const auto bytes = static_cast<std::uint64_t>(tapir::detail::bytes_of(shape, type->size));      // -1 becomes larger than all limits
    if (bytes > stream.most_left() || tapir::detail::bytes_of(shape, itemsize(type->dtype)) < 0) {  // elements may become wider
        stream.fail_at(4, fmt::format("shape {} needs more bytes than the {} that the file can have", shape, stream.most_left()));
    }
    Tensor t = tapir::detail::make_empty(shape, type->dtype, cpu, loc);
    if (type->code == 0x08) {
        stream.read(t.raw_data(), t.nbytes());
        return t;
    }
    std::vector<unsigned char> raw(static_cast<std::size_t>(bytes));
    stream.read(raw.data(), raw.size());
    switch (type->code) {
        case 0x09: convert<std::int8_t>(raw.data(), static_cast<std::int32_t*>(t.raw_data()), t.numel()); break;
        case 0x0B: convert<std::int16_t>(raw.data(), static_cast<std::int32_t*>(t.raw_data()), t.numel()); break;
        case 0x0C: convert<std::int32_t>(raw.data(), static_cast<std::int32_t*>(t.raw_data()), t.numel()); break;
        case 0x0D: convert<float>(raw.data(), static_cast<float*>(t.raw_data()), t.numel()); break;
        default: convert<double>(raw.data(), static_cast<double*>(t.raw_data()), t.numel()); break;
    }
    return t;
}

Tensor read_idx_file(const char* op, const std::string& path, const Loc& loc) {
    io::InputStream stream(op, path, loc);
    tapir::detail::begin_op(op, cpu, loc);
    Tensor t = read_idx_stream(stream, loc);
    char more = 0;
    if (stream.read_some(&more, 1) > 0) {
        stream.fail_at(4 * (static_cast<std::uint64_t>(t.dim()) + 1), fmt::format("more bytes follow than shape {} has", t.shape()));
    }
    return t;
}

// Returns the file of that name, or with .gz behind it.
std::string find_file(const std::string& folder, const std::string& name, const Loc& loc) {
    const std::string plain = folder + "/" + name, packed = plain + ".gz";
    if (::access(plain.c_str(), F_OK) == 0) return plain;
    if (::access(packed.c_str(), F_OK) == 0) return packed;
    fail<FileError>(loc, "mnist: {}: there is neither {} nor {}.gz", folder, name, name);
}

constexpr int64_t kCifarPixels = 3 * 32 * 32, kCifarRecord = 1 + kCifarPixels;

std::pair<Tensor, Tensor> read_cifar10_file(const char* op, const std::string& path, const Loc& loc) {
    io::InputStream stream(op, path, loc);
    const std::string bytes = stream.read_all();
    const auto size = static_cast<int64_t>(bytes.size());
    if (size == 0 || size % kCifarRecord != 0) {
        stream.fail_at(bytes.size(), fmt::format("the file must be a number of records of {} bytes each", kCifarRecord));
    }
    const int64_t count = size / kCifarRecord;
    tapir::detail::begin_op(op, cpu, loc);
    Tensor images = tapir::detail::make_empty({count, 3, 32, 32}, uint8, cpu, loc);
    Tensor labels = tapir::detail::make_empty({count}, int64, cpu, loc);
    auto* pixels = static_cast<unsigned char*>(images.raw_data());
    for (int64_t i = 0; i < count; ++i) {
        const char* record = bytes.data() + i * kCifarRecord;
        const auto label = static_cast<unsigned char>(*record);
        if (label > 9) stream.fail_at(static_cast<std::uint64_t>(i * kCifarRecord), fmt::format("record {} has the label {}", i, label));
        static_cast<int64_t*>(labels.raw_data())[i] = label;
        std::memcpy(pixels + i * kCifarPixels, record + 1, static_cast<std::size_t>(kCifarPixels));
    }
    return {images, labels};
}

}  // namespace

Tensor read_idx(const TextArg& path, Loc loc) { return read_idx_file("read_idx", path, loc); }

TensorDataset<Tensor, Tensor> mnist(const TextArg& folder, bool train, Loc loc) {
    const CallerScope caller(loc);
    const std::string prefix = train ? "train" : "t10k";
    const std::string image_path = find_file(folder, prefix + "-images-idx3-ubyte", loc);
    const std::string label_path = find_file(folder, prefix + "-labels-idx1-ubyte", loc);
    const Tensor images = read_idx_file("mnist", image_path, loc), labels = read_idx_file("mnist", label_path, loc);
    if (images.dim() != 3 || images.dtype() != uint8) {
        fail<FileError>(loc, "mnist: {}: images have 3 dimensions of bytes, not shape {} and {}", image_path, images.shape(), images.dtype());
    }
    if (labels.dim() != 1 || labels.dtype() != uint8 || labels.shape()[0] != images.shape()[0]) {
        fail<FileError>(loc, "mnist: {}: labels of shape {} and {} for images of shape {}", label_path, labels.shape(), labels.dtype(),
                        images.shape());
    }
    return TensorDataset<Tensor, Tensor>(images.unsqueeze(1), labels.to(int64));
}

TensorDataset<Tensor, Tensor> read_cifar10(const TextArg& path, Loc loc) {
    const CallerScope caller(loc);
    const auto [images, labels] = read_cifar10_file("read_cifar10", path, loc);
    return TensorDataset<Tensor, Tensor>(images, labels);
}

TensorDataset<Tensor, Tensor> cifar10(const TextArg& folder, bool train, Loc loc) {
    const CallerScope caller(loc);
    std::vector<Tensor> images, labels;
    for (int i = 1; i <= (train ? 5 : 1); ++i) {
        const std::string path = folder + (train ? fmt::format("/data_batch_{}.bin", i) : "/test_batch.bin");
        auto [image, label] = read_cifar10_file("cifar10", path, loc);
        images.push_back(image);
        labels.push_back(label);
    }
    return TensorDataset<Tensor, Tensor>(cat(images), cat(labels));
}

}  // namespace tapir::data
