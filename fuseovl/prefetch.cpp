// SPDX-License-Identifier: MIT
#include "fuseovl/prefetch.hpp"

#include <algorithm>
#include <cstdio>

#include "base/fd.hpp"
#include "fuseovl/session.hpp"

namespace heddle {
namespace {

constexpr std::size_t kPiece = 512 * 1024;  // fits a default pipe-max-size with its header
constexpr unsigned kThreads = 4;            // a slow file system answers several reads at once

std::uint64_t available_memory() {
  const auto text = read_file("/proc/meminfo", 1U << 16);
  if (!text) return UINT64_MAX;
  const auto at = text->find("MemAvailable:");
  unsigned long long kib = 0;
  if (at == std::string::npos || std::sscanf(text->c_str() + at, "MemAvailable: %llu", &kib) != 1)
    return UINT64_MAX;
  return kib * 1024;
}

}  // namespace

Prefetch::Prefetch(const Tree& tree, ObjectFiles& files, std::string_view index,
                   std::uint64_t budget)
    : tree_(tree),
      files_(files),
      index_(index),
      budget_(budget == 0 ? 0 : std::min(budget, available_memory() / 4)),
      being_read_(new std::atomic<bool>[files.size()]()),
      stored_(new std::atomic<bool>[files.size()]()) {}

void Prefetch::attach(fuse_session* session) {
  if (budget_ == 0) return;
  session_ = session;
  choose();
  state_ = State::waiting;
  worker_ = std::jthread([this](std::stop_token stop) { run(std::move(stop)); });
}

void Prefetch::choose() {
  for (ObjectId id = 0; id < files_.size(); ++id)
    if (files_.origin(id).usable && tree_.link_count(tree_.inode(id)) > 0) chosen_.push_back(id);
  // Smallest first: most files for the budget, and ld.so touches every library a little.
  std::stable_sort(chosen_.begin(), chosen_.end(), [this](ObjectId a, ObjectId b) {
    return files_.origin(a).stamp.size < files_.origin(b).stamp.size;
  });
  std::uint64_t sum = index_.size();
  const auto end = std::find_if(chosen_.begin(), chosen_.end(), [&](ObjectId id) {
    return (sum += files_.origin(id).stamp.size) > budget_;
  });
  chosen_.erase(end, chosen_.end());
}

void Prefetch::begin() {
  const std::lock_guard lock(mutex_);
  wanted_ = true;
  wake_.notify_all();
}

void Prefetch::stop() {
  worker_.request_stop();
  if (worker_.joinable()) worker_.join();
}

std::string_view Prefetch::state() const noexcept {
  constexpr std::string_view names[] = {"off", "waiting", "running", "done"};
  return names[static_cast<std::size_t>(state_.load())];
}

void Prefetch::run(std::stop_token stop) {
  {
    std::unique_lock lock(mutex_);
    if (!wake_.wait(lock, stop, [this] { return wanted_; })) return;
  }
  state_ = State::running;
  if (!index_.empty()) {
    fuse_bufvec bytes = FUSE_BUFVEC_INIT(index_.size());
    bytes.buf[0].mem = const_cast<char*>(index_.data());
    if (fuse_lowlevel_notify_store(session_, Tree::kIndex, 0, &bytes, {}) == 0)
      bytes_done_ += index_.size();
  }
  for (const bool also_being_read : {false, true}) {
    std::atomic<std::size_t> next = 0;
    std::vector<std::jthread> helpers;
    const std::size_t threads = std::min<std::size_t>(kThreads, (chosen_.size() + 31) / 32);
    for (std::size_t i = 1; i < threads; ++i)
      helpers.emplace_back([&, stop] { store_all(stop, next, also_being_read); });
    store_all(stop, next, also_being_read);
  }
  state_ = State::done;
}

void Prefetch::store_all(std::stop_token stop, std::atomic<std::size_t>& next,
                         bool also_being_read) {
  for (std::size_t i = next++; i < chosen_.size() && !stop.stop_requested(); i = next++) {
    const ObjectId object = chosen_[i];
    if (being_read_[object].load(std::memory_order_relaxed) && !also_being_read) continue;
    if (stored_[object].exchange(true)) continue;
    if (store_object(stop, object)) ++files_done_;
  }
}

bool Prefetch::store_object(std::stop_token stop, ObjectId object) {
  const std::uint64_t size = files_.origin(object).stamp.size;
  for (std::uint64_t offset = 0; offset < size && !stop.stop_requested();) {
    const std::size_t piece = std::min<std::uint64_t>(kPiece, size - offset);
    auto file = files_.open(object);
    if (!file) return false;
    fuse_bufvec bytes = FUSE_BUFVEC_INIT(piece);
    bytes.buf[0].flags = static_cast<fuse_buf_flags>(FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK);
    bytes.buf[0].fd = file->fd();
    bytes.buf[0].pos = static_cast<off_t>(offset);
    // ENOENT: the kernel has forgotten the inode (memory is short); ENODEV: unmounted.
    if (fuse_lowlevel_notify_store(session_, tree_.inode(object), static_cast<off_t>(offset),
                                   &bytes, {}) != 0)
      return false;
    offset += piece;
    bytes_done_ += piece;
  }
  return true;
}

}  // namespace heddle
