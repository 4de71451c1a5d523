// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <variant>

#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/run_main.hpp"
#include "record/recorded_run.hpp"

namespace heddle {
namespace {

constexpr const char* kUsage = "fs-record [OPTIONS] [--] APP [ARGS...]";

/// The command line is wrong.
struct UsageError {
  Error error;
};

/// `<host>[.<rank>].<pid>.txt` (or .jsonl): one name a rank in a shared directory.
std::string trace_file_name(bool json) {
  const auto rank = rank_from_environment();
  return fmt::format("{}{}.{}.{}", host_name(), rank ? fmt::format(".{}", *rank) : "", ::getpid(),
                     json ? "jsonl" : "txt");
}

std::bitset<trace::kOpCount> parse_ops(const std::vector<std::string>& words) {
  std::bitset<trace::kOpCount> ops;
  for (const auto& word : words) {
    const auto op = trace::op_from_name(word);
    if (!op)
      throw UsageError{Error("--op", "no such operation", word, "there are " + trace::op_names())};
    ops.set(static_cast<std::size_t>(*op));
  }
  return ops;
}

/// `path` of a directory, real. Throws UsageError.
std::string real_directory(const std::string& path) {
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  if (error || !std::filesystem::is_directory(real, error))
    throw UsageError{Error(path, "cannot record it", "not a directory")};
  return real.string();
}

std::string absolute_path(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::absolute(path, ignored).lexically_normal().string();
}

/// The options, or the exit status of a call that has been answered: help, version. Throws
/// UsageError, and Error for what else fails.
std::variant<RecordOptions, int> parse_record_options(int argc, const char* const* argv) {
  RecordOptions out;
  std::string out_dir;
  std::vector<std::string> ops;
  CLI::App app("Run APP and log every access it and its children make to files.", "fs-record");
  set_usage(app, kUsage);
  app.set_version_flag("--version", "fs-record (heddle) " HEDDLE_VERSION);
  app.add_option("--out", out.out,
                 "Write the trace here; a file that is there is replaced; -: to stdout")
      ->type_name("FILE");
  app.add_option("--out-dir", out_dir, "Write it into this directory, named by host, rank and pid")
      ->type_name("DIR")
      ->excludes("--out");
  app.add_option("--op", ops, "Record only these operations: open,lookup,... (repeatable)")
      ->type_name("LIST")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_flag("--io", out.recorder.each_io,
               "Each read and write an event, not their sum on close");
  app.add_option("--scope", out.scopes, "Record only what lies in this directory (repeatable)")
      ->type_name("DIR")
      ->allow_extra_args(false);
  app.add_flag("--json", out.json, "Write JSON lines");
  app.add_flag("--summary", out.summary, "Report on stderr what was accessed most, and the misses");
  app.add_option("--slim", out.slim_dir, "Copy the files that the run used into this directory")
      ->type_name("DIR");
  app.add_option("--trace", out.trace, "Make --summary and --slim from this trace; run nothing")
      ->type_name("FILE")
      ->excludes("--out");
  add_choice<RecordVia>(app, "--via", out.via,
                        {{"best", RecordVia::best},
                         {"mount", RecordVia::mount},
                         {"user", RecordVia::user},
                         {"proot", RecordVia::proot}},
                        "Mount namespace (root), user namespace, or proot; best (default) takes "
                        "the first that works");
  app.add_flag("-q,--quiet", out.quiet, "Print nothing on stderr unless something fails");

  auto split = split_command_line(app, argc, argv);
  const int status = parse_options(app, std::move(split.options));
  if (status >= 0) return status;
  if (!out.trace.empty()) {
    if (!split.command.empty() || (!out.summary && out.slim_dir.empty()))
      throw UsageError{Error("--trace", "wants --summary or --slim and no program")};
    return out;
  }
  if (split.command.empty()) throw UsageError{Error("", "no program named", {}, kUsage)};
  out.command = std::move(split.command);
  if (out.out.empty() && out_dir.empty())
    throw UsageError{Error("", "no place for the trace", "neither --out nor --out-dir")};
  if (!ops.empty()) out.recorder.ops = parse_ops(ops);
  if (!out_dir.empty()) {
    // The ranks of one job race for it.
    if (::mkdir(out_dir.c_str(), 0777) != 0 && errno != EEXIST)
      throw Error::from_errno(out_dir, "cannot make the directory");
    out.out = out_dir + "/" + trace_file_name(out.json);
  }
  if (!named_descriptor(out.out)) out.out = absolute_path(out.out);
  struct stat st {};
  if ((out.summary || !out.slim_dir.empty()) &&
      (named_descriptor(out.out) || (::stat(out.out.c_str(), &st) == 0 && !S_ISREG(st.st_mode))))
    throw UsageError{
        Error(out.summary ? "--summary" : "--slim", "wants a trace in a regular file", out.out)};
  if (!out.slim_dir.empty()) out.slim_dir = absolute_path(out.slim_dir);
  for (auto& scope : out.scopes) scope = real_directory(scope);
  return out;
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

int fs_record(int argc, const char* const* argv) {
  return run_main("fs-record", [&] {
    try {
      const auto parsed = parse_record_options(argc, argv);
      if (const int* answered = std::get_if<int>(&parsed)) return *answered;
      return end_like(run(std::get<RecordOptions>(parsed)));
    } catch (const UsageError& wrong) {
      report(wrong.error);
      return static_cast<int>(exit_usage);
    }
  });
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) { return heddle::fs_record(argc, argv); }
