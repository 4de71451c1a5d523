// SPDX-License-Identifier: MIT
#include "record/fs_record.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/log.hpp"
#include "base/standard_fds.hpp"
#include "record/record_options.hpp"
#include "record/recorded_run.hpp"
#include "record/slim_copy.hpp"
#include "record/summary.hpp"

namespace heddle {
namespace {

/// What is made from a trace.
Result<void> evaluate(const RecordOptions& options, const std::string& trace) {
  if (options.summary) {
    Summary summary;
    if (auto read = trace::read_trace(trace, summary); !read) return read;
    if (auto told = write_all(STDERR_FILENO, summary.text(), "stderr"); !told) return told;
  }
  if (options.slim_dir.empty()) return {};
  UsedFiles used;
  if (auto read = trace::read_trace(trace, used); !read) return read;
  auto made = copy_slim(used, options.slim_dir);
  if (!made) return fail(std::move(made.error()));
  if (options.quiet) return {};
  auto text = fmt::format("{}: {} files, {} links, {:.1f} MB", options.slim_dir, made->files,
                          made->links, static_cast<double>(made->bytes) / 1e6);
  if (made->all_files != 0)
    text +=
        fmt::format(": {:.2f} % of the {} files on the root's file system",
                    100.0 * static_cast<double>(made->files) / static_cast<double>(made->all_files),
                    made->all_files);
  say(text);
  return {};
}

AppEnd run(const RecordOptions& options) {
  if (!options.trace.empty()) {
    auto done = evaluate(options, options.trace);
    if (done) return {exit_done};
    report(done.error());
    // An errno, or it is no trace.
    return {done.error().code() != 0 ? exit_failure : exit_usage};
  }
  const auto path = find_program(options.command[0]);
  if (!path) return {report_exec_failure(options.command[0], path.error().code())};
  const auto done = value_or_throw(run_recorded(options, *path));
  if (!done.trace_failure.empty()) {
    report(Error(options.out, "the trace is not whole", done.trace_failure));
    return {exit_failure};
  }
  if (done.exec_error != 0) return {report_exec_failure(options.command[0], done.exec_error)};
  if (done.left_running)
    warn("processes that the program left behind still run; what they do now is not recorded");
  if (!options.quiet)
    say(fmt::format("{} events in {}", done.events, escape_for_terminal(options.out)));
  if (auto evaluated = evaluate(options, options.out); !evaluated) {
    report(evaluated.error());
    return {exit_failure};
  }
  return done.end;
}

}  // namespace

int fs_record(int argc, const char* const* argv) {
  set_program_name("fs-record");
  reserve_standard_fds();
  const auto parsed = parse_record_options(argc, argv);
  if (!parsed.options) return parsed.exit_status;
  try {
    return end_like(run(*parsed.options));
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

}  // namespace heddle
