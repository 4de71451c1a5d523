// SPDX-License-Identifier: MIT
#include "fuseovl/mount/background.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <vector>

#include "base/log_file.hpp"

namespace heddle {

void close_fds_but(std::span<const int> keep) {
  std::vector<int> sorted(keep.begin(), keep.end());
  std::sort(sorted.begin(), sorted.end());
  unsigned from = 3;
  const auto close_up_to = [&](unsigned last) {
    if (from > last || ::syscall(SYS_close_range, from, last, 0U) == 0) return;
    // Linux < 5.9 has no close_range.
    const auto limit = std::min<long>(last, ::sysconf(_SC_OPEN_MAX));
    for (long fd = from; fd <= limit; ++fd) ::close(static_cast<int>(fd));
  };
  for (const int fd : sorted) {
    if (fd < static_cast<int>(from)) continue;
    if (fd > 0) close_up_to(static_cast<unsigned>(fd) - 1);
    from = static_cast<unsigned>(fd) + 1;
  }
  close_up_to(UINT_MAX);
}

Result<void> leave_terminal(const std::string& log_path) {
  auto null = open_file("/dev/null", O_RDWR);
  if (!null) return fail(std::move(null.error()));
  Fd log;
  if (!log_path.empty()) {
    auto opened = open_log(log_path);
    if (!opened) return fail(std::move(opened.error()));
    log = std::move(*opened);
  }
  (void)::setsid();  // fails when we lead a session already: then there is nothing to do
  (void)::chdir("/");
  ::dup2(null->get(), STDIN_FILENO);
  ::dup2(null->get(), STDOUT_FILENO);
  ::dup2(log ? log.get() : null->get(), STDERR_FILENO);
  // The signals that end a daemon stay held back until serve() takes them by sigwait().
  sigset_t ending;
  ::sigemptyset(&ending);
  for (const int n : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&ending, n);
  ::sigprocmask(SIG_SETMASK, &ending, nullptr);
  return {};
}

}  // namespace heddle
