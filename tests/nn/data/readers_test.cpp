// Readers of images, tables and lines: what they read, and what they say of files that are wrong.
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "../../fails.h"
#include "../check.h"
#include "files.h"
#include "tapir/core/io/file.h"
#include "tapir/core/io/safetensors.h"
#include "tapir/nn/data/data.h"
#include "tapir/nn/summary/summary_writer.h"

using namespace tapir;
using namespace files;

namespace {

// Bytes given as numbers.
std::string bytes(std::initializer_list<int> values) {
    std::string text;
    for (const int value : values) text += static_cast<char>(value);
    return text;
}

// gzip of the IDX file of uint8 {5, 6, 7}, by Python's gzip module.
const std::string kPacked = [] {
    const char* hex = "1f8b08000000000002036360e0606460606066656307004a4cb5c00b000000";
    std::string text;
    for (const char* p = hex; *p; p += 2) text += static_cast<char>(std::stoi(std::string(p, 2), nullptr, 16));
    return text;
}();

}  // namespace

TEST_CASE("IDX arrays of all types") {
    const TemporaryFolder folder;
    const auto read = [&](const std::string& contents) { return data::read_idx(folder.write("a.idx", contents)); };
    const Tensor u8 = read(bytes({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255}));
    CHECK(u8.dtype() == uint8);
    CHECK(u8.shape() == Shape{2, 3});
    CHECK(u8.to_vector<int>() == std::vector<int>{1, 2, 3, 4, 5, 255});
    const Tensor i8 = read(bytes({0, 0, 9, 1, 0, 0, 0, 2, 127, 255}));
    CHECK(i8.dtype() == int32);
    CHECK(i8.to_vector<int>() == std::vector<int>{127, -1});
    CHECK(read(bytes({0, 0, 11, 1, 0, 0, 0, 2, 1, 2, 255, 254})).to_vector<int>() == std::vector<int>{258, -2});
    CHECK(read(bytes({0, 0, 12, 1, 0, 0, 0, 1, 255, 0, 0, 1})).to_vector<int>() == std::vector<int>{-16777215});
    const Tensor f32 = read(bytes({0, 0, 13, 1, 0, 0, 0, 1, 0xC0, 0x20, 0, 0}));
    CHECK(f32.dtype() == float32);
    CHECK(f32.item() == -2.5);
    CHECK(read(bytes({0, 0, 14, 1, 0, 0, 0, 1, 0x40, 9, 0x21, 0xFB, 0x54, 0x44, 0x2D, 0x18})).item() == 3.141592653589793);
    CHECK(read(bytes({0, 0, 8, 0, 7})).shape() == Shape{});
    CHECK(read(bytes({0, 0, 8, 3, 0, 0, 0, 0, 127, 255, 255, 255, 255, 255, 255, 255})).shape() == Shape{0, 2147483647, 4294967295});
    CHECK_THROWS_AS(read(bytes({0, 0, 8, 3, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255})), FileError);
}

TEST_CASE("IDX files that are wrong name the file and the byte") {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& contents, const std::string& text) {
        const std::string path = folder.write("a.idx", contents);
        FAILS_IN(FileError, "read_idx: " + path + ": ", text, data::read_idx(path));
    };
    const std::string good = bytes({0, 0, 8, 1, 0, 0, 0, 3, 5, 6, 7});
    for (std::size_t n = 0; n < good.size(); ++n) refused(good.substr(0, n), n < 8 ? "too early" : "needs more bytes");
    refused(good + "x", "byte 8: more bytes follow than shape (3,) has");
    refused("\1" + good.substr(1), "byte 0: not an IDX file: it begins with 01 00 08 01");
    refused(bytes({0, 0, 10, 1, 0, 0, 0, 1, 1}), "not an IDX file");
    refused(bytes({0, 0, 8, 9}), "9 dimensions");
    refused(bytes({0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255}), "needs more bytes than the 0");
    refused(bytes({0, 0, 9, 3, 127, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0}), "needs more bytes");  // as int32, though there are none
    refused(bytes({0, 0, 14, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}), "needs more bytes");
    FAILS(FileError, "No such file", data::read_idx((folder.path() / "none").string()));
}

TEST_CASE("gzip is undone") {
    const TemporaryFolder folder;
    const std::string path = folder.write("a.idx.gz", kPacked);
    if (!have_zlib()) {
        FAILS_IN(FileError, "read_idx: " + path + ": ", "this build of tapir has no zlib", data::read_idx(path));
        return;
    }
    CHECK(data::read_idx(path).to_vector<int>() == std::vector<int>{5, 6, 7});
    CHECK(data::read_csv(folder.write("t.csv.gz", kPacked), {.header = false}).columns() == 1);
    for (std::size_t n = 2; n < kPacked.size(); ++n) {
        folder.write("a.idx.gz", kPacked.substr(0, n));
        FAILS_IN(FileError, "read_idx: " + path + ": ", "the compressed data ends too early", data::read_idx(path));
    }
    std::string wrong_sum = kPacked;
    wrong_sum[wrong_sum.size() - 6] ^= 1;
    folder.write("a.idx.gz", wrong_sum);
    FAILS_IN(FileError, "read_idx: " + path + ": ", "damaged compressed data: incorrect data check", data::read_idx(path));
    folder.write("a.idx.gz", kPacked + kPacked);  // two files in one
    FAILS_IN(FileError, "read_idx: " + path + ": ", "of the uncompressed data: more bytes follow", data::read_idx(path));
}

TEST_CASE("a folder of MNIST") {
    const TemporaryFolder folder;
    const std::string root = folder.path().string();
    FAILS(FileError, "there is neither train-images-idx3-ubyte nor", data::mnist(root));
    folder.write("train-images-idx3-ubyte", bytes({0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4}));
    folder.write("train-labels-idx1-ubyte", bytes({0, 0, 8, 1, 0, 0, 0, 2, 9, 0}));
    const auto small = data::mnist(root);
    CHECK(small.size() == 2);
    CHECK(small.tensor(0).shape() == Shape{2, 1, 1, 2});
    CHECK(small.tensor(1).dtype() == int64);
    const auto [image, label] = small.get(1);
    CHECK(image.to_vector<int>() == std::vector<int>{3, 4});
    CHECK(label.item<int>() == 0);
    folder.write("train-labels-idx1-ubyte", bytes({0, 0, 8, 1, 0, 0, 0, 1, 9}));
    FAILS(FileError, "labels of shape (1,) and uint8 for images of shape (2, 1, 2)", data::mnist(root));
    folder.write("train-images-idx3-ubyte", bytes({0, 0, 8, 1, 0, 0, 0, 1, 9}));
    FAILS(FileError, "images have 3 dimensions", data::mnist(root));
}

TEST_CASE("Fashion-MNIST as Debian has it") {
    const std::string root = "/usr/share/datasets/fashion-mnist";
    if (!std::filesystem::exists(root)) {
        WARN("dataset-fashion-mnist is not installed: not tested");
        return;
    }
    if (!have_zlib()) {
        WARN("no zlib: not tested");
        return;
    }
    const auto train = data::mnist(root), test = data::mnist(root, /*train=*/false);
    CHECK(train.size() == 60000);
    CHECK(test.size() == 10000);
    // By Python's gzip and NumPy.
    CHECK(train.tensor(0).sum().item<std::int64_t>() == 3'431'114'169);
    CHECK(test.tensor(0).sum().item<std::int64_t>() == 573'469'082);
    CHECK(train.tensor(0)[1234].sum().item<std::int64_t>() == 75'588);
    CHECK(train.tensor(1).sum().item<std::int64_t>() == 270000);
    CHECK(train.tensor(1).narrow(0, 0, 10).to_vector<int>() == std::vector<int>{9, 0, 0, 3, 0, 2, 7, 2, 5, 5});
    data::DataLoader loader(test, {.batch_size = 512, .shuffle = true, .num_workers = 2});
    std::int64_t sum = 0;
    for (auto& [images, labels] : loader) sum += images.sum().item<std::int64_t>();
    CHECK(sum == 573'469'082);
}

TEST_CASE("CIFAR-10 records") {
    const TemporaryFolder folder;
    std::string record(3073, '\2');
    record[0] = '\7';
    record[1] = '\xFF';       // red, first row
    record[1 + 1024] = '\1';  // green
    record[3072] = '\5';      // blue, last
    for (int i = 1; i <= 5; ++i) {
        record[0] = static_cast<char>(i);
        folder.write("data_batch_" + std::to_string(i) + ".bin", record + record);
    }
    const auto train = data::cifar10(folder.path());
    CHECK(train.tensor(0).shape() == Shape{10, 3, 32, 32});
    CHECK(train.tensor(0).at<unsigned char>({9, 0, 0, 0}) == 255);
    CHECK(train.tensor(0).at<unsigned char>({9, 1, 0, 0}) == 1);
    CHECK(train.tensor(0).at<unsigned char>({0, 2, 31, 31}) == 5);
    CHECK(train.tensor(1).to_vector<int>() == std::vector<int>{1, 1, 2, 2, 3, 3, 4, 4, 5, 5});
    FAILS(FileError, "No such file", data::cifar10(folder.path(), /*train=*/false));
    const std::string test = folder.write("test_batch.bin", record + "x");
    FAILS_IN(FileError, "cifar10: " + test + ": byte 3074: ", "records of 3073 bytes", data::cifar10(folder.path(), false));
    folder.write("test_batch.bin", record + std::string(1, '\n') + record.substr(1));
    FAILS_IN(FileError, "read_cifar10: " + test + ": byte 3073: ", "record 1 has the label 10", data::read_cifar10(test));
    folder.write("test_batch.bin", "");
    FAILS(FileError, "records", data::read_cifar10(test));
}

TEST_CASE("tables") {
    const TemporaryFolder folder;
    const auto read = [&](const std::string& text, const data::CsvOptions& options = {}) {
        return data::read_csv(folder.write("t.csv", text), options);
    };
    const data::Csv table = read("\xEF\xBB\xBF\"a b\",c,name\r\n1, -2.5 ,\"x, \"\"y\"\"\nz\"\r\n\r\n+3,4e2,\n");
    CHECK(table.names() == std::vector<std::string>{"a b", "c", "name"});
    CHECK(table.rows() == 2);
    CHECK(table.text("name") == std::vector<std::string>{"x, \"y\"\nz", ""});
    CHECK(table.numbers(std::vector<std::string>{"c", "a b"}, float64).to_vector<double>() == std::vector<double>{-2.5, 1, 400, 3});
    CHECK(table.numbers({"c", "a b"}, float64).to_vector<double>() == std::vector<double>{-2.5, 1, 400, 3});
    CHECK(table.numbers({"a b"}).shape() == Shape{2, 1});
    FAILS(ValueError, "", table.numbers({"c", "no such column"}));
    CHECK(table.numbers("a b", int64).shape() == Shape{2});
    CHECK(table.cell(1, 1) == "4e2");

    const data::Csv plain = read("1;2\n3;4", {.separator = ';', .header = false});
    CHECK(plain.names() == std::vector<std::string>{"0", "1"});
    CHECK(plain.numbers().shape() == Shape{2, 2});
    CHECK(plain.numbers().dtype() == float32);
    CHECK(read("x\n'a''b'\n", {.quote = '\''}).cell(0, 0) == "a'b");
    CHECK(read("x\n\"a\n", {.quote = '\0'}).cell(0, 0) == "\"a");
    CHECK(read("x,y\n1,\n", {.missing = -1}).numbers().to_vector<int>() == std::vector<int>{1, -1});
    CHECK(std::isnan(read("x\n\"\"\n", {.missing = NAN}).numbers().item()));
    FAILS(ValueError, "Csv: nan cannot stand for missing numbers of int64", read("x\n\"\"\n", {.missing = NAN}).numbers(int64));
    FAILS(ValueError, "Csv: -1 cannot stand for missing numbers of uint8", read("x\n\"\"\n", {.missing = -1}).numbers(uint8));
    CHECK(read("x,y\n").numbers().shape() == Shape{0, 2});
    const std::vector<double> extreme = read("x\ninf\n-inf\n1e-400\n-1e-60\n").numbers().to_vector<double>();
    CHECK(extreme == std::vector<double>{INFINITY, -INFINITY, 0, 0});
    CHECK(read("x\n9223372036854775807\n-9223372036854775808\n").numbers(int64).to_vector<std::int64_t>() ==
          std::vector<std::int64_t>{INT64_MAX, INT64_MIN});
    CHECK(read("x\n255\n0\n").numbers(uint8).to_vector<int>() == std::vector<int>{255, 0});
    CHECK(read("x\n1\nfalse\nTRUE\n").numbers(bool_).to_vector<int>() == std::vector<int>{1, 0, 1});
    CHECK(read("x\n0.1\n").numbers(float16).item() == static_cast<double>(static_cast<float>(Half(0.1F))));
}

TEST_CASE("tables that are wrong name line and column") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "t.csv").string();
    const auto place = [&](const char* what, const char* where) { return std::string(what) + path + ":" + where + ": "; };
    const auto refused = [&](const std::string& text, const char* where, const char* problem) {
        folder.write("t.csv", text);
        FAILS_IN(FileError, place("read_csv: ", where), problem, data::read_csv(path));
    };
    refused("", "1:1", "no table");
    refused("\n\r\n", "1:1", "no table");
    refused("a,b\n1,2\n3\n", "3:1", "1 cells in a table of 2 columns");
    refused("a,b\n\n1,2,3,4\n", "3:5", "4 cells in a table of 2 columns");
    refused("a,b\n1,\"2\n\n", "2:3", "not closed");
    refused("a,b\n\"1\n2\"x,2\n", "3:3", "text after a closing quote");
    const auto wrong = [&](const std::string& text, DType dtype, const char* where, const char* problem) {
        folder.write("t.csv", text);
        const data::Csv table = data::read_csv(path);
        FAILS_IN(FileError, place("Csv: ", where), problem, table.numbers(dtype));
    };
    wrong("a,b\n1,2\n3,x y\n", float32, "3:3", "column 'b': 'x y' is not a number (float32)");
    wrong("a,b\n\"1\",\"\"\n", float32, "2:5", "'' is empty");
    wrong("a,b\n\"1\",\n", float32, "2:5", "'' is empty");
    wrong("a\n1.5\n", int32, "2:1", "not a number (int32)");
    wrong("a\n256\n", uint8, "2:1", "out of range (uint8)");
    wrong("a\n-1\n", uint8, "2:1", "not a number (uint8)");
    wrong("a\n99999999999999999999\n", int64, "2:1", "out of range");
    wrong("a\n1e400\n", float64, "2:1", "out of range");
    wrong("a\n1e39\n", float32, "2:1", "out of range");
    wrong("a\n2\n", bool_, "2:1", "is not 0, 1, true or false");
    wrong("a\n+-2\n", float32, "2:1", "not a number");
    folder.write("t.csv", "a,b\n\"1\n\",2x\n");  // the cell's own line
    const data::Csv table = data::read_csv(path);
    FAILS_IN(FileError, place("Csv: ", "3:3"), "2x", table.numbers("b"));
    FAILS(ValueError, "no column 'c'; it has 'a', 'b'", table.numbers("c"));
    FAILS(IndexError, "no cell 1, 0 in a table of 1 rows and 2 columns", table.cell(1, 0));
    FAILS(ValueError, "separator '\"' and quote '\"'", data::read_csv(path, {.separator = '"'}));
    FAILS(ValueError, "cannot be", data::read_csv(path, {.separator = '\n'}));
}

TEST_CASE("lines") {
    const TemporaryFolder folder;
    CHECK(data::read_lines(folder.write("a", "\xEF\xBB\xBFone\r\n\ntwo \nthree")) == std::vector<std::string>{"one", "", "two ", "three"});
    CHECK(data::read_lines(folder.write("a", "")).empty());
    CHECK(data::read_lines(folder.write("a", "\n")) == std::vector<std::string>{""});
    const std::string wide(200'000, 'x');  // longer than what is read at once
    CHECK(data::read_lines(folder.write("a", wide + "\n" + wide)) == std::vector<std::string>{wide, wide});
    FAILS_IN(FileError, "read_lines: " + folder.path().string() + ":1:1: ", "is a directory", data::read_lines(folder.path()));
}

TEST_CASE("only regular files are read") {
    const TemporaryFolder folder;
    const std::string fifo = (folder.path() / "fifo").string();
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    for (const std::string& path : {fifo, std::string("/dev/zero")}) {
        FAILS_IN(FileError, "read_lines: " + path, "not a regular file", data::read_lines(path));
        FAILS_IN(FileError, "read_ptb: " + path, "not a regular file", data::read_ptb(path));
        FAILS_IN(FileError, "read_csv: " + path, "not a regular file", data::read_csv(path));
        FAILS_IN(FileError, "read_idx: " + path, "not a regular file", data::read_idx(path));
        FAILS_IN(FileError, "read_cifar10: " + path, "not a regular file", data::read_cifar10(path));
    }
}

TEST_CASE("a path with a byte of 0 is none") {
    const TemporaryFolder folder;
    const std::string path = folder.write("a", "1\n").string() + std::string("\0b", 2);
    FAILS(FileError, "has a byte of 0", data::read_lines(path));
    FAILS(FileError, "has a byte of 0", data::read_ptb(path));
    FAILS(FileError, "has a byte of 0", data::read_csv(path));
    FAILS(FileError, "has a byte of 0", data::read_idx(path));
    FAILS(FileError, "has a byte of 0", load_npy(path));
    FAILS(FileError, "has a byte of 0", load_npz(path));
    FAILS(FileError, "has a byte of 0", load_safetensors(path));
    FAILS(FileError, "has a byte of 0", save_npy(path, ones({1})));
    FAILS(FileError, "has a byte of 0", save_npz(path, {{"a", ones({1})}}));
    FAILS(FileError, "has a byte of 0", save_safetensors(path, {{"a", ones({1})}}));
    FAILS(FileError, "has a byte of 0", write_file(path, "a"));
    FAILS(FileError, "has a byte of 0", nn::SummaryWriter writer(path));
    CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
    CHECK(read_all(folder.path() / "a") == "1\n");
}

TEST_CASE("a packed file is unpacked up to a limit") {
    if (!have_zlib()) return;
    const TemporaryFolder folder;
    const std::string packed = folder.write("a.gz", kPacked).string();  // 11 bytes
    const std::string archive = (folder.path() / "a.npz").string();
    save_npz(archive, {{"a", zeros({1000})}, {"b", zeros({1000})}}, /*compressed=*/true);
    const std::uint64_t before = max_unpacked_bytes();
    CHECK(before > 0);
    set_max_unpacked_bytes(10);
    CHECK(max_unpacked_bytes() == 10);
    FAILS_IN(FileError, "read_csv: " + packed, "more than 10 bytes", data::read_csv(packed, {.header = false}));
    FAILS_IN(FileError, "read_idx: " + packed, "", data::read_idx(packed));
    FAILS_IN(FileError, "read_cifar10: " + packed, "more than 10 bytes", data::read_cifar10(packed));
    set_max_unpacked_bytes(11);
    CHECK(data::read_idx(packed).numel() == 3);
    set_max_unpacked_bytes(8000);  // one array has 4000 bytes and a header
    FAILS_IN(FileError, "load_npz: " + archive, "more than 8000 bytes", load_npz(archive));
    set_max_unpacked_bytes(before);
    CHECK(load_npz(archive).size() == 2);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // with these a program ends that asks for too much
TEST_CASE("a file that no memory holds") {
    const TemporaryFolder folder;
    const std::string path = folder.write("a", "1").string();
    if (::truncate(path.c_str(), off_t{1} << 43) != 0) return;  // a file system without files of this size
    FAILS_IN(OutOfMemory, "read_csv: " + path, "no memory for what the file holds", data::read_csv(path));
    FAILS_IN(OutOfMemory, "read_cifar10: " + path, "no memory for what the file holds", data::read_cifar10(path));
}
#endif
