// SPDX-License-Identifier: MIT
// The recorder's threads follow the program; the program's own cores and policy are native.
#include <sched.h>

#include "base/sandbox/sanitized.hpp"
#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

std::vector<std::string> python(const std::string& script) {
  return {"/usr/bin/python3", "-c", script};
}

using RecorderCores = Recorder;

bool has_several_cores() {
  cpu_set_t all;
  return ::sched_getaffinity(0, sizeof(all), &all) == 0 && CPU_COUNT(&all) > 1;
}

TEST_F(RecorderCores, the_program_has_all_cores_and_its_own_policy) {
  const std::string script = R"(
import os, subprocess
for i in range(2000): os.path.exists('/etc/passwd')
print(os.sched_getaffinity(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
print(subprocess.check_output(['sh', '-c', 'nproc; taskset -p -c $$ | sed s/.*:// ; chrt -p $$ | sed s/.*:// ']))
)";
  expect_same_run(python(script));
  expect_same_run({"taskset", "-c", "0", "nice", "-n", "3", "/usr/bin/python3", "-c", script});
}

/// Linux schedules each session as one (sched(7), autogroup).
TEST_F(RecorderCores, the_recorder_is_of_the_session_of_its_program_but_not_of_its_process_group) {
  const auto done = record_here({"sh", "-c", "ps -o sid= --ppid $PPID; ps -o pgid= --ppid $PPID"});
  const auto ids = words_of(done.out);
  ASSERT_EQ(ids.size(), 4U) << done.out << done.err;
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_NE(ids[2], ids[3]);
}

TEST_F(RecorderCores, the_recorder_is_idle_on_the_core_of_its_only_caller) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root, to leave SCHED_IDLE again");
  if (!has_several_cores()) HEDDLE_SKIP("needs two cores");
  const auto done = record_here(python(R"(
import glob, os, time
def fields(path): return open(path).read().rpartition(')')[2].split()
def recorder():
    for path in glob.glob('/proc/[0-9]*/comm'):
        try:
            if open(path).read().startswith('fs-record:serve') and fields(path[:-4] + 'stat')[1] == str(os.getppid()):
                return path.split('/')[2]
        except OSError: pass
tasks = '/proc/' + recorder() + '/task/'
def follows(task, core):
    allowed = open(tasks + task + '/status').read().split('Cpus_allowed_list:')[1].split()[0]
    return allowed == core and (fields(tasks + task + '/stat')[38] == '5' or busy())
def busy(): return int(open('/proc/loadavg').read().split()[3].split('/')[0]) > os.cpu_count()
end = time.time() + 20
while time.time() < end:
    for i in range(500): os.stat('/etc/passwd')
    core = fields('/proc/self/stat')[36]
    if [t for t in os.listdir(tasks) if follows(t, core)]: break
else: print('no thread follows')
)"));
  EXPECT_EQ(done.out, "") << done.err;
}

/// A SCHED_IDLE thread alone would get a three-hundredth of a core.
TEST_F(RecorderCores, busy_cores_do_not_starve_the_recorder) {
  if (kSanitized) HEDDLE_SKIP("measures time");
  RunOptions options;
  options.deadline = std::chrono::minutes(2);
  const std::string script = R"(
import os, time
cores = os.sched_getaffinity(0)
hogs = []
for core in sorted(cores) * 2:
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {core})
        end = time.time() + 60
        while time.time() < end: pass
        os._exit(0)
    hogs.append(pid)
for i in range(500): os.stat('/etc/passwd')
for pid in hogs:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
)";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(record(trace_, python(script), options).status, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace heddle::test
