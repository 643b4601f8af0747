// ONNX's tensors: elements in the model or beside it, in three encodings.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/copy.h"

namespace tapir::detail {
namespace {

using onnx::TensorProto;

struct Stored {
    int type;
    DType dtype;       // Tapir's
    std::size_t bits;  // bits of an element in raw data
    std::int64_t low, high;
};
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
// Types without a dtype of Tapir.
constexpr Stored kWidened[] = {
    {TensorProto::INT8, DType::int32, 8, -128, 127},      {TensorProto::INT16, DType::int32, 16, -32768, 32767},
    {TensorProto::UINT16, DType::int32, 16, 0, 65535},    {TensorProto::UINT32, DType::int64, 32, 0, 4294967295},
    {TensorProto::UINT64, DType::int64, 64, 0, kHighest}, {onnx_types::kUint4, DType::int32, 4, 0, 15},
    {onnx_types::kInt4, DType::int32, 4, -8, 7},          {onnx_types::kUint2, DType::int32, 2, 0, 3},
    {onnx_types::kInt2, DType::int32, 2, -2, 1},
};

const Stored* widened(int type) noexcept {
    for (const Stored& stored : kWidened) {
        if (stored.type == type) return &stored;
    }
    return nullptr;
}

class Reader {
 public:
    Reader(const TensorProto& proto, const std::string& folder, const std::string& file, const Loc& loc)
        : proto_(proto), folder_(folder), file_(file), loc_(loc) {}

    Tensor read() const {
        const std::optional<DType> dtype = dtype_for_onnx(proto_.data_type());
        if (proto_.data_type() == TensorProto::STRING) stop("has strings, which are not supported");
        if (!dtype) stop(fmt::format("has elements of type {}, which Tapir has not", onnx_type_name(proto_.data_type())));
        if (proto_.has_segment()) stop("is stored in segments");
        if (proto_.dims_size() > kMaxRank) stop(fmt::format("has {} dimensions; tensors have up to {}", proto_.dims_size(), kMaxRank));
        Shape shape;
        std::int64_t count = 1;
        for (const std::int64_t size : proto_.dims()) {
            if (size < 0) stop(fmt::format("has a dimension of size {}", size));
            shape.push_back(size);
            if (__builtin_mul_overflow(count, size, &count)) stop("is larger than any tensor can be");
        }
        const Stored* narrow = widened(proto_.data_type());
        const int small = small_float_bits(proto_.data_type());
        const std::size_t bits = narrow ? narrow->bits : small ? static_cast<std::size_t>(small) : 8 * itemsize(*dtype);
        if (static_cast<std::uint64_t>(count) > std::numeric_limits<std::int64_t>::max() / 128) stop("is larger than any tensor can be");
        const std::size_t bytes = (static_cast<std::size_t>(count) * bits + 7) / 8;
        if (proto_.data_location() == TensorProto::EXTERNAL) return read_external(shape, *dtype, bytes);
        if (proto_.has_raw_data()) {
            const std::string& raw = proto_.raw_data();
            if (raw.size() != bytes) {
                stop(fmt::format("has {} bytes of data; {} elements of {} have {}", raw.size(), count, onnx_type_name(proto_.data_type()), bytes));
            }
            return from_bytes(raw.data(), shape, *dtype, bytes);
        }
        if (bits <= 8 && (narrow || small)) {  // one byte per number, which holds one element or several
            check_count(proto_.int32_data_size(), static_cast<std::int64_t>(bytes));
            std::string raw;
            for (const std::int32_t value : proto_.int32_data()) raw.push_back(static_cast<char>(value));
            return from_bytes(raw.data(), shape, *dtype, bytes);
        }
        return from_field(shape, *dtype, count);
    }

 private:
    [[noreturn]] void stop(const std::string& problem) const {
        fail<FileError>(loc_, "load_onnx: {}: {}", file_,
                        fmt::format("the tensor {} {}", proto_.name().empty() ? "of a node" : proto_.name(), problem));
    }

    // size: of all elements, in bytes.
    Tensor from_bytes(const char* bytes, const Shape& shape, DType dtype, std::size_t size) const {
        Tensor x = make_empty(shape, dtype, cpu, loc_);
        const auto count = static_cast<std::size_t>(x.numel());
        if (count == 0) return x;
        if (const Stored* narrow = widened(proto_.data_type())) {
            for (std::size_t i = 0; i < count; ++i) store(x, i, read_integer(bytes, i, *narrow));
            return x;
        }
        if (const int bits = small_float_bits(proto_.data_type())) {
            const std::vector<float> values = small_float_values(proto_.data_type());
            auto* to = static_cast<float*>(x.raw_data());
            for (std::size_t i = 0; i < count; ++i) to[i] = values[code_at(bytes, i, static_cast<std::size_t>(bits))];
            return x;
        }
        std::memcpy(x.raw_data(), bytes, size);
        if (dtype == bool_) {
            auto* values = static_cast<unsigned char*>(x.raw_data());
            for (std::size_t i = 0; i < count; ++i) values[i] = values[i] != 0;
        }
        return x;
    }

    // The code of an element of up to 8 bits: the first in a byte has the lowest bits.
    static std::size_t code_at(const char* bytes, std::size_t i, std::size_t bits) {
        const auto byte = static_cast<unsigned char>(bytes[i * bits / 8]);
        return (byte >> (i * bits % 8)) & ((std::size_t{1} << bits) - 1);
    }

    std::int64_t read_integer(const char* bytes, std::size_t i, const Stored& stored) const {
        std::uint64_t bits = 0;
        if (stored.bits < 8) {
            bits = code_at(bytes, i, stored.bits);
        } else {
            std::memcpy(&bits, bytes + i * stored.bits / 8, stored.bits / 8);
        }
        if (stored.low < 0) {
            const int unused = 64 - static_cast<int>(stored.bits);
            return static_cast<std::int64_t>(bits << unused) >> unused;
        }
        if (bits > static_cast<std::uint64_t>(kHighest)) stop("has an element above the largest of int64");
        return static_cast<std::int64_t>(bits);
    }

    static void store(Tensor& x, std::size_t i, std::int64_t value) {
        if (x.dtype() == int64) {
            static_cast<std::int64_t*>(x.raw_data())[i] = value;
        } else {
            static_cast<std::int32_t*>(x.raw_data())[i] = static_cast<std::int32_t>(value);
        }
    }

    void check_count(std::int64_t have, std::int64_t want) const {
        if (have != want) stop(fmt::format("has {} elements of data, but {} by its shape", have, want));
    }

    template <class To, class Field>
    Tensor copied(const Field& field, const Shape& shape, DType dtype, std::int64_t count) const {
        check_count(field.size(), count);
        Tensor x = make_empty(shape, dtype, cpu, loc_);
        auto* to = static_cast<To*>(x.raw_data());
        for (const auto value : field) *to++ = static_cast<To>(value);
        return x;
    }

    Tensor from_field(const Shape& shape, DType dtype, std::int64_t count) const {
        switch (proto_.data_type()) {
            case TensorProto::FLOAT: return copied<float>(proto_.float_data(), shape, dtype, count);
            case TensorProto::DOUBLE: return copied<double>(proto_.double_data(), shape, dtype, count);
            case TensorProto::INT64: return copied<std::int64_t>(proto_.int64_data(), shape, dtype, count);
            case TensorProto::UINT32:
            case TensorProto::UINT64: return copied<std::int64_t>(proto_.uint64_data(), shape, dtype, count);
            case TensorProto::UINT8: return copied<std::uint8_t>(proto_.int32_data(), shape, dtype, count);
            case TensorProto::FLOAT16:
            case TensorProto::BFLOAT16: return copied<std::uint16_t>(proto_.int32_data(), shape, dtype, count);
            case TensorProto::BOOL: {
                check_count(proto_.int32_data_size(), count);
                Tensor x = make_empty(shape, dtype, cpu, loc_);
                auto* to = static_cast<unsigned char*>(x.raw_data());
                for (const std::int32_t value : proto_.int32_data()) *to++ = value != 0;
                return x;
            }
            default: return copied<std::int32_t>(proto_.int32_data(), shape, dtype, count);
        }
    }

    // Reads a file beside the model; a model must not read others.
    Tensor read_external(const Shape& shape, DType dtype, std::uint64_t length) const {
        namespace fs = std::filesystem;
        std::string location;
        std::uint64_t offset = 0;
        bool is_length_given = false;
        for (const onnx::StringStringEntryProto& entry : proto_.external_data()) {
            if (entry.key() == "location") location = entry.value();
            if (entry.key() == "offset") offset = number(entry.value());
            if (entry.key() == "length") {
                is_length_given = true;
                if (number(entry.value()) != length) stop(fmt::format("has {} bytes of data; by its shape {}", entry.value(), length));
            }
        }
        const fs::path relative = location;
        if (location.empty() || location.find('\0') != std::string::npos || relative.is_absolute()) {
            stop(fmt::format("is in the file \"{}\", which is no path relative to the model's folder", location));
        }
        std::error_code error;
        const fs::path root = fs::weakly_canonical(folder_.empty() ? fs::path(".") : fs::path(folder_), error);
        const fs::path path = fs::weakly_canonical(root / relative, error);
        const auto [root_end, unused] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
        if (error || root_end != root.end()) stop(fmt::format("is in the file {}, outside the model's folder", location));
        const std::string name = path.string();
        const io::InputFile file("load_onnx", name, loc_);
        if (offset > file.size() || length > file.size() - offset) {
            stop(fmt::format("is at {} bytes{} in the file {}, which has {} bytes", offset, is_length_given ? "" : fmt::format(", of {},", length),
                             location, file.size()));
        }
        if (!is_widened(proto_.data_type()) && dtype != bool_) {
            Tensor x = make_empty(shape, dtype, cpu, loc_);
            if (length > 0) file.read(offset, x.raw_data(), length);
            return x;
        }
        std::string raw(length, '\0');
        if (length > 0) file.read(offset, raw.data(), length);
        return from_bytes(raw.data(), shape, dtype, length);
    }

    std::uint64_t number(const std::string& text) const {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size()) stop(fmt::format("says \"{}\" where a number should be", text));
        return value;
    }

    const TensorProto& proto_;
    const std::string &folder_, &file_;
    const Loc& loc_;
};

}  // namespace

std::optional<DType> dtype_for_onnx(int type) noexcept {
    if (const Stored* narrow = widened(type)) return narrow->dtype;
    if (small_float_bits(type)) return float32;
    return dtype_of_onnx(type);
}

bool is_widened(int type) noexcept { return widened(type) || small_float_bits(type); }

std::optional<std::pair<std::int64_t, std::int64_t>> range_for_onnx(int type) noexcept {
    if (const Stored* narrow = widened(type)) return std::pair(narrow->low, narrow->high);
    if (type == TensorProto::UINT8) return std::pair<std::int64_t, std::int64_t>(0, 255);
    return std::nullopt;
}

Tensor wrapped(const Tensor& x, int type) {
    const Stored* narrow = widened(type);
    if (!narrow || narrow->high == kHighest) return x;
    const Tensor low_bits = bitwise_and(x, narrow->low < 0 ? narrow->high - narrow->low : narrow->high);
    if (narrow->low == 0) return low_bits;
    return bitwise_xor(low_bits, -narrow->low) + narrow->low;  // extends the sign bit
}

std::string onnx_type_name(int type) {
    // Types after BFLOAT16 may be newer than the installed schema.
    constexpr const char* names[] = {"UNDEFINED", "FLOAT",      "UINT8",      "INT8",         "UINT16",         "INT16",      "INT32",
                                     "INT64",     "STRING",     "BOOL",       "FLOAT16",      "DOUBLE",         "UINT32",     "UINT64",
                                     "COMPLEX64", "COMPLEX128", "BFLOAT16",   "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ",
                                     "UINT4",     "INT4",       "FLOAT4E2M1", "FLOAT8E8M0",   "UINT2",          "INT2"};
    return type >= 0 && static_cast<std::size_t>(type) < std::size(names) ? names[type] : fmt::format("{}", type);
}

Tensor tensor_of_onnx(const TensorProto& proto, const std::string& folder, const std::string& file, const Loc& loc) {
    return Reader(proto, folder, file, loc).read();
}

}  // namespace tapir::detail
