// Reads the inputs of ADBench, whose forms the paper describes: F. Srajer, Z. Kukelova, A. Fitzgibbon, "A benchmark of selected algorithmic
// differentiation tools", 2018. The LSTM came to ADBench (github.com/microsoft/ADBench) after the paper.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

using Numbers = std::vector<double>;

/// n points in d dimensions, and a mixture of k Gaussians.
struct GmmData {
    std::int64_t d = 0, k = 0, n = 0;
    Numbers alphas{};         ///< (k): logarithms of the weights, before they are normalized
    Numbers means{};          ///< (k, d)
    Numbers icf{};            ///< (k, d (d + 1) / 2): factors of the inverse covariances, see Gmm
    Numbers x{};              ///< (n, d): the points
    double gamma = 1, m = 0;  ///< of the Wishart prior
};

/// l layers of LSTM cells over c characters of b bits.
struct LstmData {
    std::int64_t l = 0, c = 0, b = 0;
    Numbers main{};      ///< (l, 2, 4, b): of each layer weights and biases; each of these for the gates forget, in, out and change
    Numbers extra{};     ///< (3, b): the input's weights, the output's weights and biases
    Numbers state{};     ///< (l, 2, b): of each layer the first hidden and cell state
    Numbers sequence{};  ///< (c, b)
};

/// n cameras, m points and p observations: observation i is of point i % m by camera i % n.
struct BundleData {
    std::int64_t n = 0, m = 0, p = 0;
    Numbers cameras{};   ///< (n, 11): rotation (axis times angle), center (3), focal length, principal point (2), radial distortion (2)
    Numbers points{};    ///< (m, 3)
    Numbers weights{};   ///< (p)
    Numbers features{};  ///< (p, 2): where the point was seen
};

/// Where the data is: $TAPIR_ADBENCH_DIR, else shared/data/adbench beside the source tree.
inline std::string adbench_dir() {
    const char* given = std::getenv("TAPIR_ADBENCH_DIR");
    return given && *given ? given : std::string(TAPIR_BENCH_SOURCE_DIR) + "/../shared/data/adbench";
}

/// Reads the numbers of a file of adbench_dir() one after the other. Throws std::runtime_error where the file ends too early.
class AdbenchFile {
 public:
    explicit AdbenchFile(const std::string& name) : name_(name), file_(adbench_dir() + "/" + name) {}
    bool is_there() const { return file_.is_open(); }
    double number() {
        double value = 0;
        if (!(file_ >> value)) throw std::runtime_error(name_ + ": a number is missing");
        return value;
    }
    std::int64_t size() { return static_cast<std::int64_t>(number()); }
    Numbers numbers(std::int64_t count) {
        Numbers read(static_cast<std::size_t>(count));
        std::generate(read.begin(), read.end(), [&] { return number(); });
        return read;
    }
    /// (count, width): the one row that is in the file, `count` times.
    Numbers repeated(std::int64_t count, std::int64_t width) {
        const Numbers row = numbers(width);
        Numbers made;
        for (std::int64_t i = 0; i < count; ++i) made.insert(made.end(), row.begin(), row.end());
        return made;
    }

 private:
    std::string name_;
    std::ifstream file_;
};

/// gmm_NAME.txt, or nothing where there is no such file; throws std::runtime_error where it is cut short. So do the other readers.
inline std::optional<GmmData> read_gmm(const std::string& name) {
    AdbenchFile file("gmm_" + name + ".txt");
    if (!file.is_there()) return std::nullopt;
    GmmData data{.d = file.size(), .k = file.size(), .n = file.size()};
    data.alphas = file.numbers(data.k);
    data.means = file.numbers(data.k * data.d);
    data.icf = file.numbers(data.k * data.d * (data.d + 1) / 2);
    data.x = file.numbers(data.n * data.d);
    data.gamma = file.number();
    data.m = file.number();
    return data;
}

inline std::optional<LstmData> read_lstm(const std::string& name) {
    AdbenchFile file("lstm_" + name + ".txt");
    if (!file.is_there()) return std::nullopt;
    LstmData data{.l = file.size(), .c = file.size(), .b = file.size()};
    data.main = file.numbers(data.l * 8 * data.b);
    data.extra = file.numbers(3 * data.b);
    data.state = file.numbers(data.l * 2 * data.b);
    data.sequence = file.numbers(data.c * data.b);
    return data;
}

/// The file has one camera, point, weight and feature, which all are.
inline std::optional<BundleData> read_bundle(const std::string& name) {
    AdbenchFile file(name + ".txt");
    if (!file.is_there()) return std::nullopt;
    BundleData data{.n = file.size(), .m = file.size(), .p = file.size()};
    data.cameras = file.repeated(data.n, 11);
    data.points = file.repeated(data.m, 3);
    data.weights = file.repeated(data.p, 1);
    data.features = file.repeated(data.p, 2);
    return data;
}

}  // namespace bench
