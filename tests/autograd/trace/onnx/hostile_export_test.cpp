// Graphs that no program has made, written as ONNX: operands of other numbers of dimensions than their op takes, or too few of them, and
// attributes out of all range. Each is written, or an error that names the op; nothing else may happen.
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "../../../ops/samples.h"
#include "../../../sanitizers.h"
#include "../unchecked.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/autograd/trace/trace.h"

using namespace tapir;

namespace {

// Sanitizers take many times as long: with them each sample is tried with every so many of its mutations, the next one with those after them,
// so that an op's samples, and ops that are alike, have them all.
constexpr int kShare = test::kSanitized ? 5 : 1;

struct Tally {
    int read = 0, written = 0, refused = 0;
    int turn = 0;
    bool is_turn() { return turn++ % kShare == 0; }
};

// What happens to a text. Most mutations leave texts of simple ops as another one has made them: each is tried once.
enum class Fate { written, refused, not_read, wrong };
struct Outcome {
    Fate fate;
    bool is_read;
};

// The path cannot be written, which is found out last.
Outcome outcome_of(const std::string& text, const OnnxOptions& options, std::string& what) {
    bool is_read = false;
    try {
        const Graph graph = test::unchecked(text);
        is_read = true;
        save_onnx("/dev/null/none", graph, options);
    } catch (const FileError&) {
        return {Fate::written, is_read};
    } catch (const Error& error) {
        what = error.what();
        if (what.find("save_onnx: ") != std::string::npos) return {Fate::refused, is_read};
        const bool is_of_parser = what.find("Graph::parse: line ") != std::string::npos || what.find("SymInt::parse") != std::string::npos;
        return {is_of_parser ? Fate::not_read : Fate::wrong, is_read};
    } catch (const std::exception& error) {
        what = error.what();
    }
    return {Fate::wrong, is_read};
}

template <class Text>
void write(const Text& text_of, Tally& tally, const OnnxOptions& options = {}) {
    if (!tally.is_turn()) return;
    const std::string text = text_of();
    static std::unordered_map<std::string, Outcome> known;
    std::string what = "nothing was thrown";
    const auto [place, is_new] = known.try_emplace(std::to_string(options.opset) + text);
    if (is_new) place->second = outcome_of(text, options, what);
    const auto [fate, is_read] = place->second;
    tally.read += is_read;
    tally.written += fate == Fate::written;
    tally.refused += fate == Fate::refused;
    if (fate != Fate::wrong) return;
    INFO(text << what);
    CHECK(fate != Fate::wrong);
}

// The lines, with what a function makes of each.
template <class Change>
std::string each_line(const std::string& text, const Change& change) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at) + 1;
        change(std::string_view(text).substr(at, end - at), out);
        at = end;
    }
    return out;
}

bool is_word(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string with_shapes(const std::string& text, const std::string& lines, const std::string& shape) {
    // "input x0: float32 (2, 3)", or "%1: float32 (2, 3), %2: int64 (2,) = ..."
    static constexpr std::string_view dtypes[] = {"bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"};
    return each_line(text, [&](std::string_view line, std::string& out) {
        const bool is_input = line.starts_with("input "), is_node = line[0] == '%';
        const bool is_changed = (is_input && lines != "results") || (is_node && lines != "inputs");
        std::size_t from = 0;
        for (std::size_t at = line.find(": "); is_changed && at != line.npos; at = line.find(": ", at + 1)) {
            for (const std::string_view dtype : dtypes) {
                const std::size_t open = at + 2 + dtype.size() + 1, close = line.find(')', open);
                if (!line.substr(at + 2).starts_with(dtype) || line.substr(open - 1, 2) != " (" || close == line.npos) continue;
                out.append(line.substr(from, open - from)).append(shape);
                from = close + 1;
            }
        }
        out.append(line.substr(from));
    });
}

// Each call, "= add(%1, w.x, alpha=2)", loses the last of its operands.
std::string without_last_operand(const std::string& text) {
    return each_line(text, [](std::string_view line, std::string& out) {
        std::size_t at = line[0] == '%' ? line.find("= ") : line.npos;
        std::size_t open =
            at == line.npos ? line.npos : line.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", at + 2);
        if (open == line.npos || open == at + 2 || line[open] != '(') return void(out.append(line));
        std::size_t last = line.npos, end = line.npos;  // of an operand
        for (std::size_t begin = open + 1;;) {
            std::size_t stop = begin;
            while (stop < line.size() && (is_word(line[stop]) || line[stop] == '%' || line[stop] == '.')) ++stop;
            if (stop == line.size() || (line[stop] != ',' && line[stop] != ')')) {
                if (stop == begin || line[stop] != '=') last = line.npos;  // else an attribute follows
                break;
            }
            last = begin, end = stop;
            if (line[stop] == ')') break;
            begin = stop + 2;
        }
        if (last == line.npos) return void(out.append(line));
        std::string changed(line.substr(0, last));
        std::string_view rest = line.substr(end);
        if (changed.ends_with(", ")) {
            changed.resize(changed.size() - 2);
        } else if (rest.starts_with(", ")) {
            rest.remove_prefix(2);
        }
        out.append(changed).append(rest);
    });
}

// "alpha=2" and "(2, 3" with another number: those behind '=', or those in lists, "(2, ", ", 3)", that a comma or ')' follows.
std::string with_numbers(const std::string& text, bool in_lists, const char* number) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const char c = text[at];
        const bool begins = in_lists ? c == '(' || c == ',' : c == '=';
        out += c;
        ++at;
        if (!begins) continue;
        std::size_t digits = at;
        if (in_lists && digits < text.size() && text[digits] == ' ') ++digits;
        const std::size_t begin = digits;
        if (digits < text.size() && text[digits] == '-') ++digits;
        std::size_t end = digits;
        while (end < text.size() && is_digit(text[end])) ++end;
        if (end == digits) continue;
        const bool fits = in_lists ? end < text.size() && (text[end] == ',' || text[end] == ')') : end == text.size() || !is_word(text[end]);
        if (!fits) continue;
        out.append(text, at, begin - at).append(number);
        at = end;
    }
    return out;
}

const std::vector<std::string>& texts_of_samples() {
    static std::vector<std::string> texts;
    if (!texts.empty()) return texts;
    for (const test::Call& call : test::all_calls()) {
        std::vector<TraceInput> inputs;
        for (const Tensor& x : test::make_inputs(call)) inputs.push_back({"x" + std::to_string(inputs.size()), x});
        texts.push_back(trace(
                            [&](const std::vector<Tensor>& x) {
                                std::vector<Tensor> results;
                                for (const Tensor& y : call.run(x)) {
                                    if (y.defined()) results.push_back(y);
                                }
                                return results;
                            },
                            inputs)
                            .str());
    }
    return texts;
}

}  // namespace

TEST_CASE("every op of the table with operands that it cannot take is written or refused", "[onnx]") {
    Tally tally;
    for (const std::string& text : texts_of_samples()) {
        for (const char* shape : {"()", "(3,)", "(0,)", "(1, 1, 1, 1, 1, 1, 1, 1)", "(n,)"}) {
            for (const char* lines : {"inputs", "results", "both"}) {
                write([&] { return with_shapes(text, lines, shape); }, tally);
                write([&] { return without_last_operand(with_shapes(text, lines, shape)); }, tally);
            }
        }
        std::string fewer = without_last_operand(text);
        for (int i = 0; i < 3; ++i, fewer = without_last_operand(fewer)) write([&] { return fewer; }, tally, {.opset = i == 0 ? 23 : 17});
    }
    CAPTURE(tally.read, tally.written, tally.refused);
    CHECK(tally.read * kShare > 5000);
    CHECK(tally.written * kShare > 1000);
    CHECK(tally.refused * kShare > 1000);
}

TEST_CASE("every op, with attributes of its own and any number of operands, is written or refused", "[onnx]") {
    Tally tally;
    std::set<std::string> seen;
    for (const OpInfo* op : all_ops()) {
        if (!find_form(op->name) || !seen.insert(op->name).second) continue;
        for (const char* shape : {"()", "(3,)", "(2, 3)"}) {
            std::string call, operands;
            for (int count = 0; count <= 5; ++count) {
                if (count > 0) operands += std::string(count > 1 ? ", " : "") + "x";
                for (const char* types : {"", ", %2: int64 ()", ", %2: float32 (2, 3), %3: float32 (3,)"}) {
                    write(
                        [&] {
                            return std::string("input x: float32 ") + shape + "\n%1: float32 " + shape + types + " = " + op->name + "(" + operands +
                                ")\noutput y = %1\n";
                        },
                        tally);
                }
            }
        }
    }
    CHECK(seen.size() > 250);
    CHECK(tally.refused * kShare > 1000);
}

TEST_CASE("every op of the table with numbers out of all range is written or refused", "[onnx]") {
    Tally tally;
    for (const std::string& text : texts_of_samples()) {
        const std::size_t node = text.find("\n%") == std::string::npos ? 0 : text.find("\n%") + 1;
        const std::string head = text.substr(0, node), body = text.substr(node);
        for (const char* wrong : {"0", "-1", "-3", "100", "2147483647", "4294967296", "9223372036854775807", "-9223372036854775808"}) {
            write([&] { return head + with_numbers(body, false, wrong); }, tally);
            write([&] { return head + with_numbers(body, true, wrong); }, tally);
            write([&] { return with_numbers(text, true, wrong); }, tally, {.opset = 17});
        }
    }
    CHECK(tally.read * kShare > 5000);
    CHECK(tally.written * kShare > 1000);
}
