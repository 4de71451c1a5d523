// SPDX-License-Identifier: MIT
// fs-mount --verify: whether a mount, or a map's files, are what the map says, byte by byte.

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "fuseovl/files/file_work.hpp"
#include "fuseovl/files/map_file.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/programs/programs.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {
namespace {

struct Check {
  std::string path;
  ContentHash hash;
};

/// Every object that has a name in a view, by one of its names below `mount`.
std::vector<Check> checks_of_mount(const MapContent& content, const std::string& mount) {
  std::vector<Check> out;
  std::vector<bool> seen(content.objects.size());
  for (const auto& view : content.views)
    for (const auto& [name, object] : view.names) {
      if (seen[object]) continue;
      seen[object] = true;
      out.push_back({mount + "/" + view.name + "/" + name, content.objects[object].hash});
    }
  return out;
}

std::vector<Check> checks_of_map(const MapContent& content) {
  std::vector<Check> out;
  for (const auto& object : content.objects) out.push_back({object.path, object.hash});
  return out;
}

/// What was found where a file should be.
struct Finding {
  enum class What : std::uint8_t {
    as_mapped,
    cannot_open,
    no_regular_file,
    cannot_read,
    other_content,
  };
  What what = What::as_mapped;
  int code = 0;  ///< errno
  ContentHash hash;
};

Finding look_at(const Check& check, const std::string& path, WorkPlace& place) {
  const auto file = open_regular(path);
  if (!file && (file.error().code() == ENOEXEC || file.error().code() == EISDIR))
    return {Finding::What::no_regular_file, 0, {}};
  if (!file) return {Finding::What::cannot_open, file.error().code(), {}};
  const auto hash = hash_file(file->get(), {}, [&] { place.moves_on(); });
  if (!hash) return {Finding::What::cannot_read, hash.error().code(), {}};
  return {*hash == check.hash ? Finding::What::as_mapped : Finding::What::other_content, 0, *hash};
}

/// Empty: there is none.
std::string difference(const Finding& found, const Check& check) {
  switch (found.what) {
    case Finding::What::as_mapped:
      return {};
    case Finding::What::cannot_open:
      return Error::from_errno({}, "cannot open", found.code).message();
    case Finding::What::no_regular_file:
      return "no regular file";
    case Finding::What::cannot_read:
      return Error::from_errno({}, "cannot read", found.code).message();
    case Finding::What::other_content:
      return "SHA-256 is " + found.hash.hex() + ", the map's is " + check.hash.hex();
  }
  return {};
}

struct Outcome {
  std::string lines;       ///< one for each file that differs or does not answer
  std::size_t silent = 0;  ///< files that do not answer
  std::size_t right = 0;   ///< files that are what the map says
};

Outcome run_checks(const std::vector<Check>& checks, std::chrono::milliseconds limit) {
  std::error_code none;
  const auto here = std::filesystem::current_path(none);  // the work's directory is another
  const SharedArray<Finding> found(checks.size());
  std::vector<std::string> paths;
  for (const auto& check : checks) paths.push_back((here / check.path).string());
  const auto results = work_on_files(
      checks.size(),
      {.limit = limit,
       .work = [&](std::size_t i,
                   WorkPlace& place) { found[i] = look_at(checks[i], paths[i], place); },
       .path_of = [&](std::size_t i) { return std::string_view(paths[i]); }});
  Outcome out;
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const bool is_silent = results[i].state != WorkResult::State::done;
    out.silent += is_silent;
    const auto what = is_silent ? not_answered_for(limit) : difference(found[i], checks[i]);
    out.right += what.empty();
    if (!what.empty()) out.lines += Error(checks[i].path, what).message() + "\n";
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
  if (!asked && asked.error().cause() == Cause::silent)
    return fail(path, "cannot verify", not_answered_for(limit));
  if (!asked) return fail(asked.error());
  return S_ISDIR(status->st_mode);
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
  const auto is_mount = is_directory(path, limit);
  if (!is_mount) return report(is_mount.error()), exit_failure;
  const auto checks = find_checks(path, *is_mount, limit);
  if (!checks) return report(checks.error()), exit_failure;
  const auto outcome = run_checks(*checks, limit);
  const auto sum = fmt::format("{}: {} of {} files are what the map says\n",
                               escape_for_terminal(path), outcome.right, checks->size());
  if (auto written = write_all(STDOUT_FILENO, outcome.lines + sum, "stdout"); !written) {
    report(written.error());
    return exit_failure;
  }
  if (outcome.silent > 0) {
    report(Error(path, "cannot be verified",
                 std::to_string(outcome.silent) + " of " + std::to_string(checks->size()) +
                     " files did not answer",
                 "--origin-timeout says how long to wait"));
    return exit_failure;
  }
  if (!outcome.lines.empty()) return exit_no;
  if (*is_mount) say_drift(path);
  return exit_done;
}

}  // namespace heddle
