// SPDX-License-Identifier: MIT
//
// The units as systemd runs them: Debian 12 boots in namespaces of its own
// (tests/support/boot_systemd), with the installed tree in /opt/heddle and its units enabled. The
// services do their main job with the rights of docs/security.md, are started again when they are
// killed, and leave nothing when they are stopped.
#include <linux/capability.h>

#include <iterator>

#include "tests/compat/loopback.hpp"
#include "tests/support/oci_config.hpp"
#include "tests/support/prelude.hpp"
#include "tests/support/source_file.hpp"

namespace heddle::test {
namespace {

using Json = nlohmann::json;

constexpr const char* kNode = "heddle-node";
constexpr const char* kServer = "heddle-compat-server";
constexpr unsigned kUser = 1500;

constexpr const char* kHello = R"(
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length;
  MPI_Init(&argc, &argv);
  MPI_Get_library_version(version, &length);
  puts(version);
  MPI_Finalize();
  return 0;
}
)";

/// A booted system, which has `dir` on /test.
struct BootedSystem {
  TestDir dir;
  Fd hold;  ///< the system ends when this is closed
  std::optional<Child> script;
  std::string init;  ///< the pid of its process 1
  bool is_alive() const { return is_running(script->pid()) && is_running(std::atoi(init.c_str())); }
};

/// The cases of a suite share one system, which the first one boots.
class SystemdUnits : public ::testing::Test {
 protected:
  static void TearDownTestSuite() { end_system(); }
  static void end_system() {
    if (system_ && system_->script) {
      system_->hold.reset();
      const auto ended = value_or_throw(system_->script->wait_for(20s));
      if (why_not_.empty()) {
        EXPECT_EQ(ended, std::optional<int>(0));
      }
    }
    system_.reset();
  }
  void SetUp() override {
    if (!system_ && why_not_.empty()) {
      try {
        why_not_ = boot();
      } catch (const std::exception& error) {
        why_not_ = "systemd does not boot here: "s + error.what();
      }
    }
    if (!why_not_.empty()) HEDDLE_SKIP(why_not_);
  }
  void TearDown() override {
    if (HasFailure() && system_ && system_->is_alive())
      std::cerr << in({"journalctl", "--quiet", "--no-pager", "--lines=80"}).out
                << in({"cat", "/var/log/heddle-hook.log"}).out;
  }

  /// Why no system runs; empty: it does.
  static std::string boot() {
    if (staged_program("fs-hook").empty()) return "fs-hook is not installed in $HEDDLE_STAGE";
    const auto roots =
        run({source_file("tests/support/rootfs"), "bookworm-systemd", "bullseye-mpich"},
            {.deadline = 9min});
    if (roots.status != 0) return roots.err;
    const auto root = lines_of(roots.out).at(0);
    const auto image = lines_of(roots.out).at(1);
    system_ = std::make_unique<BootedSystem>();
    const auto& dir = system_->dir;
    fs::permissions(dir.path(), fs::perms(0755));
    for (const char* name : {"work", "app", "units"}) fs::create_directory(dir / name);
    write_text_file(dir / "app/hello.c", kHello);
    run_checked({"unshare", "-m", "sh", "-ec",
                 "mount --bind \"$1\" \"$2/mnt\"; mount -t tmpfs tmpfs \"$2/tmp\"\n"
                 "exec chroot \"$2\" mpicc.mpich -o /mnt/hello /mnt/hello.c",
                 "sh", dir / "app", image});
    Strings argv{
        "boot_systemd",        root,
        dir / "work",          image + ":/image:ro",
        dir.path() + ":/test", std::string(std::getenv("HEDDLE_STAGE")) + ":/opt/heddle:ro"};
    for (const char* name : {kNode, kServer})
      if (const auto unit = unit_in_opt(name); !unit.empty()) argv.push_back(unit);
    const auto log = value_or_throw(open_file(dir / "log", O_RDWR | O_CREAT | O_APPEND));
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return "pipe2 failed";
    const Fd read_end(ends[0]);
    system_->hold = Fd(ends[1]);
    system_->script.emplace(value_or_throw(spawn(source_file("tests/support/boot_systemd"), argv,
                                                 {{{read_end.get(), STDIN_FILENO},
                                                   {log.get(), STDOUT_FILENO},
                                                   {log.get(), STDERR_FILENO}}})));
    const auto said = [&] { return read_file(dir / "log").value_or(""); };
    (void)wait_until(20s, [&] {
      return said().find('\n') != std::string::npos || !is_running(system_->script->pid());
    });
    system_->init = said().substr(0, said().find('\n'));
    std::string state;
    (void)wait_until(60s, [&] {
      state = in({"systemctl", "is-system-running"}).out;
      return state == "running\n" || state == "degraded\n" || !system_->is_alive();
    });
    if (state != "running\n" && state != "degraded\n")
      return "systemd does not boot here: " + said() + state;
    if (in({"/opt/heddle/bin/fs-resolve", "--version"}).status != 0)
      return "the installed programs need another release than Debian 12";
    return {};
  }
  /// The installed unit, edited for the programs' place as docs/install.md says; empty: none.
  static std::string unit_in_opt(const std::string& name) {
    const std::string stage = std::getenv("HEDDLE_STAGE");
    auto text = read_file(stage + "/share/heddle/" + name + ".service").value_or("");
    if (text.empty()) return text;
    const auto at = text.find("=" + stage + "/bin/");
    EXPECT_NE(at, text.npos) << text;
    text.replace(at + 1, stage.size(), "/opt/heddle");
    const auto file = system_->dir / ("units/" + name + ".service");
    write_text_file(file, text);
    return file;
  }

  /// The command line of a process of root in the system.
  static Strings inside(const Strings& command) {
    return Strings{"nsenter",
                   "--all",
                   "--target",
                   system_->init,
                   "env",
                   "-i",
                   "PATH=/opt/heddle/bin:/usr/sbin:/usr/bin:/sbin:/bin"} +
           command;
  }
  static RunResult in(const Strings& command) { return run(inside(command)); }
  static std::string out_of(const Strings& command) { return run_checked(inside(command)).out; }
  static std::string shell(const std::string& script) { return in({"sh", "-c", script}).out; }
  static RunResult as_user(const Strings& command) {
    const auto id = std::to_string(kUser);
    return in(Strings{"setpriv", "--reuid", id, "--regid", id, "--clear-groups"} + command);
  }
  static std::string property(const std::string& unit, const std::string& name) {
    return lines_of(out_of({"systemctl", "show", "--value", "--property=" + name, unit}) + "\n")[0];
  }
  static std::string main_pid(const std::string& unit) { return property(unit, "MainPID"); }
  static bool is_active(const std::string& unit) {
    return in({"systemctl", "--quiet", "is-active", unit}).status == 0;
  }
  /// Kills its main process and waits until systemd has started it again.
  static void kill_main(const std::string& unit) {
    const auto before = main_pid(unit);
    (void)out_of({"sh", "-c", "kill -KILL " + before});
    EXPECT_TRUE(wait_until(20s, [&] { return main_pid(unit) != before && is_active(unit); }));
  }
  static Strings children_of(const std::string& pid) {
    std::istringstream in(shell("cat /proc/" + pid + "/task/*/children"));
    return {std::istream_iterator<std::string>(in), {}};
  }
  /// The pids, one a line, of processes that run a program of heddle with `name` in its name.
  static std::string processes(const std::string& name) {
    return shell(
        "for process in /proc/[0-9]*; do case $(readlink $process/exe) in\n"
        "/opt/heddle/*/" +
        name + "*) echo ${process#/proc/} ;; esac; done");
  }
  static std::string heddles_mounts() { return shell("grep fuse.heddle /proc/1/mountinfo"); }

  /// A row of the table in docs/security.md, by its first cell.
  static Strings row(const std::string& process) {
    for (const auto& line : lines_of(value_or_throw(read_file(source_file("docs/security.md"))))) {
      if (!line.starts_with("| " + process + " |")) continue;
      Strings cells;
      std::istringstream in(line.substr(2));
      // What follows a semicolon is for other places, such as a container without CAP_SYS_PTRACE.
      for (std::string cell; std::getline(in, cell, '|');)
        cells.push_back(cell.substr(1, cell.find_first_of(";", 1) - 1));
      for (auto& cell : cells) cell.erase(cell.find_last_not_of(' ') + 1);
      return cells;
    }
    ADD_FAILURE() << "docs/security.md has no row of " << process;
    return Strings(8);
  }
  static std::uint64_t mask_of(const std::string& names) {
    const std::pair<const char*, int> known[] = {{"CAP_SYS_ADMIN", CAP_SYS_ADMIN},
                                                 {"CAP_DAC_READ_SEARCH", CAP_DAC_READ_SEARCH},
                                                 {"CAP_SYS_PTRACE", CAP_SYS_PTRACE}};
    std::uint64_t mask = 0;
    for (const auto& [name, number] : known)
      if (names.find(name) != names.npos) mask |= std::uint64_t{1} << number;
    EXPECT_EQ(mask == 0, names == "none") << names;
    return mask;
  }
  /// Compares the rights of process `pid` with a row.
  static void expect_rights(const std::string& pid, const std::string& process,
                            bool is_root = true) {
    SCOPED_TRACE(process + " " + pid);
    const auto cells = row(process);
    const auto status = out_of({"cat", "/proc/" + pid + "/status"});
    const auto line = [](const char* name, std::uint64_t mask) {
      char text[64];
      std::snprintf(text, sizeof text, "\n%s:\t%016lx\n", name, mask);
      return std::string(text);
    };
    EXPECT_EQ(status.find("\nUid:\t0\t") != status.npos, is_root) << status;
    for (const char* set : {"CapPrm", "CapEff"})
      EXPECT_THAT(status, HasSubstr(line(set, mask_of(cells[3]))));
    EXPECT_THAT(status, HasSubstr(line("CapBnd", mask_of(cells[4]))));
    for (const char* set : {"CapInh", "CapAmb"}) EXPECT_THAT(status, HasSubstr(line(set, 0)));
    EXPECT_THAT(status, HasSubstr("\nNoNewPrivs:\t" + cells[5] + "\n"));
    EXPECT_THAT(cells[6], ::testing::AnyOf("filter", "of its systemd unit"));
    EXPECT_THAT(status, HasSubstr("\nSeccomp:\t2\n"));
  }

  /// The command line of a container whose program is hello; `script` runs in its place.
  static Strings container(const std::string& script, unsigned uid = 0) {
    static int count = 0;
    const auto name = "container" + std::to_string(++count);
    const auto file = system_->dir / (name + "/config.json");
    auto config = oci_config("/image", {"sh", "-c", script});
    config["process"]["user"] = {{"uid", uid}, {"gid", uid}};
    bind_host_devices(config);
    config["mounts"].push_back(oci_bind("/test/app", "/mnt", "rw"));
    fs::create_directory(system_->dir / name);
    write_text_file(file, config.dump());
    (void)out_of({"fs-hook", "bundle", "--program", "/mnt/hello", "--log",
                  "/var/log/heddle-hook.log", "/test/" + name});
    // In a unit of its own, as those of an engine or a job.
    return inside({"systemd-run", "--quiet", "--pipe", "--wait", "--collect", "runc", "run",
                   "--bundle", "/test/" + name, name});
  }
  static RunResult run_container(const std::string& script, unsigned uid = 0) {
    return run(container(script, uid));
  }
  /// What a container prints that runs hello on the host's MPI by the mount of number `device`.
  static std::string device_of_container() {
    const auto ran = run_container("/mnt/hello && stat -c 'device %d' /dev/heddle");
    EXPECT_THAT(ran.out, HasSubstr(hosts_mpi())) << ran.err;
    return ran.out.substr(std::min(ran.out.find("device "), ran.out.size()));
  }
  static std::string hosts_mpi() {
    const auto version = out_of({"dpkg-query", "-W", "-f", "${Version}", "libmpich12"});
    return version.substr(0, version.find('-'));
  }
  /// A container in the background, which waits in its shell until it runs hello.
  class WaitingContainer {
   public:
    WaitingContainer() {
      for (const char* name : {"up", "go"}) fs::remove(system_->dir / ("app/"s + name));
      const auto out = value_or_throw(open_file(out_, O_RDWR | O_CREAT | O_TRUNC));
      child_.emplace(value_or_throw(
          spawn("/usr/bin/env",
                Strings{"env"} + container("touch /mnt/up; until [ -e /mnt/go ]; do sleep 0.05; "
                                           "done; exec /mnt/hello"),
                {{{out.get(), STDOUT_FILENO}, {out.get(), STDERR_FILENO}}})));
      EXPECT_TRUE(wait_until(30s, [] { return fs::exists(system_->dir / "app/up"); })) << text();
    }
    /// Lets it run hello: what that prints.
    std::string go_on() {
      write_text_file(system_->dir / "app/go", "");
      EXPECT_EQ(value_or_throw(child_->wait_for(30s)), std::optional<int>(0)) << text();
      return text();
    }

   private:
    std::string text() const { return read_file(out_).value_or(""); }
    const std::string out_ = system_->dir / "out";
    std::optional<Child> child_;
  };

  inline static std::string why_not_;
  inline static std::unique_ptr<BootedSystem> system_;
};

TEST_F(SystemdUnits, start_with_the_system_without_a_warning) {
  for (const char* unit : {kNode, kServer}) {
    if (property(unit, "LoadState") == "not-found") continue;
    EXPECT_EQ(out_of({"systemctl", "is-enabled", unit}), "enabled\n");
    EXPECT_TRUE(is_active(unit)) << in({"systemctl", "status", unit}).out;
    EXPECT_EQ(out_of({"journalctl", "--quiet", "--priority=warning", "--unit", unit}), "");
    const auto verified = in({"systemd-analyze", "--man=no", "verify", unit + ".service"s});
    EXPECT_EQ(verified.err, "");
  }
}

TEST_F(SystemdUnits, rights_of_the_node_service_and_its_mounts_are_those_promised) {
  expect_rights(main_pid(kNode), "fs-mount `--node`");
  // What systemd leaves it: to drop the rest it needs one more.
  auto names = row("fs-mount `--node`")[3] + ", CAP_SETPCAP";
  const auto bounding = property(kNode, "CapabilityBoundingSet");
  std::istringstream each(bounding);
  std::size_t count = 0;
  for (std::string name; each >> name; ++count) {
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
    EXPECT_THAT(names, HasSubstr(name));
  }
  EXPECT_EQ(count, 1U + std::ranges::count(names, ','));
  const auto calls = property(kNode, "SystemCallFilter");
  EXPECT_THAT(calls, HasSubstr(" move_mount "));
  EXPECT_THAT(calls, Not(HasSubstr("ptrace")));

  (void)device_of_container();
  const auto pids =
      Json::parse(out_of({"sh", "-c", "fs-mount --stats --json /run/heddle/node/[0-9a-f]*"}));
  expect_rights(std::to_string(pids["supervisor_pid"].get<int>()),
                "fs-mount, supervisor of `fs-mount MAP DIR` and of `--node`'s mounts");
  expect_rights(std::to_string(pids["worker_pid"].get<int>()), "fs-mount, worker");

  const auto outside = as_user({"ls", "/run/heddle/node/"});
  EXPECT_NE(outside.status, 0);
  EXPECT_THAT(outside.err, HasSubstr("Permission denied"));
}

TEST_F(SystemdUnits, containers_share_the_node_services_mount) {
  const auto first = device_of_container();
  EXPECT_EQ(device_of_container(), first);
  EXPECT_THAT(out_of({"tail", "-n", "1", "/var/log/heddle-hook.log"}),
              HasSubstr("by the node's mount"));
  EXPECT_EQ(lines_of(heddles_mounts()).size(), 1U);
}

TEST_F(SystemdUnits, killed_node_service_is_started_again_and_keeps_its_mounts) {
  const auto device = device_of_container();
  WaitingContainer waiting;
  const auto restarts = property(kNode, "NRestarts");
  kill_main(kNode);
  EXPECT_NE(property(kNode, "NRestarts"), restarts);
  EXPECT_EQ(device_of_container(), device);
  EXPECT_THAT(waiting.go_on(), HasSubstr(hosts_mpi()));
  expect_rights(main_pid(kNode), "fs-mount `--node`");
}

TEST_F(SystemdUnits, stopped_node_service_leaves_mounts_to_containers_and_then_nothing) {
  const auto device = device_of_container();
  WaitingContainer waiting;
  (void)out_of({"systemctl", "stop", kNode});
  EXPECT_EQ(property(kNode, "Result"), "success");
  EXPECT_EQ(heddles_mounts(), "");
  EXPECT_NE(device_of_container(), device) << "by a mount of its own";
  EXPECT_NE(processes("fs-mount"), "");
  EXPECT_THAT(waiting.go_on(), HasSubstr(hosts_mpi()));
  EXPECT_TRUE(wait_until(10s, [] { return processes("fs-mount").empty(); }));
  EXPECT_EQ(shell("ls -A /run/heddle"), "");
  EXPECT_TRUE(wait_until(10s, [] {
    return in({"test", "-e", "/sys/fs/cgroup/system.slice/heddle-node.service"}).status != 0;
  }));
  (void)out_of({"systemctl", "start", kNode});
  EXPECT_NE(device_of_container(), "");
}

TEST_F(SystemdUnits, programs_of_root_and_users_are_guided_in_services) {
  const auto id = std::to_string(kUser);
  (void)out_of({"useradd", "--uid", id, "--create-home", "user" + id});
  for (const auto& user : {Strings{}, Strings{"--uid=" + id}}) {
    const auto ran = in(Strings{"systemd-run", "--quiet", "--pipe", "--wait", "--collect"} + user +
                        Strings{"/opt/heddle/bin/fs-gen", "-q", "--via", "private", "--slow", "/",
                                "--no-cache", "--", "/bin/cat", "/proc/self/maps"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("/libc.so.6\n")) << ran.err;
    EXPECT_THAT(ran.out, Not(HasSubstr(" /usr/lib/x86_64-linux-gnu/libc.so.6\n")));
  }
  EXPECT_TRUE(wait_until(10s, [] { return lines_of(processes("fs-gen")).empty(); }));
}

TEST_F(SystemdUnits, delay_no_shutdown) {
  (void)device_of_container();
  const int init = std::atoi(system_->init.c_str());
  const auto asked = in({"systemctl", "poweroff"});
  EXPECT_EQ(asked.status, 0) << asked.err;
  EXPECT_TRUE(wait_until(20s, [&] { return !is_running(init); }));
  end_system();
}

/// compat-server, and artifacts of a program that can run in the system and of one that cannot.
class SystemdServer : public SystemdUnits {
 protected:
  void SetUp() override {
    SystemdUnits::SetUp();
    if (IsSkipped()) return;
    if (property(kServer, "LoadState") == "not-found")
      HEDDLE_SKIP("compat-server is not installed in $HEDDLE_STAGE");
    const auto app = system_->dir / "app/";
    const auto lost = build_library({.output = app + "liblost.so.1",
                                     .source = "int lost() { return 1; }",
                                     .flags = {"-Wl,-soname,liblost.so.1"}});
    build_program({.output = app + "bad",
                   .source = "int lost(); int main() { return lost(); }",
                   .flags = {lost}});
    (void)out_of({"compat-gen", "-o", "/test/bad.json", "/test/app/bad"});
    (void)out_of({"compat-gen", "-o", "/test/good.json", "/bin/ls"});
  }
  static RunResult ask(const std::string& artifact, const std::string& token = kToken) {
    return in({"compat-check", "--server", "127.0.0.1:50051", "--token-file", token,
               "/test/" + artifact + ".json"});
  }
  static void expect_verdicts() {
    EXPECT_EQ(ask("good").status, 0) << ask("good").err;
    const auto bad = ask("bad");
    EXPECT_EQ(bad.status, 1) << bad.err;
    EXPECT_THAT(bad.out, HasSubstr("liblost.so.1"));
  }
  static constexpr const char* kToken = "/run/heddle-compat/token";
};

TEST_F(SystemdServer, answers_clients_that_have_its_token) {
  expect_verdicts();
  write_text_file(system_->dir / "token", "0123456789abcdef\n");
  const auto refused = ask("good", "/test/token");
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("token"));
  const auto read = as_user({"cat", kToken});
  EXPECT_NE(read.status, 0);
  EXPECT_THAT(read.err, HasSubstr("Permission denied"));
}

TEST_F(SystemdServer, rights_of_server_and_judges_are_those_promised) {
  const auto server = main_pid(kServer);
  const auto judges = children_of(server);
  ASSERT_GE(judges.size(), 2U);
  for (const auto& pid : Strings{server} + judges)
    expect_rights(pid, "compat-server and its judges", false);
  EXPECT_EQ(property(kServer, "CapabilityBoundingSet"), "");
}

TEST_F(SystemdServer, killed_server_is_started_again_without_the_old_judges) {
  const auto judges = children_of(main_pid(kServer));
  kill_main(kServer);
  for (const auto& pid : judges)
    EXPECT_NE(in({"test", "-d", "/proc/" + pid}).status, 0) << "judge " << pid;
  expect_verdicts();
}

TEST_F(SystemdServer, stopped_server_leaves_only_its_index) {
  (void)out_of({"systemctl", "stop", kServer});
  EXPECT_EQ(property(kServer, "Result"), "success");
  EXPECT_EQ(processes("compat-"), "");
  EXPECT_EQ(ask("good", "/test/token").status, 3);
  EXPECT_EQ(shell("ls -d /run/heddle-compat /run/private/heddle-compat 2>/dev/null"), "");
  EXPECT_NE(shell("ls -A /var/cache/private/heddle-compat"), "");
  (void)out_of({"systemctl", "start", kServer});
  expect_verdicts();
}

/// As the unit's comment and compat-server(1) say.
TEST_F(SystemdServer, credentials_of_the_unit_serve_other_nodes_by_tls) {
  make_certificate("127.0.0.1", system_->dir / "key", system_->dir / "cert");
  write_text_file(system_->dir / "token", "0123456789abcdef\n", 0600);
  const auto directory = "/run/systemd/system/"s + kServer + ".service.d";
  (void)out_of({"sh", "-ec",
                "mkdir -p $0; cat >$0/tls.conf <<'END'\n[Service]\n"
                "LoadCredential=key:/test/key\nLoadCredential=token:/test/token\nExecStart=\n"
                "ExecStart=/opt/heddle/bin/compat-server --listen 0.0.0.0:50051 --tls-cert "
                "/test/cert --tls-key %d/key --token-file %d/token\nEND\n"
                "systemctl daemon-reload; systemctl restart $1",
                directory, kServer});
  const Strings check{"compat-check", "--server",     "127.0.0.1:50051", "--ca",
                      "/test/cert",   "--token-file", "/test/token",     "/test/good.json"};
  const auto answer = in(check);
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_EQ(ask("good", "/test/token").status, 3) << "without TLS";
  for (const char* name : {"key", "token"})
    EXPECT_EQ(as_user({"cat", "/run/credentials/"s + kServer + ".service/" + name}).out, "");
  (void)out_of(
      {"sh", "-ec", "rm -r $0; systemctl daemon-reload; systemctl restart $1", directory, kServer});
  expect_verdicts();
}

}  // namespace
}  // namespace heddle::test
