// SPDX-License-Identifier: MIT
#include "resolver/build/map_builder.hpp"

#include <sys/stat.h>

#include <array>
#include <optional>

#include "base/fd.hpp"
#include "base/file_stamp.hpp"
#include "base/try.hpp"
#include "resolver/map/index_writer.hpp"
#include "resolver/map/learn_format.hpp"

namespace heddle {
namespace {

std::optional<FileId> id_of(const std::string& path) {
  struct stat st {};
  if (path.empty() || path[0] != '/' || ::stat(path.c_str(), &st) != 0) return std::nullopt;
  return file_id(st);
}

void add_library(LearnedProgram& program, const std::string& name, const std::string& path) {
  if (name.empty() || !is_plain_name(name) || program.ambiguous.contains(name)) return;
  const auto id = id_of(path);
  if (!id) return;  // gone again, as a temporary file
  const auto [known, is_new] = program.libraries.emplace(name, path);
  if (is_new || known->second == path || id_of(known->second) == id) return;
  program.libraries.erase(known);
  program.ambiguous.insert(name);
}

}  // namespace

Result<LearnedRun> read_learned_run(const std::string& path) {
  const auto log = TRY(read_file(path));
  LearnedRun out;
  std::array<std::string, 4> record;
  std::size_t field = 0;
  for (std::size_t at = 0;;) {
    const std::size_t end = log.find('\0', at);
    if (end == std::string::npos) break;
    record[field++] = log.substr(at, end - at);
    at = end + 1;
    if (field < record.size()) continue;
    field = 0;
    const auto& [kind, program, name, file] = record;
    if (kind == learn_format::kProgram)
      out[program];
    else if (kind == learn_format::kLibrary)
      add_library(out[program], name, file);
    else
      break;  // not ours, or no longer in step
  }
  return out;
}

}  // namespace heddle
