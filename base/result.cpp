// SPDX-License-Identifier: MIT
#include "base/result.hpp"

#include <system_error>

#include "base/escape.hpp"

namespace heddle {

Error::Error(std::string_view where, std::string_view what, std::string_view reason,
             std::string_view hint)
    : hint_(hint) {
  if (!where.empty()) message_ = escape_for_terminal(where) + ": ";
  message_ += what;
  if (!reason.empty()) (message_ += ": ") += reason;
}

Error Error::from_errno(std::string_view where, std::string_view what, int error_number,
                        std::string_view hint) {
  return with_code(error_number, where, what, std::generic_category().message(error_number), hint);
}

Error Error::with_code(int error_number, std::string_view where, std::string_view what,
                       std::string_view reason, std::string_view hint) {
  Error error(where, what, reason, hint);
  error.code_ = error_number;
  return error;
}

}  // namespace heddle
