// SPDX-License-Identifier: MIT
#pragma once

// Engines: commands of others that copy a file to the nodes of a job.

#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace heddle::ship {

using Words = std::vector<std::string>;

/// Splits `text` into the words of a command, as a shell would without expanding anything.
Words split_words(const std::string& text);
/// Replaces each `{name}` of `values` in each word; a word stays one word.
Words fill_in(Words words, const std::vector<std::pair<std::string, std::string>>& values);

/// Runs a command, found in PATH, with stdout on the descriptor `out` if it is >= 0, and without
/// stdin, which may be the batch script's. Result: its stdout otherwise, and its exit status.
struct Output {
  int status = 0;
  std::string text;
};
Result<Output> run_command(const Words& words, int out = -1);

/// The engine of Slurm; `{step}` is one whose nodes get the file.
inline const Words kSbcast = {"sbcast", "--force", "--jobid={step}", "{src}", "{dst}"};

}  // namespace heddle::ship
