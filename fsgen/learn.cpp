// SPDX-License-Identifier: MIT
#include "fsgen/learn.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "fsgen/prepare_map.hpp"

namespace heddle {
namespace {

/// How many names the map has beyond those of the start-up closures.
std::size_t count_libraries(const LearnedRun& run) {
  std::size_t n = 0;
  for (const auto& [path, program] : run) n += program.libraries.size();
  return n;
}

}  // namespace

AppEnd learn(const GenOptions& options, const std::string& app_path,
             const std::function<AppEnd(const GenOptions&)>& run) {
  // Not in the run's own folder: that goes with the mount. Nobody else may write: what stands in
  // the log is what a later run of this user is going to load.
  const auto folder = value_or_throw(TempDir::create("hdl"));
  GenOptions once = options;
  once.out.clear();
  once.learn_log = folder.path() + "/log";
  (void)value_or_throw(open_file(once.learn_log, O_WRONLY | O_CREAT | O_EXCL, 0600));
  const AppEnd end = run(once);
  auto learned = read_learned_run(once.learn_log);
  auto map = learned ? prepare_map(options, app_path, "", *learned)
                     : Result<PreparedMap>(fail(std::move(learned.error())));
  if (!map) {
    report(map.error());
    return end.status == exit_done ? AppEnd{exit_failure} : end;
  }
  if (!options.quiet)
    say(fmt::format("{}: {} program{}, {} names learned in this run",
                    escape_for_terminal(map->path), map->content.programs.size(),
                    map->content.programs.size() == 1 ? "" : "s", count_libraries(*learned)));
  return end;
}

}  // namespace heddle
