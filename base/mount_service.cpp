// SPDX-License-Identifier: MIT
#include "base/mount_service.hpp"

#include <poll.h>
#include <sys/stat.h>

namespace heddle {
namespace {

constexpr const char* kWho = "fs-mount";

auto fail_mount(MountCause cause, Error error) {
  return tl::make_unexpected(MountFailure{cause, std::move(error)});
}

/// What a packet says, whose length and version are checked already.
MountResult<MountReply> read_reply(MountReply reply) {
  if (reply.version != kMountServiceVersion || reply.cause >= MountCause::lost)
    return fail_mount(MountCause::other,
                      Error(kWho, "cannot understand it", {}, "is it of another version?"));
  if (reply.good) return reply;
  return fail_mount(reply.cause, Error({}, reply.message, {}, reply.hint));
}

MountReply refusal(const Error& error) {
  MountReply reply;
  reply.cause = error.code() == ESTALE      ? MountCause::unfit
                : error.code() == ETIMEDOUT ? MountCause::silent
                                            : MountCause::other;
  reply.message = error.message();
  reply.hint = error.hint();
  return reply;
}

bool is_socket(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

}  // namespace

Error error_of(const MountFailure& failure) {
  const int code = failure.cause == MountCause::unfit    ? ESTALE
                   : failure.cause == MountCause::silent ? ETIMEDOUT
                                                         : failure.error.code();
  return Error::with_code(code, {}, failure.error.message(), {}, failure.error.hint());
}

bool is_map_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

MountResult<GrantedMount> MountClient::want(const std::string& map_id, int map,
                                            std::chrono::milliseconds limit) const {
  // A service that gives up may say why before it is asked.
  const auto sent = send_record(
      socket_.get(), MountRequest{.verb = MountRequest::Verb::want, .map_id = map_id}, {&map, 1});
  auto answer =
      receive_record<MountReply>(socket_.get(), sent ? limit : std::chrono::milliseconds(0));
  if (!answer)
    return fail_mount(answer.error().code() == EPROTO ? MountCause::other : MountCause::lost,
                      Error::from_errno(kWho, "no answer", answer.error().code()));
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

void grant_mount(int socket, const std::string& mount_point, int tree) {
  const MountReply reply{.good = true, .mount_point = mount_point, .message = {}, .hint = {}};
  (void)send_record(socket, reply, std::span(&tree, tree >= 0 ? 1 : 0));
}

void refuse_mount(int socket, const Error& error) { (void)send_record(socket, refusal(error)); }

void tell_holders(int socket, std::size_t holders) {
  (void)send_record(socket, MountReply{.good = true,
                                       .mount_point = {},
                                       .holders = static_cast<std::uint32_t>(holders),
                                       .message = {},
                                       .hint = {}});
}

void tell_not_ready(int ready, const Error& error) {
  if (is_socket(ready)) return refuse_mount(ready, error);
  const auto hint = error.hint().empty() ? "" : "\nhint: " + error.hint();
  (void)write_all(ready, error.message() + hint, "ready");
}

MountResult<void> await_ready(int ready, std::chrono::milliseconds limit) {
  pollfd entry{ready, POLLIN, 0};
  int polled;
  do {
    polled = ::poll(&entry, 1, static_cast<int>(limit.count()));
  } while (polled < 0 && errno == EINTR);
  if (polled == 0)
    return fail_mount(MountCause::lost, Error::from_errno(kWho, "does not answer", ETIMEDOUT));
  std::string text(kLongestPacket, '\0');
  const ssize_t n = ::read(ready, text.data(), text.size());
  if (n <= 0)
    return fail_mount(MountCause::lost, Error(kWho, "did not start", "it ended without a word"));
  text.resize(static_cast<std::size_t>(n));
  if (text[0] == kReadyByte) return {};
  if (!is_socket(ready)) {
    text += read_all(ready, kWho, 1U << 20).value_or("");
    return fail_mount(MountCause::other, Error({}, text));
  }
  MountReply reply;
  Decoder coder(text);
  coder(reply);
  if (!coder.complete()) reply.version = 0;
  TRY(read_reply(std::move(reply)));
  return {};
}

}  // namespace heddle
