// Names of ops and values as texts have them, and what is said of ops that are not there.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "tapir/autograd/op_form.h"
#include "tapir/core/error.h"

namespace tapir::detail {

/// A name as it stands in the text: as it is where it consists of letters, digits and _ . / - and is no number, else in quotes, with \x22 and
/// the like for quotes, backslashes and what is no printable ASCII character or part of a longer one.
std::string quoted_name(std::string_view name);
/// What quoted_name() has made of it; of what has no quotes that itself. false: it is nothing that quoted_name() makes.
bool unquote_name(std::string_view text, std::string& name);
/// "true", "-1.5", "nan": what a constant of one element may look like.
bool looks_like_number(std::string_view name) noexcept;

/// "there is no op reluu, is it relu?"
std::string no_op(std::string_view op);

/// What FormCall::fail_input throws: it does not know the op.
class TooFewInputs : public ValueError {
 public:
    TooFewInputs(const std::string& message, int needed) : ValueError(message, Loc{}), needed_(needed) {}
    int needed() const noexcept { return needed_; }

 private:
    int needed_;
};
/// Calls the op; where that needs more inputs, the error names it.
void run_form(const OpForm& form, const FormCall& call, Tensor* results);

/// A part of a text of somebody's making, as messages quote it.
inline std::string quoted_part(std::string_view text) {
    constexpr std::size_t most = 200;
    return text.size() <= most ? std::string(text) : fmt::format("{}... ({} characters)", text.substr(0, most), text.size());
}

}  // namespace tapir::detail
