// SPDX-License-Identifier: MIT
#include "fuseovl/mount/background.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/open_regular.hpp"

namespace heddle {

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
