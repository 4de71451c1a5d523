// SPDX-License-Identifier: MIT
#include "fsgen/slow_files.hpp"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "base/mounts.hpp"

namespace heddle {
namespace {

constexpr std::uint64_t kSlowLookup = 50'000;  // nanoseconds
constexpr int kTries = 16;                     // a busy CPU or a cold cache makes some slow

struct Type {
  std::uint64_t magic;
  const char* name;
};
/// Of statfs(2); <linux/magic.h> has few of them.
constexpr std::array kNetworkTypes = {
    Type{0x6969, "nfs"},        Type{0x0BD00BD0, "lustre"}, Type{0x47504653, "gpfs"},
    Type{0x19830326, "beegfs"}, Type{0x00C36400, "ceph"},   Type{0x5346414F, "afs"},
    Type{0x6B414653, "afs"},    Type{0x01021997, "9p"},     Type{0x517B, "smb"},
    Type{0xFF534D42, "smb"},    Type{0xFE534D42, "smb"},    Type{0xAAD7AAEA, "panfs"},
    Type{0x73757245, "coda"},   Type{0x7461636F, "ocfs2"},  Type{0x01161970, "gfs2"}};
constexpr std::uint64_t kFuse = 0x65735546;
/// FUSE file systems on the node's own disk, which are measured.
constexpr std::array<std::string_view, 5> kLocalFuse = {"fuseblk", "fuse.fuse-overlayfs",
                                                        "fuse.lxcfs", "fuse.portal", "fuse.bindfs"};

std::optional<MountEntry> mount_of(std::uint64_t device) {
  for (auto& mount : list_mounts().value_or(std::vector<MountEntry>()))
    if (mount.device == device) return std::move(mount);
  return std::nullopt;
}

std::uint64_t time_of_lstat(const std::string& path) {
  struct stat st {};
  const auto begin = std::chrono::steady_clock::now();
  (void)::lstat(path.c_str(), &st);
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
}

/// The time of a look-up of a missing name, beyond that of a system call, which is long under
/// strace: of the first that is fast, else of the fastest.
std::uint64_t measure(const std::string& directory) {
  std::uint64_t best = ~std::uint64_t{0};
  std::uint64_t call = best;
  for (int i = 0; i < kTries && best > kSlowLookup; ++i) {
    call = std::min(call, time_of_lstat("/"));
    // A name of its own: the kernel remembers that one was missing.
    const auto took = time_of_lstat(fmt::format("{}/.heddle-{}-{}", directory, ::getpid(), i));
    best = std::min(best, took > call ? took - call : 0);
  }
  return best;
}

}  // namespace

std::optional<FileSystemSpeed> speed_of_type(std::uint64_t magic, const std::string& type) {
  const auto named = std::ranges::find(kNetworkTypes, magic, &Type::magic);
  if (named != kNetworkTypes.end()) return FileSystemSpeed{true, true, named->name};
  if (magic == TMPFS_MAGIC || magic == RAMFS_MAGIC)
    return FileSystemSpeed{false, false, "in memory"};
  if (magic == kFuse && std::ranges::find(kLocalFuse, type) == kLocalFuse.end())
    return FileSystemSpeed{true, true, type};
  return std::nullopt;
}

std::string lowest_layer(const std::string& options) {
  std::string list;
  std::istringstream all(options);
  // lowerdir=A:B, or a lowerdir+= for each directory of a mount by fsconfig(2).
  for (std::string option; std::getline(all, option, ',');)
    for (const std::string_view key : {"lowerdir=", "lowerdir+=", "datadir+="})
      if (option.starts_with(key)) list = option.substr(key.size());
  return list.substr(list.rfind(':') + 1);
}

SlowFiles::SlowFiles(std::vector<std::string> slow, std::vector<std::string> fast) {
  const auto add = [this](const std::vector<std::string>& list, bool is_slow) {
    for (const auto& directory : list) {
      auto path = std::filesystem::absolute(directory).lexically_normal().string();
      if (!path.ends_with('/')) path += '/';
      by_given_[path] = {is_slow, false, (is_slow ? "--slow " : "--fast ") + directory};
    }
  };
  add(slow, true);
  add(fast, false);
}

const FileSystemSpeed* SlowFiles::given(const std::string& path) const {
  for (auto parent = path + "/"; !parent.empty();
       parent.resize(parent.rfind('/', parent.size() - 2) + 1)) {
    const auto found = by_given_.find(parent);
    if (found != by_given_.end()) return &found->second;
    if (parent == "/") break;
  }
  return nullptr;
}

const FileSystemSpeed& SlowFiles::speed_of_real(const std::string& path) {
  if (const auto* speed = given(path)) return *speed;
  if (!mount_points_) {
    mount_points_.emplace();
    for (auto& mount : list_mounts().value_or(std::vector<MountEntry>()))
      mount_points_->push_back(std::move(mount.point));
  }
  std::string_view point = "/";
  for (const std::string_view other : *mount_points_)
    if (other.size() > point.size() && path.starts_with(other) &&
        (path.size() == other.size() || path[other.size()] == '/'))
      point = other;
  return speed_of(std::string(point));
}

const FileSystemSpeed& SlowFiles::speed_of(const std::string& path) {
  auto& known = by_directory_[path];
  if (known) return *known;
  if (const auto* speed = given(path)) return *(known = speed);
  if (!by_given_.empty()) {
    // The options' own directories are not asked: their server may be dead, and of no use to APP.
    std::error_code error;
    const auto real = std::filesystem::canonical(path, error).string();
    if (const auto* speed = error ? nullptr : given(real)) return *(known = speed);
  }
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) st.st_dev = 0;
  const auto [at, is_new] = by_device_.try_emplace(st.st_dev);
  if (is_new) at->second = judge(path, st.st_dev);
  return *(known = &at->second);
}

FileSystemSpeed SlowFiles::judge(const std::string& path, std::uint64_t device) const {
  struct statfs fs {};
  if (::statfs(path.c_str(), &fs) != 0) return {};
  const auto type = static_cast<std::uint32_t>(fs.f_type);
  const auto mount =
      type == kFuse || type == OVERLAYFS_SUPER_MAGIC ? mount_of(device) : std::nullopt;
  if (auto known = speed_of_type(type, mount ? mount->type : "fuse")) return *known;
  if (type == OVERLAYFS_SUPER_MAGIC) {
    const auto layer = mount ? lowest_layer(mount->options) : "";
    struct stat st {};
    // A container cannot see the layers of its root: it is measured.
    if (!layer.empty() && ::stat(layer.c_str(), &st) == 0 && st.st_dev != device) {
      auto below = judge(layer, st.st_dev);
      // fs-mount knows an overlay by its own type.
      below.remote_type = false;
      below.why = "overlay on " + below.why;
      return below;
    }
  }
  const auto took = measure(path);
  return {took > kSlowLookup, false, fmt::format("{:.1f} us a look-up", double(took) / 1000)};
}

}  // namespace heddle
