// SPDX-License-Identifier: MIT
#include "resolver/elf/cached_facts.hpp"

#include <fcntl.h>

#include <algorithm>

namespace heddle {

Result<FactsOptions> facts_below(const std::string& root) {
  FactsOptions options;
  if (root.empty()) return options;
  auto opened = open_file(root, O_PATH | O_DIRECTORY);
  if (!opened) return fail(std::move(opened.error()));
  options.cache = CacheUse::none;
  options.pool.root = std::make_shared<const Fd>(std::move(*opened));
  options.pool.parse_mode = ParseMode::reduced_only;
  options.pool.max_workers = std::min(usable_cpus(), 4U);
  return options;
}

CachedFacts::CachedFacts(FactsOptions options)
    : options_(std::move(options)), pool_(std::make_unique<WorkerPool>(options_.pool)) {
  if (options_.cache == CacheUse::none)
    options_.cache_dir.clear();
  else if (options_.cache_dir.empty())
    options_.cache_dir = default_cache_dir();
}

CachedFacts::~CachedFacts() { save(); }

/// Opened when first needed: most programs ask for one detail only.
FactsCache* CachedFacts::cache(FactsDetail detail) {
  auto& cache = caches_[detail == FactsDetail::symbols];
  if (!cache) cache.emplace(options_.cache_dir, detail);
  return &*cache;
}

std::optional<FileFacts> CachedFacts::look_up(const OpenedFile& file, FactsDetail detail) {
  if (options_.cache_dir.empty()) return std::nullopt;
  const auto file_system = file_systems_.of(file.fd.get(), file.stamp);
  if (!file_system) return std::nullopt;
  auto facts = cache(detail)->find(file.stamp, *file_system);
  if (facts) {
    ++past_.hits;
    facts->mode = file.mode;
  } else {
    to_keep_.emplace(file.stamp, *file_system);
  }
  return facts;
}

Result<FileFacts> CachedFacts::facts(const std::string& path, FactsDetail detail) {
  if (const auto found = found_.find({path, detail}); found != found_.end()) {
    auto facts = std::move(found->second);
    found_.erase(found);
    return facts;
  }
  Result<FileFacts> facts;
  if (pool_->knows(path, detail)) {
    facts = pool_->facts(path, detail);
  } else {
    auto file = pool_->open(path);
    if (!file) return fail(std::move(file.error()));
    if (auto cached = look_up(*file, detail)) return std::move(*cached);
    facts = pool_->facts(path, std::move(*file), detail);
  }
  // Not so when another file took its place between the look-up and the reading.
  if (facts)
    if (const auto kept = to_keep_.find(facts->stamp); kept != to_keep_.end())
      cache(detail)->add(*facts, kept->second);
  return facts;
}

void CachedFacts::prefetch(const std::vector<std::string>& paths, FactsDetail detail) {
  for (const auto& path : paths) {
    if (found_.contains({path, detail}) || pool_->knows(path, detail)) continue;
    auto file = pool_->open(path);
    if (!file) continue;  // facts() will say why
    if (auto cached = look_up(*file, detail))
      found_.emplace(Key(path, detail), std::move(*cached));
    else
      pool_->prefetch(path, std::move(*file), detail);
  }
}

void CachedFacts::save() {
  for (auto& cache : caches_)
    if (cache) cache->save();
}

CachedFacts::Counters CachedFacts::counters() const {
  const auto& now = pool_->counters();
  Counters sum = past_;
  sum.started += now.started;
  sum.parsed += now.parsed;
  sum.crashed += now.crashed;
  return sum;
}

void CachedFacts::end_workers() {
  past_ = counters();
  pool_ = std::make_unique<WorkerPool>(options_.pool);
}

std::unique_ptr<CachedFacts> open_facts_source(FactsOptions options) {
  return std::make_unique<CachedFacts>(std::move(options));
}

}  // namespace heddle
