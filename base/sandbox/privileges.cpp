// SPDX-License-Identifier: MIT
#include "base/sandbox/privileges.hpp"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace heddle {

Result<void> give_up_new_privileges(std::string_view who) {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return fail_errno(who, "cannot give up privileges");
  return {};
}

bool has_capability(int capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  const auto number = static_cast<unsigned>(capability);
  return ::syscall(SYS_capget, &header, sets) == 0 &&
         (sets[number / 32].effective >> (number % 32) & 1U) != 0;
}

Result<void> drop_capabilities(std::string_view who, std::uint64_t keep) {
  // Any process of uid 0 with as many capabilities may inspect this one, also in a container with
  // the host's PID namespace, which /proc/PID/root would lead out of (ptrace(2), "Ptrace access
  // mode checking").
  if (::geteuid() == 0) (void)::prctl(PR_SET_DUMPABLE, 0);
  (void)::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  // Before the others, since it needs CAP_SETPCAP. The loop ends at the first number that the
  // kernel does not know (EINVAL). The bounding set limits what execve(2) gains, not what is kept
  // here.
  for (unsigned number = 0; ::prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0; ++number)
    (void)::prctl(PR_CAPBSET_DROP, number, 0, 0, 0);

  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, sets) != 0)
    return fail_errno(who, "cannot give up capabilities");
  for (int word = 0; word < _LINUX_CAPABILITY_U32S_3; ++word) {
    const auto kept = static_cast<std::uint32_t>(keep >> (32 * word));
    sets[word].permitted &= kept;
    sets[word].effective &= kept;
    sets[word].inheritable = 0;
  }
  if (::syscall(SYS_capset, &header, sets) != 0)
    return fail_errno(who, "cannot give up capabilities");
  return {};
}

}  // namespace heddle
