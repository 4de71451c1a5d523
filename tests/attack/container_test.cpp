// SPDX-License-Identifier: MIT
//
// Root of a container (uid 0), and an image's manifest, against the installed fs-hook: below runc,
// crun and podman nothing of the host's is reached or switched on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/fd.hpp"
#include "tests/hook/node_service.hpp"
#include "tests/hook/podman_session.hpp"
#include "tests/hook/runtime_test.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;
using Json = nlohmann::json;

const auto kName = [](const auto& each) { return each.param; };

/// Root of a container: looks for any way from a process or socket of ours to the outside.
constexpr const char* kIntruder = R"(
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char text[1 << 20];
static const char* get(const char* path) {
  int fd = open(path, O_RDONLY);
  ssize_t size = fd < 0 ? -1 : 0, n;
  while (fd >= 0 && (n = read(fd, text + size, sizeof text - 1 - size)) > 0) size += n;
  if (fd >= 0) close(fd);
  text[size < 0 ? 0 : size] = 0;
  for (ssize_t i = 0; i < size; ++i)
    if (!text[i]) text[i] = ' ';
  return text;
}

static void look_at(const char* pid) {
  char path[600], to[600];
  static const char* const links[] = {"root", "cwd", "exe", "ns/mnt"};
  for (int i = 0; i < 4; ++i) {
    snprintf(path, sizeof path, "/proc/%s/%s", pid, links[i]);
    if (readlink(path, to, sizeof to) >= 0 || open(path, O_PATH) >= 0) printf("REACHED %s\n", path);
  }
  static const char* const files[] = {"mem", "environ", "maps", "auxv", "syscall", "stack", "io"};
  for (int i = 0; i < 7; ++i) {
    snprintf(path, sizeof path, "/proc/%s/%s", pid, files[i]);
    int fd = open(path, O_RDONLY);
    if (fd >= 0 && read(fd, to, 1) > 0) printf("REACHED %s\n", path);
  }
  static const char* const lists[] = {"fd", "map_files"};
  for (int i = 0; i < 2; ++i) {
    snprintf(path, sizeof path, "/proc/%s/%s", pid, lists[i]);
    DIR* list = opendir(path);
    for (struct dirent* entry; list && (entry = readdir(list));) {
      if (entry->d_name[0] == '.') continue;
      if (readlinkat(dirfd(list), entry->d_name, to, sizeof to) >= 0 ||
          openat(dirfd(list), entry->d_name, O_PATH) >= 0)
        printf("REACHED %s/%s\n", path, entry->d_name);
    }
  }
  int process = syscall(SYS_pidfd_open, atoi(pid), 0);
  for (int fd = 0; process >= 0 && fd < 16; ++fd)
    if (syscall(SYS_pidfd_getfd, process, fd, 0) >= 0) printf("REACHED descriptor of %s\n", pid);
  if (ptrace(PTRACE_SEIZE, atoi(pid), 0, 0) == 0) printf("REACHED %s as its debugger\n", pid);
}

static void call(const char* name) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  size_t size = strlen(name);
  if (size >= sizeof at.sun_path) return;
  memcpy(at.sun_path, name, size);
  if (*name == '@') at.sun_path[0] = 0;
  static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
  for (int i = 0; i < 3; ++i) {
    int fd = socket(AF_UNIX, types[i], 0);
    if (connect(fd, (struct sockaddr*)&at, offsetof(struct sockaddr_un, sun_path) + size) == 0)
      printf("REACHED socket %s\n", name);
    close(fd);
  }
}

static int odd(const char* path, const struct stat* status, int flag, struct FTW* level) {
  (void)flag, (void)level;
  if (!S_ISREG(status->st_mode) && !S_ISDIR(status->st_mode) && !S_ISLNK(status->st_mode))
    printf("REACHED odd file %s\n", path);
  return 0;
}

/* intruder WORLD: of processes only those with that in their arguments are another's to lose. */
int main(int argc, char** argv) {
  int seen = 0;
  (void)argc;
  for (int fd = 3; fd < 1024; ++fd)
    if (fcntl(fd, F_GETFD) >= 0) printf("REACHED inherited descriptor %d\n", fd);
  DIR* list = opendir("/proc");
  for (struct dirent* entry; list && (entry = readdir(list));) {
    char path[300];
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
    const char* words = get(path);
    if (strncmp(words, "fs-", 3) || !strstr(words, argv[1])) continue;
    ++seen;
    look_at(entry->d_name);
  }
  char* known = strdup(get("/etc/known-sockets"));
  char* lines = strdup(get("/proc/net/unix"));
  for (char* line = strtok(lines, "\n"); line; line = strtok(NULL, "\n")) {
    const char* name = strpbrk(line, "@/");
    if (name && strstr(name, "heddle") && !strstr(known, name)) call(name);
  }
  nftw("/dev/heddle", odd, 16, FTW_PHYS);
  struct stat mount;
  printf("SAW %d processes, %s mount\n", seen, stat("/dev/heddle/.heddle", &mount) ? "no" : "the");
  return 0;
}
)";

void put_intruder(const ContainerWorld& world) {
  build_program(
      {.output = world.rootfs() + "/bin/intruder", .source = kIntruder, .flags = {"-static"}});
  write_text_file(world.rootfs() + "/etc/known-sockets", read_file("/proc/net/unix").value_or(""));
}

/// `sees_others`: or it would have had nothing to try.
void expect_nothing_reached(const RunResult& ran, bool sees_others) {
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr(", the mount\n"), Not(HasSubstr("REACHED"))));
  if (sees_others) {
    EXPECT_THAT(ran.out, Not(HasSubstr("SAW 0 ")));
  }
}

class Intruder : public RuntimeTest {
 protected:
  static constexpr unsigned kMappedRoot = 100000;  ///< uid 0 of a user namespace
  void SetUp() override {
    RuntimeTest::SetUp();
    if (!IsSkipped()) put_in();
  }
  void put_in() const {
    put_intruder(*world_);
    fs::create_directory(world_->path("mapped"));
    EXPECT_EQ(::chown(world_->path("mapped").c_str(), kMappedRoot, kMappedRoot), 0);
  }
  struct Isolation {
    std::string stage;
    bool own_pids;
    bool own_net;
    bool own_users;
    bool default_rights;
  };
  /// "podman run" without options gives these.
  static Json default_rights() {
    const auto all = Json::array({"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID",
                                  "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID",
                                  "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT"});
    return {{"bounding", all}, {"effective", all}, {"permitted", all}};
  }
  Json config_for(const Isolation& way) const {
    auto config = world_->config({"/bin/intruder", world_->path("")});
    config["hooks"] = {{way.stage, {world_->hook_json(way.stage)}}};
    auto& spaces = config["linux"]["namespaces"];
    if (!way.own_pids) spaces.erase(std::find(spaces.begin(), spaces.end(), Json{{"type", "pid"}}));
    if (way.own_net) spaces.push_back({{"type", "network"}});
    if (way.own_users) {
      // A proc of its own takes a pid namespace of its own.
      if (!way.own_pids) config["mounts"][0] = oci_bind("/proc", "/proc", "rw");
      spaces.push_back({{"type", "user"}});
      for (const char* map : {"uidMappings", "gidMappings"})
        config["linux"][map] = {{{"containerID", 0}, {"hostID", kMappedRoot}, {"size", 65536}}};
      // A hook in there is this user's, and keeps nothing in root's directories.
      if (way.stage == "createContainer")
        for (auto& word : config["hooks"][way.stage][0]["args"])
          if (word == world_->path("cache") || word == world_->log())
            word = world_->path("mapped/" + fs::path(word).filename().string());
    }
    if (way.default_rights) config["process"]["capabilities"] = default_rights();
    config["linux"]["resources"] = {
        {"devices",
         {{{"allow", true}, {"type", "c"}, {"major", 10}, {"minor", 229}, {"access", "rw"}}}}};
    return config;
  }
};

TEST_P(Intruder, as_uid_0_of_a_container_reaches_no_process_and_no_socket) {
  for (int bits = 0; bits < 32; ++bits) {
    const Isolation way{(bits & 1) != 0 ? "createContainer" : "createRuntime", (bits & 2) != 0,
                        (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0};
    SCOPED_TRACE(way.stage + (way.own_pids ? ", own pids" : ", host's pids") +
                 (way.own_net ? ", own net" : "") + (way.own_users ? ", own users" : "") +
                 (way.default_rights ? ", default rights" : ", no rights"));
    const auto ran = start(config_for(way), {HEDDLE_IN_WORLD, "--fuse", "open", "--"});
    expect_nothing_reached(ran, !way.own_pids || way.stage == "createContainer");
    if (!HasFailure()) continue;
    ADD_FAILURE() << world_->log_text() << read_file(world_->path("mapped/hook.log")).value_or("");
    break;
  }
  expect_nothing_left();
}

/// The worker of a mount that all containers share lives on the host.
TEST_P(Intruder, as_uid_0_reaches_nothing_of_the_nodes_service) {
  NodeService service(world_->path("stage/bin/fs-mount"), world_->path("node"));
  for (const bool own_pids : {false, true}) {
    const auto ran = start(config_for({"createRuntime", own_pids, false, false, false}));
    EXPECT_THAT(world_->log_text(), HasSubstr("by the node's mount"));
    expect_nothing_reached(ran, !own_pids);
  }
}

INSTANTIATE_TEST_SUITE_P(Oci, Intruder, ::testing::Values("runc", "crun"), kName);

/// podman of root, or of a user where the parameter begins with `user_`.
class PodmanTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("only root can mount and become another user");
    if (const auto reason = why_not(runtime()); !reason.empty()) HEDDLE_SKIP(reason);
    if (run({"sh", "-c", "command -v podman"}).status != 0) HEDDLE_SKIP("podman is not installed");
    world_ = std::make_unique<ContainerWorld>();
    session_ =
        std::make_unique<PodmanSession>(world_->path("podman"), runtime(), is_user() ? kUser : 0);
  }
  void TearDown() override {
    if (!world_) return;
    EXPECT_TRUE(wait_until(20s, [&] { return world_->processes().empty(); }));
  }
  bool is_user() const { return GetParam().starts_with("user_"); }
  std::string runtime() const { return is_user() ? GetParam().substr(5) : GetParam(); }
  std::string log() const { return read_file(session_->path("hook.log")).value_or(""); }
  void install(const std::vector<std::string>& how) const {
    std::vector<std::string> argv{world_->hook(), "install",
                                  "--dir",        session_->path("hooks.d"),
                                  "--cache",      session_->path("cache"),
                                  "--log",        session_->path("hook.log")};
    argv.insert(argv.end(), how.begin(), how.end());
    const auto ran = session_->run(argv);
    ASSERT_EQ(ran.status, 0) << ran.err;
  }

  std::unique_ptr<ContainerWorld> world_;
  std::unique_ptr<PodmanSession> session_;
};

/// The same from containers of root's podman, with and without its default rights and namespaces.
class PodmanIntruder : public PodmanTest {
 protected:
  void SetUp() override {
    PodmanTest::SetUp();
    if (!IsSkipped()) install({"--always"});
  }
  RunResult start(const std::vector<std::string>& options, const std::vector<std::string>& command,
                  const std::string& before = "true") const {
    auto words = session_->run_words(options);
    words.insert(words.end(), {"--rootfs", world_->rootfs()});
    words.insert(words.end(), command.begin(), command.end());
    return session_->run(words, before);
  }
};

TEST_P(PodmanIntruder, as_uid_0_reaches_no_process_and_no_socket) {
  put_intruder(*world_);
  const std::vector<std::vector<std::string>> ways{
      {}, {"--cap-drop=all"}, {"--pid=host"}, {"--pid=host", "--cap-drop=all"}, {"--ipc=host"}};
  for (const auto& options : ways) {
    SCOPED_TRACE(::testing::PrintToString(options));
    // Without control groups, as crun runs here, podman has no container in the host's PID
    // namespace.
    if (GetParam() == "crun" && !options.empty() && options[0] == "--pid=host") continue;
    const auto ran = start(options, {"/bin/intruder", world_->path("")});
    expect_nothing_reached(ran, !options.empty() && options[0] == "--pid=host");
  }
}

INSTANTIATE_TEST_SUITE_P(Oci, PodmanIntruder, ::testing::Values("runc", "crun"), kName);

/// podman copies annotations of an image's manifest into its container; labels and ENV are the
/// image's too.
class HostileManifest : public PodmanTest {
 protected:
  RunResult podman(const std::vector<std::string>& words,
                   const std::string& before = "true") const {
    // Root's TMPDIR is not a user's.
    std::vector<std::string> argv{"env", "TMPDIR=" + session_->path("home")};
    for (const auto& more : {session_->words(), words})
      argv.insert(argv.end(), more.begin(), more.end());
    return session_->run(argv, before);
  }
  void build(const std::vector<std::string>& annotations) const {
    const auto tar = world_->path("image.tar");
    run_checked({"tar", "-C", world_->rootfs(), "-cf", tar, "."});
    const auto imported = podman({"import", tar, "localhost/base:1"});
    ASSERT_EQ(imported.status, 0) << imported.err;
    write_text_file(world_->path("Containerfile"),
                    "FROM localhost/base:1\nLABEL heddle.mpi=host\n"
                    "ENV heddle.mpi=host HEDDLE_MPI=host\n");
    std::vector<std::string> words{"build",
                                   "--pull=never",
                                   "--isolation=chroot",
                                   "--network=host",
                                   "-t",
                                   "localhost/evil:1",
                                   "-f",
                                   world_->path("Containerfile")};
    for (const auto& annotation : annotations)
      words.insert(words.end(), {"--annotation", annotation});
    words.push_back(session_->path("home"));
    const auto built = podman(words);
    ASSERT_EQ(built.status, 0) << built.err;
  }
  RunResult start(const std::vector<std::string>& options = {},
                  const std::string& before = "true") const {
    auto words = session_->run_words(options);
    words.erase(words.begin(),
                words.begin() + static_cast<std::ptrdiff_t>(session_->words().size()));
    words.insert(words.end(), {"--pull=never", "localhost/evil:1", "/bin/app"});
    return podman(words, before);
  }
};

TEST_P(HostileManifest, does_not_switch_the_hook_on) {
  build({"heddle.mpi=host", "heddle.program=/bin/app", "heddle.policy=warn"});
  install({"--allow-annotations", "/srv/trusted-images"});
  EXPECT_EQ(start().out, "container\n") << log();
  EXPECT_THAT(log(),
              AllOf(HasSubstr("annotations (heddle.*) are ignored"), Not(HasSubstr("swapped"))));
  EXPECT_FALSE(fs::exists(session_->path("cache"))) << "the image was looked into";
  // As a former version of ours wrote that file: with no word of who may ask.
  const auto file = session_->path("hooks.d/50-heddle-mpi.json");
  auto hook = Json::parse(value_or_throw(read_file(file)));
  auto& args = hook["hook"]["args"];
  args.erase(std::find(args.begin(), args.end(), Json("--allow-annotations")), args.end());
  write_text_file(file, hook.dump());
  EXPECT_EQ(start().out, "container\n") << log();
  EXPECT_THAT(log(), Not(HasSubstr("swapped")));
  // So that this can fail: where the administrator trusts the images, they do.
  install({"--allow-annotations", "/"});
  EXPECT_EQ(start().out, "host\n") << log();
}

TEST_P(HostileManifest, has_no_say_in_what_its_user_asked_for) {
  build({"heddle.mpi=off", "heddle.policy=warn", "heddle.program=/bin/plain"});
  if (is_user()) {
    install({"--always"});
    EXPECT_EQ(start().out, "host\n") << log();
  } else {
    // podman 4.3 reads CDI specifications from the system's directories alone.
    const auto spec = run({world_->hook(), "cdi", "--cache", session_->path("cache"), "--log",
                           session_->path("hook.log")});
    write_text_file(world_->path("heddle.json"), spec.out);
    const auto before = "mount -t tmpfs tmpfs /run; mkdir /run/cdi; cp " +
                        world_->path("heddle.json") + " /run/cdi/";
    EXPECT_EQ(start({}, before).out, "container\n") << log();
    EXPECT_EQ(start({"--device", "heddle/mpi=host"}, before).out, "host\n") << log();
    auto decision = world_->swap();
    decision["outcome"] = "incompatible";
    decision["reason"] = "the reason";
    world_->answer(decision, 1);
    fs::remove_all(session_->path("cache"));
    EXPECT_NE(start({"--device", "heddle/mpi=host"}, before).status, 0) << "only warned";
  }
  EXPECT_THAT(log(), HasSubstr("annotations (heddle.*) are ignored"));
}

INSTANTIATE_TEST_SUITE_P(Oci, HostileManifest,
                         ::testing::Values("runc", "crun", "user_runc", "user_crun"), kName);

}  // namespace
}  // namespace heddle::test
