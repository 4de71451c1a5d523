// SPDX-License-Identifier: MIT
#include "fuseovl/mount/fusermount.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <paths.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/child.hpp"
#include "base/packet.hpp"
#include "base/socket_pair.hpp"

namespace heddle {
namespace {

constexpr const char* kProgram = "fusermount3";
constexpr int kSocketInChild = 3;

std::string find_program() {
  const char* variable = std::getenv("PATH");
  const std::string path = std::string(variable ? variable : "") + ":/usr/local/bin:/usr/bin:/bin";
  for (std::size_t begin = 0; begin < path.size();) {
    const auto end = std::min(path.find(':', begin), path.size());
    const std::string candidate = path.substr(begin, end - begin) + "/" + kProgram;
    if (candidate.front() == '/' && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    begin = end + 1;
  }
  return {};
}

/// fusermount3's last words without its own name, on one line.
std::string reason_of(std::string words) {
  while (!words.empty() && words.back() == '\n') words.pop_back();
  if (const auto line = words.rfind('\n'); line != std::string::npos) words.erase(0, line + 1);
  const std::string prefix = std::string(kProgram) + ": ";
  if (words.starts_with(prefix)) words.erase(0, prefix.size());
  return words;
}

/// fusermount3 sends the open device over the socket named by _FUSE_COMMFD (util/fusermount.c).
Fd receive_device(int socket, std::chrono::milliseconds limit) {
  pollfd entry{socket, POLLIN, 0};
  int ready;
  do {
    ready = ::poll(&entry, 1, static_cast<int>(limit.count()));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return Fd();
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n;
  do {
    n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  const cmsghdr* header = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (!header || header->cmsg_type != SCM_RIGHTS) return Fd();
  int device = -1;
  std::memcpy(&device, CMSG_DATA(header), sizeof(device));
  return Fd(device);
}

/// What is in a pipe that may still have writers.
std::string words_in(const Fd& pipe) {
  char text[4096];
  std::string out;
  (void)::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  for (ssize_t n; (n = ::read(pipe.get(), text, sizeof(text))) > 0;)
    out.append(text, static_cast<std::size_t>(n));
  return out;
}

/// nullopt: not within `limit`. Waited for without one where that cannot be told.
Result<std::optional<int>> end_of(Child& child, std::chrono::milliseconds limit) {
  auto ended = child.wait_for(limit);
  if (ended) return ended;
  auto status = child.wait();
  if (!status) return fail(std::move(status.error()));
  return std::optional<int>(*status);
}

struct Outcome {
  int status = 0;
  std::string words;
  Fd device;
};

Result<Outcome> run(const std::vector<std::string>& arguments, bool wants_device,
                    std::chrono::milliseconds limit) {
  const std::string program = find_program();
  if (program.empty())
    return fail(kProgram, "cannot mount as a user", "the program is not installed",
                "install it (package fuse3), or run as root");
  auto words = make_pipe();
  if (!words) return fail(std::move(words.error()));
  Fd ours, theirs;
  SpawnOptions options;
  options.fds.emplace_back(words->write_end.get(), STDERR_FILENO);
  if (wants_device) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return fail_errno(kProgram, "cannot talk to it");
    ours = Fd(ends[0]);
    theirs = Fd(ends[1]);
    options.fds.emplace_back(theirs.get(), kSocketInChild);
    options.environment.emplace();
    for (char** variable = ::environ; *variable; ++variable)
      options.environment->emplace_back(*variable);
    options.environment->push_back("_FUSE_COMMFD=" + std::to_string(kSocketInChild));
  }
  std::vector<std::string> argv = {kProgram};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  auto child = spawn(program, argv, options);
  if (!child) return fail(std::move(child.error()));
  words->write_end.reset();
  theirs.reset();
  Outcome outcome;
  if (wants_device) outcome.device = receive_device(ours.get(), limit);
  auto status = end_of(*child, limit);
  if (!status && !outcome.device) return fail(std::move(status.error()));
  if (status && !*status) {
    // What it waits for may be uninterruptible: neither is its end waited for.
    ::kill(child->release(), SIGKILL);
    if (!outcome.device)
      return fail(Error::with_code(ETIMEDOUT, kProgram, "has not ended",
                                   "a folder above the mount point does not answer, it seems"));
  }
  outcome.words = reason_of(words_in(words->read_end));
  outcome.status = status ? status->value_or(0) : 0;
  return outcome;
}

/// fusermount3 mounts without /etc/mtab, which a bare root folder lacks, and then cannot unmount
/// for users (util/fusermount.c, unmount_fuse_locked): mount and daemon would stay for ever.
Result<void> check_mtab(const std::string& mount_point) {
  if (::getuid() == 0 || ::access(_PATH_MOUNTED, R_OK) == 0) return {};
  // Built without (-Ddisable-mtab) it says that no mount is here.
  const auto tried = run({"-u", "--", mount_point}, false, kFusermountPatience);
  if (!tried || tried->words.find(_PATH_MOUNTED) == std::string::npos) return {};
  return fail(mount_point, "cannot mount", "fusermount3 could not unmount it: " + tried->words,
              "as root: ln -s /proc/self/mounts " _PATH_MOUNTED);
}

}  // namespace

Result<Fd> fusermount_mount(const std::string& mount_point, const std::string& options) {
  if (auto good = check_mtab(mount_point); !good) return fail(std::move(good.error()));
  auto outcome = run({"-o", options, "--", mount_point}, true, kFusermountPatience);
  if (!outcome) return fail(std::move(outcome.error()));
  if (outcome->device) return std::move(outcome->device);
  // It has mounted, and the device was lost on its way.
  if (outcome->status == 0) (void)fusermount_unmount(mount_point, true);
  return fail(Error(mount_point, "cannot mount", outcome->words));
}

namespace {

int delegate = -1;  ///< the socket; of this process and its children

Result<void> unmount_here(const std::string& mount_point, bool detach,
                          std::chrono::milliseconds limit) {
  std::vector<std::string> arguments = {"-u"};
  if (detach) arguments.emplace_back("-z");
  arguments.insert(arguments.end(), {"--", mount_point});
  auto outcome = run(arguments, false, limit);
  if (!outcome) return fail(std::move(outcome.error()));
  if (outcome->status != 0) return fail(Error(mount_point, "cannot unmount", outcome->words));
  return {};
}

/// Asks "NUMBER DETACH MILLISECONDS"; the answer is "NUMBER ERRNO WORDS", without words when done.
Result<void> ask_delegate(bool detach, std::chrono::milliseconds limit) {
  static int asked = 0;
  const auto number = fmt::format("{}.{} ", ::getpid(), ++asked);
  if (auto sent = send_packet(delegate, fmt::format("{}{:d} {}", number, detach, limit.count()));
      !sent)
    return sent;
  for (;;) {
    // It may be at another's request first.
    const auto answer = receive_packet(delegate, limit + kFusermountPatience);
    if (!answer) return fail(answer.error());
    if (!answer->text.starts_with(number)) continue;  // to one of ours who was killed
    int code = 0, size = 0;
    if (std::sscanf(answer->text.c_str() + number.size(), "%d %n", &code, &size) != 1 ||
        number.size() + size >= answer->text.size())
      return {};
    return fail(Error::with_code(code, {}, answer->text.substr(number.size() + size)));
  }
}

[[noreturn]] void unmount_for_others(const Fd& socket, const std::string& mount_point,
                                     const std::function<void()>& at_end) {
  const int kept[] = {socket.get()};
  close_fds_but(kept);
  (void)::setsid();  // what is sent to the daemon's process group is not for us
  for (;;) {
    const auto asked = receive_packet(socket.get(), std::chrono::hours(24));
    if (!asked && asked.error().code() == ETIMEDOUT) continue;
    if (!asked) break;
    char number[32] = {};
    int detach = 0;
    long limit = 0;
    if (std::sscanf(asked->text.c_str(), "%31s %d %ld", number, &detach, &limit) != 3) continue;
    const auto done = unmount_here(mount_point, detach != 0, std::chrono::milliseconds(limit));
    (void)send_packet(socket.get(), done ? fmt::format("{} 0 ", number)
                                         : fmt::format("{} {} {}", number, done.error().code(),
                                                       done.error().message()));
  }
  if (at_end) at_end();
  ::_exit(0);
}

}  // namespace

Result<Fd> delegate_unmounting(const std::string& mount_point,
                               const std::function<void()>& at_end) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fs-mount", "cannot start its guard");
  if (pid == 0) unmount_for_others(sockets->other, mount_point, at_end);
  delegate = sockets->one.get();
  return std::move(sockets->one);
}

int unmounting_delegate() { return delegate; }

Result<void> fusermount_unmount(const std::string& mount_point, bool detach,
                                std::chrono::milliseconds limit) {
  return delegate < 0 ? unmount_here(mount_point, detach, limit) : ask_delegate(detach, limit);
}

}  // namespace heddle
