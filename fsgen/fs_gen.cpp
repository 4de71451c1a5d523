// SPDX-License-Identifier: MIT
#include "fsgen/fs_gen.hpp"

#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/atomic_file.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "fsgen/compare.hpp"
#include "fsgen/gen_options.hpp"
#include "fsgen/guided_run.hpp"
#include "fsgen/learn.hpp"
#include "resolver/build/app_inputs.hpp"

namespace heddle {
namespace {

constexpr int kCannotExecute = 126;
constexpr int kNotFound = 127;

int exec_failure(const Error& error) {
  report(error);
  return error.code() == ENOENT ? kNotFound : kCannotExecute;
}

Result<void> write_json(const std::string& path, const nlohmann::json& json) {
  auto file = AtomicFile::create(path);
  if (!file) return fail(std::move(file.error()));
  if (auto written = file->write(json.dump(2) + "\n"); !written) return written;
  return file->commit();
}

int tell(const GenOptions& options, const RunReport& done) {
  if (!options.quiet) {
    const std::string text = "fs-gen: " + to_text(done);
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
  }
  if (options.json_file.empty()) return done.exit_status;
  if (auto written = write_json(options.json_file, to_json(done)); !written) {
    report(written.error());
    if (done.exit_status == 0) return exit_failure;
  }
  return done.exit_status;
}

int run(const GenOptions& options) {
  if (options.print_env) return print_env(options.command[0], options.command[1], options.shell);
  const char* path_variable = std::getenv("PATH");
  auto app_path = find_program(options.command[0], path_variable ? path_variable : "/bin:/usr/bin");
  if (!app_path) return exec_failure(app_path.error());
  if (options.learn && options.learn_log.empty()) return learn(options, *app_path, run);
  auto work = value_or_throw(make_work_dir());
  const auto map = value_or_throw(prepare_map(options, *app_path, work.path() + "/map"));
  if (options.compare_runs > 0) return compare(options, *app_path, map);
  const auto done = value_or_throw(run_best(options, *app_path, map, std::move(work)));
  if (done.exec_error != 0)
    return exec_failure(Error::from_errno(options.command[0], "cannot run", done.exec_error));
  return tell(options, done);
}

}  // namespace

int fs_gen(int argc, const char* const* argv) {
  set_program_name("fs-gen");
  const auto parsed = parse_gen_options(argc, argv);
  if (!parsed.options) return parsed.exit_status;
  try {
    return run(*parsed.options);
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

}  // namespace heddle
