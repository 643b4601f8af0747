// Unpacks and packs bytes.
#include "tapir/core/io/inflate_impl.h"

#include <algorithm>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/file.h"
#ifdef TAPIR_HAVE_ZLIB
#include <zlib.h>
#endif

namespace tapir::io {
namespace {

constexpr std::size_t kChunk = 64 * 1024;

}  // namespace

#ifdef TAPIR_HAVE_ZLIB

struct Inflater::State {
    const InputFile& file;
    std::uint64_t next, left;  // positions in the compressed bytes
    Wrapping wrapping;
    bool is_done = false;
    z_stream stream{};
    unsigned char buffer[kChunk];
};

Inflater::Inflater(const InputFile& file, std::uint64_t offset, std::uint64_t count, Wrapping wrapping)
    : state_(new State{.file = file, .next = offset, .left = count, .wrapping = wrapping, .buffer = {}}) {
    constexpr int kGzip = 16 + MAX_WBITS, kBare = -MAX_WBITS;
    if (inflateInit2(&state_->stream, wrapping == Wrapping::gzip ? kGzip : kBare) != Z_OK) file.stop("no memory for zlib");
}

Inflater::~Inflater() { inflateEnd(&state_->stream); }

std::size_t Inflater::read(void* to, std::size_t count) {
    State& s = *state_;
    std::size_t done = 0;
    while (done < count && !s.is_done) {
        if (s.stream.avail_in == 0 && s.left > 0) {
            const std::size_t chunk = std::min<std::uint64_t>(s.left, kChunk);
            s.file.read(s.next, s.buffer, chunk);
            s.next += chunk;
            s.left -= chunk;
            s.stream.next_in = s.buffer;
            s.stream.avail_in = static_cast<uInt>(chunk);
        }
        const auto room = static_cast<uInt>(std::min<std::size_t>(count - done, std::size_t{1} << 30));
        s.stream.next_out = static_cast<Bytef*>(to) + done;
        s.stream.avail_out = room;
        const int status = inflate(&s.stream, Z_NO_FLUSH);
        done += room - s.stream.avail_out;
        if (status == Z_STREAM_END) {
            // A gzip file may have several parts in a row.
            const bool goes_on = s.wrapping == Wrapping::gzip && (s.stream.avail_in > 0 || s.left > 0);
            s.is_done = !goes_on || inflateReset(&s.stream) != Z_OK;
        } else if (status == Z_BUF_ERROR || (status == Z_OK && s.stream.avail_out > 0 && s.stream.avail_in == 0 && s.left == 0)) {
            s.file.stop("the compressed data ends too early");
        } else if (status != Z_OK) {
            s.file.stop(std::string("damaged compressed data: ") + (s.stream.msg ? s.stream.msg : "zlib gives no reason"));
        }
    }
    return done;
}

struct Deflater::State {
    const char* op;
    Loc loc;
    Sink sink;
    z_stream stream{};
    unsigned char buffer[kChunk];
};

Deflater::Deflater(const char* op, const Loc& loc, Sink sink) : state_(new State{.op = op, .loc = loc, .sink = std::move(sink), .buffer = {}}) {
    if (deflateInit2(&state_->stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
        fail<FileError>(loc, "{}: no memory for zlib", op);
    }
}

Deflater::~Deflater() { deflateEnd(&state_->stream); }

void Deflater::run(int flush) {
    State& s = *state_;
    int status = Z_OK;
    do {
        s.stream.next_out = s.buffer;
        s.stream.avail_out = kChunk;
        status = deflate(&s.stream, flush);
        s.sink(s.buffer, kChunk - s.stream.avail_out);
    } while (s.stream.avail_out == 0 && status != Z_STREAM_END);
}

void Deflater::write(const void* from, std::size_t count) {
    State& s = *state_;
    const auto* next = static_cast<const Bytef*>(from);
    while (count > 0) {
        const std::size_t part = std::min<std::size_t>(count, std::size_t{1} << 30);
        s.stream.next_in = const_cast<Bytef*>(next);
        s.stream.avail_in = static_cast<uInt>(part);
        run(Z_NO_FLUSH);
        next += part;
        count -= part;
    }
}

void Deflater::finish() {
    state_->stream.avail_in = 0;
    run(Z_FINISH);
}

#else

struct Inflater::State {};
struct Deflater::State {};

Inflater::Inflater(const InputFile& file, std::uint64_t, std::uint64_t, Wrapping) {
    file.stop("it is compressed, and this build of tapir has no zlib");
}
Inflater::~Inflater() = default;
std::size_t Inflater::read(void*, std::size_t) { return 0; }

Deflater::Deflater(const char* op, const Loc& loc, Sink) { fail<FileError>(loc, "{}: this build of tapir has no zlib to compress with", op); }
Deflater::~Deflater() = default;
void Deflater::run(int) {}
void Deflater::write(const void*, std::size_t) {}
void Deflater::finish() {}

#endif

InputStream::InputStream(const char* op, const std::string& path, const Loc& loc) : file_(op, path, loc) {
    unsigned char magic[2] = {};
    if (file_.size() < sizeof magic) return;
    file_.read(0, magic, sizeof magic);
    if (magic[0] == 0x1F && magic[1] == 0x8B) {
        inflater_ = std::make_unique<Inflater>(file_, 0, file_.size(), Inflater::Wrapping::gzip);
    }
}

std::size_t InputStream::read_some(void* to, std::size_t count) {
    if (inflater_) {
        count = inflater_->read(to, count);
    } else {
        count = static_cast<std::size_t>(std::min<std::uint64_t>(count, file_.size() - position_));
        file_.read(position_, to, count);
    }
    position_ += count;
    if (inflater_) file_.check_unpacked(position_);
    return count;
}

void InputStream::read(void* to, std::size_t count) {
    if (read_some(to, count) < count) fail_at(position_, "the file ends here, too early");
}

std::string InputStream::read_all() {
    std::string text;
    std::size_t got = 0;
    do {
        const std::size_t size = text.size();
        // Allows one byte more than may come, so that a file with too many bytes is refused, not cut.
        const std::uint64_t more = inflater_ ? std::min<std::uint64_t>(std::max(kChunk, size), most_left() + 1) : most_left();
        try {
            text.resize(size + static_cast<std::size_t>(more));
        } catch (const std::exception&) {  // bad_alloc, or a length beyond std::string's limit
            file_.stop_memory();
        }
        got = read_some(text.data() + size, text.size() - size);
        text.resize(size + got);
    } while (got > 0);
    return text;
}

std::uint64_t InputStream::most_left() const noexcept {
    if (!inflater_) return file_.size() - position_;
    const std::uint64_t most = std::min(file_.size() * kMostDeflated, max_unpacked_bytes());
    return most - std::min(position_, most);
}

void InputStream::fail_at(std::uint64_t position, const std::string& problem) const {
    file_.stop("byte " + std::to_string(position) + (inflater_ ? " of the uncompressed data: " : ": ") + problem);
}

}  // namespace tapir::io
