// SPDX-License-Identifier: MIT
//
// The first start of a program with many libraries: from a bundle, and from the map that was
// packed, on this disk and on a slow file system.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/guided.hpp"
#include "bench/program.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::bench {
namespace {

namespace fs = std::filesystem;

struct Settings {
  std::string stage;
  unsigned libraries = 1000;
  unsigned rounds = 5;
  std::string work;
};

class Bench {
 public:
  Bench(const Settings& settings, const std::string& directory)
      : settings_(settings), stage_{settings.stage}, directory_(directory) {
    fs::create_directories(directory_ + "/files");
    farm_ = test::ElfFarm::build(directory_ + "/files/farm", {.libraries = settings.libraries});
    build_map(stage_, map(), farm_.program);
    test::run_checked({stage_.program("fs-resolve"), "pack", map(), "-o", bundle()});
  }

  void measure(const std::string& name, bool cold, Results& results) {
    const auto start = [&](const std::string& map) {
      if (cold) forget_pages(directory_ + "/files");
      return run_ms({{stage_.program("fs-gen"), "--quiet", "--no-share", "--via", "private",
                      "--map", map, farm_.program}});
    };
    std::vector<Variant> variants = {{"map", [&] { return start(map()); }},
                                     {"bundle", [&] { return start(bundle()); }}};
    interleave(variants, settings_.rounds);
    const auto group = "bundle." + name;
    results.add(group, variants);
    results.add({group + ".to_map",
                 results.median_of(group, "bundle") / results.median_of(group, "map"), "x", 1.2});
  }

  /// All files on a file system that takes 200 us for each operation and caches nothing.
  void measure_slow(Results& results) {
    const test::SlowMount slow(directory_ + "/files", directory_ + "/files",
                               directory_ + "/counts");
    measure("slow", false, results);
  }

 private:
  std::string map() const { return directory_ + "/files/app.map"; }
  std::string bundle() const { return directory_ + "/files/app.bundle"; }

  const Settings& settings_;
  Stage stage_;
  std::string directory_;
  test::ElfFarm farm_;
};

}  // namespace

int bundle_bench(int argc, char** argv) {
  set_program_name("bundle_bench");
  Settings settings;
  CLI::App app("Measures the first start from a bundle beside that from its map");
  app.add_option("--stage", settings.stage, "where heddle is installed")->required();
  app.add_option("--work", settings.work, "a directory for the files");
  app.add_option("--libraries", settings.libraries, "of the program");
  app.add_option("--rounds", settings.rounds, "samples of each variant");
  return run_program(app, argc, argv, [&](Results& results) {
    const auto directory = value_or_throw(TempDir::create(
        "bundle", settings.work.empty() ? std::string() : fs::absolute(settings.work).string()));
    Bench bench(settings, directory.path());
    bench.measure("cold", true, results);
    bench.measure("warm", false, results);
    bench.measure_slow(results);
  });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::bundle_bench(argc, argv); }
