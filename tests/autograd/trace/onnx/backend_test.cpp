// ONNX's own tests of backends (Debian's libonnx-testdata): each model is loaded, run, and compared with the outputs that come with
// it. not_passing.txt has the cases that do not pass, with the reason, and must be right: a case that fails and is not in it fails
// this test, and so does one that passes and is in it.
//
// TAPIR_ONNX_TESTDATA is the folder; TAPIR_ONNX_VERBOSE=1 prints what each case that does not pass says; TAPIR_ONNX_CASE=NAME runs one.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "backend_cases.h"

using namespace backend;

namespace {

// "folder/case: reason"
std::map<std::string, std::string> read_table() {
    std::map<std::string, std::string> table;
    std::ifstream in(TAPIR_ONNX_NOT_PASSING);
    for (std::string line; std::getline(in, line);) {
        if (line.empty() || line[0] == '#') continue;
        const std::size_t colon = line.find(": ");
        REQUIRE(colon != std::string::npos);
        table[line.substr(0, colon)] = line.substr(colon + 2);
    }
    return table;
}

}  // namespace

TEST_CASE("the backend tests of ONNX pass, or are listed with a reason") {
    const fs::path root = data_folder();
    if (!fs::exists(root / "node")) {
        WARN("no libonnx-testdata: not tested");
        return;
    }
    const bool verbose = *environment("TAPIR_ONNX_VERBOSE", "") == '1';
    const std::string only = environment("TAPIR_ONNX_CASE", "");
    std::map<std::string, std::string> table = read_table();
    for (const std::string part : {"node", "simple", "pytorch-operator", "pytorch-converted"}) {
        if (!fs::exists(root / part)) continue;
        const std::vector<fs::path> cases = cases_of(part);
        int passed = 0, baked = 0;
        for (const fs::path& folder : cases) {
            const std::string name = part + "/" + folder.filename().string();
            if (!only.empty() && name.find(only) == std::string::npos) continue;
            const Outcome outcome = run_case(folder);
            passed += outcome.passes;
            baked += outcome.passes && !outcome.known.empty();
            if (!outcome.passes && verbose) std::printf("%s: %s\n", name.c_str(), outcome.problem.c_str());
            INFO(name << ": " << outcome.problem);
            const auto listed = table.find(name);
            CHECK(outcome.passes == (listed == table.end()));
            if (listed != table.end()) table.erase(listed);
        }
        std::printf("ONNX backend tests, %s: %d of %zu pass, %d of them with inputs given as LoadOnnxOptions::known\n", part.c_str(), passed,
                    cases.size(), baked);
    }
    if (!only.empty()) return;
    for (const auto& [name, reason] : table) {
        INFO(name << " is listed in not_passing.txt, but there is no such case");
        CHECK(false);
    }
}
