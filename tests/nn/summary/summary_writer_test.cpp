// SummaryWriter: the files that it leaves, field by field, and what it refuses. TensorBoard itself reads them in tests/tensorboard.
#include "tapir/nn/summary/summary_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <set>
#include <thread>

#include "../../fails.h"
#include "reader.h"
#include "tapir/core/format.h"
#include "tapir/core/io/crc_impl.h"
#include "tapir/core/io/inflate_impl.h"
#include "tapir/core/text_impl.h"
#include "tapir/nn/summary/event_file_impl.h"
#include "tapir/tapir.h"

using namespace tapir;
using events::Fields;

namespace {

std::string hex(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) {
        constexpr const char* digits = "0123456789abcdef";
        text += digits[static_cast<unsigned char>(c) >> 4];
        text += digits[c & 15];
    }
    return text;
}

struct Image {
    std::uint32_t width = 0, height = 0;
    int channels = 0;
    std::vector<int> values;
};

// A PNG of rows without filters.
Image decoded(const std::string& png) {
    REQUIRE(png.substr(0, 8) == "\x89PNG\r\n\x1A\n");
    const auto big = [](const std::string& text, std::size_t at) {
        std::uint32_t value = 0;
        for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(text[at + i]);
        return value;
    };
    Image image;
    std::string data;
    std::vector<std::string> types;
    for (std::size_t at = 8; at < png.size();) {
        const std::size_t size = big(png, at);
        REQUIRE(at + 12 + size <= png.size());
        const std::string type = png.substr(at + 4, 4), chunk = png.substr(at + 8, size);
        CHECK(big(png, at + 8 + size) == events::crc(type + chunk, 0xEDB88320));
        types.push_back(type);
        if (type == "IHDR") {
            image.width = big(chunk, 0);
            image.height = big(chunk, 4);
            CHECK(chunk[8] == 8);
            image.channels = chunk[9] == 0 ? 1 : chunk[9] == 2 ? 3 : chunk[9] == 6 ? 4 : 0;
        }
        if (type == "IDAT") data = chunk;
        at += 12 + size;
    }
    CHECK(types == std::vector<std::string>{"IHDR", "IDAT", "IEND"});
    const files::TemporaryFolder folder;
    const std::string path = folder.write("data", data.substr(2, data.size() - 6)).string();
    const io::InputFile file("test", path, Loc::current());
    io::Inflater inflater(file, 0, file.size(), io::Inflater::Wrapping::none);
    const std::size_t row = image.width * static_cast<std::size_t>(image.channels);
    std::string rows(image.height * (row + 1) + 1, '?');
    REQUIRE(inflater.read(rows.data(), rows.size()) == rows.size() - 1);
    std::uint32_t a = 1, b = 0;
    for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
        a = (a + static_cast<unsigned char>(rows[i])) % 65521;
        b = (b + a) % 65521;
        if (i % (row + 1) == 0)
            CHECK(rows[i] == 0);
        else
            image.values.push_back(static_cast<unsigned char>(rows[i]));
    }
    CHECK(big(data, data.size() - 4) == (b << 16 | a));
    return image;
}

Image image_of(const Fields& event) {
    const Fields image = events::value_of(event).message(4);
    const Image result = decoded(image.text(4));
    CHECK(image.integer(1) == result.height);
    CHECK(image.integer(2) == result.width);
    CHECK(image.integer(3) == result.channels);
    return result;
}

std::vector<int> ints(const std::vector<std::int64_t>& list) { return {list.begin(), list.end()}; }

}  // namespace

TEST_CASE("checksums are CRC-32C") {
    const auto crc32c = [](const std::string& bytes, std::uint32_t before = 0) { return io::crc32c(before, bytes.data(), bytes.size()); };
    CHECK(crc32c("123456789") == 0xE3069283);  // the check value of the catalogue of CRCs
    CHECK(crc32c("") == 0);
    CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AA);  // RFC 3720, B.4
    CHECK(crc32c("the quick brown fox") == events::crc("the quick brown fox", 0x82F63B78));
    CHECK(crc32c("brown fox", crc32c("the quick ")) == crc32c("the quick brown fox"));
}

TEST_CASE("files are byte by byte what the tensorboard package writes") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    writer.add_scalar("loss", 0.25, 7, 1.5);
    writer.add_text("t", "hi", -1, 1.5);
    const std::string file = files::read_all(events::files_in(folder.path())[0]);
    // RecordWriter.write(Event(wall_time=1.5, step=7, summary=...).SerializeToString()) of tensorboard 2.21
    CHECK(hex(file).find("1a00000000000000129bd82d09000000000000f83f10072a0d0a0b0a046c6f7373150000803ec9d07b8d") != std::string::npos);
    CHECK(hex(file).find("09000000000000f83f10ffffffffffffffffff012a2a0a280a0e742f746578745f73756d6d617279420c0807120412020801420268694a08"
                         "0a060a0474657874") != std::string::npos);
}

TEST_CASE("scalars") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer((folder.path() / "new" / "run").string());
    CHECK(writer.get_logdir() == (folder.path() / "new" / "run").string());
    const double before = summary::now();
    writer.add_scalar("loss/train", 0.5);
    writer.add_scalar("loss/train", tensor(2.5), std::int64_t{1} << 40);
    writer.add_scalar("nan", std::nan(""), 2);
    writer.add_scalar("inf", tensor({-INFINITY}, float64), 3, 12.25);
    const std::vector<Fields> events = events::events_in(writer.get_logdir());
    REQUIRE(events.size() == 4);
    CHECK(events::value_of(events[0]).text(1) == "loss/train");
    CHECK(events::value_of(events[0]).real32(2) == 0.5f);
    CHECK(events[0].integer(2) == 0);
    CHECK(events[0].real(1) >= before);
    CHECK(events[0].real(1) <= summary::now());
    CHECK(events::value_of(events[1]).real32(2) == 2.5f);
    CHECK(events[1].integer(2) == std::int64_t{1} << 40);
    CHECK(std::isnan(events::value_of(events[2]).real32(2)));
    CHECK(events::value_of(events[3]).real32(2) == -INFINITY);
    CHECK(events[3].real(1) == 12.25);
}

TEST_CASE("several curves in one chart are runs of their own") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    writer.add_scalars("a/loss", {{"train", 1}, {"test", 2}}, 3);
    writer.add_scalars("a/loss", {{"train", 0.5}}, 4);
    CHECK(events::events_in(folder.path()).empty());
    const std::vector<Fields> train = events::events_in(folder.path() / "a_loss_train"), test = events::events_in(folder.path() / "a_loss_test");
    REQUIRE(train.size() == 2);
    REQUIRE(test.size() == 1);
    CHECK(events::value_of(train[1]).text(1) == "a/loss");
    CHECK(events::value_of(train[1]).real32(2) == 0.5f);
    CHECK(train[1].integer(2) == 4);
    CHECK(events::value_of(test[0]).real32(2) == 2.0f);
}

TEST_CASE("images") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    const Tensor bytes = arange(2 * 3 * 3).reshape(3, 2, 3).to(uint8);  // (C, H, W)
    writer.add_image("rgb", bytes, 5);
    writer.add_image("hwc", bytes.permute({1, 2, 0}), 0, nn::SummaryWriter::kNow, "HWC");
    writer.add_image("grey", tensor({{0.0, 0.5}, {1.0, 0.999}}), 0, nn::SummaryWriter::kNow, "hw");
    writer.add_image("beyond", tensor({{-1.0, 7.0}, {NAN, INFINITY}}, float64), 0, nn::SummaryWriter::kNow, "HW");
    writer.add_image("mask", tensor({{true, false}}), 0, nn::SummaryWriter::kNow, "HW");
    writer.add_image("rgba", zeros({4, 1, 1}, float16));
    const std::vector<Fields> events = events::events_in(folder.path());
    REQUIRE(events.size() == 6);
    CHECK(events[0].integer(2) == 5);
    const Image rgb = image_of(events[0]), hwc = image_of(events[1]);
    CHECK(rgb.channels == 3);
    CHECK(rgb.values == ints({0, 6, 12, 1, 7, 13, 2, 8, 14, 3, 9, 15, 4, 10, 16, 5, 11, 17}));
    CHECK(hwc.values == rgb.values);
    CHECK(hwc.width == 3);
    const Image grey = image_of(events[2]);
    CHECK(grey.channels == 1);
    CHECK(grey.values == ints({0, 127, 255, 254}));  // x * 255 cut off, as in torch.utils.tensorboard
    CHECK(image_of(events[3]).values == ints({0, 255, 0, 255}));
    CHECK(image_of(events[4]).values == ints({255, 0}));
    CHECK(image_of(events[5]).channels == 4);
}

TEST_CASE("several images are a grid") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    writer.add_images("ten", arange(10).reshape(10, 1, 1, 1).expand(10, 1, 2, 3).to(uint8));
    writer.add_images("two", arange(2).reshape(2, 1, 1, 1).to(uint8));
    const std::vector<Fields> events = events::events_in(folder.path());
    const Image ten = image_of(events[0]), two = image_of(events[1]);
    CHECK(ten.width == 8 * 3);
    CHECK(ten.height == 2 * 2);
    for (std::size_t y = 0; y < 4; ++y) {
        for (std::size_t x = 0; x < 24; ++x) {
            const std::size_t number = y / 2 * 8 + x / 3;
            CHECK(ten.values[y * 24 + x] == (number < 10 ? static_cast<int>(number) : 0));
        }
    }
    CHECK(two.width == 2);
    CHECK(two.values == ints({0, 1}));
}

TEST_CASE("text that is not UTF-8 stays readable") {
    CHECK(detail::utf8_text("gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x90\x97") == "gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x90\x97");
    const std::string bad = "\xEF\xBF\xBD";
    CHECK(detail::utf8_text("a\xFF z") == "a" + bad + " z");
    CHECK(detail::utf8_text("\xC0\x80") == bad + bad);                      // longer than needed
    CHECK(detail::utf8_text("\xED\xA0\x80") == bad + bad + bad);            // a surrogate
    CHECK(detail::utf8_text("\xF4\x90\x80\x80") == bad + bad + bad + bad);  // above U+10FFFF
    CHECK(detail::utf8_text("\xE2\x82") == bad + bad);                      // cut off
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    writer.add_text("sample", "a\xFF");
    const Fields value = events::value_of(events::events_in(folder.path())[0]);
    CHECK(value.message(8).text(8) == "a" + bad);
    CHECK(value.message(9).message(1).text(1) == "text");
}

TEST_CASE("hyper-parameters") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    writer.add_hparams({{"lr", 0.1}, {"optimizer", "adam"}, {"nesterov", true}, {"layers", 3}}, {{"accuracy", 0.75}},
                       {{"optimizer", {"adam", "sgd"}}}, "first");
    const std::vector<Fields> events = events::events_in(folder.path() / "first");
    REQUIRE(events.size() == 4);
    const auto data = [&](std::size_t i, const char* tag) {
        const Fields value = events::value_of(events[i]);
        CHECK(value.text(1) == tag);
        const Fields plugin = value.message(9).message(1);
        CHECK(plugin.text(1) == "hparams");
        return plugin.message(2);
    };
    const Fields experiment = data(0, "_hparams_/experiment").message(2);
    REQUIRE(experiment.all(4).size() == 4);
    const Fields optimizer(experiment.all(4)[1].bytes), nesterov(experiment.all(4)[2].bytes);
    CHECK(optimizer.text(1) == "optimizer");
    CHECK(optimizer.integer(4) == 1);  // DATA_TYPE_STRING
    REQUIRE(optimizer.message(5).all(1).size() == 2);
    CHECK(Fields(optimizer.message(5).all(1)[1].bytes).text(3) == "sgd");
    CHECK(nesterov.integer(4) == 2);
    CHECK(experiment.message(5).message(1).text(2) == "accuracy");
    const std::vector<events::Field> start = data(1, "_hparams_/session_start_info").message(3).all(1);
    REQUIRE(start.size() == 4);
    CHECK(Fields(start[0].bytes).text(1) == "lr");
    CHECK(Fields(start[0].bytes).message(2).real(2) == 0.1);
    CHECK(Fields(start[1].bytes).message(2).text(3) == "adam");
    CHECK(Fields(start[2].bytes).message(2).integer(4) == 1);
    CHECK(Fields(start[3].bytes).message(2).real(2) == 3);
    CHECK(data(2, "_hparams_/session_end_info").message(4).integer(1) == 1);
    CHECK(events::value_of(events[3]).text(1) == "accuracy");
    CHECK(events::value_of(events[3]).real32(2) == 0.75f);
}

TEST_CASE("embeddings") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    writer.add_embedding(tensor({{1.5, -2.0}, {0.1, 1e-20}, {3.0, 4.0}}), {"a", "tab\there", "new\nline"}, full({3, 3, 2, 4}, 0.5), 7, "words/en");
    writer.add_embedding(ones({2, 1}), {"x\t1", "y\t2"}, {}, 8, "default", {"name", "count"});
    const auto contents = [&](const std::string& name) { return files::read_all(folder.path() / name); };
    CHECK(contents("00007/words%2fen/tensors.tsv") == "1.5\t-2\n0.1\t1e-20\n3\t4\n");
    CHECK(contents("00007/words%2fen/metadata.tsv") == "a\ntab\\there\nnew\\nline\n");
    CHECK(contents("00008/default/metadata.tsv") == "name\tcount\nx\t1\ny\t2\n");
    const Image sprite = decoded(contents("00007/words%2fen/sprite.png"));
    CHECK(sprite.width == 8);
    CHECK(sprite.height == 4);
    CHECK(sprite.values[0] == 127);
    CHECK(sprite.values.back() == 0);  // the fourth place is empty
    CHECK(contents("projector_config.pbtxt") ==
          "embeddings {\n  tensor_name: \"words/en:00007\"\n  tensor_path: \"00007/words%2fen/tensors.tsv\"\n"
          "  metadata_path: \"00007/words%2fen/metadata.tsv\"\n  sprite {\n    image_path: \"00007/words%2fen/sprite.png\"\n"
          "    single_image_dim: 4\n    single_image_dim: 2\n  }\n}\n"
          "embeddings {\n  tensor_name: \"default:00008\"\n  tensor_path: \"00008/default/tensors.tsv\"\n"
          "  metadata_path: \"00008/default/metadata.tsv\"\n}\n");
}

TEST_CASE("a run that goes on after a crash says from which step") {
    const files::TemporaryFolder folder;
    const nn::SummaryWriter writer(folder.path().string(), {.purge_step = 40, .filename_suffix = ".again"});
    const std::string name = events::files_in(folder.path())[0].filename().string();
    CHECK(name.substr(name.size() - 6) == ".again");
    const std::vector<Fields> events = events::events_in(folder.path());
    REQUIRE(events.size() == 2);
    for (const Fields& event : events) {
        CHECK(event.integer(2) == 40);
        CHECK(event.message(7).integer(1) == 1);
    }
}

TEST_CASE("a program that is killed has lost nothing") {
    const files::TemporaryFolder folder;
    const pid_t child = ::fork();
    if (child == 0) {
        nn::SummaryWriter writer(folder.path().string());
        for (int step = 0; step < 100; ++step) writer.add_scalar("loss", step, step);
        ::raise(SIGKILL);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    const std::vector<Fields> events = events::events_in(folder.path());
    REQUIRE(events.size() == 100);
    CHECK(events.back().integer(2) == 99);
}

TEST_CASE("a process that was forked writes to files of its own") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    for (int step = 0; step < 5; ++step) writer.add_scalar("loss", 1, step);
    writer.add_scalars("both", {{"a", 1}}, 0);
    const pid_t child = ::fork();
    if (child == 0) {
        for (int step = 5; step < 10; ++step) writer.add_scalar("child", 2, step);
        writer.add_scalars("both", {{"a", 2}}, 1);
        writer.close();
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    for (int step = 5; step < 8; ++step) writer.add_scalar("loss", 1, step);
    writer.add_scalars("both", {{"a", 1}}, 2);
    const auto steps = [](const std::filesystem::path& path) {
        const events::Contents contents = events::records(files::read_all(path));
        CHECK(contents.left == 0);
        std::vector<int> found;
        for (std::size_t i = 1; i < contents.events.size(); ++i) {
            const Fields event(contents.events[i]);
            found.push_back(event.has(2) ? static_cast<int>(event.integer(2)) : 0);
        }
        return found;
    };
    std::set<std::vector<int>> top, below;
    for (const auto& path : events::files_in(folder.path())) top.insert(steps(path));
    for (const auto& path : events::files_in(folder.path() / "both_a")) below.insert(steps(path));
    CHECK(top == std::set<std::vector<int>>{{0, 1, 2, 3, 4, 5, 6, 7}, {5, 6, 7, 8, 9}});
    CHECK(below == std::set<std::vector<int>>{{0, 2}, {1}});
}

TEST_CASE("whoever follows a file sees whole events only") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    for (std::size_t i = 0; i < 5; ++i) {
        writer.add_histogram("weights", randn({100}), static_cast<std::int64_t>(i));
        CHECK(events::events_in(folder.path()).size() == i + 1);
    }
}

TEST_CASE("threads share a writer") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&writer, t] {
            for (int i = 0; i < 50; ++i) writer.add_scalar("thread" + std::to_string(t), i, i);
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(events::events_in(folder.path()).size() == 200);
}

TEST_CASE("a disk that is full costs the event, not the file") {
    const files::TemporaryFolder folder;
    const pid_t child = ::fork();  // whose files may not grow beyond a limit
    if (child == 0) {
        bool is_right = false;
        nn::SummaryWriter writer(folder.path().string());
        writer.add_scalar("loss", 1, 1);
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{200, 200};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        try {
            writer.add_text("text", std::string(1000, 'x'));
        } catch (const FileError&) {
            is_right = true;
        }
        writer.add_scalar("loss", 2, 2);  // which fits
        ::_exit(is_right ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    const std::vector<Fields> events = events::events_in(folder.path());
    REQUIRE(events.size() == 2);
    CHECK(events[1].integer(2) == 2);
}

TEST_CASE("closing, and going on") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    writer.add_scalar("loss", 1);
    writer.flush();
    writer.close();
    writer.close();
    writer.add_scalar("loss", 2);
    nn::SummaryWriter other = std::move(writer);
    other.add_scalar("loss", 3);
    const std::vector<std::filesystem::path> found = events::files_in(folder.path());
    REQUIRE(found.size() == 2);
    CHECK(events::records(files::read_all(found[0])).events.size() == 2);
    CHECK(events::records(files::read_all(found[1])).events.size() == 3);
}

TEST_CASE("a writer that was moved from refuses, until there is another in it") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    nn::SummaryWriter other = std::move(writer);
    nn::Linear model(1, 1);
    const Tape tape;
    const Tensor x = ones({1, 1});
    FAILS(ValueError, "add_scalar: the writer was moved from", writer.add_scalar("loss", 1));
    FAILS(ValueError, "add_scalar: the writer was moved from", writer.add_scalar("loss", x));
    FAILS(ValueError, "add_scalars: the writer was moved from", writer.add_scalars("loss", {{"a", 1}}));
    FAILS(ValueError, "add_histogram: the writer was moved from", writer.add_histogram("x", x));
    FAILS(ValueError, "add_image: the writer was moved from", writer.add_image("x", x, 0, nn::SummaryWriter::kNow, "HW"));
    FAILS(ValueError, "add_images: the writer was moved from", writer.add_images("x", ones({1, 1, 1, 1})));
    FAILS(ValueError, "add_text: the writer was moved from", writer.add_text("x", "y"));
    FAILS(ValueError, "add_graph: the writer was moved from", writer.add_graph(tape));
    FAILS(ValueError, "add_graph: the writer was moved from", writer.add_graph(model, x));
    FAILS(ValueError, "add_hparams: the writer was moved from", writer.add_hparams({{"a", 1}}, {}));
    FAILS(ValueError, "add_embedding: the writer was moved from", writer.add_embedding(x));
    CHECK(writer.get_logdir().empty());
    writer.flush();
    writer.close();
    writer = std::move(other);
    writer.add_scalar("loss", 1);
    CHECK(events::events_in(folder.path()).size() == 1);
}

TEST_CASE("the default folder is below runs/") {
    const files::TemporaryFolder folder;
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path());
    std::string name;
    {
        const nn::SummaryWriter writer({}, {.comment = "_lr0.1"});
        name = writer.get_logdir();
        CHECK(events::files_in(name).size() == 1);
    }
    std::filesystem::current_path(before);
    CHECK(name.find("runs/") == 0);
    CHECK(name.substr(name.size() - 6) == "_lr0.1");
}

TEST_CASE("what a writer refuses begins with the caller's line, and leaves the file as it was") {
    const files::TemporaryFolder folder;
    const std::string file = folder.write("file", "").string();
    FAILS(FileError, "Not a directory", nn::SummaryWriter(file + "/run"));
    nn::SummaryWriter writer(folder.path().string());
    const auto size = std::filesystem::file_size(events::files_in(folder.path())[0]);
    FAILS_IN(ValueError, "add_scalar: ", "the tag is empty", writer.add_scalar("", 1));
    FAILS_IN(ValueError, "add_scalar: ", "is not UTF-8", writer.add_scalar("\xFF", 1));
    FAILS_IN(ShapeError, "add_scalar: ", "got shape (2,)", writer.add_scalar("x", ones({2})));
    FAILS_IN(ValueError, "add_scalar: ", "an undefined tensor", writer.add_scalar("x", Tensor()));
    FAILS_IN(ValueError, "add_scalars: ", "the tag is empty", writer.add_scalars("x", {{"a", 1}, {"", 1}}));
    FAILS_IN(ValueError, "add_histogram: ", "an undefined tensor", writer.add_histogram("x", ones({2}).grad()));
    FAILS_IN(ValueError, "add_histogram: ", "bins must be finite and rise", writer.add_histogram("x", ones({2}), 0, {0, 1, 1}));
    FAILS_IN(ValueError, "add_histogram: ", "two edges", writer.add_histogram("x", ones({2}), 0, {0}));
    FAILS_IN(ShapeError, "add_image: ", "(2, 2), which is not \"CHW\"; for a grey image give dataformats as \"HW\"",
             writer.add_image("x", ones({2, 2})));
    FAILS_IN(ShapeError, "add_image: ", "got 2 in shape (2, 4, 4)", writer.add_image("x", ones({2, 4, 4})));
    FAILS_IN(ShapeError, "add_image: ", "without pixels", writer.add_image("x", ones({3, 0, 4})));
    FAILS_IN(DTypeError, "add_image: ", "got int64", writer.add_image("x", ones({3, 4, 4}, int64)));
    FAILS_IN(ValueError, "add_image: ", "an undefined tensor", writer.add_image("x", Tensor()));
    FAILS_IN(ValueError, "add_image: ", "got \"CHX\"", writer.add_image("x", ones({1, 2, 2}), 0, 0, "CHX"));
    FAILS_IN(ValueError, "add_image: ", "dataformats", writer.add_image("x", ones({1, 2, 2}), 0, 0, "CCH"));
    FAILS_IN(ShapeError, "add_images: ",
             "(1, 2, 2), which is not \"NCHW\"; for one image call add_image(), for grey ones give "
             "x.unsqueeze(1)",
             writer.add_images("x", ones({1, 2, 2})));
    FAILS_IN(ShapeError, "add_image: ", "which is not \"CHW\"; for several images call add_images()", writer.add_image("x", ones({5, 1, 2, 2})));
    FAILS_IN(ShapeError, "add_image: ", "got 8 in shape (8, 9, 3) as CHW; are they the last dimension? Give dataformats as \"HWC\"",
             writer.add_image("x", ones({8, 9, 3})));
    FAILS_IN(ShapeError, "add_images: ", "as NCHW; are they the last dimension? Give dataformats as \"NHWC\"",
             writer.add_images("x", ones({5, 8, 9, 1})));
    FAILS_IN(ValueError, "add_hparams: ", "comes twice", writer.add_hparams({{"a", 1}, {"a", 2}}, {}));
    FAILS_IN(ValueError, "add_hparams: ", "no hyper-parameter", writer.add_hparams({{"a", 1}}, {}, {{"b", {1}}}));
    FAILS_IN(ShapeError, "add_embedding: ", "got shape (3,)", writer.add_embedding(ones({3})));
    FAILS_IN(ShapeError, "add_embedding: ", "1 labels for 3 points", writer.add_embedding(ones({3, 2}), {"a"}));
    FAILS_IN(ShapeError, "add_embedding: ", "got shape (2, 1, 4, 4)", writer.add_embedding(ones({3, 2}), {}, ones({2, 1, 4, 4})));
    FAILS_IN(ShapeError, "add_embedding: ", "got 2 in", writer.add_embedding(ones({3, 2}), {}, ones({3, 2, 4, 4})));
    FAILS_IN(ValueError, "add_embedding: ", "has 1 columns", writer.add_embedding(ones({1, 2}), {"a"}, {}, 0, "x", {"u", "v"}));
    FAILS_IN(ValueError, "add_embedding: ", "no labels", writer.add_embedding(ones({1, 2}), {}, {}, 0, "x", {"u", "v"}));
    CHECK(std::filesystem::file_size(events::files_in(folder.path())[0]) == size);
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("a run whose folder cannot be made is no run") {
    const files::TemporaryFolder folder;
    folder.write("loss_a", "");
    folder.write("first", "");
    nn::SummaryWriter writer(folder.path().string());
    for (int i = 0; i < 2; ++i) {
        FAILS_IN(FileError, "add_scalars: ", "loss_a", writer.add_scalars("loss", {{"a", 1}}));
        FAILS_IN(FileError, "add_hparams: ", "first", writer.add_hparams({{"lr", 1}}, {}, {}, "first"));
    }
    writer.flush();
    writer.close();
    std::filesystem::remove(folder.path() / "loss_a");
    writer.add_scalars("loss", {{"a", 1}}, 5);
    writer.flush();
    const std::vector<Fields> events = events::events_in(folder.path() / "loss_a");
    REQUIRE(events.size() == 1);
    CHECK(events[0].integer(2) == 5);
}

TEST_CASE("processes and writers that share a folder list all their embeddings") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    const Tensor points = ones({2, 1});
    writer.add_embedding(points, {}, {}, 0, "before");
    const pid_t child = ::fork();
    const std::string own = child == 0 ? "child" : "parent";
    for (int step = 0; step < 20; ++step) writer.add_embedding(points, {}, {}, step, own);
    if (child == 0) ::_exit(0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    nn::SummaryWriter later(folder.path().string());
    later.add_embedding(points, {}, {}, 0, "later");
    later.add_embedding(points, {}, {}, 0, "later");
    std::multiset<std::string> wanted, found;
    const auto want = [&](const std::string& tag, int step) {
        const std::string number = fmt::format("{:05}", step);
        wanted.insert(fmt::format("embeddings {{\n  tensor_name: \"{}:{}\"\n  tensor_path: \"{}/{}/tensors.tsv\"\n}}\n", tag, number, number, tag));
    };
    want("before", 0);
    want("later", 0);
    for (int step = 0; step < 20; ++step) want("child", step), want("parent", step);
    const std::string text = files::read_all(folder.path() / "projector_config.pbtxt");
    for (std::size_t at = 0, end = 0; at < text.size(); at = end) {
        end = std::min(text.find("embeddings", at + 1), text.size());
        found.insert(text.substr(at, end - at));
    }
    CHECK(found == wanted);
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) CHECK(entry.path().extension() != ".tmp");
}

TEST_CASE("a child that was forked while a folder was locked does not keep it locked") {
    if (!std::filesystem::exists("/proc/self/fd")) return;
    const files::TemporaryFolder folder;
    const std::filesystem::path path = std::filesystem::canonical(folder.path());
    nn::SummaryWriter writer(path.string());
    const int own = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(own >= 0);
    REQUIRE(::flock(own, LOCK_EX) == 0);
    std::atomic<bool> is_done{false};
    std::thread other([&] {  // waits for the lock, with the folder open
        writer.add_embedding(ones({2, 1}));
        is_done = true;
    });
    const auto times_open = [&] {
        int count = 0;
        for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
            std::error_code error;  // it may be closed by now
            count += std::filesystem::read_symlink(entry.path(), error) == path;
        }
        return count;
    };
    while (times_open() < 2 && !is_done) std::this_thread::yield();
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::close(ends[1]);
        char nothing = 0;
        ::_exit(::read(ends[0], &nothing, 1) == 0 ? 0 : 1);  // until the test is over
    }
    ::close(ends[0]);
    CHECK(!is_done);
    ::flock(own, LOCK_UN);
    other.join();
    CHECK(::flock(own, LOCK_EX | LOCK_NB) == 0);
    ::close(own);
    ::close(ends[1]);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

TEST_CASE("a file of add_embedding that cannot be written is told of by its name") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    std::filesystem::create_directories(folder.path() / "00000/default/tensors.tsv");
    FAILS_IN(FileError, "add_embedding: ", "exists and is not a regular file", writer.add_embedding(ones({2, 1})));
}

TEST_CASE("logging is not recorded, and reads what is on a tape") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    const Tensor w = ones({1, 4, 4}, float16).requires_grad_();
    Tape tape;
    const Tensor y = w * 2;
    const std::size_t records = tape.size();
    writer.add_scalar("y", y[0][0][0]);
    const std::size_t with_views = tape.size();  // of the test's own indexing
    writer.add_histogram("y", y);
    writer.add_image("y", y);
    writer.add_embedding(y[0]);
    CHECK(with_views > records);
    CHECK(tape.size() == with_views + 1);
    CHECK(events::events_in(folder.path()).size() == 3);
}
