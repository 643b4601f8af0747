// Drawings of boxes in layers (Sugiyama, Tagawa & Toda 1981), each edge from a box to a later one: shared by the drawings of tapes
// and of graphs.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tapir::drawing {

constexpr std::size_t kBoxesShown = 10'000;  // limit per drawing: browsers are slow with more

struct Row {
    std::string text, tooltip;
    const char* style = "";  // a class of svg_of(): "p" a parameter, "c" a constant
};

/// Results are below their operands. Boxes are given in an order in which an edge leads to a later one.
struct Box {
    std::string title, type;  // type: more about the title
    std::string fill = {};    // a colour; "": that of the hue, or grey without a title
    double hue = 0;           // 0 to 1
    std::vector<Row> rows = {};
    // The place in the drawing. A bend belongs to an edge that crosses layers.
    bool is_bend = false;
    int layer = 0;
    double x = 0, y = 0, width = 2, height = 0;       // x: the middle
    double top = 0, bottom = 0;                       // bounds of its layer, within which its edges run straight down
    std::vector<std::size_t> above = {}, below = {};  // neighbours in the layers beside, for the placing
};

struct Edge {
    std::size_t from, to;
    std::string label;
    std::vector<std::size_t> bends = {};
};

struct Drawing {
    std::vector<Box> boxes;
    std::vector<Edge> edges;
    std::vector<std::vector<std::size_t>> layers;  // boxes from left to right
    double width = 0, height = 0;
};

/// One hue for all names below a common one: "encoder" for "encoder.cell". Steps of the golden ratio keep any number of them apart.
class Hues {
 public:
    double of(std::string_view title);

 private:
    std::map<std::string, double> numbers_;  // in order of appearance
};

/// Removes repeated edges, and rows of a box beyond the limit.
void shorten(Drawing& drawing, std::size_t most_rows);

/// A titled drawing, for several that belong together: the others are parts of the first.
using Panel = std::pair<std::string, Drawing>;
std::string svg_of(std::vector<Panel> panels);
std::string dot_of(std::string_view name, const std::vector<Panel>& panels);

}  // namespace tapir::drawing
