// SPDX-License-Identifier: MIT
#include "resolver/map/map_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/fd.hpp"
#include "base/mapped_file.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/store/store.hpp"

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

/// Checks all bytes; the trailer's hash is the map's id.
Result<ContentHash> check_bytes(const std::string& path, std::string_view bytes) {
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
  if (hash_bytes(bytes.substr(0, hashed)) != trailer->hash)
    return fail(damaged(path, "its checksum is wrong"));
  return trailer->hash;
}

struct Databases {
  store::Dbi meta, views, names, objects, paths, programs, generated;
};

Result<Databases> open_databases(const store::Env& env, const std::string& path) {
  auto txn = env.begin_read();
  if (!txn) return fail(std::move(txn.error()));
  std::vector<store::Dbi> found;
  for (const char* name :
       {map_format::kMetaDb, map_format::kViewsDb, map_format::kNamesDb, map_format::kObjectsDb,
        map_format::kPathsDb, map_format::kProgramsDb, map_format::kGeneratedDb}) {
    auto dbi = txn->open(name);
    if (!dbi) return fail(std::move(dbi.error()));
    if (!*dbi) return fail(damaged(path, fmt::format("it has no database '{}'", name)));
    found.push_back(**dbi);
  }
  if (auto kept = txn->keep_handles(); !kept) return fail(std::move(kept.error()));
  return Databases{found[0], found[1], found[2], found[3], found[4], found[5], found[6]};
}

}  // namespace

struct MapReader::State {
  std::string path;
  ContentHash id;
  store::Env env;
  Databases dbs;

  Error damage(std::string_view why) const { return damaged(path, why); }

  /// Calls `take(key, value)` for each entry; it returns false for one that makes no sense.
  template <class Take>
  Result<void> each(const store::ReadTxn& txn, store::Dbi dbi, std::string_view what,
                    Take take) const {
    auto cursor = txn.cursor(dbi);
    if (!cursor) return fail(std::move(cursor.error()));
    for (auto entry = cursor->first();; entry = cursor->next()) {
      if (!entry) return fail(std::move(entry.error()));
      if (!*entry) return {};
      if (!take((*entry)->first, (*entry)->second))
        return fail(damage(fmt::format("a record of '{}' makes no sense", what)));
    }
  }

  /// All records of a database whose keys are 0, 1, 2, ...
  template <class T>
  Result<void> numbered(const store::ReadTxn& txn, store::Dbi dbi, std::string_view what,
                        std::size_t count, std::vector<T>& out) const {
    out.reserve(std::min<std::size_t>(count, 1U << 20));
    auto done = each(txn, dbi, what, [&](std::string_view key, std::string_view value) {
      if (number_of_key(key) != out.size()) return false;
      if constexpr (std::is_same_v<T, MapView>) {
        out.emplace_back().name = value;
        return true;
      } else {
        return decode(value, out.emplace_back());
      }
    });
    if (done && out.size() != count)
      return fail(damage(fmt::format("records of '{}' are missing", what)));
    return done;
  }

  Result<std::optional<MapObject>> find(store::Dbi dbi, std::string_view prefix,
                                        std::string_view text) const {
    auto txn = env.begin_read();
    if (!txn) return fail(std::move(txn.error()));
    const std::string key = map_format::text_key(prefix, text);
    auto value = txn->get(dbi, key);
    if (!value) return fail(std::move(value.error()));
    if (!*value) return std::nullopt;
    std::vector<NamedObject> entries;
    if (!decode(**value, entries)) return fail(damage("a name's record makes no sense"));
    for (const NamedObject& entry : entries) {
      if (is_hashed_key(prefix, key) && entry.text != text) continue;
      auto bytes = txn->get(dbs.objects, number_key(entry.object));
      if (!bytes) return fail(std::move(bytes.error()));
      MapObject object;
      if (!*bytes || !decode(**bytes, object)) return fail(damage("a name leads to no object"));
      return object;
    }
    return std::nullopt;
  }
};

MapReader::MapReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
MapReader::MapReader(MapReader&&) noexcept = default;
MapReader& MapReader::operator=(MapReader&&) noexcept = default;
MapReader::~MapReader() = default;

Result<MapReader> MapReader::open(const std::string& path) { return open_at(path, path); }

Result<MapReader> MapReader::open(int file, const std::string& path) {
  return open_at("/proc/self/fd/" + std::to_string(file), path);
}

/// The map at `place`, which is called `path`.
Result<MapReader> MapReader::open_at(const std::string& place, const std::string& path) {
  // Another process may publish a new map between our check and LMDB's own open of the path; what
  // was checked must be what is read.
  for (int attempt = 0; attempt < 10; ++attempt) {
    auto fd = open_file(place, O_RDONLY | O_NONBLOCK);  // a FIFO must not hold us
    if (!fd) return fail_errno(path, "cannot open", fd.error().code());
    struct stat checked {
    }, opened{};
    if (::fstat(fd->get(), &checked) != 0) return fail_errno(path, "cannot stat");
    if (!S_ISREG(checked.st_mode))
      return fail(Error::with_code(ENOEXEC, path, "not a heddle map", "not a regular file"));
    auto file = MappedFile::map(fd->get(), path);
    if (!file) return fail(std::move(file.error()));
    auto id = check_bytes(path, file->bytes());
    if (!id) return fail(std::move(id.error()));
    auto env = store::Env::open(
        place, {.access = store::Access::read_only, .locking = store::Locking::none});
    if (!env) return fail(std::move(env.error()));
    if (::fstat(env->fd(), &opened) != 0) return fail_errno(path, "cannot stat");
    if (file_id(opened) != file_id(checked)) continue;
    auto dbs = open_databases(*env, path);
    if (!dbs) return fail(std::move(dbs.error()));
    return MapReader(std::make_unique<State>(State{path, *id, std::move(*env), *dbs}));
  }
  return fail_errno(path, "cannot read: it is being replaced all the time", EAGAIN);
}

const ContentHash& MapReader::id() const { return state_->id; }

Result<MapContent> MapReader::read_all() const {
  const State& s = *state_;
  auto txn = s.env.begin_read();
  if (!txn) return fail(std::move(txn.error()));
  map_format::Meta meta;
  auto bytes = txn->get(s.dbs.meta, "meta");
  if (!bytes) return fail(std::move(bytes.error()));
  if (!*bytes || !decode(**bytes, meta)) return fail(s.damage("its head makes no sense"));

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
  auto done = s.numbered(*txn, s.dbs.objects, map_format::kObjectsDb, meta.objects, out.objects);
  if (done) done = s.numbered(*txn, s.dbs.views, map_format::kViewsDb, meta.views, out.views);
  if (done)
    done = s.numbered(*txn, s.dbs.programs, map_format::kProgramsDb, meta.programs, out.programs);
  if (done)
    done = s.each(*txn, s.dbs.names, map_format::kNamesDb,
                  [&](std::string_view key, std::string_view value) {
                    const auto view = number_of_key(key.substr(0, 4));
                    return view && *view < out.views.size() &&
                           add(key.substr(0, 4), key, value, out.views[*view].names);
                  });
  if (done)
    done = s.each(*txn, s.dbs.paths, map_format::kPathsDb,
                  [&](std::string_view key, std::string_view value) {
                    return add({}, key, value, out.paths);
                  });
  if (done)
    done = s.each(*txn, s.dbs.generated, map_format::kGeneratedDb,
                  [&](std::string_view key, std::string_view value) {
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
  std::size_t views = 0;
  {
    auto txn = s.env.begin_read();
    if (!txn) return fail(std::move(txn.error()));
    auto done = s.each(*txn, s.dbs.views, map_format::kViewsDb,
                       [&](std::string_view key, std::string_view v) {
                         ++views;
                         if (view.empty() || v == view) found = number_of_key(key);
                         return key.size() == 4;
                       });
    if (!done) return fail(std::move(done.error()));
  }
  if (view.empty() && views > 1)
    return fail(Error::with_code(EINVAL, s.path, "which view? the map has several"));
  if (!found) return std::nullopt;
  return s.find(s.dbs.names, number_key(*found), name);
}

Result<std::optional<MapObject>> MapReader::lookup_path(std::string_view path) const {
  return state_->find(state_->dbs.paths, {}, path);
}

}  // namespace heddle
