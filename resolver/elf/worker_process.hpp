// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/child.hpp"
#include "resolver/elf/opened_file.hpp"
#include "resolver/elf/worker_protocol.hpp"

namespace heddle {

/// One file on its way through a worker. The descriptor stays open here until the answer is in, so
/// that stamp and content can be said to belong together.
struct Job {
  std::string path;
  FactsDetail detail = FactsDetail::loader;
  std::optional<OpenedFile> file;  ///< opened when the job is sent, unless it came so
  unsigned attempts = 0;           ///< readings that were spoilt by a change of the file
};

/// A running elf-worker and the jobs it was sent. Answers come in the order of the jobs.
class WorkerProcess {
 public:
  /// One that reads in `mode`: what reads reduced images alone may take little memory.
  static Result<WorkerProcess> start(const std::string& worker_path, ParseMode mode);

  int socket() const { return socket_.get(); }
  bool ready() const { return ready_; }
  std::size_t queued() const { return jobs_.size(); }
  std::size_t accepted() const { return accepted_; }
  std::chrono::steady_clock::time_point busy_since() const { return busy_since_; }
  /// Restarts the clock: the pool did not look for answers in the meantime.
  void reset_deadline() { busy_since_ = std::chrono::steady_clock::now(); }

  /// Hands over `job`, whose file is open. Gives it back when the worker does not take it.
  std::optional<Job> send(Job job, ParseMode mode);

  struct Answer {
    Job job;
    FrameKind kind = frame_error;
    std::string payload;
  };
  enum class State : std::uint8_t { alive, gone };
  /// Reads what has arrived, without waiting. Call answer() until it gives nothing.
  State receive();
  /// nullopt: none complete. A frame that breaks the protocol makes the worker `gone`.
  std::optional<Answer> answer();
  bool broken() const { return broken_; }
  /// What the worker said instead of a greeting.
  const std::string& refusal() const { return refusal_; }

  /// Ends the process, waits for it and says how it ended ("it crashed (Segmentation fault)").
  std::string end(bool overdue);
  std::deque<Job> take_jobs() { return std::move(jobs_); }

 private:
  WorkerProcess(Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}

  Child child_;
  Fd socket_;
  std::deque<Job> jobs_;
  std::uint64_t next_id_ = 1;  ///< of the job to send
  std::uint64_t due_id_ = 1;   ///< of the answer to come
  std::size_t accepted_ = 0;
  std::chrono::steady_clock::time_point busy_since_ = std::chrono::steady_clock::now();
  std::string input_;
  bool ready_ = false;
  bool broken_ = false;
  std::string refusal_;
};

}  // namespace heddle
