// SPDX-License-Identifier: MIT
#include "fuseovl/mount/fusermount.hpp"

#include <fcntl.h>
#include <paths.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/channel.hpp"
#include "base/child.hpp"
#include "base/find_program.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

constexpr const char* kProgram = "fusermount3";
constexpr int kSocketInChild = 3;

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

struct Outcome {
  int status = 0;
  std::string words;
  Fd device;
};

Result<Outcome> run(const std::vector<std::string>& arguments, bool wants_device,
                    std::chrono::milliseconds limit) {
  // Never the working directory's, which others may write to.
  std::string directories;
  const char* path = std::getenv("PATH");
  std::istringstream words_of_path(path ? path : "");
  for (std::string one; std::getline(words_of_path, one, ':');)
    if (one.starts_with('/')) directories += one + ":";
  const auto program = find_program(kProgram, directories + "/usr/local/bin:/usr/bin:/bin");
  if (!program)
    return fail(kProgram, "cannot mount as a user", "the program is not installed",
                "install it (package fuse3), or run as root");
  auto words = TRY(make_pipe());
  Fd ours, theirs;
  SpawnOptions options;
  options.fds.emplace_back(words.write_end.get(), STDERR_FILENO);
  if (wants_device) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return fail_errno(kProgram, "cannot make a socket pair");
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
  auto child = TRY(spawn(*program, argv, options));
  words.write_end.reset();
  theirs.reset();
  Outcome outcome;
  if (wants_device) outcome.device = receive_device(ours.get(), limit);
  auto status = child.wait_for(limit);
  if (!status && !outcome.device) return fail(std::move(status.error()));
  if (status && !*status) {
    // What it waits for may be uninterruptible: neither is its end waited for.
    child.abandon();
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

int delegate = -1;  ///< the socket of this process

Result<void> unmount_here(const std::string& mount_point, bool detach,
                          std::chrono::milliseconds limit) {
  std::vector<std::string> arguments = {"-u"};
  if (detach) arguments.emplace_back("-z");
  arguments.insert(arguments.end(), {"--", mount_point});
  const auto outcome = TRY(run(arguments, false, limit));
  if (outcome.status != 0) return fail(Error(mount_point, "cannot unmount", outcome.words));
  return {};
}

/// For each packet that comes detaches the mount and answers `+`, or why not.
void unmount_for_another(int socket, const std::string& mount_point) {
  (void)::setsid();  // what is sent to the daemon's process group is not for us
  for (;;) {
    const auto asked = receive_packet(socket, std::chrono::hours(24));
    if (!asked && asked.error().code() == ETIMEDOUT) continue;
    if (!asked) return;
    if (const auto done = unmount_here(mount_point, true, kFusermountPatience); !done)
      send_failure(socket, done.error());
    else
      (void)send_packet(socket, "+");
  }
}

Result<void> ask_delegate() {
  TRY(send_packet(delegate, "+"));
  const auto answer = TRY(receive_packet(delegate, 2 * kFusermountPatience));
  if (answer.text == "+") return {};
  Error failure = TRY(decode_record<Error>(answer.text));
  return fail(std::move(failure));
}

}  // namespace

Result<Fd> delegate_unmounting(const std::string& mount_point) {
  auto sockets = TRY(make_socket_pair());
  ForkOptions options{.dies_with_parent = false, .keep = {{sockets.other.get()}}};
  options.name = "heddle-unmount";
  auto child = TRY(fork_child(options, [&] {
    unmount_for_another(sockets.other.get(), mount_point);
    return 0;
  }));
  (void)child.release();
  delegate = sockets.one.get();
  return std::move(sockets.one);
}

Result<void> fusermount_unmount(const std::string& mount_point, bool detach,
                                std::chrono::milliseconds limit) {
  return delegate < 0 ? unmount_here(mount_point, detach, limit) : ask_delegate();
}

}  // namespace heddle
