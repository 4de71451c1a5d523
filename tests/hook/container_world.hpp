// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// A small image with a program that says which `libmpi.so.12` it runs on ("container" or "host"),
/// a host's library, a map of it, and fs-hook installed beside an fs-resolve that answers what the
/// test wants: the hook's own part, without a real MPI.
class ContainerWorld {
 public:
  static constexpr const char* kMountPoint = "/dev/heddle";
  static constexpr const char* kLibrary = "/usr/lib/libmpi.so.12";

  /// `below`: a directory of our own private one, of an odd name perhaps.
  explicit ContainerWorld(const std::string& below = "");

  std::string path(const std::string& name) const { return base_ + "/" + name; }
  std::string rootfs() const { return path("image"); }
  std::string hook() const { return path("stage/bin/fs-hook"); }
  std::string log() const { return path("hook.log"); }
  std::string log_text() const;

  /// What fs-resolve prints and ends with from now on; a swap of kLibrary at first.
  void answer(const nlohmann::json& decision, int status = 0);
  void answer_text(const std::string& out, int status, const std::string& err = "");
  nlohmann::json swap() const;
  /// How often fs-resolve was asked.
  std::size_t questions() const;
  /// The maps from now on have a file of the host's in a plugin directory ("ucx/libuct_x.so.0").
  void add_plugin(const std::string& name, const std::string& file) { plugins_[name] = file; }
  void forget_plugins() { plugins_.clear(); }
  /// Writes the map that fs-resolve hands out.
  void write_answers_map(const nlohmann::json& decision) const;

  /// config.json for `args`, the hook in it and annotated.
  nlohmann::json config(const std::vector<std::string>& args) const;
  nlohmann::json hook_json(const std::string& stage = "createRuntime") const;
  /// The same with a hook that runs inside, to which the container's device cgroup applies.
  nlohmann::json inside_config(const std::vector<std::string>& args) const;
  /// A bundle of that name.
  std::string bundle(const std::string& name, const nlohmann::json& config) const;

  /// Processes of ours: heddle's programs with our directory's name in their arguments.
  std::vector<int> daemons() const;
  /// All processes with our directory's name in their arguments.
  std::vector<int> processes() const;
  /// All processes in mount namespaces that have mounts below `directory`, and are not this one's.
  static std::vector<int> namespace_holders(const std::string& directory);
  /// Mounts of ours in the mount namespaces that have this world's image.
  std::size_t mounts() const;
  /// Files of the image, each with its size, times and mode.
  std::string image_state() const;

 private:
  void make_image() const;
  TestDir dir_;
  std::string base_;
  std::map<std::string, std::string> plugins_;
};

}  // namespace heddle::test
