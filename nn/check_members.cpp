// Compares the tensors that a tape has used with those that a model names.
#include "tapir/nn/check_members.h"

#include <algorithm>
#include <typeinfo>
#include <unordered_set>

#include "tapir/autograd/log_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/nn/type_name_impl.h"

namespace tapir::nn {

std::vector<ForgottenLeaf> forgotten_leaves(const Module& model, const Tape& tape, const std::vector<Tensor>& others) {
    std::unordered_set<const TensorImpl*> known;
    for (const std::vector<Tensor>& list : {model.parameters(), model.buffers(), others}) {
        for (const Tensor& t : list) known.insert(t.impl());
    }
    const Log& log = tape.log();
    std::vector<ForgottenLeaf> found;
    for (const std::uint32_t index : log.leaves) {
        const Record& record = *log.records[index];
        TensorImpl* leaf = record.saved()[0].impl;
        if (known.contains(leaf)) continue;
        found.push_back({tapir::detail::handle_of(leaf), record.loc, record.module ? record.module->shown() : ""});
    }
    return found;
}

void check_members(const Module& model, const Tape& tape, const std::vector<Tensor>& others, Loc loc) {
    const CallerScope caller(loc);
    const std::vector<ForgottenLeaf> found = forgotten_leaves(model, tape, others);
    if (found.empty()) return;
    constexpr std::size_t kShown = 10;
    std::string list;
    for (std::size_t i = 0; i < std::min(found.size(), kShown); ++i) {
        list += fmt::format("\n  {} first used at {}", found[i].leaf.shape(), tapir::detail::file_and_line(found[i].first_used));
        if (!found[i].module.empty()) list += " in " + found[i].module;
    }
    if (found.size() > kShown) list += fmt::format("\n  and {} more", found.size() - kShown);
    fail<ValueError>(loc,
                     "check_members: members() of this {} does not name {} of the tensors that require a gradient on the tape, so that "
                     "nothing trains, saves or moves {}:{}",
                     type_name(typeid(model)), found.size(), found.size() == 1 ? "it" : "them", list);
}

}  // namespace tapir::nn
