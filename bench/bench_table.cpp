// bench_table OUT.json DIR [PAGE.md...]: merges the results DIR/{tapir,torch,kept}.*.json (Google Benchmark's form), prints the table and
// writes it as a list of {name, unit, tapir, torch, kept, ratio, flops, bytes, limit}. A row's value is the best of its runs; the ratio says
// how many times better Tapir is, whether the unit is a time, a size or a rate. kept: PyTorch with malloc told to keep memory. limit: how
// much of what this machine can do Tapir's row reaches. Rows of gradients and Jacobians are printed again beside their objectives. In a page,
// the rows that REGEX finds replace what is between a line `<!-- bench REGEX -->` and the next line `<!-- bench end -->`, below the line of
// DIR/machine.txt.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kLevel = 0.97;  // a ratio below it is slower

struct Row {
    std::string name, unit;
    std::map<std::string, std::vector<double>> runs;              // by side: tapir, torch, kept
    std::map<std::string, std::map<std::string, double>> checks;  // by side: what both must agree on
    double flops = 0, bytes = 0, kernels = 0;                     // of one call

    bool is_rate() const { return unit.ends_with("/s"); }
    /// The best of a side's runs: what disturbs a run only makes it worse.
    double best(const std::string& side) const {
        const auto found = runs.find(side);
        if (found == runs.end()) return kNone;
        const auto [low, high] = std::minmax_element(found->second.begin(), found->second.end());
        return is_rate() ? *high : *low;
    }
    /// How many times better Tapir is than `side`.
    double ratio(const std::string& side) const { return is_rate() ? best("tapir") / best(side) : best(side) / best("tapir"); }
};

/// How many of a unit of time a second has.
double per_second(const std::string& unit) { return unit == "ns" ? 1e9 : unit == "us" ? 1e6 : unit == "ms" ? 1e3 : 1; }

/// An entry's value in its row's unit.
double value_of(const Json& entry, const std::string& unit) {
    if (entry.contains("value")) return entry["value"];
    const double rate = entry.at("items_per_second");
    if (unit == "GB/s") return rate * 1e-9;
    return unit.ends_with("/s") ? rate : per_second(unit) / rate;
}

Row& row_of(std::vector<Row>& rows, const std::string& name, const std::string& unit) {
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
    return found != rows.end() ? *found : rows.emplace_back(Row{name, unit, {}, {}});
}

void read_entry(const Json& entry, const std::string& side, const std::string& suffix, std::vector<Row>& rows) {
    std::string name = entry.at("name");
    for (const char* how : {"/process_time", "/real_time"}) name = name.substr(0, name.find(how));
    name += suffix;
    Row& row = row_of(rows, name, entry.at("label"));
    row.runs[side].push_back(value_of(entry, row.unit));
    for (const char* check : {"check", "loss_first", "loss_epoch"}) {
        if (entry.contains(check)) row.checks[side].try_emplace(check, entry[check].get<double>());
    }
    if (entry.contains("flops")) row.flops = entry["flops"], row.bytes = entry["bytes"], row.kernels = entry["kernels"];
    if (entry.contains("peak_mb")) row_of(rows, name + "_memory", "MB").runs[side].push_back(entry["peak_mb"]);
}

void read_results(const std::filesystem::path& path, std::vector<Row>& rows) {
    std::ifstream file(path);
    const Json result = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!result.contains("benchmarks")) {  // Google Benchmark leaves an empty file when no row matched
        std::cerr << "bench_table: nothing in " << path.filename() << '\n';
        return;
    }
    const std::string file_name = path.filename().string();
    for (const Json& entry : result["benchmarks"]) {
        if (entry.value("run_type", "iteration") != "iteration" || entry.value("error_occurred", false)) continue;
        read_entry(entry, file_name.substr(0, file_name.find('.')), file_name.find(".busy.") != std::string::npos ? "/busy" : "", rows);
    }
}

/// What this machine can do with one thread, of this run.
struct Limits {
    double flops = 0;                 // a second: the best product of either side
    std::map<double, double> copies;  // bytes that a copy of the C library reads and writes -> bytes a second

    /// Of the copy whose size is nearest to that.
    double copy_rate(double bytes) const {
        const auto apart = [&](const auto& copy) { return std::abs(std::log(copy.first / bytes)); };
        return std::min_element(copies.begin(), copies.end(), [&](const auto& a, const auto& b) { return apart(a) < apart(b); })->second;
    }
};

Limits limits_of(const std::vector<Row>& rows) {
    Limits limits;
    for (const Row& row : rows) {
        if (row.name.starts_with("limit/copy/")) {
            const double rate = std::max(row.best("tapir"), row.runs.contains("torch") ? row.best("torch") : 0);
            limits.copies[std::stod(row.name.substr(11))] = rate * 1e9;
        }
        static const std::regex product("(op|large)/matmul/[0-9]+");
        if (!std::regex_match(row.name, product)) continue;
        for (const char* side : {"tapir", "torch"}) {
            if (row.runs.contains(side)) limits.flops = std::max(limits.flops, row.flops / (row.best(side) * 1e-6));
        }
    }
    return limits;
}

/// The share of the limits that Tapir reaches: the sum over the row's kernels of the least time that each can take, over its time.
double share_of(const Row& row, const Limits& limits) {
    if (row.is_rate() || row.flops + row.bytes == 0 || row.name.find("/threads:") != std::string::npos) return kNone;
    if (limits.flops == 0 || limits.copies.empty()) return kNone;
    double seconds = row.flops / limits.flops;
    if (row.bytes > 0) seconds += row.bytes / limits.copy_rate(row.bytes / row.kernels);
    return seconds / (row.best("tapir") / per_second(row.unit));
}

/// Three significant digits; nothing for a number that is not there.
std::string text(double value) {
    if (std::isnan(value)) return "";
    char buffer[32];
    const int digits = value == 0 ? 0 : std::clamp(2 - static_cast<int>(std::floor(std::log10(std::abs(value)))), 0, 6);
    std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
    std::string made = buffer;
    for (std::size_t at = std::min(made.find('.'), made.size()); at > 3 && made[at - 4] != '-';) made.insert(at -= 3, ",");
    return made;
}

std::string percent(double share) { return std::isnan(share) ? "" : std::to_string(std::lround(100 * share)) + "%"; }
std::string unless_zero(double value) { return value == 0 ? "" : text(value); }

using Cells = std::vector<std::string>;

/// The row with one thread of a row with two, or null.
const Row* with_one_thread(const std::vector<Row>& rows, const Row& row) {
    const std::string name = row.name.substr(0, row.name.find("/threads:"));
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
    return found != rows.end() && &*found != &row ? &*found : nullptr;
}

/// How many times as fast as with one thread.
double speedup(const std::vector<Row>& rows, const Row& row, const std::string& side) {
    const Row* one = with_one_thread(rows, row);
    if (!one) return kNone;
    return row.is_rate() ? row.best(side) / one->best(side) : one->best(side) / row.best(side);
}

/// The row NAME/objective of a row NAME/gradient or NAME/jacobian, or null.
const Row* objective_of(const std::vector<Row>& rows, const Row& row) {
    static const std::regex derivatives("/(gradient|jacobian)$");
    if (!std::regex_search(row.name, derivatives)) return nullptr;
    const std::string name = std::regex_replace(row.name, derivatives, "/objective");
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
    return found != rows.end() ? &*found : nullptr;
}

/// Rows of derivatives beside their objectives; `times` is how many times the objective's time they take.
std::vector<Cells> table_of_derivatives(const std::vector<Row>& rows, const std::vector<const Row*>& chosen) {
    std::vector<Cells> table{{"name", "unit", "Tapir: objective", "derivatives", "times", "PyTorch: objective", "derivatives", "times",
                              "ratio: objective", "derivatives", "ratio, memory kept: objective", "derivatives"}};
    for (const Row* row : chosen) {
        const Row& objective = *objective_of(rows, *row);
        Cells cells{row->name, row->unit};
        for (const char* side : {"tapir", "torch"}) {
            for (const double value : {objective.best(side), row->best(side), row->best(side) / objective.best(side)}) cells.push_back(text(value));
        }
        for (const char* side : {"torch", "kept"}) {
            for (const Row* each : {&objective, row}) cells.push_back(text(each->ratio(side)));
        }
        table.push_back(cells);
    }
    return table;
}

/// The table's cells, its head first.
std::vector<Cells> table_of(const std::vector<Row>& rows, const std::vector<const Row*>& chosen, const Limits& limits) {
    const auto all_have = [&](const Row* (*other)(const std::vector<Row>&, const Row&)) {
        return !chosen.empty() && std::all_of(chosen.begin(), chosen.end(), [&](const Row* r) { return other(rows, *r) != nullptr; });
    };
    if (all_have(objective_of)) return table_of_derivatives(rows, chosen);
    const bool threads = all_have(with_one_thread);
    std::vector<Cells> table;
    if (threads) {
        table.push_back({"name", "unit", "Tapir", "times one thread", "PyTorch", "times one thread", "ratio"});
    } else {
        table.push_back({"name", "unit", "Tapir", "PyTorch", "ratio", "ratio, memory kept", "GFLOP", "MB", "of the limit"});
    }
    for (const Row* row : chosen) {
        const std::string tapir = text(row->best("tapir")), torch = text(row->best("torch")), ratio = text(row->ratio("torch"));
        if (threads) {
            table.push_back({row->name, row->unit, tapir, text(speedup(rows, *row, "tapir")), torch, text(speedup(rows, *row, "torch")), ratio});
        } else {
            table.push_back({row->name, row->unit, tapir, torch, ratio, text(row->ratio("kept")), unless_zero(row->flops * 1e-9),
                             unless_zero(row->bytes * 1e-6), percent(share_of(*row, limits))});
        }
    }
    return table;
}

void print(const std::vector<Cells>& table) {
    std::vector<std::size_t> widths(table.front().size());
    for (const Cells& cells : table) {
        for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
    }
    for (const Cells& cells : table) {
        for (std::size_t i = 0; i < cells.size(); ++i) {
            std::printf(i < 2 ? "%-*s  " : "%*s  ", static_cast<int>(widths[i]), cells[i].c_str());
        }
        std::printf("\n");
    }
}

std::string markdown(const std::vector<Cells>& table) {
    std::string made;
    for (std::size_t i = 0; i < table.size(); ++i) {
        made += '|';
        for (const std::string& cell : table[i]) made += ' ' + cell + " |";
        made += '\n';
        if (i > 0) continue;
        for (std::size_t k = 0; k < table[i].size(); ++k) made += "|---";
        made += "|\n";
    }
    return made;
}

/// Fills the blocks of a page; one of whose rows there is none stays as it is.
void fill_page(const std::filesystem::path& path, const std::vector<Row>& rows, const Limits& limits, const std::string& machine) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot read " + path.string());
    static const std::regex begin("<!-- bench (.*) -->");
    std::string made, line;
    while (std::getline(file, line)) {
        made += line + '\n';
        std::smatch found;
        if (!std::regex_match(line, found, begin)) continue;
        const std::regex wanted(found[1].str());
        std::vector<const Row*> chosen;
        for (const Row& row : rows) {
            if (std::regex_search(row.name, wanted)) chosen.push_back(&row);
        }
        std::string block;
        while (std::getline(file, line) && line != "<!-- bench end -->") block += line + '\n';
        if (!chosen.empty()) block = "\n" + machine + "\n" + markdown(table_of(rows, chosen, limits)) + "\n";
        made += block + "<!-- bench end -->\n";
    }
    file.close();
    std::ofstream(path) << made;
}

double median(std::vector<double> values) {
    if (values.empty()) return kNone;
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// How far apart the runs of a row lie, (max - min) / median; the median over the rows.
double noise(const std::vector<Row>& rows, const std::string& side) {
    std::vector<double> spreads;
    for (const Row& row : rows) {
        const auto found = row.runs.find(side);
        if (found == row.runs.end() || found->second.size() < 2) continue;
        const auto [low, high] = std::minmax_element(found->second.begin(), found->second.end());
        spreads.push_back((*high - *low) / median(found->second));
    }
    return median(spreads);
}

std::string group_of(const Row& row) {
    if (row.name.find("/threads:") != std::string::npos) return "two threads";
    if (row.name.starts_with("tree_lstm")) return "tree";
    const std::size_t end = row.name.find('/');
    return end == std::string::npos ? "process" : row.unit == "MB" ? "memory" : row.name.substr(0, end);
}

/// By groups: how many rows, the geometric mean of the ratios, how many are slower.
void print_summary(const std::vector<Row>& rows, const Limits& limits) {
    struct Group {
        int rows = 0, slower = 0;
        double logarithms = 0;
    };
    std::map<std::string, Group> groups;
    std::vector<const Row*> slower;
    for (const Row& row : rows) {
        const double ratio = row.ratio("torch");
        if (std::isnan(ratio) || row.name.starts_with("limit/")) continue;
        Group& group = groups[group_of(row)];
        ++group.rows, group.logarithms += std::log(ratio), group.slower += ratio < kLevel;
        if (ratio < kLevel) slower.push_back(&row);
    }
    for (const auto& [name, group] : groups) {
        std::printf("%s: %d rows, geometric mean %.2f, %d below %.2f\n", name.c_str(), group.rows, std::exp(group.logarithms / group.rows),
                    group.slower, kLevel);
    }
    std::sort(slower.begin(), slower.end(), [](const Row* a, const Row* b) { return a->ratio("torch") < b->ratio("torch"); });
    for (const Row* row : slower) std::printf("slower: %s %.2f\n", row->name.c_str(), row->ratio("torch"));
    if (limits.flops > 0) std::printf("limits: %.1f GFLOP/s", limits.flops * 1e-9);
    for (const auto& [bytes, rate] : limits.copies) std::printf(", copies of %.0f KB %.1f GB/s", bytes / 1024, rate * 1e-9);
    std::printf("\nratio: how many times better Tapir is. Values are the best of a row's runs.");
    for (const auto& [side, name] : {std::pair("tapir", "Tapir"), std::pair("torch", "PyTorch")}) {
        const std::string apart = percent(noise(rows, side));
        if (!apart.empty()) std::printf(" %s: runs of a row lie %s apart.", name, apart.c_str());
    }
    std::printf("\n");
}

/// The two programs must have computed the same: false when sums or losses from the same numbers differ.
bool print_checks(const std::vector<Row>& rows) {
    bool same = true;
    for (const Row& row : rows) {
        const auto tapir = row.checks.find("tapir"), torch = row.checks.find("torch");
        if (tapir == row.checks.end() || torch == row.checks.end()) continue;
        for (const auto& [check, a] : tapir->second) {
            if (!torch->second.contains(check)) continue;
            const double b = torch->second.at(check);
            if (std::abs(a - b) <= 1e-4 * std::max(1.0, std::abs(b))) continue;
            std::printf("%s: %s differs: Tapir %.9g, PyTorch %.9g\n", row.name.c_str(), check.c_str(), a, b);
            same = false;
        }
    }
    return same;
}

Json or_null(double value) { return std::isnan(value) ? Json() : Json(value); }

Json json_of(const Row& row, const Limits& limits) {
    return {{"name", row.name},
            {"unit", row.unit},
            {"tapir", or_null(row.best("tapir"))},
            {"torch", or_null(row.best("torch"))},
            {"kept", or_null(row.best("kept"))},
            {"ratio", or_null(row.ratio("torch"))},
            {"flops", row.flops},
            {"bytes", row.bytes},
            {"limit", or_null(share_of(row, limits))}};
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc < 3) throw std::runtime_error("usage: bench_table OUT.json DIR [PAGE.md...]");
    std::vector<std::filesystem::path> paths;
    for (const auto& file : std::filesystem::directory_iterator(argv[2])) {
        if (file.path().extension() == ".json") paths.push_back(file.path());
    }
    std::sort(paths.begin(), paths.end(), [](const auto& a, const auto& b) {  // by group, not by side
        const auto key = [](const std::filesystem::path& p) { return p.filename().string().substr(p.filename().string().find('.')); };
        return std::pair(key(a), a) < std::pair(key(b), b);
    });
    std::vector<Row> rows;
    for (const auto& path : paths) read_results(path, rows);
    const Limits limits = limits_of(rows);

    std::vector<const Row*> all;
    for (const Row& row : rows) all.push_back(&row);
    print(table_of(rows, all, limits));
    std::vector<const Row*> derivatives;
    std::copy_if(all.begin(), all.end(), std::back_inserter(derivatives), [&](const Row* r) { return objective_of(rows, *r) != nullptr; });
    if (!derivatives.empty()) print(table_of_derivatives(rows, derivatives));
    print_summary(rows, limits);
    Json list = Json::array();
    for (const Row& row : rows) list.push_back(json_of(row, limits));
    std::ofstream(argv[1]) << list.dump(1) << '\n';

    std::ostringstream machine;
    machine << std::ifstream(std::filesystem::path(argv[2]) / "machine.txt").rdbuf();
    for (int i = 3; i < argc; ++i) fill_page(argv[i], rows, limits, machine.str());
    return print_checks(rows) ? 0 : 1;
} catch (const std::exception& error) {
    std::cerr << "bench_table: " << error.what() << '\n';
    return 1;
}
