// SPDX-License-Identifier: MIT
#pragma once

// How a process gets a mount from another (docs/formats/mount-service.md): one record of
// base/coder.hpp a packet, over a SOCK_SEQPACKET unix socket. A map is named by a hash and comes as
// a descriptor, a mount comes back as a descriptor; no message holds a path or a program of the
// sender's that the receiver would act on.

#include <chrono>
#include <string>

#include "base/channel.hpp"

namespace heddle {

/// Where `fs-mount --node` serves by default, and its socket there.
inline constexpr const char* kNodeDirectory = "/run/heddle/node";
inline constexpr const char* kNodeSocket = "socket";

inline constexpr std::uint8_t kMountServiceVersion = 3;

struct MountRequest {
  enum class Verb : std::uint8_t {
    want,   ///< a mount of the map `map_id`, whose file comes along
    leave,  ///< this connection holds the mount no longer
  };
  std::uint8_t version = kMountServiceVersion;
  Verb verb{};
  std::string map_id;
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, MountRequest>
void fields(Coder& coder, R& r) { coder(r.version, r.verb, r.map_id); }

/// Whether `text` may be a map_id: 64 hexadecimal digits.
bool is_map_hash(const std::string& text);

struct MountReply {
  std::uint8_t version = kMountServiceVersion;
  bool good = false;
  std::string mount_point;    ///< where the daemon has the mount
  std::uint32_t holders = 0;  ///< connections that hold the mount; answer to leave
  Error failure{};            ///< if not good: why there is no mount; code() 0
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, MountReply>
void fields(Coder& coder, R& r) { coder(r.version, r.good, r.mount_point, r.holders, r.failure); }

struct GrantedMount {
  Fd tree;  ///< the detached mount; none where it stands at a place that all see
  std::string mount_point;
};

/// A connection to a service; it holds what it was granted until it is closed.
class MountClient {
 public:
  explicit MountClient(Fd socket) : socket_(std::move(socket)) {}
  /// `map` is open for reading. Failure: Cause::lost when the service ended or does not answer,
  /// else the service's own.
  Result<GrantedMount> want(const std::string& map_id, int map,
                            std::chrono::milliseconds limit) const;
  /// How many others hold the mount when this one holds it no longer. ETIMEDOUT: no answer.
  Result<std::uint32_t> leave(std::chrono::milliseconds limit) const;
  /// Whether the service has ended.
  bool await_end(std::chrono::milliseconds limit) const;

 private:
  Fd socket_;
};

// The service's side. That nobody takes an answer is no matter.

void grant_mount(int socket, const std::string& mount_point, int tree);
void tell_holders(int socket, std::size_t holders);
/// To a client, or at `fs-mount --ready-fd`: a pipe gets the text alone.
void refuse_mount(int socket, const Error& error);

/// What the daemon writes to --ready-fd when it answers; anything else is a failure. Behind this it
/// writes its last statistics, JSON, when the mount has gone, then closes.
inline constexpr char kReadyByte = '+';
/// Waits for the daemon at the other end of the socket `ready` to answer; failures as of want().
Result<void> await_ready(int ready, std::chrono::milliseconds limit = std::chrono::minutes(2));

}  // namespace heddle
