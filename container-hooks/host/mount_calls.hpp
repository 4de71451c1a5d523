// SPDX-License-Identifier: MIT
#pragma once

// The mount system calls on descriptors (Linux 5.6), with which no path of a container is resolved
// twice. Called by number: glibc 2.36's <sys/mount.h> and <linux/mount.h> exclude each other, and
// older ones lack the calls.

#include <string>

#include "base/fd.hpp"

namespace heddle::hook {

/// The source of every mount of the hook, as mountinfo shows it.
inline constexpr const char* kMountSource = "heddle";

/// "/proc/self/fd/N".
std::string fd_path(int fd);
/// The path of the file that `fd` is open on, as this process sees it; empty: it has none.
std::string path_of(int fd);

/// A detached FUSE mount of `device`: read-only, nosuid, nodev, for all users. The device must have
/// been opened in this process's user namespace.
Result<Fd> new_fuse_mount(int device);

/// `path` as a process with `root` as its root directory would open it, O_PATH: symlinks, absolute
/// ones too, and `..` stay inside; magic links of /proc are refused.
Result<Fd> find_in_root(int root, const std::string& path, int flags);

/// A detached copy of the mount at `name` below `directory`: of that file or directory alone.
Result<Fd> clone_mount(int directory, const std::string& name);
/// Sets private propagation on the detached `tree`; no effect before Linux 5.12.
void make_private(int tree);
/// A detached copy of the directory or file `path` with all that is mounted below it.
Result<Fd> clone_tree(const std::string& path);
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

}  // namespace heddle::hook
