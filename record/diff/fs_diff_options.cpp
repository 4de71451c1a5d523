// SPDX-License-Identifier: MIT
#include "record/diff/fs_diff_options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "base/command_line.hpp"

namespace heddle {
namespace {

constexpr const char* kFooter =
    "A file with several runs: FILE#2 names its second. FILE - is stdin.\n"
    "Exit status: 0 the same, 1 different, 2 trouble. See fs-diff(1).";

/// What CLI11 fills in and check() turns into options.
struct Raw {
  std::vector<std::string> maps, ops;
  std::string by, max_distance, colour = "auto";
  int unified = 3, unified_flag = 3, context = 3, context_flag = 3;
  bool raw = false, no_script = false;
  std::int64_t local = -1;
  int match = 1, mismatch = -1, gap_open = -1, gap_extend = -1;
};

void add_rules(CLI::App& app, FsDiffOptions& o, Raw& raw) {
  const char* group = "What counts";
  auto& n = o.rules.normalise;
  app.add_option("--op", raw.ops, "Only these operations, as open,lookup")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("LIST")
      ->group(group);
  add_choice<std::string>(app, "--by", raw.by, {{"process", "process"}}, "Compare in parts")
      ->group(group);
  app.add_flag("--collapse", o.rules.collapse, "The same event many times in a row counts once")
      ->group(group);
  app.add_option("--map", raw.maps, "Take folder FROM for TO (repeatable)")
      ->type_name("FROM=TO")
      ->allow_extra_args(false)
      ->group(group);
  app.add_flag("--soname,!--no-soname", n.soname, "libx.so.1.2 is libx.so.1 (on)")->group(group);
  app.add_flag("--pid,!--no-pid", n.pid, "Process numbers are alike (on)")->group(group);
  app.add_flag("--temp,!--no-temp", n.temp, "Random names of temporary files are alike (on)")
      ->group(group);
  app.add_flag("--hash,!--no-hash", n.hash, "Hashes in Spack's and Nix's folders are alike (on)")
      ->group(group);
  app.add_flag("--result,!--no-result", o.rules.result, "A miss is not a hit (on)")->group(group);
  app.add_flag("--late,!--no-late", o.rules.late,
               "Closes and what is counted by then do not count: their order is the kernel's (on)")
      ->group(group);
  app.add_flag("--resolved,!--no-resolved", o.rules.resolved,
               "Paths after symlinks, where the trace has them (off)")
      ->group(group);
  app.add_flag("--raw", raw.raw, "All normalisers off; those named beside it stay on")
      ->group(group);
  app.add_flag("--partial", o.read.accept_cut_line,
               "Read a trace whose last line is cut up to there")
      ->group(group);
}

void add_output(CLI::App& app, FsDiffOptions& o, Raw& raw) {
  const char* group = "Output";
  app.add_flag("-u{3},--unified{3}", raw.unified_flag,
               "Unified script with 3 events of context (default)")
      ->group(group);
  app.add_option("-U", raw.unified, "Unified script with N events of context")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app.add_flag("-c{3},--context{3}", raw.context_flag, "Context script with 3 events of context")
      ->group(group);
  app.add_option("-C", raw.context, "Context script with N events of context")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app.add_flag("--summary", raw.no_script, "No script, only what it comes to")->group(group);
  add_choice<std::string>(app, "--color,--colour", raw.colour,
                          {{"auto", "auto"}, {"always", "always"}, {"never", "never"}},
                          "Colours (auto: on a terminal)")
      ->group(group);
  app.add_flag("--json", o.json, "One JSON object instead of text")->group(group);
  app.add_option("--html", o.html, "Write a page for browsers to FILE, too")
      ->type_name("FILE")
      ->group(group);
  app.add_flag("-q,--quiet", o.quiet, "No output, only the exit status")->group(group);
  app.add_option("--times", o.compare.time_count, "Entries of each list of the time view (5)")
      ->type_name("N")
      ->group(group);
}

void add_local(CLI::App& app, Raw& raw) {
  const char* group = "Local alignment (Smith-Waterman)";
  app.add_option("--local", raw.local, "The K best; 0: none (1, where it takes about a second)")
      ->type_name("K")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app.add_option("--match", raw.match, "What a match gains (1)")->type_name("N")->group(group);
  app.add_option("--mismatch", raw.mismatch, "What a mismatch costs (-1)")
      ->type_name("N")
      ->group(group);
  app.add_option("--gap-open", raw.gap_open, "What a gap's first event costs (-1)")
      ->type_name("N")
      ->group(group);
  app.add_option("--gap-extend", raw.gap_extend, "What each further one costs (-1)")
      ->type_name("N")
      ->group(group);
}

/// Costs may be written as 1 or as -1.
std::int32_t cost(int value) { return value < 0 ? (value == INT_MIN ? INT_MAX : -value) : value; }

void check_style(FsDiffOptions& o, const Raw& raw, const CLI::App& app) {
  const bool context = app.count("-C") + app.count("--context") > 0;
  o.report.style = raw.no_script ? diff::ScriptStyle::none
                   : context     ? diff::ScriptStyle::context
                                 : diff::ScriptStyle::unified;
  // CLI11 clears a flag's variable: only its count says whether it was given.
  const auto set = [&](const char* exact, int n, const char* flag, int by_flag) {
    if (app.count(exact) > 0) o.report.context = static_cast<std::uint32_t>(n);
    if (app.count(flag) > 0) o.report.context = static_cast<std::uint32_t>(std::max(by_flag, 0));
  };
  context ? set("-C", raw.context, "--context", raw.context_flag)
          : set("-U", raw.unified, "--unified", raw.unified_flag);
  const char* term = std::getenv("TERM");
  const char* no_colour = std::getenv("NO_COLOR");  // https://no-color.org
  const bool able = ::isatty(STDOUT_FILENO) == 1 &&
                    (term == nullptr || std::string_view(term) != "dumb") &&
                    (no_colour == nullptr || *no_colour == '\0');
  o.report.colour = raw.colour == "always" || (raw.colour == "auto" && able);
}

/// Throws CLI::ValidationError for what CLI11 cannot know.
void check(FsDiffOptions& o, const Raw& raw, const CLI::App& app) {
  auto& n = o.rules.normalise;
  if (raw.raw) {
    const auto off_unless_named = [&](bool& rule, const char* name) {
      rule = rule && app.count(name) > 0;
    };
    off_unless_named(n.soname, "--soname");
    off_unless_named(n.pid, "--pid");
    off_unless_named(n.temp, "--temp");
    off_unless_named(n.hash, "--hash");
    off_unless_named(o.rules.late, "--late");
  }
  for (const std::string& map : raw.maps)
    if (const auto added = n.add_map(map); !added)
      throw CLI::ValidationError("--map", added.error().message());
  for (const std::string& name : raw.ops) {
    const auto op = trace::op_from_name(name);
    if (!op)
      throw CLI::ValidationError("--op",
                                 "no such operation: " + name + "; there are " + trace::op_names());
    o.rules.ops.push_back(*op);
    o.report.ops.push_back(name);
  }
  if (!raw.max_distance.empty()) {
    auto limit = parse_limit(raw.max_distance);
    if (!limit) throw CLI::ValidationError("--max-distance", limit.error().message());
    o.max_distance = *limit;
  }
  if (o.matrix && !o.baseline.empty())
    throw CLI::ValidationError("--matrix", "cannot go with --baseline");
  const std::size_t files = o.files.size();
  if (o.matrix ? files < 1 : o.baseline.empty() ? files != 2 : files != 1)
    throw CLI::ValidationError(
        "FILES", o.matrix             ? "--matrix needs traces"
                 : o.baseline.empty() ? fmt::format("two traces are compared, {} given", files)
                                      : fmt::format("one new trace is judged, {} given", files));
  if (!o.baseline.empty() && !o.html.empty())
    throw CLI::ValidationError("--html", "cannot go with --baseline");
  o.compare.by_process = o.report.by_process = raw.by == "process";
  if (raw.local >= 0) o.compare.local_count = static_cast<std::size_t>(raw.local);
  o.compare.scores = {raw.match, cost(raw.mismatch), cost(raw.gap_open), cost(raw.gap_extend)};
  o.report.scores = o.compare.scores;
  o.report.rules = o.rules.names();
  check_style(o, raw, app);
}

}  // namespace

Result<DistanceLimit> parse_limit(const std::string& text) {
  DistanceLimit limit;
  const bool percent = text.ends_with('%');
  const char* end = text.data() + text.size() - percent;
  const auto parsed = std::from_chars(text.data(), end, limit.value);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(limit.value >= 0) || limit.value > 4e9)
    return fail(text, "not a distance", "a number of edits, or a share as 0.05 or 5% expected");
  limit.share = percent || text.find('.') != std::string::npos;
  if (percent) limit.value /= 100;
  if (limit.share && limit.value > 1) return fail(text, "not a share", "it is above 1");
  return limit;
}

std::variant<FsDiffOptions, int> parse_fs_diff(int argc, char** argv) {
  FsDiffOptions o;
  Raw raw;
  CLI::App app(
      "Compares runs that fs-record (or compat-lib) wrote: the exact edit distance, the "
      "script, the best local alignments, the times.",
      "fs-diff");
  app.footer(kFooter);
  set_usage(app,
            "fs-diff [OPTIONS] A B\n       fs-diff [OPTIONS] --matrix FILES...\n"
            "       fs-diff [OPTIONS] --baseline DIR FILE");
  app.set_version_flag("--version", "fs-diff (heddle) " HEDDLE_VERSION);
  app.add_option("FILES", o.files, "Traces: two, or many with --matrix, or one with --baseline");
  app.add_flag("--matrix", o.matrix, "Compare each with each: distances, tree, outliers");
  app.add_option("--baseline", o.baseline,
                 "Is the one trace outside what the traces in DIR do among themselves?")
      ->type_name("DIR");
  app.add_option("--max-distance", raw.max_distance, "Up to D edits (or 0.05, or 5%) is the same")
      ->type_name("D");
  add_rules(app, o, raw);
  add_output(app, o, raw);
  add_local(app, raw);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  try {
    check(o, raw, app);
  } catch (const CLI::ParseError& error) {
    return usage_error("fs-diff", error.what());
  }
  return o;
}

}  // namespace heddle
