// SPDX-License-Identifier: MIT
//
// What it takes to bring a mount's files to the node (fs-mount --stage), beside cp of the same
// files. cp checks nothing; staging hashes each copy.
#include <fcntl.h>
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/program.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::bench {
namespace {

namespace fs = std::filesystem;

struct Settings {
  std::string stage;
  unsigned rounds = 7;
  std::string work;
};

class Bench {
 public:
  Bench(const Settings& settings, std::string directory)
      : directory_(std::move(directory)), fs_mount_(settings.stage + "/bin/fs-mount") {}

  void measure(const std::string& name, int files, std::size_t size, unsigned rounds,
               Results& results) {
    make_files(files, size);
    std::vector<Variant> variants = {{"cp", [&] { return copy(); }},
                                     {"staged", [&] { return stage(); }},
                                     {"again", [&] { return stage_again(); }}};
    interleave(variants, rounds);
    const auto group = "stage." + name;
    results.add(group, variants);
    const double mib = static_cast<double>(files) * static_cast<double>(size) / (1 << 20);
    const auto rate = [&](const char* variant) {
      return mib / results.median_of(group, variant) * 1000;
    };
    results.add({group + ".throughput", rate("staged"), "MiB/s"});
    results.add({group + ".to_cp", rate("staged") / rate("cp"), "x"});
    // What another job of the node waits for: all copies are there and only checked.
    results.add({group + ".again_throughput", rate("again"), "MiB/s"});
  }

 private:
  void make_files(int count, std::size_t size) {
    fs::remove_all(directory_ + "/source");
    std::mt19937_64 random(1);
    std::string content(size, '\0');
    test::MapMaker maker;
    for (int i = 0; i < count; ++i) {
      for (std::size_t at = 0; at < size; at += 64) content[at] = static_cast<char>(random());
      const auto path = directory_ + "/source/" + std::to_string(i);
      test::write_text_file(path, content);
      maker.add_name("v", std::to_string(i), path);
    }
    maker.write(directory_ + "/map");
  }

  double copy() {
    fs::remove_all(directory_ + "/copy");
    return run_ms({{"cp", "-r", directory_ + "/source", directory_ + "/copy"}});
  }

  double stage() {
    fs::remove_all(directory_ + "/node");
    return stage_again();
  }

  /// From fs-mount's start until all is staged.
  double stage_again() {
    const auto mount_point = directory_ + "/mount";
    fs::create_directories(mount_point);
    fs::create_directories(directory_ + "/node");
    const double spent = time_ms([&] {
      test::run_checked({fs_mount_, "--prefetch", "0", "--stage", directory_ + "/node",
                         directory_ + "/map", mount_point});
      while (state(mount_point) == "running") ::usleep(500);
    });
    const auto end = state(mount_point);
    test::run_checked({fs_mount_, "-u", mount_point});
    if (end != "done") throw Error(directory_ + "/node", "cannot be staged to", end);
    return spent;
  }

  static std::string state(const std::string& mount_point) {
    const auto text = value_or_throw(read_stats_text(mount_point));
    return nlohmann::json::parse(text).at("staging").get<std::string>();
  }

  std::string directory_;
  std::string fs_mount_;
};

}  // namespace

int stage_bench(int argc, char** argv) {
  set_program_name("stage_bench");
  Settings settings;
  CLI::App app("Measures staging beside cp");
  app.add_option("--stage", settings.stage, "where heddle is installed")->required();
  app.add_option("--work", settings.work, "a directory for files and copies");
  app.add_option("--rounds", settings.rounds, "samples of each variant");
  return run_program(app, argc, argv, [&](Results& results) {
    const auto directory = value_or_throw(TempDir::create(
        "stage", settings.work.empty() ? std::string() : fs::absolute(settings.work).string()));
    Bench bench(settings, directory.path());
    results.attempt("stage.large",
                    [&] { bench.measure("large", 64, 4U << 20, settings.rounds, results); });
    results.attempt("stage.small",
                    [&] { bench.measure("small", 1000, 64U << 10, settings.rounds, results); });
  });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::stage_bench(argc, argv); }
