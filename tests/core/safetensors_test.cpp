// safetensors: there and back, bytes as the format says, and files made to harm.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "../nn/check.h"
#include "../nn/summary/reader.h"

using namespace tapir;

namespace {

namespace fs = std::filesystem;

struct Folder {
    fs::path path = fs::temp_directory_path() / ("tapir_safetensors_" + std::to_string(::getpid()));
    Folder() { fs::create_directories(path); }
    ~Folder() { fs::remove_all(path); }
    std::string file(const char* name = "file.safetensors") const { return (path / name).string(); }
};

std::string bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string with_length(std::uint64_t length, const std::string& rest) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes + rest;
}

// A file with this header and `data` bytes of data.
std::string file_of(const std::string& header, std::size_t data) { return with_length(header.size(), header + std::string(data, '\1')); }

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

std::uint32_t crc32c(const std::string& bytes) { return events::crc(bytes, 0x82F63B78); }

std::string little_endian(std::uint32_t number) {
    std::string bytes(4, '\0');
    std::memcpy(bytes.data(), &number, 4);
    return bytes;
}

}  // namespace

TEST_CASE("every dtype and shape comes back") {
    const Folder folder;
    Tensor wide = randn({4, 6});
    const NamedTensors saved{{"bool", tensor({true, false, true})},
                             {"u8", tensor({1, 2, 255}, uint8)},
                             {"f16", randn({3}).to(float16)},
                             {"bf16", randn({1, 3}).to(bfloat16)},
                             {"i32", tensor({{1, -2}, {3, 4}}, int32)},
                             {"i64", tensor({INT64_MAX, INT64_MIN})},
                             {"f32", randn({2, 3, 4})},
                             {"f64", randn({2}, float64)},
                             {"scalar", tensor(1.5)},
                             {"empty", zeros({0, 3})},
                             {"strided", wide.t().narrow(0, 1, 3)},
                             {"naïve \"name\"\n\\ 树", ones({1})},
                             {"", ones({2})}};
    save_safetensors(folder.file(), saved, {{"format", "pt"}, {"a", "é"}});
    FileMetadata metadata;
    const NamedTensors loaded = load_safetensors(folder.file(), &metadata);
    CHECK(metadata == FileMetadata{{"format", "pt"}, {"a", "é"}});
    REQUIRE(loaded.size() == saved.size());
    for (std::size_t i = 0; i < saved.size(); ++i) {
        INFO(saved[i].name);
        CHECK(loaded[i].name == saved[i].name);
        CHECK(loaded[i].tensor.dtype() == saved[i].tensor.dtype());
        CHECK(loaded[i].tensor.shape() == saved[i].tensor.shape());
        CHECK(loaded[i].tensor.to_vector<double>() == saved[i].tensor.to_vector<double>());
        CHECK(loaded[i].tensor.is_contiguous());
    }
    CHECK(loaded[5].tensor.at<std::int64_t>({0}) == INT64_MAX);
    save_safetensors(folder.file(), {});
    CHECK(load_safetensors(folder.file()).empty());
}

TEST_CASE("the bytes are the format's") {
    const Folder folder;
    save_safetensors(folder.file(), {{"a", tensor({7}, uint8)}, {"b", tensor({1.0, 2.0}, float32)}});
    const std::string front = R"({"__metadata__": {"tapir.crc32c": ")";
    std::string behind = R"("},"a":{"dtype":"U8","shape":[1],"data_offsets":[8,9]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    while ((front.size() + 8 + behind.size()) % 8 != 0) behind += ' ';
    const float numbers[] = {1, 2};
    std::string data(8, '\0');
    std::memcpy(data.data(), numbers, 8);
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", crc32c(behind + little_endian(crc32c("\7")) + little_endian(crc32c(data))));
    CHECK(bytes_of(folder.file()) == with_length(front.size() + 8 + behind.size(), front + digits + behind + data + "\7"));
}

TEST_CASE("a file with a changed byte is refused, or holds what was saved") {
    const Folder folder;
    const NamedTensors saved{{"w", arange(6).reshape({2, 3}).to(float32)}, {"b", tensor({true, false})}, {"empty", zeros({0, 2})}};
    save_safetensors(folder.file(), saved, {{"format", "pt"}});
    const std::string whole = bytes_of(folder.file());
    std::size_t accepted = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
        for (const int change : {0x01, 0x20, 0x80}) {
            std::string bytes = whole;
            bytes[i] = static_cast<char>(bytes[i] ^ change);
            write_bytes(folder.file(), bytes);
            NamedTensors loaded;
            FileMetadata metadata;
            try {
                loaded = load_safetensors(folder.file(), &metadata);
            } catch (const FileError&) {
                continue;
            }
            ++accepted;
            INFO("byte " << i << " changed by " << change);
            REQUIRE(loaded.size() == saved.size());
            for (std::size_t k = 0; k < saved.size(); ++k) CHECK((loaded[k].name == saved[k].name && equal(loaded[k].tensor, saved[k].tensor)));
            CHECK((metadata.back() == FileMetadata::value_type{"format", "pt"}));
        }
    }
    CHECK(accepted > 0);  // in the checksum's own name
    CHECK(accepted < 40);
    std::string bytes = whole;
    bytes.back() = 1;  // the last bool was false
    write_bytes(folder.file(), bytes);
    CHECK(check::message<FileError>([&] { load_safetensors(folder.file()); }).find("it is damaged") != std::string::npos);
}

TEST_CASE("a checksum that another program copied with the metadata is none") {
    const Folder folder;
    const std::string header = R"({"__metadata__":{"tapir.crc32c":"01234567","a":"b"},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    write_bytes(folder.file(), file_of(header, 1));
    FileMetadata metadata;
    const NamedTensors loaded = load_safetensors(folder.file(), &metadata);
    CHECK(loaded.front().tensor.item<int>() == 1);
    CHECK(metadata == FileMetadata{{"a", "b"}});
    save_safetensors(folder.file(), loaded, {{"tapir.crc32c", "01234567"}, {"a", "b"}});
    load_safetensors(folder.file(), &metadata);
    CHECK(metadata == FileMetadata{{"a", "b"}});
}

TEST_CASE("hostile files end in a FileError that names the file and the user's line") {
    const Folder folder;
    const std::string path = folder.file();
    const auto refused = [&](const std::string& bytes, const char* why) {
        write_bytes(path, bytes);
        const int line = __LINE__ + 1;
        const std::string text = check::message<FileError>([&] { load_safetensors(path); });
        INFO(why << " -> " << text);
        CHECK(check::begins(text, "safetensors_test.cpp:" + std::to_string(line) + ": load_safetensors: " + path + ": "));
        CHECK(check::contains(text, why));
    };
    const std::string good = entry("a", "F32", "[2]", "[0,8]");
    write_bytes(path, file_of("{" + good + "}  ", 8));
    CHECK(load_safetensors(path).size() == 1);

    // Sizes whose product without the 0 is past all memory: a sum along that dimension would have a wrong size.
    refused(file_of("{" + entry("a", "F32", "[0,4611686018427387904,8]", "[0,0]") + "}", 0), "4611686018427387904");
    refused(file_of("{" + entry("a", "I8", "[0,4611686018427387904]", "[0,0]") + "}", 0), "4611686018427387904");  // as int32

    // Length and truncation.
    refused("", "shorter than 8");
    refused("\1\0\0", "shorter than 8");
    refused(with_length(0, ""), "must begin with {");
    refused(with_length(1, ""), "a header of 1 bytes does not fit into the file's 8");
    refused(with_length(UINT64_MAX, "{}"), "a header of 18446744073709551615");
    refused(with_length(UINT64_MAX - 7, "{}"), "a header of");
    refused(with_length(100'000'001, "{}"), "a header of");
    refused("Chapter the first",
            "not a safetensors file: that begins with its header's length, and the first 8 bytes here would be a "
            "header of 2338042707334752323 bytes");
    const std::string whole = file_of("{" + good + "}", 8);
    for (std::size_t n = 8; n < whole.size(); ++n) refused(whole.substr(0, n), n < whole.size() - 8 ? "header" : "tensor");
    // JSON.
    refused(file_of(" {}", 0), "must begin with {");
    refused(file_of("[]", 0), "must begin with {");
    refused(file_of("{", 0), "not JSON");
    refused(file_of("{}x", 0), "not JSON");
    refused(file_of(std::string("{\"\xff\":1}"), 0), "not JSON");
    refused(file_of("{\"a\":1}", 0), "wrong kind");
    refused(file_of("{\"a\":[]}", 0), "wrong kind");
    refused(file_of("{\"a\":null}", 0), "wrong kind");
    refused(file_of("{\"a\":" + std::string(1'000'000, '['), 0), "wrong kind");
    std::string deep = "{\"a\":";
    for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
    refused(file_of(deep, 0), "only dtype, shape and data_offsets");
    refused(file_of("{\"__metadata__\":{\"a\":1}}", 0), "not an object of tensors");
    refused(file_of("{\"__metadata__\":[]}", 0), "not an object of tensors");
    // Entries.
    refused(file_of("{\"a\":{}}", 0), "needs dtype");
    refused(file_of(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "needs dtype");
    refused(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8), "needs dtype");
    refused(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", 8), "more than two");
    refused(file_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8), "twice");
    refused(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8), "only dtype");
    refused(file_of("{" + entry("a", "F8_E8M0", "[8]", "[0,8]") + "}", 8), "F8_E8M0");
    refused(file_of("{" + entry("a", "C64", "[1]", "[0,8]") + "}", 8), "C64");
    refused(file_of("{" + entry("a", "", "[8]", "[0,8]") + "}", 8), "does not have");
    refused(file_of("{" + entry("a", "F32", "[-2]", "[0,8]") + "}", 8), "wrong kind");
    refused(file_of("{" + entry("a", "F32", "[2.0]", "[0,8]") + "}", 8), "wrong kind");
    refused(file_of("{" + entry("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") + "}", 8), "8 dimensions");
    refused(file_of("{" + entry("a", "F32", "[18446744073709551615]", "[0,8]") + "}", 8), "too large");
    refused(file_of("{" + entry("a", "F32", "[99999999999999999999999]", "[0,8]") + "}", 8), "wrong kind");
    refused(file_of("{" + entry("a", "F32", "[4611686018427387906]", "[0,8]") + "}", 8), "does not have 8 bytes");
    refused(file_of("{" + entry("a", "F32", "[4294967296,4294967296]", "[0,0]") + "}", 0), "does not have 0 bytes");
    refused(file_of("{" + entry("a", "F32", "[3]", "[0,8]") + "}", 8), "does not have 8 bytes");
    refused(file_of("{" + entry("a", "F32", "[0]", "[0,8]") + "}", 8), "does not have 8 bytes");
    refused(file_of("{" + entry("a", "F32", "[2]", "[8,0]") + "}", 8), "data_offsets [8, 0]");
    refused(file_of("{" + entry("a", "F32", "[2]", "[0,8]") + "}", 7), "in 7 bytes");
    refused(file_of("{" + entry("a", "F32", "[2]", "[18446744073709551608,18446744073709551615]") + "}", 8), "data_offsets");
    refused(file_of("{" + good + "," + good + "}", 8), "twice");
    refused(file_of("{" + good + "," + entry("b", "F32", "[2]", "[4,12]") + "}", 12), "overlaps");
    refused(file_of("{" + good + "," + entry("b", "F32", "[2]", "[0,8]") + "}", 8), "overlaps");
    refused(file_of("{" + good + "," + entry("b", "F32", "[2]", "[12,20]") + "}", 20), "gap");
    refused(file_of("{" + entry("a", "F32", "[2]", "[4,12]") + "}", 12), "gap");
    refused(file_of("{" + good + "}", 9), "1 bytes at its end");
    refused(file_of("{}", 3), "3 bytes at its end");
    refused(file_of("{" + entry(std::string(5000, 'x') + "\\u0007", "F32", "[3]", "[0,8]") + "}", 8), "xxx...");
}

TEST_CASE("dtypes that tapir lacks become the next one that holds them") {
    const Folder folder;
    const auto read = [&](const std::string& dtype, const std::string& data, std::size_t count) {
        const std::string header = "{" + entry("a", dtype, "[" + std::to_string(count) + "]", "[0," + std::to_string(data.size()) + "]") + "}";
        write_bytes(folder.file(), with_length(header.size(), header + data));
        return load_safetensors(folder.file())[0].tensor;
    };
    const auto is = [](const Tensor& t, DType dtype, const std::vector<double>& values) {
        CHECK(t.dtype() == dtype);
        CHECK(t.to_vector<double>() == values);
    };
    using namespace std::string_literals;
    is(read("I8", "\x80\x7f\xff\0"s, 4), int32, {-128, 127, -1, 0});
    is(read("I16", "\0\x80\xff\x7f"s, 2), int32, {-32768, 32767});
    is(read("U16", "\xff\xff\1\0"s, 2), int32, {65535, 1});
    is(read("U32", "\xff\xff\xff\xff\1\0\0\0"s, 2), int64, {4294967295, 1});
    is(read("U64", "\0\0\0\0\1\0\0\0\1\0\0\0\0\0\0\0"s, 2), int64, {4294967296, 1});
    CHECK(check::contains(check::message<FileError>([&] { read("U64", std::string(8, '\377'), 1); }), "\"a\" has a number of the dtype U64"));
    // Largest, smallest above 0, smallest normal, 1, -1.5 and 0 of "FP8 Formats for Deep Learning", table 1.
    is(read("F8_E4M3", "\x7e\x01\x08\x38\xbc\0"s, 6), float32, {448, 0x1p-9, 0x1p-6, 1, -1.5, 0});
    is(read("F8_E5M2", "\x7b\x01\x04\x3c\xbe\x7c\xfc"s, 7), float32, {57344, 0x1p-16, 0x1p-14, 1, -1.5, INFINITY, -INFINITY});
    CHECK(read("F8_E4M3", "\x7f\xff"s, 2).isnan().all().item<bool>());
    CHECK(read("F8_E5M2", "\x7d\xff"s, 2).isnan().all().item<bool>());
    // An E5M2 is the upper half of a float16.
    std::string all, halves;
    for (int i = 0; i < 256; ++i) {
        if ((i & 0x7c) == 0x7c && (i & 3)) continue;  // nan
        all += static_cast<char>(i);
        halves += '\0';
        halves += static_cast<char>(i);
    }
    is(read("F8_E5M2", all, all.size()), float32, read("F16", halves, all.size()).to_vector<double>());
}

TEST_CASE("any byte changed gives tensors or a FileError") {
    const Folder folder;
    save_safetensors(folder.file(), {{"a", ones({2})}, {"b", tensor({true, false})}}, {{"k", "v"}});
    const std::string good = bytes_of(folder.file());
    int loaded = 0, refused = 0;
    for (std::size_t i = 0; i < good.size(); ++i) {
        for (const char value : {'\0', '\1', '"', '{', '}', '9', '\x7f', '\xff'}) {
            std::string bad = good;
            bad[i] = value;
            write_bytes(folder.file(), bad);
            try {
                for (const NamedTensor& t : load_safetensors(folder.file())) {
                    if (t.tensor.dtype() != bool_) continue;
                    for (const unsigned char x : t.tensor.to(uint8).to_vector<unsigned char>()) CHECK(x <= 1);
                }
                ++loaded;
            } catch (const FileError&) {
                ++refused;
            }
        }
    }
    CHECK(loaded > 50);
    CHECK(refused > 200);
}

TEST_CASE("a file behind a link is replaced, the link stays, and so does who may read it") {
    const Folder folder;
    const std::string path = folder.file(), link = path + ".link";
    save_safetensors(path, {{"a", ones({2})}});
    REQUIRE(::chmod(path.c_str(), 0600) == 0);
    REQUIRE(::symlink(path.c_str(), link.c_str()) == 0);
    save_safetensors(link, {{"b", ones({3})}});
    struct stat status{};
    CHECK((::lstat(link.c_str(), &status) == 0 && S_ISLNK(status.st_mode)));
    CHECK((::lstat(path.c_str(), &status) == 0 && (status.st_mode & 07777) == 0600));
    CHECK(load_safetensors(path)[0].name == "b");
    ::unlink(link.c_str());
}

TEST_CASE("what cannot be written leaves the old file alone, and nothing beside it") {
    const Folder folder;
    const std::string path = folder.file();
    save_safetensors(path, {{"a", ones({2})}});
    const std::string before = bytes_of(path);
    const auto line = [](int n) { return "safetensors_test.cpp:" + std::to_string(n) + ": save_safetensors: "; };
    const Tensor t = ones({1});
    CHECK(check::begins(check::message<ValueError>([&] { save_safetensors(path, {{"a", t}, {"a", t}}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { save_safetensors(path, {{"a", Tensor()}}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { save_safetensors(path, {{"__metadata__", t}}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { save_safetensors(path, {{"\xff", t}}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { save_safetensors(path, {}, {{"a", ""}, {"a", ""}}); }), line(__LINE__)));
    const std::string nowhere = folder.file("no/such/folder");
    CHECK(check::begins(check::message<FileError>([&] { save_safetensors(nowhere, {{"a", t}}); }), line(__LINE__) + nowhere));
    const std::string self = folder.path.string();
    CHECK(check::begins(check::message<FileError>([&] { save_safetensors(self, {{"a", t}}); }), line(__LINE__) + self));
    CHECK(check::contains(check::message<FileError>([&] { load_safetensors(self); }), "not a regular file"));
    CHECK(check::contains(check::message<FileError>([&] { load_safetensors(nowhere); }), "No such file"));
    CHECK(check::contains(check::message<FileError>([&] { save_safetensors("/dev/full", {{"a", t}}); }), "/dev/full"));
    CHECK(bytes_of(path) == before);
    CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
    CHECK((fs::status(path).permissions() & fs::perms::owner_write) != fs::perms::none);
}
