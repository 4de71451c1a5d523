// SPDX-License-Identifier: MIT
#include "fsgen/fs_gen.hpp"

#include <nlohmann/json.hpp>

#include "base/atomic_file.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_end.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/signal_cleanup.hpp"
#include "base/standard_fds.hpp"
#include "fsgen/compare.hpp"
#include "fsgen/gen_options.hpp"
#include "fsgen/guided_run.hpp"
#include "fsgen/learn.hpp"
#include "fuseovl/files/stage_directory.hpp"

namespace heddle {
namespace {

AppEnd tell(const GenOptions& options, const RunReport& done, OutputFile* json) {
  if (!options.quiet) say_text("fs-gen: " + to_text(done));
  if (!json) return done.end;
  const SigpipeHeld held;
  if (auto written = json->write(to_json(done).dump(2) + "\n"); !written) {
    report(written.error());
    if (done.end.status == 0) return {exit_failure};
  }
  return done.end;
}

/// Whether he who asked for this wants his program run in any case.
bool can_do_without(const GenOptions& o) {
  return o.via == Via::best && o.loader == LoaderKind::audit && o.map.empty() && o.out.empty() &&
         o.plugin_folders.empty() && o.compare_runs == 0 && !o.learn;
}

AppEnd run(const GenOptions& options, OutputFile* json) {
  auto app_path = find_program(options.command[0]);
  if (!app_path) return {report_exec_failure(options.command[0], app_path.error().code())};
  if (options.learn && options.learn_log.empty())
    return learn(options, *app_path, [&](const GenOptions& once) { return run(once, json); });
  auto work = make_work_dir();
  auto map = work ? prepare_map(options, *app_path, work->path() + "/map")
                  : Result<PreparedMap>(fail(Error(work.error())));
  if (map && options.compare_runs > 0) return compare(options, *app_path, *map, json);
  auto done = map ? run_best(options, *app_path, *map, std::move(*work))
                  : Result<RunReport>(fail(Error(map.error())));
  if (!done) {
    if (!can_do_without(options)) throw Error(done.error());
    const Error why = done.error();
    warn(Error("", why.message(), "going on without heddle", why.hint()));
    done = value_or_throw(run_plain(options, *app_path, why.message()));
  }
  if (done->exec_error != 0) return {report_exec_failure(options.command[0], done->exec_error)};
  return tell(options, *done, json);
}

/// The daemon, which nobody hears, stages nothing then.
void tell_of_stage(const std::string& directory) {
  if (directory.empty()) return;
  if (const auto folder = StageDirectory::open(directory); !folder) warn(folder.error());
}

/// Before APP runs: what could only be said after it would come too late.
std::optional<OutputFile> prepare_outputs(const GenOptions& options) {
  if (!options.out.empty()) (void)value_or_throw(AtomicFile::create(options.out));
  if (options.json_file.empty()) return std::nullopt;
  return value_or_throw(OutputFile::prepare(options.json_file));
}

}  // namespace

int fs_gen(int argc, const char* const* argv) {
  set_program_name("fs-gen");
  reserve_standard_fds();
  const auto parsed = parse_gen_options(argc, argv);
  if (!parsed.options) return parsed.exit_status;
  const GenOptions& options = *parsed.options;
  clean_up_on_signals();
  try {
    if (options.print_env) return print_env(options.command[0], options.command[1], options.shell);
    auto json = prepare_outputs(options);
    tell_of_stage(options.stage);
    return end_like(run(options, json ? &*json : nullptr));
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

}  // namespace heddle
