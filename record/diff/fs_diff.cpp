// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/run_main.hpp"
#include "base/try.hpp"
#include "record/diff/report.hpp"

namespace heddle {
namespace {

struct FsDiffOptions {
  std::vector<std::string> files;
  bool matrix = false;
  std::string baseline;
  diff::TokenRules rules;
  diff::ReportOptions report;
  trace::ReadOptions read;
  bool json = false;
  bool quiet = false;
  std::string html;  ///< file to write, empty: none
};

constexpr const char* kFooter =
    "A file with several runs: FILE#2 names its second. FILE - is stdin.\n"
    "Exit status: 0 the same, 1 different, 2 error. See fs-diff(1).";

/// `5`, `5%` or `0.05`.
diff::DistanceLimit parse_limit(const std::string& text) {
  diff::DistanceLimit limit;
  const bool percent = text.ends_with('%');
  const char* end = text.data() + text.size() - percent;
  const auto parsed = std::from_chars(text.data(), end, limit.value);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(limit.value >= 0) || limit.value > 4e9)
    throw CLI::ValidationError("--max-distance",
                               text + ": a number of edits, or a share as 0.05 or 5% expected");
  limit.share = percent || text.find('.') != std::string::npos;
  if (percent) limit.value /= 100;
  if (limit.share && limit.value > 1)
    throw CLI::ValidationError("--max-distance", text + ": a share above 1");
  return limit;
}

void add_rules(CLI::App& app, FsDiffOptions& o) {
  app.option_defaults()->group("What counts");
  auto& n = o.rules.normalise;
  const auto add_ops = [&o](const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const auto op = trace::op_from_name(name);
      if (!op) throw CLI::ValidationError("--op", name + ": there are " + trace::op_names());
      o.rules.ops.push_back(*op);
      o.report.ops.push_back(name);
    }
  };
  const auto add_maps = [&n](const std::vector<std::string>& maps) {
    for (const std::string& map : maps)
      if (const auto added = n.add_map(map); !added)
        throw CLI::ValidationError("--map", added.error().message());
  };
  using Words = std::vector<std::string>;
  app.add_option_function<Words>("--op", add_ops, "Only these operations, as open,lookup")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("LIST");
  add_choice<diff::By>(app, "--by", o.report.compare.by,
                       {{"process", diff::By::process}, {"thread", diff::By::thread}},
                       "Compare process by process, or thread by thread");
  app.add_flag("--collapse", o.rules.collapse, "The same event many times in a row counts once");
  app.add_option_function<Words>("--map", add_maps, "Treat directory FROM as TO (repeatable)")
      ->type_name("FROM=TO")
      ->allow_extra_args(false);
  app.add_flag("--soname,!--no-soname", n.soname, "libx.so.1.2 counts as libx.so.1 (on)");
  app.add_flag("--pid,!--no-pid", n.pid, "Process numbers count as equal (on)");
  app.add_flag("--temp,!--no-temp", n.temp, "Random names of temporary files count as equal (on)");
  app.add_flag("--hash,!--no-hash", n.hash,
               "Hashes in Spack's and Nix's directories count as equal (on)");
  app.add_flag("--result,!--no-result", o.rules.result, "A miss differs from a hit (on)");
  app.add_flag("--late,!--no-late", o.rules.late,
               "Ignore closes and what is counted with them: their order varies (on)");
  app.add_flag("--resolved,!--no-resolved", o.rules.resolved,
               "Paths after symlinks, where the trace has them (off)");
  app.add_flag("--raw")->description("Turn off all normalisers that are not also given");
  o.read.cut_line_hint = "--partial reads it up to there";
  app.add_flag("--partial", o.read.accept_cut_line, "Read a trace up to its cut last line");
}

/// Whether stdout is a terminal with colours, and NO_COLOR is not set.
bool can_show_colours() {
  const char* term = std::getenv("TERM");
  const char* no_colour = std::getenv("NO_COLOR");  // https://no-color.org
  return ::isatty(STDOUT_FILENO) == 1 && (term == nullptr || std::string_view(term) != "dumb") &&
         (no_colour == nullptr || *no_colour == '\0');
}

void add_output(CLI::App& app, FsDiffOptions& o) {
  app.option_defaults()->group("Output");
  const auto add_style = [&](const char* flag, const char* flag_text, const char* option,
                             const char* option_text, diff::ScriptStyle style) {
    const auto set = [&report = o.report, style](std::int64_t context) {
      report.style = style;
      report.context = static_cast<std::uint32_t>(std::clamp<std::int64_t>(context, 0, INT_MAX));
    };
    app.add_flag_function(flag, set, flag_text);
    app.add_option_function<std::int64_t>(option, set, option_text)
        ->type_name("N")
        ->check(number_from<std::int64_t>(0));
  };
  add_style("-u{3},--unified{3}", "Unified script with 3 events of context (default)", "-U",
            "Unified script with N events of context", diff::ScriptStyle::unified);
  add_style("-c{3},--context{3}", "Context script with 3 events of context", "-C",
            "Context script with N events of context", diff::ScriptStyle::context);
  app.add_flag("--summary")->description("Print only the totals");
  o.report.colour = can_show_colours();
  add_choice<bool>(app, "--color,--colour", o.report.colour,
                   {{"auto", o.report.colour}, {"always", true}, {"never", false}},
                   "Colours (auto: on a terminal)");
  app.add_flag("--json", o.json, "One JSON object instead of text");
  app.add_option("--html", o.html, "Write a page for browsers to FILE, too")->type_name("FILE");
  app.add_flag("-q,--quiet", o.quiet, "No output, only the exit status");
  app.add_option("--times", o.report.compare.time_count,
                 "Entries of each list of the time view (5)")
      ->type_name("N")
      ->check(number_from(0, 1 << 20));
}

void add_local(CLI::App& app, diff::CompareOptions& o) {
  app.option_defaults()->group("Local alignment (Smith-Waterman)");
  app.add_option("--local", o.local_count,
                 "The K best; 0: none (1, unless that takes over about a second)")
      ->type_name("K")
      ->check(number_from<std::int64_t>(0));
  const auto add = [&](const char* name, std::int32_t& score, const char* text) {
    app.add_option(name, score, text)
        ->type_name("N")
        ->check(number_from(-1'000'000'000, 1'000'000'000));
  };
  add("--match", o.scores.match, "Score of a match (1)");
  add("--mismatch", o.scores.mismatch, "Score of a mismatch (-1)");
  add("--gap-open", o.scores.gap_open, "Score of a gap's first event (-1)");
  add("--gap-extend", o.scores.gap_extend, "Score of each further event of a gap (-1)");
}

/// The checks that CLI11 cannot do; throws CLI::ValidationError.
void check(FsDiffOptions& o, const CLI::App& app) {
  auto& n = o.rules.normalise;
  if (app.count("--raw") > 0) {
    const auto off_unless_named = [&](bool& rule, const char* name) {
      rule = rule && app.count(name) > 0;
    };
    off_unless_named(n.soname, "--soname");
    off_unless_named(n.pid, "--pid");
    off_unless_named(n.temp, "--temp");
    off_unless_named(n.hash, "--hash");
    off_unless_named(o.rules.late, "--late");
  }
  if (o.matrix && !o.baseline.empty())
    throw CLI::ValidationError("--matrix", "not allowed with --baseline");
  const std::size_t files = o.files.size();
  if (o.matrix ? files < 1 : o.baseline.empty() ? files != 2 : files != 1)
    throw CLI::ValidationError(
        "FILES", o.matrix             ? "--matrix needs traces"
                 : o.baseline.empty() ? fmt::format("two traces are compared, {} given", files)
                                      : fmt::format("one new trace is judged, {} given", files));
  const auto is_stdin = [](const std::string& file) {
    return file == "-" || file.starts_with("-#");
  };
  if (std::ranges::count_if(o.files, is_stdin) > 1)
    throw CLI::ValidationError("FILES", "- may be given once");
  if (!o.baseline.empty() && !o.html.empty())
    throw CLI::ValidationError("--html", "not allowed with --baseline");
  // Costs may be written as 1 or as -1.
  diff::Scores& scores = o.report.compare.scores;
  for (std::int32_t* cost : {&scores.mismatch, &scores.gap_open, &scores.gap_extend})
    *cost = std::abs(*cost);
  o.rules.threads = o.report.compare.by == diff::By::thread;
  o.report.rules = o.rules.names();
  if (app.count("--summary") > 0) o.report.style = diff::ScriptStyle::none;
}

/// The options, or the exit status after help, version or a usage error.
std::variant<FsDiffOptions, int> parse_fs_diff(int argc, char** argv) {
  FsDiffOptions o;
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
                 "Decide whether the trace is outside the variation among those in DIR")
      ->type_name("DIR");
  app.add_option_function<std::string>(
         "--max-distance",
         [&](const std::string& text) { o.report.compare.max_distance = parse_limit(text); },
         "Treat up to D edits (or 0.05, or 5%) as the same")
      ->type_name("D");
  add_rules(app, o);
  add_output(app, o);
  add_local(app, o.report.compare);
  app.final_callback([&] { check(o, app); });
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  return o;
}

constexpr int kSame = 0, kDifferent = 1, kTrouble = 2;  // diff(1)

template <class Compared>
Result<void> print(const FsDiffOptions& o, const Compared& c, const diff::TokenTable& table) {
  if (o.quiet) return {};
  return write_all(
      STDOUT_FILENO,
      o.json ? diff::json_report(c, table, o.report) : diff::text_report(c, table, o.report),
      "stdout");
}

bool is_allowed(const FsDiffOptions& o, std::uint32_t distance, double normalised) {
  return o.report.compare.max_distance.value_or(diff::DistanceLimit{}).allows(distance, normalised);
}

/// Shows on a terminal how much of a long alignment is done.
class Progress {
 public:
  ~Progress() {
    if (shown_) fmt::print(stderr, "\r\x1b[K");
  }
  void operator()(double share) {
    const auto now = std::chrono::steady_clock::now();
    if (now < due_) return;
    due_ = now + std::chrono::milliseconds(200);
    shown_ = true;
    fmt::print(stderr, "\rfs-diff: comparing: {:.0f} %", share * 100);
  }

 private:
  std::chrono::steady_clock::time_point due_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(1);
  bool shown_ = false;
};

/// Warns of other runs in the file and of an incomplete run.
void report_state(const diff::Run& run, const diff::RunName& name) {
  if (run.runs_in_file > 1 && name.number == 0)
    warn(fmt::format("{}: holds {} runs: comparing the first; {}#2 names the second",
                     escape_for_terminal(name.path), run.runs_in_file,
                     escape_for_terminal(name.path)));
  if (!run.complete())
    warn(fmt::format("{}: incomplete: the recorder was stopped before the end",
                     escape_for_terminal(run.name)));
}

Result<int> compare_two(const FsDiffOptions& o) {
  diff::TokenTable table;
  const diff::RunName a = diff::parse_run_name(o.files[0]);
  const diff::RunName b = diff::parse_run_name(o.files[1]);
  auto pair = TRY(diff::load_pair(a, b, o.rules, o.read, table));
  report_state(pair.first, a);
  report_state(pair.second, b);
  diff::CompareOptions options = o.report.compare;
  std::optional<Progress> progress;
  if (::isatty(STDERR_FILENO) == 1 && !o.quiet)
    options.progress = [&shown = progress.emplace()](double share) { shown(share); };
  const auto c = TRY(diff::compare(std::move(pair.first), std::move(pair.second), table, options));
  progress.reset();
  if (!o.html.empty()) TRY(write_output(o.html, diff::html_report(c, table, o.report)));
  TRY(print(o, c, table));
  return is_allowed(o, c.distance(), c.normalised()) ? kSame : kDifferent;
}

/// All runs of all files.
Result<std::vector<diff::Run>> load_all(const std::vector<std::string>& files,
                                        const FsDiffOptions& o, diff::TokenTable& table) {
  std::vector<diff::Run> runs;
  for (const std::string& file : files) {
    const diff::RunName name = diff::parse_run_name(file);
    auto some = TRY(diff::load_runs(name, o.rules, o.read, table));
    if (some.size() > 1)
      say(fmt::format("{}: holds {} runs, each is compared", escape_for_terminal(file),
                      some.size()));
    for (diff::Run& run : some) {
      report_state(run, {file, run.number});
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

Result<int> compare_all(const FsDiffOptions& o) {
  diff::TokenTable table;
  auto runs = TRY(load_all(o.files, o, table));
  if (runs.size() < 2) return fail(o.files[0], "cannot make a matrix", "needs at least two runs");
  const auto m = TRY(diff::make_matrix(std::move(runs), o.report.compare.by));
  if (!o.html.empty()) TRY(write_output(o.html, diff::html_report(m, o.report)));
  TRY(print(o, m, table));
  for (std::size_t i = 0; i < m.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (!is_allowed(o, m.at(i, j), m.normalised(i, j))) return kDifferent;
  return kSame;
}

/// The files of the baseline's directory, sorted by name, without hidden files.
Result<std::vector<std::string>> files_of(const std::string& directory) {
  std::error_code failed;
  std::vector<std::string> files;
  std::filesystem::directory_iterator it(directory, failed);
  for (; !failed && it != std::filesystem::directory_iterator(); it.increment(failed)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && !it->path().filename().string().starts_with('.'))
      files.push_back(it->path().string());
  }
  if (failed) return fail_errno(directory, "cannot read the baseline", failed.value());
  if (files.empty()) return fail(directory, "cannot read the baseline", "it holds no traces");
  std::sort(files.begin(), files.end());
  return files;
}

Result<int> judge_one(const FsDiffOptions& o) {
  diff::TokenTable table;
  const auto files = TRY(files_of(o.baseline));
  auto known = TRY(load_all(files, o, table));
  diff::RunName name = diff::parse_run_name(o.files[0]);
  diff::RunName first = name;
  first.number = std::max(first.number, 1);
  auto runs = TRY(diff::load_runs(first, o.rules, o.read, table));
  diff::Run& fresh = runs.at(0);
  report_state(fresh, name);
  std::optional<std::uint32_t> limit;
  if (const auto& most = o.report.compare.max_distance)
    limit = static_cast<std::uint32_t>(
        most->value * (most->share ? static_cast<double>(fresh.sequence.size()) : 1));
  const auto verdict =
      TRY(diff::judge(std::move(known), std::move(fresh), o.report.compare.by, limit));
  TRY(print(o, verdict, table));
  return verdict.outside() ? kDifferent : kSame;
}

int run(int argc, char** argv) {
  auto parsed = parse_fs_diff(argc, argv);
  if (const int* answered = std::get_if<int>(&parsed)) return *answered;
  const auto& options = std::get<FsDiffOptions>(parsed);
  const auto compared = options.matrix             ? compare_all(options)
                        : options.baseline.empty() ? compare_two(options)
                                                   : judge_one(options);
  if (compared) return *compared;
  report(compared.error());
  return kTrouble;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  const int status = heddle::run_main("fs-diff", [&] { return heddle::run(argc, argv); });
  return status == heddle::exit_failure ? heddle::kTrouble : status;
}
