// SPDX-License-Identifier: MIT
#pragma once

// The mount system calls that work on descriptors (Linux 5.6), so that no path of a container is
// resolved twice. glibc 2.36's <sys/mount.h> and <linux/mount.h> exclude each other, and older ones
// do not know the calls: they are made by number here, and only here.

#include <string>

#include "base/fd.hpp"

namespace heddle::hook {

/// The source of every mount that is made here, as mountinfo shows it.
inline constexpr const char* kMountSource = "heddle";

/// /proc/self/fd/N, by which the file that `fd` is open on has a path.
std::string fd_path(int fd);
/// The path of that file, as this process sees it; empty: it has none.
std::string path_of(int fd);

/// A FUSE file system over `device`, mounted nowhere yet: read only, nosuid, nodev, for all users.
/// The device must have been opened in this process's user namespace.
Result<Fd> new_fuse_mount(int device);

/// `path` as a process with `root` as its root directory would open it, O_PATH: symlinks, absolute
/// ones too, and `..` stay inside; magic links of /proc are refused.
Result<Fd> find_in_root(int root, const std::string& path, int flags);

/// A detached copy of the mount at `name` below `directory`: of that file or directory alone.
Result<Fd> clone_mount(int directory, const std::string& name);
/// What is mounted or unmounted below the detached `tree` shows nowhere else (Linux 5.12; before
/// that it stays as it is).
void make_private(int tree);
/// A detached copy of the directory or file `path` with all that is mounted below it.
Result<Fd> clone_tree(const std::string& path);
/// One mount, or also all that is mounted below it.
enum class Reach : std::uint8_t { mount, tree };
/// Read-only, nosuid, nodev.
Result<void> make_inert(int tree, const std::string& name, Reach reach = Reach::tree);
/// An empty tmpfs of at most `bytes`, mounted nowhere yet, from which no program runs.
Result<Fd> new_tmpfs(std::size_t bytes);
/// An overlay of the directory `lower` (O_PATH), mounted nowhere yet: what is made in it goes to
/// "upper" in `memory`, which also has a "work".
Result<Fd> new_overlay(int lower, int memory);
/// Mounts `tree` over what `target` (O_PATH) is open on. `name` is for the message.
Result<void> attach_mount(int tree, int target, const std::string& name);
/// The number that mountinfo gives the mount that `fd` is open on (proc(5)); -1: not to be had.
int mount_id(int fd);
/// Takes the mount whose root `fd` is open on out of the tree.
void detach_mount(int fd);

}  // namespace heddle::hook
