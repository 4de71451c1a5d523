// SPDX-License-Identifier: MIT
#pragma once

// The mount system calls on descriptors (Linux 5.6), with which no path of a container is resolved
// twice. Called by number: glibc 2.36's <sys/mount.h> and <linux/mount.h> exclude each other, and
// older ones lack the calls.

#include <string>

#include "base/fd.hpp"

namespace heddle {

/// The source of every mount of heddle, as mountinfo shows it.
inline constexpr const char* kMountSource = "heddle";
/// Bytes of one READ request, of each mount and session.
inline constexpr unsigned kMaxRead = 1U << 20;

/// "/proc/self/fd/N".
std::string fd_path(int fd);
/// The path of the file that `fd` is open on, as this process sees it; empty: it has none.
std::string path_of(int fd);

/// A detached FUSE mount of `device`: nosuid, nodev, default_permissions. The device must have been
/// opened in this process's user namespace. ENOSYS: before Linux 5.2.
Result<Fd> new_fuse_mount(int device, bool read_only, bool allow_other);

/// `path` as a process with `root` as its root directory would open it, O_PATH: symlinks, absolute
/// ones too, and `..` stay inside; magic links of /proc are refused.
Result<Fd> find_in_root(int root, const std::string& path, int flags);

/// AT_RECURSIVE, which old headers lack: with all that is mounted below.
inline constexpr unsigned kRecursive = 0x8000;
/// A detached copy of the mount that `name` below `directory` is in, from there on. `flags`: AT_*
/// of open_tree(2). Sends the file system no request.
Result<Fd> copy_mount(int directory, const std::string& name, unsigned flags = 0);
/// Sets private propagation on the detached `tree`; no effect before Linux 5.12.
void make_private(int tree);
/// One mount, or also all that is mounted below it.
enum class Reach : std::uint8_t { mount, tree };
/// Sets read-only, nosuid, nodev.
Result<void> make_inert(int tree, const std::string& name, Reach reach = Reach::tree);
/// A detached empty tmpfs of at most `bytes`, noexec.
Result<Fd> new_tmpfs(std::size_t bytes);
/// A detached overlay over the directory `lower` (O_PATH), with the directories "upper" and "work"
/// of `memory`.
Result<Fd> new_overlay(int lower, int memory);
/// Mounts `tree` over the file of `target` (O_PATH). `name` is for the message.
Result<void> attach_mount(int tree, int target, const std::string& name);
/// The id in mountinfo of the mount that `fd` is open on (proc(5)); -1: unknown.
int mount_id(int fd);
/// Unmounts (MNT_DETACH) the mount whose root `fd` is open on.
void detach_mount(int fd);

}  // namespace heddle
