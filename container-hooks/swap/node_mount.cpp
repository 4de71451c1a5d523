// SPDX-License-Identifier: MIT
#include "container-hooks/swap/node_mount.hpp"

#include <fcntl.h>
#include <sys/vfs.h>

#include "base/mount_service.hpp"
#include "base/run_directory.hpp"
#include "base/try.hpp"
#include "container-hooks/host/mount_calls.hpp"
#include "container-hooks/host/watched_work.hpp"

namespace heddle::hook {
namespace {

constexpr long kFuseMagic = 0x65735546;  // <linux/magic.h>
/// A mount takes 0.1 s; the host's files may lie on a file system that is slow to answer.
constexpr std::chrono::seconds kPatience{5};
constexpr const char* kService = "fs-mount --node";

Result<Fd> ask(Fd socket, const std::string& map_id, const std::string& map) {
  const Fd file = TRY(open_file(map, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  auto mount = TRY(MountClient(std::move(socket)).want(map_id, file.get(), kPatience));
  if (!mount.tree) return fail(kService, "cannot understand it");
  return std::move(mount.tree);
}

}  // namespace

Result<Fd> node_mount(const std::string& directory, const std::string& map_id,
                      const std::string& map) {
  // In a user namespace root's directory is nobody's, and so another user's.
  const auto run = TRY(RunDirectory::find(directory));
  note_step("waiting for fs-mount --node at", directory);
  Fd socket = TRY(run.connect_to(kNodeSocket, kPatience));
  Fd tree = TRY(ask(std::move(socket), map_id, map));
  note_step("waiting for the node's mount of", map);
  struct statfs system {};
  if (::fstatfs(tree.get(), &system) != 0)
    return fail_errno(directory, "its mount does not answer");
  if (system.f_type != kFuseMagic) return fail(directory, "gives no heddle mount");
  make_private(tree.get());
  return tree;
}

}  // namespace heddle::hook
