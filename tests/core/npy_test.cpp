// .npy and .npz: there and back, bytes as NumPy writes them, files that NumPy wrote and reads, and files made to harm.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "../fails.h"
#include "../nn/check.h"
#include "../nn/data/files.h"
#include "tapir/core/io/npy.h"
#include "tapir/core/io/safetensors.h"

using namespace tapir;
using namespace files;

namespace {

NamedTensors samples() {
    const Tensor wide = arange(24, float32).reshape({4, 6});
    return {{"bool", tensor({true, false, true})},
            {"u8", tensor({1, 2, 255}, uint8)},
            {"f16", tensor({0.5, -2.0}).to(float16)},
            {"i32", tensor({{1, -2}, {3, 4}}, int32)},
            {"i64", tensor({INT64_MAX, INT64_MIN})},
            {"f32", randn({2, 3, 4})},
            {"f64", randn({2}, float64)},
            {"scalar", tensor(1.5)},
            {"empty", zeros({0, 3})},
            {"strided", wide.t().narrow(0, 1, 3)},
            {"größe/ä b", ones({1})}};
}

void same(const Tensor& a, const Tensor& b) {
    CHECK(a.dtype() == b.dtype());
    CHECK(a.shape() == b.shape());
    CHECK(a.is_contiguous());
    CHECK(a.to_vector<double>() == b.to_vector<double>());
    if (a.dtype() == int64) CHECK(a.to_vector<std::int64_t>() == b.to_vector<std::int64_t>());
}

// A file of format 1 with this header, and `data` behind it.
std::string array(const std::string& header, const std::string& data, int version = 1) {
    std::string text = "\x93NUMPY";
    text += static_cast<char>(version);
    text += '\0';
    text += static_cast<char>(header.size() & 255);
    text += static_cast<char>(header.size() >> 8);
    if (version > 1) text += std::string(2, '\0');
    return text + header + data;
}

std::string header(const std::string& descr, const std::string& shape, const std::string& order = "False") {
    return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

// NumPy's own word for what it read and wrote. Run as: python3 script write|check FOLDER
const char* const kScript = R"(
import io, sys, numpy as np
mode, folder = sys.argv[1], sys.argv[2] + '/'
if mode == 'probe': sys.exit(0)
def expected():
    return {'bool': np.array([True, False, True]), 'u8': np.array([1, 2, 255], np.uint8), 'f16': np.array([.5, -2], np.float16),
            'i32': np.array([[1, -2], [3, 4]], np.int32), 'i64': np.array([2**63 - 1, -2**63]), 'scalar': np.array(1.5, np.float32),
            'empty': np.zeros((0, 3), np.float32), 'strided': np.arange(24, dtype=np.float32).reshape(4, 6).T[1:4]}
if mode == 'write':
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.save(folder + 'c.npy', a)
    np.save(folder + 'fortran.npy', np.asfortranarray(a))
    np.save(folder + 'big.npy', a.astype('>f8'))
    np.save(folder + 'big16.npy', np.array([1, -2, 300], '>i2'))
    np.save(folder + 'i1.npy', np.array([-128, 127], np.int8))
    np.save(folder + 'u2.npy', np.array([65535, 0], np.uint16))
    np.save(folder + 'u4.npy', np.array([2**32 - 1, 0], np.uint32))
    np.save(folder + 'scalar.npy', np.array(2.5))
    np.save(folder + 'u8.npy', np.array([1], np.uint64))
    np.save(folder + 'complex.npy', np.array([1j]))
    np.save(folder + 'struct.npy', np.zeros(2, [('a', '<f4'), ('b', '<i4')]))
    np.save(folder + 'text.npy', np.array(['a']))
    for version in (1, 0), (2, 0), (3, 0):
        with open(folder + 'v%d.npy' % version[0], 'wb') as f: np.lib.format.write_array(f, a, version)
    np.savez(folder + 'plain.npz', a, **expected())
    np.savez_compressed(folder + 'packed.npz', a, **expected())
else:
    for name in ('plain.npz', 'packed.npz') if mode == 'check' else ('plain.npz',):
        with np.load(folder + name) as z:
            for key, value in expected().items():
                assert z[key].dtype == value.dtype and z[key].shape == value.shape and (z[key] == value).all(), (name, key)
            assert z['größe/ä b'].shape == (1,)
            assert len(z.files) == 11
    for key, value in expected().items():
        b = np.load(folder + key + '.npy')
        assert b.dtype == value.dtype and (b == value).all(), key
        f = io.BytesIO()
        np.save(f, np.ascontiguousarray(value) if value.ndim else value)
        assert f.getvalue() == open(folder + key + '.npy', 'rb').read(), key
    many = np.load(folder + 'many.npz')
    assert len(many.files) == 70000 and many['t69999'] == 69999
)";

}  // namespace

TEST_CASE("every dtype and shape comes back from npy and npz") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "a").string();
    const NamedTensors all = samples();
    for (const NamedTensor& t : all) {
        INFO(t.name);
        save_npy(path, t.tensor);
        same(load_npy(path), t.tensor);
    }
    for (const bool compressed : {false, true}) {
        if (compressed && !have_zlib()) continue;
        save_npz(path, all, compressed);
        const NamedTensors loaded = load_npz(path);
        REQUIRE(loaded.size() == all.size());
        for (std::size_t i = 0; i < all.size(); ++i) {
            INFO(all[i].name);
            CHECK(loaded[i].name == all[i].name);
            same(loaded[i].tensor, all[i].tensor);
        }
    }
    save_npz(path, {});
    CHECK(load_npz(path).empty());
    const Tensor x = ones({300'000});
    if (have_zlib()) {
        save_npz(path, {{"x", x}}, /*compressed=*/true);
        CHECK(fs::file_size(path) < 10'000);
        same(load_npz(path)[0].tensor, x);
    }
}

TEST_CASE("the bytes are NumPy's") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "a.npy").string();
    save_npy(path, tensor({{1, 2, 3}}, uint8));
    // numpy.save() of numpy.array([[1, 2, 3]], numpy.uint8)
    CHECK(read_all(path) ==
          std::string("\x93NUMPY\x01\0v\0{'descr': '|u1', 'fortran_order': False, 'shape': (1, 3), }", 69) + std::string(58, ' ') + "\n\1\2\3");
    save_npy(path, zeros({3}, float64));
    CHECK(read_all(path).substr(10, 60).find("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }") == 0);
    save_npy(path, tensor(7));
    CHECK(read_all(path).substr(10, 60).find("{'descr': '<i8', 'fortran_order': False, 'shape': (), }") == 0);
    // An archive's bytes depend on what is in it only.
    const std::string a = (folder.path() / "a.npz").string(), b = (folder.path() / "b.npz").string();
    save_npz(a, {{"x", ones({2})}});
    save_npz(b, {{"x", ones({2})}});
    CHECK(read_all(a) == read_all(b));
}

TEST_CASE("headers as other programs write them") {
    const TemporaryFolder folder;
    const auto read = [&](const std::string& contents) { return load_npy(folder.write("a.npy", contents)); };
    const std::string two("\0\0\200?\0\0\0@", 8);
    CHECK(read(array(header("<f4", "(2,)"), two)).to_vector<float>() == std::vector<float>{1, 2});
    CHECK(read(array(header("=f4", "(2,)"), two)).dtype() == float32);
    CHECK(read(array(header("<f4", "( 2L , 1 )"), two, 2)).shape() == Shape{2, 1});
    CHECK(read(array("{\"shape\":(2,),\"fortran_order\":True,\"descr\":\"<f4\"}", two, 3)).shape() == Shape{2});
    CHECK(read(array(header(">i4", "(2,)"), std::string("\0\0\1\2\377\377\377\376", 8))).to_vector<int>() == std::vector<int>{258, -2});
    CHECK(read(array(header("<u1", "(2, 2)", "True"), "\1\2\3\4")).to_vector<int>() == std::vector<int>{1, 3, 2, 4});
    CHECK(read(array(header("|b1", "(2,)"), "\7" + std::string(1, '\0'))).to_vector<int>() == std::vector<int>{1, 0});
    CHECK(read(array(header("<f4", "(0, 1000000000000, 4)"), "")).shape() == Shape{0, 1000000000000, 4});
    CHECK_THROWS_AS(read(array(header("<f4", "(0, 9223372036854775807, 4)"), "")), FileError);
}

TEST_CASE("hostile arrays end in a FileError that names the file") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "a.npy").string();
    const auto refused = [&](const std::string& contents, const char* why) {
        folder.write("a.npy", contents);
        INFO(why);
        FAILS_IN(FileError, "load_npy: " + path + ": ", why, load_npy(path));
    };
    const std::string good = array(header("<f4", "(2,)"), "12345678");
    for (std::size_t n = 0; n < good.size(); ++n) {
        refused(good.substr(0, n), n < 10 ? "ends too early" : n < good.size() - 8 ? "a header of" : "needs more bytes");
    }
    refused(good + "x", "1 bytes more than the array has");
    refused("\x94" + good.substr(1), "not a NumPy array");
    refused(array(header("<f4", "(2,)"), "12345678", 4), "format 4.0");
    refused(std::string("\x93NUMPY\2\0\377\377\377\377{}", 14), "a header of 4294967295 bytes");
    refused(array("", ""), "'{' is missing");
    refused(array("{}", ""), "is missing");
    refused(array("{'descr': '<f4', 'shape': (2,)}", "12345678"), "is missing");
    refused(array("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "12345678"), "\"descr\" twice");
    refused(array("{'a': 1}", ""), "\"a\" twice, or where only");
    refused(array("{'descr", ""), "does not end");
    refused(array(header("<f4", "(2,)") + "x", "12345678"), "closing brace");
    refused(array(header("<f4", "(2,)", "Maybe"), "12345678"), "True or False");
    refused(array(header("<f4", "(-2,)"), "12345678"), "negative");
    refused(array(header("<f4", "(99999999999999999999,)"), ""), "too large");
    refused(array(header("<f4", "(4611686018427387905, 4)"), ""), "needs more bytes");
    refused(array(header("<f4", "(4294967296, 4294967296)"), ""), "needs more bytes");
    refused(array(header("|i1", "(4294967295, 2147483647, 0)"), ""), "needs more bytes");  // as int32, though there are none
    refused(array(header("<f4", "(1000000000000,)"), "12345678"), "needs more bytes than the 8");
    refused(array(header("<f4", "(1,1,1,1,1,1,1,1,1)"), "1234"), "more than 8");
    refused(array(header("<f4", "(2 2)"), "12345678"), "')' is missing");
    refused(array(header("<f4", std::string(100'000, '(')).substr(0, 60'000), ""), "a size is missing");
    for (const char* dtype : {"<c8", "|O", "<U1", "|S3", "<V2", "|V2", "", "f4", "!f4", "<f3", "<M8[ns]", "<f16"}) {
        refused(array(header(dtype, "(2,)"), "12345678"), "which tapir does not have");
    }
    refused(array(header("<u8", "(1,)"), std::string(8, '\377')), "does not fit into int64");
    refused(array("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", "12345678"), "structured");
}

TEST_CASE("hostile archives end in a FileError that names the file") {
    const TemporaryFolder folder;
    const std::string path = (folder.path() / "a.npz").string();
    const auto refused = [&](const std::string& contents, const char* why) {
        folder.write("a.npz", contents);
        INFO(why);
        FAILS_IN(FileError, "load_npz: " + path + ": ", why, load_npz(path));
    };
    save_npz(path, {{"a", arange(4)}, {"b", ones({3})}});
    const std::string good = read_all(path);
    for (std::size_t n = 0; n < good.size(); ++n) refused(good.substr(0, n), n < 22 ? "too short" : "");
    const std::size_t data = good.find("\x93NUMPY"), entry = good.find("PK\1\2"), end64 = good.find("PK\6\6");
    const auto with = [&](std::size_t at, const std::string& bytes) { return good.substr(0, at) + bytes + good.substr(at + bytes.size()); };
    refused(with(good.find("\n", data) + 1, "\7"), "checksum");
    refused(with(data, "x"), "not a NumPy array");
    refused(with(0, "x"), "\"a.npy\" is not where the directory says");
    refused(with(entry, "x"), "entry 0 of the archive's directory");
    refused(with(entry + 8, "\1"), "encrypted");
    refused(with(entry + 10, "\14"), "method 12");
    refused(with(good.find("b.npy", entry), "a"), "\"a\" twice");
    refused(with(entry + 20, std::string(4, '\0')), "");  // the sizes
    refused(with(end64 + 32, "\3"), "entry 2");
    refused(with(end64 + 32, std::string(8, '\377')), "directory is not where");
    refused(with(end64 + 48, std::string(8, '\377')), "directory is not where");
    // The second entry as the first one's bytes: an archive that would be read as larger than it is.
    const std::size_t second = good.find("PK\1\2", entry + 4), extra = good.find("b.npy", second) + 5 + 4;
    std::string overlapping = good;
    const std::size_t first_extra = good.find("a.npy", entry) + 5 + 4;
    overlapping.replace(extra, 24, good.substr(first_extra, 24));
    overlapping.replace(second + 16, 4, good.substr(entry + 16, 4));
    refused(overlapping, "overlap");
    refused(std::string(1000, 'x'), "not a zip archive");
    if (!have_zlib()) return;
    save_npz(path, {{"a", arange(400)}}, /*compressed=*/true);
    const std::string packed = read_all(path);
    const std::size_t size = packed.find("a.npy", packed.find("PK\1\2")) + 5 + 4;
    refused(packed.substr(0, size) + std::string("\0\0\0\0\1\0\0\0", 8) + packed.substr(size + 8), "cannot have 4294967296 bytes");
    refused(packed.substr(0, 60) + std::string(10, '\377') + packed.substr(70), "");
}

namespace {

// A zip archive of stored members of one byte each.
std::string zip(const std::vector<std::string>& names) {
    using namespace std::string_literals;
    const auto number = [](std::size_t value, int bytes) {
        std::string text;
        for (int i = 0; i < bytes; ++i, value >>= 8) text += static_cast<char>(value & 0xFF);
        return text;
    };
    const std::string sizes = number(1, 4) + number(1, 4);
    std::string text, directory;
    for (const std::string& name : names) {
        const std::string common = "\x14\0\0\0\0\0\0\0\0\0"s + number(0xE8B7BE43, 4) + sizes + number(name.size(), 2) + number(0, 2);
        directory += "PK\1\2\x14\0"s + common + number(0, 10) + number(text.size(), 4) + name;
        text += "PK\3\4"s + common + name + "a";
    }
    const std::size_t offset = text.size();
    return text + directory + "PK\5\6\0\0\0\0"s + number(names.size(), 2) + number(names.size(), 2) + number(directory.size(), 4) +
        number(offset, 4) + number(0, 2);
}

}  // namespace

TEST_CASE("a file of another format says what it is, and what reads it") {
    const TemporaryFolder folder;
    const std::string array = (folder.path() / "array").string(), archive = (folder.path() / "archive").string(),
                      named = (folder.path() / "named").string();
    save_npy(array, ones({2}));
    save_npz(archive, {{"a", ones({2})}});
    save_safetensors(named, {{"a", ones({2})}});
    using namespace std::string_literals;
    // As torch.save() of PyTorch 1.13 begins: a zip archive, stored, whose first member is FOLDER/data.pkl. The rest need not be whole.
    const std::string saved = zip({"model/data.pkl"});
    const std::string torch = folder.write("torch", saved.substr(0, saved.find("PK\1\2")) + std::string(500, 'x'));
    // As torch.jit.save() writes: the tensors first, then the program.
    const std::string jit = folder.write("jit", zip({"model/data/0", "model/data.pkl", "model/code/__torch__.py", "model/version"}));
    const std::string plain = folder.write("plain", zip({"model/data.pkl", "model/data/0", "model/version"}));
    const std::string old =
        folder.write("old", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03."s + std::string(90, 'x'));
    const std::string pickle = folder.write("pickle", "\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94."s + std::string(90, 'x'));
    const std::string empty = folder.write("empty", ""), lfs = folder.write("lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0"),
                      page = folder.write("page", "<!DOCTYPE html><html>not found</html>");
    FAILS_IN(FileError, "load_npy: " + archive + ": not a NumPy array", "an .npz archive: call load_npz()", load_npy(archive));
    FAILS(FileError, "a safetensors file: call load_safetensors()", load_npy(named));
    FAILS(FileError, "torch.save(): in Python, write its tensors with safetensors.torch.save_file()", load_npy(torch));
    FAILS(FileError, "a NumPy array: call load_npy()", load_npz(array));
    FAILS(FileError, "a safetensors file: call load_safetensors()", load_npz(named));
    FAILS(FileError, "torch.save()", load_npz(torch));
    FAILS(FileError, "a NumPy array: call load_npy()", load_safetensors(array));
    FAILS(FileError, "an .npz archive: call load_npz()", load_safetensors(archive));
    for (const std::string& path : {torch, old}) {
        FAILS_IN(FileError, "load_safetensors: " + path, "; it looks like a file of PyTorch's torch.save()", load_safetensors(path));
    }
    for (const auto load : {+[](const std::string& path) { load_npy(path); }, +[](const std::string& path) { load_npz(path); },
                            +[](const std::string& path) { load_safetensors(path); }}) {
        CHECK_THROWS_WITH(load(jit), Catch::Contains("a TorchScript archive of PyTorch's torch.jit.save()"));
        CHECK_THROWS_WITH(load(plain), Catch::Contains("a file of PyTorch's torch.save()"));
    }
    FAILS(FileError, "a Python pickle, or a file of PyTorch's torch.save()", load_safetensors(pickle));
    FAILS(FileError, "the file is empty", load_safetensors(empty));
    FAILS(FileError, "it ends too early; the file is empty", load_npy(empty));
    FAILS(FileError, "the file is empty", load_npz(empty));
    FAILS(FileError, "run git lfs pull", load_safetensors(lfs));
    FAILS(FileError, "a web page", load_safetensors(page));
}

TEST_CASE("any byte changed gives tensors or a FileError: npy and npz") {
    const TemporaryFolder folder;
    int loaded = 0, refused = 0;
    for (const char* kind : {"npy", "plain", "packed"}) {
        const std::string path = (folder.path() / kind).string();
        const bool is_npy = std::strcmp(kind, "npy") == 0, is_packed = std::strcmp(kind, "packed") == 0;
        if (is_packed && !have_zlib()) continue;
        if (is_npy) {
            save_npy(path, tensor({true, false}));
        } else {
            save_npz(path, {{"a", ones({2})}, {"b", tensor({true, false})}}, is_packed);
        }
        const std::string good = read_all(path);
        for (std::size_t i = 0; i < good.size(); ++i) {
            for (const char value : {'\0', '\1', '(', '9', '\x7f', '\xff'}) {
                std::string bad = good;
                bad[i] = value;
                folder.write(kind, bad);
                try {
                    if (is_npy) {
                        load_npy(path);
                    } else {
                        load_npz(path);
                    }
                    ++loaded;
                } catch (const FileError&) {
                    ++refused;
                }
            }
        }
    }
    CHECK(loaded > 100);
    CHECK(refused > 1000);
}

TEST_CASE("what npy cannot hold") {
    const TemporaryFolder folder;
    const std::string path = folder.write("a", "as it was");
    const Tensor half = ones({2}).to(bfloat16), one = ones({1});
    FAILS_IN(DTypeError, "save_npy: ", "bfloat16", save_npy(path, half));
    FAILS_IN(DTypeError, "save_npz: the tensor \"h\" is bfloat16", "", save_npz(path, {{"a", one}, {"h", half}}));
    FAILS(ValueError, "undefined", save_npy(path, Tensor()));
    FAILS(ValueError, "used twice", save_npz(path, {{"a", one}, {"a", one}}));
    FAILS(FileError, "Not a directory", save_npy(path + "/no/a", one));
    CHECK(read_all(path) == "as it was");
    CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("NumPy reads what tapir writes, and the other way round") {
    const TemporaryFolder folder;
    const std::string root = folder.path().string(), script = folder.write("check.py", kScript);
    const auto python = [&](const char* mode) {
        return std::system(("/usr/bin/python3 " + script + " " + mode + " " + root + " >" + root + "/log 2>&1").c_str()) == 0;
    };
    if (!python("probe")) {
        WARN("no NumPy: not tested");
        return;
    }
    const auto in = [&](const std::string& name) { return root + "/" + name; };
    REQUIRE(python("write"));
    const Tensor a = arange(24, float32).reshape({2, 3, 4});
    for (const char* name : {"c.npy", "fortran.npy", "v1.npy", "v2.npy", "v3.npy"}) {
        INFO(name);
        same(load_npy(in(name)), a);
    }
    same(load_npy(in("big.npy")), a.to(float64));
    same(load_npy(in("big16.npy")), tensor({1, -2, 300}, int32));
    same(load_npy(in("i1.npy")), tensor({-128, 127}, int32));
    same(load_npy(in("u2.npy")), tensor({65535, 0}, int32));
    same(load_npy(in("u4.npy")), tensor({4294967295, 0}));
    same(load_npy(in("u8.npy")), tensor(std::vector<std::int64_t>{1}));
    same(load_npy(in("scalar.npy")), tensor(2.5, float64));
    for (const char* name : {"complex.npy", "struct.npy", "text.npy"}) CHECK_THROWS_AS(load_npy(in(name)), FileError);
    const NamedTensors all = samples();
    const auto by_name = [&](const NamedTensors& state, const std::string& name) {
        for (const NamedTensor& t : state) {
            if (t.name == name) return t.tensor;
        }
        return Tensor();
    };
    for (const char* name : {"plain.npz", "packed.npz"}) {
        if (std::strcmp(name, "packed.npz") == 0 && !have_zlib()) continue;
        const NamedTensors loaded = load_npz(in(name));
        CHECK(loaded.size() == 9);
        same(by_name(loaded, "arr_0"), a);
        for (const char* key : {"bool", "u8", "f16", "i32", "i64", "scalar", "empty", "strided"}) {
            same(by_name(loaded, key), by_name(all, key));
        }
    }
    save_npz(in("plain.npz"), all);
    if (have_zlib()) save_npz(in("packed.npz"), all, /*compressed=*/true);
    for (const NamedTensor& t : all) {
        if (t.name.find('/') == std::string::npos) save_npy(in(t.name + ".npy"), t.tensor);
    }
    NamedTensors many;  // more than the directory's 16 bits can count
    for (int i = 0; i < 70'000; ++i) many.push_back({"t" + std::to_string(i), tensor(i)});
    save_npz(in("many.npz"), many);
    CHECK(load_npz(in("many.npz")).size() == 70'000);
    const bool is_fine = python(have_zlib() ? "check" : "check-plain");
    INFO(read_all(in("log")));
    CHECK(is_fine);
}

TEST_CASE("members of an archive that have one name, or two") {
    const TemporaryFolder folder;
    const std::string twice = folder.write("twice.npz", zip({"a.npy", "a"})).string();
    FAILS_IN(FileError, "load_npz: " + twice, "the archive has \"a\" twice", load_npz(twice));
    std::string bytes = zip({"a.npy"});
    bytes[30] = 'b';  // in the local header
    const std::string other = folder.write("other.npz", bytes).string();
    FAILS_IN(FileError, "load_npz: " + other, "\"a.npy\" has another name in its own header", load_npz(other));
    bytes = zip({"a.npy"});
    bytes[26] = 4;  // the name's length there
    folder.write("other.npz", bytes);
    FAILS(FileError, "has another name in its own header", load_npz(other));
}

TEST_CASE("what a process that is gone was writing is removed by the next that writes") {
    const TemporaryFolder folder;
    const pid_t gone = ::fork();
    REQUIRE(gone >= 0);
    if (gone == 0) ::_exit(0);
    REQUIRE(::waitpid(gone, nullptr, 0) == gone);
    const std::string path = (folder.path() / "a").string(), own = std::to_string(::getpid());
    const auto left = [&](const std::string& name) { return fs::exists(folder.path() / name); };
    const std::string stale = "a." + std::to_string(gone) + "-3.tmp", other = "b." + std::to_string(gone) + "-0.tmp",
                      live = "a." + own + "-999999.tmp";
    for (const auto save : {+[](const std::string& to) { save_npy(to, ones({1})); }, +[](const std::string& to) { save_npz(to, {{"a", ones({1})}}); },
                            +[](const std::string& to) { save_safetensors(to, {{"a", ones({1})}}); }}) {
        for (const std::string& name : {stale, other, live}) folder.write(name, "half");
        save(path);
        CHECK(!left(stale));
        CHECK(left(other));  // of another file
        CHECK(left(live));   // of a process that may be writing
    }
}
