// SPDX-License-Identifier: MIT
#include "resolver/elf/worker_process.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>

namespace heddle {
namespace {

std::string how_it_ended(int status) {
  if (status < 128) return fmt::format("the reader ended with status {}", status);
  const int number = status - 128;
  switch (number) {
    case SIGXCPU:
      return "the reader used up its time";
    case SIGSYS:
      return "the reader made a forbidden system call (SIGSYS)";
    case SIGKILL:
      return "the reader was killed";
    default:
      return fmt::format("the reader crashed ({})", ::strsignal(number));
  }
}

}  // namespace

Result<WorkerProcess> WorkerProcess::start(const std::string& worker_path, ParseMode mode) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail_errno("", "cannot make a socket");
  Fd ours(ends[0]);
  const Fd theirs(ends[1]);
  SpawnOptions options;
  options.fds = {{theirs.get(), kWorkerSocket}};
  // LD_PRELOAD and LD_AUDIT would only do harm in there; where the loader finds the worker's
  // libraries (a compiler's, of a module) is what it is for us.
  options.environment.emplace();
  if (const char* dirs = std::getenv("LD_LIBRARY_PATH"))
    options.environment->push_back(std::string("LD_LIBRARY_PATH=") + dirs);
  std::vector<std::string> words{"elf-worker"};
  if (mode == ParseMode::reduced_only) words.emplace_back(kReducedOnly);
  auto child = spawn(worker_path, words, options);
  if (!child) return fail(std::move(child.error()));
  return WorkerProcess(std::move(*child), std::move(ours));
}

std::optional<Job> WorkerProcess::send(Job job, ParseMode mode) {
  Request request;
  request.id = next_id_;
  request.size = job.file->stamp.size;
  request.detail = job.detail;
  request.mode = mode;
  if (!send_request(socket_.get(), request, job.file->fd.get())) return job;
  if (jobs_.empty()) reset_deadline();
  ++next_id_;
  ++accepted_;
  jobs_.push_back(std::move(job));
  return std::nullopt;
}

WorkerProcess::State WorkerProcess::receive() {
  char buffer[65536];
  // More than one reply is left in the socket: what a subverted worker sends without end.
  while (input_.size() <= kMaxReply + sizeof(FrameHeader)) {
    const ssize_t n = ::recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) {
      input_.append(buffer, static_cast<std::size_t>(n));
      if (static_cast<std::size_t>(n) < sizeof(buffer)) return State::alive;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return State::alive;
    return State::gone;
  }
  return State::alive;
}

std::optional<WorkerProcess::Answer> WorkerProcess::answer() {
  FrameHeader header;
  while (!broken_ && input_.size() >= sizeof(header)) {
    std::memcpy(&header, input_.data(), sizeof(header));
    if (header.size > kMaxReply) broken_ = true;
    if (broken_ || input_.size() - sizeof(header) < header.size) return std::nullopt;
    std::string payload = input_.substr(sizeof(header), header.size);
    input_.erase(0, sizeof(header) + header.size);
    reset_deadline();  // by whole answers: one that comes byte by byte would never be late
    if (!ready_) {
      ready_ = header.kind == frame_greeting && header.id == worker_protocol_version();
      if (header.kind == frame_refusal) refusal_ = std::move(payload);
      if (header.kind == frame_greeting && !ready_) refusal_ = "it is of another version of heddle";
      broken_ = !ready_;
      continue;
    }
    if ((header.kind != frame_facts && header.kind != frame_error) || header.id != due_id_ ||
        jobs_.empty()) {
      broken_ = true;
      return std::nullopt;
    }
    ++due_id_;
    Answer answer{std::move(jobs_.front()), static_cast<FrameKind>(header.kind),
                  std::move(payload)};
    jobs_.pop_front();
    return answer;
  }
  return std::nullopt;
}

std::string WorkerProcess::end(bool overdue) {
  if (overdue || broken_) {
    ::kill(child_.pid(), SIGKILL);
    static_cast<void>(child_.wait());
    return overdue ? "the reader hung" : "the reader gave a damaged answer";
  }
  // Its socket is closed: it is ending by itself, and how it does is what the user wants to know.
  auto ended = child_.wait_for(std::chrono::seconds(2));
  if (!ended) return "the reader ended";
  if (*ended) return how_it_ended(**ended);
  ::kill(child_.pid(), SIGKILL);
  static_cast<void>(child_.wait());
  return "the reader closed its socket";
}

}  // namespace heddle
