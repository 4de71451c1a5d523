// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heddle {

/// `text` with backslash and control bytes written as `\\`, `\n`, `\t` or `\xNN`, and so with every
/// byte that is not part of valid UTF-8: the result is printable, one line, and unescape() gives
/// the very same bytes back. Used for terminals and for the tab-separated trace.
std::string escape_for_terminal(std::string_view text);

/// The bytes that escape_for_terminal() was given; nullopt when `text` is not its output.
std::optional<std::string> unescape(std::string_view text);

/// Whether `text` is valid UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_valid_utf8(std::string_view text);

/// `text` as JSON can carry it: itself when it is valid UTF-8, else its escaped form.
std::string to_json_text(std::string_view text);

}  // namespace heddle
