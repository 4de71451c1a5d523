// SPDX-License-Identifier: MIT
#include "record/loopback/handle.hpp"

#include <fcntl.h>

#include <algorithm>
#include <new>

namespace heddle::loopback {

HandleSet::HandleSet(BlockStore& store) : store_(store) {
  store_.each(BlockKind::handle, [this](void* block) { take_over(*static_cast<Handle*>(block)); });
}

/// The worker before us may have died with the lock held, the folder read on, or the flag off.
void HandleSet::take_over(Handle& handle) {
  new (&handle.mutex) std::mutex;
  handle.dir_offset = -1;
  if (handle.append) ::fcntl(handle.fd, F_SETFL, ::fcntl(handle.fd, F_GETFL) | O_APPEND);
  all_.insert(&handle);
}

Handle& HandleSet::add(Fd fd, const Opened& opened, std::atomic<std::uint64_t>& fh) {
  auto* handle = new (store_.make(sizeof(Handle) + opened.path.size())) Handle;
  std::copy(opened.path.begin(), opened.path.end(), reinterpret_cast<char*>(handle + 1));
  handle->path_length = opened.path.size();
  handle->fd = fd.release();
  handle->node = opened.node;
  handle->tid = opened.tid;
  handle->append = opened.append;
  if (opened.in_trace) handle->number = static_cast<std::int64_t>(store_.next(Counter::handle));
  handle->tag = static_cast<std::uint16_t>(store_.next(Counter::tag));
  fh.store(handle->fh(), std::memory_order_release);
  BlockStore::commit(handle, BlockKind::handle);
  const std::lock_guard lock(mutex_);
  all_.insert(handle);
  return *handle;
}

void HandleSet::remove(Handle& handle) {
  const Fd fd(handle.fd);
  {
    const std::lock_guard lock(mutex_);
    all_.erase(&handle);
  }
  store_.give_up(&handle);  // before its descriptor goes: the number may be another's at once
}

bool HandleSet::has(std::uint64_t fh) const {
  const std::lock_guard lock(mutex_);
  const auto at = all_.find(&Handle::of(fh));
  return at != all_.end() && (*at)->fh() == fh;
}

std::vector<int> HandleSet::descriptors(const BlockStore& store) {
  std::vector<int> out;
  store.each(BlockKind::handle,
             [&](void* block) { out.push_back(static_cast<Handle*>(block)->fd); });
  return out;
}

}  // namespace heddle::loopback
