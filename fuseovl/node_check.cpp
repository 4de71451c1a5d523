// SPDX-License-Identifier: MIT
#include "fuseovl/node_check.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/socket_pair.hpp"
#include "fuseovl/files/map_file.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/mount/background.hpp"

namespace heddle {
namespace {

constexpr int kDiffers = 1;
constexpr int kFailed = 2;

/// Opened here, not asked of the mount: what hangs holds its daemon's threads.
Result<void> check(const std::string& id, const std::string& map, std::chrono::milliseconds limit) {
  const auto file = MapFile::find(map, limit);
  if (!file) return fail(file.error());
  const auto hash = file->hash();
  if (!hash) return fail(hash.error());
  if (hash->hex() != id) return fail(map, "cannot use", "it is another map than was asked for");
  auto reader = file->read();
  if (!reader) return fail(std::move(reader.error()));
  auto content = reader->read_all();
  if (!content) return fail(std::move(content.error()));
  const auto origins = open_origins(*content, 0, {limit, false});
  if (origins.drifts.empty()) return {};
  // One that differs is enough, whether others answer or not.
  for (const auto& drift : origins.drifts)
    if (origins.silent != std::optional(drift.object))
      return fail(
          Error::with_code(ESTALE, map, "does not fit this node", drift.path + ": " + drift.what));
  const auto& silent = origins.drifts.front();
  return fail(Error::with_code(ETIMEDOUT, silent.path, "cannot be checked", silent.what));
}

int check_and_tell(const std::string& id, const std::string& map, std::chrono::milliseconds limit,
                   int socket) {
  const auto fits = check(id, map, limit);
  if (fits) return 0;
  send_failure(socket, fits.error());
  return fits.error().code() == ESTALE ? kDiffers : kFailed;
}

}  // namespace

Result<NodeCheck> NodeCheck::start(const std::string& id, const std::string& map,
                                   std::chrono::milliseconds limit) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fs-mount --node", "cannot start a check");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kFailed);
    const int kept[] = {sockets->other.get()};
    close_fds_but(kept);
    ::_exit(check_and_tell(id, map, limit, sockets->other.get()));
  }
  Child child(pid);
  Fd ended(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!ended) return fail_errno("fs-mount --node", "cannot wait for a check");
  return NodeCheck(std::move(child), std::move(ended), std::move(sockets->one));
}

Result<void> NodeCheck::result() {
  const auto status = child_.wait();
  if (!status) return fail(status.error());
  if (*status == 0) return {};
  auto said = receive_fd(words_.get());  // never a descriptor
  if (*status != kDiffers)
    return fail(said ? Error("fs-mount --node", "cannot check") : said.error());
  return fail(Error::with_code(ESTALE, {}, said ? "" : said.error().message(), {}));
}

}  // namespace heddle
