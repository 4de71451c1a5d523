// SPDX-License-Identifier: MIT
#include "container-hooks/node_mount.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>

#include "base/socket_pair.hpp"
#include "container-hooks/hook_progress.hpp"
#include "container-hooks/mount_calls.hpp"

namespace heddle {
namespace {

constexpr long kFuseMagic = 0x65735546;  // <linux/magic.h>
/// A mount takes 0.1 s; the host's files may lie on a file system that is slow to answer.
constexpr timeval kPatience{5, 0};

Result<void> check_folder(const std::string& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
    return fail_errno(folder, "is not there", ENOENT);
  // In a user namespace root's is nobody's, and so might be anybody's.
  if (status.st_uid != ::geteuid()) return fail_errno(folder, "is another user's", EPERM);
  if ((status.st_mode & 0022) != 0)
    return fail(folder, "cannot use the node's mounts", "others may write to it");
  return {};
}

Result<Fd> connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return fail_errno(path, "cannot connect", ENAMETOOLONG);
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return fail_errno(path, "cannot connect");
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return fail_errno(path, "nobody serves there");
  return socket;
}

Result<Fd> ask(const Fd& socket, const std::string& request) {
  const auto size = static_cast<ssize_t>(request.size());
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) != size)
    return fail_errno("fs-mount --node", "cannot ask it");
  auto tree = receive_fd(socket.get());
  if (tree) return tree;
  const Error& error = tree.error();
  if (error.code() != 0) return fail_errno("fs-mount --node", "no answer", error.code());
  const bool stale = error.message().find("does not fit this node") != std::string::npos;
  return fail(Error::with_code(stale ? ESTALE : 0, {}, error.message(), {}, error.hint()));
}

}  // namespace

Result<Fd> node_mount(const std::string& folder, const std::string& map_id,
                      const std::string& map) {
  if (auto ours = check_folder(folder); !ours) return fail(std::move(ours.error()));
  note_step("waiting for fs-mount --node at", folder);
  const auto socket = connect_to(folder + "/socket");
  if (!socket) return fail(socket.error());
  auto tree = ask(*socket, map_id + " " + map);
  if (!tree) return tree;
  note_step("waiting for the node's mount of", map);
  struct statfs system {};
  if (::fstatfs(tree->get(), &system) != 0) return fail_errno(folder, "its mount does not answer");
  if (system.f_type != kFuseMagic) return fail(folder, "gives no heddle mount");
  make_private(tree->get());
  return tree;
}

}  // namespace heddle
