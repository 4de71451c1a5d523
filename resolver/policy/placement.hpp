// SPDX-License-Identifier: MIT
#pragma once

#include "resolver/policy/side_choice.hpp"

namespace heddle::policy {

/// What a decision is made of.
struct PlacementFacts {
  ContainerSide& inside;
  HostSide& host;
  ContainerStack& stack;  ///< placing shows which directories of it stay
  const GlibcFamily& glibc;
  const SearchOptions& search;
  std::string mount_point;
};

/// Solves for whose file each soname is and where it stands, so that the programs, resolved again
/// as if all were in place, load it: libraries go to the host one after the other, and none comes
/// back. Fills in the decision. Fails where that cannot work, in a line that names both sides.
Result<void> solve(const PlacementFacts& facts, SideChoice& sides, Decision& out);

}  // namespace heddle::policy
