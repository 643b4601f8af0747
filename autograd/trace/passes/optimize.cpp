// Runs all passes, one after the other.
#include "tapir/autograd/trace/passes/passes.h"

namespace tapir {
namespace {

struct Pass {
    const char* name;
    int (*run)(Graph& graph, const PassOptions& options);
};

// Dead code first, so that no work is done for it; passes after algebra find the nodes that it made alike.
constexpr Pass kPasses[] = {
    {"eliminate_dead_code", [](Graph& graph, const PassOptions&) { return eliminate_dead_code(graph); }},
    {"fold_batch_norm", [](Graph& graph, const PassOptions&) { return fold_batch_norm(graph); }},
    {"simplify", simplify},
    {"hoist_broadcasts", hoist_broadcasts},
    {"fold_constants", [](Graph& graph, const PassOptions&) { return fold_constants(graph); }},
    {"eliminate_common_subexpressions", [](Graph& graph, const PassOptions&) { return eliminate_common_subexpressions(graph); }},
};
constexpr int kMostRounds = 16;

}  // namespace

std::vector<PassReport> optimize(Graph& graph, const PassOptions& options) {
    std::vector<PassReport> report;
    for (const Pass& pass : kPasses) report.push_back({pass.name, 0});
    for (int round = 0; round < kMostRounds; ++round) {
        int changes = 0;
        for (std::size_t i = 0; i < report.size(); ++i) {
            const int more = kPasses[i].run(graph, options);
            report[i].changes += more;
            changes += more;
        }
        if (changes == 0) break;
    }
    return report;
}

}  // namespace tapir
