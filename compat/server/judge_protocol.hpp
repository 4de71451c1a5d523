// SPDX-License-Identifier: MIT
#pragma once

// The messages between compat-server and compat-judge; NodeIndexOptions come first. Artifacts and
// answers are too long for a packet: a message is a record in a memory file, and its
// descriptor is sent. Only the watcher's notices are packets themselves.

#include <fcntl.h>
#include <sys/mman.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/channel.hpp"
#include "compat/server/node_index.hpp"

namespace heddle::compat {

/// A judge's descriptor for compat-server.
inline constexpr int kJudgeSocket = 3;
/// Of a judge's answer; an answer to a client is about as large.
inline constexpr std::size_t kMostAnswerBytes = std::size_t{4} << 20;

/// compat-server to judge. Text: std::string_view in the sender, std::string in the receiver.
template <class Text>
struct QuestionOf {
  std::uint64_t generation = 0;      ///< of the node: when it changes, a judge drops its caches
  std::uint64_t patience_ms = 0;     ///< a directory that takes longer is hanging
  std::string where;                 ///< the artifact's name in messages
  std::vector<std::string> avoided;  ///< hanging directories
  Text artifact;
};
using Question = QuestionOf<std::string_view>;
using ReceivedQuestion = QuestionOf<std::string>;

/// Judge to compat-server.
struct Answer {
  Judgement judgement;
  std::string error;     ///< not empty: there is no verdict
  std::string hanging;   ///< not empty: a hanging directory; the judge ends
  bool watched = true;   ///< false: it may become wrong without a notice
  bool leaving = false;  ///< the judge ends, because it has grown too large
  std::uint64_t generation = 0;
};

/// Watcher to compat-server.
struct Notice {
  enum class Kind : std::uint8_t { indexed, changed, alive };  ///< indexed comes first
  Kind kind = Kind::alive;
  std::uint64_t libraries = 0;  ///< indexed
};

template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, NodeIndexOptions>
void fields(Coder& coder, R& r) { coder(r.root, r.cache_dir, r.library_dirs); }
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Question> ||
    std::same_as<std::remove_const_t<R>, ReceivedQuestion>
void fields(Coder& coder, R& r) {
  coder(r.generation, r.patience_ms, r.where, r.avoided, r.artifact);
}
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Reason>
void fields(Coder& coder, R& r) {
  coder(r.kind, r.weight, r.program, r.subject, r.library, r.required_by, r.path, r.package,
        r.detail);
}
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Answer>
void fields(Coder& coder, R& r) {
  coder(r.judgement.verdict, r.judgement.reasons, r.judgement.more, r.error, r.hanging, r.watched,
        r.leaving);
}
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Notice>
void fields(Coder& coder, R& r) { coder(r.kind, r.libraries); }

/// Sends `message` in a memory file.
template <class T>
Result<void> send_large(int socket, const T& message) {
  Encoder coder;
  coder(message);
  const Fd file(::memfd_create("record", MFD_CLOEXEC));
  if (!file) return fail_errno("memfd", "cannot be made");
  TRY(write_all(file.get(), coder.take(), "memfd"));
  return send_fd(socket, file.get());
}

/// Waits for a message of send_large(). EPROTO: invalid, or more than `most` bytes; ECONNRESET: the
/// other end is gone.
template <class T>
Result<T> receive_large(int socket, std::size_t most = std::size_t{2} << 30) {
  const Fd file = TRY(receive_fd(socket));
  const auto wrong = [] {
    return fail_errno("", "invalid message from the other process", EPROTO);
  };
  // The sender may be hostile: another file could keep this process waiting, and it may go on
  // writing, so the content is copied.
  if (::fcntl(file.get(), F_GET_SEALS) < 0 || ::lseek(file.get(), 0, SEEK_SET) != 0) return wrong();
  const auto content = read_all(file.get(), "memfd", most);
  if (!content) return wrong();
  Decoder coder(*content);
  T out{};
  coder(out);
  if (!coder.complete()) return wrong();
  return out;
}

}  // namespace heddle::compat
