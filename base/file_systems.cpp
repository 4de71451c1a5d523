// SPDX-License-Identifier: MIT
#include "base/file_systems.hpp"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstring>

namespace heddle {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

bool is_made_up_type(std::uint64_t type) {
  // Missing in <linux/magic.h> of older kernels.
  constexpr std::uint64_t configfs = 0x6265'6570;
  constexpr std::uint64_t fusectl = 0x6573'5543;
  constexpr std::uint64_t apparmorfs = 0x5a3c'69f0;
  constexpr std::uint64_t mqueue = 0x1980'0202;
  switch (type) {
    case configfs:
    case fusectl:
    case apparmorfs:
    case mqueue:
    case BPF_FS_MAGIC:
    case NSFS_MAGIC:
    case DEVPTS_SUPER_MAGIC:
    case EFIVARFS_MAGIC:
    case HUGETLBFS_MAGIC:
    case PSTOREFS_MAGIC:
    case RDTGROUP_SUPER_MAGIC:
    case SMACK_MAGIC:
    case XENFS_SUPER_MAGIC:
    case PROC_SUPER_MAGIC:
    case SYSFS_MAGIC:
    case CGROUP_SUPER_MAGIC:
    case CGROUP2_SUPER_MAGIC:
    case DEBUGFS_MAGIC:
    case TRACEFS_MAGIC:
    case SECURITYFS_MAGIC:
    case SELINUX_MAGIC:
    case BINFMTFS_MAGIC:
      return true;
    default:
      return false;
  }
}

Locality locality_of_type(std::uint64_t type) {
  constexpr std::uint64_t zfs = 0x2FC1'2FC1;
  switch (type) {
    case TMPFS_MAGIC:
    case RAMFS_MAGIC:
      return Locality::memory;
    case EXT4_SUPER_MAGIC:  // ext2 and ext3 too
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case zfs:
      return Locality::local;
    case OVERLAYFS_SUPER_MAGIC:
    case SQUASHFS_MAGIC:
    case EROFS_SUPER_MAGIC_V1:
      return Locality::layered;
    default:
      return Locality::remote;
  }
}

}  // namespace

const FileSystems::Kind& FileSystems::kind_of(int fd, const FileStamp& stamp) {
  const auto [entry, is_new] = by_device_.try_emplace(stamp.id.dev);
  if (is_new) {
    struct statfs fs {};
    if (::fstatfs(fd, &fs) == 0) {
      entry->second.type = static_cast<std::uint32_t>(fs.f_type);
      static_assert(sizeof(fs.f_fsid) == sizeof(entry->second.id));
      std::memcpy(&entry->second.id, &fs.f_fsid, sizeof(fs.f_fsid));
    }
  }
  return entry->second;
}

bool FileSystems::is_made_up(int fd, const FileStamp& stamp) {
  return is_made_up_type(kind_of(fd, stamp).type);
}

Locality FileSystems::locality(int fd, const FileStamp& stamp) {
  return locality_of_type(kind_of(fd, stamp).type);
}

bool FileSystems::is_fuse(int fd, const FileStamp& stamp) {
  return kind_of(fd, stamp).type == FUSE_SUPER_MAGIC;
}

Locality locality_of(int fd) {
  struct statfs fs {};
  return ::fstatfs(fd, &fs) != 0 ? Locality::remote
                                 : locality_of_type(static_cast<std::uint32_t>(fs.f_type));
}

bool lies_on_made_up_file_system(int fd) {
  struct statfs fs {};
  return ::fstatfs(fd, &fs) != 0 || is_made_up_type(static_cast<std::uint32_t>(fs.f_type));
}

std::optional<std::uint64_t> FileSystems::of(int fd, const FileStamp& stamp) {
  const auto& kind = kind_of(fd, stamp);
  constexpr std::uint64_t lustre = 0x0BD0'0BD0;  // not in linux/magic.h
  constexpr std::uint64_t fuse = 0x6573'5546;
  switch (kind.type) {
    case 0:
    case SQUASHFS_MAGIC:
    case EROFS_SUPER_MAGIC_V1:
    case ISOFS_SUPER_MAGIC:
    case CRAMFS_MAGIC:
    case fuse:
      return std::nullopt;
    case lustre:            // the server keeps whole seconds
    case EXT4_SUPER_MAGIC:  // an image (mke2fs -d) has its own UUID in f_fsid
    case BTRFS_SUPER_MAGIC:
      return kind.id;
    default:
      break;
  }
  // An image below an overlay (composefs): EROFS and squashfs have one time for ctime and mtime
  // (fs/erofs/inode.c), with nanoseconds if the image's maker kept them. Unpacked files have an
  // older mtime. A file written below the overlay and not touched since looks like an image's and
  // is read again.
  if (stamp.ctime_ns == stamp.mtime_ns &&
      (kind.type == OVERLAYFS_SUPER_MAGIC || stamp.ctime_ns % kSecond == 0))
    return std::nullopt;
  return kind.id;
}

}  // namespace heddle
