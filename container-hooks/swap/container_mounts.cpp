// SPDX-License-Identifier: MIT
#include "container-hooks/swap/container_mounts.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <optional>

#include "base/mounts.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "container-hooks/host/mount_calls.hpp"
#include "container-hooks/host/watched_work.hpp"

namespace heddle::hook {
namespace {

constexpr long kTmpfsMagic = 0x01021994;  // <linux/magic.h>; devtmpfs has it too

constexpr const char* kOwnDirectory = ".heddle";
constexpr std::size_t kBuffer = std::size_t{256} << 10;
constexpr std::size_t kMost = std::size_t{64} << 20;  ///< glibc with its family has 4 MB

/// Whether a file system of the container is mounted outside its root too: what is made in it would
/// be the host's.
bool is_mounted_outside(const Fd& root, dev_t device) {
  char text[PATH_MAX];
  const auto link = "/proc/self/fd/" + std::to_string(root.get());
  const ssize_t n = ::readlink(link.c_str(), text, sizeof(text));
  const std::string rootfs(text, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  const auto mounts = list_mounts();
  return n <= 0 || !mounts || std::any_of(mounts->begin(), mounts->end(), [&](const auto& mount) {
           return mount.device == device && mount.point != rootfs &&
                  !mount.point.starts_with(rootfs + "/");
         });
}

/// The kernel lists a FUSE directory with all attributes (READDIRPLUS): two requests, where each
/// name that is bound would be one. Programs find the names known, too.
void list_once(const Fd& directory) {
  const Fd fd(::openat(directory.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  char entries[32 * 1024];
  while (fd && ::getdents64(fd.get(), entries, sizeof(entries)) > 0) {
  }
}

/// The host's file itself where it is what the mount serves: its pages are in memory, each of the
/// mount's would be asked for (18 files of glibc: 10 ms of a start).
Fd open_source(const Fd& overlay, const KeptFile& file, struct stat& status) {
  if (::fstatat(overlay.get(), file.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return {};
  struct stat origin {};
  const auto same = [&] {
    return origin.st_size == status.st_size && origin.st_mtim.tv_sec == status.st_mtim.tv_sec &&
           origin.st_mtim.tv_nsec == status.st_mtim.tv_nsec;
  };
  if (!file.origin.empty())
    if (auto fd = open_regular(file.origin); fd && ::fstat(fd->get(), &origin) == 0 && same())
      return std::move(*fd);
  return Fd(::openat(overlay.get(), file.name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
}

Result<void> copy_file(const Fd& overlay, const KeptFile& file, const Fd& to,
                       const std::string& copy) {
  constexpr const char* kCannot = "cannot copy it";
  note_step("copying", file.origin.empty() ? file.name : file.origin);
  struct stat status {};
  const auto source = open_source(overlay, file, status);
  if (!source) return fail_errno(file.name, kCannot);
  const Fd target(::openat(to.get(), copy.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                           status.st_mode & 0777));
  // Whatever the umask of the shell that the runtime was started by.
  if (!target || ::fchmod(target.get(), status.st_mode & 0777) != 0)
    return fail_errno(file.name, kCannot);
  // Not zeroed: most that is copied is ld.so.cache, of some pages.
  const auto buffer = std::make_unique_for_overwrite<char[]>(kBuffer);
  for (ssize_t n; (n = ::read(source.get(), buffer.get(), kBuffer)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(file.name, kCannot);
    TRY(write_all(target.get(), {buffer.get(), static_cast<std::size_t>(n)}, file.name));
  }
  return {};
}

}  // namespace

/// Copies in memory of files that a container's programs cannot start without: ld.so, its cache,
/// the glibc family. They stay when the daemon of the mount that they come from is killed, and go
/// with the last mount of them.
class ContainerMounts::KeptFiles {
 public:
  /// For a moment mounted over the directory .heddle of the mount `overlay`: only what stands in a
  /// mount namespace can be bound (before Linux 6.15).
  static Result<KeptFiles> copy(const Fd& overlay, const std::vector<KeptFile>& wanted) {
    const Fd directory(::openat(overlay.get(), kOwnDirectory, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory) return fail_errno(kOwnDirectory, "cannot mount over it");
    Fd memory = TRY(new_tmpfs(kMost, Programs::may_run));
    KeptFiles out;
    for (const auto& file : wanted) {
      const auto [copy, is_new] = out.files_.emplace(file.name, std::to_string(out.files_.size()));
      if (is_new) TRY(copy_file(overlay, file, memory, copy->second));
    }
    TRY(attach_mount(memory.get(), directory.get(), kOwnDirectory));
    out.memory_ = std::move(memory);
    return out;
  }

  KeptFiles(KeptFiles&&) = default;
  ~KeptFiles() {
    if (memory_) detach_mount(memory_.get());
  }

  /// A detached mount of the copy of `name`; an invalid descriptor when it is not among them.
  Result<Fd> mount(const std::string& name) const {
    const auto file = files_.find(name);
    if (file == files_.end()) return Fd();
    Fd tree = TRY(clone_mount(memory_.get(), file->second));
    TRY(make_inert(tree.get(), name));
    return tree;
  }

 private:
  KeptFiles() = default;
  Fd memory_;
  std::map<std::string, std::string> files_;  ///< name -> file in memory_
};

Result<ContainerMounts> ContainerMounts::open(const std::string& rootfs) {
  auto root = TRY(open_file(rootfs, O_PATH | O_DIRECTORY));
  return ContainerMounts(std::move(root));
}

/// Whether what is mounted on that mount shows in its peers too, which may be the host's.
Result<bool> ContainerMounts::is_shared(int mount) {
  if (shared_.empty()) {
    const auto mounts = TRY(list_mounts());
    for (const auto& entry : mounts) shared_.emplace(entry.id, entry.shared);
  }
  const auto found = shared_.find(mount);
  return found == shared_.end() || found->second;  // a later mount is not ours to judge
}

Result<ContainerMounts::Target> ContainerMounts::vet(const Fd& target, const std::string& path,
                                                     Kind kind) {
  constexpr const char* kWhat = "cannot mount over it in the container";
  struct stat status {};
  if (::fstat(target.get(), &status) != 0) return fail_errno(path, kWhat);
  if (kind == Kind::file && !S_ISREG(status.st_mode))
    return fail(path, kWhat, "it is not a regular file");
  if (kind == Kind::directory && !S_ISDIR(status.st_mode))
    return fail(path, kWhat, "it is not a directory");
  const auto stamp = file_stamp(status);
  const Target found{stamp.id, mount_id(target.get())};
  if (found.mount < 0) return fail(path, kWhat, "/proc does not tell its mount");
  if (own_mounts_.contains(found.mount)) return found;
  if (file_systems_.is_made_up(target.get(), stamp))
    return fail(path, kWhat, "it lies on a file system that the kernel makes up");
  const bool shared = TRY(is_shared(found.mount));
  if (shared)
    return fail(path, kWhat, "it lies on a shared mount, and would change outside of it too",
                "give the container that volume with private or slave propagation");
  return found;
}

Result<void> ContainerMounts::check(const Decision& decision) {
  const auto check_all = [&](const auto& binds, Kind kind) -> Result<void> {
    for (const auto& bind : binds) {
      note_step("looking for the image's", bind.target);
      const auto target = TRY(find_in_root(root_.get(), bind.target, 0));
      const auto found = TRY(vet(target, bind.target, kind));
      checked_.emplace(bind.target, found.id);
    }
    return {};
  };
  TRY(check_all(decision.binds, Kind::file));
  return check_all(decision.directories, Kind::directory);
}

Result<Fd> ContainerMounts::make_directory(const std::string& path) {
  auto there = find_in_root(root_.get(), path, O_DIRECTORY);
  if (there || there.error().code() != ENOENT) return there;
  const auto slash = path.rfind('/');
  const std::string above = slash == 0 ? "/" : path.substr(0, slash);
  auto directory = TRY(find_in_root(root_.get(), above, O_DIRECTORY));
  struct stat status {};
  struct statfs system {};
  if (::fstat(directory.get(), &status) != 0 || ::fstatfs(directory.get(), &system) != 0)
    return fail_errno(above, "cannot look into it in the container");
  if (system.f_type != kTmpfsMagic || is_mounted_outside(root_, status.st_dev))
    return fail(
        path, "cannot mount there",
        "the container has no such directory, and making it would write to the image or the host",
        "give the container a tmpfs on " + above + ", or choose another place (--at)");
  made_name_ = path.substr(slash + 1);
  // As the directory's owner: a tmpfs of a container's user namespace takes no file of a user who
  // is not in there, as root may be (EOVERFLOW).
  const auto made = [&] {
    (void)::setfsgid(status.st_gid);
    (void)::setfsuid(status.st_uid);
    const int result = ::mkdirat(directory.get(), made_name_.c_str(), 0755);
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
  made_in_ = std::move(directory);
  return find_in_root(root_.get(), path, O_DIRECTORY);
}

Result<void> ContainerMounts::mount(int device, const std::string& mount_point) {
  auto tree = TRY(new_fuse_mount(device));
  return attach(std::move(tree), mount_point);
}

Result<void> ContainerMounts::attach(Fd tree, const std::string& mount_point) {
  note_step("mounting at", mount_point);
  note_placed(true);
  auto directory = make_directory(mount_point);
  if (!directory) {
    note_placed(false);
    return fail(std::move(directory.error()));
  }
  auto attached = [&]() -> Result<void> {
    TRY(vet(*directory, mount_point, Kind::directory));
    return attach_mount(tree.get(), directory->get(), mount_point);
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
  auto target = TRY(find_in_root(root_.get(), bind.target, 0));
  const auto found = TRY(vet(target, bind.target, kind));
  // Below a directory of ours that was bound meanwhile it is another, and ours.
  const auto checked = checked_.find(bind.target);
  const bool is_same = checked != checked_.end() && checked->second == found.id;
  if (!is_same && !own_mounts_.contains(found.mount))
    return fail(bind.target, "cannot mount over it in the container",
                "it is another file than a moment ago");
  TRY(attach_mount(tree->get(), target.get(), bind.target));
  keep(std::move(*tree));
  return {};
}

Result<void> ContainerMounts::bind(const Decision& decision) {
  note_step("reading", decision.mount_point);
  list_once(overlay_);
  std::optional<KeptFiles> kept;
  if (!decision.kept.empty()) {
    KeptFiles copied = TRY(KeptFiles::copy(overlay_, decision.kept));
    kept.emplace(std::move(copied));
  }
  const auto* copies = kept ? &*kept : nullptr;
  // Directories first: a file that is bound may lie below one of them.
  for (const auto& bind : decision.directories) TRY(place(copies, bind, Kind::directory));
  for (const auto& bind : decision.binds) TRY(place(copies, bind, Kind::file));
  // ld.so.cache leads to the mount: the same file must stand there, or a process has two of it.
  for (const auto& [name, origin] : decision.kept)
    if (name.find('/') == name.npos)
      TRY(place(copies, {name, decision.mount_point + "/" + name, {}}, Kind::file));
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

}  // namespace heddle::hook
