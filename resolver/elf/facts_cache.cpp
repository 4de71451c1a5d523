// SPDX-License-Identifier: MIT
#include "resolver/elf/cached_facts.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
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

namespace heddle {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
/// Two ticks of the coarsest clock in use: FAT's and some servers' two seconds, whole seconds else.
constexpr std::int64_t kRacy = 2 * kSecond;
/// By FactsDetail; a larger cache is emptied. All of it is read at each start: 16 MiB take 3 ms.
constexpr std::size_t kMaxBytes[] = {std::size_t{16} << 20, std::size_t{96} << 20};
constexpr std::size_t kLargestFile = std::size_t{256} << 20;

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

std::string key_of(const FileStamp& stamp, std::uint64_t file_system) {
  Encoder coder;
  coder(file_system, stamp.id.dev, stamp.id.ino, stamp.size, stamp.mtime_ns, stamp.ctime_ns);
  return coder.take();
}

/// Whether no other user can put files into the directory. A link, perhaps another user's, may lead
/// anywhere.
bool is_private_dir(const std::string& dir) {
  struct stat st {};
  return ::lstat(dir.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == ::geteuid() &&
         (st.st_mode & 022) == 0;
}

/// RLIMIT_FSIZE: going beyond it is SIGXFSZ, not an errno.
bool may_write(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes;
}

std::string_view bytes_of(const Checksum& sum) {
  return {reinterpret_cast<const char*>(sum.bytes.data()), sum.bytes.size()};
}

std::size_t size_of(const auto& entries) {
  std::size_t out = 0;
  for (const auto& [key, value] : entries) out += key.size() + value.size() + 8;
  return out;
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
  const char* base = std::getenv("XDG_CACHE_HOME");
  if (base != nullptr && base[0] == '/') return std::string(base) + "/heddle";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/heddle";
  return {};
}

FactsCache::FactsCache(std::string dir, FactsDetail detail, std::int64_t now)
    : dir_(std::move(dir)),
      path_(dir_ + (detail == FactsDetail::loader ? "/facts-loader" : "/facts-symbols")),
      limit_(kMaxBytes[detail == FactsDetail::symbols]),
      opened_ns_(now == 0 ? now_ns() : now),
      kept_(load()) {}

/// Empty when there is no file, or it is another user's (who could forge facts), of another version
/// or damaged.
FactsCache::Generation FactsCache::load() const {
  Generation out;
  if (dir_.empty() || !is_private_dir(dir_)) return out;
  const auto file = open_file(path_, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  struct stat st {};
  if (!file || ::fstat(file->get(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != ::geteuid() ||
      (st.st_mode & 022) != 0)
    return out;
  auto content = read_all(file->get(), path_, kLargestFile);
  if (!content || content->size() < sizeof(Checksum)) return out;
  const auto body = std::string_view(*content).substr(sizeof(Checksum));
  if (bytes_of(checksum_of(body)) != content->substr(0, sizeof(Checksum))) return out;
  // A move of the string leaves its bytes in place: it is too long for the object itself.
  out.bytes = std::move(*content);
  std::uint32_t version = 0;
  std::vector<std::pair<std::string_view, std::string_view>> entries;
  Decoder decoder(std::string_view(out.bytes).substr(sizeof(Checksum)));
  decoder(version);
  if (version == kFactsVersion) decoder(entries);
  if (decoder.complete()) out.entries = {entries.begin(), entries.end()};
  return out;
}

std::optional<FileFacts> FactsCache::find(const FileStamp& stamp, std::uint64_t file_system) const {
  const std::string key = key_of(stamp, file_system);
  std::string_view value;
  if (const auto fresh = fresh_.find(key); fresh != fresh_.end())
    value = fresh->second;
  else if (const auto kept = kept_.entries.find(key); kept != kept_.entries.end())
    value = kept->second;
  else
    return std::nullopt;
  FileFacts facts{stamp, 0, {}, {}};
  Decoder decoder(value);
  decoder(facts.hash.bytes, facts.elf);
  if (!decoder.complete() || !is_sound(facts.elf)) return std::nullopt;
  return facts;
}

void FactsCache::add(const FileFacts& facts, std::uint64_t file_system) {
  if (dir_.empty()) return;
  if (std::max(facts.stamp.mtime_ns, facts.stamp.ctime_ns) > opened_ns_ - kRacy) return;
  Encoder coder;
  coder(facts.hash.bytes, facts.elf);
  std::string value = coder.take();
  if (value.size() <= limit_ / 8)
    fresh_.insert_or_assign(key_of(facts.stamp, file_system), std::move(value));
}

void FactsCache::save() {
  if (fresh_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(dir_).parent_path(), error);
  ::mkdir(dir_.c_str(), 0700);
  if (!is_private_dir(dir_)) return;
  const auto lock = open_file(path_ + ".lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (!lock || ::flock(lock->get(), LOCK_EX | LOCK_NB) != 0) return;
  Generation newest = load();  // others may have published since kept_
  auto& entries = newest.entries;
  // Of programs that start at once and read the same files one writes.
  std::erase_if(fresh_, [&](const auto& entry) { return entries.contains(entry.first); });
  if (fresh_.empty()) return;
  if (size_of(entries) + size_of(fresh_) > limit_) entries.clear();
  entries.insert(fresh_.begin(), fresh_.end());
  write(entries);
  fresh_.clear();
}

void FactsCache::write(const Entries& entries) const {
  Encoder coder;
  coder(kFactsVersion, std::vector<Entries::value_type>(entries.begin(), entries.end()));
  const std::string body = coder.take();
  const std::string aside = path_ + ".new";
  if (!may_write(body.size() + sizeof(Checksum))) return;
  const auto file = open_file(aside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  if (!file) return;
  // Not synced: the checksum detects the result of a crash.
  const Checksum sum = checksum_of(body);
  if (!write_all(file->get(), bytes_of(sum), aside) || !write_all(file->get(), body, aside) ||
      ::rename(aside.c_str(), path_.c_str()) != 0)
    ::unlink(aside.c_str());
}

}  // namespace heddle
