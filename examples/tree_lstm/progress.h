// Shows how training goes. On a terminal one line is redrawn in place below a lasting line for each finished epoch;
// where output goes to a file or a pipe, plain lines appear at intervals instead. Of several processes, the first one tells it.
//
//     Progress progress(epochs, trees_per_epoch);
//     for (int epoch = 1; epoch <= epochs; ++epoch) {
//         progress.start_epoch(epoch);
//         for (...) progress.update(trees_done, mean_loss, accuracy);
//         progress.finish_epoch("test 91.3%");
//     }
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

namespace tree_lstm {

struct ProgressOptions {
    std::ostream* out = nullptr;  ///< std::cout when not given
    bool is_terminal = false;
    double interval = 5.0;          ///< seconds between two drawings (terminal) or two lines
    std::function<int()> columns;   ///< width of the terminal, asked anew for each drawing as it may change
    std::function<double()> clock;  ///< seconds since any fixed moment, never going back

    /// Standard output as it is: its width and a tenth of a second when a terminal, else plain lines every 5 seconds. On other ranks than 0: nothing.
    static ProgressOptions for_stdout();
};

class Progress {
 public:
    Progress(int epochs, std::int64_t trees_per_epoch, ProgressOptions options = ProgressOptions::for_stdout());

    /// Ends a line that is still being redrawn, so that an error message starts on one of its own.
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// Epochs count from 1; the first call may name a later one (training resumed).
    void start_epoch(int epoch);

    /// Cheap to call after every batch: draws only when the interval has passed. accuracy is a fraction, 0 to 1.
    void update(std::int64_t trees_done, double loss, double accuracy);

    /// Leaves one line that sums the epoch up, with `note` at its end.
    void finish_epoch(std::string_view note = {});

 private:
    std::string bar_line() const;
    std::string plain_line() const;
    double trees_per_second() const;
    double seconds_left() const;
    void draw(const std::string& line);

    int epochs_;
    std::int64_t trees_per_epoch_;
    ProgressOptions options_;
    double run_start_ = 0;
    double epoch_start_ = 0;
    double last_update_ = 0;
    double last_drawn_ = 0;
    int first_epoch_ = 0;
    int epoch_ = 0;
    std::int64_t done_ = 0;
    double loss_ = 0;
    double accuracy_ = 0;
    bool is_line_open_ = false;
};

/// A whole number with a comma between thousands: "12,345".
std::string grouped(std::int64_t number);

}  // namespace tree_lstm
