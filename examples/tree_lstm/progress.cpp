#include "progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <tapir/core/process_rank.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "../common/write.h"

namespace tree_lstm {

namespace {

int stdout_columns() {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string bar(double fraction, int width) {
    const auto inside = static_cast<std::size_t>(width - 2);
    const double clamped = std::clamp(fraction, 0.0, 1.0);
    const auto full = static_cast<std::size_t>(clamped * static_cast<double>(inside));
    std::string text(inside, ' ');
    std::fill_n(text.begin(), full, '=');
    if (full < inside) text[full] = '>';
    return '[' + text + ']';
}

}  // namespace

std::string grouped(std::int64_t number) {
    std::string text = std::to_string(number);
    const std::size_t first = number < 0 ? 1 : 0;
    for (std::size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
    return text;
}

ProgressOptions ProgressOptions::for_stdout() {
    ProgressOptions options;
    static std::ostream nowhere(nullptr);
    options.out = tapir::process_rank() == 0 ? &std::cout : &nowhere;
    // A "dumb" terminal (an editor's shell, say) cannot redraw a line.
    const char* term = std::getenv("TERM");
    options.is_terminal = options.out == &std::cout && ::isatty(STDOUT_FILENO) == 1 && (term == nullptr || std::string_view(term) != "dumb");
    options.interval = options.is_terminal ? 0.1 : 5.0;
    options.columns = stdout_columns;
    options.clock = steady_seconds;
    return options;
}

Progress::Progress(int epochs, std::int64_t trees_per_epoch, ProgressOptions options)
    : epochs_(epochs), trees_per_epoch_(trees_per_epoch), options_(std::move(options)) {
    if (options_.out == nullptr) options_.out = &std::cout;
    if (!options_.columns) options_.columns = [] { return 80; };
    if (!options_.clock) options_.clock = steady_seconds;
}

Progress::~Progress() {
    if (is_line_open_) *options_.out << '\n' << std::flush;
}

void Progress::start_epoch(int epoch) {
    epoch_start_ = last_update_ = options_.clock();
    if (first_epoch_ == 0) {
        first_epoch_ = epoch;
        run_start_ = epoch_start_;
    }
    // The next update of a terminal draws at once; a plain line waits until there is something to say.
    last_drawn_ = options_.is_terminal ? epoch_start_ - options_.interval : epoch_start_;
    epoch_ = epoch;
    done_ = 0;
    loss_ = accuracy_ = 0;
}

void Progress::update(std::int64_t trees_done, double loss, double accuracy) {
    done_ = trees_done;
    loss_ = loss;
    accuracy_ = accuracy;
    last_update_ = options_.clock();
    // The last update of an epoch is always shown on a terminal: a bar that stops at 98% looks stuck.
    const bool is_full = options_.is_terminal && done_ >= trees_per_epoch_;
    if (!is_full && last_update_ - last_drawn_ < options_.interval) return;
    last_drawn_ = last_update_;
    if (options_.is_terminal) {
        draw(bar_line());
    } else {
        *options_.out << plain_line() + '\n' << std::flush;
    }
}

void Progress::finish_epoch(std::string_view note) {
    const double seconds = options_.clock() - epoch_start_;
    std::string line = fmt::format("epoch {:>{}}/{}  loss {:.4f}  train {:5.1f}%  {} trees/s  {:.1f} s", epoch_, std::to_string(epochs_).size(),
                                   epochs_, loss_, 100 * accuracy_, grouped(std::llround(trees_per_second())), seconds);
    if (!note.empty()) line += fmt::format("  {}", note);
    if (options_.is_terminal) line = "\r" + line + "\x1b[K";
    *options_.out << line + '\n' << std::flush;
    is_line_open_ = false;
}

// From the start of the epoch to the last update, so that the time of an evaluation after it does not count.
double Progress::trees_per_second() const {
    const double seconds = last_update_ - epoch_start_;
    return seconds > 0 ? static_cast<double>(done_) / seconds : 0.0;
}

// Of the whole run. What happens between epochs (evaluation) is in the time so far, and so in the forecast.
double Progress::seconds_left() const {
    const double before = static_cast<double>(trees_per_epoch_) * (epoch_ - first_epoch_);
    const double done = before + static_cast<double>(done_);
    const double all = static_cast<double>(trees_per_epoch_) * (epochs_ - first_epoch_ + 1);
    const double elapsed = last_update_ - run_start_;
    return done > 0 ? elapsed * std::max(0.0, all - done) / done : -1.0;
}

std::string Progress::bar_line() const {
    const double fraction = trees_per_epoch_ > 0 ? static_cast<double>(done_) / static_cast<double>(trees_per_epoch_) : 1.0;
    const std::string head = fmt::format("epoch {:>{}}/{} ", epoch_, std::to_string(epochs_).size(), epochs_);
    // Padded, so that the bar keeps its length while the numbers change theirs.
    const std::string tail = fmt::format(" {:3.0f}%  loss {:.4f}  acc {:5.1f}%  {:>6} trees/s  {:>5} left", 100 * std::min(fraction, 1.0), loss_,
                                         100 * accuracy_, grouped(std::llround(trees_per_second())), show::duration(seconds_left()));
    // The last column stays free: writing it makes some terminals start a new line.
    const int columns = options_.columns() - 1;
    constexpr int kLongestBar = 40;
    constexpr int kShortestBar = 8;
    const int room = std::min(columns - static_cast<int>(head.size() + tail.size()), kLongestBar);
    std::string line = room >= kShortestBar ? head + bar(fraction, room) + tail : head + tail;
    line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(columns, 0))));
    return line;
}

std::string Progress::plain_line() const {
    return fmt::format("epoch {}/{}  {}/{} trees  loss {:.4f}  acc {:.1f}%  {} trees/s  {} left", epoch_, epochs_, grouped(done_),
                       grouped(trees_per_epoch_), loss_, 100 * accuracy_, grouped(std::llround(trees_per_second())), show::duration(seconds_left()));
}

// One write for the whole line, over the old one, and only then the rest of the old one is cleared: no flicker.
void Progress::draw(const std::string& line) {
    *options_.out << "\r" + line + "\x1b[K" << std::flush;
    is_line_open_ = true;
}

}  // namespace tree_lstm
