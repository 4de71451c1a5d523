// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/policy/glibc_choice.hpp"
#include "resolver/policy/swapped_world.hpp"
#include "resolver/search/search.hpp"

namespace heddle {

/// A version that an object of a closure wants, and the file that it gets does not define.
struct UnmetNeed {
  std::string soname;  ///< of that file
  std::string line;    ///< "X needs V of Y, which Z lacks"
};
std::vector<UnmetNeed> unmet_needs(const Closure& closure);

/// A file of the container that is bound to its own glibc build: it wants GLIBC_PRIVATE symbols
/// that the host's glibc does not have, which ld.so would say in its own words. Empty: none.
std::string stranded_part(const Closure& closure, SwappedWorld& world, OsWorld& inside,
                          OsWorld& host, const GlibcFamily& family, const GlibcChoice& glibc);

}  // namespace heddle
