// SPDX-License-Identifier: MIT
// Thirty real jobs of two nodes, a cause injected on one node of ten of them. What is injected
// shows in counters that other processes on this machine do not change, and most of a job's time is
// waiting: only the node without processor time is slow.
#include <atomic>
#include <ctime>

#include "tests/jobs/job_store_support.hpp"

namespace heddle::test {
namespace {

/// A control group, of version 2 or 1, with a limit of memory and a part of a processor.
class Group {
 public:
  Group(const std::string& name, long memory, int percent) {
    const std::string base = "/sys/fs/cgroup/", own = name + "-" + std::to_string(::getpid());
    const auto set = [&](const std::string& directory, const char* file, const std::string& value) {
      std::error_code failed;
      fs::create_directory(directory, failed);
      if (!failed && std::ranges::find(directories_, directory) == directories_.end())
        directories_.push_back(directory);
      is_good_ = is_good_ && fs::exists(directory + file) &&
                 (std::ofstream(directory + file) << value << std::flush);
    };
    const auto quota = std::to_string(1000 * percent);
    if (fs::exists(base + "cgroup.controllers")) {
      set(base + own, "/memory.max", std::to_string(memory));
      if (percent) set(base + own, "/cpu.max", quota + " 100000");
    } else {
      set(base + "memory/" + own, "/memory.limit_in_bytes", std::to_string(memory));
      if (percent) set(base + "cpu/" + own, "/cpu.cfs_quota_us", quota);
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    for (const auto& directory : directories_) ::rmdir(directory.c_str());
  }
  bool is_good() const { return is_good_; }
  /// The shell code that moves the shell there.
  std::string enter() const {
    std::string out;
    for (const auto& directory : directories_) out += "echo 0 >" + directory + "/cgroup.procs; ";
    return out;
  }

 private:
  bool is_good_ = true;
  Strings directories_;
};

constexpr const char* kWorker = R"(
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
int main(int argc, char** argv) {
  static unsigned char from[1 << 20], to[2 << 20];
  for (int i = 0; i < atoi(argv[1]); ++i) {
    char* block = malloc(1 << 19);
    memset(block, i, 1 << 19);
    memcpy(from + i % 2 * (1 << 19), block, 1 << 19);
    free(block);
  }
  unsigned long size = sizeof to;
  for (int i = 0; i < 4; ++i, size = sizeof to)
    if (compress2(to, &size, from, sizeof from, 1) != Z_OK) return 1;
  usleep(400000);
  return 0;
})";

TEST(RealJobs, rca_names_the_injected_cause_and_leaves_sane_jobs_alone) {
  HEDDLE_STAGED(fs_job, "fs-job");
  if (test::run({"unshare", "-u", "hostname", "n1"}).status != 0)
    HEDDLE_SKIP("no host name of its own can be given to a process");
  const Group usual("heddle-usual", 512L << 20, 0), half("heddle-half", 256L << 20, 0),
      slow("heddle-slow", 512L << 20, 1);
  if (!usual.is_good() || !half.is_good() || !slow.is_good())
    HEDDLE_SKIP("no control group that limits memory and processor time can be made");
  TestDir dir;
  write_text_file(dir / "worker.c", kWorker);
  run_checked({"cc", "-O1", "-o", dir / "worker", dir / "worker.c", "-l:libz.so.1"});
  std::string many;
  for (int i = 0; i < 20; ++i) {
    fs::create_directory(dir / ("empty" + std::to_string(i)));
    many += (i ? ":" : "") + (dir / ("empty" + std::to_string(i)));
  }
  fs::create_directory(dir / "old");
  const auto lines = lines_of(run_checked({"ldd", dir / "worker"}).out);
  for (const auto& line : lines)
    if (const auto at = line.find("libz.so.1 => "); at != line.npos)
      fs::copy_file(line.substr(at + 13, line.find(" (") - at - 13), dir / "old/libz.so.1");
  ASSERT_TRUE(fs::exists(dir / "old/libz.so.1"));

  const Strings kinds{"library", "node", "lookups", "faults", "memory"};
  const auto run_job = [&](int job) {
    const std::string hosts[] = {"n" + std::to_string(1 + job % 4),
                                 "n" + std::to_string(1 + (job + 1) % 4)};
    const auto id = std::to_string(job);
    std::string script;
    for (const auto& host : hosts) {
      const auto cause = job < 10 && host == hosts[0] ? kinds[job / 2] : "";
      const auto& group = cause == "memory" ? half : cause == "node" ? slow : usual;
      const auto path = cause == "lookups"   ? many
                        : cause == "library" ? (dir / "old") + ":" + (dir / "empty0")
                                             : dir / "empty0";
      const auto spool = dir / ("spool-" + id + "-" + host);
      script += "(" + group.enter() + "export HEDDLE_JOB_SPOOL=" + spool +
                " LD_LIBRARY_PATH=" + path + " SLURM_JOB_NODELIST=" + hosts[0] + "," + hosts[1] +
                (cause == "faults" ? " MALLOC_MMAP_THRESHOLD_=65536" : "") +
                "; exec unshare -u sh -c 'hostname " + host + " && exec " + fs_job +
                " run -q --lookups --to " + dir.path() + " sh -c \"./worker " +
                std::to_string(97 + job % 7) +
                "; seq 2000 | sort -r | gzip -c | wc -c; ./worker 100\"') & ";
    }
    return test::run({"sh", "-c", script + "wait"},
                     {.env = {"SLURM_JOB_ID=" + id, "SLURM_JOB_NAME=real",
                              "SLURM_JOB_START_TIME=" + std::to_string(std::time(nullptr))},
                      .cwd = dir.path(),
                      .deadline = 120s});
  };
  std::atomic<int> next = 0;
  std::vector<std::thread> at_once;
  for (int i = 0; i < 3; ++i)
    at_once.emplace_back([&] {
      for (int job; (job = next++) < 30;) {
        const auto done = run_job(job);
        EXPECT_EQ(lines_of(done.out).size(), 2U) << done.err;
      }
    });
  for (auto& thread : at_once) thread.join();
  Strings archives;
  for (const auto& entry : fs::directory_iterator(dir.path()))
    if (entry.path().extension() == ".gz") archives.push_back(entry.path());
  ASSERT_EQ(archives.size(), 60U);
  const RunOptions store{.env = {"FS_JOB_DB=" + dir / "jobs.db"}, .deadline = 60s};
  run_checked(Strings{fs_job, "submit"} + archives, store);

  const Strings subjects{"libz.so.1", "", "failed_lookups", "minflt", "memory_max"};
  int named = 0, flagged = 0;
  for (int job = 0; job < 30; ++job) {
    const auto found = Json::parse(
        run_checked({fs_job, "rca", std::to_string(job), "--json"}, store).out)["causes"];
    if (job >= 10) {
      flagged += !found.empty();
      if (!found.empty()) std::printf("sane job %d: %s\n", job, found.dump().c_str());
      continue;
    }
    const auto subject = job / 2 == 1 ? "n" + std::to_string(1 + job % 4) : subjects[job / 2];
    const bool right =
        !found.empty() && found[0]["cause"] == kinds[job / 2] && found[0]["subject"] == subject;
    named += right;
    if (!right) std::printf("job %d (%s): %s\n", job, kinds[job / 2].c_str(), found.dump().c_str());
  }
  EXPECT_GE(named, 9);
  EXPECT_LE(flagged, 1);
}

}  // namespace
}  // namespace heddle::test
