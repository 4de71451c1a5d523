// SPDX-License-Identifier: MIT
#pragma once

// The protocol of the mount service (docs/formats/mount-service.md): one record of base/coder.hpp
// per packet, over a SOCK_SEQPACKET unix socket. A client names a map by its hash and passes it as
// a descriptor, and gets the mount as a descriptor. The receiver acts on no path or program of a
// peer.

#include <chrono>
#include <string>

#include "base/channel.hpp"

namespace heddle {

/// The default directory of `fs-mount --node`, and its socket's name.
inline constexpr const char* kNodeDirectory = "/run/heddle/node";
inline constexpr const char* kNodeSocket = "socket";

inline constexpr std::uint8_t kMountServiceVersion = 3;

struct MountRequest {
  enum class Verb : std::uint8_t {
    want,   ///< request a mount of the map `map_id`, whose file is passed
    leave,  ///< release the mount of this connection
  };
  std::uint8_t version = kMountServiceVersion;
  Verb verb{};
  std::string map_id;
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, MountRequest>
void fields(Coder& coder, R& r) { coder(r.version, r.verb, r.map_id); }

/// Whether `text` is a valid map_id: 64 hexadecimal digits.
bool is_map_hash(const std::string& text);

struct MountReply {
  std::uint8_t version = kMountServiceVersion;
  bool good = false;
  std::string mount_point;    ///< the daemon's mount point
  std::uint32_t holders = 0;  ///< reply to leave: connections that hold the mount
  Error failure{};            ///< unless good: the reason; code() 0
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, MountReply>
void fields(Coder& coder, R& r) { coder(r.version, r.good, r.mount_point, r.holders, r.failure); }

struct GrantedMount {
  Fd tree;  ///< the detached mount; none if it is mounted at mount_point for all
  std::string mount_point;
};

/// A connection to a service, which holds the granted mount until it is closed.
class MountClient {
 public:
  explicit MountClient(Fd socket) : socket_(std::move(socket)) {}
  /// `map` is open for reading. Failure: Cause::lost when the service ended or does not answer,
  /// else the service's error.
  Result<GrantedMount> want(const std::string& map_id, int map,
                            std::chrono::milliseconds limit) const;
  /// Releases the mount. Result: the number of other connections that hold it. ETIMEDOUT: no
  /// answer.
  Result<std::uint32_t> leave(std::chrono::milliseconds limit) const;
  /// Whether the service has ended within `limit`.
  bool await_end(std::chrono::milliseconds limit) const;
  /// The program that this process executes holds the mount too, with its children, by a descriptor
  /// of a high number.
  Result<void> keep_over_exec() const;

 private:
  Fd socket_;
};

// The service's side. Undeliverable replies are dropped.

void grant_mount(int socket, const std::string& mount_point, int tree);
void send_holders(int socket, std::size_t holders);
/// Refuses a client, or reports at `fs-mount --ready-fd`, where a pipe gets only the text.
void refuse_mount(int socket, const Error& error);

/// The daemon writes this to --ready-fd when it serves; anything else is a failure. After the
/// unmount it writes its last statistics (JSON) there.
inline constexpr char kReadyByte = '+';
/// Waits until the daemon at the other end of `ready` serves; failures as of want().
Result<void> await_ready(int ready, std::chrono::milliseconds limit = std::chrono::minutes(2));

}  // namespace heddle
