// SPDX-License-Identifier: MIT
//
// Attacks on the installed fs-hook by a hostile image, and by a user who can write to the hook's
// files or directories.
#include <sys/mount.h>
#include <sys/sysmacros.h>

#include <atomic>

#include "tests/hook/runtime_test.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

using ::testing::AnyOf;

/// Replaces a hard link to a staged program by a copy.
void unlink_from_stage(const std::string& path) {
  fs::copy_file(path, path + ".copy");
  fs::rename(path + ".copy", path);
}

class HostileTarget : public RuntimeTest {
 protected:
  /// The container must not start, or starts unswapped under the policy to warn.
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

TEST_P(HostileTarget, link_into_a_kernel_file_system_is_refused) {
  // A runtime writes to these to set labels and limits (CVE-2019-16884, CVE-2025-52881).
  Strings targets{"/proc/1/attr/exec", "/proc/sys/kernel/core_pattern", "/proc/1/oom_score_adj",
                  "/sys/kernel/mm/ksm/run"};
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

TEST_P(HostileTarget, mount_point_in_proc_is_refused) {
  world_->answer_swap_with("/mount_point", "/proc/1/task");
  EXPECT_NE(start_app().status, 0);
  EXPECT_THAT(world_->log_text(), HasSubstr("a kernel file system"));
  expect_nothing_left();
}

TEST_P(HostileTarget, link_into_a_shared_volume_leaves_the_host_unchanged) {
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
  EXPECT_EQ(mounts_with(volume + "/libmpi"), 0U) << "the container's mount propagated";
  // With rslave propagation nothing reaches the host.
  config["linux"].erase("rootfsPropagation");
  config["mounts"].back()["options"].back() = "rslave";
  EXPECT_THAT(start(config).out, StartsWith("host\n")) << world_->log_text();
  EXPECT_EQ(mounts_with(volume + "/libmpi"), 0U);
  EXPECT_EQ(::umount2(volume.c_str(), MNT_DETACH), 0);
  expect_nothing_left();
}

/// fs-mount starts between the check and the mount, so a fake fs-mount makes the exchange.
TEST_P(HostileTarget, target_exchanged_after_its_check_is_refused) {
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
    auto script = exchange;
    for (auto at = script.find(library); at != script.npos; at = script.find(library))
      script.replace(at, library.size(), world_->rootfs() + ContainerWorld::kLibrary);
    world_->precede_program("fs-mount", script);
    EXPECT_NE(start_app().status, 0);
    EXPECT_THAT(world_->log_text(), AllOf(HasSubstr("cannot mount over it"), HasSubstr(why)));
    expect_nothing_left();
  }
}

/// The container's own program opens neither, so any open was made by heddle.
TEST_P(HostileTarget, target_that_is_a_fifo_or_device_is_not_opened) {
  for (const std::string file : {ContainerWorld::kLibrary, "/etc/ld.so.cache", "/usr/lib/x.so"}) {
    SCOPED_TRACE(file);
    renew();
    const auto fifo = world_->rootfs() + file;
    build_program({.output = world_->rootfs() + "/bin/app",
                   .source = "int main(void) { return 0; }",
                   .flags = {"-static"}});
    fs::remove(fifo);
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0666), 0);
    auto decision = world_->swap();
    decision["loads"].push_back({{"soname", "x.so"}, {"path", file}});
    world_->answer(decision);
    std::atomic<bool> ended = false;
    std::atomic<int> readers = 0;
    std::thread writer([&] {
      while (!ended)
        if (open_file(fifo, O_WRONLY | O_NONBLOCK)) ++readers;
    });
    (void)start_app();
    ended = true;
    writer.join();
    EXPECT_EQ(readers, 0);
    // /dev/kmsg, which a container must not read.
    fs::remove(fifo);
    ASSERT_EQ(::mknod(fifo.c_str(), S_IFCHR | 0666, ::makedev(1, 11)), 0);
    const auto trace = world_->path("trace");
    (void)start(world_->config({"/bin/app"}),
                {"strace", "-f", "-qq", "-y", "-e", "trace=open,openat,openat2", "-o", trace});
    for (const auto& line : lines_of(value_or_throw(read_file(trace))))
      EXPECT_FALSE(line.find("O_PATH") == line.npos && line.find("<" + fifo + ">") != line.npos)
          << line;
    expect_nothing_left();
  }
}

INSTANTIATE_TEST_SUITE_P(Oci, HostileTarget, ::testing::Values("runc", "crun"), kParameterName);

/// Another user can write to a file or directory of the hook that root runs.
class WritableProgram : public RuntimeTest {
 protected:
  std::string stage(const std::string& name) const { return world_->path("stage/" + name); }
  /// How another user can write to a file or directory.
  struct Way {
    std::string path;  ///< below the stage
    mode_t mode = 0;   ///< 0: no chmod, but as `how` says
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
      if (fs::is_regular_file(path)) unlink_from_stage(path);
      EXPECT_EQ(way.mode != 0 ? ::chmod(path.c_str(), way.mode) : ::chown(path.c_str(), kUser, 0),
                0);
    }
  }
  static std::vector<Way> ways() {
    std::vector<Way> out;
    for (const std::string name : {"bin/fs-hook", "bin/fs-resolve", "bin/fs-mount"})
      for (const mode_t mode : {0757, 0775, 0}) out.push_back({name, mode});
    // Others could create the missing bin/../libexec/heddle/fs-mount-static.
    out.insert(out.end(), {{"bin", 0777}, {"bin"}, {"", 0777}, {""}, {"bin", 01777}});
    if (run({"sh", "-c", "command -v setfacl"}).status == 0)
      out.push_back({"bin", 0, Way::How::by_acl});
    out.push_back({"bin/fs-mount", 0, Way::How::by_link});
    return out;
  }
};

TEST_P(WritableProgram, writable_program_is_neither_run_nor_installed) {
  for (const auto& way : ways()) {
    SCOPED_TRACE(way.path + " " + std::to_string(way.mode));
    renew();
    spoil(way);
    EXPECT_NE(start_app().status, 0);
    EXPECT_THAT(world_->log_text(), HasSubstr("cannot be trusted"));
    EXPECT_EQ(world_->questions(), 0U) << "another user's program was run";
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

TEST_P(WritableProgram, hook_and_cache_directories_of_others_are_refused) {
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
  // A sticky directory protects names that exist; another user could create this one.
  fs::create_directories(world_->path("sticky"));
  EXPECT_EQ(::chmod(world_->path("sticky").c_str(), 01777), 0);
  for (const auto& [cache, blamed] : {std::pair("theirs/cache", "theirs"), {"sticky/new", "new"}}) {
    auto config = world_->config({"/bin/app"});
    for (auto& word : config["hooks"]["createRuntime"][0]["args"])
      if (word == world_->path("cache")) word = world_->path(cache);
    EXPECT_NE(start(config).status, 0);
    EXPECT_THAT(world_->log_text(), HasSubstr(blamed + ": cannot be trusted"s));
    EXPECT_EQ(world_->questions(), 0U);
  }
}

/// Owners and modes may change after the installation.
TEST_P(WritableProgram, hook_file_is_checked_at_each_start) {
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

/// /proc/PID/exe of a hook is a file of a read-only mount or a sealed copy.
TEST_P(WritableProgram, running_hook_file_cannot_be_written) {
  for (const std::string stage : {"createRuntime", "createContainer"}) {
    SCOPED_TRACE(stage);
    renew();
    const auto out = " >>'" + world_->path("exe") + "'";
    world_->precede_program("fs-resolve",
                            "read -r pid name state parent rest </proc/self/stat\n"
                            "readlink /proc/$parent/exe" +
                                out + "\n( : >>/proc/$parent/exe ) 2" + out.substr(1) +
                                " && echo WRITTEN" + out);
    auto config = world_->config({"/bin/app"});
    config["hooks"] = {{stage, {world_->hook_json(stage)}}};
    allow_fuse_device(config);
    (void)start(config);
    EXPECT_THAT(read_file(world_->path("exe")).value_or(""),
                AllOf(AnyOf(StartsWith("/\n"), StartsWith("/memfd:fs-hook (deleted)\n")),
                      Not(HasSubstr("WRITTEN"))))
        << world_->log_text();
  }
}

INSTANTIATE_TEST_SUITE_P(Oci, WritableProgram, ::testing::Values("crun"), kParameterName);

}  // namespace
}  // namespace heddle::test
