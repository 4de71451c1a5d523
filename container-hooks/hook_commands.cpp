// SPDX-License-Identifier: MIT
#include "container-hooks/hook_commands.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/child.hpp"
#include "container-hooks/container_config.hpp"
#include "container-hooks/hook_files.hpp"
#include "container-hooks/trusted_files.hpp"

namespace heddle {
namespace {

std::string below_home(const char* variable, const std::string& otherwise,
                       const std::string& name) {
  if (const char* set = std::getenv(variable); set && *set == '/') return set + name;
  const char* home = std::getenv("HOME");
  return home && *home == '/' ? home + otherwise + name : std::string();
}

int fail_with(const Error& error) {
  report(error);
  return exit_failure;
}

Result<std::string> own_path() {
  if (auto good = check_trusted_programs(); !good) return fail(std::move(good.error()));
  const auto here = own_program_dir();
  if (!here) return fail(here.error());
  return *here + "/fs-hook";
}

void make_folders(const std::string& path) {
  for (auto slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1))
    (void)::mkdir(path.substr(0, slash).c_str(), 0755);
  (void)::mkdir(path.c_str(), 0755);
}

Result<void> print(const std::string& text) { return write_all(STDOUT_FILENO, text, "stdout"); }

/// The hook of a container that somebody asked for by the file that we write.
HookSettings requested(HookSettings hook) {
  hook.request.host_mpi = true;
  return hook;
}

/// Plain crun hides its process from a user's createRuntime hook; from inside it works with runc as
/// well. podman's hooks run as its own root, whoever calls it.
HookSettings with_stage(const HookFileSettings& settings, bool plain_runtime) {
  HookSettings hook = settings.hook;
  if (!settings.stage_given && plain_runtime && ::geteuid() != 0)
    hook.stage = Stage::create_container;
  return hook;
}

int end(const Result<void>& done) { return done ? exit_done : fail_with(done.error()); }

}  // namespace

std::string default_cache() {
  if (is_systems_root()) return "/var/cache/heddle/images";
  return below_home("XDG_CACHE_HOME", "/.cache", "/heddle/images");
}

std::string default_log() {
  if (is_systems_root()) return "/var/log/heddle-hook.log";
  return below_home("XDG_STATE_HOME", "/.local/state", "/heddle-hook.log");
}

int install_hook(const HookFileSettings& settings) {
  const auto program = own_path();
  if (!program) return fail_with(program.error());
  if (settings.runtime != "podman") {
    const auto config = with_hook(Json::object(), *program, requested(with_stage(settings, true)));
    if (!config) return fail_with(config.error());
    say("note: " + settings.runtime +
        " has no folder of hooks; this goes into config.json, as fs-hook bundle DIR does it");
    return end(print(to_text(*config, 2) + "\n"));
  }
  const bool for_hooks = settings.hook.request.host_mpi || !settings.hook.allow_annotations.empty();
  if (!for_hooks && (!settings.directory.empty() || !is_systems_root()))
    return fail_with(Error("install", "cannot write a hook", "nobody is named who may ask for it",
                           "--always: each container of podman --hooks-dir DIR; "
                           "--allow-annotations DIR: annotated ones, of trusted images"));
  std::string directory = settings.directory;
  if (directory.empty())
    directory = !is_systems_root()
                    ? below_home("XDG_CONFIG_HOME", "/.config", "/containers/oci/hooks.d")
                    : std::string(for_hooks ? "/etc/containers/oci/hooks.d" : "/etc/cdi");
  if (directory.empty()) return fail_with(Error("HOME", "is not set", {}, "give --dir"));
  make_folders(directory);
  if (auto good = check_trusted_directory(std::filesystem::absolute(directory)); !good)
    return fail_with(good.error());
  const auto path = directory + (for_hooks ? "/50-heddle-mpi.json" : "/heddle.json");
  const auto hook = with_stage(settings, false);
  const auto json = for_hooks ? podman_hook(*program, hook) : cdi_spec(*program, requested(hook));
  if (auto done = write_output(path, to_text(json, 2) + "\n"); !done)
    return fail_with(done.error());
  const auto log = settings.hook.log;
  if (const auto slash = log.rfind('/'); slash != std::string::npos && slash > 0)
    make_folders(log.substr(0, slash));
  return end(print(path + "\n"));
}

int print_cdi(const HookFileSettings& settings) {
  const auto program = own_path();
  if (!program) return fail_with(program.error());
  return end(print(to_text(cdi_spec(*program, requested(with_stage(settings, false))), 2) + "\n"));
}

int edit_bundle(const HookFileSettings& settings) {
  const auto program = own_path();
  if (!program) return fail_with(program.error());
  const auto path = settings.directory + "/config.json";
  const auto text = read_file(path, kConfigLimit);
  if (!text) return fail_with(text.error());
  auto config = parse_json(*text, path);
  if (!config) return fail_with(config.error());
  auto edited = with_hook(std::move(*config), *program, requested(with_stage(settings, true)));
  if (!edited) return fail_with(edited.error());
  return end(write_output(path, to_text(*edited, 2) + "\n"));
}

}  // namespace heddle
