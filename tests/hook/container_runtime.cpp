// SPDX-License-Identifier: MIT
#include "tests/hook/container_runtime.hpp"

#include <map>

#include "tests/hook/container_world.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

std::vector<std::string> session_command(const Session& session) {
  return {"unshare", "-m", "sh", "-c",
          // See Runtime::command().
          "umount /sys/fs/cgroup/unified 2>/dev/null; " + session.before + "; exec \"$@\"", "sh",
          HEDDLE_IN_WORLD, "--uid", std::to_string(session.uid), "--fuse", session.fuse, "--",
          // A login session does not inherit the directories of this test run.
          "env", "-u", "XDG_CACHE_HOME", "-u", "XDG_STATE_HOME", "-u", "XDG_CONFIG_HOME",
          "HOME=" + session.home, "XDG_RUNTIME_DIR=" + session.run_directory};
}

Runtime::Runtime(const std::string& name, const std::string& state_directory)
    : name_(name), state_(state_directory) {}

std::vector<std::string> Runtime::command(const std::vector<std::string>& arguments) const {
  std::vector<std::string> out;
  // crun 1.8 refuses to work where cgroup v1 and v2 are both mounted; without v2 it works.
  if (name_ == "crun")
    out = {"unshare", "-m", "sh", "-c", "umount /sys/fs/cgroup/unified 2>/dev/null; exec \"$@\"",
           "crun"};
  out.insert(out.end(), {name_, "--root", state_});
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

std::vector<std::string> Runtime::run_command(const std::string& bundle,
                                              const std::string& id) const {
  return command({"run", "--bundle", bundle, id});
}

RunResult Runtime::run(const std::string& bundle, const std::string& id,
                       const RunOptions& options) const {
  return test::run(run_command(bundle, id), options);
}

std::string why_not(const std::string& name) {
  static std::map<std::string, std::string> known;
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  std::string reason;
  if (staged_program("fs-hook").empty()) {
    reason = "fs-hook is not installed in $HEDDLE_STAGE";
  } else if (test::run({"sh", "-c", "command -v " + name}).status != 0) {
    reason = name + " is not installed";
  } else {
    const ContainerWorld world;
    auto config = world.config({"/bin/app"});
    config.erase("hooks");
    const auto ran =
        Runtime(name, world.path("state")).run(world.bundle("plain", config), "heddle-plain");
    if (ran.out != "container\n") reason = name + " cannot run a container here: " + ran.err;
  }
  return known[name] = reason;
}

}  // namespace heddle::test
