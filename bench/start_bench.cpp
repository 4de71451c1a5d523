// SPDX-License-Identifier: MIT
//
// What heddle saves and costs, as ratios taken in one run: `./dev bench`. All variants load the
// same farm; they are sampled in turn, and medians are compared.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <optional>
#include <regex>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/guided.hpp"
#include "bench/program.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"

namespace heddle::bench {
namespace {

namespace fs = std::filesystem;

struct Settings {
  Stage stage;
  /// Those first whose figures documents have, since the bench's time may end.
  std::vector<std::size_t> sizes = {500, 1000, 2000, 100, 10};
  std::vector<std::string> shapes = {"star", "chain", "random", "tree"};
  unsigned rounds = 15;
  std::vector<unsigned> at_once = {1, 8, 64, 128};
  std::string work;
};

/// One program in its two forms, its map, and a plain directory of the same files.
struct Workload {
  test::ElfFarm stock;
  test::ElfFarm absolute;
  test::ElfFarm untagged;  ///< no RPATH, which would come before LD_LIBRARY_PATH
  std::string auditor;     ///< one that does nothing
  std::string map;
  std::string flat;
  std::string flat_index;
};

Workload make_workload(const Settings& settings, const std::string& directory,
                       const std::string& shape, std::size_t size) {
  const auto form = shape == "star"    ? test::FarmShape::star
                    : shape == "chain" ? test::FarmShape::chain
                    : shape == "tree"  ? test::FarmShape::tree
                                       : test::FarmShape::random;
  Workload made;
  made.stock = test::ElfFarm::build(directory + "/stock", {.libraries = size, .shape = form});
  made.absolute = test::ElfFarm::build(
      directory + "/absolute", {.libraries = size, .shape = form, .tag = test::FarmTag::absolute});
  made.untagged = test::ElfFarm::build(
      directory + "/untagged", {.libraries = size, .shape = form, .tag = test::FarmTag::none});
  made.map = directory + "/map";
  build_map(settings.stage, made.map, made.stock.program);
  made.auditor = directory + "/empty_auditor.so";
  test::run_checked({"cc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-o", made.auditor},
                    {.input = "unsigned la_version(unsigned version) { return version; }\n"});
  made.flat = directory + "/flat";
  made.flat_index = make_flat_directory(made.map, made.flat);
  forget_pages(directory);
  return made;
}

/// Of a start without a search: the kernel's part, and what ld.so says its relocation takes.
void measure_where(const Command& absolute, const std::string& name, unsigned rounds,
                   Results& results) {
  const auto kernel_ms = [] {
    rusage used{};
    ::getrusage(RUSAGE_CHILDREN, &used);
    return static_cast<double>(used.ru_stime.tv_sec) * 1e3 +
           static_cast<double>(used.ru_stime.tv_usec) / 1e3;
  };
  const double before = kernel_ms();
  double total = 0;
  for (unsigned i = 0; i < rounds; ++i) total += run_ms(absolute);
  results.add({"where." + name + ".kernel", (kernel_ms() - before) / rounds, "ms"});
  const auto words = test::run_checked(absolute.argv, {.env = {"LD_DEBUG=statistics"}}).err;
  const std::regex share("time needed for relocation: .*\\(([0-9.]+)%\\)");
  if (std::smatch match; std::regex_search(words, match, share))
    results.add(
        {"where." + name + ".relocation", std::stod(match[1]) / 100 * total / rounds, "ms"});
}

void measure_starts(const Settings& settings, const Workload& work, const std::string& name,
                    std::size_t size, Results& results) {
  const Mount mount(settings.stage, work.map, work.flat + ".mount");
  const Command stock{{work.stock.program}};
  const Command absolute{{work.absolute.program}};
  const Command audited{{work.absolute.program}, {"LD_AUDIT=" + work.auditor}};
  const Command one_directory{{work.untagged.program}, {"LD_LIBRARY_PATH=" + work.flat}};
  const auto flat = guided(settings.stage, work.stock.program, work.flat_index);
  const auto ours = guided(settings.stage, work.stock.program, mount.index());
  expect_guided(flat, work.flat);
  expect_guided(ours, mount.directory());

  const auto group = "start." + name;
  std::vector<Variant> variants = {{"stock", [&] { return run_ms(stock); }, 3},
                                   {"absolute", [&] { return run_ms(absolute); }},
                                   {"empty auditor", [&] { return run_ms(audited); }},
                                   {"one directory", [&] { return run_ms(one_directory); }},
                                   {"flat", [&] { return run_ms(flat); }},
                                   {"ours", [&] { return run_ms(ours); }}};
  interleave(variants, settings.rounds);
  results.add(group, variants);
  const auto ratio = [&](const char* a, const char* b) {
    return results.median_of(group, a) / results.median_of(group, b);
  };
  results.add({group + ".ours_to_flat", ratio("ours", "flat"), "x", 1.05});
  // An auditor costs what an empty one does; ours may add 0.03.
  const double floor = ratio("empty auditor", "absolute");
  results.add({group + ".empty_auditor_to_absolute", floor, "x"});
  results.add({group + ".ours_to_absolute", ratio("ours", "absolute"), "x",
               floor <= 1.03 ? 1.05 : floor + 0.03});
  results.add({group + ".stock_to_ours",
               ratio("stock", "ours"),
               "x",
               {},
               size == 500 ? std::optional(8.0) : std::nullopt});

  if (size == 500) measure_where(absolute, name, settings.rounds, results);
  if (name == "star.500") {
    for (const auto many : settings.at_once) {
      const auto at_once = fmt::format("at_once_{}.{}", many, name);
      variants = {{"stock", [&] { return run_ms(stock, many); }, 5},
                  {"absolute", [&] { return run_ms(absolute, many); }},
                  {"ours", [&] { return run_ms(ours, many); }}};
      interleave(variants, 5);
      results.add(at_once, variants);
      results.add({at_once + ".ours_to_absolute",
                   results.median_of(at_once, "ours") / results.median_of(at_once, "absolute"),
                   "x"});
      results.add({at_once + ".stock_to_ours",
                   results.median_of(at_once, "stock") / results.median_of(at_once, "ours"), "x"});
    }
  }
  results.add({fmt::format("daemon.{}.resident", name), mount.resident_mib(), "MiB",
               size == 1000 ? std::optional(16.0) : std::nullopt});
}

/// Mounting, and the first start after it, when the kernel knows nothing of the mount yet.
void measure_first(const Settings& settings, const Workload& work, const std::string& name,
                   std::size_t size, Results& results) {
  const auto bundle = work.flat + ".bundle";
  test::run_checked({settings.stage.program("fs-resolve"), "pack", work.map, "-o", bundle});
  std::vector<double> ready;
  std::vector<double> first;
  std::vector<double> bundled;
  const auto start = [&](const Mount& mount) {
    return run_ms(guided(settings.stage, work.stock.program, mount.index()));
  };
  for (unsigned i = 0; i < 7; ++i) {
    {
      const Mount mount(settings.stage, work.map, work.flat + ".mount");
      ready.push_back(mount.ready_ms());
      first.push_back(start(mount));
    }
    bundled.push_back(start(Mount(settings.stage, bundle, work.flat + ".mount")));
  }
  results.add("mount." + name, {{"ready", {}, 1, ready},
                                {"first_start", {}, 1, first},
                                {"first_start_bundle", {}, 1, bundled}});
  results.add({"mount." + name + ".first_start_bundle_to_map", median(bundled) / median(first), "x",
               size == 1000 ? std::optional(1.2) : std::nullopt});
  results.add({"mount." + name + ".ready", median(ready), "ms",
               size == 1000 ? std::optional(25.0) : std::nullopt});
  results.add({"mount." + name + ".first_start_to_absolute",
               median(first) / results.median_of("start." + name, "absolute"), "x", 1.5});
}

/// From the kill of the process that answers to the first answer of the one that takes over.
void measure_takeover(const Settings& settings, const Workload& work, const std::string& name,
                      std::size_t size, Results& results) {
  const Mount mount(settings.stage, work.map, work.flat + ".mount");
  std::vector<double> samples;
  for (int i = 0; i < 30; ++i) {
    // A name the kernel does not know: it has to ask.
    const auto asked = mount.directory() + "/not-there-" + std::to_string(i);
    const auto worker = mount.worker();
    samples.push_back(time_ms([&] {
      ::kill(worker, SIGKILL);
      if (fs::exists(asked)) throw Error(asked, "exists");
    }));
  }
  results.add("takeover." + name, {{"kill_to_answer", {}, 1, samples}});
  results.add({"takeover." + name + ".kill_to_answer", median(samples), "ms",
               size == 1000 ? std::optional(20.0) : std::nullopt});
}

void measure_resolve(const Settings& settings, const Workload& work, const std::string& name,
                     std::size_t size, Results& results) {
  const auto cache = work.flat + ".cache";
  const auto map = work.flat + ".resolved";
  const auto resolve = [&] {
    return run_ms({{settings.stage.program("fs-resolve"), "build", "-o", map, work.stock.program},
                   {"XDG_CACHE_HOME=" + cache}});
  };
  std::vector<Variant> variants = {{"cold", [&] { return fs::remove_all(cache), resolve(); }},
                                   {"warm", resolve},
                                   {"ldd", [&] {
                                      return run_ms({{"ldd", work.stock.program}});
                                    }}};
  if (fs::exists("/usr/bin/libtree"))
    variants.push_back({"libtree", [&] { return run_ms({{"libtree", work.stock.program}}); }});
  interleave(variants, 5);
  const auto group = "resolve." + name;
  results.add(group, variants);
  const auto to_ldd = [&](const char* variant) {
    return results.median_of(group, variant) / results.median_of(group, "ldd");
  };
  const bool judged = size == 500;
  results.add(
      {group + ".warm_to_ldd", to_ldd("warm"), "x", judged ? std::optional(0.2) : std::nullopt});
  results.add(
      {group + ".cold_to_ldd", to_ldd("cold"), "x", judged ? std::optional(3.0) : std::nullopt});
}

void measure_all(const Settings& settings, Results& results) {
  const auto directory = value_or_throw(TempDir::create(
      "start", settings.work.empty() ? std::string() : fs::absolute(settings.work).string()));
  // The user's own cache of facts must not make a cold run warm.
  ::setenv("XDG_CACHE_HOME", (directory.path() + "/cache").c_str(), 1);
  for (const std::size_t size : settings.sizes)
    for (const auto& shape : settings.shapes) {
      const auto name = fmt::format("{}.{}", shape, size);
      const auto below = directory.path() + "/" + name;
      std::optional<Workload> workload;
      results.attempt("start." + name, [&] {
        workload = make_workload(settings, below, shape, size);
        measure_starts(settings, *workload, name, size, results);
      });
      if (!workload) continue;
      results.attempt("mount." + name,
                      [&] { measure_first(settings, *workload, name, size, results); });
      results.attempt("takeover." + name,
                      [&] { measure_takeover(settings, *workload, name, size, results); });
      if (shape == "star" && size <= 1000)  // ldd takes seconds for more
        results.attempt("resolve." + name,
                        [&] { measure_resolve(settings, *workload, name, size, results); });
      fs::remove_all(below);
    }
}

}  // namespace

int start_bench(int argc, char** argv) {
  set_program_name("start_bench");
  Settings settings;
  CLI::App app("Measures heddle's start-up against stock, absolute paths and a local directory");
  app.add_option("--stage", settings.stage.prefix, "where heddle is installed")->required();
  app.add_option("--work", settings.work, "a directory for the programs, on a local file system");
  app.add_option("--sizes", settings.sizes, "libraries")->delimiter(',');
  app.add_option("--shapes", settings.shapes, "star, chain, random, tree")->delimiter(',');
  app.add_option("--rounds", settings.rounds, "samples of each variant");
  app.add_option("--at-once", settings.at_once, "processes started at once")->delimiter(',');
  return run_program(app, argc, argv, [&](Results& results) { measure_all(settings, results); });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::start_bench(argc, argv); }
