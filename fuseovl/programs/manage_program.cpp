// SPDX-License-Identifier: MIT
// fs-mount -u, --stats and --verify.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "fuseovl/files/map_file.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "fuseovl/programs/programs.hpp"
#include "resolver/map/map_reader.hpp"
#include "ship/bundle/frame.hpp"

namespace heddle {
namespace {

/// The files that differ from the mount's map now. Not checked by the daemon, which a file system
/// could block.
Result<nlohmann::ordered_json> drift_now(const std::string& directory) {
  auto reader = TRY(MapReader::open(directory + "/.heddle/map"));
  const auto content = TRY(reader.read_all());
  auto list = nlohmann::ordered_json::array();
  for (const auto& drift : open_origins(content, 0).drifts)
    list.push_back({{"path", to_json_text(drift.path)}, {"what", to_json_text(drift.what)}});
  return list;
}

/// A line for each value; no counters that are 0.
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

/// Every object that has a name in a view, at one of its names below `mount`.
MapContent as_mounted(const MapContent& map, const std::string& mount) {
  MapContent out;
  std::vector<bool> seen(map.objects.size());
  for (const auto& view : map.views)
    for (const auto& [name, object] : view.names) {
      if (seen[object]) continue;
      seen[object] = true;
      out.objects.push_back(map.objects[object]);
      out.objects.back().path = mount + "/" + view.name + "/" + name;
    }
  return out;
}

/// A map or bundle to be verified.
struct Verified {
  MapContent content;
  Fd file;  ///< of a bundle
  std::shared_ptr<const BundleIndex> bundle = nullptr;
};

Result<Verified> read_map(const std::string& path, std::chrono::milliseconds limit) {
  auto map = TRY(MapFile::find(path, limit));
  auto reader = TRY(map.read());
  auto content = TRY(reader.read_all());
  return Verified{std::move(content), std::move(map.bundle), reader.bundle()};
}

/// Cached pages and staged copies may be right while their origins have changed.
void say_drift(const std::string& mount, const Origins& origins) {
  const auto count = std::ranges::count(origins.drifts, false, &Drift::silent);
  if (count > 0)
    say(Error(mount, "serves what the map says",
              std::to_string(count) + (count == 1 ? " file has" : " files have") +
                  " changed where it was mapped (fs-mount --stats names them)")
            .message());
}

/// Its originals, and the kernel's cache, answer for a bundle.
void say_bad_frames(const std::string& mount, const nlohmann::ordered_json& stats) {
  if (stats["bundle"].value("bad", 0) > 0)
    say(Error(mount, "serves what the map says",
              "its bundle is damaged (fs-resolve verify names the frames)")
            .message());
}

}  // namespace

Result<void> unmount(const std::string& directory, bool lazy) {
  const std::string path = TRY(resolve_mount_point(directory));
  const auto mounted = TRY(find_mount(path));
  if (!mounted || mounted->type != kMountType)
    return fail(directory, "cannot unmount", "no heddle mount is here");
  auto done = unmount_fuse(path, lazy ? Unmount::detach : Unmount::now);
  // A dead mount serves no process.
  if (!done && done.error().code() == EBUSY && is_dead(path))
    done = unmount_fuse(path, Unmount::detach);
  // Mounts that exchanges left beneath (before Linux 6.5).
  while (done && is_heddle_mount(path)) done = unmount_fuse(path, Unmount::detach);
  if (done) return {};
  if (::geteuid() != 0 && !mounted->has_option("user_id=" + std::to_string(::geteuid())))
    return fail(directory, "cannot unmount", "the mount belongs to another user");
  if (done.error().code() != EBUSY) return done;
  return fail_errno(directory, "cannot unmount", EBUSY,
                    "--lazy detaches it now and ends it with its last user");
}

Result<void> show_stats(const std::string& directory, bool json) {
  auto stats = TRY(read_stats(directory, "cannot read counters"));
  if (stats.contains("bundle"))  // whose files need not be on this node
    stats["drift_now"] = nlohmann::ordered_json::array();
  else if (auto now = drift_now(directory))
    stats["drift_now"] = std::move(*now);
  else
    warn(now.error());
  return write_all(STDOUT_FILENO, json ? stats.dump(2) + "\n" : as_table(stats), "stdout");
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
  if (!stats.is_object()) return fail(directory, what, "its statistics are invalid");
  return stats;
}

Result<bool> verify(const std::string& path, std::chrono::milliseconds limit) {
  auto map = read_map(path, limit);
  bool is_mount = false;
  nlohmann::ordered_json stats;
  if (!map && (map.error().code() == ENOEXEC || map.error().code() == ENOTCONN)) {  // no file
    // The kernel's cache would answer for a daemon that has died.
    if (auto read = read_stats(path, "cannot verify"))
      stats = std::move(*read);
    else if (read.error().code() == ENOTCONN)
      return fail(std::move(read.error()));
    auto mounted = read_map(path + "/.heddle/map", limit);
    if (!mounted && mounted.error().code() == ENOENT)
      return fail(path, "cannot verify", "no heddle mount is here");
    is_mount = mounted || mounted.error().code() != ENOTDIR;
    if (is_mount) map = std::move(mounted);
  }
  if (!map) return fail(map.error());
  std::error_code none;  // open_origins() works in another directory
  const auto content =
      is_mount ? as_mounted(map->content, std::filesystem::absolute(path, none).string())
               : map->content;
  const auto found = open_origins(content, 0, limit, Compare::content, map->bundle.get());
  const auto count = content.objects.size();
  std::string text;
  for (const auto& drift : found.drifts) text += Error(drift.path, drift.what).message() + "\n";
  text += fmt::format("{}: {} of {} files are what the map says\n", escape_for_terminal(path),
                      count - found.drifts.size(), count);
  std::vector<std::size_t> damaged;
  if (map->bundle) {
    damaged = damaged_frames(map->file.get(), *map->bundle);
    for (const auto number : damaged)
      text +=
          Error(path, fmt::format("frame {}", number), "other bytes than were packed").message() +
          "\n";
    text += fmt::format("{}: {} of {} frames are as they were packed\n", escape_for_terminal(path),
                        map->bundle->frames.size() - damaged.size(), map->bundle->frames.size());
  }
  TRY(write_all(STDOUT_FILENO, text, "stdout"));
  if (const auto silent = std::ranges::count(found.drifts, true, &Drift::silent); silent > 0)
    return fail(path, "cannot be verified",
                fmt::format("{} of {} files did not answer", silent, count),
                "--origin-timeout says how long to wait");
  if (!found.drifts.empty() || !damaged.empty()) return false;
  if (!is_mount) return true;
  if (stats.contains("bundle"))
    say_bad_frames(path, stats);
  else
    say_drift(path, open_origins(map->content, 0, limit));
  return true;
}

}  // namespace heddle
