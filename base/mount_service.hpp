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

inline constexpr std::uint8_t kMountServiceVersion = 2;

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

enum class MountCause : std::uint8_t {
  other,   ///< the mount cannot be made in this way
  unfit,   ///< the map does not fit this node: no other way can help
  silent,  ///< a file system that the map names does not answer
  lost,    ///< the service cannot be reached, ended or does not answer; never sent
};

struct MountReply {
  std::uint8_t version = kMountServiceVersion;
  bool good = false;
  std::string mount_point;    ///< where the daemon has the mount
  std::uint32_t holders = 0;  ///< connections that hold the mount; answer to leave
  MountCause cause{};
  std::string message;
  std::string hint;
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, MountReply>
void fields(Coder& coder, R& r) {
  coder(r.version, r.good, r.mount_point, r.holders, r.cause, r.message, r.hint);
}

/// Why there is no mount.
struct MountFailure {
  MountCause cause = MountCause::other;
  Error error;
};
template <class T>
using MountResult = tl::expected<T, MountFailure>;
/// With code() ESTALE for unfit, ETIMEDOUT for silent.
Error error_of(const MountFailure& failure);

struct GrantedMount {
  Fd tree;  ///< the detached mount; none where it stands at a place that all see
  std::string mount_point;
};

/// A connection to a service; it holds what it was granted until it is closed.
class MountClient {
 public:
  explicit MountClient(Fd socket) : socket_(std::move(socket)) {}
  /// `map` is open for reading.
  MountResult<GrantedMount> want(const std::string& map_id, int map,
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
/// The cause is unfit for code() ESTALE, silent for ETIMEDOUT.
void refuse_mount(int socket, const Error& error);
void tell_holders(int socket, std::size_t holders);

// `fs-mount --ready-fd`: a pipe, or a socket of a SOCK_SEQPACKET pair, which gets the failure as a
// MountReply.

/// What the daemon writes when it answers; anything else is a failure. Behind this it writes its
/// last statistics, JSON, when the mount has gone, then closes.
inline constexpr char kReadyByte = '+';
void tell_not_ready(int ready, const Error& error);
/// Waits for the daemon at the other end of `ready` to answer.
MountResult<void> await_ready(int ready, std::chrono::milliseconds limit = std::chrono::minutes(2));

}  // namespace heddle
