// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/stat.h>

#include "base/exit_code.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/keep/keeper.hpp"
#include "fuseovl/keep/leftovers.hpp"
#include "fuseovl/keep/mount_guard.hpp"
#include "fuseovl/mount/background.hpp"
#include "fuseovl/mount_program.hpp"
#include "fuseovl/supervise/serve.hpp"

namespace heddle {
namespace {

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

Result<void> keep(const MountSettings& settings, KeeperDoor& door) {
  auto folder = make_mount_folder();
  if (!folder) return fail(std::move(folder.error()));
  auto guard = MountGuard::start(folder->path());
  if (!guard) return fail(std::move(guard.error()));
  const auto lock = lock_folder(folder->path());
  if (!lock) return fail(lock.error());
  LoadOptions load_options = settings.load;
  load_options.mount_point = folder->path() + "/m";
  std::vector<Drift> drifts;
  auto content = load_overlay(load_options, drifts);
  if (!content) {
    std::string text;
    for (const auto& drift : drifts) text += Error(drift.path, drift.what).message() + "\n";
    // However it is mounted, it does not fit.
    return fail(
        Error::with_code(ESTALE, {}, text + content.error().message(), {}, content.error().hint()));
  }
  Overlay overlay(std::move(*content));
  auto mount = KeptMount::make(*settings.keep, load_options.mount_point);
  if (!mount) return fail(std::move(mount.error()));
  auto ready = make_pipe();
  if (!ready) return fail(std::move(ready.error()));
  ServeOptions serving;
  serving.cleanup = folder->path();
  serving.ready = std::move(ready->write_end);
  serving.session = session_options(settings);
  Keeper keeper(door, std::move(ready->read_end), *mount, overlay);
  serving.attendant = &keeper;
  auto served = serve(overlay, mount->take_device(), std::move(serving));
  keeper.end();
  return served;
}

}  // namespace

int keep_program(const MountSettings& settings) {
  Fd socket(settings.listen_fd);
  if (::fcntl(socket.get(), F_SETFD, FD_CLOEXEC) != 0) return exit_usage;
  const int kept[] = {socket.get()};
  close_fds_but(kept);
  KeeperDoor door(std::move(socket));
  auto done = leave_terminal(settings.log_path);
  if (done) done = keep(settings, door);
  if (done) return exit_done;
  door.refuse(done.error());
  return exit_failure;
}

}  // namespace heddle
