// SPDX-License-Identifier: MIT
// fs-mount --verify: whether a mount, or a map's files, are what the map says, byte by byte.

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "fuseovl/files/map_file.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/programs/programs.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {
namespace {

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

/// Whether a directory is at `path`.
Result<bool> is_directory(const std::string& path, std::chrono::milliseconds limit) {
  const Shared<struct stat> status;
  const auto asked = run_in_child(limit, {}, [&]() -> Result<void> {
    if (::stat(path.c_str(), &*status) != 0) return fail_errno(path, "cannot verify");
    return {};
  });
  if (!asked && asked.error().code() == ETIMEDOUT)
    return fail(Error::with_code(ETIMEDOUT, path, "cannot verify", not_answered_for(limit)));
  if (!asked) return fail(asked.error());
  return S_ISDIR(status->st_mode);
}

Result<MapContent> read_map(const std::string& path, std::chrono::milliseconds limit) {
  const auto map = TRY(MapFile::find(path, limit));
  auto reader = TRY(map.read());
  return reader.read_all();
}

/// What is served is right, and its origin may be another all the same: pages that the kernel has
/// cached and staged copies stay what they were.
void say_drift(const std::string& mount, const Origins& origins) {
  const auto count = origins.drifts.size();
  if (count > 0)
    say(Error(mount, "serves what the map says",
              std::to_string(count) + (count == 1 ? " file has" : " files have") +
                  " changed where it was mapped (fs-mount --stats names them)")
            .message());
}

Result<int> verify(const std::string& path, std::chrono::milliseconds limit) {
  const bool is_mount = TRY(is_directory(path, limit));
  const auto map = read_map(is_mount ? path + "/.heddle/map" : path, limit);
  if (!map && is_mount && map.error().code() == ENOENT)
    return fail(path, "cannot verify", "no heddle mount is here");
  if (!map) return fail(map.error());
  std::error_code none;  // the files are opened by a process whose directory is another
  const auto content =
      is_mount ? as_mounted(*map, std::filesystem::absolute(path, none).string()) : *map;
  const auto found = open_origins(content, 0, {limit, true}, Compare::content);
  const auto count = content.objects.size();
  std::string text;
  for (const auto& drift : found.drifts) text += Error(drift.path, drift.what).message() + "\n";
  text += fmt::format("{}: {} of {} files are what the map says\n", escape_for_terminal(path),
                      count - found.drifts.size(), count);
  TRY(write_all(STDOUT_FILENO, text, "stdout"));
  if (const auto silent = std::ranges::count_if(found.drifts, &Drift::silent); silent > 0)
    return fail(path, "cannot be verified",
                fmt::format("{} of {} files did not answer", silent, count),
                "--origin-timeout says how long to wait");
  if (!found.drifts.empty()) return exit_no;
  if (is_mount) say_drift(path, open_origins(*map, 0, {limit, true}));
  return exit_done;
}

}  // namespace

int verify_program(const std::string& path, std::chrono::milliseconds limit) {
  const auto status = verify(path, limit);
  if (!status) report(status.error());
  return status ? *status : int{exit_failure};
}

}  // namespace heddle
