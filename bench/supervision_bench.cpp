// SPDX-License-Identifier: MIT
//
// What it costs that a mount's server is watched over and can be exchanged: `./dev bench`. The same
// code serves the same map in one process alone beside it.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "base/child.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/guided.hpp"
#include "bench/program.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::bench {
namespace {

namespace fs = std::filesystem;

struct Settings {
  Stage stage;
  std::size_t size = 500;
  unsigned rounds = 40;
  std::string work;
};

/// Reads every file of the mount, none of it from the page cache: the server brings all of it.
double read_all_ms(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file()) files.push_back(entry.path());
  forget_pages(directory);
  std::string buffer(1U << 20, '\0');
  return time_ms([&] {
    for (const auto& path : files) {
      const auto file = value_or_throw(open_file(path, O_RDONLY));
      while (::read(file.get(), buffer.data(), buffer.size()) > 0) {
      }
    }
  });
}

void measure_service(const Settings& settings, const test::ElfFarm& farm, const std::string& map,
                     const std::string& directory, Results& results) {
  const Mount watched(settings.stage, map, directory + "/watched");
  const Mount alone(settings.stage, map, directory + "/alone",
                    value_or_throw(own_program_dir()) + "/unsupervised_mount");
  const auto start_in = [&](const Mount& mount) {
    const auto command = guided(settings.stage, farm.program, mount.index());
    expect_guided(command, mount.directory());
    return [command] { return run_ms(command); };
  };
  const auto compare = [&](const std::string& what, std::vector<Variant> variants, unsigned rounds,
                           std::optional<double> aim) {
    interleave(variants, rounds);
    const auto group = "supervision." + what;
    results.add(group, variants);
    results.add({group + ".to_unsupervised",
                 results.median_of(group, "fs-mount") / results.median_of(group, "unsupervised"),
                 "x", aim});
  };
  compare(fmt::format("start.{}", settings.size),
          {{"fs-mount", start_in(watched)}, {"unsupervised", start_in(alone)}}, settings.rounds,
          1.02);
  compare("uncached_read",
          {{"fs-mount", [&] { return read_all_ms(watched.directory()); }},
           {"unsupervised", [&] { return read_all_ms(alone.directory()); }}},
          7, 1.05);
}

/// Asks for names that the kernel does not know, one after the other, from construction to
/// longest_ms().
class Asker {
 public:
  explicit Asker(const std::string& directory)
      : thread_([this, directory](const std::stop_token& stop) {
          for (int i = 0; !stop.stop_requested(); ++i) {
            const auto name = directory + "/not-there-" + std::to_string(i);
            struct stat st {};
            longest_ = std::max(longest_, time_ms([&] { (void)::stat(name.c_str(), &st); }));
          }
        }) {}
  double longest_ms() {
    thread_.request_stop();
    thread_.join();
    return longest_;
  }

 private:
  double longest_ = 0;
  std::jthread thread_;
};

void measure_reloads(const Settings& settings, const std::string& first, const std::string& second,
                     const std::string& directory, Results& results) {
  const Mount mount(settings.stage, first, directory + "/reloaded");
  const auto reload = settings.stage.program("fs-mount");
  std::vector<double> pauses;
  const auto timed = [&](std::vector<std::string> argv) {
    Asker asker(mount.directory());
    const auto ms = run_ms({std::move(argv)});
    pauses.push_back(asker.longest_ms());
    return ms;
  };
  int turn = 0;
  std::vector<Variant> variants = {
      {"map",
       [&] {
         return timed({reload, "--reload", ++turn % 2 ? second : first, mount.directory()});
       }},
      {"worker", [&] {
         return timed({reload, "--reload", mount.directory()});
       }}};
  interleave(variants, 10);
  variants.push_back({"longest_wait", {}, 1, pauses});
  const auto group = fmt::format("reload.{}", settings.size);
  results.add(group, variants);
  results.add({group + ".longest_wait", results.median_of(group, "longest_wait"), "ms", 50.0});
}

void measure_all(const Settings& settings, Results& results) {
  const auto work = value_or_throw(TempDir::create(
      "supervision", settings.work.empty() ? std::string() : fs::absolute(settings.work).string()));
  const auto& directory = work.path();
  ::setenv("XDG_CACHE_HOME", (directory + "/cache").c_str(), 1);
  const auto farm = test::ElfFarm::build(directory + "/farm", {.libraries = settings.size});
  const auto other = test::ElfFarm::build(directory + "/other", {.libraries = settings.size});
  build_map(settings.stage, directory + "/map", farm.program);
  build_map(settings.stage, directory + "/other.map", other.program);
  results.attempt("supervision",
                  [&] { measure_service(settings, farm, directory + "/map", directory, results); });
  results.attempt("reload", [&] {
    measure_reloads(settings, directory + "/map", directory + "/other.map", directory, results);
  });
}

}  // namespace

int supervision_bench(int argc, char** argv) {
  set_program_name("supervision_bench");
  Settings settings;
  CLI::App app("Measures what supervision and reloads cost");
  app.add_option("--stage", settings.stage.prefix, "where heddle is installed")->required();
  app.add_option("--work", settings.work, "a directory for the programs, on a local file system");
  app.add_option("--size", settings.size, "libraries");
  app.add_option("--rounds", settings.rounds, "samples of each start");
  return run_program(app, argc, argv, [&](Results& results) { measure_all(settings, results); });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::supervision_bench(argc, argv); }
