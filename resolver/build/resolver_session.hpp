// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "base/result.hpp"
#include "resolver/elf/facts_source.hpp"
#include "resolver/search/search.hpp"
#include "resolver/search/world.hpp"

namespace heddle {

/// What every program that resolves needs: the worker pool with its cache, and this machine's
/// files.
class ResolverSession {
 public:
  ResolverSession();
  World& world() { return *world_; }

 private:
  std::unique_ptr<FactsSource> facts_;
  std::unique_ptr<World> world_;
};

/// LD_LIBRARY_PATH and LD_PRELOAD of this process.
SearchOptions search_options_from_environment();

}  // namespace heddle
