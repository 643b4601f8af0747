// Writes the data of a MemoryProfiler as a drawing and as a trace.
#include <algorithm>
#include <cmath>

#include "tapir/core/format.h"
#include "tapir/core/memory_timeline_impl.h"
#include "tapir/core/text_impl.h"

namespace tapir {
namespace {

using detail::size_text;

constexpr int kLeft = 90, kTop = 40, kWidth = 840, kHeight = 260;

// Returns the distance of ticks from 0 to `most`, of which there are at most five: 1, 2 or 5 times a power of ten.
double step_of(double most) {
    const double least = most / 5, power = std::pow(10, std::floor(std::log10(least)));
    for (const double factor : {1.0, 2.0, 5.0}) {
        if (factor * power >= least * (1 - 1e-9)) return factor * power;
    }
    return 10 * power;
}

}  // namespace

std::string detail::made_by(const MemorySite& site) {
    return fmt::format("{}{}{}{}", site.place, site.op.empty() ? "" : " ", site.op, site.module.empty() ? "" : fmt::format(" (in {})", site.module));
}

std::string detail::draw_memory(const MemoryLine& line, const std::vector<MemorySite>& at_peak, int rows) {
    const std::vector<MemoryMoment>& moments = line.moments;
    const auto most_bytes = static_cast<double>(std::max<std::int64_t>(line.peak, 1));
    const auto x_of = [&](double time) { return kLeft + kWidth * time / line.end; };
    const auto y_of = [&](double bytes) { return kTop + kHeight - kHeight * bytes / most_bytes; };
    // The largest and the last value of each column of the picture.
    struct Column {
        std::int64_t most, last;
    };
    std::vector<Column> columns(kWidth);
    double peak_time = 0;
    bool is_peak_met = false;
    std::size_t next = 0;
    std::int64_t bytes = 0;
    for (int c = 0; c < kWidth; ++c) {
        std::int64_t most = bytes;
        for (; next < moments.size() && (moments[next].time < line.end * (c + 1) / kWidth || c == kWidth - 1); ++next) {
            bytes = moments[next].bytes;
            most = std::max(most, moments[next].most);
            if (moments[next].most == line.peak && !is_peak_met) is_peak_met = true, peak_time = moments[next].time;
        }
        columns[static_cast<std::size_t>(c)] = {most, bytes};
    }
    const auto shown = std::min(at_peak.size(), static_cast<std::size_t>(std::max(rows, 0)));
    const int list = kTop + kHeight + 64, total = list + 20 * static_cast<int>(shown + (shown < at_peak.size())) + 10;
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
        kLeft + kWidth + 30, total);
    const auto text = [&](double x, double y, const char* anchor, const std::string& what) {
        svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, xml_text(what));
    };
    const SizeUnit unit = size_unit(most_bytes);
    const double step = unit.bytes == 1 ? std::max(step_of(most_bytes), 1.0) : step_of(most_bytes / unit.bytes);
    for (int i = 0; i * step * unit.bytes <= most_bytes; ++i) {
        const double y = y_of(i * step * unit.bytes);
        svg += fmt::format("<path d=\"M{} {:.1f}h{}\" stroke=\"#ddd\"/>\n", kLeft, y, kWidth);
        text(kLeft - 6, y + 4, "end", fmt::format("{:g} {}", i * step, unit.name));
    }
    const double seconds = step_of(line.end);
    for (int i = 0; i * seconds <= line.end; ++i) {
        text(x_of(i * seconds), kTop + kHeight + 18, "middle", fmt::format("{:g} s", i * seconds));
    }
    std::string path = fmt::format("M{} {}", kLeft, kTop + kHeight);
    for (int c = 0; c < kWidth; ++c) {
        const Column& column = columns[static_cast<std::size_t>(c)];
        path += fmt::format("V{:.1f}V{:.1f}H{}", y_of(static_cast<double>(column.most)), y_of(static_cast<double>(column.last)), kLeft + c + 1);
    }
    svg += fmt::format("<path d=\"{}V{}Z\" fill=\"#9ecae1\" stroke=\"#3182bd\"/>\n", path, kTop + kHeight);
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{}\" r=\"4\" fill=\"#d62728\"/>\n", x_of(peak_time), kTop);
    text(x_of(peak_time), kTop - 10, peak_time > line.end / 2 ? "end" : "start",
         fmt::format("peak: {} after {:.4g} s", size_text(line.peak), peak_time));
    if (shown > 0) text(kLeft, list - 20, "start", "at the peak:");
    for (std::size_t i = 0; i < shown; ++i) {
        const MemorySite& site = at_peak[i];
        const int y = list + 20 * static_cast<int>(i);
        svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"12\" fill=\"#9ecae1\"/>\n", kLeft, y - 10,
                           120 * static_cast<double>(site.bytes) / most_bytes);
        text(kLeft - 6, y, "end", size_text(site.bytes));
        text(kLeft + 130, y, "start", fmt::format("{}, {} tensor{}", made_by(site), site.tensors, site.tensors == 1 ? "" : "s"));
    }
    if (shown < at_peak.size()) text(kLeft + 130, list + 20 * static_cast<int>(shown), "start", fmt::format("({} more)", at_peak.size() - shown));
    return svg + "</svg>\n";
}

std::string detail::trace_of_memory(const MemoryLine& line, const std::vector<MemorySite>& at_peak) {
    std::string text =
        "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
        "{\"ph\": \"M\", \"pid\": 0, \"name\": \"process_name\", \"args\": {\"name\": \"Tapir\"}}";
    const auto add = [&](double time, std::int64_t bytes) {
        text += fmt::format(",\n{{\"ph\": \"C\", \"pid\": 0, \"name\": \"memory\", \"ts\": {:.3f}, \"args\": {{\"bytes\": {}}}}}", time * 1e6, bytes);
    };
    for (const MemoryMoment& moment : line.moments) {
        if (moment.most > moment.bytes) add(moment.time, moment.most);
        add(moment.time, moment.bytes);
    }
    for (const MemorySite& site : at_peak) {
        text += fmt::format(
            ",\n{{\"ph\": \"I\", \"pid\": 0, \"tid\": 0, \"s\": \"g\", \"name\": \"at the peak: {}\", \"ts\": 0, "
            "\"args\": {{\"tensors\": {}, \"bytes\": {}}}}}",
            json_text(made_by(site)), site.tensors, site.bytes);
    }
    return text + "\n]}\n";
}

}  // namespace tapir
