// SPDX-License-Identifier: MIT
//
// The map file: its rules, its reader and its writer.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>
#include <unordered_set>

#include "base/elf_file.hpp"
#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/served_names.hpp"
#include "resolver/map/tree_index.hpp"
#include "ship/bundle/bundle_file.hpp"

namespace heddle::map_format {
namespace {

constexpr std::size_t kMaxGeneratedName = 255;

bool has_nul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

bool is_absolute(std::string_view path) { return path.starts_with('/') && !has_nul(path); }

bool is_key_path(std::string_view path) { return is_absolute(path) && path.size() <= kMaxText; }

/// No empty, "." or ".." component, no NUL.
bool is_tree_path(std::string_view name) {
  if (name.empty() || has_nul(name)) return false;
  for (std::size_t start = 0; start <= name.size();) {
    const std::size_t end = std::min(name.find('/', start), name.size());
    const std::string_view part = name.substr(start, end - start);
    if (part.empty() || part == "." || part == "..") return false;
    start = end + 1;
  }
  return true;
}

bool is_relative_name(std::string_view name) {
  return name.size() <= kMaxText && is_tree_path(name);
}

tl::unexpected<Error> broken(std::string_view what, std::string_view name, std::string_view why) {
  return fail("", fmt::format("{} '{}' {}", what, escape_for_terminal(name), why));
}

template <class List, class Name>
Result<void> check_order(std::string_view what, const List& list, Name name) {
  const auto at = std::ranges::adjacent_find(list, std::ranges::greater_equal{}, name);
  if (at == list.end()) return {};
  return broken(what, std::invoke(name, *std::next(at)), "is out of order or double");
}

using Entry = std::pair<std::string, ObjectId>;

template <class Valid>
Result<void> check_list(std::string_view what, const std::vector<Entry>& list, std::size_t objects,
                        Valid valid) {
  for (const auto& [text, object] : list) {
    if (!valid(text)) return broken(what, text, "is not allowed");
    if (object >= objects) return broken(what, text, "leads to no object");
  }
  return check_order(what, list, &Entry::first);
}

Result<void> check_view(const MapView& view, std::size_t objects) {
  if (!is_relative_name(view.name) || view.name.find('/') != std::string::npos)
    return broken("view name", view.name, "is not allowed");
  TRY(check_list("name", view.names, objects, is_relative_name));
  // A name cannot be a file and the directory of others.
  std::unordered_set<std::string_view> directories;
  for (const auto& [name, object] : view.names)
    for (auto slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
      directories.insert(std::string_view(name).substr(0, slash));
  for (const auto& [name, object] : view.names)
    if (directories.contains(name)) return broken("name", name, "is a file and a directory");
  return {};
}

Result<void> check_program(const MapProgram& program, const MapContent& content) {
  const auto is_object = [&](ObjectId id) { return id < content.objects.size(); };
  if (!is_absolute(program.path)) return broken("program", program.path, "has no absolute path");
  if (!is_object(program.object)) return broken("program", program.path, "is no object");
  if (program.view >= content.views.size()) return broken("program", program.path, "has no view");
  if (!std::ranges::all_of(program.libraries, is_object, &MapLibrary::object))
    return broken("program", program.path, "has a library that is no object");
  return check_list("guided name", program.guided, content.objects.size(),
                    [](std::string_view name) {
                      const auto end = name.find('\0');
                      const auto caller = name.substr(end == name.npos ? name.size() : end + 1);
                      return !name.empty() && end != 0 && (caller.empty() || is_absolute(caller));
                    });
}

/// The key of the directory that holds `path`; empty: the root.
std::string_view parent_of(std::string_view path) { return path.substr(0, path.rfind('/')); }

Result<void> check_trees(const std::vector<MapTree>& trees) {
  for (const MapTree& tree : trees) {
    const std::string_view path = tree.path;
    if (path.size() >= PATH_MAX || !path.starts_with('/') || !is_tree_path(path.substr(1)))
      return broken("tree", path, "has no canonical path");
    if (const auto index = TreeIndex::of(tree.index); !index)
      return broken("tree", path, index.error().message());
  }
  TRY(check_order("tree", trees, &MapTree::path));
  for (const MapTree& tree : trees)
    for (auto above = parent_of(tree.path); !above.empty(); above = parent_of(above))
      if (std::ranges::binary_search(trees, above, {}, &MapTree::path))
        return broken("tree", tree.path, "is within another");
  return {};
}

}  // namespace

Result<void> check_rules(const MapContent& content) {
  // Also keeps every number within the 32 bits of its record.
  if (content.objects.size() >= UINT32_MAX) return fail("", "too many objects");
  for (const MapObject& object : content.objects)
    if (!is_absolute(object.path)) return broken("object", object.path, "has no absolute path");
  TRY(check_order("object", content.objects, &MapObject::path));
  for (const MapView& view : content.views) TRY(check_view(view, content.objects.size()));
  TRY(check_order("view", content.views, &MapView::name));
  for (const MapProgram& program : content.programs) TRY(check_program(program, content));
  TRY(check_order("program", content.programs, &MapProgram::path));
  for (const auto& [name, bytes] : content.generated) {
    // The daemon makes these three.
    const bool is_own = name.starts_with(kOwnPrefix);
    const auto file = std::string_view(name).substr(is_own ? kOwnPrefix.size() : 0);
    const bool taken = is_own && (file == "index" || file == "map" || file == "stats");
    if (taken || !is_relative_name(file) || file.find('/') != file.npos ||
        file.size() > kMaxGeneratedName)
      return broken("generated file", name, "is not allowed");
  }
  TRY(check_order("generated file", content.generated,
                  &std::pair<std::string, std::string>::first));
  if (content.generated.size() > kMaxGenerated) return fail("", "too many generated files");
  TRY(check_trees(content.trees));
  return check_list("path", content.paths, content.objects.size(), is_key_path);
}

std::string with_trailer(std::string pages) {
  Encoder coder;
  coder(kMapVersion, std::uint32_t{0}, std::uint64_t{pages.size()});
  pages.append(kMapMagic).append(coder.take());
  const Checksum hash = checksum_of(pages);
  return pages.append(hash.bytes.begin(), hash.bytes.end());
}

std::string number_key(std::uint32_t number) {
  std::string key;
  for (int shift = 24; shift >= 0; shift -= 8) key += static_cast<char>(number >> shift);
  return key;
}

std::optional<std::uint32_t> number_of_key(std::string_view key) {
  if (key.size() != 4) return {};
  std::uint32_t number = 0;
  for (const char byte : key) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

}  // namespace heddle::map_format

namespace heddle {
namespace {

using map_format::decode;
using map_format::encode;
using map_format::number_key;
using map_format::number_of_key;

Error damaged(const std::string& path, std::string_view why) {
  return Error::with_code(EBADMSG, path, "damaged map", why, "rebuild it with fs-resolve build");
}

constexpr const char* kMakesMap = "fs-resolve build -o MAP APP makes one";

Error no_regular_file(const std::string& path) {
  return Error::with_code(ENOEXEC, path, "not a heddle map", "not a regular file");
}

/// All bytes of the open file, copied: others may go on writing to it.
Result<std::string> file_bytes(int file, const std::string& path) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return fail_errno(path, "cannot stat");
  if (!S_ISREG(status.st_mode)) return fail(no_regular_file(path));
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size > map_format::kMaxMap) return fail_errno(path, "cannot read", EFBIG);
  auto bytes = FileBytes(file, size).text(0, size);
  if (!bytes) return fail_errno(path, "cannot read", EIO);
  return std::move(*bytes);
}

bool looks_like_lmdb(std::string_view bytes) {
  // mdb.c: a page header of 16 bytes, then MDB_meta, whose first word is MDB_MAGIC.
  constexpr std::uint32_t kLmdbMagic = 0xBEEFC0DE;
  std::uint32_t magic = 0;
  if (bytes.size() < 20) return false;
  std::memcpy(&magic, bytes.data() + 16, sizeof magic);
  return magic == kLmdbMagic;
}

/// The pages in a map's bytes. The checksum tells accidents, not attacks.
Result<std::string_view> pages_of(const std::string& path, std::string_view bytes) {
  constexpr auto kSize = map_format::kTrailerSize;
  const auto pages = bytes.substr(0, bytes.size() - std::min(bytes.size(), kSize));
  const auto trailer = bytes.substr(pages.size());
  if (trailer.size() < kSize || !trailer.starts_with(map_format::kMapMagic)) {
    if (looks_like_lmdb(bytes)) return fail(damaged(path, "its end is missing"));
    return fail(Error::with_code(ENOEXEC, path, "not a heddle map", "", kMakesMap));
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
                                 {}, "rebuild it with fs-resolve build"));
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
    TRY(numbered(map_format::kTreesDb, meta.trees, out.trees));
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
  /// Calls `take(key, value)` for each entry; false: the entry is invalid.
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

/// Whether a bundle's tables are those of the map's objects and trees, each file within the stream.
bool is_of(const BundleIndex& bundle, const MapContent& content) {
  const auto fits = [&](std::uint64_t place, std::uint64_t size) {
    return place == kAtOrigin || size <= bundle.stream_size - place;
  };
  if (bundle.objects.size() != content.objects.size()) return false;
  if (bundle.trees.size() != content.trees.size()) return false;
  for (std::size_t id = 0; id < content.objects.size(); ++id)
    if (!fits(bundle.objects[id], content.objects[id].stamp.size)) return false;
  for (std::size_t i = 0; i < content.trees.size(); ++i) {
    const auto tree = TreeIndex::of(content.trees[i].index);
    if (!tree || bundle.trees[i].size() != tree->size()) return false;
    for (TreeNodeId id = 0; id < tree->size(); ++id) {
      if (bundle.trees[i][id] == kAtOrigin) continue;
      const TreeNode node = tree->node(id);
      if (!S_ISREG(node.mode) || node.hole || !fits(bundle.trees[i][id], node.size)) return false;
    }
  }
  return true;
}

/// A database's content in key order, so that equal content makes equal bytes.
using Table = std::vector<std::pair<std::string, std::string>>;

Result<std::string> make_pages(const MapContent& content) {
  std::map<std::string_view, Table> tables;
  const map_format::Meta meta{map_format::kMapVersion,
                              content.host,
                              static_cast<std::uint32_t>(content.objects.size()),
                              static_cast<std::uint32_t>(content.views.size()),
                              static_cast<std::uint32_t>(content.programs.size()),
                              static_cast<std::uint32_t>(content.trees.size())};
  tables[map_format::kMetaDb].emplace_back("meta", encode(meta));
  auto& names = tables[map_format::kNamesDb];
  auto& paths = tables[map_format::kPathsDb];
  const auto add_numbered = [&](const char* database, const auto& list, auto text_of) {
    auto& records = tables[database];
    std::uint32_t id = 0;
    for (const auto& one : list) records.emplace_back(number_key(id++), text_of(one));
  };
  add_numbered(map_format::kObjectsDb, content.objects, [](const auto& o) { return encode(o); });
  add_numbered(map_format::kProgramsDb, content.programs, [](const auto& p) { return encode(p); });
  add_numbered(map_format::kTreesDb, content.trees, [](const auto& t) { return encode(t); });
  add_numbered(map_format::kViewsDb, content.views, [](const auto& view) { return view.name; });
  for (ViewId id = 0; id < content.views.size(); ++id)
    for (const auto& [name, object] : content.views[id].names)
      names.emplace_back(number_key(id) + name, encode(object));
  for (const auto& [path, object] : content.paths) paths.emplace_back(path, encode(object));
  tables[map_format::kGeneratedDb] = content.generated;
  store::Databases databases;
  for (const auto& [name, records] : tables) databases[name].assign(records.begin(), records.end());
  return store::write_databases(databases);
}

/// What fs-ship has put on this node, or a link to it, is called ID.bundle: bytes that came by
/// another way than the id must be those of the id.
Result<void> check_bundle_name(const std::string& path, const ContentHash& id) {
  constexpr std::string_view kEnd = ".bundle";
  const auto name = std::string_view(path).substr(path.rfind('/') + 1);
  const auto stem = name.substr(0, name.size() - std::min(kEnd.size(), name.size()));
  const bool is_id = name.ends_with(kEnd) && stem.size() == id.hex().size() &&
                     stem.find_first_not_of("0123456789abcdef") == stem.npos;
  if (!is_id || stem == id.hex()) return {};
  return fail(Error::with_code(ESTALE, path, "is another bundle than its name says", id.hex(),
                               "fs-ship BUNDLE once more, or another name"));
}

}  // namespace

Result<MapReader> MapReader::open(const std::string& path) {
  const auto file = open_regular(path);
  if (file) return open(file->get(), path);
  return fail(map_open_error(path, file.error().code()));
}

Result<MapReader> MapReader::open(int file, const std::string& path) {
  MapReader out;
  out.path_ = path;
  std::string bytes;
  if (is_bundle(file)) {
    auto bundle = TRY(BundleFile::read(file, path));
    TRY(check_bundle_name(path, bundle.index.id));
    out.bundle_ = std::make_shared<const BundleIndex>(std::move(bundle.index));
    bytes = std::move(bundle.map);
  } else {
    bytes = TRY(file_bytes(file, path));
  }
  out.bytes_ = std::make_shared<const std::string>(std::move(bytes));
  const auto pages = TRY(pages_of(path, *out.bytes_));
  auto databases = store::read_databases(pages);
  if (!databases) return fail(damaged(path, databases.error().message()));
  for (const char* name : {map_format::kMetaDb, map_format::kViewsDb, map_format::kNamesDb,
                           map_format::kObjectsDb, map_format::kPathsDb, map_format::kProgramsDb,
                           map_format::kGeneratedDb, map_format::kTreesDb})
    if (!databases->contains(name))
      return fail(damaged(path, fmt::format("it has no database '{}'", name)));
  out.databases_ = std::move(*databases);
  return out;
}

ContentHash MapReader::id() const { return bundle_ ? bundle_->id : hash_bytes(*bytes_); }

Result<MapContent> MapReader::read_all() const {
  auto content = TRY(Records(path_, databases_).read());
  if (bundle_ && !is_of(*bundle_, content))
    return fail(Error::with_code(EBADMSG, path_, "damaged bundle", "its files are not its map's"));
  return content;
}

Result<std::vector<std::pair<std::string_view, TreeIndex>>> MapReader::trees() const {
  std::vector<std::pair<std::string_view, TreeIndex>> out;
  for (const auto& [key, record] : databases_.at(map_format::kTreesDb)) {
    std::string_view path, bytes;
    Decoder coder(record);
    coder(path, bytes);
    const auto index = TreeIndex::of(bytes);
    if (!coder.complete() || !index) return fail(damaged(path_, "a tree makes no sense"));
    out.emplace_back(path, *index);
  }
  return out;
}

Result<void> check_map_owner(const struct stat& status, const std::string& path) {
  if (::geteuid() != 0 || (status.st_uid == 0 && (status.st_mode & 0022) == 0)) return {};
  return fail(Error::with_code(
      EPERM, path, "root does not use this map",
      status.st_uid == 0 ? "others may write to it" : "it belongs to another user",
      "it chooses the libraries that are run: if you trust it, give a copy (cp, chmod go-w)"));
}

Result<void> check_map_path(const std::string& path) {
  if (!is_systems_root()) return {};
  auto trusted = check_trusted_file(std::filesystem::absolute(path));
  if (trusted) return {};
  return fail(Error::with_code(EPERM, path, "root does not use this map", trusted.error().message(),
                               "keep it in a directory that only root may write to"));
}

Error map_open_error(const std::string& path, int code) {
  if (code == EISDIR || code == ENOEXEC) return no_regular_file(path);
  return Error::from_errno(path, "cannot open", code);
}

Result<void> write_map(const MapContent& content, const std::string& path) {
  if (const auto good = map_format::check_rules(content); !good)
    return fail_errno(path, "cannot write a map: " + good.error().message(), EINVAL);
  auto file = TRY(AtomicFile::create(path));
  // Whatever the umask: root uses no map that others may write (map_reader.hpp).
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0 || ::fchmod(file.fd(), status.st_mode & 0755) != 0)
    return fail_errno(path, "cannot write");
  auto pages = make_pages(content);
  if (!pages) return fail_errno(path, "cannot write", pages.error().code());
  if (pages->size() > map_format::kMaxMap - map_format::kTrailerSize)
    return fail_errno(path, "cannot write", EFBIG);
  TRY(file.write(map_format::with_trailer(std::move(*pages))));
  return file.commit();
}

}  // namespace heddle
