// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/stat.h>

#include "base/exit_code.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/keep/keeper.hpp"
#include "fuseovl/keep/mount_guard.hpp"
#include "fuseovl/mount/background.hpp"
#include "fuseovl/mount_program.hpp"
#include "fuseovl/supervise/serve.hpp"

namespace heddle {
namespace {

struct Refusal {
  KeeperWord word;
  Error error;
};
using Outcome = tl::expected<void, Refusal>;

tl::unexpected<Refusal> refuse(KeeperWord word, Error error) {
  return tl::unexpected<Refusal>(Refusal{word, std::move(error)});
}

/// The mount point's folder. Made here, so that there is no moment in which only its maker, who may
/// be killed, knows of it.
Result<TempDir> make_mount_folder() {
  // Short: ld.so compares each library's path, and it begins with this.
  auto folder = TempDir::create("hd");
  if (!folder) return folder;
  // Children of the program that change their user come through as well.
  ::chmod(folder->path().c_str(), 0755);
  if (::mkdir((folder->path() + "/m").c_str(), 0755) != 0)
    return fail_errno(folder->path(), "cannot make the mount point");
  return folder;
}

Outcome keep(const MountSettings& settings, Listener& listener) {
  auto folder = make_mount_folder();
  if (!folder) return refuse(KeeperWord::failed, std::move(folder.error()));
  auto guard = MountGuard::start(folder->path());
  if (!guard) return refuse(KeeperWord::failed, std::move(guard.error()));
  LoadOptions load_options = settings.load;
  load_options.mount_point = folder->path() + "/m";
  std::vector<Drift> drifts;
  auto content = load_overlay(load_options, drifts);
  if (!content) {
    std::string text;
    for (const auto& drift : drifts) text += Error(drift.path, drift.what).message() + "\n";
    return refuse(KeeperWord::unfit,
                  Error({}, text + content.error().message(), {}, content.error().hint()));
  }
  Overlay overlay(std::move(*content));
  auto mount = KeptMount::make(*settings.keep, load_options.mount_point);
  if (!mount) return refuse(KeeperWord::failed, std::move(mount.error()));
  auto ready = make_pipe();
  if (!ready) return refuse(KeeperWord::failed, std::move(ready.error()));
  ServeOptions serving;
  serving.cleanup = folder->path();
  serving.ready = std::move(ready->write_end);
  serving.session = session_options(settings);
  Keeper keeper(std::move(listener), std::move(ready->read_end), *mount, overlay);
  serving.attendant = &keeper;
  auto served = serve(overlay, mount->take_device(), std::move(serving));
  keeper.end();
  if (!served) return refuse(KeeperWord::failed, std::move(served.error()));
  return {};
}

}  // namespace

int keep_program(const MountSettings& settings) {
  Listener listener{Fd(settings.listen_fd)};
  if (::fcntl(listener.get(), F_SETFD, FD_CLOEXEC) != 0) return exit_usage;
  const int kept[] = {listener.get()};
  close_fds_but(kept);
  Outcome outcome;
  if (auto left = leave_terminal(settings.log_path); !left)
    outcome = refuse(KeeperWord::failed, std::move(left.error()));
  else
    outcome = keep(settings, listener);
  if (outcome) return exit_done;
  refuse_clients(listener, outcome.error().word, outcome.error().error);
  return exit_failure;
}

}  // namespace heddle
