// Where processes that RANK and WORLD_SIZE describe find each other: short texts by name, which every rank can write and read. They lie in a folder
// (TAPIR_RENDEZVOUS), or with rank 0, which serves them by HTTP (MASTER_ADDR, MASTER_PORT).
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace tapir::parallel {

/// Calls may come from several threads. All throw EngineError.
class Rendezvous {
 public:
    virtual ~Rendezvous() = default;
    virtual void set(const std::string& name, const std::string& text) = 0;
    /// As set(), but false where the name was there before.
    virtual bool set_first(const std::string& name, const std::string& text) = 0;
    /// Nothing where the name is not there (yet), or rank 0 does not answer.
    virtual std::optional<std::string> get(const std::string& name) = 0;
    /// Where the texts are, for messages: "rank 0 at node1:29500 (MASTER_ADDR, MASTER_PORT)"
    virtual std::string place() const = 0;
    /// Nobody needs it any more: the next run can use the same folder or port.
    virtual void finish() = 0;
};

/// By the environment variables. Throws EngineError where they are missing or wrong.
std::unique_ptr<Rendezvous> make_rendezvous(int rank);

}  // namespace tapir::parallel
