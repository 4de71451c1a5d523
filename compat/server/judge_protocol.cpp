// SPDX-License-Identifier: MIT
#include "compat/server/judge_protocol.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "resolver/elf/byte_codec.hpp"

namespace heddle::compat {
namespace {

constexpr Deadline kNever = Deadline::max();
constexpr std::size_t kMostQuestionBytes = std::size_t{1} << 30;  // --max-request's limit

struct QuestionHeader {
  std::uint64_t generation;
  std::uint32_t where;
  std::uint32_t artifact;
  std::uint64_t avoided;
};

tl::unexpected<Error> gone(int code) { return fail_errno("judge", "lost", code); }

/// Waits for `events`. False at the deadline.
bool wait_for(int socket, short events, Deadline deadline) {
  for (;;) {
    int wait = -1;
    if (deadline != kNever) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      wait = static_cast<int>(std::min<long>(left.count(), 3'600'000));
    }
    pollfd ready{socket, events, 0};
    if (::poll(&ready, 1, wait) > 0) return true;
  }
}

Result<void> send_bytes(int socket, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const auto n = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    if (n >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return gone(ECONNRESET);
    if (!wait_for(socket, POLLOUT, deadline)) return gone(ETIMEDOUT);
  }
  return {};
}

Result<void> receive_bytes(int socket, char* to, std::size_t size, Deadline deadline) {
  while (size > 0) {
    const auto n = ::recv(socket, to, size, MSG_DONTWAIT);
    if (n == 0) return gone(ECONNRESET);
    if (n > 0) {
      to += n;
      size -= static_cast<std::size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return gone(ECONNRESET);
    if (!wait_for(socket, POLLIN, deadline)) return gone(ETIMEDOUT);
  }
  return {};
}

template <class T>
Result<T> receive_struct(int socket, Deadline deadline) {
  T out;
  if (auto done = receive_bytes(socket, reinterpret_cast<char*>(&out), sizeof out, deadline); !done)
    return fail(std::move(done.error()));
  return out;
}

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

constexpr std::string Reason::*kTexts[] = {&Reason::program,     &Reason::subject, &Reason::library,
                                           &Reason::required_by, &Reason::path,    &Reason::package,
                                           &Reason::detail};

}  // namespace

std::size_t Answer::bytes() const {
  std::size_t sum = sizeof *this + error.capacity() + judgement.reasons.capacity() * sizeof(Reason);
  for (const auto& reason : judgement.reasons)
    for (const auto text : kTexts) sum += (reason.*text).capacity();
  return sum;
}

Result<void> send_question(int socket, const Question& question, Deadline deadline) {
  const QuestionHeader header{
      question.generation, static_cast<std::uint32_t>(question.where.size()),
      static_cast<std::uint32_t>(question.artifact.size()), question.avoided.size()};
  for (const auto part : {bytes_of(header), question.where, question.artifact, question.avoided})
    if (auto done = send_bytes(socket, part, deadline); !done) return done;
  return {};
}

Result<ReceivedQuestion> receive_question(int socket) {
  const auto header = receive_struct<QuestionHeader>(socket, kNever);
  if (!header) return fail(header.error());
  if (header->where > kMostQuestionBytes || header->artifact > kMostQuestionBytes ||
      header->avoided > kMostQuestionBytes)
    return gone(EBADMSG);
  ReceivedQuestion out{header->generation, std::string(header->where, '\0'),
                       std::string(header->artifact, '\0'), std::string(header->avoided, '\0')};
  for (auto* part : {&out.where, &out.artifact, &out.avoided})
    if (auto done = receive_bytes(socket, part->data(), part->size(), kNever); !done)
      return fail(std::move(done.error()));
  return out;
}

Result<void> send_answer(int socket, const Answer& answer, Deadline deadline) {
  ByteWriter out;
  out.number<std::uint8_t>(answer.watched);
  out.number<std::uint8_t>(answer.leaving);
  out.text(answer.error);
  const auto& judgement = answer.judgement;
  out.number(static_cast<std::uint8_t>(judgement.verdict));
  out.number(judgement.more);
  out.number(static_cast<std::uint32_t>(judgement.reasons.size()));
  for (const auto& reason : judgement.reasons) {
    out.number(static_cast<std::uint8_t>(reason.kind));
    out.number(static_cast<std::uint8_t>(reason.weight));
    for (const auto text : kTexts) out.text(reason.*text);
  }
  const auto payload = out.take();
  const auto size = static_cast<std::uint32_t>(payload.size());
  if (auto done = send_bytes(socket, bytes_of(size), deadline); !done) return done;
  return send_bytes(socket, payload, deadline);
}

Result<Answer> receive_answer(int socket, Deadline deadline) {
  const auto size = receive_struct<std::uint32_t>(socket, deadline);
  if (!size) return fail(size.error());
  // A judge reads what peers send: what it says is held against the limits again.
  if (*size > 2 * kMostAnswerBytes) return gone(EBADMSG);
  std::string payload(*size, '\0');
  if (auto done = receive_bytes(socket, payload.data(), payload.size(), deadline); !done)
    return fail(std::move(done.error()));
  ByteReader in(payload);
  Answer out;
  out.watched = in.number<std::uint8_t>() != 0;
  out.leaving = in.number<std::uint8_t>() != 0;
  out.error = in.text();
  const auto verdict = in.number<std::uint8_t>();
  out.judgement.more = in.number<std::uint64_t>();
  const auto count = in.count(2 + std::size(kTexts) * sizeof(std::uint32_t));
  if (verdict > static_cast<std::uint8_t>(Verdict::incompatible) || count > kMostReasons)
    in.refuse();
  out.judgement.verdict = static_cast<Verdict>(verdict);
  for (std::size_t i = 0; in.ok() && i < count; ++i) {
    Reason reason;
    const auto kind = in.number<std::uint8_t>();
    const auto weight = in.number<std::uint8_t>();
    if (kind > static_cast<std::uint8_t>(Reason::Kind::not_judged) ||
        weight > static_cast<std::uint8_t>(Verdict::incompatible))
      in.refuse();
    reason.kind = static_cast<Reason::Kind>(kind);
    reason.weight = static_cast<Verdict>(weight);
    for (const auto text : kTexts) reason.*text = in.text();
    out.judgement.reasons.push_back(std::move(reason));
  }
  if (!in.ok() || !in.at_end()) return gone(EBADMSG);
  return out;
}

Result<void> send_notice(int socket, const Notice& notice) {
  return send_bytes(socket, bytes_of(notice), kNever);
}

Result<Notice> receive_notice(int socket) { return receive_struct<Notice>(socket, kNever); }

}  // namespace heddle::compat
