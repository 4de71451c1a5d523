// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/map/tree_index.hpp"
#include "resolver/store/databases.hpp"
#include "ship/bundle/bundle_format.hpp"

namespace heddle {

/// A finished map, read only, or that of a bundle. Safe for concurrent readers. Its bytes are
/// untrusted: they are read into memory once, so that what was checked is what is used, and each
/// record is checked.
class MapReader {
 public:
  /// Fails, naming path and reason, on: not a map (ENOEXEC), another format version (ENOTSUP),
  /// truncated or damaged (EBADMSG), a bundle at a path ID.bundle of another id (ESTALE), and
  /// errors of open(2).
  static Result<MapReader> open(const std::string& path);
  /// Of the file that `file` is open on, called `path`; `file` stays the caller's.
  static Result<MapReader> open(int file, const std::string& path);

  /// The SHA-256 of all its bytes: its identity (the trace header's map id). A bundle's is the
  /// bundle's: two of one map may have different files.
  ContentHash id() const;
  /// Null: it is a map alone.
  std::shared_ptr<const BundleIndex> bundle() const { return bundle_; }
  /// Everything, checked for consistency (EBADMSG).
  Result<MapContent> read_all() const;
  /// All its bytes, without those of a bundle around it.
  std::shared_ptr<const std::string> bytes() const { return bytes_; }
  /// The trees of read_all(), in their order, as views of bytes(): paths and indexes.
  Result<std::vector<std::pair<std::string_view, TreeIndex>>> trees() const;

 private:
  MapReader() = default;
  std::string path_;
  std::shared_ptr<const std::string> bytes_;
  store::Databases databases_;  ///< views into the bytes
  std::shared_ptr<const BundleIndex> bundle_;
};

/// Whether this process may use the map at `path`, whose file is `status`. A map chooses the
/// libraries that programs load: root uses only maps that no other user can have written (EPERM).
Result<void> check_map_owner(const struct stat& status, const std::string& path);
/// Whether root may open a map by `path`: only root may be able to put another map there (EPERM).
Result<void> check_map_path(const std::string& path);

/// MapReader::open()'s error for an open_regular() that failed with `code`.
Error map_open_error(const std::string& path, int code);

/// Writes `content` as one immutable LMDB file with its trailer at `path`: aside, fsynced, renamed.
/// EINVAL: `content` breaks the rules of map_content.hpp. On failure an old file is unchanged.
Result<void> write_map(const MapContent& content, const std::string& path);

}  // namespace heddle
