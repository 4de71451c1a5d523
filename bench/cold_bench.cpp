// SPDX-License-Identifier: MIT
//
// A cold start of a program with many libraries, by the server's latency, beside what else is done
// about it: `./dev bench cold`. All ways load the same libraries from heddle-slowfs.
#include <fmt/format.h>

#include <filesystem>
#include <functional>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/cold.hpp"
#include "bench/guided.hpp"
#include "bench/program.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"

namespace heddle::bench {
namespace {

namespace fs = std::filesystem;

/// A start that would take longer is one sample, and one that would take longer still is computed
/// from the operations that the same start asked for at the latency before.
constexpr double kOneSample = 30;
constexpr double kComputed = 120;

struct Settings {
  Stage stage;
  std::string work, spindle;
  std::size_t libraries = 200;
  std::vector<int> delays = {0, 50, 200, 1000};  ///< microseconds, ascending
  unsigned rounds = 5;
};

/// One way to start the program.
struct Way {
  std::string name;
  Command command;
  bool copper = false;
  ColdStart last = {};  ///< at the latency before
};

class Bench {
 public:
  Bench(const Settings& settings, const std::string& directory, Results& results)
      : settings_(settings), directory_(directory), results_(results) {
    const auto farm = [&](const char* name, test::FarmTag tag) {
      return test::ElfFarm::build(directory_ + "/files/" + name,
                                  {.libraries = settings_.libraries, .tag = tag});
    };
    const auto rpath = farm("rpath", test::FarmTag::rpath);
    const auto untagged = farm("path", test::FarmTag::none);
    const auto flat = files() + "/flat";
    fs::create_directories(flat);
    for (const auto& library : rpath.libraries)
      fs::copy_file(library, flat + "/" + fs::path(library).filename().string());
    test::run_checked({"tar", "-C", files(), "-cf", files() + "/flat.tar", "flat"});
    const auto absolute = farm("absolute", test::FarmTag::absolute);
    fs::rename(files(), behind());
    {
      // A map knows its files by device and inode, as they are on the server.
      const test::SlowMount mount(behind(), files(), directory_ + "/counts", {.delay_us = 0});
      build_map(settings_.stage, behind() + "/app.map", rpath.program);
      test::run_checked({settings_.stage.program("fs-resolve"), "pack", behind() + "/app.map", "-o",
                         behind() + "/app.bundle"});
    }
    const auto node = directory_ + "/node";
    const auto gen = [&](const std::string& map) {
      return Command{
          {settings_.stage.program("fs-gen"), "-q", "--map", files() + map, "--", rpath.program}};
    };
    ways_ = {
        {"stock", {{rpath.program}}},
        {"LD_LIBRARY_PATH", {{untagged.program}, {"LD_LIBRARY_PATH=" + untagged.library_path}}},
        {"one directory", {{untagged.program}, {"LD_LIBRARY_PATH=" + flat}}},
        {"absolute", {{absolute.program}}},
        {"tar",
         {{"sh", "-ec", "rm -rf \"$0\"; mkdir \"$0\"; tar -C \"$0\" -xf \"$1\"; exec \"$2\"", node,
           flat + ".tar", untagged.program},
          {"LD_LIBRARY_PATH=" + node + "/flat"}}},
        {"copper (emulated)", {{rpath.program}}, true},
        {"heddle", gen("/app.map")},
        {"bundle", gen("/app.bundle")}};
    if (!settings_.spindle.empty())
      ways_.push_back(
          {"spindle", {{settings_.spindle + "/bin/spindle", "--no-mpi", rpath.program}}});
    else
      results_.note_absent("Spindle: no --spindle DIR was given");
    results_.note_absent("Copper: only its mount options are emulated; its network is not there");
  }

  void measure() {
    for (const int delay : settings_.delays) {
      std::vector<Variant> variants;
      for (auto& way : ways_) {
        const double expected =
            way.last.seconds + static_cast<double>(way.last.operations) * (delay - before_) / 1e6;
        if (expected > kComputed) {
          variants.push_back({way.name + " (computed)", {}, 1, {expected * 1000}});
          way.last.seconds = expected;
          continue;
        }
        variants.push_back({way.name, [&way, delay, this] { return start_ms(way, delay); },
                            expected > kOneSample ? settings_.rounds : 1});
      }
      for (unsigned round = 0; round < settings_.rounds; ++round)
        for (auto& variant : variants)
          if (variant.measure && round % variant.every == 0)
            variant.samples.push_back(variant.measure());
      const auto group = fmt::format("cold.{}.{}us", settings_.libraries, delay);
      results_.add(group, variants);
      for (const auto& way : ways_)
        results_.add(
            {group + "." + way.name + ".operations", static_cast<double>(way.last.operations), ""});
      before_ = delay;
    }
  }

 private:
  std::string files() const { return directory_ + "/files"; }

  /// Mounts anew each time: the node has booted.
  double start_ms(Way& way, int delay) {
    test::SlowMount mount(behind(), files(), directory_ + "/counts",
                          {.delay_us = delay, .preset = "server", .copper = way.copper});
    mount.reset();
    const double ms = time_ms([&] {
      test::run_checked(way.command.argv,
                        {.env = way.command.env, .deadline = std::chrono::minutes(5)});
    });
    way.last = {ms / 1000, mount.counts().total};
    return ms;
  }
  std::string behind() const { return directory_ + "/behind"; }

  const Settings& settings_;
  std::string directory_;
  Results& results_;
  std::vector<Way> ways_;
  int before_ = 0;
};

}  // namespace

int cold_bench(int argc, char** argv) {
  set_program_name("cold_bench");
  Settings settings;
  CLI::App app("Measures cold starts from a slow server, with heddle and in other ways");
  app.add_option("--stage", settings.stage.prefix, "where heddle is installed")->required();
  app.add_option("--work", settings.work, "a directory for the programs");
  app.add_option("--libraries", settings.libraries, "of the program");
  app.add_option("--delays", settings.delays, "microseconds, ascending")->delimiter(',');
  app.add_option("--rounds", settings.rounds, "samples of each way");
  app.add_option("--spindle", settings.spindle, "where Spindle is installed");
  return run_program(app, argc, argv, [&](Results& results) {
    const auto directory = value_or_throw(TempDir::create(
        "cold", settings.work.empty() ? std::string() : fs::absolute(settings.work).string()));
    ::setenv("XDG_CACHE_HOME", (directory.path() + "/cache").c_str(), 1);
    Bench(settings, directory.path(), results).measure();
  });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::cold_bench(argc, argv); }
