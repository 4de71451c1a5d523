// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/reload_protocol.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "base/packet.hpp"

namespace heddle {
namespace {

using Json = nlohmann::json;

// A reload checks every file of a map, on a file system that may be slow: whoever waits can end.
constexpr std::chrono::hours kPatience(24 * 7);

// Changes when an older one would do what was not asked.
constexpr int kVersion = 1;

/// unix(7): a name that begins with NUL is in no folder, and gone with its socket.
struct AbstractAddress {
  explicit AbstractAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const auto n = name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t size = 0;
};

Result<Fd> make_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return fail_errno("", "cannot make a socket");
  return socket;
}

// CBOR, since JSON's texts cannot hold every path.
Result<void> send_cbor(int socket, const Json& json, std::span<const int> fds = {}) {
  std::string bytes;
  Json::to_cbor(json, bytes);
  return send_packet(socket, bytes, fds);
}

}  // namespace

Result<void> send_request(int socket, const ReloadRequest& request) {
  Json json = {{"version", kVersion}};
  std::vector<int> fds = {request.program.get()};
  if (request.map_path) {
    json["map"] = *request.map_path;
    fds.push_back(request.map.get());
  }
  return send_cbor(socket, json, fds);
}

Result<ReloadRequest> receive_request(int socket) {
  auto packet = receive_packet(socket, std::chrono::milliseconds(0));
  if (!packet) return fail(std::move(packet.error()));
  try {
    const Json json = Json::from_cbor(packet->text);
    if (const int version = json.value("version", kVersion); version != kVersion)
      return fail("fs-mount", "cannot understand what is asked",
                  "it is asked by another version: " + std::to_string(version) + ", not " +
                      std::to_string(kVersion),
                  "mount anew");
    ReloadRequest out;
    out.program = std::move(packet->fds.at(0));
    if (json.contains("map")) {
      out.map_path = json.at("map").get<std::string>();
      out.map = std::move(packet->fds.at(1));
    }
    return out;
  } catch (const std::exception& error) {
    return fail("fs-mount", "cannot understand what is asked", error.what());
  }
}

Result<void> send_reply(int socket, const ReloadReply& reply) {
  const Json json = {{"version", kVersion},
                     {"done", reply.done},
                     {"text", reply.text},
                     {"hint", reply.hint},
                     {"warnings", lines_for_packet(reply.warnings)},
                     {"map_exchanged", reply.map_exchanged}};
  return send_cbor(socket, json);
}

Result<ReloadReply> receive_reply(int socket) {
  auto packet = receive_packet(socket, kPatience);
  if (!packet) return fail(std::move(packet.error()));
  try {
    const Json json = Json::from_cbor(packet->text);
    return ReloadReply{json.at("done").get<bool>(), json.at("text").get<std::string>(),
                       json.value("hint", ""), json.value("warnings", ""),
                       json.value("map_exchanged", false)};
  } catch (const std::exception& error) {
    return fail("fs-mount", "cannot understand the daemon", error.what());
  }
}

std::string lines_for_packet(const std::string& text) {
  constexpr std::size_t kRoom = kLongestPacket / 2;
  if (text.size() <= kRoom) return text;
  const auto end = text.rfind('\n', kRoom) + 1;  // npos: 0
  const auto more = std::count(text.begin() + static_cast<std::ptrdiff_t>(end), text.end(), '\n');
  return text.substr(0, end) + "... and " + std::to_string(more) + " more\n";
}

Result<Fd> connect_abstract(const std::string& name) {
  auto socket = make_socket();
  if (!socket) return socket;
  const AbstractAddress address(name);
  if (::connect(socket->get(), address.get(), address.size) != 0)
    return fail_errno("", "cannot connect");
  return socket;
}

Result<Fd> listen_abstract(const std::string& name) {
  auto socket = make_socket();
  if (!socket) return socket;
  const AbstractAddress address(name);
  if (::bind(socket->get(), address.get(), address.size) != 0 || ::listen(socket->get(), 16) != 0)
    return fail_errno("", "cannot listen");
  return socket;
}

}  // namespace heddle
