// SPDX-License-Identifier: MIT
#include "fsgen/registry/blob_cache.hpp"

#include <unistd.h>

#include <filesystem>

#include "base/atomic_file.hpp"
#include "base/fd.hpp"
#include "fsgen/registry/reference.hpp"
#include "fsgen/registry/sha256.hpp"

namespace heddle::registry {
namespace {

void write(const std::string& path, const std::string& content) {
  std::error_code ignored;
  std::filesystem::create_directories(path.substr(0, path.rfind('/')), ignored);
  auto file = AtomicFile::create(path);
  if (file && file->write(content)) static_cast<void>(file->commit());
}

}  // namespace

std::string digest_of(const std::string& content) { return sha256_digest(content); }

std::optional<std::string> BlobCache::blob(const std::string& digest) const {
  if (folder_.empty() || !is_digest(digest)) return std::nullopt;
  const auto path = folder_ + "/sha256/" + digest.substr(7);
  auto content = read_file(path, std::size_t{4} << 30);
  if (!content) return std::nullopt;
  if (digest_of(*content) == digest) return std::move(*content);
  ::unlink(path.c_str());  // damaged: fetched anew
  return std::nullopt;
}

void BlobCache::keep(const std::string& content) {
  if (!folder_.empty()) write(folder_ + "/sha256/" + digest_of(content).substr(7), content);
}

void BlobCache::note(const std::string& reference, const std::string& digest) {
  if (!folder_.empty()) write(folder_ + "/refs/" + digest_of(reference).substr(7), digest);
}

std::optional<std::string> BlobCache::noted(const std::string& reference) const {
  if (folder_.empty()) return std::nullopt;
  auto digest = read_file(folder_ + "/refs/" + digest_of(reference).substr(7), 128);
  if (!digest || !is_digest(*digest)) return std::nullopt;
  return std::move(*digest);
}

}  // namespace heddle::registry
