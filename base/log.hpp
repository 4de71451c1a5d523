// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// Sets the prefix of each message (`fs-gen: ...`); `name` must have static storage duration.
void set_program_name(const char* name);

/// Writes one line to stderr with one write(2), so that lines of many processes do not mix.
void say(std::string_view message);
/// Writes `text`, unchanged, to stderr with one write(2).
void say_text(std::string_view text);
/// `warning: message`.
void warn(std::string_view message);
/// The error's line and, when it has one, its `hint:` line.
void report(const Error& error);
void warn(const Error& error);

}  // namespace heddle
