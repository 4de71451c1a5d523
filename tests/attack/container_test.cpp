// SPDX-License-Identifier: MIT
//
// Attacks by a container's root and by an image's manifest on the installed fs-hook, below runc,
// crun and podman.

#include "tests/hook/node_service.hpp"
#include "tests/hook/podman_session.hpp"
#include "tests/hook/runtime_test.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

/// Looks for any way out of the container through a process or socket of heddle.
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

/* A connection to heddle that may be there: it must be good for nothing but its end. */
static void talk(int fd) {
  struct timeval limit = {.tv_usec = 200000};
  int places[3] = {open("/proc/self/ns/mnt", O_PATH), open("/proc/self/ns/user", O_PATH),
                   open("/", O_PATH)};
  static const char* const words[] = {"enter", "go", "h", "\1", ""};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  for (int i = 0; i < 5; ++i) {
    union { char bytes[CMSG_SPACE(sizeof places)]; struct cmsghdr align; } space = {0};
    struct iovec part = {(void*)words[i], strlen(words[i])};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space.bytes,
                             .msg_controllen = sizeof space.bytes};
    struct cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof places);
    memcpy(CMSG_DATA(header), places, sizeof places);
    sendmsg(fd, &message, MSG_NOSIGNAL);
    if (recv(fd, text, sizeof text, 0) > 0) printf("REACHED an answer to %s\n", words[i]);
  }
}

static int shares_files; /* directories of sockets may be the host's: only an answer counts */
static void call(const char* name) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  size_t size = strlen(name);
  if (size >= sizeof at.sun_path) return;
  memcpy(at.sun_path, name, size);
  if (*name == '@') at.sun_path[0] = 0;
  static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
  for (int i = 0; i < 3; ++i) {
    int fd = socket(AF_UNIX, types[i], 0);
    if (connect(fd, (struct sockaddr*)&at, offsetof(struct sockaddr_un, sun_path) + size) == 0) {
      if (shares_files)
        talk(fd);
      else
        printf("REACHED socket %s\n", name);
    }
    close(fd);
  }
}

static int sockets;
static int visit(const char* path, const struct stat* status, int flag, struct FTW* level) {
  (void)flag;
  if (!strcmp(path, "/proc") || !strcmp(path, "/sys")) return FTW_SKIP_SUBTREE;
  if (!S_ISSOCK(status->st_mode)) return FTW_CONTINUE;
  const char* name = path + level->base;
  if (shares_files && strncmp(name, "lease-", 6) && strncmp(name, "root-", 5) &&
      strncmp(name, "session.", 8))
    return FTW_CONTINUE;
  ++sockets;
  char* directory = strndup(path, level->base);
  if (chdir(directory) == 0) call(name); /* the path may be too long */
  free(directory);
  return FTW_CONTINUE;
}

static int odd(const char* path, const struct stat* status, int flag, struct FTW* level) {
  (void)flag, (void)level;
  if (!S_ISREG(status->st_mode) && !S_ISDIR(status->st_mode) && !S_ISLNK(status->st_mode))
    printf("REACHED odd file %s\n", path);
  return 0;
}

/* intruder WORLD [KEPT]: attacks heddle's processes that have WORLD in their arguments. KEPT: the number
   of descriptors that it may inherit; processes of its mount namespace are no way out then. */
int main(int argc, char** argv) {
  int seen = 0, kept = argc > 2 ? atoi(argv[2]) : -1;
  shares_files = argc > 2;
  char here[64] = "", there[64] = "";
  readlink("/proc/self/ns/mnt", here, sizeof here - 1);
  for (int fd = 3; fd < 1024; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) continue;
    int type = 0;
    socklen_t size = sizeof type;
    if (kept-- <= 0)
      printf("REACHED inherited descriptor %d\n", fd);
    else if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET)
      talk(fd);
  }
  DIR* list = opendir("/proc");
  for (struct dirent* entry; list && (entry = readdir(list));) {
    char path[300];
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
    const char* words = get(path);
    if ((argc == 2 && strncmp(words, "fs-", 3)) || !strstr(words, argv[1])) continue;
    snprintf(path, sizeof path, "/proc/%s/ns/mnt", entry->d_name);
    memset(there, 0, sizeof there);
    if (argc > 2 && readlink(path, there, sizeof there - 1) > 0 && !strcmp(here, there)) continue;
    ++seen;
    look_at(entry->d_name);
  }
  char* known = strdup(get("/etc/known-sockets"));
  char* lines = strdup(get("/proc/net/unix"));
  static const char* const places[] = {"/run/heddle", "/tmp/heddle-0", "/tmp/heddle-1500",
                                       "/proc/1/root/run/heddle"};
  for (char* line = strtok(lines, "\n"); line; line = strtok(NULL, "\n")) {
    const char* name = strpbrk(line, "@/");
    if (!name || strstr(known, name)) continue;
    /* Sockets are bound by the descriptor of their directory. */
    const char* base = strncmp(name, "/proc/self/fd/", 14) ? NULL : strrchr(name, '/');
    sockets += base != NULL;
    for (int i = 0; base && i < 4; ++i) {
      char path[300];
      snprintf(path, sizeof path, "%s%s", places[i], base);
      call(path);
    }
    if (strstr(name, "heddle")) call(name);
  }
  nftw("/", visit, 32, FTW_PHYS | FTW_ACTIONRETVAL);
  nftw("/dev/heddle", odd, 16, FTW_PHYS);
  struct stat mount;
  printf("SAW %d processes, %d sockets, %s mount\n", seen, sockets,
         stat("/dev/heddle/.heddle", &mount) ? "no" : "the");
  return 0;
}
)";

void put_intruder(const ContainerWorld& world, const Strings& flags = {"-static"}) {
  build_program({.output = world.rootfs() + "/bin/intruder", .source = kIntruder, .flags = flags});
  write_text_file(world.rootfs() + "/etc/known-sockets", read_file("/proc/net/unix").value_or(""));
}

/// `sees_others`: the container sees the host's processes, so there was something to attack.
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
    if (IsSkipped()) return;
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
      // Mounting proc needs a PID namespace of the same user namespace.
      if (!way.own_pids) config["mounts"][0] = oci_bind("/proc", "/proc", "rw");
      add_user_namespace(config, kMappedRoot, 65536);
      // A hook in the user namespace cannot write to root's directories.
      if (way.stage == "createContainer")
        for (auto& word : config["hooks"][way.stage][0]["args"])
          if (word == world_->path("cache") || word == world_->log())
            word = world_->path("mapped/" + fs::path(word).filename().string());
    }
    if (way.default_rights) config["process"]["capabilities"] = default_rights();
    allow_fuse_device(config);
    return config;
  }
};

TEST_P(Intruder, container_root_reaches_no_process_and_no_socket) {
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
TEST_P(Intruder, container_root_reaches_nothing_of_the_node_service) {
  NodeService service(world_->path("stage/bin/fs-mount"), world_->path("node"));
  for (const bool own_pids : {false, true}) {
    const auto ran = start(config_for({"createRuntime", own_pids, false, false, false}));
    EXPECT_THAT(world_->log_text(), HasSubstr("by the node's mount"));
    expect_nothing_reached(ran, !own_pids);
    EXPECT_THAT(ran.out, Not(HasSubstr(" 0 sockets")));
  }
}

INSTANTIATE_TEST_SUITE_P(Oci, Intruder, ::testing::Values("runc", "crun"), kParameterName);

/// The same attack from a user's container without a runtime. Root's is no sandbox (fs-hook(1)).
class NodeIntruder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("only root can become another user");
    HEDDLE_STAGED(fs_hook, "fs-hook");
    // What this test program inherited is not heddle's.
    for (int fd = 3; fd < 1024; ++fd) (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
    world_ = std::make_unique<ContainerWorld>();
    put_intruder(*world_, {});  // fs-launch leaves static programs alone
    for (const char* name : {"passwd", "group", "hosts", "resolv.conf"})  // for ch-run
      write_text_file(world_->rootfs() + "/etc/" + name, "");
    for (const char* name : {"home", "run"}) {
      fs::create_directory(world_->path(name));
      ASSERT_EQ(::chown(world_->path(name).c_str(), kUser, kUser), 0);
    }
  }
  void TearDown() override {
    if (!world_) return;
    EXPECT_TRUE(wait_until(20s, [&] { return world_->processes().empty(); }));
  }
  RunResult run_as_user(const Strings& words) const {
    return run(session_command({world_->path("home"), world_->path("run")}) +
                   Strings{"USER=heddle-test"} + words,  // for ch-run
               {.cwd = world_->path("home")});
  }
  std::unique_ptr<ContainerWorld> world_;
};

TEST_F(NodeIntruder, program_of_fs_hook_run_reaches_nothing_outside) {
  const auto ran =
      run_as_user({world_->hook(), "run", "--rootfs", world_->rootfs(), "--chdir", "/", "--program",
                   "/bin/app", "--", "/bin/intruder", world_->path(""), "1"});
  expect_nothing_reached(ran, true);
  EXPECT_THAT(ran.out, Not(HasSubstr(" 0 sockets")));
}

TEST_F(NodeIntruder, rank_of_fs_launch_reaches_nothing_outside) {
  HEDDLE_STAGED(fs_launch, "fs-launch");
  if (run({"sh", "-c", "command -v mpiexec.hydra"}).status != 0) HEDDLE_SKIP("no MPICH");
  // The launcher looks for the program on the host, and hands its own descriptors to it.
  fs::copy_file(world_->rootfs() + "/bin/intruder", world_->path("home/intruder"));
  const auto ranks = [&](std::ptrdiff_t kept) {
    return Strings{"mpiexec.hydra",     "-n", "1", "./intruder", world_->path(""),
                   std::to_string(kept)};
  };
  const auto native = run_as_user(ranks(0));
  const auto lines = lines_of(native.out);
  const auto kept = 1 + std::ranges::count_if(lines, [](const auto& line) {
                      return line.starts_with("REACHED inherited descriptor");
                    });
  for (const char* backend : {"bare", "charliecloud"}) {
    if (backend == "charliecloud"s && run({"sh", "-c", "command -v ch-run"}).status != 0) continue;
    SCOPED_TRACE(backend);
    const auto ran = run_as_user(
        Strings{fs_launch, "--backend", backend, "--image", world_->rootfs()} + ranks(kept));
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_THAT(ran.out, AllOf(HasSubstr("SAW "), Not(HasSubstr("SAW 0 ")),
                               Not(HasSubstr(" 0 sockets")), Not(HasSubstr("REACHED"))))
        << native.out;
  }
}

/// The same attack from containers of root's and a user's podman, with and without its default
/// isolation.
class PodmanIntruder : public PodmanTest {
 protected:
  void SetUp() override {
    PodmanTest::SetUp();
    if (!IsSkipped()) install({"--always"});
  }
};

TEST_P(PodmanIntruder, podman_root_reaches_no_process_and_no_socket) {
  put_intruder(*world_);
  if (is_user())  // podman makes links in it
    run_checked({"chown", "-R", std::to_string(kUser), world_->rootfs()});
  const std::vector<Strings> ways{
      {},
      {"--cap-drop=all"},
      {"--pid=host"},
      {"--pid=host", "--cap-drop=all"},
      {"--ipc=host"},
      {"--network=none"},
      {"--network=none", "--cap-drop=all"},
      {"--uidmap=0:100000:65536", "--gidmap=0:100000:65536"},
      {"--uidmap=0:100000:65536", "--gidmap=0:100000:65536", "--network=none"}};
  const std::vector<Strings> users{
      {}, {"--userns=keep-id"}, {"--pid=host", "--cap-drop=all"}, {"--network=none"}};
  for (const auto& options : is_user() ? users : ways) {
    SCOPED_TRACE(::testing::PrintToString(options));
    // crun runs without cgroups here, and podman then refuses the host's PID namespace.
    if (runtime() == "crun" && !options.empty() && options[0] == "--pid=host") continue;
    const auto ran = run_image(options, {"/bin/intruder", world_->path("")});
    expect_nothing_reached(ran, !options.empty() && options[0] == "--pid=host");
  }
}

INSTANTIATE_TEST_SUITE_P(Oci, PodmanIntruder,
                         ::testing::Values("runc", "crun", "user_runc", "user_crun"),
                         kParameterName);

/// podman copies the annotations of an image's manifest to the container. Labels and ENV are the
/// image's too.
class HostileManifest : public PodmanTest {
 protected:
  RunResult podman(const Strings& words, const std::string& before = "true") const {
    // The user has no access to root's TMPDIR.
    return session_->run(
        Strings{"env", "TMPDIR=" + session_->path("home")} + session_->words() + words, before);
  }
  void build(const Strings& annotations) const {
    const auto tar = world_->path("image.tar");
    run_checked({"tar", "-C", world_->rootfs(), "-cf", tar, "."});
    const auto imported = podman({"import", tar, "localhost/base:1"});
    ASSERT_EQ(imported.status, 0) << imported.err;
    write_text_file(world_->path("Containerfile"),
                    "FROM localhost/base:1\nLABEL heddle.mpi=host\n"
                    "ENV heddle.mpi=host HEDDLE_MPI=host\n");
    Strings words{"build",
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
  RunResult start(const Strings& options = {}, const std::string& before = "true") const {
    auto words = session_->run_words(options);
    words.erase(words.begin(),
                words.begin() + static_cast<std::ptrdiff_t>(session_->words().size()));
    words.insert(words.end(), {"--pull=never", "localhost/evil:1", "/bin/app"});
    return podman(words, before);
  }
};

TEST_P(HostileManifest, manifest_does_not_enable_the_hook) {
  build({"heddle.mpi=host", "heddle.program=/bin/app", "heddle.policy=warn"});
  install({"--allow-annotations", "/srv/trusted-images"});
  EXPECT_EQ(start().out, "container\n") << log();
  EXPECT_THAT(log(),
              AllOf(HasSubstr("annotations (heddle.*) are ignored"), Not(HasSubstr("swapped"))));
  EXPECT_FALSE(fs::exists(session_->path("cache"))) << "the image was looked into";
  // Positive control: annotations count where the administrator trusts the images.
  install({"--allow-annotations", "/"});
  EXPECT_EQ(start().out, "host\n") << log();
}

TEST_P(HostileManifest, manifest_does_not_override_the_users_settings) {
  build({"heddle.mpi=off", "heddle.policy=warn", "heddle.program=/bin/plain"});
  if (is_user()) {
    install({"--always"});
    EXPECT_EQ(start().out, "host\n") << log();
  } else {
    const auto before = cdi_setup();
    EXPECT_EQ(start({}, before).out, "container\n") << log();
    EXPECT_EQ(start({"--device", "heddle/mpi=host"}, before).out, "host\n") << log();
    world_->answer_incompatible();
    fs::remove_all(session_->path("cache"));
    EXPECT_NE(start({"--device", "heddle/mpi=host"}, before).status, 0) << "only warned";
  }
  EXPECT_THAT(log(), HasSubstr("annotations (heddle.*) are ignored"));
}

INSTANTIATE_TEST_SUITE_P(Oci, HostileManifest,
                         ::testing::Values("runc", "crun", "user_runc", "user_crun"),
                         kParameterName);

}  // namespace
}  // namespace heddle::test
