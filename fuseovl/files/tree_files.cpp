// SPDX-License-Identifier: MIT
#include "fuseovl/files/tree_files.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "base/backoff.hpp"
#include "base/file_stamp.hpp"
#include "base/log.hpp"
#include "base/mounts.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "fuseovl/files/file_work.hpp"

namespace heddle {
namespace {

/// Bytes that are kept for the kernel's next requests, in all.
constexpr std::size_t kMostKept = 32U << 20;
constexpr std::size_t kMostOpenFiles = 256;
/// What FUSE has said of an open file holds for so long. Reading it does not tell, and asking at
/// each read would be a request more.
constexpr std::chrono::seconds kTrusted{1};

/// What is not the map's: an errno of opening a file that says so, or of this unit (ENOEXEC: no
/// regular file, EXDEV: a mount, EBADMSG: other attributes).
bool is_change(int code) {
  return code == ENOENT || code == ENOTDIR || code == ENOEXEC || code == EXDEV || code == EBADMSG;
}

constexpr unsigned kWanted = STATX_BASIC_STATS & ~unsigned{STATX_ATIME | STATX_BLOCKS};
#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000U
#endif

/// What the last answer of the file system said of `file`: sends it no request. With `sync` it is
/// asked: one that does not keep sizes (Lustre), or does not tell of changes (FUSE).
std::optional<struct statx> status_of(int file, bool sync = false) {
  struct statx out {};
  const int flags = AT_EMPTY_PATH | (sync ? AT_STATX_FORCE_SYNC : AT_STATX_DONT_SYNC);
  if (::statx(file, "", flags, kWanted | STATX_MNT_ID, &out) != 0) return std::nullopt;
  return out;
}

/// The mount that a file is on; the file system, before Linux 5.8.
struct Place {
  std::uint64_t mount = 0;
  std::uint64_t device = 0;
  bool operator==(const Place&) const = default;
};
Place place_of(const struct statx& status) {
  if (status.stx_mask & STATX_MNT_ID) return {status.stx_mnt_id, 0};
  return {0, std::uint64_t{status.stx_dev_major} << 32 | status.stx_dev_minor};
}

/// Whole pages: the kernel splits an uncached read of a MiB that begins within one.
struct FreePages {
  static constexpr std::align_val_t kPage{4096};
  void operator()(char* pages) const { ::operator delete[](pages, kPage); }
};
struct Bytes {
  Bytes() = default;
  explicit Bytes(std::size_t wanted)
      : data(static_cast<char*>(::operator new[](wanted, FreePages::kPage))), size(wanted) {}
  std::unique_ptr<char[], FreePages> data;
  std::size_t size = 0;
};

/// An entry of a directory that was just looked up.
struct Found {
  Fd handle;  ///< O_PATH
  struct statx status {};
};

tl::expected<Found, int> look_up(int directory, std::string_view name) {
  Found out;
  out.handle = Fd(::openat(directory, std::string(name).c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!out.handle) return tl::unexpected(errno);
  const auto status = status_of(out.handle.get());
  if (!status) return tl::unexpected(errno);
  out.status = *status;
  return out;
}

/// For root's daemon: the kernel grants by the map's values what the daemon reads with all rights.
bool has_rights_of(const TreeNode& node, const struct statx& now) {
  constexpr unsigned kPermissions = 0777;
  return (now.stx_mode & kPermissions) == (node.mode & kPermissions) && now.stx_uid == node.uid &&
         now.stx_gid == node.gid;
}

constexpr std::uint64_t kUnseen = 0;
constexpr std::uint64_t kChanged = 1;

/// A file's identity in 24 bits, its ctime in 24, and its number of links in 16; none of the
/// constants above.
std::uint64_t print_of(const struct statx& now) {
  const std::uint64_t id[] = {std::uint64_t{now.stx_dev_major} << 32 | now.stx_dev_minor,
                              now.stx_ino};
  const auto ctime = nanoseconds(now.stx_ctime);
  return (XXH3_64bits(id, sizeof(id)) >> 40 | 1) << 40 |
         XXH3_64bits(&ctime, sizeof(ctime)) >> 40 << 16 | std::min(now.stx_nlink, 0xFFFFU);
}

/// A hard link made or removed elsewhere changes ctime too.
bool is_same_file(std::uint64_t one, std::uint64_t other) {
  return one >> 40 == other >> 40 && (one >> 16 == other >> 16 || (one ^ other) << 48 != 0);
}

std::uint64_t key_of(std::size_t tree, TreeNodeId node) { return std::uint64_t{tree} << 32 | node; }

}  // namespace

/// The open directories of all trees, the least recently used closed first.
class TreeFiles::Directories {
 public:
  Directories(const std::vector<ServedTree>& trees, std::size_t most)
      : trees_(trees), most_(most), walking_(trees.size()) {
    for (const auto& tree : trees) {
      const auto status = tree.root ? status_of(tree.root.get()) : std::nullopt;
      places_.push_back(status ? place_of(*status) : Place());
    }
  }

  /// The directory `id`. One thread at a time asks a tree: others may want the same.
  tl::expected<std::shared_ptr<const Fd>, int> open(std::size_t tree, TreeNodeId id) {
    const std::lock_guard walk(walking_[tree]);
    const TreeIndex& index = trees_[tree].index;
    std::vector<TreeNodeId> missing;
    std::shared_ptr<const Fd> at;
    for (; !(at = known(tree, id)); id = index.node(id).parent) missing.push_back(id);
    for (; !missing.empty(); missing.pop_back()) {
      const TreeNode node = index.node(missing.back());
      auto found = TRY(look_up(at->get(), node.name));
      TRY(check(found, tree, node, S_IFDIR));
      at = std::make_shared<const Fd>(std::move(found.handle));
      keep(key_of(tree, missing.back()), at);
    }
    return at;
  }
  /// Closes those above `id`. Result: whether there were any.
  bool forget(std::size_t tree, TreeNodeId id) {
    const std::lock_guard walk(walking_[tree]);
    const std::lock_guard lock(mutex_);
    bool any = false;
    for (; id != kTreeRoot; id = trees_[tree].index.node(id).parent)
      if (const auto one = known_.extract(key_of(tree, id))) {
        order_.erase(one.mapped());
        any = true;
      }
    return any;
  }
  tl::expected<void, int> check(const Found& found, std::size_t tree, const TreeNode& node,
                                mode_t type) const {
    if (place_of(found.status) != places_[tree]) return tl::unexpected(EXDEV);
    if ((found.status.stx_mode & S_IFMT) != type)
      return tl::unexpected(type == S_IFDIR ? ENOTDIR : ENOEXEC);
    if (strict_ && !has_rights_of(node, found.status)) return tl::unexpected(EBADMSG);
    return {};
  }
  /// Whether has_rights_of() counts.
  bool is_strict() const { return strict_; }

 private:
  using Order = std::list<std::pair<std::uint64_t, std::shared_ptr<const Fd>>>;

  std::shared_ptr<const Fd> known(std::size_t tree, TreeNodeId id) {
    if (id == kTreeRoot) return {std::shared_ptr<void>(), &trees_[tree].root};
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(key_of(tree, id));
    if (found == known_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second);
    return found->second->second;
  }
  void keep(std::uint64_t key, std::shared_ptr<const Fd> directory) {
    const std::lock_guard lock(mutex_);
    order_.emplace_front(key, std::move(directory));
    known_[key] = order_.begin();
    if (order_.size() <= most_) return;
    known_.erase(order_.back().first);
    order_.pop_back();
  }

  const std::vector<ServedTree>& trees_;
  const std::size_t most_;
  const bool strict_ = is_systems_root();
  std::vector<Place> places_;        ///< of the trees
  std::vector<std::mutex> walking_;  ///< by tree; taken before mutex_
  std::mutex mutex_;
  Order order_;  ///< by key_of(), the most recently used first
  std::unordered_map<std::uint64_t, Order::iterator> known_;
};

class TreeFiles::OpenFile {
 public:
  explicit OpenFile(std::atomic<std::size_t>& kept) : kept_(kept) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { drop(); }

  std::mutex mutex;  ///< held while the file is opened or read
  Fd fd;
  std::chrono::steady_clock::time_point asked;  ///< when its file system was, of its attributes
  std::atomic<std::uint64_t> used = 0;          ///< OpenFiles::clock_ at the last use

  /// The kept bytes from `at` on; empty: none.
  std::string_view kept_from(std::uint64_t at) const {
    if (at < begin_ || at >= begin_ + bytes_.size) return {};
    return std::string_view(bytes_.data.get(), bytes_.size).substr(at - begin_);
  }
  void keep(std::uint64_t begin, Bytes bytes) {
    drop();
    kept_ += bytes.size;
    begin_ = begin;
    unread_ = bytes.size;
    bytes_ = std::move(bytes);
  }
  /// The kernel has got so many of them: it caches each page itself.
  void took(std::size_t bytes) {
    unread_ -= std::min(unread_, bytes);
    if (unread_ == 0) drop();
  }
  void drop() {
    kept_ -= bytes_.size;
    bytes_ = Bytes();
  }

 private:
  std::atomic<std::size_t>& kept_;
  std::uint64_t begin_ = 0;
  Bytes bytes_;
  std::size_t unread_ = 0;
};

/// The open files of a process. Closing may block, so only threads that may block do it.
class TreeFiles::OpenFiles {
 public:
  explicit OpenFiles(std::size_t most) : most_(std::max<std::size_t>(most, 1)) {}

  /// The result of `call` with the file, if it is open and no other thread uses it; else EAGAIN.
  template <class Call>
  tl::expected<std::size_t, int> try_with(std::uint64_t key, Call call) {
    // Shared, so that no other thread removes the file, which would be closed here.
    const std::shared_lock lock(mutex_);
    const auto found = files_.find(key);
    if (found == files_.end()) return tl::unexpected(EAGAIN);
    OpenFile& file = *found->second;
    const std::unique_lock own(file.mutex, std::try_to_lock);
    if (!own || !file.fd) return tl::unexpected(EAGAIN);
    file.used = ++clock_;
    return call(file);
  }
  /// The file, perhaps not open yet.
  std::shared_ptr<OpenFile> take(std::uint64_t key) {
    std::shared_ptr<OpenFile> out;
    {
      const std::lock_guard lock(mutex_);
      auto& file = files_[key];
      if (!file) file = std::make_shared<OpenFile>(kept_);
      file->used = ++clock_;
      out = file;
    }
    trim();
    return out;
  }
  /// Closes the least recently used files until the limits hold.
  void trim() {
    for (;;) {
      std::shared_ptr<OpenFile> oldest;  // closed without the lock
      const std::lock_guard lock(mutex_);
      if (files_.size() <= 1 || (files_.size() <= most_ && kept_ <= kMostKept)) return;
      const auto found = std::ranges::min_element(
          files_, {}, [](const auto& file) { return file.second->used.load(); });
      oldest = std::move(found->second);
      files_.erase(found);
    }
  }

 private:
  const std::size_t most_;
  std::shared_mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<OpenFile>> files_;
  std::atomic<std::uint64_t> clock_ = 0;
  std::atomic<std::size_t> kept_ = 0;  ///< bytes, of all files
};

TreeFiles::TreeFiles(std::vector<ServedTree> trees, std::size_t descriptors)
    : trees_(std::move(trees)) {
  const auto files = std::min(kMostOpenFiles, descriptors / 4);
  for (const auto& tree : trees_) seen_.emplace_back(tree.index.size());
  directories_ = std::make_unique<Directories>(trees_, descriptors - files);
  open_ = std::make_unique<OpenFiles>(files);
}

TreeFiles::~TreeFiles() = default;

std::vector<int> TreeFiles::descriptors() const {
  std::vector<int> out;
  for (const auto& tree : trees_)
    if (tree.root) out.push_back(tree.root.get());
  return out;
}

std::string TreeFiles::path(std::size_t tree, TreeNodeId node) const {
  const auto below = trees_[tree].index.path(node);
  return below.empty() ? trees_[tree].path : trees_[tree].path + "/" + below;
}

tl::expected<std::size_t, int> TreeFiles::read(std::size_t tree, TreeNodeId node,
                                               std::span<char> into, off_t offset, MayBlock block) {
  const TreeNode entry = trees_[tree].index.node(node);
  if (is_in_bundle(tree, node)) {
    const auto place = frames_->index().trees[tree][node] + static_cast<std::uint64_t>(offset);
    const auto done = frames_->read(place, into, block);
    if (done) return into.size();
    if (done.error() == EAGAIN) return tl::unexpected(EAGAIN);
  }
  if (seen_[tree][entry.same_as] == kChanged) return tl::unexpected(EIO);
  const auto key = key_of(tree, entry.same_as);
  const auto begin = static_cast<std::uint64_t>(offset);
  const auto now = std::chrono::steady_clock::now();
  const auto is_due = [&](const OpenFile& file) {
    return trees_[tree].is_fuse && now - file.asked > kTrusted;
  };
  const auto copy_kept = [&](OpenFile& file, std::size_t done) {
    const auto size = file.kept_from(begin + done).copy(into.data() + done, into.size() - done);
    if (size > 0) file.took(size);
    return size;
  };
  if (block == MayBlock::no)
    return open_->try_with(key, [&](OpenFile& file) -> tl::expected<std::size_t, int> {
      if (file.kept_from(begin).size() >= into.size()) return copy_kept(file, 0);
      if (is_due(file)) return tl::unexpected(EAGAIN);
      const auto got = TRY(read_at(file.fd.get(), into, offset, MayBlock::no));
      TRY(compare(file.fd.get(), tree, node, Ask::never));
      counters_->bytes += got;
      return got;
    });
  const auto file = open_->take(key);
  const std::lock_guard lock(file->mutex);
  if (!file->fd) TRY(open(*file, tree, node));
  for (std::size_t done = 0; done < into.size();) {
    if (const auto size = copy_kept(*file, done); size > 0) {
      done += size;
      continue;
    }
    const auto from = (begin + done) / kChunk * kChunk;
    Bytes chunk(std::min<std::uint64_t>(kChunk, entry.size - from));
    const std::span bytes(chunk.data.get(), chunk.size);
    const auto at = static_cast<off_t>(from);
    if (trees_[tree].is_fuse) read_chunks_ahead(file->fd.get(), chunk.size, at);
    const auto got = trees_[tree].is_fuse ? read_from_fuse(file->fd.get(), bytes, at)
                                          : read_at(file->fd.get(), bytes, at, MayBlock::yes);
    int code = got ? 0 : got.error();
    if (got) {
      const auto ask = is_due(*file) ? Ask::always : Ask::if_other;
      if (const auto same = compare(file->fd.get(), tree, node, ask); !same) code = same.error();
      if (ask == Ask::always) file->asked = now;
    }
    if (code == 0 && *got < chunk.size) code = EBADMSG;
    if (code != 0) {
      file->drop();
      file->fd.reset();
      return tl::unexpected(fail_with(code, tree, node));
    }
    counters_->bytes += *got;
    file->keep(from, std::move(chunk));
    open_->trim();
  }
  return into.size();
}

/// A process that maps the page would die of an error.
tl::expected<void, int> TreeFiles::open(OpenFile& file, std::size_t tree, TreeNodeId node) {
  if (!trees_[tree].root) {
    if (++counters_->unreachable == 1)
      warn(Error(path(tree, node), "answered with an error",
                 "the bundle does not have it, and its tree is missing on this node"));
    return tl::unexpected(EIO);
  }
  file.asked = std::chrono::steady_clock::now();
  const auto attempt = [&] {
    auto opened = open_once(tree, node);
    if (opened)
      file.fd = std::move(*opened);
    else
      errno = opened.error();
    return opened ? 0 : -1;
  };
  const auto passes = [](int error) {
    return error == EMFILE || error == ENFILE || error == ENOMEM;
  };
  int code = insist(attempt, passes) == 0 ? 0 : errno;
  // A directory whose descriptor is kept may have been moved or removed.
  const bool is_found = code == 0 || code == EACCES || code == EBADMSG || code == ENOEXEC;
  if (!is_found && directories_->forget(tree, node)) code = attempt() == 0 ? 0 : errno;
  if (code == 0) return {};
  return tl::unexpected(fail_with(code, tree, node));
}

tl::expected<Fd, int> TreeFiles::open_once(std::size_t tree, TreeNodeId id) {
  const TreeNode node = trees_[tree].index.node(id);
  const auto directory = TRY(directories_->open(tree, node.parent));
  const auto found = TRY(look_up(directory->get(), node.name));
  TRY(directories_->check(found, tree, node, S_IFREG));
  const auto link = "/proc/self/fd/" + std::to_string(found.handle.get());
  Fd file(::open(link.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file) return tl::unexpected(errno);
  TRY(compare(file.get(), tree, id, Ask::if_other));
  ++counters_->opened;
  return file;
}

/// EBADMSG: the file is not the map's, or not the one that was opened before; EAGAIN: unknown.
tl::expected<void, int> TreeFiles::compare(int file, std::size_t tree, TreeNodeId id, Ask ask) {
  const TreeNode node = trees_[tree].index.node(id);
  auto& seen = seen_[tree][node.same_as];
  const bool strict = directories_->is_strict();
  for (const bool sync : {false, true}) {
    if (!sync && ask == Ask::always) continue;
    if (sync && ask == Ask::never) return tl::unexpected(EAGAIN);
    const auto now = status_of(file, sync);
    if (!now && sync) return tl::unexpected(errno);
    if (!now || now->stx_size != node.size || nanoseconds(now->stx_mtime) != node.mtime_ns ||
        (strict && !has_rights_of(node, *now)))
      continue;
    auto before = kUnseen;
    const auto print = print_of(*now);
    if (seen.compare_exchange_strong(before, print) || is_same_file(before, print)) return {};
  }
  return tl::unexpected(EBADMSG);
}

/// The errno of a read, from that of opening or reading the original.
int TreeFiles::fail_with(int code, std::size_t tree, TreeNodeId node) {
  if (is_change(code)) return refuse(tree, node);
  return code == EAGAIN ? EIO : code;
}

int TreeFiles::refuse(std::size_t tree, TreeNodeId node) {
  if (seen_[tree][trees_[tree].index.node(node).same_as].exchange(kChanged) == kChanged) return EIO;
  const bool is_damaged = is_in_bundle(tree, node);
  if (!is_damaged) ++counters_->changed;
  warn(Error(path(tree, node), "answered with an error",
             is_damaged ? "the bundle is damaged, and the original is not what was packed"
                        : "it has changed since the map was built"));
  return EIO;
}

std::size_t TreeFiles::changed(std::size_t most, std::vector<std::string>& paths) const {
  const std::size_t count = counters_->changed;
  for (std::size_t tree = 0; count > 0 && tree < trees_.size(); ++tree)
    for (TreeNodeId node = 0; node < seen_[tree].size() && paths.size() < most; ++node)
      if (seen_[tree][node] == kChanged && !is_in_bundle(tree, node))
        paths.push_back(path(tree, node));
  return count;
}

std::vector<std::string> TreeFiles::missed() const {
  std::vector<std::string> out;
  for (std::size_t tree = 0; frames_ && tree < trees_.size(); ++tree)
    for (TreeNodeId node = 0; node < seen_[tree].size(); ++node)
      if (seen_[tree][node] > kChanged && !is_in_bundle(tree, node))
        out.push_back(path(tree, node));
  return out;
}

void open_tree_roots(std::vector<ServedTree>& trees, std::chrono::milliseconds limit,
                     Origins& found) {
  const SharedArray<int> codes(trees.size());
  const SharedArray<bool> are_fuse(trees.size());
  const bool strict = is_systems_root();
  // statfs(2) would ask the server for each of a path's many directories.
  const auto mounts = list_mounts().value_or(std::vector<MountEntry>());
  const auto is_fuse = [&mounts](int root, dev_t device) {
    const auto mount = std::ranges::find(mounts, device, &MountEntry::device);
    if (mount != mounts.end()) return mount->type.starts_with("fuse") || mount->type == "virtiofs";
    struct statfs system {};  // of a part of it, such as a subvolume of Btrfs
    return ::fstatfs(root, &system) == 0 && system.f_type == FUSE_SUPER_MAGIC;
  };
  const auto open = [&](std::size_t i, WorkPlace& place) {
    Fd root(::open(trees[i].path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    codes[i] = errno;
    if (!root) return;
    const auto fits_now = [&](bool sync) {
      const auto status = status_of(root.get(), sync);
      if (status)
        are_fuse[i] = is_fuse(root.get(), ::makedev(status->stx_dev_major, status->stx_dev_minor));
      return status && has_rights_of(trees[i].index.node(kTreeRoot), *status);
    };
    const bool fits = fits_now(false) || !strict || fits_now(true);
    codes[i] = fits ? EMFILE : EBADMSG;  // an open descriptor may be lost on its way
    if (fits) place.give(std::move(root));
  };
  auto results =
      work_on_files(trees.size(), {.limit = limit, .work = open, .path_of = [&](std::size_t i) {
                                     return std::string_view(trees[i].path);
                                   }});
  const auto why = [&](int code) -> std::string {
    if (code == ENOENT) return "missing";
    if (code == ENOTDIR) return "no longer a directory";
    if (code == EBADMSG) return "other owner or permissions";
    return Error::from_errno({}, "cannot open", code).message();
  };
  for (std::size_t i = 0; i < trees.size(); ++i) {
    const bool silent = results[i].state != WorkResult::State::done;
    if (!silent) trees[i].root = std::move(results[i].file);
    trees[i].is_fuse = are_fuse[i];
    if (trees[i].root) continue;
    found.drifts.push_back(
        {0, trees[i].path, silent ? not_answered_for(limit) : why(codes[i]), silent});
    if (results[i].state == WorkResult::State::late && !found.silent)
      found.silent = found.drifts.back();
  }
}

}  // namespace heddle
