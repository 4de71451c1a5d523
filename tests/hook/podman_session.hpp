// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// podman of a user or of root, with all its files in one directory.
class PodmanSession {
 public:
  /// Makes `directory`, owned by `uid`, with mode 0700.
  PodmanSession(std::string directory, std::string runtime, unsigned uid);
  /// Kills the process that a user's podman leaves to keep its namespaces, which have copies of all
  /// mounts.
  ~PodmanSession();
  PodmanSession(const PodmanSession&) = delete;
  PodmanSession& operator=(const PodmanSession&) = delete;

  const std::string& runtime() const { return runtime_; }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  /// `podman` and its global options; the hooks' directory is "hooks.d".
  Strings words() const;
  /// words(), `run` and `options`.
  Strings run_words(const Strings& options) const;
  /// Runs `words` as the session's user, with $XDG_RUNTIME_DIR on /mnt. `before`: a script that
  /// root runs in the session's mount namespace.
  RunResult run(const Strings& words, const std::string& before = "true") const;

 private:
  std::string directory_;
  std::string runtime_;
  unsigned uid_;
};

/// A case in a ContainerWorld, with podman of root and the runtime that is the parameter, or with
/// podman of a user where the parameter begins with `user_`.
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
  /// podman cleans up in the background.
  void TearDown() override {
    if (!world_) return;
    EXPECT_TRUE(wait_until(20s, [&] { return world_->processes().empty(); }));
  }
  bool is_user() const { return GetParam().starts_with("user_"); }
  std::string runtime() const { return is_user() ? GetParam().substr(5) : GetParam(); }
  std::string log() const { return read_file(session_->path("hook.log")).value_or(""); }
  /// `--cache` and `--log` of the hook.
  Strings hook_options() const {
    return {"--cache", session_->path("cache"), "--log", session_->path("hook.log")};
  }
  void install(const Strings& options) const {
    const auto ran =
        session_->run(Strings{world_->hook(), "install", "--dir", session_->path("hooks.d")} +
                      hook_options() + options);
    ASSERT_EQ(ran.status, 0) << ran.err;
  }
  /// A script that puts the hook's CDI specification where podman 4.3 reads it: only in the
  /// system's directories.
  std::string cdi_setup() const {
    const auto file = world_->path("heddle.json");
    write_text_file(file, run(Strings{world_->hook(), "cdi"} + hook_options()).out);
    return "mount -t tmpfs tmpfs /run; mkdir /run/cdi; cp " + file + " /run/cdi/";
  }
  Strings image_words(const Strings& options, const Strings& command) const {
    return session_->run_words(options) + Strings{"--rootfs", world_->rootfs()} + command;
  }
  /// `podman run` of the world's image.
  RunResult run_image(const Strings& options, const Strings& command,
                      const std::string& before = "true") const {
    return session_->run(image_words(options, command), before);
  }

  std::unique_ptr<ContainerWorld> world_;
  std::unique_ptr<PodmanSession> session_;
};

}  // namespace heddle::test
