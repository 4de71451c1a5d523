// SPDX-License-Identifier: MIT
#include "fuseovl/files/origins.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string_view>

#include "base/content_hash.hpp"
#include "base/open_regular.hpp"
#include "fuseovl/files/file_work.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {
namespace {

// The daemon's own: device and its clones, the map, splice pipes and one reopened file for each of
// its threads, and a few for the C library.
constexpr std::size_t kReservedFds = 40;

std::int64_t nanoseconds(const timespec& t) { return t.tv_sec * INT64_C(1000000000) + t.tv_nsec; }

/// What was found where an object's file should be; trivial, to lie in shared memory.
struct Finding : FileFacts {
  /// What is wrong: a literal, at the same address in all processes forked from one; nullptr:
  /// nothing.
  const char* wrong = nullptr;
  int code = 0;  ///< errno that belongs to it
  bool usable = false;
};
constexpr const char* kOtherSize = "size";

/// The directories above the files, each looked at once, by many threads where file systems are
/// slow.
class Directories {
 public:
  /// What lstat(2) says of the directories on the way to a file.
  struct Way {
    struct Rights {
      std::uint32_t mode = 0700;
      std::uint32_t uid = 0;
      std::uint32_t gid = 0;
    };
    bool links = false;    ///< some are symbolic links
    bool trusted = false;  ///< nobody but root and this user can change what a name on it means
    std::vector<Rights> closed;  ///< those that not everybody may search
  };

  /// What the kernel cannot name, or we not look at, is closed.
  const Way& way_to(std::string_view path) {
    static const Way unknown{false, false, {Way::Rights()}};
    const auto slash = path.rfind('/');
    if (slash == path.npos || !path.starts_with('/')) return unknown;
    const auto directory = path.substr(0, std::max<std::size_t>(slash, 1));
    {
      const std::lock_guard hold(mutex_);
      if (const auto known = known_.find(directory); known != known_.end()) return known->second;
    }
    Way way = slash == 0 ? Way{false, true, {}} : way_to(directory);
    struct stat status {};
    const bool seen = ::lstat(std::string(directory).c_str(), &status) == 0;
    const bool only_own_names = (status.st_mode & 022) == 0 || (status.st_mode & S_ISVTX) != 0;
    way.trusted = way.trusted && seen && is_trusted(status.st_uid) && only_own_names;
    way.links = way.links || (seen && S_ISLNK(status.st_mode));
    if (!seen)
      way.closed.emplace_back();
    else if (!S_ISLNK(status.st_mode) && (status.st_mode & S_IXOTH) == 0)
      way.closed.push_back({status.st_mode, status.st_uid, status.st_gid});
    const std::lock_guard hold(mutex_);
    return known_.emplace(directory, std::move(way)).first->second;
  }
  bool is_trusted(uid_t owner) const { return owner == 0 || owner == self_; }
  /// A mount of root's shows its files to all, and the directories above them to nobody.
  bool are_shown_to_others() const { return self_ == 0; }

 private:
  const uid_t self_ = ::geteuid();
  std::mutex mutex_;
  std::map<std::string, Way, std::less<>> known_;
};

/// Takes from a file's attributes what the directories above it deny: to others, to its group, and
/// to an owner who is not theirs. At most what they allow is left, never more.
void narrow(FileFacts& file, const Directories::Way& way) {
  for (const auto& directory : way.closed) {
    const std::uint32_t others = file.mode & S_IRWXO;
    if (file.uid != directory.uid) file.uid = 0;
    if ((directory.mode & S_IXGRP) == 0) {
      file.mode &= ~std::uint32_t{S_IRWXG};
    } else if (file.gid != directory.gid) {
      // Members of the directory's group are others to the file.
      file.mode = (file.mode & ~std::uint32_t{S_IRWXG}) | others << 3;
      file.gid = directory.gid;
    }
    file.mode &= ~std::uint32_t{S_IRWXO};
  }
}

/// A file of this node, by its path.
struct Opened {
  Result<Fd> file;
  /// To it as the kernel names it, should its attributes have to be narrowed.
  const Directories::Way* way = nullptr;
};

Opened open_by_path(const std::string& path, Directories& directories) {
  struct stat status {};
  const bool found = ::lstat(path.c_str(), &status) == 0;
  const Directories::Way& way = directories.way_to(path);
  const bool plain = found && !way.links && !S_ISLNK(status.st_mode);
  // Half the system calls of open_regular(), where nobody can put a device in its place meanwhile.
  const bool stays =
      plain && S_ISREG(status.st_mode) && way.trusted && directories.is_trusted(status.st_uid);
  Opened out{stays ? open_file(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW) : open_regular(path),
             &way};
  if (!out.file || plain || !directories.are_shown_to_others()) return out;
  std::array<char, PATH_MAX> real{};
  const auto link = "/proc/self/fd/" + std::to_string(out.file->get());
  const ssize_t size = ::readlink(link.c_str(), real.data(), real.size());
  out.way = &directories.way_to(
      std::string_view(real.data(), size > 0 ? static_cast<std::size_t>(size) : 0));
  return out;
}

Finding failed(const char* wrong, int code) {
  Finding out;
  out.wrong = wrong;
  out.code = code;
  return out;
}

Finding failed_to_open(int code) {
  if (code == ENOENT || code == ENOTDIR) return failed("missing", 0);
  if (code == ENOEXEC || code == EISDIR) return failed("no regular file any more", 0);
  return failed("cannot open", code);
}

void compare_content(const MapObject& object, int file, const WorkPlace& place, Finding& out) {
  out.usable = true;
  if (out.stamp.size != object.stamp.size) {
    out.wrong = kOtherSize;
  } else if (out.stamp.mtime_ns != object.stamp.mtime_ns) {
    const auto hash = hash_file(file, object.path, [&] { place.moves_on(); });
    if (!hash)
      out = failed("cannot read", hash.error().code());
    else if (*hash != object.hash)
      out.wrong = "content changed";
  }
}

/// Gives the open file to `place` when it is to be kept.
Finding check(const MapObject& object, bool keep, Directories& directories,
              const WorkPlace& place) {
  auto [file, way] = open_by_path(object.path, directories);
  if (!file) return failed_to_open(file.error().code());
  struct stat status {};
  if (::fstat(file->get(), &status) != 0) return failed("cannot stat", errno);
  Finding out;
  out.stamp = file_stamp(status);
  out.atime_ns = nanoseconds(status.st_atim);
  out.mode = status.st_mode;
  out.uid = status.st_uid;
  out.gid = status.st_gid;
  out.blocks = static_cast<std::uint64_t>(status.st_blocks);
  thread_local FileSystems file_systems;
  out.locality = file_systems.locality(file->get(), out.stamp);
  // Mounts of users are theirs alone.
  if (directories.are_shown_to_others()) narrow(out, *way);
  compare_content(object, file->get(), place, out);
  if (keep && out.usable) place.give(std::move(*file));
  return out;
}

/// What differs, in words; empty when nothing does.
std::string describe(const Finding& found, const MapObject& object) {
  if (!found.wrong) return {};
  if (found.wrong == kOtherSize)
    return "size is " + std::to_string(found.stamp.size) + ", was " +
           std::to_string(object.stamp.size);
  return found.code == 0 ? found.wrong : Error::from_errno({}, found.wrong, found.code).message();
}

Origin make_origin(const Finding& found, const MapObject& object, Fd file) {
  Origin out;
  static_cast<FileFacts&>(out) = found;
  out.fd = std::move(file);
  out.usable = found.usable;
  out.as_mapped = !found.wrong;
  if (out.as_mapped) out.hash = object.hash;
  return out;
}

}  // namespace

Origins open_origins(const MapContent& content, std::size_t max_pinned, OriginPatience patience) {
  const auto& objects = content.objects;
  const SharedArray<Finding> found(objects.size());
  Directories directories;
  const FileWork work{.limit = patience.limit,
                      .work =
                          [&](std::size_t id, WorkPlace& place) {
                            found[id] = check(objects[id], id < max_pinned, directories, place);
                          },
                      .path_of = [&](std::size_t id) { return std::string_view(objects[id].path); },
                      .with_others = patience.with_others};
  auto results = work_on_files(objects.size(), work);
  Origins out;
  for (ObjectId id = 0; id < objects.size(); ++id) {
    using State = WorkResult::State;
    const auto state = results[id].state;
    std::string what;
    if (state == State::done) {
      out.files.push_back(make_origin(found[id], objects[id], std::move(results[id].file)));
      what = describe(found[id], objects[id]);
    } else {
      out.files.emplace_back();
      if (state == State::late && !out.silent) out.silent = id;
      if (patience.with_others || out.silent == id) what = not_answered_for(patience.limit);
    }
    if (out.files[id].fd) ++out.pinned;
    if (!what.empty()) out.drifts.push_back({id, objects[id].path, std::move(what)});
  }
  return out;
}

std::string not_answered_for(std::chrono::milliseconds time) {
  return "its file system has not answered for " + (time.count() % 1000 == 0
                                                        ? std::to_string(time.count() / 1000) + " s"
                                                        : std::to_string(time.count()) + " ms");
}

std::size_t raise_fd_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
    (void)::getrlimit(RLIMIT_NOFILE, &limit);
  }
  // The lowest free one: descriptors stand close together.
  const Fd probe(::dup(STDIN_FILENO));
  const std::size_t used = kReservedFds + static_cast<std::size_t>(std::max(3, probe.get()));
  return limit.rlim_cur > used ? static_cast<std::size_t>(limit.rlim_cur) - used : 0;
}

}  // namespace heddle
