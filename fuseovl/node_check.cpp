// SPDX-License-Identifier: MIT
#include "fuseovl/node_check.hpp"

#include "fuseovl/files/map_file.hpp"
#include "fuseovl/files/origins.hpp"

namespace heddle {

/// Opened here, not asked of the mount: what hangs holds its daemon's threads.
Result<void> check_for_node(const std::string& id, int map, std::chrono::milliseconds limit) {
  const auto file = MapFile::of(map, limit);
  if (!file) return fail(file.error());
  const auto hash = file->hash();
  if (!hash) return fail(hash.error());
  if (hash->hex() != id)
    return fail(file->path(), "cannot use", "it is another map than was asked for");
  auto reader = file->read();
  if (!reader) return fail(std::move(reader.error()));
  auto content = reader->read_all();
  if (!content) return fail(std::move(content.error()));
  const auto origins = open_origins(*content, 0, {limit, false});
  if (origins.drifts.empty()) return {};
  // One that differs is enough, whether others answer or not.
  for (const auto& drift : origins.drifts)
    if (origins.silent != std::optional(drift.object))
      return fail(Error::with_code(ESTALE, file->path(), "does not fit this node",
                                   drift.path + ": " + drift.what));
  const auto& silent = origins.drifts.front();
  return fail(Error::with_code(ETIMEDOUT, silent.path, "cannot be checked", silent.what));
}

}  // namespace heddle
