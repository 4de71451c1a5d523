// SPDX-License-Identifier: MIT
#include "resolver/search/closure.hpp"

namespace heddle {

const char* to_string(FoundBy found_by) {
  static constexpr const char* kNames[] = {"program",         "preload", "rpath",   "runpath",
                                           "ld_library_path", "cache",   "default", "path",
                                           "interpreter"};
  return kNames[static_cast<std::size_t>(found_by)];
}

const char* to_string(Probe::Outcome outcome) {
  static constexpr const char* kNames[] = {"found",
                                           "no such file",
                                           "no such directory",
                                           "for another machine",
                                           "cannot be opened",
                                           "not a library ld.so accepts",
                                           "in a system directory, ruled out by nodeflib"};
  return kNames[static_cast<std::size_t>(outcome)];
}

}  // namespace heddle
