// SPDX-License-Identifier: MIT
// in-world [--uid N] [--fuse open|absent] [--mtab open|absent] [--forbid unshare]...
// [--name yes|no] [--mounts-below DIR] [--] COMMAND: runs COMMAND as that user, who has a name or
// not, in a new mount namespace. There /dev/fuse is as on most nodes (0666) or absent, /etc/mtab
// may be absent, forbidden system calls fail as under a container runtime, and of heddle's mounts
// only those below DIR exist. Needs root.

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

void make_node(const std::string& name, unsigned major_number, unsigned minor_number) {
  ::umask(0);
  const auto device = makedev(major_number, minor_number);
  check(::mknod(("/dev/" + name).c_str(), S_IFCHR | 0666, device) == 0, "mknod");
}

/// A new /dev: a bind mount over a node cannot make it absent.
void make_dev(bool fuse) {
  check(::unshare(CLONE_NEWNS) == 0, "unshare");
  check(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "make private");
  check(::mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755") == 0, "mount /dev");
  make_node("null", 1, 3);
  make_node("zero", 1, 5);
  make_node("full", 1, 7);
  make_node("random", 1, 8);
  make_node("urandom", 1, 9);
  make_node("tty", 5, 0);
  if (fuse) make_node("fuse", 10, 229);
  check(::mkdir("/dev/shm", 01777) == 0, "mkdir");
  check(::symlink("/proc/self/fd", "/dev/fd") == 0, "symlink");
}

/// Unmounts other tests' mounts: this namespace's copies would keep them alive.
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

/// fusermount3 needs a name for the user.
void name_user(unsigned uid) {
  std::ifstream before("/etc/passwd");
  std::ofstream("/dev/passwd") << before.rdbuf() << "heddle-test:x:" << uid << ":" << uid
                               << "::/nonexistent:/bin/sh\n";
  check(::mount("/dev/passwd", "/etc/passwd", nullptr, MS_BIND, nullptr) == 0, "bind passwd");
}

/// debootstrap makes /etc without mtab.
void hide_mtab() {
  check(::mkdir("/dev/etc", 0755) == 0 && ::mkdir("/dev/etc-work", 0755) == 0, "mkdir");
  check(::mount("overlay", "/etc", "overlay", 0,
                "lowerdir=/etc,upperdir=/dev/etc,workdir=/dev/etc-work") == 0,
        "mount overlay");
  check(::unlink("/etc/mtab") == 0, "/etc/mtab");
}

/// Without PR_SET_NO_NEW_PRIVS, so that setuid programs work.
void forbid(const std::vector<std::string>& names) {
  scmp_filter_ctx filter = ::seccomp_init(SCMP_ACT_ALLOW);
  ::seccomp_attr_set(filter, SCMP_FLTATR_CTL_NNP, 0);
  // As container runtimes: proot tries calls of other architectures.
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
  std::string name_of_user = "yes";
  unsigned uid = 0;
  int at = 1;
  for (; at + 1 < argc && std::strncmp(argv[at], "--", 2) == 0; at += 2) {
    const std::string name = argv[at];
    if (name == "--") break;
    if (name == "--uid") uid = static_cast<unsigned>(std::atoi(argv[at + 1]));
    if (name == "--fuse") fuse = argv[at + 1];
    if (name == "--mtab") mtab = argv[at + 1];
    if (name == "--name") name_of_user = argv[at + 1];
    if (name == "--mounts-below") mounts_below = argv[at + 1];
    if (name == "--forbid") forbidden.emplace_back(argv[at + 1]);
  }
  if (at < argc && std::strcmp(argv[at], "--") == 0) ++at;
  if (at >= argc) return 125;
  make_dev(fuse == "open");
  if (!mounts_below.empty()) leave_mounts_but(mounts_below);
  if (mtab == "absent") hide_mtab();
  if (uid != 0 && name_of_user == "yes") name_user(uid);
  if (!forbidden.empty()) forbid(forbidden);
  if (uid != 0) {
    const gid_t groups[] = {uid, 4};  // one supplementary group
    check(::setgroups(2, groups) == 0, "setgroups");
    check(::setresgid(uid, uid, uid) == 0, "setresgid");
    check(::setresuid(uid, uid, uid) == 0, "setresuid");
  }
  ::execvp(argv[at], argv + at);
  std::perror(argv[at]);
  return 127;
}
