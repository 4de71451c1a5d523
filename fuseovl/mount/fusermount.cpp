// SPDX-License-Identifier: MIT
#include "fuseovl/mount/fusermount.hpp"

#include <fcntl.h>
#include <paths.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <vector>

#include "base/channel.hpp"
#include "base/child.hpp"

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
  auto packet = receive_packet(socket, limit);
  return packet && packet->fds.size() == 1 ? std::move(packet->fds.front()) : Fd();
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
  return std::optional<int>(TRY(child.wait()));
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
  auto words = TRY(make_pipe());
  Fd ours, theirs;
  SpawnOptions options;
  options.fds.emplace_back(words.write_end.get(), STDERR_FILENO);
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
  auto child = TRY(spawn(program, argv, options));
  words.write_end.reset();
  theirs.reset();
  Outcome outcome;
  if (wants_device) outcome.device = receive_device(ours.get(), limit);
  auto status = end_of(child, limit);
  if (!status && !outcome.device) return fail(std::move(status.error()));
  if (status && !*status) {
    // What it waits for may be uninterruptible: neither is its end waited for.
    ::kill(child.release(), SIGKILL);
    if (!outcome.device)
      return fail(Error(kProgram, "has not ended",
                        "a directory above the mount point does not answer, it seems")
                      .because(Cause::silent));
  }
  outcome.words = reason_of(words_in(words.read_end));
  outcome.status = status ? status->value_or(0) : 0;
  return outcome;
}

/// fusermount3 mounts without /etc/mtab, which a bare root directory lacks, and then cannot unmount
/// for users (util/fusermount.c, unmount_fuse_locked): mount and daemon would stay for ever.
Result<void> check_mtab(const std::string& mount_point) {
  if (::getuid() == 0 || ::access(_PATH_MOUNTED, R_OK) == 0) return {};
  return fail(mount_point, "cannot mount", "fusermount3 cannot unmount without " _PATH_MOUNTED,
              "as root: ln -s /proc/self/mounts " _PATH_MOUNTED);
}

}  // namespace

Result<Fd> fusermount_mount(const std::string& mount_point, const std::string& options) {
  TRY(check_mtab(mount_point));
  auto outcome = TRY(run({"-o", options, "--", mount_point}, true, kFusermountPatience));
  if (outcome.device) return std::move(outcome.device);
  // It has mounted, and the device was lost on its way.
  if (outcome.status == 0) (void)fusermount_unmount(mount_point, true);
  return fail(Error(mount_point, "cannot mount", outcome.words));
}

namespace {

int delegate = -1;  ///< the socket; of this process and its children

Result<void> unmount_here(const std::string& mount_point, bool detach,
                          std::chrono::milliseconds limit) {
  std::vector<std::string> arguments = {"-u"};
  if (detach) arguments.emplace_back("-z");
  arguments.insert(arguments.end(), {"--", mount_point});
  const auto outcome = TRY(run(arguments, false, limit));
  if (outcome.status != 0) return fail(Error(mount_point, "cannot unmount", outcome.words));
  return {};
}

struct Request {
  std::uint64_t number = 0;  ///< tells answers apart: its asker may have been killed
  bool detach = false;
  std::int64_t limit_ms = 0;
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Request>
void fields(Coder& coder, R& r) { coder(r.number, r.detach, r.limit_ms); }

struct Answer {
  std::uint64_t number = 0;
  std::optional<Error> failure;  ///< none: done
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Answer>
void fields(Coder& coder, R& r) { coder(r.number, r.failure); }

Result<void> ask_delegate(bool detach, std::chrono::milliseconds limit) {
  static std::uint32_t asked = 0;
  const auto number = static_cast<std::uint64_t>(::getpid()) << 32 | ++asked;
  TRY(send_record(delegate, Request{number, detach, limit.count()}));
  for (;;) {
    // It may be at another's request first.
    auto received = TRY(receive_record<Answer>(delegate, limit + kFusermountPatience));
    auto& answer = received.message;
    if (answer.number != number) continue;
    if (!answer.failure) return {};
    return fail(std::move(*answer.failure));
  }
}

void unmount_for_others(int socket, const std::string& mount_point) {
  (void)::setsid();  // what is sent to the daemon's process group is not for us
  for (;;) {
    const auto asked = receive_record<Request>(socket, std::chrono::hours(24));
    if (!asked && asked.error().code() == ETIMEDOUT) continue;
    if (!asked) return;
    const auto& request = asked->message;
    const auto done =
        unmount_here(mount_point, request.detach, std::chrono::milliseconds(request.limit_ms));
    Answer answer{request.number, {}};
    if (!done) answer.failure = shortened(done.error());
    (void)send_record(socket, answer);
  }
}

}  // namespace

Result<Fd> delegate_unmounting(const std::string& mount_point) {
  auto sockets = TRY(make_socket_pair());
  ForkOptions options{.dies_with_parent = false, .keep = {{sockets.other.get()}}};
  options.name = "heddle-unmount";
  auto child = TRY(fork_child(options, [&] {
    unmount_for_others(sockets.other.get(), mount_point);
    return 0;
  }));
  (void)child.release();
  delegate = sockets.one.get();
  return std::move(sockets.one);
}

Result<void> fusermount_unmount(const std::string& mount_point, bool detach,
                                std::chrono::milliseconds limit) {
  return delegate < 0 ? unmount_here(mount_point, detach, limit) : ask_delegate(detach, limit);
}

}  // namespace heddle
