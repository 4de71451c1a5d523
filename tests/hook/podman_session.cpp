// SPDX-License-Identifier: MIT
#include "tests/hook/podman_session.hpp"

namespace heddle::test {

PodmanSession::PodmanSession(std::string directory, std::string runtime, unsigned uid)
    : directory_(std::move(directory)), runtime_(std::move(runtime)), uid_(uid) {
  for (const auto& each : {directory_, path("run"), path("home"), path("storage")}) {
    fs::create_directory(each);
    ::chmod(each.c_str(), 0700);
  }
  for (const char* file : {"subuid", "subgid"})
    write_text_file(path(file), "heddle-test:300000:65536\n");
  const auto owner = std::to_string(uid_) + ":" + std::to_string(uid_);
  run_checked({"chown", "-R", owner, directory_});
}

PodmanSession::~PodmanSession() {
  if (uid_ == 0) return;
  for (const int holder : ContainerWorld::namespace_holders(directory_)) ::kill(holder, SIGKILL);
}

Strings PodmanSession::words() const {
  return {"podman",           "--root",       path("storage"),    "--runroot",
          "/mnt/c",  // at most 50 characters
          "--storage-driver", "vfs",          "--cgroup-manager", "cgroupfs",
          "--events-backend", "none",         "--runtime",        runtime_,
          "--hooks-dir",      path("hooks.d")};
}

Strings PodmanSession::run_words(const Strings& options) const {
  // In some containers not even root may raise limits.
  auto argv = words() +
              Strings{"run", "--rm", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"};
  if (std::ranges::none_of(options, [](const auto& each) { return each.starts_with("--network"); }))
    argv.emplace_back("--network=host");
  if (runtime_ == "crun") argv.emplace_back("--cgroups=disabled");
  return argv + options;
}

RunResult PodmanSession::run(const Strings& words, const std::string& before) const {
  // The machine may have no subuid(5), and a file cannot be bound over none.
  const std::string etc =
      "cd '" + directory_ +
      "'; mkdir -p etc; mount -t tmpfs -o mode=755 tmpfs etc; "
      "mkdir etc/upper etc/work; cp subuid subgid etc/upper; "
      "{ cat /etc/group; echo heddle-test:x:" +
      std::to_string(uid_) +
      ":; } >etc/upper/group; "
      "mount -t overlay -o lowerdir=/etc,upperdir=etc/upper,workdir=etc/work overlay /etc; ";
  const auto session =
      session_command({path("home"), "/mnt", uid_, "open",
                       etc + "mount --bind '" + path("run") + "' /mnt; cd home; " + before});
  return test::run(session + words, {.cwd = path("home")});
}

}  // namespace heddle::test
