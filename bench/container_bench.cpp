// SPDX-License-Identifier: MIT
//
// What fs-hook adds to the start of a container: with the image decided on before and without,
// beside no hook at all and beside bind mounts of the same files one by one, as E4S-CL makes them.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/results.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"

namespace heddle::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Settings {
  std::string stage;
  std::string rootfs;
  std::string json;
  unsigned rounds = 30;
};

Json bind_mount(const std::string& from, const std::string& to) {
  return {{"destination", to}, {"type", "bind"}, {"source", from}, {"options", {"rbind", "ro"}}};
}

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings), dir_(value_or_throw(TempDir::create("heddle-bench"))) {
    write("app/hello.c",
          "#include <mpi.h>\nint main(int c, char** v) { MPI_Init(&c, &v); MPI_Finalize(); }\n");
    test::run_checked({"unshare", "-m", "sh", "-ec",
                       "mount --bind \"$1\" \"$2/mnt\"; mount -t tmpfs tmpfs \"$2/tmp\"; exec "
                       "chroot \"$2\" mpicc.mpich -o /mnt/hello /mnt/hello.c",
                       "sh", path("app"), settings.rootfs});
  }

  /// The container runs /bin/true: its start is measured, not its program.
  Json config() const {
    return {
        {"ociVersion", "1.0.2"},
        {"process",
         {{"terminal", false},
          {"user", {{"uid", 0}, {"gid", 0}}},
          {"cwd", "/"},
          {"args", Json::array({"/bin/true"})},
          {"env", Json::array({"PATH=/usr/bin:/bin"})}}},
        {"root", {{"path", settings_.rootfs}, {"readonly", true}}},
        {"annotations", {{"heddle.mpi", "host"}, {"heddle.program", "/mnt/hello"}}},
        {"mounts", Json::array({{{"destination", "/proc"}, {"type", "proc"}, {"source", "proc"}},
                                {{"destination", "/dev"}, {"type", "tmpfs"}, {"source", "tmpfs"}},
                                bind_mount(path("app"), "/mnt")})},
        {"linux", {{"namespaces", Json::array({{{"type", "mount"}}, {{"type", "pid"}}})}}}};
  }
  std::string bundle(const std::string& name, const Json& config) const {
    write(name + "/config.json", config.dump());
    return path(name);
  }
  Json hooked() const {
    auto config = this->config();
    const Json hook = {
        {"path", settings_.stage + "/bin/fs-hook"},
        {"args", Json::array({"fs-hook", "oci", "--cache", path("cache"), "--log", path("log")})},
        {"env", Json::array({"PATH=/usr/bin:/bin"})}};
    config["hooks"]["createRuntime"] = Json::array({hook});
    return config;
  }
  /// Each file of the host's that was decided on, bound into the container by itself.
  Json bound() const {
    auto config = this->config();
    for (const auto& entry : fs::directory_iterator(path("cache"))) {
      if (entry.path().extension() != ".json") continue;
      const auto decision = Json::parse(value_or_throw(read_file(entry.path())));
      for (const auto& verdict : decision.at("verdict"))
        if (verdict.at("taken") == "host")
          config["mounts"].push_back(bind_mount(
              verdict.at("host"), "/dev/host/" + verdict.at("soname").get<std::string>()));
    }
    return config;
  }
  void forget() const {
    for (const auto& entry : fs::directory_iterator(path("cache")))
      if (entry.path().extension() == ".stamps") fs::remove(entry.path());
  }
  double start(const std::string& runtime, const std::string& bundle) {
    // crun 1.8 refuses to work where cgroup v1 and v2 are both mounted.
    return run_ms(
        {{"unshare", "-m", "sh", "-c", "umount /sys/fs/cgroup/unified 2>/dev/null; exec \"$@\"",
          "sh", runtime, "--root", path("state"), "run", "--bundle", bundle,
          fmt::format("heddle-bench-{}-{}", ::getpid(), ++count_)}});
  }

 private:
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    test::write_text_file(path(name), text);
  }
  const Settings& settings_;
  TempDir dir_;
  unsigned count_ = 0;
};

void measure(const Settings& settings, const std::string& runtime, Results& results) {
  Bench bench(settings);
  const auto hook = bench.bundle("hook", bench.hooked());
  (void)bench.start(runtime, hook);  // fills the cache of ELF facts, and decides
  const auto plain = bench.bundle("plain", bench.config());
  const auto binds = bench.bundle("binds", bench.bound());
  std::vector<Variant> variants = {{"no hook", [&] { return bench.start(runtime, plain); }},
                                   {"fs-hook", [&] { return bench.start(runtime, hook); }},
                                   {"bind mounts", [&] { return bench.start(runtime, binds); }},
                                   {"fs-hook, undecided",
                                    [&] {
                                      bench.forget();
                                      return bench.start(runtime, hook);
                                    },
                                    6}};
  interleave(variants, settings.rounds);
  const auto group = "container." + runtime;
  results.add(group, variants);
  const double none = results.median_of(group, "no hook");
  results.add({group + ".added", results.median_of(group, "fs-hook") - none, "ms", 10});
  results.add({group + ".added_undecided", results.median_of(group, "fs-hook, undecided") - none,
               "ms", 300});
  results.add({group + ".added_by_binds", results.median_of(group, "bind mounts") - none, "ms"});
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) {
  heddle::set_program_name("container_bench");
  CLI::App app("Measures what fs-hook adds to the start of a container");
  heddle::bench::Settings settings;
  app.add_option("--stage", settings.stage, "Where heddle is installed")->required();
  app.add_option("--rootfs", settings.rootfs, "A tree with MPICH (tests/support/rootfs)")
      ->required();
  app.add_option("--json", settings.json, "File for all samples");
  app.add_option("--rounds", settings.rounds, "Samples of each way");
  CLI11_PARSE(app, argc, argv);
  try {
    heddle::bench::Results results;
    for (const char* runtime : {"runc", "crun"}) heddle::bench::measure(settings, runtime, results);
    results.print();
    if (!settings.json.empty()) results.write_json(settings.json);
    return heddle::exit_done;
  } catch (const heddle::Error& error) {
    heddle::report(error);
    return heddle::exit_failure;
  }
}
