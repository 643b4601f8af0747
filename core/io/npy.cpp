// NumPy's array format (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), alone and in zip archives
// (APPNOTE.TXT of PKWARE, 6.3.10).
#include "tapir/core/io/npy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <functional>
#include <unordered_set>

#include <fmt/format.h>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/crc_impl.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/core/io/inflate_impl.h"
#include "tapir/core/io/kind_impl.h"
#include "tapir/core/io/shown_impl.h"
#include "tapir/core/io/stored_type_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

using io::shown;

static_assert(std::endian::native == std::endian::little, "numbers are written as they are");

constexpr char kMagic[] = "\x93NUMPY";
constexpr std::size_t kMagicSize = 6;
constexpr std::uint64_t kLargestNpyHeader = 1'000'000;
constexpr char kNoArray[] = "not a NumPy array: the first bytes are others";

// --- Arrays ----------------------------------------------------------------------------------------------------------------

/// Source of an array: consecutive bytes, at most `most` of them.
struct Source {
    std::function<void(void* to, std::size_t count)> read;
    std::uint64_t most;
    std::function<void(const std::string& problem)> fail;  // throws
};

struct NpyHeader {
    io::StoredType type{};
    bool is_big_endian = false, is_fortran = false;
    Shape shape;
};

// Parses the header, a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
    HeaderParser(std::string_view text, const Source& source) : text_(text), source_(source) {}

    NpyHeader parse() {
        bool has_type = false, has_order = false, has_shape = false;
        expect('{');
        while (!take('}')) {
            const std::string_view key = string();
            expect(':');
            if (key == "descr" && !has_type) {
                type();
                has_type = true;
            } else if (key == "fortran_order" && !has_order) {
                header_.is_fortran = truth();
                has_order = true;
            } else if (key == "shape" && !has_shape) {
                shape();
                has_shape = true;
            } else {
                stop("the key " + shown(key) + " twice, or where only descr, fortran_order and shape may be");
            }
            if (take(',')) continue;
            expect('}');
            break;
        }
        skip_spaces();
        if (at_ != text_.size()) stop("more behind the closing brace");
        if (!has_type || !has_order || !has_shape) stop("descr, fortran_order or shape is missing");
        return header_;
    }

 private:
    [[noreturn]] void stop(const std::string& problem) const {
        source_.fail("the array's header at its byte " + std::to_string(at_) + ": " + problem);
        std::abort();  // fail throws
    }
    void skip_spaces() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
    }
    bool take(char c) {
        skip_spaces();
        if (at_ == text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }
    void expect(char c) {
        if (!take(c)) stop(std::string("'") + c + "' is missing");
    }
    std::string_view string() {
        skip_spaces();
        const char quote = at_ < text_.size() ? text_[at_] : '\0';
        if (quote != '\'' && quote != '"') stop("a string is missing");
        const std::size_t end = text_.find(quote, at_ + 1);
        if (end == std::string_view::npos) stop("a string does not end");
        const std::string_view word = text_.substr(at_ + 1, end - at_ - 1);
        at_ = end + 1;
        return word;
    }
    bool truth() {
        skip_spaces();
        for (const bool value : {false, true}) {
            const std::string_view word = value ? "True" : "False";
            if (!text_.substr(at_).starts_with(word)) continue;
            at_ += word.size();
            return value;
        }
        stop("True or False is missing");
    }
    void type() {
        skip_spaces();
        if (at_ < text_.size() && (text_[at_] == '[' || text_[at_] == '(')) stop("a structured dtype, which tapir does not have");
        const std::string_view word = string();
        const char order = word.empty() ? '\0' : word[0];
        const auto types = io::stored_types();
        const auto found =
            std::find_if(types.begin(), types.end(), [&](const io::StoredType& t) { return !word.empty() && t.npy && word.substr(1) == t.npy; });
        if (found == types.end() || (order != '<' && order != '>' && order != '=' && order != '|')) {
            stop("the dtype " + shown(word) + ", which tapir does not have");
        }
        header_.type = *found;
        header_.is_big_endian = order == '>';
    }
    void shape() {
        expect('(');
        while (!take(')')) {
            skip_spaces();
            std::int64_t size = 0;
            const char* begin = text_.data() + at_;
            const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), size);
            if (error != std::errc() || size < 0) stop("a size is missing, negative or too large");
            at_ += static_cast<std::size_t>(end - begin);
            if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2's
            if (header_.shape.rank() == kMaxRank) stop("more than 8 dimensions");
            header_.shape.push_back(size);
            if (take(',')) continue;
            expect(')');
            break;
        }
    }

    std::string_view text_;
    const Source& source_;
    std::size_t at_ = 0;
    NpyHeader header_;
};

NpyHeader read_header(Source& source) {
    const auto take = [&](void* to, std::size_t count) {
        if (count > source.most) source.fail("it ends too early");
        source.read(to, count);
        source.most -= count;
    };
    unsigned char start[kMagicSize + 2];
    take(start, sizeof start);
    if (std::memcmp(start, kMagic, kMagicSize) != 0) source.fail(kNoArray);
    const int version = start[kMagicSize];
    if (version < 1 || version > 3 || start[kMagicSize + 1] != 0) {
        source.fail(fmt::format("format {}.{} of NumPy arrays is not known", version, start[kMagicSize + 1]));
    }
    std::uint32_t length = 0;
    take(&length, version == 1 ? 2 : 4);
    if (length > source.most || length > kLargestNpyHeader) source.fail(fmt::format("a header of {} bytes, more than there can be", length));
    std::string text(length, '\0');
    take(text.data(), text.size());
    return HeaderParser(text, source).parse();
}

Tensor read_array(Source& source, const Loc& loc) {
    const NpyHeader header = read_header(source);
    const auto bytes = static_cast<std::uint64_t>(bytes_in_file(header.shape, header.type));  // -1 becomes larger than all limits
    if (bytes > source.most) {
        source.fail(fmt::format("shape {} needs more bytes than the {} that there can be", header.shape, source.most));
    }
    Shape stored = header.shape;
    if (header.is_fortran) std::reverse(stored.begin(), stored.end());
    Tensor t = detail::make_empty(stored, header.type.dtype, cpu, loc);
    const bool is_direct = header.type.convert == nullptr;
    std::vector<std::byte> raw(is_direct ? 0 : static_cast<std::size_t>(bytes));
    auto* to = is_direct ? static_cast<std::byte*>(t.raw_data()) : raw.data();
    if (bytes > 0) source.read(to, static_cast<std::size_t>(bytes));
    source.most -= bytes;
    if (header.is_big_endian) {
        for (std::uint64_t i = 0; i < bytes; i += header.type.size) std::reverse(to + i, to + i + header.type.size);
    }
    if (!is_direct && !header.type.convert(raw.data(), t.raw_data(), t.numel())) {
        source.fail(fmt::format("a number of the dtype {} that does not fit into {}", shown(header.type.npy), name(header.type.dtype)));
    }
    if (header.type.dtype == bool_) {  // the file may hold any byte, but a bool is 0 or 1
        for (std::int64_t i = 0; i < t.numel(); ++i) to[i] = std::byte{to[i] != std::byte{0}};
    }
    if (!header.is_fortran || t.dim() < 2) return t;
    Dims reversed;
    for (int d = t.dim(); d-- > 0;) reversed.push_back(d);
    const detail::PauseRecording pause;
    return t.permute(reversed, loc).contiguous(loc);
}

// Returns everything before the elements, padded as NumPy does.
std::string header_of(const char* op, const Tensor& t, const std::string& what, const Loc& loc) {
    if (!t.defined()) fail<ValueError>(loc, "{}: the tensor {}is undefined", op, what);
    const DType dtype = t.dtype();
    if (dtype == bfloat16) {
        fail<DTypeError>(loc, "{}: the tensor {}is bfloat16, which NumPy does not have; save x.to(float32)", op, what);
    }
    const auto types = io::stored_types();
    const auto type = std::find_if(types.begin(), types.end(), [&](const io::StoredType& stored) { return stored.dtype == dtype; });
    const Shape shape = t.shape();
    std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}{}), }}", type->size == 1 ? '|' : '<', type->npy,
                                   fmt::join(shape, ", "), t.dim() == 1 ? "," : "");
    std::string start(kMagic, kMagicSize);
    start += "\x01";
    start += '\0';
    constexpr std::size_t kAlignment = 64;
    const std::size_t before = start.size() + 2;
    text.append((kAlignment - (before + text.size() + 1) % kAlignment) % kAlignment, ' ');
    text += '\n';
    start += static_cast<char>(text.size() & 0xFF);
    start += static_cast<char>(text.size() >> 8);
    return start + text;
}

// --- Archives --------------------------------------------------------------------------------------------------------------

constexpr std::uint32_t kLocalMark = 0x04034b50, kEntryMark = 0x02014b50, kEndMark = 0x06054b50, kEnd64Mark = 0x06064b50, kLocatorMark = 0x07064b50;
constexpr std::size_t kLocalSize = 30, kEntrySize = 46, kEndSize = 22, kEnd64Size = 56, kLocatorSize = 20;
constexpr std::uint16_t kStored = 0, kDeflated = 8;
constexpr std::uint16_t kEncryptedFlag = 1, kUtf8Flag = 1 << 11;

template <class T>
T number_at(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

struct Entry {
    std::string name;
    std::uint16_t flags = 0, method = 0;
    std::uint32_t crc = 0;
    std::uint64_t packed = 0, size = 0, offset = 0;  // offset: first of its local header, later of its bytes
};

struct Directory {
    std::uint64_t offset = 0, bytes = 0, entries = 0;
};

Directory find_directory(const io::InputFile& file) {
    if (file.size() < kEndSize) file.stop("too short for a zip archive" + io::kind_of(file));
    const std::uint64_t tail = std::min<std::uint64_t>(file.size(), kEndSize + 0xFFFF);
    std::vector<std::byte> bytes(static_cast<std::size_t>(tail));
    file.read(file.size() - tail, bytes.data(), bytes.size());
    for (std::size_t i = bytes.size() - kEndSize + 1; i-- > 0;) {
        const std::byte* end = bytes.data() + i;
        if (number_at<std::uint32_t>(end) != kEndMark || number_at<std::uint16_t>(end + 20) != bytes.size() - i - kEndSize) continue;
        const std::uint64_t end_offset = file.size() - tail + i;
        Directory d{number_at<std::uint32_t>(end + 16), number_at<std::uint32_t>(end + 12), number_at<std::uint16_t>(end + 10)};
        std::byte locator[kLocatorSize];
        if (end_offset >= kLocatorSize) {
            file.read(end_offset - kLocatorSize, locator, kLocatorSize);
            if (number_at<std::uint32_t>(locator) == kLocatorMark) {
                const auto where = number_at<std::uint64_t>(locator + 8);
                std::byte end64[kEnd64Size];
                if (where > end_offset || end_offset - where < kEnd64Size) file.stop("the archive's directory is not where it should be");
                file.read(where, end64, kEnd64Size);
                if (number_at<std::uint32_t>(end64) != kEnd64Mark) file.stop("the archive's directory is not where it should be");
                d = {number_at<std::uint64_t>(end64 + 48), number_at<std::uint64_t>(end64 + 40), number_at<std::uint64_t>(end64 + 32)};
            }
        }
        if (d.offset > end_offset || d.bytes > end_offset - d.offset || d.entries > d.bytes / kEntrySize) {
            file.stop("the archive's directory is not where it should be");
        }
        return d;
    }
    file.stop("not a zip archive: it has no directory" + io::kind_of(file));
}

// Reads sizes and offset that did not fit into 32 bits, in this order.
void read_extra64(Entry& e, const std::byte* extra, std::size_t length, bool has_offset, const io::InputFile& file) {
    constexpr std::uint32_t kAbsent = 0xFFFFFFFF;
    for (std::size_t at = 0; at + 4 <= length;) {
        const auto id = number_at<std::uint16_t>(extra + at);
        const std::size_t size = number_at<std::uint16_t>(extra + at + 2);
        at += 4;
        if (size > length - at) break;
        if (id == 1) {
            std::size_t used = 0;
            for (std::uint64_t* value : {&e.size, &e.packed, has_offset ? &e.offset : nullptr}) {
                if (!value || *value != kAbsent || used + 8 > size) continue;
                *value = number_at<std::uint64_t>(extra + at + used);
                used += 8;
            }
            return;
        }
        at += size;
    }
    if (e.size == kAbsent || e.packed == kAbsent || e.offset == kAbsent) file.stop("the archive lacks the size of " + shown(e.name));
}

std::string array_name(const std::string& member) { return member.ends_with(".npy") ? member.substr(0, member.size() - 4) : member; }

std::vector<Entry> read_directory(const io::InputFile& file) {
    const Directory d = find_directory(file);
    std::vector<std::byte> bytes(static_cast<std::size_t>(d.bytes));
    file.read(d.offset, bytes.data(), bytes.size());
    std::vector<Entry> entries;
    std::unordered_set<std::string> names;
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < d.entries; ++i) {
        if (bytes.size() - at < kEntrySize || number_at<std::uint32_t>(bytes.data() + at) != kEntryMark) {
            file.stop(fmt::format("entry {} of the archive's directory is damaged", i));
        }
        const std::byte* from = bytes.data() + at;
        const std::size_t name = number_at<std::uint16_t>(from + 28), extra = number_at<std::uint16_t>(from + 30),
                          comment = number_at<std::uint16_t>(from + 32);
        at += kEntrySize;
        if (bytes.size() - at < name + extra + comment) file.stop(fmt::format("entry {} of the archive's directory is damaged", i));
        Entry e{std::string(reinterpret_cast<const char*>(bytes.data() + at), name),
                number_at<std::uint16_t>(from + 8),
                number_at<std::uint16_t>(from + 10),
                number_at<std::uint32_t>(from + 16),
                number_at<std::uint32_t>(from + 20),
                number_at<std::uint32_t>(from + 24),
                number_at<std::uint32_t>(from + 42)};
        read_extra64(e, bytes.data() + at + name, extra, true, file);
        at += name + extra + comment;
        // "a" and "a.npy" are both the array "a".
        if (!names.insert(array_name(e.name)).second) file.stop("the archive has " + shown(array_name(e.name)) + " twice");
        entries.push_back(std::move(e));
    }
    return entries;
}

// Finds the bytes behind each local header, and checks that no two entries overlap: else a small file could be read as a large one.
void locate(std::vector<Entry>& entries, const io::InputFile& file) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> used;
    std::uint64_t unpacked = 0;
    std::string renamed;  // the first whose local header has another name
    for (Entry& e : entries) {
        const std::string name = shown(e.name);
        if (e.flags & kEncryptedFlag) file.stop(name + " is encrypted");
        if (e.method != kStored && e.method != kDeflated) {
            file.stop(fmt::format("{} is packed by method {}, which is not known", name, e.method));
        }
        std::byte local[kLocalSize];
        if (e.offset > file.size() || file.size() - e.offset < kLocalSize) file.stop(name + " is not where the directory says");
        file.read(e.offset, local, kLocalSize);
        if (number_at<std::uint32_t>(local) != kLocalMark) file.stop(name + " is not where the directory says");
        const std::uint64_t begin = e.offset;
        const std::size_t length = number_at<std::uint16_t>(local + 26);
        std::string own(length == e.name.size() ? length : 0, '\0');
        if (own.size() > file.size() - e.offset - kLocalSize) file.stop(name + " goes beyond the file's end");
        file.read(e.offset + kLocalSize, own.data(), own.size());
        if (own != e.name && renamed.empty()) renamed = name;
        e.offset += kLocalSize + number_at<std::uint16_t>(local + 26) + number_at<std::uint16_t>(local + 28);
        if (e.offset > file.size() || e.packed > file.size() - e.offset) file.stop(name + " goes beyond the file's end");
        if (e.method == kStored && e.packed != e.size) file.stop(name + " has two sizes");
        if (e.size / io::kMostDeflated > e.packed) file.stop(fmt::format("{} cannot have {} bytes", name, e.size));
        used.emplace_back(begin, e.offset + e.packed);
        if (e.method == kDeflated) unpacked += e.size;
    }
    file.check_unpacked(unpacked);
    std::sort(used.begin(), used.end());
    for (std::size_t i = 1; i < used.size(); ++i) {
        if (used[i].first < used[i - 1].second) file.stop("entries of the archive overlap");
    }
    if (!renamed.empty()) file.stop(renamed + " has another name in its own header");
}

Tensor read_entry(const Entry& e, const io::InputFile& file, const Loc& loc) {
    const std::string name = shown(e.name);
    std::unique_ptr<io::Inflater> inflater;
    if (e.method == kDeflated) inflater = std::make_unique<io::Inflater>(file, e.offset, e.packed, io::Inflater::Wrapping::none);
    std::uint64_t done = 0;
    std::uint32_t crc = 0;
    Source source{[&](void* to, std::size_t count) {
                      if (inflater) {
                          if (inflater->read(to, count) < count) file.stop(name + " ends too early");
                      } else {
                          file.read(e.offset + done, to, count);
                      }
                      done += count;
                      crc = io::crc32(crc, to, count);
                  },
                  e.size, [&](const std::string& problem) { file.stop(name + ": " + problem); }};
    detail::begin_op("load_npz", cpu, loc);
    Tensor t = read_array(source, loc);
    if (source.most > 0) file.stop(fmt::format("{}: {} bytes more than the array has", name, source.most));
    if (crc != e.crc) file.stop(name + " is damaged: its checksum is another");
    return t;
}

void append(std::string& to, std::initializer_list<std::pair<std::uint64_t, int>> numbers) {
    for (const auto& [value, bytes] : numbers) {
        for (int i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i) & 0xFF);
    }
}

// Appends the fields that local header and directory share, from "version needed" to "extra field length". Sizes always stand in a
// 64-bit extra field, so that one form serves members of any size. The time is the format's first: files depend on their contents alone.
void append_common(std::string& to, const Entry& e, std::size_t extra) {
    constexpr std::uint64_t kVersion = 45, kTime = 0, kDate = 1 << 5 | 1, kIn64 = 0xFFFFFFFF;
    append(to,
           {{kVersion, 2}, {e.flags, 2}, {e.method, 2}, {kTime, 2}, {kDate, 2}, {e.crc, 4}, {kIn64, 4}, {kIn64, 4}, {e.name.size(), 2}, {extra, 2}});
}

std::string local_header(const Entry& e) {
    std::string text;
    append(text, {{kLocalMark, 4}});
    append_common(text, e, 20);
    text += e.name;
    append(text, {{1, 2}, {16, 2}, {e.size, 8}, {e.packed, 8}});
    return text;
}

std::string directory_of(const std::vector<Entry>& entries, std::uint64_t offset) {
    constexpr std::uint64_t kIn64 = 0xFFFFFFFF;
    std::string text;
    for (const Entry& e : entries) {
        append(text, {{kEntryMark, 4}, {45, 1}, {3, 1}});  // made by version 4.5 of the format, on Unix
        append_common(text, e, 28);
        append(text, {{0, 2}, {0, 2}, {0, 2}, {0100644ULL << 16, 4}, {kIn64, 4}});  // comment, disk, attributes, offset
        text += e.name;
        append(text, {{1, 2}, {24, 2}, {e.size, 8}, {e.packed, 8}, {e.offset, 8}});
    }
    const std::uint64_t bytes = text.size(), end64 = offset + bytes, count = entries.size();
    append(text, {{kEnd64Mark, 4}, {kEnd64Size - 12, 8}, {45, 2}, {45, 2}, {0, 4}, {0, 4}});
    append(text, {{count, 8}, {count, 8}, {bytes, 8}, {offset, 8}});
    append(text, {{kLocatorMark, 4}, {0, 4}, {end64, 8}, {1, 4}});
    append(text, {{kEndMark, 4}, {0, 2}, {0, 2}, {0xFFFF, 2}, {0xFFFF, 2}, {kIn64, 4}, {kIn64, 4}, {0, 2}});
    return text;
}

}  // namespace

void save_npy(const TextArg& path, const Tensor& x, Loc loc) {
    const CallerScope caller(loc);
    const std::string header = header_of("save_npy", x, "", loc);
    detail::note_read("save_npy", x, loc);
    const detail::PauseRecording pause;
    const Tensor packed = x.to(cpu, loc).contiguous(loc);
    io::AtomicFile file("save_npy", path, loc);
    file.write(header.data(), header.size());
    file.write(packed.raw_data(), packed.nbytes());
    file.commit();
}

Tensor load_npy(const TextArg& path, Loc loc) {
    const CallerScope caller(loc);
    const io::InputFile file("load_npy", path, loc);
    std::uint64_t done = 0;
    Source source{[&](void* to, std::size_t count) {
                      file.read(done, to, count);
                      done += count;
                  },
                  file.size(),
                  [&](const std::string& problem) { file.stop(problem == kNoArray || file.size() == 0 ? problem + io::kind_of(file) : problem); }};
    detail::begin_op("load_npy", cpu, loc);
    Tensor t = read_array(source, loc);
    if (source.most > 0) file.stop(fmt::format("{} bytes more than the array has", source.most));
    return t;
}

void save_npz(const TextArg& path, const NamedTensors& tensors, bool compressed, Loc loc) {
    const CallerScope caller(loc);
    std::vector<std::string> headers;
    std::unordered_set<std::string> names;
    for (const NamedTensor& t : tensors) {
        if (t.name.size() > 0xFFFF - 4) fail<ValueError>(loc, "save_npz: the name {} is too long", shown(t.name));
        if (!names.insert(t.name).second) fail<ValueError>(loc, "save_npz: the name {} is used twice", shown(t.name));
        headers.push_back(header_of("save_npz", t.tensor, shown(t.name) + " ", loc));
        detail::note_read("save_npz", t.tensor, loc);
    }
    const detail::PauseRecording pause;
    io::AtomicFile file("save_npz", path, loc);
    std::vector<Entry> entries;
    std::uint64_t position = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const Tensor t = tensors[i].tensor.to(cpu, loc).contiguous(loc);
        Entry e{tensors[i].name + ".npy", kUtf8Flag, compressed ? kDeflated : kStored, 0, 0, 0, position};
        e.crc = io::crc32(io::crc32(0, headers[i].data(), headers[i].size()), t.raw_data(), t.nbytes());
        e.size = headers[i].size() + t.nbytes();
        e.packed = e.size;
        std::string packed;
        if (compressed) {
            io::Deflater deflater("save_npz", loc,
                                  [&](const void* from, std::size_t count) { packed.append(static_cast<const char*>(from), count); });
            deflater.write(headers[i].data(), headers[i].size());
            deflater.write(t.raw_data(), t.nbytes());
            deflater.finish();
            e.packed = packed.size();
        }
        const std::string local = local_header(e);
        file.write(local.data(), local.size());
        if (compressed) {
            file.write(packed.data(), packed.size());
        } else {
            file.write(headers[i].data(), headers[i].size());
            file.write(t.raw_data(), t.nbytes());
        }
        position += local.size() + e.packed;
        entries.push_back(std::move(e));
    }
    const std::string directory = directory_of(entries, position);
    file.write(directory.data(), directory.size());
    file.commit();
}

NamedTensors load_npz(const TextArg& path, Loc loc) {
    const CallerScope caller(loc);
    const io::InputFile file("load_npz", path, loc);
    std::vector<Entry> entries = read_directory(file);
    for (const Entry& e : entries) {
        if (e.name.ends_with("/data.pkl")) file.stop("not an archive of arrays" + io::kind_of(file));
    }
    locate(entries, file);
    NamedTensors result;
    for (const Entry& e : entries) {
        result.push_back({array_name(e.name), read_entry(e, file, loc)});
    }
    return result;
}

}  // namespace tapir
