// SPDX-License-Identifier: MIT
#include "fuseovl/keep/mount_guard.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/temp_dir.hpp"
#include "fuseovl/mount/fusermount.hpp"
#include "fuseovl/mount/kernel_mount.hpp"

namespace heddle {
namespace {

void unmount_and_remove(const std::string& folder) {
  const std::string mount_point = folder + "/m";
  if (const auto mounted = find_mount(mount_point);
      mounted && *mounted && (*mounted)->type == kMountType)
    (void)unmount_fuse(mount_point, Unmount::detach);
  (void)remove_tree(folder);
}

/// Folders that fs-gens of this user locked (fsgen/guided_run.cpp, make_work_dir) and did not live
/// to remove. Young ones may be about to be locked; one with a mount point is a daemon's affair.
void sweep_folders(const std::string& parent) {
  constexpr std::time_t kYoung = 60;
  DIR* listing = ::opendir(parent.c_str());
  if (!listing) return;
  std::vector<std::string> found;
  while (const dirent* entry = ::readdir(listing))
    if (std::string_view(entry->d_name).starts_with("hd-"))
      found.push_back(parent + "/" + entry->d_name);
  ::closedir(listing);
  for (const auto& folder : found) {
    const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat st {};
    if (!fd || ::fstat(fd.get(), &st) != 0 || st.st_uid != ::geteuid()) continue;
    if (st.st_mtime > std::time(nullptr) - kYoung) continue;
    if (::faccessat(fd.get(), "m", F_OK, AT_SYMLINK_NOFOLLOW) == 0) continue;
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) (void)remove_tree(folder);
  }
}

/// Mounts of this user's that nobody serves any more: a job's end kills a daemon together with its
/// guard (cgroups), and the next one to end tidies up after them.
void sweep_mounts() {
  const auto text = read_file("/proc/self/mountinfo").value_or("");
  const std::string ours = "user_id=" + std::to_string(::geteuid()) + ",";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" fuse.heddle ") == std::string::npos || line.find(ours) == std::string::npos)
      continue;
    std::istringstream fields(line);
    std::string word, point;
    for (int i = 0; i < 4; ++i) fields >> word;
    fields >> point;
    const auto slash = point.rfind("/hd-");
    if (slash == std::string::npos || !point.ends_with("/m") ||
        point.find('/', slash + 1) != point.size() - 2)
      continue;
    struct stat st {};
    if (::stat(point.c_str(), &st) != 0 && errno == ENOTCONN)
      unmount_and_remove(point.substr(0, point.size() - 2));
  }
}

}  // namespace

Result<MountGuard> MountGuard::start(const std::string& folder) {
  auto alive = delegate_unmounting(folder + "/m", [folder] {
    unmount_and_remove(folder);
    sweep_mounts();
    sweep_folders(folder.substr(0, folder.rfind('/')));
  });
  if (!alive) return fail(std::move(alive.error()));
  return MountGuard(std::move(*alive));
}

}  // namespace heddle
