// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/next_content.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/packet.hpp"
#include "fuseovl/supervise/reload_protocol.hpp"

namespace heddle {
namespace {

using Json = nlohmann::json;

// First character of each packet.
constexpr char kMoreFds = 'f';
constexpr char kDone = 'd';     // with a memfd: the rest, in CBOR
constexpr char kFailure = 'e';  // CBOR

constexpr int kVersion = 1;  // as hand_over.hpp's

Error not_understood(std::string_view why) {
  return {"fs-mount", "cannot understand its loader", why};
}

}  // namespace

Result<void> send_next_content(int socket, const NextContent& next, std::span<const int> fds) {
  for (std::size_t at = 0; at < fds.size(); at += kMostPacketFds) {
    const auto piece = fds.subspan(at, std::min(kMostPacketFds, fds.size() - at));
    if (auto sent = send_packet(socket, {&kMoreFds, 1}, piece); !sent) return sent;
  }
  const Json json = {
      {"version", kVersion},
      {"content", Json::binary(std::vector<std::uint8_t>(next.bytes.begin(), next.bytes.end()))},
      {"places", next.places},
      {"map_exchanged", next.map_exchanged},
      {"report", next.report},
      {"warnings", next.warnings}};
  std::string bytes;
  Json::to_cbor(json, bytes);
  const Fd memfd(::memfd_create("heddle-next", MFD_CLOEXEC));
  if (!memfd) return fail_errno("fs-mount", "cannot hand over");
  if (auto written = write_all(memfd.get(), bytes, "fs-mount"); !written) return written;
  const int number = memfd.get();
  return send_packet(socket, {&kDone, 1}, {&number, 1});
}

void send_load_failure(int socket, const Error& error, const std::string& warnings) {
  const Json json = {{"message", error.message()},
                     {"hint", error.hint()},
                     {"warnings", lines_for_packet(warnings)}};
  // Nobody is left to tell when the other end is gone.
  std::string bytes(1, kFailure);
  Json::to_cbor(json, bytes);
  (void)send_packet(socket, bytes);
}

Result<bool> NextContentReceiver::receive(int socket) {
  auto packet = receive_packet(socket, std::chrono::milliseconds(0));
  if (!packet) {
    if (packet.error().code() == ETIMEDOUT) return false;
    return fail("fs-mount", "cannot make the map ready", "its loader ended without a word",
                "an fs-mount of another version may not know the options of the mount");
  }
  try {
    if (packet->text[0] == kMoreFds) {
      for (Fd& fd : packet->fds) next_.fds.push_back(std::move(fd));
      return false;
    }
    if (packet->text[0] == kFailure) {
      const Json json = Json::from_cbor(packet->text.substr(1));
      next_.warnings = json.value("warnings", "");
      return fail(Error({}, json.at("message").get<std::string>(), {}, json.value("hint", "")));
    }
    if (packet->text[0] != kDone || packet->fds.empty()) return fail(not_understood("a packet"));
    const int memfd = packet->fds.front().get();
    if (::lseek(memfd, 0, SEEK_SET) != 0) return fail(not_understood("its answer"));
    auto bytes = read_all(memfd, "fs-mount");
    if (!bytes) return fail(std::move(bytes.error()));
    const Json json = Json::from_cbor(*bytes);
    if (json.value("version", kVersion) != kVersion)
      return fail(not_understood("it is of another version"));
    const auto& content = json.at("content").get_binary();
    next_.bytes.assign(content.begin(), content.end());
    json.at("places").get_to(next_.places);
    json.at("map_exchanged").get_to(next_.map_exchanged);
    next_.report = json.value("report", "");
    next_.warnings = json.value("warnings", "");
    return true;
  } catch (const std::exception& error) {
    return fail(not_understood(error.what()));
  }
}

}  // namespace heddle
