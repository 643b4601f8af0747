// cases TABLE tenth|all: loads and runs the cases of the folder TAPIR_ONNX_TESTDATA, and compares with the outputs that they come with.
// TABLE has the cases that do not pass, "node/test_x: reason", and must be right: a case that fails and is not in it is an error, and so
// is one that passes and is in it. A tenth is chosen by a hash of the name. TAPIR_ONNX_CASE=NAME runs those that contain it.
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "../../autograd/trace/onnx/backend_cases.h"

using namespace backend;

namespace {

using Table = std::map<std::string, std::string>;

Table read_table(const char* path) {
    Table table;
    std::ifstream in(path);
    if (!in) throw std::runtime_error(std::string("cannot read ") + path);
    for (std::string line; std::getline(in, line);) {
        if (line.empty() || line[0] == '#') continue;
        const std::size_t colon = line.find(": ");
        if (colon == std::string::npos) throw std::runtime_error("no reason in: " + line);
        table[line.substr(0, colon)] = line.substr(colon + 2);
    }
    return table;
}

// FNV-1a, so that a case stays chosen when others come.
bool is_of_tenth(std::string_view name) {
    std::uint32_t hash = 2166136261u;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
    return hash % 10 == 0;
}

int run(const char* table_path, bool all) {
    const std::string only = environment("TAPIR_ONNX_CASE", "");
    Table table = read_table(table_path);
    int total = 0, passed = 0, wrong = 0;
    for (const std::string part : {"node", "simple"}) {
        for (const fs::path& folder : cases_of(part)) {
            const std::string name = part + "/" + folder.filename().string();
            const auto listed = table.find(name);
            const bool is_listed = listed != table.end();
            if (is_listed) table.erase(listed);
            if (only.empty() ? !all && !is_of_tenth(name) : name.find(only) == std::string::npos) continue;
            const Outcome outcome = run_case(folder);
            ++total;
            passed += outcome.passes;
            if (outcome.passes != is_listed) continue;
            ++wrong;
            std::printf("%s: %s\n", name.c_str(), is_listed ? "passes, though it is listed" : outcome.problem.c_str());
        }
    }
    for (const auto& [name, reason] : table) std::printf("%s: is listed, but there is no such case\n", name.c_str());
    std::printf("%d of %d pass\n", passed, total);
    return wrong == 0 && table.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc != 3) throw std::runtime_error("cases TABLE tenth|all");
        return run(argv[1], std::string_view(argv[2]) == "all");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
