// SPDX-License-Identifier: MIT
#include "container-hooks/trusted_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <initializer_list>

#include "base/fd.hpp"
#include "base/folder_of.hpp"
#include "container-hooks/sealed_program.hpp"

namespace heddle {
namespace {

constexpr int kMostLinks = 40;  // <linux/namei.h>, MAXSYMLINKS

enum class Place : std::uint8_t { above, last };

/// Root is who owns "/": in a user's namespace (podman unshare) root has no number of its own.
bool is_trusted(uid_t owner) {
  struct stat top {};
  return owner == ::geteuid() || (::stat("/", &top) == 0 && owner == top.st_uid);
}

/// The mode tells of an ACL too: its mask, which bounds whatever it grants, stands there as the
/// group's rights (acl(5)). A user's own group may be nobody else's (umask 002), root's files have
/// no such excuse.
Result<void> check(const struct stat& status, const std::string& path, Place place) {
  constexpr const char* kWhat = "cannot be trusted";
  const bool is_root = is_systems_root();
  if (!is_trusted(status.st_uid))
    return fail(path, kWhat, "it is user " + std::to_string(status.st_uid) + "'s",
                is_root ? "what root runs must be root's: install it where only root may write"
                        : "it must be yours or root's");
  if (S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0 && place == Place::above)
    return {};
  if ((status.st_mode & (is_root ? 0022U : 0002U)) != 0)
    return fail(path, kWhat, "others may write to it", "chmod go-w " + path);
  return {};
}

/// Where the symbolic link that `fd` is open on (O_PATH) leads.
std::string target_of(const Fd& fd) {
  char text[PATH_MAX];
  const ssize_t n = ::readlinkat(fd.get(), "", text, sizeof(text));
  return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : std::string();
}

/// Follows `path` from the root and checks each directory, and each link: its owner may have
/// another lead elsewhere. None: it ends at a directory that does not exist.
Result<Fd> walk(std::string path) {
  int links = 0;
  auto folder = open_file("/", O_PATH | O_DIRECTORY);
  for (std::size_t at = 0; folder;) {
    const auto begin = path.find_first_not_of('/', at);
    const auto place = begin == path.npos ? Place::last : Place::above;
    const auto here = at == 0 ? "/" : path.substr(0, at);
    struct stat status {};
    if (::fstat(folder->get(), &status) != 0) return fail_errno(here, "cannot look at it");
    if (auto good = check(status, here, place); !good) return fail(std::move(good.error()));
    if (place == Place::last) break;
    at = std::min(path.find('/', begin), path.size());
    Fd next(::openat(folder->get(), path.substr(begin, at - begin).c_str(),
                     O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!next && errno == ENOENT) return Fd();
    if (!next || ::fstat(next.get(), &status) != 0)
      return fail_errno(path.substr(0, at), "cannot be trusted");
    if (S_ISLNK(status.st_mode)) {
      if (!is_trusted(status.st_uid) || ++links > kMostLinks)
        return fail(path.substr(0, at), "cannot be trusted", "it is another user's link");
      const auto target = target_of(next);
      path = (target.starts_with('/') ? "" : path.substr(0, begin)) + target + path.substr(at);
      folder = open_file("/", O_PATH | O_DIRECTORY);
      at = 0;
      continue;
    }
    *folder = std::move(next);
  }
  return folder;
}

Result<void> check_file_in(const Fd& folder, const std::string& path) {
  struct stat status {};
  const auto name = path.substr(path.rfind('/') + 1);
  if (!folder || ::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return {};
  if (!S_ISREG(status.st_mode)) return fail(path, "cannot be trusted", "it is no regular file");
  return check(status, path, Place::last);
}

}  // namespace

bool is_systems_root() {
  struct stat root {};
  return ::geteuid() == 0 && ::stat("/", &root) == 0 && root.st_uid == 0;
}

Result<void> check_trusted_directory(const std::string& path) {
  auto folder = walk(path);
  if (!folder) return fail(std::move(folder.error()));
  return {};
}

Result<void> check_trusted_file(const std::string& path) {
  const auto folder = walk(folder_of(path));
  if (!folder) return fail(folder.error());
  return check_file_in(*folder, path);
}

Result<void> check_trusted_programs() {
  const auto programs = hook_program_dir();
  if (!programs) return fail(programs.error());
  const auto check_all = [](const std::string& directory,
                            std::initializer_list<const char*> names) -> Result<void> {
    const auto folder = walk(directory);
    if (!folder) return fail(folder.error());
    for (const char* name : names)
      if (auto good = check_file_in(*folder, directory + "/" + name); !good) return good;
    return {};
  };
  if (auto good = check_all(*programs, {"fs-hook", "fs-mount", "fs-resolve"}); !good) return good;
  return check_all(folder_of(*programs) + "/libexec/heddle", {"elf-worker", "fs-mount-static"});
}

}  // namespace heddle
