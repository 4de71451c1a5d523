// SPDX-License-Identifier: MIT
#include "container-hooks/node_mount.hpp"

#include <fcntl.h>
#include <sys/vfs.h>

#include "base/mount_service.hpp"
#include "base/run_directory.hpp"
#include "container-hooks/hook_progress.hpp"
#include "container-hooks/mount_calls.hpp"

namespace heddle {
namespace {

constexpr long kFuseMagic = 0x65735546;  // <linux/magic.h>
/// A mount takes 0.1 s; the host's files may lie on a file system that is slow to answer.
constexpr std::chrono::seconds kPatience{5};
constexpr const char* kService = "fs-mount --node";

Result<Fd> ask(const Fd& socket, const std::string& map_id, const std::string& map) {
  const auto file = open_file(map, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!file) return fail(file.error());
  if (auto sent = send_message(socket.get(), MountWord::want, map_id, file->get()); !sent)
    return fail_errno(kService, "cannot ask it", sent.error().code());
  auto answer = receive_message(socket.get(), kPatience);
  if (!answer) return fail_errno(kService, "no answer", answer.error().code());
  if (answer->word == MountWord::failed) return fail(error_of(*answer));
  if (answer->word != MountWord::mounted || !answer->descriptor)
    return fail(kService, "cannot understand it");
  return std::move(answer->descriptor);
}

}  // namespace

Result<Fd> node_mount(const std::string& folder, const std::string& map_id,
                      const std::string& map) {
  // In a user namespace root's is nobody's, and so might be anybody's: it is another's.
  const auto directory = RunDirectory::find(folder);
  if (!directory) return fail(directory.error());
  note_step("waiting for fs-mount --node at", folder);
  const auto socket = directory->connect_to("socket", kPatience);
  if (!socket) return fail(socket.error());
  auto tree = ask(*socket, map_id, map);
  if (!tree) return tree;
  note_step("waiting for the node's mount of", map);
  struct statfs system {};
  if (::fstatfs(tree->get(), &system) != 0) return fail_errno(folder, "its mount does not answer");
  if (system.f_type != kFuseMagic) return fail(folder, "gives no heddle mount");
  make_private(tree->get());
  return tree;
}

}  // namespace heddle
