// SPDX-License-Identifier: MIT
#include "tests/fsgen/user_world.hpp"

#include <nlohmann/json.hpp>

namespace heddle::test {

namespace {

/// Programs find each other by these paths.
constexpr const char* kInstalled[] = {"bin/fs-gen", "bin/fs-mount", "bin/fs-resolve",
                                      "libexec/heddle/elf-worker", "lib/heddle/libheddle-audit.so"};

/// Whether other users can reach it: every directory above is open to all.
bool is_reachable(fs::path path) {
  for (; path.has_relative_path(); path = path.parent_path()) {
    struct stat st {};
    if (::stat(path.c_str(), &st) != 0 || (st.st_mode & 0001) == 0) return false;
  }
  return true;
}

std::string stage_for_all(const std::string& fs_gen, const std::string& copy) {
  const auto stage = fs::path(fs_gen).parent_path().parent_path();
  if (is_reachable(stage)) return stage;
  for (const std::string file : kInstalled) {
    if (!fs::exists(stage / file)) continue;
    fs::create_directories(fs::path(copy + "/" + file).parent_path());
    fs::copy_file(stage / file, copy + "/" + file, fs::copy_options::overwrite_existing);
  }
  return copy;
}

}  // namespace

UserWorld::UserWorld() {
  const auto staged = staged_program("fs-gen");
  if (staged.empty()) throw Error("fs-gen", "is not installed in $HEDDLE_STAGE");
  ::chmod(dir_.path().c_str(), 0755);
  fs_gen_ = stage_for_all(staged, dir_ / "stage") + "/bin/fs-gen";
  for (const char* directory : {"tmp", "out", "home"}) {
    fs::create_directory(dir_ / directory);
    ::chmod((dir_ / directory).c_str(), 01777);
  }
}

RunResult UserWorld::sh(const World& world, const std::string& script) const {
  std::vector<std::string> argv{HEDDLE_IN_WORLD, "--uid",          std::to_string(world.uid),
                                "--fuse",        world.fuse,       "--mtab",
                                world.mtab,      "--mounts-below", dir_.path()};
  for (const auto& name : world.forbidden) argv.insert(argv.end(), {"--forbid", name});
  argv.insert(argv.end(),
              {"--", "env", "-u", "XDG_RUNTIME_DIR", "HOME=" + (dir_ / "home"),
               "XDG_CACHE_HOME=" + (dir_ / "home/.cache"), "TMPDIR=" + (dir_ / "tmp"),
               "HEDDLE_SLOW=/", "OUT=" + (dir_ / "out"), "FS_GEN=" + fs_gen_, "sh", "-c", script});
  return run(argv, {.deadline = std::chrono::minutes(5)});
}

std::string UserWorld::out(const std::string& name) const {
  return value_or_throw(read_file(dir_ / ("out/" + name)));
}

nlohmann::json UserWorld::report(const std::string& name) const {
  return nlohmann::json::parse(out(name));
}

std::vector<std::string> UserWorld::left() const {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(dir_ / "tmp")) found.push_back(entry.path());
  return found;
}

std::vector<int> UserWorld::processes() const {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto environment = read_file(entry.path().string() + "/environ").value_or("");
    if (environment.find("TMPDIR=" + (dir_ / "tmp")) == std::string::npos) continue;
    if (is_running(std::stoi(name))) found.push_back(std::stoi(name));
  }
  return found;
}

}  // namespace heddle::test
