// SPDX-License-Identifier: MIT
// in-world [--uid N] [--fuse open|absent] [--mtab open|absent] [--forbid unshare]...
// [--mounts-below DIR] [--] COMMAND:
// runs COMMAND as that user, in a mount namespace of its own where /dev/fuse is as on most nodes
// (0666) or absent, where /etc/mtab may be absent, and where system calls are forbidden as
// container runtimes do it; of heddle's mounts only those below DIR are there. For tests; to be
// started as root.

#include <fcntl.h>
#include <grp.h>
#include <mntent.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace {

void check(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(125);
}

void make_node(const std::string& path, unsigned mode, unsigned major_number,
               unsigned minor_number) {
  ::umask(0);
  check(::mknod(path.c_str(), S_IFCHR | mode, makedev(major_number, minor_number)) == 0, "mknod");
}

/// A /dev of our own: a node that is bound over another would not be gone.
void make_dev(bool fuse) {
  check(::unshare(CLONE_NEWNS) == 0, "unshare");
  check(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "make private");
  check(::mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755") == 0, "mount /dev");
  make_node("/dev/null", 0666, 1, 3);
  make_node("/dev/zero", 0666, 1, 5);
  make_node("/dev/full", 0666, 1, 7);
  make_node("/dev/random", 0666, 1, 8);
  make_node("/dev/urandom", 0666, 1, 9);
  make_node("/dev/tty", 0666, 5, 0);
  if (fuse) make_node("/dev/fuse", 0666, 10, 229);
  check(::mkdir("/dev/shm", 01777) == 0, "mkdir");
  check(::symlink("/proc/self/fd", "/dev/fd") == 0, "symlink");
}

/// Whoever looks whether its mount has gone is not to wait for those of other tests, which stay in
/// a copy of the mounts for ever.
void leave_mounts_but(const std::string& directory) {
  FILE* table = ::setmntent("/proc/self/mounts", "r");
  check(table != nullptr, "/proc/self/mounts");
  std::vector<std::string> others;
  while (const mntent* entry = ::getmntent(table))
    if (std::strcmp(entry->mnt_type, "fuse.heddle") == 0 &&
        std::string(entry->mnt_dir).rfind(directory + "/", 0) != 0)
      others.emplace_back(entry->mnt_dir);
  ::endmntent(table);
  for (const auto& mount : others)
    check(::umount2(mount.c_str(), MNT_DETACH) == 0 || errno == EINVAL || errno == ENOENT,
          mount.c_str());
}

/// fusermount3 wants every user to have a name.
void name_user(unsigned uid) {
  std::ifstream before("/etc/passwd");
  std::ofstream("/dev/passwd") << before.rdbuf() << "heddle-test:x:" << uid << ":" << uid
                               << "::/nonexistent:/bin/sh\n";
  check(::mount("/dev/passwd", "/etc/passwd", nullptr, MS_BIND, nullptr) == 0, "bind passwd");
}

/// /etc without mtab, as debootstrap makes it.
void hide_mtab() {
  check(::mkdir("/dev/etc", 0755) == 0 && ::mkdir("/dev/etc-work", 0755) == 0, "mkdir");
  check(::mount("overlay", "/etc", "overlay", 0,
                "lowerdir=/etc,upperdir=/dev/etc,workdir=/dev/etc-work") == 0,
        "mount overlay");
  check(::unlink("/etc/mtab") == 0, "/etc/mtab");
}

/// Installed as root, and so without PR_SET_NO_NEW_PRIVS: setuid programs keep working.
void forbid(const std::vector<std::string>& names) {
  scmp_filter_ctx filter = ::seccomp_init(SCMP_ACT_ALLOW);
  ::seccomp_attr_set(filter, SCMP_FLTATR_CTL_NNP, 0);
  // As container runtimes do: proot looks whether calls of other architectures work.
  ::seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ALLOW);
  for (const auto& name : names)
    check(::seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM),
                             ::seccomp_syscall_resolve_name(name.c_str()), 0) == 0,
          "seccomp_rule_add");
  check(::seccomp_load(filter) == 0, "seccomp_load");
  ::seccomp_release(filter);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> forbidden;
  std::string fuse = "open";
  std::string mtab = "open";
  std::string mounts_below;
  unsigned uid = 0;
  int at = 1;
  for (; at + 1 < argc && std::strncmp(argv[at], "--", 2) == 0; at += 2) {
    const std::string name = argv[at];
    if (name == "--") break;
    if (name == "--uid") uid = static_cast<unsigned>(std::atoi(argv[at + 1]));
    if (name == "--fuse") fuse = argv[at + 1];
    if (name == "--mtab") mtab = argv[at + 1];
    if (name == "--mounts-below") mounts_below = argv[at + 1];
    if (name == "--forbid") forbidden.emplace_back(argv[at + 1]);
  }
  if (at < argc && std::strcmp(argv[at], "--") == 0) ++at;
  if (at >= argc) return 125;
  make_dev(fuse == "open");
  if (!mounts_below.empty()) leave_mounts_but(mounts_below);
  if (mtab == "absent") hide_mtab();
  if (uid != 0) name_user(uid);
  if (!forbidden.empty()) forbid(forbidden);
  if (uid != 0) {
    const gid_t groups[] = {uid, 4};  // one supplementary group more, to be lost
    check(::setgroups(2, groups) == 0, "setgroups");
    check(::setresgid(uid, uid, uid) == 0, "setresgid");
    check(::setresuid(uid, uid, uid) == 0, "setresuid");
  }
  ::execvp(argv[at], argv + at);
  std::perror(argv[at]);
  return 127;
}
