// SPDX-License-Identifier: MIT
#include "record/run_end.hpp"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "base/fd.hpp"
#include "record/user_mount.hpp"

namespace heddle {
namespace {

ino_t mount_namespace_of(pid_t pid) {
  struct stat st {};
  return ::stat(("/proc/" + std::to_string(pid) + "/ns/mnt").c_str(), &st) == 0 ? st.st_ino : 0;
}

/// Whether `pid` runs under the tracer `tracer` (proot).
bool is_traced_by(pid_t pid, pid_t tracer) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/status");
  const auto at = text ? text->find("\nTracerPid:") : std::string::npos;
  return at != std::string::npos && std::atoi(text->c_str() + at + 11) == tracer;
}

/// Kills every process that `is_one` names, until a look finds none: they may fork meanwhile.
template <class Test>
void kill_all(Test is_one) {
  for (int round = 0; round < 100; ++round) {
    bool found = false;
    DIR* proc = ::opendir("/proc");
    if (!proc) return;
    while (const dirent* entry = ::readdir(proc)) {
      const pid_t pid = std::atoi(entry->d_name);
      if (pid > 0 && is_one(pid)) found = ::kill(pid, SIGKILL) == 0 || found;
    }
    ::closedir(proc);
    if (!found) return;
    ::usleep(2000);
  }
}

/// Everything that runs on the loopback. Under proot there is no namespace to know it by; `app`,
/// proot itself, is killed last, or its tracees would no longer be known for what they are.
void kill_run(pid_t app, ino_t space) {
  if (space != 0 && space != mount_namespace_of(::getpid())) {
    kill_all([&](pid_t pid) { return mount_namespace_of(pid) == space; });
  } else {
    kill_all([&](pid_t pid) { return is_traced_by(pid, app); });
    ::kill(app, SIGKILL);
  }
}

}  // namespace

RecordedProcesses recorded_processes(pid_t app, const std::string& user_mount) {
  return {app, mount_namespace_of(app), user_mount};
}

void end_run(const RecordedProcesses& run) {
  kill_run(run.app, run.space);
  if (run.user_mount.empty()) return;
  (void)take_user_mount_off(run.user_mount);
  ::rmdir(run.user_mount.c_str());
}

}  // namespace heddle
