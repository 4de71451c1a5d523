// SPDX-License-Identifier: MIT
// What a row has is what the program did.
#include "jobs/collate.hpp"
#include "jobs/collector/record_format.hpp"
#include "tests/jobs/collected.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

TEST_F(Collected, a_known_load_is_measured) {
  const auto load = compile("load", R"(
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
int main(void) {
  char* memory = malloc(64 << 20);
  memset(memory, 1, 64 << 20);
  int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
  for (int i = 0; i < 2; ++i) if (write(fd, memory, 50000000) != 50000000) return 1;
  fsync(fd);
  if (pread(fd, memory, 50000000, 0) != 50000000) return 1;
  struct rusage used;
  do { for (volatile int i = 0; i < 1000000; ++i); getrusage(RUSAGE_SELF, &used); }
  while (used.ru_utime.tv_sec + used.ru_stime.tv_sec < 2);
  int out = open("used", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  getrusage(RUSAGE_SELF, &used);
  dprintf(out, "%ld", (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000L + used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  return 0;
})",
                            {"-include", "stdio.h"});
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(collect({load}).status, 0);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const auto row = archive_.rows.at(0);
  // The loop ends when both parts have full seconds of 2 in sum: less than 4 s.
  const auto cpu = row.sum("usertime") + row.sum("systemtime");
  EXPECT_GE(cpu, 1'900'000);
  const auto used = value_or_throw(read_file(dir_ / "used"));
  EXPECT_NEAR(static_cast<double>(cpu), std::stod(used), 0.05 * std::stod(used));
  EXPECT_NEAR(static_cast<double>(row.sum("time_oncpu")) / 1000, static_cast<double>(cpu),
              0.05 * static_cast<double>(cpu));
  // Without those of the collector; ld.so reads the first bytes of each library.
  EXPECT_EQ(row.sum("wchar"), 100'000'000 + static_cast<std::int64_t>(used.size()));
  EXPECT_EQ(row.sum("syscw"), 3);
  EXPECT_GE(row.sum("rchar"), 50'000'000);
  EXPECT_LT(row.sum("rchar"), 50'016'384);
  EXPECT_GE(row.sum("rssmax"), 65536);
  EXPECT_LT(row.number("finish") - row.number("start"),
            static_cast<std::int64_t>(wall.count() * 1e6));
}

TEST_F(Collected, what_children_read_and_write_is_theirs_alone) {
  // /proc/PID/io of their parents has it, too.
  const auto writes = compile("writes", R"(
#include <fcntl.h>
#include <unistd.h>
static char bytes[1000000];
int main(void) {
  int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
  for (int i = 0; i < 10; ++i) if (write(fd, bytes, sizeof bytes) != sizeof bytes) return 1;
  return pread(fd, bytes, sizeof bytes, 0) != sizeof bytes;
})");
  const auto parent = compile("parent", R"(
#include <sys/wait.h>
#include <unistd.h>
int main(int c, char** v) {
  char* words[] = {v[1], v[2], 0};
  if (fork() == 0) { execv(v[1], words); _exit(9); }
  wait(0);
  if (c == 2 && write(open("own", 0101, 0600), "12345", 5) != 5) return 1;
  if (c == 2) execl("/bin/true", "true", (char*)0);
  return 0;
})",
                              {"-include", "fcntl.h"});
  ASSERT_EQ(collect({parent, parent, writes}).status, 0);  // a grandparent
  for (const auto& row : archive_.of("parent")) EXPECT_LE(row.sum("wchar"), 5);
  ASSERT_EQ(collect({parent, writes}).status, 0);
  ASSERT_EQ(archive_.of("writes").size(), 1U);
  EXPECT_EQ(archive_.of("writes")[0].sum("wchar"), 10'000'000);
  EXPECT_EQ(archive_.of("writes")[0].sum("syscw"), 10);
  EXPECT_EQ(archive_.of("parent").at(0).sum("wchar"), 5);
  EXPECT_EQ(archive_.of("parent")[0].sum("syscw"), 1);
  EXPECT_LT(archive_.of("parent")[0].sum("rchar"), 20'000);
  EXPECT_EQ(archive_.of("true").at(0).sum("wchar"), 0);
  EXPECT_LT(archive_.of("true")[0].sum("rchar"), 20'000);
}

/// What ld.so reads to load a program is that program's, however it was executed.
TEST_F(Collected, a_program_behind_an_exec_has_its_own_start_and_memory) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 100});
  write_text_file(dir_ / "wrapper", "#!/bin/sh\nexec " + farm.program + "\n", 0755);
  ASSERT_EQ(collect({"sh", "-c", farm.program + "; true"}).status, 0);
  const auto alone = archive_.of("app").at(0).sum("rchar");
  ASSERT_EQ(collect({dir_ / "wrapper"}).status, 0);
  EXPECT_NEAR(static_cast<double>(archive_.of("app").at(0).sum("rchar")),
              static_cast<double>(alone), 4096.0);
  EXPECT_GE(alone, 100 * 832);
  EXPECT_LT(archive_.of("dash").at(0).sum("rchar"), 20'000);
  EXPECT_EQ(archive_.of("app")[0]["generation"], "1");
  // An exec that failed before is none.
  ASSERT_EQ(collect({"env", "sh", "-c", "exec /etc; true"}).status, 126);
  EXPECT_EQ(archive_.of("dash").at(0)["ended_by"], "self");
  ASSERT_EQ(collect({"/usr/bin/python3", "-c",
                     "import os, subprocess\nx = bytearray(10**8)\nsubprocess.run(['true'])\n"
                     "os.execlp('env', 'env', 'echo')"})
                .status,
            0);
  EXPECT_GT(archive_.rows.at(0).sum("rssmax"), 100'000);
  for (const char* name : {"true", "env", "echo"})
    EXPECT_LT(archive_.of(name).at(0).sum("rssmax"), 20'000) << name;
}

TEST_F(Collected, the_47_keys_are_those_of_the_program_and_the_kernel) {
  // It prints what it knows of itself at its end, as `key value`.
  const auto knows = compile("knows", R"(
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>
static void work(void) {
  char* p = malloc(8 << 20);
  memset(p, 1, 8 << 20);
  for (volatile int i = 0; i < 30000000; ++i);
  for (int i = 0; i < 5; ++i) usleep(1000);
}

static long us(struct timeval t) { return t.tv_sec * 1000000L + t.tv_usec; }
int main(int argc, char** argv) {
  unsigned long long cycles = __rdtsc();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
  if (fork() == 0) { work(); _exit(0); }
  wait(0);
  work();
  int data = open("data", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  static char bytes[1 << 20];
  if (write(data, bytes, sizeof bytes) != sizeof bytes) return 1;
  fsync(data);
  struct rusage own, children;
  char line[256];
  long peak = 0;  // of this program alone
  FILE* status = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, status)) sscanf(line, "VmHWM: %ld", &peak);
  fclose(status);
  getrusage(RUSAGE_SELF, &own);
  getrusage(RUSAGE_CHILDREN, &children);
  printf("usertime %ld\nsystemtime %ld\nrssmax %ld\nminflt %ld\nmajflt %ld\ninblock %ld\noutblock %ld\n",
         us(own.ru_utime), us(own.ru_stime), peak, own.ru_minflt, own.ru_majflt, own.ru_inblock, own.ru_oublock);
  printf("vol_ctxsw %ld\ninvol_ctxsw %ld\n", own.ru_nvcsw, own.ru_nivcsw);
  printf("cutime %ld\ncstime %ld\ncminflt %ld\ncmajflt %ld\n", us(children.ru_utime), us(children.ru_stime), children.ru_minflt, children.ru_majflt);
  printf("pid %d\nppid %d\npgid %d\nsid %d\ntid %d\n", getpid(), getppid(), getpgid(0), getsid(0), gettid());
  char text[4096];
  FILE* file = fopen("/proc/self/stat", "r");
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  const char* at = strrchr(text, ')') + 2;
  const char* names[] = {[20] = "num_threads", [22] = "starttime", [39] = "processor", [42] = "delayacct_blkio_time", [43] = "guest_time"};
  for (int i = 3; i < 44; ++i, at = strchr(at, ' ') + 1)
    if (names[i]) printf("%s %ld\n", names[i], strtol(at, 0, 10));
  fclose(file);
  file = fopen("/proc/self/io", "r");
  while (fgets(text, sizeof text, file)) { char* colon = strchr(text, ':'); *colon = ' '; printf("%s", text); }
  fclose(file);
  unsigned long long sched[3];
  file = fopen("/proc/self/schedstat", "r");
  if (fscanf(file, "%llu %llu %llu", sched, sched + 1, sched + 2) != 3) return 1;
  printf("time_oncpu %llu\ntime_waiting %llu\ntimeslices %llu\n", sched[0], sched[1], sched[2]);
  printf("rdtsc_duration %llu\n", __rdtsc() - cycles);
  return 0;
})");
  options_.env = options_.env + Strings{"PAPIEX_TAGS=op:x", "SLURM_PROCID=3", "SLURM_NTASKS=5"};
  const auto result = collect({knows, "a", "b c"});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto rows = archive_.of("knows");
  ASSERT_EQ(rows.size(), 2U);
  const auto& row = rows[0].number("pid") == rows[1].number("ppid") ? rows[0] : rows[1];
  ASSERT_EQ(row.threads.size(), 1U);
  std::map<std::string, std::int64_t> known;
  for (const auto& line : lines_of(result.out))
    known[line.substr(0, line.find(' '))] = std::stoll(line.substr(line.find_last_of(' ')));
  // The program's last look is before the collector's: `slack` may come in between, -1 is any.
  struct Key {
    const char* name;
    std::int64_t slack;
  };
  const Key keys[] = {{"tid", 0},
                      {"usertime", 200'000},
                      {"systemtime", 200'000},
                      {"rssmax", 4096},
                      {"minflt", 500},
                      {"majflt", 100},
                      {"inblock", 10'000},
                      {"outblock", 10'000},
                      {"vol_ctxsw", 100},
                      {"invol_ctxsw", 1000},
                      {"cminflt", 0},
                      {"cmajflt", 0},
                      {"cutime", 0},
                      {"cstime", 0},
                      {"num_threads", 0},
                      {"starttime", 0},
                      {"processor", 0},
                      {"delayacct_blkio_time", 1000},
                      {"guest_time", 0},
                      {"read_bytes", 10'000'000},
                      {"write_bytes", 10'000'000},
                      {"cancelled_write_bytes", 0},
                      {"time_oncpu", 400'000'000},
                      {"time_waiting", -1},
                      {"timeslices", 2000},
                      {"rdtsc_duration", -1}};
  const auto& values = row.threads[0];
  for (const auto& [name, slack] : keys) {
    ASSERT_TRUE(known.contains(name)) << name;
    ASSERT_TRUE(values.contains(name)) << name;
    EXPECT_GE(values.at(name), known[name]) << name;
    if (slack >= 0) {
      EXPECT_LE(values.at(name), known[name] + slack) << name;
    }
  }
  // Without what the child and the collector did, which /proc has, too.
  for (const char* name : {"rchar", "wchar", "syscr", "syscw"}) {
    EXPECT_GT(values.at(name), 0) << name;
    EXPECT_LE(values.at(name), known[name] + 10'000) << name;
  }
  EXPECT_GT(known["cutime"], 1000);
  EXPECT_GT(known["cminflt"], 10);
  // The cycles of a child that only forked begin at its fork, too.
  const auto rate = [](const JobRow& of) {
    return static_cast<double>(of.threads[0].at("rdtsc_duration")) /
           static_cast<double>(of.number("finish") - of.number("start"));
  };
  EXPECT_NEAR(rate(rows[0]), rate(rows[1]), 0.4 * rate(row));
  EXPECT_GE(known["vol_ctxsw"], 5);
  EXPECT_EQ(values.at("mpirank"), 3);
  EXPECT_EQ(values.at("numranks"), 5);
  for (const char* name : {"pid", "ppid", "pgid", "sid"})
    EXPECT_EQ(row.number(name), known[name]) << name;
  EXPECT_EQ(row["tags"], "op:x");
  EXPECT_EQ(row["hostname"], archive_.job["host"]);
  EXPECT_EQ(row["exename"], "knows");
  EXPECT_EQ(row["path"], fs::canonical(knows));
  EXPECT_EQ(row["exitcode"] + row["exitsignal"] + row["generation"], "000");
  EXPECT_EQ(row["numtids"], "1");
  EXPECT_LT(row.number("start"), row.number("finish"));
  EXPECT_EQ(row.args(), (Strings{"a", "b c"}));
  EXPECT_EQ(values.size() + 15, 47U) << "with the columns of epmt's table";
}

TEST_F(Collected, epmt_reads_its_layout) {
  ASSERT_EQ(fs_job({"start"}).status, 0);
  ASSERT_EQ(sh("eval \"$(" + fs_job_ +
               " source --shell sh)\"; /bin/echo 'a b'; fs_job_uninstrument; " + fs_job_ + " stop")
                .status,
            0);
  const auto staged = fs_job({"stage", "--epmt"});
  ASSERT_EQ(staged.status, 0) << staged.err;
  const auto path = lines_of(staged.out).at(0);
  EXPECT_THAT(path, ::testing::EndsWith("/1.tgz"));
  const auto names = lines_of(run_checked({"tar", "tf", path}).out);
  ASSERT_EQ(names.size(), 3U);
  EXPECT_EQ(names[0], "./job_metadata");
  EXPECT_THAT(names[1], ::testing::EndsWith("-papiex-header.tsv"));
  const auto header = run_checked({"tar", "xzOf", path, names[1]}).out;
  const auto rows = lines_of(run_checked({"tar", "xzOf", path, names[2]}).out);
  ASSERT_EQ(rows.size(), 1U);  // stop is after uninstrument
  EXPECT_EQ(split(rows[0], '\t').size(), 16U);
  EXPECT_EQ(split(rows[0], '\t').size(), split(header, '\t').size());
  EXPECT_EQ(split(rows[0], '\t').back(), "a b");
  // And submit reads it.
  options_.env.push_back("FS_JOB_DB=" + dir_ / "jobs.db");
  const auto submitted = fs_job({"submit", path});
  ASSERT_EQ(submitted.status, 0) << submitted.err;
  const auto jobs = nlohmann::json::parse(fs_job({"query", "--format", "json"}).out);
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0]["jobid"], "1");
  EXPECT_EQ(jobs[0]["num_procs"], 1);
  EXPECT_GT(jobs[0]["cpu_time"], 0);
  EXPECT_THAT(fs_job({"show", "1", "--tree"}).out, HasSubstr("  echo a b "));
}

TEST_F(Collected, software_events_are_counted_or_null_with_the_reason) {
  const auto load = compile("burns", R"(
#include <sys/mman.h>
int main(void) {
  const long size = 8 << 20;
  char* p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(p, size, MADV_NOHUGEPAGE);
  for (volatile char* c = p; c < p + size; c += 4096) *c = 1;
  for (volatile int i = 0; i < 50000000; ++i);
  return 0;
})");
  ASSERT_EQ(collect({load}, {"--perf"}).status, 0);
  ASSERT_EQ(archive_.of("burns").size(), 1U);
  const auto row = archive_.of("burns")[0];
  ASSERT_EQ(row.threads.size(), 1U);
  const auto& values = row.threads[0];
  if (archive_.job["collector"]["perf"] == "counted") {
    ASSERT_TRUE(values.contains("PERF_COUNT_SW_TASK_CLOCK"));
    const auto cpu = static_cast<double>(row.sum("usertime") + row.sum("systemtime"));
    EXPECT_NEAR(static_cast<double>(values.at("PERF_COUNT_SW_TASK_CLOCK")) / 1000, cpu, 0.3 * cpu);
    EXPECT_GE(values.at("PERF_COUNT_SW_PAGE_FAULTS"), 2000);
  }
  // Where the system call is refused; seccomp is inherited.
  const auto refuses = compile("refuses", R"(
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char** argv) {
  struct sock_filter code[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 13), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {4, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program)) return 9;
  execv(argv[1], argv + 1);
  return 8;
})");
  for (const auto& file : archives()) fs::remove(file);
  const auto refused = run({refuses, fs_job_, "run", "-q", "--perf", load}, options_);
  ASSERT_EQ(refused.status, 0) << refused.err;
  archive_ = read_job(archives().at(0));
  EXPECT_EQ(archive_.job["collector"]["perf"], "Permission denied");
  ASSERT_EQ(archive_.of("burns").size(), 1U);
  EXPECT_FALSE(archive_.of("burns")[0].threads.at(0).contains("PERF_COUNT_SW_TASK_CLOCK"));
}

TEST(Collate, many_processes_without_a_start_take_seconds) {
  // Static programs, children of static ones.
  constexpr int kMany = 100'000;
  const TestDir dir;
  {
    std::ofstream records(dir / "records", std::ios::binary);
    for (int i = 0; i < kMany; ++i) {
      struct {
        jobs::RecordHeader header;
        jobs::ReapedBody body;
      } record{};
      record.header = {
          jobs::kRecordMagic, sizeof record, jobs::RecordType::reaped, 0, 100 + i, 0, 0};
      record.body.time = 1'000'000 + i;
      record.body.parent = 99 + i;
      record.body.usage.utime = record.body.usage.stime = 10;
      records.write(reinterpret_cast<const char*>(&record), sizeof record);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto collated = value_or_throw(jobs::collate(dir / "records"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
  EXPECT_EQ(collated.processes.size(), static_cast<std::size_t>(kMany));
  EXPECT_EQ(collated.partial, kMany);
}

TEST(Collate, process_of_more_cpu_hours_than_a_number_holds_keeps_its_end) {
  const TestDir dir;
  std::string records;
  const auto add = [&](jobs::RecordType type, const auto& body, const std::string& rest) {
    const auto size =
        static_cast<std::uint16_t>(sizeof(jobs::RecordHeader) + sizeof body + rest.size());
    const jobs::RecordHeader header{jobs::kRecordMagic, size, type, 0, 10, 0, 1'000'000};
    records.append(reinterpret_cast<const char*>(&header), sizeof header);
    records.append(reinterpret_cast<const char*>(&body), sizeof body) += rest;
  };
  constexpr std::int64_t kExact = std::int64_t{1} << 53;
  jobs::StartBody start{};
  start.ppid = 1;
  jobs::EndBody end{};
  end.status = 5;
  end.threads = 2;  // one has ended: the other's times are its own row
  end.usage.time = 3'000'000;
  end.usage.cpu_ns = end.usage.perf[0] = std::numeric_limits<std::int64_t>::max();
  end.usage.task.utime = 1;
  for (auto& value : end.usage.task.sched) value = std::numeric_limits<std::int64_t>::max();
  add(jobs::RecordType::start, start, std::string("/bin/sh\0\0\0sh\0", 13));
  add(jobs::RecordType::end, end, "");
  write_text_file(dir / "records", records);
  const auto collated = value_or_throw(jobs::collate(dir / "records"));
  EXPECT_EQ(collated.damaged, 0);
  ASSERT_EQ(collated.processes.size(), 1U);
  EXPECT_EQ(collated.processes[0].exitcode, 5);
  for (const auto& row : collated.processes[0].threads)
    for (const auto& value : row) EXPECT_LE(value.value_or(0), kExact);
}

TEST_F(Collected, failed_lookups_are_counted_with_lookups) {
  compile("libodd.so", "int odd(void) { return 0; }", {"-shared", "-fPIC"});
  const auto program =
      compile("asks", "int odd(void); int main(void) { return odd(); }",
              {"-L" + dir_.path(), "-l:libodd.so",
               "-Wl,-rpath," + (dir_ / "a") + ":" + (dir_ / "b") + ":" + dir_.path()});
  fs::create_directories(dir_ / "a");
  fs::create_directories(dir_ / "b");
  ASSERT_EQ(collect({program}, {"--lookups"}).status, 0);
  EXPECT_GE(archive_.rows.at(0).number("failed_lookups"), 2);
  bool found = false;
  for (const auto& line : lines_of(archive_.libraries)) {
    const auto fields = split(line, '\t');
    if (fields[1] != "libodd.so") continue;
    found = true;
    EXPECT_EQ(fields[2], dir_ / "libodd.so");
    EXPECT_GE(std::stoi(fields[3]), 2);
    EXPECT_EQ(fields.at(4), std::to_string(fs::file_size(dir_ / "libodd.so")));
  }
  EXPECT_TRUE(found) << archive_.libraries;
}

}  // namespace
}  // namespace heddle::test
