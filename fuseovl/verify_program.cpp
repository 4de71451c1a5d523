// SPDX-License-Identifier: MIT
// fs-mount --verify: whether a mount, or a map's files, are what the map says, byte by byte.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "fuseovl/files/bounded_work.hpp"
#include "fuseovl/files/map_file.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/files/patches.hpp"
#include "fuseovl/mount_program.hpp"
#include "fuseovl/session/shared.hpp"
#include "fuseovl/stats_reader.hpp"

namespace heddle {
namespace {

struct Check {
  std::string path;
  ContentHash hash;
  std::vector<BytePatch> patches = {};  ///< that the file at `path` has, and the hash is without
  std::string difference = {};          ///< empty: none
};

/// Every object that has a name in a view, by one of its names below `mount`.
std::vector<Check> checks_of_mount(const MapContent& content, const std::string& mount) {
  std::vector<Check> out;
  std::vector<bool> seen(content.objects.size());
  for (const auto& view : content.views)
    for (const auto& [name, object] : view.names) {
      if (seen[object]) continue;
      seen[object] = true;
      out.push_back({mount + "/" + view.name + "/" + name, content.objects[object].hash,
                     content.objects[object].patches});
    }
  return out;
}

/// Without those of a container's image: whose root is nowhere in the map, and a mount has them.
std::vector<Check> checks_of_map(const MapContent& content) {
  std::vector<Check> out;
  for (const auto& object : content.objects)
    if (!object.in_image) out.push_back({object.path, object.hash});
  return out;
}

std::string difference(const Check& check) {
  const auto file = open_file(check.path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!file) return Error::from_errno({}, "cannot open", file.error().code()).message();
  struct stat status {};
  if (::fstat(file->get(), &status) != 0 || !S_ISREG(status.st_mode)) return "no regular file";
  if (!has_patches(file->get(), check.patches, &BytePatch::after))
    return "it does not have the bytes that the map puts there";
  const auto hash = hash_file(file->get(), {}, [&](std::span<char> bytes, std::uint64_t offset) {
    put_patches(check.patches, &BytePatch::before, bytes, offset);
  });
  if (!hash) return Error::from_errno({}, "cannot read", hash.error().code()).message();
  if (*hash == check.hash) return {};
  return "XXH3-128 is " + hash->hex() + ", the map's is " + check.hash.hex();
}

void run_checks(std::vector<Check>& checks) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < checks.size(); i = next++)
      checks[i].difference = difference(checks[i]);
  };
  // More than cores would not hash faster, but a file system far away answers many at once.
  const auto count = std::clamp(std::thread::hardware_concurrency(), 4U, 16U);
  std::vector<std::jthread> helpers;
  for (unsigned i = 1; i < count; ++i) helpers.emplace_back(work);
  work();
}

/// Whether a folder is at `path`.
Result<bool> is_folder(const std::string& path, std::chrono::milliseconds limit) {
  struct Found {
    int code = 0;
    struct stat status {};
  };
  const Shared<Found> found;
  std::error_code none;
  const auto whole = std::filesystem::absolute(path, none);  // the work's folder is another
  const auto results = do_within(limit, 1, [&](std::size_t, WorkPlace&) {
    if (::stat(whole.c_str(), &found->status) != 0) found->code = errno;
  });
  if (results[0].state != WorkResult::State::done)
    return fail(Error::with_code(ETIMEDOUT, path, "cannot verify", not_answered_for(limit)));
  if (found->code != 0) return fail_errno(path, "cannot verify", found->code);
  return S_ISDIR(found->status.st_mode);
}

Result<MapContent> read_map(const std::string& path, std::chrono::milliseconds limit) {
  const auto map = MapFile::find(path, limit);
  if (!map) return fail(map.error());
  auto reader = map->read();
  if (!reader) return fail(std::move(reader.error()));
  return reader->read_all();
}

Result<std::vector<Check>> find_checks(const std::string& path, bool is_mount,
                                       std::chrono::milliseconds limit) {
  auto content = read_map(is_mount ? path + "/.heddle/map" : path, limit);
  if (!content && is_mount && content.error().code() == ENOENT)
    return fail(path, "cannot verify", "no heddle mount is here");
  if (!content) return fail(std::move(content.error()));
  return is_mount ? checks_of_mount(*content, path) : checks_of_map(*content);
}

/// What is served is right, and its origin may be another all the same: pages that the kernel has
/// cached and staged copies stay what they were.
void say_drift(const std::string& mount) {
  const auto stats = read_stats(mount, "cannot read counters");
  const auto drifts = stats ? stats->value("drift", nlohmann::ordered_json::array()).size() : 0;
  if (drifts > 0)
    say(Error(mount, "serves what the map says",
              std::to_string(drifts) + (drifts == 1 ? " file has" : " files have") +
                  " changed where it was mapped (fs-mount --stats names them)")
            .message());
}

}  // namespace

int verify_program(const std::string& path, std::chrono::milliseconds limit) {
  const auto is_mount = is_folder(path, limit);
  if (!is_mount) return report(is_mount.error()), exit_failure;
  auto checks = find_checks(path, *is_mount, limit);
  if (!checks) return report(checks.error()), exit_failure;
  run_checks(*checks);
  std::string text;
  for (const auto& check : *checks)
    if (!check.difference.empty()) text += Error(check.path, check.difference).message() + "\n";
  if (auto written = write_all(STDOUT_FILENO, text, "stdout"); !written) {
    report(written.error());
    return exit_failure;
  }
  if (!text.empty()) return exit_no;
  if (*is_mount) say_drift(path);
  return exit_done;
}

}  // namespace heddle
