// SPDX-License-Identifier: MIT
//
// Cold starts from a slow server, with heddle and in other ways: `./dev bench cold`. A program with
// many libraries, by the server's latency, by the number of libraries and by what the node may keep
// (the presets of heddle-slowfs); and other programs.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

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

/// A start that would take longer is computed from the operations that the same start asked for at
/// the latency before. That is two minutes: a request takes a little more than its delay.
constexpr double kComputed = 105;
/// The latency at which presets and numbers of libraries are compared.
constexpr int kDelay = 200;

struct Settings {
  Stage stage;
  std::string work, spindle;
  std::vector<std::size_t> libraries = {50, 200, 500};
  std::vector<std::string> presets = {"server", "nfs", "none"};
  std::vector<int> delays = {0, 50, 200, 1000};  ///< microseconds, ascending
  std::vector<std::string> programs = {"large", "tls", "modules", "lammps", "scipy"};
  unsigned rounds = 5;
};

/// One way to start the program.
struct Way {
  std::string name;
  Command command;
  bool searches_too = false;  ///< as long as stock: only compared by latency
  bool copper = false;
  ColdStart last = {};  ///< at the latency before
};

/// As interleave(), but what is cold is not warmed, and computed ways have their sample.
void sample(std::vector<Variant>& variants, unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round)
    for (auto& variant : variants)
      if (variant.measure && !has_samples_enough(variant))
        variant.samples.push_back(variant.measure());
}

/// A program with an RPATH for each of its libraries, on a server of each latency and preset.
class Bench {
 public:
  Bench(const Settings& settings, const std::string& directory, std::size_t libraries,
        Results& results)
      : settings_(settings), directory_(directory), libraries_(libraries), results_(results) {
    const auto farm = [&](const char* name, test::FarmTag tag) {
      return test::ElfFarm::build(files() + "/" + name, {.libraries = libraries_, .tag = tag});
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
    ways_ = {{"stock", {{rpath.program}}},
             {"LD_LIBRARY_PATH",
              {{untagged.program}, {"LD_LIBRARY_PATH=" + untagged.library_path}},
              true},
             {"one directory", {{untagged.program}, {"LD_LIBRARY_PATH=" + flat}}},
             {"absolute", {{absolute.program}}},
             {"tar",
              {{"sh", "-ec", "rm -rf \"$0\"; mkdir \"$0\"; tar -C \"$0\" -xf \"$1\"; exec \"$2\"",
                node, flat + ".tar", untagged.program},
               {"LD_LIBRARY_PATH=" + node + "/flat"}}},
             {"copper (emulated)", {{rpath.program}}, true, true},
             {"heddle", gen("/app.map")},
             {"bundle", gen("/app.bundle")}};
    if (!settings_.spindle.empty())
      ways_.push_back(
          {"spindle", {{settings_.spindle + "/bin/spindle", "--no-mpi", rpath.program}}});
  }

  void by_latency() {
    for (const int delay : settings_.delays) measure("server", delay, true);
    forget_last();
  }

  /// Their operations are counted without a delay first, so that a start that takes too long can be
  /// computed.
  void at(const std::string& preset) {
    for (auto& way : ways_)
      if (!way.searches_too) start_ms(way, preset, 0);
    measure(preset, kDelay, false);
    forget_last();
  }

 private:
  std::string files() const { return directory_ + "/files"; }
  std::string behind() const { return directory_ + "/behind"; }

  void measure(const std::string& preset, int delay, bool all) {
    std::vector<Variant> variants;
    for (auto& way : ways_) {
      if (way.searches_too && !all) continue;
      const double expected =
          way.last.seconds + static_cast<double>(way.last.operations) * (delay - before_) / 1e6;
      if (expected > kComputed) {
        variants.push_back({way.name + " (computed)", {}, 1, {expected * 1000}});
        way.last.seconds = expected;
      } else {
        variants.push_back(
            {way.name, [&way, &preset, delay, this] { return start_ms(way, preset, delay); }});
      }
    }
    sample(variants, settings_.rounds);
    const auto group = fmt::format("cold.{}.{}.{}us", preset, libraries_, delay);
    results_.add(group, variants);
    for (const auto& way : ways_)
      if (all || !way.searches_too)
        results_.add(
            {group + "." + way.name + ".operations", static_cast<double>(way.last.operations), ""});
    const auto took = [&](const char* name) {
      for (const auto& variant : variants)
        if (variant.name.starts_with(name)) return median(variant.samples) / 1000;
      return 0.0;
    };
    for (const char* way : {"stock", "heddle", "bundle"})
      results_.add({group + "." + way + ".seconds", took(way), "s"});
    before_ = delay;
  }

  void forget_last() {
    for (auto& way : ways_) way.last = {};
    before_ = 0;
  }

  /// Mounts anew each time: the node has booted.
  double start_ms(Way& way, const std::string& preset, int delay) {
    test::SlowMount mount(behind(), files(), directory_ + "/counts",
                          {.delay_us = delay, .preset = preset.c_str(), .copper = way.copper});
    mount.reset();
    const double ms = time_ms([&] {
      test::run_checked(way.command.argv,
                        {.env = way.command.env, .deadline = std::chrono::minutes(3)});
    });
    way.last = {ms / 1000, mount.counts().total};
    return ms;
  }

  const Settings& settings_;
  std::string directory_;
  std::size_t libraries_;
  Results& results_;
  std::vector<Way> ways_;
  int before_ = 0;  ///< the latency that Way::last is of
};

ColdProgram make_program(const std::string& name, const std::string& directory,
                         std::size_t libraries) {
  if (name == "large") return large_program(directory, libraries / 2);
  if (name == "tls") return tls_program(directory, libraries);
  if (name == "modules") return modules_program(directory, libraries);
  if (name == "lammps") return lammps_program(directory);
  if (name == "scipy") return scipy_program(directory);
  throw Error(name, "no program has this name", "large, tls, modules, lammps, scipy");
}

/// Stock beside fs-gen, whose cache has what the first two starts learned, and a bundle.
void measure_program(const Settings& settings, const std::string& name,
                     const std::string& directory, std::size_t libraries, Results& results) {
  const auto program = make_program(name, directory + "/app", libraries);
  if (!program.absent.empty()) return results.note_absent("cold: " + program.absent);
  ColdServer server(program.files, directory + "/counts", {.delay_us = kDelay, .preset = "server"});
  constexpr std::chrono::minutes kLimit(3);
  const auto behind = [&](std::vector<std::string> front) {
    auto command = program.command;
    command.argv.insert(command.argv.begin(), front.begin(), front.end());
    return command;
  };
  const auto gen = settings.stage.program("fs-gen");
  const auto map = directory + "/map";
  const auto guided = behind({gen, "-q", "--"});
  for (int i = 0; i < 2; ++i) server.start(guided, kLimit);
  server.start(behind({gen, "-q", "--out", map, "--learn", "--"}), kLimit);
  test::run_checked(
      {settings.stage.program("fs-resolve"), "pack", map, "-o", server.behind() + "/app.bundle"});
  std::map<std::string, ColdStart> last;
  const auto cold = [&](const char* way, const Command& command) {
    return Variant{way, [&, way, command] {
                     server.forget();
                     last[way] = server.start(command, kLimit);
                     return last[way].seconds * 1000;
                   }};
  };
  std::vector<Variant> variants = {
      cold("stock", program.command), cold("heddle", guided),
      cold("bundle", behind({gen, "-q", "--map", server.files() + "/app.bundle", "--"}))};
  sample(variants, settings.rounds);
  const auto group = "cold.program." + name;
  results.add(group, variants);
  for (const auto& [way, start] : last)
    results.add({group + "." + way + ".operations", static_cast<double>(start.operations), ""});
}

void measure_all(const Settings& settings, Results& results) {
  const auto directory = value_or_throw(TempDir::create(
      "cold", settings.work.empty() ? std::string() : fs::absolute(settings.work).string()));
  ::setenv("XDG_CACHE_HOME", (directory.path() + "/cache").c_str(), 1);
  if (settings.spindle.empty()) results.note_absent("Spindle: no --spindle DIR was given");
  results.note_absent("Copper: only its mount options are emulated; its network is not there");
  const auto by_latency = settings.libraries[settings.libraries.size() / 2];
  // The largest first: documents have its figures.
  for (auto at = settings.libraries.rbegin(); at != settings.libraries.rend(); ++at) {
    const auto libraries = *at;
    const auto below = fmt::format("{}/{}", directory.path(), libraries);
    std::optional<Bench> bench;
    results.attempt(fmt::format("cold.{}", libraries),
                    [&] { bench.emplace(settings, below, libraries, results); });
    if (!bench) continue;
    if (libraries == by_latency) results.attempt("cold.latency", [&] { bench->by_latency(); });
    for (const auto& preset : settings.presets) {
      // Then it is there already.
      if (libraries == by_latency && preset == "server" &&
          std::count(settings.delays.begin(), settings.delays.end(), kDelay) > 0)
        continue;
      results.attempt(fmt::format("cold.{}.{}", preset, libraries), [&] { bench->at(preset); });
    }
    bench.reset();
    fs::remove_all(below);
  }
  for (const auto& name : settings.programs) {
    const auto below = directory.path() + "/" + name;
    fs::create_directories(below);
    results.attempt("cold.program." + name,
                    [&] { measure_program(settings, name, below, by_latency, results); });
    fs::remove_all(below);
  }
}

}  // namespace

int cold_bench(int argc, char** argv) {
  set_program_name("cold_bench");
  Settings settings;
  CLI::App app("Measures cold starts from a slow server, with heddle and in other ways");
  app.add_option("--stage", settings.stage.prefix, "where heddle is installed")->required();
  app.add_option("--work", settings.work, "a directory for the programs");
  app.add_option("--libraries", settings.libraries,
                 "of the program; latencies are gone through with the middle one")
      ->delimiter(',');
  app.add_option("--presets", settings.presets, "of heddle-slowfs")->delimiter(',');
  app.add_option("--delays", settings.delays, "microseconds, ascending")->delimiter(',');
  app.add_option("--programs", settings.programs, "large, tls, modules, lammps, scipy; none: -")
      ->delimiter(',');
  app.add_option("--rounds", settings.rounds, "samples of each way");
  app.add_option("--spindle", settings.spindle, "where Spindle is installed");
  return run_program(app, argc, argv, [&](Results& results) {
    std::erase(settings.programs, "-");
    measure_all(settings, results);
  });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::cold_bench(argc, argv); }
