// The safetensors format. A SAX handler reads the header and accepts only the one structure that it may have, so that no
// document tree is built of a hostile header.
#include "tapir/core/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include <fmt/format.h>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/crc_impl.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/core/io/kind_impl.h"
#include "tapir/core/io/safetensors_impl.h"
#include "tapir/core/io/shown_impl.h"
#include "tapir/core/io/stored_type_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

using io::shown;

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::uint64_t kLargestSafetensorsHeader = 100'000'000;  // as in the reference implementation
constexpr char kMetadata[] = "__metadata__";
// Exact beginning of the header of a file with a checksum. Other programs leave the spaces out: if they copy
// the metadata to a file of other contents, it does not count as a checksum.
constexpr std::string_view kChecksum = "tapir.crc32c";
constexpr std::string_view kSigned = "{\"__metadata__\": {\"tapir.crc32c\": \"";
constexpr std::size_t kDigits = 8;

// Checksum of the header behind the digits, and of the tensors' checksums in the header's order.
class Checksum {
 public:
    explicit Checksum(std::string_view header) {
        if (!header.starts_with(kSigned) || header.size() < kSigned.size() + kDigits) return;
        given_ = header.substr(kSigned.size(), kDigits);
        header.remove_prefix(kSigned.size() + kDigits);
        sum_ = io::crc32c(0, header.data(), header.size());
    }
    void add(std::uint32_t of_tensor) { sum_ = io::crc32c(sum_, &of_tensor, sizeof of_tensor); }
    std::string digits() const { return fmt::format("{:08x}", sum_); }
    bool is_wanted() const { return !given_.empty(); }
    bool is_right() const { return !is_wanted() || given_ == digits(); }

 private:
    std::string given_;
    std::uint32_t sum_ = 0;
};

const char* word_of(DType dtype) {
    for (const io::StoredType& type : io::stored_types()) {
        if (type.dtype == dtype) return type.safetensors;
    }
    return "";
}

// --- Reading ---------------------------------------------------------------------------------------------------------------

struct HeaderEntry {
    std::string name;
    io::StoredType type{};
    Shape shape;
    std::uint64_t begin = 0, end = 0;  // within the data
    bool has_dtype = false, has_shape = false;
    int offsets = -1;  // number of offsets read; -1: not expected yet
};

// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"key": "value"}}
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
    std::vector<HeaderEntry> entries;
    FileMetadata metadata;
    std::string error;

    bool key(std::string& word) override {
        switch (place_) {
            case Place::header:
                if (!names_.insert(word).second) return stop("the name " + shown(word) + " appears twice");
                if (word == kMetadata) {
                    place_ = Place::before_metadata;
                } else {
                    entries.emplace_back();
                    entries.back().name = word;
                    place_ = Place::before_tensor;
                }
                return true;
            case Place::metadata:
                metadata.emplace_back(word, "");
                place_ = Place::metadata_value;
                return true;
            case Place::tensor: return tensor_key(word);
            default: return misplaced();
        }
    }
    bool start_object(std::size_t) override {
        switch (place_) {
            case Place::start: place_ = Place::header; return true;
            case Place::before_metadata: place_ = Place::metadata; return true;
            case Place::before_tensor: place_ = Place::tensor; return true;
            default: return misplaced();
        }
    }
    bool end_object() override {
        switch (place_) {
            case Place::header: place_ = Place::done; return true;
            case Place::metadata: place_ = Place::header; return true;
            case Place::tensor: {
                const HeaderEntry& e = entries.back();
                if (!e.has_dtype || !e.has_shape || e.offsets != 2) {
                    return stop("the tensor " + shown(e.name) + " needs dtype, shape and two data_offsets");
                }
                place_ = Place::header;
                return true;
            }
            default: return misplaced();
        }
    }
    bool start_array(std::size_t) override {
        if (place_ == Place::before_shape) {
            place_ = Place::shape;
        } else if (place_ == Place::before_offsets) {
            place_ = Place::offsets;
        } else {
            return misplaced();
        }
        return true;
    }
    bool end_array() override {
        if (place_ != Place::shape && place_ != Place::offsets) return misplaced();
        if (place_ == Place::shape) entries.back().has_shape = true;
        place_ = Place::tensor;
        return true;
    }
    bool string(std::string& word) override {
        if (place_ == Place::metadata_value) {
            metadata.back().second = word;
            place_ = Place::metadata;
            return true;
        }
        if (place_ != Place::before_dtype) return misplaced();
        HeaderEntry& e = entries.back();
        for (const io::StoredType& type : io::stored_types()) {
            if (!type.safetensors || word != type.safetensors) continue;
            e.type = type;
            e.has_dtype = true;
            place_ = Place::tensor;
            return true;
        }
        return stop("the tensor " + shown(e.name) + " has the dtype " + shown(word) + ", which tapir does not have");
    }
    bool number_unsigned(std::uint64_t value) override {
        if (place_ != Place::shape && place_ != Place::offsets) return misplaced();
        HeaderEntry& e = entries.back();
        if (place_ == Place::shape) {
            if (e.shape.rank() == kMaxRank) return stop("the tensor " + shown(e.name) + " has more than 8 dimensions");
            if (value > INT64_MAX) return stop("the tensor " + shown(e.name) + " has a size that is too large");
            e.shape.push_back(static_cast<std::int64_t>(value));
            return true;
        }
        if (e.offsets == 2) return stop("the tensor " + shown(e.name) + " has more than two data_offsets");
        (e.offsets == 0 ? e.begin : e.end) = value;
        ++e.offsets;
        return true;
    }
    bool number_integer(std::int64_t) override { return misplaced(); }  // negative
    bool number_float(double, const std::string&) override { return misplaced(); }
    bool null() override { return misplaced(); }
    bool boolean(bool) override { return misplaced(); }
    bool binary(nlohmann::json::binary_t&) override { return misplaced(); }
    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
        return stop("the header is not JSON at byte " + std::to_string(position));
    }

 private:
    enum class Place {
        start,
        header,
        before_metadata,
        metadata,
        metadata_value,
        before_tensor,
        tensor,
        before_dtype,
        before_shape,
        shape,
        before_offsets,
        offsets,
        done,
    };

    bool tensor_key(const std::string& word) {
        HeaderEntry& e = entries.back();
        if (word == "dtype" && !e.has_dtype) {
            place_ = Place::before_dtype;
        } else if (word == "shape" && !e.has_shape) {
            place_ = Place::before_shape;
        } else if (word == "data_offsets" && e.offsets < 0) {
            e.offsets = 0;
            place_ = Place::before_offsets;
        } else {
            return stop("the tensor " + shown(e.name) + " has " + shown(word) +
                        " twice, or where only dtype, shape and "
                        "data_offsets may be");
        }
        return true;
    }
    bool stop(std::string why) {
        error = std::move(why);
        return false;
    }
    bool misplaced() {
        return stop(entries.empty() ? std::string("the header is not an object of tensors")
                                    : "the header has a value of the wrong kind at the tensor " + shown(entries.back().name));
    }

    Place place_ = Place::start;
    std::unordered_set<std::string> names_;
};

struct Header {
    std::vector<HeaderEntry> entries;
    FileMetadata metadata;
    Checksum checksum;
    std::uint64_t data_start;
};

Header read_header(const char* op, const io::InputFile& file, const std::string& path, const Loc& loc) {
    std::uint64_t length = 0;
    if (file.size() < sizeof length) file.stop("shorter than 8 bytes" + io::kind_of(file));
    file.read(0, &length, sizeof length);
    if (length > kLargestSafetensorsHeader) {
        file.stop(
            fmt::format("not a safetensors file: that begins with its header's length, and the first 8 bytes here would be a "
                        "header of {} bytes{}",
                        length, io::kind_of(file)));
    }
    if (length > file.size() - sizeof length) {
        file.stop(fmt::format("a header of {} bytes does not fit into the file's {}{}", length, file.size(), io::kind_of(file)));
    }
    std::string text(static_cast<std::size_t>(length), '\0');
    file.read(sizeof length, text.data(), text.size());
    HeaderReader header;
    if (text.empty() || text.front() != '{') {
        file.stop("the header must begin with {" + io::kind_of(file));
    }
    if (!nlohmann::json::sax_parse(text, &header)) fail<FileError>(loc, "{}: {}: {}", op, path, header.error);
    std::erase_if(header.metadata, [](const auto& word) { return word.first == kChecksum; });
    return {std::move(header.entries), std::move(header.metadata), Checksum(text), sizeof length + length};
}

// Checks that the tensors cover the data exactly, without gaps and overlaps, each with as many bytes as its shape needs.
void check_layout(const char* op, const std::vector<HeaderEntry>& entries, std::uint64_t data_bytes, const std::string& path, const Loc& loc) {
    std::vector<const HeaderEntry*> order;
    for (const HeaderEntry& e : entries) {
        const std::int64_t bytes = bytes_in_file(e.shape, e.type);
        if (e.begin > e.end || e.end > data_bytes) {
            fail<FileError>(loc, "{}: {}: the tensor {} has data_offsets [{}, {}] in {} bytes of data", op, path, shown(e.name), e.begin, e.end,
                            data_bytes);
        }
        if (bytes < 0 || static_cast<std::uint64_t>(bytes) != e.end - e.begin) {
            fail<FileError>(loc, "{}: {}: the tensor {} of shape {} and dtype {} does not have {} bytes", op, path, shown(e.name), e.shape,
                            e.type.safetensors, e.end - e.begin);
        }
        order.push_back(&e);
    }
    std::sort(order.begin(), order.end(),
              [](const HeaderEntry* a, const HeaderEntry* b) { return a->begin != b->begin ? a->begin < b->begin : a->end < b->end; });
    std::uint64_t position = 0;
    for (const HeaderEntry* e : order) {
        if (e->begin != position) {
            fail<FileError>(loc, "{}: {}: the tensor {} {} the one before it", op, path, shown(e->name),
                            e->begin < position ? "overlaps with" : "leaves a gap behind");
        }
        position = e->end;
    }
    if (position != data_bytes) {
        fail<FileError>(loc, "{}: {}: {} bytes at its end belong to no tensor", op, path, data_bytes - position);
    }
}

// --- Writing ---------------------------------------------------------------------------------------------------------------

std::string quoted(const char* op, const std::string& text, const Loc& loc) {
    try {
        return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
        fail<ValueError>(loc, "{}: the name {} is not UTF-8", op, shown(text));
    }
}

void check_names(const char* op, const NamedTensors& tensors, const FileMetadata& metadata, const Loc& loc) {
    std::unordered_set<std::string> seen;
    for (const NamedTensor& t : tensors) {
        if (!t.tensor.defined()) fail<ValueError>(loc, "{}: the tensor {} is undefined", op, shown(t.name));
        if (t.name == kMetadata) fail<ValueError>(loc, "{}: no tensor may be named {}", op, kMetadata);
        if (!seen.insert(t.name).second) fail<ValueError>(loc, "{}: the name {} is used twice", op, shown(t.name));
    }
    seen.clear();
    for (const auto& [key, value] : metadata) {
        if (!seen.insert(key).second) fail<ValueError>(loc, "{}: the metadata {} appears twice", op, shown(key));
    }
}

}  // namespace

NamedTensors io::load_safetensors(const char* op, const std::string& path, FileMetadata* metadata, const Loc& loc) {
    const io::InputFile file(op, path, loc);
    Header header = read_header(op, file, path, loc);
    check_layout(op, header.entries, file.size() - header.data_start, path, loc);
    NamedTensors result;
    result.reserve(header.entries.size());
    for (HeaderEntry& e : header.entries) {
        detail::begin_op(op, cpu, loc);
        Tensor t = detail::make_empty(e.shape, e.type.dtype, cpu, loc);
        std::vector<std::byte> raw(e.type.convert ? static_cast<std::size_t>(e.end - e.begin) : 0);
        void* const bytes_in_file = e.type.convert ? raw.data() : t.raw_data();
        file.read(header.data_start + e.begin, bytes_in_file, static_cast<std::size_t>(e.end - e.begin));
        if (header.checksum.is_wanted()) header.checksum.add(io::crc32c(0, bytes_in_file, static_cast<std::size_t>(e.end - e.begin)));
        if (e.type.convert && !e.type.convert(raw.data(), t.raw_data(), t.numel())) {
            file.stop(fmt::format("the tensor {} has a number of the dtype {} that does not fit into {}", shown(e.name), e.type.safetensors,
                                  name(e.type.dtype)));
        }
        if (e.type.dtype == bool_) {  // the file may hold any byte, but a bool is 0 or 1
            auto* bytes = static_cast<unsigned char*>(t.raw_data());
            for (std::int64_t i = 0; i < t.numel(); ++i) bytes[i] = bytes[i] != 0;
        }
        result.push_back({std::move(e.name), std::move(t)});
    }
    if (!header.checksum.is_right()) file.stop("it is damaged: its bytes have another checksum than those that were saved");
    if (metadata) *metadata = std::move(header.metadata);
    return result;
}

void io::save_safetensors(const char* op, const std::string& path, const NamedTensors& tensors, const FileMetadata& metadata,
                          const std::function<void()>& before_rename, const Loc& loc) {
    check_names(op, tensors, metadata, loc);
    // Wider elements come first in the data, so that every tensor is aligned.
    std::vector<std::size_t> order(tensors.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return itemsize(tensors[a].tensor.dtype()) > itemsize(tensors[b].tensor.dtype()); });
    std::vector<std::uint64_t> begin(tensors.size());
    std::uint64_t position = 0;
    for (const std::size_t i : order) {
        begin[i] = position;
        position += tensors[i].tensor.nbytes();
    }
    std::string header(kSigned);
    header.append(kDigits, '0') += '"';
    for (const auto& [key, value] : metadata) {
        if (key != kChecksum) header += "," + quoted(op, key, loc) + ":" + quoted(op, value, loc);
    }
    header += "}";
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const Tensor& t = tensors[i].tensor;
        header += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", quoted(op, tensors[i].name, loc),
                              word_of(t.dtype()), fmt::join(t.shape(), ","), begin[i], begin[i] + t.nbytes());
    }
    header += "}";
    while (header.size() % 8 != 0) header += ' ';
    if (header.size() > kLargestSafetensorsHeader) {
        fail<ValueError>(loc, "{}: a header of {} bytes is too long for the format", op, header.size());
    }

    io::AtomicFile file(op, path, loc);
    const std::uint64_t length = header.size();
    file.write(&length, sizeof length);
    file.write(header.data(), header.size());
    const detail::PauseRecording pause;
    std::vector<std::uint32_t> sums(tensors.size());
    for (const std::size_t i : order) {
        const Tensor packed = tensors[i].tensor.to(cpu, loc).contiguous(loc);
        file.write(packed.raw_data(), packed.nbytes());
        sums[i] = io::crc32c(0, packed.raw_data(), packed.nbytes());
    }
    Checksum checksum(header);
    for (const std::uint32_t sum : sums) checksum.add(sum);
    file.overwrite(sizeof length + kSigned.size(), checksum.digits().data(), kDigits);
    file.commit(before_rename);
}

NamedTensors load_safetensors(const TextArg& path, FileMetadata* metadata, Loc loc) {
    const CallerScope caller(loc);
    return io::load_safetensors("load_safetensors", path, metadata, loc);
}

void save_safetensors(const TextArg& path, const NamedTensors& tensors, const FileMetadata& metadata, Loc loc) {
    const CallerScope caller(loc);
    for (const NamedTensor& t : tensors) {
        if (t.tensor.defined()) detail::note_read("save_safetensors", t.tensor, loc);
    }
    io::save_safetensors("save_safetensors", path, tensors, metadata, nullptr, loc);
}

}  // namespace tapir
