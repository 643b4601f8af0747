// Logs each op as a line on stderr.
#pragma once

namespace tapir {

/// While it lives, each op of this thread, and each backward rule, writes a line to stderr after it has run:
///     tree.cpp:42: matmul (2, 3), (3, 4) -> float32 (2, 4), 1.2 us (in encoder.cell)
///     tree.cpp:42: matmul backward, 2.5 us
/// TAPIR_LOG_OPS=1 in the environment does it for the whole program. (Where ops run: LogPlacementScope.)
class LogOpsScope {
 public:
    [[nodiscard]] LogOpsScope();
    ~LogOpsScope();
    LogOpsScope(const LogOpsScope&) = delete;
    LogOpsScope& operator=(const LogOpsScope&) = delete;

 private:
    class Watcher;
    Watcher* watcher_;
};

}  // namespace tapir
