// SPDX-License-Identifier: MIT
//
// What recording costs, against the bare program, strace, proot, and a FUSE passthrough that does
// nothing else, in one run; free to run anywhere and pinned to one core.
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
  std::string empty;  ///< empty_loopback
  std::string work;
  std::string find = "/usr";
  std::size_t libraries = 500;
  std::size_t megabytes = 2048;
  unsigned rounds = 5;
};

std::vector<std::string> joined(std::vector<std::string> front,
                                const std::vector<std::string>& rest) {
  front.insert(front.end(), rest.begin(), rest.end());
  return front;
}

struct Case {
  std::string name;
  std::vector<std::string> argv;
  /// Of what strace adds, what fs-record adds at most; nullopt: it is printed only.
  std::optional<double> at_most = {};
  bool pinned = false;
  bool writes = false;    ///< more than the empty loopback can serve
  bool is_short = false;  ///< in all ways: more rounds
};

/// The case in all its ways. Each way has the same pinning.
void measure(const Settings& settings, const std::string& directory, const Case& it,
             Results& results) {
  const std::vector<std::string> pin =
      it.pinned ? std::vector<std::string>{"taskset", "-c", "0"} : std::vector<std::string>{};
  const auto timed = [&](const std::vector<std::string>& front, const char* label, unsigned every) {
    const Command command{joined(joined(pin, front), it.argv)};
    return Variant{label, [command] { return run_ms(command); }, every};
  };
  std::vector<Variant> variants = {
      timed({}, "bare", 1),
      timed({settings.program, "-q", "--out", directory + "/run.txt"}, "fs-record", 1),
      timed({"strace", "-f", "--seccomp-bpf", "-e", "trace=file", "-o", directory + "/strace.log"},
            "strace", 1)};
  const bool passes = !it.writes && !settings.empty.empty() && ::geteuid() == 0;
  if (passes) variants.push_back(timed({settings.empty}, "empty loopback", 1));
  if (std::filesystem::exists("/usr/bin/proot"))
    variants.push_back(timed({"proot", "-r", "/"}, "proot", settings.rounds));
  interleave(variants, it.is_short ? 3 * settings.rounds : settings.rounds);
  const auto group = "record." + it.name + (it.pinned ? ".pinned" : ".free");
  results.add(group, variants);
  const double bare = results.median_of(group, "bare");
  const double added = results.median_of(group, "fs-record") - bare;
  const double of_strace = results.median_of(group, "strace") - bare;
  results.add({group + ".to_bare", (bare + added) / bare, "x",
               it.name.starts_with("dd") ? std::optional(6.0) : std::nullopt});
  results.add({group + ".added_to_strace_added", added / of_strace, "x", it.at_most});
  if (passes)
    results.add({group + ".empty_added_to_strace_added",
                 (results.median_of(group, "empty loopback") - bare) / of_strace, "x"});
  if (it.name == "start") results.add({group + ".added", added, "ms", 5.0});
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

/// A repository of 8,500 files; each run looks at all of them.
std::vector<std::string> make_repository(const std::string& directory) {
  for (int i = 0; i < 85; ++i) {
    const auto below = fmt::format("{}/d{}", directory, i);
    std::filesystem::create_directories(below);
    for (int j = 0; j < 100; ++j)
      test::write_text_file(fmt::format("{}/f{}", below, j), fmt::format("{} {}\n", i, j));
  }
  test::run_checked({"sh", "-c",
                     "cd \"$0\" && git init -q && git add . && git -c user.name=bench "
                     "-c user.email=bench commit -q -m all",
                     directory});
  return {"git", "--no-optional-locks", "-C", directory, "status"};
}

void measure_all(const Settings& settings, Results& results) {
  const auto directory = value_or_throw(TempDir::create(
      "record",
      settings.work.empty() ? std::string() : std::filesystem::absolute(settings.work).string()));
  const auto farm =
      test::ElfFarm::build(directory.path() + "/farm", {.libraries = settings.libraries});
  const auto project = make_project(directory.path() + "/project");
  const auto repository = make_repository(directory.path() + "/repository");
  const auto big = directory.path() + "/big";
  test::write_text_file(directory.path() + "/one.c", "#include <stdio.h>\n#include <pthread.h>\n");
  const std::string count = "count=" + std::to_string(settings.megabytes);
  const std::vector<std::string> find = {"find", settings.find};
  const auto rpath = fmt::format("rpath_{}", settings.libraries);
  const std::vector<std::string> scipy = {"/usr/bin/python3", "-c", "import scipy.stats"};
  ::sync();  // what was written here must not reach the disk while others are measured
  // Those first whose figures documents have, since the bench's time may end.
  const Case cases[] = {
      {"start", {"/bin/true"}, {}, false, false, true},
      {rpath, {farm.program}, 0.7, true},
      {rpath, {farm.program}, 0.5},
      {"git_status", repository, 1.0, true, false, true},
      {"scipy", scipy, 1.0, true, false, true},
      {"find", find, 0.8, true},
      {"numpy", {"/usr/bin/python3", "-c", "import numpy"}},
      {"build", project, {}, false, true},
      {"gcc",
       {"gcc", "-c", directory.path() + "/one.c", "-o", directory.path() + "/one.o"},
       0.5,
       false,
       true},
      {"git_status", repository, 1.0, false, false, true},
      {"scipy", scipy, 1.0},
      {"dd_write",
       {"dd", "if=/dev/zero", "of=" + big, "bs=1M", count, "status=none"},
       {},
       false,
       true},
      {"dd_read", {"dd", "if=" + big, "of=/dev/null", "bs=1M", "status=none"}, {}, false, true},
      {"find", find, 0.5},
  };
  for (const auto& it : cases)
    results.attempt("record." + it.name + (it.pinned ? ".pinned" : ".free"),
                    [&] { measure(settings, directory.path(), it, results); });
}

}  // namespace

int record_bench(int argc, char** argv) {
  set_program_name("record_bench");
  Settings settings;
  CLI::App app("Measures what recording a program's file accesses costs");
  app.add_option("--fs-record", settings.program, "the program to measure")->required();
  app.add_option("--work", settings.work, "a directory for the programs, on a local file system");
  app.add_option("--empty-loopback", settings.empty, "bench/empty_loopback");
  app.add_option("--megabytes", settings.megabytes, "of the file that dd writes and reads");
  app.add_option("--find", settings.find, "what find lists");
  app.add_option("--libraries", settings.libraries, "of the RPATH start");
  app.add_option("--rounds", settings.rounds, "samples of each variant");
  return run_program(app, argc, argv, [&](Results& results) { measure_all(settings, results); });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::record_bench(argc, argv); }
