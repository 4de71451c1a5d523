// SPDX-License-Identifier: MIT
// What fs-mount does with a mount that stands: -u and --stats.

#include <unistd.h>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount_program.hpp"
#include "fuseovl/stats_reader.hpp"
#include "resolver/map/map_reader.hpp"

namespace heddle {
namespace {

int fail_with(const Error& error) {
  report(error);
  return exit_failure;
}

/// The files that differ from the mount's map at this moment. Asked here and not by the
/// daemon: a file system that hangs must hold nobody but us.
Result<nlohmann::ordered_json> drift_now(const std::string& directory) {
  auto reader = MapReader::open(directory + "/.heddle/map");
  if (!reader) return fail(std::move(reader.error()));
  auto content = reader->read_all();
  if (!content) return fail(std::move(content.error()));
  auto list = nlohmann::ordered_json::array();
  for (const auto& drift : open_origins(*content, 0).drifts)
    list.push_back({{"path", to_json_text(drift.path)}, {"what", to_json_text(drift.what)}});
  return list;
}

}  // namespace

int unmount_program(const std::string& directory, bool lazy) {
  auto path = resolve_mount_point(directory);
  if (!path) return fail_with(path.error());
  const auto mounted = find_mount(*path);
  if (!mounted) return fail_with(mounted.error());
  if (!*mounted || (*mounted)->type != kMountType)
    return fail_with(Error(directory, "cannot unmount", "no heddle mount is here"));
  auto done = unmount_fuse(*path, lazy ? Unmount::detach : Unmount::now);
  // A dead mount serves nobody: whoever still stands in it loses nothing.
  if (!done && done.error().code() == EBUSY && is_dead(*path))
    done = unmount_fuse(*path, Unmount::detach);
  // Those that exchanges left beneath (before Linux 6.5) serve only who has them.
  for (auto next = find_mount(*path); done && next && *next && (*next)->type == kMountType;
       next = find_mount(*path))
    done = unmount_fuse(*path, Unmount::detach);
  if (done) return exit_done;
  if (::geteuid() != 0 && !(*mounted)->has_option("user_id=" + std::to_string(::geteuid())))
    return fail_with(Error(directory, "cannot unmount", "it is a mount of another user's"));
  return fail_with(done.error().code() == EBUSY
                       ? Error::from_errno(directory, "cannot unmount", EBUSY,
                                           "--lazy detaches it now and ends it with its last user")
                       : done.error());
}

int stats_program(const std::string& directory) {
  auto stats = read_stats(directory, "cannot read counters");
  if (!stats) return fail_with(stats.error());
  if (auto now = drift_now(directory))
    (*stats)["drift_now"] = std::move(*now);
  else
    warn(now.error());
  if (auto written = write_all(STDOUT_FILENO, stats->dump(2) + "\n", "stdout"); !written)
    return fail_with(written.error());
  return exit_done;
}

}  // namespace heddle
