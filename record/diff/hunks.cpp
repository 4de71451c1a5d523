// SPDX-License-Identifier: MIT
#include "record/diff/hunks.hpp"

#include <algorithm>

namespace heddle::diff {
namespace {

void add(Hunk& hunk, EditRun run) {
  if (run.length == 0) return;
  if (hunk.runs.empty()) {
    hunk.a = run.a;
    hunk.b = run.b;
  }
  if (run.kind != EditKind::inserted) hunk.a_length += run.length;
  if (run.kind != EditKind::deleted) hunk.b_length += run.length;
  hunk.runs.push_back(run);
}

}  // namespace

std::vector<Hunk> make_hunks(const std::vector<EditRun>& script, std::uint32_t context) {
  std::vector<Hunk> hunks;
  bool open = false;
  for (std::size_t n = 0; n < script.size(); ++n) {
    const EditRun& run = script[n];
    if (run.kind != EditKind::same) {
      if (!open) hunks.emplace_back();
      open = true;
      add(hunks.back(), run);
      continue;
    }
    const bool more = n + 1 < script.size();
    if (open && more && run.length <= 2 * std::uint64_t{context}) {
      add(hunks.back(), run);
      continue;
    }
    if (open) add(hunks.back(), {run.kind, run.a, run.b, std::min(context, run.length)});
    open = more;
    if (!more) break;
    hunks.emplace_back();
    const std::uint32_t kept = std::min(context, run.length);
    const std::uint32_t skipped = run.length - kept;
    add(hunks.back(), {run.kind, run.a + skipped, run.b + skipped, kept});
  }
  return hunks;
}

}  // namespace heddle::diff
