// bench_process ROW OUT.json COMMAND...: runs the command a few times and writes what it used, as rows ROW_time (CPU
// seconds, user and system) and ROW_memory (MB, the largest resident process of its tree), in the form of Google
// Benchmark's output.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace {

double seconds(const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); }

/// Throws when the command fails. A compiler driver's own children count too: wait4 sums what a child has waited for.
rusage run(char** command) {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child == 0) {
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO);
        execvp(command[0], command);
        _exit(127);
    }
    int status = 0;
    rusage used{};
    if (wait4(child, &status, 0, &used) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        throw std::runtime_error(std::string(command[0]) + " failed");
    }
    return used;
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc < 4) throw std::runtime_error("usage: bench_process ROW OUT.json COMMAND...");
    const std::string row = argv[1];
    nlohmann::json rows = nlohmann::json::array();
    run(argv + 3);  // fills the page cache
    double spent = 0;
    for (int i = 0; i < 21 && spent < 3; ++i) {
        const rusage used = run(argv + 3);
        const double time = seconds(used.ru_utime) + seconds(used.ru_stime);
        spent += time;
        rows.push_back({{"name", row + "_time"}, {"label", "s"}, {"value", time}});
        rows.push_back({{"name", row + "_memory"}, {"label", "MB"}, {"value", double(used.ru_maxrss) * 1024 / 1e6}});
    }
    std::ofstream(argv[2]) << nlohmann::json{{"benchmarks", rows}}.dump(1) << '\n';
} catch (const std::exception& error) {
    std::cerr << "bench_process: " << error.what() << '\n';
    return 1;
}
