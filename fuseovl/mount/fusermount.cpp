// SPDX-License-Identifier: MIT
#include "fuseovl/mount/fusermount.hpp"

#include <fcntl.h>
#include <paths.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
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
constexpr const char* kNoName = "could not determine username";  // util/fusermount.c
constexpr int kSocketInChild = 3;

/// The last line that fusermount3 wrote, without its name.
std::string reason_of(std::string words) {
  while (!words.empty() && words.back() == '\n') words.pop_back();
  if (const auto line = words.rfind('\n'); line != std::string::npos) words.erase(0, line + 1);
  const std::string prefix = std::string(kProgram) + ": ";
  if (words.starts_with(prefix)) words.erase(0, prefix.size());
  return words;
}

/// What a pipe that may still have writers holds.
std::string text_of_pipe(const Fd& pipe) {
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
  // Relative elements of PATH are skipped: others may write to the working directory.
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
  SocketPair sockets;
  SpawnOptions options;
  options.fds.emplace_back(words.write_end.get(), STDERR_FILENO);
  if (wants_device) {
    // fusermount3 sends the device over the socket that _FUSE_COMMFD names (util/fusermount.c).
    sockets = TRY(make_socket_pair());
    options.fds.emplace_back(sockets.other.get(), kSocketInChild);
    options.environment.emplace();
    for (char** variable = ::environ; *variable; ++variable)
      options.environment->emplace_back(*variable);
    options.environment->push_back("_FUSE_COMMFD=" + std::to_string(kSocketInChild));
  }
  std::vector<std::string> argv = {kProgram};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  auto child = TRY(spawn(*program, argv, options));
  words.write_end.reset();
  sockets.other.reset();
  Outcome outcome;
  if (wants_device)
    if (auto packet = receive_packet(sockets.one.get(), limit); packet && packet->fds.size() == 1)
      outcome.device = std::move(packet->fds.front());
  auto status = child.wait_for(limit);
  if (!status && !outcome.device) return fail(std::move(status.error()));
  if (status && !*status) {
    // It may wait in the kernel uninterruptibly.
    child.abandon();
    if (!outcome.device)
      return fail(
          Error(kProgram, "has not ended", "a directory above the mount point may not answer")
              .because(Cause::silent));
  }
  outcome.words = reason_of(text_of_pipe(words.read_end));
  outcome.status = status ? status->value_or(0) : 0;
  return outcome;
}

/// Without /etc/mtab, which a minimal root directory lacks, fusermount3 mounts but cannot unmount
/// for users (util/fusermount.c, unmount_fuse_locked): mount and daemon would never end.
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
  // Mounted, but the device did not arrive.
  if (outcome.status == 0) (void)fusermount_unmount(mount_point, true);
  if (outcome.words != kNoName) return fail(Error(mount_point, "cannot mount", outcome.words));
  const auto uid = std::to_string(::getuid());
  return fail(mount_point, "cannot mount", "fusermount3 refuses uid " + uid + ", which has no name",
              "give it an entry in passwd (getent passwd " + uid +
                  " prints it), or run as root; fs-gen --via private needs no name");
}

namespace {

int delegate = -1;  ///< the socket of this process

Result<void> unmount_here(const std::string& mount_point, bool detach,
                          std::chrono::milliseconds limit) {
  std::vector<std::string> arguments = {"-u"};
  if (detach) arguments.emplace_back("-z");
  arguments.insert(arguments.end(), {"--", mount_point});
  const auto outcome = TRY(run(arguments, false, limit));
  if (outcome.status == 0) return {};
  if (outcome.words.ends_with(std::strerror(EBUSY)))
    return fail_errno(mount_point, "cannot unmount", EBUSY);
  return fail(Error(mount_point, "cannot unmount", outcome.words));
}

/// The guard: detaches the mount for each packet and answers `+` or an error.
void unmount_for_another(int socket, const std::string& mount_point) {
  (void)::setsid();  // signals of the daemon's process group must not end it
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
