// SPDX-License-Identifier: MIT
#include "container-hooks/verify/verify.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/log.hpp"
#include "base/mount_calls.hpp"
#include "base/mounts.hpp"
#include "base/open_regular.hpp"
#include "base/paths.hpp"
#include "base/run_main.hpp"
#include "base/try.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/swap/swap.hpp"
#include "container-hooks/verify/sandbox_container.hpp"

namespace heddle::hook {
namespace {

bool is_overlay(const MountEntry& mount) { return mount.type == "fuse.heddle"; }

/// "major:minor" in hexadecimal, as in /proc/PID/maps.
dev_t device_of(const std::string& text) {
  char* end = nullptr;
  const auto number = [&end](const char* digits) {
    return static_cast<unsigned>(std::strtoul(digits, &end, 16));
  };
  const auto high = number(text.c_str());
  return *end == ':' ? makedev(high, number(end + 1)) : 0;
}

bool is_library(const std::string& path) {
  const auto name = base_name(path);
  return name.find(".so") != std::string::npos && !name.ends_with(".cache");
}

/// A mapped file has its own name, "libucp.so.0.0.0", not that of the link.
bool goes_by(const MappedLibrary& library, const std::string& soname) {
  const auto name = base_name(library.path);
  return library.name == soname || name == soname || name.starts_with(soname + ".");
}

bool is_mpi(const std::string& soname) {
  return soname.starts_with("libmpi") || soname.starts_with("libmpich");
}

/// Devices of heddle's mounts.
std::set<dev_t> heddle_devices(const std::string& mountinfo) {
  std::set<dev_t> out;
  for (const auto& mount : parse_mountinfo(mountinfo))
    if (is_overlay(mount)) out.insert(mount.device);
  return out;
}

/// Prints the finding; `about` leads the JSON form. Exit status: 0 swapped, 1 not.
Result<int> print_finding(const Finding& finding, const std::vector<MappedLibrary>& libraries,
                          const Decision& decision, Json about, bool json) {
  if (json) {
    about["swapped"] = finding.swapped;
    about["mpi"] = to_json_text(host_mpi(decision));
    Json list = Json::array();
    for (const auto& library : libraries)
      list.push_back({{"path", to_json_text(library.path)},
                      {"from", library.from_host ? "host" : "container"}});
    about["libraries"] = std::move(list);
    Json lines = Json::array();
    for (const auto& line : finding.lines) lines.push_back(to_json_text(line));
    about["lines"] = std::move(lines);
    std::puts(to_text(about, 2).c_str());
  } else {
    for (const auto& line : finding.lines) std::puts(escape_for_terminal(line).c_str());
    std::puts(finding.swapped ? ("swapped: " + host_mpi(decision)).c_str() : "NOT swapped");
  }
  TRY(flush_stdout());
  return int{finding.swapped ? exit_done : exit_no};
}

Result<ContainerConfig> config_of(const ImageToVerify& image) {
  ContainerConfig config;
  if (image.bundle.empty())
    config.rootfs = TRY(real_root(image.rootfs));
  else
    config = TRY(read_config(image.bundle));
  if (!image.program.empty()) config.args = {image.program};
  return config;
}

/// The program in the request for the bundle's hook: by its command line, and by annotations where
/// they count.
Result<std::string> wanted_program(const ImageToVerify& image, const ContainerConfig& config) {
  if (!image.program.empty()) return image.program;
  SwapRequest request;
  request.host_mpi = true;
  const auto& args = config.hook_args;
  for (std::size_t i = 0; i + 1 < args.size(); ++i)
    if (args[i] == "--program") request.program = args[i + 1];
  if (std::find(args.begin(), args.end(), "--allow-annotations") != args.end())
    request = TRY(annotated(request, config.annotations));
  return request.program;
}

/// What the hook in the bundle's config.json has, where the command line leaves the default.
void take_hooks_own(HookSettings& settings, const std::vector<std::string>& args) {
  const HookSettings defaults;
  for (std::size_t i = 0; i + 1 < args.size(); ++i) {
    if (args[i] == "--mpi" && settings.mpi == defaults.mpi) settings.mpi = args[i + 1];
    if (args[i] == "--at" && settings.mount_point == defaults.mount_point)
      settings.mount_point = args[i + 1];
  }
}

constexpr int kDepth = 4;  // share/openmpi/...
constexpr std::size_t kMaxPlugins = 1000;

/// A container's untrusted files, as its first process sees them: no link leads out of its root.
class InsideFiles {
 public:
  /// `rootfs`: the container's root, which is not yet that of the process `pid`.
  static Result<InsideFiles> open(pid_t pid, const std::string& rootfs) {
    const auto process = "/proc/" + std::to_string(pid);
    InsideFiles out;
    out.root_ = TRY(open_file(process + "/root" + rootfs, O_PATH | O_DIRECTORY));
    const auto mounts = TRY(read_file(process + "/mountinfo"));
    out.devices_ = heddle_devices(mounts);
    return out;
  }

  bool is_from_host(const std::string& path) const {
    struct stat status {};
    return stat(path, status) && devices_.contains(status.st_dev);
  }

  /// The file that the kernel executes for `program`: that, or its #! interpreter.
  std::string started_by(std::string program) const {
    for (int depth = 0; depth < kMostScripts; ++depth) {
      const auto place = find_in_root(root_.get(), program, 0);
      if (!place) break;
      const auto file = open_regular_at(place->get(), program);
      char text[kFirstLine];
      const ssize_t n = file ? ::pread(file->get(), text, sizeof(text), 0) : -1;
      if (n <= 0) break;
      const auto next = script_interpreter({text, static_cast<std::size_t>(n)});
      if (!next.starts_with('/')) break;
      program = next;
    }
    return program;
  }

  /// Shared objects in directories below `directory`, each file once.
  std::vector<std::string> plugins(const std::string& directory) const {
    std::map<ino_t, std::string> found;
    walk(directory, 0, found);
    std::vector<std::string> out;
    for (auto& [ino, path] : found) out.push_back(std::move(path));
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  bool stat(const std::string& path, struct stat& status) const {
    const auto file = find_in_root(root_.get(), path, 0);
    return file && ::fstat(file->get(), &status) == 0;
  }

  std::vector<std::string> names_in(const std::string& directory) const {
    std::vector<std::string> out;
    const auto fd = find_in_root(root_.get(), directory, O_DIRECTORY);
    if (!fd) return out;
    const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(fd_path(fd->get()).c_str()),
                                                   &::closedir);
    while (const dirent* entry = list ? ::readdir(list.get()) : nullptr)
      if (entry->d_name[0] != '.') out.emplace_back(entry->d_name);
    return out;
  }

  /// Whether `name` is a view, which has the root's files a second time.
  bool is_view(const std::string& root, const std::string& name) const {
    for (const auto& file : names_in(root)) {
      struct stat here {};
      struct stat there {};
      if (stat(root + "/" + file, here) && S_ISREG(here.st_mode))
        return stat(root + "/" + name + "/" + file, there) && here.st_ino == there.st_ino;
    }
    return false;
  }

  void walk(const std::string& directory, int depth, std::map<ino_t, std::string>& found) const {
    if (depth > kDepth) return;
    for (const auto& name : names_in(directory)) {
      const auto path = directory + "/" + name;
      struct stat status {};
      if (!stat(path, status)) continue;
      if (S_ISDIR(status.st_mode)) {
        if (depth > 0 || !is_view(directory, name)) walk(path, depth + 1, found);
      } else if (depth > 0 && name.find(".so") != std::string::npos &&
                 path.find(':') == path.npos && path.find(' ') == path.npos &&
                 found.size() < kMaxPlugins) {
        found.emplace(status.st_ino, path);
      }
    }
  }

  Fd root_;
  std::set<dev_t> devices_;  ///< of heddle's mounts
};

/// A line for each of ld.so's messages.
void add_messages(const std::string& words, Finding& finding, const std::string& about) {
  std::istringstream lines(words);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) finding.lines.push_back(about + line);
}

class Verification {
 public:
  Verification(SandboxContainer& sandbox, const Decision& decision, const ContainerConfig& config,
               std::string program)
      : sandbox_(sandbox), decision_(decision), config_(config), program_(std::move(program)) {}

  Result<Finding> run() {
    const auto files = TRY(InsideFiles::open(sandbox_.pid(), config_.rootfs));
    program_ = files.started_by(program_);
    const Listed main = TRY(list({}));
    const auto plugins = files.plugins(decision_.mount_point);
    Listed with_plugins = main;
    if (!plugins.empty()) with_plugins = TRY(list(plugins));

    take(main.list, files);
    take(with_plugins.list, files);
    Finding finding = compare_with_decision(libraries, decision_);
    for (const auto& name : main.list.missing) finding.lines.push_back(name + ": not found");
    add_messages(main.words, finding, "ld.so: ");
    if (!main.list.missing.empty() || !main.words.empty()) finding.swapped = false;
    for (const auto& name : with_plugins.list.missing)
      if (std::find(main.list.missing.begin(), main.list.missing.end(), name) ==
          main.list.missing.end())
        finding.lines.push_back("a plugin will not load: " + name + ": not found");
    if (with_plugins.words != main.words) add_messages(with_plugins.words, finding, "plugins: ");
    return finding;
  }

  std::vector<MappedLibrary> libraries;

 private:
  struct Listed {
    LoaderList list;
    std::string words;
  };

  /// Preloaded, a plugin's dependencies are searched as after a dlopen() by the program: by its own
  /// RPATH or RUNPATH, then the program's RPATH (elf/dl-load.c).
  Result<Listed> list(const std::vector<std::string>& plugins) {
    auto environment = config_.environment;
    if (!plugins.empty()) {
      auto preload = variable_of(config_, "LD_PRELOAD");
      std::erase_if(environment, [](const auto& one) { return one.starts_with("LD_PRELOAD="); });
      for (const auto& plugin : plugins) preload += (preload.empty() ? "" : ":") + plugin;
      environment.push_back("LD_PRELOAD=" + preload);
    }
    // As ldd(1): --list ends at a missing library.
    std::erase_if(environment, [](const auto& one) { return one.starts_with("LD_BIND_NOW="); });
    environment.insert(environment.begin(), "LD_TRACE_LOADED_OBJECTS=1");
    auto output = TRY(sandbox_.run({decision_.interpreter, program_}, environment));
    return Listed{parse_loader_list(output.out), output.err};
  }

  void take(const LoaderList& list, const InsideFiles& files) {
    for (auto library : list.libraries) {
      if (!known_.insert(library.path).second) continue;
      library.from_host = files.is_from_host(library.path);
      libraries.push_back(std::move(library));
    }
  }

  SandboxContainer& sandbox_;
  const Decision& decision_;
  const ContainerConfig& config_;
  std::string program_;
  std::set<std::string> known_;  ///< paths of `libraries`
};

}  // namespace

std::vector<MappedLibrary> mapped_libraries(const std::string& maps, const std::string& mountinfo) {
  const auto devices = heddle_devices(mountinfo);
  std::vector<MappedLibrary> out;
  std::set<std::string> seen;
  std::istringstream lines(maps);
  for (std::string line; std::getline(lines, line);) {
    // address perms offset dev inode   path (proc(5))
    std::istringstream fields(line);
    std::string address, permissions, offset, device, inode, path;
    fields >> address >> permissions >> offset >> device >> inode >> std::ws;
    std::getline(fields, path);
    if (!path.starts_with('/') || !is_library(path) || !seen.insert(path).second) continue;
    out.push_back({path, devices.contains(device_of(device))});
  }
  return out;
}

std::string heddle_mount_point(const std::string& mountinfo) {
  for (const auto& mount : parse_mountinfo(mountinfo))
    if (is_overlay(mount) && mount.root == "/") return mount.point;
  return {};
}

Finding compare_with_decision(const std::vector<MappedLibrary>& libraries,
                              const Decision& decision) {
  Finding out;
  bool any_mpi = false;
  bool all_right = true;
  for (const auto& library : libraries) {
    const auto name = base_name(library.path);
    const auto choice = std::ranges::find_if(
        decision.choices, [&](const auto& entry) { return goes_by(library, entry.soname); });
    std::string line = (library.from_host ? "host       " : "container  ") + library.path;
    if (choice != decision.choices.end() && choice->taken == Side::host && !library.from_host) {
      all_right = false;
      line += "  NOT swapped: the decision takes the host's (" + choice->why + ")";
    }
    if (is_mpi(name)) {
      any_mpi = true;
      if (!library.from_host && choice == decision.choices.end()) {
        all_right = false;
        line += "  NOT swapped: the map does not have this name";
      }
    }
    out.lines.push_back(std::move(line));
  }
  if (!any_mpi)
    out.lines.emplace_back("no MPI library is among them; --program names one that loads it");
  out.swapped = any_mpi && all_right;
  return out;
}

Result<int> verify_process(pid_t pid, bool json) {
  const std::string proc = "/proc/" + std::to_string(pid);
  const auto maps = read_file(proc + "/maps");
  if (!maps && maps.error().code() == ENOENT)
    return fail(std::to_string(pid), "there is no such process");
  if (!maps) return fail(maps.error());
  const auto mountinfo = TRY(read_file(proc + "/mountinfo"));
  const auto libraries = mapped_libraries(*maps, mountinfo);
  const auto mount_point = heddle_mount_point(mountinfo);
  Decision decision;
  if (!mount_point.empty()) {
    const auto name = proc + "/root" + mount_point + "/.heddle/container.json";
    const Fd root = TRY(open_file(proc + "/root", O_PATH | O_DIRECTORY));
    const auto file = open_regular_in(root.get(), mount_point + "/.heddle/container.json");
    if (!file && file.error().code() == ENOTCONN)
      return fail_errno(mount_point, "its fs-mount has died", ENOTCONN,
                        "start the container again");
    if (!file) return fail(file.error());
    const auto text = TRY(read_all(file->get(), name, 16U << 20));
    decision = TRY(parse_decision(text, name));
  }
  auto finding = compare_with_decision(libraries, decision);
  if (mount_point.empty()) {
    finding.swapped = false;
    finding.lines.emplace_back("heddle has no mount in its mount namespace");
  }
  return print_finding(finding, libraries, decision,
                       {{"version", 1}, {"pid", pid}, {"mount_point", mount_point}}, json);
}

LoaderList parse_loader_list(const std::string& text) {
  LoaderList out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto begin = line.find_first_not_of(" \t");
    if (begin == line.npos) continue;
    line.erase(0, begin);
    const auto arrow = line.find(" => ");
    const auto name = line.substr(0, std::min(arrow, line.rfind(" (0x")));
    auto path = arrow == line.npos ? name : line.substr(arrow + 4);
    if (path == "not found") {
      out.missing.push_back(name);
      continue;
    }
    if (const auto address = path.rfind(" (0x"); address != path.npos) path.resize(address);
    if (path.starts_with('/')) out.libraries.push_back({path, false, name});
  }
  return out;
}

Result<int> verify_image(ImageToVerify image, bool json) {
  // FUSE admits only processes of the mount's user namespace.
  if (::geteuid() != 0) TRY(become_root_of_own_namespace());
  TRY(trusted_hook());
  const auto config = TRY(config_of(image));
  const auto wanted = TRY(wanted_program(image, config));
  take_hooks_own(image.hook, config.hook_args);
  image.hook.node.clear();
  image.hook.log.clear();
  std::optional<Child> server;  // ends after the sandbox, with its mount
  auto sandbox = TRY(SandboxContainer::start(config.rootfs, config.volumes, image.limit));
  auto swapped =
      TRY(swap_container({image.hook, sandbox.pid(), config, wanted}, [](const std::string&) {}));
  server.swap(swapped.server);
  const auto& decision = swapped.decision;
  const bool is_swap = decision.outcome == Outcome::swap;
  auto program = image.program;
  if (is_swap && !decision.programs.empty())
    program = decision.programs.front();
  else if (program.empty() && !config.args.empty())
    program = config.args[0];
  Json about{{"version", 1},
             {"rootfs", to_json_text(config.rootfs)},
             {"program", to_json_text(program)},
             {"mount_point", is_swap ? to_json_text(decision.mount_point) : ""}};
  if (!is_swap) {
    Finding finding;
    finding.lines.push_back(
        (decision.outcome == Outcome::nothing ? "nothing to swap: " : "must not start: ") +
        decision.reason);
    return print_finding(finding, {}, decision, std::move(about), json);
  }
  Verification verification(sandbox, decision, config, program);
  const auto finding = TRY(verification.run());
  return print_finding(finding, verification.libraries, decision, std::move(about), json);
}

}  // namespace heddle::hook
