// Names of ops and values in texts, and messages about unknown ops.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "tapir/autograd/op_form.h"
#include "tapir/core/error.h"

namespace tapir::detail {

/// A name as the text has it: unchanged if it consists of letters, digits and _ . / - and is no number, else in quotes, with \x22 and
/// the like for quotes, backslashes and all that is not a printable ASCII character.
std::string quoted_name(std::string_view name);
/// Inverts quoted_name(); text without quotes stays as it is. Returns false if quoted_name() makes no such text.
bool unquote_name(std::string_view text, std::string& name);
/// True for texts like "true", "-1.5", "nan", which may be constants of one element.
bool looks_like_number(std::string_view name) noexcept;

/// "there is no op reluu, is it relu?"
std::string no_op(std::string_view op);

/// Thrown by FormCall::fail_input, which does not know the op.
class TooFewInputs : public ValueError {
 public:
    TooFewInputs(const std::string& message, int needed) : ValueError(message, Loc{}), needed_(needed) {}
    int needed() const noexcept { return needed_; }

 private:
    int needed_;
};
/// Calls the op. If it needs more inputs, the error names it.
void run_form(const OpForm& form, const FormCall& call, Tensor* results);

/// A part of a text from outside, as messages quote it.
inline std::string quoted_part(std::string_view text) {
    constexpr std::size_t most = 200;
    return text.size() <= most ? std::string(text) : fmt::format("{}... ({} characters)", text.substr(0, most), text.size());
}

}  // namespace tapir::detail
