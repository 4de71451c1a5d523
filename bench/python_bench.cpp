// SPDX-License-Identifier: MIT
//
// What the first process of a node pays for importing Python packages from a slow file system that
// caches nothing (bench/slowfs): 300 packages of two modules in 300 directories of
// sys.path, with and without heddle, beside Copper's mount options and beside tar. What the slow
// server is asked is counted by itself.
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/program.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::bench {
namespace {

namespace fs = std::filesystem;
using test::SlowCounts;
using test::SlowMount;
using Words = std::vector<std::string>;

struct Settings {
  std::string stage;
  std::string work;
  std::string python = "/usr/bin/python3";
  int packages = 300;
  int delay_us = 200;
  unsigned rounds = 5;
  std::vector<std::string> cases;
};

/// Where the packages are: `above` names lie above them on the slow file system.
struct Layout {
  std::string name;
  std::string above = {};  ///< "opt/site/", or nothing: the file system's root is their parent
  bool merged = false;     ///< one directory in sys.path, where else each package has its own
};

/// Requests for paths that no import needs: names that do not exist, files that are not read.
std::uint64_t other_requests(const SlowCounts& counts) {
  std::uint64_t out = 0;
  for (const auto& [path, requests] : counts.missing) out += SlowCounts::sum(requests);
  for (const auto& [path, requests] : counts.files)
    if (!requests.contains("READ")) out += SlowCounts::sum(requests);
  return out;
}

/// Of each path its READs, or all but these. No file here is larger than a MiB.
SlowCounts::Paths only(SlowCounts::Paths paths, bool reads) {
  for (auto& [path, requests] : paths)
    std::erase_if(requests, [&](const auto& one) { return (one.first == "READ") != reads; });
  return paths;
}

/// How often this machine's caches were emptied (/proc/sys/vm/drop_caches).
unsigned long dropped_caches() {
  std::ifstream vmstat("/proc/vmstat");
  unsigned long out = 0, value = 0;
  for (std::string name; vmstat >> name >> value;)
    if (name.starts_with("drop_")) out += value;
  return out;
}

class Bench {
 public:
  Bench(const Settings& settings, std::string directory, Results& results)
      : settings_(settings), directory_(std::move(directory)), results_(results) {
    for (const char* name : {"home", "cache", "store"}) fs::create_directories(at(name));
    ::setenv("HOME", at("home").c_str(), 1);
    ::setenv("XDG_CACHE_HOME", at("cache").c_str(), 1);
    ::setenv("TMPDIR", directory_.c_str(), 1);
    ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    std::string script;
    for (int i = 0; i < settings.packages; ++i) script += fmt::format("import p{0}.m{0}\n", i);
    test::write_text_file(at("run.py"), script);
  }

  /// No tool: python3 alone, on the slow file system and on the local disk.
  void stock(const Layout& layout) {
    const World world(*this, layout);
    std::vector<Variant> local = {{"local", [&] { return run_ms(world.python_local()); }}};
    interleave(local, settings_.rounds);
    const double ms = run_ms(world.python());
    const auto counts = world.slow->counts();
    results_.add(layout.name, {local[0], {"stock", {}, 1, {ms}}});
    results_.add({layout.name + ".stock.seconds", ms / 1000, "s"});
    results_.add({layout.name + ".local.seconds", median(local[0].samples) / 1000, "s"});
    results_.add({layout.name + ".stock.requests", number(counts.total), ""});
    results_.add({layout.name + ".paths",
                  number(counts.files.size() + counts.missing.size() + counts.directories.size()),
                  ""});
    results_.add({layout.name + ".files_read", number(files_read(counts)), ""});
  }

  /// From a map: what the first process asks the origin, and what the later ones ask.
  void from_map(const Layout& layout) {
    const World world(*this, layout);
    build_map(world, layout.name);
    const bool judged = layout.name == "python";
    world.slow->reset();
    std::vector<double> samples;
    const unsigned rounds = layout.above.empty() ? settings_.rounds : 1;
    for (unsigned i = 0; i < rounds; ++i) samples.push_back(run_ms(world.guided(map())));
    const auto all = world.slow->reset();
    results_.add(layout.name + ".map", {{"first", {}, 1, samples}});
    const auto per_run = number(all.total) / rounds;
    add(layout.name + ".map.seconds", median(samples) / 1000, "s", judged ? 2.0 : 0);
    results_.add({layout.name + ".map.requests", per_run, ""});
    const auto most = [&](const SlowCounts::Paths& paths) {
      return number(SlowCounts::most(paths).first) / rounds;
    };
    add(layout.name + ".map.reads_a_file", most(only(all.files, true)), "", judged ? 1 : 0);
    add(layout.name + ".map.other_requests_a_file", most(only(all.files, false)), "",
        judged ? 4 : 0);
    add(layout.name + ".map.requests_a_directory", most(all.directories), "", judged ? 3 : 0);
    if (judged)
      results_.add({layout.name + ".map.requests_for_else", number(other_requests(all)), "", 0});
    if (judged) later_processes(world);
  }

  /// The same from a bundle, on the slow file system and on the local disk.
  void from_bundle(const Layout& layout) {
    const World world(*this, layout);
    build_map(world, layout.name);
    const auto bundle = at("store/app.bundle");
    test::run_checked({program("fs-resolve"), "pack", map(), "-o", bundle});
    SlowMount store(at("store"), at("slow-store"), at("store.counts"), options());
    const auto slow_bundle = at("slow-store/app.bundle");
    world.slow->reset();
    std::vector<Variant> variants = {{"slow", [&] { return run_ms(world.guided(slow_bundle)); }},
                                     {"local", [&] { return run_ms(world.guided(bundle)); }}};
    interleave(variants, settings_.rounds);
    const auto group = layout.name + ".bundle";
    results_.add(group, variants);
    const double slow = results_.median_of(group, "slow");
    results_.add({group + ".seconds", slow / 1000, "s", 1.0});
    results_.add({group + ".local_seconds", results_.median_of(group, "local") / 1000, "s"});
    results_.add({group + ".to_local", slow / results_.median_of(group, "local"), "x", 1.3});
    const double runs = 2.0 * (settings_.rounds + 1);
    results_.add({group + ".origin_requests", number(world.slow->counts().total) / runs, ""});
    results_.add({group + ".requests", 2 * number(store.counts().total) / runs, ""});
    results_.add({group + ".mib", number(fs::file_size(bundle)) / (1 << 20), "MiB"});
    results_.add({group + ".decoded_again",
                  decoded_again(bundle, test::to_shell(world.python().argv), world.python().env),
                  "frames", 0});

    // What users do today: the archive on the shared file system, unpacked on the node, run there.
    test::run_checked({"tar", "-C", world.source, "-cf", at("store/site.tar"), "."});
    results_.add(
        {layout.name + ".tar.mib", number(fs::file_size(at("store/site.tar"))) / (1 << 20), "MiB"});
    std::vector<double> unpack, total;
    for (unsigned i = 0; i < settings_.rounds; ++i) {
      fs::remove_all(at("node"));
      fs::create_directories(at("node"));
      unpack.push_back(run_ms({{"tar", "-C", at("node"), "-xf", at("slow-store/site.tar")}}));
      total.push_back(unpack.back() + run_ms(world.python_in(at("node"))));
    }
    results_.add(layout.name + ".tar", {{"unpack", {}, 1, unpack}, {"with_run", {}, 1, total}});
    results_.add({layout.name + ".tar.unpack_seconds", median(unpack) / 1000, "s"});
    results_.add({layout.name + ".tar.seconds", median(total) / 1000, "s"});
    results_.add({group + ".to_tar", slow / median(total), "x", 1.0});
  }

  /// A bundle of many more frames than the daemon holds, read in another order than it was packed
  /// in: the frames that are decoded twice.
  void large_bundle() {
    const auto tree = at("large");
    std::string read = "cat";
    constexpr int kFiles = 600;  // of half a MiB
    std::mt19937_64 bytes(1);
    for (int i = 0; i < kFiles; ++i) {
      std::string text(std::size_t{512} << 10, '\0');
      for (std::size_t at = 0; at < text.size(); at += 8) {
        const auto word = bytes();
        std::memcpy(text.data() + at, &word, 8);
      }
      test::write_text_file(fmt::format("{}/f{:03}", tree, i), text);
      read += fmt::format(" {}/f{:03}", tree, i * 7 % kFiles);  // 7 and 600 have no common factor
    }
    const auto bundle = at("store/large.bundle");
    test::run_checked({program("fs-resolve"), "build", "--python", "off", "--tree", tree, "-o",
                       map(), "/bin/cat"});
    test::run_checked({program("fs-resolve"), "pack", map(), "-o", bundle});
    results_.add({"python.large_bundle.mib", number(fs::file_size(bundle)) / (1 << 20), "MiB"});
    results_.add({"python.large_bundle.decoded_again",
                  decoded_again(bundle, read + " > /dev/null", {}), "frames", 0});
    fs::remove_all(tree);
    fs::remove(bundle);
  }

  /// Copper's mount options, one process and eight, with the same delay and with none: what remains
  /// is then what its node side costs when all is cached there. It answers one request at a time,
  /// so that what would take minutes is computed.
  void copper(const Layout& layout) {
    const auto run = [&](unsigned copies, int delay_us) {
      auto slow = options();
      slow.copper = true;
      slow.delay_us = delay_us;
      const World world(*this, layout, slow);
      const double ms = run_ms(world.python(), copies);
      return Cost{ms, world.slow->counts().total};
    };
    const auto without = run(8, 0);
    results_.add({layout.name + ".copper.8.seconds_without_delay", without.ms / 1000, "s"});
    for (const unsigned copies : {1U, 8U}) {
      const auto name = fmt::format("{}.copper.{}", layout.name, copies);
      const auto computed = without.ms + number(without.requests) * settings_.delay_us / 1e3;
      if (copies == 8 && computed > 120'000) {
        copper_[copies] = {computed, without.requests};
        results_.note_absent(name + ".seconds: computed from the requests, one at a time");
      } else {
        copper_[copies] = run(copies, settings_.delay_us);
      }
      results_.add({name + ".seconds", copper_[copies].ms / 1000, "s"});
      results_.add({name + ".requests", number(copper_[copies].requests), ""});
    }
  }

  /// Eight processes from a map, against Copper's options.
  void against_copper(const Layout& layout) {
    const World world(*this, layout);
    build_map(world, layout.name);
    world.slow->reset();
    const double ms = run_ms(world.guided(map(), 8));
    const auto requests = number(world.slow->counts().total);
    results_.add({layout.name + ".map.8.seconds", ms / 1000, "s"});
    results_.add({layout.name + ".map.8.requests", requests, ""});
    if (!copper_.contains(8)) return;
    results_.add({layout.name + ".copper.8.requests_to_map",
                  number(copper_[8].requests) / requests,
                  "x",
                  {},
                  50});
    results_.add({layout.name + ".copper.8.time_to_map", copper_[8].ms / ms, "x", {}, 8});
  }

  /// Nothing is slow: what heddle costs then.
  void warm_and_local(const Layout& layout) {
    const World world(*this, layout);
    auto ours = world.python_local();
    ours.argv.insert(ours.argv.begin(), {program("fs-gen"), "-q", "--"});
    compare_local(layout.name + ".local", world.python_local(), ours);
    if (test::run({settings_.python, "-c", "import numpy"}).status != 0) return;
    const Command numpy{{settings_.python, "-c", "import numpy"}, {}};
    auto ours_numpy = numpy;
    ours_numpy.argv.insert(ours_numpy.argv.begin(), {program("fs-gen"), "-q", "--"});
    compare_local("python.local_numpy", numpy, ours_numpy);
  }

 private:
  /// 40 pairs, since the difference is small: a busy machine shows it in the minima alone.
  void compare_local(const std::string& group, const Command& stock, const Command& ours) {
    std::vector<Variant> variants = {{"stock", [&] { return run_ms(stock); }},
                                     {"ours", [&] { return run_ms(ours); }}};
    interleave(variants, 8 * settings_.rounds);
    results_.add(group, variants);
    results_.add({group + ".ours_to_stock",
                  results_.median_of(group, "ours") / results_.median_of(group, "stock"), "x",
                  1.03});
    const auto least = [&](std::size_t i) {
      return *std::ranges::min_element(variants[i].samples);
    };
    results_.add({group + ".ours_to_stock_of_minima", least(1) / least(0), "x"});
  }

  struct Cost {
    double ms = 0;
    std::uint64_t requests = 0;
  };

  /// Packages, and the slow mount that they are imported from.
  struct World {
    World(Bench& owner, const Layout& layout, std::optional<test::SlowOptions> slow_options = {})
        : bench(owner), source(owner.at("source")), root(owner.at("slow")) {
      fs::remove_all(source);
      for (int i = 0; i < bench.settings_.packages; ++i) {
        const auto name = fmt::format("p{}", i);
        const auto entry = layout.above + (layout.merged ? "site" : fmt::format("e{}", i));
        const auto package = fmt::format("{}/{}/{}", source, entry, name);
        test::write_text_file(package + "/__init__.py", "from . import m" + name.substr(1) + "\n");
        test::write_text_file(fmt::format("{}/m{}.py", package, i),
                              fmt::format("def value():\n  return {}\n", i));
        if (i == 0 || !layout.merged) entries.push_back(entry);
      }
      test::run_checked({bench.settings_.python, "-m", "compileall", "-q", source});
      slow = std::make_unique<SlowMount>(source, root, bench.at("slow.counts"),
                                         slow_options.value_or(bench.options()));
    }
    Command python_in(const std::string& where) const {
      std::string path;
      for (const auto& entry : entries) path += (path.empty() ? "" : ":") + where + "/" + entry;
      return {{bench.settings_.python, bench.at("run.py")}, {"PYTHONPATH=" + path}};
    }
    Command python() const { return python_in(root); }
    Command python_local() const { return python_in(source); }
    /// `copies` at once with one mount that had no user before.
    Command guided(const std::string& map_file, unsigned copies = 1) const {
      auto out = python();
      if (copies > 1)
        out.argv = {"/bin/sh", "-c",
                    fmt::format("for i in $(seq {}); do {} & p=\"$p $!\"; done; "
                                "for i in $p; do wait $i || exit; done",
                                copies, test::to_shell(out.argv))};
      out.argv.insert(out.argv.begin(),
                      {bench.program("fs-gen"), "-q", "--no-share", "--map", map_file, "--"});
      return out;
    }

    Bench& bench;
    std::string source, root;
    std::vector<std::string> entries;  ///< of sys.path, relative
    std::unique_ptr<SlowMount> slow;
  };

  /// The second process of a mount, and then 64 at once. They are measured again when others
  /// emptied the kernel's caches meanwhile, or the kernel dropped the listing of a directory, which
  /// it then asks for again; without a quiet round there are no figures.
  void later_processes(const World& world) {
    for (int tries = 0; tries < 5; ++tries) {
      const auto before = dropped_caches();
      const auto later = measure_later(world);
      if (dropped_caches() != before || fs::exists(at("lost"))) continue;
      results_.add({"python.second.origin_requests", later.origin_second, "", 0});
      results_.add({"python.second.daemon_requests_for_names", later.names_second, "", 0});
      results_.add({"python.second.daemon_requests_for_attributes", later.attributes_second, ""});
      results_.add({"python.second.daemon_ioctls", later.ioctls_second, "", 0});
      results_.add({"python.at_once_64.origin_requests", later.origin_64, "", 0});
      results_.add({"python.at_once_64.daemon_requests_for_names", later.names_64, "", 0});
      results_.add({"python.at_once_64.daemon_requests_for_attributes", later.attributes_64, ""});
      results_.add("python.at_once_64",
                   {{"local", {}, 1, {later.local_ms}}, {"ours", {}, 1, {later.ours_ms}}});
      results_.add({"python.at_once_64.ours_to_local", later.ours_ms / later.local_ms, "x", 1.2});
      return;
    }
    warn("the second process and 64 at once: not measured: the kernel dropped what it had cached");
  }

  struct Later {
    double origin_second, names_second, attributes_second, ioctls_second;
    double origin_64, names_64, attributes_64;
    double ours_ms, local_ms;
  };

  /// Keeps the pages and names of the trees in memory for a process that holds them: this machine
  /// may reclaim the pages that no process has mapped (DAMON). Those of directories' listings
  /// cannot be mapped: when one was reclaimed (cachestat(2), Linux 6.5) there is a file "lost".
  /// Before the second process starts, all that it opens is what the first one has opened.
  std::string hold_trees() const {
    const auto script = test::write_text_file(
        at("hold.py"),
        "import ctypes, mmap, os, sys, time\n"
        "kept, listed = [], []\n"
        "for top in os.environ['PYTHONPATH'].split(':'):\n"
        "  for where, _, files in os.walk(top):\n"
        "    kept.append(os.open(where, os.O_RDONLY))\n"
        "    if not where.endswith('__pycache__'): listed.append(kept[-1])\n"
        "    for path in (where + '/' + name for name in files):\n"
        "      kept.append(os.open(path, os.O_PATH))\n"
        "      if os.path.getsize(path):\n"
        "        with open(path, 'rb') as file:\n"
        "          kept.append(mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED | mmap.MAP_POPULATE,\n"
        "                                mmap.PROT_READ))\n"
        "whole, pages = (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 5)()\n"
        "libc = ctypes.CDLL(None)\n"
        "cachestat = lambda file: libc.syscall(451, file, whole, pages, 0)\n"
        "os.nice(-20)\n"
        "open(sys.argv[1], 'w').close()\n"
        "for _ in range(12000):\n"
        "  if any(cachestat(one) == 0 and pages[0] == 0 for one in listed):\n"
        "    open(sys.argv[2], 'w').close()\n"
        "  time.sleep(0.05)\n");
    fs::remove(at("held"));
    fs::remove(at("lost"));
    // No child of the script, which waits for all of its own.
    return fmt::format(
        "ulimit -n $(ulimit -Hn); holder=$({0} {1} {2} {3} > /dev/null 2>&1 & echo $!); "
        "trap 'kill $holder' EXIT; "
        "while [ ! -e {2} ]; do kill -0 $holder || exit; sleep 0.01; done; ",
        settings_.python, script, at("held"), at("lost"));
  }

  Later measure_later(const World& world) {
    const auto python = test::to_shell(world.python().argv);
    const auto at_once = fmt::format(
        "begin=$(date +%s%N); for i in $(seq 64); do {} & done; wait; "
        "echo $(($(date +%s%N) - begin))",
        python);
    const auto step = [&](const std::string& name) {
      fs::remove(at("up." + name));
      fs::remove(at("go." + name));
      return fmt::format(
          "{0}/bin/fs-mount --stats --json ${{HEDDLE_INDEX%/.heddle/index}} > {1}/stats.{2}; "
          "touch {1}/up.{2}; while [ ! -e {1}/go.{2} ]; do sleep 0.01; done; ",
          settings_.stage, directory_, name);
    };
    const auto script = fmt::format("{0}; {5}{1}{0}; {2}{3}; {4}", python, step("first"),
                                    step("second"), at_once, step("all"), hold_trees());
    auto command = world.guided(map());
    command.argv.resize(command.argv.size() - 2);
    command.argv.insert(command.argv.end(), {"/bin/sh", "-c", script});
    test::RunOptions run_options{.env = command.env, .deadline = std::chrono::minutes(10)};
    auto ours = std::async(std::launch::async,
                           [&] { return test::run_checked(command.argv, run_options).out; });
    const auto asked_until = [&](const std::string& name) {
      wait_for("up." + name);
      const auto total = number(world.slow->reset().total);
      test::write_text_file(at("go." + name), "");
      return total;
    };
    Later out{};
    asked_until("first");
    out.origin_second = asked_until("second");
    out.origin_64 = asked_until("all");
    out.ours_ms = std::stod(ours.get()) / 1e6;
    run_options.env = world.python_local().env;
    out.local_ms = std::stod(test::run_checked({"/bin/sh", "-c", at_once}, run_options).out) / 1e6;

    const std::vector<std::string> names = {"lookup", "open", "opendir", "readdir", "readdirplus"};
    const std::vector<std::string> attributes = {"getattr", "statx"};
    const auto added = [&](const char* to, const char* from,
                           const std::vector<std::string>& kinds) {
      return daemon_requests(to, kinds) - daemon_requests(from, kinds);
    };
    out.names_second = added("second", "first", names);
    out.attributes_second = added("second", "first", attributes);
    out.ioctls_second = added("second", "first", {"ioctl"});
    out.names_64 = added("all", "second", names);
    out.attributes_64 = added("all", "second", attributes);
    return out;
  }

  double daemon_requests(const std::string& step, const std::vector<std::string>& kinds) const {
    const auto stats =
        nlohmann::json::parse(value_or_throw(read_file(at("stats." + step)))).at("requests");
    double out = 0;
    for (const auto& kind : kinds) out += stats.at(kind).get<double>();
    return out;
  }

  /// What the daemon says of a run of `script` with a mount of `bundle`.
  double decoded_again(const std::string& bundle, const std::string& script,
                       const std::vector<std::string>& env) const {
    const auto stats = test::run_checked(
        {program("fs-gen"), "-q", "--no-share", "--map", bundle, "--", "/bin/sh", "-c",
         fmt::format("{} >&2 && exec {} --stats --json ${{HEDDLE_INDEX%/.heddle/index}}", script,
                     program("fs-mount"))},
        {.env = env, .deadline = std::chrono::minutes(10)});
    return nlohmann::json::parse(stats.out).at("bundle").at("decoded_again").get<double>();
  }

  void wait_for(const std::string& name) const {
    for (int tries = 0; !fs::exists(at(name)); ++tries) {
      if (tries > 60'000) throw Error(at(name), "did not appear");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  /// Its tree is the file system's root, as fs-gen finds it where the kernel keeps no names.
  void build_map(const World& world, const std::string& name) {
    world.slow->reset();
    const double ms = run_ms({{program("fs-resolve"), "build", "--python", "off", "--tree",
                               world.root, "-o", map(), settings_.python}});
    const auto counts = world.slow->counts();
    if (name != "python" || !built_.insert(name).second) return;
    results_.add({name + ".build.seconds", ms / 1000, "s"});
    results_.add({name + ".build.requests", number(counts.total), ""});
    results_.add({name + ".build.in_flight", number(counts.most_in_flight), "", {}, 32});
  }

  /// A figure with an aim, where it has one.
  void add(const std::string& name, double value, const std::string& unit, double at_most) {
    results_.add({name, value, unit, at_most > 0 ? std::optional(at_most) : std::nullopt});
  }

  static double number(std::uint64_t n) { return static_cast<double>(n); }
  static std::uint64_t files_read(const SlowCounts& counts) {
    std::uint64_t out = 0;
    for (const auto& [path, requests] : counts.files) out += requests.contains("READ");
    return out;
  }
  test::SlowOptions options() const { return {.delay_us = settings_.delay_us}; }
  std::string at(const std::string& name) const { return directory_ + "/" + name; }
  std::string map() const { return at("map"); }
  std::string program(const std::string& name) const { return settings_.stage + "/bin/" + name; }

  const Settings& settings_;
  std::string directory_;
  Results& results_;
  std::map<std::string, Cost> stock_;
  std::map<unsigned, Cost> copper_;
  std::set<std::string> built_;
};

}  // namespace

int python_bench(int argc, char** argv) {
  set_program_name("python_bench");
  Settings settings;
  CLI::App app("Measures Python imports from a slow file system, with and without heddle");
  app.add_option("--stage", settings.stage, "where heddle is installed")->required();
  app.add_option("--work", settings.work, "a directory for packages and mounts");
  app.add_option("--python", settings.python, "the interpreter");
  app.add_option("--packages", settings.packages, "each in a directory of its own");
  app.add_option("--delay-us", settings.delay_us, "what the slow file system takes for a request");
  app.add_option("--rounds", settings.rounds, "samples of each variant");
  app.add_option("--case", settings.cases, "only these: stock, map, bundle, copper, local");
  return run_program(app, argc, argv, [&](Results& results) {
    const auto directory = value_or_throw(TempDir::create(
        "python", settings.work.empty() ? std::string() : fs::absolute(settings.work).string()));
    Bench bench(settings, directory.path(), results);
    const auto wanted = [&](const std::string& name) {
      return settings.cases.empty() ||
             std::find(settings.cases.begin(), settings.cases.end(), name) != settings.cases.end();
    };
    const Layout scattered{"python"};
    const Layout merged{"python_merged", {}, true};
    const Layout below_two{"python_below_two", "opt/site/", false};
    if (wanted("stock"))
      for (const auto& layout : {scattered, merged, below_two})
        results.attempt(layout.name, [&] { bench.stock(layout); });
    if (wanted("copper")) results.attempt("python.copper", [&] { bench.copper(scattered); });
    if (wanted("map")) {
      for (const auto& layout : {scattered, merged, below_two})
        results.attempt(layout.name + ".map", [&] { bench.from_map(layout); });
      results.attempt("python.map.8", [&] { bench.against_copper(scattered); });
    }
    if (wanted("bundle")) {
      results.attempt("python.bundle", [&] { bench.from_bundle(scattered); });
      results.attempt("python.large_bundle", [&] { bench.large_bundle(); });
    }
    if (wanted("local")) results.attempt("python.local", [&] { bench.warm_and_local(scattered); });
  });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::python_bench(argc, argv); }
