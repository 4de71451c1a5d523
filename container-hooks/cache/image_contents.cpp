// SPDX-License-Identifier: MIT
#include "container-hooks/cache/image_contents.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <ctime>
#include <memory>
#include <set>
#include <sstream>

#include "base/content_hash.hpp"
#include "base/mount_calls.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "container-hooks/host/watched_work.hpp"

namespace heddle::hook {
namespace {

constexpr const char* kNone = "-";
constexpr std::int64_t kSecond = 1'000'000'000;
/// A file that was changed within a tick of the clock after it was read looks unchanged; two
/// seconds are the coarsest (as for the facts of ELF files, resolver/elf/facts_cache.cpp).
constexpr std::int64_t kYoung = 2;
/// A container's start waits for the read, and the image chooses the files, sparse ones too.
constexpr std::uint64_t kMostRead = std::uint64_t{4} << 30;

/// Whether the absolute path has no `..`, `.` or empty name.
bool is_clean(const std::string& path) {
  const auto closed = path.ends_with('/') ? path : path + "/";
  return path.starts_with('/') && closed.find("//") == path.npos &&
         closed.find("/./") == path.npos && closed.find("/../") == path.npos;
}

Result<ContentHash> hash_names(const Fd& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(fd_path(directory.get()).c_str()),
                                                 &::closedir);
  if (!list) return fail_errno("", "cannot be read");
  std::set<std::string> names;
  while (const dirent* entry = ::readdir(list.get())) names.emplace(entry->d_name);
  std::string all;
  for (const auto& name : names) all += name + '\0';
  return hash_bytes(all);
}

Result<ContentHash> hash_bounded(const Fd& file, std::uint64_t size) {
  if (size > kMostRead) return fail_errno("", "cannot be compared", EFBIG);
  if (size == 0) return hash_bytes({});
  // Does not wait for a lease (fcntl(2), F_SETLEASE).
  const auto readable = TRY(open_regular_at(file.get(), ""));
  return hash_file(readable.get(), "");
}

}  // namespace

ImageContents::ImageContents(const Fd& root) : root_(root), top_(path_of(root.get())) {}

void ImageContents::recall(const std::string& text) {
  // The first line is the hash of the rest, which a power cut may damage.
  const auto heading = std::min(text.find('\n'), text.size());
  const auto rest = text.substr(std::min(heading + 1, text.size()));
  if (hash_bytes(rest).hex() != text.substr(0, heading)) return;
  std::istringstream lines(rest);
  for (std::string stamp, hash; lines >> stamp >> hash;) known_.emplace(stamp, hash);
}

std::string ImageContents::remembered() const {
  if (!has_new_hashes_) return {};
  std::string out;
  for (const auto& [stamp, hash] : known_) out += stamp + " " + hash + "\n";
  return hash_bytes(out).hex() + "\n" + out;
}

/// Without the device where each mount gets a new number (major 0: overlay, btrfs, NFS): inode and
/// ctime in nanoseconds do not repeat across file systems. A ctime in whole seconds may come from
/// the image: empty.
std::string ImageContents::stamp_of(int fd, const struct stat& status) {
  const auto stamp = file_stamp(status);
  if (stamp.ctime_ns % kSecond == 0 || !file_systems_.of(fd, stamp)) return {};
  const auto device = major(status.st_dev) == 0 ? 0 : stamp.id.dev;
  std::string out;
  for (const auto number :
       {device, stamp.id.ino, stamp.size, static_cast<std::uint64_t>(stamp.mtime_ns),
        static_cast<std::uint64_t>(stamp.ctime_ns)})
    out += (out.empty() ? "" : ":") + std::to_string(number);
  return out;
}

/// Of a file's bytes, or of a directory's names, which its ctime covers.
std::string ImageContents::hash_of(const Fd& file, const struct stat& status) {
  const auto stamp = stamp_of(file.get(), status);
  if (const auto found = known_.find(stamp); found != known_.end()) return found->second;
  const auto now = std::time(nullptr);
  const auto hash = S_ISDIR(status.st_mode)
                        ? hash_names(file)
                        : hash_bounded(file, static_cast<std::uint64_t>(status.st_size));
  // Unreadable: decided anew at each start.
  if (!hash) return "unread at " + std::to_string(now);
  const auto hex = hash->hex();
  if (!stamp.empty() && std::max(status.st_ctim.tv_sec, status.st_mtim.tv_sec) < now - kYoung)
    has_new_hashes_ |= known_.emplace(stamp, hex).second;
  return hex;
}

std::string ImageContents::look_at(const std::string& path) {
  note_step("reading the image's", path);
  struct stat status {};
  const int flags = path.ends_with('/') ? O_DIRECTORY : 0;
  // Without links the place is known, which spares a readlink(2): most of this function's time.
  auto place = open_in_root(root_.get(), path, flags | O_PATH, RESOLVE_NO_SYMLINKS);
  const bool is_direct = place && is_clean(path);
  if (!place) place = find_in_root(root_.get(), path, flags);
  if (!place || ::fstat(place->get(), &status) != 0) return path + "\t" + kNone + "\n";
  std::string what = "other";
  if (S_ISREG(status.st_mode) && !file_systems_.is_made_up(place->get(), file_stamp(status)))
    what = hash_of(*place, status);
  else if (S_ISDIR(status.st_mode))
    what = path.ends_with('/') ? hash_of(*place, status) : "directory";
  auto where = is_direct ? path.substr(0, path.find_last_not_of('/') + 1) : path_of(place->get());
  if (!is_direct && top_ != "/" && where.starts_with(top_)) where.erase(0, top_.size());
  return path + "\t" + (where == path ? "" : where) + "\t" + what + "\n";
}

std::string ImageContents::of(const std::vector<std::string>& paths) {
  std::string out;
  for (const auto& path : paths) {
    const auto [line, is_new] = lines_.try_emplace(path);
    if (is_new) line->second = look_at(path);
    out += line->second;
  }
  return out;
}

std::string ImageContents::copy_id(const std::string& path) {
  note_step("looking at the image's", path);
  struct stat status {};
  const auto file = find_in_root(root_.get(), path, 0);
  return file && ::fstat(file->get(), &status) == 0 ? stamp_of(file->get(), status) : std::string();
}

}  // namespace heddle::hook
