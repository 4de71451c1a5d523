// SPDX-License-Identifier: MIT
#include "tests/hook/container_world.hpp"

#include <set>

#include "base/mounts.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {

namespace {

constexpr const char* kApp = R"(
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>
extern const char* MPI_Whose(void);
static void print(const char* path) {
  char buffer[65536];
  FILE* file = fopen(path, "r");
  size_t n;
  while (file && (n = fread(buffer, 1, sizeof buffer, file)) > 0) fwrite(buffer, 1, n, stdout);
  const ssize_t stats = getxattr(path, "user.heddle.stats", buffer, sizeof buffer);
  if (stats > 0) fwrite(buffer, 1, stats, stdout);
}
int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  printf("%s\n", MPI_Whose());
  if (!strcmp(what, "exit")) return atoi(argv[2]);
  for (int i = 1; i < argc; ++i)
    if (argv[i][0] == '/') print(argv[i]);
  fflush(stdout);
  if (!strcmp(what, "wait")) pause();
  return 0;
}
)";

/// Answers as the test sets, and logs each call.
constexpr const char* kFakeResolve = R"sh(#!/bin/sh
here=${0%/*}
echo "$*" >>"$here/questions"
while [ $# -gt 1 ]; do
  [ "$1" != -o ] || map=$2
  shift
done
[ ! -e "$here/answer.map" ] || cp "$here/answer.map" "$map" || exit 3
cat "$here/answer.err" >&2
cat "$here/answer.json"
exit "$(cat "$here/answer.status")"
)sh";

constexpr const char* kProgram = "/bin/app";
std::string library(const std::string& output, const std::string& whose) {
  return build_library({output,
                        "const char* MPI_Whose(void) { return \"" + whose + "\"; }",
                        {"-Wl,-soname,libmpi.so.12"}});
}

/// Compiled once per process.
struct Parts {
  TestDir dir;
  std::vector<std::string> system;  ///< libc and ld.so, as the program names them
  Parts() {
    build_program({.output = dir / "plain",
                   .source = "#include <stdio.h>\nint main(void) { return puts(\"plain\") < 0; }"});
    const auto mine = library(dir / "container/libmpi.so.12", "container");
    library(dir / "host/libmpi.so.12", "host");
    const auto app = build_program({dir / "app", kApp, {mine}});
    RunOptions options;
    options.env = {"LD_LIBRARY_PATH=" + (dir / "container")};
    std::istringstream words(run_checked({"ldd", app}, options).out);
    for (std::string word; words >> word;)
      if (word.starts_with("/") && word.find("/libmpi") == std::string::npos)
        system.push_back(word);
  }
};

const Parts& parts() {
  static const Parts kParts;
  return kParts;
}

void copy(const std::string& from, const std::string& to) {
  fs::create_directories(fs::path(to).parent_path());
  fs::copy_file(from, to, fs::copy_options::overwrite_existing);
}

/// The programs are tens of megabytes.
void link_or_copy(const std::string& from, const std::string& to) {
  std::error_code other_file_system;
  fs::create_hard_link(from, to, other_file_system);
  if (other_file_system) copy(from, to);
}

std::vector<std::string> all_processes() {
  std::vector<std::string> out;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos) out.push_back(name);
  }
  return out;
}

/// Counts binds from there to other places too.
bool has_mounts_below(const std::string& pid, const std::string& directory) {
  const auto mounts = list_mounts("/proc/" + pid);
  return mounts && std::any_of(mounts->begin(), mounts->end(), [&](const MountEntry& mount) {
           return (mount.root + " " + mount.point + " " + mount.options).find(directory) !=
                  std::string::npos;
         });
}

}  // namespace

ContainerWorld::ContainerWorld(const std::string& below) {
  base_ = below.empty() ? dir_.path() : dir_ / below;
  fs::create_directories(base_);
  for (auto directory = fs::path(base_); directory != fs::path(dir_.path()).parent_path();
       directory = directory.parent_path())
    ::chmod(directory.c_str(), 0755);
  fs::create_directories(path("stage/bin"));
  for (const char* name : {"fs-hook", "fs-mount"})
    link_or_copy(staged_program(name), path("stage/bin/") + name);
  write_text_file(path("stage/bin/fs-resolve"), kFakeResolve, 0755);
  copy(parts().dir / "host/libmpi.so.12", path("host/libmpi.so.12"));
  make_image();
  answer(swap());
}

void ContainerWorld::make_image() const {
  const auto root = rootfs();
  for (const char* directory : {"/proc", "/dev", "/sys", "/tmp", "/etc", "/usr/lib", "/data"})
    fs::create_directories(root + directory);
  copy(parts().dir / "container/libmpi.so.12", root + kLibrary);
  copy(parts().dir / "app", root + "/bin/app");
  copy(parts().dir / "plain", root + "/bin/plain");
  for (const auto& file : parts().system) copy(file, root + file);
  run_checked({"ldconfig", "-r", root});
}

Json ContainerWorld::swap() const {
  return {{"format", "heddle-container"},
          {"version", 1},
          {"outcome", "swap"},
          {"reason", ""},
          {"hint", ""},
          {"program", {"/bin/app"}},
          {"mount_point", kMountPoint},
          {"mpi", {{"family", "mpich"}, {"version", "4.0.2"}, {"soname", "libmpi.so.12"}}},
          {"binds",
           Json::array({{{"source", "libmpi.so.12"}, {"target", kLibrary}, {"why", "a test"}}})},
          {"directories", Json::array()},
          {"environment", Json::object()},
          {"verdict", Json::array({{{"soname", "libmpi.so.12"},
                                    {"taken", "host"},
                                    {"host", path("host/libmpi.so.12")},
                                    {"container", kLibrary},
                                    {"rule", "mpi-stack"},
                                    {"why", "the host's MPI"}}})},
          {"loads", Json::array({{{"soname", "libmpi.so.12"}, {"path", kLibrary}}})},
          {"warnings", Json::array()}};
}

void ContainerWorld::answer(const Json& decision, int status) {
  answer_text(decision.dump() + "\n", status);
  if (decision.value("outcome", "") == "swap")
    write_answers_map(decision);
  else
    fs::remove(path("stage/bin/answer.map"));
}

void ContainerWorld::answer_swap_with(const std::string& place, const Json& value) {
  auto decision = swap();
  decision[Json::json_pointer(place)] = value;
  answer(decision);
}

void ContainerWorld::answer_incompatible(const std::string& reason, const std::string& hint) {
  auto decision = swap();
  decision["outcome"] = "incompatible";
  decision["reason"] = reason;
  decision["hint"] = hint;
  answer(decision, 1);
}

void ContainerWorld::replace_program(const std::string& program, const std::string& script) const {
  const auto path = this->path("stage/bin/" + program);
  fs::remove(path);  // a hard link to the staged program
  write_text_file(path, "#!/bin/sh\n" + script, 0755);
}

void ContainerWorld::precede_program(const std::string& program, const std::string& script) const {
  const auto path = this->path("stage/bin/" + program);
  fs::rename(path, path + "-real");
  replace_program(program, script + "\nexec '" + path + "-real' \"$@\"\n");
}

void ContainerWorld::answer_text(const std::string& out, int status, const std::string& err) {
  write_text_file(path("stage/bin/answer.json"), out);
  write_text_file(path("stage/bin/answer.err"), err);
  write_text_file(path("stage/bin/answer.status"), std::to_string(status));
}

void ContainerWorld::write_answers_map(const Json& decision) const {
  auto files = plugins_;
  files["libmpi.so.12"] = path("host/libmpi.so.12");
  MapMaker maker;
  for (const auto& [name, file] : files) maker.add_name("container", name, file);
  auto content = maker.content();
  content.generated = {{".heddle/container.json", decision.dump() + "\n"}};
  value_or_throw(write_map(content, path("stage/bin/answer.map")));
}

std::size_t ContainerWorld::questions() const {
  const auto text = read_file(path("stage/bin/questions")).value_or("");
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::string ContainerWorld::log_text() const { return read_file(log()).value_or(""); }

Json ContainerWorld::hook_json(const std::string& stage) const {
  return oci_hook_entry(
      hook(), {"--stage", stage, "--cache", path("cache"), "--log", log(), "--node", path("node")});
}

Json ContainerWorld::config(const std::vector<std::string>& args) const {
  auto out = oci_config(rootfs(), args);
  out["hostname"] = "c1";
  out["linux"]["namespaces"].push_back({{"type", "uts"}});
  out["hooks"]["createRuntime"] = Json::array({hook_json()});
  return out;
}

Json ContainerWorld::inside_config(const std::vector<std::string>& args) const {
  auto out = config(args);
  out["hooks"] = {{"createContainer", {hook_json("createContainer")}}};
  allow_fuse_device(out);
  return out;
}

std::string ContainerWorld::bundle(const std::string& name, const Json& config) const {
  write_text_file(path(name + "/config.json"), config.dump(2));
  return path(name);
}

std::vector<int> ContainerWorld::processes() const {
  std::vector<int> out;
  for (const auto& pid : all_processes()) {
    const auto command = read_file("/proc/" + pid + "/cmdline").value_or("");
    if (command.find(base_) != std::string::npos && is_running(std::stoi(pid)))
      out.push_back(std::stoi(pid));
  }
  return out;
}

std::vector<int> ContainerWorld::daemons() const {
  auto out = processes();
  std::erase_if(out, [](int pid) {
    return !read_file("/proc/" + std::to_string(pid) + "/cmdline").value_or("").starts_with("fs-");
  });
  return out;
}

std::size_t ContainerWorld::mounts() const {
  std::set<std::string> seen;
  std::size_t count = 0;
  for (const auto& pid : all_processes()) {
    std::error_code gone;
    const auto space = fs::read_symlink("/proc/" + pid + "/ns/mnt", gone);
    if (gone || !seen.insert(space).second || !has_mounts_below(pid, base_)) continue;
    const auto mounts = list_mounts("/proc/" + pid);
    if (!mounts) continue;
    // A copied namespace also has the mounts of other tests.
    count += static_cast<std::size_t>(
        std::count_if(mounts->begin(), mounts->end(), [&](const MountEntry& mount) {
          return mount.type == "fuse.heddle" &&
                 (mount.point.find("/heddle-test-") == std::string::npos ||
                  mount.point.starts_with(base_));
        }));
  }
  return count;
}

std::vector<int> ContainerWorld::namespace_holders(const std::string& directory) {
  std::vector<int> out;
  std::error_code gone;
  const auto ours = fs::read_symlink("/proc/self/ns/mnt", gone);
  for (const auto& pid : all_processes()) {
    const auto space = fs::read_symlink("/proc/" + pid + "/ns/mnt", gone);
    if (!gone && space != ours && has_mounts_below(pid, directory)) out.push_back(std::stoi(pid));
  }
  return out;
}

std::string ContainerWorld::image_state() const {
  return run_checked({"find", rootfs(), "-printf", "%P %y %s %m %T@ %C@ %l\\n"}).out;
}

}  // namespace heddle::test
