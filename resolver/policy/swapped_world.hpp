// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <vector>

#include "base/elf_file.hpp"
#include "resolver/search/os_world.hpp"

namespace heddle::policy {

/// A file of the mount that is bound over one of the container.
struct Bound {
  std::string source;  ///< relative to the mount's root
  std::string why;
  /// The file of the host, or else of the container, with its facts; both empty: of another ELF
  /// class, which ld.so skips.
  std::string host{};
  std::string inside{};
  std::string bytes{};  ///< of a generated file: another's, changed
};

/// The mount and the binds of a decision.
struct Placed {
  std::string mount_point;                   ///< no slash at its end
  std::map<std::string, std::string> names;  ///< name below the mount -> host's file
  std::map<std::string, Bound> binds;        ///< by target, free of links
  std::string cache_path;                    ///< that ld.so reads
  std::string cache;                         ///< bytes
};

/// The container's file system with a decision's mount, binds and ld.so.cache, for resolving its
/// programs again.
class SwappedWorld final : public World {
 public:
  SwappedWorld(OsWorld& inside, OsWorld& host, const Placed& placed)
      : inside_(inside), host_(host), placed_(placed) {}

  World::DirId directory(std::string_view path) override {
    if (!is_below_mount(path)) return inside_.directory(path);
    auto relative = std::string(path.substr(std::min(path.size(), placed_.mount_point.size() + 1)));
    if (!relative.empty() && !relative.ends_with('/')) relative += '/';
    directories_.push_back(std::move(relative));
    return kBelowMount | static_cast<DirId>(directories_.size() - 1);
  }
  World::DirId subdirectory(DirId base, std::string_view relative) override {
    if ((base & kBelowMount) == 0) return inside_.subdirectory(base, relative);
    directories_.push_back(directories_[base & ~kBelowMount] + std::string(relative));
    return kBelowMount | static_cast<DirId>(directories_.size() - 1);
  }
  World::DirState state(DirId dir) override {
    if ((dir & kBelowMount) == 0) return inside_.state(dir);
    const auto& directory = directories_[dir & ~kBelowMount];
    const auto at = placed_.names.lower_bound(directory);
    const bool there = at != placed_.names.end() && at->first.starts_with(directory);
    return there ? DirState{} : DirState{ENOENT, false};
  }
  World::Presence entry(DirId dir, const EntryName& name) override {
    if ((dir & kBelowMount) == 0) return inside_.entry(dir, name);
    const auto path = directories_[dir & ~kBelowMount] + std::string(name.text);
    const auto at = placed_.names.lower_bound(path);
    const bool there =
        at != placed_.names.end() && (at->first == path || at->first.starts_with(path + "/"));
    return there ? Presence::present : Presence::absent;
  }
  Result<FileFacts> facts(const std::string& path) override {
    if (const auto host = host_file(path); !host.empty()) return host_.facts(host);
    if (is_below_mount(path)) return fail_errno(path, "cannot open", ENOENT);
    const auto* over = bound(path);
    if (over == nullptr) return inside_.facts(path);
    if (over->inside.empty()) return fail_errno(path, "is no library", ENOEXEC);
    return inside_.facts(over->inside);
  }
  void prefetch(const std::vector<std::string>&) override {}
  Result<std::string> read(const std::string& path, Part part) override {
    if (path == placed_.cache_path) return placed_.cache;
    if (const auto* over = bound(path); over != nullptr && !over->bytes.empty())
      return over->bytes.substr(0, part == Part::head ? kElfHeaderSize : std::string::npos);
    const auto host = host_file(path);
    return host.empty() ? inside_.read(path, part) : host_.read(host, part);
  }
  using World::read;
  std::string real_path(const std::string& path) override {
    return is_below_mount(path) ? path : inside_.real_path(path);
  }

  /// The host's file that `path` leads to; empty: a file of the container.
  std::string host_file(const std::string& path) {
    if (is_below_mount(path)) {
      const auto at =
          placed_.names.find(path.substr(std::min(path.size(), placed_.mount_point.size() + 1)));
      return at == placed_.names.end() ? "" : at->second;
    }
    const auto* over = bound(path);
    return over == nullptr ? "" : over->host;
  }

 private:
  /// Numbers of directories below the mount point have this bit.
  static constexpr DirId kBelowMount = DirId{1} << 31;
  bool is_below_mount(std::string_view path) const {
    return path.starts_with(placed_.mount_point) &&
           (path.size() == placed_.mount_point.size() || path[placed_.mount_point.size()] == '/');
  }
  const Bound* bound(const std::string& path) {
    if (placed_.binds.empty() || is_below_mount(path)) return nullptr;
    const auto at = placed_.binds.find(inside_.real_path(path));
    return at == placed_.binds.end() ? nullptr : &at->second;
  }

  OsWorld& inside_;
  OsWorld& host_;
  const Placed& placed_;
  std::vector<std::string> directories_;  ///< relative to the mount point: "" or "ucx/"
};

}  // namespace heddle::policy
