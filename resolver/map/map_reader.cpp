// SPDX-License-Identifier: MIT
#include "resolver/map/map_reader.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/fd.hpp"
#include "base/open_regular.hpp"
#include "base/trusted_path.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/store/databases.hpp"

namespace heddle {
namespace {

using map_format::decode;
using map_format::is_hashed_key;
using map_format::NamedObject;
using map_format::number_key;
using map_format::number_of_key;

Error damaged(const std::string& path, std::string_view why) {
  return Error::with_code(EBADMSG, path, "damaged map", why, "make it anew with fs-resolve build");
}

bool looks_like_lmdb(std::string_view bytes) {
  // mdb.c: a page header of 16 bytes, then MDB_meta, whose first word is MDB_MAGIC.
  constexpr std::uint32_t kLmdbMagic = 0xBEEFC0DE;
  std::uint32_t magic = 0;
  if (bytes.size() < 20) return false;
  std::memcpy(&magic, bytes.data() + 16, sizeof magic);
  return magic == kLmdbMagic;
}

/// Whether they are all there, and what was written. Whoever made them can make this right too.
Result<void> check_bytes(const std::string& path, std::string_view bytes) {
  std::optional<map_format::Trailer> trailer;
  if (bytes.size() >= map_format::kTrailerSize)
    trailer = map_format::decode_trailer(bytes.substr(bytes.size() - map_format::kTrailerSize));
  if (!trailer) {
    if (looks_like_lmdb(bytes)) return fail(damaged(path, "its end is missing"));
    return fail(Error::with_code(ENOEXEC, path, "not a heddle map"));
  }
  if (trailer->version != map_format::kMapVersion)
    return fail(Error::with_code(ENOTSUP, path,
                                 fmt::format("map format version {}, this program reads {}",
                                             trailer->version, map_format::kMapVersion),
                                 {}, "make it anew with fs-resolve build"));
  if (trailer->length != bytes.size() - map_format::kTrailerSize)
    return fail(damaged(path, "its length is wrong"));
  const std::size_t hashed = bytes.size() - map_format::kTrailerSize + map_format::kTrailerHashed;
  if (checksum_of(bytes.substr(0, hashed)) != trailer->hash)
    return fail(damaged(path, "its checksum is wrong"));
  return {};
}

}  // namespace

Result<std::string> map_format::file_bytes(int file, const std::string& path) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return fail_errno(path, "cannot stat");
  if (!S_ISREG(status.st_mode))
    return fail(Error::with_code(ENOEXEC, path, "not a heddle map", "not a regular file"));
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size > kMaxMap) return fail_errno(path, "cannot read", EFBIG);
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

struct MapReader::State {
  std::string path;
  std::string bytes;
  store::Databases dbs;  ///< views into `bytes`

  Error damage(std::string_view why) const { return damaged(path, why); }
  /// open() has seen that they are all there.
  const store::Records& in(std::string_view database) const { return dbs.find(database)->second; }

  /// Calls `take(key, value)` for each entry; it returns false for one that makes no sense.
  template <class Take>
  Result<void> each(std::string_view database, Take take) const {
    for (const auto& [key, value] : in(database))
      if (!take(key, value))
        return fail(damage(fmt::format("a record of '{}' makes no sense", database)));
    return {};
  }

  /// All records of a database whose keys are 0, 1, 2, ...
  template <class T>
  Result<void> numbered(std::string_view database, std::size_t count, std::vector<T>& out) const {
    auto done = each(database, [&](std::string_view key, std::string_view value) {
      if (number_of_key(key) != out.size()) return false;
      if constexpr (std::is_same_v<T, MapView>) {
        out.emplace_back().name = value;
        return true;
      } else {
        return decode(value, out.emplace_back());
      }
    });
    if (done && out.size() != count)
      return fail(damage(fmt::format("records of '{}' are missing", database)));
    return done;
  }

  Result<std::optional<MapObject>> find(std::string_view database, std::string_view prefix,
                                        std::string_view text) const {
    const std::string key = map_format::text_key(prefix, text);
    const auto value = store::find(in(database), key);
    if (!value) return std::nullopt;
    std::vector<NamedObject> entries;
    if (!decode(*value, entries)) return fail(damage("a name's record makes no sense"));
    for (const NamedObject& entry : entries) {
      if (is_hashed_key(prefix, key) && entry.text != text) continue;
      const auto record = store::find(in(map_format::kObjectsDb), number_key(entry.object));
      MapObject object;
      if (!record || !decode(*record, object)) return fail(damage("a name leads to no object"));
      return object;
    }
    return std::nullopt;
  }
};

MapReader::MapReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
MapReader::MapReader(MapReader&&) noexcept = default;
MapReader& MapReader::operator=(MapReader&&) noexcept = default;
MapReader::~MapReader() = default;

Result<MapReader> MapReader::open(const std::string& path) {
  const auto file = open_regular(path);
  if (file) return open(file->get(), path);
  return fail(map_open_error(path, file.error().code()));
}

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
  if (code == EISDIR || code == ENOEXEC)
    return Error::with_code(ENOEXEC, path, "not a heddle map", "not a regular file");
  return Error::from_errno(path, "cannot open", code);
}

Result<MapReader> MapReader::open(int file, const std::string& path) {
  auto bytes = map_format::file_bytes(file, path);
  if (!bytes) return fail(std::move(bytes.error()));
  if (auto whole = check_bytes(path, *bytes); !whole) return fail(std::move(whole.error()));
  auto state = std::make_unique<State>(State{path, std::move(*bytes), {}});
  const std::string_view pages(state->bytes.data(), state->bytes.size() - map_format::kTrailerSize);
  auto dbs = store::read_databases(pages);
  if (!dbs) return fail(damaged(path, dbs.error().message()));
  for (const char* name :
       {map_format::kMetaDb, map_format::kViewsDb, map_format::kNamesDb, map_format::kObjectsDb,
        map_format::kPathsDb, map_format::kProgramsDb, map_format::kGeneratedDb})
    if (!dbs->contains(name))
      return fail(damaged(path, fmt::format("it has no database '{}'", name)));
  state->dbs = std::move(*dbs);
  return MapReader(std::move(state));
}

ContentHash MapReader::id() const { return hash_bytes(state_->bytes); }

Result<MapContent> MapReader::read_all() const {
  const State& s = *state_;
  map_format::Meta meta;
  const auto head = store::find(s.in(map_format::kMetaDb), "meta");
  if (!head || !decode(*head, meta)) return fail(s.damage("its head makes no sense"));

  MapContent out;
  out.host = meta.host;
  bool any_hashed = false;
  const auto add = [&](std::string_view prefix, std::string_view key, std::string_view value,
                       std::vector<std::pair<std::string, ObjectId>>& list) {
    std::vector<NamedObject> entries;
    if (!decode(value, entries)) return false;
    const bool hashed = is_hashed_key(prefix, key);
    any_hashed |= hashed;
    for (NamedObject& entry : entries)
      list.emplace_back(hashed ? std::move(entry.text) : std::string(key.substr(prefix.size())),
                        entry.object);
    return true;
  };
  auto done = s.numbered(map_format::kObjectsDb, meta.objects, out.objects);
  if (done) done = s.numbered(map_format::kViewsDb, meta.views, out.views);
  if (done) done = s.numbered(map_format::kProgramsDb, meta.programs, out.programs);
  if (done)
    done = s.each(map_format::kNamesDb, [&](std::string_view key, std::string_view value) {
      const auto view = number_of_key(key.substr(0, 4));
      return view && *view < out.views.size() &&
             add(key.substr(0, 4), key, value, out.views[*view].names);
    });
  if (done)
    done = s.each(map_format::kPathsDb, [&](std::string_view key, std::string_view value) {
      return add({}, key, value, out.paths);
    });
  if (done)
    done = s.each(map_format::kGeneratedDb, [&](std::string_view key, std::string_view value) {
      out.generated.emplace_back(key, value);
      return true;
    });
  if (!done) return fail(std::move(done.error()));
  if (any_hashed) {  // those came in their hashes' order
    for (MapView& view : out.views) std::sort(view.names.begin(), view.names.end());
    std::sort(out.paths.begin(), out.paths.end());
  }
  if (const std::string why = map_format::broken_rule(out); !why.empty())
    return fail(s.damage(why));
  return out;
}

Result<std::optional<MapObject>> MapReader::lookup(std::string_view view,
                                                   std::string_view name) const {
  const State& s = *state_;
  std::optional<std::uint32_t> found;
  for (const auto& [key, text] : s.in(map_format::kViewsDb))
    if (view.empty() || text == view) found = number_of_key(key);
  if (view.empty() && s.in(map_format::kViewsDb).size() > 1)
    return fail(Error::with_code(EINVAL, s.path, "which view? the map has several"));
  if (!found) return std::nullopt;
  return s.find(map_format::kNamesDb, number_key(*found), name);
}

Result<std::optional<MapObject>> MapReader::lookup_path(std::string_view path) const {
  return state_->find(map_format::kPathsDb, {}, path);
}

}  // namespace heddle
