// What the programs that write ONNX models for check.py share.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

namespace onnx_test {

namespace fs = std::filesystem;
using tapir::Graph;
using tapir::Tensor;
using Program = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// One line of text.
inline std::string flat(std::string text) {
    for (char& c : text) {
        if (c == '\n' || c == '\t') c = ' ';
    }
    return text;
}

inline void write_tensors(const fs::path& folder, const char* what, const std::vector<Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        tapir::save_npy((folder / (std::string(what) + "_" + std::to_string(i) + ".npy")).string(), tensors[i].detach().contiguous());
    }
}

// Inputs, and what fn makes of them: in float32 and, to see what rounding does, in float64.
inline void write_data(const fs::path& folder, const Program& fn, const std::vector<Tensor>& inputs, bool has_exact) {
    fs::create_directories(folder);
    write_tensors(folder, "input", inputs);
    tapir::manual_seed(5);
    write_tensors(folder, "output", fn(inputs));
    if (!has_exact) return;
    std::vector<Tensor> wide;
    for (const Tensor& x : inputs) wide.push_back(is_floating(x.dtype()) ? x.to(tapir::float64) : x);
    write_tensors(folder, "exact", fn(wide));
}

// A line of the table that check.py reads.
inline void note(std::ofstream& table, const fs::path& folder, const std::string& op, const char* kind, const std::string& state,
                 const std::string& what, const std::string& result = "ok") {
    table << folder.filename().string() << '\t' << op << '\t' << kind << '\t' << state << '\t' << flat(what) << '\t' << flat(result) << '\n';
}

}  // namespace onnx_test
