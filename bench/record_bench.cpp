// SPDX-License-Identifier: MIT
//
// What recording costs, against the bare program, strace and proot, in one run: the 500-library
// RPATH start, a numpy import and a small build; free to run anywhere and pinned to one core.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/program.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"

namespace heddle::bench {
namespace {

struct Settings {
  std::string program;
  std::string work;
  std::size_t libraries = 500;
  unsigned rounds = 5;
};

std::vector<std::string> joined(std::vector<std::string> front,
                                const std::vector<std::string>& rest) {
  front.insert(front.end(), rest.begin(), rest.end());
  return front;
}

/// `argv` in all its ways, each behind `pin`.
void measure(const Settings& settings, const std::string& directory, const std::string& name,
             const std::vector<std::string>& pin, const std::vector<std::string>& argv,
             Results& results) {
  const auto timed = [&](const std::vector<std::string>& front, const char* label, unsigned every) {
    const Command command{joined(joined(pin, front), argv)};
    return Variant{label, [command] { return run_ms(command); }, every};
  };
  std::vector<Variant> variants = {
      timed({}, "bare", 1),
      timed({settings.program, "-q", "--out", directory + "/run.txt"}, "fs-record", 1),
      timed({"strace", "-f", "--seccomp-bpf", "-e", "trace=file", "-o", directory + "/strace.log"},
            "strace", 1)};
  if (std::filesystem::exists("/usr/bin/proot"))
    variants.push_back(timed({"proot", "-r", "/"}, "proot", settings.rounds));
  interleave(variants, settings.rounds);
  const auto group = "record." + name;
  results.add(group, variants);
  const double bare = results.median_of(group, "bare");
  const double ours = results.median_of(group, "fs-record");
  results.add({group + ".to_bare", ours / bare, "x"});
  const bool judged = name.starts_with("rpath");
  results.add({group + ".added_to_strace_added",
               (ours - bare) / (results.median_of(group, "strace") - bare), "x",
               judged ? std::optional(0.7) : std::nullopt});
}

/// A project of twenty sources; each run builds it anew.
std::vector<std::string> make_project(const std::string& directory) {
  std::string objects;
  for (int i = 0; i < 20; ++i) {
    test::write_text_file(fmt::format("{}/f{}.c", directory, i),
                          fmt::format("#include <stdio.h>\nint f{}(void){{return {};}}\n", i, i));
    objects += fmt::format(" f{}.o", i);
  }
  test::write_text_file(directory + "/Makefile",
                        "lib.a:" + objects + "\n\tar rc lib.a" + objects + "\n");
  return {"sh", "-c", "cd \"$0\" && rm -f *.o lib.a && make -s -j2", directory};
}

void measure_all(const Settings& settings, Results& results) {
  const auto directory = value_or_throw(TempDir::create(
      "record",
      settings.work.empty() ? std::string() : std::filesystem::absolute(settings.work).string()));
  const auto farm =
      test::ElfFarm::build(directory.path() + "/farm", {.libraries = settings.libraries});
  const auto project = make_project(directory.path() + "/project");
  const auto rpath = fmt::format("rpath_{}", settings.libraries);
  measure(settings, directory.path(), rpath + ".free", {}, {farm.program}, results);
  measure(settings, directory.path(), rpath + ".pinned", {"taskset", "-c", "0"}, {farm.program},
          results);
  measure(settings, directory.path(), "numpy.free", {}, {"/usr/bin/python3", "-c", "import numpy"},
          results);
  measure(settings, directory.path(), "build.free", {}, project, results);
}

}  // namespace

int record_bench(int argc, char** argv) {
  set_program_name("record_bench");
  Settings settings;
  CLI::App app("Measures what recording a program's file accesses costs");
  app.add_option("--fs-record", settings.program, "the program to measure")->required();
  app.add_option("--work", settings.work, "a directory for the programs, on a local file system");
  app.add_option("--libraries", settings.libraries, "of the RPATH start");
  app.add_option("--rounds", settings.rounds, "samples of each variant");
  return run_program(app, argc, argv, [&](Results& results) { measure_all(settings, results); });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::record_bench(argc, argv); }
