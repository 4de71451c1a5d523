// SPDX-License-Identifier: MIT
// What an archive says of the job: control group, container, secrets.
#include "jobs/metadata.hpp"
#include "tests/jobs/collected.hpp"

namespace heddle::test {
namespace {

TEST(HetComponent, is_that_of_this_node_and_not_inherited_by_a_job_that_it_submitted) {
  const std::pair<const char*, const char*> variables[] = {{"SLURMD_NODENAME", "n2"},
                                                           {"SLURM_HET_SIZE", "2"},
                                                           {"SLURM_JOB_ID_HET_GROUP_0", "7"},
                                                           {"SLURM_JOB_ID_HET_GROUP_1", "8"},
                                                           {"SLURM_JOB_NODELIST_HET_GROUP_0", "n1"},
                                                           {"SLURM_JOB_NODELIST_HET_GROUP_1", "n2"},
                                                           {"SLURM_JOB_ID", "7"}};
  for (const auto& [name, value] : variables) ::setenv(name, value, 1);
  const auto own = jobs::het_component();
  ::setenv("SLURM_JOB_ID", "9", 1);
  const auto inherited = jobs::het_component();
  for (const auto& [name, value] : variables) ::unsetenv(name);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->id, "8");
  EXPECT_EQ(own->job, "7");
  EXPECT_FALSE(inherited);
}

TEST_F(Collected, totals_of_the_control_group_are_kept) {
  // Version 2, wherever this machine has it, in a mount namespace.
  const auto mounted = "mount --make-rprivate / && mount -t cgroup2 none /sys/fs/cgroup"s;
  if (run({"unshare", "-m", "sh", "-c", mounted}, options_).status != 0)
    HEDDLE_SKIP("no control groups of version 2 can be mounted");
  const auto result = run({"unshare", "-m", "sh", "-c",
                           mounted + " && sed -n 's/^0:://p' /proc/self/cgroup && exec " + fs_job_ +
                               " run -q sh -c 'cat /sys/fs/cgroup/$(sed -n s/^0:://p "
                               "/proc/self/cgroup)/cpu.stat'"},
                          options_);
  ASSERT_EQ(result.status, 0) << result.err;
  archive_ = read_job(archives().at(0));
  const auto& group = archive_.job["cgroup"];
  const std::string cpu = group["cpu.stat"];
  EXPECT_THAT(cpu, StartsWith("usage_usec "));
  const auto used = [](const std::string& text) {
    return std::stoll(text.substr(text.find("usage_usec ") + 11));
  };
  EXPECT_GE(used(cpu), used(result.out));
  EXPECT_TRUE(group.contains("memory.pressure") == fs::exists("/proc/pressure/memory")) << group;
}

TEST_F(Collected, the_container_is_known_by_the_files_that_it_mounts) {
  const std::string id(64, 'a');
  fs::create_directories(dir_ / ("containers/" + id + "/userdata"));
  const auto file = dir_ / ("containers/" + id + "/userdata/hostname");
  write_text_file(file, "box\n");
  const auto mounted = "mount --make-rprivate / && mount --bind " + file + " /etc/hostname";
  if (run({"unshare", "-m", "sh", "-c", mounted}, options_).status != 0)
    HEDDLE_SKIP("no file can be mounted over /etc/hostname");
  const auto result = run(
      {"unshare", "-m", "sh", "-c", mounted + " && exec " + fs_job_ + " run -q true"}, options_);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(read_job(archives().at(0)).job["container"], id);
  collect({"true"});
  EXPECT_FALSE(archive_.job.contains("container"));
}

TEST(Container, id_is_that_of_the_engines_control_group) {
  const std::string id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  for (const std::string& group :
       {"0::/machine.slice/libpod-" + id + ".scope",
        "0::/user.slice/libpod-" + id + ".scope/container", "4:memory:/docker/" + id + "\n0::/",
        "0::/kubepods/pod1/cri-containerd-" + id + ".scope"})
    EXPECT_EQ(jobs::container_id(group, ""), id) << group;
  EXPECT_EQ(
      jobs::container_id("0::/", "36 1 8:1 /docker/containers/" + id + "/hosts /etc/hosts rw\n"),
      id);
  // The host has the mounts of its containers.
  EXPECT_EQ(jobs::container_id("0::/user.slice", "36 1 0:9 / /overlay2/" + id + "/merged rw\n"),
            "");
  EXPECT_EQ(jobs::container_id("0::/job_" + id + "0", ""), "");
}

TEST(ControlGroup, of_slurm_is_the_jobs_and_limits_hold_below) {
  const TestDir dir;
  const auto write = [&](const std::string& file, const std::string& text) {
    write_text_file(dir / file, text + "\n");
  };
  // Slurm limits the job and the step, and its tasks are in groups of their own.
  const auto job = "system.slice/slurmstepd.scope/job_7/"s;
  write("system.slice/memory.max", "max");
  write("system.slice/memory.peak", "99999");
  write(job + "memory.max", "1000");
  write(job + "memory.peak", "400");
  write(job + "memory.events", "low 0\noom 1\noom_kill 2");
  write(job + "step_0/user/memory.max", "500");
  write(job + "step_0/user/task_0/memory.max", "max");
  write(job + "step_0/user/task_0/memory.peak", "100");
  write(job + "step_0/user/task_0/memory.events", "oom_kill 0");
  write(job + "step_0/user/task_0/cpu.stat", "usage_usec 5");
  EXPECT_EQ(jobs::control_group("0::/" + job + "step_0/user/task_0\n", dir.path()),
            (nlohmann::json{{"memory.max", 500},
                            {"memory.peak", 400},
                            {"memory.oom_kill", 2},
                            {"cpu.stat", "usage_usec 5\n"}}));
  // Elsewhere it is the process's own.
  write("user.slice/memory.max", "2000");
  write("user.slice/memory.peak", "1500");
  write("user.slice/own/memory.peak", "7");
  EXPECT_EQ(jobs::control_group("0::/user.slice/own\n", dir.path()),
            (nlohmann::json{{"memory.max", 2000}, {"memory.peak", 7}}));
  // Version 1, with the other beside it.
  write("memory/memory.limit_in_bytes", "9223372036854771712");
  write("memory/slurm/uid_1/job_7/memory.limit_in_bytes", "3000");
  write("memory/slurm/uid_1/job_7/memory.max_usage_in_bytes", "2500");
  write("memory/slurm/uid_1/job_7/step_0/memory.max_usage_in_bytes", "1");
  write("memory/slurm/uid_1/job_7/memory.oom_control", "under_oom 0\noom_kill 3");
  EXPECT_EQ(
      jobs::control_group(
          "9:cpu:/x\n4:memory:/slurm/uid_1/job_7/step_0\n1:name=systemd:/y\n0::/z\n", dir.path()),
      (nlohmann::json{{"memory.max", 3000}, {"memory.peak", 2500}, {"memory.oom_kill", 3}}));
  EXPECT_EQ(jobs::control_group("", dir.path()), nlohmann::json::object());
}

TEST_F(Collected, secrets_are_masked) {
  options_.env = options_.env + Strings{"SLURM_TOKEN=hidden", "OMP_PROXY=http://me:hidden@host/",
                                        "MY_OWN=unlisted"};
  collect(Strings{"true",
                  "--password",
                  "hidden",
                  "--api-token=hidden",
                  "ftp://u:hidden@h/x",
                  "https://hidden@h/",
                  "https://hidden:x-oauth-basic@h/y",
                  "https://hidden:hidden@h/?token=hidden&author=me;sig=hidden#x",
                  "postgresql://u:hidden@h/db?password=hidden",
                  "--url=https://u:hidden@h/?x=1",
                  "--endpoints=http://u:hidden@a:2379,http://u:hidden@b:2379",
                  "https://h/?next=https://u:hidden@g/",
                  "http://a/x;http://u:hidden@b",
                  "wget https://h/f --password=hidden",
                  "https://h/api/token=hidden",
                  "--pass",
                  "hidden",
                  "-H",
                  "Authorization: Bearer hidden",
                  "-HX-Api-Key: hidden",
                  "--header=Cookie: hidden",
                  "-u",
                  "me:hidden",
                  "--user=me:hidden",
                  "-H",
                  "Accept: */*",
                  "ssh://git@h/",
                  "--pass-through",
                  "x",
                  "-u",
                  "plain",
                  "--key=2"});
  const auto text = archive_.job.dump() + archive_.rows.at(0)["args"];
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
  EXPECT_THAT(text, Not(HasSubstr("unlisted")));
  const auto args = archive_.rows[0].args();
  EXPECT_EQ(Strings(args.end() - 8, args.end()),
            (Strings{"-H", "Accept: */*", "ssh://git@h/", "--pass-through", "x", "-u", "plain",
                     "--key=2"}));
  for (const std::string masked :
       {"me:***", "--user=me:***", "https://***@h/", "Authorization:***",
        "https://***@h/?token=***&author=me;sig=***#x", "postgresql://u:***@h/db?password=***",
        "--url=https://***@h/?x=1"})
    EXPECT_EQ(std::ranges::count(args, masked), 1) << masked;
}

}  // namespace
}  // namespace heddle::test
