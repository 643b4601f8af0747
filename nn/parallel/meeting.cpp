#include "tapir/nn/parallel/meeting_impl.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include "tapir/nn/parallel/engine_impl.h"

namespace tapir::parallel {

using Clock = std::chrono::steady_clock;

Meeting::Meeting(Rendezvous& rendezvous, int number, const SurvivorsOptions& options)
    : rendezvous_(rendezvous), prefix_("meeting" + std::to_string(number) + "/"), options_(options) {}

std::vector<int> Meeting::decide(const std::vector<int>& ranks, int own) {
    rendezvous_.set(prefix_ + "here/" + std::to_string(own), "yes");
    const auto deadline = Clock::now() + std::chrono::duration<double>(options_.wait);
    std::vector<int> here;
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
        if (const std::optional<std::string> decision = rendezvous_.get(prefix_ + "decision")) return read(*decision, ranks.size(), own);
        for (const int rank : ranks) {
            const bool is_known = std::find(here.begin(), here.end(), rank) != here.end();
            if (!is_known && rendezvous_.get(prefix_ + "here/" + std::to_string(rank))) here.push_back(rank);
        }
        if (here.size() == ranks.size() || Clock::now() > deadline) propose(here, ranks.size());
    }
}

void Meeting::propose(std::vector<int> here, std::size_t ranks) {
    std::sort(here.begin(), here.end());
    const std::size_t needed = options_.least > 0 ? static_cast<std::size_t>(options_.least) : ranks / 2 + 1;
    std::string text = here.size() >= needed ? "go on" : "end";
    for (const int rank : here) text += " " + std::to_string(rank);
    rendezvous_.set_first(prefix_ + "decision", text);
}

std::vector<int> Meeting::read(const std::string& decision, std::size_t ranks, int own) const {
    const bool goes_on = decision.starts_with("go on");
    std::istringstream numbers(decision.substr(goes_on ? 5 : 3));
    std::vector<int> here;
    for (int rank = 0; numbers >> rank;) here.push_back(rank);
    if (!goes_on) {
        std::ostringstream out;
        out << here.size() << " of " << ranks << " ranks came within " << options_.wait << " s, and ";
        if (options_.least > 0) {
            out << "SurvivorsOptions::least is " << options_.least;
        } else {
            out << "more than half must be there (SurvivorsOptions::least)";
        }
        throw EngineError(out.str());
    }
    if (std::find(here.begin(), here.end(), own) == here.end())
        throw EngineError("the others have gone on without this rank, which came too late (SurvivorsOptions::wait)");
    return here;
}

}  // namespace tapir::parallel
