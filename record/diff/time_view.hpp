// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "record/diff/run.hpp"

namespace heddle::diff {

/// An event both runs have, at different times. Indices into the sequences, times in ns since
/// start.
struct Shift {
  std::size_t a = 0;
  std::size_t b = 0;
  std::int64_t later = 0;  ///< b's time less a's
  std::int64_t step = 0;   ///< how much of it is new since the last event both have
};

/// Where the same access came much later or earlier.
struct TimeView {
  std::vector<Shift> steps;  ///< aligned events before which one run waited; greatest |step| first
  std::vector<Shift>
      moves;  ///< events in both that the script could not align; greatest |later| first
  std::size_t move_count = 0;
  std::int64_t end_later = 0;  ///< at the last event both have
};

/// The `count` greatest of each kind. Steps below a millisecond are noise and left out.
TimeView make_time_view(const Sequence& a, const Sequence& b, const std::vector<EditRun>& script,
                        std::size_t count);

}  // namespace heddle::diff
