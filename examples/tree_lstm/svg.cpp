#include "svg.h"

#include <fmt/format.h>

#include <tapir/core/io/file.h>
#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "../common/write.h"

namespace tree_lstm {

using show::next_code_point;
using show::xml_escaped;

namespace {

// Lengths in CSS pixels.
constexpr double kLevel = 36;         // from a node to the level above
constexpr double kRadius = 12;        // of a node; its height is twice this
constexpr double kHalf = 20;          // width of each half of a node that is wrong: predicted, true
constexpr double kLeafGap = 12;       // between two words, or two leaves
constexpr double kMargin = 24;        // of the page and inside a tree's panel
constexpr double kGap = 18;           // between two panels
constexpr double kTitleHeight = 58;   // of a tree's panel
constexpr double kHeaderHeight = 84;  // of the page: title and legend
constexpr double kWordDrop = 34;      // from a leaf to the base line of its word
constexpr double kCharacter = 7.6;    // generous mean width at 14 px
constexpr double kTitleScale = 1.25;  // width of a title's characters to a word's, larger and bold
constexpr double kNoteScale = 0.85;
constexpr double kSmallestWidth = 960;

struct Colours {
    std::string_view fill;
    std::string_view stroke;
    std::string_view text;
};
constexpr Colours kRightColours = {"#d7f0dd", "#2e9e58", "#14532d"};
constexpr Colours kWrongColours = {"#fbd5d5", "#d64545", "#7f1d1d"};
constexpr Colours kPlainColours = {"#f1f3f5", "#adb5bd", "#495057"};

constexpr std::string_view kStyle =
    "text{font-family:'DejaVu Sans',Verdana,Arial,sans-serif;text-anchor:middle;fill:#343a40}"
    ".page{font-size:20px;font-weight:bold;text-anchor:start}"
    ".title{font-size:15px;font-weight:bold;text-anchor:start}"
    ".note{font-size:12px;text-anchor:start;fill:#868e96}"
    ".word{font-size:14px}"
    ".label{font-size:12px;font-weight:bold}"
    ".edge{fill:none;stroke:#ced4da;stroke-width:1.5}"
    ".node{stroke-width:1.8}"
    ".panel{fill:#fff;stroke:#e9ecef}";

double text_width(std::string_view text) {
    double width = 0;
    for (std::size_t at = 0; at < text.size();) {
        constexpr char32_t kFirstWide = 0x1100;  // from here many scripts (Hangul, CJK) are twice as wide
        width += next_code_point(text, at) >= kFirstWide ? 2 * kCharacter : kCharacter;
    }
    return width;
}

struct Point {
    double x = 0;
    double y = 0;
};

// Places the nodes: leaves side by side as wide as their words need, a parent in the middle above its children, at a
// level one higher than the higher of them. With rectangular edges no two lines cross.
class Layout {
 public:
    Layout(const Tree& tree, double leaf_width) : at_(static_cast<std::size_t>(tree.size())) {
        std::vector<int> levels(at_.size(), 0);
        const auto level = [&](const Node& node) -> int& { return levels[static_cast<std::size_t>(node.index)]; };
        for (const Node& node : tree.nodes()) {
            Point& point = at_[static_cast<std::size_t>(node.index)];
            if (node.is_leaf()) {
                const double width = std::max(leaf_width, text_width(node.word) + kLeafGap);
                point.x = width_ + width / 2;
                width_ += width;
            } else {
                point.x = (at(*node.left).x + at(*node.right).x) / 2;
                level(node) = 1 + std::max(level(*node.left), level(*node.right));
            }
        }
        const int top = level(tree.root());
        for (std::size_t i = 0; i < at_.size(); ++i) at_[i].y = kRadius + (top - levels[i]) * kLevel;
        height_ = 2 * kRadius + top * kLevel + kWordDrop;
    }

    const Point& at(const Node& node) const { return at_[static_cast<std::size_t>(node.index)]; }
    double width() const { return width_; }
    double height() const { return height_; }

 private:
    std::vector<Point> at_;
    double width_ = 0;
    double height_ = 0;
};

std::string colour_between(const std::array<int, 3>& from, const std::array<int, 3>& to, double share) {
    std::string text = "#";
    for (std::size_t i = 0; i < 3; ++i) {
        text += fmt::format("{:02x}", static_cast<int>(from[i] + share * (to[i] - from[i]) + 0.5));
    }
    return text;
}

// Red, grey, blue: told apart by people who do not tell red from green, too.
std::string scale_colour(int label, std::size_t classes) {
    constexpr std::array<int, 3> kLow = {239, 118, 97};
    constexpr std::array<int, 3> kMiddle = {241, 243, 245};
    constexpr std::array<int, 3> kHigh = {92, 160, 219};
    if (classes < 2) return colour_between(kMiddle, kMiddle, 0);
    const double share = std::clamp(static_cast<double>(label) / static_cast<double>(classes - 1), 0.0, 1.0);
    return share < 0.5 ? colour_between(kLow, kMiddle, 2 * share) : colour_between(kMiddle, kHigh, 2 * share - 1);
}

class Page {
 public:
    Page(const std::vector<Drawing>& drawings, const SvgOptions& options) : drawings_(drawings), options_(options) {}

    std::string draw() {
        place();
        begin();
        for (const Panel& panel : panels_) draw_panel(panel);
        out_ += "</svg>\n";
        return std::move(out_);
    }

 private:
    template <typename... Args>
    void emit(fmt::format_string<Args...> format, Args&&... args) {
        fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
        out_ += '\n';
    }

    struct Panel {
        const Drawing& drawing;
        Layout layout;
        double width;
        double height;
        Point corner;
    };

    // Panels from left to right, in as many rows as the widest of them asks for.
    void place() {
        for (const Drawing& drawing : drawings_) {
            Layout layout(*drawing.tree, 2 * kRadius + kLeafGap + (has_wrong_leaf(drawing) ? 2 * kRadius : 0));
            const double titles = std::max(kTitleScale * text_width(drawing.title), kNoteScale * text_width(summary(drawing)));
            const double width = std::max(layout.width(), titles) + 2 * kMargin;
            const double height = kTitleHeight + layout.height() + kMargin;
            width_ = std::max(width_, width);
            panels_.push_back({drawing, std::move(layout), width, height, {}});
        }
        Point at;
        double row_height = 0;
        for (Panel& panel : panels_) {
            if (at.x > 0 && at.x + panel.width > width_) {
                at = {0, at.y + row_height + kGap};
                row_height = 0;
            }
            panel.corner = {kMargin + at.x, kHeaderHeight + at.y};
            at.x += panel.width + kGap;
            row_height = std::max(row_height, panel.height);
        }
        width_ += 2 * kMargin;
        height_ = kHeaderHeight + at.y + row_height + kMargin;
    }

    static int prediction(const Drawing& drawing, const Node& node) {
        return drawing.predicted.empty() ? node.label : drawing.predicted[static_cast<std::size_t>(node.index)];
    }

    enum class Kind { kRight, kWrong, kUnlabelled, kEmpty };

    static Kind kind_of(const Drawing& drawing, const Node& node) {
        const int label = prediction(drawing, node);
        if (label == kNoLabel) return Kind::kEmpty;
        if (drawing.predicted.empty() || !node.has_label()) return Kind::kUnlabelled;  // nothing to compare
        return label == node.label ? Kind::kRight : Kind::kWrong;
    }

    static std::ptrdiff_t count(const Drawing& drawing, Kind kind) {
        const auto nodes = drawing.tree->nodes();
        return std::count_if(nodes.begin(), nodes.end(), [&](const Node& n) { return kind_of(drawing, n) == kind; });
    }

    static bool has_wrong_leaf(const Drawing& drawing) {
        const auto nodes = drawing.tree->nodes();
        return std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) { return node.is_leaf() && kind_of(drawing, node) == Kind::kWrong; });
    }

    std::string name_of(int label) const {
        if (label == kNoLabel) return "";
        const auto index = static_cast<std::size_t>(label);
        return index < options_.class_names.size() ? options_.class_names[index] : std::to_string(label);
    }

    void begin() {
        emit("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
        emit(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
            "viewBox=\"0 0 {0:.0f} {1:.0f}\">",
            width_, height_);
        emit("<style>{}</style>", kStyle);
        emit("<rect width=\"100%\" height=\"100%\" fill=\"#f8f9fa\"/>");
        emit("<text class=\"page\" x=\"{}\" y=\"38\">{}</text>", kMargin, xml_escaped(options_.title));
        legend();
    }

    void legend() {
        const double y = 62;
        double x = kMargin;
        const auto item = [&](double width, std::string_view text) {
            emit("<text class=\"note\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x + width + 6, y + 4, text);
            x += width + 6 + kNoteScale * text_width(text) + 18;
        };
        const auto occurs = [&](Kind kind) {
            return std::any_of(drawings_.begin(), drawings_.end(), [&](const Drawing& d) { return count(d, kind) > 0; });
        };
        const auto swatch = [&](const Colours& colours) { return options_.class_scale ? "#fff" : colours.fill; };
        if (occurs(Kind::kRight)) {
            pill({x + kRadius, y}, 2 * kRadius, swatch(kRightColours), kRightColours.stroke);
            item(2 * kRadius, "right");
        }
        if (occurs(Kind::kWrong)) {
            wrong({x + kHalf, y}, swatch(kWrongColours), "a", "b");
            item(2 * kHalf, "wrong: predicted a, true b");
        }
        if (occurs(Kind::kUnlabelled)) {
            pill({x + kRadius, y}, 2 * kRadius, swatch(kPlainColours), kPlainColours.stroke);
            item(2 * kRadius, "nothing to compare");
        }
        if (occurs(Kind::kEmpty)) {
            dot({x + 4, y});
            item(8, "no class");
        }
        if (!options_.class_scale) return;
        for (std::size_t label = 0; label < options_.class_names.size(); ++label) {
            const std::string fill = scale_colour(static_cast<int>(label), options_.class_names.size());
            pill({x + kRadius + 2, y}, 2 * kRadius, fill, fill);
            text({x + kRadius + 2, y}, kPlainColours.text, options_.class_names[label]);
            x += 2 * kRadius + 4;
        }
    }

    void draw_panel(const Panel& panel) {
        const Drawing& drawing = panel.drawing;
        const Layout& layout = panel.layout;
        emit("<g transform=\"translate({:.1f} {:.1f})\">", panel.corner.x, panel.corner.y);
        emit("<rect class=\"panel\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"10\"/>", panel.width, panel.height);
        emit("<text class=\"title\" x=\"{}\" y=\"30\">{}</text>", kMargin, xml_escaped(drawing.title));
        emit("<text class=\"note\" x=\"{}\" y=\"48\">{}</text>", kMargin, xml_escaped(summary(drawing)));
        emit("<g transform=\"translate({:.1f} {:.1f})\">", (panel.width - layout.width()) / 2, kTitleHeight + kMargin / 2);
        for (const Node& node : drawing.tree->nodes()) edges(layout, node);
        const std::vector<int> first_leaf = first_leaves(*drawing.tree);
        std::vector<const Node*> leaves;
        for (const Node& node : drawing.tree->nodes()) {
            if (node.is_leaf()) leaves.push_back(&node);
            const int first = first_leaf[static_cast<std::size_t>(node.index)];
            box(drawing, node, layout, phrase(std::span(leaves).subspan(static_cast<std::size_t>(first))));
        }
        emit("</g>\n</g>");
    }

    std::string summary(const Drawing& drawing) const {
        const Node& root = drawing.tree->root();
        const std::ptrdiff_t right = count(drawing, Kind::kRight);
        const std::ptrdiff_t judged = right + count(drawing, Kind::kWrong);
        if (judged == 0) return fmt::format("{} words", drawing.tree->leaf_count());
        std::string text = fmt::format("{} of {} labelled nodes right", right, judged);
        if (root.has_label() && prediction(drawing, root) != kNoLabel) {
            text += fmt::format("; root: predicted {}, true {}", name_of(prediction(drawing, root)), name_of(root.label));
        }
        return text;
    }

    // For each node the number of leaves to the left of it.
    static std::vector<int> first_leaves(const Tree& tree) {
        std::vector<int> first;
        int leaves = 0;
        for (const Node& node : tree.nodes()) {
            first.push_back(node.is_leaf() ? leaves++ : first[static_cast<std::size_t>(node.left->index)]);
        }
        return first;
    }

    // Shortened: the phrases of a tree thousands of levels deep would take gigabytes.
    static std::string phrase(std::span<const Node* const> leaves) {
        constexpr std::size_t kLongest = 160;
        std::string text;
        for (const Node* leaf : leaves) {
            if (!text.empty()) text += ' ';
            text += leaf->word;
            if (text.size() > kLongest) return text + " ...";
        }
        return text;
    }

    void edges(const Layout& layout, const Node& node) {
        if (node.is_leaf()) return;
        const Point from = layout.at(node);
        for (const Node* child : {node.left, node.right}) {
            const Point to = layout.at(*child);
            const double corner = to.x < from.x ? 8 : -8;  // rounded off
            emit("<path class=\"edge\" d=\"M{0:.1f} {1:.1f}H{2:.1f}Q{3:.1f} {1:.1f} {3:.1f} {4:.1f}V{5:.1f}\"/>", from.x, from.y, to.x + corner, to.x,
                 from.y + 8, to.y);
        }
    }

    void box(const Drawing& drawing, const Node& node, const Layout& layout, const std::string& words) {
        const Point at = layout.at(node);
        const int label = prediction(drawing, node);
        const Kind kind = kind_of(drawing, node);
        const Colours& colours = kind == Kind::kRight ? kRightColours : kind == Kind::kWrong ? kWrongColours : kPlainColours;
        const std::string fill =
            options_.class_scale && label != kNoLabel ? scale_colour(label, options_.class_names.size()) : std::string(colours.fill);
        emit("<g><title>{}</title>", xml_escaped(words));
        if (kind == Kind::kEmpty) {
            dot(at);
        } else if (kind == Kind::kWrong) {
            wrong(at, fill, name_of(label), name_of(node.label));
        } else {
            pill(at, 2 * kRadius, fill, colours.stroke);
            text(at, options_.class_scale ? "#212529" : colours.text, name_of(label));
        }
        if (node.is_leaf()) {
            emit("<text class=\"word\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", at.x, at.y + kWordDrop, xml_escaped(node.word));
        }
        emit("</g>");
    }

    void dot(Point at) { emit("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>", at.x, at.y, kPlainColours.stroke); }

    void pill(Point at, double width, std::string_view fill, std::string_view stroke) {
        emit(
            "<rect class=\"node\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"{}\" "
            "fill=\"{}\" stroke=\"{}\"/>",
            at.x - width / 2, at.y - kRadius, width, 2 * kRadius, kRadius, fill, stroke);
    }

    // Two halves: predicted on the left, true on the right.
    void wrong(Point at, std::string_view fill, std::string_view predicted, std::string_view truth) {
        const bool red_text = fill == kWrongColours.fill;
        pill(at, 2 * kHalf, "#fff", kWrongColours.stroke);
        emit(
            "<path class=\"node\" d=\"M{0:.1f} {1:.1f}h{2:.1f}a{3} {3} 0 0 0 0 {4}h{5:.1f}z\" fill=\"{6}\" "
            "stroke=\"{7}\"/>",
            at.x, at.y - kRadius, kRadius - kHalf, kRadius, 2 * kRadius, kHalf - kRadius, fill, kWrongColours.stroke);
        text({at.x - kHalf / 2 + 1, at.y}, red_text ? kWrongColours.text : std::string_view("#212529"), predicted);
        text({at.x + kHalf / 2 - 1, at.y}, kRightColours.text, truth);
    }

    void text(Point at, std::string_view colour, std::string_view content) {
        emit("<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" style=\"fill:{}\">{}</text>", at.x, at.y + 4.3, colour, xml_escaped(content));
    }

    const std::vector<Drawing>& drawings_;
    const SvgOptions& options_;
    std::vector<Panel> panels_;
    double width_ = kSmallestWidth;
    double height_ = 0;
    std::string out_;
};

}  // namespace

std::string draw_svg(const std::vector<Drawing>& drawings, const SvgOptions& options) {
    for (const Drawing& drawing : drawings) {
        if (drawing.tree == nullptr) throw std::invalid_argument("draw_svg: a drawing without a tree");
        if (!drawing.predicted.empty() && static_cast<int>(drawing.predicted.size()) != drawing.tree->size()) {
            throw std::invalid_argument(
                fmt::format("draw_svg: {} predictions for a tree of {} nodes", drawing.predicted.size(), drawing.tree->size()));
        }
    }
    return Page(drawings, options).draw();
}

void write_svg(const std::filesystem::path& file, const std::vector<Drawing>& drawings, const SvgOptions& options) {
    tapir::write_file(file.string(), draw_svg(drawings, options));
}

}  // namespace tree_lstm
