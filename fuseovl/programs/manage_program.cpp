// SPDX-License-Identifier: MIT
// What fs-mount does with a mount that stands: -u and --stats.

#include <fmt/format.h>
#include <unistd.h>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "fuseovl/programs/programs.hpp"
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
  auto reader = TRY(MapReader::open(directory + "/.heddle/map"));
  const auto content = TRY(reader.read_all());
  auto list = nlohmann::ordered_json::array();
  for (const auto& drift : open_origins(content, 0).drifts)
    list.push_back({{"path", to_json_text(drift.path)}, {"what", to_json_text(drift.what)}});
  return list;
}

Result<void> unmount(const std::string& directory, bool lazy) {
  const std::string path = TRY(resolve_mount_point(directory));
  const auto mounted = TRY(find_mount(path));
  if (!mounted || mounted->type != kMountType)
    return fail(directory, "cannot unmount", "no heddle mount is here");
  auto done = unmount_fuse(path, lazy ? Unmount::detach : Unmount::now);
  // A dead mount serves nobody: processes that still use it lose nothing.
  if (!done && done.error().code() == EBUSY && is_dead(path))
    done = unmount_fuse(path, Unmount::detach);
  // Those that exchanges left beneath (before Linux 6.5) serve only their users.
  while (done && is_heddle_mount(path)) done = unmount_fuse(path, Unmount::detach);
  if (done) return {};
  if (::geteuid() != 0 && !mounted->has_option("user_id=" + std::to_string(::geteuid())))
    return fail(directory, "cannot unmount", "it is a mount of another user's");
  if (done.error().code() != EBUSY) return done;
  return fail_errno(directory, "cannot unmount", EBUSY,
                    "--lazy detaches it now and ends it with its last user");
}

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

int unmount_program(const std::string& directory, bool lazy) {
  const auto done = unmount(directory, lazy);
  return done ? int{exit_done} : fail_with(done.error());
}

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

Result<nlohmann::ordered_json> read_stats(const std::string& directory, std::string_view what) {
  const auto text =
      text_from_child(std::chrono::seconds(10), [&] { return read_stats_text(directory); });
  if (!text) {
    const int code = text.error().code();
    if (code == ENOENT || code == ENOTDIR || code == ENODATA || code == EOPNOTSUPP)
      return fail(directory, what, "no heddle mount is here");
    const char* hint = code == ENOTCONN ? "its daemon has died: unmount it with fs-mount -u" : "";
    return fail_errno(directory, what, code, hint);
  }
  auto stats = nlohmann::ordered_json::parse(*text, nullptr, false);
  if (!stats.is_object()) return fail(directory, what, "its counters cannot be understood");
  return stats;
}

}  // namespace heddle
