// SPDX-License-Identifier: MIT
#include "resolver/elf/cached_facts.hpp"

#include <fcntl.h>

#include <algorithm>

#include "base/try.hpp"

namespace heddle {
namespace {

/// An image must not make the machine run out of memory.
constexpr std::uint64_t kMemoryForImages = std::uint64_t{512} << 20;

}  // namespace

Result<FactsOptions> facts_below(const std::string& root) {
  FactsOptions options;
  if (root.empty()) return options;
  Fd opened = TRY(open_file(root, O_PATH | O_DIRECTORY));
  options.cache = CacheUse::none;
  options.pool.root = std::make_shared<const Fd>(std::move(opened));
  options.pool.max_workers = std::min(usable_cpus(), 4U);
  options.pool.memory = kMemoryForImages;
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
  if (!pool_->knows(path, detail)) {
    OpenedFile file = TRY(pool_->open(path));
    if (auto cached = look_up(file, detail)) return std::move(*cached);
    pool_->start(path, std::move(file), detail);
  }
  auto facts = pool_->wait(path, detail);
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
      pool_->start(path, std::move(*file), detail);
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

}  // namespace heddle
