// SPDX-License-Identifier: MIT
#include "container-hooks/verify_image.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "container-hooks/inside_container.hpp"
#include "container-hooks/inside_files.hpp"
#include "container-hooks/overlay_server.hpp"
#include "container-hooks/sandbox_container.hpp"
#include "container-hooks/swap_request.hpp"
#include "container-hooks/trusted_files.hpp"

namespace heddle {
namespace {

Result<ContainerConfig> config_of(const ImageToVerify& image) {
  ContainerConfig config;
  if (image.bundle.empty()) {
    config.rootfs = image.rootfs;
  } else {
    auto read = read_config(image.bundle);
    if (!read) return read;
    config = std::move(*read);
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
    auto asked = annotated(request, config.annotations);
    if (!asked) return asked;
    request = std::move(*asked);
  }
  if (!image.program.empty()) request.program = image.program;
  return request;
}

/// The image in its sandbox, with everything mounted as the hook does it.
class PlacedImage {
 public:
  static Result<PlacedImage> make(const ImageToVerify& image, const ContainerConfig& config) {
    auto sandbox = SandboxContainer::start(config.rootfs, config.volumes, image.limit);
    if (!sandbox) return fail(std::move(sandbox.error()));
    PlacedImage out(std::move(*sandbox));
    const auto request = request_of(image, config);
    if (!request) return fail(request.error());
    InsideOrder order{Stage::create_runtime,  out.sandbox_.pid(), config,
                      request->program,       image.hook.cache,   image.hook.limits,
                      image.hook.mount_point, image.hook.mpi};
    for (;;) {
      auto inside = InsideContainer::start(order);
      if (!inside) return fail(std::move(inside.error()));
      auto decided = inside->decide();
      if (!decided) return fail(std::move(decided.error()));
      out.decision_ = std::move(decided->decision);
      if (out.decision_.outcome != Outcome::swap) return out;
      const auto placed = out.place(*inside, decided->map);
      if (placed) return out;
      // The host's files are others than when this image was decided on.
      if (placed.error().code() != ESTALE || !decided->from_cache) return fail(placed.error());
      order.stale_map = decided->map_id;
    }
  }

  const Decision& decision() const { return decision_; }
  SandboxContainer& sandbox() { return sandbox_; }

 private:
  explicit PlacedImage(SandboxContainer sandbox) : sandbox_(std::move(sandbox)) {}

  Result<void> place(InsideContainer& inside, const std::string& map) {
    auto device = inside.mount();
    if (!device) return fail(std::move(device.error()));
    auto server = OverlayServer::start(*device, {map, decision_.mount_point, false, {}});
    device->reset();
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

/// One line for each of ld.so's own.
void add_words(const std::string& words, Finding& finding, const std::string& about) {
  std::istringstream lines(words);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) finding.lines.push_back(about + line);
}

class Verification {
 public:
  Verification(PlacedImage& image, const ContainerConfig& config, std::string program)
      : image_(image), config_(config), program_(std::move(program)) {}

  Result<Finding> run() {
    auto files = InsideFiles::open(image_.sandbox().pid(), config_.rootfs);
    if (!files) return fail(std::move(files.error()));
    program_ = files->started_by(program_);
    auto main = list({});
    if (!main) return fail(std::move(main.error()));
    const auto plugins = files->plugins(image_.decision().mount_point);
    auto with_plugins = plugins.empty() ? main : list(plugins);
    if (!with_plugins) return fail(std::move(with_plugins.error()));

    take(main->list, *files);
    take(with_plugins->list, *files);
    Finding finding = compare_with_decision(libraries, image_.decision());
    for (const auto& name : main->list.missing) finding.lines.push_back(name + ": not found");
    add_words(main->words, finding, "ld.so: ");
    if (!main->list.missing.empty() || !main->words.empty()) finding.swapped = false;
    for (const auto& name : with_plugins->list.missing)
      if (std::find(main->list.missing.begin(), main->list.missing.end(), name) ==
          main->list.missing.end())
        finding.lines.push_back("a plugin will not load: " + name + ": not found");
    if (with_plugins->words != main->words) add_words(with_plugins->words, finding, "plugins: ");
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
    auto output = image_.sandbox().run({image_.decision().interpreter, program_}, environment);
    if (!output) return fail(std::move(output.error()));
    return Listed{parse_loader_list(output->out), output->err};
  }

  std::set<std::string> paths() const {
    std::set<std::string> out;
    for (const auto& library : libraries) out.insert(library.path);
    return out;
  }

  void take(const LoaderList& list, const InsideFiles& files) {
    auto known = paths();
    for (auto library : list.libraries) {
      if (!known.insert(library.path).second) continue;
      library.from_host = files.is_from_host(library.path);
      libraries.push_back(std::move(library));
    }
  }

  PlacedImage& image_;
  const ContainerConfig& config_;
  std::string program_;
};

Result<int> verify(const ImageToVerify& image, bool json) {
  // FUSE lets only processes of the mount's user namespace in.
  if (::geteuid() != 0)
    if (auto done = become_root_of_own_namespace(); !done) return fail(std::move(done.error()));
  if (auto good = check_trusted_programs(); !good) return fail(std::move(good.error()));
  const auto config = config_of(image);
  if (!config) return fail(config.error());
  auto placed = PlacedImage::make(image, *config);
  if (!placed) return fail(std::move(placed.error()));
  const auto& decision = placed->decision();
  const auto program = program_of(*config, image, decision);
  Json about{{"version", 1},
             {"rootfs", to_json_text(config->rootfs)},
             {"program", to_json_text(program)},
             {"mount_point", to_json_text(decision.mount_point)}};
  if (decision.outcome != Outcome::swap) {
    Finding finding;
    finding.lines.push_back(
        (decision.outcome == Outcome::nothing ? "nothing to swap: " : "must not start: ") +
        decision.reason);
    return print_finding(finding, {}, decision, std::move(about), json);
  }
  Verification verification(*placed, *config, program);
  const auto finding = verification.run();
  if (!finding) return fail(finding.error());
  return print_finding(*finding, verification.libraries, decision, std::move(about), json);
}

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

int verify_image(const ImageToVerify& image, bool json) {
  const auto status = verify(image, json);
  if (status) return *status;
  report(status.error());
  return exit_failure;
}

}  // namespace heddle
