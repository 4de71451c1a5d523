// SPDX-License-Identifier: MIT
#include "fuseovl/mount/prefetch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <unordered_set>
#include <vector>

#include "base/fd.hpp"
#include "fuseovl/mount/background.hpp"
#include "fuseovl/mount/directory_reader.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

constexpr unsigned kLongestLife = 30;  // seconds; an origin that does not answer must not keep us
// readahead(2) takes no more at once than the mount's read-ahead window (mm/readahead.c,
// force_page_cache_ra), 128 KiB for FUSE.
constexpr std::size_t kWindow = 128 * 1024;

struct File {
  std::string path;  ///< below the mount
  std::uint64_t size = 0;
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

/// Watches whether the work is still wanted, without asking the mount.
class Wanted {
 public:
  Wanted(std::string mount_point, std::optional<pid_t> process)
      : mount_point_(std::move(mount_point)) {
    if (auto file = open_file("/proc/self/mountinfo", O_RDONLY)) mounts_ = std::move(*file);
    if (process) process_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, *process, 0)));
    if (const auto mounted = find_mount(mount_point_); mounted && *mounted)
      device_ = (*mounted)->device;
    (void)check();  // the first poll of mountinfo always reports a change
  }
  std::vector<int> descriptors() const { return {mounts_.get(), process_.get()}; }

  bool check() {
    pollfd entries[] = {{mounts_.get(), POLLPRI, 0}, {process_.get(), POLLIN, 0}};
    if (::poll(entries, 2, 0) <= 0) return true;
    if (entries[1].revents != 0) return false;
    const auto mounted = find_mount(mount_point_);
    return mounted && *mounted && (*mounted)->device == device_;
  }

 private:
  std::string mount_point_;
  Fd mounts_;
  Fd process_;
  dev_t device_ = 0;
};

/// Chooses files to read ahead: each once, whatever its aliases; of those found together smallest
/// first, as many as the budget allows: ld.so touches every library a little.
class Chooser {
 public:
  Chooser(int root, std::uint64_t budget) : root_(root), budget_(budget) {}

  /// Of all directories, or only of what the warm-up asked for already.
  std::vector<File> choose(bool all) {
    std::vector<File> files;
    bool only_view = false;
    const auto visit = [&](const std::string& path, const DirectoryEntry& entry) {
      struct stat status {};
      if (entry.type != DT_REG || path == ".heddle/map") return;
      if (is_of_only_view(path, entry)) only_view = true;
      if (!seen_.insert(entry.ino).second) return;
      if (::fstatat(root_, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
        files.push_back({path, static_cast<std::uint64_t>(status.st_size)});
    };
    (void)walk_tree(root_, visit, [&](const std::string& path) {
      return path != kMapsDirectory && (all || !only_view || path == kOwnDirectory);
    });
    std::stable_sort(files.begin(), files.end(),
                     [](const File& a, const File& b) { return a.size < b.size; });
    const auto too_much = [&](const File& file) {
      if (file.size > budget_) return true;
      budget_ -= file.size;
      return false;
    };
    files.erase(std::find_if(files.begin(), files.end(), too_much), files.end());
    return files;
  }

 private:
  int root_;
  std::uint64_t budget_;
  std::unordered_set<std::uint64_t> seen_;
};

/// First asks for all, many requests at once, then waits for each window. Result: whether it is
/// still wanted.
bool read_ahead(const Fd& root, const std::vector<File>& files, Wanted& wanted) {
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
    }
  }
  return true;
}

[[noreturn]] void live(const Fd& root, Wanted& wanted, std::uint64_t budget) {
  std::vector<int> keep = wanted.descriptors();
  keep.push_back(root.get());
  close_fds_but(keep);
  (void)leave_terminal({});
  ::prctl(PR_SET_NAME, "heddle-prefetch");
  struct sigaction defaults {};
  defaults.sa_handler = SIG_DFL;
  for (const int n : {SIGALRM, SIGTERM, SIGHUP, SIGINT}) ::sigaction(n, &defaults, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::alarm(kLongestLife);
  (void)::faccessat(root.get(), kPrefetchBegins, F_OK, 0);
  Chooser chooser(root.get(), std::min(budget, available_memory() / 4));
  // A program may be starting already: what it needs first needs no listing any more.
  for (const bool all : {false, true})
    if (!read_ahead(root, chooser.choose(all), wanted)) ::_exit(0);
  (void)::faccessat(root.get(), kPrefetchDone, F_OK, 0);
  ::_exit(0);
}

}  // namespace

Result<void> start_prefetch(const std::string& mount_point, const PrefetchOptions& options) {
  if (options.budget == 0) return {};
  const Fd root(static_cast<int>(::syscall(SYS_open_tree, AT_FDCWD, mount_point.c_str(),
                                           OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
  if (!root) return fail_errno(mount_point, "cannot prefetch");
  Wanted wanted(mount_point, options.while_alive);
  // Twice, so that it is nobody's child who waits for children: our caller may become a user's
  // program.
  const pid_t child = ::fork();
  if (child < 0) return fail_errno(mount_point, "cannot prefetch");
  if (child == 0) {
    if (::fork() == 0) live(root, wanted, options.budget);
    ::_exit(0);
  }
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return {};
}

}  // namespace heddle
