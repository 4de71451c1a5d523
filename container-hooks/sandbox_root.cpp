// SPDX-License-Identifier: MIT
#include "container-hooks/sandbox_root.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "container-hooks/mount_calls.hpp"

namespace heddle {
namespace {

constexpr std::size_t kEmptyFolder = 65536;  ///< for a few names in it
constexpr int kMostLinks = 40;               ///< <linux/namei.h>, MAXSYMLINKS

/// `from` with all that is mounted below it, read-only, over what `target` is open on.
Result<void> place_tree(const std::string& from, const Fd& target, const std::string& name) {
  auto tree = clone_tree(from);
  if (!tree) return fail(std::move(tree.error()));
  if (auto done = make_inert(tree->get(), from); !done) return done;
  return attach_mount(tree->get(), target.get(), name);
}

Result<void> place_over_itself(const std::string& rootfs) {
  const auto before = open_file(rootfs, O_PATH | O_DIRECTORY);
  if (!before) return fail(before.error());
  return place_tree(rootfs, *before, rootfs);
}

/// `rootfs` below an empty folder in memory that takes what is made in it, over `rootfs` itself.
/// What is mounted below it is not part of it.
Result<void> place_overlay(const std::string& rootfs) {
  const auto lower = open_file(rootfs, O_PATH | O_DIRECTORY);
  if (!lower) return fail(lower.error());
  const auto memory = new_tmpfs(kEmptyFolder, Programs::may_not_run);
  if (!memory) return fail(memory.error());
  for (const char* name : {"upper", "work"})
    if (::mkdirat(memory->get(), name, 0755) != 0) return fail_errno(name, "cannot make it");
  // Overlays take no folder of a mount that is in no namespace (fs/namespace.c,
  // clone_private_mount).
  if (auto done = attach_mount(memory->get(), lower->get(), rootfs); !done) return done;
  const auto overlay = new_overlay(lower->get(), memory->get());
  if (!overlay) return fail(overlay.error());
  return attach_mount(overlay->get(), memory->get(), rootfs);
}

/// Where the symbolic link `name` leads; empty: it is none.
std::string target_of_link(const Fd& folder, const std::string& name) {
  char text[PATH_MAX];
  const ssize_t n = ::readlinkat(folder.get(), name.c_str(), text, sizeof(text));
  return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : std::string();
}

/// The place of a volume, made with all folders above it as runtimes do: a file for a file, and
/// where a link leads, though nothing is there yet (/etc/resolv.conf of an image with systemd).
Result<Fd> make_place(const Fd& root, std::string path, bool is_folder) {
  int links = 0;
  auto folder = find_in_root(root.get(), "/", O_DIRECTORY);
  for (std::size_t at = 0; folder && at < path.size();) {
    const auto begin = path.find_first_not_of('/', at);
    if (begin == path.npos) break;
    at = std::min(path.find('/', begin), path.size());
    const bool is_last = path.find_first_not_of('/', at) == path.npos;
    const auto above = path.substr(0, at);
    auto next = find_in_root(root.get(), above, is_last ? 0 : O_DIRECTORY);
    if (!next && next.error().code() == ENOENT) {
      const auto name = path.substr(begin, at - begin);
      if (const auto target = target_of_link(*folder, name); !target.empty()) {
        if (++links > kMostLinks) return fail_errno(path, "cannot make a place there", ELOOP);
        path = (target.starts_with('/') ? "" : path.substr(0, begin)) + target + path.substr(at);
        folder = find_in_root(root.get(), "/", O_DIRECTORY);
        at = 0;
        continue;
      }
      const int made = is_last && !is_folder
                           ? ::mknodat(folder->get(), name.c_str(), S_IFREG | 0644, 0)
                           : ::mkdirat(folder->get(), name.c_str(), 0755);
      if (made != 0) return fail_errno(above, "cannot make a place for the volume");
      next = find_in_root(root.get(), above, 0);
    }
    folder = std::move(next);
  }
  return folder;
}

Result<void> place_volume(const Fd& root, const Volume& volume) {
  auto target = find_in_root(root.get(), volume.target, 0);
  if (!target && target.error().code() == ENOENT) {
    struct stat source {};
    if (::stat(volume.source.c_str(), &source) != 0)
      return fail_errno(volume.source, "cannot be a volume");
    target = make_place(root, volume.target, S_ISDIR(source.st_mode));
    // In another volume: that is the host's.
    if (!target && target.error().code() == EROFS) return {};
  }
  if (!target) return fail(std::move(target.error()));
  return place_tree(volume.source, *target, volume.target);
}

/// For the mount point, as runtimes do it; an image without /dev gets one where there is a place.
Result<void> place_dev(const Fd& root, bool may_make) {
  auto dev =
      may_make ? make_place(root, "/dev", true) : find_in_root(root.get(), "/dev", O_DIRECTORY);
  if (!dev) return fail(std::move(dev.error()));
  auto tmpfs = new_tmpfs(kEmptyFolder, Programs::may_not_run);
  if (!tmpfs) return fail(std::move(tmpfs.error()));
  return attach_mount(tmpfs->get(), dev->get(), "/dev");
}

}  // namespace

Result<void> make_sandbox_root(const std::string& rootfs, const std::vector<Volume>& volumes) {
  bool lacks_places = false;
  {
    const auto image = open_file(rootfs, O_PATH | O_DIRECTORY);
    if (!image) return fail(image.error());
    const auto lacks = [&](const std::string& path) {
      const auto place = find_in_root(image->get(), path, 0);
      return !place && place.error().code() == ENOENT;
    };
    lacks_places = lacks("/dev") || std::any_of(volumes.begin(), volumes.end(),
                                                [&](const auto& one) { return lacks(one.target); });
  }
  const auto made = lacks_places ? place_overlay(rootfs) : place_over_itself(rootfs);
  if (!made) return made;
  const auto root = open_file(rootfs, O_PATH | O_DIRECTORY);
  if (!root) return fail(root.error());
  for (const auto& volume : volumes)
    if (auto placed = place_volume(*root, volume); !placed) return placed;
  if (auto placed = place_dev(*root, lacks_places); !placed) return placed;
  return lacks_places ? make_inert(root->get(), rootfs, Reach::mount) : Result<void>();
}

}  // namespace heddle
