// SPDX-License-Identifier: MIT
#include "base/file_stamp.hpp"
#include "base/paths.hpp"
#include "resolver/elf/cached_facts.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <vector>

#include "base/coder.hpp"
#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "base/trusted_path.hpp"

namespace heddle {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
/// Two ticks of the coarsest clock in use: FAT's and some servers' two seconds, whole seconds else.
constexpr std::int64_t kRacy = 2 * kSecond;
constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr std::size_t kLargestValue = std::size_t{32} << 20;

std::string key_of(const FileStamp& stamp, FactsDetail detail, std::uint64_t file_system) {
  Encoder coder;
  coder(detail, file_system, stamp.id.dev, stamp.id.ino, stamp.size, stamp.mtime_ns,
        stamp.ctime_ns);
  return coder.take();
}

/// The cache in `dir`, and no others there: those of other versions and boots go. nullopt: another
/// user may put files into it, or it is on a network.
std::optional<store::RecordCache> open_records(const std::string& dir) {
  ::mkdir(directory_of(dir).c_str(), 0700);
  ::mkdir(dir.c_str(), 0700);
  // A link, perhaps another user's, may lead anywhere.
  const auto opened = open_file(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  struct stat st {};
  if (!opened || ::fstat(opened->get(), &st) != 0 || st.st_uid != ::geteuid() ||
      (st.st_mode & 022) != 0 || locality_of(opened->get()) == Locality::remote)
    return std::nullopt;
  const auto boot = read_file("/proc/sys/kernel/random/boot_id").value_or("");
  const auto name =
      "facts-" + std::to_string(kFactsVersion) + "-" + hash_bytes(boot).hex().substr(0, 12);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const auto file = entry.path().filename().string();
    if (file.starts_with("facts-") && !file.starts_with(name))
      std::filesystem::remove(entry.path(), error);
  }
  return store::RecordCache::open(dir + "/" + name, kMaxBytes);
}

}  // namespace

bool is_sound(const ElfFacts& facts) {
  const auto text = [](const std::string& s) { return s.find('\0') == std::string::npos; };
  const auto optional = [&](const std::optional<std::string>& s) { return !s || text(*s); };
  const auto all = [](const auto& list, const auto& is_good) {
    return std::all_of(list.begin(), list.end(), is_good);
  };
  const auto symbol = [&](const DynamicSymbol& s) { return text(s.name) && text(s.version); };
  return optional(facts.interp) && optional(facts.soname) && optional(facts.rpath) &&
         optional(facts.runpath) && text(facts.build_id) &&
         all(facts.dependencies,
             [&](const Dependency& d) {
               return d.kind <= Dependency::Kind::filter && text(d.name);
             }) &&
         all(facts.version_needs,
             [&](const VersionNeed& n) { return text(n.file) && text(n.version); }) &&
         all(facts.version_definitions, text) && all(facts.exported_symbols, symbol) &&
         all(facts.undefined_symbols, symbol);
}

std::string default_cache_dir() {
  auto out = below_home("XDG_CACHE_HOME", "/.cache", "/heddle");
  // sudo may keep a user's HOME.
  return !out.empty() && check_trusted_directory(out) ? out : "";
}

FactsCache::FactsCache(const std::string& dir, std::int64_t now)
    : records_(dir.empty() ? std::nullopt : open_records(dir)),
      opened_ns_(now == 0 ? now_ns() : now) {}

std::optional<FileFacts> FactsCache::find(const FileStamp& stamp, FactsDetail detail,
                                          std::uint64_t file_system) const {
  if (!records_) return std::nullopt;
  const std::string key = key_of(stamp, detail, file_system);
  const auto fresh = std::ranges::find(fresh_, key, &std::pair<std::string, std::string>::first);
  const auto value =
      fresh != fresh_.end() ? std::optional<std::string_view>(fresh->second) : records_->find(key);
  if (!value) return std::nullopt;
  FileFacts facts{stamp, 0, {}, {}};
  Decoder decoder(*value);
  decoder(facts.hash.bytes, facts.elf);
  const bool good = decoder.complete() && is_sound(facts.elf);
  return good ? std::optional(std::move(facts)) : std::nullopt;
}

void FactsCache::add(const FileFacts& facts, FactsDetail detail, std::uint64_t file_system) {
  if (!records_) return;
  if (std::max(facts.stamp.mtime_ns, facts.stamp.ctime_ns) > opened_ns_ - kRacy) return;
  Encoder coder;
  coder(facts.hash.bytes, facts.elf);
  std::string value = coder.take();
  if (value.size() > kLargestValue) return;
  fresh_.emplace_back(key_of(facts.stamp, detail, file_system), std::move(value));
}

void FactsCache::save() {
  if (!fresh_.empty() && records_->add(fresh_)) fresh_.clear();
}

}  // namespace heddle
