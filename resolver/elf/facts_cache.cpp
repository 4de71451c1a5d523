// SPDX-License-Identifier: MIT
#include "resolver/elf/facts_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/checksum.hpp"
#include "base/fd.hpp"
#include "resolver/elf/byte_codec.hpp"
#include "resolver/elf/facts_codec.hpp"

namespace heddle {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
/// Two ticks of the coarsest clock in use: FAT's and some servers' two seconds, whole seconds else.
constexpr std::int64_t kRacy = 2 * kSecond;
/// Beyond it the entries not used for longest go. All of it is read at each start: 16 MiB take 3
/// ms.
constexpr std::size_t kMaxBytes[] = {std::size_t{16} << 20, std::size_t{96} << 20};
constexpr std::int64_t kRenewal = 3600 * kSecond;  ///< a use is not noted again so soon
constexpr std::size_t kFileIdBytes = 24;  ///< a key's first bytes: file system, device, inode
constexpr auto kLockPatience = std::chrono::milliseconds(500);

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

std::string key_of(const FileStamp& stamp, std::uint64_t file_system) {
  ByteWriter out;
  out.number(file_system);
  out.number(stamp.id.dev);
  out.number(stamp.id.ino);
  out.number(stamp.size);
  out.number(stamp.mtime_ns);
  out.number(stamp.ctime_ns);
  return out.take();
}

/// Of the key too: a value under the wrong key is as bad as a wrong value.
Checksum checksum(std::string_view key, std::string_view body) {
  return checksum_of(std::string(key).append(body));
}

template <class Hash>
std::string_view bytes_of(const Hash& hash) {
  return {reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()};
}
template <class Hash>
Hash hash_of(std::string_view bytes) {
  Hash hash;
  if (bytes.size() == hash.bytes.size()) std::memcpy(hash.bytes.data(), bytes.data(), bytes.size());
  return hash;
}

// Value: checksum, time of last use (not covered by it), content hash, encode_facts().
std::string value_of(std::string_view key, std::int64_t used_ns, std::string_view body) {
  ByteWriter out;
  out.raw(bytes_of(checksum(key, body)));
  out.number(used_ns);
  out.raw(body);
  return out.take();
}
struct Value {
  Checksum sum;
  std::int64_t used_ns = 0;
  std::string_view body;
};
std::optional<Value> parse_value(std::string_view bytes) {
  ByteReader in(bytes);
  Value value;
  value.sum = hash_of<Checksum>(in.take(sizeof(Checksum)));
  value.used_ns = in.number<std::int64_t>();
  value.body = in.take(in.left());
  if (!in.ok() || value.body.size() < sizeof(ContentHash)) return std::nullopt;
  return value;
}

/// A folder that nobody else can put files into.
bool is_private_dir(const std::string& dir) {
  struct stat st {};
  // Nor a link: somebody else may have put it there, to have files made where it leads.
  return ::lstat(dir.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == ::geteuid() &&
         (st.st_mode & 022) == 0;
}

/// Invalid when somebody else keeps it, or locks do not work there.
Fd lock(const std::string& path) {
  auto file = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (!file) return Fd();
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  while (::flock(file->get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > deadline) return Fd();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return std::move(*file);
}

using Entries = std::map<std::string_view, std::string_view>;

void drop_longest_unused(Entries& entries, std::size_t limit) {
  std::size_t bytes = 0;
  std::vector<std::pair<std::int64_t, std::string_view>> by_use;
  for (const auto& [key, value] : entries) {
    bytes += key.size() + value.size();
    const auto parsed = parse_value(value);
    by_use.emplace_back(parsed ? parsed->used_ns : 0, key);
  }
  if (bytes <= limit) return;
  std::sort(by_use.begin(), by_use.end());
  // Down to three quarters, so that not every run has to drop some.
  for (const auto& [used_ns, key] : by_use) {
    if (bytes <= limit / 4 * 3) return;
    const auto entry = entries.find(key);
    bytes -= entry->first.size() + entry->second.size();
    entries.erase(entry);
  }
}

}  // namespace

std::string default_cache_dir() {
  const char* base = std::getenv("XDG_CACHE_HOME");
  if (base != nullptr && base[0] == '/') return std::string(base) + "/heddle";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/heddle";
  return {};
}

FactsCache::FactsCache(std::string dir, FactsDetail detail, std::int64_t now)
    : dir_(std::move(dir)),
      limit_(kMaxBytes[detail == FactsDetail::symbols]),
      opened_ns_(now == 0 ? now_ns() : now) {
  if (dir_.empty()) return;
  path_ = dir_ + (detail == FactsDetail::loader ? "/facts-loader" : "/facts-symbols");
  if (is_private_dir(dir_)) kept_ = CacheFile::load(path_);
}

std::optional<FileFacts> FactsCache::find(const FileStamp& stamp, std::uint64_t file_system) {
  if (dir_.empty()) return std::nullopt;
  const std::string key = key_of(stamp, file_system);
  std::optional<std::string_view> bytes;
  if (const auto fresh = fresh_.find(key); fresh != fresh_.end())
    bytes = fresh->second;
  else
    bytes = kept_.get(key);
  const auto value = bytes ? parse_value(*bytes) : std::nullopt;
  if (!value || checksum(key, value->body) != value->sum) return std::nullopt;
  auto elf = decode_facts(value->body.substr(sizeof(ContentHash)));
  if (!elf) return std::nullopt;
  used_.insert(key);
  return FileFacts{stamp, 0, hash_of<ContentHash>(value->body.substr(0, sizeof(ContentHash))),
                   std::move(*elf)};
}

void FactsCache::add(const FileFacts& facts, std::uint64_t file_system) {
  if (dir_.empty()) return;
  if (std::max(facts.stamp.mtime_ns, facts.stamp.ctime_ns) > opened_ns_ - kRacy) return;
  std::string body(bytes_of(facts.hash));
  body += encode_facts(facts.elf);
  if (body.size() > limit_ / 8) return;
  const std::string key = key_of(facts.stamp, file_system);
  fresh_.insert_or_assign(key, value_of(key, now_ns(), body));
}

void FactsCache::save() {
  if (fresh_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(dir_).parent_path(), error);
  ::mkdir(dir_.c_str(), 0700);
  if (!is_private_dir(dir_)) return;
  const Fd held = lock(path_ + ".lock");
  if (!held) return;
  const CacheFile newest = CacheFile::load(path_);  // others may have published since kept_
  Entries entries = newest.all();
  // 64 programs that start at once find the same things: the first has written them for all.
  const bool news = std::any_of(fresh_.begin(), fresh_.end(),
                                [&](const auto& f) { return !entries.contains(f.first); });
  if (!news) return fresh_.clear();

  const auto now = now_ns();
  std::vector<std::string> renewed;
  renewed.reserve(used_.size());
  for (const auto& key : used_)
    if (const auto entry = entries.find(key); entry != entries.end())
      if (const auto value = parse_value(entry->second); value && value->used_ns < now - kRenewal)
        entry->second = renewed.emplace_back(value_of(key, now, value->body));
  for (const auto& [key, value] : fresh_) {
    // A file's former version will not come back.
    const std::string_view id = std::string_view(key).substr(0, kFileIdBytes);
    auto old = entries.lower_bound(id);
    while (old != entries.end() && old->first.substr(0, kFileIdBytes) == id)
      old = entries.erase(old);
    entries.emplace(key, value);
  }
  drop_longest_unused(entries, limit_);
  static_cast<void>(CacheFile::publish(path_, entries));  // a full disk: no cache, no harm
  fresh_.clear();
}

}  // namespace heddle
