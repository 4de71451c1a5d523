// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

using Json = nlohmann::json;

/// A small image with a program that prints which `libmpi.so.12` it runs on ("container" or
/// "host"), a library of the host, and fs-hook installed beside a fake fs-resolve, which answers
/// what the test sets. There is no real MPI.
class ContainerWorld {
 public:
  static constexpr const char* kMountPoint = "/dev/heddle";
  static constexpr const char* kLibrary = "/usr/lib/libmpi.so.12";

  /// `below`: the name of a subdirectory for everything.
  explicit ContainerWorld(const std::string& below = "");

  std::string path(const std::string& name) const { return base_ + "/" + name; }
  std::string rootfs() const { return path("image"); }
  std::string hook() const { return path("stage/bin/fs-hook"); }
  std::string log() const { return path("hook.log"); }
  std::string log_text() const;

  /// Sets the decision that fs-resolve prints, and its exit status. Initially swap().
  void answer(const Json& decision, int status = 0);
  void answer_text(const std::string& out, int status, const std::string& err = "");
  /// Sets swap() with `value` at `place`, a JSON pointer.
  void answer_swap_with(const std::string& place, const Json& value);
  /// Sets the refusal of a program.
  void answer_incompatible(const std::string& reason = "the reason", const std::string& hint = "");
  /// Sets that there is nothing to swap.
  void answer_nothing() {
    answer({{"format", "heddle-container"},
            {"version", 1},
            {"outcome", "nothing"},
            {"reason", "/bin/app is static"}});
  }
  /// The decision that kLibrary is the host's.
  Json swap() const;
  /// How often fs-resolve has been called.
  std::size_t questions() const;
  /// Adds a host's file to later maps, with its name in the plugin directory ("ucx/libuct_x.so.0").
  void add_plugin(const std::string& name, const std::string& file) { plugins_[name] = file; }
  void forget_plugins() { plugins_.clear(); }

  /// Replaces the installed `program` by a shell script.
  void replace_program(const std::string& program, const std::string& script) const;
  /// Makes the installed `program` run the shell script first.
  void precede_program(const std::string& program, const std::string& script) const;

  /// config.json for `args`, annotated, with a hook in stage createRuntime.
  Json config(const std::vector<std::string>& args) const;
  Json hook_json(const std::string& stage = "createRuntime") const;
  /// config() with a hook in stage createContainer, to which the container's device cgroup applies.
  Json inside_config(const std::vector<std::string>& args) const;
  Json config_for(const std::string& stage, const std::vector<std::string>& args) const {
    return stage == "createRuntime" ? config(args) : inside_config(args);
  }
  /// Writes a bundle named `name` and returns its path.
  std::string bundle(const std::string& name, const Json& config) const;

  /// Processes of heddle's programs with this world's path in their arguments.
  std::vector<int> daemons() const;
  /// All processes with this world's path in their arguments.
  std::vector<int> processes() const;
  /// All processes in other mount namespaces that have mounts below `directory`.
  static std::vector<int> namespace_holders(const std::string& directory);
  /// The number of heddle's mounts in the mount namespaces that have this world's image.
  std::size_t mounts() const;
  /// The files of the image, each with its size, times and mode.
  std::string image_state() const;

 private:
  void make_image() const;
  void write_answers_map(const Json& decision) const;
  TestDir dir_;
  std::string base_;
  std::map<std::string, std::string> plugins_;
};

}  // namespace heddle::test
