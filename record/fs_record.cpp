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

/// `<host>[.<rank>].<pid>.txt` (or .jsonl), so that each rank has its own name in --out-dir.
std::string trace_file_name(bool json) {
  const auto rank = rank_from_environment();
  return fmt::format("{}{}.{}.{}", host_name(), rank ? fmt::format(".{}", *rank) : "", ::getpid(),
                     json ? "jsonl" : "txt");
}

std::string absolute_path(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::absolute(path, ignored).lexically_normal().string();
}

/// Checks and completes the parsed options. Throws CLI::ValidationError for wrong usage, else
/// Error.
void complete(RecordOptions& out, const std::string& out_dir) {
  using Wrong = CLI::ValidationError;
  const bool evaluates = out.summary || !out.slim_dir.empty();
  if (!out.trace.empty()) {
    if (!out.command.empty() || !evaluates)
      throw Wrong("--trace", "needs --summary or --slim, and no program");
    return;
  }
  if (out.command.empty()) throw Wrong("APP", "no program given");
  if (out.out.empty() && out_dir.empty())
    throw Wrong("--out", "no output given: neither --out nor --out-dir");
  if (!out_dir.empty()) {
    if (::mkdir(out_dir.c_str(), 0777) != 0 && errno != EEXIST)
      throw Error::from_errno(out_dir, "cannot make the directory");
    out.out = out_dir + "/" + trace_file_name(out.json);
  }
  if (!named_descriptor(out.out)) out.out = absolute_path(out.out);
  struct stat st {};
  if (evaluates &&
      (named_descriptor(out.out) || (::stat(out.out.c_str(), &st) == 0 && !S_ISREG(st.st_mode))))
    throw Wrong(out.summary ? "--summary" : "--slim", "needs a trace in a regular file");
  if (!out.slim_dir.empty()) out.slim_dir = absolute_path(out.slim_dir);
  for (auto& scope : out.scopes) scope = std::filesystem::canonical(scope).string();
}

/// The options, or the exit status after --help, --version or a usage error.
std::variant<RecordOptions, int> parse_record_options(int argc, const char* const* argv) {
  RecordOptions out;
  std::string out_dir;
  CLI::App app("Run APP and log every access it and its children make to files.", "fs-record");
  set_usage(app, kUsage);
  app.set_version_flag("--version", "fs-record (heddle) " HEDDLE_VERSION);
  app.add_option("--out", out.out,
                 "Write the trace here; an existing file is replaced; -: to stdout")
      ->type_name("FILE");
  app.add_option("--out-dir", out_dir,
                 "Write the trace to this directory, named by host, rank and pid")
      ->type_name("DIR")
      ->excludes("--out");
  const auto add_ops = [&out](const std::vector<std::string>& names) {
    out.recorder.ops.reset();
    for (const auto& name : names) {
      const auto op = trace::op_from_name(name);
      if (!op)
        throw CLI::ValidationError("--op",
                                   "no operation " + name + ": there are " + trace::op_names());
      out.recorder.ops.set(static_cast<std::size_t>(*op));
      out.recorder.each_io |= *op == trace::Op::read || *op == trace::Op::write;
    }
  };
  app.add_option_function<std::vector<std::string>>(
         "--op", add_ops, "Record only these operations: open,lookup,... (repeatable)")
      ->type_name("LIST")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_flag("--io", out.recorder.each_io, "Log each read and write too");
  app.add_option("--scope", out.scopes, "Record only accesses in this directory (repeatable)")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory)
      ->allow_extra_args(false);
  app.add_flag("--json", out.json, "Write JSON lines");
  app.add_flag("--summary", out.summary, "Report on stderr what was accessed most, and the misses");
  app.add_option("--slim", out.slim_dir, "Copy the files that the run used into this directory")
      ->type_name("DIR");
  app.add_option("--trace", out.trace, "Apply --summary and --slim to this trace; run nothing")
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
  out.command = std::move(split.command);
  app.final_callback([&] { complete(out, out_dir); });
  const int status = parse_options(app, std::move(split.options));
  if (status >= 0) return status;
  return out;
}

AppEnd run(const RecordOptions& options) {
  if (!options.trace.empty()) {
    const auto is_complete = evaluate(options, options.trace);
    if (is_complete && *is_complete) return {exit_done};
    report(is_complete ? Error(options.trace, "the trace is incomplete",
                               "what the run did after its end is not in it")
                       : is_complete.error());
    // Without an errno the file is not a trace.
    return {is_complete || is_complete.error().code() != 0 ? exit_failure : exit_usage};
  }
  const auto path = find_program(options.command[0]);
  if (!path) return {report_exec_failure(options.command[0], path.error().code())};
  const auto done = value_or_throw(run_recorded(options, *path));
  for (const auto& file : done.collisions)
    warn(Error(file, "was written by a process outside while the run had it mapped",
               "what one of them wrote may be lost",
               "record both in one recording, or leave its directory native (--scope)"));
  if (!done.trace_failure.empty()) {
    report(Error(options.out, "the trace is incomplete", done.trace_failure));
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
  const auto parsed = parse_record_options(argc, argv);
  if (const int* answered = std::get_if<int>(&parsed)) return *answered;
  return end_like(run(std::get<RecordOptions>(parsed)));
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_main("fs-record", [&] { return heddle::fs_record(argc, argv); });
}
