// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "fuseovl/files/map_file.hpp"
#include "fuseovl/mount/directory_reader.hpp"
#include "fuseovl/mount/mount_state.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "fuseovl/mount_program.hpp"
#include "fuseovl/stats_reader.hpp"
#include "fuseovl/supervise/reload_protocol.hpp"

namespace heddle {
namespace {

int fail_with(const Error& error) {
  report(error);
  return exit_failure;
}

/// A connection to the supervisor of the mount at `directory`.
Result<Fd> connect_to(const std::string& directory) {
  if (is_dead(directory))
    return fail(directory, "cannot reload", "its daemon has died", "unmount it with fs-mount -u");
  const auto stats = read_stats(directory, "cannot reload");
  if (!stats) return fail(stats.error());
  const auto name = stats->value("control", "");
  struct stat root {};
  if (::stat(directory.c_str(), &root) == 0 && root.st_uid != ::geteuid() && ::geteuid() != 0)
    return fail(directory, "cannot reload", "it is a mount of another user's");
  if (name.empty())
    return fail(directory, "cannot reload", "it cannot be: fs-gen keeps it for what it runs");
  auto socket = connect_abstract(name);
  if (!socket)
    return fail_errno(directory, "cannot reach its supervisor", socket.error().code(),
                      "it listens in the network namespace where it was mounted");
  return socket;
}

Result<ReloadRequest> make_request(const std::string& map_path, std::chrono::milliseconds limit) {
  ReloadRequest request;
  auto program = open_file("/proc/self/exe", O_PATH);
  if (!program) return fail(std::move(program.error()));
  request.program = std::move(*program);
  if (map_path.empty()) return request;
  auto map = open_map_file(map_path, limit);
  if (!map) return fail(std::move(map.error()));
  request.map = std::move(*map);
  request.map_path = std::filesystem::absolute(map_path).string();
  return request;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> out;
  const Fd root(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (root)
    (void)walk_tree(root.get(),
                    [&](const std::string& path, const DirectoryEntry&) { out.push_back(path); });
  return out;
}

/// The kernel keeps a name that nobody asks for, and with it the file, until memory is short.
void ask_for_all(const std::string& directory, const std::vector<std::string>& names) {
  const Fd root(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (const auto& name : names) (void)::faccessat(root.get(), name.c_str(), F_OK, 0);
}

}  // namespace

int reload_program(const MountSettings& settings) {
  const std::string& directory = settings.mount_point;
  auto request = make_request(settings.load.map_path, settings.load.origin_timeout);
  if (!request) return fail_with(request.error());
  auto socket = connect_to(directory);
  if (!socket) return fail_with(socket.error());
  const auto old_names = request->map_path ? names_in(directory) : std::vector<std::string>();
  if (auto sent = send_request(socket->get(), *request); !sent) return fail_with(sent.error());
  const auto reply = receive_reply(socket->get());
  if (!reply) {
    if (reply.error().code() == ECONNRESET)
      return fail_with(Error(directory, "cannot reload", "its daemon ended"));
    return fail_with(reply.error());
  }
  if (!reply->warnings.empty()) say_text(reply->warnings);
  if (!reply->done) return fail_with(Error({}, reply->text, {}, reply->hint));
  const auto line = escape_for_terminal(directory) + ": " + reply->text + "\n";
  if (auto said = write_all(STDOUT_FILENO, line, "stdout"); !said) warn(said.error());
  if (reply->map_exchanged && settings.prefetch > 0) {
    // Until then the kernel does not keep what it is told. A cold mount is just slower.
    std::this_thread::sleep_for(kExchangeTime + std::chrono::milliseconds(100));
    (void)warm_up(directory, {settings.prefetch, true});
    ask_for_all(directory, old_names);
  }
  return exit_done;
}

}  // namespace heddle
