// SPDX-License-Identifier: MIT
#include "record/diff/comparison.hpp"

#include <algorithm>

namespace heddle::diff {
namespace {

void align(Part& part) {
  part.script = edit_script(part.a.tokens, part.b.tokens);
  for (const EditRun& run : part.script) switch (run.kind) {
      case EditKind::same:
        part.same += run.length;
        break;
      case EditKind::replaced:
        part.replaced += run.length;
        break;
      case EditKind::deleted:
        part.deleted += run.length;
        break;
      case EditKind::inserted:
        part.inserted += run.length;
        break;
    }
}

Result<void> align_locally(Part& part, const CompareOptions& options) {
  const double cells = static_cast<double>(part.a.size()) * static_cast<double>(part.b.size());
  part.local_skipped = !options.local_count && cells > kFreeCells;
  if (part.local_skipped) return {};
  auto found = best_local_alignments(part.a.tokens, part.b.tokens, options.scores,
                                     options.local_count.value_or(1));
  if (!found) return fail(std::move(found.error()));
  part.local = std::move(*found);
  return {};
}

}  // namespace

double Comparison::normalised() const {
  std::size_t longest = 0;
  for (const Part& part : parts) longest += std::max(part.a.size(), part.b.size());
  return longest == 0 ? 0 : static_cast<double>(distance()) / static_cast<double>(longest);
}

Result<Comparison> compare(Run a, Run b, const CompareOptions& options) {
  Comparison c;
  c.a_events = a.sequence.size();
  c.b_events = b.sequence.size();
  if (options.by_process) {
    for (const Run* run : {&a, &b})
      if (!run->has_processes())
        return fail(run->name, "cannot compare by process", "the trace names no processes");
    c.parts = pair_processes(a, b);
  } else {
    c.parts.push_back({"", std::move(a.sequence), std::move(b.sequence)});
  }
  c.a = std::move(a);
  c.b = std::move(b);
  for (Part& part : c.parts) {
    align(part);
    if (auto done = align_locally(part, options); !done) return fail(std::move(done.error()));
    part.time = make_time_view(part.a, part.b, part.script, options.time_count);
    c.same += part.same;
    c.replaced += part.replaced;
    c.deleted += part.deleted;
    c.inserted += part.inserted;
  }
  return c;
}

}  // namespace heddle::diff
