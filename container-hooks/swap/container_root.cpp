// SPDX-License-Identifier: MIT
#include "container-hooks/swap/container_root.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/try.hpp"
#include "container-hooks/host/mount_calls.hpp"

namespace heddle::hook {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kEmptyDirectory = 65536;  ///< for a few names in it
constexpr int kMostLinks = 40;                  ///< <linux/namei.h>, MAXSYMLINKS

/// `from` with all that is mounted below it over what `target` is open on.
Result<void> place_tree(const std::string& from, const Fd& target, const std::string& name,
                        Volumes kind) {
  auto tree = TRY(clone_tree(from));
  if (kind == Volumes::inert) TRY(make_inert(tree.get(), from));
  return attach_mount(tree.get(), target.get(), name);
}

/// An overlay of `rootfs` with a tmpfs over `rootfs` itself, without the mounts below it.
Result<void> place_overlay(const std::string& rootfs, const Fd& lower) {
  const auto memory = TRY(new_tmpfs(kEmptyDirectory));
  for (const char* name : {"upper", "work"})
    if (::mkdirat(memory.get(), name, 0755) != 0) return fail_errno(name, "cannot make it");
  // Overlays take no directory of a detached mount (fs/namespace.c, clone_private_mount).
  TRY(attach_mount(memory.get(), lower.get(), rootfs));
  const auto overlay = TRY(new_overlay(lower.get(), memory.get()));
  return attach_mount(overlay.get(), memory.get(), rootfs);
}

/// Makes a volume's target with its parents as runtimes do, also the target of a dangling link
/// (/etc/resolv.conf of an image with systemd). `rootfs` is this process's root meanwhile, so that
/// no link leads out of it.
Result<void> make_place(const std::string& rootfs, fs::path path, bool is_directory) {
  constexpr const char* kWhat = "cannot make a place there";
  const auto name = path.string();
  const Fd host = TRY(open_file("/", O_PATH | O_DIRECTORY));
  if (::chroot(rootfs.c_str()) != 0 || ::chdir("/") != 0) return fail_errno(name, kWhat);
  std::error_code error;
  for (int links = 0; links < kMostLinks && fs::is_symlink(path, error); ++links)
    path = path.parent_path() / fs::read_symlink(path, error);
  fs::create_directories(is_directory ? path : path.parent_path(), error);
  const auto made = error          ? fail_errno(name, kWhat, error.value())
                    : is_directory ? Result<Fd>(Fd())
                                   : open_file(path.string(), O_WRONLY | O_CREAT, 0644);
  if (::fchdir(host.get()) != 0 || ::chroot(".") != 0) return fail_errno(name, kWhat);
  if (!made) return fail_errno(name, kWhat, made.error().code());
  return {};
}

Result<void> place_volume(const Fd& root, const std::string& rootfs, const Volume& volume,
                          Volumes kind) {
  auto target = find_in_root(root.get(), volume.target, 0);
  if (!target && target.error().code() == ENOENT) {
    struct stat source {};
    if (::stat(volume.source.c_str(), &source) != 0)
      return fail_errno(volume.source, "cannot be a volume");
    const auto made = make_place(rootfs, volume.target, S_ISDIR(source.st_mode));
    // In another volume, which is the host's.
    if (!made && made.error().code() == EROFS && kind == Volumes::inert) return {};
    TRY(made);
    target = find_in_root(root.get(), volume.target, 0);
  }
  if (!target) return fail(std::move(target.error()));
  return place_tree(volume.source, *target, volume.target, kind);
}

}  // namespace

Result<void> make_container_root(const std::string& rootfs, const std::vector<Volume>& volumes,
                                 Volumes kind) {
  const auto image = TRY(open_file(rootfs, O_PATH | O_DIRECTORY));
  const auto lacks = [&](const std::string& path) {
    const auto place = find_in_root(image.get(), path, 0);
    return !place && place.error().code() == ENOENT;
  };
  const bool lacks_places =
      lacks("/dev") || std::any_of(volumes.begin(), volumes.end(),
                                   [&](const auto& one) { return lacks(one.target); });
  TRY(lacks_places ? place_overlay(rootfs, image)
                   : place_tree(rootfs, image, rootfs, Volumes::inert));
  const auto root = TRY(open_file(rootfs, O_PATH | O_DIRECTORY));
  for (const auto& volume : volumes) TRY(place_volume(root, rootfs, volume, kind));
  // /dev gets the mount point, as with runtimes.
  if (lacks_places) TRY(make_place(rootfs, "/dev", true));
  const auto dev = TRY(find_in_root(root.get(), "/dev", O_DIRECTORY));
  const auto tmpfs = TRY(new_tmpfs(kEmptyDirectory));
  TRY(attach_mount(tmpfs.get(), dev.get(), "/dev"));
  return lacks_places ? make_inert(root.get(), rootfs, Reach::mount) : Result<void>();
}

Result<void> show_devices(const std::string& rootfs) {
  const auto root = TRY(open_file(rootfs, O_PATH | O_DIRECTORY));
  const auto dev = TRY(find_in_root(root.get(), "/dev", O_DIRECTORY));
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev", error)) {
    const auto name = entry.path().filename().string();
    const auto here = fd_path(dev.get()) + "/" + name;
    const auto status = entry.symlink_status(error);
    if (fs::is_symlink(status)) {
      fs::create_symlink(fs::read_symlink(entry.path(), error), here, error);
      continue;
    }
    const auto made = fs::is_directory(status)
                          ? ::mkdirat(dev.get(), name.c_str(), 0755)
                          : ::mknodat(dev.get(), name.c_str(), S_IFREG | 0644, 0);
    if (made != 0) return fail_errno("/dev/" + name, "cannot make a place there");
    const auto place = TRY(open_file(here, O_PATH | O_NOFOLLOW));
    TRY(place_tree(entry.path(), place, entry.path(), Volumes::as_host));
  }
  if (error) return fail_errno("/dev", "cannot read it", error.value());
  return {};
}

bool change_root(const std::string& rootfs) {
  return ::chdir(rootfs.c_str()) == 0 && ::syscall(SYS_pivot_root, ".", ".") == 0 &&
         ::umount2(".", MNT_DETACH) == 0 && ::chdir("/") == 0;
}

}  // namespace heddle::hook
