// Draws the tape: a box for each run of a module's records.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/watch/drawing_impl.h"
#include "tapir/autograd/watch/listing_impl.h"
#include "tapir/core/format.h"
#include "tapir/core/module_name.h"

namespace tapir {
namespace {

using namespace drawing;

constexpr std::size_t kRowsShown = 8;    // limit per box
constexpr std::uint32_t kUsesShown = 8;  // limit for leaves

// Leaves out parameters, and other leaves that many ops use: the boxes' tooltips name them.
std::vector<bool> left_out(const Log& log, std::size_t begin) {
    std::vector<std::uint32_t> uses(log.records.size());
    for (std::size_t i = begin; i < log.records.size(); ++i) {
        const Record& record = *log.records[i];
        for (int k = 0; k < record.input_count; ++k) {
            const std::uint32_t input = record.inputs()[k];
            if (input != kNoValue) ++uses[input];
        }
    }
    std::vector<bool> is_out(log.records.size());
    for (std::size_t i = begin; i < log.records.size(); ++i) {
        const Record& record = *log.records[i];
        is_out[i] = record.flags & Record::kLeaf && (*listing::parameter_name(record) || uses[i] > kUsesShown);
    }
    return is_out;
}

Drawing boxes_of(const Log& log, std::size_t begin) {
    Drawing drawing;
    Hues hues;
    const std::vector<bool> is_out = left_out(log, begin);
    std::vector<std::size_t> box_of(log.records.size());
    std::uint32_t call = 0;
    bool is_open = false;  // the last box may take the next record
    for (std::size_t i = begin; i < log.records.size(); ++i) {
        const Record& record = *log.records[i];
        if (is_out[i]) continue;
        if (record.flags & Record::kExtra) {
            box_of[i] = box_of[i - 1];
            continue;
        }
        const bool is_leaf = record.flags & Record::kLeaf;
        const ModuleName* module = is_leaf ? nullptr : record.module;
        if (!module || !is_open || record.module_call != call) {
            Box box{};
            if (drawing.boxes.size() == kBoxesShown) {
                box.rows.push_back({fmt::format("and {} more records", log.records.size() - i), "", ""});
                drawing.boxes.push_back(std::move(box));
                break;
            }
            box.title = module ? module->shown() : "";
            box.type = module ? module->type : "";
            if (module) box.hue = hues.of(box.title);
            drawing.boxes.push_back(std::move(box));
        }
        is_open = module;
        call = record.module_call;
        const std::size_t number = drawing.boxes.size() - 1;
        box_of[i] = number;
        std::string tooltip = fmt::format("#{} {} {}", i - begin, record.op->name, listing::output(record));
        for (int k = 0; k < record.input_count; ++k) {
            const std::uint32_t input = record.inputs()[k];
            if (input == kNoValue || input < begin) continue;
            const Record& producer = *log.records[input];
            if (is_out[input]) {
                const char* name = listing::parameter_name(producer);
                tooltip += fmt::format("\n{} {}", *name ? name : "leaf", listing::output(producer));
            } else if (const std::size_t from = box_of[input]; from != number) {
                drawing.edges.push_back({from, number, producer.shape().str(), {}});
            }
        }
        tooltip += '\n' + listing::place(record.loc);
        drawing.boxes.back().rows.push_back({fmt::format("{} {}", record.op->name, record.shape()), std::move(tooltip)});
    }
    shorten(drawing, kRowsShown);
    return drawing;
}

}  // namespace

std::string Tape::to_svg() const { return svg_of({{fmt::format("the tape of {}", listing::place(loc_)), boxes_of(*log_, begin_)}}); }
std::string Tape::to_dot() const { return dot_of("tape", {{"", boxes_of(*log_, begin_)}}); }

}  // namespace tapir
