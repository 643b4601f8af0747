// Drawings: the layout of boxes and edges, and the output.
#include "tapir/autograd/watch/drawing_impl.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include "tapir/core/format.h"
#include "tapir/core/text_impl.h"

namespace tapir::drawing {

double Hues::of(std::string_view title) {
    const auto number = static_cast<double>(numbers_.size());
    const double turns = 0.6 + 0.6180339887498949 * numbers_.try_emplace(std::string(title.substr(0, title.find('.'))), number).first->second;
    return turns - std::floor(turns);
}

void shorten(Drawing& drawing, std::size_t most_rows) {
    const auto key = [](const Edge& e) { return std::tie(e.from, e.to, e.label); };
    std::sort(drawing.edges.begin(), drawing.edges.end(), [&](const Edge& a, const Edge& b) { return key(a) < key(b); });
    drawing.edges.erase(std::unique(drawing.edges.begin(), drawing.edges.end(), [&](const Edge& a, const Edge& b) { return key(a) == key(b); }),
                        drawing.edges.end());
    for (Box& box : drawing.boxes) {
        if (box.rows.size() > most_rows) {
            std::string rest;
            const std::size_t hidden = box.rows.size() - most_rows + 1;
            for (std::size_t r = most_rows - 1; r < box.rows.size(); ++r) rest += (rest.empty() ? "" : "\n") + box.rows[r].tooltip;
            box.rows.resize(most_rows - 1);
            box.rows.push_back({fmt::format("and {} more", hidden), std::move(rest)});
        }
    }
}

namespace {

constexpr std::size_t kBendsOfBox = 4;  // on average
constexpr double kCharacter = 6.6, kSmallCharacter = 5.4, kLine = 15, kGap = 22, kLayerGap = 46, kMargin = 20;
constexpr int kSweeps = 8;

// --- Layout -------------------------------------------------------------------------------------------------------------------

void put_into_layers(Drawing& drawing) {
    // Boxes are in the order of execution, so that an edge leads to a later one. Layer 0 is at the bottom.
    for (const Edge& edge : drawing.edges) drawing.boxes[edge.from].below.push_back(edge.to);
    int highest = 0;
    for (std::size_t b = drawing.boxes.size(); b-- > 0;) {
        Box& box = drawing.boxes[b];
        for (const std::size_t to : box.below) box.layer = std::max(box.layer, drawing.boxes[to].layer + 1);
        box.below.clear();
        highest = std::max(highest, box.layer);
    }
    const auto link = [&](std::size_t from, std::size_t to) {
        drawing.boxes[from].below.push_back(to);
        drawing.boxes[to].above.push_back(from);
    };
    // The shortest edges get bends first. Once there are several times as many bends as boxes, the remaining edges are drawn straight: a
    // tape whose every step is used at its end would need the square of its length.
    const auto crossed = [&](const Edge& edge) { return std::max(0, drawing.boxes[edge.from].layer - drawing.boxes[edge.to].layer - 1); };
    std::vector<int> lengths;
    for (const Edge& edge : drawing.edges) lengths.push_back(crossed(edge));
    std::sort(lengths.begin(), lengths.end());
    int longest = lengths.empty() ? 0 : lengths.back();  // among edges with bends
    std::size_t left = kBendsOfBox * (drawing.boxes.size() + 100);
    for (const int length : lengths) {
        if (static_cast<std::size_t>(length) > left) {
            longest = length - 1;
            break;
        }
        left -= static_cast<std::size_t>(length);
    }
    for (Edge& edge : drawing.edges) {
        if (crossed(edge) > longest) continue;
        std::size_t last = edge.from;
        const int end = drawing.boxes[edge.to].layer;
        for (int layer = drawing.boxes[edge.from].layer - 1; layer > end; --layer) {
            Box bend;
            bend.is_bend = true;
            bend.layer = layer;
            const std::size_t number = drawing.boxes.size();
            drawing.boxes.push_back(std::move(bend));
            edge.bends.push_back(number);
            link(last, number);
            last = number;
        }
        link(last, edge.to);
    }
    drawing.layers.resize(static_cast<std::size_t>(highest) + 1);
}

// Orders boxes from the results up, each beside its siblings: this avoids crossings if the drawing is a tree.
void put_in_order(Drawing& drawing) {
    std::vector<bool> seen(drawing.boxes.size());
    std::vector<std::size_t> stack;
    for (std::size_t b = 0; b < drawing.boxes.size(); ++b) {
        if (!drawing.boxes[b].below.empty()) continue;
        stack.push_back(b);
        while (!stack.empty()) {
            const std::size_t number = stack.back();
            stack.pop_back();
            if (seen[number]) continue;
            seen[number] = true;
            const Box& box = drawing.boxes[number];
            drawing.layers[static_cast<std::size_t>(box.layer)].push_back(number);
            stack.insert(stack.end(), box.above.rbegin(), box.above.rend());
        }
    }
    // Then orders by the mean place of the neighbours, up and down in turn.
    std::vector<double> place(drawing.boxes.size());
    const auto number_layer = [&](const std::vector<std::size_t>& layer) {
        for (std::size_t i = 0; i < layer.size(); ++i) place[layer[i]] = static_cast<double>(i);
    };
    for (const auto& layer : drawing.layers) number_layer(layer);
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
        const bool upwards = sweep % 2 == 0;
        for (std::size_t k = 1; k < drawing.layers.size(); ++k) {
            std::vector<std::size_t>& layer = drawing.layers[upwards ? k : drawing.layers.size() - 1 - k];
            std::vector<std::pair<double, std::size_t>> keys;
            for (const std::size_t number : layer) {
                const Box& box = drawing.boxes[number];
                const std::vector<std::size_t>& neighbours = upwards ? box.below : box.above;
                double mean = 0;
                for (const std::size_t n : neighbours) mean += place[n];
                keys.emplace_back(neighbours.empty() ? place[number] : mean / static_cast<double>(neighbours.size()), number);
            }
            std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
            for (std::size_t i = 0; i < layer.size(); ++i) layer[i] = keys[i].second;
            number_layer(layer);
        }
    }
}

void measure(Drawing& drawing) {
    for (Box& box : drawing.boxes) {
        if (box.is_bend) continue;
        std::size_t characters = box.title.size();
        for (const Row& row : box.rows) characters = std::max(characters, row.text.size());
        box.width = static_cast<double>(characters) * kCharacter + 16;
        box.height = static_cast<double>(box.rows.size() + (box.title.empty() ? 0 : 1)) * kLine + 8;
    }
}

// Moves a layer to the places nearest to the wanted ones that keep all gaps: isotonic regression by pooling neighbours.
void place_layer(Drawing& drawing, const std::vector<std::size_t>& layer, const std::vector<double>& wanted) {
    struct Block {
        double sum;
        int count;
        std::size_t first;
    };
    std::vector<double> offset(layer.size());
    double at = 0;
    for (std::size_t i = 0; i < layer.size(); ++i) {
        const double half = drawing.boxes[layer[i]].width / 2;
        if (i > 0) at += drawing.boxes[layer[i - 1]].width / 2 + kGap + half;
        offset[i] = at;
    }
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < layer.size(); ++i) {
        blocks.push_back({wanted[i] - offset[i], 1, i});
        while (blocks.size() > 1) {
            const Block last = blocks.back();
            Block& before = blocks[blocks.size() - 2];
            if (before.sum / before.count <= last.sum / last.count) break;
            before.sum += last.sum;
            before.count += last.count;
            blocks.pop_back();
        }
    }
    for (const Block& block : blocks) {
        for (std::size_t i = block.first; i < block.first + static_cast<std::size_t>(block.count); ++i) {
            drawing.boxes[layer[i]].x = block.sum / block.count + offset[i];
        }
    }
}

void place_boxes(Drawing& drawing) {
    for (const auto& layer : drawing.layers) place_layer(drawing, layer, std::vector<double>(layer.size(), 0));
    for (int sweep = 0; sweep < 4 * kSweeps; ++sweep) {
        for (std::size_t k = 0; k < drawing.layers.size(); ++k) {
            const std::vector<std::size_t>& layer = drawing.layers[sweep % 2 == 0 ? k : drawing.layers.size() - 1 - k];
            std::vector<double> wanted;
            for (const std::size_t number : layer) {
                const Box& box = drawing.boxes[number];
                double sum = 0, weights = 0;
                for (const std::vector<std::size_t>* side : {&box.above, &box.below}) {
                    for (const std::size_t n : *side) {
                        const Box& other = drawing.boxes[n];
                        const double weight = box.is_bend && other.is_bend ? 4 : 1;  // long edges should be straight
                        sum += weight * other.x;
                        weights += weight;
                    }
                }
                wanted.push_back(weights > 0 ? sum / weights : box.x);
            }
            place_layer(drawing, layer, wanted);
        }
    }
    double left = 0, right = 0, y = kMargin;
    for (const Box& box : drawing.boxes) {
        left = std::min(left, box.x - box.width / 2);
        right = std::max(right, box.x + box.width / 2);
    }
    for (std::size_t k = drawing.layers.size(); k-- > 0;) {
        double height = 0;
        for (const std::size_t number : drawing.layers[k]) height = std::max(height, drawing.boxes[number].height);
        for (const std::size_t number : drawing.layers[k]) {
            Box& box = drawing.boxes[number];
            box.y = y + (height - box.height) / 2;
            box.top = y;
            box.bottom = y + height;
            box.x += kMargin - left;
        }
        y += height + kLayerGap;
    }
    drawing.width = right - left + 2 * kMargin;
    drawing.height = y - kLayerGap + kMargin;
}

// --- Output ------------------------------------------------------------------------------------------------------------------

// Labels of edges: labels that would overlap move to the lines above and below; a gap between layers has three lines.
class Labels {
 public:
    /// Returns the y of a label that begins at x; the wanted one if no line has room.
    double place(double x, double y, double width) {
        for (const double line : {y, y + kLabelLine, y - kLabelLine}) {
            std::map<double, double>& taken = lines_[std::lround(line * 10)];
            const auto next = taken.upper_bound(x);
            if (next != taken.end() && next->first < x + width + kSmallCharacter) continue;
            if (next != taken.begin() && std::prev(next)->second + kSmallCharacter > x) continue;
            taken.emplace(x, x + width);
            return line;
        }
        return y;
    }

 private:
    static constexpr double kLabelLine = 11;
    std::map<long, std::map<double, double>> lines_;  // for each y, in tenths: begin and end of its labels
};

void write_edge(std::string& svg, const Drawing& drawing, const Edge& edge, Labels& labels) {
    const Box &from = drawing.boxes[edge.from], &to = drawing.boxes[edge.to];
    double x = from.x, y = from.bottom;
    std::string path = fmt::format("M{:.1f} {:.1f}", x, from.y + from.height);
    // An edge is curved between layers and straight within one, beside the boxes, which keep a gap.
    const auto straight = [&](double from_y, double to_y) {
        if (to_y - from_y >= 0.1) path += fmt::format("V{:.1f}", to_y);  // otherwise the arrow tip would have no direction
    };
    const auto curve_to = [&](double next_x, double next_y) {
        const double middle = (y + next_y) / 2;
        path += fmt::format("C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", x, middle, next_x, middle, next_x, next_y);
        x = next_x;
        y = next_y;
    };
    straight(from.y + from.height, y);
    for (const std::size_t number : edge.bends) {
        const Box& bend = drawing.boxes[number];
        curve_to(bend.x, bend.top);
        straight(bend.top, bend.bottom);
        y = bend.bottom;
    }
    curve_to(to.x, to.top);
    straight(to.top, to.y);
    svg += fmt::format("<path d=\"{}\" marker-end=\"url(#tip)\"><title>{}</title></path>\n", path, detail::xml_text(edge.label));
    const double next_x = edge.bends.empty() ? to.x : drawing.boxes[edge.bends[0]].x;
    const double next_y = edge.bends.empty() ? to.top : drawing.boxes[edge.bends[0]].top;
    // An edge to the left has its label on the left, away from those of other edges.
    const double middle_x = (from.x + next_x) / 2, width = kSmallCharacter * static_cast<double>(edge.label.size());
    const double label_x = next_x < from.x - kCharacter ? std::max(middle_x - 3 - width, 2.0) : middle_x + 3;
    const double label_y = labels.place(label_x, (from.bottom + next_y) / 2 + 3, width);
    svg += fmt::format("<text class=\"e\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", label_x, label_y, detail::xml_text(edge.label));
}

// A light colour, as #rrggbb: not all SVG viewers know hsl().
std::string colour_of(double hue) {
    constexpr double kLightness = 0.88, kChroma = 0.65 * (1 - kLightness) * 2;  // a saturation of 0.65
    const auto part = [&](double at) {                                          // red at 0, green and blue at a third before and after
        const double turns = hue + at - std::floor(hue + at), from_red = std::min(turns, 1 - turns) * 6;
        return static_cast<int>(std::lround(255 * (kLightness + kChroma * (std::clamp(2 - from_red, 0.0, 1.0) - 0.5))));
    };
    return fmt::format("#{:02x}{:02x}{:02x}", part(0), part(2 / 3.0), part(1 / 3.0));
}

void write_box(std::string& svg, const Box& box) {
    const double left = box.x - box.width / 2;
    const std::string colour = !box.fill.empty() ? box.fill : box.title.empty() ? "#f4f4f4" : colour_of(box.hue);
    svg += fmt::format("<g><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"4\" fill=\"{}\"/>\n", left, box.y, box.width,
                       box.height, colour);
    double y = box.y + kLine;
    if (!box.title.empty()) {
        svg += fmt::format("<text class=\"t\" x=\"{:.1f}\" y=\"{:.1f}\">{}<title>{}</title></text>\n", left + 8, y, detail::xml_text(box.title),
                           detail::xml_text(box.type));
        y += kLine;
    }
    for (const Row& row : box.rows) {
        svg +=
            fmt::format("<text{} x=\"{:.1f}\" y=\"{:.1f}\">{}<title>{}</title></text>\n", *row.style ? fmt::format(" class=\"{}\"", row.style) : "",
                        left + 8, y, detail::xml_text(row.text), detail::xml_text(row.tooltip));
        y += kLine;
    }
    svg += "</g>\n";
}

std::string dot_text(std::string_view text) {
    std::string result;
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        if (c == '\n') {
            result += "\\n";
        } else {
            result += c;
        }
    }
    return result;
}

void write_inside(std::string& svg, const Drawing& drawing) {
    Labels labels;
    for (const Edge& edge : drawing.edges) write_edge(svg, drawing, edge, labels);
    for (const Box& box : drawing.boxes) {
        if (!box.is_bend) write_box(svg, box);
    }
}

void write_inside_of_dot(std::string& dot, const Drawing& drawing, const std::string& prefix) {
    for (std::size_t b = 0; b < drawing.boxes.size(); ++b) {
        const Box& box = drawing.boxes[b];
        std::string label = dot_text(box.title), tooltip;
        for (const Row& row : box.rows) {
            label += (label.empty() ? "" : "\\n") + dot_text(row.text);
            tooltip += (tooltip.empty() ? "" : "\\n") + dot_text(row.tooltip);
        }
        const std::string colour = !box.fill.empty() ? fmt::format(", fillcolor=\"{}\"", box.fill)
            : box.title.empty()                      ? ""
                                                     : fmt::format(", fillcolor=\"{:.3f} 0.16 0.96\"", box.hue);
        dot += fmt::format("  {}{} [label=\"{}\", tooltip=\"{}\"{}];\n", prefix, b, label, tooltip, colour);
    }
    for (const Edge& edge : drawing.edges) {
        dot += fmt::format("  {}{} -> {}{} [label=\"{}\"];\n", prefix, edge.from, prefix, edge.to, dot_text(edge.label));
    }
}

}  // namespace

std::string svg_of(std::vector<Panel> panels) {
    double width = 0, height = 0;
    for (auto& [title, drawing] : panels) {
        put_into_layers(drawing);
        put_in_order(drawing);
        measure(drawing);
        place_boxes(drawing);
        width = std::max(width, drawing.width);
        height += drawing.height;
    }
    const double more = static_cast<double>(panels.size() - 1);  // frames, with a line for the title and a gap
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\">\n"
        "<title>{2}</title>\n"
        "<style>text{{font:11px monospace}}.t{{font-weight:bold}}.e{{fill:#777;font-size:9px}}.p{{fill:#1a56b0}}.c{{fill:#8a4b08}}"
        "path{{fill:none;stroke:#888}}rect{{stroke:#999}}</style>\n"
        "<defs><marker id=\"tip\" markerWidth=\"8\" markerHeight=\"8\" refX=\"7\" refY=\"4\" orient=\"auto\">"
        "<path d=\"M0 1L8 4L0 7z\" style=\"fill:#888;stroke:none\"/></marker></defs>\n"
        "<rect width=\"100%\" height=\"100%\" style=\"fill:white;stroke:none\"/>\n",
        width + (more > 0 ? 2 * kMargin : 0), height + more * (kLine + 2 * kMargin), detail::xml_text(panels[0].first));
    write_inside(svg, panels[0].second);
    double y = panels[0].second.height;
    for (std::size_t p = 1; p < panels.size(); ++p) {
        const auto& [title, drawing] = panels[p];
        svg += fmt::format(
            "<g transform=\"translate({:.1f} {:.1f})\">\n<rect width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\"/>\n"
            "<text class=\"t\" x=\"8\" y=\"{:.1f}\">{}</text>\n<g transform=\"translate(0 {:.1f})\">\n",
            kMargin, y, std::max(drawing.width, static_cast<double>(title.size()) * kCharacter + 16), drawing.height + kLine, kLine,
            detail::xml_text(title), kLine);
        write_inside(svg, drawing);
        svg += "</g>\n</g>\n";
        y += drawing.height + kLine + 2 * kMargin;
    }
    return svg + "</svg>\n";
}

std::string dot_of(std::string_view name, const std::vector<Panel>& panels) {
    std::string dot = fmt::format(
        "digraph {} {{\n  node [shape=box, style=\"rounded,filled\", fillcolor=\"#f4f4f4\", fontname=monospace, fontsize=10];\n"
        "  edge [fontname=monospace, fontsize=8];\n",
        name);
    for (std::size_t p = 0; p < panels.size(); ++p) {
        if (p > 0) dot += fmt::format("  subgraph cluster_{} {{\n  label=\"{}\";\n", p, dot_text(panels[p].first));
        write_inside_of_dot(dot, panels[p].second, p == 0 ? "n" : fmt::format("n{}_", p));
        if (p > 0) dot += "  }\n";
    }
    return dot + "}\n";
}

}  // namespace tapir::drawing
