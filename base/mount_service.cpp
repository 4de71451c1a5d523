// SPDX-License-Identifier: MIT
#include "base/mount_service.hpp"

#include "base/try.hpp"

namespace heddle {
namespace {

constexpr const char* kServer = "fs-mount";

Error lost(Error error) { return std::move(error).because(Cause::lost); }

/// The reply, or its failure. Checks the version.
Result<MountReply> read_reply(MountReply reply) {
  if (reply.version != kMountServiceVersion)
    return fail(kServer, "invalid answer", std::string_view(), "is it of another version?");
  if (!reply.good) return fail(std::move(reply.failure));
  return reply;
}

}  // namespace

bool is_map_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

Result<GrantedMount> MountClient::want(const std::string& map_id, int map,
                                       std::chrono::milliseconds limit) const {
  // A failing service may send its reason before a request arrives.
  const auto sent = send_record(
      socket_.get(), MountRequest{.verb = MountRequest::Verb::want, .map_id = map_id}, {&map, 1});
  auto answer =
      receive_record<MountReply>(socket_.get(), sent ? limit : std::chrono::milliseconds(0));
  if (!answer) {
    auto error =
        Error::from_errno(kServer, "no answer", sent ? answer.error().code() : sent.error().code());
    return fail(error.code() == EPROTO ? std::move(error) : lost(std::move(error)));
  }
  auto reply = TRY(read_reply(std::move(answer->message)));
  return GrantedMount{answer->fds.empty() ? Fd() : std::move(answer->fds.front()),
                      std::move(reply.mount_point)};
}

Result<std::uint32_t> MountClient::leave(std::chrono::milliseconds limit) const {
  TRY(send_record(socket_.get(), MountRequest{.verb = MountRequest::Verb::leave, .map_id = {}}));
  const auto answer = TRY(receive_record<MountReply>(socket_.get(), limit));
  return answer.message.holders;
}

bool MountClient::await_end(std::chrono::milliseconds limit) const {
  const auto packet = receive_packet(socket_.get(), limit);
  return !packet && packet.error().code() != ETIMEDOUT;
}

Result<void> MountClient::keep_over_exec() const {
  TRY(heddle::keep_over_exec(socket_.get()));
  return {};
}

void grant_mount(int socket, const std::string& mount_point, int tree) {
  const MountReply reply{.good = true, .mount_point = mount_point};
  (void)send_record(socket, reply, std::span(&tree, tree >= 0 ? 1 : 0));
}

void send_holders(int socket, std::size_t holders) {
  const MountReply reply{
      .good = true, .mount_point = {}, .holders = static_cast<std::uint32_t>(holders)};
  (void)send_record(socket, reply);
}

void refuse_mount(int socket, const Error& error) {
  // The client must not act on other causes or codes, such as those of the service's daemons.
  const auto cause = error.cause() == Cause::unfit || error.cause() == Cause::silent ? error.cause()
                                                                                     : Cause::other;
  const auto short_error = shortened(error);
  MountReply reply;
  reply.failure = Error({}, short_error.message(), {}, short_error.hint()).because(cause);
  const auto sent = send_record(socket, reply);
  if (sent || sent.error().code() != ENOTSOCK) return;
  const auto hint = error.hint().empty() ? "" : "\nhint: " + error.hint();
  (void)write_all(socket, error.message() + hint, "ready");
}

Result<void> await_ready(int ready, std::chrono::milliseconds limit) {
  const auto packet = receive_packet(ready, limit);
  if (!packet && packet.error().code() == ETIMEDOUT)
    return fail(lost(Error::from_errno(kServer, "does not answer", ETIMEDOUT)));
  if (!packet) return fail(lost(Error(kServer, "did not start", "it ended without a message")));
  if (packet->text[0] == kReadyByte) return {};
  auto reply = TRY(decode_record<MountReply>(packet->text));
  TRY(read_reply(std::move(reply)));
  return {};
}

}  // namespace heddle
