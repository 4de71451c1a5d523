// SPDX-License-Identifier: MIT
#include "resolver/map/map_reader.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/fd.hpp"
#include "base/open_regular.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/store/databases.hpp"

namespace heddle {
namespace {

using map_format::decode;
using map_format::number_of_key;

Error damaged(const std::string& path, std::string_view why) {
  return Error::with_code(EBADMSG, path, "damaged map", why, "make it anew with fs-resolve build");
}

Error no_regular_file(const std::string& path) {
  return Error::with_code(ENOEXEC, path, "not a heddle map", "not a regular file");
}

/// All bytes of the open file, which no reader keeps open: others may go on writing to it.
Result<std::string> file_bytes(int file, const std::string& path) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return fail_errno(path, "cannot stat");
  if (!S_ISREG(status.st_mode)) return fail(no_regular_file(path));
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size > map_format::kMaxMap) return fail_errno(path, "cannot read", EFBIG);
  std::string bytes(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const ssize_t n = ::pread(file, bytes.data() + have, size - have, static_cast<off_t>(have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(path, "cannot read");
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  bytes.resize(have);
  return bytes;
}

bool looks_like_lmdb(std::string_view bytes) {
  // mdb.c: a page header of 16 bytes, then MDB_meta, whose first word is MDB_MAGIC.
  constexpr std::uint32_t kLmdbMagic = 0xBEEFC0DE;
  std::uint32_t magic = 0;
  if (bytes.size() < 20) return false;
  std::memcpy(&magic, bytes.data() + 16, sizeof magic);
  return magic == kLmdbMagic;
}

/// The pages in a map's bytes, which are all there and what was written. Whoever made them can make
/// this right too.
Result<std::string_view> pages_of(const std::string& path, std::string_view bytes) {
  constexpr auto kSize = map_format::kTrailerSize;
  const auto pages = bytes.substr(0, bytes.size() - std::min(bytes.size(), kSize));
  const auto trailer = bytes.substr(pages.size());
  if (trailer.size() < kSize || !trailer.starts_with(map_format::kMapMagic)) {
    if (looks_like_lmdb(bytes)) return fail(damaged(path, "its end is missing"));
    return fail(Error::with_code(ENOEXEC, path, "not a heddle map"));
  }
  std::uint32_t version = 0;
  std::uint32_t reserved = 0;
  std::uint64_t length = 0;
  Checksum hash;
  Decoder(trailer.substr(map_format::kMapMagic.size()))(version, reserved, length, hash.bytes);
  if (version != map_format::kMapVersion)
    return fail(Error::with_code(ENOTSUP, path,
                                 fmt::format("map format version {}, this program reads {}",
                                             version, map_format::kMapVersion),
                                 {}, "make it anew with fs-resolve build"));
  if (length != pages.size()) return fail(damaged(path, "its length is wrong"));
  if (checksum_of(bytes.substr(0, bytes.size() - sizeof(hash.bytes))) != hash)
    return fail(damaged(path, "its checksum is wrong"));
  return pages;
}

/// Reads the records of a map's databases.
class Records {
 public:
  Records(const std::string& path, const store::Databases& databases)
      : path_(path), databases_(databases) {}

  Result<MapContent> read() const {
    map_format::Meta meta;
    const auto head = store::find(databases_.at(map_format::kMetaDb), "meta");
    if (!head || !decode(*head, meta)) return fail(damaged(path_, "its head makes no sense"));
    MapContent out;
    out.host = meta.host;
    const auto add = [](std::string_view text, std::string_view value, auto& list) {
      return decode(value, list.emplace_back(text, 0).second);
    };
    TRY(numbered(map_format::kObjectsDb, meta.objects, out.objects));
    TRY(numbered(map_format::kViewsDb, meta.views, out.views));
    TRY(numbered(map_format::kProgramsDb, meta.programs, out.programs));
    TRY(each(map_format::kNamesDb, [&](std::string_view key, std::string_view value) {
      const auto view = number_of_key(key.substr(0, 4));
      return view && *view < out.views.size() && add(key.substr(4), value, out.views[*view].names);
    }));
    TRY(each(map_format::kPathsDb, [&](std::string_view key, std::string_view value) {
      return add(key, value, out.paths);
    }));
    for (const auto& [key, value] : databases_.at(map_format::kGeneratedDb))
      out.generated.emplace_back(key, value);
    if (const auto good = map_format::check_rules(out); !good)
      return fail(damaged(path_, good.error().message()));
    return out;
  }

 private:
  /// Calls `take(key, value)` for each entry; it returns false for one that makes no sense.
  template <class Take>
  Result<void> each(std::string_view database, Take take) const {
    for (const auto& [key, value] : databases_.at(database))
      if (!take(key, value))
        return fail(damaged(path_, fmt::format("a record of '{}' makes no sense", database)));
    return {};
  }

  /// All records of a database whose keys are 0, 1, 2, ...
  template <class T>
  Result<void> numbered(std::string_view database, std::size_t count, std::vector<T>& out) const {
    TRY(each(database, [&](std::string_view key, std::string_view value) {
      if (number_of_key(key) != out.size()) return false;
      if constexpr (std::is_same_v<T, MapView>) {
        out.emplace_back().name = value;
        return true;
      } else {
        return decode(value, out.emplace_back());
      }
    }));
    if (out.size() == count) return {};
    return fail(damaged(path_, fmt::format("records of '{}' are missing", database)));
  }

  const std::string& path_;
  const store::Databases& databases_;
};

}  // namespace

Result<MapReader> MapReader::open(const std::string& path) {
  const auto file = open_regular(path);
  if (file) return open(file->get(), path);
  return fail(map_open_error(path, file.error().code()));
}

Result<MapReader> MapReader::open(int file, const std::string& path) {
  MapReader out;
  out.path_ = path;
  auto bytes = TRY(file_bytes(file, path));
  out.bytes_ = std::make_shared<const std::string>(std::move(bytes));
  const auto pages = TRY(pages_of(path, *out.bytes_));
  auto databases = store::read_databases(pages);
  if (!databases) return fail(damaged(path, databases.error().message()));
  for (const char* name :
       {map_format::kMetaDb, map_format::kViewsDb, map_format::kNamesDb, map_format::kObjectsDb,
        map_format::kPathsDb, map_format::kProgramsDb, map_format::kGeneratedDb})
    if (!databases->contains(name))
      return fail(damaged(path, fmt::format("it has no database '{}'", name)));
  out.databases_ = std::move(*databases);
  return out;
}

ContentHash MapReader::id() const { return hash_bytes(*bytes_); }

Result<MapContent> MapReader::read_all() const { return Records(path_, databases_).read(); }

Result<void> check_map_owner(const struct stat& status, const std::string& path) {
  if (::geteuid() != 0 || (status.st_uid == 0 && (status.st_mode & 0022) == 0)) return {};
  return fail(Error::with_code(
      EPERM, path, "root does not serve programs by it",
      status.st_uid == 0 ? "others may write to it" : "it is another user's",
      "it chooses the libraries that are run: if you trust it, give a copy (cp, chmod go-w)"));
}

Result<void> check_map_path(const std::string& path) {
  if (!is_systems_root()) return {};
  auto trusted = check_trusted_file(std::filesystem::absolute(path));
  if (trusted) return {};
  return fail(Error::with_code(EPERM, path, "root does not serve programs by it",
                               trusted.error().message(),
                               "keep it in a directory that only root may write to"));
}

Error map_open_error(const std::string& path, int code) {
  if (code == EISDIR || code == ENOEXEC) return no_regular_file(path);
  return Error::from_errno(path, "cannot open", code);
}

}  // namespace heddle
