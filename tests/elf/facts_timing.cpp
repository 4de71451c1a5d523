// SPDX-License-Identifier: MIT
// Prints how long the facts of the given files take: `facts_timing WORKER [--cached] [--symbols]
// FILE...`; the cache is that in $XDG_CACHE_HOME. Not a test: figures for people.
#include <fmt/format.h>

#include <chrono>
#include <string_view>

#include "resolver/elf/cached_facts.hpp"

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  };
  std::vector<std::string> paths(argv + std::min(argc, 2), argv + argc);
  const auto take_word = [&](std::string_view word) {
    const bool there = !paths.empty() && paths.front() == word;
    if (there) paths.erase(paths.begin());
    return there;
  };
  heddle::FactsOptions options;
  options.cache = take_word("--cached") ? heddle::CacheUse::read_write : heddle::CacheUse::none;
  const auto detail =
      take_word("--symbols") ? heddle::FactsDetail::symbols : heddle::FactsDetail::loader;
  if (paths.empty()) return 2;
  options.pool.worker_path = argv[1];
  const auto start = Clock::now();
  heddle::CachedFacts source(options);
  source.prefetch(paths, detail);
  std::size_t failed = 0;
  for (const auto& path : paths) {
    const auto facts = source.facts(path, detail);
    if (!facts) fmt::print("{}\n", facts.error().message());
    failed += !facts;
  }
  fmt::print("{} files, {} failed: {:.2f} ms; {} workers, {} hits\n", paths.size(), failed,
             since(start), source.counters().started, source.counters().hits);
  const auto saving = Clock::now();
  source.save();
  fmt::print("saved in {:.2f} ms\n", since(saving));
}
