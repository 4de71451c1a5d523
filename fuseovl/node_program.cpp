// SPDX-License-Identifier: MIT
#include <linux/capability.h>
#include <signal.h>
#include <sys/signalfd.h>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/sandbox/privileges.hpp"
#include "fuseovl/mount_program.hpp"
#include "fuseovl/node_service.hpp"

namespace heddle {

int node_program(const MountSettings& settings) {
  sigset_t ending;
  ::sigemptyset(&ending);
  for (const int n : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&ending, n);
  ::sigprocmask(SIG_BLOCK, &ending, nullptr);
  // To mount, to read what only root may, and to look at its clients' namespaces: its daemons,
  // forked from here, keep less.
  constexpr auto kKept = std::uint64_t{1} << CAP_SYS_ADMIN |
                         std::uint64_t{1} << CAP_DAC_READ_SEARCH |
                         std::uint64_t{1} << CAP_SYS_PTRACE;
  // In a container without CAP_SYS_PTRACE the kernel shows us only clients whose capabilities we
  // have.
  auto confined =
      drop_capabilities("fs-mount", has_capability(CAP_SYS_PTRACE) ? kKept : ~std::uint64_t{0});
  if (confined) confined = give_up_new_privileges("fs-mount");
  if (!confined) {
    report(confined.error());
    return exit_failure;
  }
  const Fd signals(::signalfd(-1, &ending, SFD_CLOEXEC));
  auto service = NodeService::start(settings, settings.node);
  if (!signals || !service) {
    report(service ? Error::from_errno("", "cannot wait for signals") : service.error());
    return exit_failure;
  }
  service->run(signals);
  service->end();
  return exit_done;
}

}  // namespace heddle
