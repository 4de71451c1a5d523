// SPDX-License-Identifier: MIT
#include "container-hooks/container_mounts.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <optional>
#include <set>
#include <sstream>

#include "container-hooks/hook_progress.hpp"
#include "container-hooks/mount_calls.hpp"

namespace heddle {
namespace {

constexpr long kTmpfsMagic = 0x01021994;  // <linux/magic.h>; devtmpfs has it too

/// Devices of the file systems that are mounted outside `rootfs`: what is made in one of these is
/// the host's. Mount points are octal-escaped in mountinfo, and so is what we compare with.
std::set<dev_t> devices_outside(const std::string& rootfs) {
  std::set<dev_t> out;
  std::string escaped;
  for (const char c : rootfs) {
    switch (c) {
      case ' ':
        escaped += "\\040";
        break;
      case '\t':
        escaped += "\\011";
        break;
      case '\n':
        escaped += "\\012";
        break;
      case '\\':
        escaped += "\\134";
        break;
      default:
        escaped += c;
    }
  }
  std::istringstream lines(read_file("/proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, root, point;
    fields >> id >> parent >> device >> root >> point;
    if (point == escaped || point.starts_with(escaped + "/")) continue;
    const auto colon = device.find(':');
    if (colon == std::string::npos) continue;
    out.insert(
        ::makedev(static_cast<unsigned>(std::strtoul(device.c_str(), nullptr, 10)),
                  static_cast<unsigned>(std::strtoul(device.c_str() + colon + 1, nullptr, 10))));
  }
  return out;
}

std::string real_path(const Fd& fd, const std::string& otherwise) {
  char text[4096];
  const ssize_t n =
      ::readlink(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), text, sizeof(text));
  return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : otherwise;
}

/// Of a FUSE folder a listing is asked for with all attributes (READDIRPLUS): two requests, where
/// each name that is bound would be one. Programs find the names known, too.
void list_once(const Fd& folder) {
  const Fd fd(::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  char entries[32 * 1024];
  while (fd && ::getdents64(fd.get(), entries, sizeof(entries)) > 0) {
  }
}

}  // namespace

Result<ContainerMounts> ContainerMounts::open(const std::string& rootfs) {
  auto root = open_file(rootfs, O_PATH | O_DIRECTORY);
  if (!root) return fail(std::move(root.error()));
  return ContainerMounts(std::move(*root));
}

/// Whether what is mounted on that mount shows in its peers too, which may be the host's.
Result<bool> ContainerMounts::is_shared(int mount) {
  if (shared_.empty()) {
    const auto text = read_file("/proc/self/mountinfo");
    if (!text) return fail(text.error());
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);)
      shared_.emplace(std::atoi(line.c_str()),
                      line.substr(0, line.find(" - ")).find(" shared:") != line.npos);
  }
  const auto found = shared_.find(mount);
  // One that came since is nobody's whom we know.
  return found == shared_.end() || found->second;
}

Result<ContainerMounts::Target> ContainerMounts::vet(const Fd& target, const std::string& path,
                                                     Kind kind) {
  constexpr const char* kWhat = "cannot mount over it in the container";
  struct stat status {};
  if (::fstat(target.get(), &status) != 0) return fail_errno(path, kWhat);
  if (kind == Kind::file && !S_ISREG(status.st_mode))
    return fail(path, kWhat, "it is no regular file");
  if (kind == Kind::folder && !S_ISDIR(status.st_mode))
    return fail(path, kWhat, "it is no directory");
  const auto stamp = file_stamp(status);
  const Target found{stamp.id, mount_id(target.get())};
  if (found.mount < 0) return fail(path, kWhat, "/proc does not tell its mount");
  if (own_mounts_.contains(found.mount)) return found;
  if (file_systems_.is_made_up(target.get(), stamp))
    return fail(path, kWhat, "it lies on a file system that the kernel makes up");
  const auto shared = is_shared(found.mount);
  if (!shared) return fail(shared.error());
  if (*shared)
    return fail(path, kWhat, "it lies on a shared mount, and would change outside of it too",
                "give the container that volume with private or slave propagation");
  return found;
}

Result<void> ContainerMounts::check(const Decision& decision) {
  const auto check_all = [&](const auto& binds, Kind kind) -> Result<void> {
    for (const auto& bind : binds) {
      note_step("looking for the image's", bind.target);
      const auto target = find_in_root(root_.get(), bind.target, 0);
      if (!target) return fail(target.error());
      const auto found = vet(*target, bind.target, kind);
      if (!found) return fail(found.error());
      checked_.emplace(bind.target, found->id);
    }
    return {};
  };
  if (auto files = check_all(decision.binds, Kind::file); !files) return files;
  return check_all(decision.directories, Kind::folder);
}

Result<Fd> ContainerMounts::make_folder(const std::string& path) {
  auto there = find_in_root(root_.get(), path, O_DIRECTORY);
  if (there || there.error().code() != ENOENT) return there;
  const auto slash = path.rfind('/');
  const std::string above = slash == 0 ? "/" : path.substr(0, slash);
  auto folder = find_in_root(root_.get(), above, O_DIRECTORY);
  if (!folder) return folder;
  struct stat status {};
  struct statfs system {};
  if (::fstat(folder->get(), &status) != 0 || ::fstatfs(folder->get(), &system) != 0)
    return fail_errno(above, "cannot look into it in the container");
  if (system.f_type != kTmpfsMagic || devices_outside(real_path(root_, "")).contains(status.st_dev))
    return fail(
        path, "cannot mount there",
        "the container has no such folder, and making it would write to the image or the host",
        "give the container a tmpfs on " + above + ", or choose another place (--at)");
  made_name_ = path.substr(slash + 1);
  // As the folder's owner: a tmpfs of a container's user namespace takes no file of a user who is
  // not in there, as root may be (EOVERFLOW).
  const auto made = [&] {
    (void)::setfsgid(status.st_gid);
    (void)::setfsuid(status.st_uid);
    const int result = ::mkdirat(folder->get(), made_name_.c_str(), 0755);
    const int error = errno;
    (void)::setfsuid(::geteuid());
    (void)::setfsgid(::getegid());
    errno = error;
    return result == 0;
  }();
  if (!made) {
    made_name_.clear();
    return fail_errno(path, "cannot make the mount point");
  }
  made_in_ = std::move(*folder);
  return find_in_root(root_.get(), path, O_DIRECTORY);
}

Result<void> ContainerMounts::mount(int device, const std::string& mount_point) {
  auto tree = new_fuse_mount(device);
  if (!tree) return fail(std::move(tree.error()));
  return attach(std::move(*tree), mount_point);
}

Result<void> ContainerMounts::attach(Fd tree, const std::string& mount_point) {
  note_step("mounting at", mount_point);
  note_placed(true);
  auto folder = make_folder(mount_point);
  if (!folder) {
    note_placed(false);
    return fail(std::move(folder.error()));
  }
  auto attached = [&]() -> Result<void> {
    if (auto found = vet(*folder, mount_point, Kind::folder); !found) return fail(found.error());
    return attach_mount(tree.get(), folder->get(), mount_point);
  }();
  if (!attached) {
    undo();
    return attached;
  }
  overlay_ = Fd(::fcntl(tree.get(), F_DUPFD_CLOEXEC, 3));
  keep(std::move(tree));
  return {};
}

void ContainerMounts::keep(Fd placed) {
  if (const int mount = mount_id(placed.get()); mount >= 0) own_mounts_.insert(mount);
  placed_.push_back(std::move(placed));
}

Result<void> ContainerMounts::place(const KeptFiles* kept, const Bind& bind, Kind kind) {
  note_step("mounting over the image's", bind.target);
  auto tree = kept ? kept->mount(bind.source) : Fd();
  if (tree && !*tree) tree = clone_mount(overlay_.get(), bind.source);
  if (!tree) return fail(std::move(tree.error()));
  auto target = find_in_root(root_.get(), bind.target, 0);
  if (!target) return fail(std::move(target.error()));
  const auto found = vet(*target, bind.target, kind);
  if (!found) return fail(found.error());
  // Below a folder of ours that was bound meanwhile it is another, and ours.
  const auto checked = checked_.find(bind.target);
  const bool is_same = checked != checked_.end() && checked->second == found->id;
  if (!is_same && !own_mounts_.contains(found->mount))
    return fail(bind.target, "cannot mount over it in the container",
                "it is another file than a moment ago");
  if (auto attached = attach_mount(tree->get(), target->get(), bind.target); !attached)
    return attached;
  keep(std::move(*tree));
  return {};
}

Result<void> ContainerMounts::bind(const Decision& decision) {
  note_step("reading", decision.mount_point);
  list_once(overlay_);
  std::optional<KeptFiles> kept;
  if (!decision.kept.empty()) {
    auto copied = KeptFiles::copy(overlay_, decision.kept);
    if (!copied) return fail(std::move(copied.error()));
    kept.emplace(std::move(*copied));
  }
  const auto* copies = kept ? &*kept : nullptr;
  // Folders first: a file that is bound may lie below one of them.
  for (const auto& bind : decision.directories)
    if (auto done = place(copies, bind, Kind::folder); !done) return done;
  for (const auto& bind : decision.binds)
    if (auto done = place(copies, bind, Kind::file); !done) return done;
  // ld.so.cache leads to the mount: the same file must stand there, or a process has two of it.
  for (const auto& [name, origin] : decision.kept)
    if (name.find('/') == name.npos)
      if (auto done = place(copies, {name, decision.mount_point + "/" + name, {}}, Kind::file);
          !done)
        return done;
  return {};
}

void ContainerMounts::undo() {
  overlay_.reset();
  for (; !placed_.empty(); placed_.pop_back()) detach_mount(placed_.back().get());
  own_mounts_.clear();
  if (!made_name_.empty()) (void)::unlinkat(made_in_.get(), made_name_.c_str(), AT_REMOVEDIR);
  made_name_.clear();
  note_placed(false);
}

}  // namespace heddle
