// SPDX-License-Identifier: MIT
#include "resolver/build/resolver_session.hpp"

#include <cstdlib>

#include "resolver/elf/cached_facts.hpp"
#include "resolver/search/os_world.hpp"

namespace heddle {

ResolverSession::ResolverSession()
    : facts_(std::make_unique<CachedFacts>()), world_(std::make_unique<OsWorld>(*facts_)) {}

SearchOptions search_options_from_environment() {
  SearchOptions options;
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) {
    options.ld_library_path = path;
    options.ld_library_path_set = true;
  }
  if (const char* preload = std::getenv("LD_PRELOAD")) options.ld_preload = preload;
  return options;
}

}  // namespace heddle
