// SPDX-License-Identifier: MIT
#include "base/open_in_root.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace heddle {

Result<Fd> open_resolved(int from, const std::string& path, int flags, std::uint64_t resolve) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags) | O_CLOEXEC;
  how.resolve = resolve;
  long fd = -1;
  // EAGAIN: something was renamed or mounted anywhere meanwhile, and the kernel cannot tell that a
  // `..` stayed inside (openat2(2)). Nobody does that for ever.
  for (int tries = 0; tries < 1000; ++tries) {
    fd = ::syscall(SYS_openat2, from, path.c_str(), &how, sizeof(how));
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) break;
  }
  if (fd < 0) return fail_errno(path, "cannot open");
  return Fd(static_cast<int>(fd));
}

Result<Fd> open_in_root(int root, const std::string& path, int flags, std::uint64_t resolve) {
  return open_resolved(root, path, flags, RESOLVE_IN_ROOT | resolve);
}

}  // namespace heddle
