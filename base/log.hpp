// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// The name that starts each line of talk (`fs-gen: ...`); the string must outlive the process.
void set_program_name(const char* name);

/// One line to stderr, in one write(2), so that 64 processes do not mix their words.
void say(std::string_view message);
/// Several lines to stderr as they are, in one write(2).
void say_text(std::string_view text);
/// `warning: message`.
void warn(std::string_view message);
/// The error's line and, when it has one, its `hint:` line.
void report(const Error& error);
void warn(const Error& error);

}  // namespace heddle
