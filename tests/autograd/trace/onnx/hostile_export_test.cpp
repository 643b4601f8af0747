// Graphs that no program has made, written as ONNX: operands of other numbers of dimensions than their op takes, or too few of them, and
// attributes out of all range. Each is written, or an error that names the op; nothing else may happen.
#include <catch2/catch.hpp>
#include <regex>
#include <set>

#include "../../../ops/samples.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/autograd/trace/trace.h"

using namespace tapir;

namespace {

struct Tally {
    int read = 0, written = 0, refused = 0;
};

// The path cannot be written, which is found out last.
void write(const std::string& text, Tally& tally, const OnnxOptions& options = {}) {
    INFO(text);
    try {
        const Graph graph = Graph::parse(text);
        ++tally.read;
        save_onnx("/dev/null/none", graph, options);
    } catch (const FileError&) {
        ++tally.written;
    } catch (const Error& error) {
        const std::string what = error.what();
        const bool is_of_export = what.find("save_onnx: ") != std::string::npos;
        tally.refused += is_of_export;
        INFO(what);
        CHECK((is_of_export || what.find("Graph::parse: line ") != std::string::npos || what.find("SymInt::parse") != std::string::npos));
    }
}

std::string with_shapes(const std::string& text, const std::string& lines, const std::string& shape) {
    // "input x0: float32 (2, 3)", or "%1: float32 (2, 3), %2: int64 (2,) = ..."
    static const std::regex type("(: (?:bool|uint8|int32|int64|float16|bfloat16|float32|float64) )\\([^)]*\\)");
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at) + 1;
        const std::string line = text.substr(at, end - at);
        at = end;
        const bool is_input = line.rfind("input ", 0) == 0, is_node = line[0] == '%';
        out += (is_input && lines != "results") || (is_node && lines != "inputs") ? std::regex_replace(line, type, "$1" + shape) : line;
    }
    return out;
}

// Each call loses the last of its operands.
std::string without_last_operand(const std::string& text) {
    static const std::regex last("(= \\w+\\((?:(?:[\\w%.]+), )*?)([\\w%.]+)((?:, \\w+=.*)?\\))");
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at) + 1;
        std::string line = text.substr(at, end - at);
        at = end;
        if (line[0] == '%') {
            line = std::regex_replace(line, last, "$1$3");
            if (const std::size_t comma = line.find(", )"); comma != std::string::npos) line.erase(comma, 2);
            if (const std::size_t comma = line.find(", ,"); comma != std::string::npos) line.erase(comma, 2);
        }
        out += line;
    }
    return out;
}

std::vector<std::string> texts_of_samples() {
    std::vector<std::string> texts;
    for (const test::Call& call : test::all_calls()) {
        std::vector<TraceInput> inputs;
        for (const Tensor& x : test::make_inputs(call)) inputs.push_back({"x" + std::to_string(inputs.size()), x});
        texts.push_back(trace([&](const std::vector<Tensor>& x) {
            std::vector<Tensor> results;
            for (const Tensor& y : call.run(x)) {
                if (y.defined()) results.push_back(y);
            }
            return results;
        }, inputs).str());
    }
    return texts;
}

}  // namespace

TEST_CASE("every op of the table with operands that it cannot take is written or refused", "[onnx]") {
    Tally tally;
    for (const std::string& text : texts_of_samples()) {
        for (const char* shape : {"()", "(3,)", "(0,)", "(1, 1, 1, 1, 1, 1, 1, 1)", "(n,)"}) {
            for (const char* lines : {"inputs", "results", "both"}) {
                const std::string wrong = with_shapes(text, lines, shape);
                write(wrong, tally);
                write(without_last_operand(wrong), tally);
            }
        }
        std::string fewer = without_last_operand(text);
        for (int i = 0; i < 3; ++i, fewer = without_last_operand(fewer)) write(fewer, tally, {.opset = i == 0 ? 23 : 17});
    }
    CAPTURE(tally.read, tally.written, tally.refused);
    CHECK(tally.read > 5000);
    CHECK(tally.written > 1000);
    CHECK(tally.refused > 1000);
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
                    write(std::string("input x: float32 ") + shape + "\n%1: float32 " + shape + types + " = " + op->name + "(" + operands +
                          ")\noutput y = %1\n", tally);
                }
            }
        }
    }
    CHECK(seen.size() > 250);
    CHECK(tally.refused > 1000);
}

TEST_CASE("every op of the table with numbers out of all range is written or refused", "[onnx]") {
    Tally tally;
    static const std::regex number("=(-?\\d+)\\b"), listed("([(,] ?)(-?\\d+)(?=[,)])");
    for (const std::string& text : texts_of_samples()) {
        const std::size_t node = text.find("\n%") == std::string::npos ? 0 : text.find("\n%") + 1;
        const std::string head = text.substr(0, node), body = text.substr(node);
        for (const char* wrong : {"0", "-1", "-3", "100", "2147483647", "4294967296", "9223372036854775807", "-9223372036854775808"}) {
            write(head + std::regex_replace(body, number, std::string("=") + wrong), tally);
            write(head + std::regex_replace(body, listed, std::string("$1") + wrong), tally);
            write(std::regex_replace(text, listed, std::string("$1") + wrong), tally, {.opset = 17});
        }
    }
    CHECK(tally.read > 5000);
    CHECK(tally.written > 1000);
}
