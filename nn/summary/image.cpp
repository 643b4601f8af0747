#include "tapir/nn/summary/image_impl.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/crc_impl.h"
#include "tapir/core/io/inflate_impl.h"
#include "tapir/core/io/shown_impl.h"

namespace tapir::summary {
namespace {

void put_big_endian(std::string& to, std::uint64_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) to += static_cast<char>(value >> shift);
}

void put_chunk(std::string& to, const std::string& type, const std::string& data) {
    put_big_endian(to, data.size());
    to += type + data;
    put_big_endian(to, io::crc32(io::crc32(0, type.data(), type.size()), data.data(), data.size()));
}

std::uint64_t adler32(std::string_view bytes) {
    std::uint64_t a = 1, b = 0;
    for (const char byte : bytes) {
        a = (a + static_cast<unsigned char>(byte)) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

// Returns one byte for each value, in row-major order.
std::string bytes_of(const char* op, const Tensor& x, const Loc& loc) {
    const DType dtype = x.dtype();
    if (dtype != uint8 && dtype != bool_ && !is_floating(dtype)) {
        fail<DTypeError>(loc, "{}: an image must be uint8, bool or floating, got {}", op, name(dtype));
    }
    std::string bytes(static_cast<std::size_t>(x.numel()), '\0');
    if (dtype == uint8) {
        const Tensor values = x.contiguous(loc);
        std::copy_n(values.data<std::uint8_t>(), bytes.size(), bytes.begin());
        return bytes;
    }
    const Tensor values = x.to(float32, loc).contiguous(loc);
    const float* from = values.data<float>();
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        // nan becomes black. Fractions are cut off, as PyTorch does.
        bytes[i] = from[i] > 0 ? static_cast<char>(static_cast<std::uint8_t>(std::min(from[i], 1.0f) * 255)) : '\0';
    }
    return bytes;
}

}  // namespace

Pixels pixels_of(const char* op, const Tensor& x, std::string_view dataformats, std::int64_t columns, const Loc& loc) {
    std::string format(dataformats), sorted;
    for (char& c : format) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    sorted = format;
    std::sort(sorted.begin(), sorted.end());
    if (sorted != "HW" && sorted != "CHW" && sorted != "CHNW") {
        fail<ValueError>(loc, "{}: dataformats must be an order of HW, CHW or NCHW, got {}", op, io::shown(dataformats));
    }
    if (x.dim() != static_cast<int>(format.size())) {
        const char* hint = x.dim() == 2                           ? "; for a grey image give dataformats as \"HW\""
            : x.dim() == 4 && std::string_view(op) == "add_image" ? "; for several images call add_images()"
            : x.dim() == 3 && format == "NCHW"                    ? "; for one image call add_image(), for grey ones give x.unsqueeze(1)"
                                                                  : "";
        fail<ShapeError>(loc, "{}: the image has shape {}, which is not \"{}\"{}", op, x.shape(), format, hint);
    }
    Tensor ordered = x;
    for (const char dimension : {'C', 'N'}) {
        if (format.find(dimension) != format.npos) continue;
        ordered = ordered.unsqueeze(0, loc);
        format.insert(format.begin(), dimension);
    }
    std::vector<std::int64_t> order;
    for (const char dimension : {'N', 'H', 'W', 'C'}) order.push_back(static_cast<std::int64_t>(format.find(dimension)));
    ordered = ordered.permute(Dims(order), loc);
    const std::int64_t count = ordered.size(0), height = ordered.size(1), width = ordered.size(2), channels = ordered.size(3);
    if (channels != 1 && channels != 3 && channels != 4) {
        const std::int64_t last = x.size(-1);
        const bool is_last = format == "NCHW" && (last == 1 || last == 3 || last == 4);
        const char* hint = !is_last ? ""
            : x.dim() == 4          ? "; are they the last dimension? Give dataformats as \"NHWC\""
                                    : "; are they the last dimension? Give dataformats as \"HWC\"";
        fail<ShapeError>(loc, "{}: an image must have 1, 3 or 4 channels, got {} in shape {} as {}{}", op, channels, x.shape(), dataformats, hint);
    }
    if (x.numel() == 0) fail<ShapeError>(loc, "{}: an image without pixels, of shape {}", op, x.shape());

    const std::string bytes = bytes_of(op, ordered, loc);
    const char* from = bytes.data();
    columns = std::min(columns, count);
    Pixels pixels;
    pixels.height = (count + columns - 1) / columns * height;
    pixels.width = columns * width;
    pixels.channels = static_cast<int>(channels);
    const auto row = static_cast<std::size_t>(width * channels);
    pixels.bytes.assign(static_cast<std::size_t>(pixels.height * pixels.width * channels), '\0');
    for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t y = 0; y < height; ++y) {
            const std::int64_t at = (i / columns * height + y) * pixels.width + i % columns * width;
            std::copy_n(from, row, pixels.bytes.data() + at * channels);
            from += row;
        }
    }
    return pixels;
}

// PNG (Third Edition, www.w3.org/TR/png-3): rows without filters, eight bits a value.
std::string png(const char* op, const Pixels& pixels, const Loc& loc) {
    std::string header;
    put_big_endian(header, static_cast<std::uint64_t>(pixels.width));
    put_big_endian(header, static_cast<std::uint64_t>(pixels.height));
    header += '\x08';
    header += static_cast<char>(pixels.channels == 1 ? 0 : pixels.channels == 3 ? 2 : 6);
    header.append(3, '\0');
    const std::size_t row = static_cast<std::size_t>(pixels.width) * static_cast<std::size_t>(pixels.channels);
    std::string rows;
    for (std::size_t at = 0; at < pixels.bytes.size(); at += row) (rows += '\0').append(pixels.bytes, at, row);
    std::string data = "\x78\x9C";  // zlib's header
    io::Deflater deflater(op, loc, [&](const void* from, std::size_t count) { data.append(static_cast<const char*>(from), count); });
    deflater.write(rows.data(), rows.size());
    deflater.finish();
    put_big_endian(data, adler32(rows));
    std::string file = "\x89PNG\r\n\x1A\n";
    put_chunk(file, "IHDR", header);
    put_chunk(file, "IDAT", data);
    put_chunk(file, "IEND", {});
    return file;
}

}  // namespace tapir::summary
