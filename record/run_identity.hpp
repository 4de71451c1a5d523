// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace heddle {

/// Sixteen hexadecimal digits, different for each run.
std::string new_run_id();
/// `<host>[.<rank>].<pid>.txt` (or .jsonl): one name a rank in a shared folder.
std::string trace_file_name(bool json);

}  // namespace heddle
