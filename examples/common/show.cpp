#include "show.h"

#include <fmt/format.h>
#include <unistd.h>

#include <tapir/core/io/file.h>
#include <tapir/core/process_rank.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "write.h"

namespace show {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void write_page(const std::string& path, const std::string& text) {
    tapir::write_file(path, text);
    std::printf("%s is written: open it in a browser\n", path.c_str());
}

// Round numbers between the ends, about `count` of them.
std::vector<double> ticks(double low, double high, int count) {
    const double raw = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw)));
    const double step = raw / power < 1.5 ? power : raw / power < 3.5 ? 2 * power : raw / power < 7.5 ? 5 * power : 10 * power;
    std::vector<double> result;
    for (double t = std::ceil(low / step) * step; t <= high + step * 1e-9; t += step) result.push_back(std::abs(t) < step * 1e-9 ? 0 : t);
    return result;
}

constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};

}  // namespace

Progress::Progress(std::int64_t steps)
    : steps_(steps), is_silent_(tapir::process_rank() != 0), is_terminal_(isatty(STDOUT_FILENO) != 0), start_(now()) {
    last_ = start_;
}

Progress::~Progress() {
    if (is_open_) std::printf("\n");
}

void Progress::update(std::int64_t step, const std::string& text) {
    if (is_silent_) return;
    const double time = now();
    if (time - last_ < (is_terminal_ ? 0.1 : 5.0) && step < steps_) return;
    last_ = time;
    const double left = step > 0 ? (time - start_) / static_cast<double>(step) * static_cast<double>(steps_ - step) : 0;
    const std::string line = fmt::format("{}/{}  {}  {} left", step, steps_, text, duration(left));
    if (is_terminal_) {
        std::printf("\r\033[K%s", line.c_str());
        is_open_ = true;
    } else {
        std::printf("%s\n", line.c_str());
    }
    std::fflush(stdout);
}

void Progress::print(const std::string& line) {
    if (is_silent_) return;
    std::printf("%s%s\n", is_open_ ? "\r\033[K" : "", line.c_str());
    std::fflush(stdout);
    is_open_ = false;
}

void write_chart(const std::string& path, const std::vector<Curve>& curves, const ChartOptions& options) {
    if (path.empty()) return;
    const double width = 720, height = 420, left = 70, right = 20, top = 50, bottom = 55;
    const auto scaled = [&](double y) { return options.log_y ? std::log10(y) : y; };
    const auto drawn = [&](double x, double y) { return std::isfinite(x) && std::isfinite(y) && (!options.log_y || y > 0); };
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY;
    for (const Curve& c : curves) {
        for (std::size_t i = 0; i < c.x.size(); ++i) {
            if (!drawn(c.x[i], c.y[i])) continue;
            x0 = std::min(x0, c.x[i]), x1 = std::max(x1, c.x[i]);
            y0 = std::min(y0, scaled(c.y[i])), y1 = std::max(y1, scaled(c.y[i]));
        }
    }
    if (!(x0 <= x1)) x0 = 0, x1 = 1, y0 = 0, y1 = 1;
    if (x0 == x1) x0 -= 0.5, x1 += 0.5;
    if (y0 == y1) y0 -= 0.5, y1 += 0.5;
    const auto px = [&](double x) { return left + (x - x0) / (x1 - x0) * (width - left - right); };
    const auto py = [&](double y) { return height - bottom - (y - y0) / (y1 - y0) * (height - top - bottom); };
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        "<text x=\"{2}\" y=\"22\" text-anchor=\"middle\" font-size=\"15\">{3}</text>\n",
        width, height, width / 2, xml_escaped(options.title));
    for (const double t : ticks(x0, x1, 8)) {
        svg += fmt::format(
            "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#ddd\"/>"
            "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}</text>\n",
            px(t), top, height - bottom, height - bottom + 16, t);
    }
    for (const double t : ticks(y0, y1, 6)) {
        svg += fmt::format(
            "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
            "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.3g}</text>\n",
            left, width - right, py(t), left - 6, py(t) + 4, options.log_y ? std::pow(10, t) : t);
    }
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (left + width - right) / 2, height - 14,
                       xml_escaped(options.x_label));
    svg += fmt::format("<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n", (top + height - bottom) / 2,
                       xml_escaped(options.y_label));
    double legend = left;
    for (std::size_t k = 0; k < curves.size(); ++k) {
        const Curve& c = curves[k];
        const char* colour = kColours[k % std::size(kColours)];
        std::string line;
        for (std::size_t i = 0; i < c.x.size(); ++i) {
            if (!drawn(c.x[i], c.y[i])) continue;
            const double x = px(c.x[i]), y = py(scaled(c.y[i]));
            line += options.points ? fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>", x, y, colour)
                                   : fmt::format("{:.1f},{:.1f} ", x, y);
        }
        svg +=
            options.points ? line + "\n" : fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"{}\"/>\n", colour, line);
        svg += fmt::format("<rect x=\"{}\" y=\"32\" width=\"12\" height=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"38\">{}</text>\n", legend, colour,
                           legend + 16, xml_escaped(c.name));
        legend += 34 + 7 * static_cast<double>(c.name.size());
    }
    write_page(path, svg + "</svg>\n");
}

void write_pictures(const std::string& path, const std::vector<Picture>& pictures, const std::string& title, int columns) {
    if (path.empty()) return;
    constexpr double cell = 84, image = 64;
    const auto rows = (static_cast<int>(pictures.size()) + columns - 1) / columns;
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
        "font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        "<text x=\"10\" y=\"20\" font-size=\"14\">{2}</text>\n",
        columns * cell + 10, rows * cell + 34, xml_escaped(title));
    for (std::size_t k = 0; k < pictures.size(); ++k) {
        const Picture& p = pictures[k];
        const double x = 10 + cell * static_cast<double>(static_cast<int>(k) % columns), y = 30 + cell * (static_cast<int>(k) / columns);
        const double dot = image / static_cast<double>(std::max(p.height, p.width));
        for (std::int64_t i = 0; i < p.height; ++i) {
            for (std::int64_t j = 0; j < p.width; ++j) {
                const int grey = std::clamp(static_cast<int>(255 * p.grey[static_cast<std::size_t>(i * p.width + j)]), 0, 255);
                if (grey == 0) continue;
                svg += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"rgb({},{},{})\"/>",
                                   x + static_cast<double>(j) * dot, y + static_cast<double>(i) * dot, dot + 0.1, dot + 0.1, 255 - grey, 255 - grey,
                                   255 - grey);
            }
        }
        svg += fmt::format("\n<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n", x, y + image + 11, p.is_right ? "#2a7a2a" : "#c02020",
                           xml_escaped(p.caption));
    }
    write_page(path, svg + "</svg>\n");
}

void parse(CLI::App& app, int argc, char** argv) {
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        std::exit(app.exit(error));
    }
}

int run(const char* program, int argc, char** argv, void (*body)(int argc, char** argv)) {
    try {
        body(argc, argv);
        return 0;
    } catch (const std::exception& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "%s: %s\n", program, error.what());
        return 1;
    }
}

}  // namespace show
