// SPDX-License-Identifier: MIT
#include "base/mount_service.hpp"

#include <charconv>

#include "base/packet.hpp"

namespace heddle {
namespace {

constexpr char kVersion = 1;
constexpr std::string_view kWords = "wkbmce";

}  // namespace

Result<void> send_message(int socket, MountWord word, std::string_view text, int descriptor) {
  std::string packet{kVersion, static_cast<char>(word)};
  packet += text;
  if (descriptor < 0) return send_packet(socket, packet);
  return send_packet(socket, packet, {&descriptor, 1});
}

void send_error(int socket, const Error& error) {
  const int code = error.code() == ESTALE || error.code() == ETIMEDOUT ? error.code() : 0;
  const auto text = std::to_string(code) + '\0' + error.hint() + '\0' + error.message();
  (void)send_message(socket, MountWord::failed, text);
}

Result<MountMessage> receive_message(int socket, std::chrono::milliseconds limit) {
  auto packet = receive_packet(socket, limit);
  if (!packet) return fail(std::move(packet.error()));
  const std::string& text = packet->text;
  if (text.size() < 2 || text[0] != kVersion || kWords.find(text[1]) == kWords.npos ||
      packet->fds.size() > 1)
    return fail(Error::with_code(EPROTO, "fs-mount", "cannot understand the other process",
                                 "is it of another version?"));
  MountMessage out;
  if (!packet->fds.empty()) out.descriptor = std::move(packet->fds.front());
  out.word = static_cast<MountWord>(text[1]);
  out.text = text.substr(2);
  return out;
}

Error error_of(const MountMessage& message) {
  std::string_view rest = message.text;
  const auto next = [&] {
    const auto end = std::min(rest.find('\0'), rest.size());
    const auto part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return part;
  };
  const auto digits = next();
  const auto hint = next();
  int code = 0;
  std::from_chars(digits.begin(), digits.end(), code);
  return Error::with_code(code, {}, rest, {}, hint);
}

}  // namespace heddle
