// SPDX-License-Identifier: MIT
//
// unsupervised_mount MAP DIR: serves MAP as fs-mount does, by the same code, in one process
// without a supervisor: what supervision_bench compares fs-mount with. Returns when the mount is
// warm.
#include <signal.h>
#include <unistd.h>

#include "base/log.hpp"
#include "base/mount_service.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "fuseovl/overlay/load.hpp"
#include "fuseovl/service/mount_daemon.hpp"

namespace heddle::bench {
namespace {

[[noreturn]] void live(Overlay& overlay, Fd device, const Fd& ready) {
  (void)leave_terminal({});
  overlay.on_ready([&ready] { (void)write_all(ready.get(), {&kReadyByte, 1}, "ready"); });
  auto session =
      Session::create(Overlay::ops(), &overlay, std::move(device), {}, overlay.state().session);
  ::_exit(session && session->serve() ? 0 : 1);
}

void mount(const std::string& map, const std::string& directory) {
  LoadOptions options;
  options.map_path = map;
  options.mount_point = value_or_throw(resolve_mount_point(directory));
  std::vector<Drift> drifts;
  Overlay overlay(value_or_throw(load_overlay(options, drifts)));
  auto ready = value_or_throw(make_socket_pair());
  auto device = value_or_throw(mount_fuse(options.mount_point));
  if (::fork() == 0) live(overlay, std::move(device), ready.other);
  device.reset();
  ready.other.reset();
  value_or_throw(await_ready(ready.one.get()));
  value_or_throw(warm_up(options.mount_point));
  (void)start_prefetch(options.mount_point);
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) {
  heddle::set_program_name("unsupervised_mount");
  if (argc != 3) return 2;
  try {
    heddle::bench::mount(argv[1], argv[2]);
  } catch (const heddle::Error& error) {
    heddle::report(error);
    return 3;
  }
  return 0;
}
