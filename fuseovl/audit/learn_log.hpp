// SPDX-License-Identifier: MIT
#pragma once

#include <link.h>

#include "fuseovl/audit/process.hpp"

namespace heddle::audit {

/// Writes to the file that HEDDLE_LEARN names what this process was and loaded, for the map of the
/// next run (resolver/map/learn_format.hpp). Does nothing, at no cost, without that variable. Calls
/// come in order under ld.so's lock.
class LearnLog {
 public:
  constexpr LearnLog() = default;
  /// Notes the program itself.
  explicit LearnLog(const StartBlock& start);
  /// ld.so begins to look for `name`, and was sent nowhere by us.
  void search(const char* name);
  /// ld.so was sent to its file by us: what it opens next is known.
  void guided() { pending_ = nullptr; }
  /// An object was mapped.
  void opened(const link_map& map);

 private:
  const char* path_ = nullptr;
  /// ld.so's own string; it lives until the object is there (dl-load.c, _dl_map_object).
  const char* pending_ = nullptr;
};

}  // namespace heddle::audit
