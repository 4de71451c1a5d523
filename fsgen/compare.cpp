// SPDX-License-Identifier: MIT
#include "fsgen/compare.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/atomic_file.hpp"
#include "base/log.hpp"
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

}  // namespace

int compare(const GenOptions& options, const std::string& app_path, const PreparedMap& map) {
  std::vector<std::uint64_t> plain;
  std::vector<std::uint64_t> guided;
  int status = 0;
  {
    const SilentStdout silence;
    for (unsigned i = 0; i < options.compare_runs; ++i) {
      const auto bare = value_or_throw(run_plain(options, app_path, ""));
      auto work = value_or_throw(make_work_dir());
      const auto ours = value_or_throw(run_best(options, app_path, map, std::move(work)));
      plain.push_back(bare.wall_ns);
      guided.push_back(ours.wall_ns);
      if (status == 0) status = bare.exit_status != 0 ? bare.exit_status : ours.exit_status;
    }
  }
  const double without = median_ms(plain);
  const double with = median_ms(guided);
  say(fmt::format(
      "{} runs each, medians: {:.1f} ms without heddle, {:.1f} ms with it: {:.2f} times "
      "as fast",
      options.compare_runs, without, with, without / with));
  if (!options.json_file.empty()) {
    const nlohmann::json json = {{"runs", options.compare_runs},
                                 {"plain_ns", plain},
                                 {"guided_ns", guided},
                                 {"ratio", without / with}};
    auto file = value_or_throw(AtomicFile::create(options.json_file));
    value_or_throw(file.write(json.dump(2) + "\n"));
    value_or_throw(file.commit());
  }
  return status;
}

}  // namespace heddle
