// SPDX-License-Identifier: MIT
#include "fuseovl/mount/warm_up.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/child.hpp"
#include "base/mount_calls.hpp"
#include "base/mounts.hpp"
#include "base/try.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

constexpr std::size_t kBufferSize = 64 * 1024;

// Sub-directories that ld.so tries first (glibc elf/dl-hwcaps_subdirs.c and, up to 2.36,
// sysdeps/x86/dl-hwcap.h with elf/dl-hwcaps.c).
constexpr const char* kProbedNames[] = {"glibc-hwcaps", "tls",      "x86_64",  "i686",
                                        "haswell",      "avx512_1", "xeon_phi"};

void probe_missing_names(int directory) {
  for (const char* name : kProbedNames) (void)::faccessat(directory, name, F_OK, 0);
}

/// The directory of the names that programs open, below the mount's root: what guided programs are
/// sent to, or the root ("") where there is an ld.so.cache, a container's.
std::string names_of_map(int root) {
  std::string found;
  if (::faccessat(root, std::string(kShortCache).c_str(), F_OK, 0) == 0) return found;
  const Fd maps(
      ::openat(root, std::string(kMapsDirectory).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto visit = [&](const std::string& name, const DirectoryEntry& entry) {
    if (entry.ino == kMapInode) found = std::string(kMapsDirectory) + "/" + name + "/";
  };
  if (maps)
    (void)walk_tree(maps.get(), visit, [](const std::string&, std::uint64_t) { return false; });
  return found;
}

/// The names of extension modules that CPython tries in a package before it finds `__init__.py`
/// (importlib/_bootstrap_external.py, FileFinder.find_spec). `path` is a file below `root`; if it
/// is the compiled one of a package, it tells the interpreter's tag.
void probe_extensions(int root, const std::string& path) {
  constexpr std::string_view kCompiled = "__pycache__/__init__.", kEnd = ".pyc";
  const auto at = path.rfind(kCompiled);
  if (at == std::string::npos || !path.ends_with(kEnd)) return;
  const auto tag =
      path.substr(at + kCompiled.size(), path.size() - kEnd.size() - at - kCompiled.size());
  utsname machine{};
  if (tag.find_first_of("./") != std::string::npos || ::uname(&machine) != 0) return;
  const auto stem = path.substr(0, at) + "__init__.";
  for (const auto& end :
       {tag + "-" + machine.machine + "-linux-gnu.so", std::string("abi3.so"), std::string("so")})
    (void)::faccessat(root, (stem + end).c_str(), F_OK, 0);
}

/// Whether `path` shows that the map has one view, whose names are in the directory of all views.
bool is_of_only_view(const std::string& path, const DirectoryEntry& entry) {
  return entry.type == DT_REG && path.find('/') == std::string::npos && path != kShortCache;
}

/// Whether `directory` has other names of the same files, or a map's trees, which come last.
bool is_left_alone(const std::string& directory) {
  return directory == kMapsDirectory || directory == kTreesDirectory;
}

/// Whether programs may need the names of `directory` at once. The only view's directory and plugin
/// directories are rarely used.
bool is_warmed(const std::string& directory, bool only_view) {
  return directory == kOwnDirectory || (!is_left_alone(directory) && !only_view);
}

/// A read of a file or directory has the kernel forget its access time, unless the file system is
/// read-only for it: the next stat(2) would ask the daemon (fs/fuse/dir.c,
/// fuse_invalidate_atime()).
void renew_times(int fd) {
  struct stat status {};
  (void)::fstat(fd, &status);
}

constexpr unsigned kLongestLife = 30;  // seconds; an origin may not answer
// readahead(2) reads at most the mount's read-ahead window (mm/readahead.c, force_page_cache_ra),
// 128 KiB for FUSE.
constexpr std::size_t kWindow = 128 * 1024;

struct File {
  std::string path;  ///< below the mount
  std::uint64_t size = 0;
  std::uint64_t place = 0;  ///< in a bundle
};

std::uint64_t available_memory() {
  const auto text = read_file("/proc/meminfo", 1U << 16);
  if (!text) return UINT64_MAX;
  const auto at = text->find("MemAvailable:");
  unsigned long long kib = 0;
  if (at == std::string::npos || std::sscanf(text->c_str() + at, "MemAvailable: %llu", &kib) != 1)
    return UINT64_MAX;
  return kib * 1024;
}

/// Whether the mount is still there, without a request to it.
class Wanted {
 public:
  explicit Wanted(std::string mount_point) : mount_point_(std::move(mount_point)) {
    if (auto file = open_file("/proc/self/mountinfo", O_RDONLY)) mounts_ = std::move(*file);
    if (const auto mounted = find_mount(mount_point_); mounted && *mounted)
      device_ = (*mounted)->device;
    (void)check();  // the first poll of mountinfo always reports a change
  }
  int descriptor() const { return mounts_.get(); }

  bool check() {
    pollfd mounts{mounts_.get(), POLLPRI, 0};
    if (is_gone_ || ::poll(&mounts, 1, 0) <= 0) return !is_gone_;
    const auto mounted = find_mount(mount_point_);
    is_gone_ = !mounted || !*mounted || (*mounted)->device != device_;
    return !is_gone_;
  }

 private:
  std::string mount_point_;
  Fd mounts_;
  dev_t device_ = 0;
  bool is_gone_ = false;
};

/// Chooses files to read ahead, each once, smallest first, as many as the budget allows: ld.so
/// reads a little of every library. Those in a bundle in its order, so that its frames are decoded
/// one after the other.
class Chooser {
 public:
  Chooser(int root, std::uint64_t budget, const std::optional<BundlePlaces>& bundle)
      : root_(root), budget_(budget), bundle_(bundle) {}

  /// Of all directories, or only of those that the warm-up has listed.
  std::vector<File> choose(bool all) {
    std::vector<File> files;
    bool only_view = false;
    const std::string start = all ? "" : names_of_map(root_);
    const Fd directory(::openat(root_, ("./" + start).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    const auto visit = [&](const std::string& name, const DirectoryEntry& entry) {
      struct stat status {};
      const auto path = start + name;
      if (entry.type != DT_REG || path == ".heddle/map") return;
      if (is_of_only_view(name, entry)) only_view = true;
      if (!seen_.insert(entry.ino).second) return;
      if (::fstatat(root_, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
        files.push_back(
            {path, static_cast<std::uint64_t>(status.st_size), place(entry.ino).value_or(0)});
    };
    (void)walk_tree(directory.get(), visit, [&](const std::string& name, std::uint64_t) {
      return all ? !is_left_alone(name) : is_warmed(name, only_view);
    });
    return within_budget(std::move(files));
  }

  /// Of trees those in the bundle. Has the kernel cache all names on the way.
  std::vector<File> choose_of_trees(Wanted& wanted) {
    std::vector<File> files;
    const auto start = std::string(kTreesDirectory) + "/";
    const Fd directory(::openat(root_, start.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory) return files;
    std::size_t names = 0;
    const auto visit = [&](const std::string& name, const DirectoryEntry& entry) {
      ++names;
      char first = 0;
      if (entry.type == DT_LNK) (void)!::readlinkat(directory.get(), name.c_str(), &first, 1);
      if (entry.type != DT_REG) return;
      probe_extensions(directory.get(), name);
      struct stat status {};
      if (place(entry.ino) && seen_.insert(entry.ino).second &&
          ::fstatat(directory.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
        files.push_back(
            {start + name, static_cast<std::uint64_t>(status.st_size), *place(entry.ino)});
    };
    (void)walk_tree(directory.get(), visit, [&](const std::string& name, std::uint64_t ino) {
      const bool is_root = name.find('/') == std::string::npos;
      return (is_root || !bundle_ || bundle_->directories.contains(ino)) &&
             names < kPrefetchedTreeNames && wanted.check();
    });
    return within_budget(std::move(files));
  }

 private:
  std::vector<File> within_budget(std::vector<File> files) {
    std::stable_sort(files.begin(), files.end(),
                     [](const File& a, const File& b) { return a.size < b.size; });
    const auto too_much = [&](const File& file) {
      if (file.size > budget_) return true;
      budget_ -= file.size;
      return false;
    };
    files.erase(std::find_if(files.begin(), files.end(), too_much), files.end());
    std::stable_sort(files.begin(), files.end(),
                     [](const File& a, const File& b) { return a.place < b.place; });
    return files;
  }
  std::optional<std::uint64_t> place(std::uint64_t ino) const {
    if (!bundle_) return {};
    const auto found = bundle_->files.find(ino);
    return found == bundle_->files.end() ? std::nullopt : std::optional(found->second);
  }
  int root_;
  std::uint64_t budget_;
  const std::optional<BundlePlaces>& bundle_;
  std::unordered_set<std::uint64_t> seen_;
};

/// First starts all reads, then waits for each window. Result: whether the work is still wanted.
bool read_ahead(const Fd& root, std::span<const File> files, Wanted& wanted) {
  for (const bool waits : {false, true}) {
    for (const auto& file : files) {
      const Fd fd(::openat(root.get(), file.path.c_str(), O_RDONLY | O_CLOEXEC));
      for (std::uint64_t offset = 0; fd && offset < file.size; offset += kWindow) {
        if (!wanted.check()) return false;
        char last = 0;
        if (!waits)
          (void)::readahead(fd.get(), static_cast<off64_t>(offset), kWindow);
        else
          (void)!::pread(fd.get(), &last, 1,
                         static_cast<off_t>(std::min(offset + kWindow, file.size) - 1));
      }
      if (waits && fd) renew_times(fd.get());
    }
  }
  return true;
}

void prefetch(const Fd& root, Wanted& wanted, std::uint64_t budget,
              const std::optional<BundlePlaces>& bundle) {
  (void)::setsid();
  (void)::chdir("/");
  ::alarm(kLongestLife);
  (void)::faccessat(root.get(), kPrefetchBegins, F_OK, 0);
  Chooser chooser(root.get(), std::min(budget, available_memory() / 4), bundle);
  // A program may be starting already: first what is listed already.
  for (const bool all : {false, true})
    if (!read_ahead(root, chooser.choose(all), wanted)) return;
  // In parts: a program may be at the first files already.
  constexpr std::size_t kPart = 64;
  const auto files = chooser.choose_of_trees(wanted);
  for (std::span<const File> left(files); !left.empty();
       left = left.subspan(std::min(kPart, left.size())))
    if (!read_ahead(root, left.first(std::min(kPart, left.size())), wanted)) return;
  (void)::faccessat(root.get(), kPrefetchDone, F_OK, 0);
}

}  // namespace

Result<void> walk_tree(int root,
                       const std::function<void(const std::string&, const DirectoryEntry&)>& visit,
                       const std::function<bool(const std::string&, std::uint64_t)>& enter) {
  const std::unique_ptr<char[]> buffer(new char[kBufferSize]);
  std::vector<std::pair<std::string, std::uint64_t>> pending = {{"", 0}};
  while (!pending.empty()) {
    const auto [directory, ino] = std::move(pending.back());
    pending.pop_back();
    if (enter && !directory.empty() && !enter(directory, ino)) continue;
    const Fd fd(::openat(root, directory.empty() ? "." : directory.c_str(),
                         O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return fail_errno(directory, "cannot open");
    const auto first = static_cast<std::ptrdiff_t>(pending.size());
    for (;;) {
      const long n = ::syscall(SYS_getdents64, fd.get(), buffer.get(), kBufferSize);
      if (n < 0) return fail_errno(directory, "cannot list");
      if (n == 0) break;
      for (long at = 0; at < n;) {
        const auto* entry = reinterpret_cast<const dirent64*>(buffer.get() + at);
        at += entry->d_reclen;
        const char* name = entry->d_name;
        if (std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0) continue;
        const std::string path = directory.empty() ? name : directory + "/" + name;
        visit(path, {entry->d_ino, entry->d_type});
        if (entry->d_type == DT_DIR) pending.emplace_back(path, entry->d_ino);
      }
    }
    std::reverse(pending.begin() + first, pending.end());  // the first one is next
    renew_times(fd.get());
  }
  return {};
}

void for_each_name(int directory, const std::function<void(const std::string&)>& call) {
  (void)walk_tree(
      directory, [&](const std::string& name, const DirectoryEntry&) { call(name); },
      [](const std::string&, std::uint64_t) { return false; });
}

Result<void> warm_up(const std::string& mount_point) {
  const Fd root(::open(mount_point.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!root || ::fstat(root.get(), &status) != 0) return fail_errno(mount_point, "does not answer");
  probe_missing_names(root.get());
  // The other directories are left to the prefetch.
  const auto directory = "./" + names_of_map(root.get());
  const Fd names(::openat(root.get(), directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!names) return fail_errno(mount_point, "does not answer");
  bool only_view = false;
  const auto visit = [&](const std::string& path, const DirectoryEntry& entry) {
    if (is_of_only_view(path, entry)) only_view = true;
  };
  TRY(walk_tree(names.get(), visit, [&](const std::string& name, std::uint64_t) {
    return is_warmed(name, only_view);
  }));
  // The daemon answers OPEN, FLUSH, LISTXATTR and STATX with ENOSYS, once.
  const Fd index(::openat(root.get(), ".heddle/index", O_RDONLY | O_CLOEXEC));
  if (!index) return fail_errno(mount_point, "is no heddle mount");
  (void)::flistxattr(root.get(), nullptr, 0);
  struct statx extended {};
  (void)::statx(root.get(), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &extended);
  return {};
}

Result<void> start_prefetch(const std::string& mount_point, std::uint64_t budget,
                            const std::optional<BundlePlaces>& bundle) {
  if (budget == 0) return {};
  const Fd root = TRY(copy_mount(AT_FDCWD, mount_point));
  Wanted wanted(mount_point);
  ForkOptions options{.dies_with_parent = false,
                      .keep = std::vector{wanted.descriptor(), root.get()},
                      .null_stdio = true};
  options.name = "heddle-prefetch";
  // Forked twice: the caller may exec the user's program, which must not have a child of ours.
  auto child = TRY(fork_child({.dies_with_parent = false, .untraced = true}, [&] {
    auto own = fork_child(options, [&] {
      prefetch(root, wanted, budget, bundle);
      return 0;
    });
    if (own) (void)own->release();
    return 0;
  }));
  TRY(child.wait());
  return {};
}

}  // namespace heddle
