// SPDX-License-Identifier: MIT

#include <sys/mount.h>

#include <regex>

#include "tests/hook/hook_troubles.hpp"
#include "tests/hook/runtime_test.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

class HookedContainer : public RuntimeTest {};
/// Cases that do not depend on the runtime.
class HookedImage : public RuntimeTest {};

TEST_P(HookedContainer, program_runs_on_the_hosts_library) {
  const auto before = world_->image_state();
  const auto ran = start_app();
  EXPECT_EQ(ran.out, "host\n") << ran.err << world_->log_text();
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(world_->image_state(), before);
  expect_nothing_left();
}

/// mountinfo and environ without the numbers that differ between containers.
std::string without_numbers(const std::string& text) {
  static const std::regex kNumbers(R"((^|\n)\d+ \d+ \d+:\d+ |master:\d+|shared:\d+)");
  return std::regex_replace(text, kNumbers, "$1");
}

TEST_P(HookedContainer, container_without_annotation_equals_one_without_the_hook) {
  auto config = world_->config({"/bin/app", "/proc/self/mountinfo", "/proc/self/environ"});
  auto plain = config;
  config["annotations"] = {{"heddle.mpi", "off"}};
  plain.erase("hooks");
  const auto off = start(config);
  EXPECT_THAT(off.out, HasSubstr(" /proc "));
  EXPECT_EQ(without_numbers(off.out), without_numbers(start(plain).out));
  config.erase("annotations");
  EXPECT_EQ(without_numbers(start(config).out), without_numbers(off.out));
  EXPECT_EQ(world_->questions(), 0U);
  EXPECT_EQ(world_->log_text(), "");
}

TEST_P(HookedContainer, exit_status_and_environment_are_the_programs_own) {
  auto config = world_->config({"/bin/app", "exit", "3"});
  EXPECT_EQ(start(config).status, 3);
  expect_nothing_left();
  config["process"]["args"] = {"/bin/app", "/proc/self/environ"};
  const auto swapped = start(config).out;
  config.erase("hooks");
  const auto plain = start(config).out;
  EXPECT_THAT(swapped, StartsWith("host\nPATH=/usr/bin:/bin"));
  EXPECT_EQ(swapped.substr(5), plain.substr(10));
}

/// Changes the last byte and keeps size and times, as an image that is rebuilt with pinned times.
void change_with_same_times(const std::string& file) {
  auto bytes = value_or_throw(read_file(file));
  struct stat before {};
  ASSERT_EQ(::stat(file.c_str(), &before), 0);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text_file(file, bytes, before.st_mode & 07777);
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
}

TEST_P(HookedImage, image_is_decided_on_once) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(start_app().out, "host\n");
  EXPECT_EQ(world_->questions(), 1U);
  // A copy of the image elsewhere.
  auto copied = world_->config({"/bin/app"});
  copied["root"]["path"] = world_->path("copy");
  fs::copy(world_->rootfs(), world_->path("copy"), fs::copy_options::recursive);
  EXPECT_EQ(start(copied).out, "host\n");
  EXPECT_EQ(world_->questions(), 1U);
  std::size_t questions = 1;
  for (const std::string file : {ContainerWorld::kLibrary, "/etc/ld.so.cache", "/bin/app"}) {
    change_with_same_times(world_->path("copy") + file);
    EXPECT_EQ(start(copied).out, "host\n") << file;
    EXPECT_EQ(world_->questions(), ++questions) << file;
  }
}

TEST_P(HookedImage, missing_files_are_part_of_the_decision) {
  // The last as ld.so spells $ORIGIN/../lib.
  world_->answer_swap_with(
      "/asked", {"/opt/lib/libmpi.so.12", "/opt/plugins/", "/opt/bin/../lib/libcore.so.1"});
  fs::create_directories(world_->rootfs() + "/opt/bin");
  const auto ask = [&] {
    EXPECT_EQ(start_app().out, "host\n");
    return world_->questions();
  };
  EXPECT_EQ(ask(), 1U);
  write_text_file(world_->rootfs() + "/opt/lib/libodd.so", "");
  EXPECT_EQ(ask(), 1U);
  write_text_file(world_->rootfs() + "/opt/lib/libmpi.so.12", "");
  EXPECT_EQ(ask(), 2U);
  fs::create_directories(world_->rootfs() + "/opt/plugins");
  EXPECT_EQ(ask(), 3U);
  write_text_file(world_->rootfs() + "/opt/plugins/a.so", "");
  EXPECT_EQ(ask(), 4U);
  EXPECT_EQ(ask(), 4U);
  write_text_file(world_->rootfs() + "/opt/lib/libcore.so.1", "one");
  EXPECT_EQ(ask(), 5U);
  write_text_file(world_->rootfs() + "/opt/lib/libcore.so.1", "two");
  EXPECT_EQ(ask(), 6U);
  EXPECT_EQ(ask(), 6U);
  // A link to an equal file, where a bind mount would be at another path.
  write_text_file(world_->rootfs() + "/opt/lib/libequal.so.1", "two");
  fs::remove(world_->rootfs() + "/opt/lib/libcore.so.1");
  fs::create_symlink("libequal.so.1", world_->rootfs() + "/opt/lib/libcore.so.1");
  EXPECT_EQ(ask(), 7U);
}

TEST_P(HookedImage, log_that_cannot_be_written_is_not_needed) {
  auto config = world_->config({"/bin/app"});
  for (auto& word : config["hooks"]["createRuntime"][0]["args"])
    if (word == world_->log()) word = world_->path("none/hook.log");
  const auto ran = start(config);
  EXPECT_EQ(ran.out, "host\n") << ran.err;
  EXPECT_EQ(start(config).out, "host\n");
}

/// A /var that is full or read-only must not stop new images.
TEST_P(HookedImage, full_or_read_only_cache_is_not_needed) {
  for (const char* options : {"size=4k,mode=700", "nr_inodes=1,mode=700", "ro,mode=700"}) {
    SCOPED_TRACE(options);
    renew();
    fs::create_directories(world_->path("cache"));
    ::chmod(world_->path("cache").c_str(), 0700);
    const auto script = std::string("mount -t tmpfs -o ") + options + " tmpfs '" +
                        world_->path("cache") + "'; exec \"$@\"";
    for (unsigned i = 1; i <= 2; ++i) {
      const auto ran =
          start(world_->config({"/bin/app"}), {"unshare", "-m", "sh", "-c", script, "sh"});
      EXPECT_EQ(ran.out, "host\n") << ran.err << world_->log_text();
      EXPECT_GE(world_->questions(), i);
    }
    EXPECT_THAT(world_->log_text(), HasSubstr("decided without the cache"));
    // Another failure is not taken for the cache's.
    world_->answer_text("", 3, "fs-resolve: the reason");
    (void)start(world_->config({"/bin/app"}), {"unshare", "-m", "sh", "-c", script, "sh"});
    EXPECT_THAT(world_->log_text(), HasSubstr("the reason"));
    EXPECT_EQ(
        run({"sh", "-c", "ls -d /run/heddle-hook* /dev/shm/heddle-hook* /tmp/heddle-hook*"}).out,
        "");
    expect_nothing_left();
  }
}

/// Root's container, whose root is another user of the host.
TEST_P(HookedContainer, container_with_a_user_namespace_is_swapped) {
  for (const bool inside : {false, true}) {
    SCOPED_TRACE(inside);
    renew();
    auto config = inside ? world_->inside_config({"/bin/app", "/proc/self/uid_map"})
                         : world_->config({"/bin/app", "/proc/self/uid_map"});
    config["linux"]["namespaces"].push_back({{"type", "user"}});
    for (const char* map : {"uidMappings", "gidMappings"})
      config["linux"][map] = {{{"containerID", 0}, {"hostID", 100000}, {"size", 65536}}};
    for (int i = 0; i < 2; ++i) {
      const auto ran = start(config, {HEDDLE_IN_WORLD, "--fuse", "open", "--"});
      EXPECT_THAT(ran.out, AllOf(StartsWith("host\n"), HasSubstr(" 100000 ")))
          << ran.err << world_->log_text();
    }
    expect_nothing_left();
  }
}

TEST_P(HookedContainer, containers_path_and_ld_preload_reach_fs_resolve) {
  auto config = world_->config({"/bin/app"});
  config["process"]["env"].push_back("LD_PRELOAD=/usr/lib/libmpi.so.12");
  EXPECT_EQ(start(config).out, "host\n") << world_->log_text();
  EXPECT_THAT(read_file(world_->path("stage/bin/questions")).value_or(""),
              HasSubstr("--preload=/usr/lib/libmpi.so.12"));
  config["process"]["env"].push_back("PATH=/opt/conda/bin:/bin");
  EXPECT_EQ(start(config).out, "host\n") << world_->log_text();
  EXPECT_THAT(read_file(world_->path("stage/bin/questions")).value_or(""),
              HasSubstr("--path=/opt/conda/bin:/bin"));
  config["process"]["env"].erase(config["process"]["env"].size() - 1);
  config["process"]["env"].back() = "LD_PRELOAD=-o/usr/lib/libmpi.so.12";
  EXPECT_EQ(start(config).status, 0) << world_->log_text();
  EXPECT_EQ(world_->questions(), 3U);
}

TEST_P(HookedImage, long_annotation_makes_no_long_line) {
  auto config = world_->config({"/bin/app"});
  config["annotations"]["heddle.mpi"] = std::string(100'000, 'x');
  EXPECT_NE(start(config).status, 0);
  EXPECT_THAT(world_->log_text(), HasSubstr("heddle.mpi: invalid annotation"));
  EXPECT_LT(world_->log_text().size(), 10'000U);
}

TEST_P(HookedImage, log_names_the_program_that_loads_no_mpi) {
  auto decision = world_->swap();
  decision["loads_mpi"] = false;
  world_->answer(decision);
  EXPECT_EQ(start(world_->config({"/bin/app"})).out, "host\n");
  EXPECT_THAT(world_->log_text(),
              HasSubstr(" swapped: mpich 4.0.2, for the programs that /bin/app starts"));
}

TEST_P(HookedImage, image_with_nothing_to_swap_runs_unswapped) {
  world_->answer_nothing();
  EXPECT_EQ(start_app().out, "container\n");
  EXPECT_THAT(world_->log_text(), HasSubstr("warning: nothing to swap: /bin/app is static"));
  EXPECT_EQ(world_->mounts(), 0U);
}

/// Under the policy to warn the container runs unswapped, except when the request itself is
/// invalid.
TEST_P(HookedImage, each_trouble_is_one_line_and_the_container_fails_or_runs_unswapped) {
  for (const auto& trouble : hook_troubles()) {
    const bool is_request =
        trouble.name.starts_with("an annotation") || trouble.name.starts_with("a program");
    for (const bool warns : {false, true}) {
      if (warns && is_request) continue;
      SCOPED_TRACE(trouble.name + (warns ? ", warned of" : ""));
      renew();
      auto config = world_->config({"/bin/app", "/proc/self/mountinfo"});
      if (warns) config["annotations"]["heddle.policy"] = "warn";
      trouble.make(*world_, config);
      const auto before = world_->image_state();
      const auto began = std::chrono::steady_clock::now();
      const auto ran = start(config, trouble.before);
      EXPECT_LT(std::chrono::steady_clock::now() - began, 10s);  // bench/ measures it
      EXPECT_EQ(ran.status == 0, warns) << ran.err;
      EXPECT_THAT(ran.out, StartsWith(warns ? "container\n" : ""));
      EXPECT_EQ(ran.out.empty(), !warns);
      EXPECT_THAT(ran.out, Not(HasSubstr("fuse.heddle")));
      const auto log = world_->log_text();
      EXPECT_THAT(log, HasSubstr(trouble.line));
      if (trouble.name == "an incompatible program" && !warns) {
        EXPECT_THAT(log, HasSubstr(" (the remedy)\n"));
      }
      EXPECT_THAT(
          log, HasSubstr(warns ? " warning: the container runs with its own MPI: " : " error: "));
      EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
      EXPECT_EQ(world_->image_state(), before);
      expect_nothing_left();
    }
  }
}

TEST_P(HookedImage, changed_host_file_is_reported_and_decided_on_again) {
  for (const std::string stage : {"createRuntime", "createContainer"}) {
    SCOPED_TRACE(stage);
    renew();
    const auto config = world_->config_for(stage, {"/bin/app"});
    EXPECT_EQ(start(config).out, "host\n");
    const auto library = world_->path("host/libmpi.so.12");
    write_text_file(library, value_or_throw(read_file(library)) + "x");
    world_->answer(world_->swap());
    EXPECT_EQ(start(config).out, "host\n") << world_->log_text();
    EXPECT_EQ(world_->questions(), 2U);
    EXPECT_THAT(world_->log_text(), HasSubstr("host/libmpi.so.12"));
    expect_nothing_left();
  }
}

TEST_P(HookedContainer, program_in_a_volume_is_found) {
  fs::create_directories(world_->path("volume"));
  fs::rename(world_->rootfs() + "/bin/app", world_->path("volume/app"));
  auto config = world_->config({"/data/app"});
  config["mounts"].push_back(oci_bind(world_->path("volume"), "/data"));
  EXPECT_EQ(start(config).out, "host\n") << world_->log_text();
}

TEST_P(HookedContainer, hook_works_in_stage_create_container) {
  auto config = world_->inside_config({"/bin/app"});
  config["process"]["env"] = {"PATH=/evil", "LD_PRELOAD=/evil.so", "LD_AUDIT=/evil.so"};
  // runc 1.1 gives a hook without an environment the container's.
  config["hooks"]["createContainer"][0].erase("env");
  EXPECT_EQ(start(config).out, "host\n") << world_->log_text();
  expect_nothing_left();
  EXPECT_THAT(world_->log_text(), HasSubstr(" swapped: "));
  // A failure after fs-mount has left the tree in which the log has its name.
  world_->answer_swap_with("/binds/0/source", "none.so");
  fs::remove_all(world_->path("cache"));
  EXPECT_NE(start(config).status, 0);
  EXPECT_THAT(world_->log_text(), HasSubstr("error: none.so: cannot copy its mount"));
  expect_nothing_left();
}

TEST_P(HookedContainer, image_links_do_not_lead_out_of_the_image) {
  const auto start_at = [&](const std::string& mount_point) {
    auto config = world_->config({"/bin/app"});
    for (const auto& word : {"--at"s, mount_point})
      config["hooks"]["createRuntime"][0]["args"].push_back(word);
    return start(config);
  };
  for (const std::string link :
       {"/usr/lib/libmpi.so.12", "../../../../../../../usr/lib/libmpi.so.12"}) {
    fs::remove_all(world_->rootfs() + "/srv");
    fs::create_directories(world_->rootfs() + "/srv");
    fs::create_symlink(link, world_->rootfs() + "/srv/link.so");
    world_->answer_swap_with("/binds/0/target", "/srv/link.so");
    EXPECT_EQ(start_at("/dev/h" + std::to_string(link.size())).out, "host\n") << link;
  }
  // Outside the image the mount point's link leads to a directory of the host.
  fs::create_directory_symlink(world_->path("host"), world_->rootfs() + "/srv/out");
  world_->answer_swap_with("/mount_point", "/srv/out");
  EXPECT_NE(start_at("/srv/out").status, 0);
  expect_nothing_left();
}

TEST_P(HookedContainer, directories_with_odd_names_work) {
  for (const std::string name :
       {"with space", "new\nline\ttab", "\xC3\xA4\xE2\x82\xAC", "a\\b'\"$(x)"}) {
    SCOPED_TRACE(name);
    renew(std::make_unique<ContainerWorld>(name));
    const auto ran = start_app();
    EXPECT_EQ(ran.out, "host\n") << ran.err << world_->log_text();
    expect_nothing_left();
  }
}

/// apptainer mounts, and runs `PROGRAM ARGUMENTS /dev/fd/N -f`.
TEST(ApptainersFusemount, fs_mount_serves_the_passed_descriptor) {
  HEDDLE_STAGED(fs_mount, "fs-mount");
  HEDDLE_STAGED(fs_hook, "fs-hook");
  const ContainerWorld world;
  const auto directory = world.path("mnt");
  fs::create_directory(directory);
  auto device = open_file("/dev/fuse", O_RDWR);
  if (!device) HEDDLE_SKIP(device.error().message());
  const auto options =
      "fd=" + std::to_string(device->get()) + ",rootmode=40000,user_id=0,group_id=0";
  if (::mount("heddle", directory.c_str(), "fuse", MS_RDONLY | MS_NOSUID | MS_NODEV,
              options.c_str()) != 0)
    HEDDLE_SKIP("only root can mount");
  auto child = value_or_throw(spawn(
      fs_mount,
      {"fs-mount", "--mount-point", "/mnt", world.path("stage/bin/answer.map"), "/dev/fd/7", "-f"},
      {{{device->get(), 7}}}));
  device->reset();
  EXPECT_EQ(read_file(directory + "/libmpi.so.12").value_or(""),
            value_or_throw(read_file(world.path("host/libmpi.so.12"))));
  EXPECT_EQ(::umount2(directory.c_str(), MNT_DETACH), 0);
  EXPECT_EQ(value_or_throw(child.wait_for(5s)), 0);
}

INSTANTIATE_TEST_SUITE_P(Oci, HookedContainer, ::testing::Values("runc", "crun"), kParameterName);
INSTANTIATE_TEST_SUITE_P(Oci, HookedImage, ::testing::Values("crun"), kParameterName);

}  // namespace
}  // namespace heddle::test
