// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "compat/verdict.hpp"

namespace heddle::compat {

/// The descriptor that a judge or watcher talks to compat-server by: a stream socket.
inline constexpr int kJudgeSocket = 3;
/// No answer of a judge is larger, nor one to a client much.
inline constexpr std::size_t kMostAnswerBytes = std::size_t{4} << 20;

/// And a page of memory that both have: where the judge looks, so that one that hangs need not say.
inline constexpr int kJudgeMemory = 4;
struct Looking {
  std::atomic<std::uint64_t> count;  ///< of looks begun and ended: odd while one lasts
  char folder[4088];                 ///< of the last one; cut, ends with a zero
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(Looking) == 4096);

/// compat-server to judge: an artifact's JSON, and the name that messages give it.
struct Question {
  std::uint64_t generation = 0;  ///< of the node: another than the last one's has it look anew
  std::string_view where;
  std::string_view artifact;
  std::string_view avoided;  ///< directories that do not answer, a zero after each
};

/// Judge to compat-server.
struct Answer {
  Judgement judgement;
  std::string error;             ///< not empty: there is no verdict
  bool watched = true;           ///< false: it may become wrong without notice
  bool leaving = false;          ///< the judge ends, having grown too large
  std::uint64_t generation = 0;  ///< set by compat-server

  /// What it takes in memory.
  std::size_t bytes() const;
};

/// Watcher to compat-server.
struct Notice {
  enum class Kind : std::uint8_t { progress, indexed, changed, alive };
  Kind kind = Kind::alive;
  std::uint32_t done = 0;   ///< libraries
  std::uint32_t total = 0;  ///< of progress
};

using Deadline = std::chrono::steady_clock::time_point;
/// All fail with ETIMEDOUT at the deadline, ECONNRESET when the other end is gone, EBADMSG for what
/// is none of these. Not for two threads at once.
Result<void> send_question(int socket, const Question& question, Deadline deadline);
Result<void> send_answer(int socket, const Answer& answer, Deadline deadline);
Result<Answer> receive_answer(int socket, Deadline deadline);
Result<void> send_notice(int socket, const Notice& notice);
Result<Notice> receive_notice(int socket);

/// A question as its judge holds it.
struct ReceivedQuestion {
  std::uint64_t generation = 0;
  std::string where, artifact, avoided;
};
/// Waits for ever; ECONNRESET: there are no more.
Result<ReceivedQuestion> receive_question(int socket);

}  // namespace heddle::compat
