// SPDX-License-Identifier: MIT
#include "record/record_options.hpp"

#include <sys/stat.h>

#include <filesystem>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "record/run_identity.hpp"

namespace heddle {
namespace {

constexpr const char* kUsage = "fs-record [OPTIONS] [--] APP [ARGS...]";

int usage_error(const Error& error) {
  report(error);
  return exit_usage;
}

/// The words as a set; nullopt and the one that is no operation.
std::optional<std::bitset<trace::kOpCount>> parse_ops(const std::vector<std::string>& words,
                                                      std::string& bad) {
  std::bitset<trace::kOpCount> ops;
  for (const auto& word : words) {
    const auto op = trace::op_from_name(word);
    if (!op) {
      bad = word;
      return std::nullopt;
    }
    ops.set(static_cast<std::size_t>(*op));
  }
  return ops;
}

}  // namespace

ParsedRecordOptions parse_record_options(int argc, const char* const* argv) {
  RecordOptions out;
  std::string out_dir;
  std::vector<std::string> ops;
  CLI::App app("Run APP and log every access it and its children make to files.", "fs-record");
  set_usage(app, kUsage);
  app.set_version_flag("--version", "fs-record (heddle) " HEDDLE_VERSION);
  app.add_option("--out", out.out,
                 "Write the trace here; a file that is there is replaced; -: to stdout")
      ->type_name("FILE");
  app.add_option("--out-dir", out_dir, "Write it into this folder, named by host, rank and pid")
      ->type_name("DIR")
      ->excludes("--out");
  app.add_option("--op", ops, "Record only these operations: open,lookup,... (repeatable)")
      ->type_name("LIST")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_flag("--io", out.recorder.each_io,
               "Each read and write an event, not their sum on close");
  app.add_option("--scope", out.scopes, "Record only what lies in this folder (repeatable)")
      ->type_name("DIR")
      ->allow_extra_args(false);
  app.add_flag("--json", out.json, "Write JSON lines");
  app.add_flag("--summary", out.summary, "Tell on stderr what was accessed most, and the misses");
  app.add_option("--slim", out.slim_dir, "Copy the files that the run used into this folder")
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
  app.add_flag("-q,--quiet", out.quiet, "No word on stderr unless something fails");

  auto split = split_command_line(app, argc, argv);
  const int status = parse_options(app, std::move(split.options));
  if (status >= 0) return {std::nullopt, status};
  if (!out.trace.empty()) {
    if (!split.command.empty() || (!out.summary && out.slim_dir.empty()))
      return {std::nullopt,
              usage_error(Error("--trace", "wants --summary or --slim and no program"))};
    return {std::move(out), 0};
  }
  if (split.command.empty())
    return {std::nullopt, usage_error(Error("", "no program named", {}, kUsage))};
  out.command = std::move(split.command);
  if (out.out.empty() && out_dir.empty())
    return {std::nullopt,
            usage_error(Error("", "no place for the trace", "neither --out nor --out-dir"))};
  if (!ops.empty()) {
    std::string bad;
    const auto set = parse_ops(ops, bad);
    if (!set)
      return {std::nullopt, usage_error(Error("--op", "no such operation", bad,
                                              "there are " + trace::op_names()))};
    out.recorder.ops = *set;
  }
  if (!out_dir.empty()) {
    // The ranks of one job race for it.
    if (::mkdir(out_dir.c_str(), 0777) != 0 && errno != EEXIST)
      return {std::nullopt,
              (report(Error::from_errno(out_dir, "cannot make the folder")), exit_failure)};
    out.out = out_dir + "/" + trace_file_name(out.json);
  }
  std::error_code ignored;
  if (!named_descriptor(out.out))
    out.out = std::filesystem::absolute(out.out, ignored).lexically_normal().string();
  struct stat st {};
  if ((out.summary || !out.slim_dir.empty()) &&
      (named_descriptor(out.out) || (::stat(out.out.c_str(), &st) == 0 && !S_ISREG(st.st_mode))))
    return {std::nullopt, usage_error(Error(out.summary ? "--summary" : "--slim",
                                            "wants a trace in a regular file", out.out))};
  if (!out.slim_dir.empty())
    out.slim_dir = std::filesystem::absolute(out.slim_dir, ignored).lexically_normal().string();
  for (auto& scope : out.scopes) {
    std::error_code error;
    const auto real = std::filesystem::canonical(scope, error);
    if (error || !std::filesystem::is_directory(real, error))
      return {std::nullopt, usage_error(Error(scope, "cannot record it", "not a folder"))};
    scope = real.string();
  }
  return {std::move(out), 0};
}

}  // namespace heddle
