// SPDX-License-Identifier: MIT
#include "resolver/policy/swapped_world.hpp"

#include <cerrno>

#include "base/elf_file.hpp"

namespace heddle::policy {

bool SwappedWorld::is_ours(std::string_view path) const {
  return path.starts_with(placed_.mount_point) &&
         (path.size() == placed_.mount_point.size() || path[placed_.mount_point.size()] == '/');
}

World::DirId SwappedWorld::directory(std::string_view path) {
  if (!is_ours(path)) return inside_.directory(path);
  auto relative = std::string(path.substr(std::min(path.size(), placed_.mount_point.size() + 1)));
  if (!relative.empty() && !relative.ends_with('/')) relative += '/';
  directories_.push_back(std::move(relative));
  return kOurs | static_cast<DirId>(directories_.size() - 1);
}

World::DirId SwappedWorld::subdirectory(DirId base, std::string_view relative) {
  if ((base & kOurs) == 0) return inside_.subdirectory(base, relative);
  directories_.push_back(directories_[base & ~kOurs] + std::string(relative));
  return kOurs | static_cast<DirId>(directories_.size() - 1);
}

World::DirState SwappedWorld::state(DirId dir) {
  if ((dir & kOurs) == 0) return inside_.state(dir);
  const auto& directory = directories_[dir & ~kOurs];
  const auto at = placed_.names.lower_bound(directory);
  const bool there = at != placed_.names.end() && at->first.starts_with(directory);
  return there ? DirState{} : DirState{ENOENT, false};
}

World::Presence SwappedWorld::entry(DirId dir, const EntryName& name) {
  if ((dir & kOurs) == 0) return inside_.entry(dir, name);
  const auto path = directories_[dir & ~kOurs] + std::string(name.text);
  const auto at = placed_.names.lower_bound(path);
  const bool there =
      at != placed_.names.end() && (at->first == path || at->first.starts_with(path + "/"));
  return there ? Presence::present : Presence::absent;
}

const Bound* SwappedWorld::bound(const std::string& path) {
  if (placed_.binds.empty() || is_ours(path)) return nullptr;
  const auto at = placed_.binds.find(inside_.real_path(path));
  return at == placed_.binds.end() ? nullptr : &at->second;
}

std::string SwappedWorld::host_file(const std::string& path) {
  if (is_ours(path)) {
    const auto at =
        placed_.names.find(path.substr(std::min(path.size(), placed_.mount_point.size() + 1)));
    return at == placed_.names.end() ? "" : at->second;
  }
  const auto* over = bound(path);
  return over == nullptr ? "" : over->host;
}

Result<FileFacts> SwappedWorld::facts(const std::string& path) {
  if (const auto host = host_file(path); !host.empty()) return host_.facts(host);
  if (is_ours(path)) return fail_errno(path, "cannot open", ENOENT);
  const auto* over = bound(path);
  if (over == nullptr) return inside_.facts(path);
  if (over->inside.empty()) return fail_errno(path, "is no library", ENOEXEC);
  return inside_.facts(over->inside);
}

Result<std::string> SwappedWorld::head(const std::string& path) {
  if (const auto* over = bound(path); over != nullptr && !over->bytes.empty())
    return over->bytes.substr(0, kElfHeaderSize);
  const auto host = host_file(path);
  return host.empty() ? inside_.head(path) : host_.head(host);
}

Result<std::string> SwappedWorld::read(const std::string& path) {
  if (path == placed_.cache_path) return placed_.cache;
  if (const auto* over = bound(path); over != nullptr && !over->bytes.empty()) return over->bytes;
  const auto host = host_file(path);
  return host.empty() ? inside_.read(path) : host_.read(host);
}

std::string SwappedWorld::real_path(const std::string& path) {
  return is_ours(path) ? path : inside_.real_path(path);
}

}  // namespace heddle::policy
