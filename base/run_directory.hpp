// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

/// The directory of this user's sockets and locks. Nobody else may enter it: what is in it is as
/// trustworthy as the user's own processes, and a container does not see it. Held by a descriptor,
/// which names are used through, so that its path is walked once and checked.
class RunDirectory {
 public:
  /// /run/heddle for root; else $XDG_RUNTIME_DIR/heddle; where these cannot be used,
  /// /tmp/heddle-UID. Makes it. Failure: none of them is ours alone.
  static Result<RunDirectory> open();
  /// That at `path`: a directory of ours, no link, mode 0700. A missing one is made; one of ours
  /// that others may read is closed to them. EPERM: it is another's; 0: others may write to it.
  static Result<RunDirectory> open_at(const std::string& path);
  /// As open_at(), but nothing is made or changed.
  static Result<RunDirectory> find(const std::string& path);

  const std::string& path() const { return path_; }
  int get() const { return directory_.get(); }

  /// A listening SOCK_SEQPACKET socket; EADDRINUSE: the name is there.
  Result<Fd> listen_at(std::string_view name) const;
  /// ECONNREFUSED or ENOENT: nobody listens there. Waits no longer than `limit` for a place in
  /// line.
  Result<Fd> connect_to(std::string_view name,
                        std::chrono::milliseconds limit = std::chrono::seconds(5)) const;
  /// Whether no process listens at the socket `name`, which is there.
  bool is_dead(std::string_view name) const;
  void remove(std::string_view name) const;
  /// Of what has the name now; 0: nothing has.
  ino_t inode_of(std::string_view name) const;
  std::vector<std::string> names() const;

  /// Excludes all who lock `what` here, until the descriptor is closed. ETIMEDOUT: another has had
  /// it for `limit`.
  Result<Fd> lock(std::string_view what, std::chrono::milliseconds limit) const;

 private:
  RunDirectory(std::string path, Fd directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}
  std::string path_;
  Fd directory_;
};

/// Whether the process at the other end of a unix socket is of our user, our user namespace and our
/// PID namespace, so that it may do by itself what it may ask of us. Anything else of the same uid,
/// such as root of a container or a sandbox, is told apart by these: the uid alone says nothing of
/// rights. Looked up by pidfd (Linux 6.5; by number before).
bool is_trusted_peer(int socket);

}  // namespace heddle
