// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heddle {

/// `text` with backslashes, control characters (C0, DEL, C1) and bytes that are not valid UTF-8
/// written as `\\`, `\n`, `\t` or `\xNN`. The result is one printable line, and unescape() is the
/// inverse. For terminals and for the tab-separated trace.
std::string escape_for_terminal(std::string_view text);

/// The inverse of escape_for_terminal(); nullopt: `text` is not its output.
std::optional<std::string> unescape(std::string_view text);

/// `text` as one word of a POSIX shell, in single quotes (XCU 2.2.2).
std::string quote_for_shell(std::string_view text);

/// As quote_for_shell(), for fish(1), which knows two escapes in single quotes.
std::string quote_for_fish(std::string_view text);

/// Whether `text` is valid UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_valid_utf8(std::string_view text);

/// `text` for JSON: unchanged if it is valid UTF-8, else escaped.
std::string to_json_text(std::string_view text);

}  // namespace heddle
