// SPDX-License-Identifier: MIT
#include "container-hooks/image_walk.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "container-hooks/mount_calls.hpp"

namespace heddle {
namespace {

bool is_plain(std::string_view name) { return !name.empty() && name != "." && name != ".."; }

/// As many as are usual: libmpi.so -> libmpi.so.12 -> libmpi.so.12.2.2.
constexpr int kMostLinks = 4;

std::string link_at(int folder, const std::string& name) {
  char text[PATH_MAX];
  const ssize_t n = ::readlinkat(folder, name.c_str(), text, sizeof(text));
  return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : std::string();
}

}  // namespace

std::string place_below(const std::string& top, int fd) {
  std::string where = link_at(AT_FDCWD, "/proc/self/fd/" + std::to_string(fd));
  if (top != "/" && where.starts_with(top)) where.erase(0, top.size());
  return where;
}

ImageWalk::ImageWalk(const Fd& root, std::string top) : root_(root), top_(std::move(top)) {}

std::optional<ImagePlace> ImageWalk::find(std::string_view path) {
  const bool as_folder = path.ends_with('/');
  if (as_folder) path.remove_suffix(1);
  const auto slash = path.rfind('/');
  if (slash == path.npos) return std::nullopt;
  std::string name(path.substr(slash + 1));
  if (!is_plain(name)) return std::nullopt;
  const auto way = walk_to(path.substr(0, slash));
  if (way == Way::unknown) return std::nullopt;
  ImagePlace out;
  if (way == Way::nowhere) return out;
  const int folder = way_.empty() ? root_.get() : way_.back().open.get();
  for (int links = 0;; ++links) {
    if (::fstatat(folder, name.c_str(), &out.status, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) != 0)
      return errno == ENOENT ? std::optional(out) : std::nullopt;
    if (!S_ISLNK(out.status.st_mode)) break;
    name = link_at(folder, name);
    if (links == kMostLinks || !is_plain(name) || name.find('/') != name.npos) return std::nullopt;
  }
  out.is_there = !as_folder || S_ISDIR(out.status.st_mode);
  out.where = (way_.empty() ? "" : way_.back().where) + "/" + name;
  return out;
}

ImageWalk::Way ImageWalk::walk_to(std::string_view folder) {
  const auto leads_there = [&](const std::string& path) {
    return folder.starts_with(path) && (folder.size() == path.size() || folder[path.size()] == '/');
  };
  while (!way_.empty() && !leads_there(way_.back().path)) way_.pop_back();
  for (auto rest = folder.substr(way_.empty() ? 0 : way_.back().path.size()); !rest.empty();) {
    const auto end = std::min(rest.find('/', 1), rest.size());
    if (const auto way = step(rest.substr(1, end - 1)); way != Way::there) return way;
    rest.remove_prefix(end);
  }
  return Way::there;
}

ImageWalk::Way ImageWalk::step(std::string_view name) {
  if (!is_plain(name)) return Way::unknown;
  const bool first = way_.empty();
  const std::string text(name);
  Folder next{(first ? "" : way_.back().path) + "/" + text,
              (first ? "" : way_.back().where) + "/" + text,
              Fd(::openat(first ? root_.get() : way_.back().open.get(), text.c_str(),
                          O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC))};
  if (!next.open && errno == ENOENT) return Way::nowhere;
  if (!next.open && errno != ENOTDIR) return Way::unknown;
  if (!next.open) {  // a link, which may be an absolute one
    auto found = find_in_root(root_.get(), next.path, O_DIRECTORY);
    if (!found) return Way::unknown;
    next.where = place_below(top_, found->get());
    if (next.where == "/") next.where.clear();
    next.open = std::move(*found);
  }
  way_.push_back(std::move(next));
  return Way::there;
}

}  // namespace heddle
