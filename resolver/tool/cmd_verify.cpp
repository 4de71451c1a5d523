// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/tool/commands.hpp"
#include "resolver/tool/map_json.hpp"

namespace heddle {
namespace {

struct Drift {
  std::string path;
  std::string what;  ///< missing, replaced, changed, unreadable
  std::string detail;
};

/// Size and time first, content when they differ, or when `deep`. dev and ino say nothing: they
/// differ on another node and after a reboot.
std::optional<Drift> check(const MapObject& object) {
  auto fd = open_file(object.path, O_RDONLY | O_NONBLOCK);
  if (!fd) {
    const bool gone = fd.error().code() == ENOENT || fd.error().code() == ENOTDIR;
    return Drift{object.path, gone ? "missing" : "unreadable", fd.error().message()};
  }
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0 || !S_ISREG(st.st_mode))
    return Drift{object.path, "replaced", "no regular file any more"};
  const auto now = file_stamp(st);
  if (now.size != object.stamp.size)
    return Drift{object.path, "changed",
                 fmt::format("size {} was {}", now.size, object.stamp.size)};
  if (now.mtime_ns == object.stamp.mtime_ns) return std::nullopt;
  auto hash = hash_file(fd->get(), object.path);
  if (!hash) return Drift{object.path, "unreadable", hash.error().message()};
  if (*hash == object.hash) return std::nullopt;
  const bool other_file = now.id != object.stamp.id;
  return Drift{object.path, other_file ? "replaced" : "changed",
               fmt::format("content {} was {}", hash->hex(), object.hash.hex())};
}

}  // namespace

int run_verify(const VerifyCommand& command) {
  const auto reader = value_or_throw(MapReader::open(command.map));
  const auto content = value_or_throw(reader.read_all());
  std::vector<Drift> drifts;
  for (const auto& object : content.objects)
    if (auto drift = check(object)) drifts.push_back(std::move(*drift));
  if (command.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const auto& drift : drifts)
      list.push_back({{"path", to_json_text(drift.path)},
                      {"what", drift.what},
                      {"detail", to_json_text(drift.detail)}});
    const nlohmann::ordered_json out = {{"files", content.objects.size()}, {"drift", list}};
    fmt::print("{}\n", out.dump(2));
  } else {
    for (const auto& drift : drifts)
      fmt::print("{}: {}: {}\n", escape_for_terminal(drift.path), drift.what, drift.detail);
    fmt::print("{}: {} of {} files are what they were\n", escape_for_terminal(command.map),
               content.objects.size() - drifts.size(), content.objects.size());
  }
  return drifts.empty() ? exit_done : exit_no;
}

}  // namespace heddle
