// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/overlay.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "fuseovl/mount/warm_up.hpp"
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

// libfuse answers the missing operations with ENOSYS, and the kernel sends them no more: FLUSH,
// LISTXATTR, STATX, LSEEK. ACCESS (default_permissions) and writes (a read-only mount) never come.
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
  return ops;
}

}  // namespace

const fuse_lowlevel_ops& Overlay::ops() {
  static const fuse_lowlevel_ops table = make_ops();
  return table;
}

Overlay::Overlay(OverlayContent content)
    : content_(std::move(content)),
      pool_(content_.files.lane_count(), content_.origin_timeout, state_->giving_up) {}

void Overlay::init(fuse_conn_info& connection) {
  // READDIRPLUS without _AUTO, which would bring attributes of the first page only.
  constexpr unsigned wanted = FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS;
  connection.want = connection.capable & wanted;
  connection.max_read = kMaxRead;
  connection.max_write = kMaxWrite;
  connection.max_background = 64;
  connection.congestion_threshold = 48;
  opendirs_can_be_skipped_ = connection.capable & FUSE_CAP_NO_OPENDIR_SUPPORT;
  if (on_ready_) on_ready_();
}

struct stat Overlay::attributes(InodeNumber ino) const {
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
      st.st_mode = S_IFDIR | 0555;
      break;
    case NodeKind::link:
      st.st_mode = S_IFLNK | 0777;
      set_size(content_.tree.target(ino).size());
      break;
    case NodeKind::own: {
      const auto& own = content_.own[content_.tree.own(ino)];
      set_size(own.bytes.size());
      st.st_mtim = own.modified;
      // A copy of ld.so: the kernel wants to execute it.
      if (own.bytes.starts_with("\177ELF")) st.st_mode |= 0111;
      break;
    }
    case NodeKind::object:
      set_attributes(st, content_.files.origin(content_.tree.object(ino)));
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
    fuse_reply_readlink(request, content_.tree.target(ino).c_str());
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
  const auto entries = content_.tree.entries(ino);
  size = std::min<std::size_t>(size, kMaxRead);  // the kernel asks for less
  std::string buffer(size, '\0');
  std::size_t used = 0;
  // Offsets: 1 after `.`, 2 after `..`, 3+i after entry i; constant, for telldir and seekdir. The
  // names are parts of std::strings, so they end in NUL.
  for (auto at = static_cast<std::size_t>(offset); at < entries.size() + 2; ++at) {
    const char* name = at == 0 ? "." : at == 1 ? ".." : entries[at - 2].name.data();
    const InodeNumber child = at == 0   ? ino
                              : at == 1 ? content_.tree.parent(ino)
                                        : entries[at - 2].ino;
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
  out.f_files = content_.tree.object_count() + content_.tree.directory_count();
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
  // The threads are few and live long.
  static thread_local std::vector<char> buffer;
  if (buffer.size() < size) buffer.resize(size);
  const auto got = read(std::span(buffer.data(), size), MayBlock::no);
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
  switch (content_.tree.kind(ino).value_or(NodeKind::directory)) {
    case NodeKind::directory:
    case NodeKind::link:
      fuse_reply_err(request, EISDIR);
      return;
    case NodeKind::own: {
      const std::string_view bytes = content_.own[content_.tree.own(ino)].bytes;
      const auto from = std::min(static_cast<std::size_t>(offset), bytes.size());
      return reply_bytes(request, bytes.substr(from, size));
    }
    case NodeKind::object: {
      ObjectFiles& files = content_.files;
      const auto object = content_.tree.object(ino);
      reply_read(request, files.lane(object), files.path(object),
                 up_to(files.origin(object).stamp.size, size, offset),
                 [&files, object, offset](std::span<char> into, MayBlock block) {
                   return files.read(object, into, offset, block);
                 });
    }
  }
}

}  // namespace heddle
