// SPDX-License-Identifier: MIT
#include "container-hooks/inside_container.hpp"

#include <sys/socket.h>

#include "base/socket_pair.hpp"
#include "container-hooks/container_mounts.hpp"
#include "container-hooks/enter_namespace.hpp"

namespace heddle {
namespace {

constexpr char kGo = '+';

bool told_to_go(int socket) {
  char word = 0;
  ssize_t n;
  do {
    n = ::recv(socket, &word, 1, 0);
  } while (n < 0 && errno == EINTR);
  return n == 1 && word == kGo;
}

Result<void> tell_to_go(int socket) {
  if (::send(socket, &kGo, 1, MSG_NOSIGNAL) != 1)
    return fail("fs-hook", "cannot mount", "its process in the container has gone");
  return {};
}

/// With its hint, which the other end shows as part of the line.
int tell_failure(int socket, const Error& error) {
  const auto hint = error.hint().empty() ? "" : " (" + error.hint() + ")";
  send_failure(socket, Error({}, error.message() + hint));
  return 1;
}

/// The child. Each step's end is a descriptor sent to the parent, or the error.
int work(const MountOrder& order, int socket) {
  if (!told_to_go(socket)) return 0;
  if (order.stage == Stage::create_runtime)
    if (auto entered = enter_mount_namespace(order.pid); !entered)
      return tell_failure(socket, entered.error());
  auto device = open_fuse_device();
  if (!device) return tell_failure(socket, device.error());
  auto mounts = ContainerMounts::open(order.rootfs);
  if (!mounts) return tell_failure(socket, mounts.error());
  if (auto ready = mounts->check(order.decision); !ready)
    return tell_failure(socket, ready.error());
  if (auto mounted = mounts->mount(device->get(), order.decision.mount_point); !mounted)
    return tell_failure(socket, mounted.error());
  if (!send_fd(socket, device->get())) {
    mounts->undo();
    return 1;
  }
  // Were it open here, a daemon that dies could not end our requests.
  device->reset();
  if (!told_to_go(socket)) {
    mounts->undo();
    return 1;
  }
  if (auto bound = mounts->bind(order.decision); !bound) {
    mounts->undo();
    return tell_failure(socket, bound.error());
  }
  return send_fd(socket, socket) ? 0 : 1;
}

}  // namespace

Result<InsideContainer> InsideContainer::start(const MountOrder& order) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fs-hook", "cannot start a process");
  if (pid == 0) {
    sockets->one.reset();
    ::_exit(work(order, sockets->other.get()));
  }
  return InsideContainer(Child(pid), std::move(sockets->one));
}

Result<Fd> InsideContainer::mount() {
  if (auto told = tell_to_go(socket_.get()); !told) return fail(std::move(told.error()));
  return receive_fd(socket_.get());
}

Result<void> InsideContainer::bind() {
  if (auto told = tell_to_go(socket_.get()); !told) return told;
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
