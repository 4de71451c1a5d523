// SPDX-License-Identifier: MIT
//
// fs-diff against GNU diff on two long traces, and the kernels by themselves, beside edlib and
// parasail where those are installed (their alphabets have at most 256 letters).
#include <fmt/format.h>

#include <random>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/program.hpp"
#include "record/diff/alignment.hpp"
#include "record/trace/trace_writer.hpp"
#ifdef HEDDLE_WITH_EDLIB
#include <edlib.h>
#endif
#ifdef HEDDLE_WITH_PARASAIL
#include <parasail.h>
#endif

namespace heddle::bench {
namespace {

using diff::Token;

struct Settings {
  std::string fs_diff;
  std::string work;
  std::size_t events = 1'000'000;
  unsigned rounds = 7;
};

constexpr std::size_t kPaths = 20'000;
constexpr std::size_t kSide = 30'000;  // of the table for Smith and Waterman: 9e8 cells

std::vector<Token> random_tokens(std::mt19937& random, std::size_t n, std::size_t alphabet) {
  std::vector<Token> out(n);
  for (Token& t : out) t = static_cast<Token>(random() % alphabet);
  return out;
}

/// An event of the original, or an edit (one in a hundred: replaced, removed or added).
struct Step {
  std::size_t time;
  Token token;
};
std::vector<Step> edited(std::mt19937& random, const std::vector<Token>& a, std::size_t alphabet) {
  std::vector<Step> out;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto fate = random() % 300;
    const auto other = static_cast<Token>(random() % alphabet);
    if (fate != 0) out.push_back({i, fate == 1 ? other : a[i]});
    if (fate == 2) out.push_back({i, other});
  }
  return out;
}
std::vector<Token> tokens_of(const std::vector<Step>& steps) {
  std::vector<Token> out;
  for (const Step& s : steps) out.push_back(s.token);
  return out;
}

/// Times are those of the original's events, so that GNU diff sees just the edits as different
/// lines.
void write_trace(const std::string& path, const std::vector<Step>& steps) {
  auto writer = value_or_throw(trace::TraceWriter::create(path, {}, trace::Form::text));
  for (const Step& s : steps) {
    const std::string file = fmt::format("/opt/app/lib/x86_64-linux-gnu/module{}/libpart{}.so.{}",
                                         s.token % 97, s.token, s.token % 3);
    trace::Event e;
    e.ns = 123'456'789 + s.time * 1000;
    e.pid = e.tid = 4711;
    e.op = trace::Op::open;
    e.path = file;
    e.exe = "/usr/bin/app";
    e.flags = 0;
    writer.append(e);
  }
  value_or_throw(writer.finish(true, 0, steps.size() * 1000));
}

/// Both give 1 for "different", which run_ms() takes for failure; both write a real file.
Command compare_command(std::vector<std::string> argv, const std::string& out) {
  argv.insert(argv.begin(),
              {"sh", "-c", "out=$1; shift; \"$@\" > \"$out\"; [ $? = 1 ]", "sh", out});
  return {std::move(argv)};
}

void measure_programs(const Settings& settings, Results& results) {
  const TempDir directory = value_or_throw(TempDir::create("diff-bench", settings.work));
  std::mt19937 random(1);
  const auto a = random_tokens(random, settings.events, kPaths);
  std::vector<Step> original;
  for (std::size_t i = 0; i < a.size(); ++i) original.push_back({i, a[i]});
  const std::string file_a = directory.path() + "/a.txt";
  const std::string file_b = directory.path() + "/b.txt";
  write_trace(file_a, original);
  write_trace(file_b, edited(random, a, kPaths));

  const std::string out = directory.path() + "/out";
  const auto ours = compare_command({settings.fs_diff, "--no-soname", file_a, file_b}, out);
  const auto normal = compare_command({settings.fs_diff, file_a, file_b}, out);
  const auto gnu = compare_command({"diff", "-u", file_a, file_b}, out);
  const auto git = compare_command({"git", "diff", "--no-index", "--minimal", file_a, file_b}, out);
  std::vector<Variant> variants = {
      {"gnu_diff", [&] { return run_ms(gnu); }},
      {"git diff --minimal", [&] { return run_ms(git); }, settings.rounds},
      {"ours", [&] { return run_ms(ours); }},
      {"ours_normalised", [&] { return run_ms(normal); }}};
  interleave(variants, settings.rounds);
  results.add("diff.events", variants);
  results.add({"diff.events.ours_to_gnu",
               results.median_of("diff.events", "ours_normalised") /
                   results.median_of("diff.events", "gnu_diff"),
               "x", 2.0});
}

void measure_distance(const Settings& settings, Results& results) {
  std::mt19937 random(2);
  constexpr std::size_t kAlphabet = 200;
  const auto a = random_tokens(random, settings.events, kAlphabet);
  const auto b = tokens_of(edited(random, a, kAlphabet));
  std::vector<Variant> variants;
  for (const diff::Simd level : {diff::Simd::portable, diff::best_simd()})
    variants.push_back({std::string(diff::simd_name(level)),
                        [&, level] { return time_ms([&] { diff::edit_distance(a, b, level); }); }});
#ifdef HEDDLE_WITH_EDLIB
  const std::string text_a(a.begin(), a.end());
  const std::string text_b(b.begin(), b.end());
  variants.push_back(
      {"edlib",
       [&] {
         return time_ms([&] {
           const auto result =
               edlibAlign(text_a.data(), static_cast<int>(text_a.size()), text_b.data(),
                          static_cast<int>(text_b.size()),
                          edlibNewAlignConfig(-1, EDLIB_MODE_NW, EDLIB_TASK_DISTANCE, nullptr, 0));
           edlibFreeAlignResult(result);
         });
       },
       settings.rounds});
#endif
  interleave(variants, settings.rounds);
  results.add("diff.distance", variants);
}

/// A million events, 30 % of them edited: the script, most of which is the exact distance.
void measure_far(const Settings& settings, Results& results) {
  std::mt19937 random(4);
  const auto a = random_tokens(random, settings.events, kPaths);
  std::vector<Token> b;
  for (const Token t : a) {
    const auto fate = random() % 10;  // replaced, removed, added
    if (fate != 1) b.push_back(fate == 0 ? static_cast<Token>(random() % kPaths) : t);
    if (fate == 2) b.push_back(static_cast<Token>(random() % kPaths));
  }
  std::vector<Variant> variants;
  for (const diff::Simd level : diff::simd_levels())
    variants.push_back({std::string(diff::simd_name(level)),
                        [&, level] { return time_ms([&] { diff::edit_script(a, b, {}, level); }); },
                        1});
  interleave(variants, 1);
  results.add("diff.far", variants);
  results.add(
      {"diff.far.seconds",
       results.median_of("diff.far", std::string(diff::simd_name(diff::best_simd()))) / 1000, "s",
       20.0});
}

void measure_local(const Settings& settings, Results& results) {
  std::mt19937 random(3);
  constexpr std::size_t kAlphabet = 20;
  const auto a = random_tokens(random, kSide, kAlphabet);
  const auto b = random_tokens(random, kSide, kAlphabet);
  const diff::Scores scores{2, 1, 3, 1};
  std::vector<Variant> variants;
  for (const diff::Simd level : diff::simd_levels())
    variants.push_back({std::string(diff::simd_name(level)), [&, level] {
                          return time_ms([&] { diff::local_end(a, b, scores, level); });
                        }});
#ifdef HEDDLE_WITH_PARASAIL
  std::string text_a, text_b;
  for (const Token t : a) text_a += static_cast<char>('A' + t);
  for (const Token t : b) text_b += static_cast<char>('A' + t);
  auto* matrix =
      parasail_matrix_create("ABCDEFGHIJKLMNOPQRSTUVWXYZ", scores.match, -scores.mismatch);
  // Like ours: 32 bits a cell; its 16 bit lanes are twice as many, where the score fits.
  variants.push_back({"parasail_32", [&] {
                        return time_ms([&] {
                          parasail_result_free(
                              parasail_sw_striped_32(text_a.data(), static_cast<int>(text_a.size()),
                                                     text_b.data(), static_cast<int>(text_b.size()),
                                                     scores.gap_open, scores.gap_extend, matrix));
                        });
                      }});
#endif
  interleave(variants, settings.rounds);
#ifdef HEDDLE_WITH_PARASAIL
  parasail_matrix_free(matrix);
#endif
  results.add("diff.local", variants);
  const double cells = static_cast<double>(kSide) * kSide;
  for (const Variant& v : variants) {
    const double rate = cells / (median(v.samples) / 1000);
    Figure figure{"diff.local." + v.name, rate, "cells/s"};
    if (v.name == diff::simd_name(diff::best_simd())) figure.at_least = 1e9;
    results.add(figure);
  }
}

}  // namespace

int diff_bench(int argc, char** argv) {
  set_program_name("diff_bench");
  Settings settings;
  CLI::App app("Measures fs-diff against GNU diff, and its kernels");
  app.add_option("--fs-diff", settings.fs_diff, "the program")->required();
  app.add_option("--work", settings.work, "a directory for the traces");
  app.add_option("--events", settings.events, "of each trace");
  app.add_option("--rounds", settings.rounds, "samples of each variant");
  return run_program(app, argc, argv, [&](Results& results) {
    results.attempt("diff.events", [&] { measure_programs(settings, results); });
    results.attempt("diff.distance", [&] { measure_distance(settings, results); });
    results.attempt("diff.far", [&] { measure_far(settings, results); });
    results.attempt("diff.local", [&] { measure_local(settings, results); });
  });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::diff_bench(argc, argv); }
