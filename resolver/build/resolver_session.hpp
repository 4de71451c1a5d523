// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <cstring>

#include "resolver/elf/cached_facts.hpp"
#include "resolver/map/tls_formula.hpp"
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"

namespace heddle {

/// The worker pool with its cache, and this machine's files.
struct ResolverSession {
  CachedFacts facts;
  OsWorld world{facts};
};

/// LD_LIBRARY_PATH, LD_PRELOAD and GLIBC_TUNABLES of this process.
inline SearchOptions search_options_from_environment() {
  SearchOptions options;
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) options.ld_library_path = path;
  if (const char* preload = std::getenv("LD_PRELOAD")) options.ld_preload = preload;
  if (const char* text = std::getenv("GLIBC_TUNABLES"))
    tls::each_tunable(text, std::strlen(text), [&](const tls::Tunable& tunable) {
      if (tunable.is(tls::kHwcapsName))
        options.hwcaps_tunable.assign(tunable.value_text(), tunable.value_size());
    });
  return options;
}

}  // namespace heddle
