// Prints tensors in NumPy's layout (numpy/_core/arrayprint.py): columns aligned, long arrays elided, long lines wrapped.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <mutex>
#include <ostream>

#include "tapir/core/fail_impl.h"
#include "tapir/core/format.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

using std::int64_t;

constinit std::mutex options_mutex;
constinit PrintOptions current_options;

// --- Numbers -------------------------------------------------------------------------------------------------------------

constexpr std::size_t kDigits = 2048;  // more than the longest double has, written out

std::string written(double x, std::chars_format format) {
    char text[kDigits];
    return {text, std::to_chars(text, text + kDigits, x, format).ptr};
}

std::string rounded(double x, std::chars_format format, int precision) {
    char text[kDigits];
    return {text, std::to_chars(text, text + kDigits, x, format, precision).ptr};
}

double parse(const char* begin, const char* end) {
    double value = 0;
    std::from_chars(begin, end, value);
    return value;
}

// Returns the number with the fewest digits that is still x in its dtype: 0.1 for float32's 0.100000001490116...
double fewest_digits(DType dtype, double x) {
    char text[64];
    if (dtype == float64) return x;
    if (dtype == float32) {  // in scientific notation, since fixed notation writes whole numbers out in full
        return parse(text, std::to_chars(text, text + 64, static_cast<float>(x), std::chars_format::scientific).ptr);
    }
    for (int precision = 0; precision < 6; ++precision) {
        const double candidate = parse(text, std::to_chars(text, text + 64, x, std::chars_format::scientific, precision).ptr);
        alignas(8) std::byte element[8];
        detail::store(dtype, element, candidate);
        if (detail::load_double(dtype, element) == x) return candidate;
    }
    return x;
}

double in_dtype(DType dtype, double x) {
    alignas(8) std::byte element[8];
    detail::store(dtype, element, x);
    return detail::load_double(dtype, element);
}

// A decimal number in parts: 1.5e+00 is "1", "5", "+00".
struct Decimal {
    std::string whole, fraction, exponent;
};

Decimal split(const std::string& text) {
    Decimal d;
    const std::size_t e = std::min(text.find('e'), text.size());
    const std::size_t point = std::min(text.find('.'), e);
    d.whole = text.substr(0, point);
    if (point < e) d.fraction = text.substr(point + 1, e - point - 1);
    if (e < text.size()) d.exponent = text.substr(e + 1);
    return d;
}

// Writes x with at most `precision` digits after the point and no zeros at the end.
Decimal decimal(DType dtype, double x, int precision, bool scientific) {
    const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
    Decimal d = split(written(fewest_digits(dtype, x), format));
    if (d.fraction.size() > static_cast<std::size_t>(precision)) d = split(rounded(x, format, precision));
    d.fraction.erase(d.fraction.find_last_not_of('0') + 1);
    return d;
}

// --- Layout --------------------------------------------------------------------------------------------------------------

class Printer {
 public:
    Printer(const TensorImpl* tensor, const PrintOptions& options) : x_(tensor), options_(options), elided_(tensor->numel > options.threshold) {
        if (is_floating(x_->dtype)) {
            measure_floats();
        } else if (x_->dtype == bool_) {
            width_ = x_->rank == 0 ? 0 : 5;
        } else {
            visit(0, x_->data,
                  [this](const std::byte* element) { width_ = std::max(width_, std::to_string(detail::load_int(x_->dtype, element)).size()); });
        }
    }

    std::string text() {
        if (x_->numel == 0) return "[]";
        if (x_->rank == 0) return word(x_->data);
        array(0, x_->data);
        return std::move(out_);
    }

 private:
    // True if entries of dimension d are left out between those at the ends.
    bool has_gap(int d) const { return elided_ && 2 * options_.edge_items < x_->sizes[d]; }

    // Calls f(element) for every element that is shown.
    template <class F>
    void visit(int d, const std::byte* at, const F& f) {
        if (d == x_->rank) return f(at);
        const int64_t size = x_->sizes[d];
        for (int64_t i = 0; i < size; ++i) {
            if (has_gap(d) && i == options_.edge_items) i = size - options_.edge_items;
            visit(d + 1, entry(at, d, i), f);
        }
    }

    const std::byte* entry(const std::byte* at, int d, int64_t i) const {
        return at + i * x_->strides[d] * static_cast<int64_t>(itemsize(x_->dtype));
    }

    // Chooses between fixed and scientific notation as NumPy does, and finds the widths of the columns.
    void measure_floats() {
        double largest = 0, smallest = std::numeric_limits<double>::infinity();
        bool any_finite = false, any_special = false, negative_infinity = false;
        visit(0, x_->data, [&](const std::byte* element) {
            const double value = detail::load_double(x_->dtype, element);
            any_finite |= std::isfinite(value);
            any_special |= !std::isfinite(value);
            negative_infinity |= value == -std::numeric_limits<double>::infinity();
            if (!std::isfinite(value) || value == 0) return;
            largest = std::max(largest, std::abs(value));
            smallest = std::min(smallest, std::abs(value));
        });
        const double many = x_->dtype == float64 ? 1e8 : x_->dtype == float32 ? 1e6 : 1e3;
        scientific_ = any_finite && options_.sci_mode;
        if (largest > 0) {
            scientific_ |= largest >= many || smallest < in_dtype(x_->dtype, 1e-4) || in_dtype(x_->dtype, largest / smallest) > 1000;
        }
        visit(0, x_->data, [&](const std::byte* element) {
            const double value = detail::load_double(x_->dtype, element);
            if (!std::isfinite(value)) return;
            const Decimal d = decimal(x_->dtype, value, options_.precision, scientific_);
            left_ = std::max(left_, d.whole.size());
            fraction_ = std::max(fraction_, d.fraction.size());
            exponent_ = std::max(exponent_, d.exponent.size());
        });
        width_ = left_ + 1 + fraction_ + (scientific_ ? exponent_ + 1 : 0);
        if (any_special && width_ < std::size_t{3} + negative_infinity) {
            left_ += 3 + negative_infinity - width_;
            width_ = std::size_t{3} + negative_infinity;
        }
    }

    // Writes one element, as wide as its column.
    std::string word(const std::byte* element) const {
        if (is_floating(x_->dtype)) return float_word(detail::load_double(x_->dtype, element));
        std::string text = x_->dtype == bool_ ? (*element != std::byte{0} ? "True" : "False") : std::to_string(detail::load_int(x_->dtype, element));
        return text.size() < width_ ? std::string(width_ - text.size(), ' ') + text : text;
    }

    std::string float_word(double value) const {
        if (!std::isfinite(value)) {
            const char* text = std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
            return fmt::format("{:>{}}", text, width_);
        }
        if (scientific_) {  // every number gets as many digits as the one that needs most
            Decimal d = split(rounded(value, std::chars_format::scientific, static_cast<int>(fraction_)));
            d.exponent.insert(1, exponent_ - d.exponent.size(), '0');
            return std::string(left_ - d.whole.size(), ' ') + d.whole + '.' + d.fraction + 'e' + d.exponent;
        }
        const Decimal d = decimal(x_->dtype, value, options_.precision, false);
        const std::string padding(fraction_ - d.fraction.size(), ' ');
        return std::string(left_ - d.whole.size(), ' ') + d.whole + '.' + d.fraction + padding;
    }

    void array(int d, const std::byte* at) {
        out_ += '[';
        if (d == x_->rank - 1) {
            row(d, at);
        } else {
            const int64_t size = x_->sizes[d];
            const auto next_entry = [&] {
                out_.append(static_cast<std::size_t>(x_->rank - 1 - d), '\n');
                out_.append(static_cast<std::size_t>(d) + 1, ' ');
            };
            for (int64_t i = 0; i < size; ++i) {
                if (has_gap(d) && i == options_.edge_items) {
                    out_ += "...";
                    next_entry();
                    i = size - options_.edge_items;
                }
                array(d + 1, entry(at, d, i));
                if (i + 1 < size) next_entry();
            }
        }
        out_ += ']';
    }

    // Writes the last dimension, wrapped at the line's width less the closing brackets.
    void row(int d, const std::byte* at) {
        const auto indent = static_cast<std::size_t>(d) + 1;
        const auto line_width = static_cast<std::size_t>(std::max(options_.line_width - x_->rank, 0));
        std::size_t column = indent;
        const auto append = [&](const std::string& text) {
            if (column > indent && column + text.size() > line_width) {
                out_.erase(out_.find_last_not_of(' ') + 1);
                out_ += '\n';
                out_.append(indent, ' ');
                column = indent;
            }
            out_ += text;
            column += text.size();
        };
        const int64_t size = x_->sizes[d];
        for (int64_t i = 0; i < size; ++i) {
            if (has_gap(d) && i == options_.edge_items) {
                append("...");
                out_ += ' ';
                ++column;
                i = size - options_.edge_items;
            }
            append(word(entry(at, d, i)));
            if (i + 1 < size) {
                out_ += ' ';
                ++column;
            }
        }
    }

    const TensorImpl* x_;
    PrintOptions options_;
    bool elided_;
    bool scientific_ = false;
    std::size_t width_ = 0;                               // of a column
    std::size_t left_ = 0, fraction_ = 0, exponent_ = 0;  // for floats: before and after the point, sign and exponent
    std::string out_;
};

}  // namespace

void set_print_options(const PrintOptions& options, Loc loc) {
    if (options.precision < 0 || options.threshold < 0 || options.line_width < 0) {
        fail<ValueError>(loc, "set_print_options: precision {}, threshold {} and line_width {} must not be negative", options.precision,
                         options.threshold, options.line_width);
    }
    if (options.edge_items < 1) fail<ValueError>(loc, "set_print_options: edge_items must be at least 1, got {}", options.edge_items);
    const std::lock_guard lock(options_mutex);
    current_options = options;
}

PrintOptions print_options() {
    const std::lock_guard lock(options_mutex);
    return current_options;
}

std::string to_string(const Tensor& tensor, const PrintOptions& options) {
    if (!tensor.defined()) return "<undefined>";
    detail::note_read("str", tensor, Loc{});
    const detail::PauseRecording pause;
    const Tensor host = tensor.to(cpu);
    return Printer(host.impl(), options).text();
}

std::string Tensor::str() const { return to_string(*this, print_options()); }

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << tensor.str(); }
std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.str(); }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }
std::ostream& operator<<(std::ostream& out, Device device) { return out << name(device); }

}  // namespace tapir
