// SPDX-License-Identifier: MIT
#include "tests/support/run.hpp"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/open_regular.hpp"

namespace heddle::test {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> changed_environment(const std::vector<std::string>& changes) {
  std::map<std::string, std::string> vars;
  for (char** entry = ::environ; *entry; ++entry) {
    const std::string text = *entry;
    if (const auto equals = text.find('='); equals != std::string::npos)
      vars[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& change : changes) {
    const auto equals = change.find('=');
    if (equals == std::string::npos)
      vars.erase(change);
    else
      vars[change.substr(0, equals)] = change.substr(equals + 1);
  }
  std::vector<std::string> out;
  for (const auto& [name, value] : vars) out.push_back(name + "=" + value);
  return out;
}

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

/// Reads all available bytes. False at the end of the stream.
bool drain(int fd, std::string& into) {
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n > 0)
      into.append(buffer, static_cast<std::size_t>(n));
    else if (n == 0)
      return false;
    else if (errno != EINTR)
      return errno == EAGAIN;
  }
}

struct Pipes {
  Pipe in = value_or_throw(make_pipe());
  Pipe out = value_or_throw(make_pipe());
  Pipe err = value_or_throw(make_pipe());
  Pipe failure = value_or_throw(make_pipe());  ///< errno of a failed exec
};

pid_t start(const std::vector<std::string>& argv, const RunOptions& options, const Pipes& pipes) {
  const auto environment = changed_environment(options.env);
  const auto c_environment = to_c_array(environment);
  const auto c_argv = to_c_array(argv);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::setpgid(0, 0);
  ::signal(SIGPIPE, SIG_DFL);
  ::dup2(pipes.in.read_end.get(), 0);
  ::dup2(pipes.out.write_end.get(), 1);
  ::dup2(pipes.err.write_end.get(), 2);
  if (options.cwd.empty() || ::chdir(options.cwd.c_str()) == 0)
    ::execvpe(c_argv[0], c_argv.data(), c_environment.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t n = ::write(pipes.failure.write_end.get(), &error, sizeof(error));
  ::_exit(127);
}

/// Writes and reads until the child ends or the deadline passes; whether it has ended.
bool converse(int child_end, Pipes& pipes, const RunOptions& options, RunResult& result) {
  for (const int fd :
       {pipes.in.write_end.get(), pipes.out.read_end.get(), pipes.err.read_end.get()})
    set_nonblocking(fd);
  const auto deadline = Clock::now() + options.deadline;
  std::size_t fed = 0;
  for (;;) {
    if (fed == options.input.size()) pipes.in.write_end.reset();
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd polled[] = {{child_end, POLLIN, 0},
                       {pipes.out.read_end.get(), POLLIN, 0},
                       {pipes.err.read_end.get(), POLLIN, 0},
                       {pipes.in.write_end.get(), POLLOUT, 0}};
    if (::poll(polled, 4, static_cast<int>(left)) < 0) continue;
    // Checked before the last reads, so that no output is lost.
    const bool ended = polled[0].revents != 0;
    if (pipes.out.read_end && !drain(pipes.out.read_end.get(), result.out))
      pipes.out.read_end.reset();
    if (pipes.err.read_end && !drain(pipes.err.read_end.get(), result.err))
      pipes.err.read_end.reset();
    if (ended) return true;
    if (polled[3].revents != 0) {
      const ssize_t n =
          ::write(pipes.in.write_end.get(), options.input.data() + fed, options.input.size() - fed);
      if (n >= 0)
        fed += static_cast<std::size_t>(n);
      else if (errno != EAGAIN && errno != EINTR)
        fed = options.input.size();  // EPIPE: the child has closed its stdin
    }
  }
}

}  // namespace

std::string executed_file(const std::string& program) {
  const char* emulator = std::getenv("HEDDLE_EMULATOR");
  if (!emulator || program.find('/') == std::string::npos) return program;
  // e_machine is at the same place in files of 32 and 64 bits.
  const auto file = open_regular(program);
  char head[20] = {};
  if (!file || ::pread(file->get(), head, sizeof head, 0) != sizeof head ||
      std::string_view(head, SELFMAG) != ELFMAG ||
      static_cast<unsigned char>(head[18]) != EM_AARCH64)
    return program;
  const auto copy = program + ".emulator";
  namespace fs = std::filesystem;
  if (!fs::exists(copy)) fs::copy_file(emulator, copy);
  if (fs::last_write_time(copy) != fs::last_write_time(program))
    fs::last_write_time(copy, fs::last_write_time(program));
  return copy;
}

RunResult run(const std::vector<std::string>& command, const RunOptions& options) {
  auto argv = command;
  if (const auto file = executed_file(argv.at(0)); file != argv[0]) argv.insert(argv.begin(), file);
  // A child that closes its stdin must not end the test program.
  ::signal(SIGPIPE, SIG_IGN);
  Pipes pipes;
  const pid_t pid = start(argv, options, pipes);
  if (pid < 0) throw Error::from_errno(argv.at(0), "cannot start");
  Child child(pid);
  pipes.in.read_end.reset();
  pipes.out.write_end.reset();
  pipes.err.write_end.reset();
  pipes.failure.write_end.reset();
  int error = 0;
  if (::read(pipes.failure.read_end.get(), &error, sizeof(error)) > 0)
    throw Error::from_errno(argv.at(0), "cannot start", error);

  RunResult result;
  const Fd ended = value_or_throw(watch_child_end(pid));
  result.timed_out = !converse(ended.get(), pipes, options, result);
  if (result.timed_out) ::kill(-pid, SIGKILL);
  result.status = value_or_throw(child.wait());
  return result;
}

RunResult run_checked(const std::vector<std::string>& argv, const RunOptions& options) {
  auto result = run(argv, options);
  if (!result.timed_out && result.status == 0) return result;
  // A farm's linker line can be 100 KiB long.
  auto command = to_shell(argv);
  if (command.size() > 400) command = command.substr(0, 400) + "...";
  if (result.timed_out) throw Error(command, "did not end in time", result.err);
  throw Error(command, fmt::format("exit status {}", result.status), result.err);
}

std::string to_shell(const std::vector<std::string>& argv) {
  std::string out;
  for (const auto& word : argv) {
    if (!out.empty()) out += ' ';
    if (!word.empty() &&
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "0123456789_-+=./:,@%") == std::string::npos) {
      out += word;
      continue;
    }
    out += quote_for_shell(word);
  }
  return out;
}

}  // namespace heddle::test
