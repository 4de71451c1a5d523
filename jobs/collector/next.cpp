// SPDX-License-Identifier: MIT

// Finds the next definition of a function in ld.so's list of what is loaded.

#include "fuseovl/audit/loaded_object.hpp"
#include "jobs/collector/interposed.hpp"
#include "jobs/collector/process.hpp"

namespace heddle::jobs {
namespace {

/// dlsym would do it, but is in a library of its own before glibc 2.34.
void* find_in(const link_map& map, const char* name) {
  const auto* symbol = audit::LoadedObject(map).definition(name);
  return symbol ? reinterpret_cast<void*>(map.l_addr + symbol->st_value) : nullptr;
}

}  // namespace

void* find_next(const char* name) {
  bool behind_us = false;
  for (const link_map* map = &_r_debug ? _r_debug.r_map : nullptr; map; map = map->l_next) {
    if (behind_us)
      if (void* found = find_in(*map, name)) return found;
    if (is_us(*map)) behind_us = true;
  }
  return nullptr;
}

}  // namespace heddle::jobs
