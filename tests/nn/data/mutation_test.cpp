// Damaged files through every reader: bytes changed, cut out, put in and repeated, numbers made huge. A reader gives what it can read or
// throws a FileError, which begins with the caller's line. (Fuzzers that search on from here: tests/fuzz.)
#include <algorithm>
#include <functional>

#include "../../sanitizers.h"
#include "../check.h"
#include "files.h"
#include "tapir/core/io/npy.h"
#include "tapir/nn/data/data.h"

using namespace tapir;
using namespace files;

namespace {

struct Reader {
    const char* name;
    std::vector<std::string> seeds;
    std::function<void(const std::string& path)> read;
};

class Random {
 public:
    std::size_t below(std::size_t bound) {
        state_ = state_ * 6364136223846793005U + 1442695040888963407U;
        return static_cast<std::size_t>(state_ >> 33) % bound;
    }

 private:
    std::uint64_t state_ = 1;
};

std::string mutated(std::string text, const std::string& other, Random& random) {
    static const std::string pieces[] = {std::string(4, '\xFF'),
                                         std::string(8, '\0'),
                                         std::string(8, '\x7F'),
                                         "99999999999999999999",
                                         "-1",
                                         "((((((((",
                                         "\"",
                                         "'",
                                         "[[[[",
                                         "{",
                                         "}",
                                         ")",
                                         ",",
                                         "\n",
                                         "\r\n",
                                         "True",
                                         "e999",
                                         "\x1F\x8B",
                                         "PK\1\2"};
    const std::size_t changes = 1 + random.below(3);
    for (std::size_t i = 0; i < changes; ++i) {
        const std::size_t at = random.below(text.size() + 1), length = random.below(12);
        switch (random.below(8)) {
            case 0: text = text.substr(0, at); break;
            case 1: text.erase(at, length); break;
            case 2: text.insert(at, pieces[random.below(std::size(pieces))]); break;
            case 3: text.replace(at, std::min(length, text.size() - at), pieces[random.below(std::size(pieces))]); break;
            case 4: text.insert(at, text.substr(at, 10 * length)); break;
            case 5: text = text.substr(0, at) + other.substr(random.below(other.size() + 1)); break;
            default:
                if (at < text.size()) text[at] = static_cast<char>(random.below(4) ? text[at] ^ (1 << random.below(8)) : random.below(256));
        }
    }
    return text;
}

std::string idx(int type, std::initializer_list<int> shape, const std::string& data) {
    std::string text{'\0', '\0', static_cast<char>(type), static_cast<char>(shape.size())};
    for (const int size : shape) text += std::string(3, '\0') + static_cast<char>(size);
    return text + data;
}

}  // namespace

TEST_CASE("a damaged file is read or refused by every reader") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "file").string();
    const auto saved = [&](auto save) {
        save();
        return read_all(path);
    };
    const Tensor a = arange(6, float32).reshape({2, 3}), b = tensor({true, false});
    const std::string npy = saved([&] { save_npy(path, a); }), truths = saved([&] { save_npy(path, b); });
    const std::string npz = saved([&] { save_npz(path, {{"a", a}, {"b", b}}); });
    std::string packed = npz;
    try {
        packed = saved([&] { save_npz(path, {{"a", a}, {"b", b}}, /*compressed=*/true); });
    } catch (const FileError&) {  // no zlib
    }
    const std::string record = std::string(1, '\3') + std::string(3072, 'x');
    const std::vector<Reader> readers = {
        {"safetensors",
         {saved([&] { save_safetensors(path, {{"a", a}, {"b", b}}, {{"k", "v"}}); }), saved([&] { save_safetensors(path, {}); })},
         [](const std::string& p) { load_safetensors(p); }},
        {"npy", {npy, truths}, [](const std::string& p) { load_npy(p); }},
        {"npz", {npz, packed}, [](const std::string& p) { load_npz(p); }},
        {"idx", {idx(8, {2, 3}, "abcdef"), idx(11, {2}, "abcd"), idx(14, {1, 1}, "12345678")}, [](const std::string& p) { data::read_idx(p); }},
        {"cifar10", {record, record + record}, [](const std::string& p) { data::read_cifar10(p); }},
        {"csv",
         {"a,b\n1,2\n-3.5,4e9\n", "\"x y\",z\r\n\"1\",\"2\"\r\n\r\n3,4\r\n", "a\n\"1\"\n"},
         [](const std::string& p) { data::read_csv(p).numbers(); }},
        {"lines", {"a\nb\r\n\nc", "\xEF\xBB\xBFx"}, [](const std::string& p) { data::read_lines(p); }},
        {"ptb",
         {"(3 (2 It) (4 (2 's) (4 lovely)))\n\n(1 a)\n", "(2 (2 a\\/b) (2 -LRB-))\r\n", "(4 (3 (2 (1 a) (0 b))))"},
         [](const std::string& p) { data::read_ptb(p); }},
    };
    const auto share = [](int n) { return test::share(n, 4); };  // of an eighth, too few files can be read
    Random random;
    for (const Reader& reader : readers) {
        int read = 0, refused = 0;
        for (const std::string& seed : reader.seeds) {
            folder.write("file", seed);
            reader.read(path);  // the seed itself is fine
        }
        for (int round = 0; round < share(1500); ++round) {
            const std::string& seed = reader.seeds[random.below(reader.seeds.size())];
            const std::string contents = mutated(seed, reader.seeds[random.below(reader.seeds.size())], random);
            folder.write("file", contents);
            try {
                reader.read(path);
                ++read;
            } catch (const FileError& error) {
                if (!check::begins(error.what(), "mutation_test.cpp:") || !check::contains(error.what(), path)) FAIL(error.what());
                ++refused;
            } catch (const std::exception& error) {
                FAIL(reader.name << ", round " << round << ": " << error.what());
            }
        }
        INFO(reader.name << ": " << read << " read, " << refused << " refused");
        CHECK(read > share(10));
        CHECK(refused + (std::string(reader.name) == "lines" ? 1000 : 0) > share(500));
    }
}

TEST_CASE("brackets nested a million deep do not use the stack up") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "file").string();
    const auto refused = [&](const std::string& text, auto read) {
        folder.write("file", text);
        CHECK_THROWS_AS(read(path), FileError);
    };
    const std::string deep(1'000'000, '['), header = "{\"a\":" + deep;
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
    refused(length + header, [](const std::string& p) { load_safetensors(p); });
    refused("\x93NUMPY\2" + std::string(1, '\0') + std::string("\x40\x42\x0F\0", 4) + "{'shape': " + std::string(999'990, '('),
            [](const std::string& p) { load_npy(p); });
    refused(repeat("(1 ", 1'000'000), [](const std::string& p) { data::read_ptb(p); });
    folder.write("file", repeat("(1 ", 999'999) + "(1 a)" + std::string(999'999, ')'));
    CHECK(data::read_ptb(path)[0].size() == 1);
}
