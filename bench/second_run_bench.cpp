// SPDX-License-Identifier: MIT
//
// What fs-gen costs from the second run of a command line on, on a warm local disk: short programs,
// which it must not slow down, and programs of many libraries, which it makes faster. `./dev
// bench`.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/find_program.hpp"
#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/guided.hpp"
#include "bench/program.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"

namespace heddle::bench {
namespace {

namespace fs = std::filesystem;

constexpr double kAddedMs = 3;
constexpr double kAddedShare = 0.05;

struct Settings {
  Stage stage;
  std::string work;
  std::vector<std::size_t> libraries = {100, 500};
  unsigned rounds = 15;
};

struct Case {
  std::string name;
  std::vector<std::string> argv;
  std::optional<double> at_most = {};  ///< of stock; nullopt: kAddedMs or kAddedShare more
};

void measure(const Settings& settings, const Case& it, Results& results) {
  if (!find_program(it.argv[0]))
    return results.note_absent("second." + it.name + ": not installed");
  const Command stock{it.argv};
  Command ours{{settings.stage.program("fs-gen"), "-q", "--"}};
  ours.argv.insert(ours.argv.end(), it.argv.begin(), it.argv.end());
  // The first resolves, the second has what that learned; from then on nothing changes.
  for (int i = 0; i < 3; ++i) run_ms(ours);
  std::vector<Variant> variants = {{"stock", [&] { return run_ms(stock); }},
                                   {"heddle", [&] { return run_ms(ours); }}};
  interleave(variants, settings.rounds);
  const auto group = "second." + it.name;
  results.add(group, variants);
  const double before = results.median_of(group, "stock");
  const double now = results.median_of(group, "heddle");
  results.add({group + ".to_stock", now / before, "x", it.at_most});
  results.add(
      {group + ".added", now - before, "ms",
       it.at_most ? std::nullopt : std::optional(std::max(kAddedMs, kAddedShare * before))});
}

/// Six sources; each run compiles them anew.
std::vector<std::string> make_project(const std::string& directory) {
  std::string objects;
  for (int i = 0; i < 6; ++i) {
    test::write_text_file(fmt::format("{}/f{}.c", directory, i),
                          fmt::format("#include <stdio.h>\nint f{}(void){{return {};}}\n", i, i));
    objects += fmt::format(" f{}.o", i);
  }
  test::write_text_file(directory + "/Makefile", "all:" + objects + "\n");
  return {"make", "-s", "-B", "-C", directory};
}

std::string make_melt(const std::string& path) {
  return test::write_text_file(
      path,
      "units lj\natom_style atomic\nlattice fcc 0.8442\nregion box block 0 4 0 4 0 4\n"
      "create_box 1 box\ncreate_atoms 1 box\nmass 1 1.0\nvelocity all create 3.0 87287\n"
      "pair_style lj/cut 2.5\npair_coeff 1 1 1.0 1.0 2.5\nfix 1 all nve\nrun 100\n");
}

void measure_all(const Settings& settings, Results& results) {
  const auto directory = value_or_throw(TempDir::create(
      "second", settings.work.empty() ? std::string() : fs::absolute(settings.work).string()));
  const auto& path = directory.path();
  ::setenv("XDG_CACHE_HOME", (path + "/cache").c_str(), 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  std::string pipeline = "seq 1000";
  for (int i = 0; i < 19; ++i) pipeline += " | cat";
  std::vector<Case> cases = {
      {"true", {"/bin/true"}},
      {"perl", {"perl", "-MPOSIX", "-e", "print floor(2.5)"}},
      {"vim", {"vim", "-es", "-u", "NONE", "+q!"}},
      {"java", {"java", "--version"}},
      {"scipy", {"/usr/bin/python3", "-c", "import scipy.stats"}},
      {"lmp", {"lmp", "-log", "none", "-screen", "none", "-in", make_melt(path + "/melt")}},
      {"pipeline", {"sh", "-c", pipeline}},
      {"make", make_project(path + "/project")},
      {"execs", {"sh", "-c", "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done"}}};
  for (const auto count : settings.libraries) {
    const auto farm =
        test::ElfFarm::build(fmt::format("{}/farm{}", path, count), {.libraries = count});
    cases.push_back(
        {fmt::format("libraries_{}", count), {farm.program}, count >= 500 ? 0.15 : 0.8});
  }
  // What is younger than two seconds is not cached.
  std::this_thread::sleep_for(std::chrono::seconds(3));
  for (const auto& it : cases)
    results.attempt("second." + it.name, [&] { measure(settings, it, results); });
}

}  // namespace

int second_run_bench(int argc, char** argv) {
  set_program_name("second_run_bench");
  Settings settings;
  CLI::App app("Measures what fs-gen costs and saves from the second run on");
  app.add_option("--stage", settings.stage.prefix, "where heddle is installed")->required();
  app.add_option("--work", settings.work, "a directory for the programs, on a local file system");
  app.add_option("--libraries", settings.libraries, "of the programs with an RPATH for each")
      ->delimiter(',');
  app.add_option("--rounds", settings.rounds, "samples of each variant");
  return run_program(app, argc, argv, [&](Results& results) { measure_all(settings, results); });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::second_run_bench(argc, argv); }
