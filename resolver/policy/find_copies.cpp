// SPDX-License-Identifier: MIT
#include "resolver/policy/find_copies.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <utility>

#include "base/open_in_root.hpp"

namespace heddle {
namespace {

// Debian with an MPI has 14,000 names, a large conda environment 200,000. Listing takes 1 us a name
// and 10 us a folder when they are cached.
constexpr std::size_t kMostNames = 300'000;
constexpr std::size_t kMostFound = 64;
constexpr int kDeepest = 40;
// Each costs a cached start 7 us. Debian with an MPI has 100 that have libraries or are no deeper
// than this.
constexpr std::size_t kMostWatched = 128;
constexpr int kShallow = 2;

/// Folders of the root that change with each container or hold data.
bool may_be_watched(const std::string& name) {
  for (const char* other : {"etc", "tmp", "run", "var", "boot"})
    if (name == other) return false;
  return true;
}

bool is_data(const std::string& path) {
  return path == "/usr/share/" || path == "/usr/include/" || path == "/usr/src/";
}

/// Whether opening a folder failed for what it is: no folder, one of a volume, gone, or one that
/// whoever asks may not look into, and so has no programs from there.
bool is_none_of_ours(int code) {
  return code == ENOTDIR || code == ELOOP || code == EXDEV || code == ENOENT || code == EACCES;
}

class Walk {
 public:
  Walk(FoundCopies& out, const std::function<bool(const std::string&)>& is_wanted)
      : out_(out), is_wanted_(is_wanted) {}

  /// `path` ends in '/'.
  void enter(Fd folder, const std::string& path, int depth, bool watched = true) {
    const std::unique_ptr<DIR, int (*)(DIR*)> list(
        depth > kDeepest ? nullptr : ::fdopendir(folder.get()), &::closedir);
    if (!list) {
      out_.complete = false;
      return;
    }
    const int fd = folder.release();  // the list's
    bool libraries = false;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(list.get());
      if (entry == nullptr) {
        if (errno != 0) out_.complete = false;
        break;
      }
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (++names_ > kMostNames || out_.paths.size() >= kMostFound) {
        out_.complete = false;
        break;
      }
      libraries |= name.find(".so") != name.npos;
      const bool may_be_folder = entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN;
      if (!may_be_folder || depth > 0 || (name != "proc" && name != "sys" && name != "dev"))
        look_at(fd, path + name, name, may_be_folder, depth,
                watched && (depth > 0 || may_be_watched(name)));
    }
    if (watched && (depth <= kShallow || libraries)) watched_.emplace(depth, path);
  }

  /// Those nearest to the root first, when there are too many.
  std::vector<std::string> watched() const {
    std::vector<std::string> out;
    for (const auto& [depth, path] : watched_)
      if (out.size() < kMostWatched) out.push_back(path);
    return out;
  }

 private:
  void look_at(int fd, const std::string& path, const std::string& name, bool may_be_folder,
               int depth, bool watched) {
    if (may_be_folder) {
      // A device's number does not tell a volume: one bound from the same disk has the image's.
      auto below = open_resolved(fd, name, O_RDONLY | O_DIRECTORY | O_NONBLOCK,
                                 RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS);
      if (below)
        return enter(std::move(*below), path + "/", depth + 1, watched && !is_data(path + "/"));
      if (!is_none_of_ours(below.error().code())) out_.complete = false;
    }
    if (is_wanted_(name)) out_.paths.push_back(path);
  }

  FoundCopies& out_;
  const std::function<bool(const std::string&)>& is_wanted_;
  std::size_t names_ = 0;
  std::set<std::pair<int, std::string>> watched_;
};

}  // namespace

FoundCopies find_copies(OsWorld& world, const std::function<bool(const std::string&)>& is_wanted) {
  FoundCopies out;
  auto root = world.open("/", O_RDONLY | O_DIRECTORY);
  if (root) {
    Walk walk(out, is_wanted);
    walk.enter(std::move(*root), "/", 0);
    out.watched = walk.watched();
  } else {
    out.complete = false;
  }
  std::sort(out.paths.begin(), out.paths.end());
  return out;
}

}  // namespace heddle
