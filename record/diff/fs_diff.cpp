// SPDX-License-Identifier: MIT
#include "record/diff/fs_diff.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/standard_fds.hpp"
#include "record/diff/baseline.hpp"
#include "record/diff/fs_diff_options.hpp"
#include "record/diff/matrix.hpp"

namespace heddle {
namespace {

constexpr int kSame = 0, kDifferent = 1, kTrouble = 2;  // diff(1)

Result<void> print(const FsDiffOptions& o, const std::string& text) {
  return o.quiet ? Result<void>{} : write_all(STDOUT_FILENO, text, "stdout");
}

/// What a reader should know of a run before its numbers.
void tell_about(const diff::Run& run, const diff::RunName& name) {
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
  auto pair = diff::load_pair(a, b, o.rules, o.read, table);
  if (!pair) return fail(std::move(pair.error()));
  tell_about(pair->first, a);
  tell_about(pair->second, b);
  auto c = diff::compare(std::move(pair->first), std::move(pair->second), o.compare);
  if (!c) return fail(std::move(c.error()));
  if (!o.html.empty())
    if (auto done = write_output(o.html, diff::html_report(*c, table, o.report)); !done)
      return fail(std::move(done.error()));
  if (!o.quiet) {
    const std::string text =
        o.json ? diff::json_report(*c, table, o.report) : diff::text_report(*c, table, o.report);
    if (auto done = print(o, text); !done) return fail(std::move(done.error()));
  }
  if (o.max_distance)
    return o.max_distance->allows(c->distance(), c->normalised()) ? kSame : kDifferent;
  return c->distance() == 0 ? kSame : kDifferent;
}

/// All runs of all files: a file with several gives several.
Result<std::vector<diff::Run>> load_all(const std::vector<std::string>& files,
                                        const FsDiffOptions& o, diff::TokenTable& table) {
  std::vector<diff::Run> runs;
  for (const std::string& file : files) {
    const diff::RunName name = diff::parse_run_name(file);
    auto some = diff::load_runs(name, o.rules, o.read, table);
    if (!some) return fail(std::move(some.error()));
    if (some->size() > 1)
      say(fmt::format("{}: holds {} runs, each is compared", escape_for_terminal(file),
                      some->size()));
    for (diff::Run& run : *some) {
      tell_about(run, {file, run.number});
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

Result<int> compare_all(const FsDiffOptions& o) {
  diff::TokenTable table;
  auto runs = load_all(o.files, o, table);
  if (!runs) return fail(std::move(runs.error()));
  if (runs->size() < 2) return fail(o.files[0], "cannot make a matrix", "one run, two needed");
  auto m = diff::make_matrix(std::move(*runs), o.compare.by_process);
  if (!m) return fail(std::move(m.error()));
  if (!o.html.empty())
    if (auto done = write_output(o.html, diff::matrix_html(*m, o.report)); !done)
      return fail(std::move(done.error()));
  const std::string text =
      o.json ? diff::matrix_json(*m, o.report) : diff::matrix_text(*m, o.report);
  if (auto done = print(o, text); !done) return fail(std::move(done.error()));
  for (std::size_t i = 0; i < m->size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (!o.max_distance.value_or(DistanceLimit{}).allows(m->at(i, j), m->normalised(i, j)))
        return kDifferent;
  return kSame;
}

/// The files of the baseline's folder in order of name; hidden ones are not traces.
Result<std::vector<std::string>> files_of(const std::string& folder) {
  std::error_code failed;
  std::vector<std::string> files;
  std::filesystem::directory_iterator it(folder, failed);
  for (; !failed && it != std::filesystem::directory_iterator(); it.increment(failed)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && !it->path().filename().string().starts_with('.'))
      files.push_back(it->path().string());
  }
  if (failed) return fail_errno(folder, "cannot read the baseline", failed.value());
  if (files.empty()) return fail(folder, "cannot read the baseline", "it holds no traces");
  std::sort(files.begin(), files.end());
  return files;
}

Result<int> judge_one(const FsDiffOptions& o) {
  diff::TokenTable table;
  auto files = files_of(o.baseline);
  if (!files) return fail(std::move(files.error()));
  auto known = load_all(*files, o, table);
  if (!known) return fail(std::move(known.error()));
  diff::RunName name = diff::parse_run_name(o.files[0]);
  diff::RunName first = name;
  first.number = std::max(first.number, 1);
  auto fresh = diff::load_runs(first, o.rules, o.read, table);
  if (!fresh) return fail(std::move(fresh.error()));
  tell_about(fresh->at(0), name);
  std::optional<std::uint32_t> limit;
  if (o.max_distance)
    limit = static_cast<std::uint32_t>(o.max_distance->share
                                           ? o.max_distance->value *
                                                 static_cast<double>(fresh->at(0).sequence.size())
                                           : o.max_distance->value);
  auto verdict =
      diff::judge(std::move(*known), std::move(fresh->at(0)), o.compare.by_process, limit);
  if (!verdict) return fail(std::move(verdict.error()));
  const std::string text = o.json ? diff::baseline_json(*verdict, table, o.report)
                                  : diff::baseline_text(*verdict, table, o.report);
  if (auto done = print(o, text); !done) return fail(std::move(done.error()));
  return verdict->outside() ? kDifferent : kSame;
}

}  // namespace

int fs_diff(int argc, char** argv) {
  set_program_name("fs-diff");
  reserve_standard_fds();
  auto parsed = parse_fs_diff(argc, argv);
  if (const int* status = std::get_if<int>(&parsed)) return *status;
  const auto& options = std::get<FsDiffOptions>(parsed);
  Result<int> status = options.matrix             ? compare_all(options)
                       : options.baseline.empty() ? compare_two(options)
                                                  : judge_one(options);
  if (status) return *status;
  report(status.error());
  return kTrouble;
}

}  // namespace heddle
