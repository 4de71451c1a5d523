// SPDX-License-Identifier: MIT
#include "fsgen/compare.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/log.hpp"
#include "base/standard_fds.hpp"
#include "fsgen/guided_run.hpp"

namespace heddle {
namespace {

/// APP's standard output goes nowhere while this lives.
class SilentStdout {
 public:
  SilentStdout() : saved_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)) {
    if (auto null = open_file("/dev/null", O_WRONLY)) ::dup2(null->get(), STDOUT_FILENO);
  }
  SilentStdout(const SilentStdout&) = delete;
  SilentStdout& operator=(const SilentStdout&) = delete;
  ~SilentStdout() {
    if (saved_) ::dup2(saved_.get(), STDOUT_FILENO);
  }

 private:
  Fd saved_;
};

double median_ms(std::vector<std::uint64_t> ns) {
  std::sort(ns.begin(), ns.end());
  const std::size_t middle = ns.size() / 2;
  const auto value = ns.size() % 2 ? static_cast<double>(ns[middle])
                                   : static_cast<double>(ns[middle - 1] + ns[middle]) / 2;
  return value / 1e6;
}

std::string verdict(double ratio) {
  if (ratio > 0.95 && ratio < 1.05) return "as fast";
  return ratio > 1 ? fmt::format("{:.1f} times as fast", ratio)
                   : fmt::format("{:.1f} times slower", 1 / ratio);
}

/// An APP that cannot run, or that somebody ended (Ctrl-C), is not run all the other times.
std::optional<AppEnd> reason_to_stop(const GenOptions& options, const RunReport& done) {
  if (done.exec_error != 0) return AppEnd{report_exec_failure(options.command[0], done.exec_error)};
  if (done.end.signal == 0) return std::nullopt;
  report(Error(options.command[0], "not compared", "a signal ended it"));
  return done.end;
}

}  // namespace

AppEnd compare(const GenOptions& options, const std::string& app_path, const PreparedMap& map,
               OutputFile* json) {
  std::vector<std::uint64_t> plain;
  std::vector<std::uint64_t> guided;
  std::vector<std::uint64_t> mounting;
  unsigned guided_runs = 0, failed_without = 0, failed_with = 0;
  AppEnd end;
  {
    const SilentStdout silence;
    for (unsigned i = 0; i < options.compare_runs; ++i) {
      const auto bare = value_or_throw(run_plain(options, app_path, ""));
      if (const auto stop = reason_to_stop(options, bare)) return *stop;
      auto work = value_or_throw(make_work_dir());
      const auto ours = value_or_throw(run_best(options, app_path, map, std::move(work)));
      if (const auto stop = reason_to_stop(options, ours)) return *stop;
      failed_without += bare.end.status != 0;
      failed_with += ours.end.status != 0;
      guided_runs += ours.guided || ours.counters.guided_processes > 0;
      mounting.push_back(ours.mount_ns);
      plain.push_back(bare.wall_ns);
      guided.push_back(ours.wall_ns);
      if (end.status == 0) end = bare.end.status != 0 ? bare.end : ours.end;
    }
  }
  const double without = median_ms(plain);
  const double with = median_ms(guided);
  say(fmt::format("{} runs each, medians: {:.1f} ms without heddle, {:.1f} ms with it: {}",
                  options.compare_runs, without, with, verdict(without / with)));
  if (guided_runs > 0)
    say(
        fmt::format("with it each run has a fresh mount: looking through it is counted, resolving "
                    "({:.1f} ms, once) and mounting ({:.1f} ms) are not",
                    static_cast<double>(map.resolve_ns) / 1e6, median_ms(mounting)));
  else
    say("nothing was guided: " + map.unguided_reason);
  if (failed_without + failed_with > 0)
    warn(
        fmt::format("it failed in {} of {} runs without heddle and in {} with it: first with exit "
                    "status {}",
                    failed_without, options.compare_runs, failed_with, end.status));
  if (json) {
    const SigpipeHeld held;
    const nlohmann::json numbers = {{"runs", options.compare_runs},
                                    {"plain_ns", plain},
                                    {"guided_ns", guided},
                                    {"ratio", without / with},
                                    {"resolve_ns", map.resolve_ns},
                                    {"mount_ns", mounting},
                                    {"failed_plain", failed_without},
                                    {"failed_guided", failed_with}};
    value_or_throw(json->write(numbers.dump(2) + "\n"));
  }
  return end;
}

}  // namespace heddle
