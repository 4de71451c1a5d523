// SPDX-License-Identifier: MIT
#include "resolver/tree/read_trees.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/file_stamp.hpp"
#include "base/mounts.hpp"
#include "base/task_pool.hpp"
#include "base/try.hpp"
#include "resolver/tree/tree_reader.hpp"

namespace heddle {
namespace {

constexpr const char* kNoTree = "no tree of a map";
/// What a look at a name takes at least if its file server is asked.
constexpr auto kAskedAgain = std::chrono::microseconds(50);
constexpr const char* kExcludeHint = "--tree-exclude DIR leaves a directory to the original";

std::string parent_of(const std::string& path) {
  return path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
}

/// As /etc/passwd says; empty: it does not. Not getpwuid(3), which loads the libraries of
/// nsswitch.conf: a static program would need those of the glibc that it was built with.
std::string home_by_passwd() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/etc/passwd", "re"),
                                                             std::fclose);
  if (!file) return {};
  while (const passwd* user = ::fgetpwent(file.get()))
    if (user->pw_uid == ::geteuid()) return user->pw_dir;
  return {};
}

/// A directory that becomes a tree unless it is refused.
struct Candidate {
  bool named = false;
  /// Where its trees meet: below the directories that have nothing else. Empty: it is one itself.
  std::string place;
  std::vector<std::string> inside;  ///< candidates that it stands for
};

/// A tree of an earlier map.
struct Earlier {
  std::string path;
  TreeIndex index;
  bool keeps_times = false;  ///< keeps_directory_times()
};

class TreeChoice {
 public:
  explicit TreeChoice(const TreeRequest& request) : request_(request) {
    const auto never = [this](const std::string& path, const char* what) {
      if (path.empty()) return;
      const auto real = canonical_path(path);
      never_.emplace_back(real.empty() ? path : real, what);
    };
    never("/", "the root directory");
    never("/usr", "/usr");
    never("/home", "/home");
    if (const char* home = std::getenv("HOME")) never(home, "the home directory");
    never(home_by_passwd(), "the home directory");
    for (const auto& path : request.never) never(path, "a directory that the program works in");
  }

  Result<ReadTrees> run() {
    TRY(take_exclusions());
    mounts_ = TRY(list_mounts());
    if (request_.earlier)
      for (const auto& tree : *request_.earlier)
        if (const auto index = TreeIndex::of(tree.index))
          earlier_.push_back({tree.path, *index, keeps_directory_times(tree.path, mounts_)});
    std::map<std::string, Candidate> wanted = TRY(take_named());
    take_found(wanted);
    keep_outermost(wanted);
    while (collapse(wanted)) continue;
    return_to_places(wanted);
    while (!wanted.empty()) wanted = TRY(read(wanted));
    for (const auto& path : exclude_)
      if (std::ranges::none_of(out_.trees,
                               [&](const auto& tree) { return is_below(path, tree.path); }))
        out_.notes.push_back(escape_for_terminal(path) + ": not excluded: it is in no tree");
    std::ranges::sort(out_.trees, {}, &MapTree::path);
    return std::move(out_);
  }

 private:
  Result<void> take_exclusions() {
    for (const auto& path : request_.exclude) {
      const auto real = canonical_path(path);
      if (real.empty()) return fail_errno(path, "cannot be excluded");
      exclude_.insert(real);
    }
    return {};
  }

  /// Why `path` (canonical) cannot be a tree whatever is in it; empty: it can.
  std::string refusal(const std::string& path) const {
    if (is_excluded(path)) return "it is excluded";
    for (const auto& [never, what] : never_) {
      if (path == never) return std::string("it is ") + what;
      if (is_below(never, path))
        return fmt::format("it holds {}, {}", escape_for_terminal(never), what);
    }
    for (const auto& mount : mounts_)
      if (is_below(mount.point, path) && !is_excluded(mount.point))
        return "it has a mount point in it: " + escape_for_terminal(mount.point);
    return {};
  }

  bool is_excluded(const std::string& path) const {
    return std::ranges::any_of(exclude_,
                               [&](const auto& one) { return path == one || is_below(path, one); });
  }

  Result<std::map<std::string, Candidate>> take_named() {
    std::map<std::string, Candidate> wanted;
    for (const auto& path : request_.named) {
      const auto real = canonical_path(path);
      struct stat st {};
      if (real.empty() || ::stat(real.c_str(), &st) != 0) return fail_errno(path, "cannot open");
      if (!S_ISDIR(st.st_mode)) return fail_errno(path, kNoTree, ENOTDIR);
      if (const auto why = refusal(real); !why.empty()) return fail(path, kNoTree, why, hint(why));
      wanted[real].named = true;
    }
    return wanted;
  }

  static std::string hint(const std::string& why) {
    return why.find("mount point") == why.npos ? "" : kExcludeHint;
  }

  void take_found(std::map<std::string, Candidate>& wanted) {
    for (const auto& found : request_.found) {
      if (wanted.contains(found.path)) continue;
      if (found.left_out.empty() && request_.is_slow && !request_.is_slow(found.path)) continue;
      const auto why = found.left_out.empty() ? refusal(found.path) : found.left_out;
      if (why.empty())
        wanted[found.path];
      else if (struct stat st{}; ::lstat(found.path.c_str(), &st) == 0)
        note(found.path, why);
    }
  }

  void note(const std::string& path, const std::string& why) {
    if (noted_.insert(path).second)
      out_.notes.push_back(escape_for_terminal(path) + ": no tree: " + why);
  }

  static void keep_outermost(std::map<std::string, Candidate>& wanted) {
    for (auto at = wanted.begin(); at != wanted.end();) {
      auto outer = wanted.end();
      for (auto above = parent_of(at->first); above != "/" && outer == wanted.end();
           above = parent_of(above))
        outer = wanted.find(above);
      if (outer == wanted.end()) {
        ++at;
        continue;
      }
      outer->second.inside.push_back(at->first);
      std::ranges::move(at->second.inside, std::back_inserter(outer->second.inside));
      at = wanted.erase(at);
    }
  }

  /// One level up. A parent of one named directory is not taken: the user has said what is a tree.
  /// Result: whether any directory was replaced by its parent.
  bool collapse(std::map<std::string, Candidate>& wanted) {
    std::map<std::string, std::set<std::string>> by_parent;
    for (const auto& [path, candidate] : wanted)
      by_parent[parent_of(path)].insert(path.substr(path.rfind('/') + 1));
    std::vector<std::string> parents;
    for (const auto& [parent, names] : by_parent) {
      const auto first = (parent == "/" ? "" : parent) + "/" + *names.begin();
      if (parent == "/" || (names.size() == 1 && wanted[first].named)) continue;
      if (refusal(parent).empty() && (!request_.is_slow || request_.is_slow(parent)))
        parents.push_back(parent);
    }
    std::vector<char> full(parents.size());
    for_each_at_once(parents.size(),
                     [&](std::size_t i) { full[i] = has_only(parents[i], by_parent[parents[i]]); });
    bool any = false;
    for (std::size_t i = 0; i < parents.size(); ++i) {
      if (!full[i]) continue;
      any = true;
      Candidate whole;
      const auto& names = by_parent[parents[i]];
      if (names.size() > 1) whole.place = parents[i];
      for (const auto& name : names) {
        const auto one = wanted.extract(parents[i] + "/" + name);
        const Candidate& part = one.mapped();
        const auto& place = part.place.empty() ? one.key() : part.place;
        whole.named |= part.named;
        if (names.size() == 1)
          whole.place = place;
        else
          whole.inside.push_back(place);
        std::ranges::copy(part.inside, std::back_inserter(whole.inside));
      }
      wanted[parents[i]] = std::move(whole);
    }
    return any;
  }

  /// A directory above the place where trees meet may get other names at any time: it is not read,
  /// unless its file system is asked for it again each time that a path through it is walked.
  static void return_to_places(std::map<std::string, Candidate>& wanted) {
    std::map<std::string, Candidate> out;
    for (auto& [path, candidate] : wanted) {
      const auto& place = candidate.place;
      if (place.empty() || place == path || !keeps_names_above(place)) {
        if (!place.empty() && place != path) candidate.inside.push_back(place);
        out[path] = std::move(candidate);
      } else {
        out[std::string(place)] = std::move(candidate);
      }
    }
    wanted = std::move(out);
  }

  /// Whether the kernel keeps the names that lead to `path`: NFS and Lustre let it, FUSE with
  /// timeouts of 0 does not. A second look then takes as long as the first.
  static bool keeps_names_above(const std::string& path) {
    const auto fastest = [](const std::string& looked_at) {
      auto best = std::chrono::steady_clock::duration::max();
      for (int i = 0; i < 4; ++i) {
        struct stat st {};
        const auto begin = std::chrono::steady_clock::now();
        (void)::lstat(looked_at.c_str(), &st);
        best = std::min(best, std::chrono::steady_clock::now() - begin);
      }
      return best;
    };
    return fastest(path) - fastest("/") < kAskedAgain;
  }

  /// Whether the directory `parent` is on the file system of `names` in it, and has no other. Not
  /// where everybody may make more.
  bool has_only(const std::string& parent, const std::set<std::string>& names) const {
    struct stat st {};
    struct stat inside {};
    if (::lstat(parent.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || (st.st_mode & S_ISVTX) != 0 ||
        ::stat((parent + "/" + *names.begin()).c_str(), &inside) != 0 || st.st_dev != inside.st_dev)
      return false;
    if (const auto before = names_before(parent, st)) return *before == names;
    const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(parent.c_str()), ::closedir);
    if (!list) return false;
    std::size_t count = 0;
    errno = 0;
    while (const dirent* entry = ::readdir(list.get())) {
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (!names.contains(std::string(name))) return false;
      ++count;
    }
    return errno == 0 && count == names.size();
  }

  /// The names of a directory that an earlier tree has and whose times have not changed.
  std::optional<std::set<std::string>> names_before(const std::string& path,
                                                    const struct stat& now) const {
    for (const auto& [root, index, keeps_times] : earlier_) {
      if (path != root && !is_below(path, root)) continue;
      const auto id =
          path == root ? std::optional(kTreeRoot) : index.find_path(path.substr(root.size() + 1));
      if (!id) return std::nullopt;
      const TreeNode node = index.node(*id);
      if (!S_ISDIR(node.mode) || node.hole ||
          !has_same_times(node, nanoseconds(now.st_mtim), nanoseconds(now.st_ctim),
                          static_cast<std::uint64_t>(now.st_size), keeps_times))
        return std::nullopt;
      std::set<std::string> out;
      for (TreeNodeId i = 0; i < node.child_count; ++i)
        out.emplace(index.node(node.first_child + i).name);
      return out;
    }
    return std::nullopt;
  }

  /// Reads all at once. Result: what to read in place of those that were refused.
  Result<std::map<std::string, Candidate>> read(const std::map<std::string, Candidate>& wanted) {
    std::vector<std::unique_ptr<TreeReader>> readers;
    for (const auto& [path, candidate] : wanted) {
      TreeReader::Options options;
      options.exclude.insert(exclude_.begin(), exclude_.end());
      if (!candidate.named) options.most = request_.most;
      for (const auto& [root, index, keeps_times] : earlier_)
        if (root == path) {
          options.earlier = index;
          options.keeps_times = keeps_times;
        }
      readers.push_back(std::make_unique<TreeReader>(path, std::move(options)));
    }
    {
      TaskPool pool;
      for (const auto& reader : readers) reader->start(pool);
      pool.wait();
    }
    std::map<std::string, Candidate> next;
    for (const auto& reader : readers) {
      const auto& path = reader->path();
      out_.listed += reader->listed();
      auto index = reader->take();
      if (index) {
        note_unreadable(*reader);
        out_.trees.push_back({path, std::move(*index)});
        continue;
      }
      const auto& candidate = wanted.at(path);
      const auto& error = index.error();
      // Those that were named exactly must be trees.
      if (candidate.named &&
          std::ranges::find(request_.named, path, &canonical_path) != request_.named.end()) {
        const bool refused = error.code() == EXDEV || error.code() == EPERM;
        return fail(Error::with_code(error.code(), path, kNoTree, error.message(),
                                     refused ? kExcludeHint : ""));
      }
      note(path, error.message());
      for (const auto& inside : candidate.inside)
        next[inside].named =
            std::ranges::find(request_.named, inside, &canonical_path) != request_.named.end();
    }
    keep_outermost(next);
    return next;
  }

  void note_unreadable(const TreeReader& reader) {
    const auto& list = reader.unreadable();
    if (list.empty()) return;
    const auto more = list.size() == 1 ? "" : fmt::format(" (and {} more)", list.size() - 1);
    out_.notes.push_back(
        fmt::format("{}{}: the original is left there", list.front().message(), more));
  }

  const TreeRequest& request_;
  std::vector<std::pair<std::string, const char*>> never_;
  std::set<std::string> exclude_;
  std::vector<MountEntry> mounts_;
  std::vector<Earlier> earlier_;  ///< request_.earlier
  std::set<std::string> noted_;
  ReadTrees out_;
};

}  // namespace

Result<ReadTrees> read_trees(const TreeRequest& request) { return TreeChoice(request).run(); }

}  // namespace heddle
