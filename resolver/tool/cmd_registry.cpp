// SPDX-License-Identifier: MIT
#include <unistd.h>

#include "base/atomic_file.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/oci_helper.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/tool/commands.hpp"

namespace heddle {

int run_push(const PushCommand& command) {
  // A map that no node could use is not spread.
  value_or_throw(value_or_throw(MapReader::open(command.map)).read_all());
  const auto bytes = value_or_throw(read_file(command.map));
  const auto title = command.map.substr(command.map.rfind('/') + 1);
  return value_or_throw(run_oci_client(
      "fs-resolve", {"push", "--type", kMapMediaType, "--title=" + title, "--", command.reference},
      bytes, STDOUT_FILENO));
}

int run_pull(const PullCommand& command) {
  auto file = value_or_throw(AtomicFile::create(command.out));
  const auto status = value_or_throw(run_oci_client(
      "fs-resolve", {"pull", "--type", kMapMediaType, "--", command.reference}, "", file.fd()));
  if (status != exit_done) return status;
  const auto map = MapReader::open(file.temp_path());
  const auto content = map ? map->read_all() : Result<MapContent>(fail(map.error()));
  if (!content) {
    // The temporary name means nothing to anyone.
    auto reason = content.error().message();
    if (reason.starts_with(file.temp_path() + ": ")) reason.erase(0, file.temp_path().size() + 2);
    throw Error(command.reference, "cannot be used", reason, "push it again");
  }
  value_or_throw(file.commit());
  return exit_done;
}

}  // namespace heddle
