// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/reload_desk.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/socket_pair.hpp"

namespace heddle {
namespace {

/// Whoever may end the daemon may also say what it is to serve: its own user, and root.
bool may_ask(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

}  // namespace

Result<void> ReloadDesk::open() {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof(random), 0) != sizeof(random))
    return fail_errno("fs-mount", "cannot make a name");
  const auto name = fmt::format("heddle-{:016x}", random);
  auto listener = listen_abstract(name);
  if (!listener) return fail(std::move(listener.error()));
  listener_ = Listener(std::move(*listener));
  name_ = name;
  return {};
}

void ReloadDesk::adopt(std::string name, Fd listener, Fd client) {
  name_ = std::move(name);
  listener_ = Listener(std::move(listener));
  client_ = std::move(client);
}

void ReloadDesk::add_to(std::vector<pollfd>& polled) const {
  if (next_) return;
  if (client_)
    polled.push_back({client_.get(), POLLIN, 0});
  else
    listener_.add_to(polled);
  if (answer_) polled.push_back({answer_.get(), POLLIN, 0});
}

void ReloadDesk::hear(const std::vector<pollfd>& polled, const std::function<HandOver()>& pack) {
  if (has_input(polled, answer_))
    hear_loader();
  else if (has_input(polled, client_))
    hear_client(pack);
  else if (!client_ && listener_.is_due(polled))
    accept_client();
}

void ReloadDesk::accept_client() {
  client_ = listener_.accept();
  // Without a word: it would have to be waited for until it has said what it wants.
  if (client_ && !may_ask(client_.get())) client_.reset();
}

void ReloadDesk::hear_client(const std::function<HandOver()>& pack) {
  auto request = receive_request(client_.get());
  if (!request && request.error().code() == ECONNRESET) {
    // Whoever asked does not want it any more; but what is ready goes its way.
    if (!next_) end_loader();
    client_.reset();
  } else if (!request) {
    refuse(request.error());
  } else if (!is_busy()) {
    request_ = std::move(*request);
    if (auto started = start_loader(pack()); !started) refuse(started.error());
  }
}

Result<void> ReloadDesk::start_loader(HandOver task) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  task.task = HandOver::Task::load;
  task.answer = sockets->other.get();
  task.map = request_->map.get();
  task.map_path = request_->map_path.value_or("");
  handed_over_ = task.content.fds;
  const pid_t supervisor = ::getpid();
  loader_ = ::fork();
  if (loader_ < 0) return fail_errno("fs-mount", "cannot start a loader");
  if (loader_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != supervisor) ::_exit(1);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    send_load_failure(task.answer, become(request_->program, arguments_, task), {});
    ::_exit(1);
  }
  answer_ = std::move(sockets->one);
  receiver_ = {};
  return {};
}

void ReloadDesk::hear_loader() {
  auto all = receiver_.receive(answer_.get());
  if (!all) {
    refuse(all.error(), receiver_.warnings());
  } else if (*all) {
    next_ = receiver_.take();
    answer_.reset();
  }
}

void ReloadDesk::end_loader() {
  answer_.reset();
  next_.reset();
  if (loader_ > 0) ::kill(loader_, SIGKILL);
  loader_ = -1;
}

void ReloadDesk::hand_over(HandOver& task) const {
  task.content.bytes = next_->bytes;
  for (const int place : next_->places)
    task.content.fds.push_back(place >= 0
                                   ? handed_over_.at(static_cast<std::size_t>(place))
                                   : next_->fds.at(static_cast<std::size_t>(-1 - place)).get());
  task.map_exchanged = next_->map_exchanged;
  task.report = next_->report;
  task.warnings = next_->warnings;
  task.control = name_;
  task.listener = listener_.get();
  task.client = client_.get();
}

void ReloadDesk::reply(const ReloadReply& reply) {
  if (client_) (void)send_reply(client_.get(), reply);
  client_.reset();
  request_.reset();
  end_loader();
}

void ReloadDesk::refuse(const Error& error, const std::string& warnings) {
  reply({false, error.message(), error.hint(), warnings, false});
}

}  // namespace heddle
