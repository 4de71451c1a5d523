// SPDX-License-Identifier: MIT
#include "container-hooks/inside_container.hpp"

#include <sys/socket.h>

#include "base/socket_pair.hpp"
#include "container-hooks/inside_work.hpp"

namespace heddle {
namespace {

constexpr std::size_t kAnswerLimit = 20U << 20;

Result<void> tell(const Fd& socket, InsideWord word) {
  const char byte = static_cast<char>(word);
  if (::send(socket.get(), &byte, 1, MSG_NOSIGNAL) != 1)
    return fail("fs-hook", "cannot go on", "its process in the container has gone");
  return {};
}

}  // namespace

Result<InsideContainer> InsideContainer::start(const InsideOrder& order) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  auto answers = make_pipe();
  if (!answers) return fail(std::move(answers.error()));
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fs-hook", "cannot start a process");
  if (pid == 0) {
    sockets->one.reset();
    answers->read_end.reset();
    ::_exit(work_inside(order, sockets->other.get(), std::move(answers->write_end)));
  }
  return InsideContainer(Child(pid), std::move(sockets->one), std::move(answers->read_end));
}

Result<Decided> InsideContainer::decide() {
  if (auto told = tell(socket_, InsideWord::decide); !told) return fail(std::move(told.error()));
  const auto answer = read_all(answers_.get(), "fs-hook", kAnswerLimit);
  answers_.reset();
  if (!answer) return fail(answer.error());
  return parse_answer(*answer);
}

Result<Fd> InsideContainer::mount() {
  if (auto told = tell(socket_, InsideWord::mount); !told) return fail(std::move(told.error()));
  return receive_fd(socket_.get());
}

Result<void> InsideContainer::bind() {
  if (auto told = tell(socket_, InsideWord::bind); !told) return told;
  return done();
}

Result<void> InsideContainer::share(const Fd& tree) {
  if (auto told = tell(socket_, InsideWord::share); !told) return told;
  if (auto sent = send_fd(socket_.get(), tree.get()); !sent) return sent;
  return done();
}

Result<void> InsideContainer::done() {
  auto done = receive_fd(socket_.get());
  (void)child_.wait();
  if (!done) return fail(std::move(done.error()));
  return {};
}

void InsideContainer::give_up() {
  socket_.reset();
  (void)child_.wait();
}

}  // namespace heddle
