// SPDX-License-Identifier: MIT
#include "resolver/tree/tree_reader.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "base/fd.hpp"
#include "base/file_stamp.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

constexpr unsigned kMostAttempts = 5;
/// Names a task looks up. Small, so that one directory of many names keeps all threads busy.
constexpr std::size_t kBatch = 4;
/// What changed so recently may change again without another time (git's racy-git.txt), also by a
/// file server whose clock goes wrong by that much.
constexpr std::int64_t kTooYoung = 2'000'000'000;
constexpr unsigned kMountId = 0x1000;  // STATX_MNT_ID, Linux 5.8

/// FUSE file systems of servers that keep a directory's times as POSIX wants them, and whose
/// clients drop what the kernel caches when another node changes it. "slow" is ours, bench/slowfs.
constexpr std::array<std::string_view, 3> kPosixFuse = {"fuse.ceph", "fuse.ceph-fuse", "fuse.slow"};

/// An empty `name`: the file of `fd` itself. Result: 0 or errno.
int status_of(int fd, const char* name, struct statx& out) {
  const int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | (*name ? 0 : AT_EMPTY_PATH);
  return ::statx(fd, name, flags, STATX_BASIC_STATS | kMountId, &out) == 0 ? 0 : errno;
}

std::uint64_t device_of(const struct statx& st) {
  return std::uint64_t{st.stx_dev_major} << 32 | st.stx_dev_minor;
}

Error changing(const std::string& path) {
  return Error::with_code(EAGAIN, path, "changes while it is read");
}

/// Without name and target.
void describe(const struct statx& st, TreeIndexWriter::Entry& entry) {
  entry.mode = st.stx_mode;
  entry.uid = st.stx_uid;
  entry.gid = st.stx_gid;
  entry.links = st.stx_nlink;
  entry.size = st.stx_size;
  entry.mtime_ns = nanoseconds(st.stx_mtime);
  entry.ctime_ns = nanoseconds(st.stx_ctime);
  entry.dev = device_of(st);
  entry.ino = st.stx_ino;
}

/// Stands for what a mount of the tree cannot serve itself.
void make_hole(TreeIndexWriter::Entry& entry) {
  entry.hole = true;
  if (!S_ISDIR(entry.mode)) entry.mode = static_cast<std::uint16_t>(S_IFREG | (entry.mode & 0777));
}

}  // namespace

bool keeps_directory_times(const std::string& path, const std::vector<MountEntry>& mounts) {
  constexpr std::array<std::string_view, 4> kImages = {"squashfs", "iso9660", "overlay", "erofs"};
  struct statx st {};
  // A tree's root may be a trigger of autofs (/cvmfs/repo), so without AT_NO_AUTOMOUNT.
  if (::statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, 0, &st) != 0) return false;
  const auto device = ::makedev(st.stx_dev_major, st.stx_dev_minor);
  const auto at = std::ranges::find(mounts, device, &MountEntry::device);
  if (at != mounts.end()) {
    const bool is_fuse = at->type.starts_with("fuse") || at->type == "virtiofs";
    return is_fuse ? std::ranges::find(kPosixFuse, at->type) != kPosixFuse.end()
                   : std::ranges::find(kImages, at->type) == kImages.end();
  }
  // Of a part of a file system, such as a subvolume of Btrfs. statfs(2) asks the server.
  struct statfs system {};
  if (::statfs(path.c_str(), &system) != 0) return false;
  constexpr auto kErofs = 0xE0F5E1E2;  // EROFS_SUPER_MAGIC_V1, Linux 5.4
  const auto type = static_cast<unsigned>(system.f_type);
  return type != SQUASHFS_MAGIC && type != ISOFS_SUPER_MAGIC && type != OVERLAYFS_SUPER_MAGIC &&
         type != kErofs && type != FUSE_SUPER_MAGIC;
}

bool has_same_times(const TreeNode& then, std::int64_t mtime_ns, std::int64_t ctime_ns,
                    std::uint64_t size, bool keeps_times) {
  return then.mtime_ns == mtime_ns && then.ctime_ns == ctime_ns && then.size == size &&
         (keeps_times || mtime_ns != ctime_ns);
}

/// A directory while it is read, then what it has.
struct TreeReader::Directory {
  std::string path;  ///< within the tree
  Entry entry;
  std::shared_ptr<const Fd> above;  ///< until it is open
  std::shared_ptr<const Fd> fd;     ///< while it is read
  std::optional<TreeNodeId> earlier;
  unsigned attempts = 0;

  std::vector<std::pair<std::string, bool>> names;  ///< and whether it is surely a directory
  std::atomic<std::size_t> pending = 0;             ///< batches
  std::atomic<bool> changed = false;
  std::mutex mutex;  ///< of the lists below, while batches run
  std::vector<DirectoryPtr> directories;

  std::string path_of(const std::string& name) const {
    return path.empty() ? name : path + "/" + name;
  }
};

TreeReader::TreeReader(std::string path, Options options)
    : path_(std::move(path)), options_(std::move(options)) {}

TreeReader::~TreeReader() = default;

void TreeReader::fail_with(Error error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  failed_ = true;
}

Error TreeReader::too_large() const {
  return Error::with_code(EFBIG, {},
                          fmt::format("more than {} files and directories", options_.most));
}

void TreeReader::spawn(std::function<void()> task) {
  pool_->add([this, task = std::move(task)] {
    if (!failed_) task();
  });
}

bool TreeReader::is_excluded(const std::string& path) const {
  return !options_.exclude.empty() && options_.exclude.contains(path_ + "/" + path);
}

void TreeReader::start(TaskPool& pool) {
  pool_ = &pool;
  started_ns_ = now_ns();
  root_ = std::make_shared<Directory>();
  if (options_.earlier) root_->earlier = kTreeRoot;
  spawn([this] { open(root_); });
}

void TreeReader::open(const DirectoryPtr& directory) {
  const auto where = path_ + (directory->path.empty() ? "" : "/") + directory->path;
  const bool is_root = directory == root_;
  const char* name = is_root ? path_.c_str() : directory->entry.name.c_str();
  const int above = is_root ? AT_FDCWD : directory->above->get();
  auto fd = std::make_shared<const Fd>(
      ::openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct statx st {};
  const int code = *fd ? status_of(fd->get(), "", st) : errno;
  if (code != 0) {
    // Gone, or no longer a directory, since its parent was read.
    if (!is_root && (code == ENOENT || code == ENOTDIR || code == ELOOP))
      return fail_with(changing(where));
    return fail_with(Error::from_errno(where, "cannot open", code));
  }
  if (is_root) {
    device_ = device_of(st);
    mount_ = (st.stx_mask & kMountId) != 0 ? st.stx_mnt_id : 0;
  } else if ((st.stx_mask & kMountId) != 0 ? st.stx_mnt_id != mount_ : device_of(st) != device_) {
    return fail_with(Error::with_code(EXDEV, where, "a mount point"));
  }
  directory->fd = std::move(fd);
  directory->above.reset();
  describe(st, directory->entry);
  const auto& own = directory->entry;
  if (directory->earlier) {
    const auto node = options_.earlier->node(*directory->earlier);
    if (has_same_times(node, own.mtime_ns, own.ctime_ns, own.size, options_.keeps_times)) {
      for (TreeNodeId i = 0; i < node.child_count; ++i) {
        const auto child = options_.earlier->node(node.first_child + i);
        directory->names.emplace_back(child.name, S_ISDIR(child.mode) && !child.hole);
      }
      return stat_names(directory);
    }
  }
  if (auto done = list(*directory); !done) return fail_with(std::move(done.error()));
  stat_names(directory);
}

/// Fills in the names.
Result<void> TreeReader::list(Directory& directory) {
  ++listed_;
  count_ -= directory.names.size();
  directory.names.clear();
  const auto where = path_ + (directory.path.empty() ? "" : "/") + directory.path;
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK;
  Fd fd(may_keep_atime_ ? ::openat(directory.fd->get(), ".", flags | O_NOATIME) : -1);
  if (!fd && (!may_keep_atime_ || errno == EPERM)) {
    may_keep_atime_ = false;  // it is another user's
    fd.reset(::openat(directory.fd->get(), ".", flags));
  }
  if (!fd && (errno == EACCES || errno == EPERM)) {
    if (&directory == root_.get()) return fail_errno(where, "cannot list");
    const std::lock_guard lock(mutex_);
    unreadable_.push_back(Error::from_errno(where, "cannot list"));
    make_hole(directory.entry);
    return {};
  }
  if (!fd && errno == ENOENT) return fail(changing(where));  // it is removed
  if (!fd) return fail_errno(where, "cannot list");
  alignas(dirent64) thread_local std::array<char, 65536> buffer;
  for (;;) {
    const long got = ::syscall(SYS_getdents64, fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == ENOENT) return fail(changing(where));
    if (got < 0) return fail_errno(where, "cannot list");
    if (got == 0) break;
    if (count_ + directory.names.size() > options_.most) return fail(too_large());
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const dirent64*>(buffer.data() + at);
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") directory.names.emplace_back(name, entry->d_type == DT_DIR);
      at += entry->d_reclen;
    }
  }
  // A directory that is written to may give a name twice.
  std::ranges::sort(directory.names);
  const auto by_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  directory.names.erase(std::unique(directory.names.begin(), directory.names.end(), by_name),
                        directory.names.end());
  return {};
}

void TreeReader::stat_names(const DirectoryPtr& directory) {
  if ((count_ += directory->names.size()) > options_.most) return fail_with(too_large());
  const auto batches = (directory->names.size() + kBatch - 1) / kBatch;
  directory->changed = false;
  directory->pending = batches + 1;  // one, so that it finishes here if there is no other
  for (std::size_t i = 0; i < batches; ++i)
    spawn([this, directory, i] { stat_batch(directory, i * kBatch); });
  if (--directory->pending == 0) finish(directory);
}

void TreeReader::stat_batch(const DirectoryPtr& directory, std::size_t first) {
  std::vector<Entry> entries;
  std::vector<DirectoryPtr> directories;
  const auto last = std::min(first + kBatch, directory->names.size());
  for (std::size_t i = first; i < last && !directory->changed; ++i) {
    const auto& [name, is_directory] = directory->names[i];
    const auto path = directory->path_of(name);
    if (path.size() >= PATH_MAX)
      return fail_with(Error::from_errno(path_ + "/" + path, "no tree of a map", ENAMETOOLONG));
    const bool excluded = is_excluded(path);
    Entry entry;
    entry.name = name;
    // Attributes of a directory are read when it is open.
    if (!is_directory || excluded) {
      struct statx st {};
      const int code = status_of(directory->fd->get(), name.c_str(), st);
      if (code == ENOENT || code == ENOTDIR) {
        directory->changed = true;
        break;
      }
      if (code != 0) return fail_with(Error::from_errno(path_ + "/" + path, "cannot stat", code));
      describe(st, entry);
      if (!excluded && (st.stx_mask & kMountId) != 0 && mount_ != 0 && st.stx_mnt_id != mount_)
        return fail_with(Error::with_code(EXDEV, path_ + "/" + path, "a mount point"));
      if (excluded || (!S_ISREG(entry.mode) && !S_ISLNK(entry.mode) && !S_ISDIR(entry.mode)))
        make_hole(entry);
      else if (S_ISREG(entry.mode) && (entry.mode & (S_ISUID | S_ISGID)) != 0)
        return fail_with(Error::with_code(EPERM, path_ + "/" + path, "a file with set-ID bits"));
    }
    if (!entry.hole && (is_directory || S_ISDIR(entry.mode))) {
      auto below = std::make_shared<Directory>();
      below->path = path;
      below->entry = std::move(entry);
      below->above = directory->fd;
      if (options_.earlier && directory->earlier) {
        below->earlier = options_.earlier->find(*directory->earlier, name);
        if (below->earlier) {
          const auto node = options_.earlier->node(*below->earlier);
          if (!S_ISDIR(node.mode) || node.hole) below->earlier.reset();
        }
      }
      directories.push_back(std::move(below));
      continue;
    }
    if (S_ISLNK(entry.mode)) {
      std::array<char, PATH_MAX> target;
      const auto size =
          ::readlinkat(directory->fd->get(), name.c_str(), target.data(), target.size());
      if (size <= 0 || size == PATH_MAX) {
        if (errno != ENOENT && errno != EINVAL)
          return fail_with(Error::from_errno(path_ + "/" + path, "cannot read the link"));
        directory->changed = true;
        break;
      }
      entry.target.assign(target.data(), static_cast<std::size_t>(size));
      entry.size = entry.target.size();  // some file systems say 0
    }
    entries.push_back(std::move(entry));
  }
  {
    const std::lock_guard lock(directory->mutex);
    auto& children = directory->entry.children;
    std::ranges::move(entries, std::back_inserter(children));
    std::ranges::move(directories, std::back_inserter(directory->directories));
  }
  if (--directory->pending == 0) finish(directory);
}

/// All names are known; the directories among them are next.
void TreeReader::finish(const DirectoryPtr& directory) {
  const auto where = path_ + (directory->path.empty() ? "" : "/") + directory->path;
  struct statx st {};
  if (const int code = status_of(directory->fd->get(), "", st); code != 0)
    return fail_with(Error::from_errno(where, "cannot stat", code));
  auto& own = directory->entry;
  if (directory->changed || nanoseconds(st.stx_mtime) != own.mtime_ns ||
      nanoseconds(st.stx_ctime) != own.ctime_ns) {
    if (++directory->attempts == kMostAttempts) return fail_with(changing(where));
    own.children.clear();
    directory->directories.clear();
    const auto name = std::move(own.name);
    own = {};
    describe(st, own);
    own.name = name;
    if (auto done = list(*directory); !done) return fail_with(std::move(done.error()));
    return stat_names(directory);
  }
  if (std::max(own.mtime_ns, own.ctime_ns) > started_ns_ - kTooYoung)
    --own.ctime_ns;  // never equal
  directory->names = {};
  directory->fd.reset();
  for (const auto& below : directory->directories) spawn([this, below] { open(below); });
}

Result<std::string> TreeReader::take() {
  if (error_) return fail(*error_);
  // At most 2,048 deep, as paths have 4 KiB.
  const std::function<void(Directory&)> assemble = [&](Directory& directory) {
    for (auto& below : directory.directories) {
      assemble(*below);
      directory.entry.children.push_back(std::move(below->entry));
      below.reset();
    }
  };
  assemble(*root_);
  root_->entry.name.clear();
  auto bytes = TreeIndexWriter::encode(std::move(root_->entry));
  root_.reset();
  if (!bytes) return fail(Error::with_code(bytes.error().code(), path_, bytes.error().message()));
  return bytes;
}

namespace {

class TreeComparison {
 public:
  TreeComparison(const std::string& root, const TreeIndex& then, const TreeIndex& now)
      : root_(root), then_(then), now_(now) {}

  std::vector<TreeDrift> run() {
    compare_directories(kTreeRoot, kTreeRoot);
    return std::move(out_);
  }

 private:
  void add(const TreeIndex& of, TreeNodeId id, const char* what, std::string detail = {}) {
    const auto path = of.path(id);
    out_.push_back({path.empty() ? root_ : root_ + "/" + path, what, std::move(detail)});
  }

  void compare_directories(TreeNodeId then_id, TreeNodeId now_id) {
    compare(then_id, now_id);
    const auto then = then_.node(then_id);
    const auto now = now_.node(now_id);
    TreeNodeId a = then.first_child;
    TreeNodeId b = now.first_child;
    const TreeNodeId a_end = a + then.child_count;
    const TreeNodeId b_end = b + now.child_count;
    while (a < a_end || b < b_end) {
      const int order = a == a_end   ? 1
                        : b == b_end ? -1
                                     : then_.node(a).name.compare(now_.node(b).name);
      if (order < 0)
        add(then_, a++, "missing");
      else if (order > 0)
        add(now_, b++, "added");
      else if (S_ISDIR(then_.node(a).mode) && S_ISDIR(now_.node(b).mode))
        compare_directories(a++, b++);
      else
        compare(a++, b++);
    }
  }

  void compare(TreeNodeId then_id, TreeNodeId now_id) {
    const auto then = then_.node(then_id);
    const auto now = now_.node(now_id);
    if (then.mode != now.mode)
      add(then_, then_id, "changed", fmt::format("mode {:o} was {:o}", now.mode, then.mode));
    else if (then.hole != now.hole)
      add(then_, then_id, "changed", now.hole ? "it cannot be read" : "it can be read");
    else if (then.uid != now.uid || then.gid != now.gid)
      add(then_, then_id, "changed",
          fmt::format("owner {}:{} was {}:{}", now.uid, now.gid, then.uid, then.gid));
    else if (then.target != now.target)
      add(then_, then_id, "changed", fmt::format("link to {} was {}", now.target, then.target));
    else if (S_ISREG(then.mode) && !then.hole && then.size != now.size)
      add(then_, then_id, "changed", fmt::format("size {} was {}", now.size, then.size));
    else if (S_ISREG(then.mode) && !then.hole && then.mtime_ns != now.mtime_ns)
      add(then_, then_id, "changed", "its time");
  }

  const std::string& root_;
  const TreeIndex& then_;
  const TreeIndex& now_;
  std::vector<TreeDrift> out_;
};

}  // namespace

std::vector<TreeDrift> compare_trees(const std::string& root, const TreeIndex& then,
                                     const TreeIndex& now) {
  return TreeComparison(root, then, now).run();
}

}  // namespace heddle
