// SPDX-License-Identifier: MIT
#include "base/open_regular.hpp"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <vector>

#include "base/file_systems.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"

namespace heddle {

Result<Fd> open_regular_at(int handle, const std::string& name) {
  struct stat status {};
  if (::fstat(handle, &status) != 0) return fail_errno(name, "cannot stat");
  if (S_ISDIR(status.st_mode)) return fail_errno(name, "cannot read", EISDIR);
  if (!S_ISREG(status.st_mode))
    return fail(Error::with_code(ENOEXEC, name, "cannot read", "not a regular file"));
  auto file = open_file("/proc/self/fd/" + std::to_string(handle), O_RDONLY | O_NONBLOCK);
  if (!file) return fail_errno(name, "cannot open", file.error().code());
  return file;
}

Result<Fd> open_regular(const std::string& path) {
  const Fd handle = TRY(open_file(path, O_PATH));
  return open_regular_at(handle.get(), path);
}

Result<Fd> open_regular_in(int root, const std::string& path) {
  const Fd handle = TRY(open_in_root(root, path, O_PATH, 0));
  struct statfs system {};
  if (::fstatfs(handle.get(), &system) != 0) return fail_errno(path, "cannot read");
  if (lies_on_made_up_file_system(handle.get()))
    return fail(
        Error::with_code(ENOEXEC, path, "cannot read", "not on a file system that stores files"));
  return open_regular_at(handle.get(), path);
}

namespace {

constexpr int kMostLinks = 40;  ///< the kernel's (fs/namei.c, MAXSYMLINKS)

/// Pushes the components of `path` in reverse order.
void push_components(std::vector<std::string>& left, std::string_view path) {
  // "x/" is "x/.", which only a directory has.
  if (path.ends_with('/')) left.emplace_back(".");
  while (!path.empty()) {
    const auto slash = path.rfind('/');
    const auto name = path.substr(slash == path.npos ? 0 : slash + 1);
    if (!name.empty()) left.emplace_back(name);
    path = path.substr(0, slash == path.npos ? 0 : slash);
  }
}

/// The target of the link `handle`; ELOOP on procfs, whose links lead anywhere.
Result<std::string> link_text(int handle, const std::string& path) {
  struct statfs system {};
  char text[PATH_MAX];
  if (::fstatfs(handle, &system) != 0) return fail_errno(path, "cannot open");
  if (system.f_type == PROC_SUPER_MAGIC) return fail_errno(path, "cannot open", ELOOP);
  const ssize_t n = ::readlinkat(handle, "", text, sizeof(text));
  if (n <= 0) return fail_errno(path, "cannot open", n == 0 ? ENOENT : errno);
  return std::string(text, static_cast<std::size_t>(n));
}

/// Opens the file of `handle` with `flags`.
Result<Fd> reopen(int handle, const std::string& path, int flags) {
  const auto flags_for_link = flags & ~O_NOFOLLOW;
  auto fd = open_file("/proc/self/fd/" + std::to_string(handle), flags_for_link);
  if (!fd) return fail_errno(path, "cannot open", fd.error().code());
  return fd;
}

/// openat2(2)'s RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS, one component at a time. Descriptors of
/// all directories on the way are held, so `..` is always the directory before, also if one is
/// moved.
Result<Fd> walk_in_root(int root, const std::string& path, int flags) {
  std::vector<Fd> way;
  std::vector<std::string> left;
  push_components(left, path);
  const auto here = [&] { return way.empty() ? root : way.back().get(); };
  for (int links = 0; !left.empty();) {
    const auto name = std::move(left.back());
    left.pop_back();
    struct stat status {};
    if (::fstat(here(), &status) != 0) return fail_errno(path, "cannot open");
    if (!S_ISDIR(status.st_mode)) return fail_errno(path, "cannot open", ENOTDIR);
    if (name == "..") {
      if (!way.empty()) way.pop_back();
      continue;
    }
    if (name == ".") continue;
    Fd next(::openat(here(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!next || ::fstat(next.get(), &status) != 0) return fail_errno(path, "cannot open");
    if (!S_ISLNK(status.st_mode) || (left.empty() && (flags & O_NOFOLLOW) != 0)) {
      way.push_back(std::move(next));
      continue;
    }
    if (++links > kMostLinks) return fail_errno(path, "cannot open", ELOOP);
    const std::string text = TRY(link_text(next.get(), path));
    if (text.starts_with('/')) way.clear();
    push_components(left, text);
  }
  return reopen(here(), path, flags);
}

}  // namespace

Result<Fd> open_resolved(int from, const std::string& path, int flags, std::uint64_t resolve) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags) | O_CLOEXEC;
  how.resolve = resolve;
  long fd = -1;
  // EAGAIN: a rename or mount raced with a `..` (openat2(2)).
  for (int tries = 0; tries < 1000; ++tries) {
    fd = ::syscall(SYS_openat2, from, path.c_str(), &how, sizeof(how));
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) break;
  }
  if (fd < 0) return fail_errno(path, "cannot open");
  return Fd(static_cast<int>(fd));
}

Result<Fd> open_in_root(int root, const std::string& path, int flags, std::uint64_t resolve) {
  auto fd = open_resolved(root, path, flags, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | resolve);
  const int code = fd ? 0 : fd.error().code();
  // ENOSYS before Linux 5.6; seccomp filters that do not know the call return any of the three.
  const bool unknown = code == ENOSYS || code == EPERM || code == EINVAL;
  return unknown && resolve == 0 ? walk_in_root(root, path, flags) : std::move(fd);
}

Result<Fd> open_log(const std::string& path) {
  constexpr int kAppend = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  const auto slash = path.rfind('/');
  const Fd directory =
      TRY(open_directory_to_write(slash == path.npos ? std::string() : path.substr(0, slash + 1)));
  const auto name = path.substr(slash + 1);
  struct stat status {};
  // Opening a device may have effects (a tape rewinds), so its type is read first; fstat finds a
  // file that was exchanged in between.
  if (::fstatat(directory.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
      S_ISREG(status.st_mode)) {
    Fd file(::openat(directory.get(), name.c_str(), kAppend | O_CLOEXEC, 0644));
    if (!file) return fail_errno(path, "cannot open");
    if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode)) return file;
  }
  return fail(path, "cannot use as log", "not a regular file", "name a file of its own");
}

}  // namespace heddle
