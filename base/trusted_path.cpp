// SPDX-License-Identifier: MIT
#include "base/trusted_path.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/open_regular.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

constexpr int kMostLinks = 40;  // <linux/namei.h>, MAXSYMLINKS
constexpr const char* kWhat = "cannot be trusted";

/// Who may own what this process uses. Asked once a path: it has many components.
struct Trusted {
  uid_t self;
  /// root is the owner of "/", since a user namespace (podman unshare) does not map root's uid.
  uid_t root;
  bool is_systems_root = false;

  explicit Trusted(uid_t user = ::geteuid()) : self(user), root(user) {
    struct stat top {};
    if (::stat("/", &top) != 0) return;
    root = top.st_uid;
    is_systems_root = self == 0 && root == 0;
  }
  bool may_own(uid_t owner) const { return owner == self || owner == root; }
  /// The mode covers an ACL too, whose mask is shown as the group's permissions (acl(5)). A user's
  /// files may be group-writable, since a private group has no other member (umask 002).
  bool others_may_write(const struct stat& status) const {
    return (status.st_mode & (is_systems_root ? 0022U : 0002U)) != 0;
  }
};

Result<void> check(const struct stat& status, const std::string& path, bool is_last,
                   const Trusted& trusted) {
  if (!trusted.may_own(status.st_uid))
    return fail(path, kWhat, "it belongs to user " + std::to_string(status.st_uid),
                trusted.is_systems_root
                    ? "what root uses must be root's: put it where only root may write"
                    : "it must be yours or root's");
  if (S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0 && !is_last) return {};
  if (trusted.others_may_write(status))
    return fail(path, kWhat, "others may write to it", "chmod go-w " + path);
  return {};
}

/// The target of the symbolic link `fd` (O_PATH).
std::string target_of(const Fd& fd) {
  char text[PATH_MAX];
  const ssize_t n = ::readlinkat(fd.get(), "", text, sizeof(text));
  return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : std::string();
}

/// Resolves `path` and checks each component and each link, whose owner can redirect it. Result:
/// the file; none if it does not exist.
Result<Fd> walk(std::string path, const Trusted& trusted = Trusted()) {
  int links = 0;
  Fd here = TRY(open_file("/", O_PATH | O_DIRECTORY));
  struct stat status {};  // of `here`
  if (::fstat(here.get(), &status) != 0) return fail_errno("/", kWhat);
  for (std::size_t at = 0;;) {
    const auto begin = path.find_first_not_of('/', at);
    const bool is_last = begin == path.npos;
    TRY(check(status, at == 0 ? "/" : path.substr(0, at), is_last, trusted));
    if (is_last) return here;
    at = std::min(path.find('/', begin), path.size());
    Fd next(::openat(here.get(), path.substr(begin, at - begin).c_str(),
                     O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!next && errno == ENOENT) {
      // In /tmp another user could create it between this check and its use.
      if (trusted.others_may_write(status))
        return fail(path.substr(0, at), kWhat, "it does not exist, and others may create it");
      return Fd();
    }
    if (!next || ::fstat(next.get(), &status) != 0) return fail_errno(path.substr(0, at), kWhat);
    if (S_ISLNK(status.st_mode)) {
      if (!trusted.may_own(status.st_uid) || ++links > kMostLinks)
        return fail(path.substr(0, at), kWhat, "the link belongs to another user");
      const auto target = target_of(next);
      path = (target.starts_with('/') ? "" : path.substr(0, begin)) + target + path.substr(at);
      next = TRY(open_file("/", O_PATH | O_DIRECTORY));
      if (::fstat(next.get(), &status) != 0) return fail_errno("/", kWhat);
      at = 0;
    }
    here = std::move(next);
  }
}

}  // namespace

bool is_systems_root() { return Trusted().is_systems_root; }

Result<void> check_trusted_directory(const std::string& path) {
  TRY(walk(path));
  return {};
}

Result<void> check_trusted_directory(const std::string& path, uid_t owner) {
  TRY(walk(path, Trusted(owner)));
  return {};
}

Result<void> check_trusted_file(const std::string& path) {
  const Fd file = TRY(walk(path));
  struct stat status {};
  if (file && (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)))
    return fail(path, kWhat, "it is not a regular file");
  return {};
}

bool may_follow_to_write(const Fd& directory, const Fd& link) {
  struct stat status {
  }, around{};
  if (!is_systems_root()) return true;
  return ::fstat(link.get(), &status) == 0 && ::fstat(directory.get(), &around) == 0 &&
         status.st_uid == 0 && around.st_uid == 0 &&
         ((around.st_mode & 0022) == 0 || (around.st_mode & S_ISVTX) != 0);
}

Result<Fd> open_directory_to_write(const std::string& path) {
  constexpr int kDirectory = O_PATH | O_DIRECTORY;
  if (!is_systems_root()) return open_file(path.empty() ? "." : path, kDirectory);
  // The common case, in one call; not before Linux 5.6.
  if (auto directory =
          open_resolved(AT_FDCWD, path.empty() ? "." : path, kDirectory, RESOLVE_NO_SYMLINKS))
    return directory;
  int links = 0;
  std::string left = path;
  Fd here = TRY(open_file(left.starts_with('/') ? "/" : ".", kDirectory));
  for (;;) {
    const auto begin = left.find_first_not_of('/');
    if (begin == left.npos) return here;
    const auto end = std::min(left.find('/', begin), left.size());
    const auto name = left.substr(begin, end - begin);
    left.erase(0, end);
    Fd next(::openat(here.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!next || ::fstat(next.get(), &status) != 0) return fail_errno(path, "cannot open");
    if (S_ISLNK(status.st_mode)) {
      struct statfs system {};
      if (::fstatfs(next.get(), &system) != 0 || system.f_type == PROC_SUPER_MAGIC)
        return fail_errno(path, "cannot open", ELOOP);
      if (!may_follow_to_write(here, next))
        return fail(
            Error::with_code(EPERM, path, "cannot write there",
                             "root follows no link that another user can have put there: " + name,
                             "name the directory itself"));
      if (++links > kMostLinks) return fail_errno(path, "cannot open", ELOOP);
      const auto target = target_of(next);
      left.insert(0, target + "/");
      if (target.starts_with('/')) here = TRY(open_file("/", kDirectory));
    } else if (S_ISDIR(status.st_mode)) {
      here = std::move(next);
    } else {
      return fail_errno(path, "cannot open", ENOTDIR);
    }
  }
}

Result<Fd> make_directory_to_write(const std::string& path, mode_t mode) {
  auto there = open_directory_to_write(path);
  const auto last = path.find_last_not_of('/');
  if (there || there.error().code() != ENOENT || last == path.npos) return there;
  const auto slash = path.rfind('/', last);
  const auto name = path.substr(slash == path.npos ? 0 : slash + 1, last - slash);
  const Fd above =
      TRY(slash == path.npos ? open_directory_to_write("")
                             : make_directory_to_write(path.substr(0, slash + 1), mode));
  if (::mkdirat(above.get(), name.c_str(), mode) != 0 && errno != EEXIST)
    return fail_errno(path, "cannot make the directory");
  return open_directory_to_write(path);
}

}  // namespace heddle
