#include "tapir/ops/batch/vmap.h"

#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {

std::vector<std::vector<Tensor>> rows_of_all(const std::vector<Tensor>& tensors, const Loc& loc) {
    std::vector<std::vector<Tensor>> rows;
    for (const Tensor& t : tensors) {
        check_defined(In(t, loc), "vmap");
        if (t.dim() == 0) fail<ShapeError>(loc, "vmap: argument {} has no dimension to take rows of", rows.size());
        if (t.size(0) != tensors[0].size(0)) {
            fail<ShapeError>(loc, "vmap: argument {} has {} rows, argument 0 has {}", rows.size(), t.size(0), tensors[0].size(0));
        }
        rows.push_back(unbind(In(t, loc), 0));
    }
    if (rows[0].empty()) fail<ValueError>(loc, "vmap: no rows: the shape of the results is not known");
    return rows;
}

Tensor stacked(const std::vector<Tensor>& results, const Loc& loc) { return stack(TensorList(results, loc), 0); }

std::vector<Tensor> stacked(const std::vector<std::vector<Tensor>>& results, const Loc& loc) {
    std::vector<Tensor> made;
    for (std::size_t k = 0; k < results[0].size(); ++k) {
        std::vector<Tensor> parts;
        for (const std::vector<Tensor>& of : results) {
            if (of.size() != results[0].size()) fail<ShapeError>(loc, "vmap: a row gave {} results, row 0 gave {}", of.size(), results[0].size());
            parts.push_back(of[k]);
        }
        made.push_back(stack(TensorList(parts, loc), 0));
    }
    return made;
}

}  // namespace tapir::detail
