// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/fd.hpp"
#include "record/recording_worker.hpp"

namespace heddle::test {

/// When a worker dies: so many instructions after the `stops`-th time that it enters a system call
/// or returns from one.
struct Death {
  long stops = 0;
  long instructions = 0;
};
using Deaths = std::vector<Death>;

struct Answer {
  int error = 0;
  std::string body;
  template <class Body>
  Body as(std::size_t skip = 0) const {
    Body out{};
    if (body.size() >= skip + sizeof(out)) std::memcpy(&out, body.data() + skip, sizeof(out));
    return out;
  }
};

template <class Body>
std::string bytes_of(const Body& body) {
  return {reinterpret_cast<const char*>(&body), sizeof(body)};
}

inline std::string c_string(std::string_view text) { return std::string(text) + '\0'; }

/// The kernel's side: asks, and asks again with the mark of it when a worker has died over it.
class Kernel {
 public:
  Kernel() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
    here_.reset(ends[0]);
    device_.reset(ends[1]);
    *memory_->on = true;
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  /// Closes what workers have opened too: they have this process's descriptors.
  ~Kernel() {
    std::vector<int> all;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      all.push_back(std::atoi(entry.path().filename().c_str()));
    for (const int fd : all)
      if (fd > last_ && fd != here_.get() && fd != device_.get()) ::close(fd);
  }

  /// The caller of what is asked from now on; ourselves before.
  void ask_as(unsigned user) { user_ = user; }
  /// The workers of the next request die so, one after the other.
  void kill_next(Deaths deaths) { deaths_ = std::move(deaths); }
  /// How often the last worker that was to die has entered a system call or returned from one.
  long stops() const { return stops_; }

  /// What the trace would be told since the last call of what is below `folder`, without look-ups:
  /// what of these is asked depends on what is known.
  std::string told_of(const std::string& folder) {
    std::string out;
    memory_->events->drain([&](const trace::Event& event) {
      if (event.op == trace::Op::lookup || !event.path.starts_with(folder)) return;
      auto target = event.target;
      if (target.starts_with(folder)) target.remove_prefix(folder.size());
      out += fmt::format("{} {} {} {}\n", trace::op_name(event.op), event.error,
                         event.path.substr(folder.size()), target);
    });
    return out;
  }

  Answer ask(std::uint32_t opcode, std::uint64_t node, const std::string& body) {
    fuse_in_header header{};
    header.len = static_cast<std::uint32_t>(sizeof(header) + body.size());
    header.opcode = opcode;
    header.unique = unique_ += 2;
    header.nodeid = node;
    header.uid = header.gid = user_;
    header.pid = static_cast<std::uint32_t>(::getpid());
    const auto deaths = std::exchange(deaths_, {});
    for (std::size_t i = 0; i <= deaths.size(); ++i) {
      put(header, body);
      const bool ended = serve(i < deaths.size() ? &deaths[i] : nullptr);
      if (auto answer = take_answer(header.unique)) return std::move(*answer);
      if (ended) break;
      std::array<char, 64> unread{};
      const bool read_by_it = ::recv(device_.get(), unread.data(), unread.size(), MSG_DONTWAIT) < 0;
      if (read_by_it) header.unique |= kResentUnique;
    }
    ADD_FAILURE() << "request " << opcode << " is never answered";
    return {EIO, {}};
  }

  std::uint64_t look_up(std::uint64_t parent, std::string_view name) {
    const auto answer = ask(FUSE_LOOKUP, parent, c_string(name));
    return answer.error == 0 ? answer.as<fuse_entry_out>().nodeid : 0;
  }
  std::uint64_t walk(const std::string& path) {
    std::uint64_t node = FUSE_ROOT_ID;
    for (const auto& part : std::filesystem::path(path).relative_path())
      node = look_up(node, part.string());
    return node;
  }

 private:
  void put(const fuse_in_header& header, const std::string& body) const {
    const auto request = bytes_of(header) + body;
    if (::send(here_.get(), request.data(), request.size(), 0) < 0) std::abort();
  }

  std::optional<Answer> take_answer(std::uint64_t unique) const {
    std::string reply(1 << 16, '\0');
    const ssize_t n = ::recv(here_.get(), reply.data(), reply.size(), MSG_DONTWAIT);
    fuse_out_header header{};
    if (n < static_cast<ssize_t>(sizeof(header))) return std::nullopt;
    std::memcpy(&header, reply.data(), sizeof(header));
    EXPECT_EQ(header.unique, unique);
    EXPECT_EQ(header.len, n);
    reply.resize(static_cast<std::size_t>(n));
    return Answer{-header.error, reply.substr(sizeof(header))};
  }

  [[noreturn]] void work(bool followed) {
    if (followed) {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
    }
    memory_->loopback.recover();
    memory_->events->take_over();
    Recorder recorder(*memory_, options_);
    loopback::Loopback loopback(recorder, memory_->loopback);
    auto& slots = memory_->loopback.slots;
    slots.take_over([&](std::size_t slot) {
      auto* bytes = slots.buffer(slot);
      const auto size = reinterpret_cast<const fuse_in_header*>(bytes)->len;
      loopback::Request request(device_.get(), bytes, size, slots.progress(slot));
      loopback.take_over(request);
    });
    loopback::CallerRights rights;
    loopback::ReplyBuffer buffer;
    slots.before_read(0);
    const ssize_t n = ::read(device_.get(), slots.buffer(0), loopback::RequestSlots::kBufferSize);
    if (n < 0) ::_exit(1);
    slots.after_read(0);
    loopback::Request request(device_.get(), slots.buffer(0), static_cast<std::size_t>(n),
                              slots.progress(0));
    if (request.progress().stage == loopback::RequestProgress::Stage::done)
      request.reply_as_noted();
    else
      loopback.handle(request, rights, buffer);
    slots.before_read(0);
    ::_exit(0);
  }

  /// One worker, that dies so; true when it has ended by itself.
  bool serve(const Death* death) {
    const pid_t worker = fork_with_our_descriptors();
    if (worker < 0) std::abort();
    if (worker == 0) work(death != nullptr);
    int status = 0;
    ::waitpid(worker, &status, 0);
    if (!death) {
      EXPECT_EQ(status, 0);
      return true;
    }
    const auto go = [&](__ptrace_request how) {
      ::ptrace(how, worker, nullptr, nullptr);
      ::waitpid(worker, &status, 0);
      const bool stopped = WIFSTOPPED(status);
      EXPECT_TRUE(!stopped || WSTOPSIG(status) == SIGTRAP) << status;
      return stopped && WSTOPSIG(status) == SIGTRAP;
    };
    stops_ = 0;
    bool stopped = true;
    for (; stopped && stops_ < death->stops; ++stops_) stopped = go(PTRACE_SYSCALL);
    for (long i = 0; stopped && i < death->instructions; ++i) stopped = go(PTRACE_SINGLESTEP);
    if (!WIFSTOPPED(status)) return true;
    ::kill(worker, SIGKILL);
    ::waitpid(worker, &status, 0);
    return false;
  }

  int last_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);  // what was open before has lower numbers
  Fd low_{last_};
  Fd here_, device_;
  RecorderOptions options_{.each_io = true};
  std::unique_ptr<RecordingMemory> memory_ = value_or_throw(RecordingMemory::create());
  unsigned user_ = ::geteuid();
  std::uint64_t unique_ = 0;
  Deaths deaths_;
  long stops_ = 0;
};

}  // namespace heddle::test
