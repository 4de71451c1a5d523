// SPDX-License-Identifier: MIT
//
// fs-hook. oci/: files of runtimes, and the hook's settings. swap/: one container's start
// (oci_hook.cpp); a process in the container's namespaces (swap.cpp) makes a decision, or reads a
// cached one (cache/), and mounts. verify/: what a program loads, in a running container or in a
// sandbox. node/: a container without a runtime. host/: system calls and programs that all of them
// use.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/paths.hpp"
#include "base/run_main.hpp"
#include "base/try.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/node/node_container.hpp"
#include "container-hooks/oci/hook_settings.hpp"
#include "container-hooks/verify/verify.hpp"

namespace heddle::hook {
namespace {

/// Absolute: a runtime starts the hook in another working directory.
std::string from_here(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).string();
}

/// Bundles' paths are compared with it: no symbolic links, no trailing slash.
std::string real_directory(const std::string& path) {
  const auto real = std::filesystem::weakly_canonical(std::filesystem::absolute(path)).string();
  return real.size() > 1 && real.ends_with('/') ? real.substr(0, real.size() - 1) : real;
}

/// The error for an invalid path in the container; empty: it is valid.
std::string bad_container_path(const std::string& path) {
  return path.starts_with('/') ? "" : "'" + path + "' is not an absolute path";
}

/// The error for a mount point that no container can have; empty: it is valid.
std::string bad_mount_point(const std::string& path) {
  if (auto bad = bad_container_path(path); !bad.empty()) return bad;
  auto plain = path;
  while (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  if (plain == "/" || std::filesystem::path(plain).lexically_normal().native() != plain)
    return "'" + path + "' is not a path below / without '.', '..' and '//'";
  if (plain == "/dev" || is_at_or_below(plain, "/proc") || is_at_or_below(plain, "/sys"))
    return "'" + path + "' is the runtime's";
  return {};
}

class CommandLine {
 public:
  /// `command`: the first argument. `words`, `umask`: of run's command, which is behind "--".
  CommandLine(std::string_view command, std::vector<std::string> words, mode_t umask);
  CLI::App& app() { return app_; }
  Result<int> run() { return action_(); }

 private:
  CLI::App* add(const std::string& name, const std::string& text,
                std::function<Result<int>()> action) {
    CLI::App* sub = app_.add_subcommand(name, text);
    sub->callback([this, action = std::move(action)] { action_ = action; });
    return sub;
  }
  CLI::App* add_install(const std::string& name, const std::string& text,
                        Result<void> (*install)(const InstallSettings&)) {
    return add(name, text, [this, install]() -> Result<int> {
      TRY(install(settings_));
      return int{exit_done};
    });
  }
  /// What concerns one start.
  void add_start_options(CLI::App* sub) {
    auto& s = settings_.hook;
    sub->add_option("--program", s.request.program,
                    "The MPI program, if it is not the container's first word")
        ->check(bad_container_path)
        ->option_text("PATH");
    add_choice(*sub, "--policy", s.request.on_failure,
               {{"enforce", OnFailure::enforce}, {"warn", OnFailure::warn}},
               "On failure: do not start the container (enforce), or warn and start it");
    sub->add_option_function<std::uint64_t>(
           "--cache-limit", [&s](std::uint64_t mebibytes) { s.limits.bytes = mebibytes << 20; },
           "Size in MiB above which the least recently used decisions are removed (256)")
        ->check(number_from(0, 1 << 20))
        ->option_text("MIB");
    sub->add_option("--node", s.node,
                    "Directory of the node's shared mounts, where fs-mount --node runs")
        ->transform(from_here)
        ->option_text("DIR");
    sub->add_option_function<unsigned>(
           "--timeout", [&s](unsigned seconds) { s.limit = std::chrono::seconds(seconds); },
           "Seconds until an unfinished start fails; 0: never (120)")
        ->check(number_from(0, 86400))
        ->option_text("SECONDS");
    add_decision_options(sub);
  }
  void add_hook_options(CLI::App* sub) {
    add_start_options(sub);
    sub->add_option("--log", settings_.hook.log, "File that gets each line of the hook")
        ->transform(from_here)
        ->option_text("FILE");
    add_choice(
        *sub, "--stage", settings_.hook.stage,
        {{"createRuntime", Stage::create_runtime}, {"createContainer", Stage::create_container}},
        "When the runtime calls the hook")
        ->each([this](const std::string&) { settings_.stage_given = true; });
  }
  /// Options that request the swap.
  void add_request_options(CLI::App* sub) {
    auto& s = settings_.hook;
    sub->add_flag("--always", s.request.host_mpi, "Swap in every container that has this hook");
    sub->add_option("--allow-annotations", s.allow_annotations,
                    "Honour annotations in bundles below DIR, whose images are trusted; /: in all")
        ->transform(real_directory)
        ->allow_extra_args(false)
        ->option_text("DIR");
  }
  void add_decision_options(CLI::App* sub) {
    auto& s = settings_.hook;
    sub->add_option("--cache", s.cache, "Directory of the decisions for each image")
        ->transform(from_here)
        ->option_text("DIR");
    sub->add_option("--at", s.mount_point, "The mount point in containers")
        ->check(bad_mount_point)
        ->option_text("PATH");
    sub->add_option("--mpi", s.mpi, "The host's MPI: auto, its prefix, or its library")
        ->transform([](const std::string& mpi) {
          return mpi == "auto" || mpi == "none" ? mpi : from_here(mpi);
        })
        ->option_text("MPI");
  }
  void add_run();
  Result<int> verify();

  CLI::App app_{"Runs a container's MPI program on the host's MPI: an OCI hook, and its set-up.",
                "fs-hook"};
  std::function<Result<int>()> action_;
  InstallSettings settings_;
  ImageToVerify image_;
  NodeContainer container_;
  pid_t pid_ = 0;
  bool json_ = false;
};

Result<int> CommandLine::verify() {
  const int ways = (pid_ > 0) + !image_.bundle.empty() + !image_.rootfs.empty();
  if (ways != 1 || (!image_.rootfs.empty() && image_.program.empty())) {
    say("verify: give a PID, --bundle DIR, or --rootfs DIR with --program PATH");
    return int{exit_usage};
  }
  if (pid_ > 0) return verify_process(pid_, json_);
  image_.hook = settings_.hook;
  return verify_image(image_, json_);
}

void CommandLine::add_run() {
  auto& c = container_;
  auto* sub = add("run", "Run a command in a container of namespaces, one a node", [this] {
    container_.hook = settings_.hook;
    const bool is_hidden =
        !container_.engine.empty() && is_at_or_below(settings_.hook.mount_point, "/dev");
    if (!container_.command.empty() && !is_hidden)
      return run_in_node_container(std::move(container_));
    say(is_hidden ? "run: --engine mounts a /dev of its own: give --at a directory of the image"
                  : "run: give a command behind --");
    return Result<int>(int{exit_usage});
  });
  sub->add_option("--rootfs", c.rootfs, "The image: an unpacked root file system")
      ->required()
      ->option_text("DIR");
  sub->add_option_function<std::vector<std::string>>(
         "--volume",
         [&c](const std::vector<std::string>& volumes) {
           for (const auto& volume : volumes) {
             const auto colon = volume.find(':');
             c.volumes.push_back({volume.substr(0, colon), volume.substr(colon + 1)});
           }
         },
         "A file or directory of the host, and its place in the container (repeatable)")
      ->allow_extra_args(false)
      ->check([](const std::string& volume) {
        const auto bad = bad_container_path(volume);
        return bad.empty() ? bad_container_path(volume.substr(volume.find(':') + 1)) : bad;
      })
      ->option_text("HOST[:PLACE]");
  sub->add_option("--env", c.variables, "A variable that the command gets (repeatable)")
      ->allow_extra_args(false)
      ->option_text("NAME");
  sub->add_option("--chdir", c.cwd, "The command's working directory (default: this one)")
      ->check(bad_container_path)
      ->option_text("DIR");
  sub->add_option("--engine", c.engine,
                  "A word of an engine that makes the container of the directory (repeatable)")
      ->allow_extra_args(false)
      ->option_text("WORD");
  add_start_options(sub);
}

CommandLine::CommandLine(std::string_view command, std::vector<std::string> words, mode_t umask) {
  container_.command = std::move(words);
  container_.umask = umask;
  app_.set_version_flag("--version", "fs-hook (heddle) " HEDDLE_VERSION);
  set_usage(app_, "");
  app_.require_subcommand(1);
  settings_.hook.cache = default_cache();
  if (command != "run") settings_.hook.log = default_log();

  CLI::App* sub = add("oci", "The hook itself: a container's state on stdin",
                      [this] { return oci_hook(settings_.hook); });
  add_hook_options(sub);
  add_request_options(sub);
  sub->add_option("--hook-file", settings_.hook.hook_file,
                  "The file from which the runtime starts the hook, checked at each start")
      ->option_text("FILE");
  if (command == "oci") return;  // a container waits: the other commands' options take 0.2 ms
  add_run();

  sub = add_install("install",
                    "Install the hook for podman (as a CDI device), or print it for runc, crun",
                    install_hook);
  sub->add_option("--runtime", settings_.runtime, "The runtime that calls the hook")
      ->check([](const std::string& name) -> std::string {
        if (name == "podman" || name == "runc" || name == "crun") return {};
        return "'" + name + "' is not one of podman|runc|crun";
      })
      ->option_text("podman|runc|crun");
  sub->add_option("--dir", settings_.directory, "podman's directory of hooks (podman --hooks-dir)")
      ->check([](const std::string& name) { return name.empty() ? "is empty" : std::string(); })
      ->option_text("DIR");
  add_request_options(sub);
  add_hook_options(sub);

  sub = add_install("cdi", "Print a CDI specification: podman run --device heddle/mpi=host",
                    print_cdi);
  add_hook_options(sub);

  sub = add_install("bundle", "Add the hook to a bundle's config.json", edit_bundle);
  sub->add_option("DIR", settings_.directory, "The bundle")->required()->type_name("");
  add_hook_options(sub);

  sub = add("verify", "Print what a container's program really loads: swapped, or not and why",
            [this] { return verify(); });
  sub->add_option("PID", pid_, "A running process, as the host numbers it")
      ->check(number_from(1))
      ->type_name("");
  sub->add_option("--bundle", image_.bundle, "Inspect what this bundle would start")
      ->option_text("DIR");
  sub->add_option("--rootfs", image_.rootfs, "Inspect a program of this root file system")
      ->option_text("DIR");
  sub->add_option("--program", image_.program, "The program, as the container names it")
      ->check(bad_container_path)
      ->option_text("PATH");
  sub->add_option_function<unsigned>(
         "--timeout", [this](unsigned seconds) { image_.limit = std::chrono::seconds(seconds); },
         "How long the image's ld.so may take before the start (30)")
      ->check(number_from(1, 3600))
      ->option_text("SECONDS");
  sub->add_flag("--json", json_, "As JSON");
  add_decision_options(sub);
}

Result<int> run(int argc, char** argv) {
  const auto umask = ::umask(022);  // later runs trust the files that are made here
  // These two enter a container's namespaces.
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "oci" || command == "verify") TRY(run_sealed(argv));
  if (command == kServeCommand) return serve_node_container({argv + 2, argv + argc});
  const auto words =
      command == "run" ? std::find(argv + 1, argv + argc, std::string_view("--")) : argv + argc;
  CommandLine line(command, {std::min(words + 1, argv + argc), argv + argc}, umask);
  if (const int status = parse_options(line.app(), {argv + 1, words}); status >= 0) return status;
  return line.run();
}

}  // namespace
}  // namespace heddle::hook

int main(int argc, char** argv) {
  return heddle::run_main("fs-hook", [&] {
    const auto status = heddle::hook::run(argc, argv);
    if (!status) heddle::report(status.error());
    return status ? *status : int{heddle::exit_failure};
  });
}
