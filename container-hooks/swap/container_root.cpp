// SPDX-License-Identifier: MIT
#include "container-hooks/swap/container_root.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/mount_calls.hpp"
#include "base/try.hpp"

namespace heddle::hook {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kEmptyDirectory = 65536;  ///< for a few names in it
constexpr int kMostLinks = 40;                  ///< <linux/namei.h>, MAXSYMLINKS

/// `from` with all that is mounted below it over what `target` is open on.
Result<void> place_tree(const std::string& from, const Fd& target, const std::string& name,
                        Volumes kind) {
  auto tree = TRY(copy_mount(AT_FDCWD, from, kRecursive));
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
/// no link leads out of it. The image's owner may change it meanwhile: what is there is not opened.
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
                                   : open_file(path.string(), O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (::fchdir(host.get()) != 0 || ::chroot(".") != 0) return fail_errno(name, kWhat);
  if (!made && made.error().code() != EEXIST) return fail_errno(name, kWhat, made.error().code());
  return {};
}

/// Shows in the empty directory `to` what is in `from`: each entry as a mount of its own.
Result<void> mirror(const Fd& from, const std::string& name, const Fd& to) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fd_path(from.get()), error)) {
    const auto file = entry.path().filename().string();
    const auto status = entry.symlink_status(error);
    const auto here = fd_path(to.get()) + "/" + file;
    const bool is_link = fs::is_symlink(status);
    if (is_link) fs::create_symlink(fs::read_symlink(entry.path(), error), here, error);
    const int made = is_link                    ? 0
                     : fs::is_directory(status) ? ::mkdirat(to.get(), file.c_str(), 0755)
                                                : ::mknodat(to.get(), file.c_str(), S_IFREG, 0);
    if (made != 0) return fail_errno(name + "/" + file, "cannot make a place there");
    if (is_link) continue;
    // By descriptor: it is what was looked at.
    const auto source = TRY(open_file(entry.path(), O_PATH | O_NOFOLLOW));
    const auto place = TRY(open_file(here, O_PATH | O_NOFOLLOW));
    TRY(place_tree(fd_path(source.get()), place, name + "/" + file, Volumes::as_host));
  }
  if (error) return fail_errno(name, "cannot show what is there", error.value());
  return {};
}

/// A container's root while its mounts are made.
class Root {
 public:
  static Result<Root> open(const std::string& rootfs) {
    auto fd = TRY(open_file(rootfs, O_PATH | O_DIRECTORY));
    return Root(rootfs, std::move(fd));
  }
  const Fd& fd() const { return fd_; }

  /// The place `path`, which is made if it is missing.
  Result<Fd> place(const std::string& path, bool is_directory) {
    auto there = find_in_root(fd_.get(), path, 0);
    if (there || there.error().code() != ENOENT) return there;
    auto made = make_place(rootfs_, path, is_directory);
    // In a user namespace no user may write to directories of users who are not in it.
    if (!made && made.error().code() == EACCES) {
      TRY(loosen(path));
      made = make_place(rootfs_, path, is_directory);
    }
    if (!made) return fail(std::move(made.error()));
    return find_in_root(fd_.get(), path, 0);
  }
  Result<void> add(const Volume& volume, Volumes kind) {
    struct stat source {};
    if (::stat(volume.source.c_str(), &source) != 0)
      return fail_errno(volume.source, "cannot be a volume");
    const auto target = place(volume.target, S_ISDIR(source.st_mode));
    // In another volume, which is the host's.
    if (!target && target.error().code() == EROFS && kind == Volumes::inert) return {};
    if (!target) return fail(target.error());
    return place_tree(volume.source, *target, volume.target, kind);
  }
  /// Nothing more is made.
  Result<void> close(bool has_overlay) {
    if (has_overlay) TRY(make_inert(fd_.get(), rootfs_, Reach::mount));
    for (const auto& loose : loosened_) TRY(make_inert(loose.get(), rootfs_, Reach::mount));
    return {};
  }

 private:
  Root(std::string rootfs, Fd fd) : rootfs_(std::move(rootfs)), fd_(std::move(fd)) {}

  /// Puts a tmpfs with the same entries over the nearest directory above `path` that exists.
  Result<void> loosen(const fs::path& path) {
    auto above = path.parent_path();
    auto directory = find_in_root(fd_.get(), above, O_DIRECTORY);
    while (!directory && above.has_relative_path()) {
      above = above.parent_path();
      directory = find_in_root(fd_.get(), above, O_DIRECTORY);
    }
    if (!directory) return fail(std::move(directory.error()));
    auto tmpfs = TRY(new_tmpfs(kEmptyDirectory));
    const auto source = TRY(open_file(fd_path(directory->get()), O_RDONLY | O_DIRECTORY));
    TRY(mirror(source, above, tmpfs));
    TRY(attach_mount(tmpfs.get(), directory->get(), above));
    loosened_.push_back(std::move(tmpfs));
    if (!above.has_relative_path()) fd_ = TRY(open_file(rootfs_, O_PATH | O_DIRECTORY));
    return {};
  }

  std::string rootfs_;
  Fd fd_;
  std::vector<Fd> loosened_;
};

}  // namespace

Result<void> make_container_root(const std::string& rootfs, const std::vector<Volume>& volumes,
                                 Volumes kind, const std::string& directory) {
  const auto image = TRY(open_file(rootfs, O_PATH | O_DIRECTORY));
  const auto lacks = [&](const std::string& path) {
    const auto place = find_in_root(image.get(), path, 0);
    return !place && place.error().code() == ENOENT;
  };
  const bool lacks_places = lacks("/dev") || lacks(directory) ||
                            std::any_of(volumes.begin(), volumes.end(),
                                        [&](const auto& one) { return lacks(one.target); });
  TRY(lacks_places ? place_overlay(rootfs, image)
                   : place_tree(rootfs, image, rootfs, Volumes::inert));
  auto root = TRY(Root::open(rootfs));
  for (const auto& volume : volumes) TRY(root.add(volume, kind));
  TRY(root.place(directory, true));
  // /dev gets the mount point, as with runtimes.
  const auto dev = TRY(root.place("/dev", true));
  const auto tmpfs = TRY(new_tmpfs(kEmptyDirectory));
  TRY(attach_mount(tmpfs.get(), dev.get(), "/dev"));
  return root.close(lacks_places);
}

Result<void> show_devices(const std::string& rootfs) {
  const auto root = TRY(open_file(rootfs, O_PATH | O_DIRECTORY));
  const auto dev = TRY(find_in_root(root.get(), "/dev", O_DIRECTORY));
  const auto hosts = TRY(open_file("/dev", O_RDONLY | O_DIRECTORY));
  return mirror(hosts, "/dev", dev);
}

bool change_root(const std::string& rootfs) {
  return ::chdir(rootfs.c_str()) == 0 && ::syscall(SYS_pivot_root, ".", ".") == 0 &&
         ::umount2(".", MNT_DETACH) == 0 && ::chdir("/") == 0;
}

}  // namespace heddle::hook
