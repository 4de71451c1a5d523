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

#include "base/checksum.hpp"
#include "base/fd.hpp"
#include "resolver/elf/facts_codec.hpp"

namespace heddle {
namespace {

constexpr const char* kDatabase = "facts";

/// The file's last bytes. Numbers in the machine's own order: so is all of LMDB's file, and a home
/// may be shared by machines of two kinds.
struct Trailer {
  char magic[8] = {'h', 'd', 'l', 'f', 'a', 'c', 't', 's'};
  std::uint32_t format = 2;  ///< of keys and values (facts_cache.cpp)
  std::uint32_t codec = kFactsCodecVersion;
  std::uint64_t page_size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t body_size = 0;
  Checksum hash;  ///< of all bytes before it
};
static_assert(sizeof(Trailer) == 48 && offsetof(Trailer, hash) == 32);

Checksum hash_before_end(std::string_view file) {
  return checksum_of(file.substr(0, file.size() - sizeof(Checksum)));
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

/// The checked body of the file at `path`.
Result<std::string> read_body(const std::string& path) {
  const auto not_used = [&path](const char* why) { return fail(path, "cache not used", why); };
  auto file = open_file(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  if (!file) return fail(file.error());
  struct stat st {};
  if (::fstat(file->get(), &st) != 0) return fail_errno(path, "cannot read");
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 022) != 0)
    return not_used("it is not a file that only this user writes");
  const auto size = static_cast<std::size_t>(st.st_size);
  if (size < sizeof(Trailer) || size > CacheFile::kMaxSize)
    return not_used("it has an impossible size");
  auto content = read_all(file->get(), path, size);
  if (content && (content->size() != size || !vouches(*content)))
    return not_used("it is damaged or of another version");
  if (content) content->resize(size - sizeof(Trailer));
  return content;
}

}  // namespace

CacheFile CacheFile::load(const std::string& path) {
  CacheFile cache;
  auto body = read_body(path);
  if (!body) return cache;
  cache.bytes_ = std::make_unique<const std::string>(std::move(*body));
  auto databases = store::read_databases(*cache.bytes_);
  if (databases) cache.records_ = std::move((*databases)[kDatabase]);
  return cache;
}

std::optional<std::string_view> CacheFile::get(std::string_view key) const {
  return store::find(records_, key);
}

std::map<std::string_view, std::string_view> CacheFile::all() const {
  return {records_.begin(), records_.end()};
}

Result<void> CacheFile::publish(const std::string& path,
                                const std::map<std::string_view, std::string_view>& entries) {
  auto memory = memory_file();
  if (!memory) return fail(std::move(memory.error()));
  std::size_t bytes = 0;
  for (const auto& [key, value] : entries) bytes += key.size() + value.size() + 4096;
  if (!may_write(2 * bytes + (1U << 20))) return fail_errno(path, "cannot write", EFBIG);
  const store::Databases databases{{kDatabase, {entries.begin(), entries.end()}}};
  if (auto done = store::write_databases(name_of(*memory), databases); !done) return done;

  auto content = read_all(memory->get(), path, kMaxSize);
  if (!content) return fail(std::move(content.error()));
  Trailer trailer;
  trailer.body_size = content->size();
  content->append(reinterpret_cast<const char*>(&trailer), sizeof(trailer));
  trailer.hash = hash_before_end(*content);
  content->replace(content->size() - sizeof(Checksum), sizeof(Checksum),
                   reinterpret_cast<const char*>(trailer.hash.bytes.data()), sizeof(Checksum));

  const std::string aside = path + ".new";
  auto file = open_file(aside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  if (!file) return fail(std::move(file.error()));
  auto done = write_all(file->get(), *content, aside);
  if (done && ::rename(aside.c_str(), path.c_str()) != 0) done = fail_errno(path, "cannot write");
  if (!done) ::unlink(aside.c_str());
  return done;
}

}  // namespace heddle
