// SPDX-License-Identifier: MIT
#include "fuseovl/files/origins.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "base/content_hash.hpp"

namespace heddle {
namespace {

// The daemon's own: device and its clones, the map, splice pipes and one reopened file for each of
// its threads, and a few for the C library.
constexpr std::size_t kReservedFds = 40;

std::int64_t nanoseconds(const timespec& t) { return t.tv_sec * INT64_C(1000000000) + t.tv_nsec; }

std::string changed_size(std::uint64_t now, std::uint64_t was) {
  return "size is " + std::to_string(now) + ", was " + std::to_string(was);
}

/// Fills `origin`; result: what differs, empty when nothing does.
std::string check(const MapObject& object, bool pin, Origin& origin) {
  // O_NONBLOCK: a FIFO in the file's place must not hang us; it has no effect on regular files.
  auto fd = open_file(object.path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!fd) {
    const int code = fd.error().code();
    if (code == ENOENT || code == ENOTDIR) return "missing";
    return Error::from_errno({}, "cannot open", code).message();
  }
  struct stat status {};
  if (::fstat(fd->get(), &status) != 0) return Error::from_errno({}, "cannot stat").message();
  if (!S_ISREG(status.st_mode)) return "no regular file any more";
  origin.stamp = file_stamp(status);
  origin.atime_ns = nanoseconds(status.st_atim);
  origin.mode = status.st_mode;
  origin.uid = status.st_uid;
  origin.gid = status.st_gid;
  origin.blocks = static_cast<std::uint64_t>(status.st_blocks);
  origin.usable = true;
  std::string what;
  if (origin.stamp.size != object.stamp.size) {
    what = changed_size(origin.stamp.size, object.stamp.size);
  } else if (origin.stamp.mtime_ns != object.stamp.mtime_ns) {
    const auto hash = hash_file(fd->get(), object.path);
    if (!hash) {
      origin.usable = false;
      return hash.error().message();
    }
    if (*hash != object.hash) what = "content changed";
  }
  origin.as_mapped = what.empty();
  if (pin) origin.fd = std::move(*fd);
  return what;
}

std::size_t count_open_fds() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  std::size_t n = 0;
  while (folder && ::readdir(folder.get())) ++n;
  return n;
}

}  // namespace

Origins open_origins(const MapContent& content, std::size_t max_pinned) {
  const std::size_t count = content.objects.size();
  Origins origins;
  origins.files.resize(count);
  std::vector<std::string> differences(count);
  std::atomic<std::size_t> next = 0;
  const auto work = [&](std::size_t end) {
    for (std::size_t i = next++; i < end; i = next++)
      differences[i] = check(content.objects[i], i < max_pinned, origins.files[i]);
  };
  // A local open takes 3 us and threads only cost; a parallel file system answers in 0.1 to 10 ms
  // and many at once, so the first few decide.
  constexpr std::size_t kSample = 16;
  constexpr auto kSlow = std::chrono::microseconds(100);
  const auto begin = std::chrono::steady_clock::now();
  work(std::min(count, kSample));
  next = std::min(count, kSample);
  if (count > 2 * kSample && std::chrono::steady_clock::now() - begin > kSlow * kSample) {
    std::vector<std::jthread> helpers;
    for (int i = 0; i < 15; ++i) helpers.emplace_back(work, count);
    work(count);
  } else {
    work(count);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (origins.files[i].fd) ++origins.pinned;
    if (!differences[i].empty())
      origins.drifts.push_back(
          {static_cast<ObjectId>(i), content.objects[i].path, std::move(differences[i])});
  }
  return origins;
}

std::size_t raise_fd_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
    (void)::getrlimit(RLIMIT_NOFILE, &limit);
  }
  const std::size_t used = kReservedFds + count_open_fds();
  return limit.rlim_cur > used ? static_cast<std::size_t>(limit.rlim_cur) - used : 0;
}

}  // namespace heddle
