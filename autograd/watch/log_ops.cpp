// LogOpsScope: a watcher that logs to stderr.
#include "tapir/autograd/watch/log_ops.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/watch/listing_impl.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/module_name.h"

namespace tapir {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) { return std::chrono::duration<double, std::micro>(Clock::now() - begin).count(); }

std::string in_module() { return detail::thread.module ? fmt::format(" (in {})", detail::thread.module->shown()) : ""; }

void write(const std::string& line) { std::fputs(line.c_str(), stderr); }

}  // namespace

class LogOpsScope::Watcher : public OpWatcher {
 public:
    void begin(const char* op, Device, const Loc& loc) override {
        // Called once for each operand. An op that has failed, or had nothing to do, has begun and not ended.
        if (has_begun_ && std::strcmp(op, op_) == 0 && loc.line() == line_) return;
        has_begun_ = true;
        op_ = op;
        line_ = loc.line();
        begin_ = Clock::now();
    }

    void end(const RecordArgs& ran) override {
        const double time = has_begun_ ? microseconds_since(begin_) : 0;
        has_begun_ = false;
        std::string text = fmt::format("{}: {}", listing::place(detail::caller(ran.loc)), ran.op.name);
        const char* separator = " ";
        for (int i = 0; i < ran.input_count; ++i) {
            if (!ran.inputs[i]->defined()) continue;
            text += fmt::format("{}{}", separator, ran.inputs[i]->shape());
            separator = ", ";
        }
        separator = " -> ";
        for (int k = 0; k < ran.output_count; ++k) {
            const TensorImpl* y = ran.outputs[k];
            text += fmt::format("{}{} {}", separator, name(y->dtype), Shape(y->sizes, y->rank));
            separator = ", ";
        }
        write(fmt::format("{}, {:.1f} us{}\n", text, time, in_module()));
    }

    void begin_rule(Walk&, std::uint32_t) override { rules_.push_back(Clock::now()); }
    void end_rule(Walk& walk, std::uint32_t record) override {
        const Record& r = *walk.log.records[record];
        const double time = rules_.empty() ? 0 : microseconds_since(rules_.back());
        if (!rules_.empty()) rules_.pop_back();
        write(fmt::format("{}: {} backward, {:.1f} us{}\n", listing::place(r.loc), r.op->name, time, in_module()));
        has_begun_ = false;
    }

 private:
    WatchScope scope_{*this};
    bool has_begun_ = false;
    const char* op_ = "";
    std::uint32_t line_ = 0;
    Clock::time_point begin_;
    std::vector<Clock::time_point> rules_;  // begin times of the running ones, the outermost first
};

LogOpsScope::LogOpsScope() : watcher_(new Watcher) {}
LogOpsScope::~LogOpsScope() { delete watcher_; }

// The scope of TAPIR_LOG_OPS, for each thread, from its first op on.
void detail::log_ops_of_thread() {
    thread_local bool is_made = false;
    if (is_made) return;
    is_made = true;
    thread_local const LogOpsScope scope;
}

}  // namespace tapir
