// Where ranks that are left decide who goes on. By the rendezvous, each tells that it has come. When all of the last group are there, or the time is over,
// whoever finds it so proposes those who have come as the new group, or an end if they are too few. The first proposal is the decision of all, as the
// rendezvous keeps the first text of a name. So no two groups can come of one meeting; a rank that comes later reads that the others have gone on.
#pragma once

#include <string>
#include <vector>

#include "tapir/nn/parallel/group.h"
#include "tapir/nn/parallel/rendezvous_impl.h"

namespace tapir::parallel {

class Meeting {
 public:
    /// number: of the meeting; each is held once.
    Meeting(Rendezvous& rendezvous, int number, const SurvivorsOptions& options);

    /// Returns those who go on, in order: the same on all ranks that come. ranks: of the last group; own: this one of them; both as they were when the
    /// program began. Throws EngineError if too few have come, or this rank too late.
    std::vector<int> decide(const std::vector<int>& ranks, int own);

 private:
    void propose(std::vector<int> here, std::size_t ranks);
    std::vector<int> read(const std::string& decision, std::size_t ranks, int own) const;

    Rendezvous& rendezvous_;
    const std::string prefix_;
    const SurvivorsOptions options_;
};

}  // namespace tapir::parallel
