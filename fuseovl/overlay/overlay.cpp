// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/overlay.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "fuseovl/session/kernel_order.hpp"

namespace heddle {
namespace {

timespec from_nanoseconds(std::int64_t ns) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const auto seconds = ns / kSecond - (ns % kSecond < 0);
  return {seconds, ns - seconds * kSecond};
}

constexpr std::uint32_t kBlockSize = 4096;
constexpr std::size_t kNameMax = 255;
constexpr auto kBeginsName = std::string_view(kPrefetchBegins).substr(sizeof(".heddle"));
constexpr auto kDoneName = std::string_view(kPrefetchDone).substr(sizeof(".heddle"));

void set_attributes(struct stat& st, const Origin& origin) {
  st.st_mode = origin.mode;
  st.st_uid = origin.uid;
  st.st_gid = origin.gid;
  st.st_size = static_cast<off_t>(origin.stamp.size);
  st.st_blocks = static_cast<blkcnt_t>(origin.blocks);
  st.st_atim = from_nanoseconds(origin.atime_ns);
  st.st_mtim = from_nanoseconds(origin.stamp.mtime_ns);
  st.st_ctim = from_nanoseconds(origin.stamp.ctime_ns);
}

/// How many of `size` bytes at `offset` a file has.
std::size_t up_to(std::uint64_t file_size, std::size_t size, off_t offset) {
  const auto at = static_cast<std::uint64_t>(offset);
  return at >= file_size ? 0 : std::min<std::uint64_t>(size, file_size - at);
}

/// The edge to C: an exception becomes an errno.
template <auto method, class... Arguments>
void answer(fuse_req_t request, Arguments... arguments) {
  after_request();
  try {
    (Session::client<Overlay>(request).*method)(request, arguments...);
  } catch (const std::bad_alloc&) {
    fuse_reply_err(request, ENOMEM);
  } catch (const std::exception&) {
    fuse_reply_err(request, EIO);
  }
}

void on_init(void* userdata, fuse_conn_info* connection) {
  static_cast<Overlay*>(userdata)->init(*connection);
  before_answer();
}

/// Refuses a change of the entry `name` in a directory, or of the inode itself.
void refuse(fuse_req_t request, fuse_ino_t ino, const char* name = nullptr) {
  answer<&Overlay::refuse>(request, ino, name);
}

/// Writes come only where the mount is not read-only for the kernel (mount/kernel_mount.hpp).
void add_writes(fuse_lowlevel_ops& ops) {
  ops.create = [](auto request, auto parent, auto name, auto...) { refuse(request, parent, name); };
  ops.mknod = [](auto request, auto parent, auto name, auto...) { refuse(request, parent, name); };
  ops.mkdir = [](auto request, auto parent, auto name, auto...) { refuse(request, parent, name); };
  ops.symlink = [](auto request, auto, auto parent, auto name) { refuse(request, parent, name); };
  ops.link = [](auto request, auto, auto parent, auto name) { refuse(request, parent, name); };
  ops.unlink = [](auto request, auto parent, auto name) { refuse(request, parent, name); };
  ops.rmdir = [](auto request, auto parent, auto name) { refuse(request, parent, name); };
  ops.rename = [](auto request, auto parent, auto name, auto...) { refuse(request, parent, name); };
  ops.setattr = [](auto request, auto ino, auto...) { refuse(request, ino); };
  ops.setxattr = [](auto request, auto ino, auto...) { refuse(request, ino); };
  ops.removexattr = [](auto request, auto ino, auto...) { refuse(request, ino); };
  ops.fallocate = [](auto request, auto ino, auto...) { refuse(request, ino); };
  ops.write = answer<&Overlay::write>;
}

// libfuse answers the missing operations with ENOSYS, and the kernel sends them no more: FLUSH,
// STATX, LSEEK. ACCESS (default_permissions) never comes.
fuse_lowlevel_ops make_ops() {
  fuse_lowlevel_ops ops{};
  ops.init = on_init;
  ops.lookup = answer<&Overlay::lookup>;
  ops.getattr = answer<&Overlay::getattr>;
  ops.getxattr = answer<&Overlay::getxattr>;
  ops.readlink = answer<&Overlay::readlink>;
  ops.open = answer<&Overlay::open>;
  ops.opendir = answer<&Overlay::opendir>;
  ops.read = answer<&Overlay::read>;
  ops.readdir = answer<&Overlay::list<false>>;
  ops.readdirplus = answer<&Overlay::list<true>>;
  ops.statfs = answer<&Overlay::statfs>;
  ops.listxattr = answer<&Overlay::listxattr>;
  add_writes(ops);
  return ops;
}

/// This thread's until its next answer. The threads are few and live long.
std::span<char> answer_buffer(std::size_t size) {
  static thread_local AnswerBuffer buffer;
  return buffer.at_least(size);
}

}  // namespace

const fuse_lowlevel_ops& Overlay::ops() {
  static const fuse_lowlevel_ops table = make_ops();
  return table;
}

Overlay::Overlay(OverlayContent content)
    : content_(std::move(content)),
      // A lane for each tree, one for notifications, and one for the bundle.
      pool_(content_.files.lane_count() + content_.trees->trees().size() + 2,
            content_.origin_timeout, state_->giving_up) {}

std::vector<int> Overlay::descriptors() const {
  auto out = content_.files.descriptors();
  for (const int root : content_.trees->descriptors()) out.push_back(root);
  if (content_.bundle)
    for (const int source : content_.bundle->descriptors()) out.push_back(source);
  return out;
}

std::optional<BundlePlaces> Overlay::places_in_bundle() const {
  if (!content_.bundle) return {};
  const BundleIndex& index = content_.bundle->index();
  BundlePlaces out;
  for (ObjectId object = 0; object < content_.tree.object_count(); ++object)
    if (content_.files.is_in_bundle(object))
      out.files[content_.tree.inode(object)] = index.objects[object];
  std::vector<std::pair<std::uint64_t, Tree::TreePlace>> found;
  for (std::size_t tree = 0; tree < index.trees.size(); ++tree)
    for (TreeNodeId node = 0; node < index.trees[tree].size(); ++node)
      if (content_.trees->is_in_bundle(tree, node))
        found.emplace_back(index.trees[tree][node], Tree::TreePlace{tree, node});
  const auto kept = std::min(found.size(), kPrefetchedTreeNames);
  const auto by_place = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::nth_element(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(kept), found.end(),
                   by_place);
  found.resize(kept);
  for (auto& [in_bundle, place] : found) {
    const TreeNode node = content_.tree.tree_node(place);
    out.files[Tree::inode({place.tree, node.same_as})] = in_bundle;
    // Up to the first that another file has led to.
    for (place.node = node.parent; out.directories.insert(Tree::inode(place)).second;)
      place.node = content_.tree.tree_node(place).parent;
  }
  return out;
}

void Overlay::init(fuse_conn_info& connection) {
  // READDIRPLUS without _AUTO, which would bring attributes of the first page only. Nothing of
  // writing: with the writeback cache the kernel would keep what was written and answer for it,
  // and O_TRUNC comes as a SETATTR.
  constexpr unsigned wanted = FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS |
                              FUSE_CAP_READDIRPLUS | FUSE_CAP_CACHE_SYMLINKS;
  connection.want = connection.capable & wanted;
  connection.max_read = kMaxRead;
  connection.max_write = kMaxWrite;
  connection.max_background = 64;
  connection.congestion_threshold = 48;
  opendirs_can_be_skipped_ = connection.capable & FUSE_CAP_NO_OPENDIR_SUPPORT;
  if (content_.bundle) content_.bundle->start();
  if (on_ready_) on_ready_();
}

/// As lstat(2) of the original showed it when the map was built. The kernel shows owners that the
/// mount's user namespace does not map as 65534, as it does natively.
struct stat Overlay::attributes(const TreeNode& node) const {
  struct stat st {};
  st.st_mode = node.mode;
  // Of a group that is not mapped the kernel takes nobody for a member: the user is an "other".
  const auto& groups = content_.unmapped_groups;
  if (std::ranges::find(groups, node.gid) != groups.end())
    st.st_mode = (st.st_mode & ~mode_t{S_IRWXO}) | (st.st_mode & S_IRWXG) >> 3;
  st.st_uid = node.uid;
  st.st_gid = node.gid;
  st.st_nlink = node.links;
  st.st_size = static_cast<off_t>(node.size);
  st.st_blocks = static_cast<blkcnt_t>((node.size + 511) / 512);
  st.st_blksize = kBlockSize;
  st.st_atim = st.st_mtim = from_nanoseconds(node.mtime_ns);
  st.st_ctim = from_nanoseconds(node.ctime_ns);
  return st;
}

struct stat Overlay::attributes(InodeNumber ino) const {
  if (const auto place = content_.tree.tree_place(ino)) {
    auto out = attributes(content_.tree.tree_node(*place));
    out.st_ino = ino;
    return out;
  }
  struct stat st {};
  st.st_ino = ino;
  st.st_nlink = content_.tree.link_count(ino);
  st.st_blksize = kBlockSize;
  st.st_uid = owner_;
  st.st_gid = group_;
  st.st_atim = st.st_mtim = st.st_ctim = content_.made;
  st.st_mode = S_IFREG | 0444;
  const auto set_size = [&st](std::size_t size) {
    st.st_size = static_cast<off_t>(size);
    st.st_blocks = static_cast<blkcnt_t>((size + 511) / 512);
  };
  switch (content_.tree.kind(ino).value_or(NodeKind::directory)) {
    case NodeKind::directory:
      // Root's mount shows its files to all users: the way to a tree may be closed to them. A tree
      // that is mounted over its own path is not reached through here.
      st.st_mode = S_IFDIR | (ino == Tree::kTrees ? 0500 : 0555);
      break;
    case NodeKind::link:
      st.st_mode = S_IFLNK | 0777;
      set_size(content_.tree.target(ino).size());
      break;
    case NodeKind::own: {
      const auto& own = content_.own[content_.tree.own(ino)];
      set_size(own.bytes->size());
      st.st_mtim = own.modified;
      st.st_mode = S_IFREG | own.mode;
      // A copy of ld.so: the kernel wants to execute it.
      if (own.bytes->starts_with("\177ELF")) st.st_mode |= 0111;
      break;
    }
    case NodeKind::object:
      set_attributes(st, content_.files.origin(content_.tree.object(ino)));
      break;
    case NodeKind::tree_file:
      break;
  }
  return st;
}

fuse_entry_param Overlay::entry(InodeNumber ino) const {
  fuse_entry_param out{};
  out.ino = ino;
  out.entry_timeout = kForever;
  if (ino == 0) return out;  // a negative entry
  out.attr = attributes(ino);
  out.attr_timeout = kForever;
  return out;
}

void Overlay::lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  if (std::strlen(name) > kNameMax) {  // the kernel's own limit is 1024
    fuse_reply_err(request, ENAMETOOLONG);
    return;
  }
  if (parent == Tree::kOwnDirectory) {
    if (name == kBeginsName) state_->prefetch = ServingState::Prefetch::running;
    if (name == kDoneName) state_->prefetch = ServingState::Prefetch::done;
  }
  const auto found = entry(content_.tree.lookup(parent, name));
  fuse_reply_entry(request, &found);
}

void Overlay::getattr(fuse_req_t request, fuse_ino_t ino, fuse_file_info*) {
  if (!content_.tree.kind(ino)) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  const auto st = attributes(ino);
  fuse_reply_attr(request, &st, kForever);
}

// Never ENOSYS: the kernel would not ask for the statistics any more.
void Overlay::getxattr(fuse_req_t request, fuse_ino_t ino, const char* name, std::size_t size) {
  if (ino != Tree::kRoot || std::string_view(name) != kStatsAttribute) {
    fuse_reply_err(request, ENODATA);
    return;
  }
  const auto text = stats_text();
  if (size == 0)
    fuse_reply_xattr(request, text.size());
  else if (size < text.size())
    fuse_reply_err(request, ERANGE);
  else
    fuse_reply_buf(request, text.data(), text.size());
}

void Overlay::readlink(fuse_req_t request, fuse_ino_t ino) {
  if (content_.tree.kind(ino) == NodeKind::link)
    fuse_reply_readlink(request, std::string(content_.tree.target(ino)).c_str());
  else
    fuse_reply_err(request, EINVAL);
}

void Overlay::open(fuse_req_t request, fuse_ino_t, fuse_file_info*) {
  // From then on the kernel sends no OPEN and no RELEASE, and keeps the page cache
  // (fs/fuse/file.c, fuse_file_open).
  fuse_reply_err(request, ENOSYS);
}

void Overlay::opendir(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  if (opendirs_can_be_skipped_) {
    fuse_reply_err(request, ENOSYS);
    return;
  }
  info->keep_cache = 1;
  info->cache_readdir = 1;
  fuse_reply_open(request, info);
}

template <bool plus>
void Overlay::list(fuse_req_t request, fuse_ino_t ino, std::size_t size, off_t offset,
                   fuse_file_info*) {
  size = std::min<std::size_t>(size, kMaxRead);  // the kernel asks for less
  const auto buffer = answer_buffer(size);
  std::size_t used = 0;
  // Offsets: 1 after `.`, 2 after `..`, 3+i after entry i; constant, for telldir and seekdir.
  std::string text;
  for (auto at = static_cast<std::size_t>(offset);; ++at) {
    const auto found = at == 0   ? TreeEntry{".", ino}
                       : at == 1 ? TreeEntry{"..", content_.tree.parent(ino)}
                                 : content_.tree.entry(ino, at - 2);
    if (!found) break;
    text = found->name;
    const char* name = text.c_str();
    const InodeNumber child = found->ino;
    std::size_t needed = 0;
    const auto next = static_cast<off_t>(at + 1);
    if (plus && at >= 2) {
      const auto param = entry(child);
      needed =
          fuse_add_direntry_plus(request, buffer.data() + used, size - used, name, &param, next);
    } else {
      fuse_entry_param param{};  // ino 0: no dentry of `.` and `..`
      param.attr.st_ino = child;
      param.attr.st_mode = attributes(child).st_mode;
      needed = plus ? fuse_add_direntry_plus(request, buffer.data() + used, size - used, name,
                                             &param, next)
                    : fuse_add_direntry(request, buffer.data() + used, size - used, name,
                                        &param.attr, next);
    }
    if (needed > size - used) break;
    used += needed;
  }
  fuse_reply_buf(request, buffer.data(), used);
}

void Overlay::statfs(fuse_req_t request, fuse_ino_t) {
  struct statvfs out {};
  out.f_bsize = out.f_frsize = kBlockSize;
  out.f_files = content_.tree.object_count() + content_.tree.directory_count() +
                content_.tree.tree_node_count();
  out.f_namemax = kNameMax;
  out.f_flag = ST_RDONLY;
  fuse_reply_statfs(request, &out);
}

void Overlay::reply_bytes(fuse_req_t request, std::string_view bytes) {
  state_->session.counters.add_bytes_read(bytes.size());
  fuse_reply_buf(request, bytes.data(), bytes.size());
}

template <class Read>
void Overlay::reply_read(fuse_req_t request, std::size_t lane, std::string_view path,
                         std::size_t size, Read read) {
  const auto reply = [this, request](const tl::expected<std::string_view, int>& got) {
    if (!got) {
      fuse_reply_err(request, got.error());
      return;
    }
    reply_bytes(request, *got);
  };
  const auto buffer = answer_buffer(size);
  const auto got = read(buffer, MayBlock::no);
  if (got)
    reply(std::string_view(buffer.data(), *got));
  else if (got.error() != EAGAIN)
    reply(tl::unexpected(got.error()));
  else
    pool_.submit({lane, size, path,
                  [read](std::span<char> into) { return read(into, MayBlock::yes); }, reply});
}

void Overlay::read(fuse_req_t request, fuse_ino_t ino, std::size_t size, off_t offset,
                   fuse_file_info*) {
  const auto bundle_lane = content_.files.lane_count() + content_.trees->trees().size() + 1;
  switch (content_.tree.kind(ino).value_or(NodeKind::directory)) {
    case NodeKind::directory:
    case NodeKind::link:
      fuse_reply_err(request, EISDIR);
      return;
    case NodeKind::own: {
      const std::string_view bytes = *content_.own[content_.tree.own(ino)].bytes;
      const auto from = std::min(static_cast<std::size_t>(offset), bytes.size());
      return reply_bytes(request, bytes.substr(from, size));
    }
    case NodeKind::object: {
      ObjectFiles& files = content_.files;
      const auto object = content_.tree.object(ino);
      const bool is_in_bundle = files.is_in_bundle(object);
      reply_read(request, is_in_bundle ? bundle_lane : files.lane(object),
                 is_in_bundle ? content_.bundle->path() : files.path(object),
                 up_to(files.origin(object).stamp.size, size, offset),
                 [&files, object, offset](std::span<char> into, MayBlock block) {
                   return files.read(object, into, offset, block);
                 });
      return;
    }
    case NodeKind::tree_file: {
      TreeFiles& files = *content_.trees;
      const auto place = *content_.tree.tree_place(ino);
      const TreeNode node = content_.tree.tree_node(place);
      const auto bytes = node.hole ? 0 : up_to(node.size, size, offset);
      if (bytes == 0) return reply_bytes(request, {});
      const bool is_in_bundle = files.is_in_bundle(place.tree, place.node);
      reply_read(request, is_in_bundle ? bundle_lane : content_.files.lane_count() + place.tree,
                 is_in_bundle ? content_.bundle->path() : files.trees()[place.tree].path, bytes,
                 [&files, place, offset](std::span<char> into, MayBlock block) {
                   return files.read(place.tree, place.node, into, offset, block);
                 });
    }
  }
}

/// Where the map has trees their files have no extended attributes, instead of no support for them.
void Overlay::listxattr(fuse_req_t request, fuse_ino_t, std::size_t size) {
  if (content_.trees->trees().empty())
    fuse_reply_err(request, ENOSYS);
  else if (size == 0)
    fuse_reply_xattr(request, 0);
  else
    fuse_reply_buf(request, nullptr, 0);
}

void Overlay::refuse(fuse_req_t request, fuse_ino_t ino, const char* name) {
  auto& refused = state_->refused;
  ++refused.count;
  if (const auto place = content_.tree.tree_place(ino); place && !refused.is_named) {
    const auto below = name ? std::string("/") + name : "";
    const auto path = content_.trees->path(place->tree, place->node) + below;
    const bool is_cache = (path + "/").find("/__pycache__/") != path.npos;
    if (!is_cache && !refused.is_named.exchange(true)) {
      path.copy(refused.path.data(), refused.path.size() - 1);
      refused.has_path = true;
    }
  }
  fuse_reply_err(request, EROFS);
}

/// The kernel has put the bytes into its cache already: write(2) marks the pages as invalid when
/// this fails, but they stay in the memory of processes that map them, and a page that was written
/// through a mapping stays valid. So all pages of the file are dropped, in a thread of its own: the
/// kernel waits there for the answers to other WRITEs.
void Overlay::write(fuse_req_t request, fuse_ino_t ino, const char*, std::size_t, off_t,
                    fuse_file_info*) {
  refuse(request, ino, nullptr);
  if (!session_) return;
  const auto drop_pages = [session = session_, ino](std::span<char>) {
    (void)fuse_lowlevel_notify_inval_inode(session, ino, 0, 0);
    return tl::expected<std::size_t, int>(0);
  };
  const auto lane = content_.files.lane_count() + content_.trees->trees().size();
  try {
    pool_.submit({lane, 0, "the kernel's cache", drop_pages, [](const auto&) {}});
  } catch (const std::exception&) {  // the request is answered already
  }
}

}  // namespace heddle
