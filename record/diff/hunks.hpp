// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "record/diff/levenshtein.hpp"

namespace heddle::diff {

/// Edits that stand close together, with the events around them: one block of a script.
struct Hunk {
  std::uint32_t a = 0, a_length = 0;
  std::uint32_t b = 0, b_length = 0;
  std::vector<EditRun> runs;
};

/// A script's edits with `context` equal events around each; blocks that would touch are one.
std::vector<Hunk> make_hunks(const std::vector<EditRun>& script, std::uint32_t context);

}  // namespace heddle::diff
