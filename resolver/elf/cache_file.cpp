// SPDX-License-Identifier: MIT
#include "resolver/elf/cache_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/content_hash.hpp"
#include "resolver/elf/facts_codec.hpp"

namespace heddle {
namespace {

constexpr const char* kDatabase = "facts";

/// The file's last bytes. Numbers in the machine's own order: so is all of LMDB's file, and a home
/// may be shared by machines of two kinds.
struct Trailer {
  char magic[8] = {'h', 'd', 'l', 'f', 'a', 'c', 't', 's'};
  std::uint32_t format = 1;  ///< of keys and values (facts_cache.cpp)
  std::uint32_t codec = kFactsCodecVersion;
  std::uint64_t page_size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t body_size = 0;
  ContentHash hash;  ///< of all bytes before it
};
static_assert(sizeof(Trailer) == 48 && offsetof(Trailer, hash) == 32);

ContentHash hash_before_end(std::string_view file) {
  return hash_bytes(file.substr(0, file.size() - sizeof(ContentHash)));
}

bool vouches(std::string_view file) {
  Trailer found;
  std::memcpy(&found, file.data() + file.size() - sizeof(found), sizeof(found));
  Trailer expected;
  expected.body_size = file.size() - sizeof(Trailer);
  expected.hash = found.hash;
  return std::memcmp(&found, &expected, sizeof(found)) == 0 && hash_before_end(file) == found.hash;
}

/// RLIMIT_FSIZE holds for files in memory too, and going beyond it is SIGXFSZ, not an errno.
bool may_write(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
         (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes);
}

Result<Fd> memory_file() {
  Fd fd(::memfd_create("heddle-facts", MFD_CLOEXEC));
  if (!fd) return fail_errno("", "cannot make a file in memory");
  return fd;
}

std::string name_of(const Fd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

/// The checked body of the file at `path`, in memory.
Result<Fd> read_body(const std::string& path) {
  const auto not_used = [&path](const char* why) { return fail(path, "cache not used", why); };
  auto file = open_file(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  if (!file) return file;
  struct stat st {};
  if (::fstat(file->get(), &st) != 0) return fail_errno(path, "cannot read");
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 022) != 0)
    return not_used("it is not a file that only this user writes");
  const auto size = static_cast<std::size_t>(st.st_size);
  if (size < sizeof(Trailer) || size > CacheFile::kMaxSize)
    return not_used("it has an impossible size");

  if (!may_write(size)) return not_used("files may not be so large here");
  auto content = read_all(file->get(), path, size);
  if (!content) return fail(std::move(content.error()));
  if (content->size() != size || !vouches(*content))
    return not_used("it is damaged or of another version");
  auto memory = memory_file();
  if (!memory) return memory;
  const auto body = std::string_view(*content).substr(0, size - sizeof(Trailer));
  if (auto done = write_all(memory->get(), body, path); !done) return fail(done.error());
  return memory;
}

Result<void> fill(const Fd& memory, const std::map<std::string_view, std::string_view>& entries,
                  std::size_t map_size) {
  store::EnvOptions options;
  options.locking = store::Locking::none;
  options.durability = store::Durability::unsynced;
  options.map_size = map_size;
  auto env = store::Env::open(name_of(memory), options);
  if (!env) return fail(std::move(env.error()));
  auto txn = env->begin_write();
  if (!txn) return fail(std::move(txn.error()));
  auto dbi = txn->create(kDatabase);
  if (!dbi) return fail(std::move(dbi.error()));
  for (const auto& [key, value] : entries)
    if (auto done = txn->append(*dbi, key, value); !done) return done;
  return txn->commit();
}

}  // namespace

CacheFile CacheFile::load(const std::string& path) {
  CacheFile cache;
  const auto memory = read_body(path);
  if (!memory) return cache;
  store::EnvOptions options;
  options.access = store::Access::read_only;
  options.locking = store::Locking::none;
  auto env = store::Env::open(name_of(*memory), options);
  if (!env) return cache;
  auto txn = env->begin_read();
  if (!txn) return cache;
  const auto dbi = txn->open(kDatabase);
  if (!dbi || !*dbi) return cache;
  cache.open_.emplace(Open{std::move(*env), std::move(*txn), **dbi});
  return cache;
}

std::optional<std::string_view> CacheFile::get(std::string_view key) const {
  if (!open_) return std::nullopt;
  const auto value = open_->txn.get(open_->dbi, key);
  return value ? *value : std::nullopt;
}

std::map<std::string_view, std::string_view> CacheFile::all() const {
  std::map<std::string_view, std::string_view> entries;
  if (!open_) return entries;
  auto cursor = open_->txn.cursor(open_->dbi);
  if (!cursor) return entries;
  for (auto entry = cursor->first(); entry && *entry; entry = cursor->next())
    entries.emplace_hint(entries.end(), **entry);
  return entries;
}

Result<void> CacheFile::publish(const std::string& path,
                                const std::map<std::string_view, std::string_view>& entries) {
  auto memory = memory_file();
  if (!memory) return fail(std::move(memory.error()));
  std::size_t bytes = 0;
  for (const auto& [key, value] : entries) bytes += key.size() + value.size() + 4096;
  const std::size_t map_size = 2 * bytes + (1U << 20);
  if (!may_write(map_size)) return fail_errno(path, "cannot write", EFBIG);
  if (auto done = fill(*memory, entries, map_size); !done) return done;

  auto content = read_all(memory->get(), path, kMaxSize);
  if (!content) return fail(std::move(content.error()));
  Trailer trailer;
  trailer.body_size = content->size();
  content->append(reinterpret_cast<const char*>(&trailer), sizeof(trailer));
  trailer.hash = hash_before_end(*content);
  content->replace(content->size() - sizeof(ContentHash), sizeof(ContentHash),
                   reinterpret_cast<const char*>(trailer.hash.bytes.data()), sizeof(ContentHash));

  const std::string aside = path + ".new";
  auto file = open_file(aside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  if (!file) return fail(std::move(file.error()));
  auto done = write_all(file->get(), *content, aside);
  if (done && ::rename(aside.c_str(), path.c_str()) != 0) done = fail_errno(path, "cannot write");
  if (!done) ::unlink(aside.c_str());
  return done;
}

}  // namespace heddle
