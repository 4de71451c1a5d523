// SPDX-License-Identifier: MIT
// What fs-mount does with a mount that stands: -u and --stats.

#include <fmt/format.h>
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

namespace {

/// A line for each value; of counters of requests those that are not 0.
std::string as_table(const nlohmann::ordered_json& stats) {
  std::string out;
  const auto text = [](const nlohmann::ordered_json& value) {
    return value.is_string() ? escape_for_terminal(value.get<std::string>()) : value.dump();
  };
  const auto add = [&](const std::string& name, const nlohmann::ordered_json& value) {
    out += fmt::format("{:<22} {}\n", name, text(value));
  };
  for (const auto& [name, value] : stats.items()) {
    if (value.is_object()) {
      for (const auto& [kind, count] : value.items())
        if (count != 0) add(name + "." + kind, count);
    } else if (value.is_array()) {
      for (const auto& entry : value)
        if (entry.is_object())
          add(name, text(entry["path"]) + ": " + text(entry["what"]));
        else
          add(name, entry);
    } else {
      add(name, value);
    }
  }
  return out;
}

}  // namespace

int stats_program(const std::string& directory, bool json) {
  auto stats = read_stats(directory, "cannot read counters");
  if (!stats) return fail_with(stats.error());
  if (auto now = drift_now(directory))
    (*stats)["drift_now"] = std::move(*now);
  else
    warn(now.error());
  const auto text = json ? stats->dump(2) + "\n" : as_table(*stats);
  if (auto written = write_all(STDOUT_FILENO, text, "stdout"); !written)
    return fail_with(written.error());
  return exit_done;
}

}  // namespace heddle
