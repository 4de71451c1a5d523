// SPDX-License-Identifier: MIT
// Prints how long the facts of the given files take: `facts_timing WORKER MODE [--symbols]
// FILE...`, MODE reduced, full or
// cached (in $XDG_CACHE_HOME). Not a test: figures for people.
#include <fmt/format.h>

#include <chrono>
#include <string_view>

#include "resolver/elf/cached_facts.hpp"

int main(int argc, char** argv) {
  using std::chrono::duration_cast, std::chrono::microseconds, std::chrono::steady_clock;
  if (argc < 4) return 2;
  heddle::WorkerPoolOptions options;
  options.worker_path = argv[1];
  options.parse_mode = std::string_view(argv[2]) == "full" ? heddle::ParseMode::full_only
                                                           : heddle::ParseMode::reduced_only;
  auto detail = heddle::FactsDetail::loader;
  std::vector<std::string> paths(argv + 3, argv + argc);
  if (paths.front() == "--symbols") {
    detail = heddle::FactsDetail::symbols;
    paths.erase(paths.begin());
  }
  const auto start = steady_clock::now();
  heddle::FactsOptions source{options};
  if (std::string_view(argv[2]) != "cached") source.cache = heddle::CacheUse::none;
  heddle::CachedFacts pool(source);
  pool.prefetch(paths, detail);
  std::size_t failed = 0;
  for (const auto& path : paths) {
    const auto facts = pool.facts(path, detail);
    if (!facts) fmt::print("{}\n", facts.error().message());
    failed += !facts;
  }
  const auto took = duration_cast<microseconds>(steady_clock::now() - start).count();
  fmt::print("{} files, {} failed: {:.2f} ms; {} workers, {} hits\n", paths.size(), failed,
             static_cast<double>(took) / 1000, pool.counters().started, pool.counters().hits);
  const auto saving = steady_clock::now();
  pool.save();
  fmt::print(
      "saved in {:.2f} ms\n",
      static_cast<double>(duration_cast<microseconds>(steady_clock::now() - saving).count()) /
          1000);
}
