// SPDX-License-Identifier: MIT
#include "fuseovl/files/origins.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/content_hash.hpp"
#include "base/open_regular.hpp"
#include "fuseovl/files/file_work.hpp"
#include "fuseovl/files/local_files.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {
namespace {

// The daemon's own: device and its clones, the map, splice pipes and one reopened file for each of
// its threads, and a few for the C library.
constexpr std::size_t kReservedFds = 40;

std::int64_t nanoseconds(const timespec& t) { return t.tv_sec * INT64_C(1000000000) + t.tv_nsec; }

/// What was found where an object's file should be.
struct Finding {
  enum class What : std::uint8_t {
    as_mapped,
    missing,
    cannot_open,
    cannot_stat,
    no_regular_file,
    other_size,
    other_content,
    cannot_read,
    silent,
  };
  What what = What::silent;
  int code = 0;  ///< errno
  FileStamp stamp;
  std::int64_t atime_ns = 0;
  std::uint32_t mode = 0;
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint64_t blocks = 0;

  bool is_usable() const {
    return what == What::as_mapped || what == What::other_size || what == What::other_content;
  }
};
using What = Finding::What;

/// The directories on the way to a file that not everybody may search. A mount of root's shows the
/// file to all and the directories to nobody: so whom these keep out the file's own mode has to.
class ClosedDirectories {
 public:
  /// Takes from the attributes of the file `fd` what the directories above it deny: to others, to
  /// its group, and to an owner who is not theirs. At most what they allow is left, never more.
  /// `path` is where it was found: as long as no link is on that way it costs two lstat(2) a file.
  void narrow(Finding& file, const std::string& path, int fd) {
    struct stat status {};
    const bool plain = ::lstat(path.c_str(), &status) == 0 && !S_ISLNK(status.st_mode);
    const Way* way = plain ? &above(path) : nullptr;
    std::array<char, PATH_MAX> real{};
    if (!way || way->links) {
      const auto link = "/proc/self/fd/" + std::to_string(fd);
      const ssize_t size = ::readlink(link.c_str(), real.data(), real.size());
      way = &above({real.data(), size > 0 ? static_cast<std::size_t>(size) : 0});
    }
    for (const auto& directory : way->closed) narrow(file, directory);
  }

 private:
  struct Rights {
    std::uint32_t mode = 0700;
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
  };

  struct Way {
    bool links = false;  ///< symbolic ones
    std::vector<Rights> closed;
  };

  static void narrow(Finding& file, const Rights& directory) {
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

  /// What the kernel cannot name, or we not look at, is closed.
  const Way& above(std::string_view path) {
    static const Way unknown{false, {Rights()}};
    const auto slash = path.rfind('/');
    if (slash == path.npos || !path.starts_with('/')) return unknown;
    const auto directory = path.substr(0, std::max<std::size_t>(slash, 1));
    {
      const std::lock_guard hold(mutex_);
      if (const auto known = known_.find(directory); known != known_.end()) return known->second;
    }
    Way way = slash == 0 ? Way() : above(directory);
    struct stat status {};
    if (::lstat(std::string(directory).c_str(), &status) != 0)
      way.closed.emplace_back();
    else if (S_ISLNK(status.st_mode))
      way.links = true;
    else if ((status.st_mode & S_IXOTH) == 0)
      way.closed.push_back({status.st_mode, status.st_uid, status.st_gid});
    const std::lock_guard hold(mutex_);
    return known_.emplace(directory, std::move(way)).first->second;
  }

  std::mutex mutex_;  ///< file systems that are slow are asked by many threads
  std::map<std::string, Way, std::less<>> known_;
};

Finding failed(What what, int code) {
  Finding out;
  out.what = what;
  out.code = code;
  return out;
}

What compare_content(const MapObject& object, const Fd& file, WorkPlace& place, Finding& out) {
  if (out.stamp.size != object.stamp.size) return What::other_size;
  if (out.stamp.mtime_ns == object.stamp.mtime_ns) return What::as_mapped;
  const auto hash =
      hash_file(file.get(), object.path, [&](std::span<char>, std::uint64_t) { place.moves_on(); });
  if (hash) return *hash == object.hash ? What::as_mapped : What::other_content;
  out.code = hash.error().code();
  return What::cannot_read;
}

/// Gives the open file to `place` when it is to be kept.
Finding check(const MapObject& object, Result<Fd> fd, bool keep, ClosedDirectories& closed,
              WorkPlace& place) {
  if (!fd) {
    const int code = fd.error().code();
    if (code == ENOEXEC || code == EISDIR) return failed(What::no_regular_file, 0);
    const bool gone = code == ENOENT || code == ENOTDIR;
    return failed(gone ? What::missing : What::cannot_open, code);
  }
  struct stat status {};
  if (::fstat(fd->get(), &status) != 0) return failed(What::cannot_stat, errno);
  Finding out;
  out.stamp = file_stamp(status);
  out.atime_ns = nanoseconds(status.st_atim);
  out.mode = status.st_mode;
  out.uid = status.st_uid;
  out.gid = status.st_gid;
  out.blocks = static_cast<std::uint64_t>(status.st_blocks);
  // Mounts of users are theirs alone.
  if (::geteuid() == 0) closed.narrow(out, object.path, fd->get());
  out.what = compare_content(object, *fd, place, out);
  if (keep && out.is_usable()) place.give(std::move(*fd));
  return out;
}

/// What differs, in words; empty when nothing does.
std::string describe(const Finding& found, const MapObject& object,
                     std::chrono::milliseconds limit) {
  const auto with_code = [&](const char* what) {
    return Error::from_errno({}, what, found.code).message();
  };
  switch (found.what) {
    case What::as_mapped:
      return {};
    case What::missing:
      return "missing";
    case What::cannot_open:
      return with_code("cannot open");
    case What::cannot_stat:
      return with_code("cannot stat");
    case What::no_regular_file:
      return "no regular file any more";
    case What::other_size:
      return "size is " + std::to_string(found.stamp.size) + ", was " +
             std::to_string(object.stamp.size);
    case What::other_content:
      return "content changed";
    case What::cannot_read:
      return with_code("cannot read");
    case What::silent:
      return not_answered_for(limit);
  }
  return {};
}

Origin make_origin(const Finding& found, const MapObject& object, Fd file) {
  Origin out;
  out.fd = std::move(file);
  out.stamp = found.stamp;
  out.atime_ns = found.atime_ns;
  out.mode = found.mode;
  out.uid = found.uid;
  out.gid = found.gid;
  out.blocks = found.blocks;
  out.usable = found.is_usable();
  out.as_mapped = found.what == What::as_mapped;
  if (out.as_mapped) out.hash = object.hash;
  return out;
}

struct KeptHere final : WorkPlace {
  void moves_on() override {}
  void give(Fd kept) override { file = std::move(kept); }
  Fd file;
};

/// Looks at the objects of a map.
class Look {
 public:
  Look(const MapContent& content, std::size_t max_pinned, OriginPatience patience)
      : content_(content),
        max_pinned_(max_pinned),
        patience_(patience),
        known_(content.objects.size()) {
    origins_.files.resize(content.objects.size());
  }

  Origins at_all() {
    const auto others = at_local_files();
    at_others(others);
    for (ObjectId id = 0; id < origins_.files.size(); ++id) {
      const auto& object = content_.objects[id];
      const bool looked_at = patience_.with_others || known_[id].what != What::silent ||
                             origins_.silent == std::optional(id);
      auto what = describe(known_[id], object, patience_.limit);
      if (origins_.files[id].fd) ++origins_.pinned;
      if (!what.empty() && looked_at) origins_.drifts.push_back({id, object.path, std::move(what)});
    }
    return std::move(origins_);
  }

 private:
  bool keeps(std::size_t id) const { return id < max_pinned_; }

  /// Here, at once. Result: all that may be others'.
  std::vector<std::size_t> at_local_files() {
    std::vector<std::size_t> others;
    LocalFiles files;
    for (std::size_t id = 0; id < content_.objects.size(); ++id) {
      const auto& object = content_.objects[id];
      auto file = files.open_regular(object.path);
      if (!file && file.error().code() == EXDEV) {
        others.push_back(id);
        continue;
      }
      KeptHere place;
      known_[id] = check(object, std::move(file), keeps(id), closed_, place);
      origins_.files[id] = make_origin(known_[id], object, std::move(place.file));
    }
    return others;
  }

  void at_others(const std::vector<std::size_t>& ids) {
    // Written by a process that may be left behind.
    const SharedArray<Finding> found(ids.size());
    FileWork work{
        .limit = patience_.limit,
        .work =
            [&](std::size_t at, WorkPlace& place) {
              const auto& object = content_.objects[ids[at]];
              found[at] = check(object, open_regular(object.path), keeps(ids[at]), closed_, place);
            },
        .path_of = [&](std::size_t at) { return std::string_view(content_.objects[ids[at]].path); },
        .with_others = patience_.with_others};
    auto results = work_on_files(ids.size(), work);
    for (std::size_t at = 0; at < ids.size(); ++at) {
      const auto id = static_cast<ObjectId>(ids[at]);
      if (results[at].state == WorkResult::State::done) {
        known_[id] = found[at];
        origins_.files[id] =
            make_origin(known_[id], content_.objects[id], std::move(results[at].file));
      } else if (results[at].state == WorkResult::State::late && !origins_.silent) {
        origins_.silent = id;
      }
    }
  }

  const MapContent& content_;
  std::size_t max_pinned_;
  OriginPatience patience_;
  ClosedDirectories closed_;
  std::vector<Finding> known_;  ///< by ObjectId; what is not done counts as silent
  Origins origins_;
};

std::size_t count_open_fds() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  std::size_t n = 0;
  while (folder && ::readdir(folder.get())) ++n;
  return n;
}

}  // namespace

Origins open_origins(const MapContent& content, std::size_t max_pinned, OriginPatience patience) {
  return Look(content, max_pinned, patience).at_all();
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
  const std::size_t used = kReservedFds + count_open_fds();
  return limit.rlim_cur > used ? static_cast<std::size_t>(limit.rlim_cur) - used : 0;
}

}  // namespace heddle
