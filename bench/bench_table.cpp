// bench_table OUT.json DIR: merges the results DIR/{tapir,torch}.*.json (Google Benchmark's form), prints the table and
// writes it as a list of {name, unit, tapir, libtorch, ratio}. A row's value is the best of its runs; the
// ratio says how many times better Tapir is, whether the unit is a time, a size or a rate.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;

struct Row {
    std::string name, unit;
    std::vector<double> tapir, torch;
    std::vector<double> tapir_losses, torch_losses;  // loss_first, loss_epoch: must agree
};

// What Tapir must reach, and what libtorch 1.13 did on the machine for which that was set (see README.md). On another
// machine it is their quotient that counts.
struct Goal {
    double tapir, torch;
};
const std::map<std::string, Goal> kGoals = {
    {"add_float4", {60, 708}},
    {"add_float4_recorded", {120, 1443}},
    {"backward_add_chain", {150, 1509}},
    {"backward_tanh_chain", {150, 2811}},
    {"linear_1x64_recorded", {400, 4413}},
    {"view", {30, 366}},
    {"narrow", {30, 795}},
    {"tree_lstm_train/64", {4000, 225}},
    {"tree_lstm_train/150", {950, 104}},
    {"tree_lstm_train/300", {160, 27}},
    {"tree_lstm_infer/150", {2300, 987}},
    {"compile_20_lines_time", {0.8, 16.4}},
    {"compile_20_lines_memory", {150, 1290}},
    {"start_run_exit_time", {0.01, 0.44}},
    {"start_run_exit_memory", {20, 176}},
    {"library_stripped", {8, 120}},
    {"mlp_adam", {1060, 1590}},
    {"cnn_adam", {20400, 26500}},
    {"lstm", {35000, 70000}},
    {"transformer", {25700, 38500}},
    {"softmax/16384x1024", {21500, 43000}},
    {"gelu/16777216", {19500, 39000}},
    {"tanh/16777216", {27500, 55000}},
};

bool is_rate(const std::string& unit) { return unit.ends_with("/s"); }

/// An entry's value in its row's unit.
double value_of(const Json& entry, const std::string& unit) {
    if (entry.contains("value")) return entry["value"];
    const double rate = entry.at("items_per_second");
    return is_rate(unit) ? rate : (unit == "ns" ? 1e9 : unit == "us" ? 1e6 : 1.0) / rate;
}

/// The best of a row's runs: what disturbs a run only makes it worse.
double best(const std::vector<double>& values, const std::string& unit) {
    if (values.empty()) return std::nan("");
    return is_rate(unit) ? *std::max_element(values.begin(), values.end()) : *std::min_element(values.begin(), values.end());
}

/// How many times better a is than b.
double times_better(double a, double b, const std::string& unit) { return is_rate(unit) ? a / b : b / a; }

double median(std::vector<double> values) {
    if (values.empty()) return std::nan("");
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Row& row_of(std::vector<Row>& rows, const std::string& name, const std::string& unit) {
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
    return found != rows.end() ? *found : rows.emplace_back(Row{name, unit, {}, {}, {}, {}});
}

void read_results(const std::filesystem::path& path, std::vector<Row>& rows) {
    std::ifstream file(path);
    const Json result = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!result.contains("benchmarks")) {  // Google Benchmark leaves an empty file when no row matched
        std::cerr << "bench_table: nothing in " << path.filename() << '\n';
        return;
    }
    const bool tapir = path.filename().string().starts_with("tapir.");
    for (const Json& entry : result["benchmarks"]) {
        if (entry.value("run_type", "iteration") != "iteration" || entry.value("error_occurred", false)) continue;
        std::string name = entry.at("name");
        name = name.substr(0, std::min(name.find("/process_time"), name.find("/real_time")));  // how it was timed
        Row& row = row_of(rows, name, entry.at("label"));
        (tapir ? row.tapir : row.torch).push_back(value_of(entry, row.unit));
        if (entry.contains("loss_epoch")) {
            (tapir ? row.tapir_losses : row.torch_losses) = {entry["loss_first"], entry["loss_epoch"]};
        }
        if (entry.contains("peak_mb")) {
            Row& peak = row_of(rows, name + "_memory", "MB");
            (tapir ? peak.tapir : peak.torch).push_back(entry["peak_mb"]);
        }
    }
}

double ratio_of(const Row& row) { return times_better(best(row.tapir, row.unit), best(row.torch, row.unit), row.unit); }

/// Three significant digits; nothing for a number that is not there.
std::string text(double value) {
    if (std::isnan(value)) return "";
    char buffer[32];
    const int digits = value == 0 ? 0 : std::clamp(2 - static_cast<int>(std::floor(std::log10(std::abs(value)))), 0, 6);
    std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
    return buffer;
}

void print_row(const Row& row) {
    const double tapir = best(row.tapir, row.unit), ratio = ratio_of(row);
    const auto found = kGoals.find(row.name);
    const char* met = "";
    std::string goal, goal_ratio;
    if (found != kGoals.end()) {
        const double wanted = times_better(found->second.tapir, found->second.torch, row.unit);
        goal = text(found->second.tapir);
        goal_ratio = text(wanted);
        met = times_better(tapir, found->second.tapir, row.unit) >= 1 ? "yes" : ratio >= wanted ? "by ratio" : "NO";
    }
    std::printf("%-36s %-8s %10s %10s %8s %8s %8s  %s\n", row.name.c_str(), row.unit.c_str(), text(tapir).c_str(),
                text(best(row.torch, row.unit)).c_str(), text(ratio).c_str(), goal.c_str(), goal_ratio.c_str(), met);
}

/// How far apart the runs of a row lie, (max - min) / median; the median over the rows.
double noise(const std::vector<Row>& rows, std::vector<double> Row::* side) {
    std::vector<double> spreads;
    for (const Row& row : rows) {
        const std::vector<double>& runs = row.*side;
        if (runs.size() < 2) continue;
        const auto [low, high] = std::minmax_element(runs.begin(), runs.end());
        spreads.push_back((*high - *low) / median(runs));
    }
    return 100 * median(spreads);
}

void print_noise(const char* side, double percent) {
    if (!std::isnan(percent)) std::printf(" %s: runs of a row lie %.0f%% apart.", side, percent);
}

/// The two programs must have computed the same: false when losses from the same weights differ.
bool print_losses(const std::vector<Row>& rows) {
    bool same = true;
    for (const Row& row : rows) {
        for (std::size_t i = 0; i < std::min(row.tapir_losses.size(), row.torch_losses.size()); ++i) {
            const double a = row.tapir_losses[i], b = row.torch_losses[i];
            if (std::abs(a - b) <= 1e-4 * std::abs(b)) continue;
            std::printf("%s: %s differs: Tapir %.9g, libtorch %.9g\n", row.name.c_str(), i == 0 ? "the first step's loss" : "the pass's loss", a, b);
            same = false;
        }
    }
    return same;
}

Json or_null(double value) { return std::isnan(value) ? Json() : Json(value); }

}  // namespace

int main(int argc, char** argv) try {
    if (argc != 3) throw std::runtime_error("usage: bench_table OUT.json DIR");
    std::vector<std::filesystem::path> paths;
    for (const auto& file : std::filesystem::directory_iterator(argv[2])) {
        if (file.path().extension() == ".json") paths.push_back(file.path());
    }
    std::sort(paths.begin(), paths.end());
    std::vector<Row> rows;
    for (const auto& path : paths) read_results(path, rows);

    std::printf("%-36s %-8s %10s %10s %8s %8s %8s  %s\n", "name", "unit", "Tapir", "libtorch", "ratio", "goal", "as ratio", "met?");
    Json list = Json::array();
    for (const Row& row : rows) {
        print_row(row);
        list.push_back({{"name", row.name},
                        {"unit", row.unit},
                        {"tapir", or_null(best(row.tapir, row.unit))},
                        {"libtorch", or_null(best(row.torch, row.unit))},
                        {"ratio", or_null(ratio_of(row))}});
    }
    std::printf("ratio: how many times better Tapir is. Values are the best of a row's runs.");
    print_noise("Tapir", noise(rows, &Row::tapir));
    print_noise("libtorch", noise(rows, &Row::torch));
    std::printf("\n");
    const bool same = print_losses(rows);
    std::ofstream(argv[1]) << list.dump(1) << '\n';
    return same ? 0 : 1;
} catch (const std::exception& error) {
    std::cerr << "bench_table: " << error.what() << '\n';
    return 1;
}
