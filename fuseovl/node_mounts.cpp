// SPDX-License-Identifier: MIT
#include "fuseovl/node_mounts.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/exit_code.hpp"
#include "fuseovl/mount/kernel_mount.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// A map is an image with a program; a node that runs more at once is thinkable, but not that all
/// stay in use.
constexpr std::size_t kMostMounts = 32;

bool is_mounted(const std::string& place) {
  const auto mounted = find_mount(place);
  return mounted && *mounted && (*mounted)->type == kMountType;
}

/// What was written to it, from its beginning.
std::string words_in(const Fd& file) {
  (void)::lseek(file.get(), 0, SEEK_SET);
  auto words = read_all(file.get(), "fs-mount").value_or("");
  while (words.ends_with('\n')) words.pop_back();
  return words.empty() ? "fs-mount: it ended without a word" : words;
}

}  // namespace

NodeMounts::NodeMounts(std::string folder) : folder_(std::move(folder)) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(folder_, gone))
    if (const auto id = entry.path().filename().string(); is_id(id)) ids_.push_back(id);
  for (const auto& id : std::list(ids_))
    if (!is_mounted(place(id)) || is_dead(place(id))) drop(id);
}

bool NodeMounts::is_id(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool NodeMounts::has(const std::string& id) {
  const auto found = std::find(ids_.begin(), ids_.end(), id);
  if (found == ids_.end()) return false;
  if (is_mounted(place(id)) && !is_dead(place(id))) {
    ids_.splice(ids_.begin(), ids_, found);
    return true;
  }
  drop(id);
  return false;
}

Result<void> NodeMounts::make(MountSettings settings, const std::string& id, int map) const {
  if (::mkdir(place(id).c_str(), 0755) != 0 && errno != EEXIST)
    return fail_errno(place(id), "cannot make the mount point");
  const Fd words(::memfd_create("heddle-words", MFD_CLOEXEC));
  if (!words) return fail_errno("fs-mount", "cannot start a daemon");
  ::dup2(words.get(), STDERR_FILENO);
  settings.load.map_fd = map;
  settings.mount_point = place(id);
  settings.foreground = false;
  if (mount_program(settings) == exit_done) return {};
  return fail(Error({}, words_in(words)));
}

void NodeMounts::add(const std::string& id) {
  if (ids_.size() >= kMostMounts) drop(ids_.back());
  ids_.push_front(id);
}

void NodeMounts::drop(const std::string& id) {
  const auto where = place(id);
  if (is_mounted(where)) (void)unmount_fuse(where, Unmount::detach);
  (void)::rmdir(where.c_str());
  ids_.remove(std::string(id));  // `id` may be one of these
}

void NodeMounts::drop_all() {
  while (!ids_.empty()) drop(ids_.front());
}

}  // namespace heddle
