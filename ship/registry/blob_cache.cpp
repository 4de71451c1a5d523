// SPDX-License-Identifier: MIT
#include "ship/registry/blob_cache.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/open_regular.hpp"
#include "ship/registry/reference.hpp"
#include "ship/registry/sha256.hpp"

namespace heddle::registry {
namespace {

constexpr std::size_t kMostManifest = std::size_t{4} << 20;

std::optional<AtomicFile> begin(const std::string& path) {
  std::error_code ignored;
  std::filesystem::create_directories(path.substr(0, path.rfind('/')), ignored);
  auto file = AtomicFile::create(path);
  if (!file) return std::nullopt;
  static_cast<void>(::fchmod(file->fd(), 0600));  // whatever the umask: see open_own()
  return std::move(*file);
}

/// Nobody else's, who could change it between its hash and its use.
std::optional<Fd> open_own(const std::string& path) {
  auto file = open_regular(path);
  struct stat status {};
  if (!file || ::fstat(file->get(), &status) != 0) return std::nullopt;
  if (status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return std::nullopt;
  return std::move(*file);
}

void write(const std::string& path, const std::string& content) {
  auto file = begin(path);
  if (file && file->write(content)) static_cast<void>(file->commit());
}

}  // namespace

std::optional<Fd> BlobCache::blob(const std::string& digest) const {
  if (folder_.empty() || !is_digest(digest)) return std::nullopt;
  const auto path = folder_ + "/sha256/" + digest.substr(7);
  auto file = open_own(path);
  if (!file) return std::nullopt;
  if (const auto has = sha256_of_file(file->get(), path); has && *has == digest) return file;
  ::unlink(path.c_str());  // damaged: fetched anew
  return std::nullopt;
}

std::optional<std::string> BlobCache::manifest(const std::string& digest) const {
  const auto file = blob(digest);
  if (!file) return std::nullopt;
  auto text = read_all(file->get(), digest, kMostManifest);
  if (!text) return std::nullopt;
  return std::move(*text);
}

std::optional<AtomicFile> BlobCache::room_for(const std::string& digest) const {
  if (folder_.empty() || !is_digest(digest)) return std::nullopt;
  return begin(folder_ + "/sha256/" + digest.substr(7));
}

void BlobCache::keep(const std::string& content) {
  if (!folder_.empty()) write(folder_ + "/sha256/" + sha256_digest(content).substr(7), content);
}

void BlobCache::note(const std::string& reference, const std::string& digest) {
  if (!folder_.empty()) write(folder_ + "/refs/" + sha256_digest(reference).substr(7), digest);
}

std::optional<std::string> BlobCache::noted(const std::string& reference) const {
  if (folder_.empty()) return std::nullopt;
  const auto path = folder_ + "/refs/" + sha256_digest(reference).substr(7);
  const auto file = open_own(path);
  if (!file) return std::nullopt;
  auto digest = read_all(file->get(), path, 128);
  if (!digest || !is_digest(*digest)) return std::nullopt;
  return std::move(*digest);
}

}  // namespace heddle::registry
