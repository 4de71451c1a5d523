// SPDX-License-Identifier: MIT
#include "fsgen/overlay_daemon.hpp"

#include <poll.h>

#include "fsgen/guided_environment.hpp"
#include "fuseovl/mount/warm_up.hpp"

namespace heddle {
namespace {

constexpr int kFuseFd = 3;
constexpr int kReadyFd = 4;

/// What comes through `fd` until its end, as far as it comes before the deadline; nullopt: no end
/// yet.
std::optional<std::string> read_until(int fd, std::chrono::steady_clock::time_point deadline) {
  std::string text;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd entry{fd, POLLIN, 0};
    const int n = ::poll(&entry, 1, left.count() > 0 ? static_cast<int>(left.count()) : 0);
    if (n == 0) return std::nullopt;
    char buffer[4096];
    const ssize_t got = n < 0 ? -1 : ::read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

}  // namespace

Result<OverlayDaemon> OverlayDaemon::start(const Fd& fuse, const DaemonRequest& request) {
  auto here = own_program_dir();
  if (!here) return fail(std::move(here.error()));
  auto pipe = make_pipe();
  if (!pipe) return fail(std::move(pipe.error()));
  std::vector<std::string> argv{"fs-mount",
                                "--fuse-fd",
                                std::to_string(kFuseFd),
                                "--ready-fd",
                                std::to_string(kReadyFd),
                                "--mount-point",
                                request.mount_point};
  if (!request.cleanup_dir.empty()) {
    argv.emplace_back("--cleanup");
    argv.push_back(request.cleanup_dir);
  }
  argv.insert(argv.end(), request.extra_options.begin(), request.extra_options.end());
  argv.push_back(request.map_path);
  SpawnOptions options;
  options.fds = {{fuse.get(), kFuseFd}, {pipe->write_end.get(), kReadyFd}};
  options.environment = daemon_environment();
  options.untraced = true;
  auto child = spawn(*here + "/fs-mount", argv, options);
  if (!child) return fail(std::move(child.error()));
  pipe->write_end.reset();
  if (auto ready = await_ready(pipe->read_end.get()); !ready) return fail(std::move(ready.error()));
  return OverlayDaemon(std::move(*child), std::move(pipe->read_end));
}

Result<std::optional<std::string>> OverlayDaemon::finish(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  auto report = read_until(pipe_.get(), deadline);
  if (!report) {
    (void)child_.release();  // it goes on without us
    return report;
  }
  auto status = child_.wait_for(limit);
  if (!status) return fail(std::move(status.error()));
  return report;
}

}  // namespace heddle
