// SPDX-License-Identifier: MIT
#include "fuseovl/files/origins.hpp"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
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

// The daemon's own: the device and its clones, the map, a reopened file for each thread, and a few
// for the C library.
constexpr std::size_t kReservedFds = 40;

/// The check of one object's file; trivial, for shared memory.
struct Finding : FileStatus {
  const char* wrong = nullptr;  ///< a literal, at the same address in forked processes
  int code = 0;                 ///< errno of `wrong`
  bool usable = false;
};
constexpr const char* kOtherSize = "size";

/// The directories above the files, each examined once. Safe for many threads.
class Directories {
 public:
  /// With `root`, which it must outlive, no method waits for a file server.
  explicit Directories(const LocalRoot* root = nullptr) : root_(root) {}

  /// What lstat(2) says of all directories above a file.
  struct Way {
    struct Rights {
      std::uint32_t mode = 0700;
      std::uint32_t uid = 0;
      std::uint32_t gid = 0;
    };
    bool links = false;          ///< some are symbolic links
    bool trusted = false;        ///< only root and this user can rename any of them
    bool sticky = false;         ///< others may create names in the last directory
    std::vector<Rights> closed;  ///< those that not everybody may search
  };

  /// A path that is not absolute, or cannot be examined, is closed. With a LocalRoot: nullptr.
  const Way* way_to(std::string_view path) {
    static const Way unknown{false, false, false, {Way::Rights()}};
    const auto slash = path.rfind('/');
    if (slash == path.npos || !path.starts_with('/')) return root_ ? nullptr : &unknown;
    const auto directory = path.substr(0, std::max<std::size_t>(slash, 1));
    {
      const std::lock_guard hold(mutex_);
      if (const auto known = known_.find(directory); known != known_.end()) return &known->second;
    }
    const Way* above = slash == 0 ? nullptr : way_to(directory);
    struct stat status {};
    const bool seen = (above || slash == 0) && look_at(std::string(directory), status);
    if (root_ && !seen) return nullptr;
    Way way = above ? *above : Way{false, true, false, {}};
    way.sticky = (status.st_mode & 022) != 0;
    const bool is_ours = status.st_uid == 0 || status.st_uid == self_;
    way.trusted =
        way.trusted && seen && is_ours && (!way.sticky || (status.st_mode & S_ISVTX) != 0);
    way.links = way.links || (seen && S_ISLNK(status.st_mode));
    if (!seen)
      way.closed.emplace_back();
    else if (!S_ISLNK(status.st_mode) && (status.st_mode & S_IXOTH) == 0)
      way.closed.push_back({status.st_mode, status.st_uid, status.st_gid});
    const std::lock_guard hold(mutex_);
    return &known_.emplace(directory, std::move(way)).first->second;
  }
  /// Root's mount shows its files to all users, past the rights of the directories above them.
  bool are_shown_to_others() const { return self_ == 0; }

 private:
  bool look_at(const std::string& path, struct stat& status) const {
    if (!root_) return ::lstat(path.c_str(), &status) == 0;
    const Fd handle = root_->open(path, O_PATH | O_NOFOLLOW);
    return handle && ::fstat(handle.get(), &status) == 0;
  }

  const LocalRoot* root_;
  const uid_t self_ = ::geteuid();
  std::mutex mutex_;
  std::map<std::string, Way, std::less<>> known_;
};

/// Removes from a file's mode and owner the access that the directories above it deny. The result
/// allows at most what they do.
void narrow(FileStatus& file, const Directories::Way& way) {
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
  /// To the file that the kernel opened, for narrow().
  const Directories::Way* way = nullptr;
};

/// The way to the file that `file` was opened as, over links; nullptr: see Directories::way_to().
const Directories::Way* real_way(const Fd& file, Directories& directories) {
  std::array<char, PATH_MAX> real{};
  const auto link = "/proc/self/fd/" + std::to_string(file.get());
  const ssize_t size = ::readlink(link.c_str(), real.data(), real.size());
  return directories.way_to(
      std::string_view(real.data(), size > 0 ? static_cast<std::size_t>(size) : 0));
}

Opened open_by_path(const std::string& path, Directories& directories) {
  const Directories::Way& way = *directories.way_to(path);
  struct stat status {};
  const bool found = ::lstat(path.c_str(), &status) == 0;
  // Where no other can replace the file, fewer system calls than open_regular(). A map may name
  // a device or a FIFO, which must not be opened.
  if (found && S_ISREG(status.st_mode) && way.trusted && !way.sticky && !way.links)
    if (auto file = open_file(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW))
      return {std::move(file), &way};
  const bool plain = found && !way.links && !S_ISLNK(status.st_mode);
  Opened out{open_regular(path), &way};
  if (!out.file || plain || !directories.are_shown_to_others()) return out;
  out.way = real_way(*out.file, directories);
  return out;
}

/// nullopt: not in the kernel's caches, not on the root's mount, or cannot be opened: the child
/// tries.
std::optional<Opened> open_in_caller(const std::string& path, const LocalRoot& root,
                                     Directories& directories) {
  Fd handle = root.open(path, O_PATH, RESOLVE_NO_SYMLINKS);
  const bool plain = static_cast<bool>(handle);
  if (!plain) handle = root.open(path, O_PATH);
  if (!handle) return std::nullopt;
  const auto* way = plain ? directories.way_to(path) : real_way(handle, directories);
  if (!way || (plain && way->links)) return std::nullopt;  // renamed meanwhile
  struct stat status {};
  if (plain && way->trusted && !way->sticky) {
    // No other can have replaced the file. Through /proc mounting 1,000 libraries takes a tenth
    // longer.
    if (::fstat(handle.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
    Fd file = root.open(path, O_RDONLY | O_NONBLOCK, RESOLVE_NO_SYMLINKS);
    return file ? std::optional(Opened{std::move(file), way}) : std::nullopt;
  }
  auto file = open_regular_at(handle.get(), path);
  return file ? std::optional(Opened{std::move(file), way}) : std::nullopt;
}

Finding failed(const char* wrong, int code) {
  Finding out;
  out.wrong = wrong;
  out.code = code;
  return out;
}

Finding failed_to_open(int code) {
  if (code == ENOENT || code == ENOTDIR) return failed("missing", 0);
  if (code == ENOEXEC || code == EISDIR) return failed("no longer a regular file", 0);
  return failed("cannot open", code);
}

void compare(const MapObject& object, int file, Compare how, const WorkPlace& place, Finding& out) {
  out.usable = true;
  if (out.stamp.size != object.stamp.size) {
    out.wrong = kOtherSize;
  } else if (how == Compare::content || out.stamp.mtime_ns != object.stamp.mtime_ns) {
    const auto hash = hash_file(file, object.path, [&] { place.moves_on(); });
    if (!hash)
      out = failed("cannot read", hash.error().code());
    else if (*hash != object.hash)
      out.wrong = "content changed";
  }
}

/// `out.wrong`: fstat(2) fails, or it is not a regular file.
Finding examine(const Opened& opened, bool narrows, FileSystems& file_systems) {
  struct stat status {};
  if (::fstat(opened.file->get(), &status) != 0) return failed("cannot stat", errno);
  if (!S_ISREG(status.st_mode)) return failed_to_open(ENOEXEC);
  Finding out;
  out.stamp = file_stamp(status);
  out.atime_ns = nanoseconds(status.st_atim);
  out.mode = status.st_mode;
  out.uid = status.st_uid;
  out.gid = status.st_gid;
  out.blocks = static_cast<std::uint64_t>(status.st_blocks);
  out.locality = file_systems.locality(opened.file->get(), out.stamp);
  out.is_on_fuse = file_systems.is_fuse(opened.file->get(), out.stamp);
  if (narrows) narrow(out, *opened.way);
  return out;
}

/// With `keep` the open file goes to `place`.
Finding check(const MapObject& object, bool keep, Compare how, Directories& directories,
              const WorkPlace& place) {
  auto opened = open_by_path(object.path, directories);
  if (!opened.file) return failed_to_open(opened.file.error().code());
  thread_local FileSystems file_systems;
  Finding out = examine(opened, directories.are_shown_to_others(), file_systems);
  if (out.wrong) return out;
  compare(object, opened.file->get(), how, place, out);
  if (keep && out.usable) place.give(std::move(*opened.file));
  return out;
}

/// Finds files that are as the map says, in the calling process and without reading them. Safe for
/// many threads.
class CallersCheck {
 public:
  /// False: the child is to check it.
  bool operator()(const MapObject& object, bool keep, const WorkPlace& place, Finding& found) {
    auto opened = open_in_caller(object.path, root_, directories_);
    if (!opened) return false;
    thread_local FileSystems file_systems;  // LocalRoot opens on one device only
    Finding out = examine(*opened, directories_.are_shown_to_others(), file_systems);
    if (out.wrong || out.stamp.size != object.stamp.size ||
        out.stamp.mtime_ns != object.stamp.mtime_ns)
      return false;
    out.usable = true;
    if (keep) place.give(std::move(*opened->file));
    found = out;
    return true;
  }

 private:
  const LocalRoot root_;
  Directories directories_{&root_};
};

std::string describe(const Finding& found, const MapObject& object) {
  if (found.wrong == kOtherSize)
    return "size is " + std::to_string(found.stamp.size) + ", was " +
           std::to_string(object.stamp.size);
  return found.code == 0 ? found.wrong : Error::from_errno({}, found.wrong, found.code).message();
}

Origin make_origin(const Finding& found, const MapObject& object, Fd file) {
  Origin out;
  static_cast<FileStatus&>(out) = found;
  out.fd = std::move(file);
  out.usable = found.usable;
  out.as_mapped = !found.wrong;
  if (out.as_mapped) out.hash = object.hash;
  return out;
}

/// Is the program's file there? Its content is the bundle's.
Finding look_at_program(const MapObject& object) {
  Finding out;
  struct stat status {};
  if (::stat(object.path.c_str(), &status) != 0) return out;
  out.stamp = file_stamp(status);
  out.usable = out.stamp.size == object.stamp.size && out.stamp.mtime_ns == object.stamp.mtime_ns;
  return out;
}

Origin in_bundle(const MapObject& object) {
  Origin out;
  out.stamp = object.stamp;
  out.stamp.id = {};
  out.atime_ns = out.stamp.mtime_ns;
  out.mode = S_IFREG | (object.mode & ~std::uint32_t{S_IFMT | S_ISUID | S_ISGID});
  out.uid = ::geteuid();
  out.gid = ::getegid();
  out.blocks = (out.stamp.size + 511) / 512;
  out.usable = out.as_mapped = out.in_bundle = true;
  return out;
}

tl::expected<std::size_t, int> read_cached(int fd, std::span<char> into, off_t offset) {
  const iovec part{into.data(), into.size()};
  const ssize_t n = ::preadv2(fd, &part, 1, offset, RWF_NOWAIT);
  // A short read ends at an absent page or at the file's end: a blocking read finds out.
  if (n == static_cast<ssize_t>(into.size())) return into.size();
  // EOPNOTSUPP: a file system without FMODE_NOWAIT.
  if (n >= 0 || errno == EOPNOTSUPP || errno == EINTR || errno == ENOSYS)
    return tl::unexpected(EAGAIN);
  return tl::unexpected(errno);
}

}  // namespace

Origins open_origins(const MapContent& content, std::size_t max_pinned,
                     std::chrono::milliseconds limit, Compare how, const BundleIndex* bundle) {
  const auto& objects = content.objects;
  const auto is_bundled = [&](ObjectId id) { return bundle && bundle->objects[id] != kAtOrigin; };
  std::vector<bool> is_program(objects.size());
  for (const auto& program : content.programs) is_program[program.object] = true;
  std::vector<ObjectId> looked_at;
  for (ObjectId id = 0; id < objects.size(); ++id)
    if (!is_bundled(id) || is_program[id]) looked_at.push_back(id);
  const SharedArray<Finding> found(objects.size());
  Directories directories;
  CallersCheck check_in_caller;
  FileWork work{
      .limit = limit,
      .work =
          [&](std::size_t i, WorkPlace& place) {
            const ObjectId id = looked_at[i];
            found[id] = is_bundled(id)
                            ? look_at_program(objects[id])
                            : check(objects[id], i < max_pinned, how, directories, place);
          },
      .path_of = [&](std::size_t i) { return std::string_view(objects[looked_at[i]].path); }};
  if (how == Compare::stamp)
    work.try_in_caller = [&](std::size_t i, WorkPlace& place) {
      const ObjectId id = looked_at[i];
      return !is_bundled(id) && check_in_caller(objects[id], i < max_pinned, place, found[id]);
    };
  auto results = work_on_files(looked_at.size(), work);
  Origins out;
  std::size_t next = 0;
  for (ObjectId id = 0; id < objects.size(); ++id) {
    const bool is_next = next < looked_at.size() && looked_at[next] == id;
    const std::size_t i = is_next ? next++ : 0;
    if (is_bundled(id)) {
      out.files.push_back(in_bundle(objects[id]));
      const bool is_known = is_next && results[i].state == WorkResult::State::done;
      if (is_known && found[id].usable) out.files[id].stamp = found[id].stamp;
      ++out.pinned;
      continue;
    }
    const auto state = results[i].state;
    if (state == WorkResult::State::done) {
      out.files.push_back(make_origin(found[id], objects[id], std::move(results[i].file)));
      if (out.files[id].fd) ++out.pinned;
      if (found[id].wrong)
        out.drifts.push_back({id, objects[id].path, describe(found[id], objects[id])});
      continue;
    }
    out.files.emplace_back();
    out.drifts.push_back({id, objects[id].path, not_answered_for(limit), true});
    if (state == WorkResult::State::late && !out.silent) out.silent = out.drifts.back();
  }
  return out;
}

tl::expected<std::size_t, int> read_at(int fd, std::span<char> into, off_t offset, MayBlock block) {
  if (block == MayBlock::no) return read_cached(fd, into, offset);
  std::size_t got = 0;
  while (got < into.size()) {
    const ssize_t n =
        ::pread(fd, into.data() + got, into.size() - got, offset + static_cast<off_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return tl::unexpected(errno);
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  return got;
}

void read_chunks_ahead(int fd, std::size_t size, off_t offset) {
  const auto begin = static_cast<std::uint64_t>(offset) / kChunk * kChunk;
  const auto end = static_cast<std::uint64_t>(offset) + size + kChunk - 1;
  (void)::readahead(fd, static_cast<off64_t>(begin), end / kChunk * kChunk - begin);
}

tl::expected<std::size_t, int> read_from_fuse(int fd, std::span<char> into, off_t offset) {
  thread_local const Fd memory(::memfd_create("heddle-read", MFD_CLOEXEC));
  std::size_t got = 0;
  if (::lseek(memory.get(), 0, SEEK_SET) == 0)
    for (ssize_t n = 1; n > 0 && got < into.size(); got += static_cast<std::size_t>(n))
      n = std::max<ssize_t>(0, ::sendfile(memory.get(), fd, &offset, into.size() - got));
  if (got < into.size()) return read_at(fd, into, offset - static_cast<off_t>(got), MayBlock::yes);
  return read_at(memory.get(), into, 0, MayBlock::yes);
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
  // The lowest free descriptor.
  const Fd probe(::dup(STDIN_FILENO));
  const std::size_t used = kReservedFds + static_cast<std::size_t>(std::max(3, probe.get()));
  return limit.rlim_cur > used ? static_cast<std::size_t>(limit.rlim_cur) - used : 0;
}

}  // namespace heddle
