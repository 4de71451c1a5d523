// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/overlay.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fuseovl/files/origin_watch.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "fuseovl/session/request_loop.hpp"

namespace heddle {
namespace {

timespec from_nanoseconds(std::int64_t ns) {
  std::int64_t seconds = ns / 1000000000;
  std::int64_t rest = ns % 1000000000;
  if (rest < 0) {
    rest += 1000000000;
    --seconds;
  }
  return {seconds, rest};
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

}  // namespace

Overlay::Overlay(OverlayContent content)
    : content_(std::move(content)),
      stats_(content_.facts, *state_, content_.files),
      pool_(map_lane() + 1, content_.origin_timeout, state_->giving_up) {}

std::vector<std::string> Overlay::reopened() const { return content_.files.reopened(); }

std::vector<std::string> Overlay::staged_in() const {
  const StagedCopies* copies = content_.files.copies();
  return copies ? std::vector{copies->folder().path()} : std::vector<std::string>();
}

std::vector<int> Overlay::descriptors() const {
  auto out = content_.files.descriptors();
  out.push_back(content_.map_file.get());
  return out;
}

void Overlay::init(fuse_conn_info& connection) {
  // READDIRPLUS without _AUTO: the warm-up pass must bring every attribute, not the first page's
  // only.
  // Links are walked by each open of a guided program: the kernel keeps them (Linux 4.20).
  constexpr unsigned wanted = FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS |
                              FUSE_CAP_READDIRPLUS | FUSE_CAP_CACHE_SYMLINKS;
  connection.want = connection.capable & wanted;
  connection.max_read = kMaxRead;
  connection.max_write = kMaxWrite;
  connection.max_background = 64;
  connection.congestion_threshold = 48;
  opens_can_be_skipped_ = connection.capable & FUSE_CAP_NO_OPEN_SUPPORT;
  opendirs_can_be_skipped_ = connection.capable & FUSE_CAP_NO_OPENDIR_SUPPORT;
  watch_origins(content_.files);
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
    case NodeKind::index:
      set_size(content_.index.size());
      break;
    case NodeKind::generated: {
      const auto& bytes = content_.generated[content_.tree.generated(ino)];
      set_size(bytes.size());
      // A copy of ld.so: the kernel wants to execute it.
      if (bytes.starts_with("\177ELF")) st.st_mode |= 0111;
      break;
    }
    case NodeKind::map:
      set_size(static_cast<std::size_t>(content_.map_status.st_size));
      st.st_mtim = content_.map_status.st_mtim;
      break;
    case NodeKind::stats:  // a page of it has a size
      break;
    case NodeKind::object:
      set_attributes(st, content_.files.origin(content_.tree.object(ino)));
      break;
  }
  return st;
}

/// Whichever page it is, it shows itself as one file: cp(1) and others compare numbers.
struct stat Overlay::attributes(const StatsText& page) const {
  auto st = attributes(Tree::kStats);
  st.st_size = static_cast<off_t>(page.text.size());
  st.st_blocks = static_cast<blkcnt_t>((page.text.size() + 511) / 512);
  st.st_mtim = st.st_ctim = page.made;
  return st;
}

fuse_entry_param Overlay::entry(InodeNumber ino) const {
  fuse_entry_param out{};
  out.ino = ino;
  out.entry_timeout = kForever;
  if (ino == 0) return out;  // a negative entry: kept as long as any other
  out.attr = attributes(ino);
  out.attr_timeout = kForever;
  return out;
}

/// A page of its own for each that asks.
fuse_entry_param Overlay::stats_entry() {
  fuse_entry_param out{};
  out.ino = stats_.add();
  if (const auto page = stats_.find(out.ino)) out.attr = attributes(*page);
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
  const auto ino = content_.tree.lookup(parent, name);
  const auto found = ino == Tree::kStats ? stats_entry() : entry(ino);
  fuse_reply_entry(request, &found);
}

void Overlay::forget(fuse_req_t request, fuse_ino_t ino, std::uint64_t) {
  // Its number was found once and by one.
  if (StatsPage::is_page(ino)) stats_.forget(ino);
  fuse_reply_none(request);
}

void Overlay::getattr(fuse_req_t request, fuse_ino_t ino, fuse_file_info*) {
  const auto page = StatsPage::is_page(ino) ? stats_.find(ino) : std::nullopt;
  if (!page && !content_.tree.kind(ino)) {
    fuse_reply_err(request, StatsPage::is_page(ino) ? ESTALE : ENOENT);
    return;
  }
  const auto st = page ? attributes(*page) : attributes(ino);
  fuse_reply_attr(request, &st, kForever);
}

void Overlay::readlink(fuse_req_t request, fuse_ino_t ino) {
  if (content_.tree.kind(ino) == NodeKind::link)
    fuse_reply_readlink(request, content_.tree.target(ino).c_str());
  else
    fuse_reply_err(request, EINVAL);
}

void Overlay::open(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  // ENOSYS once: the kernel opens by itself from then on, keeps the page cache, and sends no
  // RELEASE (fs/fuse/file.c, fuse_file_open).
  if (opens_can_be_skipped_) {
    fuse_reply_err(request, ENOSYS);
    return;
  }
  info->keep_cache = 1;
  fuse_reply_open(request, info);
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

void Overlay::list(fuse_req_t request, InodeNumber ino, std::size_t size, off_t offset, bool plus) {
  const auto entries = content_.tree.entries(ino);
  size = std::min<std::size_t>(size, kMaxRead);  // the kernel asks for less
  std::string buffer(size, '\0');
  std::size_t used = 0;
  // Offsets: 1 behind `.`, 2 behind `..`, 3+i behind the entry i. They never change, so telldir and
  // seekdir hold for ever. libfuse takes names with an end, ours lie in std::strings.
  for (auto at = static_cast<std::size_t>(offset); at < entries.size() + 2; ++at) {
    const char* name = at == 0 ? "." : at == 1 ? ".." : entries[at - 2].name.data();
    const InodeNumber child = at == 0   ? ino
                              : at == 1 ? content_.tree.parent(ino)
                                        : entries[at - 2].ino;
    std::size_t needed = 0;
    const auto next = static_cast<off_t>(at + 1);
    // Who lists the folder does not read the page.
    if (plus && at >= 2 && child != Tree::kStats) {
      const auto param = entry(child);
      needed =
          fuse_add_direntry_plus(request, buffer.data() + used, size - used, name, &param, next);
    } else {
      fuse_entry_param param{};  // ino 0: the kernel makes no entry of `.` and `..`
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

void Overlay::readdir(fuse_req_t request, fuse_ino_t ino, std::size_t size, off_t offset,
                      fuse_file_info*) {
  list(request, ino, size, offset, false);
}

void Overlay::readdirplus(fuse_req_t request, fuse_ino_t ino, std::size_t size, off_t offset,
                          fuse_file_info*) {
  list(request, ino, size, offset, true);
}

void Overlay::statfs(fuse_req_t request, fuse_ino_t) {
  struct statvfs out {};
  out.f_bsize = out.f_frsize = kBlockSize;
  out.f_files = content_.tree.object_count() + content_.tree.directory_count();
  out.f_namemax = kNameMax;
  out.f_flag = ST_RDONLY;
  fuse_reply_statfs(request, &out);
}

}  // namespace heddle
