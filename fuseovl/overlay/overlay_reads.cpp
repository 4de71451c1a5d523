// SPDX-License-Identifier: MIT
// How an Overlay answers READ.

#include <algorithm>

#include "fuseovl/overlay/overlay.hpp"

namespace heddle {
namespace {

/// How much of `size` bytes at `offset` a file has.
std::size_t up_to(std::uint64_t file_size, std::size_t size, off_t offset) {
  const auto at = static_cast<std::uint64_t>(offset);
  return at >= file_size ? 0 : std::min<std::uint64_t>(size, file_size - at);
}

}  // namespace

void Overlay::reply_bytes(fuse_req_t request, std::string_view bytes, std::size_t size,
                          off_t offset) {
  const auto from = std::min(static_cast<std::size_t>(offset), bytes.size());
  const auto piece = bytes.substr(from, size);
  state_->counters.add_bytes_read(piece.size());
  fuse_reply_buf(request, piece.data(), piece.size());
}

template <class Read>
void Overlay::reply_read(fuse_req_t request, std::size_t lane, std::string_view path,
                         std::size_t size, Read read) {
  const auto reply = [this, request](const tl::expected<std::string_view, int>& got) {
    if (!got) {
      fuse_reply_err(request, got.error());
      return;
    }
    state_->counters.add_bytes_read(got->size());
    fuse_reply_buf(request, got->data(), got->size());
  };
  // One a thread, as large as the requests are: the threads are few and stay.
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
  if (StatsPage::is_page(ino)) {
    if (const auto page = stats_.find(ino))
      reply_bytes(request, page->text, size, offset);
    else
      fuse_reply_err(request, ESTALE);
    return;
  }
  switch (content_.tree.kind(ino).value_or(NodeKind::directory)) {
    case NodeKind::directory:
    case NodeKind::link:
    case NodeKind::stats:  // its pages are read
      fuse_reply_err(request, EISDIR);
      return;
    case NodeKind::index:
      reply_bytes(request, content_.index, size, offset);
      return;
    case NodeKind::generated:
      reply_bytes(request, content_.generated[content_.tree.generated(ino)], size, offset);
      return;
    case NodeKind::map: {
      const auto map_size = static_cast<std::uint64_t>(content_.map_status.st_size);
      reply_read(request, map_lane(), content_.facts.map_path, up_to(map_size, size, offset),
                 [this, offset](std::span<char> into, MayBlock block) {
                   return read_at(content_.map_file.get(), into, offset, block);
                 });
      return;
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
