// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/fd.hpp"
#include "compat/server/judge_protocol.hpp"

namespace heddle::compat {

/// The processes that judge, one for each CPU up to four and two at least, and the verdicts that
/// are still good. Nothing here opens a file that a client names. For any number of threads.
///
/// A judge that has not answered at the deadline is killed and replaced. A directory that it was
/// hanging in for half of that time is not looked into for a minute.
///
/// Checks are quick until they prove slow: those that take longer than kQuick, and large artifacts,
/// never have all judges. A slow check on the last judge makes room when a quick one waits: its
/// judge is killed, and it joins the line of the slow ones. So no client, by any number of
/// connections, keeps others waiting for longer than the line of quick checks before them.
class JudgePool {
 public:
  /// Starts them, and the watcher, which reads all libraries into the index. Fails when a program
  /// is not there, or the node's loader is none that can be judged by; with ECANCELED when the
  /// descriptor `cancelled` becomes readable.
  static Result<std::unique_ptr<JudgePool>> start(JudgeOptions options, int cancelled);
  ~JudgePool();
  JudgePool(const JudgePool&) = delete;
  JudgePool& operator=(const JudgePool&) = delete;

  /// The verdict about an artifact's JSON; `where` names it in messages. The same bytes are judged
  /// once for each state of the node. `cancelled`: the client does not want the answer any more.
  std::shared_ptr<const Answer> check(std::string_view artifact, const std::string& where,
                                      const std::function<bool()>& cancelled);

  /// Readable when the watcher has something for tend().
  int fd() const { return watch_socket_.get(); }
  /// Takes the watcher's notices, and replaces one that is gone. To be called every second too.
  void tend();

  std::uint64_t generation() const { return generation_; }
  std::size_t libraries() const { return libraries_; }
  struct Counters {
    std::atomic<std::uint64_t> checks{0}, kept{0}, incompatible{0}, errors{0}, invalidations{0},
        killed{0};
  };
  const Counters& counters() const { return counters_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : std::uint8_t { absent, idle, busy };
  struct Judge {
    State state = State::absent;
    bool slow = false;  ///< busy with a slow check
    pid_t pid = -1;
    Fd socket;
  };
  using Key = std::array<std::uint8_t, 32>;  // an artifact's SHA-256
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Kept {
    std::shared_ptr<const Answer> answer;
    Clock::time_point made;
  };

  explicit JudgePool(JudgeOptions options) : options_(std::move(options)) {}
  Result<void> start_watcher();
  Result<pid_t> start_process(const char* role, Fd& socket) const;
  void replace_judges();
  void invalidate();
  void avoid(const std::string& directory);
  bool may_be_slow() const;
  Judge* take(bool slow, Clock::time_point deadline, const std::function<bool()>& cancelled);
  void give_back(Judge& judge, bool usable);
  bool may_go_on(Judge& judge);
  Result<Answer> converse(Judge& judge, const Question& question, Clock::time_point deadline,
                          const std::function<bool()>& cancelled);
  Answer ask(std::string_view artifact, const std::string& where,
             const std::function<bool()>& cancelled);
  std::shared_ptr<const Answer> find_kept(const Key& key);
  void keep(const Key& key, const std::shared_ptr<const Answer>& answer);

  JudgeOptions options_;
  std::string program_;
  Fd watch_socket_;
  pid_t watcher_ = -1;
  Clock::time_point heard_ = Clock::now();  ///< of the watcher
  std::size_t libraries_ = 0;
  std::atomic<std::uint64_t> generation_{1};
  Counters counters_;

  std::mutex mutex_;  ///< over all below it; held for moments only
  std::condition_variable changed_;
  std::vector<Judge> judges_;
  std::list<char> lines_[2];                          ///< calls that wait, quick and slow
  std::vector<pid_t> killed_;                         ///< yet to be reaped
  std::map<std::string, Clock::time_point> avoided_;  ///< directories that hung, until when
  std::unordered_map<Key, Kept, KeyHash> kept_;
  std::size_t kept_bytes_ = 0;
  bool ending_ = false;
  std::thread replacer_;
};

}  // namespace heddle::compat
