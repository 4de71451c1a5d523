// SPDX-License-Identifier: MIT
//
// A hostile image, and root of a container (uid 0) of it, against the installed fs-hook: below
// runc, crun and podman nothing of the host's is switched on, written to, mounted over or reached.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <sstream>
#include <thread>

#include "base/fd.hpp"
#include "tests/hook/node_service.hpp"
#include "tests/hook/podman_session.hpp"
#include "tests/hook/runtime_test.hpp"
#include "tests/hook/started_container.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
namespace fs = std::filesystem;
using Json = nlohmann::json;

const auto kName = [](const auto& each) { return each.param; };

/// Of links that the installed program has in the world: what is done to one is not to be done to
/// the other.
void own_copy(const std::string& path) {
  fs::copy_file(path, path + ".copy");
  fs::rename(path + ".copy", path);
}

class HostileTarget : public RuntimeTest {
 protected:
  /// What the image's library is, seen from inside; the container must not start for it, or starts
  /// as it is where that was asked for.
  void expect_refused(Json config, const std::string& why) {
    EXPECT_NE(start(config).status, 0);
    EXPECT_THAT(world_->log_text(), AllOf(HasSubstr("cannot mount over it in the container"),
                                          HasSubstr(why), Not(HasSubstr(" swapped: "))));
    config["annotations"]["heddle.policy"] = "warn";
    config["process"]["args"] = {"/bin/plain"};
    EXPECT_EQ(start(config).out, "plain\n") << world_->log_text();
    expect_nothing_left();
  }
  void lead_library_to(const std::string& target) const {
    const auto library = world_->rootfs() + ContainerWorld::kLibrary;
    fs::remove(library);
    fs::create_symlink(target, library);
  }
};

TEST_P(HostileTarget, of_a_link_into_what_the_kernel_makes_up_is_refused) {
  // By these a runtime sets labels, limits and devices (CVE-2019-16884, CVE-2025-52881).
  std::vector<std::string> targets{"/proc/1/attr/exec", "/proc/sys/kernel/core_pattern",
                                   "/proc/1/oom_score_adj", "/sys/kernel/mm/ksm/run"};
  for (const char* controller : {"", "/pids", "/memory", "/unified"})
    if (const auto path = "/sys/fs/cgroup"s + controller + "/cgroup.procs";
        fs::exists(path) && controller != "/unified"s)
      targets.push_back(path);
  for (const auto& target : targets) {
    SCOPED_TRACE(target);
    renew();
    lead_library_to(target);
    auto config = world_->config({"/bin/app"});
    config["mounts"].push_back(oci_bind("/sys", "/sys", "ro"));
    expect_refused(config, "it lies on a kernel file system (proc, sysfs, ...)");
  }
}

TEST_P(HostileTarget, of_a_mount_point_in_proc_is_refused) {
  auto decision = world_->swap();
  decision["mount_point"] = "/proc/1/task";
  world_->answer(decision);
  EXPECT_NE(start(world_->config({"/bin/app"})).status, 0);
  EXPECT_THAT(world_->log_text(), HasSubstr("a kernel file system"));
  expect_nothing_left();
}

TEST_P(HostileTarget, of_a_link_into_a_shared_volume_leaves_the_host_as_it_is) {
  const auto volume = world_->path("volume");
  fs::create_directory(volume);
  fs::copy_file(world_->rootfs() + ContainerWorld::kLibrary, volume + "/libmpi.so.12");
  run_checked({"mount", "--bind", volume, volume});
  run_checked({"mount", "--make-shared", volume});
  lead_library_to("/data/libmpi.so.12");
  auto config = world_->config({"/bin/app", "/proc/self/mountinfo"});
  config["linux"]["rootfsPropagation"] = "rshared";
  auto bind = oci_bind(volume, "/data", "rw");
  bind["options"].push_back("rshared");
  config["mounts"].push_back(bind);
  EXPECT_NE(start(config).status, 0);
  EXPECT_THAT(world_->log_text(), HasSubstr("/usr/lib/libmpi.so.12: cannot mount over it in the "
                                            "container: it lies on a shared mount"));
  EXPECT_EQ(mounts_with(volume + "/libmpi"), 0U) << "a mount of the container's is the host's now";
  // One that only receives what the host mounts is the container's own.
  config["linux"].erase("rootfsPropagation");
  config["mounts"].back()["options"].back() = "rslave";
  EXPECT_THAT(start(config).out, StartsWith("host\n")) << world_->log_text();
  EXPECT_EQ(mounts_with(volume + "/libmpi"), 0U);
  EXPECT_EQ(::umount2(volume.c_str(), MNT_DETACH), 0);
  expect_nothing_left();
}

/// Between the check and the mount there is a moment: fs-mount starts in it.
TEST_P(HostileTarget, that_is_exchanged_after_it_was_checked_is_refused) {
  const std::string library = "LIBRARY";
  const std::vector<std::pair<std::string, std::string>> exchanges{
      {"cp '" + library + "' '" + library + ".new'; mv '" + library + ".new' '" + library + "'",
       "it was replaced meanwhile"},
      {"ln -sf /proc/sys/kernel/core_pattern '" + library + "'", "a kernel file system"},
      {"rm '" + library + "'; mkfifo '" + library + "'", "regular file"},
      {"ln -sf /etc/ld.so.cache '" + library + "'", "it was replaced meanwhile"}};
  for (const auto& [exchange, why] : exchanges) {
    SCOPED_TRACE(exchange);
    renew();
    const auto mount = world_->path("stage/bin/fs-mount");
    fs::rename(mount, mount + "-real");
    auto script = exchange;
    for (auto at = script.find(library); at != script.npos; at = script.find(library))
      script.replace(at, library.size(), world_->rootfs() + ContainerWorld::kLibrary);
    write_text_file(mount, "#!/bin/sh\n" + script + "\nexec '" + mount + "-real' \"$@\"\n", 0755);
    EXPECT_NE(start(world_->config({"/bin/app"})).status, 0);
    EXPECT_THAT(world_->log_text(), AllOf(HasSubstr("cannot mount over it"), HasSubstr(why)));
    expect_nothing_left();
  }
}

/// A FIFO whose reader came, a device that was opened: somebody outside the container did it.
TEST_P(HostileTarget, that_is_a_fifo_or_a_device_is_not_opened) {
  for (const std::string file : {ContainerWorld::kLibrary, "/etc/ld.so.cache", "/usr/lib/x.so"}) {
    SCOPED_TRACE(file);
    renew();
    const auto fifo = world_->rootfs() + file;
    // What its own programs open is the container's.
    build_program({.output = world_->rootfs() + "/bin/app",
                   .source = "int main(void) { return 0; }",
                   .flags = {"-static"}});
    fs::remove(fifo);
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0666), 0);
    // As fs-resolve would name it.
    auto decision = world_->swap();
    decision["loads"].push_back({{"soname", "x.so"}, {"path", file}});
    world_->answer(decision);
    std::atomic<bool> ended = false;
    std::atomic<int> readers = 0;
    std::thread writer([&] {
      while (!ended)
        if (open_file(fifo, O_WRONLY | O_NONBLOCK)) ++readers;
    });
    (void)start(world_->config({"/bin/app"}));
    ended = true;
    writer.join();
    EXPECT_EQ(readers, 0);
    // The kernel's log, which a container may not read.
    fs::remove(fifo);
    ASSERT_EQ(::mknod(fifo.c_str(), S_IFCHR | 0666, ::makedev(1, 11)), 0);
    const auto trace = world_->path("trace");
    (void)start(world_->config({"/bin/app"}),
                {"strace", "-f", "-qq", "-y", "-e", "trace=open,openat,openat2", "-o", trace});
    std::istringstream lines(value_or_throw(read_file(trace)));
    for (std::string line; std::getline(lines, line);)
      EXPECT_FALSE(line.find("O_PATH") == line.npos && line.find("<" + fifo + ">") != line.npos)
          << line;
    expect_nothing_left();
  }
}

INSTANTIATE_TEST_SUITE_P(Oci, HostileTarget, ::testing::Values("runc", "crun"), kName);

/// Files that others may write to, where root runs the hook.
class WritableProgram : public RuntimeTest {
 protected:
  std::string stage(const std::string& name) const { return world_->path("stage/" + name); }
  /// Makes a file or directory of the installation another user's to write.
  struct Way {
    std::string path;  ///< below the installation
    mode_t mode = 0;   ///< 0: it becomes another user's, or as `how` says
    enum class How { by_owner, by_acl, by_link } how = How::by_owner;
  };
  void spoil(const Way& way) const {
    const auto path = stage(way.path);
    if (way.how == Way::How::by_acl) {
      run_checked({"setfacl", "-m", "u:1500:rwx", path});
    } else if (way.how == Way::How::by_link) {
      fs::rename(path, path + "-other");
      fs::create_symlink(path + "-other", path);
      EXPECT_EQ(::lchown(path.c_str(), kUser, kUser), 0);
    } else {
      if (fs::is_regular_file(path)) own_copy(path);
      EXPECT_EQ(way.mode != 0 ? ::chmod(path.c_str(), way.mode) : ::chown(path.c_str(), kUser, 0),
                0);
    }
  }
  static std::vector<Way> ways() {
    std::vector<Way> out;
    for (const std::string name : {"bin/fs-hook", "bin/fs-resolve", "bin/fs-mount"})
      for (const mode_t mode : {0757, 0775, 0}) out.push_back({name, mode});
    // Anybody may make what is not there yet: bin/../libexec/heddle/fs-mount-static.
    out.insert(out.end(), {{"bin", 0777}, {"bin"}, {"", 0777}, {""}, {"bin", 01777}});
    if (run({"sh", "-c", "command -v setfacl"}).status == 0)
      out.push_back({"bin", 0, Way::How::by_acl});
    out.push_back({"bin/fs-mount", 0, Way::How::by_link});
    return out;
  }
};

TEST_P(WritableProgram, is_neither_run_nor_installed) {
  for (const auto& way : ways()) {
    SCOPED_TRACE(way.path + " " + std::to_string(way.mode));
    renew();
    spoil(way);
    EXPECT_NE(start(world_->config({"/bin/app"})).status, 0);
    EXPECT_THAT(world_->log_text(), HasSubstr("cannot be trusted"));
    EXPECT_EQ(world_->questions(), 0U) << "a program of somebody else's was run";
    const auto hooks = world_->path("hooks.d");
    const auto installed = run({world_->hook(), "install", "--always", "--dir", hooks});
    EXPECT_EQ(installed.status, 3);
    EXPECT_THAT(installed.err, HasSubstr("cannot be trusted"));
    EXPECT_FALSE(fs::exists(hooks + "/50-heddle-mpi.json"));
    for (const char* command : {"cdi", "bundle"}) {
      const auto refused = run({world_->hook(), command, world_->path("bundle1")});
      EXPECT_NE(refused.status, 0) << command;
      EXPECT_EQ(refused.out, "");
    }
    expect_nothing_left();
  }
}

TEST_P(WritableProgram, is_no_more_welcome_where_hooks_and_maps_are_kept) {
  for (const std::string name : {"hooks.d", "hooks.d/below"}) {
    renew();
    fs::create_directories(world_->path("hooks.d/below"));
    EXPECT_EQ(::chown(world_->path("hooks.d").c_str(), kUser, kUser), 0);
    const auto refused = run({world_->hook(), "install", "--always", "--dir", world_->path(name)});
    EXPECT_EQ(refused.status, 3);
    EXPECT_THAT(refused.err, HasSubstr("hooks.d: cannot be trusted"));
  }
  fs::create_directories(world_->path("theirs/cache"));
  EXPECT_EQ(::chown(world_->path("theirs").c_str(), kUser, kUser), 0);
  auto config = world_->config({"/bin/app"});
  for (auto& word : config["hooks"]["createRuntime"][0]["args"])
    if (word == world_->path("cache")) word = world_->path("theirs/cache");
  EXPECT_NE(start(config).status, 0);
  EXPECT_THAT(world_->log_text(), HasSubstr("theirs: cannot be trusted"));
  EXPECT_EQ(world_->questions(), 0U);
}

/// Checked at each start: what was root's alone when it was installed may not be so any more.
TEST_P(WritableProgram, cannot_be_a_hook_file_that_was_installed_well) {
  const auto hooks = world_->path("hooks.d");
  const auto installed = run({world_->hook(), "install", "--always", "--dir", hooks});
  ASSERT_EQ(installed.status, 0) << installed.err;
  const auto file = hooks + "/50-heddle-mpi.json";
  const auto args =
      Json::parse(value_or_throw(read_file(file))).at("hook").at("args").get<std::vector<Json>>();
  ASSERT_NE(std::find(args.begin(), args.end(), Json(file)), args.end());
  auto config = world_->config({"/bin/app"});
  for (const auto& word : {"--hook-file"s, file})
    config["hooks"]["createRuntime"][0]["args"].push_back(word);
  EXPECT_EQ(start(config).out, "host\n") << world_->log_text();
  for (const auto& path : {file, hooks}) {
    SCOPED_TRACE(path);
    ::chmod(path.c_str(), 0777);
    EXPECT_NE(start(config).status, 0);
    EXPECT_THAT(world_->log_text(), HasSubstr(path + ": cannot be trusted"));
    ::chmod(path.c_str(), path == file ? 0644 : 0755);
    EXPECT_EQ(start(config).out, "host\n") << world_->log_text();
  }
  expect_nothing_left();
}

/// Root serves programs by no map that another user can replace.
TEST_P(WritableProgram, cannot_be_a_directory_of_roots_map) {
  const auto map = world_->path("maps/below/map");
  const auto mount = world_->path("mount");
  fs::create_directories(world_->path("maps/below"));
  fs::create_directory(mount);
  fs::copy_file(world_->path("stage/bin/answer.map"), map);
  const auto serve = [&] { return run({world_->path("stage/bin/fs-mount"), map, mount}); };
  for (const std::string directory : {"maps", "maps/below"}) {
    SCOPED_TRACE(directory);
    ::chmod(world_->path(directory).c_str(), 0777);
    const auto refused = serve();
    EXPECT_EQ(refused.status, 3);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("root does not use this map"),
                                   HasSubstr(world_->path(directory)), HasSubstr("\nhint: ")));
    ::chmod(world_->path(directory).c_str(), 01777);
    EXPECT_EQ(serve().status, 0) << "a sticky directory, such as /tmp";
    EXPECT_EQ(run({world_->path("stage/bin/fs-mount"), "-u", mount}).status, 0);
    ::chmod(world_->path(directory).c_str(), 0755);
  }
  expect_nothing_left();
}

/// By /proc/PID/exe of a hook nothing can be written: it is a read-only mount, or a sealed copy.
TEST_P(WritableProgram, is_not_what_the_hook_in_a_container_runs_from) {
  for (const std::string stage : {"createRuntime", "createContainer"}) {
    SCOPED_TRACE(stage);
    renew();
    fs::rename(this->stage("bin/fs-resolve"), this->stage("bin/fs-resolve-real"));
    write_text_file(this->stage("bin/fs-resolve"),
                    "#!/bin/sh\nread -r pid name state parent rest </proc/self/stat\n"
                    "readlink /proc/$parent/exe >>'" +
                        world_->path("exe") + "'\n( : >>/proc/$parent/exe ) 2>>'" +
                        world_->path("exe") + "' && echo WRITTEN >>'" + world_->path("exe") +
                        "'\nexec '" + this->stage("bin/fs-resolve-real") + "' \"$@\"\n",
                    0755);
    auto config = world_->config({"/bin/app"});
    config["hooks"] = {{stage, {world_->hook_json(stage)}}};
    config["linux"]["resources"] = {
        {"devices",
         {{{"allow", true}, {"type", "c"}, {"major", 10}, {"minor", 229}, {"access", "rw"}}}}};
    (void)start(config);
    EXPECT_THAT(read_file(world_->path("exe")).value_or(""),
                AllOf(AnyOf(StartsWith("/\n"), StartsWith("/memfd:fs-hook (deleted)\n")),
                      Not(HasSubstr("WRITTEN"))))
        << world_->log_text();
  }
}

INSTANTIATE_TEST_SUITE_P(Oci, WritableProgram, ::testing::Values("runc", "crun"), kName);

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
