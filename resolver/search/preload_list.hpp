// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heddle {

/// The names in LD_PRELOAD, in order: split at blanks and colons (glibc elf/rtld.c,
/// handle_preload_list). A secure program takes no name with a slash.
std::vector<std::string> split_preload_variable(std::string_view text, bool secure);

/// The names in /etc/ld.so.preload, in order: split at blanks, tabs, newlines and colons, comments
/// taken out as dl_main does it.
std::vector<std::string> split_preload_file(std::string text);

}  // namespace heddle
