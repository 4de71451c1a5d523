// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

/// The directory of this user's sockets and locks. No other user may enter it, so its content is as
/// trustworthy as the user's processes, and containers do not see it. All names are resolved
/// relative to its descriptor, so that its path is resolved and checked once.
class RunDirectory {
 public:
  /// /run/heddle for root, else $XDG_RUNTIME_DIR/heddle; /tmp/heddle-UID if that cannot be used.
  /// Creates it. Failure: none is private to this user.
  static Result<RunDirectory> open();
  /// The directory `path`, not a link, with mode 0700. Creates a missing one and takes others' read
  /// permission away. EPERM: it belongs to another user; 0: others may write to it.
  static Result<RunDirectory> open_at(const std::string& path);
  /// As open_at(), without creating or changing it.
  static Result<RunDirectory> find(const std::string& path);

  const std::string& path() const { return path_; }
  int get() const { return directory_.get(); }

  /// A listening SOCK_SEQPACKET socket; EADDRINUSE: the name exists.
  Result<Fd> listen_at(std::string_view name) const;
  /// ECONNREFUSED or ENOENT: no process listens; EADDRNOTAVAIL: the socket was made by another
  /// name. Waits at most `limit` for a place in the listen queue.
  Result<Fd> connect_to(std::string_view name,
                        std::chrono::milliseconds limit = std::chrono::seconds(5)) const;
  /// Whether the socket `name` exists and no process listens.
  bool is_dead(std::string_view name) const;
  void remove(std::string_view name) const;
  std::vector<std::string> names() const;

  /// Locks `what` against other callers until the descriptor is closed. ETIMEDOUT: not within
  /// `limit`.
  Result<Fd> lock(std::string_view what, std::chrono::milliseconds limit) const;

 private:
  RunDirectory(std::string path, Fd directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}
  std::string path_;
  Fd directory_;
};

/// Whether the peer of a unix socket has the uid, user namespace and PID namespace of this process,
/// so that it gains no rights by a request. The uid alone does not tell root of a container or a
/// sandbox apart. Looked up by pidfd (before Linux 6.5 by pid).
bool is_trusted_peer(int socket);
/// Whether the peer moreover could do by itself what it asks of this process: it has the same mount
/// namespace and root, no fewer capabilities, and neither no_new_privs nor seccomp filters that
/// this process lacks. For services that run what a request names, and for their clients. Does not
/// see Landlock.
bool is_own_peer(int socket);
/// For clients of mount services: whether the peer is the process that last called listen(2), and
/// gains nothing by what the client takes from it. True if is_own_peer(), or if it has the same
/// root and the power to enter this mount namespace, or as much: root's services are confined.
bool is_own_server(int socket);
/// Clients that connect from now on to `listener` find this process as their peer.
Result<void> answer_for(int listener);
/// What is_own_peer() compares, of this process: equal for processes that accept each other.
Result<std::string> own_confinement();

}  // namespace heddle
