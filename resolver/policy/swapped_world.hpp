// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "resolver/search/os_world.hpp"

namespace heddle::policy {

/// A file of the mount over one of the container.
struct Bound {
  std::string source;  ///< relative to the mount's root
  std::string why;
  /// The file of the host, or else of the container, whose facts it has; both empty: it is of
  /// another ELF class, so that ld.so goes on.
  std::string host{};
  std::string inside{};
  std::string bytes{};  ///< of one that the decision makes: another's, changed
};

/// What a decision puts into the container.
struct Placed {
  std::string mount_point;                   ///< no slash at its end
  std::map<std::string, std::string> names;  ///< name below the mount -> host's file
  std::map<std::string, Bound> binds;        ///< by target, free of links
  std::string cache_path;                    ///< that ld.so reads
  std::string cache;                         ///< bytes
};

/// The container's file system as it will be when a decision is in place: the mount with files of
/// the host, files bound over others, a new ld.so.cache. For resolving its programs once more.
class SwappedWorld final : public World {
 public:
  SwappedWorld(OsWorld& inside, OsWorld& host, const Placed& placed)
      : inside_(inside), host_(host), placed_(placed) {}

  DirId directory(std::string_view path) override;
  DirId subdirectory(DirId base, std::string_view relative) override;
  DirState state(DirId dir) override;
  Presence entry(DirId dir, const EntryName& name) override;
  Result<FileFacts> facts(const std::string& path) override;
  void prefetch(const std::vector<std::string>&) override {}
  Result<std::string> head(const std::string& path) override;
  Result<std::string> read(const std::string& path) override;
  std::string real_path(const std::string& path) override;

  /// The host's file that stands at `path`; empty: the container's own.
  std::string host_file(const std::string& path);

 private:
  /// Directories below the mount point are ours: their numbers have this bit.
  static constexpr DirId kOurs = DirId{1} << 31;
  bool is_ours(std::string_view path) const;
  const Bound* bound(const std::string& path);

  OsWorld& inside_;
  OsWorld& host_;
  const Placed& placed_;
  std::vector<std::string> directories_;  ///< relative to the mount point: "" or "ucx/"
};

}  // namespace heddle::policy
