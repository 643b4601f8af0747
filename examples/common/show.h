// What the examples show while they run and leave behind: a line of progress, and charts for a browser.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace show {

/// One line that says how far the work is: redrawn in place on a terminal, a new line every 5 seconds where output goes to a
/// file or a pipe. Of several processes, the first one tells it; the others are silent.
///     Progress progress(steps);
///     for (...) progress.update(step, fmt::format("loss {:.3f}", loss));
class Progress {
 public:
    explicit Progress(std::int64_t steps);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// Cheap: draws only when it is time to.
    void update(std::int64_t step, const std::string& text);
    /// Leaves a line of its own.
    void print(const std::string& line);

 private:
    std::int64_t steps_;
    bool is_silent_, is_terminal_, is_open_ = false;
    double start_, last_ = 0;
};

struct Curve {
    std::string name;
    std::vector<double> x, y;
    void add(double at, double value) {
        x.push_back(at);
        y.push_back(value);
    }
};

struct ChartOptions {
    std::string title, x_label, y_label;
    bool log_y = false;   ///< values that are not positive are left out
    bool points = false;  ///< dots instead of lines
};

/// Writes curves as an SVG file, atomically, and prints its name. Throws tapir::FileError when that fails. Nothing for an empty path.
void write_chart(const std::string& path, const std::vector<Curve>& curves, const ChartOptions& options);

/// One image as rows of grey values, 0 to 1, and what stands under it.
struct Picture {
    std::int64_t height, width;
    std::vector<float> grey;
    std::string caption;
    bool is_right = true;  ///< the caption's colour
};
/// Writes pictures side by side, in rows of `columns`.
void write_pictures(const std::string& path, const std::vector<Picture>& pictures, const std::string& title, int columns = 10);

/// Reads the options; --help and what is wrong among them end the program.
void parse(CLI::App& app, int argc, char** argv);
/// Runs main's body: 1 and a line on stderr for what it throws.
int run(const char* program, int argc, char** argv, void (*body)(int argc, char** argv));

}  // namespace show
