// SPDX-License-Identifier: MIT
#include "container-hooks/verify/verify_image.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/open_regular.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "container-hooks/host/mount_calls.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/swap/inside_container.hpp"
#include "container-hooks/swap/overlay_server.hpp"
#include "container-hooks/verify/sandbox_container.hpp"

namespace heddle::hook {
namespace {

Result<ContainerConfig> config_of(const ImageToVerify& image) {
  ContainerConfig config;
  if (image.bundle.empty()) {
    config.rootfs = image.rootfs;
  } else {
    auto read = TRY(read_config(image.bundle));
    config = std::move(read);
  }
  char real[PATH_MAX];
  if (::realpath(config.rootfs.c_str(), real) == nullptr)
    return fail_errno(config.rootfs, "cannot use as the container's root");
  config.rootfs = real;
  if (!image.program.empty()) config.args = {image.program};
  return config;
}

/// What the hook in the bundle would do; the command line says the rest.
Result<SwapRequest> request_of(const ImageToVerify& image, const ContainerConfig& config) {
  SwapRequest request = image.hook.request;
  request.host_mpi = true;
  const auto& args = config.hook_args;
  for (auto arg = args.begin(); arg != args.end() && arg + 1 != args.end(); ++arg) {
    if (*arg == "--program") request.program = arg[1];
  }
  if (std::find(args.begin(), args.end(), "--allow-annotations") != args.end()) {
    auto asked = TRY(annotated(request, config.annotations));
    request = std::move(asked);
  }
  if (!image.program.empty()) request.program = image.program;
  return request;
}

constexpr int kDepth = 4;  // share/openmpi/...
constexpr std::size_t kMaxPlugins = 1000;

/// A container's files, as its first process sees them. Nothing of them is believed: no link leads
/// out of its root.
class InsideFiles {
 public:
  /// `rootfs`: its root, which is not that of the process `pid` yet.
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

  /// The program that the kernel starts for `program`: that, or the interpreter behind its #!.
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
    const std::unique_ptr<DIR, int (*)(DIR*)> list(
        ::opendir(("/proc/self/fd/" + std::to_string(fd->get())).c_str()), &::closedir);
    while (const dirent* entry = list ? ::readdir(list.get()) : nullptr)
      if (entry->d_name[0] != '.') out.emplace_back(entry->d_name);
    return out;
  }

  /// A view has all of the root's files a second time; of a plugin directory some may be there too.
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
  std::set<dev_t> devices_;  ///< of our mounts
};

/// The image in its sandbox, with everything mounted as the hook does it.
class PlacedImage {
 public:
  static Result<PlacedImage> make(const ImageToVerify& image, const ContainerConfig& config) {
    auto sandbox = TRY(SandboxContainer::start(config.rootfs, config.volumes, image.limit));
    PlacedImage out(std::move(sandbox));
    const auto request = TRY(request_of(image, config));
    InsideOrder order{Stage::create_runtime,  out.sandbox_.pid(), config,
                      request.program,        image.hook.cache,   image.hook.limits,
                      image.hook.mount_point, image.hook.mpi};
    for (;;) {
      auto inside = TRY(InsideContainer::start(order));
      auto decided = TRY(inside.decide());
      out.decision_ = std::move(decided.decision);
      if (out.decision_.outcome != Outcome::swap) return out;
      const auto placed = out.place(inside, decided.map);
      if (placed) return out;
      // The host's files have changed since this image was decided on.
      if (placed.error().cause() != Cause::unfit || !decided.from_cache)
        return fail(placed.error());
      order.stale_map = out.decision_.map_id;
    }
  }

  const Decision& decision() const { return decision_; }
  SandboxContainer& sandbox() { return sandbox_; }

 private:
  explicit PlacedImage(SandboxContainer sandbox) : sandbox_(std::move(sandbox)) {}

  Result<void> place(InsideContainer& inside, const std::string& map) {
    Fd device = TRY(inside.mount());
    auto server = OverlayServer::start(device, {map, decision_.mount_point, false, {}});
    device.reset();
    if (!server) {
      inside.give_up();
      return fail(std::move(server.error()));
    }
    server_.emplace(std::move(*server));
    return inside.bind();
  }

  // The mount goes before its server.
  std::optional<OverlayServer> server_;
  SandboxContainer sandbox_;
  Decision decision_;
};

std::string program_of(const ContainerConfig& config, const ImageToVerify& image,
                       const Decision& decision) {
  if (!decision.programs.empty()) return decision.programs.front();
  return image.program.empty() && !config.args.empty() ? config.args[0] : image.program;
}

/// A line for each of ld.so's messages.
void add_messages(const std::string& words, Finding& finding, const std::string& about) {
  std::istringstream lines(words);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) finding.lines.push_back(about + line);
}

class Verification {
 public:
  Verification(PlacedImage& image, const ContainerConfig& config, std::string program)
      : image_(image), config_(config), program_(std::move(program)) {}

  Result<Finding> run() {
    const auto files = TRY(InsideFiles::open(image_.sandbox().pid(), config_.rootfs));
    program_ = files.started_by(program_);
    const Listed main = TRY(list({}));
    const auto plugins = files.plugins(image_.decision().mount_point);
    Listed with_plugins = main;
    if (!plugins.empty()) with_plugins = TRY(list(plugins));

    take(main.list, files);
    take(with_plugins.list, files);
    Finding finding = compare_with_decision(libraries, image_.decision());
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

  /// Preloaded, a plugin's dependencies are looked for as those of a dlopen() in the program would
  /// be: by its own RPATH or RUNPATH, then the program's RPATH (elf/dl-load.c).
  Result<Listed> list(const std::vector<std::string>& plugins) {
    auto environment = config_.environment;
    if (!plugins.empty()) {
      std::string preload;
      for (const auto& entry : environment)
        if (entry.starts_with("LD_PRELOAD=")) preload = entry.substr(11);
      std::erase_if(environment, [](const auto& one) { return one.starts_with("LD_PRELOAD="); });
      for (const auto& plugin : plugins) preload += (preload.empty() ? "" : ":") + plugin;
      environment.push_back("LD_PRELOAD=" + preload);
    }
    // As ldd(1): under --list a library that is missing would end it.
    std::erase_if(environment, [](const auto& one) { return one.starts_with("LD_BIND_NOW="); });
    environment.insert(environment.begin(), "LD_TRACE_LOADED_OBJECTS=1");
    auto output = TRY(image_.sandbox().run({image_.decision().interpreter, program_}, environment));
    return Listed{parse_loader_list(output.out), output.err};
  }

  void take(const LoaderList& list, const InsideFiles& files) {
    for (auto library : list.libraries) {
      if (!known_.insert(library.path).second) continue;
      library.from_host = files.is_from_host(library.path);
      libraries.push_back(std::move(library));
    }
  }

  PlacedImage& image_;
  const ContainerConfig& config_;
  std::string program_;
  std::set<std::string> known_;  ///< paths of `libraries`
};

}  // namespace

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

Result<int> verify_image(const ImageToVerify& image, bool json) {
  // FUSE lets only processes of the mount's user namespace in.
  if (::geteuid() != 0) TRY(become_root_of_own_namespace());
  TRY(trusted_hook());
  const auto config = TRY(config_of(image));
  auto placed = TRY(PlacedImage::make(image, config));
  const auto& decision = placed.decision();
  const auto program = program_of(config, image, decision);
  Json about{{"version", 1},
             {"rootfs", to_json_text(config.rootfs)},
             {"program", to_json_text(program)},
             {"mount_point", to_json_text(decision.mount_point)}};
  if (decision.outcome != Outcome::swap) {
    Finding finding;
    finding.lines.push_back(
        (decision.outcome == Outcome::nothing ? "nothing to swap: " : "must not start: ") +
        decision.reason);
    return print_finding(finding, {}, decision, std::move(about), json);
  }
  Verification verification(placed, config, program);
  const auto finding = TRY(verification.run());
  return print_finding(finding, verification.libraries, decision, std::move(about), json);
}

}  // namespace heddle::hook
