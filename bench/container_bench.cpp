// SPDX-License-Identifier: MIT
//
// What fs-hook adds to the start of a container: with the image decided on before and without, and
// with the node's shared mount, beside no hook at all and beside bind mounts of the same files one
// by one, as E4S-CL makes them. How much of the host's files four containers read. And how soon a
// container that must not start is refused.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/program.hpp"
#include "tests/hook/container_runtime.hpp"
#include "tests/hook/hook_troubles.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/oci_config.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::bench {
namespace {

/// Prints the mount's statistics, in a Debian image, which has perl and no getfattr.
const std::string kPrintStats = fmt::format(
    "perl -e '$v = chr(0) x 65536; ($p, $a) = (\"/dev/heddle\", \"user.heddle.stats\"); "
    "$n = syscall({}, $p, $a, $v, 65536); "
    "print substr($v, 0, $n)'",
    SYS_getxattr);

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Settings {
  std::string stage;
  std::string rootfs;
  unsigned rounds = 60;
};

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
    auto out = test::oci_config(settings_.rootfs, {"/bin/true"});
    out["annotations"]["heddle.program"] = "/mnt/hello";
    out["mounts"].push_back(test::oci_bind(path("app"), "/mnt"));
    return out;
  }
  std::string bundle(const std::string& name, const Json& config) const {
    write(name + "/config.json", config.dump());
    return path(name);
  }
  /// `node`: the directory in which it asks for a shared mount.
  Json hooked(const std::string& node) const {
    auto config = this->config();
    const auto hook = test::oci_hook_entry(
        settings_.stage + "/bin/fs-hook",
        {"--cache", path("cache"), "--log", path("log"), "--node", path(node)});
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
          config["mounts"].push_back(test::oci_bind(
              verdict.at("host"), "/dev/host/" + verdict.at("soname").get<std::string>()));
    }
    return config;
  }
  void forget() const {
    for (const auto& entry : fs::directory_iterator(path("cache")))
      if (entry.path().extension() == ".json") fs::remove(entry.path());
  }
  double start(const std::string& runtime, const std::string& bundle) {
    const auto took = run_ms({command(runtime, bundle)});
    // An fs-mount ends after its container: it must not burden the next start.
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return took;
  }
  /// Ranks in containers of their own, one after the other so that none finds a file half read: the
  /// bytes that the mounts have handed to the kernel, which keeps them for all users of one mount.
  double bytes_read(const std::string& runtime, const std::string& node, int ranks) {
    auto config = hooked(node);
    config["process"]["args"] = {
        "/bin/sh", "-c",
        "/mnt/hello >/dev/out 2>&1 || { cat /dev/out >&2; exit 1; }; " + kPrintStats};
    config["mounts"].push_back(test::oci_bind("/sys", "/sys"));
    config["mounts"].push_back(test::oci_tmpfs("/dev/shm"));
    const auto ranks_bundle = bundle("ranks-" + node, config);
    std::map<std::uint64_t, double> by_mount;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto ran = test::run_checked(command(runtime, ranks_bundle));
      const auto stats = Json::parse(ran.out);
      by_mount[stats.at("supervisor_pid")] = stats.at("bytes_read");
    }
    double sum = 0;
    for (const auto& [mount, bytes] : by_mount) sum += bytes;
    return sum;
  }
  std::string directory(const std::string& name) const { return path(name); }

  enum class End { normal, exit_3, init_killed, runtime_killed, fs_mount_killed };
  /// From the end of a container to that of its fs-mount, with which its mount has gone from every
  /// namespace.
  double end_ms(const std::string& runtime, End how) {
    auto config = hooked("no-node");
    const std::string last = how == End::normal   ? "exit 0"
                             : how == End::exit_3 ? "exit 3"
                                                  : "exec sleep 1000";
    config["process"]["args"] = {"/bin/sh", "-c", kPrintStats + "; echo all; read word; " + last};
    const auto argv = command(runtime, bundle("end", config));
    const auto out = value_or_throw(open_file(path("out"), O_RDWR | O_CREAT | O_TRUNC));
    auto input = value_or_throw(make_pipe());
    auto child =
        value_or_throw(spawn("/usr/bin/unshare", argv,
                             {{{input.read_end.get(), STDIN_FILENO}, {out.get(), STDOUT_FILENO}}}));
    std::string text;
    wait_for([&] {
      text = value_or_throw(read_file(path("out")));
      return text.ends_with("all\n");
    });
    const auto stats = Json::parse(text.substr(0, text.rfind('}') + 1));
    const std::vector<int> daemons = {stats.at("supervisor_pid"), stats.at("worker_pid")};
    const auto gone = [&] {
      return std::none_of(daemons.begin(), daemons.end(), test::is_running);
    };
    const auto asked = test::run({runtime, "--root", path("state"), "state", argv.back()}).out;
    const int init = Json::parse(asked).at("pid");
    if (how == End::fs_mount_killed) {
      for (const int daemon : daemons) ::kill(daemon, SIGKILL);
      wait_for(gone);
    }
    if (how == End::runtime_killed) {
      ::kill(child.pid(), SIGKILL);
      (void)child.wait();
    }
    const auto begin = std::chrono::steady_clock::now();
    if (how == End::normal || how == End::exit_3)
      (void)write_all(input.write_end.get(), "\n", "the container");
    else
      ::kill(init, SIGKILL);
    wait_for(gone);
    wait_for([&] { return !test::is_running(init); });
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (how == End::runtime_killed)
      (void)test::run({runtime, "--root", path("state"), "delete", "--force", argv.back()});
    else
      (void)child.wait();
    return took.count();
  }

 private:
  std::vector<std::string> command(const std::string& runtime, const std::string& bundle) {
    // crun 1.8 refuses to work where cgroup v1 and v2 are both mounted.
    return {"unshare",
            "-m",
            "sh",
            "-c",
            "umount /sys/fs/cgroup/unified 2>/dev/null; exec \"$@\"",
            "sh",
            runtime,
            "--root",
            path("state"),
            "run",
            "--bundle",
            bundle,
            fmt::format("heddle-bench-{}-{}", ::getpid(), ++count_)};
  }
  static void wait_for(const std::function<bool()>& what) {
    if (!test::wait_until(std::chrono::seconds(30), what))
      throw Error("a container", "did not do what it should within 30 s");
  }
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    test::write_text_file(path(name), text);
  }
  const Settings& settings_;
  TempDir dir_;
  unsigned count_ = 0;
};

/// fs-mount --node, as long as it is mounted.
class NodeService {
 public:
  NodeService(const std::string& stage, const std::string& directory)
      : child_(value_or_throw(
            spawn(stage + "/bin/fs-mount", {"fs-mount", "--prefetch", "0", "--node", directory}))) {
    if (!test::wait_until(std::chrono::seconds(10),
                          [&] { return fs::exists(directory + "/socket"); }))
      throw Error("fs-mount --node", "does not serve");
  }
  NodeService(const NodeService&) = delete;
  NodeService& operator=(const NodeService&) = delete;
  ~NodeService() {
    ::kill(child_.pid(), SIGTERM);
    (void)child_.wait();
  }

 private:
  Child child_;
};

/// From the start of `run` to its end, with what fs-hook must refuse a container for.
double refused_ms(const std::string& runtime, const test::HookTrouble& trouble) {
  static unsigned count = 0;
  test::ContainerWorld world;
  auto config = world.config({"/bin/app"});
  trouble.make(world, config);
  auto argv = trouble.before;
  const auto command =
      test::Runtime(runtime, world.path("state"))
          .run_command(world.bundle("bundle", config),
                       fmt::format("heddle-bench-refused-{}-{}", ::getpid(), ++count));
  argv.insert(argv.end(), command.begin(), command.end());
  test::RunResult ran;
  const double took = time_ms([&] { ran = test::run(argv); });
  if (ran.status == 0 || world.log_text().find(trouble.line) == std::string::npos)
    throw Error(trouble.name, "was not refused", world.log_text());
  return took;
}

void measure_refusals(const std::string& runtime, unsigned rounds, Results& results) {
  std::vector<Variant> variants;
  for (const auto& trouble : test::hook_troubles())
    for (const char* name : {"no map", "a damaged map", "a host's file that has gone",
                             "no /dev/fuse", "a device cgroup that forbids /dev/fuse"})
      if (trouble.name == name)
        variants.push_back({name, [&] { return refused_ms(runtime, trouble); }});
  interleave(variants, rounds);
  const auto group = "container." + runtime + ".refused";
  results.add(group, variants);
  double longest = 0;
  for (const auto& variant : variants)
    for (const double sample : variant.samples) longest = std::max(longest, sample);
  results.add({group + "_at_the_latest", longest, "ms", 1000});
}

void measure(const Settings& settings, const std::string& runtime, Results& results) {
  Bench bench(settings);
  const NodeService service(settings.stage, bench.directory("node"));
  const auto hook = bench.bundle("hook", bench.hooked("no-node"));
  const auto shared = bench.bundle("shared", bench.hooked("node"));
  (void)bench.start(runtime, hook);  // fills the cache of ELF facts, and decides
  const auto plain = bench.bundle("plain", bench.config());
  const auto binds = bench.bundle("binds", bench.bound());
  std::vector<Variant> variants = {
      {"no hook", [&] { return bench.start(runtime, plain); }},
      {"fs-hook", [&] { return bench.start(runtime, hook); }},
      {"fs-hook, --node", [&] { return bench.start(runtime, shared); }},
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
  results.add(
      {group + ".added_with_node", results.median_of(group, "fs-hook, --node") - none, "ms", 10});
  results.add({group + ".added_undecided", results.median_of(group, "fs-hook, undecided") - none,
               "ms", 300});
  results.add({group + ".added_by_binds", results.median_of(group, "bind mounts") - none, "ms"});
  using End = Bench::End;
  double longest = 0;
  for (const auto how :
       {End::normal, End::exit_3, End::init_killed, End::runtime_killed, End::fs_mount_killed})
    for (int round = 0; round < 3; ++round) longest = std::max(longest, bench.end_ms(runtime, how));
  results.add({group + ".gone_after_its_end_at_the_latest", longest, "ms", 1000});
  measure_refusals(runtime, std::max(1U, settings.rounds / 6), results);
  constexpr int kRanks = 4;
  constexpr double kMiB = 1U << 20;
  const double once = bench.bytes_read(runtime, "no-node", 1);
  results.add({group + ".read_by_1_container", once / kMiB, "MiB"});
  results.add({group + ".read_by_4_containers_alone",
               bench.bytes_read(runtime, "no-node", kRanks) / kMiB, "MiB"});
  const double together = bench.bytes_read(runtime, "node", kRanks);
  results.add({group + ".read_by_4_containers_with_node", together / kMiB, "MiB"});
  results.add({group + ".host_files_read_by_4_containers", together / once, "times", 1.1});
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) {
  // Made before the directories of tests/hook, which ask it at their end whether they are to stay.
  (void)::testing::UnitTest::GetInstance();
  heddle::set_program_name("container_bench");
  CLI::App app("Measures what fs-hook adds to the start of a container");
  heddle::bench::Settings settings;
  app.add_option("--stage", settings.stage, "Where heddle is installed")->required();
  app.add_option("--rootfs", settings.rootfs, "A tree with MPICH (tests/support/rootfs)")
      ->required();
  app.add_option("--rounds", settings.rounds, "Samples of each way");
  return heddle::bench::run_program(app, argc, argv, [&](heddle::bench::Results& results) {
    ::setenv("HEDDLE_STAGE", settings.stage.c_str(), 1);  // for the containers of tests/hook
    for (const std::string runtime : {"runc", "crun"})
      results.attempt("container." + runtime,
                      [&] { heddle::bench::measure(settings, runtime, results); });
  });
}
